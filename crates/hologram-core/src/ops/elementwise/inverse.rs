//! Inverse trigonometric and hyperbolic functions, and exponentials and logarithms close to 0. Each is written in
//! operations whose bits agree on every device. `tools/polynomials/fit.py inverse` prints the constants.

use hologram_isa::{Builder, Type, Value};

use super::constant;

/// (atan x − x) / x³ in x², for |x| ≤ √2 − 1; the highest power first.
const ATAN_F32: [f64; 5] = [-0.06090052, 0.105991684, -0.14244391, 0.19998528, -0.33333316];
const ATAN_F64: [f64; 10] = [
    0.021255755507672246,
    -0.04358757596904888,
    0.05692420988734874,
    -0.06641098485710523,
    0.0769006567999536,
    -0.09090782227297908,
    0.11111106645760296,
    -0.14285714195077587,
    0.1999999999908695,
    -0.33333333333330145,
];
/// (eˣ − 1 − x) / x², for |x| < [`EXPM1_NEAR`]; the highest power first.
const EXPM1_F32: [f64; 7] = [2.4821193e-05, 0.00020093775, 0.0013889929, 0.008332652, 0.04166664, 0.16666672, 0.5];
const EXPM1_F64: [f64; 13] = [
    1.1472738972410166e-11,
    1.618691779598994e-10,
    2.0877432101043833e-09,
    2.50512785027041e-08,
    2.7557313946739503e-07,
    2.7557321851399607e-06,
    2.48015873176712e-05,
    0.00019841269837120445,
    0.001388888888886778,
    0.008333333333336268,
    0.04166666666666676,
    0.1666666666666666,
    0.5,
];
const EXPM1_NEAR: f64 = 0.7;
/// From here on e⁻ˣ is below the last place of eˣ.
const EXP_ONLY: f64 = 20.0;
/// From here on √(x² ± 1) is x, and x² is still finite.
const ROOT_ONLY: f64 = 1e9;

/// A multiple of π as the sum of two numbers.
fn turns(ty: Type, times: f64) -> (Value, Value) {
    let (high, low) = match ty {
        Type::F64 => (std::f64::consts::PI, 1.2246467991473532e-16),
        _ => (f64::from(std::f32::consts::PI), -8.742278e-08),
    };
    (constant(ty, times * high), constant(ty, times * low))
}

fn poly(b: &mut Builder, x: Value, single: &[f64], double: &[f64]) -> Value {
    let coefficients = if x.ty == Type::F64 { double } else { single };
    let mut sum = constant(x.ty, coefficients[0]);
    for &c in &coefficients[1..] {
        sum = b.fma(sum, x, constant(x.ty, c));
    }
    sum
}

/// The unsigned type of a float's bits, and its sign bit.
fn sign_bit(ty: Type) -> Value {
    if ty == Type::F64 { Value::from(1u64 << 63) } else { Value::from(1u32 << 31) }
}

/// |a| with the sign of b, to the bit.
pub(super) fn copysign(b: &mut Builder, v: &[Value]) -> Value {
    let sign = sign_bit(v[0].ty);
    let size = b.abs(v[0]);
    let size = b.bitcast(sign.ty, size);
    let from = b.bitcast(sign.ty, v[1]);
    let from = b.and(from, sign);
    let bits = b.or(size, from);
    b.bitcast(v[0].ty, bits)
}

/// Whether the sign bit is set: of −0 and of some NaNs too.
pub(super) fn signbit(b: &mut Builder, x: Value) -> Value {
    let sign = sign_bit(x.ty);
    let bits = b.bitcast(sign.ty, x);
    b.ge(bits, sign)
}

/// The number next to a in the direction of b. The bits of floats of one sign have the floats' order.
pub(super) fn nextafter(b: &mut Builder, v: &[Value]) -> Value {
    let [from, to] = [v[0], v[1]];
    let zero = constant(from.ty, 0.0);
    let bits = b.bitcast(if from.ty == Type::F64 { Type::I64 } else { Type::I32 }, from);
    let (up, positive) = (b.gt(to, from), b.gt(from, zero));
    let away = b.eq(up, positive);
    let (more, less) = (b.add(bits, constant(bits.ty, 1.0)), b.sub(bits, constant(bits.ty, 1.0)));
    let bits = b.select(away, more, less);
    let next = b.bitcast(from.ty, bits);
    // From zero: the least number of the other's sign.
    let least = b.bitcast(from.ty, constant(bits.ty, 1.0));
    let least = copysign(b, &[least, to]);
    let none = b.eq(from, zero);
    let next = b.select(none, least, next);
    let same = b.eq(from, to);
    let next = b.select(same, to, next);
    let (from_nan, to_nan) = (b.ne(from, from), b.ne(to, to));
    let next = b.select(to_nan, to, next);
    b.select(from_nan, from, next)
}

/// The angle of x ≥ 0: its tangent is brought below √2 − 1 by one division, from 0, π/4 or π/2.
fn angle(b: &mut Builder, x: Value) -> Value {
    let ty = x.ty;
    let number = |v: f64| constant(ty, v);
    let (near, far) = (number(std::f64::consts::SQRT_2 - 1.0), number(std::f64::consts::SQRT_2 + 1.0));
    let (small, large) = (b.le(x, near), b.gt(x, far));
    let (below, above) = (b.sub(x, number(1.0)), b.add(x, number(1.0)));
    let upper = b.select(large, number(-1.0), below);
    let upper = b.select(small, x, upper);
    let lower = b.select(large, x, above);
    let lower = b.select(small, number(1.0), lower);
    let t = b.div(upper, lower);
    let ((quarter, quarter_rest), (half, half_rest)) = (turns(ty, 0.25), turns(ty, 0.5));
    let base = b.select(large, half, quarter);
    let base = b.select(small, number(0.0), base);
    let rest = b.select(large, half_rest, quarter_rest);
    let rest = b.select(small, number(0.0), rest);
    let z = b.mul(t, t);
    let q = poly(b, z, &ATAN_F32, &ATAN_F64);
    let q = b.mul(q, z);
    let tail = b.fma(q, t, rest);
    let tail = b.add(tail, t);
    b.add(base, tail)
}

/// The angle whose tangent is x.
pub(super) fn atan(b: &mut Builder, x: Value) -> Value {
    let size = b.abs(x);
    let angle = angle(b, size);
    copysign(b, &[angle, x])
}

/// The angle of the point (x, y), from −π to π, with C's corner cases.
pub(super) fn atan2(b: &mut Builder, v: &[Value]) -> Value {
    let [y, x] = [v[0], v[1]];
    let number = |v: f64| constant(x.ty, v);
    let (rise, run) = (b.abs(y), b.abs(x));
    let tangent = b.div(rise, run);
    // 0 / 0 and ∞ / ∞.
    let (infinite, same) = (b.eq(run, number(f64::INFINITY)), b.eq(rise, run));
    let diagonal = b.and(infinite, same);
    let tangent = b.select(diagonal, number(1.0), tangent);
    // The quotient itself says which is 0 / 0, also where subnormal numbers count as 0.
    let undefined = b.ne(tangent, tangent);
    let (rise_is_number, run_is_number) = (b.eq(rise, rise), b.eq(run, run));
    let numbers = b.and(rise_is_number, run_is_number);
    let none = b.and(undefined, numbers);
    let tangent = b.select(none, number(0.0), tangent);
    let right = angle(b, tangent);
    let (half, rest) = turns(x.ty, 1.0);
    let left = b.sub(rest, right);
    let left = b.add(half, left);
    let behind = signbit(b, x);
    let angle = b.select(behind, left, right);
    copysign(b, &[angle, y])
}

/// The angle whose sine is x: that of the point (√(1 − x²), x).
pub(super) fn asin(b: &mut Builder, x: Value) -> Value {
    let one = constant(x.ty, 1.0);
    let size = b.abs(x);
    let (below, above) = (b.sub(one, size), b.add(one, size));
    let square = b.mul(below, above);
    let cosine = b.sqrt(square);
    let tangent = b.div(size, cosine);
    let angle = angle(b, tangent);
    copysign(b, &[angle, x])
}

/// The angle whose cosine is x: twice that of the tangent √((1 − x) / (1 + x)).
pub(super) fn acos(b: &mut Builder, x: Value) -> Value {
    let one = constant(x.ty, 1.0);
    let (below, above) = (b.sub(one, x), b.add(one, x));
    let square = b.div(below, above);
    let tangent = b.sqrt(square);
    let half = angle(b, tangent);
    b.add(half, half)
}

/// eˣ − 1, without cancellation close to 0.
pub(super) fn expm1(b: &mut Builder, x: Value) -> Value {
    let q = poly(b, x, &EXPM1_F32, &EXPM1_F64);
    let square = b.mul(x, x);
    let near = b.fma(square, q, x);
    let power = b.exp(x);
    let far = b.sub(power, constant(x.ty, 1.0));
    let size = b.abs(x);
    let is_near = b.lt(size, constant(x.ty, EXPM1_NEAR));
    let value = b.select(is_near, near, far);
    copysign(b, &[value, x])
}

/// ln(1 + x): the logarithm of the rounded sum, and what the rounding left out.
pub(super) fn log1p(b: &mut Builder, x: Value) -> Value {
    let one = constant(x.ty, 1.0);
    let sum = b.add(x, one);
    let log = b.log(sum);
    let rounded = b.sub(sum, one);
    let left = b.sub(x, rounded);
    let left = b.div(left, sum);
    let corrected = b.add(log, left);
    // The limits of the logarithm.
    let (positive, finite) = (b.gt(sum, constant(x.ty, 0.0)), b.lt(sum, constant(x.ty, f64::INFINITY)));
    let usual = b.and(positive, finite);
    let value = b.select(usual, corrected, log);
    let unchanged = b.eq(sum, one);
    b.select(unchanged, x, value)
}

/// eˣ / 2 for large x, finite where its product by e^(x/2) is.
fn half_power(b: &mut Builder, x: Value) -> Value {
    let half = constant(x.ty, 0.5);
    let x = b.mul(x, half);
    let root = b.exp(x);
    let scaled = b.mul(root, half);
    b.mul(scaled, root)
}

/// (e + e / (e + 1)) / 2 with e = eˣ − 1.
pub(super) fn sinh(b: &mut Builder, x: Value) -> Value {
    let size = b.abs(x);
    let e = expm1(b, size);
    let above = b.add(e, constant(x.ty, 1.0));
    let ratio = b.div(e, above);
    let sum = b.add(e, ratio);
    let near = b.mul(sum, constant(x.ty, 0.5));
    let far = half_power(b, size);
    let is_far = b.gt(size, constant(x.ty, EXP_ONLY));
    let value = b.select(is_far, far, near);
    copysign(b, &[value, x])
}

/// (eˣ + e⁻ˣ) / 2.
pub(super) fn cosh(b: &mut Builder, x: Value) -> Value {
    let half = constant(x.ty, 0.5);
    let size = b.abs(x);
    let power = b.exp(size);
    let inverse = b.div(half, power);
    let near = b.fma(power, half, inverse);
    let far = half_power(b, size);
    let is_far = b.gt(size, constant(x.ty, EXP_ONLY));
    b.select(is_far, far, near)
}

/// ln x + ln 2, for large x.
fn log_twice(b: &mut Builder, x: Value) -> Value {
    let log = b.log(x);
    b.add(log, constant(x.ty, std::f64::consts::LN_2))
}

/// ln(x + √(x² + 1)) as ln(1 + x + x² / (1 + √(x² + 1))).
pub(super) fn asinh(b: &mut Builder, x: Value) -> Value {
    let one = constant(x.ty, 1.0);
    let size = b.abs(x);
    let square = b.mul(size, size);
    let root = b.add(square, one);
    let root = b.sqrt(root);
    let root = b.add(root, one);
    let rest = b.div(square, root);
    let sum = b.add(size, rest);
    let near = log1p(b, sum);
    let far = log_twice(b, size);
    let is_far = b.gt(size, constant(x.ty, ROOT_ONLY));
    let value = b.select(is_far, far, near);
    copysign(b, &[value, x])
}

/// ln(x + √(x² − 1)) as ln(1 + t + √(t·(t + 2))) with t = x − 1.
pub(super) fn acosh(b: &mut Builder, x: Value) -> Value {
    let t = b.sub(x, constant(x.ty, 1.0));
    let above = b.add(t, constant(x.ty, 2.0));
    let square = b.mul(t, above);
    let root = b.sqrt(square);
    let sum = b.add(t, root);
    let near = log1p(b, sum);
    let far = log_twice(b, x);
    let is_far = b.gt(x, constant(x.ty, ROOT_ONLY));
    let value = b.select(is_far, far, near);
    let below = b.lt(x, constant(x.ty, 1.0));
    b.select(below, constant(x.ty, f64::NAN), value)
}

/// ln((1 + x) / (1 − x)) / 2 as ln(1 + 2·x / (1 − x)) / 2.
pub(super) fn atanh(b: &mut Builder, x: Value) -> Value {
    let size = b.abs(x);
    let below = b.sub(constant(x.ty, 1.0), size);
    let twice = b.add(size, size);
    let ratio = b.div(twice, below);
    let log = log1p(b, ratio);
    let half = b.mul(log, constant(x.ty, 0.5));
    copysign(b, &[half, x])
}
