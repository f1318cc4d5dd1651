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

/// max(gate, 0)² · up; a NaN in either operand gives NaN.
pub(super) fn relu2_mul(b: &mut Builder, gate: Value, up: Value) -> Value {
    let zero = constant(gate.ty, 0.0);
    let negative = b.lt(gate, zero);
    let r = b.select(negative, zero, gate);
    let r = b.mul(r, r);
    b.mul(r, up)
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
