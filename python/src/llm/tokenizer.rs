//! Tokenizers and decoders.

use super::*;

/// A tokenizer.
#[pyclass(frozen, name = "Tokenizer", module = "hologram.llm")]
pub struct PyTokenizer {
    pub(super) model: Arc<Model>,
    pub(super) template: Mutex<Option<Arc<ChatTemplate>>>,
}

impl PyTokenizer {
    fn template(&self) -> Result<Arc<ChatTemplate>> {
        let mut template = lock(&self.template);
        if let Some(template) = &*template {
            return Ok(template.clone());
        }
        let Some(files) = self.model.files() else { return value("the model has no files, and so no chat template") };
        let made = Arc::new(files.chat_template(self.model.tokenizer()?)?);
        *template = Some(made.clone());
        Ok(made)
    }
}

#[pymethods]
impl PyTokenizer {
    /// The tokens of a text. `add_special` adds BOS and EOS if the model expects them; `parse_special` recognises
    /// control tokens that the text spells out.
    #[pyo3(signature = (text, add_special=true, parse_special=false))]
    fn encode(&self, py: Python<'_>, text: String, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let model = self.model.clone();
        let is_long = text.len() > LONG;
        let encode = move || model.tokenizer()?.encode_with(&text, add_special, parse_special);
        Ok(if is_long { interruptible(py, encode)? } else { py.detach(encode) }?)
    }

    /// The text of tokens.
    #[pyo3(signature = (ids, show_control=false))]
    fn decode(&self, py: Python<'_>, ids: Vec<i64>, show_control: bool) -> Result<String> {
        let tokenizer = self.model.tokenizer()?;
        let ids = checked(&ids, tokenizer.vocab_len())?;
        if ids.len() <= LONG {
            return Ok(py.detach(|| tokenizer.decode(&ids, show_control)));
        }
        let model = self.model.clone();
        Ok(interruptible(py, move || Ok::<_, hologram_llm::LlmError>(model.tokenizer()?.decode(&ids, show_control)))??)
    }

    /// The bytes of a token, not necessarily whole characters.
    fn token_bytes<'py>(&self, py: Python<'py>, id: i64) -> Result<Bound<'py, PyBytes>> {
        let tokenizer = self.model.tokenizer()?;
        let ids = checked(&[id], tokenizer.vocab_len())?;
        Ok(PyBytes::new(py, &tokenizer.token_bytes(ids[0])))
    }

    /// The token that the vocabulary spells like this.
    fn token_id(&self, text: &str) -> Result<Option<u32>> {
        Ok(self.model.tokenizer()?.token_id(text))
    }

    /// The number of tokens.
    #[getter]
    fn vocab_size(&self) -> Result<usize> {
        Ok(self.model.tokenizer()?.vocab_len())
    }

    #[getter]
    fn bos(&self) -> Result<Option<u32>> {
        Ok(self.model.tokenizer()?.bos())
    }

    #[getter]
    fn eos(&self) -> Result<Option<u32>> {
        Ok(self.model.tokenizer()?.eos())
    }

    /// Whether a token ends a text.
    fn is_end(&self, id: u32) -> Result<bool> {
        Ok(self.model.tokenizer()?.is_end(id) || self.model.end_tokens().contains(&id))
    }

    /// A decoder of tokens that come one by one.
    fn decoder(&self) -> PyDecoder {
        PyDecoder { model: self.model.clone(), decoder: Mutex::new(TokenDecoder::new()) }
    }

    /// The chat template's source.
    #[getter]
    fn chat_template(&self) -> Result<String> {
        Ok(self.template()?.source().to_string())
    }

    /// The text and the tokens of a conversation, whose parts are given as JSON.
    fn _chat(&self, messages: &str, tools: &str, variables: &str, reply: bool) -> Result<(String, Vec<u32>)> {
        let bad = |e: serde_json::Error| -> Error {
            pyo3::exceptions::PyTypeError::new_err(format!("the conversation cannot be written as JSON: {e}")).into()
        };
        let conversation = Conversation {
            messages: serde_json::from_str(messages).map_err(bad)?,
            tools: serde_json::from_str(tools).map_err(bad)?,
            variables: serde_json::from_str(variables).map_err(bad)?,
        };
        let tokenizer = self.model.tokenizer()?;
        let written = self.template()?.write(&conversation, reply, tokenizer)?;
        Ok((written.text(), written.encode(tokenizer, false)?))
    }
}

/// Turns tokens into text one by one.
#[pyclass(frozen, name = "Decoder", module = "hologram._native")]
pub struct PyDecoder {
    model: Arc<Model>,
    decoder: Mutex<TokenDecoder>,
}

#[pymethods]
impl PyDecoder {
    /// The text that a token completes; empty while a character is incomplete.
    fn push(&self, id: u32) -> Result<String> {
        let tokenizer = self.model.tokenizer()?;
        Ok(lock(&self.decoder).push(tokenizer, id).to_string())
    }

    /// The rest: an incomplete character becomes U+FFFD.
    fn finish(&self) -> String {
        lock(&self.decoder).finish().to_string()
    }
}
