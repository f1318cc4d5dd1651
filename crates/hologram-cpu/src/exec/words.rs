//! Branch-free arithmetic that neither Rust nor the processor has in a form that vectorises.

/// The `f32` in a word.
#[inline(always)]
pub(super) fn float(word: u32) -> f32 {
    f32::from_bits(word)
}

/// Quotient, 0 for a division by zero. The quotient of two 32-bit numbers in `f64` has a relative error below 2^-53. No
/// quotient that is not whole lies so close below a whole number, so the whole part is right.
#[inline(always)]
pub(super) fn div_u(a: u32, b: u32) -> u32 {
    let divisor = if b == 0 { 1 } else { b };
    // SAFETY: the quotient is at most `a`, and finite.
    let q = unsafe { (a as f64 / divisor as f64).to_int_unchecked::<u32>() };
    if b == 0 { 0 } else { q }
}

/// Quotient toward zero, 0 for a division by zero; the least number divided by -1 is itself.
#[inline(always)]
pub(super) fn div_i(a: u32, b: u32) -> u32 {
    let divisor = if b == 0 || b == u32::MAX { 1 } else { b };
    // SAFETY: the quotient is at most `a` in magnitude, and finite.
    let q = unsafe { (a as i32 as f64 / divisor as i32 as f64).to_int_unchecked::<i32>() } as u32;
    let q = if b == u32::MAX { a.wrapping_neg() } else { q };
    if b == 0 { 0 } else { q }
}

/// Operations on integers of all widths.
pub(super) trait Integer: Copy {
    /// Quotient toward zero, 0 for a division by zero; the least number divided by -1 is itself.
    fn quotient(self, b: Self) -> Self;
    /// The high half of the product.
    fn high_product(self, b: Self) -> Self;
    /// The absolute value; that of the least number is itself.
    fn magnitude(self) -> Self;
    /// Shifted left; 0 for a count of the width or more.
    fn shift_left(self, n: u32) -> Self;
    /// Shifted right; only fill bits for a count of the width or more.
    fn shift_right(self, n: u32) -> Self;
    /// The byte of this number among the lowest four, extended by the type's sign.
    fn byte(self, i: u32) -> Self;
}

macro_rules! integers {
    ($($ty:ident $twice:ident, |$a:ident, $b:ident| $quotient:expr, $magnitude:expr, |$n:ident| $shifted:expr;)*) => {$(
        impl Integer for $ty {
            #[inline(always)]
            fn quotient(self, $b: $ty) -> $ty {
                let $a = self;
                $quotient
            }
            #[inline(always)]
            fn high_product(self, b: $ty) -> $ty {
                ((self as $twice * b as $twice) >> $ty::BITS) as $ty
            }
            #[inline(always)]
            fn magnitude(self) -> $ty {
                let $a = self;
                $magnitude
            }
            #[inline(always)]
            fn shift_left(self, n: u32) -> $ty {
                if n < $ty::BITS { self << (n & ($ty::BITS - 1)) } else { 0 }
            }
            #[inline(always)]
            fn shift_right(self, $n: u32) -> $ty {
                let $a = self;
                $shifted
            }
            #[inline(always)]
            fn byte(self, i: u32) -> $ty {
                self << ($ty::BITS - 8 * (i + 1)) >> ($ty::BITS - 8)
            }
        }
    )*};
}
integers! {
    i32 i64, |a, b| div_i(a as u32, b as u32) as i32, a.wrapping_abs(), |n| a >> n.min(31);
    u32 u64, |a, b| div_u(a, b), a, |n| if n < 32 { a >> (n & 31) } else { 0 };
    i64 i128, |a, b| if b == 0 { 0 } else { a.wrapping_div(b) }, a.wrapping_abs(), |n| a >> n.min(63);
    u64 u128, |a, b| a.checked_div(b).unwrap_or(0), a, |n| if n < 64 { a >> (n & 63) } else { 0 };
}

/// Operations on floats that Rust leaves open.
pub(super) trait Float: Copy {
    /// The lesser: a NaN loses, and -0 is less than 0.
    fn least(self, b: Self) -> Self;
    /// The greater: a NaN loses, and 0 is greater than -0.
    fn greatest(self, b: Self) -> Self;
}

macro_rules! floats {
    ($($ty:ident)*) => {$(
        impl Float for $ty {
            #[inline(always)]
            fn least(self, b: $ty) -> $ty {
                let lesser = if self < b || b.is_nan() { self } else { b };
                let equal = $ty::from_bits(self.to_bits() | b.to_bits());
                if self == b { equal } else { lesser }
            }
            #[inline(always)]
            fn greatest(self, b: $ty) -> $ty {
                let greater = if self > b || b.is_nan() { self } else { b };
                let equal = $ty::from_bits(self.to_bits() & b.to_bits());
                if self == b { equal } else { greater }
            }
        }
    )*};
}
floats! { f32 f64 }

/// The value of an `f16`'s bits.
#[inline(always)]
pub(super) fn from_f16(half: u32) -> f32 {
    let magnitude = (half & 0x7fff) << 13;
    let exponent = magnitude & 0x0f80_0000;
    let normal = magnitude + (112 << 23);
    // The digits of a subnormal with the exponent of the least normal: subtracting that number normalises them.
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
    // Adding 0.5 moves the last digit that counts to the last bit of the float, so the addition rounds there.
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
pub(crate) fn to_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if bits & 0x7fff_ffff > 0x7f80_0000 { bits >> 16 | 0x40 } else { rounded }
}

/// An integer as a float whose last bit is set if the integer has further bits. Rounding that float to `bf16` then
/// equals rounding the integer once.
#[inline(always)]
pub(super) fn u32_jammed(v: u32) -> f32 {
    let jammed = (v >> 8 | (v & 0xff != 0) as u32) as i32 as f32 * 256.0;
    if v < 1 << 24 { v as i32 as f32 } else { jammed }
}

/// As [`u32_jammed`], for signed integers.
#[inline(always)]
pub(super) fn i32_jammed(v: u32) -> f32 {
    let magnitude = u32_jammed((v as i32).unsigned_abs());
    if (v as i32) < 0 { -magnitude } else { magnitude }
}

/// As [`u32_jammed`], for 64 bits. Of a long integer at least 17 bits are kept; one more bit stands for the rest.
#[inline(always)]
pub(super) fn u64_jammed(v: u64) -> f32 {
    let long = ((v >> 32) as u32 | (v as u32 != 0) as u32, 4294967296.0);
    let middle = ((v >> 16) as u32 | (v & 0xffff != 0) as u32, 65536.0);
    let (top, scale) = if v >> 32 == 0 { (v as u32, 1.0) } else { middle };
    let (top, scale) = if v >> 48 == 0 { (top, scale) } else { long };
    u32_jammed(top) * scale
}

/// As [`u32_jammed`], for signed integers of 64 bits.
#[inline(always)]
pub(super) fn i64_jammed(v: i64) -> f32 {
    let magnitude = u64_jammed(v.unsigned_abs());
    if v < 0 { -magnitude } else { magnitude }
}

/// A number rounded toward zero, with the last bit set if that lost anything. Rounding the result to a shorter float
/// then equals rounding the number once.
#[inline(always)]
pub(super) fn f64_jammed(v: f64) -> f32 {
    let near = v as f32;
    let back = near as f64;
    let toward_zero = near.to_bits().wrapping_sub((back.abs() > v.abs()) as u32);
    float(toward_zero | (back != v) as u32)
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;

    /// Numbers around all special values of their type, and many between.
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

    pub(crate) fn integer_division() {
        let numbers = numbers();
        for &a in &numbers {
            for &b in &numbers {
                let (x, y) = (a as i32, b as i32);
                assert_eq!(div_u(a, b), a.checked_div(b).unwrap_or(0), "{a} / {b}");
                assert_eq!(div_i(a, b) as i32, if y == 0 { 0 } else { x.wrapping_div(y) }, "{x} / {y}");
            }
        }
    }

    pub(crate) fn narrow_floats() {
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

    pub(crate) fn integers_round_once_to_bf16() {
        for v in numbers() {
            // An f64 holds every integer of 32 bits, and `half` rounds it once.
            assert_eq!(to_bf16(u32_jammed(v)), half::bf16::from_f64(v as f64).to_bits() as u32, "{v}");
            assert_eq!(to_bf16(i32_jammed(v)), half::bf16::from_f64(v as i32 as f64).to_bits() as u32, "{}", v as i32);
        }
        for v in numbers().into_iter().flat_map(|v| (0..33).map(move |k| (v as u64) << k | (k as u64 & 1))) {
            let expected = hologram_isa::meaning::convert(hologram_isa::Type::BF16, hologram_isa::Type::U64, v);
            assert_eq!(to_bf16(u64_jammed(v)) as u64, expected, "{v}");
        }
    }
}
