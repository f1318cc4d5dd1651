//! Expressions of the table that are longer than a line.

use hologram_isa::{Builder, Type, Value};

use super::constant;

/// 1 / (1 + e⁻ˣ).
pub(super) fn sigmoid(b: &mut Builder, x: Value) -> Value {
    let one = constant(x.ty, 1.0);
    let n = b.neg(x);
    let e = b.exp(n);
    let d = b.add(e, one);
    b.div(one, d)
}

/// x / (1 + e⁻ˣ), as a product.
pub(super) fn silu(b: &mut Builder, x: Value) -> Value {
    let s = sigmoid(b, x);
    b.mul(x, s)
}

pub(super) fn relu(b: &mut Builder, x: Value) -> Value {
    b.max(x, constant(x.ty, 0.0))
}

/// x/2 · (1 + erf(x/√2)).
pub(super) fn gelu(b: &mut Builder, x: Value) -> Value {
    let t = b.mul(x, constant(x.ty, std::f64::consts::FRAC_1_SQRT_2));
    let t = b.erf(t);
    let t = b.add(t, constant(x.ty, 1.0));
    let half = b.mul(x, constant(x.ty, 0.5));
    b.mul(half, t)
}

/// √(2/π) and the factor of the cube in the tanh form of GELU (Hendrycks and Gimpel, 2016, arXiv:1606.08415).
pub(super) const GELU_TANH: [f64; 2] = [0.797_884_560_802_865_4, 0.044_715];

/// x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³))).
pub(super) fn gelu_tanh(b: &mut Builder, x: Value) -> Value {
    let square = b.mul(x, x);
    let inner = b.fma(square, constant(x.ty, GELU_TANH[1]), constant(x.ty, 1.0));
    let inner = b.mul(inner, x);
    let t = b.mul(inner, constant(x.ty, GELU_TANH[0]));
    let t = b.tanh(t);
    let t = b.add(t, constant(x.ty, 1.0));
    let half = b.mul(x, constant(x.ty, 0.5));
    b.mul(half, t)
}

/// a·b + c: one rounding for floats.
pub(super) fn mul_add(b: &mut Builder, v: &[Value]) -> Value {
    if v[0].ty.is_float() {
        return b.fma(v[0], v[1], v[2]);
    }
    let product = b.mul(v[0], v[1]);
    b.add(product, v[2])
}

/// A shift by a count of the operand's own type; a negative count is a great one.
pub(super) fn count(b: &mut Builder, v: &[Value]) -> Value {
    b.cvt(Type::U32, v[1])
}

/// x to the power of y, on `f32`: 2 to the power of y·log₂|x|, in which the logarithm and the product are carried as sums of two
/// `f32`, so that the error of a great exponent does not count. The sign and the corner cases are those of C's `pow`.
pub(super) fn pow(b: &mut Builder, x: Value, y: Value) -> Value {
    let size = b.abs(x);
    let (hi, lo) = log2_pair(b, size);
    let product = b.mul(hi, y);
    let negative = b.neg(product);
    let low = b.fma(hi, y, negative);
    let low = b.fma(lo, y, low);
    // Where the product is beyond the range of exp2 the rest does not count, and may be a NaN.
    let large = b.abs(product);
    let within = b.lt(large, 256.0f32);
    let low = b.select(within, low, 0.0f32);
    let power = b.exp2(product);
    let correction = b.mul(low, std::f32::consts::LN_2);
    let power_is_finite = b.lt(power, f32::INFINITY);
    let corrected = b.fma(power, correction, power);
    let power = b.select(power_is_finite, corrected, power);

    // One to any power, and any number to the power of zero.
    let one = b.eq(size, 1.0f32);
    let none = b.eq(y, 0.0f32);
    let y_is_nan = b.ne(y, y);
    let positive = b.gt(x, 0.0f32);
    let not_for_nan = b.not(y_is_nan);
    let fine = b.or(positive, not_for_nan);
    let one = b.and(one, fine);
    let one = b.or(one, none);
    let power = b.select(one, 1.0f32, power);

    // Below zero: the sign of an odd power, and no value where the exponent is not whole.
    let whole_y = b.floor(y);
    let whole = b.eq(whole_y, y);
    let half = b.mul(y, 0.5f32);
    let half_floor = b.floor(half);
    let odd = b.ne(half, half_floor);
    let odd = b.and(odd, whole);
    let bits = b.bitcast(Type::I32, x);
    let sign = b.lt(bits, 0i32);
    let flip = b.and(sign, odd);
    let minus = b.neg(power);
    let power = b.select(flip, minus, power);
    let below = b.lt(x, 0.0f32);
    let finite = b.lt(size, f32::INFINITY);
    let broken = b.not(whole);
    let undefined = b.and(below, finite);
    let undefined = b.and(undefined, broken);
    b.select(undefined, f32::NAN, power)
}

/// log₂ of a number that is not negative, as a sum whose second part is small against the first; relative error below 2⁻³⁰.
fn log2_pair(b: &mut Builder, x: Value) -> (Value, Value) {
    // x = 2^k·m with √½ < m ≤ √2; subnormal numbers are scaled up first.
    let tiny = b.lt(x, f32::MIN_POSITIVE);
    let scaled = b.mul(x, 16_777_216.0f32);
    let scaled = b.select(tiny, scaled, x);
    let bits = b.bitcast(Type::I32, scaled);
    let above = b.sub(bits, 0x3f35_04f4i32);
    let k = b.shr(above, 23u32);
    let exponent = b.shl(k, 23u32);
    let mantissa = b.sub(bits, exponent);
    let m = b.bitcast(Type::F32, mantissa);
    let k = b.cvt(Type::F32, k);
    let shifted = b.sub(k, 24.0f32);
    let k = b.select(tiny, shifted, k);
    // With s = f / (2 + f) and f = m - 1: ln m = 2·(s + s³/3 + s⁵/5 + …). The quotient with its remainder:
    let f = b.sub(m, 1.0f32);
    let d = b.add(f, 2.0f32);
    let rounded = b.sub(d, 2.0f32);
    let d_low = b.sub(f, rounded);
    let s = b.div(f, d);
    let minus = b.neg(s);
    let rest = b.fma(minus, d, f);
    let rest = b.fma(minus, d_low, rest);
    let s_low = b.div(rest, d);
    // 2/ln 2 as a sum.
    const C: f32 = 2.885_39;
    const C_LOW: f32 = (std::f64::consts::LOG2_E * 2.0 - C as f64) as f32;
    let main = b.mul(s, C);
    let minus = b.neg(main);
    let low = b.fma(s, C, minus);
    let low = b.fma(s, C_LOW, low);
    let low = b.fma(s_low, C, low);
    let square = b.mul(s, s);
    let mut series = Value::from((2.0 * std::f64::consts::LOG2_E / 11.0) as f32);
    for n in [9.0, 7.0, 5.0, 3.0] {
        series = b.fma(series, square, (2.0 * std::f64::consts::LOG2_E / n) as f32);
    }
    let cube = b.mul(square, s);
    let low = b.fma(cube, series, low);
    // k + main + low: |k| ≥ 1 exceeds |main| ≤ ½, and with k = 0 main is the greater one.
    let sum = b.add(k, main);
    let back = b.sub(sum, k);
    let lost = b.sub(main, back);
    let low = b.add(lost, low);
    let hi = b.add(sum, low);
    let back = b.sub(hi, sum);
    let lo = b.sub(low, back);
    // The logarithms of 0, of infinity and of NaN.
    let zero = b.eq(x, 0.0f32);
    let hi = b.select(zero, f32::NEG_INFINITY, hi);
    let finite = b.lt(x, f32::INFINITY);
    let hi = b.select(finite, hi, x);
    let fine = b.gt(x, 0.0f32);
    let fine = b.and(fine, finite);
    let lo = b.select(fine, lo, 0.0f32);
    (hi, lo)
}

/// The quotient of `f32`'s sine and cosine.
pub(super) fn tan(b: &mut Builder, x: Value) -> Value {
    let (s, c) = (b.sin(x), b.cos(x));
    b.div(s, c)
}

/// 1 / √x.
pub(super) fn rsqrt(b: &mut Builder, x: Value) -> Value {
    let root = b.sqrt(x);
    b.div(constant(x.ty, 1.0), root)
}
