//! Safe printing of text from files, and bounded reading.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, ensure};
pub use hologram_hub::size;

/// Maximum characters of an error message; longer ones contain a string of a damaged file.
pub const MESSAGE: usize = 2000;
/// Maximum characters of a name.
pub const NAME: usize = 80;

/// Escapes control characters, because names in a file may hold anything, and cuts the text after `limit` characters.
pub fn printable(text: &str, limit: usize) -> String {
    let mut out = String::new();
    for c in text.chars().take(limit) {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    if text.chars().nth(limit).is_some() {
        out.push('…');
    }
    out
}

/// A word of the command line for messages: quoted if it is empty or has spaces or control characters.
pub fn shown(word: &str) -> String {
    let plain = !word.is_empty() && !word.chars().any(|c| c.is_whitespace() || c.is_control());
    if plain { word.into() } else { format!("{word:?}") }
}

/// The name that is nearest to a word, if one is near.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let distance = |name: &&str| strsim::osa_distance(word, name);
    names.into_iter().min_by_key(distance).filter(|name| distance(name) <= 1 + word.chars().count() / 4)
}

/// A number of things, whose plural ends in s.
pub fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Reads a source of at most `limit` bytes.
///
/// # Errors
/// When reading fails or there are more.
pub fn read_bounded(source: impl Read, limit: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(limit + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= limit, "it is longer than {} MiB", limit >> 20);
    Ok(bytes)
}

/// Reads a file or pipe of at most `limit` bytes; `-` is standard input.
///
/// # Errors
/// Names the file.
pub fn read_input(path: &Path, limit: u64) -> anyhow::Result<Vec<u8>> {
    if path == Path::new("-") {
        return read_bounded(std::io::stdin().lock(), limit).context("cannot read standard input");
    }
    let read = || {
        // Checked before opening: opening a device may block or have side effects.
        let kind = std::fs::metadata(path)?.file_type();
        ensure!(kind.is_file() || is_pipe(kind), "it is neither a regular file nor a pipe");
        read_bounded(std::fs::File::open(path)?, limit)
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// Reads a text of at most `limit` bytes from a regular file, or for `-` from standard input. Also gives its name for
/// messages.
///
/// # Errors
/// Names the file.
pub fn read_text(path: &Path, limit: u64) -> anyhow::Result<(String, String)> {
    let (name, bytes) = match path == Path::new("-") {
        true => ("standard input".to_string(), read_input(path, limit)?),
        false => (path.display().to_string(), read_file(path, limit)?),
    };
    let text = String::from_utf8(bytes).with_context(|| format!("{name} is not UTF-8"))?;
    Ok((name, text))
}

#[cfg(unix)]
fn is_pipe(kind: std::fs::FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&kind)
}

#[cfg(not(unix))]
fn is_pipe(_: std::fs::FileType) -> bool {
    false
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// Names the file.
pub fn read_file(path: &Path, limit: u64) -> anyhow::Result<Vec<u8>> {
    let read = || {
        // Checked before opening: a pipe would wait for its writer.
        ensure!(std::fs::metadata(path)?.is_file(), "it is not a regular file");
        read_bounded(std::fs::File::open(path)?, limit)
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_long_text_is_cut() {
        assert_eq!(printable("a\u{1b}[2J\nb", 80), "a\\u{1b}[2J\\nb");
        assert_eq!(printable("αβγδ", 4), "αβγδ");
        assert_eq!(printable("αβγδ", 3), "αβγ…");
    }

    #[test]
    fn sizes_have_fitting_units() {
        let sizes = [900, 7_740_000, 398_000_000, 4_920_000_000, 1_000_000_000_000_000].map(size);
        assert_eq!(sizes, ["0.9 KB", "7.7 MB", "398 MB", "4.9 GB", "1000.0 TB"]);
    }

    #[test]
    fn reading_stops_at_the_limit() {
        assert_eq!(read_bounded(&[7u8; 10][..], 10).unwrap(), [7; 10]);
        assert!(read_bounded(std::io::repeat(0), 1 << 20).unwrap_err().to_string().contains("longer than 1 MiB"));
    }
}
