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
use hologram_llm::{Engine, EngineOptions, Event, Finish, Model, Request};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama-tiny.gguf");

/// The CPU, of which some runs fail.
struct Faulty {
    cpu: CpuBackend,
    /// The runs that will fail.
    fail: AtomicUsize,
}

impl Backend for Faulty {
    pass_on!(self => self.cpu;
        info is_available measure allocate_buffer allocate_pool owns copy_to_buffer copy_from_buffer copy_buffer clear_error record
        wait synchronize);

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
        match self.fail.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Err(BackendError::Unsupported { device: "faulty".into(), what: "this run".into() }),
            Err(_) => self.cpu.submit(list),
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
    let mut events = engine.submit(request).unwrap();
    let mut tokens = Vec::new();
    loop {
        match events.next_blocking().unwrap() {
            Event::Token { ids, .. } => tokens.extend(ids),
            Event::Finished { reason, .. } => {
                assert_eq!(reason, Finish::MaxTokens);
                return Ok(tokens);
            }
            Event::Failed(failure) => return Err(failure),
            _ => {}
        }
    }
}

#[test]
fn a_failed_step_fails_its_requests_and_the_engine_goes_on() {
    let device = Arc::new(Faulty { cpu: CpuBackend::new(Some(1)).unwrap(), fail: AtomicUsize::new(0) });
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
    // A cache of one context, so that the good texts use the blocks of the bad ones.
    let mut options = EngineOptions::for_model(&model);
    (options.context, options.max_sequences, options.prefix_cache) = (96, 2, false);
    let engine = Engine::new(model.clone(), options).unwrap();
    let good = request(&good, 20);
    let want = run(&engine, good.clone());
    for seed in 0..4 {
        let mut bad = request(&bad, 20);
        // On the device, and on the host.
        bad.sampling.min_p = if seed % 2 == 0 { 0.0 } else { 0.1 };
        let beside = engine.submit(good.clone()).unwrap();
        let failure = run(&engine, bad).unwrap_err();
        assert!(matches!(&failure, Failure::Step { reason } if reason.contains("cannot sample")), "{failure:?}");
        drop(beside);
        assert_eq!(run(&engine, good.clone()), want);
    }
    assert!(want.is_ok_and(|tokens| tokens.len() == 20));
    std::fs::remove_dir_all(folder).unwrap();
}
