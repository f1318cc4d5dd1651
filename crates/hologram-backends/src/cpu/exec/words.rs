//! Arithmetic on words that neither Rust nor the processor has in the form that a vector loop wants: without branches.

/// The `f32` in a word.
#[inline(always)]
pub(super) fn float(word: u32) -> f32 {
    f32::from_bits(word)
}

/// Quotient, 0 for a division by zero. The quotient of two 32-bit numbers in `f64` has an error below 2^-53 of it, and no quotient
/// that is not whole lies that near above a whole number, so the whole part is right.
#[inline(always)]
pub(super) fn div_u(a: u32, b: u32) -> u32 {
    let divisor = if b == 0 { 1 } else { b };
    // SAFETY: the quotient is at most `a`, and finite.
    let q = unsafe { (a as f64 / divisor as f64).to_int_unchecked::<u32>() };
    if b == 0 { 0 } else { q }
}

/// Quotient toward zero, 0 for a division by zero; the least number by -1 is itself.
#[inline(always)]
pub(super) fn div_i(a: u32, b: u32) -> u32 {
    let divisor = if b == 0 || b == u32::MAX { 1 } else { b };
    // SAFETY: the quotient is at most `a` in magnitude, and finite.
    let q = unsafe { (a as i32 as f64 / divisor as i32 as f64).to_int_unchecked::<i32>() } as u32;
    let q = if b == u32::MAX { a.wrapping_neg() } else { q };
    if b == 0 { 0 } else { q }
}

/// The lesser float: a NaN loses, and -0 is less than 0.
#[inline(always)]
pub(super) fn min_f(a: u32, b: u32) -> u32 {
    let (x, y) = (float(a), float(b));
    let lesser = if x < y || y.is_nan() { a } else { b };
    if x == y { a | b } else { lesser }
}

/// The greater float: a NaN loses, and 0 is greater than -0.
#[inline(always)]
pub(super) fn max_f(a: u32, b: u32) -> u32 {
    let (x, y) = (float(a), float(b));
    let greater = if x > y || y.is_nan() { a } else { b };
    if x == y { a & b } else { greater }
}

/// The value of an `f16`'s bits.
#[inline(always)]
pub(super) fn from_f16(half: u32) -> f32 {
    let magnitude = (half & 0x7fff) << 13;
    let exponent = magnitude & 0x0f80_0000;
    let normal = magnitude + (112 << 23);
    // A subnormal's digits behind the exponent of the least normal: taking that number away normalises them.
    let subnormal = (float(magnitude + (113 << 23)) - float(113 << 23)).to_bits();
    let quiet = if magnitude > 0x0f80_0000 { 0x0040_0000 } else { 0 };
    let special = (magnitude + (224 << 23)) | quiet;
    let bits = if exponent == 0 { subnormal } else { normal };
    let bits = if exponent == 0x0f80_0000 { special } else { bits };
    float(bits | (half & 0x8000) << 16)
}

/// The bits of the `f16` nearest to a float.
#[inline(always)]
pub(super) fn to_f16(value: f32) -> u32 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    // Adding a half brings the last bit that counts to the last bit of the float, so that the addition rounds there.
    let subnormal = (float(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let result = if magnitude < 113 << 23 { subnormal } else { normal };
    // From 65520 on, halfway between the greatest number and the next, the result is infinite.
    let result = if magnitude >= 0x477f_f000 { 0x7c00 } else { result };
    let nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    let result = if magnitude > 0x7f80_0000 { nan } else { result };
    result | (bits >> 16 & 0x8000)
}

/// The value of a `bf16`'s bits.
#[inline(always)]
pub(super) fn from_bf16(half: u32) -> f32 {
    let quiet = if half & 0x7fff > 0x7f80 { 0x0040_0000 } else { 0 };
    float(half << 16 | quiet)
}

/// The bits of the `bf16` nearest to a float.
#[inline(always)]
pub(super) fn to_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if bits & 0x7fff_ffff > 0x7f80_0000 { bits >> 16 | 0x40 } else { rounded }
}

/// A number as a float whose last bit is set when the number has further bits: rounding it to a `bf16` then gives what one rounding
/// of the number would.
#[inline(always)]
pub(super) fn u32_jammed(v: u32) -> f32 {
    let jammed = (v >> 8 | (v & 0xff != 0) as u32) as i32 as f32 * 256.0;
    if v < 1 << 24 { v as i32 as f32 } else { jammed }
}

/// As [`u32_jammed`], for a signed number.
#[inline(always)]
pub(super) fn i32_jammed(v: u32) -> f32 {
    let magnitude = u32_jammed((v as i32).unsigned_abs());
    if (v as i32) < 0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers around everything that is special in their type, and many between.
    fn numbers() -> Vec<u32> {
        let mut numbers = vec![];
        for shift in 0..32 {
            for offset in -3..=3 {
                numbers.push((1u32 << shift).wrapping_add_signed(offset));
                numbers.push((1u32 << shift).wrapping_add_signed(offset).wrapping_neg());
            }
        }
        let mut state = 1u32;
        for _ in 0..2000 {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            numbers.push(state >> (state >> 8 & 15));
        }
        numbers
    }

    #[test]
    fn integer_division() {
        let numbers = numbers();
        for &a in &numbers {
            for &b in &numbers {
                let (x, y) = (a as i32, b as i32);
                assert_eq!(div_u(a, b), a.checked_div(b).unwrap_or(0), "{a} / {b}");
                assert_eq!(div_i(a, b) as i32, if y == 0 { 0 } else { x.wrapping_div(y) }, "{x} / {y}");
            }
        }
    }

    #[test]
    fn narrow_floats() {
        for half in 0..=u16::MAX {
            let word = half as u32;
            for (got, expected) in [
                (from_f16(word), half::f16::from_bits(half).to_f32()),
                (from_bf16(word), half::bf16::from_bits(half).to_f32()),
            ] {
                assert_eq!(got.to_bits(), expected.to_bits(), "{half:#x}");
            }
            // Each number, the halfway point to the next, and both sides of it.
            for (value, step) in [(from_f16(word), 1u32 << 12), (from_bf16(word), 1 << 15)] {
                for offset in [0, 1, step - 1, step, step + 1, 2 * step - 1] {
                    let v = f32::from_bits(value.to_bits().wrapping_add(offset));
                    assert_eq!(to_f16(v), half::f16::from_f32(v).to_bits() as u32, "{v:e}");
                    assert_eq!(to_bf16(v), half::bf16::from_f32(v).to_bits() as u32, "{v:e}");
                }
            }
        }
        for bits in (0..u32::MAX).step_by(65_521) {
            let v = f32::from_bits(bits);
            assert_eq!(to_f16(v), half::f16::from_f32(v).to_bits() as u32, "{v:e}");
        }
    }

    #[test]
    fn integers_round_once_to_bf16() {
        for v in numbers() {
            // An f64 holds every integer, and `half` rounds it once.
            assert_eq!(to_bf16(u32_jammed(v)), half::bf16::from_f64(v as f64).to_bits() as u32, "{v}");
            assert_eq!(to_bf16(i32_jammed(v)), half::bf16::from_f64(v as i32 as f64).to_bits() as u32, "{}", v as i32);
        }
    }
}
