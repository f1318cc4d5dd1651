//! `hologram embed`: vectors of texts; `hologram rerank`: scores of texts for a query.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use hologram_core::npy::{self, Array};
use hologram_llm::{Embedder, LlmError, LoadOptions, Model, Pooling, Reranker};
use serde_json::json;

use super::shipped;
use super::words::model_and_texts;
use crate::args::{EmbedArgs, LoraArgs, RerankArgs, usage};
use crate::output;
use crate::text::{read_input, shown};

/// Maximum bytes of a file of texts.
const MAX_TEXTS: u64 = 1 << 30;

/// The most tokens of a text for a model that names more.
const MAX_CONTEXT: usize = 32768;

/// Runs `embed`.
///
/// # Errors
/// When a text is empty or too long, or the device, the model or a file fails.
pub fn run(args: &EmbedArgs) -> anyhow::Result<()> {
    let (path, words) = model_and_texts(&args.words, args.model.as_deref(), "embed MODEL TEXT")?;
    if !words.is_empty() && (args.file.is_some() || !args.tokens.is_empty()) {
        return usage(format!("the text {} cannot be used with --file or --tokens", shown(&words[0])));
    }
    let executor = args.device.open()?;
    let files = shipped::open(Some(&path))?;
    if let Some(out) = &args.out {
        output::check_not_read(out, Some(&files), args.file.as_deref())?;
    }
    let model = shipped::load(files, &LoraArgs::default(), LoadOptions::default(), &executor)?;
    let mut file = None;
    let texts: Vec<Vec<u32>> = match args.tokens.is_empty() {
        false => vec![args.tokens.clone()],
        true => {
            let tokenizer = model.tokenizer()?;
            let Texts { texts, source } = Texts::read(words, args.file.as_deref())?;
            file = source;
            texts.iter().map(|text| tokenizer.encode(text, true)).collect::<Result<_, _>>()?
        }
    };
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    let mut embedder = Embedder::new(&model, context(&model, longest))?;
    let pooling = args.pooling.map_or_else(|| embedder.pooling(), Pooling::from);
    if let Some(on) = args.normalize {
        if on && pooling == Pooling::None {
            return usage("--normalize is for a text's one vector: choose a --pooling other than none");
        }
        embedder.set_normalize(on);
    }
    let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    let vectors = embedder.embed(&texts, pooling).map_err(|e| at_fault(e, file.as_deref()))?;
    let width = if pooling == Pooling::None { model.config().width } else { embedder.width() };
    let Some(out) = &args.out else {
        let texts = texts.iter().zip(&vectors).map(|(tokens, vector)| match pooling {
            Pooling::None => json!({ "tokens": tokens, "vectors": vector.chunks(width).collect::<Vec<_>>() }),
            _ => json!({ "tokens": tokens.len(), "vector": vector }),
        });
        let texts: Vec<_> = texts.collect();
        return Ok(writeln!(std::io::stdout(), "{}", json!({ "width": width, "texts": texts }))?);
    };
    let values = vectors.concat();
    let shape = vec![values.len() / width.max(1), width];
    let array = Array::from_f32(shape.clone(), &values);
    output::save(out, &npy::to_bytes(&array), &format!("float32 {shape:?}"))
}

/// Runs `rerank`.
///
/// # Errors
/// When the model is no reranker, a text is too long, or the device, the model or a file fails.
pub fn rerank(args: &RerankArgs) -> anyhow::Result<()> {
    let (path, words) = model_and_texts(&args.words, args.model.as_deref(), "rerank MODEL QUERY TEXT")?;
    let Some((query, texts)) = words.split_first() else {
        return usage("give a query: hologram rerank MODEL QUERY TEXT …");
    };
    if !texts.is_empty() && args.file.is_some() {
        return usage(format!("the text {} cannot be used with --file", shown(&texts[0])));
    }
    let executor = args.device.open()?;
    let model = shipped::load(shipped::open(Some(&path))?, &LoraArgs::default(), LoadOptions::default(), &executor)?;
    let Texts { texts, source } = Texts::read(texts, args.file.as_deref())?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut reranker = Reranker::new(&model, context(&model, MAX_CONTEXT))?;
    let mut scores = reranker.scores(query, &texts).map_err(|e| at_fault(e, source.as_deref()))?;
    if !args.raw {
        scores.iter_mut().for_each(|score| *score = Reranker::probability(*score));
    }
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let mut out = std::io::stdout().lock();
    if args.json {
        let list: Vec<_> =
            order.iter().map(|i| json!({ "index": i, "score": scores[*i], "text": texts[*i] })).collect();
        return Ok(writeln!(out, "{}", json!({ "query": query, "texts": list }))?);
    }
    for i in order {
        writeln!(out, "{:>8.4}  {}", scores[i], texts[i])?;
    }
    Ok(())
}

/// The context for texts of this many tokens, within the model's.
fn context(model: &Model, longest: usize) -> usize {
    longest.clamp(1, model.config().context.min(MAX_CONTEXT))
}

/// Texts, and the file that they are the lines of, if they are.
struct Texts {
    texts: Vec<String>,
    source: Option<PathBuf>,
}

impl Texts {
    /// The texts of the command line, or the lines of a file. No line is left out: the n-th vector is that of the n-th
    /// line.
    fn read(texts: &[String], file: Option<&Path>) -> anyhow::Result<Texts> {
        if !texts.is_empty() {
            let empty = texts.iter().position(|text| text.trim().is_empty());
            return match empty {
                Some(i) => usage(format!("{} is empty", place(None, i))),
                None => Ok(Texts { texts: texts.to_vec(), source: None }),
            };
        }
        if file.is_none() && std::io::stdin().is_terminal() {
            return usage("give texts as arguments, as lines of --file FILE or on standard input");
        }
        let path = file.unwrap_or(Path::new("-"));
        let name = name(path);
        let text = String::from_utf8(read_input(path, MAX_TEXTS)?);
        let text = text.map_err(|_| anyhow::anyhow!("{name} is not UTF-8"))?;
        let lines: Vec<String> = text.lines().map(String::from).collect();
        if lines.is_empty() {
            let hint = "give texts as arguments, or one per line";
            return usage(format!("{name} has no texts: {hint}"));
        }
        if let Some(i) = lines.iter().position(|line| line.trim().is_empty()) {
            bail!("{} is empty: every line is a text", place(Some(path), i));
        }
        Ok(Texts { texts: lines, source: Some(path.into()) })
    }
}

/// An error that names the line of a text at fault.
fn at_fault(e: LlmError, source: Option<&Path>) -> anyhow::Error {
    match (e, source) {
        (LlmError::TextLength { index, tokens, most }, Some(_)) => {
            anyhow::anyhow!("{} has {tokens} tokens, but the model takes at most {most}", place(source, index))
        }
        (e, _) => e.into(),
    }
}

/// Where the i-th text stands, for messages.
fn place(source: Option<&Path>, i: usize) -> String {
    match source {
        Some(path) => format!("line {} of {}", i + 1, name(path)),
        None => format!("text {}", i + 1),
    }
}

/// A file's name for messages.
fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".into() } else { path.display().to_string() }
}
