//! Instructions over lanes: the meaning of each as a branch-free function of values, and the loops that apply it to all
//! lanes of a workgroup.
//!
//! Values lie as [`Type`] describes register words, those of at most 32 bits in a `u32`. A function here computes the
//! interpreter's result, written so that its loop vectorises.

use std::marker::PhantomData;

use hologram_isa::decompose::{self, Scalar, double};
use hologram_isa::{Opcode, Type};

use super::convert::convert;
use super::level::{Level, leveled};
use super::words::*;

/// An instruction on one lane: the result and three operands. An operand that the instruction lacks may be any word.
///
/// # Safety
/// Each address is that of one word, or of two words aligned to 8 bytes where the value has 64 bits.
pub(super) type WordFn = unsafe fn(*mut u32, *const u32, *const u32, *const u32);

/// An instruction on `n` lanes: the result, three operands, `n`. A uniform operand is a single value; an unused one may
/// be anything.
///
/// # Safety
/// The result has `n` values and overlaps no operand. Each operand has as many values as its form reads, of 32 or 64
/// bits and aligned to their size. `n` is a multiple of 16. The processor has the level's instructions.
pub(super) type LaneFn = unsafe fn(*mut u32, *const u32, *const u32, *const u32, usize);

/// An instruction in all its forms.
pub(super) struct Forms {
    pub(super) one: WordFn,
    /// Indexed by the uniform operands: bit i for operand i. For an absent form, an operand is first spread over a
    /// register.
    pub(super) lanes: [Option<LaneFn>; 8],
}

/// The function of an instruction on the values of one lane: plain numbers of 32 or 64 bits.
pub(super) trait Op: 'static {
    type A: Copy;
    type B: Copy;
    type C: Copy;
    type R: Copy;
    fn f(a: Self::A, b: Self::B, c: Self::C) -> Self::R;
}

/// Applies an operation to one lane.
unsafe fn one<O: Op>(dst: *mut u32, a: *const u32, b: *const u32, c: *const u32) {
    // SAFETY: the caller promises values of these types.
    unsafe { dst.cast::<O::R>().write(O::f(a.cast::<O::A>().read(), b.cast::<O::B>().read(), c.cast::<O::C>().read())) }
}

/// Applies an operation to lanes; `U` says which operands are uniform.
#[inline(always)]
unsafe fn apply<O: Op, const U: u8>(dst: *mut u32, a: *const u32, b: *const u32, c: *const u32, n: usize) {
    #[inline(always)]
    fn each<O: Op, const U: u8>(dst: &mut [O::R], a: &[O::A], b: &[O::B], c: &[O::C]) {
        #[inline(always)]
        fn at<T: Copy, const UNIFORM: bool>(x: &[T], i: usize) -> T {
            let i = if UNIFORM { 0 } else { i };
            // SAFETY: a uniform operand has one value; the others have as many as the result.
            unsafe { *x.get_unchecked(i) }
        }
        // A multiple of 16, so that the vector loop leaves no remainder.
        let n = dst.len() & !15;
        for i in 0..n {
            let a = if U & 1 != 0 { at::<_, true>(a, i) } else { at::<_, false>(a, i) };
            let b = if U & 2 != 0 { at::<_, true>(b, i) } else { at::<_, false>(b, i) };
            let c = if U & 4 != 0 { at::<_, true>(c, i) } else { at::<_, false>(c, i) };
            let value = O::f(a, b, c);
            // SAFETY: i < n.
            unsafe { *dst.get_unchecked_mut(i) = value };
        }
    }
    #[inline(always)]
    unsafe fn operand<'a, T>(x: *const u32, uniform: bool, n: usize) -> &'a [T] {
        // SAFETY: the caller promises so many values.
        unsafe { std::slice::from_raw_parts(x.cast(), if uniform { 1 } else { n }) }
    }
    // SAFETY: the caller promises `n` values that nothing else refers to.
    let dst = unsafe { std::slice::from_raw_parts_mut(dst.cast(), n) };
    // SAFETY: the caller promises as many values of each operand as its form reads.
    let (a, b, c) = unsafe { (operand(a, U & 1 != 0, n), operand(b, U & 2 != 0, n), operand(c, U & 4 != 0, n)) };
    each::<O, U>(dst, a, b, c);
}

leveled! { fn instance[O: Op, const U: u8][O, U] = apply(dst: *mut u32, a: *const u32, b: *const u32, c: *const u32, n: usize) }

/// All forms of a unary operation. Its absent operands count as uniform.
pub(super) fn unary<O: Op>(level: Level) -> Forms {
    let mut lanes = [None; 8];
    lanes[0b000] = Some(instance::<O, 0b110>(level));
    Forms { one: one::<O>, lanes }
}

/// All forms of a binary operation.
fn binary<O: Op>(level: Level) -> Forms {
    let mut lanes = [None; 8];
    lanes[0b000] = Some(instance::<O, 0b100>(level));
    lanes[0b001] = Some(instance::<O, 0b101>(level));
    lanes[0b010] = Some(instance::<O, 0b110>(level));
    Forms { one: one::<O>, lanes }
}

/// The useful forms of a ternary operation.
fn ternary<O: Op>(level: Level) -> Forms {
    let mut lanes = [None; 8];
    lanes[0b000] = Some(instance::<O, 0b000>(level));
    lanes[0b010] = Some(instance::<O, 0b010>(level));
    lanes[0b100] = Some(instance::<O, 0b100>(level));
    lanes[0b110] = Some(instance::<O, 0b110>(level));
    Forms { one: one::<O>, lanes }
}

/// Implements an operation for a type.
macro_rules! implement {
    ($name:ident<$ty:ident>($a_ty:ty, $b_ty:ty, $c_ty:ty) -> $r_ty:ty, |$a:pat_param, $b:pat_param, $c:pat_param| $body:expr) => {
        impl Op for $name<$ty> {
            type A = $a_ty;
            type B = $b_ty;
            type C = $c_ty;
            type R = $r_ty;
            #[inline(always)]
            fn f($a: $a_ty, $b: $b_ty, $c: $c_ty) -> $r_ty {
                $body
            }
        }
    };
}

/// Operations on values of one type, for integers and for floats.
macro_rules! numbers {
    ($($name:ident |$a:pat_param, $b:pat_param, $c:pat_param| $int:expr, $float:expr;)*) => {
        integers! { $($name |$a, $b, $c| $int;)* }
        $(
            implement! { $name<f32>(f32, f32, f32) -> f32, |$a, $b, $c| $float }
            implement! { $name<f64>(f64, f64, f64) -> f64, |$a, $b, $c| $float }
        )*
    };
}
/// For integers alone, and for those of 32 bits alone.
macro_rules! integers {
    ($($name:ident |$a:pat_param, $b:pat_param, $c:pat_param| $int:expr;)*) => {$(
        struct $name<T>(PhantomData<T>);
        implement! { $name<i32>(i32, i32, i32) -> i32, |$a, $b, $c| $int }
        implement! { $name<u32>(u32, u32, u32) -> u32, |$a, $b, $c| $int }
        implement! { $name<i64>(i64, i64, i64) -> i64, |$a, $b, $c| $int }
        implement! { $name<u64>(u64, u64, u64) -> u64, |$a, $b, $c| $int }
    )*};
}
macro_rules! words {
    ($($name:ident |$a:pat_param, $b:pat_param, $c:pat_param| $int:expr;)*) => {$(
        struct $name<T>(PhantomData<T>);
        implement! { $name<i32>(i32, i32, i32) -> i32, |$a, $b, $c| $int }
        implement! { $name<u32>(u32, u32, u32) -> u32, |$a, $b, $c| $int }
    )*};
}
/// For integers with a word as second operand.
macro_rules! shifts {
    ($($name:ident |$a:pat_param, $n:pat_param| $int:expr;)*) => {$(
        struct $name<T>(PhantomData<T>);
        implement! { $name<i32>(i32, u32, u32) -> i32, |$a, $n, _| $int }
        implement! { $name<u32>(u32, u32, u32) -> u32, |$a, $n, _| $int }
        implement! { $name<i64>(i64, u32, u32) -> i64, |$a, $n, _| $int }
        implement! { $name<u64>(u64, u32, u32) -> u64, |$a, $n, _| $int }
    )*};
}
/// For floats alone.
macro_rules! floats {
    ($($name:ident |$a:pat_param, $b:pat_param, $c:pat_param| $float:expr;)*) => {$(
        struct $name<T>(PhantomData<T>);
        implement! { $name<f32>(f32, f32, f32) -> f32, |$a, $b, $c| $float }
        implement! { $name<f64>(f64, f64, f64) -> f64, |$a, $b, $c| $float }
    )*};
}
/// The decomposed functions, for floats.
macro_rules! functions {
    ($($name:ident $function:ident;)*) => {$(
        struct $name<T>(PhantomData<T>);
        implement! { $name<f32>(f32, f32, f32) -> f32, |a, _, _| decompose::$function(&Scalar, a) }
        implement! { $name<f64>(f64, f64, f64) -> f64, |a, _, _| double::$function(&Scalar, a) }
    )*};
}
/// Comparisons of numbers: 1 or 0.
macro_rules! comparisons {
    ($($name:ident |$a:pat_param, $b:pat_param| $body:expr;)*) => {$(
        struct $name<T>(PhantomData<T>);
        comparisons! { each $name [i32 u32 i64 u64 f32 f64] |$a, $b| $body }
    )*};
    (each $name:ident [] |$a:pat_param, $b:pat_param| $body:expr) => {};
    (each $name:ident [$ty:ident $($more:ident)*] |$a:pat_param, $b:pat_param| $body:expr) => {
        implement! { $name<$ty>($ty, $ty, u32) -> u32, |$a, $b, _| ($body) as u32 }
        comparisons! { each $name [$($more)*] |$a, $b| $body }
    };
}

numbers! {
    Add |a, b, _| a.wrapping_add(b), a + b;
    Sub |a, b, _| a.wrapping_sub(b), a - b;
    Mul |a, b, _| a.wrapping_mul(b), a * b;
    Div |a, b, _| a.quotient(b), a / b;
    Min |a, b, _| a.min(b), a.least(b);
    Max |a, b, _| a.max(b), a.greatest(b);
    Abs |a, _, _| a.magnitude(), a.abs();
    Neg |a, _, _| a.wrapping_neg(), -a;
}
integers! {
    MulHi |a, b, _| a.high_product(b);
    Rem |a, b, _| a.wrapping_sub(a.quotient(b).wrapping_mul(b));
    And |a, b, _| a & b;
    Or |a, b, _| a | b;
    Xor |a, b, _| a ^ b;
    Not |a, _, _| !a;
    PopCount |a, _, _| a.count_ones() as _;
    LeadingZeros |a, _, _| a.leading_zeros() as _;
}
words! {
    Dot4 |a, b, c| (0..4).fold(c, |sum, i| sum.wrapping_add(a.byte(i).wrapping_mul(b.byte(i))));
}
shifts! {
    Shl |a, n| a.shift_left(n);
    Shr |a, n| a.shift_right(n);
}
floats! {
    Fma |a, b, c| a.mul_add(b, c);
    Sqrt |a, _, _| a.sqrt();
    Floor |a, _, _| a.floor();
    Ceil |a, _, _| a.ceil();
    Trunc |a, _, _| a.trunc();
    Round |a, _, _| a.round_ties_even();
}
comparisons! {
    Eq |a, b| a == b;
    Ne |a, b| a != b;
    Lt |a, b| a < b;
    Le |a, b| a <= b;
    Gt |a, b| a > b;
    Ge |a, b| a >= b;
}
functions! {
    Exp exp;
    Exp2 exp2;
    Log log;
    Log2 log2;
    Sin sin;
    Cos cos;
    Tanh tanh;
    Erf erf;
}

/// Operations outside the type's arithmetic: copies by width, `bool`, and floats that are only compared.
struct Own<T>(PhantomData<T>);
struct Choose<T>(PhantomData<T>);
struct NotBool<T>(PhantomData<T>);
struct EqHalf<T>(PhantomData<T>);
struct EqBrain<T>(PhantomData<T>);
struct NeHalf<T>(PhantomData<T>);
struct NeBrain<T>(PhantomData<T>);
implement! { Own<u32>(u32, u32, u32) -> u32, |a, _, _| a }
implement! { Own<u64>(u64, u32, u32) -> u64, |a, _, _| a }
implement! { Choose<u32>(u32, u32, u32) -> u32, |c, a, b| if c != 0 { a } else { b } }
implement! { Choose<u64>(u32, u64, u64) -> u64, |c, a, b| if c != 0 { a } else { b } }
implement! { NotBool<u32>(u32, u32, u32) -> u32, |a, _, _| a ^ 1 }
implement! { EqHalf<u32>(u32, u32, u32) -> u32, |a, b, _| (from_f16(a) == from_f16(b)) as u32 }
implement! { EqBrain<u32>(u32, u32, u32) -> u32, |a, b, _| (from_bf16(a) == from_bf16(b)) as u32 }
implement! { NeHalf<u32>(u32, u32, u32) -> u32, |a, b, _| (from_f16(a) != from_f16(b)) as u32 }
implement! { NeBrain<u32>(u32, u32, u32) -> u32, |a, b, _| (from_bf16(a) != from_bf16(b)) as u32 }

/// A copy of a value.
pub(super) fn copy(ty: Type, level: Level) -> Forms {
    if ty.is_wide() { unary::<Own<u64>>(level) } else { unary::<Own<u32>>(level) }
}

/// The forms of an instruction that computes each lane's result from that lane's operands. `from` is the type of its
/// first operand. `None` for all other instructions.
pub(super) fn forms(op: Opcode, ty: Type, from: Type, level: Level) -> Option<Forms> {
    use Opcode as O;
    /// An operation of this shape, for the types that it has.
    macro_rules! of {
        ($shape:ident $name:ident [$($variant:ident $rust:ident),*]) => {
            match ty {
                $(Type::$variant => $shape::<$name<$rust>>(level),)*
                _ => return None,
            }
        };
        ($shape:ident $name:ident number) => {
            of!($shape $name [I32 i32, U32 u32, I64 i64, U64 u64, F32 f32, F64 f64])
        };
        ($shape:ident $name:ident integer) => { of!($shape $name [Bool u32, I32 i32, U32 u32, I64 i64, U64 u64]) };
        ($shape:ident $name:ident float) => { of!($shape $name [F32 f32, F64 f64]) };
    }
    Some(match (op, ty) {
        (O::Mov, _) => copy(ty, level),
        (O::Select, _) if ty.is_wide() => ternary::<Choose<u64>>(level),
        (O::Select, _) => ternary::<Choose<u32>>(level),
        (O::Cvt, _) => convert(from, ty, level),
        (O::Bitcast, _) => bitcast(from, ty, level),
        (O::Add, _) => of!(binary Add number),
        (O::Sub, _) => of!(binary Sub number),
        (O::Mul, _) => of!(binary Mul number),
        (O::MulHi, _) => of!(binary MulHi integer),
        (O::Div, _) => of!(binary Div number),
        (O::Rem, _) => of!(binary Rem integer),
        (O::Fma, _) => of!(ternary Fma float),
        (O::Min, _) => of!(binary Min number),
        (O::Max, _) => of!(binary Max number),
        (O::Abs, _) => of!(unary Abs number),
        (O::Neg, _) => of!(unary Neg number),
        (O::Sqrt, _) => of!(unary Sqrt float),
        (O::Floor, _) => of!(unary Floor float),
        (O::Ceil, _) => of!(unary Ceil float),
        (O::Trunc, _) => of!(unary Trunc float),
        (O::Round, _) => of!(unary Round float),
        (O::And, _) => of!(binary And integer),
        (O::Or, _) => of!(binary Or integer),
        (O::Xor, _) => of!(binary Xor integer),
        (O::Not, Type::Bool) => unary::<NotBool<u32>>(level),
        (O::Not, _) => of!(unary Not integer),
        (O::PopCount, _) => of!(unary PopCount integer),
        (O::LeadingZeros, _) => of!(unary LeadingZeros integer),
        (O::Dot4, _) => of!(ternary Dot4 [I32 i32, U32 u32]),
        (O::Shl, _) => of!(binary Shl integer),
        (O::Shr, _) => of!(binary Shr integer),
        (O::Eq, Type::F16) => binary::<EqHalf<u32>>(level),
        (O::Eq, Type::BF16) => binary::<EqBrain<u32>>(level),
        (O::Eq, Type::I64 | Type::U64 | Type::F64 | Type::F32) => of!(binary Eq number),
        (O::Eq, _) => binary::<Eq<u32>>(level),
        (O::Ne, Type::F16) => binary::<NeHalf<u32>>(level),
        (O::Ne, Type::BF16) => binary::<NeBrain<u32>>(level),
        (O::Ne, Type::I64 | Type::U64 | Type::F64 | Type::F32) => of!(binary Ne number),
        (O::Ne, _) => binary::<Ne<u32>>(level),
        (O::Lt, _) => of!(binary Lt number),
        (O::Le, _) => of!(binary Le number),
        (O::Gt, _) => of!(binary Gt number),
        (O::Ge, _) => of!(binary Ge number),
        (O::Exp, _) => of!(unary Exp float),
        (O::Exp2, _) => of!(unary Exp2 float),
        (O::Log, _) => of!(unary Log float),
        (O::Log2, _) => of!(unary Log2 float),
        (O::Sin, _) => of!(unary Sin float),
        (O::Cos, _) => of!(unary Cos float),
        (O::Tanh, _) => of!(unary Tanh float),
        (O::Erf, _) => of!(unary Erf float),
        _ => return None,
    })
}

fn bitcast(from: Type, to: Type, level: Level) -> Forms {
    match (from, to) {
        // These conversions of numbers are conversions of their bits.
        (Type::I8 | Type::U8, Type::Bool) | (Type::U8, Type::I8) | (Type::I8, Type::U8) => convert(from, to, level),
        (Type::U16 | Type::F16 | Type::BF16, Type::I16) => convert(Type::U16, Type::I16, level),
        (Type::I16, _) => convert(Type::I16, Type::U16, level),
        _ => copy(to, level),
    }
}
