//! Embeddings: texts as vectors, from the hidden states of an encoder or a decoder; and rerankers, which score texts
//! against a query.

mod encoder;
mod modules;
mod rerank;

use hologram_core::Executor;

use self::encoder::{Encoder, EncoderText, Wanted};
use self::modules::Modules;
pub use self::rerank::Reranker;
use crate::error::{LlmError, Result};
use crate::files::ModelFiles;
use crate::kv::BLOCK_SIZE;
use crate::model::Model;
use crate::models::config::Config;
use crate::models::head::Head;
use crate::session::{Input, Logits, Session, SessionOptions};

/// How the hidden states of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// That of the last token, which has seen all others.
    Last,
    /// Their mean.
    Mean,
    /// That of the first token.
    Cls,
    /// All of them, one after another.
    None,
}

impl Pooling {
    /// What the model's files say: `pooling_type` of GGUF, or the modules of a folder of sentence-transformers. Many
    /// say nothing.
    pub fn of(model: &Model) -> Option<Pooling> {
        match model.files()? {
            ModelFiles::Folder(folder) => Modules::read(folder.path()).ok()??.pooling,
            ModelFiles::Gguf(file) => {
                let architecture = file.get_opt::<&str>("general.architecture").ok()??;
                // Llama.cpp's numbers; 4 is a reranker.
                match file.get_opt::<u32>(&format!("{architecture}.pooling_type")).ok()?? {
                    0 => Some(Pooling::None),
                    1 => Some(Pooling::Mean),
                    2 => Some(Pooling::Cls),
                    3 => Some(Pooling::Last),
                    4 if model.config().architecture.encoder.is_some() => Some(Pooling::Cls),
                    4 => Some(Pooling::Last),
                    _ => None,
                }
            }
        }
    }

    /// Llama.cpp's number.
    fn number(self) -> u32 {
        match self {
            Pooling::None => 0,
            Pooling::Mean => 1,
            Pooling::Cls => 2,
            Pooling::Last => 3,
        }
    }

    /// What a model of this kind usually has.
    fn usual(config: &Config) -> Pooling {
        if config.bidirectional { Pooling::Mean } else { Pooling::Last }
    }
}

/// What GGUF files hold of the modules of a folder.
pub(crate) struct AfterLayers {
    /// `pooling_type`.
    pub pooling: Option<u32>,
    /// The matrices behind the pooling, `[outputs, inputs]`.
    pub matrices: Vec<hologram_core::Tensor>,
}

impl AfterLayers {
    /// Reads the modules of a folder, if it has such.
    ///
    /// # Errors
    /// When they are damaged, or GGUF files cannot hold them.
    pub fn of(folder: &std::path::Path, executor: &Executor) -> Result<AfterLayers> {
        let Some(modules) = Modules::read(folder)? else {
            return Ok(AfterLayers { pooling: None, matrices: Vec::new() });
        };
        Ok(AfterLayers { pooling: modules.pooling.map(Pooling::number), matrices: modules.matrices(executor)? })
    }
}

/// Tokens of a step of a decoder.
const STEP: usize = 256;

/// Texts of a batch.
const TEXTS: usize = 64;

/// Computes embeddings of texts, many in a batch.
pub struct Embedder {
    executor: Executor,
    runner: Runner,
    /// What turns a pooled vector into an embedding.
    projections: Vec<Head>,
    own: Option<std::sync::Arc<crate::models::decoder::Decoder>>,
    pooling: Pooling,
    normalize: bool,
    width: usize,
    context: usize,
}

/// What computes hidden states.
enum Runner {
    Encoder(Box<Encoder>),
    Decoder(Box<Session>),
}

impl Embedder {
    /// For texts of at most `context` tokens.
    ///
    /// # Errors
    /// When the device lacks the memory, or the model's description of its modules is damaged.
    pub fn new(model: &Model, context: usize) -> Result<Embedder> {
        let config = model.config();
        let (mut normalize, mut projections) = (true, Vec::new());
        if let Some(ModelFiles::Folder(folder)) = model.files()
            && let Some(modules) = Modules::read(folder.path())?
        {
            normalize = modules.normalize;
            projections = modules.load(model.executor())?;
        }
        let own = (!model.decoder().projections.0.is_empty()).then(|| model.decoder().clone());
        Ok(Embedder {
            executor: model.executor().clone(),
            runner: Runner::new(model, context)?,
            projections,
            own,
            pooling: Pooling::of(model).unwrap_or_else(|| Pooling::usual(config)),
            normalize,
            width: config.width,
            context,
        })
    }

    /// How hidden states are pooled by default: as the model's files say it, else the mean for models whose tokens see
    /// all of their text, and the last token's for others.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Whether vectors get length 1 by default: unless the model's files say otherwise.
    pub fn normalizes(&self) -> bool {
        self.normalize
    }

    /// Sets whether vectors get length 1.
    pub fn set_normalize(&mut self, on: bool) {
        self.normalize = on;
    }

    /// Numbers of a vector.
    pub fn width(&self) -> usize {
        let own = self.own.as_ref().map(|decoder| &decoder.projections);
        own.into_iter().chain(&self.projections).fold(self.width, |width, head| head.outputs(width))
    }

    /// How many texts of this many tokens are computed at once.
    pub fn texts_per_step(&self, tokens: usize) -> usize {
        (self.runner.step() / tokens.max(1)).clamp(1, TEXTS)
    }

    /// The vectors of texts, none of which may be empty; with [`Pooling::None`] the hidden states of each text's tokens
    /// in order, of the model's width and as the model computes them.
    ///
    /// # Errors
    /// When a text is empty or has more tokens than the context, a token is not in the vocabulary, or the device fails.
    pub fn embed(&mut self, texts: &[&[u32]], pooling: Pooling) -> Result<Vec<Vec<f32>>> {
        let texts: Vec<EncoderText<'_>> = texts.iter().map(|tokens| EncoderText { tokens, segments: &[] }).collect();
        check(&texts, self.context)?;
        let wanted = match pooling {
            Pooling::Last => Wanted::Last,
            Pooling::Cls => Wanted::First,
            Pooling::Mean | Pooling::None => Wanted::All,
        };
        let states = self.runner.hidden(&texts, wanted)?;
        if pooling == Pooling::None {
            return Ok(states);
        }
        let mut vectors: Vec<Vec<f32>> = match pooling {
            Pooling::Mean => states.iter().map(|states| mean(states, self.width)).collect(),
            _ => states,
        };
        for head in self.own.as_ref().map(|decoder| &decoder.projections).into_iter().chain(&self.projections) {
            vectors = head.apply(&self.executor, vectors)?;
        }
        if self.normalize {
            vectors.iter_mut().for_each(|v| *v = normalised(v.iter().map(|x| f64::from(*x))));
        }
        Ok(vectors)
    }
}

/// Checks the lengths of texts.
fn check(texts: &[EncoderText<'_>], context: usize) -> Result<()> {
    let length = |text: &EncoderText<'_>| text.tokens.len();
    match texts.iter().position(|text| !(1..=context).contains(&length(text))) {
        Some(index) => Err(LlmError::TextLength { index, tokens: length(&texts[index]), most: context }),
        None => Ok(()),
    }
}

impl Runner {
    fn new(model: &Model, context: usize) -> Result<Runner> {
        if model.config().bidirectional {
            return Ok(Runner::Encoder(Box::new(Encoder::new(model, context)?)));
        }
        // Enough blocks for one long text or for some short ones.
        let blocks = Some(context.div_ceil(BLOCK_SIZE).max(STEP / BLOCK_SIZE) + TEXTS);
        let options =
            SessionOptions { context, batch: Some(STEP), sequences: TEXTS, blocks, ..SessionOptions::default() };
        Ok(Runner::Decoder(Box::new(model.session(options)?)))
    }

    /// The most tokens of texts that are computed at once.
    fn step(&self) -> usize {
        match self {
            Runner::Encoder(encoder) => encoder.batch(),
            Runner::Decoder(session) => session.context().max(STEP),
        }
    }

    /// The wanted hidden states of each text, one after another.
    fn hidden(&mut self, texts: &[EncoderText<'_>], wanted: Wanted) -> Result<Vec<Vec<f32>>> {
        let mut states = Vec::with_capacity(texts.len());
        let mut rest = texts;
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(fitting(rest, self.step()));
            match self {
                Runner::Encoder(encoder) => states.extend(encoder.run(batch, wanted)?),
                Runner::Decoder(session) => states.extend(decoded(session, batch, wanted)?),
            }
            rest = later;
        }
        Ok(states)
    }
}

/// How many of the texts, at least one, have at most `most` tokens together and fit into a batch.
fn fitting(texts: &[EncoderText<'_>], most: usize) -> usize {
    let mut tokens = 0;
    let fits = texts.iter().take(TEXTS).take_while(|text| {
        tokens += text.tokens.len();
        tokens <= most
    });
    fits.count().max(1)
}

/// The hidden states of a decoder.
fn decoded(session: &mut Session, texts: &[EncoderText<'_>], wanted: Wanted) -> Result<Vec<Vec<f32>>> {
    for sequence in 0..TEXTS {
        session.truncate(sequence, 0);
    }
    let mut inputs = Vec::with_capacity(2 * texts.len());
    for (sequence, text) in texts.iter().enumerate() {
        let input = |tokens, logits| Input { sequence, tokens, logits };
        match wanted {
            Wanted::All => inputs.push(input(text.tokens, Logits::All)),
            Wanted::Last => inputs.push(input(text.tokens, Logits::Last)),
            Wanted::First => {
                let (first, rest) = text.tokens.split_at(1);
                inputs.extend([input(first, Logits::All), input(rest, Logits::None)]);
            }
        }
    }
    let rows = session.feed_hidden_inputs(&inputs)?;
    Ok(encoder::split(rows, texts, wanted))
}

/// The mean of hidden states.
fn mean(states: &[f32], width: usize) -> Vec<f32> {
    let mut sum = vec![0.0f64; width];
    for state in states.chunks(width.max(1)) {
        sum.iter_mut().zip(state).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    let count = (states.len() / width.max(1)).max(1) as f64;
    sum.into_iter().map(|sum| (sum / count) as f32).collect()
}

/// The vector of length 1 in this direction; zeros stay zeros.
fn normalised(vector: impl Iterator<Item = f64> + Clone) -> Vec<f32> {
    let length = vector.clone().map(|v| v * v).sum::<f64>().sqrt();
    let scale = if length > 0.0 { length.recip() } else { 0.0 };
    vector.map(|v| (v * scale) as f32).collect()
}

/// The first `n` numbers of an embedding, again with length 1.
pub fn shortened(embedding: &[f32], n: usize) -> Vec<f32> {
    normalised(embedding.iter().take(n).map(|v| f64::from(*v)))
}
