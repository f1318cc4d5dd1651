//! Reads a call, a JSON object with a name and arguments, as it is generated.

/// What a piece of a call adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The name. Comes before all arguments.
    Name(String),
    /// A piece of the arguments' JSON text.
    Arguments(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    BetweenMembers,
    Key { start: usize },
    Colon,
    BeforeValue,
    Value { start: usize, depth: usize },
    Done,
    Failed,
}

/// A call that is being read. Keys may come in any order.
#[derive(Clone, Debug)]
pub struct Scan {
    text: String,
    /// Bytes that were looked at.
    position: usize,
    at: At,
    /// Within a string, and after a backslash in it.
    string: bool,
    escape: bool,
    key: String,
    named: Option<String>,
    /// Where the arguments begin and end.
    arguments: Option<(usize, Option<usize>)>,
    /// Whether there are only arguments: their end is the call's.
    bare: bool,
    /// Whether the name was reported.
    reported: bool,
    /// Bytes of arguments that were reported.
    sent: usize,
}

impl Default for Scan {
    fn default() -> Scan {
        Scan {
            text: String::new(),
            position: 0,
            at: At::Start,
            string: false,
            escape: false,
            key: String::new(),
            named: None,
            arguments: None,
            bare: false,
            reported: false,
            sent: 0,
        }
    }
}

impl Scan {
    /// A call of which only the arguments are left to read.
    pub fn of_arguments(name: String) -> Scan {
        Scan { at: At::BeforeValue, key: "arguments".into(), named: Some(name), bare: true, ..Scan::default() }
    }

    /// What the next piece adds. Reads no further than the object's end.
    pub fn push(&mut self, piece: &str) -> Vec<Found> {
        self.text += piece;
        while self.position < self.text.len() && !matches!(self.at, At::Done | At::Failed) {
            let byte = self.text.as_bytes()[self.position];
            if self.step(byte) {
                self.position += 1;
            }
        }
        self.found()
    }

    /// Whether the object has ended.
    pub fn is_done(&self) -> bool {
        self.at == At::Done
    }

    /// Whether this is no call.
    pub fn has_failed(&self) -> bool {
        self.at == At::Failed
    }

    /// Whether the name is known.
    pub fn is_named(&self) -> bool {
        self.named.is_some()
    }

    /// The text after the object's end.
    pub fn rest(&self) -> &str {
        if self.is_done() { &self.text[self.position..] } else { "" }
    }

    /// All text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Looks at a byte. Returns whether it was consumed.
    fn step(&mut self, byte: u8) -> bool {
        let space = byte.is_ascii_whitespace();
        match self.at {
            At::Start | At::BetweenMembers | At::Colon | At::BeforeValue if space => {}
            At::Start => self.at = if byte == b'{' { At::BetweenMembers } else { At::Failed },
            At::BetweenMembers => match byte {
                b',' => {}
                b'"' => self.at = At::Key { start: self.position },
                b'}' => self.end(),
                _ => self.at = At::Failed,
            },
            At::Key { start } => {
                if self.in_string(byte) {
                    let key = serde_json::from_str(&self.text[start..=self.position]);
                    self.at = if key.is_ok() { At::Colon } else { At::Failed };
                    self.key = key.unwrap_or_default();
                }
            }
            At::Colon => self.at = if byte == b':' { At::BeforeValue } else { At::Failed },
            At::BeforeValue => {
                self.at = At::Value { start: self.position, depth: 0 };
                if matches!(self.key.as_str(), "arguments" | "parameters") {
                    self.arguments = Some((self.position, None));
                }
                return false;
            }
            At::Value { start, depth } => return self.value(byte, start, depth),
            At::Done | At::Failed => return false,
        }
        true
    }

    fn value(&mut self, byte: u8, start: usize, depth: usize) -> bool {
        if self.string {
            if self.in_string(byte) {
                self.string = false;
                if depth == 0 {
                    self.end_value(start, self.position + 1);
                }
            }
            return true;
        }
        match byte {
            b'"' => self.string = true,
            b'{' | b'[' => self.at = At::Value { start, depth: depth + 1 },
            b'}' | b']' if depth > 1 => self.at = At::Value { start, depth: depth - 1 },
            b'}' | b']' if depth == 1 => self.end_value(start, self.position + 1),
            b',' | b'}' if depth == 0 => {
                self.end_value(start, self.position);
                return false;
            }
            _ => {}
        }
        true
    }

    /// Follows a string. Returns whether it ends here.
    fn in_string(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.escape => self.escape = false,
            b'\\' => self.escape = true,
            b'"' => return true,
            _ => {}
        }
        false
    }

    fn end_value(&mut self, start: usize, end: usize) {
        self.at = if self.bare { At::Done } else { At::BetweenMembers };
        match self.key.as_str() {
            "name" => self.named = serde_json::from_str(&self.text[start..end]).ok(),
            "arguments" | "parameters" => self.arguments = Some((start, Some(end))),
            _ => {}
        }
    }

    fn end(&mut self) {
        self.at = if self.named.is_some() { At::Done } else { At::Failed };
    }

    fn found(&mut self) -> Vec<Found> {
        let mut found = Vec::new();
        let Some(name) = &self.named else { return found };
        if !std::mem::replace(&mut self.reported, true) {
            found.push(Found::Name(name.clone()));
        }
        let arguments = match self.arguments {
            None if self.is_done() && self.sent == 0 => "{}".to_string(),
            None => return found,
            // Some models write them as a string.
            Some((start, end)) if self.text[start..].starts_with('"') => match end {
                Some(end) if self.sent == 0 => serde_json::from_str(&self.text[start..end]).unwrap_or_default(),
                _ => return found,
            },
            Some((start, end)) => {
                let end = end.unwrap_or(self.position);
                let from = (start + self.sent).min(end);
                self.text[from..end].to_string()
            }
        };
        self.sent += arguments.len();
        if !arguments.is_empty() {
            found.push(Found::Arguments(arguments));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, arguments and rest of a call in pieces of `n` characters.
    fn read(text: &str, n: usize) -> Option<(String, String, String)> {
        let mut scan = Scan::default();
        let (mut name, mut arguments) = (None, String::new());
        let characters: Vec<char> = text.chars().collect();
        for piece in characters.chunks(n) {
            for found in scan.push(&piece.iter().collect::<String>()) {
                match found {
                    Found::Name(text) => assert!(name.replace(text).is_none() && arguments.is_empty()),
                    Found::Arguments(text) => arguments += &text,
                }
            }
        }
        scan.is_done().then(|| (name.unwrap(), arguments, scan.rest().to_string()))
    }

    #[test]
    fn calls_are_read_in_any_pieces() {
        let cases = [
            (
                r#"{"name": "f", "arguments": {"a": [1, "}\"{é"], "b": {}}}rest"#,
                Some(("f", r#"{"a": [1, "}\"{é"], "b": {}}"#, "rest")),
            ),
            (r#" {"arguments": {"a": 1}, "name": "f"} "#, Some(("f", r#"{"a": 1}"#, " "))),
            (r#"{"type": "function", "name": "f", "parameters": {}}"#, Some(("f", "{}", ""))),
            (r#"{"name": "f"}"#, Some(("f", "{}", ""))),
            (r#"{"name": "f", "arguments": "{\"a\": 1}", "id": 7}"#, Some(("f", r#"{"a": 1}"#, ""))),
            (r#"{"n\u0061me":"f","arguments":{"a":-1.5e3}}"#, Some(("f", r#"{"a":-1.5e3}"#, ""))),
            (r#"{"arguments": {}}"#, None),
            (r#"{name: "f"}"#, None),
            (r#"{"name": "f", "arguments": {"#, None),
            ("text", None),
            ("", None),
        ];
        for (text, want) in cases {
            for n in 1..20 {
                let want = want.map(|(name, arguments, rest)| (name.into(), arguments.into(), rest.to_string()));
                let got = read(text, n);
                // The rest is what was pushed so far, in the last piece that was needed and after it.
                assert_eq!(got, want, "{text} in pieces of {n}");
            }
        }
    }
}
