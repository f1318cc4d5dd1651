//! `hologram run`: continues a prompt.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Context;
use hologram_llm::engine::Constraint;
use hologram_llm::sampling::SamplerConfig;
use hologram_llm::{Engine, Finish, GenerateOptions, LlmError, Message, Model, Request, Session};
use serde_json::json;
use signal_hook::consts::SIGINT;

use super::shipped;
use super::text::{self, Counts, Text};
use super::thinking::{self, Reply};
use super::words::model_and_text;
use crate::args::{
    ConstraintArgs, DeviceArgs, ExpertsArgs, LoraArgs, ProfileArgs, RunArgs, SpeculationArgs, Think, usage,
};
use crate::capture::{self, Capture};
use crate::output;
use crate::status::{INTERRUPTED, Interrupted, status};
use crate::text::{NAME, counted, printable, read_bounded};
use crate::trace::{self, Trace, step};

/// Maximum bytes of a prompt on standard input: many times any context.
const MAX_PROMPT: u64 = 64 << 20;

/// What is continued when the program is called without a command, and how: it shows what the small model can do.
const SAMPLE_PROMPT: &str = "A trait is";
const SAMPLE: SamplerConfig =
    SamplerConfig { seed: 4, temperature: 0.6, top_k: 40, top_p: 0.95, ..SamplerConfig::GREEDY };
/// It ends with an example.
const SAMPLE_TOKENS: usize = 65;

/// What to try after that.
const NEXT: &str = "
Next: hologram chat hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF   a conversation with a model from Hugging Face (0.4 GB)
      hologram run MODEL.gguf \"Once upon a time\"         a model of your own
      hologram bench                                    how fast this machine is
      hologram --help                                   everything else
";

/// Characters of a prompt that a terminal shows before the continuation.
const SHOWN: usize = 500;

/// Runs the program without a command.
///
/// # Errors
/// When the device or the model fails.
pub fn sample() -> anyhow::Result<()> {
    let options = GenerateOptions { sampling: SAMPLE, max_tokens: SAMPLE_TOKENS, ..GenerateOptions::default() };
    let device = DeviceArgs::new("auto");
    let settings = Settings {
        read: Vec::new(),
        options: &options,
        constraint: None,
        constrained: &ConstraintArgs::default(),
        speculation: &SpeculationArgs { speculate: None, draft: None },
        repeatable: true,
        lora: &LoraArgs::default(),
        experts: &ExpertsArgs::default(),
        device: &device,
        profile: &ProfileArgs { profile: None, capture: None },
        raw: true,
        think: Think::Show,
        json: false,
    };
    stream(None, SAMPLE_PROMPT, &settings)?;
    status!("{NEXT}");
    Ok(())
}

/// Runs the command.
///
/// # Errors
/// When an option is out of range, or the device or the model fails.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    if args.stop.iter().any(String::is_empty) {
        return usage("--stop must not be empty");
    }
    let options = GenerateOptions {
        max_tokens: args.max_tokens,
        stop: args.stop.clone(),
        ..args.sampling.options(fresh_seed())?
    };
    let (model, word) = model_and_text(&args.words, args.model.as_deref())?;
    let prompt = match (word, &args.prompt, &args.file) {
        (Some(_), Some(_), _) | (Some(_), _, Some(_)) => {
            return usage("give one prompt: as an argument, by -p or by -f");
        }
        (Some(prompt), None, None) => prompt,
        (None, Some(prompt), _) => prompt.clone(),
        (None, None, Some(path)) if path != Path::new("-") => text_of(path)?,
        (None, None, None) if std::io::stdin().is_terminal() => match model {
            None => SAMPLE_PROMPT.into(),
            Some(_) => return usage("give a prompt, as an argument or on standard input; `hologram chat` converses"),
        },
        (None, None, _) => {
            // Its errors come before the wait for a prompt.
            shipped::open(model.as_deref())?;
            let text = read_text("prompt")?;
            if text.is_empty() {
                return usage("the prompt on standard input is empty; `run \"\"` begins with nothing");
            }
            text
        }
    };
    let read = [args.file.as_deref(), args.constraint.file(), args.speculation.draft.as_deref()];
    let settings = Settings {
        read: read.into_iter().flatten().chain(args.lora.paths()).collect(),
        options: &options,
        constraint: args.constraint.constraint()?,
        constrained: &args.constraint,
        speculation: &args.speculation,
        repeatable: args.sampling.is_repeatable(),
        lora: &args.lora,
        experts: &args.experts,
        device: &args.device,
        profile: &args.profile,
        raw: args.raw,
        think: args.think,
        json: args.json,
    };
    if settings.is_traced() && (settings.constraint.is_some() || args.speculation.is_given()) {
        return usage(
            "--profile and --capture show plain steps: not with --json-schema, --grammar, --speculate or --draft",
        );
    }
    // Before a model is loaded.
    args.speculation.chosen()?;
    stream(model.as_deref(), &prompt, &settings)
}

/// How a prompt is continued.
struct Settings<'a> {
    /// Files that are read, apart from the model's.
    read: Vec<&'a Path>,
    options: &'a GenerateOptions,
    constraint: Option<Constraint>,
    /// Where that comes from.
    constrained: &'a ConstraintArgs,
    speculation: &'a SpeculationArgs,
    /// Whether the user wants the same text each time.
    repeatable: bool,
    lora: &'a LoraArgs,
    experts: &'a ExpertsArgs,
    device: &'a DeviceArgs,
    profile: &'a ProfileArgs,
    /// Whether the chat template is left out.
    raw: bool,
    think: Think,
    json: bool,
}

impl Settings<'_> {
    fn is_traced(&self) -> bool {
        self.profile.profile.is_some() || self.profile.capture.is_some()
    }

    /// The engine's request for a text after these tokens.
    fn request(&self, tokens: Vec<u32>) -> Request {
        let mut request = Request::new(tokens);
        (request.max_tokens, request.sampling) = (Some(self.options.max_tokens), self.options.sampling);
        (request.stop, request.constraint) = (self.options.stop.clone(), self.constraint.clone());
        request
    }
}

/// What generates the text.
enum Generator {
    Engine(Engine),
    /// A trace shows the calls of one thread, and times of the steps that a text needs.
    Steps(Box<(Model, Session)>),
}

impl Generator {
    fn new(model: Model, settings: &Settings<'_>, executor: &hologram_core::Executor) -> anyhow::Result<Generator> {
        let Settings { options, speculation, repeatable, .. } = *settings;
        if settings.is_traced() {
            let session = model.session_for(options)?;
            return Ok(Generator::Steps(Box::new((model, session))));
        }
        Ok(Generator::Engine(text::engine(model, options, speculation, repeatable, executor)?))
    }

    fn start<'a>(
        &'a mut self,
        tokens: Vec<u32>,
        settings: &Settings<'_>,
        interrupted: &'a AtomicBool,
    ) -> anyhow::Result<Text<'a>> {
        match self {
            Generator::Engine(engine) => Text::of_engine(engine, settings.request(tokens), interrupted),
            Generator::Steps(own) => {
                let (model, session) = &mut **own;
                Ok(Text::of_steps(model.reply(session, &tokens, settings.options)?, interrupted))
            }
        }
    }
}

fn without_newline(text: &str) -> &str {
    text.strip_suffix('\n').map(|t| t.strip_suffix('\r').unwrap_or(t)).unwrap_or(text)
}

/// Reads the text on standard input without the newline that ends its last line. `what` names it in messages.
///
/// # Errors
/// When it is not UTF-8 or too long.
pub fn read_text(what: &str) -> anyhow::Result<String> {
    let bytes = read_bounded(std::io::stdin().lock(), MAX_PROMPT);
    let bytes = bytes.with_context(|| format!("cannot read the {what} from standard input"))?;
    let text = String::from_utf8(bytes).with_context(|| format!("the {what} on standard input is not UTF-8"))?;
    Ok(without_newline(&text).to_string())
}

/// Prints the continuation as it is generated, or at the end as JSON, followed by statistics.
fn stream(path: Option<&Path>, prompt: &str, settings: &Settings<'_>) -> anyhow::Result<()> {
    let Settings { options, lora, experts, device, profile, raw, think, json, .. } = *settings;
    let files = shipped::open(path)?;
    if let Some(out) = &profile.profile {
        output::check_not_read(out, Some(&files), settings.read.iter().copied())?;
    }
    let trace = &Trace::create(profile.profile.as_deref())?;
    let started = Instant::now();
    let executor = trace::open(device, trace)?;
    let capture = Capture::of(profile.capture.as_deref(), &executor)?;
    let model =
        step(trace, "load the model", || shipped::load(files, lora, experts.options(device.threads()), &executor))?;
    if model.config().bidirectional {
        return Err(LlmError::Encoder { path: model.config().name.clone().into() }.into());
    }
    // A chat model is asked in its own format; a model that only continues text has none.
    let mut template = match model.files().filter(|_| !raw).map(|files| files.chat_template(model.tokenizer()?)) {
        None | Some(Err(LlmError::NoTemplate { .. })) => None,
        Some(template) => Some(template?),
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    if json || trace.is_some() || capture.is_some() {
        // After Ctrl-C the statistics are still written; a second Ctrl-C ends the program at once.
        let end = signal_hook::flag::register_conditional_shutdown;
        end(SIGINT, INTERRUPTED.into(), interrupted.clone()).context("cannot watch for Ctrl-C")?;
        signal_hook::flag::register(SIGINT, interrupted.clone()).context("cannot watch for Ctrl-C")?;
    }
    let mut notes: Vec<String> = model.not_run().into_iter().collect();
    notes.extend_from_slice(model.tokenizer()?.notes());
    notes.extend(options.context.and_then(|n| beyond_trained(n, model.config().context)));
    notes.extend(template.as_mut().and_then(|template| thinking::apply(think, template)).map(String::from));
    let tokenizer = model.tokenizer()?;
    let (asked, mut tokens) = match &template {
        Some(template) => {
            notes.extend(template.note().map(String::from));
            super::chat::written(template, &[Message::new("user", prompt)], tokenizer)?
        }
        None => (prompt.to_string(), tokenizer.encode_with(prompt, true, true)?),
    };
    if tokens.is_empty() {
        // An empty prompt starts from BOS.
        tokens.extend(tokenizer.bos());
    }
    let name = model.config().name.clone();
    let mut generator = Generator::new(model, settings, &executor)?;
    let mut generation =
        generator.start(tokens, settings, &interrupted).map_err(|e| settings.constrained.at_fault(e))?;
    if !json {
        status!("{} on {} ({})\n", printable(&name, NAME), executor.info().backend, executor.info().name);
    }
    for note in notes {
        status!("note: {note}\n");
    }
    let mut out = std::io::stdout().lock();
    if !json {
        // The prompt is not output, but what continues it is shown after it; a reply stands alone.
        let skipped = prompt.char_indices().rev().nth(SHOWN).map_or(0, |(at, _)| at);
        match &template {
            Some(_) => status!("\n"),
            None if skipped > 0 => status!("\n…{}", &prompt[skipped..]),
            None => status!("\n{prompt}"),
        }
    }
    let mut first_token = None;
    // A text that is continued has no thoughts.
    let mut reply = Reply::new(if template.is_some() { think } else { Think::Show }, &asked);
    let print = || -> anyhow::Result<()> {
        let mut name = "prompt";
        while let Some(piece) = step(trace, name, || generation.next())? {
            name = "token";
            let text = reply.push(&piece);
            if !json && !text.is_empty() {
                write!(out, "{text}")?;
                out.flush()?;
            }
            first_token.get_or_insert_with(|| started.elapsed());
        }
        let rest = reply.finish();
        if json { Ok(()) } else { Ok(writeln!(out, "{rest}")?) }
    };
    let printed = capture::around(&capture, &executor, print);
    if !json {
        status!("\n");
    }
    printed?;
    let counts = generation.counts;
    if let Some(note) = reply.note(generation.finish, counts.generated) {
        status!("note: {note}\n");
    }
    if json {
        let finish = generation.finish.map(finish_name);
        let finish = finish.or(interrupted.load(Ordering::Relaxed).then_some("interrupted"));
        let mut object = json!({
            "model": name,
            "device": executor.info().backend.to_string(),
            "text": if template.is_none() { &reply.text } else { &reply.answer },
            "thinking": Some(&reply.thought).filter(|text| !text.is_empty() && template.is_some()),
            "finish": finish,
            "seed": options.sampling.seed,
            "prompt_tokens": counts.prompt,
            "generated_tokens": counts.generated,
            "guessed_tokens": Some(counts.guessed).filter(|n| *n > 0),
            "accepted_tokens": Some(counts.accepted).filter(|_| counts.guessed > 0),
            "prompt_tokens_per_s": counts.prompt_rate(),
            "tokens_per_s": counts.rate(),
            "first_token_s": first_token.map(|t| t.as_secs_f64()),
        });
        without_nulls(&mut object, &["thinking", "guessed_tokens", "accepted_tokens"]);
        writeln!(out, "{object}")?;
    } else {
        let mut figures = figures(&counts);
        if let Some(time) = first_token {
            figures += &format!("; first token after {:.0} ms", time.as_secs_f64() * 1e3);
        }
        if generation.finish == Some(Finish::ContextFull) {
            figures += "; stopped because the context is full (see --ctx)";
        }
        if options.sampling.temperature > 0.0 {
            figures += &format!("; seed {}", options.sampling.seed);
        }
        status!("{figures}\n");
    }
    trace.as_ref().map_or(Ok(()), |trace| trace.finish())?;
    if interrupted.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
}

/// Removes those of these keys that have no value.
pub fn without_nulls(object: &mut serde_json::Value, keys: &[&str]) {
    if let Some(object) = object.as_object_mut() {
        object.retain(|key, value| !value.is_null() || !keys.contains(&key.as_str()));
    }
}

/// Why a reply ended, for programs.
pub fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::EndOfText => "end of text",
        Finish::MaxTokens => "max tokens",
        Finish::ContextFull => "context full",
        Finish::Stop => "stop",
        _ => "stopped",
    }
}

/// A warning if the context is longer than the trained one.
pub fn beyond_trained(context: usize, trained: usize) -> Option<String> {
    (context > trained)
        .then(|| format!("the model was trained for {trained} tokens of context; text beyond that gets worse"))
}

/// The numbers of tokens and their speed.
pub fn figures(counts: &Counts) -> String {
    let tokens = |n: usize| counted(n, "token");
    let rate = |rate: Option<f64>| rate.map_or(String::new(), |rate| format!(", {rate:.1} tokens/s"));
    let mut figures = format!("prompt: {}", tokens(counts.prompt));
    if counts.cached > 0 {
        figures += &format!(", {} of them cached", counts.cached);
    }
    figures += &rate(counts.prompt_rate());
    figures += &format!("; generated: {}", tokens(counts.generated));
    figures += &rate(counts.rate());
    if counts.guessed > 0 {
        figures += &format!("; guessed right: {} of {}", counts.accepted, counts.guessed);
    }
    figures
}

/// The prompt in a file.
pub fn text_of(path: &Path) -> anyhow::Result<String> {
    let bytes = crate::text::read_file(path, MAX_PROMPT)?;
    let text = String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(without_newline(&text).to_string())
}

/// A seed that differs between runs.
pub fn fresh_seed() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // Below 2⁵³, which every reader of JSON keeps.
    since_epoch.map_or(0, |d| d.as_nanos() as u64 % (1 << 53))
}
