//! `hologram bench --dry-run`: the launches of a step on an Apple GPU, and the bounds set by memory bandwidth, on any
//! machine.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;

use hologram_backends::{DryGpu, Target};
use hologram_core::Executor;
use hologram_llm::sampling::{Sampler, SamplerConfig};
use hologram_llm::{Model, SessionOptions};
use serde_json::json;

use super::bench::random_weights;
use super::shipped;
use crate::args::{BenchArgs, usage};
use crate::text::{NAME, printable, size};

/// Chips with their memory bandwidth in 10⁹ bytes per second, from Apple's "Tech Specs" of the Macs that have them; the
/// highest if a chip comes with several.
const CHIPS: [(&str, f64); 18] = [
    ("M1", 68.25),
    ("M1 Pro", 200.0),
    ("M1 Max", 400.0),
    ("M1 Ultra", 800.0),
    ("M2", 100.0),
    ("M2 Pro", 200.0),
    ("M2 Max", 400.0),
    ("M2 Ultra", 800.0),
    ("M3", 100.0),
    ("M3 Pro", 150.0),
    ("M3 Max", 400.0),
    ("M3 Ultra", 819.0),
    ("M4", 120.0),
    ("M4 Pro", 273.0),
    ("M4 Max", 546.0),
    ("M5", 153.0),
    ("M5 Pro", 307.0),
    ("M5 Max", 614.0),
];

/// Tokens of the prompt: more than the few-token kernels handle.
const PROMPT: usize = 32;

/// The distinct programs of the last step.
fn names(device: &DryGpu) -> Vec<String> {
    device.last_programs().iter().map(|name| name.to_string()).collect()
}

/// Runs the command.
///
/// # Errors
/// When the device is not Metal or the model fails.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    if !args.device.device.eq_ignore_ascii_case("metal") {
        return usage("--dry-run is for Apple GPUs and requires --device metal");
    }
    let random = random_weights(args)?;
    let device = Arc::new(DryGpu::new(Target::APPLE));
    let executor = Executor::from_backend(device.clone());
    let (model, name) = match random {
        Some((shape, types)) => (Model::random(shape, types, &executor)?, format!("{} {}", shape.name, types.name())),
        None => {
            let options = args.experts.options(None);
            let model = shipped::load(shipped::open(args.model.given())?, &args.lora, options, &executor)?;
            let name = printable(&model.config().name, NAME);
            (model, name)
        }
    };
    let mut session = model.session(SessionOptions { context: 64, ..SessionOptions::default() })?;
    let mut sampler = Sampler::new(SamplerConfig::GREEDY)?;
    session.sample(0, &[0; PROMPT], &mut sampler)?;
    let (prompt, prompt_programs) = (device.last(), names(&device));
    // Single tokens, so that the last step is a decode step.
    for _ in 0..2 {
        session.sample(0, &[0], &mut sampler)?;
    }
    let programs = names(&device);
    let (plan, bytes, layers) = (device.last(), model.bytes_per_token(), model.config().layers);
    let bounds = CHIPS.map(|(chip, bandwidth)| (chip, bandwidth, bandwidth * 1e9 / bytes.max(1) as f64));
    let mut out = std::io::stdout().lock();
    if args.json {
        let bounds: serde_json::Map<String, serde_json::Value> =
            bounds.iter().map(|(chip, _, bound)| (chip.to_string(), json!(bound))).collect();
        let line = json!({
            "model": name,
            "device": "metal",
            "layers": layers,
            "launches_per_token": plan.launches,
            "programs_per_token": plan.programs,
            "programs": programs,
            "prompt_tokens": PROMPT,
            "launches_per_prompt": prompt.launches,
            "programs_per_prompt": prompt.programs,
            "prompt_programs": prompt_programs,
            "bytes_per_token": bytes,
            "flops_per_token": plan.flops,
            "upper_bound_tokens_per_s": bounds,
        });
        writeln!(out, "{line}")?;
        return Ok(());
    }
    writeln!(out, "{name}, planned for Apple GPUs: nothing ran")?;
    writeln!(
        out,
        "a token takes {} launches ({} of them programs) for {layers} layers, {} of weights and {:.2} GFLOP of matrix products",
        plan.launches,
        plan.programs,
        size(bytes as u64),
        plan.flops as f64 / 1e9
    )?;
    writeln!(
        out,
        "a step of {PROMPT} tokens of a prompt takes {} launches ({} of them programs)",
        prompt.launches, prompt.programs
    )?;
    let all: BTreeSet<String> = programs.into_iter().chain(prompt_programs).collect();
    if !all.is_empty() {
        writeln!(out, "programs: {}", all.into_iter().collect::<Vec<_>>().join(", "))?;
    }
    writeln!(out, "{:<9} {:>6} {:>21}", "chip", "GB/s", "upper bound, tokens/s")?;
    for (chip, bandwidth, bound) in bounds {
        writeln!(out, "{chip:<9} {bandwidth:>6.1} {bound:>21.1}")?;
    }
    writeln!(out, "Upper bounds from reading the weights once at the published bandwidth; not a prediction.")?;
    Ok(())
}
