//! Programs on an NVIDIA GPU: random ones against the reference interpreter, bit for bit; every instruction at its
//! limits; faults; the error bounds of fast forms.
//!
//! ```text
//! HOLOGRAM_RANDOM_PROGRAMS=10000 cargo test --release -p hologram-backends --test programs_cuda -- --ignored
//! ```
//!
//! Random programs spend nearly all their time in compilation, which the driver runs on one thread per process; large
//! numbers of them are therefore divided among processes.

use std::process::Command;
use std::sync::Arc;

use hologram_backends::compare::{random_program, run};
use hologram_backends::{Backend, open};
use hologram_isa::random::Random;
use hologram_isa::{Access, Builder, Type, Value};

mod common;
use common::*;

/// Above this number, random programs are divided among processes.
const ALONE: u64 = 200;
/// Set in a process that runs a part.
const PART: &str = "HOLOGRAM_RANDOM_PART";

fn cuda() -> Arc<dyn Backend> {
    open("cuda", None).unwrap()
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn random_programs_give_the_interpreters_bits() {
    let (start, count) = (number("HOLOGRAM_RANDOM_SEED", 0), number("HOLOGRAM_RANDOM_PROGRAMS", 1000));
    let processes = std::thread::available_parallelism().map_or(1, |n| n.get() as u64).min(count / ALONE);
    if processes > 1 && std::env::var_os(PART).is_none() {
        return divide(start, count, processes);
    }
    let device = cuda();
    for seed in start..start + count {
        let difference = random_program(&*device, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(difference.is_none(), "{}", difference.unwrap_or_default());
    }
}

/// Runs this test in several processes, each with a part of the seeds and a temporary cache of its own.
fn divide(start: u64, count: u64, processes: u64) {
    let cache = std::env::temp_dir().join(format!("hologram-random-{}", std::process::id()));
    let part = |p: u64| start + count * p / processes;
    let run = |p: u64| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "random_programs_give_the_interpreters_bits", "--ignored", "--nocapture"])
            .env("HOLOGRAM_RANDOM_SEED", part(p).to_string())
            .env("HOLOGRAM_RANDOM_PROGRAMS", (part(p + 1) - part(p)).to_string())
            .env(PART, "1")
            .env("HOLOGRAM_CACHE", cache.join(p.to_string()))
            .env("CUDA_CACHE_DISABLE", "1")
            .output()
            .unwrap()
    };
    let outputs: Vec<_> = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..processes).map(|p| scope.spawn(move || run(p))).collect();
        parts.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let _ = std::fs::remove_dir_all(&cache);
    for output in outputs {
        let text = [output.stdout, output.stderr].map(|t| String::from_utf8_lossy(&t).into_owned()).concat();
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn faults_are_the_interpreters() {
    check_faults("cuda", &*cuda(), false);
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn products_of_tiles_are_within_the_bound() {
    check_tiles("cuda", &*cuda(), true);
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn examples_agree_with_f64() {
    check_examples("cuda", &*cuda());
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn instructions_mean_what_the_table_says() {
    check_instructions(&[("cuda", &*cuda())]);
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn atomic_operations_are_atomic() {
    check_atomics("cuda", &*cuda());
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn neighbours_move_from_and_to_any_address() {
    check_fours("cuda", &*cuda());
}

/// The distance between neighbouring f32 at v.
fn ulp(v: f64) -> f64 {
    2f64.powi((v.abs().log2().floor() as i32).max(-126) - 23)
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn fast_forms_keep_their_bounds() {
    type Form = fn(&mut Builder, Value, Value) -> Value;
    type Exact = fn(x: f64, y: f64) -> f64;
    type Bound = fn(x: f64, exact: f64) -> f64;
    let log: Bound = |x, v| if (0.5..=2.0).contains(&x) { 2f64.powi(-21) } else { v.abs() * 2f64.powi(-21) };
    let trig: Bound = |x, _| if x.abs() <= std::f64::consts::PI { 2f64.powi(-20) } else { 2.0 };
    let three: Bound = |_, v| 3.0 * ulp(v);
    // The last element: whether operands and results below the least normal number may count as 0.
    let forms: [(&str, Form, Exact, Bound, bool); 10] = [
        ("div", |b, x, y| b.div(x, y), |x, y| x / y, three, true),
        ("reciprocal", |b, x, _| b.div(1.0f32, x), |x, _| 1.0 / x, three, true),
        ("sqrt", |b, x, _| b.sqrt(x), |x, _| x.sqrt(), |_, v| ulp(v), false),
        ("exp", |b, x, _| b.exp(x), |x, _| x.exp(), |x, v| (3.0 + 1.2 * x.abs()) * ulp(v), true),
        ("exp2", |b, x, _| b.exp2(x), |x, _| x.exp2(), three, true),
        ("log", |b, x, _| b.log(x), |x, _| x.ln(), log, false),
        ("log2", |b, x, _| b.log2(x), |x, _| x.log2(), log, false),
        ("sin", |b, x, _| b.sin(x), |x, _| x.sin(), trig, false),
        ("cos", |b, x, _| b.cos(x), |x, _| x.cos(), trig, false),
        ("tanh", |b, x, _| b.tanh(x), |x, _| x.tanh(), three, false),
    ];
    let device = cuda();
    let mut random = Random(11);
    let n = 1 << 20;
    // Any bits, and numbers of usual size.
    let mut draw = || -> Vec<f32> {
        let usual = |random: &mut Random| random.below(1 << 24) as f32 / (1 << 20) as f32 - 8.0;
        let any = |random: &mut Random| f32::from_bits(random.word(Type::F32) as u32);
        (0..n).map(|i| if i % 2 == 0 { usual(&mut random) } else { any(&mut random) }).collect()
    };
    let (x, y) = (draw(), draw());
    for (name, form, exact, bound, flushes) in forms {
        let mut b = Builder::new("fast", [256, 1, 1]);
        b.fast(true);
        let arrays = ["x", "y"].map(|name| b.buffer(name, Type::F32, Access::Read));
        let out = b.buffer("out", Type::F32, Access::Write);
        let i = b.global_x();
        let [x_i, y_i] = arrays.map(|a| b.load(a, i));
        let value = form(&mut b, x_i, y_i);
        b.store(out, i, value);
        let buffers = [floats(&x), floats(&y), vec![0; n * 4]];
        let got = run(&*device, &b.finish().unwrap(), &buffers, &[], [(n / 256) as u32, 1, 1]).unwrap();
        for ((x, y), got) in x.iter().zip(&y).zip(got[2].chunks_exact(4)) {
            let got = f64::from(f32::from_le_bytes(got.try_into().unwrap()));
            let (x, y) = (f64::from(*x), f64::from(*y));
            let want = exact(x, y);
            let tiny = |v: f64| v.abs() < f64::from(f32::MIN_POSITIVE);
            let flush = |v: f64| if tiny(v) { 0f64.copysign(v) } else { v };
            let agrees = |want: f64| {
                (got - want).abs() <= bound(x, want)
                    || got == want
                    || got.is_nan() && want.is_nan()
                    || got.is_infinite() && want.abs() >= f64::from(f32::MAX) && got.signum() == want.signum()
            };
            let right = agrees(want) || flushes && (agrees(exact(flush(x), flush(y))) || got == 0.0 && tiny(want));
            assert!(right, "{name}.fast of {x:e}, {y:e}: {got:e}, not {want:e}");
        }
    }
}
