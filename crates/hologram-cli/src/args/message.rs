//! The messages of the command-line parser, in one sentence.

use super::usage;

/// Prints the requested help or version.
///
/// # Errors
/// A usage error in one sentence if the command line is wrong; an error if standard output fails.
pub fn print_help_or_reject(error: &clap::Error) -> anyhow::Result<()> {
    if error.use_stderr() {
        return usage(sentence(&error.render().to_string()));
    }
    Ok(error.print()?)
}

/// Converts a message of clap, whose paragraphs are the error, tips and the usage, into one sentence.
fn sentence(text: &str) -> String {
    let mut paragraphs = text.trim().split("\n\n").map(str::trim);
    let error = paragraphs.next().unwrap_or_default();
    let mut lines = error.strip_prefix("error: ").unwrap_or(error).lines().map(str::trim);
    let mut sentence = plain(lines.next().unwrap_or_default());
    let rest = lines.collect::<Vec<_>>().join(", ");
    if !rest.is_empty() {
        sentence += &format!(" {rest}");
    }
    let (mut hints, mut command) = (String::new(), String::new());
    for paragraph in paragraphs {
        if let Some(usage) = paragraph.strip_prefix("Usage: ") {
            let words = usage.split_whitespace().take_while(|w| w.starts_with(|c: char| c.is_alphanumeric()));
            command = words.collect::<Vec<_>>().join(" ");
            hints += &format!("; see {command} --help");
        } else {
            let tips = paragraph.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
            // An unknown option is seldom meant as text.
            let tips = tips.filter(|tip| !tip.starts_with("to pass '-"));
            tips.for_each(|tip| hints += &format!("; {tip}"));
        }
    }
    // A hint of our own instead of the parser's tips.
    if let Some(hint) = crate::hints::hint(&sentence, &command) {
        hints = format!("; {hint}; see {command} --help");
    }
    sentence + &hints
}

/// Replaces Rust's number errors in a line of clap by what is expected. No whole number here may be negative.
fn plain(line: &str) -> String {
    let whole = if line.contains("'-") { "it must be a whole number, 0 or more" } else { "it must be a whole number" };
    let words = [
        ("invalid digit found in string", whole),
        ("cannot parse integer from empty string", whole),
        ("number too large to fit in target type", "it is too large"),
        ("invalid float literal", "it must be a number"),
        ("cannot parse float from empty string", "it must be a number"),
    ];
    let range = line.rsplit_once(" is not in ").and_then(|(start, range)| Some((start, range.split_once("..=")?)));
    if let Some((start, (least, most))) = range {
        let start = start.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-');
        return format!("{start}it must be a whole number from {least} to {most}");
    }
    let found = words.iter().find_map(|(rust, said)| Some(line.strip_suffix(rust)?.to_string() + said));
    found.unwrap_or_else(|| line.to_string())
}
