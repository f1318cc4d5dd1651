//! Constants in the text form: the shortest decimal that reads back as the same bits.

use crate::Type;

/// The constant as text, without a suffix.
pub(super) fn format(ty: Type, word: u64) -> String {
    match ty {
        Type::Bool if word <= 1 => (word == 1).to_string(),
        Type::Bool => format!("{word:#x}"),
        Type::I8 | Type::I16 | Type::I32 => (word as u32 as i32).to_string(),
        Type::I64 => (word as i64).to_string(),
        Type::U8 | Type::U16 | Type::U32 | Type::U64 => word.to_string(),
        Type::F64 if !f64::from_bits(word).is_nan() => format!("{:?}", f64::from_bits(word)),
        Type::F64 | Type::F16 | Type::BF16 | Type::F32 => {
            let value = match ty {
                Type::F16 => half::f16::from_bits(word as u16).to_f32(),
                Type::BF16 => half::bf16::from_bits(word as u16).to_f32(),
                Type::F64 => f32::NAN,
                _ => f32::from_bits(word as u32),
            };
            if !value.is_nan() {
                // `Debug` prints the fewest digits that read back as the same f32, and infinities as `inf`.
                format!("{value:?}")
            } else if word == quiet_nan(ty) {
                "nan".into()
            } else {
                format!("{word:#0width$x}", width = 2 + 2 * ty.size())
            }
        }
    }
}

/// The register word of a constant of type `ty`, written as in a program, without a suffix.
///
/// # Errors
/// The expected form, if the text is not such a constant or is out of range.
pub fn parse(ty: Type, text: &str) -> Result<u64, String> {
    // A hostile token may be as long as the file.
    let shown = text.get(..40).map_or(text.to_string(), |start| format!("{start}…"));
    if ty == Type::Bool {
        return match text {
            "true" => Ok(1),
            "false" => Ok(0),
            _ => Err(format!("expected true or false, found `{shown}`")),
        };
    }
    let kind = if ty.is_float() { "number" } else { "whole number" };
    let bad = || format!("expected a {kind} of type {ty}, found `{shown}`");
    let outside = || format!("`{shown}` does not fit {ty}");
    if let Some(digits) = text.strip_prefix("0x") {
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let bits = u64::from_str_radix(digits, 16).map_err(|_| outside())?;
        if !ty.is_wide() && bits >> (8 * ty.size()) != 0 {
            return Err(outside());
        }
        return Ok(match ty {
            Type::I8 => u64::from(bits as i8 as i32 as u32),
            Type::I16 => u64::from(bits as i16 as i32 as u32),
            _ => bits,
        });
    }
    let magnitude = text.strip_prefix('-').unwrap_or(text);
    if ty.is_float() {
        match text {
            "nan" => return Ok(quiet_nan(ty)),
            "inf" => return Ok(from_f64(ty, f64::INFINITY)),
            "-inf" => return Ok(from_f64(ty, f64::NEG_INFINITY)),
            _ => {}
        }
        if !magnitude.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(bad());
        }
        let (word, finite) = if ty == Type::F32 {
            let value: f32 = text.parse().map_err(|_| bad())?;
            (value.to_bits().into(), value.is_finite())
        } else if ty == Type::F64 {
            let value: f64 = text.parse().map_err(|_| bad())?;
            (value.to_bits(), value.is_finite())
        } else {
            let word = from_f64(ty, text.parse().map_err(|_| bad())?);
            (word, word & 0x7fff < from_f64(ty, f64::INFINITY))
        };
        return if finite { Ok(word) } else { Err(format!("{}; write inf for infinity", outside())) };
    }
    if magnitude.is_empty() || !magnitude.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let value: i128 = text.parse().map_err(|_| outside())?;
    let bits = 8 * ty.size();
    let signed = matches!(ty, Type::I8 | Type::I16 | Type::I32 | Type::I64);
    let range = if signed { -(1i128 << (bits - 1))..1i128 << (bits - 1) } else { 0..1i128 << bits };
    let word = if ty.is_wide() { value as u64 } else { u64::from(value as u32) };
    if range.contains(&value) { Ok(word) } else { Err(outside()) }
}

/// The word of `nan`.
fn quiet_nan(ty: Type) -> u64 {
    match ty {
        Type::F16 => 0x7e00,
        Type::BF16 => 0x7fc0,
        Type::F64 => 0x7ff8_0000_0000_0000,
        _ => 0x7fc0_0000,
    }
}

/// Rounds a value other than NaN to the nearest number of a float type, ties to even.
fn from_f64(ty: Type, value: f64) -> u64 {
    let (fraction_bits, least_exponent) = match ty {
        Type::F16 => (10, -14),
        Type::BF16 => (7, -126),
        Type::F64 => return value.to_bits(),
        _ => return (value as f32).to_bits().into(),
    };
    let mut rounded = value;
    if value.is_finite() && value != 0.0 {
        let exponent = ((value.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(least_exponent);
        // Far beyond the type's range the quotient is already an integer, and the conversion below gives infinity.
        let unit = f64::powi(2.0, exponent - fraction_bits);
        rounded = (value / unit).round_ties_even() * unit;
    }
    match ty {
        Type::F16 => u64::from(half::f16::from_f64(rounded).to_bits()),
        _ => u64::from(half::bf16::from_f64(rounded).to_bits()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_of_the_small_types_reads_back() {
        for ty in Type::ALL.into_iter().filter(|ty| ty.size() <= 2) {
            for bits in 0..1u64 << (8 * ty.size()) {
                let word = crate::meaning::read_element(ty, &bits.to_le_bytes(), 0).unwrap();
                assert!(ty.is_word(word));
                assert_eq!(parse(ty, &format(ty, word)), Ok(word), "{ty} {}", format(ty, word));
            }
        }
    }

    #[test]
    fn constants_round_to_nearest_even() {
        let cases = [
            (Type::F32, "0.1", 0x3dcc_cccd),
            (Type::F32, "-0.0", 0x8000_0000),
            (Type::F32, "3", 0x4040_0000),
            (Type::F32, "1e-45", 1),
            (Type::F32, "-inf", 0xff80_0000),
            (Type::F32, "0x7fc00001", 0x7fc0_0001),
            (Type::F16, "1.00048828125", 0x3c00),
            (Type::F16, "1.000488281250001", 0x3c01),
            (Type::F16, "65519.99", 0x7bff),
            (Type::F16, "2.9802322387695312e-8", 0),
            (Type::F16, "2.99e-8", 1),
            (Type::BF16, "1.00390625", 0x3f80),
            (Type::BF16, "-1.01171875", 0xbf82),
            (Type::I8, "-128", 0xffff_ff80),
            (Type::I8, "0xff", 0xffff_ffff),
            (Type::I32, "-2147483648", 0x8000_0000),
            (Type::U32, "4294967295", 0xffff_ffff),
            (Type::I16, "-32768", 0xffff_8000),
            (Type::I16, "0xffff", 0xffff_ffff),
            (Type::U16, "65535", 0xffff),
            (Type::I64, "-9223372036854775808", 1 << 63),
            (Type::I64, "0xffffffffffffffff", u64::MAX),
            (Type::U64, "18446744073709551615", u64::MAX),
            (Type::F64, "0.1", 0x3fb9_9999_9999_999a),
            (Type::F64, "5e-324", 1),
            (Type::F64, "-inf", 0xfff0_0000_0000_0000),
            (Type::F64, "nan", 0x7ff8_0000_0000_0000),
        ];
        for (ty, text, word) in cases {
            assert_eq!(parse(ty, text), Ok(word), "{text}:{ty}");
        }
        let wrong = [
            (Type::F32, "1e39"),
            (Type::F16, "65520"),
            (Type::F32, "0x100000000"),
            (Type::F32, "-infinity"),
            (Type::F16, "0x10000"),
            (Type::I8, "128"),
            (Type::U8, "-1"),
            (Type::I32, "2147483648"),
            (Type::U32, "1.0"),
            (Type::U32, "0x"),
            (Type::U32, "99999999999999999999"),
            (Type::Bool, "1"),
            (Type::I16, "32768"),
            (Type::U16, "-1"),
            (Type::I64, "9223372036854775808"),
            (Type::U64, "18446744073709551616"),
            (Type::U64, "0x10000000000000000"),
            (Type::F64, "1e309"),
        ];
        for (ty, text) in wrong {
            assert!(parse(ty, text).is_err(), "{text}:{ty}");
        }
    }
}
