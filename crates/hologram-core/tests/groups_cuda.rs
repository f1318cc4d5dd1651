//! Groups that an NVIDIA GPU computes in one kernel and whose operations depend on each other through a state, compared
//! with the interpreter.

use hologram_backends::Binding;
use hologram_core::ops::RopeStyle;
use hologram_core::{CompileOptions, DType, Dim, Executor, Graph, Plan, Result, Tensor};
use hologram_isa::Type;

/// Sizes of a step: maximum tokens, heads, key/value heads, elements per head, rotated pairs, block size.
struct Sizes {
    tokens: usize,
    heads: [usize; 2],
    d: usize,
    pairs: usize,
    block: usize,
    style: RopeStyle,
    cache: DType,
}

/// A step's positions, sequences and slots.
type Step = (&'static [u32], &'static [u32], &'static [u32]);

const BLOCKS: usize = 8;
/// Sequences 0 and 1 share their first block; sequence 2 has its own.
const TABLE: [u32; 9] = [5, 2, 7, 5, 1, 0, 3, 4, 6];

/// Numbers around zero, different for each seed.
fn numbers(seed: u32, n: usize) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as f32 / u32::MAX as f32 * 4.0 - 2.0
    };
    (0..n).map(|_| next()).collect()
}

fn plan(executor: &Executor, s: &Sizes, native: bool) -> Result<(Plan, [Tensor; 2])> {
    let [heads, kv_heads] = s.heads;
    let mut g = Graph::new();
    let tokens = g.extent("tokens", s.tokens);
    let rows = |n: usize| [tokens, Dim::Fixed(n), Dim::Fixed(s.d)];
    let q = g.input("q", DType::F32, &rows(heads))?;
    let k = g.input("k", DType::F32, &rows(kv_heads))?;
    let v = g.input("v", DType::F32, &rows(kv_heads))?;
    let [positions, sequences, slots] = [
        g.input("positions", DType::U32, &[tokens])?,
        g.input("sequences", DType::U32, &[tokens])?,
        g.input("slots", DType::U32, &[tokens])?,
    ];
    let table = g.input("table", DType::U32, &[Dim::Fixed(3), Dim::Fixed(3)])?;
    let freqs: Vec<f32> = (0..s.pairs).map(|i| 100f32.powf(-(i as f32) / s.pairs as f32)).collect();
    let freqs = g.constant(&Tensor::from_slice(executor, &[s.pairs], &freqs)?)?;
    let q = g.rope(q, positions, freqs, s.style)?;
    let k = g.rope(k, positions, freqs, s.style)?;
    let caches = [1, 2].map(|seed| -> Result<Tensor> {
        let shape = [BLOCKS, kv_heads, s.block, s.d];
        let values = numbers(seed, shape.iter().product());
        let bytes: Vec<u8> = match s.cache {
            DType::F16 => values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
        Tensor::from_bytes(executor, s.cache, &shape, &bytes)
    });
    let [k_cache, v_cache] = caches;
    let (k_cache, v_cache) = (k_cache?, v_cache?);
    let (k_state, v_state) = (g.state(&k_cache)?, g.state(&v_cache)?);
    let k = g.kv_append(k_state, k, slots)?;
    let v = g.kv_append(v_state, v, slots)?;
    let y = g.attention(q, k, v, positions, sequences, table, 0.3)?;
    g.output("y", y)?;
    let plan = g.compile_with(executor, &[], CompileOptions { native, ..Default::default() })?;
    Ok((plan, [k_cache, v_cache]))
}

/// The elements of a cache.
fn elements(cache: &Tensor) -> Result<Vec<f32>> {
    let mut bytes = vec![0; cache.bytes()];
    if let [Binding::Buffer { buffer, range }] = cache.bindings().as_slice() {
        cache.executor().backend().copy_from_buffer(buffer, range.start, &mut bytes)?;
    }
    let mut values = vec![0.0; cache.shape().iter().product()];
    cache.dtype().decode_row(&bytes, &mut values)?;
    Ok(values)
}

/// The results of the steps in order, then the caches.
fn run(executor: &Executor, s: &Sizes, native: bool, steps: &[Step]) -> Result<(usize, Vec<f32>)> {
    let (mut plan, caches) = plan(executor, s, native)?;
    let mut results = Vec::new();
    for (i, (positions, sequences, slots)) in (0u32..).zip(steps) {
        let n = positions.len();
        plan.set_extent("tokens", n)?;
        for (name, heads, seed) in [("q", s.heads[0], 10), ("k", s.heads[1], 20), ("v", s.heads[1], 30)] {
            plan.write(name, &numbers(seed + i, n * heads * s.d))?;
        }
        plan.write("positions", positions)?;
        plan.write("sequences", sequences)?;
        plan.write("slots", slots)?;
        plan.write("table", &TABLE)?;
        plan.run()?;
        results.extend(plan.read::<f32>("y")?);
    }
    for cache in &caches {
        results.extend(elements(cache)?);
    }
    Ok((plan.launches(), results))
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn new_rows_are_seen_by_the_tokens_of_their_step() -> Result<()> {
    let steps: [Step; 5] = [
        // Tokens of one sequence that attend to each other across the border of a block.
        (&[14, 15, 16, 17], &[0; 4], &[94, 95, 32, 33]),
        // A row stored in a block that another sequence of the step reads too.
        (&[3, 20], &[1, 0], &[83, 36]),
        (&[21, 47, 0], &[0, 1, 2], &[37, 15, 48]),
        // A slot that the block table does not lead to: the row is stored and not read.
        (&[22], &[0], &[100]),
        (&[38, 39, 40, 41, 42, 43, 44, 45], &[2; 8], &[102, 103, 104, 105, 106, 107, 108, 109]),
    ];
    let (gpu, interpreter) = (Executor::open("cuda", None)?, Executor::open("reference", None)?);
    for (heads, d, pairs, style, cache) in [
        ([4, 1], 64, 32, RopeStyle::HalfSplit, DType::F32),
        ([6, 3], 128, 64, RopeStyle::Adjacent, DType::F16),
        ([7, 1], 40, 12, RopeStyle::HalfSplit, DType::F32),
        ([2, 2], 128, 16, RopeStyle::Adjacent, DType::F32),
    ] {
        let sizes = Sizes { tokens: 8, heads, d, pairs, block: 16, style, cache };
        let (launches, got) = run(&gpu, &sizes, true, &steps)?;
        let (_, want) = run(&interpreter, &sizes, false, &steps)?;
        assert_eq!(launches, 1, "one kernel for all five operations");
        assert_eq!(got.len(), want.len());
        // A key rounded to f16 may become a neighbouring value.
        let bound = if cache == DType::F16 { 2e-3 } else { 2e-5 };
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!((got - want).abs() <= bound, "heads {heads:?}, d {d}: element {i} is {got}, not {want}");
        }
    }
    Ok(())
}

/// Kernels of products ask for their weights before the launch before them has ended. Weights that a launch of the same
/// plan writes must be the new ones: with twice the factor results are twice as large. (Not to the bit: `f16` is
/// subnormal sooner.) Norms let the next launch begin before they do.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn weights_that_a_plan_computes_are_read_when_they_are_written() {
    let executor = Executor::open("cuda", None).unwrap();
    let (m, k) = (4096, 4096);
    let values = Tensor::from_slice(&executor, &[m, k], &numbers(3, m * k)).unwrap();
    for of in [Type::F32, Type::F16, Type::BF16] {
        for n in [1, 2, 3, 8, 32] {
            let run = || -> Result<Vec<Vec<f32>>> {
                let mut g = Graph::new();
                let x = g.input("x", DType::F32, &[Dim::Fixed(n), Dim::Fixed(k)])?;
                let gain = g.input("gain", DType::F32, &[Dim::Fixed(k)])?;
                let w = g.constant(&values)?;
                let w = g.rms_norm(w, gain, 1e-5)?;
                let w = if of == Type::F32 { w } else { g.cast(w, of)? };
                let x = if of == Type::BF16 { g.cast(x, of)? } else { x };
                let y = g.linear(x, w)?;
                g.output("y", y)?;
                let mut plan = g.compile(&executor, &[])?;
                plan.write("x", &numbers(5, n * k))?;
                let all = [1.0f32, 2.0, 4.0, 0.5, 8.0].map(|factor| {
                    plan.write("gain", &vec![factor; k])?;
                    plan.run()?;
                    let y: Vec<f32> = plan.read("y")?;
                    Ok(y.into_iter().map(|y| y / factor).collect())
                });
                all.into_iter().collect()
            };
            let all = run().unwrap();
            let greatest = all[0].iter().fold(0.0f32, |most, y| most.max(y.abs()));
            for (i, y) in all.iter().enumerate() {
                let off = y.iter().zip(&all[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off < 1e-3 * greatest, "{of:?} · {n}, run {i}: off by {off} of {greatest}");
            }
        }
    }
}
