//! What each instruction means for one thread, on the 32-bit register words described at [`Type`], and how elements lie in memory.
//!
//! Which of the NaN patterns an arithmetic instruction gives is not defined; everything else is, to the bit.

use half::{bf16, f16};

use crate::decompose::{self, Scalar};
use crate::{Opcode, Type};

/// The result of a lane-wise instruction (one that depends on the thread's own operands alone).
///
/// `ty` is the type that the mnemonic carries; `from` is the first operand's type, which only `cvt` and `bitcast` look at. Operands
/// and result are register words. `None` where the operation is not lane-wise, or does not exist for these types and operands.
pub fn eval(op: Opcode, ty: Type, from: Type, args: &[u32]) -> Option<u32> {
    match (op, args) {
        (Opcode::Mov, &[a]) => Some(a),
        (Opcode::Select, &[c, a, b]) => Some(if c != 0 { a } else { b }),
        (Opcode::Cvt, &[a]) => Some(convert(ty, from, a)),
        (Opcode::Bitcast, &[a]) if ty.size() == from.size() => Some(bitcast(ty, a)),
        (Opcode::Eq, &[a, b]) => Some(equal(ty, a, b) as u32),
        (Opcode::Ne, &[a, b]) => Some(!equal(ty, a, b) as u32),
        (_, args) => match ty {
            Type::F32 => float(op, args),
            Type::I32 => signed(op, args).or_else(|| word(op, args)),
            Type::U32 => unsigned(op, args).or_else(|| word(op, args)),
            Type::Bool if op == Opcode::Not => word(op, args).map(|r| r & 1),
            Type::Bool if matches!(op, Opcode::And | Opcode::Or | Opcode::Xor) => word(op, args),
            _ => None,
        },
    }
}

/// Instructions on `f32`.
fn float(op: Opcode, args: &[u32]) -> Option<u32> {
    let f = f32::from_bits;
    let value = match (op, args) {
        (Opcode::Abs, &[a]) => return Some(a & 0x7fff_ffff),
        (Opcode::Neg, &[a]) => return Some(a ^ 0x8000_0000),
        (Opcode::Lt, &[a, b]) => return Some((f(a) < f(b)) as u32),
        (Opcode::Le, &[a, b]) => return Some((f(a) <= f(b)) as u32),
        (Opcode::Gt, &[a, b]) => return Some((f(a) > f(b)) as u32),
        (Opcode::Ge, &[a, b]) => return Some((f(a) >= f(b)) as u32),
        (Opcode::Add, &[a, b]) => f(a) + f(b),
        (Opcode::Sub, &[a, b]) => f(a) - f(b),
        (Opcode::Mul, &[a, b]) => f(a) * f(b),
        (Opcode::Div, &[a, b]) => f(a) / f(b),
        (Opcode::Fma, &[a, b, c]) => f(a).mul_add(f(b), f(c)),
        (Opcode::Min, &[a, b]) => min(f(a), f(b)),
        (Opcode::Max, &[a, b]) => -min(-f(a), -f(b)),
        (Opcode::Sqrt, &[a]) => f(a).sqrt(),
        (Opcode::Floor, &[a]) => f(a).floor(),
        (Opcode::Ceil, &[a]) => f(a).ceil(),
        (Opcode::Trunc, &[a]) => f(a).trunc(),
        (Opcode::Round, &[a]) => f(a).round_ties_even(),
        (Opcode::Exp, &[a]) => decompose::exp(&Scalar, f(a)),
        (Opcode::Exp2, &[a]) => decompose::exp2(&Scalar, f(a)),
        (Opcode::Log, &[a]) => decompose::log(&Scalar, f(a)),
        (Opcode::Log2, &[a]) => decompose::log2(&Scalar, f(a)),
        (Opcode::Sin, &[a]) => decompose::sin(&Scalar, f(a)),
        (Opcode::Cos, &[a]) => decompose::cos(&Scalar, f(a)),
        (Opcode::Tanh, &[a]) => decompose::tanh(&Scalar, f(a)),
        (Opcode::Erf, &[a]) => decompose::erf(&Scalar, f(a)),
        _ => return None,
    };
    Some(value.to_bits())
}

/// The lesser; a NaN loses against a number, and −0 is less than +0.
fn min(a: f32, b: f32) -> f32 {
    let a_is_less = a < b || (a == b && a.is_sign_negative());
    if a_is_less || b.is_nan() { a } else { b }
}

/// Instructions on `i32` that differ from those on `u32`.
fn signed(op: Opcode, args: &[u32]) -> Option<u32> {
    let value = match (op, args) {
        (Opcode::Abs, &[a]) => (a as i32).wrapping_abs(),
        (Opcode::Neg, &[a]) => (a as i32).wrapping_neg(),
        (Opcode::Shr, &[a, n]) => (a as i32) >> n.min(31),
        (op, &[a, b]) => {
            let (a, b) = (a as i32, b as i32);
            match op {
                Opcode::MulHi => ((i64::from(a) * i64::from(b)) >> 32) as i32,
                Opcode::Div => {
                    if b == 0 {
                        0
                    } else {
                        a.wrapping_div(b)
                    }
                }
                Opcode::Rem => {
                    if b == 0 {
                        a
                    } else {
                        a.wrapping_rem(b)
                    }
                }
                Opcode::Min => a.min(b),
                Opcode::Max => a.max(b),
                Opcode::Lt => (a < b) as i32,
                Opcode::Le => (a <= b) as i32,
                Opcode::Gt => (a > b) as i32,
                Opcode::Ge => (a >= b) as i32,
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(value as u32)
}

/// Instructions on `u32` that differ from those on `i32`.
fn unsigned(op: Opcode, args: &[u32]) -> Option<u32> {
    let &[a, b] = args else { return None };
    Some(match op {
        Opcode::MulHi => ((u64::from(a) * u64::from(b)) >> 32) as u32,
        Opcode::Div => a.checked_div(b).unwrap_or(0),
        Opcode::Rem => a.checked_rem(b).unwrap_or(a),
        Opcode::Min => a.min(b),
        Opcode::Max => a.max(b),
        Opcode::Shr => a.checked_shr(b).unwrap_or(0),
        Opcode::Lt => (a < b) as u32,
        Opcode::Le => (a <= b) as u32,
        Opcode::Gt => (a > b) as u32,
        Opcode::Ge => (a >= b) as u32,
        _ => return None,
    })
}

/// Instructions that are the same on `i32` and `u32`; the bit operations also serve `bool`.
fn word(op: Opcode, args: &[u32]) -> Option<u32> {
    Some(match (op, args) {
        (Opcode::Add, &[a, b]) => a.wrapping_add(b),
        (Opcode::Sub, &[a, b]) => a.wrapping_sub(b),
        (Opcode::Mul, &[a, b]) => a.wrapping_mul(b),
        (Opcode::And, &[a, b]) => a & b,
        (Opcode::Or, &[a, b]) => a | b,
        (Opcode::Xor, &[a, b]) => a ^ b,
        (Opcode::Not, &[a]) => !a,
        (Opcode::Shl, &[a, n]) => a.checked_shl(n).unwrap_or(0),
        _ => return None,
    })
}

/// Equality of two words of a type: of numbers for floats.
fn equal(ty: Type, a: u32, b: u32) -> bool {
    if ty.is_float() { to_f32(ty, a) == to_f32(ty, b) } else { a == b }
}

/// The value of a float type's word, exactly.
fn to_f32(ty: Type, word: u32) -> f32 {
    match ty {
        Type::F16 => f16::from_bits(word as u16).to_f32(),
        Type::BF16 => bf16::from_bits(word as u16).to_f32(),
        _ => f32::from_bits(word),
    }
}

/// [`Opcode::Cvt`] of a word of `from` to one of `to`.
pub fn convert(to: Type, from: Type, word: u32) -> u32 {
    if to == from {
        return word;
    }
    if from.is_float() {
        let v = to_f32(from, word);
        return match to {
            Type::Bool => (v != 0.0) as u32,
            Type::I8 => v as i8 as u32,
            Type::U8 => u32::from(v as u8),
            Type::I32 => v as i32 as u32,
            Type::U32 => v as u32,
            Type::F16 => u32::from(f16::from_f32(v).to_bits()),
            Type::BF16 => u32::from(bf16::from_f32(v).to_bits()),
            Type::F32 => v.to_bits(),
        };
    }
    let v = if from == Type::U32 { f64::from(word) } else { f64::from(word as i32) };
    match to {
        Type::Bool => (word != 0) as u32,
        Type::I8 => word as i8 as u32,
        Type::U8 => word & 0xff,
        Type::I32 | Type::U32 => word,
        // Whole numbers that f32 rounds are beyond the range of f16.
        Type::F16 => u32::from(f16::from_f32(v as f32).to_bits()),
        Type::BF16 => u32::from(bf16::from_f32(to_odd(v)).to_bits()),
        Type::F32 => (v as f32).to_bits(),
    }
}

/// `v` as `f32`, rounded so that a further rounding to a shorter type gives what rounding `v` itself would: toward zero, and the last
/// bit set where anything was lost.
fn to_odd(v: f64) -> f32 {
    let near = v as f32;
    let toward_zero = near.to_bits() - u32::from(f64::from(near).abs() > v.abs());
    f32::from_bits(toward_zero | u32::from(f64::from(near) != v))
}

/// [`Opcode::Bitcast`] of a word to a type of the same size; to `bool` every byte but 0 is true.
fn bitcast(to: Type, word: u32) -> u32 {
    match to {
        Type::Bool => (word & 0xff != 0) as u32,
        Type::I8 => word as i8 as u32,
        Type::U8 => word & 0xff,
        _ => word,
    }
}

/// The element `index` of `bytes` (little-endian) as a register word, or `None` outside.
pub fn read_element(ty: Type, bytes: &[u8], index: usize) -> Option<u32> {
    let start = index.checked_mul(ty.size())?;
    let element = bytes.get(start..start.checked_add(ty.size())?)?;
    Some(match *element {
        [a] => bitcast(ty, u32::from(a)),
        [a, b] => u32::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
        _ => return None,
    })
}

/// Sets the element `index` of `bytes` from a register word; `None` outside.
pub fn write_element(ty: Type, bytes: &mut [u8], index: usize, word: u32) -> Option<()> {
    let start = index.checked_mul(ty.size())?;
    let element = bytes.get_mut(start..start.checked_add(ty.size())?)?;
    element.copy_from_slice(&word.to_le_bytes()[..ty.size()]);
    Some(())
}
