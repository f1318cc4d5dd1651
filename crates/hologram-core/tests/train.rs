//! Training: the losses of a small GPT against those of the reference in `fixtures/gpt_losses.py`.

#[path = "../examples/gpt/mod.rs"]
mod gpt;

use gpt::{Init, Sizes};
use hologram_core::ops::{LossReduction, Optimizer};
use hologram_core::{DType, Dim, Executor, Parameters, Result, TrainOptions, Trainer};

const SIZES: Sizes = Sizes { vocabulary: 16, length: 8, batch: 2, width: 16, heads: 2, layers: 2 };

/// Parameters of uniform numbers, as the reference draws them.
fn parameters() -> Result<Parameters> {
    let mut parameters = Parameters::new(0);
    let mut state = 1u32;
    gpt::parameters(&SIZES, |name, shape, init| match init {
        Init::Full(value) => parameters.full(name, shape, value),
        Init::Random(deviation) => {
            assert!(deviation > 0.0);
            let mut draw = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 8) as f32 / 16_777_216.0 - 0.5) * 0.5
            };
            let values = (0..shape.iter().product()).map(|_| draw()).collect();
            parameters.values(name, shape, values)
        }
    })?;
    Ok(parameters)
}

/// The losses and gradient norms of steps with these options.
fn losses(options: TrainOptions, steps: usize) -> Result<Vec<[f32; 2]>> {
    let device = Executor::open("cpu", None)?;
    let mut trainer = Trainer::new(&device, &parameters()?, options, |g, weights| gpt::loss(g, weights, &SIZES))?;
    (1..=steps)
        .map(|t| {
            let token = |row: usize, i: usize| ((row * 5 + i * i + t % 3) % SIZES.vocabulary) as u32;
            let places = || (0..SIZES.batch).flat_map(|row| (0..SIZES.length).map(move |i| (row, i)));
            trainer.write("ids", &places().map(|(row, i)| token(row, i)).collect::<Vec<_>>())?;
            trainer.write("targets", &places().map(|(row, i)| token(row, i + 1)).collect::<Vec<_>>())?;
            trainer.step(1e-2)?;
            Ok([trainer.loss()?, trainer.gradient_norm()?])
        })
        .collect()
}

fn reference() -> Vec<[f32; 2]> {
    let lines = include_str!("fixtures/gpt_losses.txt").lines();
    let number = |text: Option<&str>| text.and_then(|t| t.parse().ok()).expect("a number");
    lines
        .map(|line| {
            let mut parts = line.split(' ');
            [number(parts.next()), number(parts.next())]
        })
        .collect()
}

#[test]
fn a_small_gpt_learns_as_the_reference_does() -> Result<()> {
    let want = reference();
    let options = TrainOptions { optimizer: Optimizer::adamw(0.1), clip: Some(1.0), ..TrainOptions::default() };
    for (step, (have, want)) in losses(options, want.len())?.into_iter().zip(&want).enumerate() {
        for (have, want) in have.into_iter().zip(want) {
            assert!((have - want).abs() < 2e-4 * want, "step {step}: {have}, not {want}");
        }
    }
    assert!(want[want.len() - 1][0] < 0.65 * want[0][0], "the loss falls");
    Ok(())
}

#[test]
fn narrow_computation_learns_nearly_as_well() -> Result<()> {
    let want = reference();
    for (compute, loss_scale) in [(DType::BF16, 1.0), (DType::F16, 1024.0)] {
        let optimizer = Optimizer::adamw(0.1);
        let options = TrainOptions { optimizer, clip: Some(1.0), compute, loss_scale };
        for (step, (have, want)) in losses(options, want.len())?.into_iter().zip(&want).enumerate() {
            assert!((have[0] - want[0]).abs() < 0.03 * want[0], "{compute:?}, step {step}: {have:?}, not {want:?}");
        }
    }
    Ok(())
}

#[test]
fn gradients_that_are_not_finite_change_nothing() -> Result<()> {
    let mut parameters = Parameters::new(0);
    parameters.full("w", &[3], 2.0)?;
    let device = Executor::open("cpu", None)?;
    let options = TrainOptions { optimizer: Optimizer::adam(), ..TrainOptions::default() };
    let mut trainer = Trainer::new(&device, &parameters, options, |g, weights| {
        let x = g.input("x", DType::F32, &[Dim::Fixed(3)])?;
        g.mse_loss(weights.get("w")?, x, LossReduction::Sum)
    })?;
    trainer.write("x", &[0.0f32, f32::INFINITY, 0.0])?;
    trainer.step(0.1)?;
    assert!(!trainer.gradient_norm()?.is_finite());
    assert_eq!(trainer.parameter("w")?.to_vec::<f32>()?, [2.0; 3]);
    trainer.write("x", &[0.0f32; 3])?;
    trainer.step(0.1)?;
    assert!(trainer.parameter("w")?.to_vec::<f32>()?.iter().all(|w| (w - 1.9).abs() < 0.06));
    assert!(trainer.parameter("v").is_err() && trainer.write("y", &[0.0f32]).is_err());
    assert!(Trainer::new(&device, &Parameters::new(0), options, |g, _| g.scalar(DType::F32, 0.0)).is_err());
    Ok(())
}
