//! Steps that are submitted before the results of the one before are known: texts are the same, memory comes back, and
//! nobody pays for a neighbour that ends, leaves or fails.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hologram_backends::DType;
use hologram_core::Executor;
use hologram_core::ops::philox4x32_10;
use hologram_llm::engine::{Constraint, EngineStats, Failure, TokenLogprobs};
use hologram_llm::sampling::SamplerConfig;
use hologram_llm::{BLOCK_SIZE, Engine, EngineOptions, Event, Events, Finish, Model, Request, Shape, Speculation};

fn model_on(device: &str, name: &str) -> Arc<Model> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    Arc::new(Model::load_on(path, &Executor::open(device, Some(1)).unwrap()).unwrap())
}

fn model(name: &str) -> Arc<Model> {
    model_on("cpu", name)
}

fn engine(model: &Arc<Model>, overlap: bool, change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let mut options = EngineOptions::for_model(model);
    options.context = 128;
    (options.speculation, options.overlap, options.device_sampling) = (Speculation::Off, overlap, Some(true));
    change(&mut options);
    Engine::new(model.clone(), options).unwrap()
}

/// Bytes of a cache of so many blocks.
fn blocks(model: &Model, n: usize) -> Option<u64> {
    let config = model.config();
    Some((n * BLOCK_SIZE * config.kv_heads * config.head_dim * 2 * config.layers * 4) as u64)
}

fn prompt(model: &Model, seed: u32, len: usize) -> Vec<u32> {
    let vocab = model.config().vocab as u32;
    let token = |i: u32| (i + 1).wrapping_mul(0x9e37_79b1).wrapping_add(seed.wrapping_mul(977)) >> 9;
    (0..len as u32).map(|i| 3 + token(i) % (vocab - 3)).collect()
}

/// Requests that end in every way, a few of which the host samples.
fn requests(model: &Model, n: usize) -> Vec<Request> {
    let one = |i: usize| {
        let mut request = Request::new(prompt(model, i as u32 / 2, [5, 40, 1, 33, 70, 64, 12][i % 7]));
        request.max_tokens = Some([24, 30, 1, 17, 40][i % 5]);
        request.ignore_end = !i.is_multiple_of(3);
        request.sampling = match i % 2 {
            0 => SamplerConfig::GREEDY,
            _ => SamplerConfig { seed: i as u64, temperature: 1.5, top_k: 0, ..SamplerConfig::default() },
        };
        match i % 11 {
            2 if model.tokenizer().is_ok() => request.stop = vec!["e".into(), "or".into()],
            3 => {
                request.logit_bias = vec![(17, 2.0), (30, f32::NEG_INFINITY), (20, -0.5)];
                (request.sampling.frequency_penalty, request.sampling.presence_penalty) = (0.3, 0.1);
            }
            4 => request.logprobs = Some(20),
            5 => (request.stop_tokens, request.logprobs) = ((20..60).collect(), Some(0)),
            6 => (request.sampling.typical_p, request.sampling.top_k) = (0.7, [0, 40][i % 2]),
            7 => (request.logprobs, request.sampled_probabilities) = (Some(2), true),
            8 => (request.sampling.repeat_penalty, request.logprobs) = (1.2, Some(5)),
            9 if model.tokenizer().is_ok_and(|t| !t.ends().is_empty()) => {
                request.constraint = Some(Constraint::Regex("[a-z]{1,9}( [0-9]{2}){40}".into()));
            }
            10 => {
                (request.min_tokens, request.max_tokens) = (6, Some(20));
                (request.sampling.typical_p, request.sampling.min_p) = (0.4, 0.05);
                request.logprobs = Some(3);
            }
            _ => {}
        }
        request
    };
    (0..n).map(one).collect()
}

#[derive(Clone, Debug, PartialEq)]
struct Answer {
    ids: Vec<u32>,
    text: String,
    finish: Finish,
    generated: usize,
    logprobs: Vec<TokenLogprobs>,
}

impl Answer {
    /// Whether two answers have the same text, and log-probabilities that differ by rounding alone: products of few
    /// and of many tokens add in another order, and a recurrent model carries what that changes from token to token.
    fn is_like(&self, other: &Answer) -> bool {
        let close = |a: &TokenLogprobs, b: &TokenLogprobs| {
            let all = |of: &TokenLogprobs| [std::slice::from_ref(&of.token), &of.top[..]].concat();
            let (a, b) = (all(a), all(b));
            a.len() == b.len()
                && a.iter().zip(&b).all(|(a, b)| {
                    let near = a.logprob == b.logprob || (a.logprob - b.logprob).abs() < 5e-5;
                    near && (a.id, a.rank, &a.bytes) == (b.id, b.rank, &b.bytes)
                })
        };
        let probabilities = self.logprobs.len() == other.logprobs.len()
            && self.logprobs.iter().zip(&other.logprobs).all(|(a, b)| close(a, b));
        probabilities && self.has_text_of(other)
    }

    fn has_text_of(&self, other: &Answer) -> bool {
        let text = |answer: &Answer| Answer { logprobs: Vec::new(), ..answer.clone() };
        text(self) == text(other)
    }
}

/// The whole answer, or that of a request which is dropped after some events.
fn read(mut events: Events, drop_after: Option<usize>) -> Option<Answer> {
    let (mut ids, mut text, mut logprobs, mut seen) = (Vec::new(), String::new(), Vec::new(), 0);
    while drop_after.is_none_or(|most| seen < most) {
        seen += 1;
        match events.next_blocking().unwrap() {
            Event::Token { ids: new, text: more, logprobs: of } => {
                ids.extend(new);
                text += &more;
                logprobs.extend(of);
            }
            Event::Finished { reason, usage, .. } => {
                return Some(Answer { ids, text, finish: reason, generated: usage.generated_tokens, logprobs });
            }
            Event::Failed(failure) => panic!("{failure}"),
            _ => {}
        }
    }
    None
}

fn at_once(engine: &Engine, requests: &[Request]) -> Vec<Answer> {
    let events: Vec<Events> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    std::thread::scope(|scope| {
        let readers: Vec<_> = events.into_iter().map(|events| scope.spawn(|| read(events, None))).collect();
        readers.into_iter().map(|reader| reader.join().unwrap().unwrap()).collect()
    })
}

/// The counters once the engine has nothing to do, which it tells nobody: they are read every millisecond.
fn idle(engine: &Engine) -> EngineStats {
    for _ in 0..60_000 {
        let stats = engine.stats();
        if stats.running == 0 && stats.waiting == 0 {
            return stats;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the engine still works after a minute: {:?}", engine.stats())
}

#[test]
fn texts_are_the_same_without_overlap() {
    for (name, n) in [("llama-tiny.gguf", 33), ("qwen3-next", 22), ("lfm2", 22), ("gemma3", 11)] {
        let model = model(name);
        let all = requests(&model, n);
        let by_host = |i: &usize| i % 11 == 7;
        let by_device: Vec<Request> = (0..n).filter(|i| !by_host(i)).map(|i| all[i].clone()).collect();
        // With `deterministic` the host finds all probabilities.
        let unmeasured: Vec<Request> = all.iter().filter(|r| r.logprobs.is_none()).cloned().collect();
        let sets = [(&all, false), (&by_device, false), (&all, true), (&unmeasured, true)];
        for (requests, deterministic) in sets {
            for (sequences, of_cache, step_tokens) in [(32, 200, 256), (8, 12, 40), (3, 200, 16)] {
                let run = |overlap| {
                    let engine = engine(&model, overlap, |o| {
                        (o.max_sequences, o.kv_memory) = (sequences, blocks(&model, of_cache));
                        (o.step_tokens, o.deterministic) = (step_tokens, deterministic);
                    });
                    let answers = at_once(&engine, requests);
                    let stats = idle(&engine);
                    let ended = (stats.blocks_used, stats.failed, stats.finished);
                    assert_eq!(ended, (0, 0, requests.len() as u64), "{name}");
                    let generated: usize = answers.iter().map(|a| a.generated).sum();
                    assert_eq!(stats.generated_tokens, generated as u64, "{name}");
                    let some = stats.overlapped_steps > 0;
                    assert!(some == overlap || requests.len() == all.len() && !some, "{name}: {stats:?}");
                    (answers, stats)
                };
                let (want, got) = (run(false), run(true));
                let what = format!("{name}, {sequences} sequences, deterministic: {deterministic}");
                for (i, (want, got)) in want.0.iter().zip(&got.0).enumerate() {
                    let same = if deterministic { got == want } else { got.is_like(want) };
                    assert!(same, "{what}, request {i}: {got:?}, {want:?}");
                }
            }
        }
    }
}

/// Nearly all steps of texts that the device samples overlap, and only a text that ends unforeseen costs a token more.
#[test]
fn steps_overlap_unless_the_host_is_needed() {
    let model = model("llama-tiny.gguf");
    let request = |change: &dyn Fn(&mut Request)| {
        let mut request = Request::new(prompt(&model, 1, 40));
        (request.max_tokens, request.ignore_end, request.sampling) = (Some(30), true, SamplerConfig::GREEDY);
        change(&mut request);
        request
    };
    let run = |requests: &[Request]| {
        let engine = engine(&model, true, |_| ());
        let answers = at_once(&engine, requests);
        (answers, idle(&engine))
    };
    let (answers, stats) = run(&[request(&|_| ())]);
    assert_eq!((stats.steps, stats.overlapped_steps, stats.step_tokens), (30, 29, 40 + 29));
    let third = answers[0].ids[2];
    // The end is not foreseen.
    let (answers, stats) = run(&[request(&|r| r.stop_tokens = vec![third])]);
    assert_eq!((answers[0].generated, stats.steps, stats.step_tokens), (3, 4, 40 + 3));
    // What changes the logits is known in time, and the device finds probabilities.
    let changed: [&dyn Fn(&mut Request); 7] = [
        &|r| r.logprobs = Some(5),
        &|r| (r.sampling.temperature, r.sampling.typical_p) = (1.0, 0.9),
        &|r| (r.logprobs, r.sampling.repeat_penalty) = (Some(0), 1.5),
        &|r| r.constraint = Some(Constraint::Regex("[a-z ]{60}".into())),
        &|r| r.sampling.repeat_penalty = 1.5,
        &|r| r.logit_bias = vec![(5, 1.0)],
        &|r| r.min_tokens = 20,
    ];
    for change in changed {
        let (_, stats) = run(&[request(change)]);
        assert!(stats.overlapped_steps > 20, "{stats:?}");
    }
    let by_host: [&dyn Fn(&mut Request); 1] = [&|r| (r.logprobs, r.sampled_probabilities) = (Some(1), true)];
    for change in by_host {
        let (_, stats) = run(&[request(change)]);
        assert_eq!(stats.overlapped_steps, 0, "{stats:?}");
    }
}

/// Masks, biases, penalties and typical sampling on the device give the host's tokens, and its probabilities.
#[test]
fn the_device_samples_what_the_host_does() {
    let (mut constrained, mut measured) = (0, 0);
    let models = [("llama-tiny.gguf", 66, false), ("llama3-tiny.gguf", 44, false), ("qwen3-next", 22, false)];
    for (name, n, deterministic) in models.into_iter().chain([("llama-tiny.gguf", 33, true)]) {
        let model = model(name);
        let mut requests = requests(&model, n);
        // Those that the host samples would make it sample for those beside them.
        requests.retain(|request| !request.sampled_probabilities);
        constrained += requests.iter().filter(|r| r.constraint.is_some()).count();
        for sequences in [1, 7, 33] {
            let run = |device| {
                let engine = engine(&model, device, |o| {
                    (o.device_sampling, o.max_sequences, o.deterministic) = (Some(device), sequences, deterministic);
                });
                let answers = at_once(&engine, &requests);
                assert!((idle(&engine).overlapped_steps > 0) == device || deterministic, "{name}");
                answers
            };
            for (i, (want, got)) in run(false).iter().zip(run(true)).enumerate() {
                let what = format!("{name}, {sequences} sequences, request {i}");
                assert!(got.is_like(want), "{what}: {got:?}, {want:?}");
                measured += got.logprobs.len();
            }
        }
    }
    assert!(constrained > 5 && measured > 1000, "{constrained}, {measured}");
}

#[test]
fn what_leaves_no_token_is_named() {
    let model = model("llama-tiny.gguf");
    let engine = engine(&model, true, |_| ());
    let failure = |change: &dyn Fn(&mut Request)| {
        let mut request = Request::new(prompt(&model, 1, 9));
        request.max_tokens = Some(9);
        change(&mut request);
        let mut events = engine.submit(request).unwrap();
        while let Some(event) = events.next_blocking() {
            if let Event::Failed(failure) = event {
                return failure;
            }
        }
        panic!("no failure");
    };
    let vocab = model.config().vocab as u32;
    let all_but = |ids: &[u32]| (0..vocab).filter(|id| !ids.contains(id)).map(|id| (id, f32::NEG_INFINITY)).collect();
    let both = failure(&|r| {
        (r.logit_bias, r.constraint) = (all_but(&[0]), Some(Constraint::Regex("[a-z]{9}".into())));
    });
    assert!(matches!(&both, Failure::Constraint { reason } if reason.contains("biases")), "{both:?}");
    assert_eq!(idle(&engine).blocks_used, 0);
}

/// Arrivals and departures at random, in a cache that is too small.
#[test]
fn random_schedules_change_nothing() {
    let model = model("llama-tiny.gguf");
    let requests = requests(&model, 44);
    let alone = engine(&model, false, |o| (o.max_sequences, o.prefix_cache) = (1, false));
    let want: Vec<Answer> = requests.iter().map(|r| read(alone.submit(r.clone()).unwrap(), None).unwrap()).collect();
    let mut preemptions = 0;
    for seed in 0..12 {
        let random = |i: u32, what: u32| philox4x32_10([i, what, 0, 0], [seed, 7])[0] as usize;
        let sequences = 2 + random(0, 0) % 12;
        let engine = engine(&model, true, |o| {
            (o.max_sequences, o.kv_memory) = (sequences, blocks(&model, 4 + random(0, 1) % 12));
            (o.step_tokens, o.prefix_cache) = (sequences + random(0, 2) % 64, random(0, 3).is_multiple_of(2));
            o.deterministic = random(0, 4).is_multiple_of(2);
        });
        let got: Vec<Option<Answer>> = std::thread::scope(|scope| {
            let start = |(i, request): (usize, &Request)| {
                let i = i as u32;
                // Requests arrive at different times of a step.
                std::thread::sleep(Duration::from_micros((random(i, 5) % 3 * 400) as u64));
                let events = engine.submit(request.clone()).unwrap();
                let left = random(i, 6).is_multiple_of(4).then(|| random(i, 7) % 20);
                scope.spawn(move || read(events, left))
            };
            let readers: Vec<_> = requests.iter().enumerate().map(start).collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).collect()
        });
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(
                got.as_ref().is_none_or(|got| got.is_like(want)),
                "schedule {seed}, request {i}: {got:?}, {want:?}"
            );
        }
        assert!(got.iter().flatten().count() > 20, "schedule {seed}");
        let stats = idle(&engine);
        assert_eq!((stats.blocks_used, stats.failed), (0, 0), "schedule {seed}");
        assert_eq!(stats.finished + stats.cancelled, 44, "schedule {seed}");
        preemptions += stats.preemptions;
    }
    assert!(preemptions > 0);
}

/// Guesses need the last token; they are made where they pay, and steps overlap elsewhere.
#[test]
fn guesses_go_first() {
    let model = model("llama-tiny.gguf");
    let mut request = Request::new((0..40).map(|i| 5 + i % 4).collect::<Vec<u32>>());
    (request.max_tokens, request.ignore_end, request.sampling) = (Some(60), true, SamplerConfig::GREEDY);
    let run = |overlap, speculation| {
        let engine = engine(&model, overlap, |o| o.speculation = speculation);
        let answer = at_once(&engine, std::slice::from_ref(&request));
        (answer, idle(&engine))
    };
    let (want, plain) = run(false, Speculation::Fixed(3));
    let (got, stats) = run(true, Speculation::Fixed(3));
    assert_eq!((got, stats.guessed_tokens), (want.clone(), plain.guessed_tokens));
    assert!(stats.guessed_tokens > 0);
    assert_eq!(run(true, Speculation::Auto).0, want);
}

/// A device that works beside the host. Alone each request has the same text; beside others the sums of some kernels
/// are in another order, so that only most are the same.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn steps_overlap_on_a_gpu() {
    for name in ["llama-tiny.gguf", "qwen3-next", "lfm2"] {
        let model = model_on("cuda", name);
        let requests = requests(&model, 66);
        let alone = |overlap| -> Vec<Answer> {
            let engine = engine(&model, overlap, |o| (o.max_sequences, o.prefix_cache) = (1, false));
            requests.iter().map(|r| read(engine.submit(r.clone()).unwrap(), None).unwrap()).collect()
        };
        let want = alone(false);
        assert_eq!(alone(true), want, "{name}");
        for of_cache in [400, 16] {
            let engine = engine(&model, true, |o| (o.max_sequences, o.kv_memory) = (24, blocks(&model, of_cache)));
            for _ in 0..8 {
                let got = at_once(&engine, &requests);
                let same = got.iter().zip(&want).filter(|(got, want)| got.has_text_of(want)).count();
                assert!(same > 40, "{name}: {same} of 66");
                let stats = idle(&engine);
                assert!(stats.overlapped_steps > 0 && stats.blocks_used == 0 && stats.failed == 0, "{stats:?}");
            }
        }
    }
}

/// Log-probabilities and typical sampling over a large vocabulary: as the host's, and faster. Prints times.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn a_gpu_finds_what_the_host_does_and_faster() {
    let shape = Shape {
        name: "wide",
        architecture: "llama",
        layers: 1,
        width: 512,
        ffn: 1024,
        experts: None,
        heads: 8,
        kv_heads: 4,
        head_dim: 64,
        vocab: 128_256,
        rope_base: 10000.0,
        tied_embedding: None,
        biases: false,
        more: |_| {},
    };
    let executor = Executor::open("cuda", Some(1)).unwrap();
    let model = Arc::new(Model::random(&shape, DType::F16, &executor).unwrap());
    type Kind = (&'static str, fn(&mut Request));
    let kinds: [Kind; 4] = [
        ("plain", |_| ()),
        ("logprobs 20", |r| r.logprobs = Some(20)),
        ("typical of top-k 40", |r| r.sampling.typical_p = 0.9),
        ("typical of all", |r| (r.sampling.typical_p, r.sampling.top_k) = (0.9, 0)),
    ];
    let run = |device, sequences, change: fn(&mut Request), tokens| {
        let engine = engine(&model, device, |o| (o.device_sampling, o.max_sequences) = (Some(device), sequences));
        let one = |i: usize| {
            let mut request = Request::new(prompt(&model, i as u32, 20 + i % 7));
            (request.max_tokens, request.ignore_end) = (Some(tokens), true);
            request.sampling = SamplerConfig { temperature: 1.0, top_k: 40, seed: i as u64, ..SamplerConfig::GREEDY };
            change(&mut request);
            request
        };
        let requests: Vec<Request> = (0..sequences.max(8)).map(one).collect();
        // The first round compiles.
        at_once(&engine, &requests);
        let started = Instant::now();
        let answers = at_once(&engine, &requests);
        (answers, started.elapsed().as_secs_f64() / (tokens * requests.len() / sequences) as f64 * 1e3)
    };
    for (name, change) in kinds {
        // Alone the logits have the same bits.
        let (want, got) = (run(false, 1, change, 12).0, run(true, 1, change, 12).0);
        let same = got.iter().zip(&want).filter(|(got, want)| got.is_like(want)).count();
        // Of 128,256 tokens that are about as probable, sums of other roundings choose others.
        assert!(same + 1 >= want.len() || name == "typical of all", "{name}: {same} of {}", want.len());
        for sequences in [1, 32] {
            let (host, device) = (run(false, sequences, change, 12).1, run(true, sequences, change, 12).1);
            println!("{name:>20}, {sequences:>2} rows: {host:>7.2} ms a step by the host, {device:>6.2} by the device");
            // One row's typical tokens take about as long on both; the device's step overlaps with others'.
            let most = if sequences == 1 && name.starts_with("typical") { 1.5 * host } else { host };
            assert!(device < most, "{name}, {sequences} rows: {device} ms, {host} by the host");
        }
    }
}
