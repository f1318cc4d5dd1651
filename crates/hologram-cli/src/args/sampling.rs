//! Options of generation: sampling, context and cache.

use clap::Args;
use hologram_backends::DType;
use hologram_llm::GenerateOptions;
use hologram_llm::sampling::SamplerConfig;

use super::usage;
use crate::commands::run::fresh_seed;

/// Sampling and context options.
#[derive(Args)]
pub struct SamplingArgs {
    /// Sampling temperature; 0 always takes the most probable token
    #[arg(long, visible_alias = "temp", value_name = "T", default_value_t = 0.8)]
    pub temperature: f32,
    /// Sample from the K most probable tokens; 0 turns it off
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: usize,
    /// Sample from the most probable tokens whose probabilities add up to P; 1 turns it off
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    pub top_p: f32,
    /// Sample from the tokens of the most typical information whose probabilities add up to P; 1 turns it off
    #[arg(long, alias = "typical", value_name = "P", default_value_t = 1.0)]
    pub typical_p: f32,
    /// Drop tokens less probable than P times the most probable one; 0 turns it off
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub min_p: f32,
    /// Divide positive logits of the last 64 tokens by R and multiply negative ones; 1 turns it off
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    pub repeat_penalty: f32,
    /// Subtract R from the logits of the last 64 tokens
    #[arg(long, value_name = "R", default_value_t = 0.0)]
    pub presence_penalty: f32,
    /// Subtract R from the logits of the last 64 tokens, once per occurrence
    #[arg(long, value_name = "R", default_value_t = 0.0)]
    pub frequency_penalty: f32,
    /// Random seed [default: different in each run]
    #[arg(short, long, value_name = "S", value_parser = seed)]
    pub seed: Option<u64>,
    /// Context length in tokens; 0 is the model's own [default: the model's, at most 4096]
    #[arg(short, long, visible_alias = "ctx-size", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1 << 24))]
    pub ctx: Option<u32>,
    /// Element type of the KV cache [default: chosen by model and device]
    #[arg(long, value_name = "F", value_enum)]
    pub kv: Option<Kv>,
}

/// -1 is llama.cpp's way to ask for a different one in each run.
fn seed(text: &str) -> Result<u64, String> {
    let number = if text == "-1" { Ok(fresh_seed()) } else { text.parse() };
    number.map_err(|_| format!("it must be a whole number from 0 to {}, or -1 for another one each time", u64::MAX))
}

/// Element types of the KV cache.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Kv {
    /// 32 bits
    #[value(alias = "fp32")]
    F32,
    /// 16 bits
    #[value(alias = "fp16")]
    F16,
    /// 8 bits as floats (E4M3), without scales
    #[value(aliases = ["fp8", "fp8_e4m3"])]
    F8,
    /// 8 bits, with one scale per 32 elements
    #[value(alias = "q8_0")]
    Q8,
    /// 4 bits, with one scale per 32 elements
    #[value(alias = "q4_0")]
    Q4,
}

impl Kv {
    /// The cache's format.
    pub fn format(self) -> DType {
        match self {
            Kv::F32 => DType::F32,
            Kv::F16 => DType::F16,
            Kv::F8 => DType::F8,
            Kv::Q8 => DType::Q8Planes,
            Kv::Q4 => DType::Q4Planes,
        }
    }
}

impl SamplingArgs {
    /// Whether the user wants the same text each time.
    pub fn is_repeatable(&self) -> bool {
        self.seed.is_some() || self.temperature == 0.0
    }

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
