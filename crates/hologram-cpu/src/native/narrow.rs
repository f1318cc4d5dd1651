//! Conversions of `f16` and `bf16` to `f32` and back: rows of narrow floats are computed in `f32`.

use half::{bf16, f16};
use hologram_device::DType;
use hologram_isa::Type;

use super::simd::{Isa, Simd, simd_entry};
use crate::kernel::Pod;

/// Whether elements of this format are computed in `f32`: `f32` itself, and the two narrow floats.
pub(super) fn is_in_f32(format: DType) -> bool {
    matches!(format, DType::Plain(Type::F32 | Type::F16 | Type::BF16))
}

/// A type of elements that are computed in `f32`.
pub(super) trait Element: Pod {
    /// # Safety
    /// `p` is valid for reading `LANES` elements.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V;

    /// Stores a vector, with non-temporal stores when `non_temporal`.
    ///
    /// # Safety
    /// `p` is valid for writing `LANES` elements, and for `non_temporal` a multiple of their size.
    unsafe fn store<S: Simd>(s: S, p: *mut Self, v: S::V, non_temporal: bool);

    /// The element in `f32`.
    fn wide(self) -> f32;

    /// The nearest element, ties to even.
    fn nearest(x: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const f32) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load(p) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, p: *mut f32, v: S::V, non_temporal: bool) {
        // SAFETY: the caller's promise.
        unsafe { if non_temporal { s.stream(p, v) } else { s.store(p, v) } }
    }

    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn nearest(x: f32) -> f32 {
        x
    }
}

macro_rules! narrow_element {
    ($ty:ty, $load:ident, $round:ident, $from:ty) => {
        impl Element for $ty {
            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, p: *const $ty) -> S::V {
                // SAFETY: the caller's promise.
                unsafe { s.$load(p.cast::<$from>()) }
            }

            #[inline(always)]
            unsafe fn store<S: Simd>(s: S, p: *mut $ty, v: S::V, non_temporal: bool) {
                let (p, h) = (p.cast::<u16>(), s.$round(v));
                // SAFETY: the caller's promise.
                unsafe { if non_temporal { s.stream_half(p, h) } else { s.store_half(p, h) } }
            }

            #[inline(always)]
            fn wide(self) -> f32 {
                self.to_f32()
            }

            #[inline(always)]
            fn nearest(x: f32) -> $ty {
                <$ty>::from_f32(x)
            }
        }
    };
}

narrow_element!(f16, load_f16, to_f16, f16);
narrow_element!(bf16, load_bf16, to_bf16, u16);

/// Runs an expression with `$E` as the type of a format's elements; the format [`is_in_f32`].
macro_rules! with_element {
    ($format:expr, $E:ident => $run:expr) => {
        match $format {
            hologram_device::DType::F16 => {
                type $E = half::f16;
                $run
            }
            hologram_device::DType::BF16 => {
                type $E = half::bf16;
                $run
            }
            _ => {
                type $E = f32;
                $run
            }
        }
    };
}
pub(super) use with_element;

/// Widens elements of a narrow format; `x` and `to` have the same length.
pub(super) fn widen(isa: Isa, format: DType, x: &[u16], to: &mut [f32]) {
    let words = x.as_ptr();
    // SAFETY: narrow floats are transparent wrappers of u16.
    unsafe {
        if format == DType::BF16 {
            convert(isa, std::slice::from_raw_parts(words.cast::<bf16>(), x.len()), to, false);
        } else {
            convert(isa, std::slice::from_raw_parts(words.cast::<f16>(), x.len()), to, false);
        }
    }
}

/// Rounds to the nearest of a narrow format, ties to even; `x` and `to` have the same length.
pub(super) fn narrow(isa: Isa, format: DType, x: &[f32], to: &mut [u16]) {
    let (words, len) = (to.as_mut_ptr(), to.len());
    // SAFETY: narrow floats are transparent wrappers of u16.
    unsafe {
        if format == DType::BF16 {
            convert(isa, x, std::slice::from_raw_parts_mut(words.cast::<bf16>(), len), false);
        } else {
            convert(isa, x, std::slice::from_raw_parts_mut(words.cast::<f16>(), len), false);
        }
    }
}

/// Converts elements through `f32`. Uses non-temporal stores when `non_temporal`, which requires `to` at a multiple of
/// 64 bytes.
pub(super) fn convert<A: Element, B: Element>(isa: Isa, x: &[A], to: &mut [B], non_temporal: bool) {
    convert_all(isa, x, to, non_temporal);
}

simd_entry! {
    fn convert_all<A: Element, B: Element>(x: &[A], to: &mut [B], non_temporal: bool) = convert_with
}

#[inline(always)]
fn convert_with<S: Simd, A: Element, B: Element>(s: S, x: &[A], to: &mut [B], non_temporal: bool) {
    let (mut to, mut x) = (to.chunks_exact_mut(S::LANES), x.chunks_exact(S::LANES));
    for (to, x) in to.by_ref().zip(x.by_ref()) {
        // SAFETY: both have LANES elements.
        unsafe { B::store(s, to.as_mut_ptr(), A::load(s, x.as_ptr()), non_temporal) };
    }
    to.into_remainder().iter_mut().zip(x.remainder()).for_each(|(to, x)| *to = B::nearest(x.wide()));
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;
    use crate::testing::feature_sets;

    pub(crate) fn agrees_with_single_conversions() {
        let special =
            [0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 65504.0, 65520.0, 1e-8, -1e-40, 3.4e38];
        let ties = (0..100u32).map(|i| f32::from_bits(0x3f80_0000 + i * 0x0800));
        let x: Vec<f32> = special.into_iter().chain(ties).collect();
        for (isa, format) in feature_sets().into_iter().flat_map(|f| [(f, DType::F16), (f, DType::BF16)]) {
            let (isa, mut bits, mut back) = (Isa::widest(isa), vec![0u16; x.len()], vec![0f32; x.len()]);
            narrow(isa, format, &x, &mut bits);
            widen(isa, format, &bits, &mut back);
            for ((x, bits), back) in x.iter().zip(bits).zip(back) {
                let one = if format == DType::BF16 {
                    bf16::from_f32(*x).to_bits()
                } else {
                    half::f16::from_f32(*x).to_bits()
                };
                let wide = if format == DType::BF16 {
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
