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

/// max(x, 0); NaN for NaN.
pub(super) fn relu(b: &mut Builder, x: Value) -> Value {
    let zero = constant(x.ty, 0.0);
    let negative = b.le(x, zero);
    b.select(negative, zero, x)
}

/// The greater of two numbers; NaN if either is.
pub(super) fn maximum(b: &mut Builder, x: Value, y: Value) -> Value {
    let best = b.max(x, y);
    or_nan(b, best, x, y)
}

/// The lesser of two numbers; NaN if either is.
pub(super) fn minimum(b: &mut Builder, x: Value, y: Value) -> Value {
    let best = b.min(x, y);
    or_nan(b, best, x, y)
}

/// A value, or the operand that is NaN.
fn or_nan(b: &mut Builder, value: Value, x: Value, y: Value) -> Value {
    if !x.ty.is_float() {
        return value;
    }
    let (x_nan, y_nan) = (b.ne(x, x), b.ne(y, y));
    let value = b.select(y_nan, y, value);
    b.select(x_nan, x, value)
}

/// The nearest whole number toward zero.
pub(super) fn trunc(b: &mut Builder, x: Value) -> Value {
    let (low, high) = (b.floor(x), b.ceil(x));
    let negative = b.lt(x, constant(x.ty, 0.0));
    b.select(negative, high, low)
}

/// −1, 0 or 1; NaN for NaN. A zero keeps its sign.
pub(super) fn sign(b: &mut Builder, x: Value) -> Value {
    let zero = constant(x.ty, 0.0);
    let (above, below) = (b.gt(x, zero), b.lt(x, zero));
    let value = b.select(below, constant(x.ty, -1.0), x);
    b.select(above, constant(x.ty, 1.0), value)
}

/// The logarithm to base 10.
pub(super) fn log10(b: &mut Builder, x: Value) -> Value {
    let log = b.log2(x);
    b.mul(log, constant(x.ty, std::f64::consts::LOG10_2))
}

/// √(a² + b²), from the greater operand and the ratio of both.
pub(super) fn hypot(b: &mut Builder, v: &[Value]) -> Value {
    let ty = v[0].ty;
    let (x, y) = (b.abs(v[0]), b.abs(v[1]));
    let (long, short) = (b.max(x, y), b.min(x, y));
    let ratio = b.div(short, long);
    let root = b.fma(ratio, ratio, constant(ty, 1.0));
    let root = b.sqrt(root);
    let value = b.mul(long, root);
    // 0 / 0, also of subnormal numbers that count as 0; an infinite operand counts more than NaN.
    let undefined = b.ne(ratio, ratio);
    let value = b.select(undefined, long, value);
    let value = or_nan(b, value, x, y);
    let infinite = b.eq(long, constant(ty, f64::INFINITY));
    b.select(infinite, long, value)
}

/// ln(eᵃ + eᵇ) as max(a, b) + ln(1 + e^−|a − b|).
pub(super) fn logaddexp(b: &mut Builder, v: &[Value]) -> Value {
    let [x, y] = [v[0], v[1]];
    let greater = b.max(x, y);
    let apart = b.sub(x, y);
    let apart = b.abs(apart);
    let apart = b.neg(apart);
    let power = b.exp(apart);
    let rest = super::inverse::log1p(b, power);
    let value = b.add(greater, rest);
    // The difference of infinities is NaN.
    let equal = b.eq(x, y);
    let twice = b.add(x, constant(x.ty, std::f64::consts::LN_2));
    b.select(equal, twice, value)
}

/// max(gate, 0)² · up; a NaN in either operand gives NaN.
pub(super) fn relu2_mul(b: &mut Builder, gate: Value, up: Value) -> Value {
    let zero = constant(gate.ty, 0.0);
    let negative = b.lt(gate, zero);
    let r = b.select(negative, zero, gate);
    let r = b.mul(r, r);
    b.mul(r, up)
}

/// The factor of the sigmoid's operand and the greatest magnitude in gpt-oss' gate.
pub(super) const CLAMPED_SWIGLU: [f64; 2] = [1.702, 7.0];

/// g·σ(1.702·g) · (u + 1) with g = min(gate, 7) and u = up clamped to ±7; NaN if either is.
pub(super) fn clamped_swiglu(b: &mut Builder, gate: Value, up: Value) -> Value {
    let [factor, limit] = CLAMPED_SWIGLU;
    let most = constant(gate.ty, limit);
    let gate = minimum(b, gate, most);
    let up = maximum(b, up, constant(up.ty, -limit));
    let up = minimum(b, up, most);
    let weight = b.mul(gate, constant(gate.ty, factor));
    let weight = sigmoid(b, weight);
    let gate = b.mul(gate, weight);
    let up = b.add(up, constant(up.ty, 1.0));
    b.mul(gate, up)
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

/// A shift by a count of the operand's own type; a negative count acts as a large one.
pub(super) fn count(b: &mut Builder, v: &[Value]) -> Value {
    b.cvt(Type::U32, v[1])
}

/// The quotient of the sine and cosine.
pub(super) fn tan(b: &mut Builder, x: Value) -> Value {
    let (s, c) = (b.sin(x), b.cos(x));
    b.div(s, c)
}

/// 1 / √x.
pub(super) fn rsqrt(b: &mut Builder, x: Value) -> Value {
    let root = b.sqrt(x);
    b.div(constant(x.ty, 1.0), root)
}
