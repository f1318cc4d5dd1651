//! What to do instead: hints for command lines that come from other tools.

/// Words that other tools have for a command.
const ALSO_KNOWN: &[(&str, &[&str])] = &[
    ("hologram models", &["list", "ls", "model", "ps"]),
    ("hologram run", &["generate", "complete", "prompt", "infer", "ask", "llama-cli", "mlx_lm.generate"]),
    ("hologram chat", &["repl", "talk", "mlx_lm.chat"]),
    ("hologram serve", &["server", "start", "api", "llama-server", "mlx_lm.server"]),
    ("hologram completions", &["completion"]),
    ("hologram pull", &["download", "get", "fetch", "install"]),
    ("hologram rm", &["remove", "delete", "uninstall"]),
    ("hologram inspect", &["show", "info", "dump", "metadata"]),
    ("hologram bench", &["benchmark", "perf", "speed", "llama-bench"]),
    ("hologram quantize IN OUT.gguf TYPE", &["convert", "llama-quantize", "mlx_lm.convert"]),
    ("hologram embed", &["embedding", "embeddings"]),
    ("hologram perplexity", &["ppl", "eval"]),
    ("hologram devices", &["gpu", "gpus", "list-devices"]),
    ("hologram selftest", &["test"]),
    ("hologram asm", &["compile", "assemble"]),
    ("hologram --version", &["version"]),
];

/// Commands of other tools that have none here, and what serves instead.
const NO_COMMAND: &[(&[&str], &str)] = &[
    (&["ollama", "llama", "vllm", "mlx"], "leave it out: `hologram run` and `hologram serve` are the commands"),
    (&["stop", "unload"], "Ctrl-C ends `hologram serve`, and its --unload-after S unloads a model that is idle"),
    (&["create", "modelfile"], "system prompts and settings are options of `hologram chat` and `hologram serve`"),
    (&["push", "upload", "publish"], "models are downloaded, and never sent anywhere"),
    (&["cp", "copy"], "a model is a file: copy it as one; `hologram serve -m NAME=FILE` names it for clients"),
    (&["login", "logout", "signin", "auth"], "HF_TOKEN holds a token of Hugging Face"),
    (&["update", "upgrade"], "install the new version as you installed this one"),
    (&["train", "finetune", "fine-tune", "lora"], "training is in Rust and Python: docs/rust.md, docs/python.md"),
    (&["config", "settings", "env"], "`hologram doctor` shows the environment, and options are given in each call"),
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
    (&["-mg", "-sm", "-ts"], ONE_GPU),
    (&["-tb"], "-t sets the threads of prompts too"),
    (&["-dev"], "--device sets the device"),
    (&["-nkvo"], "the KV cache is on the model's device"),
    (&["-co"], "nothing is coloured"),
];

const CONTEXT: &str = "-c N sets the length of the context";
const ONE_GPU: &str = "a model is on one GPU, which --device cuda:N chooses";
const PIECES: &str = "a prompt is computed in pieces of a size that fits the device";
const FIGURES: &str = "figures of each text are always shown, and --json prints them";
const SAMPLERS: &str = "tokens are sampled by temperature, top-k, top-p, typical-p, min-p and penalties";
const TEXT: &str = "the text stands after the model, or comes from standard input";
const WORKGROUP: &str = "the program says how large a workgroup is, and --grid how many there are";
const ROPE: &str = "the model's files say how positions are encoded";

/// Options of llama.cpp, Ollama, vLLM, MLX and candle, and what serves instead. Where a command has such an option
/// itself, its parser takes it.
const ELSEWHERE: &[(&[&str], &str)] = &[
    (&["--flash-attn", "--use-flash-attn", "--no-flash-attn", "--flash-attention"], "attention is always fused"),
    (&["--max-model-len", "--max-kv-size", "--max-seq-len", "--context-length", "--num-ctx", "--n-ctx"], CONTEXT),
    (&["--gpu-memory-utilization"], "--gpu-memory SIZE limits the GPU's memory that is used, such as 16GB"),
    (&["-i", "--interactive", "--interactive-first", "--conversation"], "`hologram chat` converses"),
    (&["-b", "-u", "--batch-size", "--ubatch-size", "--prefill-step-size"], PIECES),
    (&["--mlock", "--no-mmap", "--mmap"], "a model's file is mapped into memory, and stays there while it is used"),
    (&["--numa", "--poll", "--prio", "--cpu-mask", "-C"], "-t sets the number of threads; the system places them"),
    (&["--tensor-parallel-size", "--tp", "--split-mode", "--tensor-split", "--main-gpu"], ONE_GPU),
    (&["--pipeline-parallel-size", "--data-parallel-size"], ONE_GPU),
    (&["--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-ext-factor"], ROPE),
    (&["--cpu", "--no-gpu"], "--device cpu computes on the CPU"),
    (&["--cuda", "--gpu", "--gpus"], "--device cuda computes on an NVIDIA GPU, which is the default if one works"),
    (&["--model-id", "--hf-repo", "--repo", "--model-path", "--hf-file"], "-m takes a file, a folder or hf:OWNER/NAME"),
    (&["--trust-remote-code"], "no code of a model's repository is ever run"),
    (
        &["--dtype", "--quantization", "--quantized", "--bf16", "--fp16"],
        "a model runs in the types of its file; `hologram quantize` writes others",
    ),
    (
        &["--cache-type-k", "--cache-type-v", "--kv-cache-dtype", "--kv-bits"],
        "--kv sets the element type of the KV cache",
    ),
    (
        &["--max-new-tokens", "--sample-len", "--num-predict", "--max-length"],
        "-n N sets the number of tokens to generate",
    ),
    (
        &["--ignore-chat-template", "--no-conversation", "--no-chat-template"],
        "`hologram run --raw` leaves the chat template out",
    ),
    (&["--jinja", "--apply-chat-template"], "the chat template of a model is always used"),
    (
        &["--hidethinking", "--reasoning-budget", "--enable-thinking"],
        "--think show, hide or off says what becomes of thoughts",
    ),
    (&["-j", "--json-schema-file"], "--json-schema takes a schema or its file"),
    (&["--format"], "--json prints one JSON object, and --json-schema lets the model write JSON"),
    (&["--prompt-cache", "--prompt-cache-file"], "`hologram chat --session FILE` keeps what is computed"),
    (&["--draft-model", "--model-draft", "--speculative-config"], "--draft names a draft model"),
    (&["--num-draft-tokens", "--draft-max", "--draft-n"], "--speculate N sets the number of guesses"),
    (&["--adapter-path", "--adapter", "--lora-scaled", "--enable-lora"], "--lora FILE[:SCALE] takes an adapter"),
    (&["--served-model-name"], "--alias names the model for clients"),
    (&["--max-num-seqs", "--max-batch-size"], "--max-sequences N sets how many texts are generated at once"),
    (&["--max-num-batched-tokens"], "--step-tokens N sets the tokens of a step"),
    (
        &["--no-display-prompt", "--log-disable", "--quiet", "-q"],
        "messages go to standard error, and the text alone to standard output",
    ),
    (&["--no-warmup", "--warmup"], "nothing is computed before the first prompt"),
    (&["--reverse-prompt", "--stop-sequence", "--extra-eos-token"], "--stop TEXT ends the text before it"),
    (&["--repeat-last-n", "--penalty-last-n"], "penalties count the last 64 tokens"),
    (&["--repetition-penalty"], "--repeat-penalty R is its name here"),
    (&["--system-prompt-file"], "`hologram chat --system TEXT` sets the system prompt"),
    (&["--mirostat", "--dry-multiplier", "--xtc-probability", "--top-n-sigma", "--dynatemp-range"], SAMPLERS),
    (&["--image", "--mmproj", "--audio"], "models that see or hear are not supported: docs/scope.md"),
    (&["--chat-template", "--chat-template-file"], "`hologram serve --chat-template FILE` takes another template"),
    (&["--ignore-eos"], "a text ends where the model ends it; requests to `hologram serve` may ask for more"),
    (&["--logit-bias"], "requests to `hologram serve` take logit_bias"),
    (&["--keep", "--no-context-shift", "--context-shift"], "`hologram chat` drops the oldest turns of a full context"),
    (&["--tokenizer", "--tokenizer-path"], "the tokenizer is that of the model's files"),
    (&["--revision", "--branch"], "models come from the main branch of a repository"),
    (&["--tracing", "--trace"], "--profile OUT.json writes a timeline"),
    (&["--device-map"], "--device sets the device"),
    (&["--no-kv-offload"], "the KV cache is on the model's device"),
    (&["--rpc"], "a model runs on one machine"),
    (&["--override-kv"], "the metadata of a model's file are used as they are"),
    (&["--color", "--colors", "--simple-io"], "nothing is coloured"),
    (&["--escape", "-e"], "write special characters as they are; -f FILE takes a prompt of several lines"),
    (&["--keepalive", "--keep-alive"], "`hologram serve --unload-after S` unloads a model that is idle"),
];

/// Options that mean something else elsewhere, by the command.
const BY_COMMAND: &[(&str, &[&str], &str)] = &[
    ("hologram run", &["-v", "--verbose", "--verbose-prompt", "--timings"], FIGURES),
    ("hologram chat", &["-v", "--verbose", "--verbose-prompt", "--timings"], "/stats shows the figures of a reply"),
    ("hologram run", &["--prompt-file"], "use --file"),
    ("hologram bench", &["--n-prompt", "-pg"], "use -p"),
    ("hologram bench", &["--n-gen"], "use -n"),
    ("hologram bench", &["--repetitions"], "use -r"),
    ("hologram models", &["ls", "list"], "`hologram models` alone lists them"),
    ("hologram models", &["rm", "remove", "delete"], "use `hologram rm`"),
    ("hologram models", &["pull", "download"], "use `hologram pull`"),
    ("hologram cache", &["clear", "clean", "rm"], "use --clear"),
    ("hologram cache", &["ls", "list", "show"], "`hologram cache` alone shows it"),
    ("hologram tokenize", &["-f", "--file", "-p", "--prompt"], TEXT),
    ("hologram exec", &["--block", "--workgroup", "--threads-per-block"], WORKGROUP),
    ("hologram check", &["--device"], "a program is checked for every device; `hologram exec --device` runs it on one"),
    ("hologram serve", &["--embedding", "--embeddings"], "/v1/embeddings is always served"),
    ("hologram serve", &["--slots", "--metrics", "--cont-batching"], "it is always on; --without turns parts off"),
    ("hologram serve", &["--cors", "--allowed-origins"], "use --cors-origin"),
    ("hologram serve", &["--log-file"], "messages go to standard error"),
    ("hologram run", &["--log-file"], "messages go to standard error"),
    ("hologram bench", &["-o", "--output", "--output-format"], "use --json"),
    ("hologram bench", &["-v", "--verbose"], "--profile OUT.json writes what each kernel takes"),
    ("hologram serve", &["-p"], "use --port"),
    ("hologram serve", &["-n", "-np"], "use --max-tokens or --max-sequences"),
    ("hologram serve", &["-v", "--verbose", "--verbosity", "-lv"], "--log info or debug says what is logged"),
    ("hologram serve", &["-a"], "use --alias"),
    ("hologram run", &["--system", "--system-prompt"], "use `hologram chat --system`"),
    ("hologram chat", &["--system-prompt"], "use --system"),
    ("hologram run", &["-r"], "use --stop"),
    ("hologram chat", &["-r", "--stop"], "Ctrl-C stops a reply; `hologram run --stop TEXT` stops before a text"),
    ("hologram quantize", &["--out", "-o", "--output", "--outfile"], "the file to write stands after the model"),
    ("hologram quantize", &["--outtype", "--quant", "-q"], "use --type"),
    (
        "hologram pull",
        &["--include", "--revision", "--local-dir"],
        "hf:OWNER/NAME:FILE takes one file, and HF_HOME names another folder",
    ),
];

/// What to do instead of an option of llama.cpp that is none here, among the words of a command.
pub fn of_llama_cpp(words: &[std::ffi::OsString]) -> Option<String> {
    let words = words.iter().skip(1).map_while(|word| word.to_str().filter(|word| *word != "--"));
    words.into_iter().find_map(|word| {
        let (_, instead) = OF_LLAMA_CPP.iter().find(|(names, _)| names.contains(&word))?;
        Some(format!("unexpected argument '{word}'; {instead}"))
    })
}

/// Whether a word is a command with a letter that is wrong, missing or too many, or with two if it is long.
pub fn is_near(word: &str, command: &str) -> bool {
    strsim::osa_distance(word, command) <= (word.chars().count() / 4).clamp(1, 2)
}

/// What to do instead of a command that is none here, if that is known.
pub fn of_command(word: &str) -> Option<String> {
    let letters = |word: &str| {
        let mut letters: Vec<char> = word.chars().collect();
        letters.sort_unstable();
        letters
    };
    if let Some(meant) = crate::args::commands().into_iter().find(|name| letters(name) == letters(word)) {
        return Some(format!("use `hologram {meant}`"));
    }
    if let Some((command, _)) = ALSO_KNOWN.iter().find(|(_, words)| words.contains(&word)) {
        return Some(format!("use `{command}`"));
    }
    NO_COMMAND.iter().find(|(words, _)| words.contains(&word)).map(|(_, instead)| instead.to_string())
}

/// The hint for a message of the parser about a call of `command`, if there is a better one than its own.
pub fn hint(message: &str, command: &str) -> Option<String> {
    let quoted = |start: &str| message.strip_prefix(start)?.split('\'').next();
    if let Some(word) = quoted("unrecognized subcommand '") {
        let ending = word.rsplit('.').next().unwrap_or_default();
        if ending.eq_ignore_ascii_case("gguf") || word.starts_with("hf:") {
            return Some(format!("use `hologram run {word}` or `hologram chat {word}`"));
        }
        if let Some(instead) = of_command(word) {
            return Some(instead);
        }
        let near = crate::args::commands().iter().any(|name| is_near(word, name));
        return (!near).then(|| format!("`hologram run {word:?}` continues a text"));
    }
    // `-ngl 99` is read as `-n gl`.
    let layers = message.starts_with("invalid value 'gl' for '--max-tokens") || message.contains("'--n-gpu-layers'");
    if layers || message.contains("'--gpu-layers'") || message.contains("'--gpu'") {
        return Some("the whole model is on the GPU if one works; `--device cpu` keeps it off".into());
    }
    let unexpected = quoted("unexpected argument '")?;
    let here = BY_COMMAND.iter().find(|(of, names, _)| *of == command && names.contains(&unexpected));
    if let Some((.., instead)) = here {
        return Some(instead.to_string());
    }
    if let Some((_, instead)) = ELSEWHERE.iter().find(|(names, _)| names.contains(&unexpected)) {
        return Some(instead.to_string());
    }
    match (unexpected, command) {
        ("-m" | "--model", "hologram") => Some("use `hologram run -m MODEL` or `hologram chat -m MODEL`".into()),
        (word, "hologram perplexity") if !word.starts_with('-') => Some(format!("use --file {word}")),
        (word, "hologram bench") if !word.starts_with('-') => Some("one model at a time".into()),
        (word, "hologram serve") if word.parse::<u16>().is_ok() => Some(format!("use --port {word}")),
        (word, "hologram exec") if word.contains('=') => Some(format!("use --arg {word}")),
        (word, "hologram exec") if word.starts_with(|c: char| c.is_ascii_digit()) => Some(format!("use --grid {word}")),
        (word, "hologram asm") if !word.starts_with('-') => Some(format!("use -o {word}")),
        (word, "hologram quantize") if word.parse::<u32>().is_ok() => Some(format!("use -t {word}")),
        _ => None,
    }
}
