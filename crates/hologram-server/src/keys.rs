//! API keys.

use std::hint::black_box;
use std::path::Path;

/// The keys that open the server. Without keys it is open to everybody who can reach it.
#[derive(Clone, Default)]
pub struct Keys(Vec<String>);

impl Keys {
    /// Keys from the command line and from a file, one per line; empty lines and lines that begin with `#` do not
    /// count.
    ///
    /// # Errors
    /// When the file cannot be read or has no key.
    pub fn new(given: &[String], file: Option<&Path>) -> std::io::Result<Keys> {
        let mut keys = given.to_vec();
        if let Some(path) = file {
            let text = std::fs::read_to_string(path)?;
            let before = keys.len();
            keys.extend(text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')).map(String::from));
            if keys.len() == before {
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "it has no key"));
            }
        }
        keys.retain(|key| !key.is_empty());
        Ok(Keys(keys))
    }

    /// Whether no key is needed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of the key, if it is one. The time depends only on the lengths.
    pub fn find(&self, given: &str) -> Option<usize> {
        let mut found = None;
        for (number, key) in self.0.iter().enumerate() {
            // All keys are compared, and all bytes of each.
            if same(key.as_bytes(), given.as_bytes()) {
                found = Some(number);
            }
        }
        found
    }
}

fn same(key: &[u8], given: &[u8]) -> bool {
    let mut difference = usize::from(key.len() != given.len());
    for (i, byte) in given.iter().enumerate() {
        difference |= usize::from(black_box(byte ^ key[i % key.len()]));
    }
    black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_whole() {
        let file = std::env::temp_dir().join(format!("hologram-keys-{}", std::process::id()));
        std::fs::write(&file, "# comment\n\n two \nthree\n").unwrap();
        let keys = Keys::new(&["one".into(), String::new()], Some(&file)).unwrap();
        std::fs::write(&file, "# nothing\n").unwrap();
        assert!(Keys::new(&[], Some(&file)).is_err());
        std::fs::remove_file(&file).unwrap();
        for (given, number) in [("one", Some(0)), ("two", Some(1)), ("three", Some(2))] {
            assert_eq!(keys.find(given), number);
        }
        for given in ["", "on", "onee", "oneone", "One", "#", "# comment"] {
            assert_eq!(keys.find(given), None, "{given}");
        }
    }
}
