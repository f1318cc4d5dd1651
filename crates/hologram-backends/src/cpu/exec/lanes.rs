//! Instructions over lanes: the meaning of each as a branch-free function of words, and the loops that apply it to all lanes of a
//! workgroup.
//!
//! Words are those of [`Type`]. A function here computes what the interpreter computes, written so that its loop vectorises.

use hologram_isa::decompose::{self, Scalar};
use hologram_isa::{Opcode, Type};

use super::level::{Level, leveled};
use super::words::*;

/// An instruction on the words of one lane; it ignores the operands that it does not have.
pub(super) type WordFn = fn(u32, u32, u32) -> u32;

/// An instruction on `n` lanes: the result, three operands (a uniform one is a single word, one that is not used may be anything), `n`.
///
/// # Safety
/// The result has `n` words, which overlap no operand's, and each operand as many as it is read as; `n` is a multiple of 16; the
/// processor has the level's instructions.
pub(super) type LaneFn = unsafe fn(*mut u32, *const u32, *const u32, *const u32, usize);

/// An instruction in all its forms.
pub(super) struct Forms {
    pub(super) one: WordFn,
    /// By which operands are uniform: bit i for operand i. Absent forms are served by spreading an operand over a register first.
    pub(super) lanes: [Option<LaneFn>; 8],
}

/// The function of an instruction.
trait Op: 'static {
    fn f(a: u32, b: u32, c: u32) -> u32;
}

/// Applies an operation to lanes; `U` says which operands are uniform.
#[inline(always)]
unsafe fn apply<O: Op, const U: u8>(dst: *mut u32, a: *const u32, b: *const u32, c: *const u32, n: usize) {
    #[inline(always)]
    fn each<O: Op, const U: u8>(dst: &mut [u32], a: &[u32], b: &[u32], c: &[u32]) {
        // A multiple of 16, so that the vector loop has no rest.
        let n = dst.len() & !15;
        let at = |x: &[u32], bit: u8, i: usize| {
            let i = if U & bit != 0 || x.len() == 1 { 0 } else { i };
            // SAFETY: a uniform operand has a word; the others have as many as the result.
            unsafe { *x.get_unchecked(i) }
        };
        for i in 0..n {
            let word = O::f(at(a, 1, i), at(b, 2, i), at(c, 4, i));
            // SAFETY: i < n.
            unsafe { *dst.get_unchecked_mut(i) = word };
        }
    }
    let operand = |x: *const u32, bit: u8| {
        let len = if U & bit != 0 { 1 } else { n };
        // SAFETY: the caller promises so many words.
        unsafe { std::slice::from_raw_parts(x, len) }
    };
    // SAFETY: the caller promises `n` words that nothing else refers to.
    let dst = unsafe { std::slice::from_raw_parts_mut(dst, n) };
    each::<O, U>(dst, operand(a, 1), operand(b, 2), operand(c, 4));
}

leveled! { fn instance[O: Op, const U: u8][O, U] = apply(dst: *mut u32, a: *const u32, b: *const u32, c: *const u32, n: usize) }

/// All forms of a unary operation. The operands that it has not are uniform.
fn unary<O: Op>(level: Level) -> Forms {
    let mut lanes = [None; 8];
    lanes[0b000] = Some(instance::<O, 0b110>(level));
    Forms { one: O::f, lanes }
}

/// All forms of a binary operation.
fn binary<O: Op>(level: Level) -> Forms {
    let mut lanes = [None; 8];
    lanes[0b000] = Some(instance::<O, 0b100>(level));
    lanes[0b001] = Some(instance::<O, 0b101>(level));
    lanes[0b010] = Some(instance::<O, 0b110>(level));
    Forms { one: O::f, lanes }
}

/// The useful forms of a ternary operation.
fn ternary<O: Op>(level: Level) -> Forms {
    let mut lanes = [None; 8];
    lanes[0b000] = Some(instance::<O, 0b000>(level));
    lanes[0b010] = Some(instance::<O, 0b010>(level));
    lanes[0b100] = Some(instance::<O, 0b100>(level));
    lanes[0b110] = Some(instance::<O, 0b110>(level));
    Forms { one: O::f, lanes }
}

/// Declares operations: the function of each on words.
macro_rules! operations {
    ($($name:ident |$a:pat_param, $b:pat_param, $c:pat_param| $body:expr;)*) => {$(
        struct $name;
        impl Op for $name {
            #[inline(always)]
            fn f($a: u32, $b: u32, $c: u32) -> u32 {
                $body
            }
        }
    )*};
}

operations! {
    Copy |a, _, _| a;
    Select |c, a, b| if c != 0 { a } else { b };

    AddI |a, b, _| a.wrapping_add(b);
    SubI |a, b, _| a.wrapping_sub(b);
    MulI |a, b, _| a.wrapping_mul(b);
    MulHiU |a, b, _| ((a as u64 * b as u64) >> 32) as u32;
    MulHiI |a, b, _| ((a as i32 as i64 * b as i32 as i64) >> 32) as u32;
    DivU |a, b, _| div_u(a, b);
    DivI |a, b, _| div_i(a, b);
    RemU |a, b, _| a.wrapping_sub(div_u(a, b).wrapping_mul(b));
    RemI |a, b, _| a.wrapping_sub(div_i(a, b).wrapping_mul(b));
    MinU |a, b, _| a.min(b);
    MaxU |a, b, _| a.max(b);
    MinI |a, b, _| (a as i32).min(b as i32) as u32;
    MaxI |a, b, _| (a as i32).max(b as i32) as u32;
    AbsI |a, _, _| (a as i32).wrapping_abs() as u32;
    NegI |a, _, _| a.wrapping_neg();

    AddF |a, b, _| (float(a) + float(b)).to_bits();
    SubF |a, b, _| (float(a) - float(b)).to_bits();
    MulF |a, b, _| (float(a) * float(b)).to_bits();
    DivF |a, b, _| (float(a) / float(b)).to_bits();
    FmaF |a, b, c| float(a).mul_add(float(b), float(c)).to_bits();
    MinF |a, b, _| min_f(a, b);
    MaxF |a, b, _| max_f(a, b);
    AbsF |a, _, _| a & 0x7fff_ffff;
    NegF |a, _, _| a ^ 0x8000_0000;
    SqrtF |a, _, _| float(a).sqrt().to_bits();
    FloorF |a, _, _| float(a).floor().to_bits();
    CeilF |a, _, _| float(a).ceil().to_bits();
    TruncF |a, _, _| float(a).trunc().to_bits();
    RoundF |a, _, _| float(a).round_ties_even().to_bits();

    And |a, b, _| a & b;
    Or |a, b, _| a | b;
    Xor |a, b, _| a ^ b;
    NotI |a, _, _| !a;
    NotB |a, _, _| a ^ 1;
    Shl |a, b, _| if b < 32 { a << (b & 31) } else { 0 };
    ShrU |a, b, _| if b < 32 { a >> (b & 31) } else { 0 };
    ShrI |a, b, _| ((a as i32) >> b.min(31)) as u32;

    EqI |a, b, _| (a == b) as u32;
    NeI |a, b, _| (a != b) as u32;
    LtU |a, b, _| (a < b) as u32;
    LeU |a, b, _| (a <= b) as u32;
    LtI |a, b, _| ((a as i32) < b as i32) as u32;
    LeI |a, b, _| (a as i32 <= b as i32) as u32;
    GtU |a, b, _| (a > b) as u32;
    GeU |a, b, _| (a >= b) as u32;
    GtI |a, b, _| (a as i32 > b as i32) as u32;
    GeI |a, b, _| (a as i32 >= b as i32) as u32;
    EqF |a, b, _| (float(a) == float(b)) as u32;
    NeF |a, b, _| (float(a) != float(b)) as u32;
    LtF |a, b, _| (float(a) < float(b)) as u32;
    LeF |a, b, _| (float(a) <= float(b)) as u32;
    GtF |a, b, _| (float(a) > float(b)) as u32;
    GeF |a, b, _| (float(a) >= float(b)) as u32;
    EqH |a, b, _| (from_f16(a) == from_f16(b)) as u32;
    NeH |a, b, _| (from_f16(a) != from_f16(b)) as u32;
    EqB |a, b, _| (from_bf16(a) == from_bf16(b)) as u32;
    NeB |a, b, _| (from_bf16(a) != from_bf16(b)) as u32;

    Exp |a, _, _| decompose::exp(&Scalar, float(a)).to_bits();
    Exp2 |a, _, _| decompose::exp2(&Scalar, float(a)).to_bits();
    Log |a, _, _| decompose::log(&Scalar, float(a)).to_bits();
    Log2 |a, _, _| decompose::log2(&Scalar, float(a)).to_bits();
    Sin |a, _, _| decompose::sin(&Scalar, float(a)).to_bits();
    Cos |a, _, _| decompose::cos(&Scalar, float(a)).to_bits();
    Tanh |a, _, _| decompose::tanh(&Scalar, float(a)).to_bits();
    Erf |a, _, _| decompose::erf(&Scalar, float(a)).to_bits();

    // Conversions, named by the source and the result. An integer's word already holds its value, so most pairs share a function.
    IntToBool |a, _, _| (a != 0) as u32;
    ToI8 |a, _, _| a as i8 as u32;
    ToU8 |a, _, _| a as u8 as u32;
    I32ToF32 |a, _, _| (a as i32 as f32).to_bits();
    U32ToF32 |a, _, _| (a as f32).to_bits();
    I32ToF16 |a, _, _| to_f16(a as i32 as f32);
    U32ToF16 |a, _, _| to_f16(a as f32);
    I32ToBf16 |a, _, _| to_bf16(i32_jammed(a)) ;
    U32ToBf16 |a, _, _| to_bf16(u32_jammed(a));
    F32ToBool |a, _, _| (float(a) != 0.0) as u32;
    F32ToI8 |a, _, _| float(a) as i8 as u32;
    F32ToU8 |a, _, _| float(a) as u8 as u32;
    F32ToI32 |a, _, _| float(a) as i32 as u32;
    F32ToU32 |a, _, _| float(a) as u32;
    F32ToF16 |a, _, _| to_f16(float(a));
    F32ToBf16 |a, _, _| to_bf16(float(a));
    F16ToBool |a, _, _| (a & 0x7fff != 0) as u32;
    F16ToI8 |a, _, _| from_f16(a) as i8 as u32;
    F16ToU8 |a, _, _| from_f16(a) as u8 as u32;
    F16ToI32 |a, _, _| from_f16(a) as i32 as u32;
    F16ToU32 |a, _, _| from_f16(a) as u32;
    F16ToF32 |a, _, _| from_f16(a).to_bits();
    F16ToBf16 |a, _, _| to_bf16(from_f16(a));
    Bf16ToI8 |a, _, _| from_bf16(a) as i8 as u32;
    Bf16ToU8 |a, _, _| from_bf16(a) as u8 as u32;
    Bf16ToI32 |a, _, _| from_bf16(a) as i32 as u32;
    Bf16ToU32 |a, _, _| from_bf16(a) as u32;
    Bf16ToF32 |a, _, _| from_bf16(a).to_bits();
    Bf16ToF16 |a, _, _| to_f16(from_bf16(a));
}

/// The forms of an instruction that computes each lane's result from that lane's operands; `from` is the type of its first operand.
/// `None` for the instructions that do more.
pub(super) fn forms(op: Opcode, ty: Type, from: Type, level: Level) -> Option<Forms> {
    use Opcode as O;
    use Type::{Bool, F32, I32};
    Some(match (op, ty) {
        (O::Mov, _) => unary::<Copy>(level),
        (O::Select, _) => ternary::<Select>(level),
        (O::Cvt, _) => convert(from, ty, level),
        (O::Bitcast, _) => bitcast(from, ty, level),
        (O::Add, F32) => binary::<AddF>(level),
        (O::Add, _) => binary::<AddI>(level),
        (O::Sub, F32) => binary::<SubF>(level),
        (O::Sub, _) => binary::<SubI>(level),
        (O::Mul, F32) => binary::<MulF>(level),
        (O::Mul, _) => binary::<MulI>(level),
        (O::MulHi, I32) => binary::<MulHiI>(level),
        (O::MulHi, _) => binary::<MulHiU>(level),
        (O::Div, F32) => binary::<DivF>(level),
        (O::Div, I32) => binary::<DivI>(level),
        (O::Div, _) => binary::<DivU>(level),
        (O::Rem, I32) => binary::<RemI>(level),
        (O::Rem, _) => binary::<RemU>(level),
        (O::Fma, _) => ternary::<FmaF>(level),
        (O::Min, F32) => binary::<MinF>(level),
        (O::Min, I32) => binary::<MinI>(level),
        (O::Min, _) => binary::<MinU>(level),
        (O::Max, F32) => binary::<MaxF>(level),
        (O::Max, I32) => binary::<MaxI>(level),
        (O::Max, _) => binary::<MaxU>(level),
        (O::Abs, F32) => unary::<AbsF>(level),
        (O::Abs, _) => unary::<AbsI>(level),
        (O::Neg, F32) => unary::<NegF>(level),
        (O::Neg, _) => unary::<NegI>(level),
        (O::Sqrt, _) => unary::<SqrtF>(level),
        (O::Floor, _) => unary::<FloorF>(level),
        (O::Ceil, _) => unary::<CeilF>(level),
        (O::Trunc, _) => unary::<TruncF>(level),
        (O::Round, _) => unary::<RoundF>(level),
        (O::And, _) => binary::<And>(level),
        (O::Or, _) => binary::<Or>(level),
        (O::Xor, _) => binary::<Xor>(level),
        (O::Not, Bool) => unary::<NotB>(level),
        (O::Not, _) => unary::<NotI>(level),
        (O::Shl, _) => binary::<Shl>(level),
        (O::Shr, I32) => binary::<ShrI>(level),
        (O::Shr, _) => binary::<ShrU>(level),
        (O::Eq, F32) => binary::<EqF>(level),
        (O::Eq, Type::F16) => binary::<EqH>(level),
        (O::Eq, Type::BF16) => binary::<EqB>(level),
        (O::Eq, _) => binary::<EqI>(level),
        (O::Ne, F32) => binary::<NeF>(level),
        (O::Ne, Type::F16) => binary::<NeH>(level),
        (O::Ne, Type::BF16) => binary::<NeB>(level),
        (O::Ne, _) => binary::<NeI>(level),
        (O::Lt, F32) => binary::<LtF>(level),
        (O::Lt, I32) => binary::<LtI>(level),
        (O::Lt, _) => binary::<LtU>(level),
        (O::Le, F32) => binary::<LeF>(level),
        (O::Le, I32) => binary::<LeI>(level),
        (O::Le, _) => binary::<LeU>(level),
        (O::Gt, F32) => binary::<GtF>(level),
        (O::Gt, I32) => binary::<GtI>(level),
        (O::Gt, _) => binary::<GtU>(level),
        (O::Ge, F32) => binary::<GeF>(level),
        (O::Ge, I32) => binary::<GeI>(level),
        (O::Ge, _) => binary::<GeU>(level),
        (O::Exp, _) => unary::<Exp>(level),
        (O::Exp2, _) => unary::<Exp2>(level),
        (O::Log, _) => unary::<Log>(level),
        (O::Log2, _) => unary::<Log2>(level),
        (O::Sin, _) => unary::<Sin>(level),
        (O::Cos, _) => unary::<Cos>(level),
        (O::Tanh, _) => unary::<Tanh>(level),
        (O::Erf, _) => unary::<Erf>(level),
        _ => return None,
    })
}

fn convert(from: Type, to: Type, level: Level) -> Forms {
    use Type::*;
    match (from, to) {
        (Bool | I8 | U8 | I32 | U32, Bool) => unary::<IntToBool>(level),
        (Bool | I8 | U8 | I32 | U32, I8) => unary::<ToI8>(level),
        (Bool | I8 | U8 | I32 | U32, U8) => unary::<ToU8>(level),
        (Bool | I8 | U8 | I32 | U32, I32 | U32) => unary::<Copy>(level),
        (Bool | I8 | U8 | I32, F32) => unary::<I32ToF32>(level),
        (Bool | I8 | U8 | I32, F16) => unary::<I32ToF16>(level),
        (Bool | I8 | U8 | I32, BF16) => unary::<I32ToBf16>(level),
        (U32, F32) => unary::<U32ToF32>(level),
        (U32, F16) => unary::<U32ToF16>(level),
        (U32, BF16) => unary::<U32ToBf16>(level),
        (F32, Bool) => unary::<F32ToBool>(level),
        (F32, I8) => unary::<F32ToI8>(level),
        (F32, U8) => unary::<F32ToU8>(level),
        (F32, I32) => unary::<F32ToI32>(level),
        (F32, U32) => unary::<F32ToU32>(level),
        (F32, F16) => unary::<F32ToF16>(level),
        (F32, BF16) => unary::<F32ToBf16>(level),
        // A zero of either narrow float is a zero but for its sign.
        (F16 | BF16, Bool) => unary::<F16ToBool>(level),
        (F16, I8) => unary::<F16ToI8>(level),
        (F16, U8) => unary::<F16ToU8>(level),
        (F16, I32) => unary::<F16ToI32>(level),
        (F16, U32) => unary::<F16ToU32>(level),
        (F16, F32) => unary::<F16ToF32>(level),
        (F16, BF16) => unary::<F16ToBf16>(level),
        (BF16, I8) => unary::<Bf16ToI8>(level),
        (BF16, U8) => unary::<Bf16ToU8>(level),
        (BF16, I32) => unary::<Bf16ToI32>(level),
        (BF16, U32) => unary::<Bf16ToU32>(level),
        (BF16, F32) => unary::<Bf16ToF32>(level),
        (BF16, F16) => unary::<Bf16ToF16>(level),
        (F16, F16) | (BF16, BF16) | (F32, F32) => unary::<Copy>(level),
    }
}

fn bitcast(from: Type, to: Type, level: Level) -> Forms {
    match (from, to) {
        (Type::I8 | Type::U8, Type::Bool) => unary::<IntToBool>(level),
        (Type::U8, Type::I8) => unary::<ToI8>(level),
        (Type::I8, Type::U8) => unary::<ToU8>(level),
        _ => unary::<Copy>(level),
    }
}
