//! Constraints on texts: compiled grammars, and which tokens they allow next.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::model::Model;
use crate::tokenizer::TokenType;

use super::request::{Constraint, SubmitError};
use super::{limits, lock};

/// How long a constraint may take to compile.
const DEADLINE: Duration = Duration::from_secs(2);

/// Constraints that compile at once.
const MAX_COMPILING: usize = 2;

/// Compiled constraints that are kept.
const MAX_KEPT: usize = 32;

/// White space between the tokens of JSON: a space, or a new line with its indentation. More would let a model write
/// blanks for ever.
const WHITESPACE: &str = r"\x20|(\r?\n){1,2}[\x20\t]{0,40}";

/// Compiles constraints for one model.
#[derive(Default)]
pub(super) struct Compiler {
    /// What all constraints share: the vocabulary as a tree.
    factory: OnceLock<Result<Arc<ParserFactory>, String>>,
    compiling: Arc<(Mutex<usize>, Condvar)>,
    /// The last compiled constraints, the newest last.
    kept: Mutex<VecDeque<(Constraint, Grammar)>>,
}

/// A constraint and how much of it the text has fulfilled.
pub(super) struct Grammar {
    matcher: Matcher,
}

impl Compiler {
    /// Compiles a constraint in a thread of its own, and waits for it.
    pub fn compile(&self, constraint: &Constraint, model: &Arc<Model>) -> Result<Grammar, SubmitError> {
        let fail = |reason: String| SubmitError::Unsupported { field: "constraint", reason };
        limits::check(constraint).map_err(|reason| fail(format!("it {reason}")))?;
        {
            let mut kept = lock(&self.kept);
            if let Some(at) = kept.iter().position(|(of, _)| of == constraint)
                && let Some(found) = kept.remove(at)
            {
                let grammar = found.1.copy();
                kept.push_back(found);
                return Ok(grammar);
            }
        }
        let deadline = Instant::now() + DEADLINE;
        let too_long = || fail(format!("it takes more than {} s to compile", DEADLINE.as_secs()));
        let place = Place::take(&self.compiling, deadline).ok_or_else(too_long)?;
        let factory = self.factory.get_or_init(|| factory(model)).clone().map_err(fail)?;
        let (sender, receiver) = channel();
        let (name, constraint_of_thread) = ("hologram-constraint".into(), constraint.clone());
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            // The library panics on some grammars; that must reach the request, not end the thread in silence.
            let compiled = catch_unwind(AssertUnwindSafe(|| Grammar::compile(&constraint_of_thread, &factory)));
            let _ = sender.send(compiled.unwrap_or_else(|_| Err("it cannot be compiled".into())));
            drop(place);
        });
        thread.map_err(|e| fail(format!("no thread can compile it: {e}")))?;
        let compiled = match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(compiled) => compiled.map_err(fail)?,
            // The thread goes on and keeps its place.
            Err(RecvTimeoutError::Timeout) => return Err(too_long()),
            Err(RecvTimeoutError::Disconnected) => return Err(fail("it cannot be compiled".into())),
        };
        let mut kept = lock(&self.kept);
        if kept.len() >= MAX_KEPT {
            kept.pop_front();
        }
        kept.push_back((constraint.clone(), compiled.copy()));
        Ok(compiled)
    }
}

/// One of the places for compiling constraints.
struct Place(Arc<(Mutex<usize>, Condvar)>);

impl Place {
    fn take(places: &Arc<(Mutex<usize>, Condvar)>, deadline: Instant) -> Option<Place> {
        let mut taken = lock(&places.0);
        while *taken >= MAX_COMPILING {
            let left = deadline.checked_duration_since(Instant::now())?;
            taken = places.1.wait_timeout(taken, left).unwrap_or_else(|e| e.into_inner()).0;
        }
        *taken += 1;
        Some(Place(places.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *lock(&self.0.0) -= 1;
        self.0.1.notify_one();
    }
}

/// The vocabulary as a tree.
fn factory(model: &Model) -> Result<Arc<ParserFactory>, String> {
    let tokenizer = model.tokenizer().map_err(|e| e.to_string())?;
    let ends: Vec<u32> = {
        let mut ends = [tokenizer.ends(), model.end_tokens()].concat();
        ends.sort_unstable();
        ends.dedup();
        ends
    };
    let Some(first) = ends.first() else { return Err("the model has no token that ends a text".into()) };
    let vocab = model.config().vocab as u32;
    let word = |id: u32| match tokenizer.token_type(id) {
        // Text never produces these, but a grammar may name them.
        Some(TokenType::Control) => [&[TokTrie::SPECIAL_TOKEN_MARKER], &*tokenizer.token_bytes(id)].concat(),
        Some(TokenType::Normal | TokenType::UserDefined | TokenType::Byte) => tokenizer.token_bytes(id),
        _ => Vec::new(),
    };
    factory_of(&(0..vocab).map(word).collect::<Vec<_>>(), *first, &ends)
}

/// A vocabulary of these words as a tree; texts end with one of `ends`.
fn factory_of(words: &[Vec<u8>], end: u32, ends: &[u32]) -> Result<Arc<ParserFactory>, String> {
    let build = || -> Result<ParserFactory, String> {
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), words).with_eos_tokens(ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|e| e.to_string())?;
        factory.quiet().limits_mut().verbose_errors = false;
        Ok(factory)
    };
    match catch_unwind(AssertUnwindSafe(build)) {
        Ok(factory) => factory.map(Arc::new),
        Err(_) => Err("the model's vocabulary cannot be constrained".into()),
    }
}

impl Grammar {
    fn compile(constraint: &Constraint, factory: &ParserFactory) -> Result<Grammar, String> {
        let grammar = match constraint {
            Constraint::JsonObject => TopLevelGrammar::from_json_schema(spaced(json!({"type": "object"}))),
            Constraint::JsonSchema(schema) => TopLevelGrammar::from_json_schema(spaced(schema.clone())),
            Constraint::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Constraint::Lark(grammar) => TopLevelGrammar::from_lark(spaced_lark(grammar)?),
        };
        let mut matcher = Matcher::new(factory.create_parser(grammar));
        if let Some(error) = matcher.get_error() {
            return Err(sentence(&error));
        }
        // What it leaves out would be a constraint that is not kept.
        if let Some(warning) = matcher.grammar_warnings().into_iter().next() {
            return Err(warning);
        }
        // Some faults show only when a token is wanted.
        let mask = matcher.compute_mask_or_eos().map_err(|e| sentence(&e.to_string()))?;
        if mask.is_zero() {
            return Err("no text fulfils it".into());
        }
        Ok(Grammar { matcher })
    }

    /// An independent copy.
    fn copy(&self) -> Grammar {
        Grammar { matcher: self.matcher.deep_clone() }
    }

    /// The tokens that can follow: a bit for each, the lowest first in each word.
    pub fn bits(&mut self) -> Result<Vec<u32>, String> {
        Ok(self.allowed()?.as_slice().to_vec())
    }

    fn allowed(&mut self) -> Result<SimpleVob, String> {
        guarded(|| self.matcher.compute_mask_or_eos().map_err(|e| sentence(&e.to_string())))
    }

    /// Forbids all tokens that cannot follow.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let mask = self.allowed()?;
        for (logit, id) in logits.iter_mut().zip(0..) {
            if !mask.is_allowed(id) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Takes the next token of the text. Returns whether the text is complete: nothing can follow.
    pub fn take(&mut self, id: u32) -> Result<bool, String> {
        guarded(|| self.matcher.consume_token(id).map_err(|e| sentence(&e.to_string())))?;
        match self.matcher.get_error() {
            Some(error) => Err(sentence(&error)),
            None => Ok(self.matcher.is_stopped()),
        }
    }
}

/// A schema with the bound of white space.
fn spaced(mut schema: Value) -> Value {
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    if let Value::Object(object) = &mut schema {
        object.insert("x-guidance".into(), json!({"whitespace_pattern": WHITESPACE}));
    }
    schema
}

/// A grammar whose schemas have the bound of white space.
fn spaced_lark(grammar: &str) -> Result<String, String> {
    let (mut out, mut done) = (String::with_capacity(grammar.len()), 0);
    limits::scan_lark(grammar, |place, schema| {
        out += &grammar[done..place.start];
        out += &format!(" {}", spaced(schema));
        done = place.end;
        Ok(())
    })?;
    Ok(out + &grammar[done..])
}

/// A message of the grammar's library in one sentence, without what only its own callers can do.
fn sentence(error: &str) -> String {
    if error.contains("oneOf") {
        return "the alternatives of a oneOf must visibly exclude each other; anyOf has no such limit".into();
    }
    if error.contains("regex parse error") {
        let reason = error.lines().find_map(|line| line.trim().strip_prefix("error: ")).unwrap_or("it cannot be read");
        return format!("a regular expression in it is faulty: {reason}");
    }
    if error.contains("NoExtensionBias") {
        return "the model's vocabulary cannot write a text that fulfils it".into();
    }
    let line = error.lines().find(|line| !line.trim().is_empty()).unwrap_or("it cannot be compiled").trim();
    line.chars().take(300).collect()
}

/// A fault of the grammar's library must not end the engine.
fn guarded<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("the grammar failed".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vocabulary of single bytes, of which some are missing, and the end.
    fn bytes(missing: &[u8]) -> Arc<ParserFactory> {
        let byte = |byte| if missing.contains(&byte) { Vec::new() } else { vec![byte] };
        let words: Vec<Vec<u8>> = (0..=255).map(byte).chain([b"\xff</s>".to_vec()]).collect();
        factory_of(&words, 256, &[256]).unwrap()
    }

    /// How many bytes of a text fulfil a constraint.
    fn accepted(constraint: &Constraint, text: &str) -> usize {
        let mut grammar = Grammar::compile(constraint, &bytes(&[])).unwrap();
        let allowed = |grammar: &mut Grammar, byte: u8| {
            let mut logits = [0.0; 257];
            grammar.mask(&mut logits).is_ok_and(|()| logits[usize::from(byte)] == 0.0)
        };
        text.bytes().take_while(|byte| allowed(&mut grammar, *byte) && grammar.take((*byte).into()).is_ok()).count()
    }

    #[test]
    fn blanks_in_json_are_bounded() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
        let lark = format!("start: \"<\" v \">\"\nv: %json {schema}\n");
        let free = Constraint::JsonSchema(json!(true));
        for (constraint, before) in [
            (Constraint::JsonObject, ""),
            (Constraint::JsonSchema(schema), ""),
            (Constraint::Lark(lark), "<"),
            (free, ""),
        ] {
            for text in ["{ \"a\" : 1 }", "{\"a\":1}", "{\n    \"a\": 1\n}", "{\r\n\t\"a\": 1\r\n}"] {
                let text = format!("{before}{text}");
                assert_eq!(accepted(&constraint, &text), text.len(), "{constraint:?} {text:?}");
            }
            for blanks in [" ".repeat(100), "\n".repeat(100), format!("\n{}", "\t".repeat(100)), " \n".repeat(100)] {
                let text = format!("{before}{{{blanks}\"a\"");
                assert!(accepted(&constraint, &text) < 50, "{constraint:?} {text:?}");
            }
        }
    }

    #[test]
    fn a_vocabulary_that_cannot_write_it_is_named() {
        let reason = Grammar::compile(&Constraint::JsonObject, &bytes(b"{")).err();
        assert_eq!(reason.as_deref(), Some("the model's vocabulary cannot write a text that fulfils it"));
        // Only after some tokens.
        let mut grammar = Grammar::compile(&Constraint::JsonObject, &bytes(b"\"}")).unwrap();
        grammar.take(u32::from(b'{')).unwrap();
        let reason = (0..200).find_map(|_| {
            let mut logits = [0.0; 257];
            let failed = grammar.mask(&mut logits).err();
            failed.or_else(|| grammar.take(logits.iter().position(|logit| *logit == 0.0)? as u32).err())
        });
        assert_eq!(reason.as_deref(), Some("the model's vocabulary cannot write a text that fulfils it"));
    }
}
