//! The command line. The comments on fields are the help texts.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in help texts are not links")]

mod load;
mod serve;

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use clap::{Args, CommandFactory, Parser, Subcommand};
use hologram_backends::DType;
use hologram_llm::GenerateOptions;
use hologram_llm::sampling::SamplerConfig;

pub use load::LoadArgs;
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
    /// Continue a prompt
    Run(RunArgs),
    /// Hold a conversation
    Chat(ChatArgs),
    /// Serve a model over HTTP
    Serve(ServeArgs),
    /// Put a load on a server of OpenAI's interface and measure it
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
    /// Write a model in smaller types
    Quantize(QuantizeArgs),
    /// Download models from Hugging Face
    Pull(PullArgs),
    /// List the models on this machine
    Models(ModelsArgs),
    /// Remove downloaded models
    Rm(RmArgs),
    /// Run an Atlas program
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
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
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
    /// Opens the device. [`print_note`] reports a fallback of `auto`.
    ///
    /// # Errors
    /// When the device is not available; a usage error for an unknown device name.
    pub fn open(&self) -> anyhow::Result<hologram_core::Executor> {
        let opened = hologram_backends::open_noting(&self.device, self.threads.map(|n| n as usize));
        let (backend, note) = match opened {
            Err(e) if !hologram_backends::is_device_name(&self.device) => return usage(e.to_string()),
            opened => opened?,
        };
        if let Some(note) = note {
            NOTE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(note);
        }
        Ok(hologram_core::Executor::from_backend(backend))
    }
}

/// Sampling and context options.
#[derive(Args)]
pub struct SamplingArgs {
    /// Sampling temperature; 0 always takes the most probable token
    #[arg(long, alias = "temp", value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Sample from the K most probable tokens; 0 turns it off
    #[arg(long, value_name = "K", default_value_t = 40, allow_negative_numbers = true)]
    pub top_k: usize,
    /// Sample from the most probable tokens whose probabilities add up to P; 1 turns it off
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Sample from the tokens of the most typical information whose probabilities add up to P; 1 turns it off
    #[arg(long, alias = "typical", value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub typical_p: f32,
    /// Drop tokens less probable than P times the most probable one; 0 turns it off
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub min_p: f32,
    /// Divide positive logits of the last 64 tokens by R and multiply negative ones; 1 turns it off
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true)]
    pub repeat_penalty: f32,
    /// Subtract R from the logits of the last 64 tokens
    #[arg(long, value_name = "R", default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtract R from the logits of the last 64 tokens, once per occurrence
    #[arg(long, value_name = "R", default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Random seed [default: different in each run]
    #[arg(short, long, value_name = "S", allow_negative_numbers = true, value_parser = seed)]
    pub seed: Option<u64>,
    /// Context length in tokens [default: the model's, at most 4096]
    #[arg(short, long, alias = "ctx-size", value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub ctx: Option<u32>,
    /// Element type of the KV cache [default: chosen by model and device]
    #[arg(long, value_name = "F", value_enum)]
    pub kv: Option<Kv>,
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("it must be a whole number from 0 to {}", u64::MAX))
}

/// Element types of the KV cache.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Kv {
    /// 32 bits
    F32,
    /// 16 bits
    F16,
    /// 8 bits, with one scale per 32 elements
    Q8,
}

impl Kv {
    /// The cache's format.
    pub fn format(self) -> DType {
        match self {
            Kv::F32 => DType::F32,
            Kv::F16 => DType::F16,
            Kv::Q8 => DType::Q8Planes,
        }
    }
}

impl SamplingArgs {
    /// Options of a generation. `seed` is used unless the user set one.
    ///
    /// # Errors
    /// A usage error when an option is out of range.
    pub fn options(&self, seed: u64) -> anyhow::Result<GenerateOptions> {
        let sampling = SamplerConfig {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            typical_p: self.typical_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed.unwrap_or(seed),
        };
        if let Err(e) = sampling.validate() {
            return usage(format!("--{e}"));
        }
        let (context, kv) = (self.ctx.map(|n| n as usize), self.kv.map(Kv::format));
        Ok(GenerateOptions { sampling, context, kv, ..GenerateOptions::default() })
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
    #[arg(value_name = "MODEL PROMPT", num_args = 0..=3)]
    pub words: Vec<String>,
    /// Model: a .gguf file, a folder of safetensors, or hf:OWNER/NAME[:TYPE] on Hugging Face, which is downloaded
    /// unless it is on this machine [default: the built-in model]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Prompt, as in llama.cpp
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Read the prompt from a file in UTF-8
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Continue the prompt as it is, without the chat template of a chat model
    #[arg(long)]
    pub raw: bool,
    /// Maximum number of tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 256, allow_negative_numbers = true)]
    pub max_tokens: usize,
    /// Thoughts of a reasoning model
    #[arg(long, value_name = "T", value_enum, default_value_t = Think::Show)]
    pub think: Think,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
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
    #[arg(value_name = "MODEL QUESTION", num_args = 0..=3)]
    pub words: Vec<String>,
    /// Chat model: a .gguf file, a folder of safetensors, or hf:OWNER/NAME[:TYPE] on Hugging Face, which is downloaded
    /// unless it is on this machine (the built-in model is not a chat model)
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Maximum number of tokens per reply [default: until the model ends it or the context is full]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    pub max_tokens: Option<usize>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
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
pub struct PerplexityArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Text file in UTF-8; - reads standard input
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Tokens per window; the second half of each window counts
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    pub ctx: u32,
    /// Element type of the KV cache [default: chosen by model and device]
    #[arg(long, value_name = "F", value_enum)]
    pub kv: Option<Kv>,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Options of `tokenize`.
#[derive(Args)]
#[command(override_usage = "hologram tokenize [OPTIONS] MODEL [TEXT]")]
pub struct TokenizeArgs {
    /// Model, a .gguf file, a folder with tokenizer.json, or hf:OWNER/NAME[:TYPE], and text [default: read from
    /// standard input]
    #[arg(value_name = "MODEL TEXT", num_args = 0..=3)]
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

/// Maximum number of tokens in a test.
const MAX_TEST: i64 = 1 << 20;

/// Options of `bench`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(mut_arg("device", |device| device.help("Device to measure: auto, cuda, cuda:N, metal, cpu")))]
#[command(mut_arg("word", |word| word.help(OR_BUILT_IN).conflicts_with("shape")))]
#[command(mut_arg("model", |model| model.conflicts_with("shape")))]
pub struct BenchArgs {
    /// Other measurements
    #[command(subcommand)]
    pub what: Option<BenchCommand>,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Use random weights of a published shape instead of a file: llama-8b, llama-1b, tinyllama-1.1b, bitnet-2b,
    /// qwen3-30b-a3b
    #[arg(long, value_name = "SHAPE")]
    pub shape: Option<String>,
    /// Type of the random weights: F32, F16, BF16 or a GGUF block format such as Q8_0, Q4_0, Q4_K, TQ2_0; Q4_K_M and
    /// Q5_K_M are llama.cpp's mixtures with Q6_K for Llama models
    #[arg(long = "type", id = "type_", value_name = "T")]
    pub format: Option<String>,
    /// Prompt tokens of the prefill test; 0 skips it
    #[arg(short, value_name = "N", allow_negative_numbers = true, default_value_t = 512, value_parser = clap::value_parser!(u32).range(0..=MAX_TEST))]
    pub prompt: u32,
    /// Tokens of the decode test; 0 skips it
    #[arg(short = 'n', value_name = "N", allow_negative_numbers = true, default_value_t = 128, value_parser = clap::value_parser!(u32).range(0..=MAX_TEST))]
    pub decode: u32,
    /// Tokens in the context before each test
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=MAX_TEST))]
    pub depth: u32,
    /// Number of sequences in the decode test, each extended by one token per step
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: u32,
    /// Measure the engine instead: N users, each with a request of -p tokens and an answer of -n at a time
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with_all = ["depth", "batch", "profile", "capture"], value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub concurrency: Option<u32>,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    /// Also print each test's last step kernel by kernel, and write a timeline of each test's last steps for
    /// ui.perfetto.dev
    #[arg(long, value_name = "OUT.json", value_parser = trace_file, conflicts_with = "capture")]
    pub profile: Option<PathBuf>,
    /// Also write a Metal frame capture of the last test's last steps for Xcode; requires METAL_CAPTURE_ENABLED=1 in
    /// the environment
    #[arg(long, value_name = "OUT.gputrace", value_parser = capture_file)]
    pub capture: Option<PathBuf>,
    /// Repetitions
    #[arg(short, value_name = "N", allow_negative_numbers = true, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Count the kernel launches per token on an Apple GPU and bound its speed by each chip's memory bandwidth; runs
    /// nothing, works on any machine
    #[arg(long, conflicts_with_all = ["profile", "capture", "prompt", "decode", "depth", "batch", "concurrency", "repetitions", "threads"])]
    pub dry_run: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// Other measurements of `bench`.
#[derive(Subcommand)]
pub enum BenchCommand {
    /// Measure single operations against their limit: memory bandwidth or arithmetic throughput
    Ops(BenchOpsArgs),
}

/// Options of `bench ops`.
#[derive(Args)]
#[command(mut_arg("device", |device| device.help("Device to measure: auto, cuda, cuda:N, metal, cpu, or all side by side")))]
pub struct BenchOpsArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Measure only these: copy, relu, add, mul, chain, sum, softmax, rms_norm, matmul, attention, launch; with --full
    /// also narrow (16-bit floats), log_softmax, layer_norm, reduce, arg_max, cumsum, sort, top_k, permute, concat,
    /// pad, take, scatter_add, batch_matmul, conv2d, loss, random
    #[arg(long, value_name = "OPS", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Also measure operations along dimensions, rearranging copies, batched products and 16-bit floats (takes minutes)
    #[arg(long, conflicts_with = "sweep")]
    pub full: bool,
    /// Measure calls of 1 KiB to 256 MiB, and the sizes from which each device is faster than the others
    #[arg(long)]
    pub sweep: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// Options of `logits`.
#[derive(Args)]
pub struct LogitsArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Token ids, separated by commas
    #[arg(long, value_name = "IDS", required = true, value_delimiter = ',')]
    pub tokens: Vec<u32>,
    /// Output file: float32 [tokens, vocabulary]
    #[arg(long, value_name = "FILE.npy")]
    pub out: PathBuf,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Options of `embed`.
#[derive(Args)]
#[command(override_usage = "hologram embed [OPTIONS] -m MODEL [TEXT]...")]
pub struct EmbedArgs {
    /// Model: a .gguf file, a folder of safetensors, or hf:OWNER/NAME[:TYPE] on Hugging Face
    #[arg(short, long, value_name = "MODEL")]
    pub model: PathBuf,
    /// Texts [default: the lines of standard input]
    #[arg(value_name = "TEXT", conflicts_with_all = ["file", "tokens"])]
    pub texts: Vec<String>,
    /// File with a text in each line, in UTF-8; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    pub file: Option<PathBuf>,
    /// Token ids of one text, separated by commas, with the control tokens that the model expects
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub tokens: Vec<u32>,
    /// How the vectors of a text's tokens become one [default: what the model's files say]
    #[arg(long, value_name = "P", value_enum)]
    pub pooling: Option<Pool>,
    /// Whether vectors get length 1 [default: what the model's files say, else true]
    #[arg(long, value_name = "BOOL")]
    pub normalize: Option<bool>,
    /// Output file: float32 [texts, width]; with --pooling none [tokens, width] [default: JSON on standard output]
    #[arg(long, value_name = "FILE.npy")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// How hidden states are pooled.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Pool {
    /// One vector per token
    None,
    /// The mean of all tokens
    Mean,
    /// The first token's
    Cls,
    /// The last token's
    Last,
}

impl From<Pool> for hologram_llm::Pooling {
    fn from(pool: Pool) -> hologram_llm::Pooling {
        match pool {
            Pool::None => hologram_llm::Pooling::None,
            Pool::Mean => hologram_llm::Pooling::Mean,
            Pool::Cls => hologram_llm::Pooling::Cls,
            Pool::Last => hologram_llm::Pooling::Last,
        }
    }
}

/// Options of `rerank`.
#[derive(Args)]
#[command(override_usage = "hologram rerank [OPTIONS] -m MODEL QUERY [TEXT]...")]
pub struct RerankArgs {
    /// Model: a .gguf file, a folder of safetensors, or hf:OWNER/NAME[:TYPE] on Hugging Face
    #[arg(short, long, value_name = "MODEL")]
    pub model: PathBuf,
    /// What the texts should answer
    #[arg(value_name = "QUERY")]
    pub query: String,
    /// Texts [default: the lines of standard input]
    #[arg(value_name = "TEXT", conflicts_with = "file")]
    pub texts: Vec<String>,
    /// File with a text in each line, in UTF-8; - reads standard input
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Print the model's own numbers instead of numbers from 0 to 1
    #[arg(long)]
    pub raw: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
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

/// Options of `quantize`.
#[derive(Args)]
pub struct QuantizeArgs {
    /// Model: a .gguf file, or hf:OWNER/NAME[:TYPE] on Hugging Face; best in F32, F16 or BF16
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The .gguf file to write
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Type or mixture: F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_1, Q5_0, Q4_K_M, Q4_K_S, IQ4_XS, IQ4_NL, Q4_1,
    /// Q4_0, MXFP4, Q3_K_L, Q3_K_M, Q3_K_S, Q2_K, Q2_K_S, TQ2_0, TQ1_0
    #[arg(long = "type", value_name = "T")]
    pub ty: String,
    /// Importance matrix: a GGUF file that llama-imatrix wrote
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Type of tensors whose names match, such as 'blk.0.*=Q8_0'; * is any text, the first match counts
    #[arg(long, value_name = "PATTERN=T")]
    pub keep: Vec<String>,
    /// Worker threads [default: one per processor]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
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
    #[arg(long, value_name = "X[,Y[,Z]]", allow_negative_numbers = true)]
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

/// Checks that these words name a command.
///
/// # Errors
/// A usage error if there is no such command.
pub fn check_command(words: &[String]) -> anyhow::Result<()> {
    let all = Cli::command();
    let (mut command, mut call) = (&all, "hologram".to_string());
    for word in words {
        let Some(next) = command.find_subcommand(word) else {
            return usage(format!("unrecognized subcommand '{word}'; see {call} --help"));
        };
        (command, call) = (next, format!("{call} {word}"));
    }
    Ok(())
}

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

/// Replaces Rust's number errors in a line of clap by what is expected. All whole numbers here are 0 or more.
fn plain(line: &str) -> String {
    let whole = "it must be a whole number, 0 or more";
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

/// An error in the command line: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Fails with a usage error.
pub fn usage<T>(message: impl Into<String>) -> anyhow::Result<T> {
    Err(UsageError(message.into()).into())
}
