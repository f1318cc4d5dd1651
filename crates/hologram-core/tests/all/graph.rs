//! Graphs: fusion, memory, extents, state, errors, and the same results on two devices.

use hologram_core::ops::RopeStyle;
use hologram_core::{CompileOptions, DType, Dim, Executor, Graph, NodeId, Result, Tensor};

fn cpu() -> Executor {
    Executor::open("cpu", Some(2)).expect("there is always a CPU")
}

fn vector(n: usize, f: impl Fn(usize) -> f32) -> Vec<f32> {
    (0..n).map(f).collect()
}

/// Pseudo-random numbers in -1..1.
fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    vector(n, |_| 0.0)
        .into_iter()
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x as f32 / 2_147_483_648.0 - 1.0
        })
        .collect()
}

#[test]
fn chains_of_elementwise_operations_are_one_launch() -> Result<()> {
    type Build = fn(&mut Graph, NodeId) -> Result<NodeId>;
    type Chain<'a> = (&'a str, usize, fn(f32) -> f32, Build);
    let cases: &[Chain] = &[
        (
            "a chain",
            1,
            |x| (x + x).max(0.0) * x,
            |g, x| {
                let y = g.add(x, x)?;
                let y = g.relu(y)?;
                g.mul(y, x)
            },
        ),
        (
            "a tree",
            1,
            |x| -x + x.abs(),
            |g, x| {
                let (l, r) = (g.neg(x)?, g.abs(x)?);
                g.add(l, r)
            },
        ),
        (
            "a value with two users",
            2,
            |x| (x + x).abs() - -(x + x),
            |g, x| {
                let y = g.add(x, x)?;
                let (l, r) = (g.abs(y)?, g.neg(y)?);
                g.sub(l, r)
            },
        ),
        (
            "a value that is an output",
            2,
            |x| -(x + x),
            |g, x| {
                let y = g.add(x, x)?;
                g.output("middle", y)?;
                g.neg(y)
            },
        ),
        (
            "a reshape between",
            2,
            |x| -(x + x),
            |g, x| {
                let y = g.add(x, x)?;
                let y = g.reshape(y, &[Dim::Fixed(4)])?;
                let y = g.neg(y)?;
                g.reshape(y, &[Dim::Fixed(2), Dim::Fixed(2)])
            },
        ),
        (
            "a widened value with two users",
            3,
            |x| -(x * x),
            |g, x| {
                let narrow = g.cast(x, DType::BF16)?;
                g.output("narrow", narrow)?;
                let wide = g.cast(narrow, DType::F32)?;
                let minus = g.neg(wide)?;
                g.output("minus", minus)?;
                g.mul(wide, minus)
            },
        ),
        (
            "a widened value that a chain computes, with two users",
            3,
            |x| -4.0 * (x * x),
            |g, x| {
                let double = g.add(x, x)?;
                let narrow = g.cast(double, DType::BF16)?;
                let wide = g.cast(narrow, DType::F32)?;
                let minus = g.neg(wide)?;
                g.output("minus", minus)?;
                g.mul(wide, minus)
            },
        ),
        (
            "a value that nothing needs",
            1,
            |x| -x,
            |g, x| {
                let dead = g.abs(x)?;
                g.mul(dead, x)?;
                g.neg(x)
            },
        ),
    ];
    let executor = cpu();
    for (name, launches, f, build) in cases {
        let mut g = Graph::new();
        let x = g.input("x", DType::F32, &[Dim::Fixed(2), Dim::Fixed(2)])?;
        let y = build(&mut g, x)?;
        g.output("y", y)?;
        let mut plan = g.compile(&executor, &[])?;
        assert_eq!(plan.launches(), *launches, "{name}");
        let x = [1.0, -2.0, 0.5, -0.25];
        plan.write("x", &x)?;
        plan.run()?;
        assert_eq!(plan.read::<f32>("y")?, x.map(*f), "{name}");
    }
    Ok(())
}

#[test]
fn memory_of_values_no_longer_needed_is_used_again() -> Result<()> {
    let executor = cpu();
    let (rows, d) = (16, 256);
    let weight = Tensor::from_slice(&executor, &[d], &vector(d, |i| 1.0 + i as f32 / 256.0))?;
    let build = |layers: usize, keep_first: bool| -> Result<usize> {
        let mut g = Graph::new();
        let x = g.input("x", DType::F32, &[Dim::Fixed(rows), Dim::Fixed(d)])?;
        let w = g.constant(&weight)?;
        let first = g.rms_norm(x, w, 1e-5)?;
        // A reshape keeps the memory that it views alive.
        let kept = g.reshape(first, &[Dim::Fixed(rows * d)])?;
        let mut y = first;
        for _ in 1..layers {
            y = g.rms_norm(y, w, 1e-5)?;
        }
        if keep_first {
            let flat = g.reshape(y, &[Dim::Fixed(rows * d)])?;
            y = g.add(flat, kept)?;
        }
        g.output("y", y)?;
        let mut plan = g.compile(&executor, &[])?;
        plan.write("x", &noise(rows * d, 1))?;
        plan.run()?;
        plan.read::<f32>("y")?;
        Ok(plan.arena_bytes() / (rows * d * 4))
    };
    assert_eq!(build(12, false)?, 2);
    assert_eq!(build(12, true)?, 3);
    Ok(())
}

#[test]
fn one_plan_serves_every_value_of_an_extent_up_to_its_bucket() -> Result<()> {
    let executor = cpu();
    let mut g = Graph::new();
    let rows = g.extent("rows", 64);
    let x = g.input("x", DType::F32, &[rows, Dim::Fixed(3)])?;
    let w = g.constant(&Tensor::from_slice(&executor, &[3], &[1.0f32, 10.0, 100.0])?)?;
    let y = g.mul(x, w)?;
    let heads = g.reshape(y, &[rows, Dim::Fixed(3), Dim::Fixed(1)])?;
    g.output("y", y)?;
    g.output("heads", heads)?;
    let (mut small, mut large) = (g.compile(&executor, &[("rows", 4)])?, g.compile(&executor, &[])?);
    assert!(small.arena_bytes() < large.arena_bytes());
    for n in [4, 0, 1, 3] {
        let data = noise(n * 3, n as u32);
        let expected: Vec<f32> = data.iter().zip([1.0, 10.0, 100.0].iter().cycle()).map(|(a, b)| a * b).collect();
        for plan in [&mut small, &mut large] {
            plan.set_extent("rows", n)?;
            plan.write("x", &data)?;
            plan.run()?;
            assert_eq!(plan.read::<f32>("y")?, expected);
            assert_eq!(plan.read::<f32>("heads")?, expected);
        }
    }
    assert_eq!(
        small.set_extent("rows", 5).unwrap_err().to_string(),
        "plan: extent rows is at most 4 in this plan, not 5"
    );
    Ok(())
}

/// A cache of one block of 16 slots with one head of 4 elements, and a graph that appends to it and
/// reads it by attention.
fn append_graph(cache: &[Tensor; 2]) -> Result<Graph> {
    let mut g = Graph::new();
    let tokens = g.extent("tokens", 8);
    let x = g.input("x", DType::F32, &[tokens, Dim::Fixed(1), Dim::Fixed(4)])?;
    let index = |g: &mut Graph, name: &str| g.input(name, DType::U32, &[tokens]);
    let (slots, positions, sequences) =
        (index(&mut g, "slots")?, index(&mut g, "positions")?, index(&mut g, "sequences")?);
    let table = g.input("table", DType::U32, &[Dim::Fixed(1), Dim::Fixed(1)])?;
    let (k, v) = (g.state(&cache[0])?, g.state(&cache[1])?);
    let k = g.kv_append(k, x, slots)?;
    let v = g.kv_append(v, x, slots)?;
    let y = g.attention(x, k, v, positions, sequences, table, 0.5)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn two_plans_share_a_state() -> Result<()> {
    let executor = cpu();
    let cache = || -> Result<[Tensor; 2]> {
        let one = || -> Result<Tensor> {
            let t = Tensor::empty(&executor, DType::F32, &[1, 1, 16, 4])?;
            t.zero()?;
            Ok(t)
        };
        Ok([one()?, one()?])
    };
    let data = noise(6 * 4, 7);
    let go = |plan: &mut hologram_core::Plan, range: std::ops::Range<usize>| -> Result<Vec<f32>> {
        let indices: Vec<u32> = range.clone().map(|i| i as u32).collect();
        plan.set_extent("tokens", range.len())?;
        plan.write("x", &data[range.start * 4..range.end * 4])?;
        plan.write("slots", &indices)?;
        plan.write("positions", &indices)?;
        plan.write("sequences", &vec![0u32; range.len()])?;
        plan.write("table", &[0u32])?;
        plan.run()?;
        plan.read("y")
    };
    let at_once = go(&mut append_graph(&cache()?)?.compile(&executor, &[])?, 0..6)?;
    let shared = cache()?;
    let g = append_graph(&shared)?;
    let (mut prefill, mut decode) =
        (g.compile(&executor, &[])?, append_graph(&shared)?.compile(&executor, &[("tokens", 1)])?);
    let mut parts = go(&mut prefill, 0..4)?;
    parts.extend(go(&mut decode, 4..5)?);
    parts.extend(go(&mut decode, 5..6)?);
    assert_eq!(shared[0].to_vec::<f32>()?[..24], data[..]);
    for (a, b) in parts.iter().zip(&at_once) {
        assert!((a - b).abs() < 1e-6, "{a} and {b}");
    }
    Ok(())
}

#[test]
fn a_read_before_an_update_sees_the_older_content() -> Result<()> {
    let executor = cpu();
    let state = Tensor::from_slice(&executor, &[1, 1, 16, 1], &[1.0f32; 16])?;
    let mut g = Graph::new();
    let s = g.state(&state)?;
    let before = g.neg(s)?;
    let x = g.constant(&Tensor::from_slice(&executor, &[1, 1, 1], &[5.0f32])?)?;
    let slots = g.constant(&Tensor::from_slice(&executor, &[1], &[3u32])?)?;
    let new = g.kv_append(s, x, slots)?;
    // If this were fused with the negation, it would read the state too late.
    let after = g.add(before, new)?;
    g.output("after", after)?;
    let mut plan = g.compile(&executor, &[])?;
    plan.run()?;
    let expected = vector(16, |i| if i == 3 { 4.0 } else { 0.0 });
    assert_eq!(plan.read::<f32>("after")?, expected);
    assert_eq!(state.to_vec::<f32>()?[3], 5.0);
    Ok(())
}

#[test]
fn what_is_wrong_with_a_graph_is_said() -> Result<()> {
    let executor = cpu();
    let cache = Tensor::empty(&executor, DType::F32, &[1, 1, 16, 4])?;
    type Build<'a> = &'a dyn Fn(&mut Graph) -> Result<()>;
    let f32s = |g: &mut Graph, name: &str, shape: &[usize]| {
        g.input(name, DType::F32, &shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>())
    };
    let cases: &[(&str, Build)] = &[
        ("operation matmul: takes x [n, k] and w [m, k] (operands: f32[2, 3], f32[4, 5])", &|g| {
            let (x, w) = (f32s(g, "x", &[2, 3])?, f32s(g, "w", &[4, 5])?);
            g.linear(x, w).map(drop)
        }),
        ("operation quantize: groups of 32 do not divide rows of 48 (operands: f32[2, 48])", &|g| {
            let x = f32s(g, "x", &[2, 48])?;
            g.quantize(x, 32, 0.0).map(drop)
        }),
        ("operation matmul: there is no product of i8/64 and f32 (operands: i8/64[rows, 64], f32[4, 64])", &|g| {
            let rows = g.extent("rows", 4);
            let x = g.input("x", DType::F32, &[rows, Dim::Fixed(64)])?;
            let (x, w) = (g.quantize(x, 64, 0.0)?, f32s(g, "w", &[4, 64])?);
            g.linear(x, w).map(drop)
        }),
        (
            "operation rope: 4 frequencies do not fit heads of 6 elements (operands: f32[1, 1, 6], u32[1], f32[4])",
            &|g| {
                let (x, f) = (f32s(g, "x", &[1, 1, 6])?, f32s(g, "f", &[4])?);
                let p = g.input("p", DType::U32, &[Dim::Fixed(1)])?;
                g.rope(x, p, f, RopeStyle::Adjacent).map(drop)
            },
        ),
        ("operation reshape: f32[7] has not the same elements (operands: f32[2, 3])", &|g| {
            let x = f32s(g, "x", &[2, 3])?;
            g.reshape(x, &[Dim::Fixed(7)]).map(drop)
        }),
        ("operation reshape: only a state's content before its updates has views (operands: f32[1, 1, 16, 4])", &|g| {
            let (s, x) = (g.state(&cache)?, f32s(g, "x", &[1, 1, 4])?);
            let slots = g.input("slots", DType::U32, &[Dim::Fixed(1)])?;
            let s = g.kv_append(s, x, slots)?;
            g.reshape(s, &[Dim::Fixed(64)]).map(drop)
        }),
        ("graph: kv_append reads an older version of a state that a later operation has overwritten", &|g| {
            let (s, x) = (g.state(&cache)?, f32s(g, "x", &[1, 1, 4])?);
            let slots = g.input("slots", DType::U32, &[Dim::Fixed(1)])?;
            g.kv_append(s, x, slots)?;
            g.kv_append(s, x, slots).map(drop)
        }),
        ("graph: kv_append updates a tensor that is not a state", &|g| {
            let (c, x) = (g.constant(&cache)?, f32s(g, "x", &[1, 1, 4])?);
            let slots = g.input("slots", DType::U32, &[Dim::Fixed(1)])?;
            g.kv_append(c, x, slots).map(drop)
        }),
        (
            "graph: the state Tensor(f32 [1, 1, 16, 4] on cpu) and the constant Tensor(f32 [1, 2, 4] on cpu) share memory; \
             declare the state once, or give the graph a copy (Tensor::copy) of one",
            &|g| {
                // If the graph accepted it, one worker would read it while another writes it.
                let part = cache.reshape(&[16, 4])?.slice(0, 3, 5)?.reshape(&[1, 2, 4])?;
                let s = g.state(&cache)?;
                let (x, slots) = (g.constant(&part)?, g.input("slots", DType::U32, &[Dim::Fixed(1)])?);
                g.kv_append(s, x, slots).map(drop)
            },
        ),
        (
            "graph: the state Tensor(f32 [1, 1, 16, 4] on cpu) and the tensor Tensor(f32 [16, 2] on cpu) share memory; \
             declare the state once, or give the graph a copy (Tensor::copy) of one",
            &|g| {
                g.constant(&cache.reshape(&[16, 4])?.slice(1, 2, 4)?)?;
                g.state(&cache).map(drop)
            },
        ),
        (
            "graph: the state Tensor(f32 [1, 1, 16, 4] on cpu) and the tensor Tensor(f32 [1, 1, 16, 4] on cpu) share \
             memory; declare the state once, or give the graph a copy (Tensor::copy) of one",
            &|g| {
                g.state(&cache)?;
                g.state(&cache).map(drop)
            },
        ),
        ("graph: two inputs are named x", &|g| {
            f32s(g, "x", &[1])?;
            f32s(g, "x", &[2]).map(drop)
        }),
        ("graph: output y must be the result of an operation and not a state", &|g| {
            let x = f32s(g, "x", &[2])?;
            g.output("y", x)
        }),
        ("graph: only the first dimension may be a run-time extent: f32[2, rows]", &|g| {
            let rows = g.extent("rows", 4);
            g.input("x", DType::F32, &[Dim::Fixed(2), rows]).map(drop)
        }),
        ("graph: two extents are named rows", &|g| {
            g.extent("rows", 4);
            g.extent("rows", 5);
            g.compile(&executor, &[]).map(drop)
        }),
        ("graph: there is no extent named cols", &|g| g.compile(&executor, &[("cols", 1)]).map(drop)),
        ("graph: extent rows is at most 4, not 5", &|g| {
            g.extent("rows", 4);
            g.compile(&executor, &[("rows", 5)]).map(drop)
        }),
    ];
    for (expected, build) in cases {
        assert_eq!(build(&mut Graph::new()).expect_err(expected).to_string(), *expected);
    }
    Ok(())
}

/// Tensors next to a state's memory, or elsewhere in its buffer, do not overlap it.
#[test]
fn a_state_may_have_neighbours_and_copies() -> Result<()> {
    let executor = cpu();
    let all = Tensor::from_slice(&executor, &[4, 1, 4, 4], &(0..64).map(|i| i as f32).collect::<Vec<_>>())?;
    let row = |i: usize| all.slice(0, i, i + 1);
    let cache = row(1)?;
    let mut g = Graph::new();
    let before = g.constant(&row(0)?.reshape(&[4, 1, 4])?)?;
    let state = g.state(&cache)?;
    g.state(&row(2)?)?;
    g.constant(&row(3)?)?;
    g.constant(&row(0)?.slice(2, 0, 0)?)?;
    g.constant(&cache.copy()?)?;
    let slots = g.constant(&Tensor::from_slice(&executor, &[4], &[3u32, 2, 1, 0])?)?;
    g.kv_append(state, before, slots)?;
    let mut plan = g.compile(&executor, &[])?;
    plan.run()?;
    let want = [12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3].map(|i| i as f32);
    assert_eq!(cache.to_vec::<f32>()?, want);
    assert_eq!(row(2)?.to_vec::<f32>()?, (32..48).map(|i| i as f32).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn what_is_wrong_with_a_run_is_said() -> Result<()> {
    let mut g = Graph::new();
    let rows = g.extent("rows", 4);
    let ids = g.input("ids", DType::U32, &[rows])?;
    let executor = cpu();
    let table = g.constant(&Tensor::from_slice(&executor, &[3, 2], &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0])?)?;
    let y = g.gather(table, ids)?;
    g.output("y", y)?;
    for native in [false, true] {
        let mut plan = g.compile_with(&executor, &[], CompileOptions { native, ..Default::default() })?;
        for (expected, error) in [
            ("plan: there is no input named id", plan.write("id", &[0u32]).err()),
            ("plan: input ids has elements of u32, not f32", plan.write("ids", &[0.0f32]).err()),
            ("plan: input ids holds at most 4 elements, not 5", plan.write("ids", &[0u32; 5]).err()),
            ("plan: there is no extent named row", plan.set_extent("row", 1).err()),
            ("plan: there is no output named z", plan.read::<f32>("z").err()),
            ("plan: output y has elements of f32, not u32", plan.read::<u32>("y").err()),
        ] {
            assert_eq!(error.map(|e| e.to_string()).as_deref(), Some(expected));
        }
        // A row that does not exist is an error of that run only.
        plan.set_extent("rows", 2)?;
        plan.write("ids", &[2u32, 3])?;
        let error = plan.run().and_then(|()| plan.read::<f32>("y")).expect_err("row 3 of 3");
        assert!(error.to_string().contains("gather"), "{error}");
        plan.write("ids", &[2u32, 0])?;
        plan.run()?;
        assert_eq!(plan.read::<f32>("y")?, [4.0, 5.0, 0.0, 1.0]);
    }
    Ok(())
}

#[test]
fn tensors_of_another_device_are_refused() -> Result<()> {
    let (here, there) = (cpu(), Executor::open("reference", None)?);
    let mut g = Graph::new();
    let x = g.constant(&Tensor::from_slice(&there, &[2], &[1.0f32, 2.0])?)?;
    let y = g.neg(x)?;
    g.output("y", y)?;
    let error = g.compile(&here, &[]).map(drop).expect_err("a tensor of another device").to_string();
    assert!(error.contains("reference"), "{error}");
    Ok(())
}

/// Two layers of attention and feed-forward as in Llama, with 2 heads of 16 elements that share one kv head.
fn transformer(executor: &Executor) -> Result<Graph> {
    const D: usize = 32;
    let mut g = Graph::new();
    let mut seed = 10;
    let mut weight = |g: &mut Graph, shape: &[usize]| {
        seed += 1;
        let n: usize = shape.iter().product();
        let data: Vec<f32> = noise(n, seed).iter().map(|v| v / (D as f32).sqrt()).collect();
        g.constant(&Tensor::from_slice(executor, shape, &data)?)
    };
    let tokens = g.extent("tokens", 8);
    let index = |g: &mut Graph, name: &str| g.input(name, DType::U32, &[tokens]);
    let (ids, slots) = (index(&mut g, "ids")?, index(&mut g, "slots")?);
    let (positions, sequences) = (index(&mut g, "positions")?, index(&mut g, "sequences")?);
    let block_table = g.input("block_table", DType::U32, &[Dim::Fixed(2), Dim::Fixed(2)])?;
    let freqs = g.constant(&Tensor::from_slice(executor, &[8], &vector(8, |i| 0.5f32.powi(i as i32)))?)?;
    let table = weight(&mut g, &[50, D])?;
    let mut x = g.gather(table, ids)?;
    for _ in 0..2 {
        let norm = weight(&mut g, &[D])?;
        let h = g.rms_norm(x, norm, 1e-5)?;
        let mut heads = |g: &mut Graph, n: usize| {
            let w = weight(g, &[n * 16, D])?;
            let y = g.linear(h, w)?;
            g.reshape(y, &[tokens, Dim::Fixed(n), Dim::Fixed(16)])
        };
        let (q, k, v) = (heads(&mut g, 2)?, heads(&mut g, 1)?, heads(&mut g, 1)?);
        let q = g.rope(q, positions, freqs, RopeStyle::HalfSplit)?;
        let k = g.rope(k, positions, freqs, RopeStyle::HalfSplit)?;
        let append = |g: &mut Graph, x: NodeId| {
            let cache = Tensor::empty(executor, DType::F16, &[4, 1, 16, 16])?;
            cache.zero()?;
            let cache = g.state(&cache)?;
            g.kv_append(cache, x, slots)
        };
        let (k, v) = (append(&mut g, k)?, append(&mut g, v)?);
        let y = g.attention(q, k, v, positions, sequences, block_table, 0.25)?;
        let y = g.reshape(y, &[tokens, Dim::Fixed(D)])?;
        let wo = weight(&mut g, &[D, D])?;
        let y = g.linear(y, wo)?;
        x = g.add(x, y)?;
        let norm = weight(&mut g, &[D])?;
        let h = g.rms_norm(x, norm, 1e-5)?;
        let (gate, up, down) = (weight(&mut g, &[64, D])?, weight(&mut g, &[64, D])?, weight(&mut g, &[D, 64])?);
        let (gate, up) = (g.linear(h, gate)?, g.linear(h, up)?);
        let y = g.swiglu(gate, up)?;
        let y = g.linear(y, down)?;
        x = g.add(x, y)?;
    }
    let logits = g.linear(x, table)?;
    g.output("logits", logits)?;
    Ok(g)
}

#[test]
fn a_small_transformer_agrees_with_the_interpreter() -> Result<()> {
    let run = |device: &str, native: bool| -> Result<Vec<f32>> {
        let executor = Executor::open(device, Some(2))?;
        let mut plan =
            transformer(&executor)?.compile_with(&executor, &[], CompileOptions { native, ..Default::default() })?;
        let mut logits = Vec::new();
        // Two prompts at once, then one token of each. Sequence 0 has blocks 3 and 0, sequence 1 has block 2.
        for (ids, slots, positions, sequences) in [
            (&[1u32, 2, 3, 40, 41][..], &[48u32, 49, 50, 32, 33][..], &[0u32, 1, 2, 0, 1][..], &[0u32, 0, 0, 1, 1][..]),
            (&[4, 42], &[51, 34], &[3, 2], &[0, 1]),
        ] {
            plan.set_extent("tokens", ids.len())?;
            plan.write("ids", ids)?;
            plan.write("slots", slots)?;
            plan.write("positions", positions)?;
            plan.write("sequences", sequences)?;
            plan.write("block_table", &[3u32, 0, 2, 0])?;
            plan.run()?;
            logits.extend(plan.read::<f32>("logits")?);
        }
        Ok(logits)
    };
    let reference = run("reference", false)?;
    assert_eq!(run("cpu", false)?, reference, "programs compute the same bits on every device");
    let native = run("cpu", true)?;
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let difference =
        norm(&mut native.iter().zip(&reference).map(|(a, b)| a - b)) / norm(&mut reference.iter().copied());
    assert!(difference < 1e-4, "native kernels are off by {difference}");
    Ok(())
}

/// The device gets the parts of a large input that were written, and no others.
#[test]
fn large_inputs_are_sent_in_parts() {
    const LEN: usize = 1 << 18;
    let executor = Executor::open("cpu", Some(1)).unwrap();
    let mut g = Graph::new();
    let rows = g.extent("rows", 4);
    let table = g.input("table", DType::F32, &[Dim::Fixed(LEN)]).unwrap();
    let places = g.input("places", DType::U32, &[rows]).unwrap();
    let table = g.reshape(table, &[Dim::Fixed(LEN), Dim::Fixed(1)]).unwrap();
    let found = g.gather(table, places).unwrap();
    g.output("found", found).unwrap();
    let mut plan = g.compile(&executor, &[]).unwrap();
    let sent = || executor.metrics().bytes_to_device;
    let mut host = vec![0.0f32; LEN];
    for (round, (first, len)) in
        [(0, LEN), (7, 1), (LEN - 1, 1), (3, 5000), (100_000, 2), (0, 0)].into_iter().enumerate()
    {
        let new: Vec<f32> = (0..len).map(|i| (i * 7 + round) as f32).collect();
        host[first..first + len].copy_from_slice(&new);
        plan.write_at("table", first, &new).unwrap();
        let places = [first.min(LEN - 1), (first + len).min(LEN - 1), 5, LEN - 1];
        let n = 1 + round % 4;
        plan.write("places", &places.map(|p| p as u32)[..n]).unwrap();
        plan.set_extent("rows", n).unwrap();
        let before = sent();
        plan.run().unwrap();
        let sent = sent() - before;
        assert!(
            if round == 0 { sent >= 4 * LEN as u64 } else { sent < 4 * len as u64 + 20_000 },
            "{sent} bytes, {len}"
        );
        let want: Vec<f32> = places[..n].iter().map(|p| host[*p]).collect();
        assert_eq!(plan.read::<f32>("found").unwrap(), want, "round {round}");
    }
    let error = plan.write_at("table", LEN - 1, &[1.0f32, 2.0]).unwrap_err().to_string();
    assert!(error.contains("holds at most 262144 elements, not 262145"), "{error}");
    assert!(plan.write_at("table", usize::MAX, &[1.0f32]).is_err());
}

/// A plan's results become a later run's inputs without the host, in the order of the device's work.
#[test]
fn results_become_inputs_on_the_device() -> Result<()> {
    let executor = cpu();
    let mut g = Graph::new();
    let n = g.extent("n", 4);
    let x = g.input("x", DType::U32, &[n])?;
    let y = g.input("y", DType::F32, &[Dim::Fixed(2)])?;
    let sum = g.add(x, x)?;
    g.output("sum", sum)?;
    let y = g.add(y, y)?;
    g.output("y", y)?;
    let mut plan = g.compile(&executor, &[])?;
    let kept = Tensor::from_slice(&executor, &[5], &[0u32, 0, 0, 0, 90])?;
    assert!(plan.copy_output("sum", &kept, 0, 1).is_err(), "nothing has run");
    plan.write("x", &[1u32, 2, 3, 4])?;
    plan.run()?;
    plan.copy_output("sum", &kept, 1, 3)?;
    // The first two of the next run's inputs are the host's again.
    plan.write("x", &[10u32, 20, 0, 0])?;
    plan.write_from("x", 2, &kept, 2, 1)?;
    plan.write_from("x", 3, &kept, 4, 1)?;
    plan.run()?;
    assert_eq!(plan.read::<u32>("sum")?, [20, 40, 8, 180]);
    let mut first = [0u32; 3];
    kept.read_into(&mut first)?;
    assert_eq!((first, kept.to_vec::<u32>()?), ([0, 2, 4], vec![0, 2, 4, 6, 90]));
    // Only that run's.
    plan.run()?;
    assert_eq!(plan.read::<u32>("sum")?, [20, 40, 0, 0]);

    plan.set_extent("n", 2)?;
    plan.run()?;
    let bad = [
        plan.copy_output("sum", &kept, 0, 3).unwrap_err(),
        plan.copy_output("sum", &kept, 4, 2).unwrap_err(),
        plan.copy_output("y", &kept, 0, 1).unwrap_err(),
        plan.copy_output("z", &kept, 0, 1).unwrap_err(),
        plan.write_from("x", 3, &kept, 0, 2).unwrap_err(),
        plan.write_from("x", usize::MAX, &kept, 0, 2).unwrap_err(),
        plan.write_from("x", 0, &kept, 5, 1).unwrap_err(),
        plan.write_from("y", 0, &kept, 0, 1).unwrap_err(),
        plan.write_from("x", 0, &kept.slice_step(0, None, None, 2)?, 0, 1).unwrap_err(),
        kept.read_into(&mut [0u32; 6]).unwrap_err(),
        kept.read_into(&mut [0f32; 1]).unwrap_err(),
    ];
    for (error, part) in bad.iter().zip([
        "has 2 elements, not 3",
        "no 2 elements from 4",
        "dense tensor",
        "no output named z",
        "no 2 elements from 3",
        "no 2 elements",
        "no 1 elements from 5",
        "dense tensor",
        "dense tensor",
        "has no 24",
        "cannot be read as f32",
    ]) {
        assert!(error.to_string().contains(part), "{error}: {part}");
    }
    Ok(())
}
