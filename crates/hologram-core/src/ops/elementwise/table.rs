//! The table of elementwise operations: name and operands, element types, error bound, documentation, expression,
//! reference, and the gradients by the operands.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LN_10};

use hologram_isa::{Type, TypeSet};

use super::derivative::{Term, Terms};
use super::functions::{self as f, CLAMPED_SWIGLU, GELU_TANH};
use super::{Kind, Map, Scalar, constant, divide, inverse, pow};
use crate::eager::Call;
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::tensor::{Operand, Tensor};

/// Every float.
const FLOATS: TypeSet = TypeSet::of(&[Type::F16, Type::BF16, Type::F32, Type::F64]);
/// Floats of the widths that programs compute in.
const WIDE: TypeSet = TypeSet::of(&[Type::F32, Type::F64]);
/// Whole numbers.
const INTEGERS: TypeSet =
    TypeSet::of(&[Type::I8, Type::U8, Type::I16, Type::U16, Type::I32, Type::U32, Type::I64, Type::U64]);
/// Every number type.
const NUMBERS: TypeSet = INTEGERS.with(FLOATS);
/// The signed number types.
const SIGNED: TypeSet = TypeSet::of(&[Type::I8, Type::I16, Type::I32, Type::I64]).with(FLOATS);
/// The types that bit operations take.
const BITS: TypeSet = INTEGERS.with(TypeSet::of(&[Type::Bool]));
const ANY: TypeSet = TypeSet::ANY;

/// The scale of an error, if a row has one.
macro_rules! scale {
    () => {
        |_| 0.0
    };
    ($scale:expr) => {
        $scale
    };
}

macro_rules! whole {
    () => {
        None
    };
    ($whole:expr) => {
        Some($whole)
    };
}

/// The gradients by the operands, if a row has them: expressions over the [`Terms`] that the row names.
macro_rules! gradients {
    () => {
        None
    };
    ($d:ident $grads:expr) => {{
        fn gradients<'a>($d: &Terms<'a>) -> Vec<Term<'a>> {
            $grads.to_vec()
        }
        Some(gradients)
    }};
}

macro_rules! operations {
    ($($op:ident $name:ident($first:ident $(, $arg:ident)*) $kind:ident $types:ident $ulp:literal $(of $scale:expr)?, $doc:literal,
        $emit:expr, $reference:expr $(, $whole:expr)? $(=> $d:ident $grads:expr)?;)*) => {
        impl Graph {
            $(
                #[doc = $doc]
                ///
                /// # Errors
                /// When the operands' types do not fit (the message lists those that do), or their shapes do not
                /// broadcast as in NumPy.
                pub fn $name(&mut self, $first: NodeId $(, $arg: NodeId)*) -> Result<NodeId> {
                    self.apply(row::$name(), &[$first $(, $arg)*])
                }
            )*
        }

        /// Operations on tensors, executed at once: on a GPU the call returns when the device has accepted the work, on
        /// the CPU when the work is done.
        impl Tensor {
            $(
                #[doc = $doc]
                #[doc = concat!("The tensor is `", stringify!($first), "`.")]
                ///
                /// # Errors
                /// When the operands' types do not fit (the message lists those that do), their shapes do not broadcast
                /// as in NumPy, or they lie on different devices; errors of the device.
                pub fn $name(&self $(, $arg: impl Operand)*) -> Result<Tensor> {
                    $(let $arg = $arg.operand(self)?;)*
                    let operation = Call::Elementwise(hologram_backends::Elementwise::$op);
                    self.executor.cached(operation, &[], &[self $(, &$arg)*], |g, v| g.apply(row::$name(), v))
                }
            )*
        }

        /// The operation of each row.
        pub(crate) mod row {
            use super::*;
            $(
                #[doc = $doc]
                pub(crate) fn $name() -> Map {
                    static ROW: Scalar = Scalar {
                        op: hologram_backends::Elementwise::$op,
                        operands: [stringify!($first) $(, stringify!($arg))*].len(),
                        types: $types,
                        kind: Kind::$kind,
                        emit: $emit,
                        reference: $reference,
                        whole: whole!($($whole)?),
                        ulp: $ulp,
                        scale: scale!($($scale)?),
                        gradients: gradients!($($d $grads)?),
                    };
                    Map { scalar: &ROW }
                }
            )*
        }

        #[cfg(feature = "conformance")]
        /// Every row.
        pub(super) fn rows() -> Vec<Map> {
            vec![$(row::$name(),)*]
        }
    };
}

fn truth(value: bool) -> f64 {
    f64::from(u8::from(value))
}

operations! {
    // Arithmetic.
    Add add(a, b) Map NUMBERS 0.5, "a + b. Integers wrap.", |b, v| b.add(v[0], v[1]), |v| v[0] + v[1], |v| v[0].wrapping_add(v[1]) => d [d.g, d.g];
    Sub sub(a, b) Map NUMBERS 0.5, "a − b. Integers wrap.", |b, v| b.sub(v[0], v[1]), |v| v[0] - v[1], |v| v[0].wrapping_sub(v[1]) => d [d.g, -d.g];
    Mul mul(a, b) Map NUMBERS 0.5, "a · b. Integers wrap.", |b, v| b.mul(v[0], v[1]), |v| v[0] * v[1], |v| v[0].wrapping_mul(v[1])
        => d [d.g * d.b, d.g * d.a];
    Div div(a, b) Map NUMBERS 0.5, "a / b; integers toward zero, and an integer division by zero is an error of the run.",
        |b, v| b.div(v[0], v[1]), |v| v[0] / v[1], |v| v[0].checked_div(v[1]).unwrap_or(0) => d [d.g / d.b, -(d.g * d.y / d.b)];
    Rem rem(a, b) Map INTEGERS 0.0, "The remainder of a / b with a's sign; by zero an error of the run.",
        |b, v| b.rem(v[0], v[1]), |v| v[0] % v[1], |v| v[0].checked_rem(v[1]).unwrap_or(0);
    Remainder remainder(a, b) Map NUMBERS 0.5, "a − b·⌊a / b⌋, which has b's sign, as Python's `%`; of integers by zero an error of the run.",
        divide::remainder, |v| remainder_f64(v[0], v[1]), |v| { let m = v[0].checked_rem(v[1]).unwrap_or(0); if m != 0 && (m ^ v[1]) < 0 { m + v[1] } else { m } }
        => d [d.g, -(d.g * (d.a / d.b).floor())];
    FloorDivide floor_divide(a, b) Map NUMBERS 1.0, "⌊a / b⌋, as Python's `//`, but ±0 of a finite number by an infinite one; of integers by zero an error of the run.",
        divide::floor_divide, |v| (v[0] / v[1]).floor(), |v| { let q = v[0].checked_div(v[1]).unwrap_or(0); if q.wrapping_mul(v[1]) != v[0] && (v[0] ^ v[1]) < 0 { q - 1 } else { q } }
        => d [d.zero, d.zero];
    MulAdd mul_add(a, b, c) Map NUMBERS 0.5, "a · b + c, with one rounding for floats.",
        f::mul_add, |v| v[0].mul_add(v[1], v[2]), |v| v[0].wrapping_mul(v[1]).wrapping_add(v[2]) => d [d.g * d.b, d.g * d.a, d.g];
    Max maximum(a, b) Map NUMBERS 0.0, "The greater; NaN if either is.", |b, v| f::maximum(b, v[0], v[1]), |v| greater(v[0], v[1])
        => d [d.share(d.a.gt(d.b)), d.share(d.b.gt(d.a))];
    Min minimum(a, b) Map NUMBERS 0.0, "The lesser; NaN if either is.", |b, v| f::minimum(b, v[0], v[1]), |v| -greater(-v[0], -v[1])
        => d [d.share(d.b.gt(d.a)), d.share(d.a.gt(d.b))];
    Clip clip(x, least, greatest) Map NUMBERS 0.0, "min(max(x, least), greatest); NaN if any is.",
        |b, v| { let low = f::maximum(b, v[0], v[1]); f::minimum(b, low, v[2]) }, |v| -greater(-greater(v[0], v[1]), -v[2])
        => d [d.a.within(d.b, d.c).choose(d.g, d.number(0.0)), d.b.gt(d.a).choose(d.b.gt(d.c).choose(d.number(0.0), d.g), d.number(0.0)), d.a.max(d.b).gt(d.c).choose(d.g, d.number(0.0))];
    Neg neg(x) Map SIGNED 0.0, "−x.", |b, v| b.neg(v[0]), |v| -v[0] => d [-d.g];
    Abs abs(x) Map SIGNED 0.0, "|x|; of the least integer itself.", |b, v| b.abs(v[0]), |v| v[0].abs() => d [d.g * d.a.sign()];

    // Functions.
    Sqrt sqrt(x) Map FLOATS 0.5, "√x.", |b, v| b.sqrt(v[0]), |v| v[0].sqrt() => d [d.g * 0.5 / d.y];
    Rsqrt rsqrt(x) Map FLOATS 1.5, "1 / √x.", |b, v| f::rsqrt(b, v[0]), |v| 1.0 / v[0].sqrt() => d [d.g * -0.5 * d.y / d.a];
    Pow pow(a, b) Map NUMBERS 3.0, "a to the power of b, with C's corner cases. Integers wrap; negative exponents give 0, except of 1 and −1.",
        |b, v| pow::pow(b, v[0], v[1]), |v| v[0].powf(v[1]), pow::pow_i64
        => d [d.b.same(0.0).choose(d.number(0.0), d.g * d.b * d.a.pow(d.b - 1.0)), d.a.same(0.0).choose(d.number(0.0), d.g * d.y * d.a.log())];
    Exp exp(x) Map FLOATS 2.0, "e to the power of x.", |b, v| b.exp(v[0]), |v| v[0].exp() => d [d.g * d.y];
    Exp2 exp2(x) Map FLOATS 2.0, "2 to the power of x.", |b, v| b.exp2(v[0]), |v| v[0].exp2() => d [d.g * d.y * LN_2];
    Log log(x) Map FLOATS 2.0, "The natural logarithm.", |b, v| b.log(v[0]), |v| v[0].ln() => d [d.g / d.a];
    Log2 log2(x) Map FLOATS 2.0, "The logarithm to base 2.", |b, v| b.log2(v[0]), |v| v[0].log2() => d [d.g / (d.a * LN_2)];
    Log10 log10(x) Map FLOATS 3.0, "The logarithm to base 10.", |b, v| f::log10(b, v[0]), |v| v[0].log10() => d [d.g / (d.a * LN_10)];
    Sin sin(x) Map FLOATS 2.0, "The sine of radians.", |b, v| b.sin(v[0]), |v| v[0].sin() => d [d.g * d.a.cos()];
    Cos cos(x) Map FLOATS 2.0, "The cosine of radians.", |b, v| b.cos(v[0]), |v| v[0].cos() => d [-(d.g * d.a.sin())];
    Tan tan(x) Map FLOATS 5.0, "The tangent of radians.", |b, v| f::tan(b, v[0]), |v| v[0].tan() => d [d.g * (d.y * d.y + 1.0)];
    Tanh tanh(x) Map FLOATS 2.0, "The hyperbolic tangent.", |b, v| b.tanh(v[0]), |v| v[0].tanh() => d [d.g * (-(d.y * d.y) + 1.0)];
    Asin asin(x) Map FLOATS 3.0, "The angle in radians whose sine is x.", |b, v| inverse::asin(b, v[0]), |v| v[0].asin()
        => d [d.g * (-(d.a * d.a) + 1.0).rsqrt()];
    Acos acos(x) Map FLOATS 3.0, "The angle in radians whose cosine is x.", |b, v| inverse::acos(b, v[0]), |v| v[0].acos()
        => d [-(d.g * (-(d.a * d.a) + 1.0).rsqrt())];
    Atan atan(x) Map FLOATS 2.0, "The angle in radians whose tangent is x.", |b, v| inverse::atan(b, v[0]), |v| v[0].atan()
        => d [d.g / (d.a * d.a + 1.0)];
    Atan2 atan2(y, x) Map FLOATS 3.0, "The angle in radians of the point (x, y), from −π to π, with C's corner cases.",
        inverse::atan2, |v| v[0].atan2(v[1]) => d [d.g * d.b / (d.a * d.a + d.b * d.b), -(d.g * d.a / (d.a * d.a + d.b * d.b))];
    Sinh sinh(x) Map FLOATS 3.0, "The hyperbolic sine.", |b, v| inverse::sinh(b, v[0]), |v| v[0].sinh() => d [d.g * d.a.cosh()];
    Cosh cosh(x) Map FLOATS 3.0, "The hyperbolic cosine.", |b, v| inverse::cosh(b, v[0]), |v| v[0].cosh() => d [d.g * d.a.sinh()];
    Asinh asinh(x) Map FLOATS 3.0, "The inverse of the hyperbolic sine.", |b, v| inverse::asinh(b, v[0]), |v| v[0].asinh()
        => d [d.g * (d.a * d.a + 1.0).rsqrt()];
    Acosh acosh(x) Map FLOATS 3.0, "The inverse of the hyperbolic cosine.", |b, v| inverse::acosh(b, v[0]),
        |v| acosh_f64(v[0]) => d [d.g * (d.a * d.a - 1.0).rsqrt()];
    Atanh atanh(x) Map FLOATS 3.0, "The inverse of the hyperbolic tangent.", |b, v| inverse::atanh(b, v[0]),
        |v| v[0].abs().atanh().copysign(v[0]) => d [d.g / (-(d.a * d.a) + 1.0)];
    Expm1 expm1(x) Map FLOATS 3.0, "e to the power of x, minus 1, accurate close to 0.", |b, v| inverse::expm1(b, v[0]), |v| v[0].exp_m1()
        => d [d.g * (d.y + 1.0)];
    Log1p log1p(x) Map FLOATS 3.0, "The natural logarithm of 1 + x, accurate close to 0.", |b, v| inverse::log1p(b, v[0]), |v| v[0].ln_1p()
        => d [d.g / (d.a + 1.0)];
    Hypot hypot(a, b) Map FLOATS 3.0, "√(a² + b²), which is finite where the squares are not.", f::hypot, |v| v[0].hypot(v[1])
        => d [d.y.same(0.0).choose(d.number(0.0), d.g * d.a / d.y), d.y.same(0.0).choose(d.number(0.0), d.g * d.b / d.y)];
    LogAddExp logaddexp(a, b) Map FLOATS 4.0 of |v| v[0].max(v[1]).abs(), "ln(eᵃ + eᵇ), the error relative to the greater operand.",
        f::logaddexp, |v| if v[0] == v[1] { v[0] + std::f64::consts::LN_2 } else { greater(v[0], v[1]) + (-(v[0] - v[1]).abs()).exp().ln_1p() }
        => d [d.g * (d.a - d.b).sigmoid(), d.g * (d.b - d.a).sigmoid()];
    Copysign copysign(a, b) Map FLOATS 0.0, "|a| with the sign of b.", inverse::copysign, |v| v[0].copysign(v[1])
        => d [d.g * d.a.sign() * d.y.sign(), d.zero];
    NextAfter nextafter(a, b) Map WIDE 1.0, "The number next to a in the direction of b.", inverse::nextafter, |v| if v[0].is_nan() || v[1].is_nan() { f64::NAN } else { v[0] }
        => d [d.g, d.zero];
    Erf erf(x) Map FLOATS 2.0, "The error function.", |b, v| b.erf(v[0]), |v| erf_f64(v[0]) => d [d.g * (-(d.a * d.a)).exp() * FRAC_2_SQRT_PI];
    Floor floor(x) Map FLOATS 0.0, "The greatest whole number not above.", |b, v| b.floor(v[0]), |v| v[0].floor() => d [d.zero];
    Ceil ceil(x) Map FLOATS 0.0, "The least whole number not below.", |b, v| b.ceil(v[0]), |v| v[0].ceil() => d [d.zero];
    Round round(x) Map FLOATS 0.0, "The nearest whole number, ties to even.", |b, v| b.round(v[0]), |v| v[0].round_ties_even() => d [d.zero];

    Trunc trunc(x) Map FLOATS 0.0, "The nearest whole number toward zero.", |b, v| f::trunc(b, v[0]), |v| v[0].trunc() => d [d.zero];
    Sign sign(x) Map NUMBERS 0.0, "−1, 0 or 1; NaN for NaN.", |b, v| f::sign(b, v[0]),
        |v| if v[0] > 0.0 { 1.0 } else if v[0] < 0.0 { -1.0 } else { v[0] } => d [d.zero];

    // Activations.
    Relu relu(x) Map SIGNED 0.0, "max(x, 0); NaN for NaN.", |b, v| f::relu(b, v[0]), |v| if v[0] <= 0.0 { 0.0 } else { v[0] }
        => d [d.a.gt(d.number(0.0)).choose(d.g, d.number(0.0))];
    Sigmoid sigmoid(x) Map FLOATS 3.0, "1 / (1 + e⁻ˣ).", |b, v| f::sigmoid(b, v[0]), |v| 1.0 / (1.0 + (-v[0]).exp()) => d [d.g * d.y * (-d.y + 1.0)];
    Silu silu(x) Map FLOATS 3.5, "x · sigmoid(x).", |b, v| f::silu(b, v[0]), |v| v[0] / (1.0 + (-v[0]).exp())
        => d [d.g * (d.a.sigmoid() + d.y * (-d.a.sigmoid() + 1.0))];
    Softplus softplus(x) Map FLOATS 5.0, "ln(1 + eˣ), accurate where it is close to 0, and finite where eˣ is not.",
        |b, v| {
            let (linear, size) = (f::relu(b, v[0]), b.abs(v[0]));
            let size = b.neg(size);
            let size = b.exp(size);
            let rest = inverse::log1p(b, size);
            b.add(linear, rest)
        },
        |v| v[0].max(0.0) + (-v[0].abs()).exp().ln_1p() => d [d.g * d.a.sigmoid()];
    Gelu gelu(x) Map FLOATS 2.0 of |v| v[0].abs(), "x/2 · (1 + erf(x/√2)), the error relative to x.",
        |b, v| f::gelu(b, v[0]), |v| 0.5 * v[0] * (1.0 + erf_f64(v[0] * std::f64::consts::FRAC_1_SQRT_2)) => d [d.g * d.a.gelu_slope()];
    GeluTanh gelu_tanh(x) Map FLOATS 3.0 of |v| v[0].abs(), "x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³))), the error relative to x.",
        |b, v| f::gelu_tanh(b, v[0]),
        |v| 0.5 * v[0] * (1.0 + (GELU_TANH[0] * (v[0] + GELU_TANH[1] * v[0].powi(3))).tanh()) => d [d.g * d.a.gelu_tanh_slope()];
    Swiglu swiglu(gate, up) Map FLOATS 4.0, "silu(gate) · up (Shazeer, 2020, arXiv:2002.05202).",
        |b, v| { let s = f::silu(b, v[0]); b.mul(s, v[1]) }, |v| v[0] / (1.0 + (-v[0]).exp()) * v[1]
        => d [d.g * (d.a.sigmoid() * d.b + d.y * (-d.a.sigmoid() + 1.0)), d.g * d.a * d.a.sigmoid()];
    Relu2Mul relu2_mul(gate, up) Map FLOATS 1.0, "max(gate, 0)² · up: the squared-ReLU gate of BitNet b1.58. A NaN stays one.",
        |b, v| f::relu2_mul(b, v[0], v[1]), |v| if v[0] <= 0.0 { 0.0 * v[1] } else { v[0].powi(2) * v[1] }
        => d [d.g * d.a.relu() * d.b * 2.0, d.g * d.a.relu() * d.a.relu()];
    ClampedSwiglu clamped_swiglu(gate, up) Map FLOATS 6.0,
        "g·σ(1.702·g) · (u + 1) with g = min(gate, 7) and u = up clamped to ±7: the gate of gpt-oss (arXiv:2508.10925).",
        |b, v| f::clamped_swiglu(b, v[0], v[1]), |v| clamped_swiglu_f64(v[0], v[1]) => d {
            let limit = d.number(CLAMPED_SWIGLU[1]);
            let (gate, up) = (-(-d.a).max(-limit), -(-d.b.max(-limit)).max(-limit) + 1.0);
            let weight = (gate * CLAMPED_SWIGLU[0]).sigmoid();
            let slope = weight * (gate * CLAMPED_SWIGLU[0] * (-weight + 1.0) + 1.0);
            [d.a.gt(limit).choose(d.number(0.0), d.g * up * slope), d.b.within(-limit, limit).choose(d.g * gate * weight, d.number(0.0))]
        };

    // Comparisons.
    Eq eq(a, b) Compare ANY 0.0, "Whether a = b, as `bool`.", |b, v| b.eq(v[0], v[1]), |v| truth(v[0] == v[1]);
    Ne ne(a, b) Compare ANY 0.0, "Whether a ≠ b, as `bool`; true where one is NaN.", |b, v| b.ne(v[0], v[1]), |v| truth(v[0] != v[1]);
    Lt lt(a, b) Compare NUMBERS 0.0, "Whether a < b, as `bool`.", |b, v| b.lt(v[0], v[1]), |v| truth(v[0] < v[1]);
    Le le(a, b) Compare NUMBERS 0.0, "Whether a ≤ b, as `bool`.", |b, v| b.le(v[0], v[1]), |v| truth(v[0] <= v[1]);
    Gt gt(a, b) Compare NUMBERS 0.0, "Whether a > b, as `bool`.", |b, v| b.gt(v[0], v[1]), |v| truth(v[0] > v[1]);
    Ge ge(a, b) Compare NUMBERS 0.0, "Whether a ≥ b, as `bool`.", |b, v| b.ge(v[0], v[1]), |v| truth(v[0] >= v[1]);
    Signbit signbit(x) Compare FLOATS 0.0, "Whether the sign bit is set, as `bool`: of −0 too.",
        |b, v| inverse::signbit(b, v[0]), |v| truth(v[0].is_sign_negative());
    IsNan isnan(x) Compare FLOATS 0.0, "Whether x is NaN, as `bool`.", |b, v| b.ne(v[0], v[0]), |v| truth(v[0].is_nan());
    IsInf isinf(x) Compare FLOATS 0.0, "Whether x is infinite, as `bool`.",
        |b, v| { let size = b.abs(v[0]); b.eq(size, constant(size.ty, f64::INFINITY)) }, |v| truth(v[0].is_infinite());
    IsFinite isfinite(x) Compare FLOATS 0.0, "Whether x is neither infinite nor NaN, as `bool`.",
        |b, v| { let size = b.abs(v[0]); b.lt(size, constant(size.ty, f64::INFINITY)) }, |v| truth(v[0].is_finite());
    Select select(condition, a, b) Choose ANY 0.0, "a where the condition (`bool`) is true, else b.",
        |b, v| b.select(v[0], v[1], v[2]), |v| if v[0] != 0.0 { v[1] } else { v[2] }
        => d [d.zero, d.a.choose(d.g, d.number(0.0)), d.a.choose(d.number(0.0), d.g)];

    // Bits, and the logic of `bool`.
    And and(a, b) Map BITS 0.0, "Bitwise and.", |b, v| b.and(v[0], v[1]), |_| 0.0, |v| v[0] & v[1];
    Or or(a, b) Map BITS 0.0, "Bitwise or.", |b, v| b.or(v[0], v[1]), |_| 0.0, |v| v[0] | v[1];
    Xor xor(a, b) Map BITS 0.0, "Bitwise exclusive or.", |b, v| b.xor(v[0], v[1]), |_| 0.0, |v| v[0] ^ v[1];
    Not not(x) Map BITS 0.0, "Bitwise complement; of a `bool` its negation.", |b, v| b.not(v[0]), |_| 0.0, |v| !v[0];
    Shl shl(a, count) Map INTEGERS 0.0, "a shifted left; by as many bits as it has, or more, 0.",
        |b, v| { let n = f::count(b, v); b.shl(v[0], n) }, |_| 0.0, |v| if (0..64).contains(&v[1]) { v[0] << v[1] } else { 0 };
    Shr shr(a, count) Map INTEGERS 0.0, "a shifted right, filling with the sign.",
        |b, v| { let n = f::count(b, v); b.shr(v[0], n) }, |_| 0.0, |v| v[0] >> if (0..63).contains(&v[1]) { v[1] } else { 63 };
}

/// The greater of two numbers; NaN if either is.
fn greater(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

fn clamped_swiglu_f64(gate: f64, up: f64) -> f64 {
    let [factor, limit] = CLAMPED_SWIGLU;
    let (gate, up) = (-greater(-gate, -limit), -greater(-greater(up, -limit), -limit));
    gate / (1.0 + (-factor * gate).exp()) * (up + 1.0)
}

/// The remainder of a division that is rounded down.
fn remainder_f64(a: f64, b: f64) -> f64 {
    let m = a % b;
    if m * b.signum() < 0.0 { m + b } else { m.abs().copysign(b) + if m.is_nan() { f64::NAN } else { 0.0 } }
}

/// The inverse of the hyperbolic cosine in `f64`; the standard library's loses digits close to 1.
fn acosh_f64(x: f64) -> f64 {
    let t = x - 1.0;
    if x > 1e9 { x.acosh() } else { (t + (t * (t + 2.0)).sqrt() + if x < 1.0 { f64::NAN } else { 0.0 }).ln_1p() }
}

/// The error function in `f64`, accurate to a few units in its last place: its series of positive terms and, from 1 on,
/// the continued fraction of the complement (Abramowitz and Stegun, 7.1.6 and 7.1.14).
fn erf_f64(x: f64) -> f64 {
    let t = x.abs();
    if t.is_nan() {
        return x;
    }
    let value = if t < 1.0 {
        let (mut term, mut sum, mut n) = (t, t, 0.0);
        while term > sum * 1e-17 {
            n += 1.0;
            term *= 2.0 * t * t / (2.0 * n + 1.0);
            sum += term;
        }
        std::f64::consts::FRAC_2_SQRT_PI * (-t * t).exp() * sum
    } else {
        let fraction = (1..600).rev().fold(t, |rest, n| t + 0.5 * f64::from(n) / rest);
        1.0 - (-t * t).exp() / (fraction * std::f64::consts::PI.sqrt())
    };
    value.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::erf_f64;

    #[test]
    fn erf_has_the_values_of_the_tables() {
        for (x, want) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (-1.0, -0.842_700_792_949_714_9),
            (2.9, 0.999_958_902_121_900_5),
            (3.0, 0.999_977_909_503_001_4),
            (6.0, 1.0),
        ] {
            assert!((erf_f64(x) - want).abs() < 1e-15, "erf({x}) is {}, not {want}", erf_f64(x));
        }
        assert!(erf_f64(1e300) == 1.0 && erf_f64(f64::NAN).is_nan());
    }
}
