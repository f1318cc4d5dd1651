//! Converts tokens back to text, one token at a time.

use super::Tokenizer;

/// Converts tokens to text one by one, holding back bytes until they are whole characters. Bytes that can never become
/// a character turn into U+FFFD.
#[derive(Clone, Debug, Default)]
pub struct TokenDecoder {
    show_control: bool,
    pending: Vec<u8>,
    text: String,
}

impl TokenDecoder {
    /// A decoder that continues a text: the first token keeps its leading space. Control tokens are omitted.
    pub fn new() -> TokenDecoder {
        TokenDecoder::default()
    }

    /// A decoder that spells out control tokens as in the vocabulary, such as `<|eot_id|>`.
    pub fn with_control() -> TokenDecoder {
        TokenDecoder { show_control: true, ..TokenDecoder::default() }
    }

    /// The text that this token completes: often a whole word, empty in the middle of a character. An unknown token id
    /// gives U+FFFD.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> &str {
        self.text.clear();
        if !tokenizer.append_bytes(id, self.show_control, &mut self.pending) {
            self.pending.extend_from_slice("\u{fffd}".as_bytes());
        }
        let mut done = 0;
        loop {
            let rest = &self.pending[done..];
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.text.push_str(text);
                    done = self.pending.len();
                    break;
                }
                Err(e) => {
                    let (good, bad) = rest.split_at(e.valid_up_to());
                    self.text.push_str(&String::from_utf8_lossy(good));
                    done += good.len();
                    let Some(len) = e.error_len() else { break };
                    self.text.push('\u{fffd}');
                    done += len.min(bad.len());
                }
            }
        }
        self.pending.drain(..done);
        &self.text
    }

    /// Ends the text. Returns U+FFFD in the middle of a character, else nothing.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.text.push('\u{fffd}');
        }
        &self.text
    }
}
