//! What single instructions mean: conversions between all types against exact arithmetic in f64, and the corner cases of the table.

use hologram_isa::meaning::{convert, eval, read_element, write_element};
use hologram_isa::{Opcode, Signature, Type};

/// Significand bits and least exponent of a normal number, of a float type.
fn float_format(ty: Type) -> (i32, i32) {
    match ty {
        Type::F16 => (11, -14),
        Type::BF16 => (8, -126),
        _ => (24, -126),
    }
}

/// The number that a register word stands for.
fn value(ty: Type, word: u32) -> f64 {
    match ty {
        Type::Bool | Type::U8 | Type::U32 => word as f64,
        Type::I8 | Type::I32 => word as i32 as f64,
        Type::F16 | Type::BF16 | Type::F32 => {
            let (bits, least) = float_format(ty);
            let width = 8 * ty.size() as i32;
            let mantissa = word & ((1 << (bits - 1)) - 1);
            let exponent = (word >> (bits - 1)) & ((1 << (width - bits)) - 1);
            let sign = if word >> (width - 1) == 1 { -1.0 } else { 1.0 };
            if exponent == (1 << (width - bits)) - 1 {
                return if mantissa == 0 { sign * f64::INFINITY } else { f64::NAN };
            }
            let significand = if exponent == 0 { mantissa } else { mantissa | 1 << (bits - 1) };
            sign * significand as f64 * 2f64.powi(least - bits + exponent.max(1) as i32)
        }
    }
}

/// The number nearest to `v` in a float type, ties to even.
fn nearest(ty: Type, v: f64) -> f64 {
    let (bits, least) = float_format(ty);
    if v == 0.0 || !v.is_finite() {
        return v;
    }
    let exponent = ((v.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(least);
    let quantum = 2f64.powi(exponent - bits + 1);
    let rounded = (v / quantum).round_ties_even() * quantum;
    let limit = 2f64.powi(1 - least);
    if rounded.abs() >= limit * 2.0 { f64::INFINITY.copysign(v) } else { rounded }
}

/// What `cvt` gives for the number `v`, as a number.
fn converted(to: Type, from: Type, v: f64) -> f64 {
    let range = match to {
        Type::Bool => return if v != 0.0 { 1.0 } else { 0.0 },
        Type::F16 | Type::BF16 | Type::F32 => return nearest(to, v),
        Type::I8 => (-128.0, 127.0),
        Type::U8 => (0.0, 255.0),
        Type::I32 => (-2147483648.0, 2147483647.0),
        Type::U32 => (0.0, 4294967295.0),
    };
    if !from.is_float() {
        // The low bits: the member of the range that differs by a multiple of its size.
        let size = range.1 - range.0 + 1.0;
        return v - ((v - range.0) / size).floor() * size;
    }
    if v.is_nan() { 0.0 } else { v.trunc().clamp(range.0, range.1) }
}

/// Words of a type: all of the narrow ones, for the others a stride and the neighbours of every power of two.
fn words(ty: Type) -> Vec<u32> {
    match ty {
        Type::Bool => vec![0, 1],
        Type::I8 => (-128..128).map(|v: i32| v as u32).collect(),
        Type::U8 => (0..256).collect(),
        Type::F16 | Type::BF16 => (0..65536).collect(),
        Type::I32 | Type::U32 | Type::F32 => {
            let spread = (0..=u32::MAX).step_by(65519);
            let near = |v: u32| (-3..=3).map(move |d: i32| v.wrapping_add_signed(d));
            let powers = (0..32).flat_map(|k| near(1 << k).chain(near((1u32 << k).wrapping_neg())));
            // Halfway cases of the shorter floats, with and without a bit beyond.
            let halves = (0..65536u32).step_by(37).flat_map(|h| near(h << 16 | 0x8000).chain(near(h << 16 | 0x1000)));
            spread.chain(powers).chain(halves).chain(near(16777217 << 6)).collect()
        }
    }
}

#[test]
fn conversions() {
    for from in Type::ALL {
        let inputs = words(from);
        for to in Type::ALL {
            for &word in &inputs {
                let v = value(from, word);
                let (got, want) = (value(to, convert(to, from, word)), converted(to, from, v));
                let same =
                    got == want && got.is_sign_negative() == (want.is_sign_negative() && to.is_float() || want < 0.0);
                assert!(
                    same || got.is_nan() && want.is_nan(),
                    "cvt.{to} of {from} {word:#x} = {v:e}: {got:e}, not {want:e}"
                );
            }
        }
    }
}

#[test]
fn memory_holds_every_element() {
    for ty in Type::ALL {
        for word in words(ty).into_iter().step_by(13) {
            let mut bytes = [0xa5; 12];
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
        use Signature::*;
        let lane_wise =
            !matches!(info.signature, Builtin | Reduce | Shuffle | Load | Store | Barrier) && op != Opcode::Broadcast;
        for ty in Type::ALL {
            let args = vec![1; info.signature.operands().len()];
            let exists = lane_wise && info.types.contains(ty);
            assert_eq!(eval(op, ty, ty, &args).is_some(), exists, "{}.{ty}", info.mnemonic);
        }
    }
}

#[test]
#[rustfmt::skip] // A table.
fn corner_cases() {
    use Opcode::*;
    let f = f32::to_bits;
    let i = |v: i32| v as u32;
    let (nan, least) = (f(f32::NAN), i(i32::MIN));
    let cases: &[(Opcode, Type, &[u32], u32)] = &[
        (Add, Type::I32, &[i(i32::MAX), 1], least), (Sub, Type::U32, &[0, 1], u32::MAX),
        (Mul, Type::I32, &[0x10001, 0x10001], 0x20001),
        (MulHi, Type::I32, &[i(-1), i(-1)], 0), (MulHi, Type::U32, &[u32::MAX, u32::MAX], u32::MAX - 1),
        (Div, Type::I32, &[i(-7), 2], i(-3)), (Div, Type::I32, &[i(-7), 0], 0), (Div, Type::I32, &[least, i(-1)], least),
        (Div, Type::U32, &[u32::MAX, 2], i32::MAX as u32), (Div, Type::U32, &[9, 0], 0),
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
        (Select, Type::F16, &[1, 2, 3], 2), (Select, Type::F16, &[0, 2, 3], 3),
    ];
    for &(op, ty, args, want) in cases {
        let got = eval(op, ty, ty, args);
        assert_eq!(got, Some(want), "{}.{ty} {args:x?}", op.info().mnemonic);
    }
    let casts = [
        (Type::I8, Type::U8, 0x80, i(-128)), (Type::U8, Type::I8, i(-1), 0xff), (Type::Bool, Type::I8, i(-2), 1),
        (Type::I8, Type::Bool, 1, 1), (Type::BF16, Type::F16, 0x3c00, 0x3c00), (Type::I32, Type::F32, 0x80000000, least),
    ];
    for (to, from, word, want) in casts {
        assert_eq!(eval(Bitcast, to, from, &[word]), Some(want), "bitcast.{to} of {from} {word:#x}");
    }
    assert_eq!(eval(Bitcast, Type::F32, Type::F16, &[0]), None);
}
