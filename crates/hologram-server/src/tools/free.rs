//! Grammars of replies that may be any text, in which calls keep their schemas: `strict` tools that need not be called.

use serde_json::json;

use super::grammar::{Grammar, begin};
use super::{Format, Tool, harmony};

/// Control tokens that may stand in a text: those around thoughts.
const OF_THOUGHTS: [&str; 4] = ["<think>", "</think>", "<|channel>", "<channel|>"];

/// A terminal of texts without these marks.
fn without(marks: &[&str]) -> String {
    if marks.is_empty() {
        return "/(?s:.*)/".into();
    }
    let escape = |c: char| if r"\.+*?()|[]{}^$/".contains(c) { format!("\\{c}") } else { c.to_string() };
    let escaped: Vec<String> = marks.iter().map(|mark| mark.chars().map(escape).collect()).collect();
    format!("/(?s:.*)/ & ~/(?s:.*)({})(?s:.*)/", escaped.join("|"))
}

/// A tool whose arguments may be any object, where the format can say so.
pub(super) fn loosened(tool: &Tool, format: Format) -> Tool {
    let mut tool = tool.clone();
    if !matches!(format, Format::Coder | Format::Glm | Format::Gemma | Format::FunctionGemma) {
        tool.value["function"]["parameters"] = json!({ "type": "object" });
    }
    tool
}

/// What follows one of the format's marks up to where calls differ.
fn after(format: Format, mark: &str) -> &'static [&'static str] {
    let begin = begin(format);
    match begin.iter().position(|part| *part == mark) {
        Some(at) => &begin[at + 1..],
        // A mark without the outer one ends the beginning.
        None => &[],
    }
}

impl Grammar<'_> {
    /// The bodies of a reply that may be any text, and may end with calls.
    pub(super) fn free(&mut self, calls: &str, format: Format) -> String {
        match format {
            Format::Llama => {
                // What begins like an object is a call.
                let tag = self.control("<|python_tag|>").map(|tag| format!("{tag}? ")).unwrap_or_default();
                let text = self.terminal(r"/(?s:\s*([^\s{].*)?)/");
                return format!("{text} | {tag}{} {calls}", self.marks(begin(format)));
            }
            Format::Harmony => {
                let (channel, message) = (self.mark(harmony::CHANNEL), self.mark(harmony::MESSAGE));
                let text = self.terminal("/(?s:.*)/");
                let (body, next) = (self.text_until("<|end|>"), self.marks(&["<|start|>", "assistant"]));
                let before = format!("{channel} (\"analysis\" | \"commentary\") {message} {body} {next}");
                let before = self.rule(&before);
                return format!(
                    "{before}* {channel} \"final\" {message} {text} | {before}* {} {calls}",
                    self.marks(begin(format))
                );
            }
            _ => {}
        }
        let literals: Vec<&str> = format.marks().iter().copied().filter(|mark| self.control(mark).is_none()).collect();
        let plain = self.terminal(&without(&literals));
        let tags: Vec<String> = OF_THOUGHTS.iter().filter_map(|tag| self.control(tag)).collect();
        let thoughts = match tags.is_empty() {
            true => String::new(),
            false => format!("{}* ", self.rule(&format!("{plain} ({})", tags.join(" | ")))),
        };
        let mut bodies = vec![format!("{thoughts}{plain}")];
        for mark in format.marks() {
            let opened = match self.control(mark) {
                Some(token) => format!("{plain} {token}"),
                None => self.text_until(mark),
            };
            bodies.push(format!("{thoughts}{opened} {} {calls}", self.marks(after(format, mark))));
        }
        bodies.join(" | ")
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use hologram_llm::engine::Constraint;
    use hologram_llm::tokenizer::Tokenizer;
    use llguidance::api::TopLevelGrammar;
    use llguidance::toktrie::ApproximateTokEnv;
    use llguidance::{Matcher, ParserFactory};

    use super::super::grammar::form;
    use super::super::{Choice, Tools};
    use super::*;

    /// Whether a form with the tools `f`, which is strict, and `g` allows a reply.
    fn allows(format: Format, tokenizer: &Tokenizer, reply: &str) -> bool {
        let schema = json!({
            "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false,
        });
        let tool = |name: &str| Tool::new(name.into(), None, Some(schema.clone()), "t").unwrap();
        let tools = vec![Tool { strict: true, ..tool("f") }, tool("g")];
        let tools = Tools::new(tools, Choice::Auto, true).unwrap();
        let form = form(&tools, format, None, tokenizer).unwrap().unwrap();
        assert!(form.is_free && form.begin.is_empty());
        let Constraint::Lark(grammar) = form.rest else { panic!("no grammar") };
        let env = ApproximateTokEnv::single_byte_env();
        let factory = ParserFactory::new_simple(&env).unwrap();
        let mut matcher = Matcher::new(factory.create_parser(TopLevelGrammar::from_lark(grammar)));
        let fits = |byte: u8| {
            let mask = matcher.compute_mask().unwrap();
            mask.is_allowed(byte.into()) && matcher.consume_token(byte.into()).is_ok()
        };
        reply.bytes().all(fits) && matcher.is_accepting().unwrap()
    }

    #[test]
    fn only_calls_have_a_form() {
        use Format::{
            Coder, DeepSeek, DeepSeekFenced, FunctionGemma, Gemma, Glm, Harmony, Hermes, Llama, Mistral, MistralArgs,
        };
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hologram-llm/tests/fixtures/chat-tiny.gguf");
        let files = hologram_llm::ModelFiles::open(file).unwrap();
        let tokenizer = files.tokenizer().unwrap();
        // A call of ¶ whose argument is §.
        for (format, call) in [
            (Hermes, "<tool_call>\n{\"name\": \"¶\", \"arguments\": {\"a\": §}}\n</tool_call>"),
            (Llama, "{\"name\": \"¶\", \"parameters\": {\"a\": §}}"),
            (Mistral, "[TOOL_CALLS][{\"name\": \"¶\", \"arguments\": {\"a\": §}}]"),
            (MistralArgs, "[TOOL_CALLS]¶[ARGS]{\"a\": §}"),
            (Coder, "<tool_call>\n<function=¶>\n<parameter=a>\n§\n</parameter>\n</function>\n</tool_call>"),
            (Glm, "<tool_call>¶\n<arg_key>a</arg_key>\n<arg_value>§</arg_value>\n</tool_call>"),
            (
                DeepSeek,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>¶<｜tool▁sep｜>{\"a\": §}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ),
            (
                DeepSeekFenced,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>¶\n```json\n{\"a\": §}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ),
            (Gemma, "<|tool_call>call:¶{a:§}<tool_call|>"),
            (FunctionGemma, "<start_function_call>call:¶{a:§}<end_function_call>"),
            (Harmony, "<|channel|>commentary to=functions.¶ <|constrain|>json<|message|>{\"a\": §}"),
        ] {
            let before = match format {
                Harmony => "<|channel|>analysis<|message|>Less < [more].<|end|><|start|>assistant",
                Llama => "",
                _ => "<think>Less < [more].</think>\n\n",
            };
            let text = if format == Harmony { "<|channel|>final<|message|>Yes, {1} <b>." } else { "Yes, {1} <b>." };
            let of = |name: &str, argument: &str| call.replace('¶', name).replace('§', argument);
            let (whole, wrong) = (of("f", "12"), of("f", "\"x\""));
            for (reply, want) in [
                (text.to_string(), true),
                (whole.clone(), true),
                (format!("{before}{text}"), true),
                (format!("{before}{whole}"), true),
                (wrong.clone(), false),
                (format!("{before}{wrong}"), false),
                (whole.chars().take(whole.chars().count() * 3 / 4).collect(), false),
                (of("h", "12"), false),
            ] {
                assert_eq!(allows(format, &tokenizer, &reply), want, "{format:?}: {reply}");
            }
            // The other tool is not strict; arguments that are not JSON keep their schema all the same.
            let loose = !matches!(format, Coder | Glm | Gemma | FunctionGemma);
            assert_eq!(allows(format, &tokenizer, &of("g", "\"x\"")), loose, "{format:?}");
        }
    }
}
