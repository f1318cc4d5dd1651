//! `hologram doctor`: what a report of a fault needs, on one screen.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use hologram_backends::{BackendType, compare};
use hologram_core::{Executor, conformance};
use hologram_hub::{Settings, found};
use serde_json::{Map, Value, json};

use super::devices;
use crate::args::DoctorArgs;
use crate::text;

/// The operations that are tested: those of which a step of a language model consists, and one of each other kind.
const OPERATIONS: [&str; 10] =
    ["add", "matmul", "rms_norm", "softmax", "silu", "reduce_sum", "gather", "concat", "sort_blocks", "random_uniform"];
/// Largest test case, in multiplications.
const WORK: usize = 20_000;
/// Random programs per device.
const PROGRAMS: u64 = 8;
/// No further operation or program begins on a device after this time: a GPU's driver takes a tenth of a second to
/// compile a program.
const TIME: Duration = Duration::from_secs(4);
/// Beginnings of environment variables that change what the command does, and whose values may be shown.
const SHOWN: [&str; 6] = ["HOLOGRAM_", "HF_", "METAL_", "CUDA_VISIBLE_DEVICES", "OLLAMA_MODELS", "SSL_CERT_FILE"];
/// Variables that are only said to be set.
const SECRET: [&str; 4] = ["TOKEN", "PROXY", "KEY", "SECRET"];

/// A line: its name, the text for people and the value for `--json`.
struct Line {
    name: String,
    text: String,
    value: Value,
}

/// Runs the command.
///
/// # Errors
/// When a device computes a wrong result; when standard output fails.
pub fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let say = |line: &Line| if args.json { Ok(()) } else { print(line) };
    // Shown before the tests, which may be what hangs or ends the process.
    let facts = [version(), system(), kernels(), models(), environment()];
    facts.iter().try_for_each(say)?;
    let (mut all, mut tests, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for (name, device) in hologram_backends::devices() {
        let line = match &device {
            Ok(info) => {
                Line { text: devices::in_words(info), value: devices::in_json(&name, info), name: name.clone() }
            }
            Err(error) => {
                let reason = devices::reason(error);
                let value = json!({ "device": name, "error": reason });
                Line { text: format!("not here: {reason}"), value, name: name.clone() }
            }
        };
        say(&line)?;
        all.push(line.value);
        // The interpreter is what the others are compared with.
        if device.is_ok_and(|info| info.backend != BackendType::Reference) {
            let line = test(&name, &mut wrong);
            say(&line)?;
            tests.push(line.value);
        }
    }
    if args.json {
        let mut object: Map<String, Value> = facts.into_iter().map(|line| (line.name, line.value)).collect();
        object.extend([("devices".into(), all.into()), ("tests".into(), tests.into())]);
        writeln!(std::io::stdout(), "{}", Value::from(object))?;
    }
    match wrong.first() {
        None => Ok(()),
        Some(first) => {
            bail!("{} fail, the first: {first}; `hologram selftest` runs all", text::counted(wrong.len(), "test"))
        }
    }
}

fn print(line: &Line) -> anyhow::Result<()> {
    let shown = text::printable(&line.text, text::MESSAGE);
    Ok(writeln!(std::io::stdout(), "{:<12} {shown}", line.name)?)
}

fn version() -> Line {
    let mut words = vec![env!("CARGO_PKG_VERSION").to_string()];
    // Set where releases are built.
    words.extend(option_env!("HOLOGRAM_COMMIT").map(|commit| format!("commit {commit}")));
    words.push(if cfg!(debug_assertions) { "debug build".into() } else { "release build".into() });
    Line { name: "hologram".into(), text: words.join(", "), value: words.join(", ").into() }
}

/// The operating system, its version where a file says it, and the architecture.
fn system() -> Line {
    let mut words = vec![format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)];
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    words.extend((!kernel.trim().is_empty()).then(|| format!("kernel {}", kernel.trim())));
    let release = read("/etc/os-release");
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    words.extend(name.map(|name| name.trim_matches('"').to_string()));
    Line { name: "system".into(), text: words.join(", "), value: words.join(", ").into() }
}

/// The cache of compiled kernels.
fn kernels() -> Line {
    let (text, value) = match hologram_backends::cache_info() {
        Err(e) => (e.to_string(), json!({ "error": e.to_string() })),
        Ok(info) => match &info.directory {
            None => ("no directory: set HOLOGRAM_CACHE".into(), Value::Null),
            Some(directory) => {
                let directory = at_home(directory);
                let entries = if info.entries == 1 { "entry" } else { "entries" };
                let mut value = json!({ "directory": directory, "entries": info.entries, "bytes": info.bytes });
                match hologram_backends::check_cache() {
                    Ok(()) => (format!("{directory}: {} {entries}, {} bytes", info.entries, info.bytes), value),
                    Err(e) => {
                        value["error"] = e.to_string().into();
                        (format!("{directory}: cannot be written: {e}"), value)
                    }
                }
            }
        },
    };
    Line { name: "kernels".into(), text, value }
}

/// The cache of downloaded models, and what else is found.
fn models() -> Line {
    let (text, value) = match Settings::from_env() {
        Err(e) => (e.to_string(), json!({ "error": e.to_string() })),
        Ok(settings) => {
            let (all, folder) = (found(&settings.cache), at_home(&settings.cache));
            let size = text::size(all.iter().map(|model| model.size).sum());
            let mut text = format!("{folder}: {} found, {size}", text::counted(all.len(), "model"));
            text += if settings.token.is_some() { ", with a token" } else { ", without a token" };
            text += if settings.offline { ", offline" } else { "" };
            let value = json!({
                "directory": folder,
                "models": all.len(),
                "token": settings.token.is_some(),
                "offline": settings.offline,
            });
            (text, value)
        }
    };
    Line { name: "models".into(), text, value }
}

/// The variables that are set, without secrets.
fn environment() -> Line {
    let mut set: Vec<(String, String)> = std::env::vars_os().filter_map(|(name, value)| shown(&name, &value)).collect();
    set.sort();
    let words: Vec<String> = set.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let text = if words.is_empty() { "nothing set".into() } else { words.join(" ") };
    let value = set.into_iter().map(|(name, value)| (name, value.into())).collect::<Map<_, _>>().into();
    Line { name: "environment".into(), text, value }
}

/// A variable as a report may show it, if it matters.
fn shown(name: &OsStr, value: &OsStr) -> Option<(String, String)> {
    let (name, value) = (name.to_str()?, value.to_string_lossy());
    let upper = name.to_uppercase();
    let is_proxy = upper.ends_with("_PROXY");
    if value.is_empty() || !(is_proxy || SHOWN.iter().any(|start| upper.starts_with(start))) {
        return None;
    }
    let secret = SECRET.iter().any(|word| upper.contains(word)) && !upper.ends_with("_PATH");
    let hidden = secret || value.contains('@');
    Some((name.to_string(), if hidden { "(set)".into() } else { at_home(Path::new(&*value)) }))
}

/// A path with `~` for the user's home folder, whose name is nobody else's business.
fn at_home(path: &Path) -> String {
    let rest = std::env::home_dir().filter(|home| home.parent().is_some()).and_then(|home| {
        let rest = path.strip_prefix(home).ok()?;
        Some(Path::new("~").join(rest).display().to_string())
    });
    rest.unwrap_or_else(|| path.display().to_string())
}

/// A short self-test of a device. Failures are added to `wrong`.
fn test(device: &str, wrong: &mut Vec<String>) -> Line {
    let (started, before) = (Instant::now(), wrong.len());
    let (mut cases, mut programs) = (0, 0);
    match hologram_backends::open(device, None) {
        Err(e) => wrong.push(format!("{device}: {e}")),
        Ok(backend) => {
            let executor = Executor::from_backend(backend);
            for op in OPERATIONS.iter().take_while(|_| started.elapsed() < TIME) {
                for result in conformance::run_op(&executor, op, WORK) {
                    cases += 1;
                    wrong.extend(result.failure.is_some().then(|| format!("{device}: {result}")));
                }
            }
            // One even where the operations took all of the time.
            for seed in (0..PROGRAMS).take_while(|seed| *seed == 0 || started.elapsed() < TIME) {
                programs += 1;
                match compare::random_program(executor.backend().as_ref(), seed) {
                    Ok(difference) => wrong.extend(difference.map(|difference| format!("{device}: {difference}"))),
                    Err(e) => wrong.push(format!("{device}: seed {seed}: {e}")),
                }
            }
        }
    }
    let failed = wrong.len() - before;
    let verdict = if failed == 0 { "all right".into() } else { format!("{failed} failed") };
    let seconds = started.elapsed().as_secs_f64();
    let text = format!(
        "{}, {}: {verdict} ({seconds:.1} s)",
        text::counted(cases, "case"),
        text::counted(programs, "random program")
    );
    let value = json!({ "device": device, "cases": cases, "programs": programs, "failed": failed, "seconds": seconds });
    Line { name: "  self-test".into(), text, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tested_operation_exists() {
        let known = conformance::op_names();
        for op in OPERATIONS {
            assert!(known.contains(&op), "{op} is not one of {known:?}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let show = |name: &str, value: &str| shown(OsStr::new(name), OsStr::new(value)).map(|(_, value)| value);
        for (name, value, want) in [
            ("HF_TOKEN", "hf_abc", Some("(set)")),
            ("HUGGING_FACE_HUB_TOKEN", "hf_abc", None),
            ("https_proxy", "http://me:secret@proxy:3128", Some("(set)")),
            ("HF_ENDPOINT", "https://me:secret@mirror", Some("(set)")),
            ("HF_ENDPOINT", "https://mirror.example", Some("https://mirror.example")),
            ("HF_TOKEN_PATH", "/etc/token", Some("/etc/token")),
            ("HOLOGRAM_CUBLASLT", "0", Some("0")),
            ("HOLOGRAM_CACHE", "", None),
            ("PATH", "/bin", None),
        ] {
            assert_eq!(show(name, value).as_deref(), want, "{name}={value}");
        }
    }
}
