//! The meaning of each instruction for one thread, on register words as described at [`Type`], and the layout of
//! elements in memory.
//!
//! The NaN pattern that an arithmetic instruction returns is undefined; everything else is defined to the bit.

use half::{bf16, f16};

use crate::decompose::{self, Flushing};
use crate::{Opcode, SUBGROUP_SIZE, Type, TypeSet};

/// Threads per subgroup.
const LANES: usize = SUBGROUP_SIZE as usize;

/// What arithmetic on `f32` does with subnormal numbers, those closer to 0 than 2^−126: a property of the device.
///
/// Arithmetic is `add`, `sub`, `mul`, `div`, `fma`, `sqrt`, the steps of functions such as `exp`, and sums of tiles and
/// subgroups. All else, such as comparisons, `min`, `ceil` and conversions, sees every number as it is on every device;
/// so does `f16`, whose subnormal numbers are normal numbers of `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Subnormals {
    /// They are numbers like any other.
    #[default]
    Kept,
    /// Subnormal operands and results count as 0, with their sign. `bf16` values are `f32` operands too.
    Flushed,
}

impl Subnormals {
    /// [`eval`] on such a device.
    pub fn eval(self, op: Opcode, ty: Type, from: Type, args: &[u64]) -> Option<u64> {
        if self == Subnormals::Kept || ty != Type::F32 {
            return eval(op, ty, from, args);
        }
        let flushed = |word: u64| u64::from(decompose::flushed(f32::from_bits(word as u32)).to_bits());
        match (op, args) {
            (Opcode::Add | Opcode::Sub | Opcode::Mul | Opcode::Div | Opcode::Fma | Opcode::Sqrt, args) => {
                let args: Vec<u64> = args.iter().map(|word| flushed(*word)).collect();
                eval(op, ty, from, &args).map(flushed)
            }
            (op, &[a]) => match decompose::function(&Flushing, op, f32::from_bits(a as u32)) {
                Some(value) => Some(value.to_bits().into()),
                None => eval(op, ty, from, args),
            },
            _ => eval(op, ty, from, args),
        }
    }

    /// [`update`] on such a device.
    pub fn update(self, op: Opcode, ty: Type, old: u64, args: &[u64]) -> Option<u64> {
        match (op, args) {
            (Opcode::AtomicAdd, &[a]) => self.eval(Opcode::Add, ty, ty, &[old, a]),
            _ => update(op, ty, old, args),
        }
    }

    /// [`tile`] on such a device.
    pub fn tile(self, ty: Type, a: &[u32; LANES], b: &[u32; LANES], c: &[u64; LANES]) -> Option<[u64; LANES]> {
        tile_with(self, ty, a, b, c)
    }
}

/// The result of a lane-wise instruction, which depends only on the thread's own operands.
///
/// `ty` is the mnemonic's type; `from` is the first operand's type, used only by `cvt` and `bitcast`. Operands and
/// result are register words. `None` if the operation is not lane-wise or does not exist for these types and operands.
pub fn eval(op: Opcode, ty: Type, from: Type, args: &[u64]) -> Option<u64> {
    match (op, args) {
        (Opcode::Mov, &[a]) => Some(a),
        (Opcode::Select, &[c, a, b]) => Some(if c != 0 { a } else { b }),
        (Opcode::Cvt, &[a]) => Some(convert(ty, from, a)),
        (Opcode::Bitcast, &[a]) if ty.size() == from.size() => Some(bitcast(ty, a)),
        (Opcode::Eq, &[a, b]) => Some(equal(ty, a, b) as u64),
        (Opcode::Ne, &[a, b]) => Some(!equal(ty, a, b) as u64),
        (_, args) => match ty {
            Type::F32 => single::float(op, args),
            Type::F64 => double::float(op, args),
            Type::I32 => signed32::integer(op, args),
            Type::U32 => unsigned32::integer(op, args),
            Type::I64 => signed64::integer(op, args),
            Type::U64 => unsigned64::integer(op, args),
            Type::Bool if op == Opcode::Not => unsigned32::integer(op, args).map(|r| r & 1),
            Type::Bool if matches!(op, Opcode::And | Opcode::Or | Opcode::Xor) => unsigned32::integer(op, args),
            _ => None,
        },
    }
}

/// The instructions on a float type and its word type, and the functions defined by decomposition.
macro_rules! floats {
    ($($module:ident $float:ident $word:ident $function:path;)*) => {$(
        mod $module {
            use crate::Opcode;
            use crate::decompose::{self, Scalar};

            pub(super) fn float(op: Opcode, args: &[u64]) -> Option<u64> {
                let f = |word: u64| $float::from_bits(word as $word);
                let value = match (op, args) {
                    (Opcode::Lt, &[a, b]) => return Some((f(a) < f(b)) as u64),
                    (Opcode::Le, &[a, b]) => return Some((f(a) <= f(b)) as u64),
                    (Opcode::Gt, &[a, b]) => return Some((f(a) > f(b)) as u64),
                    (Opcode::Ge, &[a, b]) => return Some((f(a) >= f(b)) as u64),
                    (Opcode::Add, &[a, b]) => f(a) + f(b),
                    (Opcode::Sub, &[a, b]) => f(a) - f(b),
                    (Opcode::Mul, &[a, b]) => f(a) * f(b),
                    (Opcode::Div, &[a, b]) => f(a) / f(b),
                    (Opcode::Fma, &[a, b, c]) => f(a).mul_add(f(b), f(c)),
                    (Opcode::Min, &[a, b]) => min(f(a), f(b)),
                    (Opcode::Max, &[a, b]) => -min(-f(a), -f(b)),
                    (Opcode::Abs, &[a]) => f(a).abs(),
                    (Opcode::Neg, &[a]) => -f(a),
                    (Opcode::Sqrt, &[a]) => f(a).sqrt(),
                    (Opcode::Floor, &[a]) => f(a).floor(),
                    (Opcode::Ceil, &[a]) => f(a).ceil(),
                    (Opcode::Trunc, &[a]) => f(a).trunc(),
                    (Opcode::Round, &[a]) => f(a).round_ties_even(),
                    (op, &[a]) => $function(&Scalar, op, f(a))?,
                    _ => return None,
                };
                Some(value.to_bits().into())
            }

            /// The minimum. A number beats NaN, and −0 is less than +0.
            fn min(a: $float, b: $float) -> $float {
                let a_is_less = a < b || (a == b && a.is_sign_negative());
                if a_is_less || b.is_nan() { a } else { b }
            }
        }
    )*};
}
floats! {
    single f32 u32 decompose::function;
    double f64 u64 decompose::double::function;
}

/// The instructions on an integer type, with its word and the integer of twice the width.
macro_rules! integers {
    ($($module:ident $int:ident $word:ident $twice:ident;)*) => {$(
        mod $module {
            use crate::Opcode;

            pub(super) fn integer(op: Opcode, args: &[u64]) -> Option<u64> {
                const BITS: u32 = $int::BITS;
                const SIGNED: bool = $int::MIN != 0;
                let value = match (op, args) {
                    (Opcode::Not, &[a]) => !(a as $int),
                    (Opcode::PopCount, &[a]) => (a as $int).count_ones() as $int,
                    (Opcode::LeadingZeros, &[a]) => (a as $int).leading_zeros() as $int,
                    (Opcode::Dot4, &[a, b, c]) if BITS == 32 => {
                        let pairs = (a as u32).to_le_bytes().into_iter().zip((b as u32).to_le_bytes());
                        pairs.fold(c as $int, |sum, (a, b)| {
                            let product = if SIGNED { i32::from(a as i8) * i32::from(b as i8) } else { i32::from(a) * i32::from(b) };
                            sum.wrapping_add(product as $int)
                        })
                    }
                    (Opcode::Abs, &[a]) if SIGNED && (a as $int) >> (BITS - 1) == 0 => a as $int,
                    (Opcode::Abs | Opcode::Neg, &[a]) if SIGNED => (a as $int).wrapping_neg(),
                    (Opcode::Shl, &[a, n]) => (a as $int).checked_shl(n as u32).unwrap_or(0),
                    // Shifted twice, because a shift by the width is undefined; the second step shifts in the fill
                    // bits.
                    (Opcode::Shr, &[a, n]) => match (a as $int).checked_shr(n as u32) {
                        Some(shifted) => shifted,
                        None => (a as $int) >> (BITS - 1) >> 1,
                    },
                    (op, &[a, b]) => {
                        let (a, b) = (a as $int, b as $int);
                        match op {
                            Opcode::Add => a.wrapping_add(b),
                            Opcode::Sub => a.wrapping_sub(b),
                            Opcode::Mul => a.wrapping_mul(b),
                            Opcode::MulHi => (($twice::from(a) * $twice::from(b)) >> BITS) as $int,
                            Opcode::Div if b == 0 => 0,
                            Opcode::Div => a.wrapping_div(b),
                            Opcode::Rem if b == 0 => a,
                            Opcode::Rem => a.wrapping_rem(b),
                            Opcode::Min => a.min(b),
                            Opcode::Max => a.max(b),
                            Opcode::And => a & b,
                            Opcode::Or => a | b,
                            Opcode::Xor => a ^ b,
                            Opcode::Lt => (a < b) as $int,
                            Opcode::Le => (a <= b) as $int,
                            Opcode::Gt => (a > b) as $int,
                            Opcode::Ge => (a >= b) as $int,
                            _ => return None,
                        }
                    }
                    _ => return None,
                };
                Some(u64::from(value as $word))
            }
        }
    )*};
}
integers! {
    signed32 i32 u32 i64;
    unsigned32 u32 u32 u64;
    signed64 i64 u64 i128;
    unsigned64 u64 u64 u128;
}

/// [`Opcode::TileFma`] on tiles of a type: the operands and the result of each lane of a subgroup. `None` for other
/// types.
pub fn tile(ty: Type, a: &[u32; LANES], b: &[u32; LANES], c: &[u64; LANES]) -> Option<[u64; LANES]> {
    tile_with(Subnormals::Kept, ty, a, b, c)
}

fn tile_with(
    subnormals: Subnormals,
    ty: Type,
    a: &[u32; LANES],
    b: &[u32; LANES],
    c: &[u64; LANES],
) -> Option<[u64; LANES]> {
    if !TypeSet::TILE.contains(ty) {
        return None;
    }
    let bits = 8 * ty.size() as u32;
    // The elements of a row of A or a column of B.
    let elements = |words: &[u32; LANES], line: usize| {
        let words: [u32; 4] = std::array::from_fn(|q| words[4 * line + q]);
        words
            .into_iter()
            .flat_map(move |w| (0..32 / bits).map(move |i| u64::from(w << (32 - bits * (i + 1)) >> (32 - bits))))
    };
    let sum = |row: usize, column: usize, c: u32| {
        let mut terms = elements(a, row).zip(elements(b, column));
        if ty == Type::I8 {
            return terms.fold(c, |c, (x, y)| c.wrapping_add((i32::from(x as i8) * i32::from(y as i8)) as u32));
        }
        let seen = |x| if subnormals == Subnormals::Kept { x } else { decompose::flushed(x) };
        let float = |word| seen(to_f64(ty, word) as f32);
        terms.by_ref().fold(f32::from_bits(c), |c, (x, y)| seen(float(x).mul_add(float(y), seen(c)))).to_bits()
    };
    Some(std::array::from_fn(|lane| {
        let (row, column) = (lane / 4, lane % 4 * 2);
        let [low, high] = [0, 1].map(|j| u64::from(sum(row, column + j, (c[lane] >> (32 * j)) as u32)));
        low | high << 32
    }))
}

/// The new value of an element with the word `old` after an atomic instruction. `None` if it does not exist for these
/// types and operands.
pub fn update(op: Opcode, ty: Type, old: u64, args: &[u64]) -> Option<u64> {
    let combine = |op, args: &[u64]| match args {
        &[a] => eval(op, ty, ty, &[old, a]),
        _ => None,
    };
    match (op, args) {
        (Opcode::AtomicAdd, args) => combine(Opcode::Add, args),
        (Opcode::AtomicMin, args) => combine(Opcode::Min, args),
        (Opcode::AtomicMax, args) => combine(Opcode::Max, args),
        (Opcode::AtomicAnd, args) => combine(Opcode::And, args),
        (Opcode::AtomicOr, args) => combine(Opcode::Or, args),
        (Opcode::AtomicXor, args) => combine(Opcode::Xor, args),
        (Opcode::AtomicExchange, &[a]) => Some(a),
        (Opcode::AtomicCompareExchange, &[expected, a]) => Some(if old == expected { a } else { old }),
        _ => None,
    }
}

/// Equality of two words of a type; for floats, numeric equality.
fn equal(ty: Type, a: u64, b: u64) -> bool {
    if ty.is_float() { to_f64(ty, a) == to_f64(ty, b) } else { a == b }
}

/// The exact value of a float type's word.
fn to_f64(ty: Type, word: u64) -> f64 {
    match ty {
        Type::F16 => f16::from_bits(word as u16).to_f64(),
        Type::BF16 => bf16::from_bits(word as u16).to_f64(),
        Type::F32 => f32::from_bits(word as u32).into(),
        _ => f64::from_bits(word),
    }
}

/// A number to convert. [`Opcode::Cvt`] equals Rust's `as`, except for types that Rust does not have.
macro_rules! narrow {
    ($to:expr, $v:expr, $odd:expr, $zero:expr) => {
        match $to {
            Type::Bool => ($v != $zero) as u64,
            Type::I8 => u64::from($v as i8 as i32 as u32),
            Type::U8 => u64::from($v as u8),
            Type::I16 => u64::from($v as i16 as i32 as u32),
            Type::U16 => u64::from($v as u16),
            Type::I32 => u64::from($v as i32 as u32),
            Type::U32 => u64::from($v as u32),
            Type::I64 => $v as i64 as u64,
            Type::U64 => $v as u64,
            Type::F16 => u64::from(f16::from_f32($odd).to_bits()),
            Type::BF16 => u64::from(bf16::from_f32($odd).to_bits()),
            Type::F32 => u64::from(($v as f32).to_bits()),
            Type::F64 => ($v as f64).to_bits(),
        }
    };
}

/// [`Opcode::Cvt`] of a word of `from` to one of `to`.
pub fn convert(to: Type, from: Type, word: u64) -> u64 {
    if to == from {
        return word;
    }
    if from.is_float() {
        let v = to_f64(from, word);
        let near = v as f32;
        return narrow!(to, v, to_odd(near, f64::from(near).abs() > v.abs(), f64::from(near) != v), 0.0);
    }
    let v = match from {
        Type::U32 | Type::U64 => i128::from(word),
        Type::I64 => i128::from(word as i64),
        _ => i128::from(word as u32 as i32),
    };
    let near = v as f32;
    // An f32 of such magnitude is an integer.
    narrow!(to, v, to_odd(near, (near as i128).abs() > v.abs(), near as i128 != v), 0)
}

/// The `f32` nearest to a number, rounded to odd (toward zero, with the last bit set if inexact), so that rounding
/// again to a shorter type equals rounding once.
fn to_odd(near: f32, beyond: bool, inexact: bool) -> f32 {
    let toward_zero = near.to_bits() - u32::from(beyond);
    f32::from_bits(toward_zero | u32::from(inexact))
}

/// [`Opcode::Bitcast`] of a word to a type of the same size. For `bool`, every nonzero byte is true.
fn bitcast(to: Type, word: u64) -> u64 {
    match to {
        Type::Bool => (word & 0xff != 0) as u64,
        Type::I8 => u64::from(word as i8 as i32 as u32),
        Type::I16 => u64::from(word as i16 as i32 as u32),
        Type::U8 => word & 0xff,
        Type::U16 | Type::F16 | Type::BF16 => word & 0xffff,
        _ => word,
    }
}

/// The element `index` of `bytes` (little-endian) as a register word; `None` if out of bounds.
pub fn read_element(ty: Type, bytes: &[u8], index: usize) -> Option<u64> {
    let start = index.checked_mul(ty.size())?;
    let element = bytes.get(start..start.checked_add(ty.size())?)?;
    let mut word = [0; 8];
    word[..ty.size()].copy_from_slice(element);
    Some(bitcast(ty, u64::from_le_bytes(word)))
}

/// Sets the element `index` of `bytes` from a register word; `None` if out of bounds.
pub fn write_element(ty: Type, bytes: &mut [u8], index: usize, word: u64) -> Option<()> {
    let start = index.checked_mul(ty.size())?;
    let element = bytes.get_mut(start..start.checked_add(ty.size())?)?;
    element.copy_from_slice(&word.to_le_bytes()[..ty.size()]);
    Some(())
}
