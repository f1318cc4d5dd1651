//! Options of `imatrix`.

use std::path::PathBuf;

use clap::Args;

use super::{DeviceArgs, ModelArgs};

/// Options of `imatrix`.
#[derive(Args)]
pub struct ImatrixArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Text file in UTF-8, like what the model will read; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// The .gguf file to write
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Tokens per window [default: 512, or the model's context if that is less]
    #[arg(short, long, visible_alias = "ctx-size", value_name = "N", value_parser = clap::value_parser!(u32).range(4..=1 << 16))]
    pub ctx: Option<u32>,
    /// Maximum number of windows [default: all of the text]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunks: Option<u32>,
    #[command(flatten)]
    pub device: DeviceArgs,
}
