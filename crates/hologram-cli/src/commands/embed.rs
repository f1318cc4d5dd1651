//! `hologram embed`: vectors of texts; `hologram rerank`: scores of texts for a query.

use std::io::Write;
use std::path::Path;

use hologram_core::npy::{self, Array};
use hologram_llm::{Embedder, Model, Pooling, Reranker};
use serde_json::json;

use super::shipped;
use crate::args::{DeviceArgs, EmbedArgs, RerankArgs};
use crate::status::status;
use crate::text::{counted, read_input};

/// Maximum bytes of a file of texts.
const MAX_TEXTS: u64 = 1 << 30;

/// The most tokens of a text for a model that names more.
const MAX_CONTEXT: usize = 32768;

/// Runs `embed`.
///
/// # Errors
/// When a text is empty or too long, or the device, the model or a file fails.
pub fn run(args: &EmbedArgs) -> anyhow::Result<()> {
    let model = load(&args.model, &args.device)?;
    let texts: Vec<Vec<u32>> = match args.tokens.is_empty() {
        false => vec![args.tokens.clone()],
        true => {
            let tokenizer = model.tokenizer()?;
            let texts = lines(&args.texts, args.file.as_deref())?;
            texts.iter().map(|text| tokenizer.encode(text, true)).collect::<Result<_, _>>()?
        }
    };
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    let mut embedder = Embedder::new(&model, context(&model, longest))?;
    if let Some(on) = args.normalize {
        embedder.set_normalize(on);
    }
    let pooling = args.pooling.map_or_else(|| embedder.pooling(), Pooling::from);
    let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    let vectors = embedder.embed(&texts, pooling)?;
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
    crate::output::write(out, &npy::to_bytes(&Array::from_f32(shape.clone(), &values)))?;
    status!("wrote {} (float32 {shape:?})\n", out.display());
    Ok(())
}

/// Runs `rerank`.
///
/// # Errors
/// When the model is no reranker, a text is too long, or the device, the model or a file fails.
pub fn rerank(args: &RerankArgs) -> anyhow::Result<()> {
    let model = load(&args.model, &args.device)?;
    let texts = lines(&args.texts, args.file.as_deref())?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut scores = Reranker::new(&model, context(&model, MAX_CONTEXT))?.scores(&args.query, &texts)?;
    if !args.raw {
        scores.iter_mut().for_each(|score| *score = Reranker::probability(*score));
    }
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let mut out = std::io::stdout().lock();
    if args.json {
        let list: Vec<_> =
            order.iter().map(|i| json!({ "index": i, "score": scores[*i], "text": texts[*i] })).collect();
        return Ok(writeln!(out, "{}", json!({ "query": args.query, "texts": list }))?);
    }
    for i in order {
        writeln!(out, "{:>8.4}  {}", scores[i], texts[i])?;
    }
    Ok(())
}

fn load(model: &Path, device: &DeviceArgs) -> anyhow::Result<Model> {
    let executor = device.open()?;
    shipped::load(shipped::open(Some(model))?, &executor)
}

/// The context for texts of this many tokens, within the model's.
fn context(model: &Model, longest: usize) -> usize {
    longest.clamp(1, model.config().context.min(MAX_CONTEXT))
}

/// The texts of the command line, or the lines of a file that are not empty.
fn lines(texts: &[String], file: Option<&Path>) -> anyhow::Result<Vec<String>> {
    if !texts.is_empty() {
        return Ok(texts.to_vec());
    }
    let path = file.unwrap_or(Path::new("-"));
    let text = String::from_utf8(read_input(path, MAX_TEXTS)?);
    let text = text.map_err(|_| anyhow::anyhow!("{} is not UTF-8", path.display()))?;
    let lines: Vec<String> = text.lines().filter(|line| !line.trim().is_empty()).map(String::from).collect();
    anyhow::ensure!(!lines.is_empty(), "{} has no texts", path.display());
    if file.is_some() {
        status!("{}\n", counted(lines.len(), "text"));
    }
    Ok(lines)
}
