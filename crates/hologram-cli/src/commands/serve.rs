//! `hologram serve`: serves a model over HTTP.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hologram_llm::EngineOptions;
use hologram_server::{End, Keys, Limits, Listen, Options, Served, Server, Tls, log};

use super::shipped;
use crate::args::{Log, Pool, ServeArgs, UsageError, take_notes, usage};
use crate::status::{Logged, status};
use crate::text::{NAME, printable, read_file};

/// Maximum bytes of a chat template's file.
const MAX_TEMPLATE: u64 = 256 << 10;

/// Bytes of `sun_path` in the address of a Unix socket, of which the last is 0.
const SOCKET_PATH: usize = if cfg!(target_os = "linux") { 108 } else { 104 };

/// The name of the built-in model for clients.
const BUILT_IN: &str = "rust-docs-bitnet";

/// Runs the command.
///
/// # Errors
/// When an option is out of range, the address is taken, or the device or the model fails.
pub fn run(args: &ServeArgs) -> anyhow::Result<()> {
    log::install(args.log.unwrap_or(Log::Warn).into()).context("cannot log")?;
    match serve(args) {
        Err(e) if args.log.is_some() && !e.is::<UsageError>() => {
            log::error(&format!("{e:#}"));
            Err(Logged.into())
        }
        done => done,
    }
}

fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    // Before a model is loaded.
    args.speculation.chosen()?;
    if let Some(Pool::None) = args.pooling {
        return usage("--pooling none gives a vector for each token, which /v1/embeddings cannot answer");
    }
    if let Some(path) = &args.unix_socket
        && path.as_os_str().len() >= SOCKET_PATH
    {
        let (bytes, most) = (path.as_os_str().len(), SOCKET_PATH - 1);
        return usage(format!("--unix-socket: the path has {bytes} bytes, but the system takes at most {most}"));
    }
    let listen = match &args.unix_socket {
        Some(path) => Listen::Unix(path.clone()),
        None => Listen::Tcp(args.host.clone(), args.port),
    };
    let file = args.api_key_file.as_deref();
    let keys = Keys::new(&args.api_key, file)
        .with_context(|| format!("cannot read keys from {}", file.unwrap_or("".as_ref()).display()))?;
    if (file.is_some() || !args.api_key.is_empty()) && keys.is_empty() {
        return usage("--api-key must not be empty");
    }
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => {
            Some(Tls::from_files(certificate, key).context("cannot encrypt connections")?)
        }
        _ => None,
    };
    let limits = Limits {
        body: (args.max_body as usize) << 20,
        connections: args.max_connections as usize,
        sequences: args.max_per_request as usize,
        drain_time: Duration::from_secs(args.drain_timeout.into()),
        ..Limits::default()
    };
    let (origins, hosts) = (args.cors_origin.clone(), args.allow_host.clone());
    // It tells that it is alive while the model loads.
    let server = Server::start(Options { listen, tls, keys, origins, hosts, limits });
    let server = server.with_context(|| match &args.unix_socket {
        Some(path) => format!("cannot listen on {}", path.display()),
        None => format!("cannot listen on {}, port {}", args.host, args.port),
    })?;
    server.provide(load(args)?);
    let addresses: Vec<String> = server.addresses().iter().map(|address| openable(address)).collect();
    writeln!(std::io::stdout(), "{}", addresses.join(" "))?;
    match server.run().context("cannot watch for signals")? {
        End::Drained => Ok(()),
        End::CutOff => anyhow::bail!("some requests were cut off"),
    }
}

/// An address that can be opened: 0.0.0.0 is no address of a machine.
fn openable(address: &str) -> String {
    address.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
}

fn load(args: &ServeArgs) -> anyhow::Result<Served> {
    let executor = args.device.open()?;
    let path = args.model.given();
    let model = Arc::new(shipped::load(shipped::open(path)?, &args.lora, &executor)?);
    let mut options = EngineOptions::for_model(&model);
    options.max_sequences = args.max_sequences.map_or(options.max_sequences, |n| n as usize);
    options.context = args.ctx.map_or(options.context, |n| n as usize);
    options.kv = args.kv.map(|kv| kv.format());
    options.kv_memory = args.kv_memory.map(|mib| mib << 20).or(options.kv_memory);
    options.max_waiting = args.max_waiting.map_or(options.max_waiting, |n| n as usize);
    options.deterministic = args.deterministic;
    options.prefix_cache = !args.no_prefix_cache;
    options.speculation = args.speculation.chosen()?;
    let draft = shipped::draft(&args.speculation, &executor)?;
    let mut names = args.alias.clone();
    if names.is_empty() {
        names.push(match path {
            None => BUILT_IN.into(),
            // As it was given: clients send what the user knows the model by.
            Some(path) => match path.to_str() {
                Some(name) if name.starts_with("hf:") => name.trim_start_matches("hf:").into(),
                _ => path.file_stem().map_or_else(|| "model".into(), |stem| stem.to_string_lossy().into_owned()),
            },
        });
    }
    let template = match &args.chat_template {
        None => None,
        Some(path) => {
            let text = String::from_utf8(read_file(path, MAX_TEMPLATE)?);
            Some((path, text.with_context(|| format!("{} is not UTF-8", path.display()))?))
        }
    };
    let template = template.as_ref().map(|(path, text)| (path.as_path(), text.as_str()));
    let mut served = Served::with_draft(names, model, options, template, draft.as_ref())?;
    if let Some(pooling) = args.pooling {
        served.set_pooling(pooling.into());
    }
    let (name, backend, device) = (printable(&served.names[0], NAME), executor.info().backend, &executor.info().name);
    if args.log.is_some() {
        take_notes().iter().for_each(|note| log::warn(note));
        log::info(&format!("{name} on {backend} ({device})"));
    } else {
        status!("{name} on {backend} ({device})\n");
    }
    Ok(served)
}
