//! Products of fixed sizes on an NVIDIA GPU, compared with sums in `f64`. cuBLASLt computes them if it is installed;
//! HOLOGRAM_CUBLASLT=0 selects our own kernels.

use hologram_core::{DType, Dim, Executor, Graph, Result, Tensor};
use hologram_isa::Type;

/// Numbers of `bf16` from -2 to 2, different for each seed.
fn numbers(seed: u32, n: usize) -> Vec<half::bf16> {
    let mut x = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        half::bf16::from_f32(x as f32 / u32::MAX as f32 * 4.0 - 2.0)
    };
    (0..n).map(|_| next()).collect()
}

/// Runs x · wᵀ twice, with or without an addition, and returns the result and the kernels' names.
fn product(executor: &Executor, n: usize, m: usize, k: usize, adds: bool) -> Result<(Vec<f32>, Vec<String>)> {
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, &[Dim::Fixed(n), Dim::Fixed(k)])?;
    let w: Vec<u8> = numbers(2, m * k).iter().flat_map(|v| v.to_le_bytes()).collect();
    let w = g.constant(&Tensor::from_bytes(executor, DType::BF16, &[m, k], &w)?)?;
    let narrow = g.cast(x, Type::BF16)?;
    let mut y = g.linear(narrow, w)?;
    if adds {
        let more = g.input("more", DType::F32, &[Dim::Fixed(n), Dim::Fixed(m)])?;
        y = g.add(more, y)?;
    }
    g.output("y", y)?;
    let mut plan = g.compile(executor, &[])?;
    let wide = |seed, n| numbers(seed, n).iter().map(|v| v.to_f32()).collect::<Vec<f32>>();
    for seed in [7, 1] {
        plan.write("x", &wide(seed, n * k))?;
        if adds {
            plan.write("more", &wide(3, n * m))?;
        }
        plan.run()?;
    }
    let y = plan.read("y")?;
    Ok((y, plan.profile()?.iter().map(|(name, _)| name.to_string()).collect()))
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn products_of_fixed_sizes_are_right() {
    let executor = Executor::open("cuda", None).unwrap();
    let devices = hologram_backends::devices();
    let (_, gpu) = devices.iter().find(|(name, _)| name == "cuda:0").unwrap();
    let details = &gpu.as_ref().unwrap().details;
    let (_, library) = details.iter().find(|(name, _)| *name == "cublaslt").unwrap();
    let found = library.starts_with("found");
    println!("cublaslt {library}");
    for (n, m, k, adds, by_library) in [
        (128, 2048, 2048, false, true),
        (300, 4096, 1032, true, true),
        (64, 2048, 2048, true, true),
        (1000, 1024, 4096, false, true),
        (1000, 1024, 4096, true, false),
        (32, 2048, 2048, true, false),
    ] {
        let (y, names) = product(&executor, n, m, k, adds).unwrap();
        let named = names.iter().any(|name| name.ends_with(" (cuBLASLt)"));
        assert_eq!(named, found && by_library, "{n} {m} {k} {adds}: {names:?}");
        let (x, w, more) = (numbers(1, n * k), numbers(2, m * k), numbers(3, n * m));
        // Some of the elements, spread over all rows and columns.
        for i in (0..n * m).step_by(389) {
            let (row, column) = (i / m, i % m);
            let terms = (0..k).map(|e| (x[row * k + e].to_f64(), w[column * k + e].to_f64()));
            let (sum, size) = terms.fold((0.0, 0.0), |(s, a), (x, w)| (s + x * w, a + (x * w).abs()));
            let want = if adds { sum + more[i].to_f64() } else { sum };
            let error = (f64::from(y[i]) - want).abs();
            let bound = (k as f64).sqrt() * f64::from(f32::EPSILON) * size + 1e-6;
            assert!(error <= bound, "{n} {m} {k} {adds}, element {i}: {} for {want}", y[i]);
        }
    }
}
