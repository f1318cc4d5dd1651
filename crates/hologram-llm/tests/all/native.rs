//! Every model family runs native kernels on each device; the remaining programs are listed here. For GPUs
//! the launches are planned, on any machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use hologram_backends::{DType, DryGpu, Target};
use hologram_core::Executor;
use hologram_llm::sampling::{Sampler, SamplerConfig};
use hologram_llm::{Logits, Model, Session, SessionOptions, Shape, WeightTypes};

/// A device that can list the programs of a session's last step.
struct Device {
    name: &'static str,
    executor: Executor,
    dry: Option<Arc<DryGpu>>,
}

impl Device {
    fn all() -> [Device; 4] {
        let dry = |name, target| {
            let dry = Arc::new(DryGpu::new(target));
            Device { name, executor: Executor::from_backend(dry.clone()), dry: Some(dry) }
        };
        [
            Device { name: "cpu", executor: Executor::open("cpu", None).unwrap(), dry: None },
            dry("an H100", Target::nvidia(90, 132, 227 << 10)),
            dry("an A100", Target::nvidia(80, 108, 163 << 10)),
            dry("an Apple GPU", Target::APPLE),
        ]
    }

    /// Whether it has kernels for a KV cache of this type, of few tokens and of many.
    fn caches(&self, kv: DType) -> bool {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama3-tiny.gguf");
        let model = Model::load_on(path, &self.executor).unwrap();
        let options = SessionOptions { context: 64, kv: Some(kv), ..SessionOptions::default() };
        let mut session = model.session(options).unwrap();
        [3, 40].iter().all(|n| {
            session.truncate(0, 0);
            session.feed(0, &vec![1; *n], Logits::Last).unwrap();
            !self.programs(&session).iter().any(|name| name.contains("attention") || name.contains("append"))
        })
    }

    fn programs(&self, session: &Session) -> Vec<String> {
        let names = match &self.dry {
            Some(dry) => dry.last_programs(),
            None => session.profile().unwrap().into_iter().map(|(name, _)| name).collect(),
        };
        names.into_iter().filter(|name| name.is_program).map(|name| name.to_string()).collect()
    }
}

/// A fixture of each family, with the programs of a step on the CPU and of some step on a GPU, by the names of their
/// operations.
const FAMILIES: [(&str, &[&str], &[&str]); 40] = [
    ("llama-tiny.gguf", &[], &[]),
    ("llama3-tiny.gguf", &[], &[]),
    ("bitnet-tiny.gguf", &[], &[]),
    ("bitnet-packed", &[], &[]),
    ("mistral", &[], &[]),
    ("qwen2", &[], &[]),
    ("qwen3", &[], &[]),
    ("ministral3", &["fused", "mul"], &["fused", "mul"]),
    ("gemma3", &["fused"], &["fused"]),
    ("phi3", &[], &[]),
    ("phi4", &[], &[]),
    ("smollm3", &[], &[]),
    ("olmo2", &[], &[]),
    ("olmo3", &[], &[]),
    ("granite", &["fused"], &["fused"]),
    ("cohere2", &["fused"], &["fused"]),
    ("starcoder2", &["fused"], &["fused"]),
    ("glm4", &[], &[]),
    ("qwen3-moe", &[], &[]),
    ("qwen2-moe", &["fused", "sigmoid"], &["copy", "fused"]),
    ("mixtral", &[], &[]),
    ("olmoe", &[], &[]),
    ("falcon-h1", &MAMBA_ON_CPU, &["fused"]),
    ("nemotron-h", &MAMBA_ON_CPU, &["fused"]),
    ("nemotron-3-nano", &["add", "fused", "mul", "sigmoid"], &["fused"]),
    ("gemma3n", &["fused", "mul", "sqrt", "sub", "tanh"], &["fused", "mul", "reduce_mean", "sqrt", "sub"]),
    ("gemma4", &["fused"], &["fused"]),
    ("gemma4-moe", &["fused"], &["fused", "gather"]),
    ("gemma2", &["fused"], &["fused"]),
    ("gpt-oss", &["add"], &["fused"]),
    ("qwen3-next", &DELTA_NET_ON_CPU, &["concat", "copy", "fused"]),
    ("qwen3-5", &DELTA_NET_ON_CPU, &["copy", "fused"]),
    ("qwen3-5-moe", &DELTA_NET_ON_CPU, &["copy", "fused"]),
    ("lfm2", &[], &[]),
    ("lfm2-moe", &["add", "div", "sigmoid"], &["div"]),
    ("granite-4", &MAMBA_ON_CPU, &["fused"]),
    ("deepseek-v2", &["fused"], &["concat", "copy", "fused"]),
    ("deepseek-v3", &["add", "fused", "ge", "sigmoid"], &["concat", "copy", "fused", "ge", "reduce_min"]),
    ("glm-4-7-flash", &["add", "fused", "sigmoid"], &["concat", "copy", "fused"]),
    ("glm4-moe", &["add", "fused", "ge", "sigmoid"], &["fused", "ge", "reduce_min"]),
];

const MAMBA_ON_CPU: [&str; 3] = ["add", "fused", "mul"];
const DELTA_NET_ON_CPU: [&str; 4] = ["add", "fused", "sigmoid", "silu"];

/// Step sizes, each with a separate plan.
const STEPS: [usize; 5] = [1, 2, 5, 9, 33];

#[test]
fn steps_of_every_family_run_native_kernels() {
    let (mut wrong, mut seen) = (Vec::new(), BTreeSet::new());
    for device in Device::all() {
        for (name, on_cpu, on_gpus) in FAMILIES {
            let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
            let model = Model::load_on(path, &device.executor).unwrap();
            let options = SessionOptions { context: 64, sequences: 3, ..SessionOptions::default() };
            let mut session = model.session(options).unwrap();
            let mut found: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
            let mut note = |session: &Session, step: String| {
                let mut programs = device.programs(session);
                programs.sort();
                programs.dedup();
                found.entry(programs).or_default().push(step);
            };
            for tokens in STEPS {
                let ids: Vec<u32> = (0..tokens).map(|i| (i * 31 % model.config().vocab) as u32).collect();
                session.truncate(0, 0);
                session.feed(0, &ids, Logits::Last).unwrap();
                note(&session, format!("{tokens} tokens"));
            }
            let mut sampler = Sampler::new(SamplerConfig::GREEDY).unwrap();
            session.sample_batch(&[(0, 1), (1, 2), (2, 3)], &mut sampler).unwrap();
            note(&session, "3 sequences".into());
            let expected = if device.dry.is_some() { on_gpus } else { on_cpu };
            for (programs, steps) in found {
                let listed = programs.iter().all(|program| expected.contains(&program.as_str()));
                if device.dry.is_some() {
                    seen.extend(programs.iter().map(|program| (name, program.clone())));
                }
                if !listed || device.dry.is_none() && programs != expected {
                    wrong.push(format!("{} on {}: {programs:?}, not {expected:?}, in {steps:?}", name, device.name));
                }
            }
        }
    }
    for (name, _, on_gpus) in FAMILIES {
        let unseen = on_gpus.iter().filter(|program| !seen.contains(&(name, program.to_string())));
        wrong.extend(unseen.map(|program| format!("{name}: {program} is native on all GPUs")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Mixtures of published sizes. On GPUs of NVIDIA a step of one token has no programs but these, chains of elementwise
/// operations, and at most so many launches. A prompt's attention and experts are no programs either.
const MIXTURES: [(&str, &str, &[&str], usize); 5] = [
    ("qwen3-30b-a3b", "Q4_K_M", &[], 452),
    ("qwen3-30b-a3b", "BF16", &[], 452),
    ("gpt-oss-20b", "MXFP4", &["fused"], 284),
    ("gpt-oss-20b", "NVFP4", &["fused"], 284),
    ("deepseek-v2-lite", "Q4_K_M", &["fused"], 677),
];

#[test]
fn steps_of_published_mixtures_run_native_kernels() {
    let mut wrong = Vec::new();
    for (shape, types, expected, launches) in MIXTURES {
        let dry = Arc::new(DryGpu::new(Target::nvidia(90, 132, 227 << 10)));
        let executor = Executor::from_backend(dry.clone());
        let types = WeightTypes::all().find(|known| known.name() == types).unwrap();
        let model = Model::random(Shape::find(shape).unwrap(), types, &executor).unwrap();
        let mut session = model.session(SessionOptions { context: 64, ..SessionOptions::default() }).unwrap();
        let mut sampler = Sampler::new(SamplerConfig::GREEDY).unwrap();
        for _ in 0..2 {
            session.sample(0, &[0], &mut sampler).unwrap();
        }
        let programs = || dry.last_programs().iter().map(|name| name.to_string()).collect::<Vec<String>>();
        if !programs().iter().all(|name| expected.contains(&name.as_str())) || dry.last().launches > launches {
            wrong.push(format!("{shape} {}: {:?} in {:?}", types.name(), programs(), dry.last()));
        }
        session.feed(0, &[1; 60], Logits::Last).unwrap();
        if programs().iter().any(|name| name.contains("attention") || name.contains("expert")) {
            wrong.push(format!("{shape} {}: {:?} of a prompt", types.name(), programs()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// FP8 weights: steps of every number of tokens, on GPUs of NVIDIA with tensor cores for FP8 and without.
#[test]
fn steps_of_fp8_run_native_kernels() {
    let mut wrong = Vec::new();
    for target in [Target::nvidia(90, 132, 227 << 10), Target::nvidia(80, 108, 163 << 10)] {
        let dry = Arc::new(DryGpu::new(target));
        let executor = Executor::from_backend(dry.clone());
        let types = WeightTypes::from(DType::F8_E4M3);
        let model = Model::random(Shape::find("llama-1b").unwrap(), types, &executor).unwrap();
        let mut session = model.session(SessionOptions { context: 512, ..SessionOptions::default() }).unwrap();
        for tokens in [1, 2, 3, 8, 40, 64, 65, 512] {
            session.truncate(0, 0);
            session.feed(0, &vec![1; tokens], Logits::Last).unwrap();
            let programs = dry.last_programs();
            if !programs.iter().all(|name| &**name == "fused") {
                wrong.push(format!("{tokens} tokens: {programs:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The table of docs/devices.md says of GPUs and of the CPU what the devices say of themselves.
#[test]
fn the_table_of_devices_is_true() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/devices.md")).unwrap();
    let (_, table) = page.split_once("## What each device has").unwrap();
    let devices = Device::all();
    let [cpu, h100, _, apple] = &devices;
    for (row, of) in [
        ("f64", (|d| d.executor.info().capabilities.contains(&hologram_isa::Capability::F64)) as fn(&Device) -> bool),
        ("weights used without a copy", |d| d.executor.backend().policy().shares_host_memory),
        ("every operation", |_| true),
        ("KV cache in 8 bits", |d| d.caches(DType::Q8Planes)),
        ("KV cache in floats of 8 bits", |d| d.caches(DType::F8)),
        ("KV cache in 4 bits", |d| d.caches(DType::Q4Planes)),
    ] {
        let line =
            table.lines().find(|l| l.starts_with(&format!("| {row} |"))).unwrap_or_else(|| panic!("no row {row}"));
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        for (device, cell) in [(cpu, 2), (h100, 4), (apple, 5)] {
            let said = match cells[cell] {
                "yes" => true,
                "no" => false,
                other => panic!("{row}: {other}"),
            };
            assert_eq!(of(device), said, "{row} of {}", device.name);
        }
    }
}

/// What models compute around a recurrence is part of its launches: a token of two layers of gated DeltaNet and one of
/// attention.
#[test]
fn a_recurrent_layer_takes_few_launches() {
    let device = &Device::all()[1];
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3-5");
    let model = Model::load_on(path, &device.executor).unwrap();
    let mut session = model.session(SessionOptions { context: 64, ..SessionOptions::default() }).unwrap();
    session.feed(0, &[1], Logits::Last).unwrap();
    assert_eq!(device.dry.as_ref().unwrap().last().launches, 31);
    // With packed weights of two types, the norm and the four products of the input are one launch.
    let types = WeightTypes::all().find(|known| known.name() == "Q4_K_M").unwrap();
    let model = Model::random(Shape::find("qwen3.5-27b").unwrap(), types, &device.executor).unwrap();
    let mut session = model.session(SessionOptions { context: 64, ..SessionOptions::default() }).unwrap();
    session.feed(0, &[1], Logits::Last).unwrap();
    assert_eq!(device.dry.as_ref().unwrap().last().launches, 484);
}
