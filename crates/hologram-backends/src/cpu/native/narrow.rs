//! `f16` and `bf16` to `f32` and back: rows of narrow floats are computed in `f32`.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use hologram_isa::Type;

use super::simd::{Isa, Simd, simd_entry};
use crate::Format;

/// Whether elements of this format are computed in `f32`: `f32` itself, and the two narrow floats.
pub(super) fn is_in_f32(format: Format) -> bool {
    matches!(format, Format::Plain(Type::F32 | Type::F16 | Type::BF16))
}

/// Widens elements of a narrow format; `x` and `to` are of one length.
pub(super) fn widen(isa: Isa, format: Format, x: &[u16], to: &mut [f32]) {
    if format == Format::BF16 { widen_bf16(isa, x, to) } else { widen_f16(isa, x, to) }
}

/// Rounds to the nearest of a narrow format, ties to even; `x` and `to` are of one length.
pub(super) fn narrow(isa: Isa, format: Format, x: &[f32], to: &mut [u16]) {
    if format == Format::BF16 {
        narrow_bf16(isa, x, to)
    } else {
        to.reinterpret_cast_mut::<half::f16>().convert_from_f32_slice(x)
    }
}

simd_entry! {
    fn widen_bf16(x: &[u16], to: &mut [f32]) = widen_bf16_with
}

#[inline(always)]
fn widen_bf16_with<S: Simd>(_: S, x: &[u16], to: &mut [f32]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to = f32::from_bits(u32::from(*x) << 16));
}

simd_entry! {
    fn widen_f16(x: &[u16], to: &mut [f32]) = widen_f16_with
}

#[inline(always)]
fn widen_f16_with<S: Simd>(s: S, x: &[u16], to: &mut [f32]) {
    let (mut to, mut x) = (to.chunks_exact_mut(S::LANES), x.chunks_exact(S::LANES));
    for (to, x) in to.by_ref().zip(x.by_ref()) {
        // SAFETY: both have LANES elements.
        unsafe { s.store(to.as_mut_ptr(), s.load_f16(x.as_ptr().cast())) };
    }
    let rest = to.into_remainder().iter_mut().zip(x.remainder());
    rest.for_each(|(to, x)| *to = half::f16::from_bits(*x).to_f32());
}

simd_entry! {
    fn narrow_bf16(x: &[f32], to: &mut [u16]) = narrow_bf16_with
}

#[inline(always)]
fn narrow_bf16_with<S: Simd>(_: S, x: &[f32], to: &mut [u16]) {
    for (to, x) in to.iter_mut().zip(x) {
        let bits = x.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
        // A NaN stays one.
        *to = if x.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded };
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::cpu::testing::feature_sets;

    #[test]
    fn agrees_with_single_conversions() {
        let special =
            [0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 65504.0, 65520.0, 1e-8, -1e-40, 3.4e38];
        let ties = (0..100u32).map(|i| f32::from_bits(0x3f80_0000 + i * 0x0800));
        let x: Vec<f32> = special.into_iter().chain(ties).collect();
        for (isa, format) in feature_sets().into_iter().flat_map(|f| [(f, Format::F16), (f, Format::BF16)]) {
            let (isa, mut bits, mut back) = (Isa::widest(isa), vec![0u16; x.len()], vec![0f32; x.len()]);
            narrow(isa, format, &x, &mut bits);
            widen(isa, format, &bits, &mut back);
            for ((x, bits), back) in x.iter().zip(bits).zip(back) {
                let one = if format == Format::BF16 {
                    bf16::from_f32(*x).to_bits()
                } else {
                    half::f16::from_f32(*x).to_bits()
                };
                let wide = if format == Format::BF16 {
                    bf16::from_bits(one).to_f32()
                } else {
                    half::f16::from_bits(one).to_f32()
                };
                assert!(
                    x.is_nan() && back.is_nan() || (bits, back) == (one, wide),
                    "{isa:?} {format:?}: {x} {bits} {one}"
                );
            }
        }
    }
}
