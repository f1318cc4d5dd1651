//! The functions on `f32`.

use std::f32::consts::{FRAC_2_PI, FRAC_PI_2, LN_2, LOG2_E};

use super::{Arith, Binary, after_turns, clamp, keep_nan, odd, poly, scale};
use crate::Opcode;

/// The table's function `op` (`exp` … `erf`); `None` for any other operation.
#[inline(always)]
pub fn function<A: Arith>(a: &A, op: Opcode, x: A::F) -> Option<A::F> {
    Some(match op {
        Opcode::Exp => exp(a, x),
        Opcode::Exp2 => exp2(a, x),
        Opcode::Log => log(a, x),
        Opcode::Log2 => log2(a, x),
        Opcode::Sin => sin(a, x),
        Opcode::Cos => cos(a, x),
        Opcode::Tanh => tanh(a, x),
        Opcode::Erf => erf(a, x),
        _ => return None,
    })
}

/// ln 2 as LN_2 + LN_2_LO.
const LN_2_LO: f32 = -1.9046542e-9;
/// log2 e as LOG2_E + LOG2_E_LO.
const LOG2_E_LO: f32 = 1.925963e-8;
/// π/2 as the sum of three numbers.
const PI_2: [f32; 3] = [FRAC_PI_2, -4.371139e-8, -1.7151245e-15];
/// 2/π as a binary fraction, after one word of zeros.
const TWO_OVER_PI: [u32; 8] = [0, 0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab];
const MAGIC: f32 = <f32 as Binary>::MAGIC;
const SIGN: u32 = <f32 as Binary>::SIGN;
/// (log(1+f) − f + f²/2) / f³.
const LOG: [f32; 8] = [-0.0763581, 0.12761901, -0.13159679, 0.14201623, -0.16623408, 0.2000124, -0.2500082, 0.3333333];
/// (log2(1+f) − f·log2(e)) / f².
const LOG2: [f32; 9] =
    [-0.11107098, 0.18731873, -0.19120954, 0.20444061, -0.23957872, 0.28857386, -0.3606985, 0.48089817, -0.72134733];
/// (tanh x − x) / x³ in x², for |x| < 0.75.
const TANH: [f32; 7] = [-0.00060947874, 0.0029230488, -0.008559983, 0.021790093, -0.053956755, 0.13333252, -0.3333333];
/// (erf x − x) / x in x², for |x| < 0.875.
const ERF: [f32; 7] = [7.8602905e-5, -0.00080253603, 0.0051908954, -0.026855359, 0.11283623, -0.3761263, 0.12837917];
/// log2(1 − erf x) for x from 0.875 to 4.
const ERFC: [f32; 8] =
    [-2.950734e-5, 0.0006161611, -0.005966483, 0.036106512, -0.15601161, -0.913909, -1.6294565, 0.00023377065];

/// e^x.
#[inline(always)]
pub fn exp<A: Arith>(a: &A, x: A::F) -> A::F {
    let y = clamp(a, x, -104.0, 89.0);
    let t = a.fma(y, A::f(LOG2_E), A::f(MAGIC));
    let n = a.sub(t, A::f(MAGIC));
    let r = a.fma(n, A::f(-LN_2_LO), a.fma(n, A::f(-LN_2), y));
    let q = poly(a, r, [0.0013820999, 0.008368671, 0.041668262, 0.16666521, 0.49999994]);
    let p = a.add(a.fma(a.mul(r, r), q, r), A::f(1.0));
    keep_nan(a, x, scale(a, p, t))
}

/// 2^x.
#[inline(always)]
pub fn exp2<A: Arith>(a: &A, x: A::F) -> A::F {
    let y = clamp(a, x, -151.0, 128.0);
    let t = a.add(y, A::f(MAGIC));
    let r = a.sub(y, a.sub(t, A::f(MAGIC)));
    let q = poly(a, r, [0.00015329279, 0.001339097, 0.009618499, 0.055503596, 0.24022648, LN_2]);
    let p = a.fma(r, q, A::f(1.0));
    keep_nan(a, x, scale(a, p, t))
}

/// x = (1 + f)·2^e with √½ ≤ 1 + f < √2, for positive finite x; returns (f, e).
#[inline(always)]
fn split<A: Arith>(a: &A, x: A::F) -> (A::F, A::F) {
    const SQRT_HALF: u32 = 0x3f35_04f3;
    const ONE: u32 = 0x3f80_0000;
    let subnormal = a.lt(x, A::f(f32::MIN_POSITIVE));
    // x·2^149 as an integer, because some devices count a subnormal operand of a multiplication as 0.
    let normal = a.select(subnormal, a.int_to_f(a.bits_of(x)), x);
    let bias = a.select(subnormal, A::f(-276.0), A::f(-127.0));
    let bits = a.add_u(a.bits_of(normal), A::u(ONE - SQRT_HALF));
    let e = a.add(a.int_to_f(a.shr(bits, A::u(23))), bias);
    let m = a.float_of(a.add_u(a.and(bits, A::u(0x007f_ffff)), A::u(SQRT_HALF)));
    (a.sub(m, A::f(1.0)), e)
}

/// `v`, or the logarithm's limit if `x` is zero, negative, infinite or NaN.
#[inline(always)]
fn log_limits<A: Arith>(a: &A, x: A::F, v: A::F) -> A::F {
    let v = a.select(a.lt(x, A::f(f32::INFINITY)), v, x);
    let v = a.select(a.lt(A::f(0.0), x), v, A::f(f32::NEG_INFINITY));
    let v = a.select(a.lt(x, A::f(0.0)), A::f(f32::NAN), v);
    keep_nan(a, x, v)
}

/// The natural logarithm.
#[inline(always)]
pub fn log<A: Arith>(a: &A, x: A::F) -> A::F {
    let (f, e) = split(a, x);
    let q = poly(a, f, LOG);
    let ff = a.mul(f, f);
    let tail = a.fma(a.mul(ff, f), q, a.fma(ff, A::f(-0.5), a.mul(e, A::f(LN_2_LO))));
    log_limits(a, x, a.fma(e, A::f(LN_2), a.add(f, tail)))
}

/// The logarithm to base 2.
#[inline(always)]
pub fn log2<A: Arith>(a: &A, x: A::F) -> A::F {
    let (f, e) = split(a, x);
    let q = poly(a, f, LOG2);
    let tail = a.fma(a.mul(f, f), q, a.mul(f, A::f(LOG2_E_LO)));
    log_limits(a, x, a.add(e, a.fma(f, A::f(LOG2_E), tail)))
}

/// For finite x ≥ 0: (q, r) with x = q·π/2 + r and |r| ≤ π/4 (slightly more by rounding).
/// Only q modulo 4 matters.
#[inline(always)]
fn reduce<A: Arith>(a: &A, x: A::F) -> (A::U, A::F) {
    // For x up to 1e5, x − n·PI_2[0] is exact, and the other two parts give the rest.
    let t = a.fma(x, A::f(FRAC_2_PI), A::f(MAGIC));
    let n = a.sub(t, A::f(MAGIC));
    let r = a.fma(n, A::f(-PI_2[1]), a.fma(n, A::f(-PI_2[0]), x));
    let r = a.fma(n, A::f(-PI_2[2]), r);
    a.rare(a.lt(A::f(1e5), x), (a.bits_of(t), r), || reduce_large(a, x))
}

/// [`reduce`] for finite x ≥ 2^16 in integers (Payne and Hanek). x is m·2^(e−150). Only 96 bits of 2/π matter:
/// the bits above give multiples of 4, those below are negligible.
#[inline(always)]
fn reduce_large<A: Arith>(a: &A, x: A::F) -> (A::U, A::F) {
    let bits = a.bits_of(x);
    let m = a.or(a.and(bits, A::u(0x007f_ffff)), A::u(0x0080_0000));
    let first = a.sub_u(a.shr(bits, A::u(23)), A::u(120));
    let (word, shift) = (a.shr(first, A::u(5)), a.and(first, A::u(31)));
    let back = a.sub_u(A::u(31), shift);
    let at = |j: usize| {
        let mut w = A::u(TWO_OVER_PI[j]);
        for k in 1..5 {
            w = a.select_u(a.lt_u(A::u(k as u32 - 1), word), A::u(TWO_OVER_PI[j + k]), w);
        }
        w
    };
    let w = [at(0), at(1), at(2), at(3)];
    let window = |j: usize| a.or(a.shl(w[j], shift), a.shr(a.shr(w[j + 1], A::u(1)), back));
    let (w0, w1, w2) = (window(0), window(1), window(2));
    // The product modulo 4 in quarter turns: 2 bits before the binary point, 62 after it.
    let carried = a.mulhi_u(m, w2);
    let low = a.add_u(a.mul_u(m, w1), carried);
    let carry = a.select_u(a.lt_u(low, carried), A::u(1), A::u(0));
    let high = a.add_u(a.add_u(a.mul_u(m, w0), a.mulhi_u(m, w1)), carry);
    // Rounds to the nearest quarter; the signed rest as a magnitude (the last bit of the complement is negligible).
    let q = a.shr(a.add_u(high, A::u(1 << 29)), A::u(30));
    let rest = a.sub_u(high, a.shl(q, A::u(30)));
    let mask = a.sub_u(A::u(0), a.shr(rest, A::u(31)));
    let (high, low) = (a.xor(rest, mask), a.xor(low, mask));
    let f0 = a.mul(a.int_to_f(a.shr(high, A::u(6))), A::f(1.0 / 16777216.0));
    let f1 = a.or(a.shl(a.and(high, A::u(63)), A::u(25)), a.shr(low, A::u(7)));
    let f1 = a.mul(a.int_to_f(f1), A::f(1.0 / (1u64 << 55) as f32));
    let f = a.add(f0, f1);
    let f_lo = a.sub(f1, a.sub(f, f0));
    let r = a.fma(f, A::f(PI_2[0]), a.fma(f, A::f(PI_2[1]), a.mul(f_lo, A::f(PI_2[0]))));
    (q, a.float_of(a.xor(a.bits_of(r), a.and(mask, A::u(SIGN)))))
}

/// sin(|x| + turn·π/2), with its sign flipped by `sign`.
#[inline(always)]
fn trig<A: Arith>(a: &A, x: A::F, turn: u32, sign: A::U) -> A::F {
    let (q, r) = reduce(a, a.abs(x));
    let q = a.add_u(q, A::u(turn));
    let z = a.mul(r, r);
    let s = a.fma(a.mul(z, r), poly(a, z, [-0.000195181, 0.008332188, -0.16666655]), r);
    let c = poly(a, z, [2.4432553e-5, -0.0013887311, 0.041666646, -0.5, 1.0]);
    after_turns(a, x, q, [s, c], sign)
}

/// The sine of x radians.
#[inline(always)]
pub fn sin<A: Arith>(a: &A, x: A::F) -> A::F {
    trig(a, x, 0, a.and(a.bits_of(x), A::u(SIGN)))
}

/// The cosine of x radians.
#[inline(always)]
pub fn cos<A: Arith>(a: &A, x: A::F) -> A::F {
    trig(a, x, 1, A::u(0))
}

/// [`tanh_near`] computes the hyperbolic tangent below this.
pub(crate) const TANH_NEAR: f32 = 0.75;

/// The hyperbolic tangent of y for 0 ≤ y < [`TANH_NEAR`].
#[inline(always)]
pub(crate) fn tanh_near<A: Arith>(a: &A, y: A::F) -> A::F {
    let z = a.mul(y, y);
    a.fma(a.mul(z, y), poly(a, z, TANH), y)
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh<A: Arith>(a: &A, x: A::F) -> A::F {
    let y = a.abs(x);
    let near = tanh_near(a, y);
    let far = a.add(exp(a, a.add(y, y)), A::f(1.0));
    let far = a.sub(A::f(1.0), a.div(A::f(2.0), far));
    odd(a, x, a.select(a.lt(y, A::f(TANH_NEAR)), near, far))
}

/// The error function.
#[inline(always)]
pub fn erf<A: Arith>(a: &A, x: A::F) -> A::F {
    let y = a.abs(x);
    let near = a.fma(poly(a, a.mul(y, y), ERF), y, y);
    // 1 − erfc, which is smooth as a power of two.
    let far = exp2(a, poly(a, clamp(a, y, 0.0, 4.0), ERFC));
    let far = a.sub(A::f(1.0), far);
    odd(a, x, a.select(a.lt(y, A::f(0.875)), near, far))
}
