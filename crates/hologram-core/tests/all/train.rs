//! Training: the losses of a small GPT against those of the reference in `fixtures/gpt_losses.py`.

#[path = "../../examples/gpt/mod.rs"]
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
    let lines = include_str!("../fixtures/gpt_losses.txt").lines();
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

/// A resumed training goes on as if it had not stopped; weights of a file start one.
#[test]
fn a_training_is_saved_and_resumed() -> Result<()> {
    let path = std::env::temp_dir().join(format!("hologram-train-{}.safetensors", std::process::id()));
    let trainer = |len: usize, optimizer: Optimizer| {
        let mut parameters = Parameters::new(3);
        parameters.normal("w", &[2, len], 1.0)?;
        parameters.full("b", &[2], 0.5)?;
        let options = TrainOptions { optimizer, ..TrainOptions::default() };
        Trainer::new(&Executor::open("cpu", None)?, &parameters, options, |g, weights| {
            let x = g.full(DType::F32, &[Dim::Fixed(1), Dim::Fixed(len)], 1.0)?;
            let y = g.linear(x, weights.get("w")?)?;
            let y = g.add(y, weights.get("b")?)?;
            let zero = g.full(DType::F32, &[Dim::Fixed(1), Dim::Fixed(2)], 0.0)?;
            g.mse_loss(y, zero, LossReduction::Mean)
        })
    };
    let values = |trainer: &Trainer| {
        [trainer.parameter("w")?.to_vec::<f32>(), trainer.parameter("b")?.to_vec()]
            .into_iter()
            .collect::<Result<Vec<_>>>()
    };
    for optimizer in [Optimizer::adamw(0.1), Optimizer::sgd(0.9), Optimizer::sgd(0.0)] {
        let mut first = trainer(3, optimizer)?;
        (0..5).try_for_each(|_| first.step(0.1))?;
        first.save(&path)?;
        let mut second = trainer(3, optimizer)?;
        second.load(&path)?;
        assert_eq!(values(&first)?, values(&second)?);
        (0..5).try_for_each(|_| first.step(0.1).and_then(|()| second.step(0.1)))?;
        assert_eq!(values(&first)?, values(&second)?);
    }
    let mut other = trainer(4, Optimizer::sgd(0.0))?;
    let before = values(&other)?;
    let error = other.load(&path).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("w has shape [2, 3], but the parameter has [2, 4]"), "{error}");
    assert_eq!(values(&other)?, before);
    // Parameters alone, such as a model's weights.
    let device = Executor::open("cpu", None)?;
    let ones = |shape: &[usize]| hologram_core::Tensor::ones(&device, DType::F32, shape);
    let mut weights = std::collections::BTreeMap::from([("w".to_string(), ones(&[2, 4])?)]);
    for (tensor, message) in
        [("b", "lacks the tensor b"), ("c", ""), ("d", "has the tensor c, which this training lacks")]
    {
        hologram_core::Tensor::save_safetensors(&weights, &path)?;
        let error = other.load(&path).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(message) && error.is_empty() == message.is_empty(), "{error}");
        weights.insert(tensor.into(), ones(&[2])?);
    }
    assert_eq!(values(&other)?, [vec![1.0; 8], vec![1.0; 2]]);
    std::fs::remove_file(path).map_err(|e| hologram_core::CoreError::Tensor(e.to_string()))
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
