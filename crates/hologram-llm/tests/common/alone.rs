//! With `deterministic` the bits of a seeded request are the same alone and beside any others, on any device.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hologram_backends::DType;
use hologram_core::Executor;
use hologram_llm::engine::{EngineStats, TokenLogprobs};
use hologram_llm::sampling::SamplerConfig;
use hologram_llm::{BLOCK_SIZE, Engine, EngineOptions, Event, Events, Model, Request, Shape, Speculation, WeightTypes};

/// A model and its cache.
pub struct Case {
    pub name: String,
    pub kv: Option<DType>,
    model: Arc<Model>,
    /// Whether it has states, which takes no guesses.
    states: bool,
}

/// How an engine runs the requests at once.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub sequences: usize,
    pub step_tokens: usize,
    /// Blocks of the cache; `None`: enough for all.
    pub blocks: Option<usize>,
    pub overlap: bool,
    pub guesses: usize,
    /// Most tokens of a context, and generated.
    pub context: usize,
    pub tokens: usize,
}

/// Many at once; and few of which some are preempted, with long prompts in many steps.
pub const LOADS: [Load; 3] = [
    LOAD,
    Load { sequences: 9, step_tokens: 64, blocks: Some(16), overlap: false, ..LOAD },
    Load { sequences: 20, step_tokens: 96, overlap: false, guesses: 3, ..LOAD },
];
const LOAD: Load =
    Load { sequences: 41, step_tokens: 256, blocks: None, overlap: true, guesses: 0, context: 256, tokens: 35 };

impl Case {
    /// A fixture with the cache that suits the device.
    pub fn fixture(executor: &Executor, name: &str) -> Case {
        let fixture = |folder: &Path| folder.join("crates/hologram-llm/tests/fixtures").join(name);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(fixture).find(|path| path.exists()).unwrap();
        let model = Arc::new(Model::load_on(path, executor).unwrap());
        let states = ["qwen3-next", "falcon-h1", "lfm2", "nemotron-h", "granite-4"].contains(&name);
        Case { name: name.into(), kv: None, model, states }
    }

    /// A dense model of random weights, large enough for the kernels of real models.
    pub fn random(executor: &Executor, types: WeightTypes, kv: DType, heads: usize) -> Case {
        let ternary = types.name().starts_with("TQ");
        let shape = Shape {
            name: "small",
            architecture: if ternary { "bitnet-b1.58" } else { "llama" },
            layers: 2,
            width: 64 * heads,
            ffn: 1024,
            experts: None,
            heads,
            kv_heads: heads / 2,
            head_dim: 64,
            vocab: 512,
            rope_base: 10000.0,
            tied_embedding: ternary.then_some(DType::Q8_0),
            biases: false,
            more: |_| {},
        };
        let name = format!("{} with a cache in {}", types.name(), kv.name());
        Case { name, kv: Some(kv), model: Arc::new(Model::random(&shape, types, executor).unwrap()), states: false }
    }

    fn engine(&self, load: Load, deterministic: bool) -> Engine {
        let config = self.model.config();
        let mut options = EngineOptions::for_model(&self.model);
        (options.context, options.kv, options.deterministic) =
            (config.context.min(load.context), self.kv, deterministic);
        (options.max_sequences, options.step_tokens) = (load.sequences, load.step_tokens);
        options.overlap = load.overlap;
        options.speculation = match load.guesses {
            n @ 1.. if !self.states => Speculation::Fixed(n),
            _ => Speculation::Off,
        };
        let Some(blocks) = load.blocks else { return Engine::new(self.model.clone(), options).unwrap() };
        // A cache in `f32` of all layers has as many; others more.
        let mut bytes = blocks * BLOCK_SIZE * config.kv_heads * config.head_dim * 2 * config.layers * 4;
        loop {
            options.kv_memory = Some(bytes as u64);
            let engine = Engine::new(self.model.clone(), options.clone()).unwrap();
            match engine.stats().blocks_total {
                total if total <= blocks + 1 => return engine,
                total => bytes = (bytes * blocks).div_ceil(total),
            }
        }
    }

    fn prompt(&self, seed: u32, len: usize) -> Vec<u32> {
        let vocab = self.model.config().vocab as u32;
        let token = |i: u32| (i + 1).wrapping_mul(0x9e37_79b1).wrapping_add(seed.wrapping_mul(977)) >> 9;
        (0..len as u32).map(|i| 3 + token(i) % (vocab - 3)).collect()
    }

    /// Seeded requests of all lengths, some with the same start, some of which the host samples.
    fn requests(&self, n: usize, load: Load) -> Vec<Request> {
        let longest = self.model.config().context.min(load.context) - load.tokens - 1;
        let one = |i: usize| {
            let len = [5, 40, 1, 33, 97, 64, 130, 70, 31, 2, 129, 48][i % 12].min(longest);
            let shared = if i % 4 == 3 { 70.min(len) } else { 0 };
            let prompt = [self.prompt(1000, shared), self.prompt(i as u32, len - shared)].concat();
            let mut request = Request::new(prompt);
            (request.max_tokens, request.ignore_end) = (Some([24, 9, 17, 35][i % 4].min(load.tokens)), true);
            let (temperature, seed, top_k) = (1.0, i as u64, [0, 40][i % 2]);
            request.sampling = SamplerConfig { temperature, seed, top_k, ..SamplerConfig::default() };
            match i % 5 {
                1 | 3 => request.logprobs = Some(5),
                2 => request.sampling.repeat_penalty = 1.2,
                _ => {}
            }
            (request.prompt_logprobs, request.logprobs) = match i % 11 {
                7 => (Some(2), Some(2)),
                _ => (None, request.logprobs),
            };
            request
        };
        (0..n).map(one).collect()
    }

    /// Runs `n` requests alone and at once, and returns those whose bits differ, with the counters of the engine that
    /// ran them at once.
    pub fn differing(&self, n: usize, load: Load, deterministic: bool) -> (Vec<String>, EngineStats) {
        let requests = self.requests(n, load);
        let alone = Load { blocks: None, overlap: false, guesses: 0, ..load };
        let engine = self.engine(alone, deterministic);
        let alone: Vec<Bits> = requests.iter().map(|request| read(engine.submit(request.clone()).unwrap())).collect();
        let engine = self.engine(load, deterministic);
        let at_once: Vec<Bits> = std::thread::scope(|scope| {
            let mut readers = Vec::new();
            for (i, request) in requests.iter().enumerate() {
                if i % 7 == 6 {
                    // The others are in the midst of their texts.
                    std::thread::sleep(Duration::from_millis(20));
                }
                let events = engine.submit(request.clone()).unwrap();
                if i % 8 == 5 {
                    // A request that leaves.
                    drop(engine.submit(requests[0].clone()).unwrap());
                }
                readers.push(scope.spawn(|| read(events)));
            }
            readers.into_iter().map(|reader| reader.join().unwrap()).collect()
        });
        let pairs = alone.iter().zip(&at_once).enumerate().filter(|(_, (a, b))| a != b);
        let differing = pairs.map(|(i, (alone, at_once))| {
            let same = alone.ids.iter().zip(&at_once.ids).take_while(|(a, b)| a == b).count();
            let of_probs = alone.logprobs.iter().zip(&at_once.logprobs).take_while(|(a, b)| a == b).count();
            let r = &requests[i];
            format!(
                "{}, request {i} of {} tokens: {same} of {} tokens and {of_probs} of {} log-probabilities are the same, \
                 {} penalty, beside {}",
                self.name,
                r.prompt.len(),
                alone.ids.len(),
                alone.logprobs.len(),
                r.sampling.repeat_penalty,
                load.sequences
            )
        });
        (differing.collect(), engine.stats())
    }
}

/// What a request gave, with the bits of its log-probabilities.
#[derive(Debug, PartialEq)]
struct Bits {
    text: String,
    ids: Vec<u32>,
    logprobs: Vec<Vec<(u32, u32)>>,
}

fn read(mut events: Events) -> Bits {
    let (mut text, mut ids, mut logprobs) = (String::new(), Vec::new(), Vec::new());
    let of = |token: &TokenLogprobs| token.top.iter().map(|t| (t.id, t.logprob.to_bits())).collect();
    while let Some(event) = events.next_blocking() {
        match event {
            Event::Token { ids: more, text: part, logprobs: own } => {
                text += &part;
                ids.extend(more);
                logprobs.extend(own.iter().map(of));
            }
            Event::Prompt { logprobs: own } => logprobs.extend(own.iter().flatten().map(of)),
            Event::Failed(failure) => panic!("{failure}"),
            _ => {}
        }
    }
    assert!(!ids.is_empty());
    Bits { text, ids, logprobs }
}

/// Types of weights with caches: each kind of product, and each kind of cache.
pub fn dense(executor: &Executor, heads: usize) -> Vec<Case> {
    let caches = [DType::F16, DType::Q8Planes, DType::F32, DType::Q4Planes, DType::F8];
    let names = ["Q4_0", "Q4_K", "Q8_0", "BF16", "F16", "F32", "Q6_K", "Q4_K_M", "IQ4_NL", "TQ2_0"];
    let types = names.iter().filter_map(|name| WeightTypes::all().find(|types| types.name() == *name));
    types.zip(caches.into_iter().cycle()).map(|(types, kv)| Case::random(executor, types, kv, heads)).collect()
}

/// Architectures with other parts: mixtures, windows, latent vectors, states.
pub const FIXTURES: [&str; 13] = [
    "llama-tiny.gguf",
    "bitnet-tiny.gguf",
    "qwen3",
    "mixtral",
    "qwen3-moe",
    "gpt-oss-mxfp4",
    "gemma3",
    "gemma3n",
    "deepseek-v3",
    "qwen3-next",
    "falcon-h1",
    "lfm2",
    "nemotron-h",
];
