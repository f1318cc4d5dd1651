//! Options of `quantize`.

use std::path::PathBuf;

use clap::Args;

use super::{Threads, threads};

/// Options of `quantize`.
#[derive(Args)]
pub struct QuantizeArgs {
    /// Model: a .gguf file, a folder of safetensors, or hf:OWNER/NAME[:TYPE] on Hugging Face; best in F32, F16 or BF16
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The .gguf file to write
    #[arg(value_name = "OUT")]
    pub out: Option<PathBuf>,
    /// The same as --type, as in llama.cpp
    #[arg(value_name = "TYPE", conflicts_with = "ty")]
    pub word: Option<String>,
    /// Type or mixture: F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_1, Q5_0, Q4_K_M, Q4_K_S, IQ4_XS, IQ4_NL, Q4_1,
    /// Q4_0, MXFP4, Q3_K_L, Q3_K_M, Q3_K_S, Q2_K, Q2_K_S, TQ2_0, TQ1_0; Q3_K, Q4_K and Q5_K mean their _M mixtures
    #[arg(long = "type", value_name = "T")]
    pub ty: Option<String>,
    /// Importance matrix: a GGUF file of `hologram imatrix` or llama-imatrix; a note counts the tensors that it lacks
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Type of tensors whose names match, such as 'blk.0.*=Q8_0' or '*attn_v*=Q6_K'; * is any text, the rest of the
    /// pattern must be the whole name; of several --keep the first match counts
    #[arg(long, value_name = "PATTERN=T")]
    pub keep: Vec<String>,
    /// Worker threads [default: one per processor]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    threads: Option<Threads>,
}

impl QuantizeArgs {
    /// The worker threads, if a number of them is given.
    pub fn threads(&self) -> Option<u32> {
        self.threads.and_then(|threads| threads.0)
    }
}
