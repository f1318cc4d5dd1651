//! Benchmarks the CPU's attention kernel on one layer of known shapes, then the small operations of a layer. For many
//! tokens it reports the share of the peak of fused multiply-adds; for one token, the share of the read bandwidth.
//!
//! `cargo run --release -p hologram-backends --example attention_bench -- [threads] [filter]`

use std::time::{Duration, Instant};

use hologram_backends::cpu::CpuBackend;
use hologram_backends::{
    AttentionPrecision, Backend, Binding, Buffer, DType, Elementwise, Extent, KernelSpec, Launch, LaunchConfig,
    Operation, Result, RopeStyle, TensorSpec,
};

/// Layers whose caches a measurement cycles through.
const LAYERS: usize = 22;
/// Positions per block.
const BLOCK: usize = 32;
/// Duration of one measurement.
const TIME: Duration = Duration::from_millis(400);

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok());
    let filter = args.next().unwrap_or_default();
    let backend = CpuBackend::new(threads)?;
    let threads = backend.info().parallelism;
    println!("{} · {threads} threads · {}", backend.info().name, backend.info().features.join(" "));
    let bandwidth = backend.measure().read_bandwidth()?;
    println!("read bandwidth {:.1} GB/s", bandwidth / 1e9);
    let peak = fma_peak() * threads as f64;
    println!("fused multiply-add peak {:.0} GFLOP/s", peak / 1e9);
    println!(
        "{:<9} {:>5} {:>8} {:>4} {:>6} {:>6} {:>6} {:>9} {:>8} {:>6} {:>8} {:>6}",
        "attention", "heads", "kv heads", "d", "cache", "tokens", "before", "time", "GFLOP/s", "of pk", "GB/s", "of bw"
    );
    for (model, heads, kv_heads, d) in
        [("llama-1b", 32, 4, 64), ("llama-3b", 24, 8, 128), ("bitnet-2b", 20, 5, 128), ("mha", 16, 16, 64)]
    {
        for cache in [DType::F32, DType::F16] {
            for (tokens, before) in [(512, 0), (64, 576), (8, 632), (1, 639), (1, 127), (1, 4095)] {
                let label = format!("{model} {} n{tokens} p{before} ", cache.name());
                if !label.contains(&filter) {
                    continue;
                }
                let seconds = attention(&backend, (heads, kv_heads, d), cache, tokens, before)?;
                let seen: usize = (before + 1..=before + tokens).sum();
                let operations = 4.0 * (seen * heads * d) as f64;
                let bytes = cache.bytes(2 * kv_heads * (before + tokens), d).unwrap_or(0) as f64;
                println!(
                    "{model:<9} {heads:>5} {kv_heads:>8} {d:>4} {:>6} {tokens:>6} {before:>6} {:>7.0}us {:>8.1} {:>5.0}% \
                     {:>8.1} {:>5.0}%",
                    cache.name(),
                    seconds * 1e6,
                    operations / seconds / 1e9,
                    100.0 * operations / seconds / peak,
                    bytes / seconds / 1e9,
                    100.0 * bytes / seconds / bandwidth,
                );
            }
        }
    }
    for tokens in [1, 512] {
        for (name, spec) in small(tokens) {
            if !format!("{name} n{tokens} ").contains(&filter) {
                continue;
            }
            let bytes: usize = spec.inputs.iter().chain([&spec.output]).map(TensorSpec::max_bytes).sum();
            let launch = launch(&backend, &spec, &[])?;
            let seconds = best_of(&backend, &vec![launch; if tokens == 1 { 32 } else { 1 }])?;
            println!(
                "{name:<9} tokens {tokens:>4} {:>9.1}us {:>8.1} GB/s",
                seconds * 1e6,
                bytes as f64 / seconds / 1e9
            );
        }
    }
    Ok(())
}

fn tensor(format: DType, shape: &[usize]) -> TensorSpec {
    TensorSpec { format, shape: shape.iter().map(|n| Extent::Fixed(*n)).collect() }
}

/// The best time of attention for one layer: `tokens` tokens of one sequence that has `before` earlier ones.
fn attention(
    backend: &CpuBackend,
    (heads, kv_heads, d): (usize, usize, usize),
    format: DType,
    tokens: usize,
    before: usize,
) -> Result<f64> {
    let blocks = (before + tokens).div_ceil(BLOCK);
    let cache = tensor(format, &[blocks, kv_heads, BLOCK, d]);
    let (q, ids) = (tensor(DType::F32, &[tokens, heads, d]), tensor(DType::U32, &[tokens]));
    let spec = KernelSpec {
        op: Operation::Attention {
            scale: (1.0 / (d as f32).sqrt()).into(),
            precision: AttentionPrecision::F32,
            window: None,
            cap: None,
            pieces: false,
        },
        inputs: vec![q.clone(), cache.clone(), cache, ids.clone(), ids, tensor(DType::U32, &[1, blocks])],
        output: q,
        in_place: None,
    };
    let positions: Vec<u32> = (before..before + tokens).map(|p| p as u32).collect();
    let table: Vec<u32> = (0..blocks as u32).rev().collect();
    let known = [(3, positions), (4, vec![0; tokens]), (5, table)];
    // With one token the layers run in turn, each with its own cache, as in a model.
    let layers = if tokens == 1 { LAYERS } else { 1 };
    let launches = (0..layers).map(|_| launch(backend, &spec, &known)).collect::<Result<Vec<_>>>()?;
    best_of(backend, &launches)
}

/// The small operations of a layer of a 1.1B Llama.
fn small(tokens: usize) -> Vec<(&'static str, KernelSpec)> {
    let f32s = |shape: &[usize]| tensor(DType::F32, shape);
    let ids = tensor(DType::U32, &[tokens]);
    let (hidden, q, kv, ffn) =
        (f32s(&[tokens, 2048]), f32s(&[tokens, 32, 64]), f32s(&[tokens, 4, 64]), f32s(&[tokens, 5632]));
    let cache = f32s(&[tokens.div_ceil(BLOCK), 4, BLOCK, 64]);
    let spec = |op: Operation, inputs: Vec<TensorSpec>, output: &TensorSpec| {
        let in_place = (op == Operation::KvAppend).then_some(0);
        (op.name(), KernelSpec { op, inputs, output: output.clone(), in_place })
    };
    let rope = Operation::Rope { style: RopeStyle::Adjacent };
    vec![
        spec(Operation::RmsNorm { eps: 1e-5.into() }, vec![hidden.clone(), f32s(&[2048])], &hidden),
        spec(rope, vec![q.clone(), ids.clone(), f32s(&[32])], &q),
        spec(Operation::KvAppend, vec![cache.clone(), kv, ids], &cache),
        spec(Elementwise::Swiglu.into(), vec![ffn.clone(), ffn.clone()], &ffn),
        spec(Elementwise::Relu2Mul.into(), vec![ffn.clone(), ffn.clone()], &ffn),
        spec(Elementwise::Add.into(), vec![hidden.clone(), hidden.clone()], &hidden),
    ]
}

/// A launch with fresh buffers. `known` gives the words of some inputs; other ids are 0, 1, 2, …, and the rest small
/// numbers.
fn launch(backend: &CpuBackend, spec: &KernelSpec, known: &[(usize, Vec<u32>)]) -> Result<Launch> {
    let pipeline = backend.kernels().native(spec).expect("a native kernel serves these formats");
    let mut bindings = Vec::new();
    let outputs = if spec.in_place.is_some() { None } else { Some(&spec.output) };
    for (index, tensor) in spec.inputs.iter().chain(outputs).enumerate() {
        let buffer = backend.allocate_buffer(tensor.max_bytes())?;
        let words = known.iter().find(|(i, _)| *i == index).map(|(_, words)| words.clone());
        let words = words.unwrap_or_else(|| match tensor.format {
            DType::F32 => (0..tensor.max_bytes() / 4).map(|i| ((i * 7 % 31) as f32 / 31.0 - 0.4).to_bits()).collect(),
            // Two `f16` numbers of about 0.3 to 0.6.
            DType::F16 => {
                (0..tensor.max_bytes() / 4).map(|i| 0x3521_b488 + (i as u32 * 7 % 31) * 0x0010_0008).collect()
            }
            _ => (0..tensor.max_bytes() as u32 / 4).collect(),
        });
        fill(backend, &buffer, &words)?;
        bindings.push(Binding::whole(&buffer));
    }
    Ok(Launch { pipeline, bindings, config: LaunchConfig { grid: [1; 3] } })
}

fn fill(backend: &CpuBackend, buffer: &Buffer, words: &[u32]) -> Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    backend.copy_to_buffer(buffer, 0, &bytes)
}

/// The best time of a run of the launches, divided by their number.
fn best_of(backend: &CpuBackend, launches: &[Launch]) -> Result<f64> {
    let list = backend.record(launches)?;
    let (mut best, start) = (f64::INFINITY, Instant::now());
    while start.elapsed() < TIME || best.is_infinite() {
        let start = Instant::now();
        backend.submit(&list)?;
        backend.synchronize()?;
        best = best.min(start.elapsed().as_secs_f64() / launches.len() as f64);
    }
    Ok(best)
}

/// Floating-point operations per second of one thread that runs only fused multiply-adds of the widest vectors; 0
/// without AVX2.
fn fma_peak() -> f64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2") {
        use std::arch::x86_64::*;
        // Eight lanes: this understates processors that run sixteen at twice this rate.
        #[target_feature(enable = "avx2,fma")]
        fn run(rounds: usize) -> f32 {
            let mut sums = [_mm256_setzero_ps(); 12];
            let (a, b) = (_mm256_set1_ps(std::hint::black_box(0.5)), _mm256_set1_ps(std::hint::black_box(0.25)));
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm256_fmadd_ps(*sum, a, b);
                }
            }
            sums.into_iter().map(|sum| _mm256_cvtss_f32(sum)).sum()
        }
        let rounds = 1 << 20;
        let mut best = f64::INFINITY;
        for _ in 0..8 {
            let start = Instant::now();
            // SAFETY: the processor has AVX2 and FMA.
            std::hint::black_box(unsafe { run(rounds) });
            best = best.min(start.elapsed().as_secs_f64());
        }
        return (rounds * 12 * 8 * 2) as f64 / best;
    }
    0.0
}
