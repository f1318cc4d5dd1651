//! Guessed tokens change the number of steps, never the text.

use std::sync::Arc;

use hologram_core::Executor;
use hologram_llm::engine::{Constraint, EngineStats};
use hologram_llm::sampling::SamplerConfig;
use hologram_llm::{BLOCK_SIZE, Engine, EngineOptions, Event, Events, Finish, Model, Request, Speculation};

fn model(name: &str) -> Arc<Model> {
    let path = format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    Arc::new(Model::load_on(path, &Executor::open("cpu", Some(1)).unwrap()).unwrap())
}

/// A prompt that repeats itself, so that there is something to guess.
fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 3 + ((i % 7 + 1).wrapping_mul(0x9e37_79b1).wrapping_add(seed * 977) >> 9) % 250).collect()
}

/// Requests of all kinds.
fn requests() -> Vec<Request> {
    let one = |i: usize| {
        let mut request = Request::new(prompt(i as u32, [30, 12, 61, 1][i % 4]));
        (request.max_tokens, request.ignore_end) = (Some(50 + i), true);
        request.sampling = match i % 4 {
            0 => SamplerConfig::GREEDY,
            1 => SamplerConfig { seed: i as u64, temperature: 0.5, ..SamplerConfig::default() },
            2 => SamplerConfig { seed: i as u64, repeat_penalty: 1.1, min_p: 0.05, ..SamplerConfig::default() },
            _ => SamplerConfig { frequency_penalty: -0.2, ..SamplerConfig::GREEDY },
        };
        match i % 5 {
            1 => request.logprobs = Some(2),
            2 => (request.logprobs, request.prompt_logprobs) = (Some(1), Some(1)),
            3 => request.constraint = Some(Constraint::Regex("(ab|cd){3,40}[0-9]{5}".into())),
            4 => (request.min_tokens, request.stop) = (20, vec!["e".into()]),
            _ => {}
        }
        request
    };
    (0..20).map(one).collect()
}

#[derive(Debug, PartialEq)]
struct Answer {
    ids: Vec<u32>,
    text: String,
    finish: Option<Finish>,
    generated: usize,
    logprobs: usize,
}

fn read(mut events: Events) -> Answer {
    let mut answer = Answer { ids: Vec::new(), text: String::new(), finish: None, generated: 0, logprobs: 0 };
    while let Some(event) = events.next_blocking() {
        match event {
            Event::Token { ids, text, logprobs } => {
                answer.ids.extend(ids);
                answer.text += &text;
                answer.logprobs += logprobs.len();
            }
            Event::Finished { reason, usage, .. } => {
                (answer.finish, answer.generated) = (Some(reason), usage.generated_tokens);
            }
            Event::Failed(failure) => panic!("{failure}"),
            _ => {}
        }
    }
    answer
}

fn run(
    speculation: Speculation,
    draft: Option<&Model>,
    change: impl FnOnce(&mut EngineOptions),
) -> (Vec<Answer>, EngineStats) {
    let model = model("llama-tiny.gguf");
    let mut options = EngineOptions::for_model(&model);
    (options.context, options.speculation, options.deterministic) = (256, speculation, true);
    change(&mut options);
    let engine = Engine::with_draft(model, options, draft).unwrap();
    let events: Vec<Events> = requests().into_iter().map(|request| engine.submit(request).unwrap()).collect();
    let answers = std::thread::scope(|scope| {
        let readers: Vec<_> = events.into_iter().map(|events| scope.spawn(|| read(events))).collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    (answers, engine.stats())
}

#[test]
fn guesses_change_nothing() {
    let (plain, of_plain) = run(Speculation::Off, None, |_| ());
    assert_eq!((of_plain.guessed_tokens, of_plain.accepted_tokens), (0, 0));
    let same = model("llama-tiny.gguf");
    for (speculation, drafts) in [
        (Speculation::Auto, false),
        (Speculation::Fixed(1), false),
        (Speculation::Fixed(4), false),
        (Speculation::Fixed(99), false),
        (Speculation::Fixed(3), true),
        (Speculation::Auto, true),
    ] {
        let draft = drafts.then_some(&*same);
        let (answers, stats) = run(speculation, draft, |_| ());
        assert_eq!(answers, plain, "{speculation:?}");
        assert_eq!((stats.running, stats.blocks_used, stats.failed), (0, 0, 0));
        assert_eq!(stats.generated_tokens, of_plain.generated_tokens);
        if let Speculation::Fixed(n) = speculation {
            // Not the steps of the engine: they depend on when each request comes. Steps of a sequence do not.
            assert!(stats.accepted_tokens > 0 && stats.accepted_tokens < stats.guessed_tokens, "{n}: {stats:?}");
        }
        // Few blocks: sequences with guesses give way too. Where requests come late, none has to: try again.
        let block = BLOCK_SIZE * same.config().kv_heads * same.config().head_dim * 2 * same.config().layers * 4;
        let preempted = (0..20).any(|_| {
            let (answers, stats) =
                run(speculation, draft, |o| (o.kv_memory, o.context) = (Some(10 * block as u64), 128));
            assert_eq!(answers, plain, "{stats:?}");
            stats.preemptions > 0
        });
        assert!(preempted, "{speculation:?}: no sequence gave way in 20 runs");
    }
}

#[test]
fn the_same_model_guesses_all() {
    let draft = model("llama-tiny.gguf");
    let engine_of = |draft| {
        let model = model("llama-tiny.gguf");
        let mut options = EngineOptions::for_model(&model);
        (options.context, options.speculation) = (256, Speculation::Fixed(4));
        Engine::with_draft(model, options, draft).unwrap()
    };
    let mut request = Request::new(vec![5]);
    (request.max_tokens, request.ignore_end, request.sampling) =
        (Some(41), true, SamplerConfig { seed: 7, ..SamplerConfig::default() });
    let engine = engine_of(Some(&*draft));
    let text = read(engine.submit(request.clone()).unwrap());
    let stats = engine.stats();
    // Sampled text too: both draw with the same numbers. The first token is the prompt's, and each step gives five.
    assert_eq!((stats.steps, stats.guessed_tokens, stats.accepted_tokens), (1 + 40 / 5, 32, 32), "{stats:?}");
    assert_eq!(text, read(engine_of(None).submit(request.clone()).unwrap()));
    // A request may do without guesses.
    request.speculate = false;
    let engine = engine_of(Some(&*draft));
    assert_eq!(text, read(engine.submit(request).unwrap()));
    assert_eq!((engine.stats().steps, engine.stats().guessed_tokens), (41, 0));
}

#[test]
fn drafts_have_the_same_tokens() {
    let model = model("llama-tiny.gguf");
    let other = self::model("llama3-tiny.gguf");
    let error = Engine::with_draft(model.clone(), EngineOptions::for_model(&model), Some(&other)).err().unwrap();
    assert!(error.to_string().contains("vocabulary"), "{error}");
}
