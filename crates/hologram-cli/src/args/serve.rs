//! Options of `serve`.

use std::path::PathBuf;

use clap::Args;
use hologram_llm::Speculation;

use super::{DeviceArgs, ExpertsArgs, Kv, LoraArgs, OR_BUILT_IN, Pool, usage};

/// What is logged.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Log {
    /// Failures of the server
    Error,
    /// Also what may be amiss
    Warn,
    /// Also each request
    Info,
    /// Also probes and connections
    Debug,
}

impl From<Log> for hologram_server::log::Level {
    fn from(log: Log) -> hologram_server::log::Level {
        match log {
            Log::Error => hologram_server::log::Level::ERROR,
            Log::Warn => hologram_server::log::Level::WARN,
            Log::Info => hologram_server::log::Level::INFO,
            Log::Debug => hologram_server::log::Level::DEBUG,
        }
    }
}

/// A part that a server can do without.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Part {
    /// The page for people
    Page,
    /// The places for texts
    Slots,
    /// The metrics
    Metrics,
}

impl From<Part> for hologram_server::Part {
    fn from(part: Part) -> hologram_server::Part {
        match part {
            Part::Page => hologram_server::Part::Page,
            Part::Slots => hologram_server::Part::Slots,
            Part::Metrics => hologram_server::Part::Metrics,
        }
    }
}

/// Options of an engine that guesses tokens.
#[derive(Args, Clone)]
pub struct SpeculationArgs {
    /// Guess tokens that the text repeats and compute several at once: auto where it pays, off, or a number of guesses
    /// per step; only rounding may change the text [default: auto; off in run and chat if --seed or --temp 0 is given]
    #[arg(long, value_name = "HOW", value_parser = speculation)]
    pub speculate: Option<Speculation>,
    /// Let this smaller model of the same vocabulary guess tokens too; not with --speculate off
    #[arg(long, value_name = "MODEL")]
    pub draft: Option<PathBuf>,
}

impl SpeculationArgs {
    /// Whether an option was given.
    pub fn is_given(&self) -> bool {
        self.speculate.is_some() || self.draft.is_some()
    }

    /// How tokens are guessed.
    ///
    /// # Errors
    /// A usage error if one option forbids what the other wants.
    pub fn chosen(&self) -> anyhow::Result<Speculation> {
        let chosen = self.speculate.unwrap_or(Speculation::Auto);
        if self.draft.is_some() && chosen == Speculation::Off {
            return usage("--draft guesses tokens, which --speculate off forbids; give one of them");
        }
        Ok(chosen)
    }
}

fn speculation(text: &str) -> Result<Speculation, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(Speculation::Auto),
        ("off", _) | (_, Ok(0)) => Ok(Speculation::Off),
        (_, Ok(n @ 1..=15)) => Ok(Speculation::Fixed(n)),
        _ => Err("it must be auto, off, or a number from 0 to 15".into()),
    }
}

/// Variables of a chat template.
pub type Variables = serde_json::Map<String, serde_json::Value>;

fn variables(text: &str) -> Result<Variables, String> {
    serde_json::from_str(text).map_err(|e| format!("it must be a JSON object: {e}"))
}

fn temperature(text: &str) -> Result<f32, String> {
    let temperature = text.parse().ok().filter(|t: &f32| t.is_finite() && *t >= 0.0);
    temperature.ok_or_else(|| "it must be a number of 0 or more".into())
}

/// An origin as browsers send it: `scheme://host` or `scheme://host:port`, or `*`.
fn origin(text: &str) -> Result<String, String> {
    let is_host = |host: &str| {
        let (name, port) = match host.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
            Some((name, port)) => (name, port.parse::<u16>().is_ok()),
            None => (host, true),
        };
        let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '[' | ']' | ':');
        port && !name.is_empty() && name.chars().all(valid)
    };
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_lowercase())
            && scheme.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '+' | '-' | '.'))
    };
    match text.split_once("://") {
        _ if matches!(text, "*" | "localhost") => Ok(text.into()),
        Some((scheme, host)) if is_scheme(scheme) && is_host(host) => Ok(text.to_ascii_lowercase()),
        _ => Err("it must be an origin such as https://example.org or http://localhost:3000, localhost, or *".into()),
    }
}

/// The beginning of paths, without a slash at its end.
fn root_path(text: &str) -> Result<String, String> {
    let path = text.trim_end_matches('/');
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | '~');
    match path.starts_with('/') && !path.contains("//") && path.chars().all(valid) {
        true => Ok(path.into()),
        false => Err("it must begin with a slash, such as /llm".into()),
    }
}

/// Options of `serve`.
#[derive(Args, Clone)]
pub struct ServeArgs {
    #[arg(value_name = "MODEL", conflicts_with = "model", help = OR_BUILT_IN)]
    pub word: Option<PathBuf>,
    /// The same as MODEL, or NAME=MODEL with the name for clients; may be given several times: each model is then
    /// loaded by its first request, and the first serves requests without a name
    #[arg(short, long, value_name = "MODEL")]
    pub model: Vec<PathBuf>,
    /// Load the model, or the first of several, before the server listens: for clients that take a server that is alive
    /// for one that is ready
    #[arg(long)]
    pub load_first: bool,
    /// Models in memory at once; another one waits until the one that was unused for longest is idle [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_loaded: Option<u32>,
    /// Unload a model that was idle for so many seconds; its next request loads it again [default: models stay]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub unload_after: Option<u32>,
    /// Let clients keep conversations, with what is computed of them, in files of this folder (POST /slots/ID)
    #[arg(long, value_name = "DIR")]
    pub slot_save_path: Option<PathBuf>,
    /// Name or address of the interface to listen on, or several with commas between them; 0.0.0.0 is every one
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// Port; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,
    /// Listen on a Unix socket instead
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port"])]
    pub unix_socket: Option<PathBuf>,
    /// Encrypt connections with this certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key", conflicts_with = "unix_socket")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Name of the model for clients; may be given several times; * takes any further name [default: from the model's
    /// file name]
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub alias: Vec<String>,
    /// Key that requests must have; may be given several times (other users of the machine see command lines: prefer a
    /// file)
    #[arg(long, value_name = "KEY")]
    pub api_key: Vec<String>,
    /// File with such keys, one per line
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Let pages of this origin, a scheme and a host, call the server from a browser; localhost is this machine with
    /// any port, * is any origin; may be given several times
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub cors_origin: Vec<String>,
    /// Do without parts of the server: page, slots, metrics
    #[arg(long, value_name = "PARTS", value_enum, value_delimiter = ',', hide_possible_values = true)]
    pub without: Vec<Part>,
    /// Let clients call the server by this host name, besides addresses and localhost; * is any; a server with keys
    /// takes any name
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Take paths that begin with this part too, such as /llm: for a proxy that passes them on as they are
    #[arg(long, value_name = "PATH", value_parser = root_path)]
    pub root_path: Option<String>,
    /// Use this chat template, a Jinja file, instead of the model's
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Variables of the chat template for requests that give none, a JSON object: {"enable_thinking": false}
    #[arg(long, value_name = "JSON", value_parser = variables)]
    pub chat_template_kwargs: Option<Variables>,
    /// Temperature of requests that give none [default: what their form says, mostly 1]
    #[arg(long, value_name = "T", value_parser = temperature)]
    pub temp: Option<f32>,
    /// Seed of requests that give none [default: another one each time]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Maximum tokens of replies to requests that give none [default: what their form says, else the context]
    #[arg(long, alias = "n-predict", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub max_tokens: Option<u32>,
    /// Context length of a request in tokens [default: the model's, at most 8192]
    #[arg(short, long, alias = "ctx-size", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub ctx: Option<u32>,
    /// Element type of the KV cache [default: chosen by model and device]
    #[arg(long, value_name = "F", value_enum)]
    pub kv: Option<Kv>,
    /// Memory for the KV cache in MiB (1024 is 1 GiB), shared by all requests [default: what all requests need, or what
    /// is free]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub kv_memory: Option<u64>,
    /// Texts that are generated at once [default: 256 on a GPU, 16 on the CPU]
    #[arg(long, alias = "parallel", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_sequences: Option<u32>,
    /// Tokens of one step: one of each text, the rest pieces of prompts, so that long prompts hold nobody up [default:
    /// 2048 on a GPU, 256 on the CPU]
    #[arg(long, alias = "batch-size", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub step_tokens: Option<u32>,
    /// Texts that wait for the others; further ones get status 503 [default: 512]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub max_waiting: Option<u32>,
    /// Texts of one request: its prompts times n
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    pub max_per_request: u32,
    /// Maximum size of a request in MiB
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_body: u32,
    /// Open connections; further ones wait
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub max_connections: u32,
    /// Seconds for requests to end after SIGTERM; a second SIGTERM cuts them off
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub drain_timeout: u32,
    /// How /v1/embeddings makes one vector of a text: mean, cls or last [default: what the model's file says, else the
    /// mean for encoders and last for others]
    #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true)]
    pub pooling: Option<Pool>,
    /// Give a seeded request the same text, to the last bit, alone and beside any other requests, at some cost in
    /// speed; guesses no tokens unless --speculate or --draft is given
    #[arg(long)]
    pub deterministic: bool,
    #[command(flatten)]
    pub speculation: SpeculationArgs,
    /// Submit each step to the device only when the results of the one before are known
    #[arg(long)]
    pub no_overlap: bool,
    /// Compute every prompt anew instead of reusing beginnings that were computed before
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// What is logged, as one JSON object per line on standard error, which then holds nothing else [default: warn,
    /// beside lines for people]
    #[arg(long, value_name = "LEVEL", value_enum)]
    pub log: Option<Log>,
    #[command(flatten)]
    pub lora: LoraArgs,
    #[command(flatten)]
    pub experts: ExpertsArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}
