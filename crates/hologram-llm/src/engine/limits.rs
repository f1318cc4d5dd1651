//! Limits of constraints, checked before they are compiled: what takes time or memory beyond all measure is refused.
//!
//! Compiling takes quadratic time in the optional properties of an object, and exponential time in the patterns that a
//! text has to match at once.

use std::ops::Range;

use serde_json::Value;

use super::request::Constraint;

/// Bytes of a constraint.
const MAX_BYTES: usize = 256 << 10;

/// Values in a schema.
const MAX_NODES: usize = 10_000;

/// Nesting of a schema.
const MAX_DEPTH: usize = 64;

/// Optional properties of an object.
const MAX_OPTIONAL: usize = 500;

/// Patterns that a text has to match at once.
const MAX_PATTERNS: usize = 3;

/// Checks a constraint. The error completes "the constraint …".
pub(super) fn check(constraint: &Constraint) -> Result<(), String> {
    match constraint {
        Constraint::JsonObject => Ok(()),
        Constraint::JsonSchema(schema) => check_schema(schema),
        Constraint::Regex(regex) => check_bytes(regex.len()),
        Constraint::Lark(grammar) => check_lark(grammar),
    }
}

fn check_bytes(bytes: usize) -> Result<(), String> {
    if bytes > MAX_BYTES {
        return Err(format!("has {bytes} bytes, more than {MAX_BYTES}"));
    }
    Ok(())
}

fn check_schema(schema: &Value) -> Result<(), String> {
    let mut schema = Schema { root: schema, nodes: 0 };
    schema.check_node(schema.root, 0)?;
    check_bytes(schema.root.to_string().len())
}

struct Schema<'a> {
    root: &'a Value,
    nodes: usize,
}

impl<'a> Schema<'a> {
    fn check_node(&mut self, value: &'a Value, depth: usize) -> Result<(), String> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(format!("has more than {MAX_NODES} values"));
        }
        if depth > MAX_DEPTH {
            return Err(format!("is nested more than {MAX_DEPTH} deep"));
        }
        let object = match value {
            Value::Array(items) => return items.iter().try_for_each(|item| self.check_node(item, depth + 1)),
            Value::Object(object) => object,
            _ => return Ok(()),
        };
        // Its options include one that ignores what is not supported.
        if object.contains_key("x-guidance") {
            return Err("contains x-guidance".into());
        }
        if let Some(Value::Object(properties)) = object.get("properties") {
            let required = object.get("required").and_then(Value::as_array).map_or(0, Vec::len);
            let optional = properties.len().saturating_sub(required);
            if optional > MAX_OPTIONAL {
                return Err(format!("has an object of {optional} optional properties, more than {MAX_OPTIONAL}"));
            }
        }
        if let Some(Value::String(reference)) = object.get("$ref") {
            let Some(pointer) = reference.strip_prefix('#') else {
                return Err(format!(
                    "has the $ref {reference:?}; only parts of the schema itself, #/…, can be referred to"
                ));
            };
            if (pointer.is_empty() || pointer.starts_with('/')) && self.root.pointer(pointer).is_none() {
                return Err(format!("has the $ref {reference:?}, but no such part"));
            }
        }
        if let Some(reference) = self.endless(object) {
            return Err(format!("has the $ref {reference:?}, which refers only to itself"));
        }
        if let Some(all) = object.get("allOf") {
            let mut visits = 0;
            let patterns = self.patterns(all, &mut visits) + object.keys().filter(|key| is_pattern(key)).count();
            if patterns > MAX_PATTERNS {
                return Err(format!("has {patterns} patterns or more under one allOf, more than {MAX_PATTERNS}"));
            }
        }
        object.values().try_for_each(|child| self.check_node(child, depth + 1))
    }

    /// The reference of a schema whose references lead back to it without anything between.
    fn endless(&self, start: &'a serde_json::Map<String, Value>) -> Option<&'a str> {
        let target = |object: &'a serde_json::Map<String, Value>| {
            let pointer = object.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#'))?;
            self.root.pointer(pointer).and_then(Value::as_object)
        };
        let mut at = start;
        for _ in 0..MAX_DEPTH {
            at = target(at)?;
            if std::ptr::eq(at, start) {
                return start.get("$ref").and_then(Value::as_str);
            }
        }
        None
    }

    /// The number of patterns in a part of the schema and in what it refers to, counted a little beyond the limit.
    fn patterns(&self, value: &'a Value, visits: &mut usize) -> usize {
        *visits += 1;
        if *visits > MAX_NODES {
            // It refers to itself, or to the same parts again and again.
            return MAX_PATTERNS + 1;
        }
        match value {
            Value::Array(items) => self.sum(items.iter(), visits),
            Value::Object(object) => {
                let own = object.keys().filter(|key| is_pattern(key)).count();
                let target = object.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix('#'));
                let target = target.and_then(|pointer| self.root.pointer(pointer));
                own + self.sum(object.values().chain(target), visits)
            }
            _ => 0,
        }
    }

    fn sum(&self, values: impl Iterator<Item = &'a Value>, visits: &mut usize) -> usize {
        let mut patterns = 0;
        for value in values {
            patterns += self.patterns(value, visits);
            if patterns > MAX_PATTERNS {
                break;
            }
        }
        patterns
    }
}

fn is_pattern(key: &str) -> bool {
    matches!(key, "pattern" | "patternProperties" | "format")
}

/// Schemas within a grammar have the limits of others. `&` and `~` between expressions make one text match several.
fn check_lark(grammar: &str) -> Result<(), String> {
    check_bytes(grammar.len())?;
    let intersections = scan_lark(grammar, |_, schema| check_schema(&schema))?;
    if intersections > MAX_PATTERNS {
        return Err(format!("has {intersections} operators & and ~, more than {MAX_PATTERNS}"));
    }
    Ok(())
}

/// Calls `visit` with the place and value of each schema after `%json`. Returns the number of operators `&` and `~`.
///
/// # Errors
/// When a schema is missing after `%json`, and those of `visit`.
pub(super) fn scan_lark(
    grammar: &str,
    mut visit: impl FnMut(Range<usize>, Value) -> Result<(), String>,
) -> Result<usize, String> {
    let (mut rest, mut intersections) = (grammar, 0);
    while let Some(at) = rest.find(['"', '/', '&', '~', '%']) {
        let (token, after) = rest[at..].split_at(1);
        rest = match token {
            "&" | "~" => {
                intersections += 1;
                after
            }
            "%" => match after.strip_prefix("json") {
                Some(schema) => {
                    let mut values = serde_json::Deserializer::from_str(schema).into_iter::<Value>();
                    let value = values.next().and_then(Result::ok).ok_or("has no schema after %json")?;
                    let start = grammar.len() - schema.len();
                    visit(start..start + values.byte_offset(), value)?;
                    &schema[values.byte_offset()..]
                }
                None => after,
            },
            "/" if after.starts_with('/') => after.split_once('\n').map_or("", |(_, rest)| rest),
            quote => skip_quoted(after, quote),
        };
    }
    Ok(intersections)
}

/// The text after a quoted one.
fn skip_quoted<'a>(text: &'a str, quote: &str) -> &'a str {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            // A slash or a quote without an end, such as in a comment: what follows is code again.
            '\n' => return &text[at..],
            _ if text[at..].starts_with(quote) => return &text[at + 1..],
            _ => {}
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bombs_are_refused() {
        let properties: serde_json::Map<String, Value> = (0..501).map(|i| (format!("p{i}"), json!({}))).collect();
        let names: Vec<&String> = properties.keys().collect();
        let patterns = |n: usize| json!({"allOf": vec![json!({"pattern": "^.*a.{9}"}); n]});
        let nested = (0..70).fold(json!({}), |inner, _| json!({"items": inner}));
        let schemas = [
            (json!({"type": "object", "properties": properties}), "501 optional properties"),
            (json!({"type": "object", "properties": properties, "required": names}), ""),
            (json!({"enum": (0..10_001).collect::<Vec<_>>()}), "more than 10000 values"),
            (json!({"description": "x".repeat(300_000)}), "bytes, more than"),
            (patterns(4), "4 patterns"),
            (patterns(3), ""),
            (json!({"$defs": {"a": {"pattern": "a"}}, "allOf": vec![json!({"$ref": "#/$defs/a"}); 4]}), "patterns"),
            (json!({"allOf": [{"$ref": "#"}]}), "patterns"),
            (json!({"$ref": "#"}), "refers only to itself"),
            (
                json!({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
                "refers only",
            ),
            (json!({"items": {"$ref": "#"}}), ""),
            (nested, "nested more than 64"),
            (json!({"type": "string", "x-guidance": {"lenient": true}}), "x-guidance"),
        ];
        for (schema, want) in schemas {
            let lark = format!("start: \"%json\" a // 'a\na: %json {schema}\nb: /[&/&/]\\//");
            for got in [check(&Constraint::JsonSchema(schema.clone())), check(&Constraint::Lark(lark))] {
                match got {
                    Ok(()) => assert_eq!(want, "", "{:.80}", schema.to_string()),
                    Err(e) => assert!(!want.is_empty() && e.contains(want), "{e}"),
                }
            }
        }
        for (lark, good) in [("start: A & B & C & ~D & E", false), ("start: \"& & & &\" /&&&&&/ A & B", true)] {
            assert_eq!(check(&Constraint::Lark(lark.into())).is_ok(), good, "{lark}");
        }
        assert!(check(&Constraint::Regex("a".repeat(300_000))).is_err());
    }
}
