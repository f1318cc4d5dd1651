//! The functions defined by decomposition: error over all of f32 and f64, and the exact cases.

use hologram_isa::decompose::{self, Scalar, double};
use hologram_isa::interp::{Binding, interpret};
use hologram_isa::{Access, Builder, Opcode, Type, Value};

type Function = (&'static str, fn(f32) -> f32, fn(f64) -> f64, f64);

/// Name, function, reference, bound in ulp.
const FUNCTIONS: [Function; 8] = [
    ("exp", |x| decompose::exp(&Scalar, x), f64::exp, 1.0),
    ("exp2", |x| decompose::exp2(&Scalar, x), f64::exp2, 1.0),
    ("log", |x| decompose::log(&Scalar, x), f64::ln, 1.0),
    ("log2", |x| decompose::log2(&Scalar, x), f64::log2, 1.0),
    ("sin", |x| decompose::sin(&Scalar, x), f64::sin, 1.75),
    ("cos", |x| decompose::cos(&Scalar, x), f64::cos, 1.75),
    ("tanh", |x| decompose::tanh(&Scalar, x), f64::tanh, 1.5),
    ("erf", |x| decompose::erf(&Scalar, x), erf, 1.5),
];

/// The error function from its series with positive terms, and beyond 3 from the continued fraction of its complement.
fn erf(x: f64) -> f64 {
    let y = x.abs();
    let scale = (-y * y).exp() / std::f64::consts::PI.sqrt();
    let v = if y < 3.0 {
        let (mut term, mut sum, mut n) = (2.0 * y, 2.0 * y, 1.0);
        while term > sum * 1e-17 {
            term *= 2.0 * y * y / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        scale * sum
    } else {
        let fraction = (1..60).rev().fold(0.0, |f, k| k as f64 / 2.0 / (y + f));
        1.0 - scale / (y + fraction)
    };
    v.copysign(x)
}

/// |got − want| in units of the spacing of f32 at `want`; 0 if both are the same infinity, NaN or zero.
fn ulps(got: f32, want: f64) -> f64 {
    let nearest = want as f32;
    if nearest.is_nan() || got.is_nan() {
        return if nearest.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if nearest == got {
        return if nearest.is_infinite() { 0.0 } else { (got as f64 - want).abs() / spacing(want) };
    }
    if got.is_infinite() || nearest.is_infinite() {
        // One step beyond the largest number is 2^128.
        let as_number = |v: f32| if v.is_infinite() { 2f64.powi(128).copysign(v as f64) } else { v as f64 };
        return (as_number(got) - want.clamp(-1e39, 1e39)).abs() / 2f64.powi(104);
    }
    (got as f64 - want).abs() / spacing(want)
}

fn spacing(v: f64) -> f64 {
    let exponent = ((v.abs().to_bits() >> 52) as i32 - 1023).clamp(-126, 127);
    2f64.powi(exponent - 23)
}

#[rustfmt::skip] // The tables of places and cases are denser than the formatter likes.
#[test]
fn accuracy() {
    // A prime stride over every bit pattern, and the neighbours of the points where the definitions change.
    let mut inputs: Vec<f32> = (0..=u32::MAX).step_by(2039).map(f32::from_bits).collect();
    let places = [
        0.0,
        1e-45,
        f32::MIN_POSITIVE,
        0.5,
        0.70710677,
        0.75,
        0.875,
        1.0,
        std::f32::consts::SQRT_2,
        2.0,
        3.0,
        4.0,
        9.0,
        88.72284,
        88.0,
        103.97,
        104.0,
        87.33655,
        126.0,
        127.0,
        128.0,
        149.0,
        150.0,
        151.0,
        1e5,
        65536.0,
        16367173.0 * 2f32.powi(72),
        f32::MAX,
        f32::INFINITY,
    ];
    let turns = (1..200).map(|k| k as f32 * std::f32::consts::FRAC_PI_4);
    let steps = (0..4000).map(|k| k as f32 / 1000.0);
    for place in places.into_iter().chain(turns).chain(steps) {
        for step in -3..=3 {
            let near = f32::from_bits(place.to_bits().wrapping_add_signed(step));
            inputs.extend([near, -near]);
        }
    }
    for (name, function, reference, bound) in FUNCTIONS {
        let (mut worst, mut at) = (0.0, 0.0);
        for &x in &inputs {
            let error = ulps(function(x), reference(x as f64));
            if error > worst {
                (worst, at) = (error, x);
            }
        }
        println!("{name}: {worst:.3} ulp at {at:e} ({:#x})", at.to_bits());
        assert!(worst <= bound, "{name}: {worst:.3} ulp at {at:e}, bound {bound}: {:e}", function(at));
    }
}

#[rustfmt::skip]
#[test]
fn exact_cases() {
    let inf = f32::INFINITY;
    let cases: &[(usize, f32, f32)] = &[
        (0, -inf, 0.0),
        (0, inf, inf),
        (0, 0.0, 1.0),
        (0, -0.0, 1.0),
        (0, 89.0, inf),
        (0, -104.0, 0.0),
        (1, -inf, 0.0),
        (1, inf, inf),
        (1, 10.0, 1024.0),
        (1, 128.0, inf),
        (1, -149.0, 1e-45),
        (1, -150.0, 0.0),
        (2, 0.0, -inf),
        (2, -0.0, -inf),
        (2, inf, inf),
        (2, 1.0, 0.0),
        (2, -1.0, f32::NAN),
        (2, -inf, f32::NAN),
        (3, 0.0, -inf),
        (3, 8.0, 3.0),
        (3, inf, inf),
        (3, 1.0, 0.0),
        (3, 1e-45, -149.0),
        (3, -1e-45, f32::NAN),
        (4, 0.0, 0.0),
        (4, -0.0, -0.0),
        (4, inf, f32::NAN),
        (4, -inf, f32::NAN),
        (4, 1e-45, 1e-45),
        (5, 0.0, 1.0),
        (5, -0.0, 1.0),
        (5, inf, f32::NAN),
        (5, -inf, f32::NAN),
        (6, 0.0, 0.0),
        (6, -0.0, -0.0),
        (6, inf, 1.0),
        (6, -inf, -1.0),
        (6, -1e-45, -1e-45),
        (7, 0.0, 0.0),
        (7, -0.0, -0.0),
        (7, inf, 1.0),
        (7, -inf, -1.0),
        (7, 5.0, 1.0),
    ];
    for &(f, x, want) in cases {
        let (name, function, ..) = FUNCTIONS[f];
        let got = function(x);
        assert!(got.to_bits() == want.to_bits(), "{name}({x:e}) is {got:e}, not {want:e}");
    }
    for (name, function, ..) in FUNCTIONS {
        assert!(function(f32::NAN).is_nan(), "{name}(NaN)");
    }
}

/// The bound of each function on `f64`, in ulp.
fn bound(op: Opcode) -> f64 {
    match op {
        Opcode::Exp | Opcode::Exp2 | Opcode::Log => 1.0,
        Opcode::Log2 | Opcode::Tanh | Opcode::Erf => 1.5,
        _ => 1.75,
    }
}

/// High-precision values from `tools/polynomials/golden.py`; `HOLOGRAM_FUNCTIONS` names a file with more of them.
#[test]
fn accuracy_of_f64() {
    let text = match std::env::var("HOLOGRAM_FUNCTIONS") {
        Ok(path) => std::fs::read_to_string(path).unwrap(),
        Err(_) => include_str!("data/f64_functions.txt").into(),
    };
    let mut worst = std::collections::BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, x, near, rest] = words[..] else { panic!("{line}") };
        let [x, near] = [x, near].map(|bits| f64::from_bits(u64::from_str_radix(bits, 16).unwrap()));
        let rest: f64 = rest.parse::<f64>().unwrap() / 1000.0;
        let op = Opcode::from_mnemonic(name).unwrap();
        let got = double::function(&Scalar, op, x).unwrap();
        // Neighbours of the same sign differ by 1 as words; infinity is the neighbour of the largest number.
        assert!(got.is_sign_negative() == near.is_sign_negative(), "{name}({x:e}) is {got:e}, not {near:e}");
        let error = (got.to_bits() as i64 - near.to_bits() as i64) as f64 - rest * near.signum();
        let (most, at) = worst.entry(op).or_insert((0.0, 0.0));
        if error.abs() > *most {
            (*most, *at) = (error.abs(), x);
        }
    }
    assert_eq!(worst.len(), 8);
    for (op, (error, x)) in worst {
        println!("{op:?}: {error:.3} ulp at {x:e}");
        assert!(
            error <= bound(op),
            "{op:?}: {error:.3} ulp at {x:e}, which gives {:e}",
            double::function(&Scalar, op, x).unwrap()
        );
    }
}

#[test]
fn exact_cases_of_f64() {
    let (inf, least) = (f64::INFINITY, f64::from_bits(1));
    let cases: &[(Opcode, &[(f64, f64)])] = &[
        (Opcode::Exp, &[(-inf, 0.0), (inf, inf), (0.0, 1.0), (-0.0, 1.0), (710.0, inf), (-746.0, 0.0), (1e300, inf)]),
        (Opcode::Exp2, &[(-inf, 0.0), (inf, inf), (10.0, 1024.0), (1024.0, inf), (-1074.0, least), (-1075.0, 0.0)]),
        (Opcode::Log, &[(0.0, -inf), (-0.0, -inf), (inf, inf), (1.0, 0.0), (-1.0, f64::NAN), (-inf, f64::NAN)]),
        (Opcode::Log2, &[(0.0, -inf), (8.0, 3.0), (inf, inf), (1.0, 0.0), (least, -1074.0), (-least, f64::NAN)]),
        (Opcode::Sin, &[(0.0, 0.0), (-0.0, -0.0), (inf, f64::NAN), (-inf, f64::NAN), (least, least)]),
        (Opcode::Cos, &[(0.0, 1.0), (-0.0, 1.0), (inf, f64::NAN), (-inf, f64::NAN), (least, 1.0)]),
        (Opcode::Tanh, &[(0.0, 0.0), (-0.0, -0.0), (inf, 1.0), (-inf, -1.0), (-least, -least), (1e300, 1.0)]),
        (Opcode::Erf, &[(0.0, 0.0), (-0.0, -0.0), (inf, 1.0), (-inf, -1.0), (7.0, 1.0), (1e300, 1.0)]),
    ];
    for (op, cases) in cases {
        let function = |x| double::function(&Scalar, *op, x).unwrap();
        for &(x, want) in *cases {
            let got = function(x);
            let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
            assert!(same, "{op:?}({x:e}) is {got:e}, not {want:e}");
        }
        assert!(function(f64::NAN).is_nan(), "{op:?}(NaN)");
    }
}

/// The expansion into instructions gives the same bits as the function, and so does the instruction itself.
#[test]
fn expansions_give_the_same_bits() {
    let inputs: Vec<u64> = (0..=u32::MAX).step_by(262139).chain(0x7f80_0000..0x7f80_0004).map(u64::from).collect();
    for (name, function, ..) in FUNCTIONS {
        check_expansion(name, Type::F32, &inputs, |x| function(f32::from_bits(x as u32)).to_bits().into());
    }
    let mut inputs: Vec<u64> = (0..=u64::MAX).step_by((u64::MAX / 8191) as usize).collect();
    inputs.extend((0..2000).map(|i| (f64::from(i) * 0.37 - 300.0).to_bits()));
    for (name, ..) in FUNCTIONS {
        let op = Opcode::from_mnemonic(name).unwrap();
        check_expansion(name, Type::F64, &inputs, |x| {
            double::function(&Scalar, op, f64::from_bits(x)).unwrap().to_bits()
        });
    }
}

fn check_expansion(name: &str, ty: Type, inputs: &[u64], function: impl Fn(u64) -> u64) {
    let size = ty.size();
    let mut bytes: Vec<u8> = inputs.iter().flat_map(|x| x.to_le_bytes()[..size].to_vec()).collect();
    let binding = |memory| Binding::Buffer { memory, offset: 0, len: bytes.len() };
    let bindings = [binding(0), binding(1), binding(2)];
    let op = Opcode::from_mnemonic(name).unwrap();
    let mut b = Builder::new(name, [256, 1, 1]);
    let [x, expanded, direct] = [("x", Access::Read), ("expanded", Access::Write), ("direct", Access::Write)]
        .map(|(name, access)| b.buffer(name, ty, access));
    let i = b.global_x();
    let inside = b.lt(i, Value::from(inputs.len() as u32));
    b.if_(inside, |b| {
        let v = b.load(x, i);
        let e = decompose::expand(b, op, v).unwrap();
        let d = b.inst(op, ty, &[v]);
        b.store(expanded, i, e);
        b.store(direct, i, d);
    });
    let program = b.finish().unwrap();
    let (mut out, mut out_direct) = (vec![0; bytes.len()], vec![0; bytes.len()]);
    let groups = inputs.len().div_ceil(256) as u32;
    interpret(&program, [groups, 1, 1], &mut [&mut bytes, &mut out, &mut out_direct], &bindings).unwrap();
    for (i, x) in inputs.iter().enumerate() {
        let want = &function(*x).to_le_bytes()[..size];
        assert_eq!(&out[size * i..][..size], want, "{name}.{ty}({x:#x}) by its expansion");
        assert_eq!(&out_direct[size * i..][..size], want, "{name}.{ty}({x:#x}) by its instruction");
    }
}
