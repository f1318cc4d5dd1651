//! What to do instead: hints for command lines that come from other tools.

/// Words that other tools have for a command.
const ALSO_KNOWN: &[(&str, &[&str])] = &[
    ("hologram models", &["list", "ls", "model", "ps"]),
    ("hologram run", &["generate", "complete", "completion", "prompt", "infer"]),
    ("hologram pull", &["download", "get", "fetch", "install"]),
    ("hologram rm", &["remove", "delete", "uninstall"]),
    ("hologram inspect", &["show", "info", "dump", "metadata"]),
    ("hologram bench", &["benchmark", "perf", "speed"]),
    ("hologram asm", &["compile", "assemble"]),
    ("hologram --version", &["version"]),
];

/// The hint for a message of the parser about a call of `command`, if there is a better one than its own.
pub fn hint(message: &str, command: &str) -> Option<String> {
    let quoted = |start: &str| message.strip_prefix(start)?.split('\'').next();
    if let Some(word) = quoted("unrecognized subcommand '") {
        let ending = word.rsplit('.').next().unwrap_or_default();
        if ending.eq_ignore_ascii_case("gguf") || word.starts_with("hf:") {
            return Some(format!("use `hologram run {word}` or `hologram chat {word}`"));
        }
        let letters = |word: &str| {
            let mut letters: Vec<char> = word.chars().collect();
            letters.sort_unstable();
            letters
        };
        if let Some(meant) = crate::args::commands().into_iter().find(|name| letters(name) == letters(word)) {
            return Some(format!("use `hologram {meant}`"));
        }
        let known = ALSO_KNOWN.iter().find(|(_, words)| words.contains(&word));
        return known.map(|(command, _)| format!("use `{command}`"));
    }
    // `-ngl 99` is read as `-n gl`.
    let layers = message.starts_with("invalid value 'gl' for '--max-tokens") || message.contains("'--n-gpu-layers'");
    if layers || message.contains("'--gpu-layers'") || message.contains("'--gpu'") {
        return Some("the whole model is on the GPU if one works; `--device cpu` keeps it off".into());
    }
    match (quoted("unexpected argument '")?, command) {
        ("-m" | "--model", "hologram") => Some("use `hologram run -m MODEL` or `hologram chat -m MODEL`".into()),
        (word, "hologram perplexity") if !word.starts_with('-') => Some(format!("use --file {word}")),
        (word, "hologram bench") if !word.starts_with('-') => Some("one model at a time".into()),
        (word, "hologram run") if !word.starts_with('-') => Some("put the prompt in quotes".into()),
        _ => None,
    }
}
