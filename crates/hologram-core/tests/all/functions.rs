//! Functions that the table of elementwise operations composes, over their whole range and close to where they are
//! hardest, against the standard library in `f64`.

use hologram_core::{DType, Executor, Result, Tensor};

type Function = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64, f64, f64, f64);

/// Name, function, reference, the range of |x| in powers of 2, and the bound in units in the last place.
const FUNCTIONS: [Function; 12] = [
    ("asin", Tensor::asin, f64::asin, -40.0, 0.0, 3.0),
    ("acos", Tensor::acos, f64::acos, -40.0, 0.0, 3.0),
    ("atan", Tensor::atan, f64::atan, -40.0, 60.0, 2.0),
    ("sinh", Tensor::sinh, f64::sinh, -40.0, 6.45, 3.0),
    ("cosh", Tensor::cosh, f64::cosh, -40.0, 6.45, 3.0),
    ("asinh", Tensor::asinh, f64::asinh, -40.0, 120.0, 3.0),
    ("acosh", Tensor::acosh, f64::acosh, 1.0, 120.0, 3.0),
    ("acosh", Tensor::acosh, acosh_near_one, 0.0, 1.0, 3.0),
    ("atanh", Tensor::atanh, |x| x.abs().atanh().copysign(x), -40.0, 0.0, 3.0),
    ("expm1", Tensor::expm1, f64::exp_m1, -40.0, 6.45, 3.0),
    ("log1p", Tensor::log1p, f64::ln_1p, -40.0, 120.0, 3.0),
    ("log10", Tensor::log10, f64::log10, -120.0, 120.0, 3.0),
];

/// The standard library's loses digits here.
fn acosh_near_one(x: f64) -> f64 {
    let t = x - 1.0;
    if x < 1.0 { f64::NAN } else { (t + (t * (t + 2.0)).sqrt()).ln_1p() }
}

/// The greatest error in units of the type's precision, relative to the result, over x and −x.
fn error<T: hologram_core::Element>(
    executor: &Executor,
    function: &Function,
    from: fn(f64) -> T,
    to: fn(T) -> f64,
    unit: f64,
) -> Result<(f64, f64)> {
    let (_, of, reference, low, high, _) = function;
    let count = 40_000;
    let size = |i: usize| (low + (high - low) * i as f64 / f64::from(count)).exp2();
    let xs: Vec<T> = (0..count as usize).flat_map(|i| [from(size(i)), from(-size(i))]).collect();
    let ys = of(&Tensor::from_slice(executor, &[xs.len()], &xs)?)?.to_vec::<T>()?;
    let errors = xs.iter().zip(&ys).map(|(x, y)| {
        let (x, y) = (to(*x), to(*y));
        let want = reference(x);
        let error = if want.is_nan() && y.is_nan() || want == y { 0.0 } else { ((y - want) / want / unit).abs() };
        (if error.is_nan() { f64::INFINITY } else { error }, x)
    });
    Ok(errors.fold((0.0, 0.0), |worst, e| if e.0 > worst.0 { e } else { worst }))
}

#[test]
fn composed_functions_stay_within_their_bounds() -> Result<()> {
    let executor = Executor::open("cpu", Some(2))?;
    for function in &FUNCTIONS {
        let (name, bound) = (function.0, function.5);
        let single = error::<f32>(&executor, function, |v| v as f32, f64::from, f64::from(f32::EPSILON))?;
        // The reference has errors of its own.
        let double = error::<f64>(&executor, function, |v| v, |v| v, f64::EPSILON)?;
        println!("{name}: f32 {:.2} at {:e}, f64 {:.2} at {:e}", single.0, single.1, double.0, double.1);
        assert!(single.0 <= bound, "{name} of {:e} is off by {:.2} units", single.1, single.0);
        assert!(double.0 <= bound + 1.0, "{name} of {:e} in f64 is off by {:.2} units", double.1, double.0);
    }
    Ok(())
}

#[test]
fn signs_and_limits_are_those_of_c() -> Result<()> {
    let executor = Executor::open("cpu", Some(1))?;
    let special = [0.0f32, -0.0, 1.0, -1.0, 1e-40, 2.0, -2.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 3e38];
    let bits = |v: f32| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() };
    let near = |name: &str, args: &str, got: f32, want: f32| {
        let close = (got - want).abs() <= want.abs() * 1e-6 + f32::MIN_POSITIVE && got.signum() == want.signum();
        assert!(close || bits(got) == bits(want), "{name}({args}) is {got:?}, not {want:?}");
    };
    let x = Tensor::from_slice(&executor, &[special.len()], &special)?;
    for (name, of, reference, ..) in FUNCTIONS.iter().filter(|f| f.3 != 0.0) {
        for (x, got) in special.iter().zip(of(&x)?.to_vec::<f32>()?) {
            near(name, &format!("{x:?}"), got, reference(f64::from(*x)) as f32);
        }
    }
    let y = Tensor::from_slice(&executor, &[special.len(), 1], &special)?;
    let angles = y.atan2(&x)?.to_vec::<f32>()?;
    let signed = y.copysign(&x)?.to_vec::<f32>()?;
    for (i, y) in special.iter().enumerate() {
        for (j, x) in special.iter().enumerate() {
            let at = i * special.len() + j;
            near("atan2", &format!("{y:?}, {x:?}"), angles[at], f64::from(*y).atan2(f64::from(*x)) as f32);
            near("copysign", &format!("{y:?}, {x:?}"), signed[at], y.copysign(*x));
        }
    }
    let signs = x.signbit()?.cast(DType::U8)?.to_vec::<u8>()?;
    assert_eq!(signs, special.map(|v| u8::from(v.is_sign_negative())));
    Ok(())
}

/// Pairs of numbers of all sizes, with the corner cases among them.
fn pairs() -> Vec<(f64, f64)> {
    let corners = [0.0, -0.0, 1.0, -1.0, 0.1, 3.0, -7.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let size = f64::from((state >> 58) as i32 - 32) * 3.5;
        let value = (1.0 + (state >> 20) as f64 / 2f64.powi(44)) * size.exp2();
        if state & 8 == 0 { value } else { -value }
    };
    let mut pairs: Vec<_> = corners.iter().flat_map(|a| corners.map(|b| (*a, b))).collect();
    pairs.extend((0..4000).map(|_| (random(), random())));
    pairs.extend((0..500).map(|i| (f64::from(i) * 0.1, 0.1)));
    pairs
}

/// Division that rounds down, and neighbours, to the bit in the type `$float`.
macro_rules! exact {
    ($name:ident $float:ident) => {
        #[test]
        fn $name() -> Result<()> {
            let executor = Executor::open("cpu", Some(2))?;
            let (a, b): (Vec<$float>, Vec<$float>) =
                pairs().into_iter().map(|(a, b)| (a as $float, b as $float)).unzip();
            let x = Tensor::from_slice(&executor, &[a.len()], &a)?;
            let y = Tensor::from_slice(&executor, &[b.len()], &b)?;
            let remainder = |a: $float, b: $float| {
                let m = a % b;
                if m * b.signum() < 0.0 {
                    m + b
                } else if m == 0.0 {
                    m.copysign(b)
                } else {
                    m
                }
            };
            let next = |a: $float, b: $float| match a.partial_cmp(&b) {
                None => a + b,
                Some(std::cmp::Ordering::Less) => a.next_up(),
                Some(std::cmp::Ordering::Greater) => a.next_down(),
                Some(std::cmp::Ordering::Equal) => b,
            };
            // Below this all whole numbers and some fractions are floats.
            let limit = (2.0 as $float).powi($float::MANTISSA_DIGITS as i32 - 1);
            // Where the quotient has a fraction it is that of the exact difference.
            let floor = |a: $float, b: $float| {
                let (q, m) = (a / b, remainder(a, b));
                let exact = ((a - m) / b).round_ties_even() + 0.0;
                if q.is_finite() && q.abs() < limit && q != 0.0 && b.is_finite() {
                    exact
                } else if b.is_finite() && a != 0.0 && q == 0.0 && a.signum() != b.signum() {
                    -1.0
                } else {
                    q.floor()
                }
            };
            for (name, got, want) in [
                ("remainder", x.remainder(&y)?, &remainder as &dyn Fn($float, $float) -> $float),
                ("nextafter", x.nextafter(&y)?, &next),
                ("floor_divide", x.floor_divide(&y)?, &floor),
            ] {
                let unclear = |q: $float| name == "floor_divide" && q.abs() >= limit && q.abs() <= 2.0 * limit;
                for ((a, b), got) in a.iter().zip(&b).zip(got.to_vec::<$float>()?) {
                    if unclear(*a / *b) {
                        continue;
                    }
                    let want = want(*a, *b);
                    let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                    assert!(same, "{name} of {a:e} and {b:e} is {got:e}, not {want:e}");
                }
            }
            Ok(())
        }
    };
}
exact!(single_floats_divide_to_the_bit f32);
exact!(double_floats_divide_to_the_bit f64);

#[test]
fn integers_divide_down_and_have_powers() -> Result<()> {
    let executor = Executor::open("cpu", Some(2))?;
    let a = Tensor::from_slice(&executor, &[6], &[7i64, -7, 7, -7, i64::MIN, 0])?;
    let b = Tensor::from_slice(&executor, &[6], &[3i64, 3, -3, -3, 7, -5])?;
    assert_eq!(a.floor_divide(&b)?.to_vec::<i64>()?, [2, -3, -3, 2, i64::MIN.div_euclid(7), 0]);
    assert_eq!(a.remainder(&b)?.to_vec::<i64>()?, [1, 2, -2, -1, i64::MIN.rem_euclid(7), 0]);
    let base = Tensor::from_slice(&executor, &[6], &[3i8, -2, -1, 1, 2, 0])?;
    let power = Tensor::from_slice(&executor, &[6], &[5i8, 7, -3, -100, -1, 0])?;
    assert_eq!(base.pow(&power)?.to_vec::<i8>()?, [3i8.wrapping_pow(5), -128, -1, 1, 0, 1]);
    let large = Tensor::from_slice(&executor, &[2], &[3u64, 10])?;
    let power = Tensor::from_slice(&executor, &[2], &[40u64, 19])?;
    assert_eq!(large.pow(&power)?.to_vec::<u64>()?, [3u64.pow(40), 10u64.pow(19)]);
    assert!(a.floor_divide(&a.sub(&a)?)?.to_vec::<i64>().unwrap_err().to_string().contains("zero"));
    Ok(())
}
