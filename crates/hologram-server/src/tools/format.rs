//! How families of models write calls.

use hologram_llm::ChatTemplate;

use crate::error::{ApiError, Result};

/// How a family of models writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen.
    Hermes,
    /// `{"name": …, "parameters": {…}}` instead of a text: Llama 3.
    Llama,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`: Mistral.
    Mistral,
    /// `[TOOL_CALLS]name[ARGS]{…}`, once for each call, perhaps with `[CALL_ID]id` after the name: later Mistral.
    MistralArgs,
    /// `<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>`: Qwen3-Coder.
    Coder,
    /// `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>…</tool_call>`: GLM-4.5.
    Glm,
    /// `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>…`: DeepSeek-V3.1.
    DeepSeek,
    /// As [`Format::DeepSeek`], with `function` before the separator, then the name, and the arguments in a block of
    /// Markdown: DeepSeek-V3 and R1.
    DeepSeekFenced,
    /// `<|tool_call>call:name{key:<|"|>text<|"|>,…}<tool_call|>`: Gemma 4.
    Gemma,
    /// `<start_function_call>call:name{key:<escape>text<escape>,…}<end_function_call>`: FunctionGemma.
    FunctionGemma,
    /// A message on the channel `commentary` to `functions.name`: gpt-oss. [`Harmony`](super::harmony::Harmony) reads
    /// such replies.
    Harmony,
}

/// The marks of DeepSeek's calls.
pub mod deepseek {
    /// Begins the calls.
    pub const BEGIN: &str = "<｜tool▁calls▁begin｜>";
    /// Begins a call.
    pub const CALL: &str = "<｜tool▁call▁begin｜>";
    /// Follows the name, or the word `function`.
    pub const SEPARATOR: &str = "<｜tool▁sep｜>";
    /// Ends a call.
    pub const CALL_END: &str = "<｜tool▁call▁end｜>";
    /// Ends the calls.
    pub const END: &str = "<｜tool▁calls▁end｜>";
    /// Begins the arguments in the older form.
    pub const FENCE: &str = "```json";
}

/// The format of a template, told by its text; `None`: none that is known.
fn told(source: &str) -> Option<Format> {
    let has = |text: &str| source.contains(text);
    if has("<|channel|>") && has("functions") {
        Some(Format::Harmony)
    } else if has("<function=") && has("<parameter=") {
        Some(Format::Coder)
    } else if has("<arg_key>") {
        Some(Format::Glm)
    } else if has("<|tool_call>") {
        Some(Format::Gemma)
    } else if has("<start_function_call>") {
        Some(Format::FunctionGemma)
    } else if has("<tool_call>") {
        Some(Format::Hermes)
    } else if has(deepseek::BEGIN) {
        Some(if has(deepseek::FENCE) { Format::DeepSeekFenced } else { Format::DeepSeek })
    } else if has("[TOOL_CALLS]") {
        Some(if has("[ARGS]") { Format::MistralArgs } else { Format::Mistral })
    } else if has("<|python_tag|>") || (has("<|start_header_id|>") && has("\"parameters\"")) {
        Some(Format::Llama)
    } else {
        None
    }
}

impl Format {
    /// The format of a template, told by its text.
    ///
    /// # Errors
    /// 400 when it knows no tools, or writes calls in another way.
    pub fn of(template: &ChatTemplate) -> Result<Format> {
        let source = template.source();
        match told(source) {
            // Some of these write calls, but leave the tools to the system prompt.
            Some(format @ (Format::DeepSeek | Format::DeepSeekFenced)) => Ok(format),
            _ if !source.contains("tools") => {
                Err(ApiError::unsupported("tools", "the model's chat template knows no tools"))
            }
            Some(format) => Ok(format),
            None => Err(ApiError::unsupported("tools", "the form of the model's tool calls is not supported")),
        }
    }

    /// The texts that calls begin with; none if a reply is either a call or a text.
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            Format::Hermes | Format::Glm => &["<tool_call>"],
            // Some replies lack the outer mark.
            Format::Coder => &["<tool_call>", "<function="],
            Format::DeepSeek | Format::DeepSeekFenced => &[deepseek::BEGIN, deepseek::CALL],
            Format::Gemma => &["<|tool_call>"],
            Format::FunctionGemma => &["<start_function_call>"],
            Format::Llama | Format::Harmony => &[],
            Format::Mistral | Format::MistralArgs => &["[TOOL_CALLS]"],
        }
    }

    /// The texts that may follow a call and mean nothing more.
    pub fn ends(self) -> &'static [&'static str] {
        match self {
            Format::Hermes | Format::Coder => &["</tool_call>"],
            Format::DeepSeek | Format::DeepSeekFenced => &["```", deepseek::CALL_END, deepseek::END],
            Format::Gemma => &["<tool_call|>"],
            Format::FunctionGemma => &["<end_function_call>"],
            Format::Mistral => &[",", "]"],
            Format::Llama => &[";", ","],
            Format::MistralArgs | Format::Glm | Format::Harmony => &[],
        }
    }

    /// What surrounds a text in arguments that are not JSON.
    pub fn quote(self) -> &'static str {
        if self == Format::FunctionGemma { "<escape>" } else { "<|\"|>" }
    }

    /// The key of the arguments, where a call is a JSON object.
    pub fn arguments(self) -> &'static str {
        if self == Format::Llama { "parameters" } else { "arguments" }
    }
}
