//! Options of `load`.

use std::path::PathBuf;

use clap::Args;

/// Options of `load`.
#[derive(Args)]
pub struct LoadArgs {
    /// The server: http://HOST[:PORT], with or without /v1
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// Name of the model [default: the first that the server lists]
    #[arg(short, long, value_name = "NAME")]
    pub model: Option<String>,
    /// File whose first line is the server's API key
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Send chat completions instead of completions
    #[arg(long)]
    pub chat: bool,
    /// Closed loop: N users, each of whom sends the next request when the last is answered
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub users: u32,
    /// Open loop: R requests a second on average, at random times, whether or not earlier ones are answered
    #[arg(short, long, value_name = "R", conflicts_with = "users", value_parser = rate)]
    pub rate: Option<f64>,
    /// Requests to send
    #[arg(short = 'n', long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub requests: u32,
    /// Tokens of a prompt, about: it is made of common words, of which most tokenizers make one token each
    #[arg(short, long, value_name = "N", default_value_t = 220, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub prompt_tokens: u32,
    /// Maximum tokens of a reply
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub max_tokens: u32,
    /// File of lengths, one JSON object per line: {"prompt_tokens": N, "max_tokens": N}, or "prompt" with a text; its
    /// lines are used in turn
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt_tokens", "max_tokens"])]
    pub lengths: Option<PathBuf>,
    /// Percentage of each prompt that all prompts have in common
    #[arg(long, value_name = "P", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub shared_prefix: u32,
    /// Ask that replies reach their maximum: ignore_eos, which hologram, vLLM and llama.cpp know
    #[arg(long)]
    pub ignore_eos: bool,
    /// Seed of prompts and times
    #[arg(short, long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Seconds that a server may send nothing before its request counts as failed
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.001..=100_000.0).contains(rate));
    rate.ok_or_else(|| "it must be a number from 0.001 to 100000".into())
}
