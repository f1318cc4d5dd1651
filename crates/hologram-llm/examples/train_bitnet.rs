//! Trains a small BitNet b1.58 on the bytes of a text and writes it as a GGUF file, with which `hologram run` continues
//! texts: `cargo run --release -p hologram-llm --example train_bitnet -- OUT.gguf [TEXT] [STEPS] [DEVICE]`.

mod bitnet;

use std::path::Path;
use std::time::Instant;

use bitnet::Sizes;
use hologram_core::ops::Optimizer;
use hologram_core::{Executor, TrainOptions, Trainer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let out = Path::new(args.first().ok_or("give the file to write: train_bitnet OUT.gguf [TEXT] [STEPS] [DEVICE]")?);
    let text = match args.get(1) {
        Some(path) => std::fs::read(path)?,
        None => include_bytes!("../../../docs/internals.md").to_vec(),
    };
    let steps: usize = args.get(2).map_or(Ok(600), |n| n.parse())?;
    let device = match args.get(3) {
        Some(name) => Executor::open(name, None)?,
        None => Executor::new_auto()?,
    };
    let sizes = Sizes { length: 128, batch: 4, width: 256, ffn: 512, heads: 4, kv_heads: 2, layers: 3 };
    if text.len() <= sizes.length + 1 {
        return Err("the text is shorter than one example".into());
    }
    let parameters = bitnet::parameters(&sizes, 1)?;
    let optimizer = Optimizer::adamw(0.05).with_betas([0.9, 0.95]);
    let options = TrainOptions { optimizer, clip: Some(1.0), ..TrainOptions::default() };
    let mut trainer = Trainer::new(&device, &parameters, options, |g, weights| {
        bitnet::loss(g, &device, &sizes, &|_, name| weights.master(name))
    })?;
    println!("{} parameters, {} launches per step", parameters.elements(), trainer.plan().launches());
    let (mut place, start) = (0, Instant::now());
    for step in 0..steps {
        let [ids, targets] = bitnet::batch(&text, &sizes, &mut place);
        trainer.write("ids", &ids)?;
        trainer.write("targets", &targets)?;
        let warm = ((step + 1) as f32 / 20.0).min(1.0);
        // The rate falls to nothing, so that the last weights are no longer about to be rounded otherwise.
        let left = 1.0 - step as f32 / steps as f32;
        trainer.step(2e-3 * warm * left)?;
        if step % 20 == 0 || step + 1 == steps {
            println!("step {step:4}: loss {:.4}, gradient norm {:.3}", trainer.loss()?, trainer.gradient_norm()?);
        }
    }
    println!("{:.1} ms per step", start.elapsed().as_secs_f64() * 1e3 / steps.max(1) as f64);
    bitnet::export(&device, &trainer, &sizes, out)?;
    println!("hologram run -m {} 'The graph '", out.display());
    Ok(())
}
