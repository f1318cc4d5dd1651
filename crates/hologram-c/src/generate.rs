//! Generation.

use std::ffi::{CString, c_char, c_void};
use std::sync::Mutex;

use hologram_llm::sampling::SamplerConfig;
use hologram_llm::{Finish, GenerateOptions, Session};

use crate::error::{HologramStatus, Result, guard, invalid, stopped};
use crate::model::HologramModel;
use crate::pointers::{give, list, object, options, place, release, text};

/// How a text is generated. `HOLOGRAM_GENERATE_OPTIONS` is its initial value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HologramGenerateOptions {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// The most tokens to generate.
    pub max_tokens: usize,
    /// 0 always takes the most probable token.
    pub temperature: f32,
    /// Sample from so many most probable tokens; 0 turns it off.
    pub top_k: u32,
    /// Sample from the most probable tokens whose probabilities add up to this; 1 turns it off.
    pub top_p: f32,
    /// Drop tokens less probable than this share of the most probable one; 0 turns it off.
    pub min_p: f32,
    /// Divides the logits of recent tokens; 1 turns it off.
    pub repeat_penalty: f32,
    /// Random numbers follow from it.
    pub seed: u64,
    /// Texts before which the generation ends.
    pub stop: *const *const c_char,
    /// Their number.
    pub stop_count: usize,
}

const DEFAULT: HologramGenerateOptions = HologramGenerateOptions {
    struct_size: size_of::<HologramGenerateOptions>(),
    max_tokens: 256,
    temperature: 0.8,
    top_k: 40,
    top_p: 0.95,
    min_p: 0.0,
    repeat_penalty: 1.0,
    seed: 0,
    stop: std::ptr::null(),
    stop_count: 0,
};

/// Gets each token and the text that it completes, which may be empty and is valid during the call. Returns whether to
/// go on. It may be called on any thread, and must not use the session.
pub type HologramTokenCallback =
    Option<unsafe extern "C" fn(token: u32, text: *const c_char, bytes: usize, context: *mut c_void) -> bool>;

/// Why a generation ended.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HologramFinish {
    /// The model ended the text.
    EndOfText = 0,
    /// The most tokens were generated.
    MaxTokens = 1,
    /// The context is full.
    ContextFull = 2,
    /// A stop text came.
    StopText = 3,
}

/// What a generation did.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HologramGenerated {
    /// Bytes of this structure; the caller sets it.
    pub struct_size: usize,
    /// Why it ended.
    pub finish: i32,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that the session had already.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Seconds until the first token.
    pub prompt_seconds: f64,
    /// Seconds after it.
    pub decode_seconds: f64,
}

/// A context of one text: what its next prompt has in common with the tokens before is not computed again.
pub struct HologramSession {
    session: Mutex<Session>,
    /// The model's address.
    model: usize,
}

/// A session of a model for `context` tokens; 0 is the model's context, at most 4096. The model must outlive it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_session_new(
    model: *const HologramModel,
    context: usize,
    session: *mut *mut HologramSession,
) -> HologramStatus {
    guard(|| {
        let (address, model) = (model.addr(), &object(model, "model")?.model);
        let place = place(session, "session")?;
        let options = GenerateOptions { context: (context > 0).then_some(context), ..GenerateOptions::default() };
        give(place, HologramSession { session: Mutex::new(model.session_for(&options)?), model: address });
        Ok(())
    })
}

/// Frees a session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_session_release(session: *mut HologramSession) {
    release(session);
}

unsafe fn read(given: *const HologramGenerateOptions) -> Result<GenerateOptions> {
    let o = options(given, DEFAULT, "options")?;
    let stop = list(o.stop, o.stop_count, "stop")?;
    let stop = stop.iter().map(|stop| Ok(text(*stop, "stop")?.to_string())).collect::<Result<Vec<_>>>()?;
    if stop.iter().any(String::is_empty) {
        return invalid("a stop text must not be empty");
    }
    let sampling = SamplerConfig {
        temperature: o.temperature,
        top_k: o.top_k as usize,
        top_p: o.top_p,
        min_p: o.min_p,
        repeat_penalty: o.repeat_penalty,
        seed: o.seed,
        ..SamplerConfig::default()
    };
    sampling.validate().or_else(|e| invalid(e.to_string()))?;
    Ok(GenerateOptions { max_tokens: o.max_tokens, sampling, stop, ..GenerateOptions::default() })
}

/// Continues a prompt in a session, whose tokens before it replaces, and calls `callback` with each token. `options`,
/// `callback` and `generated` may be NULL. Returns `HOLOGRAM_STATUS_STOPPED` if the callback ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_generate(
    model: *const HologramModel,
    session: *mut HologramSession,
    tokens: *const u32,
    count: usize,
    options: *const HologramGenerateOptions,
    callback: HologramTokenCallback,
    context: *mut c_void,
    generated: *mut HologramGenerated,
) -> HologramStatus {
    guard(|| {
        let (address, model) = (model.addr(), &object(model, "model")?.model);
        let session = object(session, "session")?;
        if session.model != address {
            return invalid("the session belongs to another model");
        }
        let (tokens, options) = (list(tokens, count, "tokens")?, read(options)?);
        let size = match generated.cast::<usize>().as_ref() {
            Some(size) if *size < size_of::<usize>() => {
                return invalid(format!("generated: struct_size is {size}; set it to sizeof(HologramGenerated)"));
            }
            size => size.copied().unwrap_or(0),
        };
        let Ok(mut session) = session.session.try_lock() else {
            return invalid("the session is in use by another call");
        };
        let mut generation = model.reply(&mut session, tokens, &options)?;
        let mut went_on = true;
        for piece in generation.by_ref() {
            let piece = piece?;
            if let Some(callback) = callback {
                let (bytes, text) = (piece.text.len(), CString::new(piece.text.replace('\0', "")).unwrap_or_default());
                went_on = callback(piece.id, text.as_ptr(), bytes.min(text.as_bytes().len()), context);
            }
            if !went_on {
                break;
            }
        }
        let stats = generation.stats();
        let finish = match generation.finish() {
            Some(Finish::EndOfText) => HologramFinish::EndOfText,
            Some(Finish::ContextFull) => HologramFinish::ContextFull,
            Some(Finish::Stop) => HologramFinish::StopText,
            _ => HologramFinish::MaxTokens,
        };
        let own = HologramGenerated {
            struct_size: size,
            finish: finish as i32,
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.cached_tokens,
            generated_tokens: stats.generated_tokens,
            prompt_seconds: stats.prompt_time.as_secs_f64(),
            decode_seconds: stats.decode_time.as_secs_f64(),
        };
        let bytes = size.min(size_of::<HologramGenerated>());
        std::ptr::copy_nonoverlapping((&raw const own).cast::<u8>(), generated.cast::<u8>(), bytes);
        if went_on { Ok(()) } else { stopped() }
    })
}
