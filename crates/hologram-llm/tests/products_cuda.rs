//! Products with packed weights on an NVIDIA GPU at the sizes of models, whose tiles smaller matrices do not have.

use hologram_backends::DType;
use hologram_core::{Dim, Executor, Graph, Result, Tensor};
use hologram_isa::Type;
use hologram_llm::random_tensor;

/// Tokens, rows and row length: `wide_tiles` in hologram-gpu's `gemm/tests.rs` says which kernels have them.
const SIZES: [[usize; 3]; 6] =
    [[27, 28672, 4096], [32, 4096, 14336], [50, 4096, 4096], [170, 4096, 4096], [512, 28672, 4096], [512, 4096, 14336]];

/// x · wᵀ with the weights as they are stored, and with those that a lookup of all rows gives, rounded to `bf16` and
/// not.
fn all(executor: &Executor, format: DType, [n, m, k]: [usize; 3]) -> Result<[Vec<f32>; 3]> {
    let weights = random_tensor(executor, format, &[m, k], 7)?;
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, &[Dim::Fixed(n), Dim::Fixed(k)])?;
    let narrow = g.cast(x, Type::BF16)?;
    let w = g.constant(&weights)?;
    let stored = g.linear(narrow, w)?;
    g.output("stored", stored)?;
    let rows = g.arange(Type::U32, 0.0, 1.0, Dim::Fixed(m))?;
    let rows = g.gather(w, rows)?;
    let wide = g.cast(narrow, Type::F32)?;
    let exact = g.linear(wide, rows)?;
    g.output("exact", exact)?;
    let rows = g.cast(rows, Type::BF16)?;
    let rounded = g.linear(narrow, rows)?;
    g.output("rounded", rounded)?;
    let mut plan = g.compile(executor, &[])?;
    let values: Vec<f32> = (0..n * k).map(|i| ((i * 7919 + i / 31) % 2003) as f32 / 1001.0 - 1.0).collect();
    plan.write("x", &values)?;
    plan.run()?;
    Ok([plan.read("stored")?, plan.read("rounded")?, plan.read("exact")?])
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn packed_weights_are_multiplied_as_their_values_are() {
    let executor = Executor::open("cuda", None).unwrap();
    let mut wrong = Vec::new();
    let packed = DType::BLOCKS.into_iter().map(|format| executor.backend().policy().weight_layout(format));
    let packed: Vec<DType> = packed.filter(|format| format.packed().is_some()).collect();
    assert!(packed.len() > 10);
    for format in packed {
        for sizes in SIZES {
            let [stored, rounded, exact] = all(&executor, format, sizes).unwrap();
            let greatest = rounded.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            // A NaN counts as infinite.
            let off = |from: &[f32]| {
                let off = stored.iter().zip(from).map(|(a, b)| (a - b).abs());
                off.fold(0.0f32, |most, v| if v.is_nan() { f32::INFINITY } else { most.max(v) })
            };
            // Tensor cores multiply weights as `bf16`, or their codes, which are not rounded.
            let off = off(&rounded).min(off(&exact));
            if off > 1e-4 * greatest {
                wrong.push(format!("{} {sizes:?}: {off} of {greatest}", format.name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Products of up to 16 tokens of 8-bit codes with every type at the sizes of models, beside those with the same values
/// in `f32`. Each group's greatest activation is 127, so that nothing is rounded.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn few_tokens_of_codes_are_the_product_of_the_values() {
    let executor = Executor::open("cuda", None).unwrap();
    let layouts = DType::BLOCKS.into_iter().map(|format| executor.backend().policy().weight_layout(format));
    let layouts: Vec<DType> =
        layouts.filter(|format| matches!(format, DType::Planes(_)) && !format.has_float_codes()).collect();
    assert!(layouts.len() > 12);
    let mut wrong = Vec::new();
    for format in layouts.into_iter().filter(|format| !format.is_ternary()) {
        for [n, m, k] in [
            [8, 28672, 4096],
            [2, 6144, 4096],
            [7, 4096, 14336],
            [5, 1000, 2048],
            [3, 40, 256],
            [16, 4096, 14336],
            [9, 6144, 4096],
            [11, 1000, 16384],
        ] {
            let product = |values: bool| -> Result<Vec<f32>> {
                let mut g = Graph::new();
                let x = g.input("x", DType::F32, &[Dim::Fixed(n), Dim::Fixed(k)])?;
                let w = g.constant(&random_tensor(&executor, format, &[m, k], 7)?)?;
                let y = if values {
                    let all = g.arange(Type::U32, 0.0, 1.0, Dim::Fixed(m))?;
                    let rows = g.gather(w, all)?;
                    g.linear(x, rows)?
                } else {
                    let codes = g.quantize(x, 32, 0.0)?;
                    g.linear(codes, w)?
                };
                g.output("y", y)?;
                let mut plan = g.compile(&executor, &[])?;
                let value = |i: usize| if i % 32 == 5 { 127.0 } else { ((i * 7919 + i / 31) % 255) as f32 - 127.0 };
                plan.write("x", &(0..n * k).map(value).collect::<Vec<f32>>())?;
                plan.run()?;
                plan.read("y")
            };
            let [off, greatest] = difference(&[product(false).unwrap(), product(true).unwrap()]);
            if off > 5e-6 * greatest {
                wrong.push(format!("{} {n} x {m} x {k}: {off} of {greatest}", format.name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Products of FP8 with FP8 at the sizes of models, beside those of the same values in `f32`. Activations are floats of
/// 8 bits whose greatest is 448, so that nothing is rounded.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn fp8_with_fp8_is_the_product_of_the_values() {
    let executor = Executor::open("cuda", None).unwrap();
    let layout = executor.backend().policy().weight_layout(DType::F8_E4M3);
    let mut wrong = Vec::new();
    for [n, m, k] in [[65, 1024, 4096], [128, 4096, 4096], [170, 4096, 4096], [512, 28672, 4096], [512, 4096, 14336]] {
        let products = || -> Result<[Vec<f32>; 2]> {
            let weights = random_tensor(&executor, layout, &[m, k], 7)?;
            let mut g = Graph::new();
            let x = g.input("x", DType::F32, &[Dim::Fixed(n), Dim::Fixed(k)])?;
            let w = g.constant(&weights)?;
            let narrow = g.quantize_f8(x, k as u32)?;
            let stored = g.linear(narrow, w)?;
            g.output("stored", stored)?;
            let rows = g.arange(Type::U32, 0.0, 1.0, Dim::Fixed(m))?;
            let rows = g.gather(w, rows)?;
            let exact = g.linear(x, rows)?;
            g.output("exact", exact)?;
            let mut plan = g.compile(&executor, &[])?;
            let value = |i: usize| if i % k == 5 { 448.0 } else { ((i * 7919 + i / 31) % 29) as f32 - 14.0 };
            plan.write("x", &(0..n * k).map(value).collect::<Vec<f32>>())?;
            plan.run()?;
            Ok([plan.read("stored")?, plan.read("exact")?])
        };
        let [stored, exact] = products().unwrap();
        let greatest = exact.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        let off = stored.iter().zip(&exact).map(|(a, b)| (a - b).abs());
        let off = off.fold(0.0f32, |most, v| if v.is_nan() { f32::INFINITY } else { most.max(v) });
        // Sums of 128 have about 13 bits.
        if off > greatest / 512.0 {
            wrong.push(format!("{n} x {m} x {k}: {off} of {greatest}"));
        }
        println!("{n} x {m} x {k}: {off} of {greatest}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The largest difference of two results, and the greatest of the second. A NaN counts as infinite.
fn difference([values, exact]: &[Vec<f32>; 2]) -> [f32; 2] {
    let greatest = exact.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    let off = values.iter().zip(exact).map(|(a, b)| (a - b).abs());
    [off.fold(0.0f32, |most, v| if v.is_nan() { f32::INFINITY } else { most.max(v) }), greatest]
}

/// Activations of very different sizes.
fn activations(n: usize) -> Vec<f32> {
    let value = |i: usize| ((i * 7919 + i / 31) % 2003) as f32 / 1001.0 - 1.0;
    (0..n).map(|i| value(i) * if i % 97 == 0 { 1000.0 } else { 1.0 } * if i % 256 < 128 { 1.0 } else { 1e-3 }).collect()
}

/// Products of one or two tokens with FP8 weights at the sizes of models, alone and after a norm, beside those with the
/// same values in `f32`.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn few_tokens_with_fp8_are_the_product_of_the_values() {
    let executor = Executor::open("cuda", None).unwrap();
    let layout = executor.backend().policy().weight_layout(DType::F8_E4M3);
    let mut wrong = Vec::new();
    for ([n, m, k], norm) in [
        ([1, 6144, 4096], true),
        ([1, 4096, 4096], false),
        ([1, 28672, 4096], true),
        ([1, 4096, 14336], false),
        ([1, 5120, 2048], true),
        ([1, 10240, 8192], true),
        ([1, 1024, 128], false),
        ([2, 4096, 4096], true),
    ] {
        let product = |values: bool| -> Result<Vec<f32>> {
            let weights = random_tensor(&executor, layout, &[m, k], 7)?;
            let mut g = Graph::new();
            let mut x = g.input("x", DType::F32, &[Dim::Fixed(n), Dim::Fixed(k)])?;
            if norm {
                let gain = (0..k).map(|i| (i % 7) as f32 / 3.0).collect::<Vec<f32>>();
                let gain = g.constant(&Tensor::from_slice(&executor, &[k], &gain)?)?;
                x = g.rms_norm(x, gain, 1e-5)?;
            }
            let mut w = g.constant(&weights)?;
            if values {
                let rows = g.arange(Type::U32, 0.0, 1.0, Dim::Fixed(m))?;
                w = g.gather(w, rows)?;
            }
            let y = g.linear(x, w)?;
            g.output("y", y)?;
            let mut plan = g.compile(&executor, &[])?;
            plan.write("x", &activations(n * k))?;
            plan.run()?;
            plan.read("y")
        };
        let [off, greatest] = difference(&[product(false).unwrap(), product(true).unwrap()]);
        println!("{n} x {m} x {k}: {off} of {greatest}");
        if off > 2e-6 * greatest {
            wrong.push(format!("{n} x {m} x {k}: {off} of {greatest}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A layer's experts in FP8 for one token, with the sizes of Qwen3 30B A3B and of DeepSeek V2 Lite: gate, and sum with
/// a residual, beside those with the same values in `f32`.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn experts_in_fp8_are_the_products_of_the_values() {
    let executor = Executor::open("cuda", None).unwrap();
    let layout = executor.backend().policy().weight_layout(DType::F8_E4M3);
    let mut wrong = Vec::new();
    for [n, experts, slots, d, m] in [[1, 128, 8, 2048, 768], [2, 128, 8, 2048, 768], [1, 64, 6, 2048, 1408]] {
        let layer = |values: bool| -> Result<[Vec<f32>; 2]> {
            let mut g = Graph::new();
            let [n_dim, slots_dim] = [n, slots].map(Dim::Fixed);
            let x = g.input("x", DType::F32, &[n_dim, Dim::Fixed(d)])?;
            let ids = g.input("ids", DType::U32, &[n_dim, slots_dim])?;
            let weights = g.input("weights", DType::F32, &[n_dim, slots_dim])?;
            let mut matrix = |rows: usize, len: usize, seed| -> Result<_> {
                let weights = random_tensor(&executor, layout, &[experts * rows, len], seed)?;
                let w = g.constant(&weights)?;
                if !values {
                    return Ok(w);
                }
                let rows = g.arange(Type::U32, 0.0, 1.0, Dim::Fixed(experts * rows))?;
                g.gather(w, rows)
            };
            let (gate, up, down) = (matrix(m, d, 1)?, matrix(m, d, 2)?, matrix(d, m, 3)?);
            let gate = g.expert_linear(x, gate, ids, experts)?;
            let up = g.expert_linear(x, up, ids, experts)?;
            let y = g.swiglu(gate, up)?;
            let z = g.expert_linear(y, down, ids, experts)?;
            let z = g.expert_sum(z, weights)?;
            let z = g.add(x, z)?;
            g.output("gate", y)?;
            g.output("sum", z)?;
            let mut plan = g.compile(&executor, &[])?;
            plan.write("x", &activations(n * d))?;
            plan.write("ids", &(0..n * slots).map(|i| (i * 37 % experts) as u32).collect::<Vec<_>>())?;
            plan.write("weights", &(0..n * slots).map(|i| i as f32 / 10.0 - 0.3).collect::<Vec<f32>>())?;
            plan.run()?;
            Ok([plan.read("gate")?, plan.read("sum")?])
        };
        let ([gate, sum], [exact_gate, exact_sum]) = (layer(false).unwrap(), layer(true).unwrap());
        for (name, both) in [("gate", [gate, exact_gate]), ("sum", [sum, exact_sum])] {
            let [off, greatest] = difference(&both);
            println!("{name} of {n} x {slots} of {experts}, {m} x {d}: {off} of {greatest}");
            if off > 1e-5 * greatest {
                wrong.push(format!("{name} {n} {experts} {m} x {d}: {off} of {greatest}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Products of many tokens with the experts that each has chosen, some of them never and others often, beside those of
/// the same values in `f32`, which kernels without tiles compute.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn experts_of_many_tokens_are_the_products_of_the_values() {
    let executor = Executor::open("cuda", None).unwrap();
    let mut wrong = Vec::new();
    use DType as D;
    let floats = [D::BF16, D::F16, D::F8_E4M3, D::MXFP4];
    let codes = [D::Q8_0, D::Q4_0, D::Q2_K, D::Q3_K, D::Q4_K, D::Q5_K, D::Q6_K, D::IQ4_XS, D::IQ3_S_N];
    for format in floats.into_iter().chain(codes) {
        let layout = executor.backend().policy().weight_layout(format);
        let name = format.name();
        for [n, experts, slots, m, k] in [
            [600, 128, 8, 768, 2048],
            [600, 128, 8, 2048, 768],
            [300, 32, 4, 2880, 2880],
            [700, 60, 4, 1212, 320],
            [700, 16, 6, 1408, 2048],
        ] {
            if k % layout.block_len() != 0 {
                continue;
            }
            let products = || -> Result<[Vec<f32>; 2]> {
                let weights = random_tensor(&executor, layout, &[experts * m, k], 5)?;
                let mut g = Graph::new();
                let x = g.input("x", DType::F32, &[Dim::Fixed(n), Dim::Fixed(k)])?;
                let ids = g.input("ids", DType::U32, &[Dim::Fixed(n), Dim::Fixed(slots)])?;
                let narrow = g.cast(x, Type::BF16)?;
                let w = g.constant(&weights)?;
                let stored = g.expert_linear(narrow, w, ids, experts)?;
                g.output("stored", stored)?;
                let rows = g.arange(Type::U32, 0.0, 1.0, Dim::Fixed(experts * m))?;
                let rows = g.gather(w, rows)?;
                let [rows, wide] = [rows, narrow].map(|v| {
                    let narrow = g.cast(v, Type::BF16)?;
                    g.cast(narrow, Type::F32)
                });
                let values = g.expert_linear(wide?, rows?, ids, experts)?;
                g.output("values", values)?;
                let mut plan = g.compile(&executor, &[])?;
                plan.write("x", &activations(n * k))?;
                let chosen = |i: usize| (i * 7919 % 1013 * (i % 5) * experts / 4100) as u32;
                plan.write("ids", &(0..n * slots).map(chosen).collect::<Vec<_>>())?;
                plan.run()?;
                Ok([plan.read("stored")?, plan.read("values")?])
            };
            let [off, greatest] = difference(&products().unwrap());
            println!("{name}, {n} x {slots} of {experts}, {m} x {k}: {off} of {greatest}");
            if off > 1e-5 * greatest {
                wrong.push(format!("{name} {n} {experts} {m} x {k}: {off} of {greatest}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
