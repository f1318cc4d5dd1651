//! The engine: many requests at once are as each alone, its memory is bounded and comes back, and no request ends in
//! silence.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::discrete::Discrete;
use hologram_core::Executor;
use hologram_llm::engine::{Constraint, EngineStats, Failure, SubmitError, TokenLogprobs, Usage};
use hologram_llm::sampling::SamplerConfig;
use hologram_llm::{
    BLOCK_SIZE, Engine, EngineOptions, Event, Events, Finish, Input, Logits, Model, Request, SessionOptions,
    Speculation,
};

use serde_json::{Value, json};

fn model() -> Arc<Model> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama-tiny.gguf");
    Arc::new(Model::load_on(path, &Executor::open("cpu", Some(1)).unwrap()).unwrap())
}

fn engine_with(change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let model = model();
    let mut options = EngineOptions::for_model(&model);
    options.context = 256;
    // Which steps have guesses depends on the time that steps take; `speculation.rs` tests them.
    options.speculation = Speculation::Off;
    change(&mut options);
    Engine::new(model, options).unwrap()
}

/// Blocks of the KV cache in bytes.
fn blocks(n: usize) -> Option<u64> {
    let model = model();
    let config = model.config();
    Some((n * BLOCK_SIZE * config.kv_heads * config.head_dim * 2 * config.layers * 4) as u64)
}

/// A prompt of `len` tokens, different for each `seed` from the first token on.
fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32)
        .map(|i| 3 + ((i + 1).wrapping_mul(0x9e37_79b1).wrapping_add(seed.wrapping_mul(977)) >> 9) % 250)
        .collect()
}

fn greedy(prompt: Vec<u32>, max_tokens: usize) -> Request {
    let mut request = Request::new(prompt);
    request.max_tokens = Some(max_tokens);
    request.sampling = SamplerConfig::GREEDY;
    request.ignore_end = true;
    request
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    text: String,
    ids: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    prompt_logprobs: Vec<Option<TokenLogprobs>>,
    cached: usize,
    progress: Vec<usize>,
    finish: Option<Finish>,
    stop: Option<String>,
    end: Option<u32>,
    usage: Usage,
    failure: Option<Failure>,
}

fn read(mut events: Events) -> Answer {
    let mut answer = Answer::default();
    while let Some(event) = events.next_blocking() {
        assert!(answer.finish.is_none() && answer.failure.is_none(), "an event after the last: {event:?}");
        match event {
            Event::Started { cached_tokens, .. } => answer.cached = cached_tokens,
            Event::Progress { computed } => answer.progress.push(computed),
            Event::Prompt { logprobs } => answer.prompt_logprobs = logprobs,
            Event::Token { ids, text, logprobs } => {
                answer.text += &text;
                answer.ids.extend(ids);
                answer.logprobs.extend(logprobs);
            }
            Event::Finished { reason, stop, end, usage, .. } => {
                (answer.finish, answer.stop, answer.end, answer.usage) = (Some(reason), stop, end, usage);
            }
            Event::Failed(failure) => answer.failure = Some(failure),
        }
    }
    assert!(answer.finish.is_some() || answer.failure.is_some());
    answer
}

fn run(engine: &Engine, request: Request) -> Answer {
    read(engine.submit(request).unwrap())
}

/// Waits until the engine's counters are as wanted.
fn wait_for(engine: &Engine, wanted: impl Fn(EngineStats) -> bool) {
    let started = Instant::now();
    while !wanted(engine.stats()) {
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Requests of all kinds: greedy and seeded, with penalties, biases and probabilities, of short and long prompts.
fn mixture(n: usize, max_tokens: usize) -> Vec<Request> {
    let one = |i: usize| {
        let mut request = greedy(prompt(i as u32, [5, 40, 1, 33, 97, 64][i % 6]), max_tokens + i % 3);
        match i % 4 {
            1 => request.sampling = SamplerConfig { seed: i as u64, ..SamplerConfig::default() },
            2 => {
                request.sampling =
                    SamplerConfig { seed: i as u64, min_p: 0.02, repeat_penalty: 1.3, ..SamplerConfig::default() }
            }
            3 => request.logprobs = Some(3),
            _ => {}
        }
        if i % 7 == 3 {
            request.constraint = Some(Constraint::Regex("[a-z]{3}( [A-Z][0-9]{2,9}){300}".into()));
        }
        if i % 5 == 2 {
            request.logit_bias = vec![(17, 2.0), (300, f32::NEG_INFINITY)];
        }
        request
    };
    (0..n).map(one).collect()
}

/// The tokens and texts, without probabilities, which sums in another order change slightly.
fn texts(answers: &[Answer]) -> Vec<(Vec<u32>, String, Option<Finish>)> {
    answers.iter().map(|a| (a.ids.clone(), a.text.clone(), a.finish)).collect()
}

fn one_by_one(requests: &[Request]) -> Vec<Answer> {
    let engine = engine_with(|o| (o.max_sequences, o.prefix_cache) = (1, false));
    requests.iter().map(|request| run(&engine, request.clone())).collect()
}

fn at_once(engine: &Engine, requests: &[Request]) -> Vec<Answer> {
    let events: Vec<Events> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    // A reader for each, as a server has.
    std::thread::scope(|scope| {
        let readers: Vec<_> = events.into_iter().map(|events| scope.spawn(|| read(events))).collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    })
}

#[test]
fn many_at_once_are_as_each_alone() {
    let requests = mixture(24, 20);
    let alone = one_by_one(&requests);
    assert!(alone.iter().all(|a| a.finish == Some(Finish::MaxTokens) && a.ids.len() >= 20));
    for (sequences, step_tokens) in [(24, 32), (7, 256)] {
        let engine = engine_with(|o| (o.max_sequences, o.step_tokens) = (sequences, step_tokens));
        assert_eq!(texts(&at_once(&engine, &requests)), texts(&alone), "{sequences} sequences");
        let stats = engine.stats();
        assert_eq!((stats.running, stats.waiting, stats.blocks_used, stats.finished), (0, 0, 0, 24));
        let generated: usize = alone.iter().map(|a| a.usage.generated_tokens).sum();
        assert_eq!(stats.generated_tokens, generated as u64);
        // Sequences shared steps: each would need 20 of its own.
        assert!(stats.steps < 24 * 20 / 2, "{stats:?}");
    }
}

#[test]
fn a_small_cache_preempts_and_changes_nothing() {
    let requests = mixture(12, 90);
    let engine = engine_with(|o| (o.max_sequences, o.kv_memory) = (12, blocks(14)));
    assert_eq!(engine.stats().blocks_total, 14);
    assert_eq!(texts(&at_once(&engine, &requests)), texts(&one_by_one(&requests)));
    let stats = engine.stats();
    assert!(stats.preemptions > 0, "{stats:?}");
    assert_eq!((stats.running, stats.blocks_used, stats.failed), (0, 0, 0));
}

#[test]
fn prefixes_are_reused_by_the_same_tenant_only() {
    let engine = engine_with(|_| ());
    let tenant = |prompt: &[u32], name: Option<&str>| {
        let mut request = greedy(prompt.to_vec(), 8);
        request.tenant = name.map(Into::into);
        run(&engine, request)
    };
    let long = prompt(1, 100);
    let first = tenant(&long, Some("a"));
    assert_eq!((first.cached, first.usage.cached_tokens), (0, 0));
    let again = tenant(&long, Some("a"));
    // All but the last token, which has to be computed.
    assert_eq!((again.cached, &again.ids), (99, &first.ids));
    for other in [None, Some("b"), Some("")] {
        assert_eq!((tenant(&long, other).cached, other), (0, other));
    }
    // A whole block is used as a whole.
    assert_eq!(tenant(&long[..96], Some("a")).cached, 64);
    // The next turn of a conversation finds prompt and text.
    let next = [&long[..], &first.ids, &prompt(2, 30)].concat();
    // What follows the 96th token is that of the last text.
    assert_eq!(tenant(&next, Some("a")).cached, 96);
    assert_eq!(tenant(&next, Some("a")).cached, 137);
    // Another token at the start: nothing is the same.
    assert_eq!(tenant(&[&[9], &long[1..]].concat(), Some("a")).cached, 0);
    assert_eq!(engine.stats().prefix_hits, 99 + 64 + 96 + 137);
}

#[test]
fn the_same_prompt_at_once_is_computed_once() {
    let engine = engine_with(|o| o.step_tokens = 48);
    let requests: Vec<Request> = (0..4).map(|_| greedy(prompt(1, 200), 8)).collect();
    let answers = at_once(&engine, &requests);
    let mut cached: Vec<usize> = answers.iter().map(|a| a.cached).collect();
    cached.sort_unstable();
    assert_eq!(cached, [0, 192, 192, 192]);
    assert!(answers.iter().all(|a| a.ids == answers[0].ids));
    // 200 tokens once, 8 of the end three times, and the generated ones.
    assert_eq!(engine.stats().step_tokens, 200 + 3 * 8 + 4 * 7);
}

/// The most tokens of a prompt that a step computed, by a request's progress.
fn most_at_once(mut events: Events) -> usize {
    let (mut most, mut before) = (0, 0);
    while let Some(event) = events.next_blocking() {
        if let Event::Progress { computed } = event {
            (most, before) = (most.max(computed - before), computed);
        }
    }
    most
}

/// A prompt that needs most of a step has the whole step alone, and small pieces beside a text, which waits for them.
#[test]
fn a_long_prompt_stalls_nobody() {
    let engine = engine_with(|o| (o.step_tokens, o.context) = (128, 2048));
    let mut long = greedy(prompt(1, 240), 1);
    long.progress = true;
    assert_eq!(most_at_once(engine.submit(long.clone()).unwrap()), 128);
    long.prompt = prompt(2, 240);
    // The text's first step is not timed: a piece has at most half of a step.
    // It outlives the prompt, also where this thread gets little time.
    let text = engine.submit(greedy(prompt(3, 4), 2000)).unwrap();
    wait_for(&engine, |stats| stats.generated_tokens > 4);
    let most = most_at_once(engine.submit(long).unwrap());
    drop(text);
    assert!(most <= 64, "{most}");
}

/// However many tokens a step may have, beside a text it has at most 512, and beside a long one 384.
#[test]
fn a_prompt_beside_a_text_has_steps_of_their_own_size() {
    let engine = engine_with(|o| (o.step_tokens, o.context) = (2048, 2048));
    let mut asked = greedy(prompt(1, 900), 1);
    asked.progress = true;
    assert_eq!(most_at_once(engine.submit(asked.clone()).unwrap()), 900);
    for (n, len, want) in [(2, 4, 511), (4, 1100, 383)] {
        let before = engine.stats().generated_tokens;
        let text = engine.submit(greedy(prompt(n, len), 2040 - len)).unwrap();
        wait_for(&engine, |stats| stats.generated_tokens > before + 4);
        asked.prompt = prompt(n + 1, 900);
        assert_eq!(most_at_once(engine.submit(asked.clone()).unwrap()), want);
        drop(text);
    }
}

/// A device that computes long steps in another precision than short ones.
#[test]
fn deterministic_texts_do_not_depend_on_their_neighbours() {
    let executor = Executor::from_backend(Arc::new(Discrete::new(1, None)));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama-tiny.gguf");
    let model = Arc::new(Model::load_on(path, &executor).unwrap());
    let engine = |sequences: usize| {
        let mut options = EngineOptions::for_model(&model);
        (options.context, options.max_sequences, options.deterministic) = (256, sequences, true);
        Engine::new(model.clone(), options).unwrap()
    };
    let requests = mixture(12, 20);
    let alone = engine(1);
    let alone: Vec<Answer> = requests.iter().map(|request| run(&alone, request.clone())).collect();
    assert_eq!(texts(&at_once(&engine(12), &requests)), texts(&alone));
}

/// With `deterministic` what was computed before leaves no trace, be it a prompt or a text that was generated: the bits
/// are those of a prompt that nothing is known of.
#[test]
fn deterministic_texts_do_not_depend_on_what_is_cached() {
    let executor = Executor::open("cpu", Some(2)).unwrap();
    let mut differing = Vec::new();
    for name in ["bitnet-tiny.gguf", "bitnet-packed", "llama-tiny.gguf", "qwen3"] {
        let path = format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
        let model = Arc::new(Model::load_on(path, &executor).unwrap());
        let vocab = model.config().vocab as u32;
        let mut options = EngineOptions::for_model(&model);
        (options.context, options.step_tokens, options.max_sequences) = (model.config().context.min(256), 128, 4);
        (options.speculation, options.deterministic) = (Speculation::Off, true);
        let engine = || Engine::new(model.clone(), options.clone()).unwrap();
        let used = engine();
        for len in [33, 64, 65, 71, 128, 200] {
            let prompt: Vec<u32> = prompt(len, len as usize).into_iter().map(|id| 3 + id % (vocab - 3)).collect();
            let request = |prompt: &[u32]| {
                let mut request = greedy(prompt.to_vec(), 40);
                request.logprobs = Some(5);
                request
            };
            let bits = |answer: &Answer| -> Vec<Vec<(u32, u32)>> {
                let of = |token: &TokenLogprobs| token.top.iter().map(|t| (t.id, t.logprob.to_bits())).collect();
                answer.logprobs.iter().map(of).collect()
            };
            let first = run(&used, request(&prompt));
            let again = run(&used, request(&prompt));
            // The next turn of a conversation.
            let longer = [&prompt[..], &first.ids, &[5, 6, 7]].concat();
            let (next, fresh) = (run(&used, request(&longer)), run(&engine(), request(&longer)));
            let whole = |len: usize| (len - 1) / 64 * 64;
            assert_eq!((first.cached, again.cached, fresh.cached), (0, whole(len as usize), 0), "{name}, {len} tokens");
            assert_eq!(next.cached, (len as usize / 64 * 64).min(whole(longer.len())), "{name}, {len} tokens");
            assert!(bits(&first).len() > 3);
            if bits(&first) != bits(&again) || bits(&next) != bits(&fresh) {
                differing.push(format!("{name}, {len} tokens"));
            }
        }
    }
    assert_eq!(differing, [""; 0]);
}

#[test]
fn a_dropped_request_frees_its_memory() {
    let engine = engine_with(|o| o.max_sequences = 4);
    let mut events: Vec<Events> = (0..8).map(|i| engine.submit(greedy(prompt(i, 50), 200)).unwrap()).collect();
    while !matches!(events[0].next_blocking(), Some(Event::Token { .. })) {}
    let kept = events.remove(2);
    drop(events);
    let answer = read(kept);
    assert_eq!((answer.finish, answer.ids.len()), (Some(Finish::MaxTokens), 200));
    wait_for(&engine, |s| s.running == 0 && s.waiting == 0 && s.blocks_used == 0);
    assert_eq!((engine.stats().cancelled, engine.stats().finished), (7, 1));
}

#[test]
fn what_does_not_fit_is_an_error() {
    let engine = engine_with(|o| (o.context, o.max_sequences, o.max_waiting) = (64, 1, 2));
    let full = |n: usize| engine.submit(greedy(prompt(0, n), 100)).map(read).map(|a| (a.finish, a.ids.len()));
    assert_eq!(full(64), Err(SubmitError::ContextFull { prompt: 64, context: 64 }));
    assert_eq!(full(63), Ok((Some(Finish::ContextFull), 1)));
    assert_eq!(full(60), Ok((Some(Finish::ContextFull), 4)));

    let mut invalid = Vec::new();
    let mut check = |change: &dyn Fn(&mut Request)| {
        let mut request = greedy(prompt(0, 3), 1);
        change(&mut request);
        match engine.submit(request) {
            Err(SubmitError::Invalid { field, .. }) => invalid.push(field),
            other => panic!("{other:?}"),
        }
    };
    check(&|r| r.prompt.clear());
    check(&|r| r.prompt[1] = 1 << 20);
    check(&|r| r.sampling.temperature = -1.0);
    check(&|r| r.stop = vec!["a".into(), String::new()]);
    check(&|r| r.logprobs = Some(21));
    check(&|r| r.logit_bias = vec![(1 << 20, 1.0)]);
    check(&|r| r.logit_bias = vec![(1, f32::NAN)]);
    assert_eq!(invalid, ["prompt", "prompt", "temperature", "stop", "logprobs", "logit_bias", "logit_bias"]);

    // One runs, long enough for the others to come, two wait; a third is rejected. Once a place is free, it is
    // accepted.
    let engine = engine_with(|o| (o.context, o.max_sequences, o.max_waiting) = (4096, 1, 2));
    let mut first = engine.submit(greedy(prompt(0, 3), 4000)).unwrap();
    assert!(matches!(first.next_blocking(), Some(Event::Started { .. })));
    let waiting = [1, 2].map(|i| engine.submit(greedy(prompt(i, 3), 2)).unwrap());
    let rejected = engine.submit(greedy(prompt(3, 3), 2)).map(|_| ());
    assert_eq!(rejected, Err(SubmitError::QueueFull { waiting: 2, limit: 2 }));
    assert_eq!(engine.stats().rejected, 1);
    drop(first);
    let waiting = waiting.map(|events| read(events).finish);
    assert_eq!(waiting, [Some(Finish::MaxTokens); 2]);

    engine.drain();
    assert_eq!(engine.submit(greedy(prompt(0, 3), 1)).map(|_| ()), Err(SubmitError::Draining));
    assert!(engine.is_alive());
}

#[test]
fn time_limits_end_requests() {
    let engine = engine_with(|o| (o.max_sequences, o.context) = (1, 4096));
    let mut running = greedy(prompt(0, 3), 4000);
    running.timeout = Some(Duration::from_millis(300));
    let running = engine.submit(running).unwrap();
    let mut late = greedy(prompt(1, 3), 1);
    late.queue_timeout = Some(Duration::from_millis(50));
    let late = read(engine.submit(late).unwrap());
    assert!(matches!(late.failure, Some(Failure::QueueTimeout { waited }) if waited >= Duration::from_millis(50)));
    let answer = read(running);
    assert!(answer.finish == Some(Finish::Deadline) && !answer.ids.is_empty(), "{answer:?}");
    wait_for(&engine, |s| s.running == 0 && s.blocks_used == 0);
}

#[test]
fn a_slow_reader_pauses_then_fails_and_disturbs_nobody() {
    let engine = engine_with(|o| (o.unread_events, o.slow_reader) = (4, Duration::from_secs(1)));
    let mut slow = engine.submit(greedy(prompt(0, 3), 100)).unwrap();
    let never = engine.submit(greedy(prompt(1, 3), 100)).unwrap();
    assert_eq!(run(&engine, greedy(prompt(2, 3), 100)).ids.len(), 100);
    // Both pause. One event of four is read: the sequence goes on.
    wait_for(&engine, |s| s.generated_tokens == 106);
    assert!(slow.next_blocking().is_some());
    wait_for(&engine, |s| s.generated_tokens == 107);
    assert_eq!(read(slow).ids.len(), 100);
    wait_for(&engine, |s| s.failed == 1 && s.running == 0);
    let answer = read(never);
    assert!(matches!(answer.failure, Some(Failure::SlowReader { .. })) && answer.ids.len() == 3, "{answer:?}");
}

#[test]
fn probabilities_are_those_of_the_logits() {
    let engine = engine_with(|_| ());
    let model = engine.model().clone();
    let mut request = greedy(prompt(4, 200), 4);
    (request.logprobs, request.prompt_logprobs) = (Some(2), Some(1));
    // The prompt's blocks are cached, and yet all its probabilities are reported.
    run(&engine, request.clone());
    let answer = run(&engine, request.clone());
    assert_eq!((answer.cached, answer.prompt_logprobs.len(), answer.logprobs.len()), (0, 200, 4));

    let tokens = [&request.prompt[..], &answer.ids].concat();
    let mut session = model.session(SessionOptions { context: 256, ..SessionOptions::default() }).unwrap();
    let vocab = session.vocab();
    let rows = session.feed(0, &tokens, Logits::All).unwrap();
    let reported = answer.prompt_logprobs.into_iter().chain(answer.logprobs.into_iter().map(Some));
    for (at, got) in reported.enumerate() {
        let Some(got) = got else {
            assert_eq!(at, 0);
            continue;
        };
        let row = &rows[(at - 1) * vocab..at * vocab];
        let log_sum = row.iter().map(|l| f64::from(*l).exp()).sum::<f64>().ln();
        let mut best: Vec<u32> = (0..vocab as u32).collect();
        best.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
        // The prompt has its own number of alternatives.
        let most = if at < request.prompt.len() { 1 } else { 2 };
        assert_eq!((got.token.id, got.top.len()), (tokens[at], most));
        for (token, id) in got.top.iter().chain([&got.token]).zip([&best[..most], &[tokens[at]]].concat()) {
            let want = f64::from(row[id as usize]) - log_sum;
            assert!(token.id == id && (f64::from(token.logprob) - want).abs() < 1e-3, "{at}: {token:?}, {want}");
            assert_eq!(best[token.rank - 1], id);
            assert_eq!(token.bytes, model.tokenizer().unwrap().token_bytes(id));
        }
    }
    // Only the prompt.
    request.max_tokens = Some(0);
    let answer = run(&engine, request);
    assert_eq!((answer.prompt_logprobs.len(), answer.ids.len(), answer.finish), (200, 0, Some(Finish::MaxTokens)));
}

#[test]
fn biases_stops_and_minimums_shape_the_text() {
    let engine = engine_with(|_| ());
    let tokenizer = engine.model().tokenizer().unwrap();
    let plain = run(&engine, greedy(prompt(1, 10), 30));

    let mut request = greedy(prompt(1, 10), 30);
    request.logit_bias = vec![(plain.ids[0], f32::NEG_INFINITY), (77, 100.0)];
    assert_eq!(run(&engine, request.clone()).ids, [77; 30]);
    request.logit_bias = vec![(plain.ids[0], f32::NEG_INFINITY)];
    assert!(!run(&engine, request.clone()).ids.contains(&plain.ids[0]));

    // A stop text that begins and ends within tokens.
    let chars: Vec<char> = plain.text.chars().collect();
    let stop: String = chars[chars.len() / 2..chars.len() / 2 + 4].iter().collect();
    let mut request = greedy(prompt(1, 10), 30);
    request.stop = vec!["never there".into(), stop.clone()];
    let answer = run(&engine, request.clone());
    assert_eq!((answer.finish, answer.stop.as_ref()), (Some(Finish::Stop), Some(&stop)));
    assert_eq!(answer.text, plain.text[..plain.text.find(&stop).unwrap()]);
    request.min_tokens = 30;
    assert_eq!((run(&engine, request).text, answer.ids.len() < 30), (plain.text.clone(), true));

    // An end token, first forbidden, then not.
    let end = tokenizer.eos().unwrap();
    let mut request = greedy(prompt(1, 10), 30);
    (request.ignore_end, request.logit_bias) = (false, vec![(end, 100.0)]);
    let answer = run(&engine, request.clone());
    assert_eq!((answer.finish, answer.ids.len(), answer.usage.generated_tokens), (Some(Finish::EndOfText), 0, 1));
    assert_eq!(answer.end, Some(end));
    request.min_tokens = 7;
    let answer = run(&engine, request.clone());
    assert_eq!((answer.finish, &answer.ids[..]), (Some(Finish::EndOfText), &plain.ids[..7]));
    request.ignore_end = true;
    let answer = run(&engine, request.clone());
    assert_eq!((answer.finish, answer.ids.len(), answer.end), (Some(Finish::MaxTokens), 30, None));
    let mut request = greedy(prompt(1, 10), 30);
    request.stop_tokens = vec![plain.ids[5]];
    let at = plain.ids.iter().position(|id| *id == plain.ids[5]).unwrap();
    assert_eq!(run(&engine, request).ids, plain.ids[..at]);

    // The first byte of a character: it waits for the second, and becomes U+FFFD at the end.
    let first = (0..tokenizer.vocab_len() as u32).find(|id| tokenizer.token_bytes(*id) == [0xC3]).unwrap();
    let mut request = greedy(prompt(1, 10), 1);
    request.logit_bias = vec![(first, 100.0)];
    let mut events = engine.submit(request).unwrap();
    let texts = std::iter::from_fn(|| events.next_blocking()).filter_map(|event| match event {
        Event::Token { ids, text, .. } => Some((ids, text)),
        _ => None,
    });
    assert_eq!(texts.collect::<Vec<_>>(), [(vec![first], String::new()), (vec![], "\u{fffd}".into())]);
}

fn constrained(constraint: Constraint, seed: u64) -> Request {
    let mut request = greedy(prompt(seed as u32, 6), 200);
    request.sampling = SamplerConfig { temperature: 1.5, seed, ..SamplerConfig::GREEDY };
    (request.constraint, request.ignore_end) = (Some(constraint), false);
    request
}

#[test]
fn constrained_texts_conform() {
    let engine = engine_with(|_| ());
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "kind": {"enum": ["cat", "dog"]},
            "sizes": {"type": "array", "items": {"type": "integer", "minimum": 3, "maximum": 12}, "minItems": 1, "maxItems": 2}
        },
        "required": ["name", "kind", "sizes"],
        "additionalProperties": false
    });
    let check_schema = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        assert_eq!(value.as_object().unwrap().len(), 3, "{text}");
        assert!(value["name"].as_str().unwrap().chars().count() <= 8, "{text}");
        assert!(["cat", "dog"].contains(&value["kind"].as_str().unwrap()), "{text}");
        let sizes = value["sizes"].as_array().unwrap();
        assert!(
            (1..=2).contains(&sizes.len()) && sizes.iter().all(|s| (3..=12).contains(&s.as_i64().unwrap())),
            "{text}"
        );
    };
    let check_regex = |text: &str| {
        let (letters, digits) = text.split_once('-').unwrap();
        assert!(letters.len() == 3 && letters.bytes().all(|b| b.is_ascii_lowercase()), "{text}");
        assert!(digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit()), "{text}");
    };
    let check_lark = |text: &str| {
        let value = text.strip_prefix("<call>").and_then(|t| t.strip_suffix("</call>")).unwrap();
        assert!(["true", "false"].contains(&value), "{text}");
    };
    let lark = "start: \"<call>\" value \"</call>\"\nvalue: %json {\"type\": \"boolean\"}";
    type Check<'a> = &'a dyn Fn(&str);
    let cases: [(Constraint, Check<'_>); 3] = [
        (Constraint::JsonSchema(schema), &check_schema),
        (Constraint::Regex("[a-z]{3}-[0-9]{2}".into()), &check_regex),
        (Constraint::Lark(lark.into()), &check_lark),
    ];
    for (constraint, check) in cases {
        let requests: Vec<_> = (0..12).map(|seed| constrained(constraint.clone(), seed)).collect();
        let answers = at_once(&engine, &requests);
        for answer in &answers {
            // Strings of random bytes may be longer than the limit allows; whatever ended is complete.
            match answer.finish {
                Some(Finish::EndOfText) => check(&answer.text),
                finish => assert_eq!(finish, Some(Finish::MaxTokens), "{answer:?}"),
            }
        }
        let complete = answers.iter().filter(|a| a.finish == Some(Finish::EndOfText)).count();
        assert!(complete >= 8, "{complete}: {:?}", answers[0].text);
    }
    // What Python's pydantic writes, with all its notes.
    let written = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {"Pet": {"title": "Pet", "type": "object", "properties": {"name": {"title": "Name", "type": "string"}}}},
        "title": "Owner",
        "description": "x",
        "type": "object",
        "properties": {
            "pet": {"$ref": "#/$defs/Pet"},
            "age": {"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "null"}], "default": null, "title": "Age"},
            "when": {"type": "string", "format": "date-time", "examples": ["x"]}
        },
        "required": ["pet"]
    });
    let answer = run(&engine, constrained(Constraint::JsonSchema(written), 1));
    assert!(answer.failure.is_none() && answer.text.starts_with('{'), "{answer:?}");
    let answer = run(&engine, constrained(Constraint::JsonObject, 1));
    assert!(answer.text.starts_with('{'), "{answer:?}");
}

#[test]
fn a_constraint_that_cannot_be_kept_is_an_error() {
    let engine = engine_with(|_| ());
    let schemas = [
        json!({"type": "integer", "minimum": 5, "maximum": 3}),
        json!({"$ref": "#"}),
        json!({"$ref": "https://example.com/schema.json"}),
        json!({"type": "array", "uniqueItems": true}),
        json!({"type": "string", "pattern": "("}),
        json!({"type": "string", "format": "no such format"}),
        json!({"type": "no such type"}),
        json!(7),
        json!(false),
    ];
    let of_schemas = schemas.into_iter().map(Constraint::JsonSchema);
    let others = ["start: undefined", "", "start: \"a", "start: start"].map(|g| Constraint::Lark(g.into()));
    let nested = Constraint::Regex("(".repeat(20_000));
    let regexes = [Constraint::Regex("(".into()), Constraint::Regex("a{2,1}".into()), nested];
    for constraint in of_schemas.chain(others).chain(regexes) {
        let started = Instant::now();
        match engine.submit(constrained(constraint.clone(), 1)) {
            Err(SubmitError::Unsupported { field: "constraint", reason }) => assert!(!reason.is_empty()),
            other => panic!("{constraint:.60?}: {other:?}"),
        }
        assert!(started.elapsed() < Duration::from_secs(3));
    }
    // A bias against all that it allows.
    let mut request = constrained(Constraint::Regex("a+".into()), 1);
    let (tokenizer, vocab) = (engine.model().tokenizer().unwrap(), engine.model().config().vocab as u32);
    let but_b = (0..vocab).filter(|id| tokenizer.token_bytes(*id) != b"b");
    request.logit_bias = but_b.map(|id| (id, f32::NEG_INFINITY)).collect();
    assert!(matches!(run(&engine, request.clone()).failure, Some(Failure::Constraint { .. })));
    // A bias against everything.
    request.logit_bias = (0..vocab).map(|id| (id, f32::NEG_INFINITY)).collect();
    assert!(matches!(engine.submit(request), Err(SubmitError::Invalid { field: "logit_bias", .. })));
    // The engine goes on.
    assert_eq!(run(&engine, constrained(Constraint::Regex("[b]".into()), 1)).text, "b");
}

#[test]
fn a_step_takes_any_mixture_of_pieces() {
    let model = model();
    let session = |sequences| {
        let options = SessionOptions { context: 128, sequences, batch: Some(16), ..SessionOptions::default() };
        model.session(options).unwrap()
    };
    let (mut many, mut alone) = (session(3), session(1));
    let prompts = [prompt(1, 9), prompt(2, 40), prompt(3, 3)];
    let input = |sequence: usize, range: std::ops::Range<usize>, logits| Input {
        sequence,
        tokens: &prompts[sequence][range],
        logits,
    };
    many.feed_inputs(&[input(0, 0..8, Logits::None), input(1, 0..3, Logits::None)]).unwrap();
    // 35 tokens in steps of 16, whose outputs are of one token, none, and all.
    let inputs = [input(0, 8..9, Logits::Last), input(1, 3..33, Logits::None), input(2, 0..3, Logits::All)];
    let rows = many.feed_inputs(&inputs).unwrap().to_vec();
    let vocab = alone.vocab();
    let mut want = alone.feed(0, &prompts[0], Logits::Last).unwrap().to_vec();
    alone.truncate(0, 0);
    want.extend_from_slice(alone.feed(0, &prompts[2], Logits::All).unwrap());
    assert_eq!(rows.len(), 4 * vocab);
    assert!(rows.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-3));
    assert_eq!([0, 1, 2].map(|s| many.len(s)), [9, 33, 3]);
    // A faulty input changes no sequence.
    let bad = Input { sequence: 1, tokens: &[1 << 20], logits: Logits::Last };
    assert!(many.feed_inputs(&[input(2, 0..3, Logits::None), bad]).is_err());
    assert_eq!([0, 1, 2].map(|s| many.len(s)), [9, 33, 3]);
}

#[test]
fn a_dropped_engine_ends_its_requests() {
    let engine = engine_with(|o| o.max_sequences = 1);
    let events = [0, 1].map(|i| engine.submit(greedy(prompt(i, 3), 200)).unwrap());
    drop(engine);
    for events in events {
        assert_eq!(read(events).failure, Some(Failure::Stopped));
    }
}

/// Readers need no particular runtime.
#[test]
fn events_are_read_without_blocking() {
    use std::future::Future;
    use std::task::{Context, Poll, Wake};
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let engine = engine_with(|_| ());
    let mut events = engine.submit(greedy(prompt(0, 3), 20)).unwrap();
    let tokens = async move {
        let mut tokens = 0;
        while let Some(event) = events.next().await {
            tokens += usize::from(matches!(event, Event::Token { .. }));
        }
        tokens
    };
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut tokens = std::pin::pin!(tokens);
    let got = loop {
        match tokens.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(tokens) => break tokens,
            Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(got, 20);
}
