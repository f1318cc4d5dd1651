//! The messages of the command-line parser, in one sentence.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::usage;

/// Prints the requested help or version. `words` is the command line.
///
/// # Errors
/// A usage error in one sentence if the command line is wrong; an error if standard output fails.
pub fn print_help_or_reject(error: &clap::Error, words: &[OsString]) -> anyhow::Result<()> {
    if error.use_stderr() {
        return usage(sentence(&with_range(error, words).unwrap_or_else(|| error.render().to_string())));
    }
    Ok(error.print()?)
}

/// The message about a word that is no number, with the range that its option has. The parser names that only to a
/// number outside of it.
fn with_range(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else { return None };
    if error.kind() != ErrorKind::ValueValidation || value.parse::<f64>().is_ok() {
        return None;
    }
    let outside = i64::MAX.to_string();
    let numbered = words.iter().map(|word| match word.to_str() {
        Some(word) if word == value || word.starts_with('-') && word.ends_with(&format!("={value}")) => {
            format!("{}{outside}", &word[..word.len() - value.len()]).into()
        }
        _ => word.clone(),
    });
    let other = super::Cli::of_words(numbered).err()?;
    let same = other.get(ContextKind::InvalidArg) == error.get(ContextKind::InvalidArg);
    let message = other.render().to_string();
    (same && message.contains(" is not in ")).then(|| message.replace(&outside, value))
}

/// Converts a message of clap, whose paragraphs are the error, tips and the usage, into one sentence.
fn sentence(text: &str) -> String {
    let mut paragraphs = text.trim().split("\n\n").map(str::trim);
    let error = paragraphs.next().unwrap_or_default();
    let mut lines = error.strip_prefix("error: ").unwrap_or(error).lines().map(str::trim);
    let mut sentence = plain(lines.next().unwrap_or_default());
    // A second model of `bench` is taken for one of its subcommands.
    let second =
        sentence.strip_prefix("the subcommand '").and_then(|rest| rest.strip_suffix("' cannot be used with '[MODEL]'"));
    if let Some(word) = second {
        sentence = format!("unexpected argument '{word}'");
    }
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
            let tips = tips.filter(|tip| !tip.starts_with("to pass '-") && is_near(&sentence, tip));
            tips.for_each(|tip| hints += &format!("; {tip}"));
        }
    }
    // A hint of our own instead of the parser's tips.
    if let Some(hint) = crate::hints::hint(&sentence, &command) {
        let command = if command.is_empty() { "hologram" } else { &command };
        hints = format!("; {hint}; see {command} --help");
    }
    sentence + &hints
}

/// Whether the option that a tip names is near the one that was typed; the parser's own measure is generous.
fn is_near(sentence: &str, tip: &str) -> bool {
    let option = |text: &str| text.split('\'').find(|word| word.starts_with("--")).map(String::from);
    match (option(sentence), option(tip)) {
        (Some(typed), Some(known)) => strsim::osa_distance(&typed, &known) <= typed.len() / 4,
        _ => match (sentence.strip_prefix("unrecognized subcommand '"), tip.split_once("subcommand exists: '")) {
            (Some(typed), Some((_, known))) => {
                let word = |text: &str| text.split('\'').next().unwrap_or_default().to_string();
                crate::hints::is_near(&word(typed), &word(known))
            }
            _ => true,
        },
    }
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
        // The value stands before the range once more.
        let start = start.rsplit_once(": ").map_or(start, |(start, _)| start);
        let start = format!("{start}: ");
        return format!("{start}it must be a whole number from {least} to {most}");
    }
    let found = words.iter().find_map(|(rust, said)| Some(line.strip_suffix(rust)?.to_string() + said));
    found.unwrap_or_else(|| line.to_string())
}
