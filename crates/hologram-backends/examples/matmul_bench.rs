//! Benchmarks the CPU's matmul kernels on the shapes of a 1.1B Llama and of BitNet-2B. Reports GB/s of weights for one
//! token and GOP/s for many, with two references: a plain read of memory that takes turns with them, and the peak of
//! the processor's 8-bit dot products. All are medians.
//!
//! `cargo run --release -p hologram-backends --example matmul_bench -- [threads] [filter] [avx2|plain|cached]`
//!
//! The filter is part of a line, such as `Q4_0 up n1 `. With `cached` every launch reads the same matrix, which then
//! stays in the caches.

use std::time::{Duration, Instant};

use hologram_backends::cpu::{CpuBackend, CpuOptions, InstructionSet};
use hologram_backends::{
    Backend, Binding, Buffer, CeilingKind, CommandList, DType, Extent, KernelSpec, Launch, LaunchConfig, Operation,
    Result, TensorSpec,
};

/// Total size of the matrices of a decode measurement: too large for the caches, so weights come from memory.
const COLD_BYTES: usize = 192 << 20;
/// Duration of one measurement.
const TIME: Duration = Duration::from_millis(400);

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok());
    let filter = args.next().unwrap_or_default();
    let mode = args.next();
    let cached = mode.as_deref() == Some("cached");
    let max_isa = match mode.as_deref() {
        Some("avx2") => Some(InstructionSet::Avx2),
        Some("plain") => Some(InstructionSet::Plain),
        _ => None,
    };
    let backend = CpuBackend::with_options(CpuOptions { threads, max_isa, ..CpuOptions::default() })?;
    let threads = backend.info().parallelism;
    println!("{} · {threads} threads · {}", backend.info().name, backend.info().features.join(" "));
    let read = backend.measure().ceiling(CeilingKind::Read)?.expect("the CPU has one");
    let read = (backend.record(&[read.launch])?, read.amount);
    let peak = dot_product_peak() * threads as f64;
    println!("8-bit dot product peak {:.0} GOP/s", peak / 1e9);

    let group = |group| DType::I8Groups { group };
    let llama =
        [("q/o", 2048, 2048), ("k/v", 256, 2048), ("up", 5632, 2048), ("down", 2048, 5632), ("head", 32000, 2048)];
    let bitnet = [("q/o", 2560, 2560), ("k/v", 640, 2560), ("up", 6912, 2560), ("down", 2560, 6912)];
    let head = [("head", 128256, 2560)];
    println!(
        "{:<8} {:<7} {:>6} x {:<5} {:>5} {:>9} {:>8} {:>6} {:>8} {:>6}",
        "weights", "x", "m", "k", "n", "time", "GB/s", "of rd", "GOP/s", "of pk"
    );
    for (weights, per_row, shapes) in [
        (DType::Q8_0, false, &llama[..]),
        (DType::Q4_0, false, &llama[..]),
        (DType::Q4_1, false, &llama[2..4]),
        (DType::Q5_0, false, &llama[2..4]),
        (DType::Q5_1, false, &llama[2..4]),
        (DType::IQ4_NL, false, &llama[2..4]),
        (DType::Q2_K, false, &llama[2..4]),
        (DType::Q3_K, false, &llama[2..4]),
        (DType::Q4_K, false, &llama[..]),
        (DType::Q5_K, false, &llama[2..4]),
        (DType::Q6_K, false, &llama[..]),
        (DType::IQ4_XS, false, &llama[2..4]),
        (DType::TQ2_0, true, &bitnet[..]),
        (DType::F16, false, &llama[..]),
        (DType::F16, false, &head[..]),
        (DType::BF16, false, &llama[..3]),
        (DType::F32, false, &llama[..3]),
    ] {
        for &(name, m, k) in shapes {
            let x = match weights {
                DType::BF16 => DType::BF16,
                DType::Plain(_) => DType::F32,
                _ if per_row => group(k as u32),
                w if w.block_len() == 256 => group(256),
                _ => group(32),
            };
            for n in [1, 2, 3, 4, 5, 6, 8, 16, 64, 512] {
                let label = format!("{} {name} n{n} ", weights.name());
                if !label.contains(&filter) || (m > 30000 && n > 1) || (name.contains('/') && n != 1 && n != 512) {
                    continue;
                }
                // Prompt products use bf16 on processors with tiles.
                let tiled =
                    n >= 16 && backend.policy().activations(weights, k, n, &[x, DType::BF16]) == Some(DType::BF16);
                let x = if tiled && weights.is_quantized_weight() && !per_row { DType::BF16 } else { x };
                let (seconds, share) = measure(&backend, &read, (x, weights), (n, m, k), cached)?;
                let bytes = weights.bytes(m, k).unwrap_or(0) as f64;
                let operations = 2.0 * (n * m * k) as f64;
                println!(
                    "{:<8} {:<7} {m:>6} x {k:<5} {n:>5} {:>7.0}us {:>8.1} {:>5.0}% {:>8.0} {:>5.0}%",
                    weights.name(),
                    name,
                    seconds * 1e6,
                    bytes / seconds / 1e9,
                    100.0 * share,
                    operations / seconds / 1e9,
                    100.0 * operations / seconds / peak,
                );
            }
        }
    }
    Ok(())
}

/// The time of one matmul and the read speed of its weights as a share of the plain read beside it. The matrices
/// together exceed the caches; `cached` uses a single matrix.
fn measure(
    backend: &CpuBackend,
    (read, amount): &(CommandList, f64),
    (x, w): (DType, DType),
    (n, m, k): (usize, usize, usize),
    cached: bool,
) -> Result<(f64, f64)> {
    let tensor = |format, rows, len| TensorSpec { format, shape: vec![Extent::Fixed(rows), Extent::Fixed(len)] };
    let spec = KernelSpec {
        op: Operation::Matmul,
        inputs: vec![tensor(x, n, k), tensor(w, m, k)],
        output: tensor(DType::F32, n, m),
        in_place: None,
    };
    let pipeline = backend.kernels().native(&spec).expect("a native kernel serves these formats");
    let x_buffer = filled(backend, x.bytes(n, k).unwrap_or(0))?;
    let y_buffer = backend.allocate_buffer(n * m * 4)?;
    let bytes = w.bytes(m, k).unwrap_or(0);
    // Enough matrices to exceed the caches, read in turn as in a model; with many tokens one suffices.
    let count = if n > 16 { 1 } else { COLD_BYTES.div_ceil(bytes) };
    let same = cached.then(|| filled(backend, bytes)).transpose()?;
    let launches = (0..count)
        .map(|_| {
            let mut bindings = views(&x_buffer, &spec.inputs[0]);
            let matrix = same.clone().map_or_else(|| filled(backend, bytes), Ok)?;
            bindings.extend(views(&matrix, &spec.inputs[1]));
            bindings.extend(views(&y_buffer, &spec.output));
            Ok(Launch { pipeline: pipeline.clone(), bindings, config: LaunchConfig { grid: [1; 3] } })
        })
        .collect::<Result<Vec<Launch>>>()?;
    let list = backend.record(&launches)?;
    let time = |list: &CommandList| -> Result<f64> {
        let start = Instant::now();
        backend.wait(backend.submit(list)?)?;
        Ok(start.elapsed().as_secs_f64())
    };
    let (mut times, mut shares, start) = (Vec::new(), Vec::new(), Instant::now());
    while start.elapsed() < TIME || times.len() < 5 {
        let (reading, seconds) = (time(read)?, time(&list)? / count as f64);
        times.push(seconds);
        shares.push(bytes as f64 / seconds / (amount / reading));
    }
    let median = |mut values: Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Ok((median(times), median(shares)))
}

/// A buffer of bytes that make small numbers in every format.
fn filled(backend: &CpuBackend, bytes: usize) -> Result<Buffer> {
    let buffer = backend.allocate_buffer(bytes)?;
    let pattern: Vec<u8> = (0..1 << 16).map(|i| 0x21 + (i * 7 % 11) as u8).collect();
    for at in (0..bytes).step_by(pattern.len()) {
        backend.copy_to_buffer(&buffer, at, &pattern[..pattern.len().min(bytes - at)])?;
    }
    Ok(buffer)
}

fn views(buffer: &Buffer, tensor: &TensorSpec) -> Vec<Binding> {
    let views = tensor.format.views(tensor.max_rows(), tensor.row_len());
    let binding =
        |v: &hologram_backends::View| Binding::Buffer { buffer: buffer.clone(), range: v.offset..v.offset + v.bytes };
    views.iter().map(binding).collect()
}

/// Operations per second of one thread that runs only 8-bit dot products; 0 where the processor has none.
fn dot_product_peak() -> f64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512vnni") {
        use std::arch::x86_64::*;
        #[target_feature(enable = "avx512f,avx512vnni")]
        fn run(rounds: usize) -> i32 {
            let mut sums = [_mm512_setzero_si512(); 16];
            let (a, b) = (_mm512_set1_epi8(std::hint::black_box(3)), _mm512_set1_epi8(std::hint::black_box(5)));
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm512_dpbusd_epi32(*sum, a, b);
                }
            }
            sums.into_iter().map(|sum| _mm512_reduce_add_epi32(sum)).fold(0, i32::wrapping_add)
        }
        let rounds = 1 << 20;
        let mut best = f64::INFINITY;
        for _ in 0..10 {
            let start = Instant::now();
            // SAFETY: the processor has AVX-512 VNNI, and with it AVX-512 F.
            std::hint::black_box(unsafe { run(rounds) });
            best = best.min(start.elapsed().as_secs_f64());
        }
        return rounds as f64 * 16.0 * 128.0 / best;
    }
    0.0
}
