//! What to do instead: hints for command lines that come from other tools.

/// Words that other tools have for a command.
const ALSO_KNOWN: &[(&str, &[&str])] = &[
    ("hologram models", &["list", "ls", "model", "ps"]),
    ("hologram run", &["generate", "complete", "prompt", "infer"]),
    ("hologram completions", &["completion"]),
    ("hologram pull", &["download", "get", "fetch", "install"]),
    ("hologram rm", &["remove", "delete", "uninstall"]),
    ("hologram inspect", &["show", "info", "dump", "metadata"]),
    ("hologram bench", &["benchmark", "perf", "speed"]),
    ("hologram asm", &["compile", "assemble"]),
    ("hologram --version", &["version"]),
];

/// Short options of llama.cpp of several letters, which are read as others here, and what serves instead.
const OF_LLAMA_CPP: &[(&[&str], &str)] = &[
    (&["-hf", "-hfr"], "-m hf:OWNER/NAME[:TYPE] takes a model from Hugging Face"),
    (&["-hff"], "-m hf:OWNER/NAME:FILE takes a file from Hugging Face"),
    (&["-ngl"], "the whole model is on the GPU if one works; `--device cpu` keeps it off"),
    (&["-fa"], "attention is always fused"),
    (&["-ctk", "-ctv"], "--kv sets the element type of the KV cache"),
    (&["-sys"], "`hologram chat --system` sets the system message"),
    (&["-cnv"], "`hologram chat` converses"),
    (&["-no-cnv"], "`hologram run --raw` leaves the chat template out"),
    (&["-sp"], "special tokens of a prompt are always read"),
    (&["-np"], "`hologram serve --max-sequences N` sets how many requests run at once"),
    (&["-cb"], "`hologram serve` always batches"),
    (&["-md"], "--draft names a draft model"),
    (&["-ot", "-cmoe", "-ncmoe"], "--experts cpu computes the experts on the CPU"),
];

/// What to do instead of an option of llama.cpp that is none here, among the words of a command.
pub fn of_llama_cpp(words: &[std::ffi::OsString]) -> Option<String> {
    let words = words.iter().skip(1).map_while(|word| word.to_str().filter(|word| *word != "--"));
    words.into_iter().find_map(|word| {
        let (_, instead) = OF_LLAMA_CPP.iter().find(|(names, _)| names.contains(&word))?;
        Some(format!("unexpected argument '{word}'; {instead}"))
    })
}

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
        (word, "hologram quantize") if !word.starts_with('-') => Some(format!("use --type {word}")),
        ("--system" | "--system-prompt", "hologram run") => Some("use `hologram chat --system`".into()),
        ("-r" | "--reverse-prompt", "hologram run" | "hologram chat") => Some("use --stop".into()),
        _ => None,
    }
}
