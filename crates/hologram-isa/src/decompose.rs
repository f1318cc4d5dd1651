//! The functions that Atlas defines by decomposition: `exp`, `exp2`, `log`, `log2`, `sin`, `cos`, `tanh` and `erf`.
//!
//! Each is written once, over the [`Arith`] trait, in operations that every device rounds correctly: so every device computes the
//! same bits. [`Scalar`] computes on Rust's own numbers (this is the meaning; a loop over it vectorises), [`Emit`] appends the
//! expansion to a program, and a backend may implement [`Arith`] for its vectors.
//!
//! Every function is within 2 ulp of the true value for every input (results below the least normal number included), odd functions
//! are odd to the bit, and infinities, zeros and NaN are exact. The constants come from `tools/polynomials`.

use std::cell::RefCell;
use std::f32::consts::{FRAC_2_PI, FRAC_PI_2, LN_2, LOG2_E};

use crate::program::StmtKind;
use crate::{Builder, Opcode, Type, Value};

/// The arithmetic that the functions are written in: `f32`, 32-bit words, and truth values. Every operation is correctly rounded.
///
/// Methods that read words take any bit pattern; additions and products of words wrap.
pub trait Arith {
    /// An `f32`.
    type F: Copy;
    /// A 32-bit word.
    type U: Copy;
    /// A truth value.
    type B: Copy;

    /// A float constant.
    fn f(v: f32) -> Self::F;
    /// A word constant.
    fn u(v: u32) -> Self::U;
    /// a + b.
    fn add(&self, a: Self::F, b: Self::F) -> Self::F;
    /// a − b.
    fn sub(&self, a: Self::F, b: Self::F) -> Self::F;
    /// a · b.
    fn mul(&self, a: Self::F, b: Self::F) -> Self::F;
    /// a / b.
    fn div(&self, a: Self::F, b: Self::F) -> Self::F;
    /// a · b + c with one rounding.
    fn fma(&self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The sign bit cleared.
    fn abs(&self, a: Self::F) -> Self::F;
    /// a < b, false for NaN.
    fn lt(&self, a: Self::F, b: Self::F) -> Self::B;
    /// `a` where `c`, else `b`.
    fn select(&self, c: Self::B, a: Self::F, b: Self::F) -> Self::F;
    /// The bits of a float.
    fn bits_of(&self, a: Self::F) -> Self::U;
    /// The float with these bits.
    fn float_of(&self, a: Self::U) -> Self::F;
    /// The float nearest to a word read as `i32`.
    fn int_to_f(&self, a: Self::U) -> Self::F;
    /// a + b.
    fn add_u(&self, a: Self::U, b: Self::U) -> Self::U;
    /// a − b.
    fn sub_u(&self, a: Self::U, b: Self::U) -> Self::U;
    /// The low 32 bits of a · b.
    fn mul_u(&self, a: Self::U, b: Self::U) -> Self::U;
    /// The high 32 bits of the unsigned product.
    fn mulhi_u(&self, a: Self::U, b: Self::U) -> Self::U;
    /// Bitwise and.
    fn and(&self, a: Self::U, b: Self::U) -> Self::U;
    /// Bitwise or.
    fn or(&self, a: Self::U, b: Self::U) -> Self::U;
    /// Bitwise exclusive or.
    fn xor(&self, a: Self::U, b: Self::U) -> Self::U;
    /// a shifted left by b < 32.
    fn shl(&self, a: Self::U, b: Self::U) -> Self::U;
    /// a shifted right by b < 32, filling with 0.
    fn shr(&self, a: Self::U, b: Self::U) -> Self::U;
    /// a < b, unsigned.
    fn lt_u(&self, a: Self::U, b: Self::U) -> Self::B;
    /// `a` where `c`, else `b`.
    fn select_u(&self, c: Self::B, a: Self::U, b: Self::U) -> Self::U;
    /// `f()` where `c`, else `usual`. `c` is seldom true: where no lane has it, `f` need not be computed.
    fn rare(&self, c: Self::B, usual: (Self::U, Self::F), f: impl FnOnce() -> (Self::U, Self::F))
    -> (Self::U, Self::F);
}

/// [`Arith`] on Rust's own numbers, without branches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar;

/// Inline functions that are one Rust expression each.
macro_rules! scalar {
    ($($name:ident($($a:ident: $t:ty),*) -> $r:ty = $e:expr;)*) => {$(
        #[inline(always)]
        fn $name(&self, $($a: $t),*) -> $r {
            $e
        }
    )*};
}

impl Arith for Scalar {
    type F = f32;
    type U = u32;
    type B = bool;

    #[inline(always)]
    fn f(v: f32) -> f32 {
        v
    }
    #[inline(always)]
    fn u(v: u32) -> u32 {
        v
    }
    scalar! {
        add(a: f32, b: f32) -> f32 = a + b;
        sub(a: f32, b: f32) -> f32 = a - b;
        mul(a: f32, b: f32) -> f32 = a * b;
        div(a: f32, b: f32) -> f32 = a / b;
        fma(a: f32, b: f32, c: f32) -> f32 = a.mul_add(b, c);
        abs(a: f32) -> f32 = a.abs();
        lt(a: f32, b: f32) -> bool = a < b;
        select(c: bool, a: f32, b: f32) -> f32 = if c { a } else { b };
        bits_of(a: f32) -> u32 = a.to_bits();
        float_of(a: u32) -> f32 = f32::from_bits(a);
        int_to_f(a: u32) -> f32 = a as i32 as f32;
        add_u(a: u32, b: u32) -> u32 = a.wrapping_add(b);
        sub_u(a: u32, b: u32) -> u32 = a.wrapping_sub(b);
        mul_u(a: u32, b: u32) -> u32 = a.wrapping_mul(b);
        mulhi_u(a: u32, b: u32) -> u32 = ((a as u64 * b as u64) >> 32) as u32;
        and(a: u32, b: u32) -> u32 = a & b;
        or(a: u32, b: u32) -> u32 = a | b;
        xor(a: u32, b: u32) -> u32 = a ^ b;
        shl(a: u32, b: u32) -> u32 = a.wrapping_shl(b);
        shr(a: u32, b: u32) -> u32 = a.wrapping_shr(b);
        lt_u(a: u32, b: u32) -> bool = a < b;
        select_u(c: bool, a: u32, b: u32) -> u32 = if c { a } else { b };
    }
    #[inline(always)]
    fn rare(&self, c: bool, usual: (u32, f32), f: impl FnOnce() -> (u32, f32)) -> (u32, f32) {
        let (q, r) = f();
        (if c { q } else { usual.0 }, if c { r } else { usual.1 })
    }
}

/// [`Arith`] that appends instructions to a program.
#[derive(Debug)]
pub struct Emit<'b>(RefCell<&'b mut Builder>);

impl<'b> Emit<'b> {
    /// Appends to this builder.
    pub fn new(builder: &'b mut Builder) -> Emit<'b> {
        Emit(RefCell::new(builder))
    }

    fn inst(&self, op: Opcode, ty: Type, args: &[Value]) -> Value {
        self.0.borrow_mut().inst(op, ty, args)
    }
}

/// Methods that are one instruction each.
macro_rules! emit {
    ($($name:ident($($a:ident),*) = $op:ident $ty:ident;)*) => {$(
        fn $name(&self, $($a: Value),*) -> Value {
            self.inst(Opcode::$op, Type::$ty, &[$($a),*])
        }
    )*};
}

impl Arith for Emit<'_> {
    type F = Value;
    type U = Value;
    type B = Value;

    fn f(v: f32) -> Value {
        v.into()
    }
    fn u(v: u32) -> Value {
        v.into()
    }
    emit! {
        add(a, b) = Add F32;
        sub(a, b) = Sub F32;
        mul(a, b) = Mul F32;
        div(a, b) = Div F32;
        fma(a, b, c) = Fma F32;
        abs(a) = Abs F32;
        lt(a, b) = Lt F32;
        select(c, a, b) = Select F32;
        bits_of(a) = Bitcast U32;
        float_of(a) = Bitcast F32;
        add_u(a, b) = Add U32;
        sub_u(a, b) = Sub U32;
        mul_u(a, b) = Mul U32;
        mulhi_u(a, b) = MulHi U32;
        and(a, b) = And U32;
        or(a, b) = Or U32;
        xor(a, b) = Xor U32;
        shl(a, b) = Shl U32;
        shr(a, b) = Shr U32;
        lt_u(a, b) = Lt U32;
        select_u(c, a, b) = Select U32;
    }
    fn int_to_f(&self, a: Value) -> Value {
        let signed = self.inst(Opcode::Bitcast, Type::I32, &[a]);
        self.inst(Opcode::Cvt, Type::F32, &[signed])
    }
    fn rare(&self, c: Value, usual: (Value, Value), f: impl FnOnce() -> (Value, Value)) -> (Value, Value) {
        let (q, r) = {
            let mut b = self.0.borrow_mut();
            let vars = (b.var(usual.0), b.var(usual.1));
            b.begin_block();
            vars
        };
        let values = f();
        let mut b = self.0.borrow_mut();
        b.assign(q, values.0);
        b.assign(r, values.1);
        let then = b.end_block();
        b.push(StmtKind::If { cond: c.operand, then, otherwise: Vec::new() });
        (q, r)
    }
}

/// Appends the expansion of a function of the table (`exp` … `erf`), or returns `None` for any other operation.
pub fn expand(builder: &mut Builder, op: Opcode, x: Value) -> Option<Value> {
    // An expansion is exact, whatever the builder does with the operations themselves.
    let fast = builder.fast(false);
    let value = expansion(&Emit::new(builder), op, x);
    builder.fast(fast);
    value
}

fn expansion<A: Arith>(a: &A, op: Opcode, x: A::F) -> Option<A::F> {
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
/// 1.5·2^23: adding it to a small number leaves the nearest whole number in the low bits.
const MAGIC: f32 = 12582912.0;
const SIGN: u32 = 0x8000_0000;
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

/// Horner's scheme; `c` has the highest coefficient first.
#[inline(always)]
fn poly<A: Arith, const N: usize>(a: &A, x: A::F, c: [f32; N]) -> A::F {
    let mut sum = A::f(c[0]);
    for &ck in &c[1..] {
        sum = a.fma(sum, x, A::f(ck));
    }
    sum
}

/// `v` limited to lo ..= hi; NaN stays.
#[inline(always)]
fn clamp<A: Arith>(a: &A, v: A::F, lo: f32, hi: f32) -> A::F {
    let v = a.select(a.lt(v, A::f(lo)), A::f(lo), v);
    a.select(a.lt(A::f(hi), v), A::f(hi), v)
}

/// `v`, but `x` itself where `x` is NaN.
#[inline(always)]
fn keep_nan<A: Arith>(a: &A, x: A::F, v: A::F) -> A::F {
    let nan = a.lt_u(A::u(0x7f80_0000), a.and(a.bits_of(x), A::u(!SIGN)));
    a.select(nan, x, v)
}

/// p · 2^n for 0.5 < p < 2 and −254 < n < 256, rounded once; `t` is n + MAGIC. The factor is split in two so that overflow and
/// results below the least normal number come out of the last multiplication.
#[inline(always)]
fn scale<A: Arith>(a: &A, p: A::F, t: A::F) -> A::F {
    let n = a.sub_u(a.bits_of(t), A::u(MAGIC.to_bits() - 256));
    let half = a.shr(n, A::u(1));
    let rest = a.sub_u(n, half);
    let power = |e| a.float_of(a.shl(a.sub_u(e, A::u(1)), A::u(23)));
    a.mul(a.mul(p, power(half)), power(rest))
}

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
    let normal = a.select(subnormal, a.mul(x, A::f(8388608.0)), x);
    let bias = a.select(subnormal, A::f(-150.0), A::f(-127.0));
    let bits = a.add_u(a.bits_of(normal), A::u(ONE - SQRT_HALF));
    let e = a.add(a.int_to_f(a.shr(bits, A::u(23))), bias);
    let m = a.float_of(a.add_u(a.and(bits, A::u(0x007f_ffff)), A::u(SQRT_HALF)));
    (a.sub(m, A::f(1.0)), e)
}

/// `v`, but the limits of a logarithm where `x` is zero, negative, infinite or NaN.
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

/// For finite x ≥ 0: (q, r) with x = q·π/2 + r and |r| ≤ π/4 (a trifle more by rounding); q modulo 4 counts.
#[inline(always)]
fn reduce<A: Arith>(a: &A, x: A::F) -> (A::U, A::F) {
    // Where x is at most 1e5, x − n·PI_2[0] is exact, and the two other parts bring the rest.
    let t = a.fma(x, A::f(FRAC_2_PI), A::f(MAGIC));
    let n = a.sub(t, A::f(MAGIC));
    let r = a.fma(n, A::f(-PI_2[1]), a.fma(n, A::f(-PI_2[0]), x));
    let r = a.fma(n, A::f(-PI_2[2]), r);
    a.rare(a.lt(A::f(1e5), x), (a.bits_of(t), r), || reduce_large(a, x))
}

/// [`reduce`] for finite x ≥ 2^16, in whole numbers (Payne and Hanek): x is m·2^(e−150); of the bits of 2/π only 96 matter, those
/// that give multiples of 4 and those far behind the point being left out.
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
    // The product modulo 4, as quarter turns: 2 bits before the point, 62 after it.
    let carried = a.mulhi_u(m, w2);
    let low = a.add_u(a.mul_u(m, w1), carried);
    let carry = a.select_u(a.lt_u(low, carried), A::u(1), A::u(0));
    let high = a.add_u(a.add_u(a.mul_u(m, w0), a.mulhi_u(m, w1)), carry);
    // To the nearest quarter; the signed rest as a magnitude (the complement's last bit is of no account).
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
    let odd = a.lt_u(A::u(0), a.and(q, A::u(1)));
    let flip = a.xor(a.shl(a.and(q, A::u(2)), A::u(30)), sign);
    let v = a.float_of(a.xor(a.bits_of(a.select(odd, c, s)), flip));
    let v = a.select(a.lt(a.abs(x), A::f(f32::INFINITY)), v, A::f(f32::NAN));
    keep_nan(a, x, v)
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

/// `v` with the sign of `x`, for v ≥ 0; `x` itself where it is NaN.
#[inline(always)]
fn odd<A: Arith>(a: &A, x: A::F, v: A::F) -> A::F {
    keep_nan(a, x, a.float_of(a.or(a.bits_of(v), a.and(a.bits_of(x), A::u(SIGN)))))
}

/// Below this the hyperbolic tangent is [`tanh_near`].
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
