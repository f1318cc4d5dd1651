//! Options of `embed` and `rerank`.

use std::path::PathBuf;

use clap::Args;

use super::DeviceArgs;

/// Options of `embed`.
#[derive(Args)]
#[command(override_usage = "hologram embed [OPTIONS] MODEL [TEXT]...")]
pub struct EmbedArgs {
    /// Model, a .gguf file, a folder of safetensors or hf:OWNER/NAME[:TYPE] on Hugging Face, and texts [default: the
    /// lines of standard input]
    #[arg(value_name = "MODEL TEXT", num_args = 0..)]
    pub words: Vec<String>,
    /// The model, before texts
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// File with a text in each line, in UTF-8; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    pub file: Option<PathBuf>,
    /// Token ids of one text, separated by commas, with the control tokens that the model expects
    #[arg(long, value_name = "IDS", value_delimiter = ',', allow_hyphen_values = true)]
    pub tokens: Vec<u32>,
    /// How the vectors of a text's tokens become one [default: what the model's files say]
    #[arg(long, value_name = "P", value_enum)]
    pub pooling: Option<Pool>,
    /// Whether vectors get length 1 [default: what the model's files say, else true]
    #[arg(long, value_name = "BOOL")]
    pub normalize: Option<bool>,
    /// Output file: float32 [texts, width]; with --pooling none [tokens, width] (- is standard output) [default: JSON]
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
#[command(override_usage = "hologram rerank [OPTIONS] MODEL QUERY [TEXT]...")]
pub struct RerankArgs {
    /// Model, a .gguf file, a folder of safetensors or hf:OWNER/NAME[:TYPE] on Hugging Face; what the texts should
    /// answer; and the texts [default: the lines of standard input]
    #[arg(value_name = "MODEL QUERY TEXT", num_args = 0..)]
    pub words: Vec<String>,
    /// The model, before the query
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
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
