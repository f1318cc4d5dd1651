//! The functions on `f64`.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, LN_2, LOG2_E};

use super::{Arith, Binary, after_turns, clamp, keep_nan, odd, poly, scale};
use crate::Opcode;

/// The table's function `op` (`exp` … `erf`); `None` for any other operation.
#[inline(always)]
pub fn function<A: Arith<f64>>(a: &A, op: Opcode, x: A::F) -> Option<A::F> {
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
const LN_2_LO: f64 = 2.3190468138462996e-17;
/// log2 e as LOG2_E + LOG2_E_LO.
const LOG2_E_LO: f64 = 2.0355273740931033e-17;
/// π/2 as the sum of three numbers.
const PI_2: [f64; 3] = [FRAC_PI_2, 6.123233995736766e-17, -1.4973849048591698e-33];
/// 2/π as a binary fraction, after one word of zeros.
const TWO_OVER_PI: [u64; 20] = [
    0,
    0xa2f9836e4e441529,
    0xfc2757d1f534ddc0,
    0xdb6295993c439041,
    0xfe5163abdebbc561,
    0xb7246e3a424dd2e0,
    0x06492eea09d1921c,
    0xfe1deb1cb129a73e,
    0xe88235f52ebb4484,
    0xe99c7026b45f7e41,
    0x3991d639835339f4,
    0x9c845f8bbdf9283b,
    0x1ff897ffde05980f,
    0xef2f118b5a0a6d1f,
    0x6d367ecf27cb09b7,
    0x4f463f669e5fea2d,
    0x7527bac7ebe5f17b,
    0x3d0739f78a5292ea,
    0x6bfb5fb11f8d5d08,
    0x56033046fc7b6bab,
];
const MAGIC: f64 = <f64 as Binary>::MAGIC;
const SIGN: u64 = <f64 as Binary>::SIGN;
/// (e^r − 1 − r) / r².
const EXP: [f64; 10] = [
    2.50113011843668e-08,
    2.763040251389457e-07,
    2.7557548967989857e-06,
    2.4801492597104046e-05,
    0.0001984126955129105,
    0.0013888888944213699,
    0.00833333333347197,
    0.041666666666527324,
    0.16666666666666452,
    0.5000000000000011,
];
/// (2^r − 1) / r.
const EXP2: [f64; 11] = [
    4.438726083850197e-10,
    7.073233185611031e-09,
    1.0178160963817832e-07,
    1.3215438834737491e-06,
    1.5252733631780055e-05,
    0.00015403530449039095,
    0.0013333558146548477,
    0.009618129107601603,
    0.055504108664821715,
    0.24022650695910108,
    LN_2,
];
/// (2·atanh(s)/s − 2) / s² in s².
const LOG: [f64; 7] = [
    0.14795214199014253,
    0.15314124832522005,
    0.1818356139659572,
    0.22222198629950965,
    0.28571428741831556,
    0.39999999999417196,
    0.6666666666666734,
];
/// (sin r − r) / r³ in r².
const SIN: [f64; 6] = [
    1.589582614480856e-10,
    -2.505074042503197e-08,
    2.7557313571304506e-06,
    -0.00019841269829431893,
    0.008333333333321896,
    -0.1666666666666663,
];
/// cos r in r².
const COS: [f64; 8] = [
    -1.1358688182325443e-11,
    2.0875704363442876e-09,
    -2.755731421072207e-07,
    2.4801587288985643e-05,
    -0.0013888888888873327,
    0.041666666666666595,
    -0.5,
    1.0,
];
/// (tanh x − x) / x³ in x², for |x| < 0.75.
const TANH: [f64; 13] = [
    -1.4861357491357163e-06,
    9.494087267000322e-06,
    -3.3619721427371636e-05,
    9.344544814575607e-05,
    -0.00023762159698809243,
    0.0005895600922164578,
    -0.0014557313947759717,
    0.0035921121540667157,
    -0.008863233867422582,
    0.02186948842397163,
    -0.05396825396378034,
    0.13333333333324346,
    -0.3333333333333327,
];
/// (erf x − x) / x in x², for |x| < 0.875.
const ERF: [f64; 12] = [
    -1.269491864697845e-09,
    1.5834770948433497e-08,
    -1.6603716092844575e-07,
    1.648928955618556e-06,
    -1.492749917593709e-05,
    0.00012055412384428172,
    -0.0008548329196034737,
    0.005223977662381692,
    -0.026866170648794777,
    0.11283791670973807,
    -0.37612638903184126,
    0.1283791670955126,
];
/// (1 − erf x)·exp(x²) in 1 / (x + 2), for x from 0.875 to 6.
const ERFC: [f64; 14] = [
    167.4943525028098,
    -807.1385199056688,
    1721.0143686017125,
    -2122.7882832726527,
    1651.9934812680478,
    -830.6138574546939,
    276.1643032501884,
    -72.01178410698151,
    16.097505746428066,
    0.9757044722744587,
    2.156711494098473,
    1.1161520301079078,
    0.5646912356326705,
    -9.500208882393879e-06,
];

/// e^x.
#[inline(always)]
pub fn exp<A: Arith<f64>>(a: &A, x: A::F) -> A::F {
    let y = clamp(a, x, -746.0, 710.0);
    let t = a.fma(y, A::f(LOG2_E), A::f(MAGIC));
    let n = a.sub(t, A::f(MAGIC));
    let r = a.fma(n, A::f(-LN_2_LO), a.fma(n, A::f(-LN_2), y));
    let q = poly(a, r, EXP);
    let p = a.add(a.fma(a.mul(r, r), q, r), A::f(1.0));
    keep_nan(a, x, scale(a, p, t))
}

/// 2^x.
#[inline(always)]
pub fn exp2<A: Arith<f64>>(a: &A, x: A::F) -> A::F {
    let y = clamp(a, x, -1076.0, 1024.0);
    let t = a.add(y, A::f(MAGIC));
    let r = a.sub(y, a.sub(t, A::f(MAGIC)));
    let p = a.fma(r, poly(a, r, EXP2), A::f(1.0));
    keep_nan(a, x, scale(a, p, t))
}

/// x = (1 + f)·2^e with √½ ≤ 1 + f < √2, for positive finite x; returns (f, log(1 + f) − f, e).
#[inline(always)]
fn split<A: Arith<f64>>(a: &A, x: A::F) -> (A::F, A::F, A::F) {
    const SQRT_HALF: u64 = std::f64::consts::FRAC_1_SQRT_2.to_bits();
    const ONE: u64 = 1f64.to_bits();
    let subnormal = a.lt(x, A::f(f64::MIN_POSITIVE));
    let normal = a.select(subnormal, a.mul(x, A::f((1u64 << 54) as f64)), x);
    let bias = a.select(subnormal, A::f(-1077.0), A::f(-1023.0));
    let bits = a.add_u(a.bits_of(normal), A::u(ONE - SQRT_HALF));
    let e = a.add(a.int_to_f(a.shr(bits, A::u(52))), bias);
    let m = a.float_of(a.add_u(a.and(bits, A::u((1 << 52) - 1)), A::u(SQRT_HALF)));
    let f = a.sub(m, A::f(1.0));
    // With s = f / (2 + f): log(1 + f) = 2·s + s·r, and 2·s = f − s·f, s·f = f²/2 − s·f²/2.
    let s = a.div(f, a.add(f, A::f(2.0)));
    let z = a.mul(s, s);
    let r = a.mul(z, poly(a, z, LOG));
    let half = a.mul(a.mul(f, f), A::f(0.5));
    let rest = a.sub(a.mul(s, a.add(half, r)), half);
    (f, rest, e)
}

/// `v`, or the logarithm's limit if `x` is zero, negative, infinite or NaN.
#[inline(always)]
fn log_limits<A: Arith<f64>>(a: &A, x: A::F, v: A::F) -> A::F {
    let v = a.select(a.lt(x, A::f(f64::INFINITY)), v, x);
    let v = a.select(a.lt(A::f(0.0), x), v, A::f(f64::NEG_INFINITY));
    let v = a.select(a.lt(x, A::f(0.0)), A::f(f64::NAN), v);
    keep_nan(a, x, v)
}

/// The natural logarithm.
#[inline(always)]
pub fn log<A: Arith<f64>>(a: &A, x: A::F) -> A::F {
    let (f, rest, e) = split(a, x);
    let tail = a.fma(e, A::f(LN_2_LO), rest);
    log_limits(a, x, a.fma(e, A::f(LN_2), a.add(f, tail)))
}

/// The logarithm to base 2.
#[inline(always)]
pub fn log2<A: Arith<f64>>(a: &A, x: A::F) -> A::F {
    let (f, rest, e) = split(a, x);
    let tail = a.fma(rest, A::f(LOG2_E), a.mul(f, A::f(LOG2_E_LO)));
    log_limits(a, x, a.add(e, a.fma(f, A::f(LOG2_E), tail)))
}

/// For finite x ≥ 0: (q, r) with x = q·π/2 + r and |r| ≤ π/4 (slightly more by rounding).
/// Only q modulo 4 matters.
#[inline(always)]
fn reduce<A: Arith<f64>>(a: &A, x: A::F) -> (A::U, A::F) {
    // x − n·PI_2[0] is exact; up to 2^30 the other two parts give the rest.
    let t = a.fma(x, A::f(FRAC_2_PI), A::f(MAGIC));
    let n = a.sub(t, A::f(MAGIC));
    let r = a.fma(n, A::f(-PI_2[1]), a.fma(n, A::f(-PI_2[0]), x));
    let r = a.fma(n, A::f(-PI_2[2]), r);
    a.rare(a.lt(A::f((1u64 << 30) as f64), x), (a.bits_of(t), r), || reduce_large(a, x))
}

/// [`reduce`] for finite x ≥ 2^30 in integers (Payne and Hanek). x is m·2^(e−1075). Only 192 bits of 2/π matter:
/// the bits above give multiples of 4, those below are negligible.
#[inline(always)]
fn reduce_large<A: Arith<f64>>(a: &A, x: A::F) -> (A::U, A::F) {
    let bits = a.bits_of(x);
    let m = a.or(a.and(bits, A::u((1 << 52) - 1)), A::u(1 << 52));
    let first = a.sub_u(a.shr(bits, A::u(52)), A::u(1013));
    let (word, shift) = (a.shr(first, A::u(6)), a.and(first, A::u(63)));
    let back = a.sub_u(A::u(63), shift);
    // Selects four words from index `word` (at most 16) by conditional moves of the table, bit by bit.
    let mut w = TWO_OVER_PI.map(A::u);
    for (step, count) in [(16, 4), (8, 11), (4, 7), (2, 5), (1, 4)] {
        let bit = a.lt_u(A::u(0), a.and(word, A::u(step as u64)));
        for i in 0..count {
            w[i] = a.select_u(bit, w[i + step], w[i]);
        }
    }
    let window = |j: usize| a.or(a.shl(w[j], shift), a.shr(a.shr(w[j + 1], A::u(1)), back));
    let (w0, w1, w2) = (window(0), window(1), window(2));
    // The product modulo 4 in quarter turns: 2 bits before the binary point, 126 after it.
    let carried = a.mulhi_u(m, w2);
    let low = a.add_u(a.mul_u(m, w1), carried);
    let carry = a.select_u(a.lt_u(low, carried), A::u(1), A::u(0));
    let high = a.add_u(a.add_u(a.mul_u(m, w0), a.mulhi_u(m, w1)), carry);
    // Rounds to the nearest quarter; the signed rest as a magnitude (the last bit of the complement is negligible).
    let q = a.shr(a.add_u(high, A::u(1 << 61)), A::u(62));
    let rest = a.sub_u(high, a.shl(q, A::u(62)));
    let mask = a.sub_u(A::u(0), a.shr(rest, A::u(63)));
    let (high, low) = (a.xor(rest, mask), a.xor(low, mask));
    // 2^-53 and 2^-116, the units of the two parts.
    let f0 = a.mul(a.int_to_f(a.shr(high, A::u(9))), A::f(1.0 / (1u64 << 53) as f64));
    let f1 = a.or(a.shl(a.and(high, A::u(511)), A::u(54)), a.shr(low, A::u(10)));
    let f1 = a.mul(a.int_to_f(f1), A::f(1.0 / (1u128 << 116) as f64));
    let f = a.add(f0, f1);
    let f_lo = a.sub(f1, a.sub(f, f0));
    let r = a.fma(f, A::f(PI_2[0]), a.fma(f, A::f(PI_2[1]), a.mul(f_lo, A::f(PI_2[0]))));
    (q, a.float_of(a.xor(a.bits_of(r), a.and(mask, A::u(SIGN)))))
}

/// sin(|x| + turn·π/2), with its sign flipped by `sign`.
#[inline(always)]
fn trig<A: Arith<f64>>(a: &A, x: A::F, turn: u64, sign: A::U) -> A::F {
    let (q, r) = reduce(a, a.abs(x));
    let q = a.add_u(q, A::u(turn));
    let z = a.mul(r, r);
    let s = a.fma(a.mul(z, r), poly(a, z, SIN), r);
    let c = poly(a, z, COS);
    after_turns(a, x, q, [s, c], sign)
}

/// The sine of x radians.
#[inline(always)]
pub fn sin<A: Arith<f64>>(a: &A, x: A::F) -> A::F {
    trig(a, x, 0, a.and(a.bits_of(x), A::u(SIGN)))
}

/// The cosine of x radians.
#[inline(always)]
pub fn cos<A: Arith<f64>>(a: &A, x: A::F) -> A::F {
    trig(a, x, 1, A::u(0))
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh<A: Arith<f64>>(a: &A, x: A::F) -> A::F {
    let y = a.abs(x);
    let z = a.mul(y, y);
    let near = a.fma(a.mul(z, y), poly(a, z, TANH), y);
    let far = a.add(exp(a, a.add(y, y)), A::f(1.0));
    let far = a.sub(A::f(1.0), a.div(A::f(2.0), far));
    odd(a, x, a.select(a.lt(y, A::f(0.75)), near, far))
}

/// The error function.
#[inline(always)]
pub fn erf<A: Arith<f64>>(a: &A, x: A::F) -> A::F {
    let y = a.abs(x);
    let near = a.fma(poly(a, a.mul(y, y), ERF), y, y);
    // 1 − erfc; 1 beyond 6.
    let y_far = clamp(a, y, 0.0, 6.0);
    let t = a.div(A::f(1.0), a.add(y_far, A::f(2.0)));
    let gauss = exp(a, a.mul(y_far, a.mul(y_far, A::f(-1.0))));
    let far = a.sub(A::f(1.0), a.mul(gauss, poly(a, t, ERFC)));
    odd(a, x, a.select(a.lt(y, A::f(0.875)), near, far))
}
