//! The models of `hologram serve`: their names, and how each is loaded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use hologram_core::Executor;
use hologram_llm::{EngineOptions, Speculation};
use hologram_server::{Defaults, Served, Source, log};

use super::run::beyond_trained;
use super::shipped;
use crate::args::{ServeArgs, usage};
use crate::status::status;
use crate::text::read_file;

/// Maximum bytes of a chat template's file.
const MAX_TEMPLATE: u64 = 256 << 10;

/// The name of the built-in model for clients.
const BUILT_IN: &str = "rust-docs-bitnet";

/// The most models in memory at once, unless an option says otherwise.
const MAX_LOADED: usize = 3;

/// A model by its names.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name for clients, then its aliases.
    pub names: Vec<String>,
    /// `None`: the built-in model.
    path: Option<PathBuf>,
}

/// How models are loaded.
struct Settings {
    executor: Executor,
    args: ServeArgs,
    /// The file of the chat template and its text.
    template: Option<(PathBuf, String)>,
    max_loaded: usize,
}

/// The models that the arguments name.
///
/// # Errors
/// A usage error when two models have the same name, or an option for one model meets several.
pub fn entries(args: &ServeArgs) -> anyhow::Result<Vec<Entry>> {
    let given: Vec<&Path> = args.word.iter().chain(&args.model).map(PathBuf::as_path).collect();
    if given.len() > 1 {
        let for_one = [
            ("--alias", !args.alias.is_empty()),
            ("--draft", args.speculation.draft.is_some()),
            ("--lora", !args.lora.lora.is_empty()),
            ("--chat-template", args.chat_template.is_some()),
        ];
        if let Some((option, _)) = for_one.iter().find(|(_, given)| *given) {
            let hint = if *option == "--alias" { "; name them by -m NAME=PATH" } else { "" };
            return usage(format!("{option} is for one model, but there are {}{hint}", given.len()));
        }
    }
    let mut entries: Vec<Entry> = given.into_iter().map(entry).collect();
    if entries.is_empty() {
        entries.push(Entry { names: vec![BUILT_IN.into()], path: None });
    }
    if !args.alias.is_empty() {
        entries[0].names.clone_from(&args.alias);
    }
    for (i, entry) in entries.iter().enumerate() {
        if entries[..i].iter().any(|other| other.names[0] == entry.names[0]) {
            return usage(format!("two models have the name {}; name them by -m NAME=PATH", entry.names[0]));
        }
    }
    Ok(entries)
}

/// A model as it was given: `NAME=PATH`, or a path, whose file name is the name then.
fn entry(given: &Path) -> Entry {
    if let Some((name, path)) = given.to_str().and_then(|text| text.split_once('='))
        && !name.is_empty()
        && !given.exists()
    {
        return Entry { names: vec![name.into()], path: Some(path.into()) };
    }
    // As it was given: clients send what the user knows the model by.
    let name = match given.to_str() {
        Some(name) if name.starts_with("hf:") => name.trim_start_matches("hf:").into(),
        _ => given.file_stem().map_or_else(|| "model".into(), |stem| stem.to_string_lossy().into_owned()),
    };
    Entry { names: vec![name], path: Some(given.into()) }
}

/// How many of so many models are in memory at once.
pub fn max_loaded(args: &ServeArgs, models: usize) -> usize {
    args.max_loaded.map_or(MAX_LOADED, |n| n as usize).min(models)
}

/// Makes models out of entries: a single one is loaded at once, several when they are first used.
///
/// # Errors
/// When a file cannot be read or is of an unknown kind, or a model cannot be loaded: the single one, or the first with
/// `--load-first`.
pub fn sources(args: &ServeArgs, entries: Vec<Entry>, executor: &Executor) -> anyhow::Result<Vec<Source>> {
    let template = match &args.chat_template {
        None => None,
        Some(path) => {
            let text = String::from_utf8(read_file(path, MAX_TEMPLATE)?);
            let text = text.with_context(|| format!("{} is not UTF-8", path.display()))?;
            ensure!(!text.trim().is_empty(), "{} is empty, which is no chat template", path.display());
            Some((path.clone(), text))
        }
    };
    let max_loaded = max_loaded(args, entries.len());
    let settings = Arc::new(Settings { executor: executor.clone(), args: args.clone(), template, max_loaded });
    let single = entries.len() == 1;
    let source = |(index, entry): (usize, Entry)| {
        // Reads only what describes the model: a wrong name is told at once, not to the first user.
        let files = shipped::open(entry.path.as_deref())?;
        files.config()?;
        let (bytes, family) = (files.tensor_bytes(), files.architecture());
        drop(files);
        let now = single || args.load_first && index == 0;
        let first = if now { Some(load(&settings, &entry)?) } else { None };
        let (names, settings) = (entry.names.clone(), settings.clone());
        let source = Source::new(names, bytes, family, move || load(&settings, &entry).map_err(|e| format!("{e:#}")));
        Ok(match first {
            Some(served) => source.with_loaded(served),
            None => source,
        })
    };
    entries.into_iter().enumerate().map(source).collect()
}

fn load(settings: &Settings, entry: &Entry) -> anyhow::Result<Served> {
    let Settings { executor, args, template, max_loaded } = settings;
    let (files, options) = (shipped::open(entry.path.as_deref())?, args.experts.options(args.device.threads()));
    let model = Arc::new(shipped::load_quietly(files, &args.lora, options, executor)?);
    let context = args.ctx.map(|n| if n == 0 { model.config().context } else { n as usize });
    let beyond = context.and_then(|n| beyond_trained(n, model.config().context));
    for note in model.not_run().into_iter().chain(model.experts_elsewhere()).chain(beyond) {
        let note = format!("{}: {note}", entry.names[0]);
        if args.log.is_some() { log::info(&note) } else { status!("note: {note}\n") }
    }
    let mut options = EngineOptions::for_model(&model);
    options.max_sequences = args.max_sequences.map_or(options.max_sequences, |n| n as usize);
    options.context = context.unwrap_or(options.context);
    options.kv = args.kv.map(|kv| kv.format());
    options.kv_memory = args.kv_memory.or(options.kv_memory);
    options.engines = *max_loaded;
    options.max_waiting = args.max_waiting.map_or(options.max_waiting, |n| n as usize);
    options.step_tokens = args.step_tokens.map_or(options.step_tokens, |n| n as usize);
    options.deterministic = args.deterministic;
    options.overlap &= !args.no_overlap;
    options.prefix_cache = !args.no_prefix_cache;
    options.speculation = args.speculation.chosen()?;
    // Guesses change no text, but of a few tokens at a time they cost more than they win.
    if args.deterministic && !args.speculation.is_given() {
        options.speculation = Speculation::Off;
    }
    let draft = shipped::draft(&args.speculation, executor)?;
    let template = template.as_ref().map(|(path, text)| (path.as_path(), text.as_str()));
    let mut served = Served::with_draft(entry.names.clone(), model, options, template, draft.as_ref())?;
    let max_tokens = args.max_tokens.map(|n| n as usize);
    let variables = args.chat_template_kwargs.clone().unwrap_or_default();
    served.defaults = Defaults { temperature: args.temp, seed: args.seed, max_tokens, variables };
    if let Some(pooling) = args.pooling {
        served.set_pooling(pooling.into());
    }
    Ok(served)
}

#[cfg(test)]
mod tests {
    use super::entry;

    #[test]
    fn names_of_models() {
        for (given, name, path) in [
            ("a=dir/b.gguf", "a", "dir/b.gguf"),
            ("dir/b.Q4.gguf", "b.Q4", "dir/b.Q4.gguf"),
            ("org/a=hf:org/b:Q4_K_M", "org/a", "hf:org/b:Q4_K_M"),
            ("hf:org/b:Q4_K_M", "org/b:Q4_K_M", "hf:org/b:Q4_K_M"),
            ("=x", "=x", "=x"),
            ("a=b=c", "a", "b=c"),
            ("..", "model", ".."),
        ] {
            let entry = entry(given.as_ref());
            assert_eq!((&*entry.names[0], entry.path.as_deref()), (name, Some(path.as_ref())), "{given}");
        }
    }
}
