//! Products of fixed sizes on an NVIDIA GPU, compared with sums in `f64`. cuBLASLt computes those of `bf16` if it is
//! installed; HOLOGRAM_CUBLASLT=0 selects our own kernels.

use hologram_core::ops::MatmulOptions;
use hologram_core::{DType, Dim, Executor, Graph, OpenOptions, Precision, Result, Tensor};
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

/// `f32` numbers of all 24 bits from -2 to 2, different for each seed.
fn floats(seed: u32, n: usize) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        (f64::from(x) / f64::from(u32::MAX) * 4.0 - 2.0) as f32
    };
    (0..n).map(|_| next()).collect()
}

/// A product of batches of matrices in `f32`: n × k · k × m, either stored transposed.
struct Floats {
    batches: usize,
    size: [usize; 3],
    transpose: [bool; 2],
    /// Whether it is x · wᵀ of `Graph::linear`.
    linear: bool,
}

impl Floats {
    fn product(&self, executor: &Executor, a: &[f32], b: &[f32]) -> Result<Vec<f32>> {
        let ([n, m, k], [ta, tb]) = (self.size, self.transpose);
        let dims = |x: usize, y: usize, turned: bool| if turned { [y, x] } else { [x, y] }.map(Dim::Fixed);
        let mut g = Graph::new();
        let of = |g: &mut Graph, name, [x, y]: [Dim; 2]| match self.linear {
            true => g.input(name, DType::F32, &[x, y]),
            false => g.input(name, DType::F32, &[Dim::Fixed(self.batches), x, y]),
        };
        let (left, right) = (of(&mut g, "a", dims(n, k, ta))?, of(&mut g, "b", dims(k, m, tb))?);
        let options = MatmulOptions { transpose_a: ta, transpose_b: tb, ..MatmulOptions::default() };
        let y = if self.linear { g.linear(left, right)? } else { g.batch_matmul(left, right, &options)? };
        g.output("y", y)?;
        let mut plan = g.compile(executor, &[])?;
        plan.write("a", a)?;
        plan.write("b", b)?;
        plan.run()?;
        plan.read("y")
    }

    /// The terms of an element of the result.
    fn terms<'a>(&self, a: &'a [f32], b: &'a [f32], at: usize) -> impl Iterator<Item = f64> + 'a {
        let ([n, m, k], [ta, tb]) = (self.size, self.transpose);
        let (batch, row, column) = (at / (n * m), at / m % n, at % m);
        (0..k).map(move |e| {
            let left = if ta { e * n + row } else { row * k + e };
            let right = if tb { column * k + e } else { e * m + column };
            f64::from(a[batch * n * k + left]) * f64::from(b[batch * k * m + right])
        })
    }
}

/// Products of `f32`, with the precision of `f32` and with elements rounded to tf32: large ones on tensor cores, in
/// sizes and layouts that fit their tiles and in others.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn products_of_f32_are_right() {
    let exact = Executor::open("cuda", None).unwrap();
    let options = OpenOptions { precision: Precision::Tf32, ..OpenOptions::default() };
    let rounded = Executor::open_with("cuda", &options).unwrap();
    let plain = |batches, size, transpose| Floats { batches, size, transpose, linear: false };
    let mut cases = vec![
        Floats { batches: 1, size: [512, 4096, 4096], transpose: [false, true], linear: true },
        Floats { batches: 1, size: [300, 1001, 2049], transpose: [false, true], linear: true },
        plain(64, [256, 256, 256], [false, false]),
        plain(3, [1000, 1023, 515], [true, true]),
        // Few tiles, whose depth is split.
        plain(1, [256, 256, 16384], [false, true]),
        plain(1, [257, 255, 9001], [true, false]),
    ];
    for transpose in [[false, false], [false, true], [true, false], [true, true]] {
        cases.push(plain(1, [2048, 2048, 2048], transpose));
        cases.push(plain(1, [1153, 1284, 1060], transpose));
    }
    for case in cases {
        let [n, m, k] = case.size;
        let what = format!("{} of {n} x {m} x {k}, {:?}", case.batches, case.transpose);
        let (a, b) = (floats(1, case.batches * n * k), floats(2, case.batches * k * m));
        let [y, y_rounded] = [&exact, &rounded].map(|executor| case.product(executor, &a, &b).unwrap());
        let (mut worst, mut worst_rounded) = (0.0f64, 0.0f64);
        // Some of the elements, spread over all rows and columns.
        for i in (0..y.len()).step_by(y.len() / 5000 + 1) {
            let (mut sum, mut squares, mut size) = (0.0, 0.0, 0.0);
            case.terms(&a, &b, i)
                .for_each(|term| (sum, squares, size) = (sum + term, squares + term * term, size + term.abs()));
            // As of all products in `f32`: roundings by 2^-24 of partial sums.
            let bound = (2.0 + 2.0 * (k as f64).sqrt()) * (f64::abs(sum) + f64::sqrt(squares)) * 2f64.powi(-24);
            worst = worst.max((f64::from(y[i]) - sum).abs() / bound);
            worst_rounded = worst_rounded.max((f64::from(y_rounded[i]) - sum).abs() / (size * 2f64.powi(-10) + bound));
        }
        println!("{what}: {worst:.3} and {worst_rounded:.3} of the bounds");
        // tf32 rounds by 2^-11, at random: what is far below that has not used it.
        assert!(worst <= 1.0 && worst_rounded <= 1.0 && worst_rounded > 1e-3, "{what}: {worst} {worst_rounded}");
    }
}

/// Infinities, NaN and the greatest numbers in a product that tensor cores compute in parts.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn odd_numbers_of_f32_stay() {
    let executor = Executor::open("cuda", None).unwrap();
    for transpose in [[false, false], [false, true], [true, false], [true, true]] {
        let case = Floats { batches: 1, size: [512, 640, 256], transpose, linear: false };
        let ([n, m, k], [ta, tb]) = (case.size, transpose);
        let (mut a, mut b) = (floats(3, n * k), floats(4, k * m));
        let left = |row: usize, e: usize| if ta { e * n + row } else { row * k + e };
        let right = |column: usize, e: usize| if tb { column * k + e } else { e * m + column };
        a[left(7, 100)] = f32::INFINITY;
        b[right(300, 31)] = f32::NEG_INFINITY;
        a[left(140, 5)] = f32::NAN;
        // Rows of the greatest number and of a small one: nothing else is in the sums.
        for e in 0..k {
            a[left(200, e)] = if e == 9 { f32::MAX } else { 0.0 };
            a[left(400, e)] = if e == 9 { f32::MIN_POSITIVE * 65536.0 } else { 0.0 };
        }
        let y = case.product(&executor, &a, &b).unwrap();
        for (row, column) in (0..n).flat_map(|row| [0, 5, 300, 301, m - 1].map(|column| (row, column))) {
            let at = row * m + column;
            let want: f64 = case.terms(&a, &b, at).sum();
            let (got, narrow) = (y[at], want as f32);
            let close = (f64::from(got) - want).abs() <= want.abs() * 1e-5 + 1e-4;
            let right = if row == 400 { (f64::from(got) / want - 1.0).abs() < 1e-4 } else { close };
            let same = got == narrow || (got.is_nan() && narrow.is_nan());
            assert!(
                same || (narrow.is_finite() && right),
                "{transpose:?}, row {row}, column {column}: {got} for {narrow}"
            );
        }
    }
}
