//! Trains a small GPT on the bytes of a text, and prints how its loss falls:
//! `cargo run --release -p hologram-core --example train_gpt -- [TEXT] [STEPS] [DEVICE] [f32|bf16] [profile]`. With
//! `profile` it prints the kernels of a step by time.

mod gpt;

use std::collections::BTreeMap;
use std::time::Instant;

use gpt::{Init, Sizes};
use hologram_core::ops::Optimizer;
use hologram_core::{DType, Executor, Parameters, Plan, TrainOptions, Trainer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = match args.first() {
        Some(path) => std::fs::read(path)?,
        None => include_bytes!("../../../docs/internals.md").to_vec(),
    };
    let steps: usize = args.get(1).map_or(Ok(200), |n| n.parse())?;
    let device = match args.get(2) {
        Some(name) => Executor::open(name, None)?,
        None => Executor::new_auto()?,
    };
    let compute = if args.get(3).is_some_and(|ty| ty == "bf16") { DType::BF16 } else { DType::F32 };
    let sizes = Sizes { vocabulary: 256, length: 64, batch: 8, width: 128, heads: 4, layers: 4 };
    if text.len() <= sizes.length + 1 {
        return Err("the text is shorter than one example".into());
    }

    let mut parameters = Parameters::new(1);
    gpt::parameters(&sizes, |name, shape, init| match init {
        Init::Random(deviation) => parameters.normal(name, shape, deviation),
        Init::Full(value) => parameters.full(name, shape, value),
    })?;
    let optimizer = Optimizer::adamw(0.1).with_betas([0.9, 0.95]);
    let options = TrainOptions { optimizer, clip: Some(1.0), compute, ..TrainOptions::default() };
    let mut trainer = Trainer::new(&device, &parameters, options, |g, weights| gpt::loss(g, weights, &sizes))?;
    println!("{} parameters, {} launches per step", parameters.elements(), trainer.plan().launches());

    let mut place = 0usize;
    let mut times = Vec::new();
    for step in 0..steps {
        let start = Instant::now();
        let (mut ids, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..sizes.batch {
            // Places far apart, in an order that visits all of the text.
            place = (place + 7919) % (text.len() - sizes.length - 1);
            let example = text[place..=place + sizes.length].iter().map(|b| u32::from(*b)).collect::<Vec<_>>();
            ids.extend_from_slice(&example[..sizes.length]);
            targets.extend_from_slice(&example[1..]);
        }
        trainer.write("ids", &ids)?;
        trainer.write("targets", &targets)?;
        let warm = ((step + 1) as f32 / 20.0).min(1.0);
        trainer.step(1e-3 * warm)?;
        device.backend().synchronize()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        if step % 20 == 0 || step + 1 == steps {
            println!("step {step:4}: loss {:.4}, gradient norm {:.3}", trainer.loss()?, trainer.gradient_norm()?);
        }
    }
    times.sort_by(f64::total_cmp);
    println!("{:.2} ms per step, the median", times.get(steps / 2).unwrap_or(&0.0));
    if args.get(4).is_some_and(|word| word == "profile") {
        profile(trainer.plan())?;
    }
    Ok(())
}

/// Prints the kernels of a step by their time, the sum over a kernel's launches of the median of some steps.
fn profile(plan: &Plan) -> Result<(), Box<dyn std::error::Error>> {
    const STEPS: usize = 15;
    let steps = (0..STEPS).map(|_| plan.profile()).collect::<Result<Vec<_>, _>>()?;
    let mut kernels: BTreeMap<String, (usize, f64)> = BTreeMap::new();
    for launch in 0..plan.launches() {
        let mut seconds: Vec<f64> = steps.iter().map(|step| step[launch].1).collect();
        seconds.sort_by(f64::total_cmp);
        let kernel = kernels.entry(steps[0][launch].0.to_string()).or_default();
        *kernel = (kernel.0 + 1, kernel.1 + seconds[STEPS / 2]);
    }
    let mut kernels: Vec<_> = kernels.into_iter().collect();
    kernels.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    for (name, (launches, seconds)) in kernels {
        println!("{:>9.1} µs {launches:>4} × {name}", seconds * 1e6);
    }
    Ok(())
}
