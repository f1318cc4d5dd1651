//! The same loop compiled for each level of vector instructions.

use crate::features::Features;

/// A level of vector instructions that loops are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Level {
    /// The instructions that every processor of the architecture has (on ARM64 that includes NEON).
    Plain,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The best level that a processor with these features can run.
    pub(super) fn of(features: Features) -> Level {
        #[cfg(target_arch = "x86_64")]
        {
            if features.avx512 {
                return Level::Avx512;
            }
            if features.avx2 {
                return Level::Avx2;
            }
        }
        let _ = features;
        Level::Plain
    }
}

/// Defines `fn $pick::<…>(level) -> unsafe fn(…) -> …`. For each level it has an instance of the
/// `#[inline(always)]` function `$body`, which the compiler vectorises with that level's instructions. Calling an
/// instance is sound on a processor that has them.
macro_rules! leveled {
    (fn $pick:ident[$($generic:tt)*][$($argument:tt)*] = $body:ident($($name:ident: $ty:ty),*) $(-> $ret:ty)?) => {
        fn $pick<$($generic)*>(level: Level) -> unsafe fn($($ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2<$($generic)*>($($name: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's promises are those of the body.
                unsafe { $body::<$($argument)*>($($name),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            unsafe fn avx512<$($generic)*>($($name: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's promises are those of the body.
                unsafe { $body::<$($argument)*>($($name),*) }
            }
            unsafe fn plain<$($generic)*>($($name: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's promises are those of the body.
                unsafe { $body::<$($argument)*>($($name),*) }
            }
            match level {
                Level::Plain => plain::<$($argument)*>,
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => avx2::<$($argument)*>,
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => avx512::<$($argument)*>,
            }
        }
    };
}
pub(super) use leveled;
