//! Options of `bench` and `bench ops`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{DeviceArgs, ExpertsArgs, Kv, LoraArgs, ModelArgs, OR_BUILT_IN, SpeculationArgs, capture_file, trace_file};

/// Maximum number of tokens in a test.
const MAX_TEST: i64 = 1 << 20;

/// Options of `bench`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(mut_arg("device", |device| device.help("Device to measure: auto, cuda, cuda:N, metal, cpu")))]
#[command(mut_arg("word", |word| word.help(OR_BUILT_IN).conflicts_with("shape")))]
#[command(mut_arg("model", |model| model.conflicts_with("shape")))]
#[command(mut_arg("lora", |lora| lora.conflicts_with("shape")))]
#[command(mut_arg("experts", |experts| experts.conflicts_with("dry_run")))]
pub struct BenchArgs {
    /// Other measurements
    #[command(subcommand)]
    pub what: Option<BenchCommand>,
    #[command(flatten)]
    pub model: ModelArgs,
    /// Use random weights of a published shape instead of a file: llama-8b, llama-1b, tinyllama-1.1b, bitnet-2b,
    /// qwen3-30b-a3b, gpt-oss-20b, gpt-oss-120b, deepseek-v2-lite, gemma3-27b, qwen3.5-27b, bge-m3
    #[arg(long, value_name = "SHAPE")]
    pub shape: Option<String>,
    /// Type of the random weights: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL,
    /// IQ4_XS, IQ3_S, IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS, IQ1_M, IQ1_S, MXFP4, NVFP4, F8_E4M3, TQ1_0, TQ2_0; Q4_K_M and
    /// Q5_K_M are llama.cpp's mixtures with Q6_K for Llama models
    #[arg(long = "type", id = "type_", value_name = "T")]
    pub format: Option<String>,
    /// Prompt tokens of the prefill test; 0 skips it. Several, as in 512,2048, are measured one after another, in every
    /// combination with -d and -b
    #[arg(short, value_name = "N", default_value = "512", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=MAX_TEST))]
    pub prompt: Vec<u32>,
    /// Tokens of the decode test, or several numbers; 0 skips it [default: 128]
    #[arg(short = 'n', value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=MAX_TEST))]
    pub decode: Option<Vec<u32>>,
    /// Tokens in the context before each test, or several numbers
    #[arg(short, long, value_name = "N", default_value = "0", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=MAX_TEST))]
    pub depth: Vec<u32>,
    /// Number of sequences in the decode test, each extended by one token per step, or several numbers; of an encoder,
    /// the texts of a test
    #[arg(short, long, value_name = "N", default_value = "1", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: Vec<u32>,
    /// Context length in tokens, which may exceed the model's own [default: that which the tests take]
    #[arg(short, long, visible_alias = "ctx-size", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub ctx: Option<u32>,
    /// Element type of the KV cache [default: chosen by model and device]
    #[arg(long, value_name = "F", value_enum)]
    pub kv: Option<Kv>,
    /// Measure the engine instead: N users, each with a request of -p tokens and an answer of -n at a time
    #[arg(long, value_name = "N", conflicts_with_all = ["depth", "batch", "profile", "capture"], value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub concurrency: Option<u32>,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    /// With --concurrency: submit each step only when the results of the one before are known
    #[arg(long)]
    pub no_overlap: bool,
    /// With --concurrency: give each request the same bits alone and beside any others, as `serve --deterministic`
    #[arg(long)]
    pub deterministic: bool,
    /// With --concurrency: log-probabilities of each token, and of the N most probable ones in its place
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=20))]
    pub logprobs: Option<u32>,
    /// Also print each test's last step kernel by kernel, and write a timeline of each test's last steps for
    /// ui.perfetto.dev
    #[arg(long, value_name = "OUT.json", value_parser = trace_file, conflicts_with = "capture")]
    pub profile: Option<PathBuf>,
    /// Also write a Metal frame capture of the last test's last steps for Xcode; requires METAL_CAPTURE_ENABLED=1 in
    /// the environment
    #[arg(long, value_name = "OUT.gputrace", value_parser = capture_file)]
    pub capture: Option<PathBuf>,
    /// Repetitions
    #[arg(short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Count the kernel launches per token on an Apple GPU and bound its speed by each chip's memory bandwidth; runs
    /// nothing, works on any machine
    #[arg(long, conflicts_with_all = ["profile", "capture", "prompt", "decode", "depth", "batch", "ctx", "kv", "concurrency", "repetitions", "threads"])]
    pub dry_run: bool,
    #[command(flatten)]
    pub lora: LoraArgs,
    #[command(flatten)]
    pub experts: ExpertsArgs,
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
