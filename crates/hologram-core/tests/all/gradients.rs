//! Gradients: rules against central differences, and the properties of `Graph::gradients`.

use hologram_core::conformance::check_gradients;
use hologram_core::ops::Reduction;
use hologram_core::{DType, Dim, Executor, Graph, NodeId, Result, Tensor};

#[test]
fn rules_equal_central_differences() {
    let (cases, failures) = check_gradients(None);
    assert!(cases > 150, "{cases} cases");
    assert!(failures.is_empty(), "{} of {cases} gradients fail:\n{}", failures.len(), failures.join("\n"));
}

/// The gradients by `x`, `f32 [3]` of these numbers, of what `build` makes of it.
fn by_x(x: [f32; 3], build: impl FnOnce(&mut Graph, NodeId) -> Result<NodeId>) -> Result<Vec<f32>> {
    let mut g = Graph::new();
    let input = g.input("x", DType::F32, &[Dim::Fixed(3)])?;
    let loss = build(&mut g, input)?;
    let grad = g.gradients(loss, &[input])?[0];
    let grad = g.copy(grad)?;
    g.output("grad", grad)?;
    let mut plan = g.compile(&Executor::open("cpu", None)?, &[])?;
    plan.write("x", &x)?;
    plan.run()?;
    plan.read("grad")
}

#[test]
fn gradients_pass_where_they_should() -> Result<()> {
    let x = [0.4f32, -1.6, 2.5];
    // Rounding has the slope 0; straight through it, the slope of its operand.
    assert_eq!(
        by_x(x, |g, x| {
            let r = g.round(x)?;
            g.reduce_sum(r)
        })?,
        [0.0; 3]
    );
    let squared_rounding = |g: &mut Graph, x| {
        let rounded = g.round(x)?;
        let rounded = g.straight_through(x, rounded)?;
        let square = g.mul(rounded, rounded)?;
        g.reduce_sum(square)
    };
    assert_eq!(by_x(x, squared_rounding)?, [0.0, -4.0, 4.0]);
    // x · detach(x) has the slope x, not 2x; a value through integers none.
    assert_eq!(
        by_x(x, |g, x| {
            let d = g.detach(x)?;
            let y = g.mul(x, d)?;
            g.reduce_sum(y)
        })?,
        x
    );
    let through_integers = |g: &mut Graph, x| {
        let whole = g.cast(x, DType::I32)?;
        let whole = g.cast(whole, DType::F32)?;
        let y = g.mul(x, whole)?;
        g.reduce_sum(y)
    };
    assert_eq!(by_x(x, through_integers)?, [0.0, -1.0, 2.0]);
    // Ternary weights: the mean magnitude is 1.5, of which 0.4 rounds to 0.
    let ternary = |g: &mut Graph, x| {
        let weights = g.ternary(x)?;
        let square = g.mul(weights, weights)?;
        g.reduce_sum(square)
    };
    assert_eq!(by_x(x, ternary)?, [0.0, -3.0, 3.0]);
    // Activations in 8 bits: x / (2.5 / 127) rounds to 20, -81 and 127.
    let rounded = |g: &mut Graph, x| {
        let y = g.round_activations(x, 1e-5)?;
        let square = g.mul(y, y)?;
        g.reduce_sum(square)
    };
    let want = [20.0f32, -81.0, 127.0].map(|code| 2.0 * code * (2.5 / 127.0));
    assert!(by_x(x, rounded)?.iter().zip(want).all(|(have, want)| (have - want).abs() < 1e-6));
    // A value that the loss does not depend on.
    assert_eq!(by_x(x, |g, _| g.scalar(DType::F32, 3.0))?, [0.0; 3]);
    Ok(())
}

#[test]
fn narrow_floats_have_narrow_gradients() -> Result<()> {
    for ty in [DType::F16, DType::BF16] {
        let grad = by_x([1.0, 0.5, -2.0], |g, x| {
            let x = g.cast(x, ty)?;
            let y = g.exp(x)?;
            let y = g.cast(y, DType::F32)?;
            g.reduce_sum(y)
        })?;
        for (have, want) in grad.into_iter().zip([1.0f32.exp(), 0.5f32.exp(), (-2.0f32).exp()]) {
            assert!((have - want).abs() < want / 100.0, "{}: {have}, not {want}", ty.name());
        }
    }
    Ok(())
}

#[test]
fn run_time_extents_are_summed_over() -> Result<()> {
    let device = Executor::open("cpu", None)?;
    let mut g = Graph::new();
    let rows = g.extent("rows", 5);
    let x = g.input("x", DType::F32, &[rows, Dim::Fixed(2)])?;
    let w = g.input("w", DType::F32, &[Dim::Fixed(2)])?;
    let y = g.mul(x, w)?;
    let loss = g.reduce_all(y, hologram_core::ops::Reduction::Mean)?;
    let grad = g.gradients(loss, &[w])?[0];
    g.output("grad", grad)?;
    let mut plan = g.compile(&device, &[])?;
    plan.write("w", &[1.0f32, 1.0])?;
    for (n, want) in [(2usize, [1.0f32, 1.5]), (3, [1.5, 2.0])] {
        plan.set_extent("rows", n)?;
        plan.write("x", &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
        plan.run()?;
        assert_eq!(plan.read::<f32>("grad")?, want);
    }
    Ok(())
}

#[test]
fn what_has_no_gradient_is_named() -> Result<()> {
    let device = Executor::open("cpu", None)?;
    let state = Tensor::from_slice(&device, &[1, 1, 4, 4], &[0.0f32; 16])?;
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, &[Dim::Fixed(2), Dim::Fixed(64)])?;
    let ids = g.input("ids", DType::U32, &[Dim::Fixed(2)])?;
    let codes = g.quantize(x, 32, 0.0)?;
    let w = g.input("w", DType::Q8_0, &[Dim::Fixed(1), Dim::Fixed(64)])?;
    let y = g.linear(codes, w)?;
    let loss = g.reduce_all(y, hologram_core::ops::Reduction::Sum)?;
    let error = |result: Result<Vec<NodeId>>| result.map(drop).map_err(|e| e.to_string()).unwrap_err();
    assert!(
        error(g.gradients(loss, &[x])).contains("a product of quantized activations has no derivative; Graph::detach")
    );
    assert!(error(g.gradients(y, &[x])).contains("the loss must be a float of one element"));
    assert!(error(g.gradients(loss, &[ids])).contains("only floats have gradients"));
    // A gradient may not read a state that has been updated since.
    let cache = g.state(&state)?;
    let part = g.reshape(cache, &[Dim::Fixed(16)])?;
    let squares = g.mul(part, part)?;
    let loss = g.reduce_sum(squares)?;
    let (row, slot) = (
        g.input("row", DType::F32, &[Dim::Fixed(1), Dim::Fixed(1), Dim::Fixed(4)])?,
        g.input("slot", DType::U32, &[Dim::Fixed(1)])?,
    );
    assert_eq!(g.gradients(loss, &[part])?.len(), 1);
    g.kv_append(cache, row, slot)?;
    assert!(error(g.gradients(loss, &[part])).contains("an older version of a state"));
    Ok(())
}

/// Gradients of a deep network by its input and weights, and the bytes of all values at their peak.
fn deep(checkpointed: bool) -> Result<(Vec<u32>, usize)> {
    const ROWS: usize = 64;
    const WIDTH: usize = 32;
    const LAYERS: usize = 8;
    let fixed = |shape: &[usize]| shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
    let device = Executor::open("cpu", None)?;
    let mut g = Graph::new();
    let input = g.input("x", DType::F32, &fixed(&[ROWS, WIDTH]))?;
    let (mut x, mut wrt) = (input, vec![input]);
    for layer in 0..LAYERS {
        let values: Vec<f32> =
            (0..4 * WIDTH * WIDTH).map(|i| ((i * 7 + layer * 13) % 29) as f32 / 100.0 - 0.14).collect();
        let w = g.constant(&Tensor::from_slice(&device, &[4 * WIDTH, WIDTH], &values)?)?;
        wrt.push(w);
        let block = |g: &mut Graph| {
            let h = g.linear(x, w)?;
            let h = g.gelu_tanh(h)?;
            // Views, a copy of one, and a value without gradient.
            let h = g.reshape(h, &fixed(&[ROWS, 4, WIDTH]))?;
            let h = g.permute(h, &[1, 0, 2])?;
            let h = g.softmax(h, 2)?;
            let free = g.detach(h)?;
            let h = g.mul(h, free)?;
            let h = g.sum_to(h, &fixed(&[ROWS, WIDTH]))?;
            g.add(x, h)
        };
        x = if checkpointed { g.checkpoint(block)? } else { block(&mut g)? };
    }
    let squares = g.mul(x, x)?;
    let loss = g.reduce_all(squares, hologram_core::ops::Reduction::Mean)?;
    for (i, grad) in g.gradients(loss, &wrt)?.into_iter().enumerate() {
        let grad = g.copy(grad)?;
        g.output(&i.to_string(), grad)?;
    }
    let mut plan = g.compile(&device, &[])?;
    plan.write("x", &(0..ROWS * WIDTH).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect::<Vec<_>>())?;
    plan.run()?;
    let mut bits = Vec::new();
    for i in 0..wrt.len() {
        bits.extend(plan.read::<f32>(&i.to_string())?.into_iter().map(f32::to_bits));
    }
    Ok((bits, plan.arena_bytes()))
}

#[test]
fn checkpoints_need_less_memory_for_the_same_bits() -> Result<()> {
    let ((want, all), (have, peak)) = (deep(false)?, deep(true)?);
    assert!(want.iter().any(|bits| f32::from_bits(*bits) != 0.0));
    assert!(have == want, "the gradients differ");
    assert!(peak * 2 < all, "{peak} bytes of {all}");

    let device = Executor::open("cpu", None)?;
    let mut g = Graph::new();
    let state = g.state(&Tensor::from_slice(&device, &[1, 1024], &[0.0f32; 1024])?)?;
    let x = g.input("x", DType::F32, &[Dim::Fixed(1024)])?;
    let y = g.checkpoint(|g| {
        let rates = g.input("rates", DType::F32, &[Dim::Fixed(3)])?;
        let one = g.scalar(DType::F32, 1.0)?;
        g.optimizer_step(state, x, rates, one, &hologram_core::ops::Optimizer::sgd(0.0), 0)?;
        g.sin(x)
    })?;
    let loss = g.reduce_sum(y)?;
    let error = g.gradients(loss, &[x]).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("in a checkpoint updates a state"), "{error}");
    Ok(())
}

/// Sizes and values at which the plain rule fails: no elements, and a division of 0 by 0.
#[test]
fn gradients_exist_at_the_edges() -> Result<()> {
    for (shape, dim) in [(&[0][..], 0), (&[0, 3], 0), (&[0, 3], 1), (&[3, 0], 1)] {
        let mut g = Graph::new();
        let x = g.input("x", DType::F32, &shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>())?;
        let sorted = g.sort(x, dim, false)?;
        let loss = g.reduce_all(sorted, Reduction::Sum)?;
        let grad = g.gradients(loss, &[x])?[0];
        g.output("grad", grad)?;
        let mut plan = g.compile(&Executor::open("cpu", None)?, &[])?;
        plan.write::<f32>("x", &[])?;
        plan.run()?;
        assert!(plan.read::<f32>("grad")?.is_empty(), "{shape:?} {dim}");
    }
    let hypot = |g: &mut Graph, x| {
        let other = g.mul_scalar(x, 2.0)?;
        let other = g.detach(other)?;
        let y = g.hypot(x, other)?;
        g.reduce_sum(y)
    };
    let slope = 1.0 / 5f32.sqrt();
    let by_x = by_x([0.0, 3.0, -1.0], hypot)?;
    assert!(by_x.iter().zip([0.0, slope, -slope]).all(|(have, want)| (have - want).abs() < 1e-6), "{by_x:?}");
    Ok(())
}
