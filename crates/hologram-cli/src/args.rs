//! The command line. The comments on fields are the help texts.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in help texts are not links")]

mod bench;
mod constraint;
mod embed;
mod experts;
mod imatrix;
mod load;
mod lora;
mod message;
mod quantize;
mod sampling;
mod serve;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use hologram_backends::{BackendError, BackendType, OpenOptions, Precision};

pub use bench::{BenchArgs, BenchCommand, BenchOpsArgs};
pub use constraint::ConstraintArgs;
pub use embed::{EmbedArgs, Pool, RerankArgs};
pub use experts::ExpertsArgs;
pub use imatrix::ImatrixArgs;
pub use load::LoadArgs;
pub use lora::LoraArgs;
pub use message::print_help_or_reject;
pub use quantize::QuantizeArgs;
pub use sampling::{Kv, SamplingArgs};
pub use serve::{Log, ServeArgs, SpeculationArgs};

/// Run language models and Atlas programs at hardware speed.
///
/// Without a command, continues a sample prompt with the built-in model.
#[derive(Parser)]
#[command(name = "hologram", version, disable_help_subcommand = true)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Continue a prompt, or ask a chat model one question
    Run(RunArgs),
    /// Hold a conversation
    Chat(ChatArgs),
    /// Serve a model over HTTP
    Serve(Box<ServeArgs>),
    /// Measure a server of OpenAI's interface under load
    Load(LoadArgs),
    /// Measure prefill and decode speed
    Bench(BenchArgs),
    /// Write the logits of given tokens
    Logits(LogitsArgs),
    /// Write the vectors of texts
    Embed(EmbedArgs),
    /// Score texts by how well they answer a query
    Rerank(RerankArgs),
    /// Measure how well a model predicts a text
    Perplexity(PerplexityArgs),
    /// Show how a model splits a text into tokens
    Tokenize(TokenizeArgs),
    /// Show a model's metadata, tensors and memory
    Inspect(InspectArgs),
    /// Write a model as a .gguf file in smaller types
    Quantize(QuantizeArgs),
    /// Measure which columns of a model's matrices matter for a text, for `quantize --imatrix`
    Imatrix(ImatrixArgs),
    /// Download models from Hugging Face
    Pull(PullArgs),
    /// List the models on this machine
    Models(ModelsArgs),
    /// Remove downloaded models
    Rm(RmArgs),
    /// Run an Atlas program: a kernel in Hologram's portable language
    Exec(ExecArgs),
    /// Check Atlas programs without running them
    Check(CheckArgs),
    /// Write an Atlas program in binary form
    Asm(AsmArgs),
    /// Print a binary Atlas program as text
    Disasm(DisasmArgs),
    /// List the devices of this machine
    Devices(DevicesArgs),
    /// Show or clear the cache of kernels compiled at run time
    Cache(CacheArgs),
    /// Check that a device computes correct results
    Selftest(SelftestArgs),
    /// Describe this installation on one screen, for a report
    Doctor(DoctorArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Write the man pages
    Man(ManArgs),
    /// Print help for a command
    Help(HelpArgs),
}

/// Options of all commands that use a device.
#[derive(Args, Clone)]
pub struct DeviceArgs {
    /// Device to use: auto, cuda, cuda:N, metal, cpu, reference
    #[arg(long, default_value = "auto", value_name = "D")]
    pub device: String,
    /// Worker threads of the CPU [default: one per physical core available to the process]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    threads: Option<Threads>,
    /// Most memory of the GPU to use, such as 16GB or 900MB [default: all that is free]
    #[arg(long, value_name = "SIZE", value_parser = memory, allow_hyphen_values = true)]
    pub gpu_memory: Option<u64>,
    /// Products of F32 weights: exact, or tf32, which rounds to 11 bits and is faster on NVIDIA GPUs
    #[arg(long, value_parser = precision(), default_value = "exact", value_name = "P")]
    pub precision: Precision,
}

/// The parser of a precision.
fn precision() -> impl TypedValueParser<Value = Precision> {
    let known = |name: String| Precision::from_name(&name).ok_or("is no precision");
    PossibleValuesParser::new(Precision::ALL.map(Precision::name)).try_map(known)
}

/// A number of threads; `None` is the default.
#[derive(Clone, Copy)]
struct Threads(Option<u32>);

/// -1 is the default, as in llama.cpp.
fn threads(text: &str) -> Result<Threads, String> {
    match text.parse() {
        Ok(-1) => Ok(Threads(None)),
        Ok(n @ 1..=1024) => Ok(Threads(Some(n as u32))),
        _ => Err("it must be a whole number from 1 to 1024, or -1 for as many as without it".into()),
    }
}

/// A size of memory in bytes.
fn memory(text: &str) -> Result<u64, String> {
    let upper = text.to_ascii_uppercase();
    let (number, base) = match upper.strip_suffix("IB") {
        Some(start) => (start, 1024f64),
        None => (upper.strip_suffix('B').unwrap_or(&upper), 1e3),
    };
    let of =
        |(power, unit): (i32, char)| Some(number.strip_suffix(unit)?.trim().parse::<f64>().ok()? * base.powi(power));
    match (1..).zip("KMGT".chars()).find_map(of) {
        Some(bytes) if (1.0..1e15).contains(&bytes) => Ok(bytes as u64),
        _ => Err("it must be a number above 0 with a unit, such as 16GB or 900MB".into()),
    }
}

/// The model, with or without `-m`.
#[derive(Args, Clone)]
pub struct ModelArgs {
    /// Model: a .gguf file, a folder of safetensors, or hf:OWNER/NAME[:TYPE] on Hugging Face
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    word: Option<PathBuf>,
    /// The same as MODEL
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
}

impl ModelArgs {
    /// The model, if one is given.
    pub fn given(&self) -> Option<&std::path::Path> {
        self.word.as_deref().or(self.model.as_deref())
    }

    /// The model.
    ///
    /// # Errors
    /// A usage error if none is given.
    pub fn required(&self) -> anyhow::Result<&std::path::Path> {
        let Some(model) = self.given() else {
            return usage("give a model: a .gguf file, a folder of safetensors, or hf:OWNER/NAME");
        };
        Ok(model)
    }
}

/// Options for traces.
#[derive(Args, Clone)]
pub struct ProfileArgs {
    /// Write a timeline of host and device for ui.perfetto.dev; kernels then run one at a time
    #[arg(long, value_name = "OUT.json", value_parser = trace_file, conflicts_with = "capture")]
    pub profile: Option<PathBuf>,
    /// Write a Metal frame capture of the GPU's work for Xcode; requires METAL_CAPTURE_ENABLED=1 in the environment
    #[arg(long, value_name = "OUT.gputrace", value_parser = capture_file)]
    pub capture: Option<PathBuf>,
}

/// A number of tokens; -1 is no limit, as in llama.cpp.
fn most_tokens(text: &str) -> Result<usize, String> {
    if text == "-1" {
        return Ok(usize::MAX);
    }
    text.parse().map_err(|e: std::num::ParseIntError| match e.kind() {
        std::num::IntErrorKind::PosOverflow => "it is too large; -1 is no limit".into(),
        _ => "it must be a whole number, 0 or more, or -1 for no limit".into(),
    })
}

/// The required extension prevents `--profile MODEL` from overwriting the model.
fn trace_file(name: &str) -> Result<PathBuf, String> {
    named(name, "json")
}

/// As [`trace_file`]; Xcode also requires the extension.
fn capture_file(name: &str) -> Result<PathBuf, String> {
    named(name, "gputrace")
}

fn named(name: &str, ending: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    if path.extension().is_some_and(|e| e == ending) {
        Ok(path)
    } else {
        Err(format!("its name must end in .{ending}"))
    }
}

/// Why `auto` fell back to another device.
static NOTE: Mutex<Option<String>> = Mutex::new(None);

/// Takes what the user should know of the devices: that the command fell back to another one, and why.
pub fn take_notes() -> Vec<String> {
    let note = NOTE.lock().unwrap_or_else(PoisonError::into_inner).take();
    note.into_iter().chain(hologram_backends::take_notes()).collect()
}

/// Prints those notes to stderr. Errors have their own messages.
pub fn print_note() {
    for note in take_notes() {
        let _ = writeln!(std::io::stderr(), "note: {}", crate::text::printable(&note, crate::text::MESSAGE));
    }
}

impl DeviceArgs {
    /// Options without any.
    pub fn new(device: &str) -> DeviceArgs {
        DeviceArgs { device: device.into(), threads: None, gpu_memory: None, precision: Precision::Exact }
    }

    /// The worker threads, if a number of them is given.
    pub fn threads(&self) -> Option<u32> {
        self.threads.and_then(|threads| threads.0)
    }

    /// Opens the device. [`print_note`] reports a fallback of `auto`.
    ///
    /// # Errors
    /// When the device is not available; a usage error for an unknown device name.
    pub fn open(&self) -> anyhow::Result<hologram_core::Executor> {
        let options = OpenOptions {
            threads: self.threads().map(|n| n as usize),
            memory_cap: self.gpu_memory,
            precision: self.precision,
        };
        let opened = hologram_backends::open_with(&self.device, &options);
        let (backend, note) = match opened {
            Err(e) if !hologram_backends::is_device_name(&self.device) => return usage(e.to_string()),
            Err(BackendError::Unsupported { device, .. }) if self.precision == Precision::Tf32 => {
                return usage(format!("--precision tf32 is for NVIDIA GPUs, but the device is {device}"));
            }
            opened => opened?,
        };
        let device = backend.info().backend;
        if self.gpu_memory.is_some() && !matches!(device, BackendType::Cuda | BackendType::Metal) {
            return usage(format!("--gpu-memory is for GPUs, but the device is {device}"));
        }
        if let Some(note) = note {
            NOTE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(note);
        }
        Ok(hologram_core::Executor::from_backend(backend))
    }
}

/// What happens to the thoughts of a reasoning model.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Think {
    /// Print them, between <think> and </think>
    Show,
    /// Print the answer alone
    Hide,
    /// Let the model answer without thinking, if its chat template can
    Off,
}

/// Options of `run`.
#[derive(Args)]
#[command(override_usage = "hologram run [OPTIONS] [MODEL] [PROMPT]")]
pub struct RunArgs {
    /// Model, a .gguf file, a folder of safetensors or hf:OWNER/NAME[:TYPE], and prompt; either may be left out
    /// [default: the built-in model; the prompt from standard input]
    #[arg(value_name = "MODEL PROMPT", num_args = 0..)]
    pub words: Vec<String>,
    /// Model: a .gguf file, a folder of safetensors, or hf:OWNER/NAME[:TYPE] on Hugging Face, which is downloaded
    /// unless it is on this machine [default: the built-in model]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Prompt, as in llama.cpp
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Read the prompt from a file in UTF-8; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Continue the prompt as it is, without the chat template of a chat model
    #[arg(long)]
    pub raw: bool,
    /// Maximum number of tokens to generate; -1 is no limit
    #[arg(short = 'n', long, visible_alias = "n-predict", value_name = "N", default_value_t = 256, value_parser = most_tokens)]
    pub max_tokens: usize,
    /// Thoughts of a reasoning model
    #[arg(long, value_name = "T", value_enum, default_value_t = Think::Show)]
    pub think: Think,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    #[command(flatten)]
    pub constraint: ConstraintArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub lora: LoraArgs,
    #[command(flatten)]
    pub experts: ExpertsArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub profile: ProfileArgs,
    /// Print one JSON object with the text and statistics at the end
    #[arg(long)]
    pub json: bool,
}

/// Options of `chat`.
#[derive(Args)]
#[command(override_usage = "hologram chat [OPTIONS] MODEL [QUESTION]")]
pub struct ChatArgs {
    /// Chat model, a .gguf file, a folder of safetensors or hf:OWNER/NAME[:TYPE], and perhaps a question: then the
    /// reply ends the conversation
    #[arg(value_name = "MODEL QUESTION", num_args = 0..)]
    pub words: Vec<String>,
    /// Chat model: a .gguf file, a folder of safetensors, or hf:OWNER/NAME[:TYPE] on Hugging Face, which is downloaded
    /// unless it is on this machine (the built-in model is not a chat model)
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Question, as the prompt of `run`
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Read the question from a file in UTF-8
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Maximum number of tokens per reply [default: until the model ends it or the context is full]
    #[arg(short = 'n', long, visible_alias = "n-predict", value_name = "N", value_parser = most_tokens)]
    pub max_tokens: Option<usize>,
    /// Continue the conversation of this file, if there is one, and save it there at the end: its text, and what is
    /// computed of it, so that even a long one goes on at once
    #[arg(long, value_name = "FILE")]
    pub session: Option<PathBuf>,
    #[command(flatten)]
    pub constraint: ConstraintArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub lora: LoraArgs,
    #[command(flatten)]
    pub experts: ExpertsArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Thoughts of a reasoning model
    #[arg(long, value_name = "T", value_enum, default_value_t = Think::Show)]
    pub think: Think,
    /// With a question: print one JSON object with the reply and statistics
    #[arg(long)]
    pub json: bool,
}

/// Options of `perplexity`.
#[derive(Args)]
#[command(mut_arg("word", |word| word.help(OR_BUILT_IN)))]
pub struct PerplexityArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Text file in UTF-8; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Tokens per window; the second half of each window counts [default: 512, or the model's context if that is less]
    #[arg(short, long, visible_alias = "ctx-size", value_name = "N", value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    pub ctx: Option<u32>,
    /// Element type of the KV cache [default: chosen by model and device]
    #[arg(long, value_name = "F", value_enum)]
    pub kv: Option<Kv>,
    #[command(flatten)]
    pub lora: LoraArgs,
    #[command(flatten)]
    pub experts: ExpertsArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Options of `tokenize`.
#[derive(Args)]
#[command(override_usage = "hologram tokenize [OPTIONS] [MODEL] [TEXT]")]
pub struct TokenizeArgs {
    /// Model, a .gguf file, a folder with tokenizer.json, or hf:OWNER/NAME[:TYPE] [default: the built-in model], and
    /// text [default: read from standard input]
    #[arg(value_name = "MODEL TEXT", num_args = 0..)]
    pub words: Vec<String>,
    /// Model
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Help for MODEL where it may be left out.
const OR_BUILT_IN: &str = "Model: a .gguf file, a folder of safetensors, or hf:OWNER/NAME[:TYPE] on Hugging Face [default: the built-in model]";

/// Options of `logits`.
#[derive(Args)]
pub struct LogitsArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Token ids, separated by commas
    #[arg(long, value_name = "IDS", required = true, value_delimiter = ',', allow_hyphen_values = true)]
    pub tokens: Vec<u32>,
    /// Output file: float32 [tokens, vocabulary]; - is standard output
    #[arg(long, value_name = "FILE.npy")]
    pub out: PathBuf,
    #[command(flatten)]
    pub lora: LoraArgs,
    #[command(flatten)]
    pub experts: ExpertsArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Options of `inspect`.
#[derive(Args)]
#[command(mut_arg("word", |word| word.help(OR_BUILT_IN)))]
pub struct InspectArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Options of `pull`.
#[derive(Args)]
pub struct PullArgs {
    /// Models: hf:OWNER/NAME, or hf:OWNER/NAME:TYPE as in hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0, or
    /// hf:OWNER/NAME:FILE; hf: may be left out. Without type or file, Q4_K_M or what comes nearest to it
    #[arg(required = true, value_name = "MODEL")]
    pub models: Vec<String>,
}

/// Options of `models`.
#[derive(Args)]
pub struct ModelsArgs {
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// Options of `rm`.
#[derive(Args)]
pub struct RmArgs {
    /// Models in the Hugging Face cache, as `hologram models` names them; without type or file, all of a repository
    #[arg(required = true, value_name = "MODEL")]
    pub models: Vec<String>,
}

/// Options of `exec`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct ExecArgs {
    /// Program file, text or binary; - reads standard input
    #[arg(required_unless_present = "help")]
    pub file: Option<PathBuf>,
    /// Number of workgroups: X, X,Y or X,Y,Z
    #[arg(long, value_name = "X[,Y[,Z]]")]
    pub grid: Option<String>,
    /// Argument: a scalar NAME=VALUE, a buffer NAME=@FILE.npy, or a zeroed buffer NAME=out:TYPE[LENGTH]
    #[arg(long = "arg", value_name = "NAME=VALUE")]
    pub args: Vec<String>,
    /// Write a buffer after the run: FILE.npy for the only output buffer, or NAME=FILE.npy [default: print it]
    #[arg(long, value_name = "[NAME=]FILE.npy")]
    pub out: Vec<String>,
    #[command(flatten)]
    pub device: DeviceArgs,
    #[command(flatten)]
    pub profile: ProfileArgs,
    /// Also print how long the program takes: the median of 20 more runs, on what the runs before left in the buffers
    #[arg(long)]
    pub time: bool,
    /// Print the program as a device's compiler is given it, and run nothing
    #[arg(long, value_name = "LANGUAGE", value_enum, conflicts_with_all = ["grid", "args", "out", "time"])]
    pub emit: Option<Emit>,
    /// Print help; with a program file, describe its parameters
    #[arg(short, long)]
    pub help: bool,
}

/// What programs are printed as.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Emit {
    /// PTX, for NVIDIA GPUs of compute capability 9.0
    Ptx,
    /// Metal Shading Language 3.1, for Apple GPUs
    Msl,
}

/// Options of `check`.
#[derive(Args)]
pub struct CheckArgs {
    /// Program files, text or binary; - reads standard input
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
}

/// Options of `asm`.
#[derive(Args)]
pub struct AsmArgs {
    /// Program file (.atlas)
    pub file: PathBuf,
    /// Output file, `-` for standard output [default: FILE with the extension .atlasb]
    #[arg(short, value_name = "OUT")]
    pub out: Option<PathBuf>,
}

/// Options of `disasm`.
#[derive(Args)]
pub struct DisasmArgs {
    /// Binary program file
    pub file: PathBuf,
}

/// Options of `selftest`.
#[derive(Args)]
pub struct SelftestArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// Options of `devices`.
#[derive(Args)]
pub struct DevicesArgs {
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Compile all Metal kernels with macOS's own compiler instead, without running them
    #[arg(long, conflicts_with = "json")]
    pub compile_kernels: bool,
}

/// Options of `doctor`.
#[derive(Args)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Options of `completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(ignore_case = true)]
    pub shell: clap_complete::Shell,
}

/// Options of `man`.
#[derive(Args)]
pub struct ManArgs {
    /// Folder for the pages, one per command; it is made if it does not exist
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// Options of `cache`.
#[derive(Args)]
pub struct CacheArgs {
    /// Remove all entries
    #[arg(long)]
    pub clear: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Options of `help`.
#[derive(Args)]
pub struct HelpArgs {
    /// The command
    pub command: Vec<String>,
}

impl Cli {
    /// Parses words, of which the first is the program's name. Options take negative numbers, so that messages give the
    /// range that an option has, and not an unknown flag.
    ///
    /// # Errors
    /// Those of clap, which are also how it prints help.
    pub fn of_words<T: Into<OsString> + Clone>(words: impl IntoIterator<Item = T>) -> Result<Cli, clap::Error> {
        let mut parser = with_negative_numbers(Cli::command());
        let mut matches = parser.try_get_matches_from_mut(words)?;
        Cli::from_arg_matches_mut(&mut matches).map_err(|e| e.format(&mut parser))
    }
}

fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let option = |arg: clap::Arg| {
        let takes_value = !arg.is_positional() && arg.get_action().takes_values();
        if takes_value { arg.allow_negative_numbers(true) } else { arg }
    };
    // A script that adds an option to a call that has it gets what it adds.
    command.mut_args(option).args_override_self(true).mut_subcommands(with_negative_numbers)
}

/// The names of the commands.
pub fn commands() -> Vec<String> {
    Cli::command().get_subcommands().map(|command| command.get_name().to_string()).collect()
}

/// Checks that these words name a command.
///
/// # Errors
/// A usage error if there is no such command.
pub fn check_command(words: &[String]) -> anyhow::Result<()> {
    let all = Cli::command();
    let (mut command, mut call) = (&all, "hologram".to_string());
    for word in words {
        let Some(next) = command.find_subcommand(word) else {
            let error = format!("unrecognized subcommand '{word}'");
            let instead = crate::hints::of_command(word).filter(|_| call == "hologram");
            let hint = instead.map_or(String::new(), |instead| format!("; {instead}"));
            return usage(format!("{error}{hint}; see {call} --help"));
        };
        (command, call) = (next, format!("{call} {word}"));
    }
    Ok(())
}

/// An error in the command line: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Fails with a usage error.
pub fn usage<T>(message: impl Into<String>) -> anyhow::Result<T> {
    Err(UsageError(message.into()).into())
}
