//! Functions that the table of elementwise operations composes, over their whole range and close to where they are
//! hardest, against the standard library in `f64`.

use hologram_core::{DType, Executor, Result, Tensor};

type Function = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64, f64, f64, f64);

/// Name, function, reference, the range of |x| in powers of 2, and the bound in units in the last place.
const FUNCTIONS: [Function; 11] = [
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
