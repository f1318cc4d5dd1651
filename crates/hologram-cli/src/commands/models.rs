//! `hologram pull`, `hologram models` and `hologram rm`: the models on this machine. `-m hf:…` comes here too.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use hologram_hub::{Found, Hub, HubError, Plan, Request, Source, Step, found};
use hologram_llm::ModelFiles;
use serde_json::json;

use super::words::without_host;
use crate::args::{ModelsArgs, PullArgs, RmArgs, usage};
use crate::progress::Progress;
use crate::status::status;
use crate::text::{self, MESSAGE, NAME, counted, printable, shown};

/// Other files of a repository that a note names.
const SHOWN: usize = 12;

/// Reads a name of the form `hf:OWNER/NAME[:FILE or TYPE]`.
fn request(name: &str) -> anyhow::Result<Request> {
    if name.contains("://") && !Request::looks_like(name) {
        hint(name)?;
    }
    let with_prefix = if Request::looks_like(name) { name.to_string() } else { format!("hf:{name}") };
    with_prefix.parse().or_else(|e| match e {
        // As it was typed.
        HubError::BadName { reason, .. } => usage(HubError::BadName { name: shown(name), reason }.to_string()),
        e => usage(e.to_string()),
    })
}

/// Whether a word is a file on this machine rather than a name on Hugging Face.
fn is_local(name: &str) -> bool {
    let named = name.to_ascii_lowercase().ends_with(".gguf") && name.matches('/').count() != 1;
    let local = Path::new(name).is_file() || ["/", "./", "../", "~/"].iter().any(|start| name.starts_with(start));
    !Request::looks_like(name) && !name.contains("://") && (local || named && !name.contains(':'))
}

/// The path of a model by name: from the cache, or downloaded into it.
///
/// # Errors
/// When the name is wrong, or the download fails.
pub fn path_of(name: &str) -> anyhow::Result<PathBuf> {
    let (request, hub) = (request(name)?, Hub::from_env()?);
    match hub.cached(&request)? {
        Some(cached) => Ok(cached.path),
        None => download(&hub, &request),
    }
}

/// Downloads a model, or as much of it as is missing, and says which.
fn download(hub: &Hub, request: &Request) -> anyhow::Result<PathBuf> {
    let plan = hub.plan(request)?;
    status!("{}\n", summary(request, &plan));
    let mut progress = None;
    let mut step = None;
    let path = hub.fetch(&plan, &mut |at| {
        if step != Some(at.step) {
            step = Some(at.step);
            let what = match at.step {
                Step::Waiting => {
                    status!("another process is downloading it: waiting\n");
                    return;
                }
                Step::Downloading => "downloading",
                Step::Checking => "checking",
            };
            // The bar before disappears first.
            progress = None;
            progress = Some(Progress::with_rate(what, "MB"));
        }
        if let Some(progress) = &mut progress {
            progress.at(at.done / 1_000_000, at.total / 1_000_000);
        }
    })?;
    drop(progress);
    Ok(path)
}

/// What is downloaded, and what else the repository has.
fn summary(request: &Request, plan: &Plan) -> String {
    let first = printable(&plan.choice.files[0], NAME);
    let what = match (plan.choice.is_folder(), plan.choice.files.len()) {
        (true, files) => format!("safetensors, {}", counted(files, "file")),
        (false, 1) => first,
        (false, parts) => format!("{first}, {}", counted(parts, "part")),
    };
    let mut text = format!("{}: {what}, {}", request.repo, text::size(plan.size()));
    if !plan.others.is_empty() {
        let others = plan.others.iter().take(SHOWN).map(|(choice, size)| format!("{choice} ({})", text::size(*size)));
        let more = if plan.others.len() > SHOWN { ", …" } else { "" };
        text += &format!("\nit also has {}{more}", others.collect::<Vec<_>>().join(", "));
    }
    printable_lines(&text)
}

fn printable_lines(text: &str) -> String {
    text.lines().map(|line| printable(line, MESSAGE)).collect::<Vec<_>>().join("\n")
}

/// Runs `hologram pull`.
///
/// # Errors
/// When the name is wrong, or the download fails.
pub fn pull(args: &PullArgs) -> anyhow::Result<()> {
    let hub = Hub::from_env()?;
    for name in &args.models {
        if is_local(name) {
            let name = shown(name);
            let call = format!("`hologram run {name}` runs it from where it is, hf:OWNER/NAME is one to download");
            return usage(format!("{name} is a file's name: {call}"));
        }
        let request = request(name)?;
        let path = download(&hub, &request)?;
        if std::io::stderr().is_terminal() {
            status!("hologram run {request} \"…\" runs it\n");
        }
        writeln!(std::io::stdout(), "{}", path.display())?;
    }
    Ok(())
}

/// Runs `hologram rm`.
///
/// # Errors
/// When the cache has no such model.
pub fn remove(args: &RmArgs) -> anyhow::Result<()> {
    let hub = Hub::from_env()?;
    if let Some(name) = args.models.iter().find(|name| is_local(name)) {
        let what = "rm removes what pull downloaded (it must be hf:OWNER/NAME); delete the file yourself";
        return usage(format!("{} is a file's name: {what}", shown(name)));
    }
    let requests = args.models.iter().map(|name| request(name)).collect::<anyhow::Result<Vec<_>>>()?;
    for request in requests {
        let removed = hub.remove(&request)?;
        let what = counted(removed.files.len(), "file");
        writeln!(std::io::stdout(), "removed {request}: {what}, {}", text::size(removed.bytes))?;
    }
    Ok(())
}

/// Runs `hologram models`.
///
/// # Errors
/// When standard output fails.
pub fn list(args: &ModelsArgs) -> anyhow::Result<()> {
    let hub = Hub::from_env()?;
    let cache = &hub.settings().cache;
    let models: Vec<(Found, Family)> =
        found(cache).into_iter().map(|found| (found.clone(), family(&found.path))).collect();
    let mut out = std::io::stdout().lock();
    if args.json {
        for (found, family) in &models {
            let object = json!({
                "name": found.name,
                "source": found.source.name(),
                "path": found.path.display().to_string(),
                "bytes": found.size,
                "family": family.name,
                "runs": family.problem.is_none(),
                "problem": family.problem,
            });
            writeln!(out, "{object}")?;
        }
        return Ok(());
    }
    if models.is_empty() {
        writeln!(out, "no models in {}, nor of Ollama or LM Studio", cache.display())?;
        writeln!(out, "`hologram pull hf:OWNER/NAME` downloads one from Hugging Face")?;
        return Ok(());
    }
    let width = |text: fn(&(Found, Family)) -> usize| models.iter().map(text).max().unwrap_or(0);
    let names = width(|(found, _)| found.name.chars().count().min(NAME));
    let families = width(|(_, family)| family.name.as_deref().unwrap_or("?").chars().count());
    let mut source = None;
    for (found, family) in &models {
        if source != Some(found.source) {
            let folder =
                if found.source == Source::HuggingFace { format!(": {}", cache.display()) } else { String::new() };
            let line = if source.is_some() { "\n" } else { "" };
            writeln!(out, "{line}{}{folder}", found.source.name())?;
            source = Some(found.source);
        }
        let name = printable(&found.name, NAME);
        let kind = printable(family.name.as_deref().unwrap_or("?"), NAME);
        let runs = match &family.problem {
            None => "runs".to_string(),
            Some(problem) => format!("does not run: {}", printable(problem, MESSAGE)),
        };
        writeln!(out, "  {name:<names$}  {:>9}  {kind:<families$}  {runs}", text::size(found.size))?;
        // Only names on Hugging Face can be given to -m.
        if found.source != Source::HuggingFace {
            writeln!(out, "    {}", found.path.display())?;
        }
    }
    Ok(())
}

/// What kind of model a file is.
struct Family {
    /// The architecture's name, if it could be read.
    name: Option<String>,
    /// Why it cannot be run.
    problem: Option<String>,
}

fn family(path: &Path) -> Family {
    let files = match ModelFiles::open(path) {
        Ok(files) => files,
        Err(e) => return Family { name: None, problem: Some(without_path(&e, path)) },
    };
    let name = files.architecture().map(|name| printable(&name, NAME));
    Family { name, problem: files.check().err().map(|e| without_path(&e, path)) }
}

/// An error without the path that stands beside it.
fn without_path(e: &hologram_llm::LlmError, path: &Path) -> String {
    let path = path.display().to_string();
    e.to_string().replace(&format!("{path}: "), "").replace(&path, "it")
}

/// A hint for a name that looks like a model of a hub, or an address.
///
/// # Errors
/// Always a usage error that says what to type.
pub fn hint(name: &str) -> anyhow::Result<PathBuf> {
    if let Some(rest) = name.split_once("://").map(|(_, rest)| rest) {
        let parts: Vec<&str> = rest.split(['/', '?', '#']).collect();
        // huggingface.co/OWNER/NAME/resolve/main/FILE
        if let ["huggingface.co" | "hf.co", owner, name, ..] = parts[..] {
            let file = parts.get(5..).filter(|f| ["resolve", "blob"].contains(&parts[3]) && !f.is_empty());
            let file = file.map(|file| {
                format!(":{}", file.iter().filter(|f| !f.contains('=')).copied().collect::<Vec<_>>().join("/"))
            });
            return usage(format!("give hf:{owner}/{name}{} instead of an address", file.unwrap_or_default()));
        }
        return usage(format!("{} is an address: download the file and give its path", shown(name)));
    }
    usage(format!("there is no file or folder {name}; -m hf:{} takes it from Hugging Face", without_host(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_read_well() {
        for (name, said) in [
            ("Qwen/Qwen3-0.6B", "-m hf:Qwen/Qwen3-0.6B takes it"),
            ("https://huggingface.co/a/b/resolve/main/c.gguf?download=true", "give hf:a/b:c.gguf instead"),
            ("https://huggingface.co/a/b/tree/main", "give hf:a/b instead"),
            ("https://hf.co/a/b", "give hf:a/b instead"),
            ("http://example.org/c.gguf", "download the file"),
            ("hf.co/a/b:Q8_0", "-m hf:a/b:Q8_0 takes it"),
        ] {
            let error = hint(name).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
