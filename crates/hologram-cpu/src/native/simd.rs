//! Vectors of `f32` behind one trait, so that a kernel is written once and compiled for each instruction set.
//!
//! A kernel's body is an `#[inline(always)]` function over `S: Simd`. [`simd_entry!`] compiles it once per instruction
//! set in a function with that target feature, into which everything is inlined. A value of an instruction set's type
//! is the evidence that the processor has it, which makes the arithmetic safe to call.

use half::f16;

use crate::features::Features;

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

/// The instruction set that a kernel was chosen for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Isa {
    /// No extension.
    Plain,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ, VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// The widest of a processor's instruction sets.
    pub(super) fn widest(features: Features) -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            if features.avx512 {
                return Isa::Avx512;
            }
            if features.avx2 {
                return Isa::Avx2;
            }
        }
        let _ = features;
        Isa::Plain
    }
}

/// Defines `fn name(isa: Isa, args…)`, which runs `body(s, args…)` compiled for that instruction set, where `s` is
/// its [`Simd`].
macro_rules! simd_entry {
    ($(#[$doc:meta])* fn $name:ident$(<$($g:ident: $bound:path),+>)?($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$doc])*
        fn $name$(<$($g: $bound),+>)?(isa: $crate::native::simd::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            fn avx512$(<$($g: $bound),+>)?(s: $crate::native::simd::Avx512, $($arg: $ty),*) $(-> $ret)? {
                $body(s, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2$(<$($g: $bound),+>)?(s: $crate::native::simd::Avx2, $($arg: $ty),*) $(-> $ret)? {
                $body(s, $($arg),*)
            }
            match isa {
                #[cfg(target_arch = "x86_64")]
                $crate::native::simd::Isa::Avx512 => {
                    // SAFETY: `Isa::widest` returns this variant only for `Features` that have it, which the processor
                    // then has.
                    unsafe { avx512($crate::native::simd::Avx512::assume(), $($arg),*) }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::native::simd::Isa::Avx2 => {
                    // SAFETY: `Isa::widest` returns this variant only for `Features` that have it, which the processor
                    // then has.
                    unsafe { avx2($crate::native::simd::Avx2::assume(), $($arg),*) }
                }
                $crate::native::simd::Isa::Plain => $body($crate::native::simd::Plain, $($arg),*),
            }
        }
    };
}
pub(super) use simd_entry;

/// Prefetches a cache line into the second-level cache; any address is allowed.
#[inline(always)]
pub(super) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and every x86-64 processor has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Prefetches a cache line that is needed next into the first-level cache; any address is allowed.
#[inline(always)]
pub(super) fn prefetch_near(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and every x86-64 processor has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Orders stores by [`Simd::stream`] before later stores.
#[inline(always)]
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Arithmetic on vectors of [`Simd::LANES`] `f32` values. Every method is inlined into the kernel.
pub(super) trait Simd: Copy {
    /// A vector.
    type V: Copy;
    /// A vector's values in 16 bits each.
    type H: Copy;
    /// Values in a vector: 4, 8 or 16.
    const LANES: usize;
    /// Whether there are 32 vector registers rather than 16.
    const WIDE_FILE: bool;
    /// The least exponent that [`Simd::scale`] accepts.
    const LEAST: f32;

    /// Broadcasts `x` to all lanes.
    fn splat(self, x: f32) -> Self::V;

    /// # Safety
    /// `p` is valid for reading `LANES` values; no alignment is required.
    unsafe fn load(self, p: *const f32) -> Self::V;

    /// Loads `f16` values.
    ///
    /// # Safety
    /// As [`Simd::load`].
    unsafe fn load_f16(self, p: *const f16) -> Self::V;

    /// Loads `bf16` values.
    ///
    /// # Safety
    /// As [`Simd::load`].
    unsafe fn load_bf16(self, p: *const u16) -> Self::V;

    /// Rounds to `f16`.
    fn to_f16(self, v: Self::V) -> Self::H;

    /// Rounds to `bf16`; a NaN stays NaN.
    fn to_bf16(self, v: Self::V) -> Self::H;

    /// # Safety
    /// As [`Simd::store`].
    unsafe fn store_half(self, p: *mut u16, h: Self::H);

    /// As [`Simd::stream`].
    ///
    /// # Safety
    /// As [`Simd::stream`].
    unsafe fn stream_half(self, p: *mut u16, h: Self::H);

    /// Whether any lane of `a` is greater than that of `b`.
    fn any_greater(self, a: Self::V, b: Self::V) -> bool;

    /// # Safety
    /// `p` is valid for writing `LANES` values; no alignment is required.
    unsafe fn store(self, p: *mut f32, v: Self::V);

    /// Non-temporal store, if the processor has one: the overwritten memory need not be read first. Only [`fence`]
    /// orders such stores with later ones.
    ///
    /// # Safety
    /// As [`Simd::store`], and `p` is a multiple of the vector's size.
    unsafe fn stream(self, p: *mut f32, v: Self::V);

    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b`
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// The greater; `b` if one is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`, rounded once if the processor has such an instruction.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `v` in lanes where `limit >= bound`, elsewhere negative infinity.
    fn keep_where_ge(self, v: Self::V, limit: Self::V, bound: Self::V) -> Self::V;
    /// The nearest whole number, for numbers below 2²² in magnitude.
    fn round(self, x: Self::V) -> Self::V;
    /// `v · 2ⁿ` for whole numbers `n` from [`Simd::LEAST`] to 127; results below the normal numbers may be 0.
    fn scale(self, v: Self::V, n: Self::V) -> Self::V;

    /// 2 to the power `x` for `x` ≤ 0, within 2 ulp. Results below the normal numbers may be 0; negative infinity
    /// gives 0.
    #[inline(always)]
    fn exp2(self, x: Self::V) -> Self::V {
        // `max` returns the second operand if one is NaN.
        let x = self.max(self.splat(Self::LEAST), x);
        let n = self.round(x);
        self.scale(polynomial(self, EXP2, self.sub(x, n)), n)
    }

    /// e to the power `x` for `x` ≤ 0, with the error and the limits of [`Simd::exp2`].
    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        let x = self.max(self.splat(Self::LEAST * std::f32::consts::LN_2), x);
        let n = self.round(self.mul(x, self.splat(std::f32::consts::LOG2_E)));
        self.scale(polynomial(self, EXP, below_power(self, x, n)), n)
    }

    /// The sum of the lanes.
    fn sum(self, v: Self::V) -> f32;
    /// The greatest lane; unspecified if one is NaN.
    fn peak(self, v: Self::V) -> f32;

    /// The sums of the lanes of each of the first `LANES` vectors.
    fn sums(self, v: &[Self::V; 16]) -> Self::V;

    /// Transposes a block of `LANES` × `LANES` values: the `LANES` values at `from[i]` are multiplied with `factors`
    /// and become value `i` at each of `to`. Only the first `LANES` pointers are used.
    ///
    /// # Safety
    /// Each used pointer is valid for reading or writing `LANES` values.
    unsafe fn transpose(self, from: &[*const f32; 16], factors: Self::V, to: &[*mut f32; 16]);
}

/// `x - n · ln 2`, for `n` of up to 14 bits.
#[inline(always)]
fn below_power<S: Simd>(s: S, x: S::V, n: S::V) -> S::V {
    // ln 2 in two parts; multiples of the first are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    s.fma(n, s.splat(-LN_2[1]), s.fma(n, s.splat(-LN_2[0]), x))
}

/// Coefficients of `(2^f - 1) / f` on -½..=½ from the constant up; relative error of `2^f` below 1e-8.
const EXP2: [f32; 6] =
    [std::f32::consts::LN_2, 0.240_226_5, 0.055_503_57, 0.009_618_083, 0.001_339_086_3, 0.000_154_531_63];

/// Coefficients of `(e^r - 1) / r` on -½ ln 2..=½ ln 2 from the constant up; those after the constant are `EXP` of
/// `tools/polynomials/fit.py`. Relative error of `e^r` below 4e-9.
const EXP: [f32; 6] = [1.0, 0.499_999_94, 0.166_665_21, 0.041_668_262, 0.008_368_671, 0.001_382_099_9];

/// `1 + x · c(x)`
#[inline(always)]
fn polynomial<S: Simd>(s: S, c: [f32; 6], x: S::V) -> S::V {
    s.fma(horner(s, c, x), x, s.splat(1.0))
}

/// `c(x)`, coefficients from the constant up.
#[inline(always)]
fn horner<S: Simd, const N: usize>(s: S, c: [f32; N], x: S::V) -> S::V {
    let mut p = s.splat(c[N - 1]);
    for c in c[..N - 1].iter().rev() {
        p = s.fma(p, x, s.splat(*c));
    }
    p
}

/// Plain Rust, four lanes, as SSE2 and NEON have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plain;

/// Applies an expression to each lane.
macro_rules! lanes {
    (|$i:ident| $e:expr) => {
        [{ const $i: usize = 0; $e }, { const $i: usize = 1; $e }, { const $i: usize = 2; $e }, { const $i: usize = 3; $e }]
    };
}

impl Simd for Plain {
    type V = [f32; 4];
    type H = [u16; 4];
    const LANES: usize = 4;
    const WIDE_FILE: bool = cfg!(target_arch = "aarch64");
    const LEAST: f32 = -127.0;

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; 4] {
        [x; 4]
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> [f32; 4] {
        // SAFETY: the caller's promise; the read is unaligned.
        unsafe { p.cast::<[f32; 4]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const f16) -> [f32; 4] {
        // SAFETY: the caller's promise; the read is unaligned.
        unsafe { p.cast::<[f16; 4]>().read_unaligned() }.map(f16::to_f32)
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> [f32; 4] {
        // SAFETY: the caller's promise; the read is unaligned.
        unsafe { p.cast::<[u16; 4]>().read_unaligned() }.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }

    #[inline(always)]
    fn to_f16(self, v: [f32; 4]) -> [u16; 4] {
        v.map(|x| f16::from_f32(x).to_bits())
    }

    #[inline(always)]
    fn to_bf16(self, v: [f32; 4]) -> [u16; 4] {
        v.map(|x| half::bf16::from_f32(x).to_bits())
    }

    #[inline(always)]
    unsafe fn store_half(self, p: *mut u16, h: [u16; 4]) {
        // SAFETY: the caller's promise; the write is unaligned.
        unsafe { p.cast::<[u16; 4]>().write_unaligned(h) };
    }

    #[inline(always)]
    unsafe fn stream_half(self, p: *mut u16, h: [u16; 4]) {
        // SAFETY: the caller's promise.
        unsafe { self.store_half(p, h) };
    }

    #[inline(always)]
    fn any_greater(self, a: [f32; 4], b: [f32; 4]) -> bool {
        a[0] > b[0] || a[1] > b[1] || a[2] > b[2] || a[3] > b[3]
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: [f32; 4]) {
        // SAFETY: the caller's promise; the write is unaligned.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(v) };
    }

    #[inline(always)]
    unsafe fn stream(self, p: *mut f32, v: [f32; 4]) {
        // SAFETY: the caller's promise.
        unsafe { self.store(p, v) };
    }

    #[inline(always)]
    fn add(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        lanes!(|I| a[I] + b[I])
    }

    #[inline(always)]
    fn sub(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        lanes!(|I| a[I] - b[I])
    }

    #[inline(always)]
    fn mul(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        lanes!(|I| a[I] * b[I])
    }

    #[inline(always)]
    fn max(self, a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        lanes!(|I| if a[I] > b[I] { a[I] } else { b[I] })
    }

    #[inline(always)]
    fn fma(self, a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            lanes!(|I| a[I].mul_add(b[I], c[I]))
        } else {
            lanes!(|I| a[I] * b[I] + c[I])
        }
    }

    #[inline(always)]
    fn keep_where_ge(self, v: [f32; 4], limit: [f32; 4], bound: [f32; 4]) -> [f32; 4] {
        lanes!(|I| if limit[I] >= bound[I] { v[I] } else { f32::NEG_INFINITY })
    }

    #[inline(always)]
    fn round(self, x: [f32; 4]) -> [f32; 4] {
        // Adding 1.5·2²³ leaves no room for fractional digits.
        const ROUND: f32 = 12_582_912.0;
        lanes!(|I| (x[I] + ROUND) - ROUND)
    }

    #[inline(always)]
    fn scale(self, v: [f32; 4], n: [f32; 4]) -> [f32; 4] {
        // A biased exponent of 0, from -127, is the number 0. The addition leaves whole numbers in the low bits, as in
        // `round`.
        const BIAS: f32 = 12_582_912.0 + 127.0;
        lanes!(|I| v[I] * f32::from_bits((n[I] + BIAS).to_bits() << 23))
    }

    #[inline(always)]
    fn sum(self, v: [f32; 4]) -> f32 {
        (v[0] + v[1]) + (v[2] + v[3])
    }

    #[inline(always)]
    fn peak(self, v: [f32; 4]) -> f32 {
        v[0].max(v[1]).max(v[2].max(v[3]))
    }

    #[inline(always)]
    fn sums(self, v: &[[f32; 4]; 16]) -> [f32; 4] {
        lanes!(|I| self.sum(v[I]))
    }

    #[inline(always)]
    unsafe fn transpose(self, from: &[*const f32; 16], factors: [f32; 4], to: &[*mut f32; 16]) {
        for (i, from) in from.iter().enumerate().take(4) {
            // SAFETY: the caller's promise.
            let row = self.mul(unsafe { self.load(*from) }, factors);
            for (to, x) in to.iter().zip(row) {
                // SAFETY: the caller's promise.
                unsafe { to.add(i).write(x) };
            }
        }
    }
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;
    use crate::testing::feature_sets;

    simd_entry! {
        fn exp2_all(x: &mut [f32]) = exp2_all_with
    }

    simd_entry! {
        fn exp_all(x: &mut [f32]) = exp_all_with
    }

    #[inline(always)]
    fn exp_all_with<S: Simd>(s: S, x: &mut [f32]) {
        for x in x.chunks_exact_mut(S::LANES) {
            // SAFETY: `x` has LANES elements.
            unsafe { s.store(x.as_mut_ptr(), s.exp(s.load(x.as_ptr()))) };
        }
    }

    #[inline(always)]
    fn exp2_all_with<S: Simd>(s: S, x: &mut [f32]) {
        for x in x.chunks_exact_mut(S::LANES) {
            // SAFETY: `x` has LANES elements.
            unsafe { s.store(x.as_mut_ptr(), s.exp2(s.load(x.as_ptr()))) };
        }
    }

    pub(crate) fn powers_are_within_two_ulp() {
        type Power = (fn(Isa, &mut [f32]), fn(f64) -> f64, f32);
        let powers: [Power; 2] = [(exp2_all, f64::exp2, 126.0), (exp_all, f64::exp, 87.0)];
        for (power, definition, least) in powers {
            let x: Vec<f32> = (0..1 << 16).map(|i| -(i as f32) * least / 65536.0).collect();
            for features in feature_sets() {
                let mut y = x.clone();
                power(Isa::widest(features), &mut y);
                for (x, y) in x.iter().zip(y) {
                    let want = definition(f64::from(*x));
                    let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
                    assert!((f64::from(y) - want).abs() <= 2.0 * ulp, "{features:?}: {x} gives {y}, not {want}");
                }
                let mut edges = [f32::NEG_INFINITY, -1e30, -150.0, 0.0, f32::NAN, f32::MIN, -0.0, -300.0].repeat(2);
                power(Isa::widest(features), &mut edges);
                assert!(edges[4].is_nan(), "{features:?}");
                assert_eq!([&edges[..2], &edges[3..4], &edges[5..8]].concat(), [0.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
                assert!(edges[2] < f32::MIN_POSITIVE, "{features:?}");
            }
        }
    }
}
