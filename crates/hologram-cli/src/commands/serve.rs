//! `hologram serve`: serves models over HTTP.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use hologram_core::Executor;
use hologram_server::{End, Keys, Limits, Listen, Options, Server, Tls, log};

use super::serve_models;
use crate::args::{Log, ServeArgs, UsageError, take_notes, usage};
use crate::status::{Logged, status};
use crate::text::{NAME, printable};

/// Bytes of `sun_path` in the address of a Unix socket, of which the last is 0.
const SOCKET_PATH: usize = if cfg!(target_os = "linux") { 108 } else { 104 };

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
    let entries = serve_models::entries(args)?;
    // Before a model is loaded.
    args.speculation.chosen()?;
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
    let unload_after = args.unload_after.map(|seconds| Duration::from_secs(seconds.into()));
    let slot_folder = args.slot_save_path.clone();
    if let Some(folder) = slot_folder.as_ref().filter(|folder| !folder.is_dir()) {
        return usage(format!("--slot-save-path: {} is no folder", folder.display()));
    }
    let max_loaded = serve_models::max_loaded(args, entries.len());
    let names: Vec<String> = entries.iter().map(|entry| printable(&entry.names[0], NAME)).collect();
    let load = || {
        let executor = args.device.open()?;
        Ok::<_, anyhow::Error>((serve_models::sources(args, entries, &executor)?, executor))
    };
    let (mut load, mut loaded) = (Some(load), None);
    if args.load_first {
        loaded = load.take().map(|load| load()).transpose()?;
    }
    // Else it tells that it is alive while the model loads.
    let without = args.without.iter().map(|part| (*part).into()).collect();
    let root_path = args.root_path.clone().unwrap_or_default();
    let options = Options {
        listen,
        tls,
        keys,
        origins,
        hosts,
        root_path,
        max_loaded,
        unload_after,
        slot_folder,
        without,
        limits,
    };
    let server = Server::start(options).with_context(|| match &args.unix_socket {
        Some(path) => format!("cannot listen on {}", path.display()),
        None => format!("cannot listen on {}, port {}", args.host, args.port),
    })?;
    if let Some(load) = load {
        loaded = Some(load()?);
    }
    let Some((sources, executor)) = loaded else { return Ok(()) };
    server.offer(sources);
    tell(&names, &executor, args.log.is_some());
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

/// Says what is served, and where it runs.
fn tell(names: &[String], executor: &Executor, logs: bool) {
    let (backend, device) = (executor.info().backend, &executor.info().name);
    let when = if names.len() > 1 { ", loaded when first used" } else { "" };
    let message = format!("{} on {backend} ({device}){when}", names.join(", "));
    if logs {
        take_notes().iter().for_each(|note| log::warn(note));
        log::info(&message);
    } else {
        status!("{message}\n");
    }
}
