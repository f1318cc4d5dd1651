//! Models, tokens and chat templates.

use std::ffi::c_char;
use std::sync::OnceLock;

use hologram_core::Tensor;
use hologram_llm::{ChatTemplate, Conversation, Embedder, Model, Pooling};
use serde_json::Value;

use crate::device::HologramDevice;
use crate::error::{HologramStatus, Result, guard, invalid};
use crate::pointers::{counted_text, fill, give, give_text, list, object, place, release, room, text};
use crate::tensor::HologramTensor;

/// A language model on a device.
pub struct HologramModel {
    pub(crate) model: Model,
    template: OnceLock<ChatTemplate>,
}

impl HologramModel {
    fn template(&self) -> Result<&ChatTemplate> {
        if let Some(template) = self.template.get() {
            return Ok(template);
        }
        let Some(files) = self.model.files() else { return invalid("the model has no files") };
        let template = files.chat_template(self.model.tokenizer()?)?;
        Ok(self.template.get_or_init(|| template))
    }
}

/// Loads a model: a .gguf file or a folder of safetensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_model_load(
    device: *const HologramDevice,
    path: *const c_char,
    model: *mut *mut HologramModel,
) -> HologramStatus {
    guard(|| {
        let (device, path) = (object(device, "device")?, text(path, "path")?);
        let place = place(model, "model")?;
        let model = Model::load_on(path, &device.executor)?;
        give(place, HologramModel { model, template: OnceLock::new() });
        Ok(())
    })
}

/// The model's vocabulary, width and longest context in tokens. Each place may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_model_sizes(
    model: *const HologramModel,
    vocabulary: *mut usize,
    width: *mut usize,
    context: *mut usize,
) -> HologramStatus {
    guard(|| {
        let config = object(model, "model")?.model.config();
        let sizes = [(vocabulary, config.vocab), (width, config.width), (context, config.context)];
        for (place, size) in sizes {
            if !place.is_null() {
                place.write(size);
            }
        }
        Ok(())
    })
}

/// The model's name. Free it by `hologram_string_release`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_model_name(model: *const HologramModel, name: *mut *mut c_char) -> HologramStatus {
    guard(|| give_text(place(name, "name")?, object(model, "model")?.model.config().name.clone()))
}

/// Frees a model. No generation may run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_model_release(model: *mut HologramModel) {
    release(model);
}

/// Writes the tokens of a text of `len` bytes to `tokens`, which has room for `capacity`, and their number to `count`,
/// also where that is more: then nothing is written. `add_special` adds what the model expects around a text, such as
/// BOS; `parse_special` reads control tokens that the text spells out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_tokenize(
    model: *const HologramModel,
    text: *const c_char,
    len: usize,
    add_special: bool,
    parse_special: bool,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> HologramStatus {
    guard(|| {
        let tokenizer = object(model, "model")?.model.tokenizer()?;
        let ids = tokenizer.encode_with(counted_text(text, len, "text")?, add_special, parse_special)?;
        copy_out(&ids, tokens, capacity, count, "tokens")
    })
}

/// Writes a list and its length, or only the length if there is no room.
unsafe fn copy_out(from: &[u32], to: *mut u32, capacity: usize, count: *mut usize, name: &str) -> Result {
    let count = place(count, "count")?;
    if from.len() <= capacity {
        fill(room(to, from.len(), name)?, from);
    }
    count.write(from.len());
    Ok(())
}

/// The text of tokens. Free it by `hologram_string_release`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_detokenize(
    model: *const HologramModel,
    tokens: *const u32,
    count: usize,
    show_control: bool,
    text: *mut *mut c_char,
) -> HologramStatus {
    guard(|| {
        let (model, tokens) = (&object(model, "model")?.model, list(tokens, count, "tokens")?);
        let vocab = model.config().vocab;
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
            return invalid(format!("there is no token {token}; the vocabulary has {vocab}"));
        }
        give_text(place(text, "text")?, model.tokenizer()?.decode(tokens, show_control))
    })
}

/// Writes the tokens of a conversation, as `hologram_tokenize` does, up to where the model's reply begins. `messages`
/// is a JSON list of objects with `role` and `content`, `tools` one of tools in OpenAI's form or NULL. Control tokens
/// come from the model's chat template; those that a message spells out are text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_chat_tokens(
    model: *const HologramModel,
    messages: *const c_char,
    tools: *const c_char,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> HologramStatus {
    guard(|| {
        let of = object(model, "model")?;
        let messages = json_list(text(messages, "messages")?, "messages")?;
        let tools = if tools.is_null() { Vec::new() } else { json_list(text(tools, "tools")?, "tools")? };
        let conversation = Conversation { messages, tools, ..Conversation::default() };
        let tokenizer = of.model.tokenizer()?;
        let ids = of.template()?.write(&conversation, true, tokenizer)?.encode(tokenizer, false)?;
        copy_out(&ids, tokens, capacity, count, "tokens")
    })
}

fn json_list(text: &str, name: &str) -> Result<Vec<Value>> {
    match serde_json::from_str(text) {
        Ok(Value::Array(list)) if list.iter().all(Value::is_object) => Ok(list),
        Ok(_) => invalid(format!("{name} must be a JSON list of objects")),
        Err(e) => invalid(format!("{name} is no JSON: {e}")),
    }
}

/// The vector of a text that is given as tokens, pooled and normalised as the model's files say: f32 [width], on the
/// model's device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_embed(
    model: *const HologramModel,
    tokens: *const u32,
    count: usize,
    vector: *mut *mut HologramTensor,
) -> HologramStatus {
    guard(|| {
        let (model, tokens) = (&object(model, "model")?.model, list(tokens, count, "tokens")?);
        let vector = place(vector, "vector")?;
        let mut embedder = Embedder::new(model, count.clamp(1, model.config().context))?;
        let pooling = match embedder.pooling() {
            Pooling::None => Pooling::Mean,
            pooling => pooling,
        };
        let numbers = embedder.embed(&[tokens], pooling)?.concat();
        give(vector, HologramTensor(Tensor::from_slice(model.executor(), &[numbers.len()], &numbers)?));
        Ok(())
    })
}
