//! The meaning of single instructions: conversions between all types against exact arithmetic in f64, and the corner
//! cases of the table.

use hologram_isa::meaning::{Subnormals, convert, eval, read_element, write_element};
use hologram_isa::{Opcode, Type};

/// An exact number: ±m·2^e.
#[derive(Clone, Copy, Debug)]
enum Number {
    Nan,
    Infinite { negative: bool },
    Finite { negative: bool, m: u128, e: i32 },
}
use Number::*;

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        match (*self, *other) {
            (Nan, Nan) => true,
            (Infinite { negative: a }, Infinite { negative: b }) => a == b,
            (Finite { negative: a, m: 0, .. }, Finite { negative: b, m: 0, .. }) => a == b,
            (Finite { negative: a, m, e }, Finite { negative: b, m: n, e: f }) => {
                let (i, j) = (m.trailing_zeros(), n.trailing_zeros());
                a == b && m.checked_shr(i) == n.checked_shr(j) && e + i as i32 == f + j as i32
            }
            _ => false,
        }
    }
}

/// Significand bits and minimum exponent of normal numbers of a float type.
fn float_format(ty: Type) -> (i32, i32) {
    match ty {
        Type::F16 => (11, -14),
        Type::BF16 => (8, -126),
        Type::F32 => (24, -126),
        _ => (53, -1022),
    }
}

/// The minimum and maximum of an integer type; `None` for others.
fn range(ty: Type) -> Option<(i128, i128)> {
    let bits = 8 * ty.size();
    match ty {
        Type::I8 | Type::I16 | Type::I32 | Type::I64 => Some((-(1 << (bits - 1)), (1 << (bits - 1)) - 1)),
        Type::U8 | Type::U16 | Type::U32 | Type::U64 => Some((0, (1 << bits) - 1)),
        _ => None,
    }
}

/// The number of a register word.
fn value(ty: Type, word: u64) -> Number {
    let whole = |v: i128| Finite { negative: v < 0, m: v.unsigned_abs(), e: 0 };
    match ty {
        Type::I64 => whole(word as i64 as i128),
        Type::I8 | Type::I16 | Type::I32 => whole(word as u32 as i32 as i128),
        ty if !ty.is_float() => whole(word as i128),
        _ => {
            let (bits, least) = float_format(ty);
            let width = 8 * ty.size() as i32;
            let mantissa = word & ((1 << (bits - 1)) - 1);
            let exponent = (word >> (bits - 1)) & ((1 << (width - bits)) - 1);
            let negative = word >> (width - 1) == 1;
            if exponent == (1 << (width - bits)) - 1 {
                return if mantissa == 0 { Infinite { negative } } else { Nan };
            }
            let significand = if exponent == 0 { mantissa } else { mantissa | 1 << (bits - 1) };
            Finite { negative, m: significand.into(), e: least - bits + exponent.max(1) as i32 }
        }
    }
}

/// The number of a float type nearest to ±m·2^e, ties to even.
fn nearest(ty: Type, negative: bool, m: u128, e: i32) -> Number {
    let (bits, least) = float_format(ty);
    let length = |m: u128| 128 - m.leading_zeros() as i32;
    if m == 0 {
        return Finite { negative, m, e };
    }
    let quantum = (e + length(m) - 1).max(least) - bits + 1;
    let (mut rounded, lost) = match quantum - e {
        shift @ ..=0 => (m << -shift, std::cmp::Ordering::Less),
        shift @ 1..=127 => (m >> shift, (m << (128 - shift)).cmp(&(1 << 127))),
        _ => (0, std::cmp::Ordering::Less),
    };
    if lost.is_gt() || lost.is_eq() && rounded % 2 == 1 {
        rounded += 1;
    }
    if quantum + length(rounded) - 1 > 1 - least {
        return Infinite { negative };
    }
    Finite { negative, m: rounded, e: quantum }
}

/// The expected result of `cvt`.
fn converted(to: Type, from: Type, v: Number) -> Number {
    let whole = |v: i128| Finite { negative: v < 0, m: v.unsigned_abs(), e: 0 };
    let Some((least, greatest)) = range(to) else {
        return match v {
            _ if to == Type::Bool => whole(!matches!(v, Finite { m: 0, .. }) as i128),
            Finite { negative, m, e } => nearest(to, negative, m, e),
            v => v,
        };
    };
    let size = greatest - least + 1;
    match v {
        // The low bits: the member of the range that differs by a multiple of its size.
        Finite { negative, m, .. } if !from.is_float() => {
            let v = if negative { -(m as i128) } else { m as i128 };
            whole((v - least).rem_euclid(size) + least)
        }
        Nan => whole(0),
        Infinite { negative } => whole(if negative { least } else { greatest }),
        Finite { negative, m, e } => {
            let far = e > 0 && m != 0 && e > 70;
            let magnitude = match e {
                _ if far => 1 << 100,
                0.. => (m << e) as i128,
                _ => m.checked_shr(-e as u32).unwrap_or(0) as i128,
            };
            whole((if negative { -magnitude } else { magnitude }).clamp(least, greatest))
        }
    }
}

/// Words of a type: all words of narrow types; otherwise a stride and the neighbours of every power of two.
fn words(ty: Type) -> Vec<u64> {
    let near = |v: u64| (-3..=3).map(move |d: i64| v.wrapping_add_signed(d));
    if ty.size() <= 2 {
        return (0..1u64 << (8 * ty.size())).filter_map(|v| read_element(ty, &v.to_le_bytes(), 0)).collect();
    }
    // Ties of the shorter floats, with and without a lower bit.
    let halves = (0..65536u64).step_by(37).flat_map(|h| near(h << 16 | 0x8000).chain(near(h << 16 | 0x1000)));
    if ty.is_wide() {
        let spread = (0..=u64::MAX).step_by(0x0001_2345_6789_abcd);
        let powers = (0..64).flat_map(|k| near(1 << k).chain(near((1u64 << k).wrapping_neg())));
        // Also as floats: ties between numbers of each shorter type, and slightly less and more.
        let singles = words(Type::F32).into_iter().step_by(3).flat_map(|w| {
            let wide = f64::from(f32::from_bits(w as u32)).to_bits();
            near(wide).chain(near(wide + (1 << 28))).chain([wide + 1])
        });
        let wholes = (0..64).flat_map(|k| near((2f64.powi(k)).to_bits()).chain(near((-2f64.powi(k)).to_bits())));
        return spread.chain(powers).chain(singles).chain(wholes).collect();
    }
    let spread = (0..=u64::from(u32::MAX)).step_by(65519);
    let powers = (0..32).flat_map(|k| near(1 << k).chain(near((1u64 << k).wrapping_neg())));
    spread.chain(powers).chain(halves).chain(near(16777217 << 6)).map(|w| w & 0xffff_ffff).collect()
}

#[test]
fn conversions() {
    for from in Type::ALL {
        let inputs = words(from);
        for to in Type::ALL {
            for &word in &inputs {
                let v = value(from, word);
                let result = convert(to, from, word);
                assert!(to.is_word(result), "cvt.{to} of {from} {word:#x} = {v:?}: {result:#x}");
                let (got, want) = (value(to, result), converted(to, from, v));
                assert!(got == want, "cvt.{to} of {from} {word:#x} = {v:?}: {got:?}, not {want:?}");
            }
        }
    }
}

#[test]
fn memory_holds_every_element() {
    for ty in Type::ALL {
        for word in words(ty).into_iter().step_by(13) {
            let mut bytes = [0xa5; 24];
            assert_eq!(write_element(ty, &mut bytes, 2, word), Some(()));
            assert_eq!(read_element(ty, &bytes, 2), Some(word), "{ty} {word:#x}");
            let size = ty.size();
            assert!(
                bytes[..2 * size].iter().chain(&bytes[3 * size..]).all(|b| *b == 0xa5),
                "{ty} {word:#x}: {bytes:x?}"
            );
        }
        assert_eq!(read_element(ty, &[0; 8], 8 / ty.size()), None);
        assert_eq!(write_element(ty, &mut [0; 8], usize::MAX, 0), None);
    }
    assert_eq!(read_element(Type::Bool, &[2], 0), Some(1));
}

#[test]
fn every_lane_wise_operation_has_a_meaning() {
    for &op in Opcode::ALL {
        let info = op.info();
        for ty in Type::ALL {
            let args = vec![1; info.signature.operands().len()];
            let exists = op.is_lane_wise() && info.types.contains(ty);
            assert_eq!(eval(op, ty, ty, &args).is_some(), exists, "{}.{ty}", info.mnemonic);
        }
    }
}

#[test]
#[rustfmt::skip] // A table.
fn corner_cases() {
    use Opcode::*;
    let f = |v: f32| u64::from(v.to_bits());
    let d = f64::to_bits;
    let i = |v: i32| u64::from(v as u32);
    let l = |v: i64| v as u64;
    let max = u64::from(u32::MAX);
    let (nan, least) = (f(f32::NAN), i(i32::MIN));
    let cases: &[(Opcode, Type, &[u64], u64)] = &[
        (Add, Type::I32, &[i(i32::MAX), 1], least), (Sub, Type::U32, &[0, 1], max),
        (Mul, Type::I32, &[0x10001, 0x10001], 0x20001),
        (MulHi, Type::I32, &[i(-1), i(-1)], 0), (MulHi, Type::U32, &[max, max], max - 1),
        (Div, Type::I32, &[i(-7), 2], i(-3)), (Div, Type::I32, &[i(-7), 0], 0), (Div, Type::I32, &[least, i(-1)], least),
        (Div, Type::U32, &[max, 2], i(i32::MAX)), (Div, Type::U32, &[9, 0], 0),
        (Div, Type::F32, &[f(-1.0), f(0.0)], f(f32::NEG_INFINITY)),
        (Rem, Type::I32, &[i(-7), 2], i(-1)), (Rem, Type::I32, &[i(-7), 0], i(-7)), (Rem, Type::I32, &[least, i(-1)], 0),
        (Rem, Type::U32, &[9, 0], 9),
        (Fma, Type::F32, &[f(1.0 + f32::EPSILON), f(1.0 - f32::EPSILON), f(-1.0)], f(-f32::EPSILON * f32::EPSILON)),
        (Min, Type::F32, &[nan, f(1.0)], f(1.0)), (Min, Type::F32, &[f(1.0), nan], f(1.0)),
        (Min, Type::F32, &[f(0.0), f(-0.0)], f(-0.0)), (Min, Type::F32, &[f(-0.0), f(0.0)], f(-0.0)),
        (Max, Type::F32, &[nan, f(1.0)], f(1.0)), (Max, Type::F32, &[f(1.0), nan], f(1.0)),
        (Max, Type::F32, &[f(0.0), f(-0.0)], f(0.0)), (Max, Type::F32, &[f(-0.0), f(0.0)], f(0.0)),
        (Max, Type::F32, &[f(-3.0), f(2.0)], f(2.0)), (Min, Type::I32, &[i(-1), 1], i(-1)), (Max, Type::U32, &[i(-1), 1], i(-1)),
        (Abs, Type::I32, &[least], least), (Abs, Type::F32, &[f(-0.0)], 0), (Neg, Type::I32, &[least], least),
        (Neg, Type::F32, &[0], f(-0.0)), (Neg, Type::I32, &[5], i(-5)),
        (Sqrt, Type::F32, &[f(2.0)], f(std::f32::consts::SQRT_2)), (Sqrt, Type::F32, &[f(-0.0)], f(-0.0)),
        (Floor, Type::F32, &[f(-0.5)], f(-1.0)), (Ceil, Type::F32, &[f(-0.5)], f(-0.0)), (Trunc, Type::F32, &[f(-1.5)], f(-1.0)),
        (Round, Type::F32, &[f(2.5)], f(2.0)), (Round, Type::F32, &[f(-3.5)], f(-4.0)), (Round, Type::F32, &[f(-0.5)], f(-0.0)),
        (Not, Type::Bool, &[1], 0), (Not, Type::Bool, &[0], 1), (Not, Type::I32, &[0], i(-1)),
        (Xor, Type::Bool, &[1, 1], 0), (Or, Type::Bool, &[0, 1], 1), (And, Type::U32, &[12, 10], 8),
        (Shl, Type::I32, &[1, 31], least), (Shl, Type::I32, &[1, 32], 0), (Shl, Type::U32, &[1, 64], 0),
        (Shr, Type::U32, &[least, 31], 1), (Shr, Type::U32, &[least, 32], 0),
        (Shr, Type::I32, &[least, 31], i(-1)), (Shr, Type::I32, &[least, 200], i(-1)), (Shr, Type::I32, &[4, 1], 2),
        (Eq, Type::F32, &[nan, nan], 0), (Ne, Type::F32, &[nan, nan], 1), (Eq, Type::F32, &[0, f(-0.0)], 1),
        (Eq, Type::F16, &[0x7e00, 0x7e00], 0), (Eq, Type::BF16, &[0, 0x8000], 1), (Ne, Type::I8, &[i(-1), 255], 1),
        (Lt, Type::I32, &[i(-1), 0], 1), (Lt, Type::U32, &[i(-1), 0], 0), (Ge, Type::F32, &[nan, f(0.0)], 0),
        (Le, Type::F32, &[f(-0.0), 0], 1), (Gt, Type::I32, &[0, i(-1)], 1),
        (Add, Type::I64, &[l(i64::MAX), 1], l(i64::MIN)), (Sub, Type::U64, &[0, 1], u64::MAX),
        (Mul, Type::U64, &[0x1_0000_0001, 0x1_0000_0001], 0x2_0000_0001),
        (MulHi, Type::I64, &[l(-1), l(-1)], 0), (MulHi, Type::U64, &[u64::MAX, u64::MAX], u64::MAX - 1),
        (MulHi, Type::I64, &[l(i64::MIN), l(i64::MIN)], 1 << 62),
        (Div, Type::I64, &[l(-7), 2], l(-3)), (Div, Type::I64, &[l(-7), 0], 0), (Div, Type::I64, &[l(i64::MIN), l(-1)], l(i64::MIN)),
        (Rem, Type::I64, &[l(i64::MIN), l(-1)], 0), (Rem, Type::U64, &[9, 0], 9), (Div, Type::U64, &[u64::MAX, 3], u64::MAX / 3),
        (Min, Type::I64, &[l(-1), 1], l(-1)), (Max, Type::U64, &[l(-1), 1], l(-1)), (Abs, Type::I64, &[l(i64::MIN)], l(i64::MIN)),
        (Abs, Type::I64, &[l(-5)], 5), (Neg, Type::I64, &[5], l(-5)), (Not, Type::U64, &[0], u64::MAX),
        (Shl, Type::I64, &[1, 63], l(i64::MIN)), (Shl, Type::U64, &[1, 64], 0), (Shl, Type::U64, &[1, max], 0),
        (Shr, Type::U64, &[1 << 63, 63], 1), (Shr, Type::U64, &[1 << 63, 64], 0), (Shr, Type::I64, &[1 << 63, 200], l(-1)),
        (PopCount, Type::I32, &[i(-1)], 32), (PopCount, Type::U64, &[u64::MAX - 1], 63), (PopCount, Type::U32, &[0], 0),
        (LeadingZeros, Type::U32, &[0], 32), (LeadingZeros, Type::I32, &[i(-1)], 0), (LeadingZeros, Type::I64, &[1], 63),
        (LeadingZeros, Type::U64, &[0], 64), (LeadingZeros, Type::U64, &[1 << 40], 23),
        (Dot4, Type::I32, &[0xff02_0380, 0x0104_ff80, 10], 10 - 1 + 8 - 3 + 16384),
        (Dot4, Type::U32, &[0xff02_0380, 0x0104_ff80, max], 255 + 8 + 3 * 255 + 16384 - 1),
        (Dot4, Type::I32, &[0x7f7f_7f7f, 0x7f7f_7f7f, i(i32::MAX)], i(i32::MIN + 4 * 127 * 127 - 1)),
        (Lt, Type::I64, &[l(-1), 0], 1), (Lt, Type::U64, &[l(-1), 0], 0), (Eq, Type::U64, &[1 << 40, 0], 0),
        (Add, Type::F64, &[d(1.0), d(f64::EPSILON / 2.0)], d(1.0)), (Div, Type::F64, &[d(-1.0), d(0.0)], d(f64::NEG_INFINITY)),
        (Fma, Type::F64, &[d(1.0 + f64::EPSILON), d(1.0 - f64::EPSILON), d(-1.0)], d(-f64::EPSILON * f64::EPSILON)),
        (Min, Type::F64, &[d(f64::NAN), d(1.0)], d(1.0)), (Min, Type::F64, &[d(0.0), d(-0.0)], d(-0.0)),
        (Max, Type::F64, &[d(1.0), d(f64::NAN)], d(1.0)), (Max, Type::F64, &[d(-0.0), d(0.0)], d(0.0)),
        (Sqrt, Type::F64, &[d(2.0)], d(std::f64::consts::SQRT_2)), (Round, Type::F64, &[d(2.5)], d(2.0)),
        (Floor, Type::F64, &[d(-0.5)], d(-1.0)), (Abs, Type::F64, &[d(-0.0)], 0), (Neg, Type::F64, &[0], d(-0.0)),
        (Ne, Type::F64, &[d(f64::NAN), d(f64::NAN)], 1), (Eq, Type::F64, &[0, d(-0.0)], 1),
        (Select, Type::F64, &[0, d(2.0), d(3.0)], d(3.0)),
        (Select, Type::F16, &[1, 2, 3], 2), (Select, Type::F16, &[0, 2, 3], 3),
    ];
    for &(op, ty, args, want) in cases {
        let got = eval(op, ty, ty, args);
        assert_eq!(got, Some(want), "{}.{ty} {args:x?}", op.info().mnemonic);
    }
    let casts = [
        (Type::I8, Type::U8, 0x80, i(-128)), (Type::U8, Type::I8, i(-1), 0xff), (Type::Bool, Type::I8, i(-2), 1),
        (Type::I8, Type::Bool, 1, 1), (Type::BF16, Type::F16, 0x3c00, 0x3c00), (Type::I32, Type::F32, 0x80000000, least),
        (Type::I16, Type::BF16, 0x8000, i(-32768)), (Type::U16, Type::I16, i(-1), 0xffff), (Type::F64, Type::I64, l(-1), u64::MAX),
    ];
    for (to, from, word, want) in casts {
        assert_eq!(eval(Bitcast, to, from, &[word]), Some(want), "bitcast.{to} of {from} {word:#x}");
    }
    assert_eq!(eval(Bitcast, Type::F32, Type::F16, &[0]), None);
}

/// A device that flushes counts subnormal operands and results of arithmetic as 0 with their sign, and sees them in all
/// else.
#[test]
fn subnormal_numbers_may_count_as_zero() {
    use Opcode::*;
    let f = |x: f32| u64::from(x.to_bits());
    let (tiny, least, half) = (1e-40f32, f32::MIN_POSITIVE, f32::MIN_POSITIVE / 2.0);
    let cases = [
        (Add, &[f(tiny), f(0.0)][..], f(0.0)),
        (Add, &[f(-tiny), f(-0.0)], f(-0.0)),
        (Sub, &[f(1.5 * least), f(least)], f(0.0)),
        (Mul, &[f(tiny), f(1e30)], f(0.0)),
        (Mul, &[f(least), f(-0.5)], f(-0.0)),
        (Div, &[f(1.0), f(-tiny)], f(f32::NEG_INFINITY)),
        (Fma, &[f(2.0), f(3.0), f(tiny)], f(6.0)),
        (Fma, &[f(tiny), f(1e38), f(1.0)], f(1.0)),
        (Sqrt, &[f(tiny)], f(0.0)),
        (Exp2, &[f(-127.0)], f(0.0)),
        (Sin, &[f(-tiny)], f(-0.0)),
        (Lt, &[f(tiny), f(half)], 1),
        (Eq, &[f(tiny), f(0.0)], 0),
        (Min, &[f(half), f(tiny)], f(tiny)),
        (Ceil, &[f(tiny)], f(1.0)),
        (Floor, &[f(-tiny)], f(-1.0)),
        (Abs, &[f(-tiny)], f(tiny)),
        (Mov, &[f(tiny)], f(tiny)),
    ];
    for (op, args, want) in cases {
        let got = Subnormals::Flushed.eval(op, Type::F32, Type::F32, args);
        assert_eq!(got, Some(want), "{} {args:x?}", op.info().mnemonic);
    }
    // Their logarithms are found with integers.
    for op in [Log, Log2] {
        let exact = eval(op, Type::F32, Type::F32, &[f(tiny)]);
        assert_eq!(Subnormals::Flushed.eval(op, Type::F32, Type::F32, &[f(tiny)]), exact);
    }
    assert_eq!(Subnormals::Flushed.eval(Cvt, Type::Bool, Type::F32, &[f(tiny)]), Some(1));
    assert_eq!(Subnormals::Flushed.update(AtomicAdd, Type::F32, f(tiny), &[f(tiny)]), Some(f(0.0)));
    // bf16 is widened by its bits, so its subnormal elements are subnormal operands; f16's are normal ones.
    let (a, b) = ([1 | 1 << 16; 32], [0x3f80_3f80; 32]);
    let zero = Some([0; 32]);
    assert_eq!(Subnormals::Flushed.tile(Type::BF16, &a, &b, &[0; 32]), zero);
    assert_ne!(Subnormals::Kept.tile(Type::BF16, &a, &b, &[0; 32]), zero);
    assert_eq!(
        Subnormals::Flushed.tile(Type::F16, &a, &[0x3c00_3c00; 32], &[0; 32]),
        Subnormals::Kept.tile(Type::F16, &a, &[0x3c00_3c00; 32], &[0; 32])
    );
}
