//! `hologram chat`: a conversation. The KV cache is kept between turns: the common prefix with the last turn is not
//! computed again.

mod input;
mod session;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use hologram_llm::engine::{Constraint, SubmitError};
use hologram_llm::{ChatTemplate, Engine, Finish, GenerateOptions, LlmError, Message, Request};

use serde_json::json;
use signal_hook::consts::SIGINT;

use super::run::{beyond_trained, figures, finish_name, fresh_seed, without_nulls};
use super::shipped;
use super::text::{self, Counts, Text};
use super::thinking::{self, Reply};
use super::words::model_and_text;
use crate::args::{ChatArgs, Think, usage};
use crate::output;
use crate::status::{Interrupted, status};
use crate::text::{MESSAGE, NAME, counted, printable, shown};
use input::{Input, Typed};

/// Maximum bytes of a conversation's file.
const MAX_CONVERSATION: u64 = 64 << 20;

const HELP: &str = "\
/help          list the commands
/clear         start a new conversation
/system        show the system prompt
/system TEXT   set the system prompt, from the next reply on
/set           show the settings
/set NAME X    change one, from the next reply on: temperature, top-k, top-p, typical-p, min-p, repeat-penalty,
               presence-penalty, frequency-penalty, seed, max-tokens, think (show, hide or off: the thoughts of a
               reasoning model)
/save FILE     write the conversation as JSON, its text alone (--session FILE keeps what is computed, too)
/load FILE     continue a conversation from such a file
/stats         show the last reply's token counts and speed
/regenerate    generate the last reply again
/quit          quit, like /exit, /bye and Ctrl-D; Ctrl-C stops a reply
\"\"\"            begins and ends a message of several lines; a line that ends in \\ goes on in the next
";

/// Runs the command.
///
/// # Errors
/// When an option is out of range, the model is not a chat model, or the device or the model fails; without a terminal
/// also, at the end, when a line failed.
pub fn run(args: &ChatArgs) -> anyhow::Result<()> {
    // A turn ends when the model ends it or the context is full.
    let max_tokens = args.max_tokens.unwrap_or(usize::MAX);
    let options = GenerateOptions { max_tokens, ..args.sampling.options(fresh_seed())? };
    let (path, question) = model_and_text(&args.words, args.model.as_deref())?;
    if args.json && question.is_none() {
        return usage("--json takes a question: hologram chat MODEL \"QUESTION\" --json");
    }
    if path.is_none() {
        return usage("give a chat model: hologram chat MODEL.gguf; the built-in model only continues text");
    }
    // Before a model is loaded.
    args.speculation.chosen()?;
    let constraint = args.constraint.constraint()?;
    let saved = session::open(args.session.as_deref())?;
    let files = shipped::open(path.as_deref())?;
    if files.config()?.bidirectional {
        let path = path.unwrap_or_default();
        return Err(hologram_llm::LlmError::Encoder { path }.into());
    }
    // Check the template before loading the weights.
    let tokenizer = files.tokenizer()?;
    let mut template = files.chat_template(&tokenizer)?;
    let cannot_turn_off = thinking::apply(args.think, &mut template);
    let first = |system: Option<&str>| -> Vec<Message> {
        system.map(|text| Message::new("system", text)).into_iter().chain([Message::new("user", "Hello")]).collect()
    };
    written(&template, &first(args.system.as_deref()), &tokenizer)?;

    let executor = args.device.open()?;
    let model = shipped::load(files, &args.lora, args.experts.options(args.device.threads), &executor)?;
    model.tokenizer()?;
    let (trained, name) = (model.config().context, printable(&model.config().name, NAME));
    let engine = text::engine(model, &options, &args.speculation, args.sampling.is_repeatable(), &executor)?;
    if let Some(constraint) = &constraint {
        engine.check_constraint(constraint)?;
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    let mut input = match &question {
        Some(_) => {
            signal_hook::flag::register(SIGINT, interrupted.clone()).context("cannot watch for Ctrl-C")?;
            None
        }
        None => Some(Input::open(&interrupted)?),
    };
    let read = [args.session.as_deref(), args.constraint.file(), args.speculation.draft.as_deref()];
    let mut chat = Chat {
        engine,
        template,
        options,
        constraint,
        system: args.system.clone(),
        turns: Vec::new(),
        dropped: 0,
        saved: None,
        regenerations: 0,
        counts: None,
        finish: None,
        last: None,
        interrupted,
        think: args.think,
        read: read.into_iter().flatten().chain(args.lora.paths()).map(PathBuf::from).collect(),
        silent: args.json,
    };
    // A file of another model is refused before anything is said.
    let resumed = match (saved, &args.session) {
        (Some(snapshot), Some(path)) => Some(chat.resume(snapshot, path)?),
        _ => None,
    };
    status!("{name} on {} ({})\n", executor.info().backend, executor.info().name);
    let beyond = args.sampling.ctx.map(|n| n as usize).and_then(|n| beyond_trained(n, trained));
    let of_tokenizer = chat.engine.model().tokenizer()?.notes().iter().map(String::as_str);
    let notes = of_tokenizer.chain(chat.template.note()).chain(beyond.as_deref());
    let not_run = chat.engine.model().not_run();
    for note in not_run.as_deref().into_iter().chain(notes).chain(cannot_turn_off) {
        status!("note: {note}\n");
    }
    if input.as_ref().is_some_and(Input::is_terminal) {
        status!("/help lists the commands\n");
    }
    if let Some(resumed) = resumed {
        status!("{resumed}\n");
    }
    let done = match (&question, &mut input) {
        (None, Some(input)) => chat.converse(input, args.session.as_deref()),
        (question, _) => chat.say(question.as_deref().unwrap_or_default()).and_then(|()| chat.answered(args.json)),
    };
    // Whatever ended it.
    let kept = args.session.as_deref().map_or(Ok(()), |path| chat.keep(path));
    done.and(kept)
}

/// Whether the conversation, or its last turn, is too long for the context.
fn is_full(e: &anyhow::Error) -> bool {
    matches!(e.downcast_ref(), Some(SubmitError::ContextFull { .. }))
        || matches!(e.downcast_ref(), Some(LlmError::PromptTooLong { .. } | LlmError::ContextFull { .. }))
}

/// The text of a conversation and its tokens. Control tokens come from the template alone, BOS among them.
///
/// # Errors
/// When the template rejects it or writes nothing.
pub fn written(
    template: &ChatTemplate,
    messages: &[Message],
    tokenizer: &hologram_llm::tokenizer::Tokenizer,
) -> anyhow::Result<(String, Vec<u32>)> {
    let written = template.write(&messages.into(), true, tokenizer)?;
    ensure!(!written.is_empty(), "the chat template produces no text: it is empty or damaged");
    Ok((written.text(), written.encode(tokenizer, false)?))
}

/// The system prompt and the turns of a conversation in JSON.
fn conversation(bytes: &[u8], file: &Path) -> anyhow::Result<(Option<String>, Vec<Message>)> {
    let file = file.display();
    let turns: Vec<serde_json::Value> =
        serde_json::from_slice(bytes).with_context(|| format!("{file} is no conversation written by /save"))?;
    let message = |turn: &serde_json::Value| Some(Message::new(turn["role"].as_str()?, turn["content"].as_str()?));
    let turns = turns.iter().map(message).collect::<Option<Vec<_>>>();
    let mut turns = turns.with_context(|| format!("{file}: a message lacks role or content"))?;
    let system = turns.first().is_some_and(|turn| turn.role == "system").then(|| turns.remove(0).content);
    let first = 1 + usize::from(system.is_some());
    let fault = turns.iter().enumerate().find(|(i, turn)| turn.role != ["user", "assistant"][i % 2]);
    match fault.map(|(i, turn)| (i + first, turn.role.as_str())) {
        Some((n, "system")) => bail!("{file}: message {n} is a system prompt, which only the first may be"),
        Some((n, role @ ("user" | "assistant"))) => {
            bail!("{file}: turns of user and assistant must alternate, but message {n} is the {role}'s out of turn")
        }
        Some((n, role)) => {
            bail!("{file}: message {n} has the role {}, not system, user or assistant", printable(role, NAME))
        }
        None => ensure!(
            turns.len() % 2 == 0,
            "{file}: turns of user and assistant must alternate, and the last must be the assistant's"
        ),
    }
    Ok((system, turns))
}

/// The values of a setting.
fn range(name: &str) -> &'static str {
    match name {
        "temperature" | "temp" => "a number, 0 or more",
        "top-p" | "typical-p" => "a number above 0 and at most 1",
        "min-p" => "a number from 0 to 1",
        "repeat-penalty" => "a number above 0",
        "presence-penalty" | "frequency-penalty" => "a number",
        "max-tokens" => "a whole number, 0 or more, or unlimited",
        _ => "a whole number, 0 or more",
    }
}

/// The error of a file that the user named: unlike one of standard output, it does not end the chat.
fn of_a_file(e: anyhow::Error) -> anyhow::Error {
    anyhow::anyhow!("{e:#}")
}

/// Whether standard output failed, so that the chat cannot continue.
fn is_last(e: &anyhow::Error) -> bool {
    e.is::<std::io::Error>()
}

/// A command in a line.
enum Command<'a> {
    Help,
    Clear,
    System(&'a str),
    Set(&'a str),
    Save(&'a str),
    Load(&'a str),
    Stats,
    Regenerate,
    Quit,
    Unknown(&'a str),
    /// Without its slash.
    NoSlash(&'a str),
    /// Without the file that it needs.
    NoFile(&'a str),
    /// With text after it, where it takes none.
    Alone(&'a str),
}

impl<'a> Command<'a> {
    /// A slash and letters, optionally with text after a space. Other lines, such as `/etc/passwd`, go to the model,
    /// except for the words that end other programs.
    fn parse(line: &'a str) -> Option<Command<'a>> {
        if matches!(line, "exit" | "quit") {
            return Some(Command::NoSlash(line));
        }
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let letters = word.strip_prefix('/')?;
        if letters == "?" && rest.trim().is_empty() {
            return Some(Command::Help);
        }
        if letters.is_empty() || !letters.chars().all(|c| c.is_ascii_alphabetic()) {
            return None;
        }
        let rest = rest.trim();
        // A name in quotes, as in a shell.
        let named = ["save", "load"].contains(&letters) && rest.len() > 2;
        let quoted = rest.strip_prefix('"').and_then(|name| name.strip_suffix('"')).filter(|_| named);
        Some(match (letters, quoted.unwrap_or(rest)) {
            ("help", "") => Command::Help,
            ("clear", "") => Command::Clear,
            ("system", text) => Command::System(text),
            ("set", text) => Command::Set(text),
            ("save", path) if !matches!(path, "" | "-") => Command::Save(path),
            ("load", path) if !matches!(path, "" | "-") => Command::Load(path),
            ("stats", "") => Command::Stats,
            ("regenerate", "") => Command::Regenerate,
            ("quit" | "exit" | "bye", "") => Command::Quit,
            // Switches that Qwen 3 reads in a message.
            ("think", _) => return None,
            ("save" | "load", _) => Command::NoFile(word),
            ("help" | "clear" | "stats" | "regenerate" | "quit" | "exit" | "bye", _) => Command::Alone(word),
            _ => Command::Unknown(word),
        })
    }
}

/// A conversation.
struct Chat {
    engine: Engine,
    template: ChatTemplate,
    options: GenerateOptions,
    /// What every reply conforms to.
    constraint: Option<Constraint>,
    system: Option<String>,
    /// The turns, without the system prompt.
    turns: Vec<Message>,
    /// How many of the oldest turns the prompt lacks, as the context is full.
    dropped: usize,
    /// The state of the file of `--session` when it was last read or written.
    saved: Option<(SystemTime, u64)>,
    /// Number of times that the last reply was regenerated, each time with the next seed.
    regenerations: u64,
    /// Of the last reply.
    counts: Option<Counts>,
    /// Why the last reply ended.
    finish: Option<Finish>,
    /// The last reply's thoughts and answer.
    last: Option<Reply>,
    interrupted: Arc<AtomicBool>,
    think: Think,
    /// The files and folders that are read apart from the model's: adapters, a schema, a saved session.
    read: Vec<PathBuf>,
    /// Whether replies are not printed.
    silent: bool,
}

impl Chat {
    /// Reads messages and commands until the end.
    fn converse(&mut self, input: &mut Input, session: Option<&Path>) -> anyhow::Result<()> {
        let mut failed = 0;
        while let Some(message) = input.message()? {
            let (line, command) = match &message {
                Typed::Line(line) => (line.trim(), Command::parse(line.trim())),
                Typed::Block(text) => (text.trim(), None),
                Typed::NotText => ("", None),
            };
            let done = match command {
                None if matches!(message, Typed::NotText) => Err(anyhow::anyhow!("a line is not UTF-8")),
                Some(Command::Quit) => break,
                Some(command) => self.command(command),
                None if line.is_empty() => Ok(()),
                None => self.say(line).and_then(|()| session.map_or(Ok(()), |path| self.keep_text(path))),
            };
            match done {
                // The conversation continues as before the failed line, from a pipe too.
                Err(e) if !is_last(&e) => {
                    let hint = if is_full(&e) { "; /clear starts a new conversation" } else { "" };
                    status!("hologram: {}{hint}\n", printable(&format!("{e:#}"), MESSAGE));
                    failed += 1;
                }
                done => done?,
            }
        }
        if input.is_terminal() {
            status!("\n");
            return Ok(());
        }
        ensure!(failed == 0, "{} failed", counted(failed, "line"));
        Ok(())
    }

    /// Ends a conversation of one question.
    fn answered(&self, json: bool) -> anyhow::Result<()> {
        if json {
            let counts = self.counts.unwrap_or_default();
            let shown = self.think == Think::Show;
            let interrupted = self.interrupted.load(Ordering::Relaxed);
            let mut object = json!({
                "model": self.engine.model().config().name,
                "device": self.engine.model().executor().info().backend.to_string(),
                "text": self.last.as_ref().map(|reply| if shown { &reply.text } else { &reply.answer }),
                "thinking": self.last.as_ref().map(|r| &r.thought).filter(|text| !shown && !text.is_empty()),
                "seed": self.options.sampling.seed,
                "finish": self.finish.map(finish_name).or(interrupted.then_some("interrupted")),
                "prompt_tokens": counts.prompt,
                "generated_tokens": counts.generated,
                "prompt_tokens_per_s": counts.prompt_rate(),
                "tokens_per_s": counts.rate(),
            });
            without_nulls(&mut object, &["thinking"]);
            writeln!(std::io::stdout().lock(), "{object}")?;
        } else if let Some(counts) = &self.counts {
            status!("\n{}\n", figures(counts));
        }
        if self.interrupted.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
    }

    fn command(&mut self, command: Command<'_>) -> anyhow::Result<()> {
        match command {
            Command::Help => status!("{HELP}"),
            Command::Clear => {
                self.turns.clear();
                self.dropped = 0;
                self.counts = None;
                session::forget(&self.engine)?;
                status!("new conversation\n");
            }
            Command::System("") => match &self.system {
                Some(text) => status!("{text}\n"),
                None => status!("no system prompt\n"),
            },
            Command::System(text) => {
                let old = self.system.replace(text.into());
                let next = self.messages(Some(Message::new("user", "Hello")));
                if let Err(e) = written(&self.template, &next, self.engine.model().tokenizer()?) {
                    self.system = old;
                    return Err(e);
                }
            }
            Command::Set(text) => return self.set(text),
            Command::Save(path) => {
                let turns = self.all_messages();
                let text = format!("{:#}\n", session::as_json(&turns));
                let read = self.read.iter().map(PathBuf::as_path);
                output::check_not_read(Path::new(path), self.engine.model().files(), read)?;
                output::write(Path::new(path), text.as_bytes()).map_err(of_a_file)?;
                status!("wrote {} ({})\n", shown(path), counted(turns.len(), "message"));
            }
            Command::Load(path) => self.load(Path::new(path)).map_err(of_a_file)?,
            Command::Stats => self.show_stats(),
            Command::Regenerate => return self.regenerate(),
            Command::Unknown(word) => bail!("unknown command {word}; /help lists the commands"),
            Command::NoSlash(word) => {
                status!("(/{word} or Ctrl-D to quit; \"\"\"{word}\"\"\" sends the word to the model)\n");
            }
            Command::NoFile(word) => bail!("{word} needs a file: {word} FILE"),
            Command::Alone(word) => bail!("{word} stands alone: no text may follow it"),
            Command::Quit => {}
        }
        Ok(())
    }

    /// Shows the settings, or changes one.
    fn set(&mut self, text: &str) -> anyhow::Result<()> {
        let sampling = &self.options.sampling;
        let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        if name.is_empty() {
            let most = Some(self.options.max_tokens).filter(|n| *n < usize::MAX);
            status!(
                "temperature {}, top-k {}, top-p {}, typical-p {}, min-p {}, repeat-penalty {}, presence-penalty {}, \
                 frequency-penalty {}, seed {}, max-tokens {}, think {}\n",
                sampling.temperature,
                sampling.top_k,
                sampling.top_p,
                sampling.typical_p,
                sampling.min_p,
                sampling.repeat_penalty,
                sampling.presence_penalty,
                sampling.frequency_penalty,
                sampling.seed,
                most.map_or("unlimited".into(), |n| n.to_string()),
                self.think.to_possible_value().map_or(String::new(), |value| value.get_name().to_string())
            );
            return Ok(());
        }
        let mut options = self.options.clone();
        let (value, sampling) = (value.trim(), &mut options.sampling);
        let set = match name {
            "temperature" | "temp" => value.parse().map(|n| sampling.temperature = n).is_ok(),
            "top-k" => value.parse().map(|n| sampling.top_k = n).is_ok(),
            "top-p" => value.parse().map(|n| sampling.top_p = n).is_ok(),
            "typical-p" => value.parse().map(|n| sampling.typical_p = n).is_ok(),
            "repeat-penalty" => value.parse().map(|n| sampling.repeat_penalty = n).is_ok(),
            "presence-penalty" => value.parse().map(|n| sampling.presence_penalty = n).is_ok(),
            "frequency-penalty" => value.parse().map(|n| sampling.frequency_penalty = n).is_ok(),
            "min-p" => value.parse().map(|n| sampling.min_p = n).is_ok(),
            "seed" => value.parse().map(|n| sampling.seed = n).is_ok(),
            "max-tokens" if matches!(value, "unlimited" | "none" | "-1") => {
                options.max_tokens = usize::MAX;
                true
            }
            "max-tokens" => value.parse().map(|n| options.max_tokens = n).is_ok(),
            "think" => return self.set_think(value),
            _ => bail!("there is no setting {}; /set lists them", shown(name)),
        };
        ensure!(set, "{name} is {}, but must be {}", shown(value), range(name));
        options.sampling.validate()?;
        self.options = options;
        Ok(())
    }

    fn set_think(&mut self, value: &str) -> anyhow::Result<()> {
        let Ok(think) = Think::from_str(value, true) else {
            bail!("{} is no value of think; it is show, hide or off", shown(value));
        };
        self.think = think;
        if let Some(note) = thinking::apply(think, &mut self.template) {
            status!("note: {note}\n");
        }
        Ok(())
    }

    /// Replaces the conversation by that of a file.
    fn load(&mut self, path: &Path) -> anyhow::Result<()> {
        let bytes = crate::text::read_file(path, MAX_CONVERSATION)?;
        (self.system, self.turns) = conversation(&bytes, path)?;
        self.dropped = 0;
        self.counts = None;
        session::forget(&self.engine)?;
        status!("loaded {}\n", counted(self.turns.len(), "turn"));
        Ok(())
    }

    /// The text of the conversation and its tokens. Where the context has no room for them and a reply, the oldest
    /// turns are dropped from it.
    fn tokens(&mut self) -> anyhow::Result<(String, Vec<u32>)> {
        let context = self.engine.options().context;
        let room = (context / 8).clamp(1, 256);
        let before = self.dropped;
        loop {
            let (text, tokens) = written(&self.template, &self.messages(None), self.engine.model().tokenizer()?)?;
            if tokens.len() + room <= context || self.turns.len() < self.dropped + 3 {
                if tokens.len() >= context {
                    // The last message alone is too long, which is an error: it changes nothing.
                    self.dropped = before;
                } else if self.dropped > before {
                    let turns = counted(self.dropped - before, "turn");
                    status!("note: the context is full: the oldest {turns} dropped\n");
                }
                return Ok((text, tokens));
            }
            // A question and its reply.
            self.dropped += 2;
        }
    }

    /// The whole conversation.
    fn all_messages(&self) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new("system", text.as_str()));
        system.chain(self.turns.iter().cloned()).collect()
    }

    /// The conversation for the template, without the turns that are dropped and with an additional one.
    fn messages(&self, more: Option<Message>) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new("system", text.as_str()));
        // A question replaces a trailing turn of the user.
        let kept = &self.turns[self.dropped.min(self.turns.len())..];
        let turns = match (&more, kept) {
            (Some(_), [before @ .., last]) if last.role == "user" => before,
            _ => kept,
        };
        system.chain(turns.iter().cloned()).chain(more).collect()
    }

    /// Adds a turn of the user and the model's reply.
    fn say(&mut self, text: &str) -> anyhow::Result<()> {
        self.turns.push(Message::new("user", text));
        self.regenerations = 0;
        let replied = self.reply();
        if replied.is_err() {
            self.turns.pop();
        }
        replied
    }

    fn regenerate(&mut self) -> anyhow::Result<()> {
        let Some(last) = self.turns.pop_if(|turn| turn.role == "assistant") else {
            bail!("there is no reply yet to generate again");
        };
        self.regenerations += 1;
        let replied = self.reply();
        if replied.is_err() {
            self.turns.push(last);
        }
        replied
    }

    /// Prints and stores the model's reply to the last turn.
    fn reply(&mut self) -> anyhow::Result<()> {
        let (prompt, tokens) = self.tokens()?;
        let mut request = Request::new(tokens);
        (request.max_tokens, request.sampling) = (Some(self.options.max_tokens), self.options.sampling);
        request.sampling.seed = request.sampling.seed.wrapping_add(self.regenerations);
        request.constraint.clone_from(&self.constraint);
        self.interrupted.store(false, Ordering::Relaxed);
        let mut generation = Text::of_engine(&self.engine, request, &self.interrupted)?;
        let mut reply = Reply::new(self.think, &prompt);
        let mut out = std::io::stdout().lock();
        while let Some(piece) = generation.next()? {
            let text = reply.push(&piece);
            if !self.silent && !text.is_empty() {
                write!(out, "{text}")?;
                out.flush()?;
            }
        }
        let rest = reply.finish();
        if !self.silent {
            writeln!(out, "{rest}")?;
        }
        if self.interrupted.load(Ordering::Relaxed) {
            status!("(stopped)\n");
        }
        match generation.finish {
            Some(Finish::ContextFull) => {
                status!("note: the context is full: the reply is cut off; --ctx makes it longer\n");
            }
            Some(Finish::MaxTokens) => status!("(cut off by --max-tokens)\n"),
            _ => {}
        }
        (self.counts, self.finish) = (Some(generation.counts), generation.finish);
        self.turns.push(Message::new("assistant", reply.text.as_str()));
        self.last = Some(reply);
        Ok(())
    }

    fn show_stats(&self) {
        let Some(counts) = &self.counts else {
            status!("no reply yet\n");
            return;
        };
        // The last token is not computed yet.
        let used = counts.prompt + counts.generated.saturating_sub(1);
        let context = counted(self.engine.options().context, "position");
        status!("{}; context: {used} of {context}\n", figures(counts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_text() {
        assert!(matches!(Command::parse("/quit"), Some(Command::Quit)));
        assert!(matches!(Command::parse("/system  Be brief. "), Some(Command::System("Be brief."))));
        assert!(matches!(Command::parse("/system"), Some(Command::System(""))));
        assert!(matches!(Command::parse("/exit"), Some(Command::Quit)));
        assert!(matches!(Command::parse("/?"), Some(Command::Help)));
        assert!(matches!(Command::parse("/exit now"), Some(Command::Alone("/exit"))));
        assert!(matches!(Command::parse("/save"), Some(Command::NoFile("/save"))));
        assert!(matches!(Command::parse("/save -"), Some(Command::NoFile("/save"))));
        assert!(matches!(Command::parse("exit"), Some(Command::NoSlash("exit"))));
        for text in [
            "/etc/passwd what is it",
            "/think why",
            "/no_think why",
            "/",
            "// no",
            "/2 + 1",
            "hi /quit",
            "",
            "exit now",
            "Quit?",
        ] {
            assert!(Command::parse(text).is_none(), "{text}");
        }
    }
}
