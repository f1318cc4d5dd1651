//! The functions that Atlas defines by decomposition: `exp`, `exp2`, `log`, `log2`, `sin`, `cos`, `tanh` and `erf`, on
//! `f32` (re-exported here) and on `f64` ([`double`]).
//!
//! Each is written once, over the [`Arith`] trait, in operations that every device rounds correctly, so every device
//! computes the same bits. [`Scalar`] computes on Rust's own numbers (this is the definition; a loop over it
//! vectorises), [`Emit`] appends the expansion to a program, and a backend may implement [`Arith`] for its vectors.
//!
//! Every function is within 2 ulp of the true value for every input, including subnormal results. Odd functions are odd
//! to the bit. Infinities, zeros and NaN are exact. The constants come from `tools/polynomials`.

use std::cell::RefCell;

use crate::program::StmtKind;
use crate::{Builder, Opcode, Operand, Type, Value};

pub mod double;
mod single;

pub use single::*;

/// A float type with these functions, and the constants of its representation.
pub trait Binary: Copy {
    /// The unsigned integer of the same size.
    type Word: Copy;
    /// The sign bit.
    const SIGN: Self::Word;
    /// All bits except the sign.
    const MAGNITUDE: Self::Word;
    /// The bits of infinity.
    const INFINITE: Self::Word;
    /// Infinity.
    const LIMIT: Self;
    /// Not a number.
    const NAN: Self;
    /// 1.5·2^[`FRACTION`](Self::FRACTION): adding it to a small number puts the nearest integer into the low bits.
    const MAGIC: Self;
    /// The bits of [`MAGIC`](Self::MAGIC) minus twice the exponent bias and 2.
    const SHIFTED_MAGIC: Self::Word;
    /// The number of fraction bits, and the position of the sign bit.
    const FRACTION: Self::Word;
    /// See [`FRACTION`](Self::FRACTION).
    const TOP: Self::Word;
    /// The word 1.
    const ONE: Self::Word;
}

/// The arithmetic that the functions are written in: a float type `T`, words of its size, and truth values. Every
/// operation is correctly rounded.
///
/// Methods that read words accept any bit pattern. Additions and products of words wrap.
pub trait Arith<T: Binary = f32> {
    /// A float of type `T`.
    type F: Copy;
    /// A word of the same size.
    type U: Copy;
    /// A truth value.
    type B: Copy;

    /// A float constant.
    fn f(v: T) -> Self::F;
    /// A word constant.
    fn u(v: T::Word) -> Self::U;
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
    /// The float nearest to a word read as a signed integer.
    fn int_to_f(&self, a: Self::U) -> Self::F;
    /// a + b.
    fn add_u(&self, a: Self::U, b: Self::U) -> Self::U;
    /// a − b.
    fn sub_u(&self, a: Self::U, b: Self::U) -> Self::U;
    /// The low half of a · b.
    fn mul_u(&self, a: Self::U, b: Self::U) -> Self::U;
    /// The high half of the unsigned product.
    fn mulhi_u(&self, a: Self::U, b: Self::U) -> Self::U;
    /// Bitwise and.
    fn and(&self, a: Self::U, b: Self::U) -> Self::U;
    /// Bitwise or.
    fn or(&self, a: Self::U, b: Self::U) -> Self::U;
    /// Bitwise exclusive or.
    fn xor(&self, a: Self::U, b: Self::U) -> Self::U;
    /// a shifted left by b, which is less than the width.
    fn shl(&self, a: Self::U, b: Self::U) -> Self::U;
    /// a shifted right by b, which is less than the width, filling with 0.
    fn shr(&self, a: Self::U, b: Self::U) -> Self::U;
    /// a < b, unsigned.
    fn lt_u(&self, a: Self::U, b: Self::U) -> Self::B;
    /// `a` where `c`, else `b`.
    fn select_u(&self, c: Self::B, a: Self::U, b: Self::U) -> Self::U;
    /// `f()` where `c`, else `usual`. `c` is rarely true: `f` may be skipped if no lane has it.
    fn rare(&self, c: Self::B, usual: (Self::U, Self::F), f: impl FnOnce() -> (Self::U, Self::F))
    -> (Self::U, Self::F);
}

/// [`Arith`] on Rust's own numbers: branchless on `f32`; on `f64` with a branch for rare cases, because its wide
/// products do not vectorise anyway.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar;

/// [`Arith`] on `f32` that counts subnormal operands and results as 0: see [`Subnormals`](crate::meaning::Subnormals).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flushing;

/// A number, or zero with its sign if it is subnormal.
#[inline(always)]
pub(crate) fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

#[inline(always)]
fn kept<T>(x: T) -> T {
    x
}

/// Inline functions of one Rust expression each.
macro_rules! scalar {
    ($($name:ident($($a:ident: $t:ty),*) -> $r:ty = $e:expr;)*) => {$(
        #[inline(always)]
        fn $name(&self, $($a: $t),*) -> $r {
            $e
        }
    )*};
}

/// Implements [`Binary`] for a float type and its word.
macro_rules! binary {
    ($($f:ident $u:ident $fraction:literal;)*) => {$(
        impl Binary for $f {
            type Word = $u;
            const SIGN: $u = 1 << ($u::BITS - 1);
            const MAGNITUDE: $u = !Self::SIGN;
            const INFINITE: $u = $f::INFINITY.to_bits();
            const LIMIT: $f = $f::INFINITY;
            const NAN: $f = $f::NAN;
            const MAGIC: $f = (3u64 << ($fraction - 1)) as $f;
            const SHIFTED_MAGIC: $u = Self::MAGIC.to_bits() - 2 * $f::MAX_EXP as $u;
            const FRACTION: $u = $fraction;
            const TOP: $u = $u::BITS as $u - 1;
            const ONE: $u = 1;
        }
    )*};
}
binary! {
    f32 u32 23;
    f64 u64 52;
}

/// Implements [`Arith`] for a float type and its word; arithmetic sees its operands, and returns its results, through a
/// function.
macro_rules! scalars {
    ($($of:ident $seen:ident $f:ident $u:ident $signed:ident $twice:ident, |$c:ident, $usual:ident, $rare:ident| $rarely:expr;)*) => {$(
        impl Arith<$f> for $of {
            type F = $f;
            type U = $u;
            type B = bool;

            #[inline(always)]
            fn f(v: $f) -> $f {
                v
            }
            #[inline(always)]
            fn u(v: $u) -> $u {
                v
            }
            scalar! {
                add(a: $f, b: $f) -> $f = $seen($seen(a) + $seen(b));
                sub(a: $f, b: $f) -> $f = $seen($seen(a) - $seen(b));
                mul(a: $f, b: $f) -> $f = $seen($seen(a) * $seen(b));
                div(a: $f, b: $f) -> $f = $seen($seen(a) / $seen(b));
                fma(a: $f, b: $f, c: $f) -> $f = $seen($seen(a).mul_add($seen(b), $seen(c)));
                abs(a: $f) -> $f = a.abs();
                lt(a: $f, b: $f) -> bool = a < b;
                select(c: bool, a: $f, b: $f) -> $f = if c { a } else { b };
                bits_of(a: $f) -> $u = a.to_bits();
                float_of(a: $u) -> $f = $f::from_bits(a);
                int_to_f(a: $u) -> $f = a as $signed as $f;
                add_u(a: $u, b: $u) -> $u = a.wrapping_add(b);
                sub_u(a: $u, b: $u) -> $u = a.wrapping_sub(b);
                mul_u(a: $u, b: $u) -> $u = a.wrapping_mul(b);
                mulhi_u(a: $u, b: $u) -> $u = ((a as $twice * b as $twice) >> $u::BITS) as $u;
                and(a: $u, b: $u) -> $u = a & b;
                or(a: $u, b: $u) -> $u = a | b;
                xor(a: $u, b: $u) -> $u = a ^ b;
                shl(a: $u, b: $u) -> $u = a.wrapping_shl(b as u32);
                shr(a: $u, b: $u) -> $u = a.wrapping_shr(b as u32);
                lt_u(a: $u, b: $u) -> bool = a < b;
                select_u(c: bool, a: $u, b: $u) -> $u = if c { a } else { b };
            }
            #[inline(always)]
            fn rare(&self, $c: bool, $usual: ($u, $f), $rare: impl FnOnce() -> ($u, $f)) -> ($u, $f) {
                $rarely
            }
        }
    )*};
}
scalars! {
    Scalar kept f32 u32 i32 u64, |c, usual, f| {
        let (q, r) = f();
        (if c { q } else { usual.0 }, if c { r } else { usual.1 })
    };
    Scalar kept f64 u64 i64 u128, |c, usual, f| if c { f() } else { usual };
    Flushing flushed f32 u32 i32 u64, |c, usual, f| if c { f() } else { usual };
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

    /// A shift; its count is a `u32`.
    fn shift(&self, op: Opcode, a: Value, count: Value) -> Value {
        let count = match count.operand {
            Operand::Const(_, word) => Value::from(word as u32),
            _ => self.0.borrow_mut().cvt(Type::U32, count),
        };
        self.inst(op, a.ty, &[a, count])
    }
}

/// Methods of one instruction each.
macro_rules! emit {
    ($($name:ident($($a:ident),*) = $op:ident $ty:ident;)*) => {$(
        fn $name(&self, $($a: Value),*) -> Value {
            self.inst(Opcode::$op, Type::$ty, &[$($a),*])
        }
    )*};
}

/// [`Arith`] on a float type, its word and the signed integer of the same size.
macro_rules! emits {
    ($($rust:ident $word:ident $f:ident $u:ident $signed:ident;)*) => {$(
        impl Arith<$rust> for Emit<'_> {
            type F = Value;
            type U = Value;
            type B = Value;

            fn f(v: $rust) -> Value {
                v.into()
            }
            fn u(v: $word) -> Value {
                v.into()
            }
            emit! {
                add(a, b) = Add $f;
                sub(a, b) = Sub $f;
                mul(a, b) = Mul $f;
                div(a, b) = Div $f;
                fma(a, b, c) = Fma $f;
                abs(a) = Abs $f;
                lt(a, b) = Lt $f;
                select(c, a, b) = Select $f;
                bits_of(a) = Bitcast $u;
                float_of(a) = Bitcast $f;
                add_u(a, b) = Add $u;
                sub_u(a, b) = Sub $u;
                mul_u(a, b) = Mul $u;
                mulhi_u(a, b) = MulHi $u;
                and(a, b) = And $u;
                or(a, b) = Or $u;
                xor(a, b) = Xor $u;
                lt_u(a, b) = Lt $u;
                select_u(c, a, b) = Select $u;
            }
            fn shl(&self, a: Value, b: Value) -> Value {
                self.shift(Opcode::Shl, a, b)
            }
            fn shr(&self, a: Value, b: Value) -> Value {
                self.shift(Opcode::Shr, a, b)
            }
            fn int_to_f(&self, a: Value) -> Value {
                let signed = self.inst(Opcode::Bitcast, Type::$signed, &[a]);
                self.inst(Opcode::Cvt, Type::$f, &[signed])
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
    )*};
}
emits! {
    f32 u32 F32 U32 I32;
    f64 u64 F64 U64 I64;
}

/// Appends the expansion of the table's function `op` (`exp` … `erf`) on `f32` or `f64`. Returns `None` for any other
/// operation or type.
pub fn expand(builder: &mut Builder, op: Opcode, x: Value) -> Option<Value> {
    // An expansion is exact, even if the builder uses fast forms.
    let fast = builder.fast(false);
    let emit = &Emit::new(builder);
    let value = match x.ty {
        Type::F32 => single::function(emit, op, x),
        Type::F64 => double::function(emit, op, x),
        _ => None,
    };
    builder.fast(fast);
    value
}

/// Horner's scheme; `c` has the highest coefficient first.
#[inline(always)]
fn poly<T: Binary, A: Arith<T>, const N: usize>(a: &A, x: A::F, c: [T; N]) -> A::F {
    let mut sum = A::f(c[0]);
    for &ck in &c[1..] {
        sum = a.fma(sum, x, A::f(ck));
    }
    sum
}

/// `v` clamped to lo ..= hi; NaN stays NaN.
#[inline(always)]
fn clamp<T: Binary, A: Arith<T>>(a: &A, v: A::F, lo: T, hi: T) -> A::F {
    let v = a.select(a.lt(v, A::f(lo)), A::f(lo), v);
    a.select(a.lt(A::f(hi), v), A::f(hi), v)
}

/// `v`, or `x` if `x` is NaN.
#[inline(always)]
fn keep_nan<T: Binary, A: Arith<T>>(a: &A, x: A::F, v: A::F) -> A::F {
    let nan = a.lt_u(A::u(T::INFINITE), a.and(a.bits_of(x), A::u(T::MAGNITUDE)));
    a.select(nan, x, v)
}

/// `v` with the sign of `x`, for v ≥ 0; `x` if it is NaN.
#[inline(always)]
fn odd<T: Binary, A: Arith<T>>(a: &A, x: A::F, v: A::F) -> A::F {
    keep_nan(a, x, a.float_of(a.or(a.bits_of(v), a.and(a.bits_of(x), A::u(T::SIGN)))))
}

/// The sine of |x|, with its sign flipped by `sign`, from the sine `s` and cosine `c` of |x| reduced by `q` quarter
/// turns.
#[inline(always)]
fn after_turns<T: Binary, A: Arith<T>>(a: &A, x: A::F, q: A::U, [s, c]: [A::F; 2], sign: A::U) -> A::F {
    let one = A::u(T::ONE);
    let even = a.lt_u(a.and(q, one), one);
    let flip = a.xor(a.shl(a.shr(q, one), A::u(T::TOP)), sign);
    let v = a.float_of(a.xor(a.bits_of(a.select(even, s, c)), flip));
    let v = a.select(a.lt(a.abs(x), A::f(T::LIMIT)), v, A::f(T::NAN));
    keep_nan(a, x, v)
}

/// p · 2^n for 0.5 < p < 2 and n between twice the minimum exponent and twice the maximum, rounded once; `t` is n +
/// MAGIC. The factor is split in two so that overflow and subnormal results come from the last multiplication.
#[inline(always)]
fn scale<T: Binary, A: Arith<T>>(a: &A, p: A::F, t: A::F) -> A::F {
    let n = a.sub_u(a.bits_of(t), A::u(T::SHIFTED_MAGIC));
    let half = a.shr(n, A::u(T::ONE));
    let rest = a.sub_u(n, half);
    let power = |e| a.float_of(a.shl(a.sub_u(e, A::u(T::ONE)), A::u(T::FRACTION)));
    a.mul(a.mul(p, power(half)), power(rest))
}
