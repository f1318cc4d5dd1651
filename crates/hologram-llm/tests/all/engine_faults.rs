//! The engine under faults: a device that fails, weights that give no numbers. Requests fail, the engine goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hologram_backends::cpu::CpuBackend;
use hologram_backends::{
    Backend, BackendError, Buffer, CommandList, Event as DeviceEvent, ForeignMemory, Kernels, Policy, Result, pass_on,
};
use hologram_core::Executor;
use hologram_llm::engine::{Failure, SubmitError};
use hologram_llm::gguf::GgufFile;
use hologram_llm::sampling::SamplerConfig;
use hologram_llm::{Engine, EngineOptions, Event, Events, Finish, Model, Request};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama-tiny.gguf");

/// The CPU, of which some runs fail.
struct Faulty {
    cpu: CpuBackend,
    /// The runs that will fail, after so many that do not.
    fail: AtomicUsize,
    after: AtomicUsize,
}

impl Faulty {
    fn new() -> Arc<Faulty> {
        Arc::new(Faulty {
            cpu: CpuBackend::new(Some(1)).unwrap(),
            fail: AtomicUsize::new(0),
            after: AtomicUsize::new(0),
        })
    }
}

fn count_down(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl Backend for Faulty {
    pass_on!(self => self.cpu;
        info is_available measure streams allocate_buffer allocate_pool owns copy_to_buffer copy_from_buffer
        copy_buffer clear_error record wait synchronize);

    fn kernels(&self) -> &dyn Kernels {
        self.cpu.kernels()
    }
    fn policy(&self) -> &Policy {
        self.cpu.policy()
    }
    fn wrap(&self, memory: ForeignMemory) -> Result<Buffer> {
        self.cpu.wrap(memory)
    }
    fn available_memory(&self) -> Option<u64> {
        self.cpu.available_memory()
    }
    fn submit(&self, list: &CommandList) -> Result<DeviceEvent> {
        match !count_down(&self.after) && count_down(&self.fail) {
            true => Err(BackendError::Unsupported { device: "faulty".into(), what: "this run".into() }),
            false => self.cpu.submit(list),
        }
    }
}

fn request(prompt: &[u32], tokens: usize) -> Request {
    let mut request = Request::new(prompt);
    (request.max_tokens, request.sampling, request.ignore_end) = (Some(tokens), SamplerConfig::GREEDY, true);
    request
}

/// The generated tokens, or the failure.
fn run(engine: &Engine, request: Request) -> std::result::Result<Vec<u32>, Failure> {
    match read(engine.submit(request).unwrap()) {
        (tokens, None) => Ok(tokens),
        (_, Some(failure)) => Err(failure),
    }
}

/// The generated tokens, and the failure after them if there is one.
fn read(mut events: Events) -> (Vec<u32>, Option<Failure>) {
    let mut tokens = Vec::new();
    loop {
        match events.next_blocking().unwrap() {
            Event::Token { ids, .. } => tokens.extend(ids),
            Event::Finished { reason, .. } => {
                assert_eq!(reason, Finish::MaxTokens);
                return (tokens, None);
            }
            Event::Failed(failure) => return (tokens, Some(failure)),
            _ => {}
        }
    }
}

#[test]
fn a_failed_step_fails_its_requests_and_the_engine_goes_on() {
    let device = Faulty::new();
    let model = Arc::new(Model::load_on(TINY, &Executor::from_backend(device.clone())).unwrap());
    let engine = Engine::new(model.clone(), EngineOptions::for_model(&model)).unwrap();
    let prompt: Vec<u32> = (3..80).collect();
    let want = run(&engine, request(&prompt, 10)).unwrap();
    for failures in 1..3 {
        device.fail.store(1, Ordering::SeqCst);
        let failure = run(&engine, request(&prompt, 10)).unwrap_err();
        assert!(matches!(&failure, Failure::Step { reason } if reason.contains("this run")), "{failure:?}");
        // Nothing of the failed step is reused.
        assert_eq!(run(&engine, request(&prompt, 10)).unwrap(), want);
        let stats = engine.stats();
        assert_eq!((stats.running, stats.blocks_used, stats.failed), (0, 0, failures));
    }
    // A device that keeps failing ends the engine, which says so.
    device.fail.store(usize::MAX, Ordering::SeqCst);
    for _ in 0..2 {
        assert!(matches!(run(&engine, request(&prompt, 10)), Err(Failure::Step { .. })));
        assert!(engine.is_alive());
    }
    let mut events = engine.submit(request(&prompt, 10)).unwrap();
    while events.next_blocking().is_some() {}
    while engine.is_alive() {
        std::thread::yield_now();
    }
    assert_eq!(engine.submit(request(&prompt, 10)).map(|_| ()), Err(SubmitError::Stopped));
    assert_eq!((engine.stats().running, engine.stats().blocks_used), (0, 0));
}

/// With the step before in flight: that one's tokens arrive, the texts of the failed one fail, and the next ones are as
/// ever.
#[test]
fn a_step_that_fails_behind_another_fails_alone() {
    let device = Faulty::new();
    let model = Arc::new(Model::load_on(TINY, &Executor::from_backend(device.clone())).unwrap());
    let mut options = EngineOptions::for_model(&model);
    (options.overlap, options.device_sampling) = (true, Some(true));
    let engine = Engine::new(model.clone(), options).unwrap();
    let prompts: Vec<Vec<u32>> = (0..3).map(|i| (3 + i..50 + 20 * i).collect()).collect();
    // The second is sampled apart from its step.
    let request = |prompt: &[u32]| {
        let mut request = request(prompt, 12);
        request.sampling.repeat_penalty = if prompt[0] == 4 { 1.2 } else { 1.0 };
        request
    };
    let want: Vec<Vec<u32>> = prompts.iter().map(|prompt| run(&engine, request(prompt)).unwrap()).collect();
    for after in 0..26 {
        device.after.store(after, Ordering::SeqCst);
        device.fail.store(1, Ordering::SeqCst);
        let events: Vec<_> = prompts.iter().map(|prompt| engine.submit(request(prompt)).unwrap()).collect();
        let mut failed = 0;
        for (events, want) in events.into_iter().zip(&want) {
            match read(events) {
                (tokens, None) => assert_eq!(&tokens, want),
                (tokens, Some(Failure::Step { reason })) => {
                    assert!(reason.contains("this run") && tokens[..] == want[..tokens.len()], "{reason}");
                    failed += 1;
                }
                (_, other) => panic!("{other:?}"),
            }
        }
        assert!(failed > 0 || device.fail.load(Ordering::SeqCst) == 1 || after > 22, "after {after}");
        device.fail.store(0, Ordering::SeqCst);
        device.after.store(0, Ordering::SeqCst);
        for (prompt, want) in prompts.iter().zip(&want) {
            assert_eq!(run(&engine, request(prompt)).as_ref(), Ok(want), "after {after}");
        }
        assert_eq!((engine.stats().running, engine.stats().blocks_used), (0, 0));
    }
    assert!(engine.is_alive() && engine.stats().overlapped_steps > 100);
}

/// The embedding of one token is not a number: neither are the logits of the texts that contain it, and what they leave
/// in the cache.
#[test]
fn logits_that_are_no_numbers_fail_only_their_request() {
    const BAD: u32 = 200;
    let mut bytes = std::fs::read(TINY).unwrap();
    let range = {
        let file = GgufFile::open(TINY).unwrap();
        let embedding = file.tensor("token_embd.weight").unwrap();
        assert_eq!(embedding.ty().name, "F32");
        let row = embedding.row_len() * 4;
        let start = embedding.range().start + BAD as usize * row;
        start..start + row
    };
    bytes[range].fill(0xff);
    let folder = std::env::temp_dir().join(format!("hologram-engine-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("nan.gguf");
    std::fs::write(&path, bytes).unwrap();
    let model = Arc::new(Model::load_on(&path, &Executor::open("cpu", Some(1)).unwrap()).unwrap());

    let good: Vec<u32> = (3..60).collect();
    let bad: Vec<u32> = good.iter().copied().take(40).chain([BAD, 5]).collect();
    let good = request(&good, 20);
    for overlap in [false, true] {
        // A cache of one context, so that the good texts use the blocks of the bad ones.
        let mut options = EngineOptions::for_model(&model);
        (options.context, options.max_sequences, options.prefix_cache) = (96, 2, false);
        (options.overlap, options.device_sampling) = (overlap, overlap.then_some(true));
        let engine = Engine::new(model.clone(), options).unwrap();
        let want = run(&engine, good.clone());
        for seed in 0..4 {
            let mut bad = request(&bad, 20);
            // On the device, and on the host.
            bad.sampling.typical_p = if seed % 2 == 0 { 1.0 } else { 0.9 };
            let beside = engine.submit(good.clone()).unwrap();
            let failure = run(&engine, bad).unwrap_err();
            assert!(matches!(&failure, Failure::Step { reason } if reason.contains("cannot sample")), "{failure:?}");
            assert_eq!(read(beside), (want.clone().unwrap(), None));
            assert_eq!(run(&engine, good.clone()), want);
        }
        assert!(want.is_ok_and(|tokens| tokens.len() == 20));
    }
    std::fs::remove_dir_all(folder).unwrap();
}
