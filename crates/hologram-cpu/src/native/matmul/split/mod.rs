//! Grids and `NVFP4`: blocks taken apart into vectors of codes and the scales of their runs.

#![allow(non_camel_case_types, reason = "GGUF's names")]
#![allow(clippy::needless_range_loop, reason = "registers are indexed by vector in several arrays at once")]

use hologram_device::{DType, GridType};

pub mod avx2;
pub mod avx512;

/// A format whose blocks are taken apart.
pub trait Format {
    /// The format.
    const FORMAT: DType;
    /// Bytes of a block.
    const BYTES: usize = Self::FORMAT.block_bytes();
    /// Elements of a block.
    const LEN: usize = Self::FORMAT.block_len();
    /// Elements that share a scale: 16 or 32.
    const RUN: usize = Self::FORMAT.scale_len();
    /// What a grid's scales are multiplied by, a power of two: [`GridType::divisor`].
    const PER: f32 = match Self::FORMAT {
        DType::Grid(ty) => 1.0 / ty.divisor() as f32,
        _ => 1.0,
    };
}

macro_rules! grids {
    ($($name:ident)*) => {
        $(
            pub struct $name;

            impl Format for $name {
                const FORMAT: DType = DType::Grid(GridType::$name);
            }
        )*

        /// Calls the function for the type of a format that is taken apart here; `None` for another format.
        macro_rules! for_split {
            ($format:expr, $function:ident) => {
                match $format {
                    $(DType::Grid(GridType::$name) => Some($function::<crate::native::matmul::split::$name>()),)*
                    DType::NVFP4 => Some($function::<crate::native::matmul::split::NVFP4>()),
                    _ => None,
                }
            };
        }
        pub(super) use for_split;
    };
}

grids!(IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S);

pub struct NVFP4;

impl Format for NVFP4 {
    const FORMAT: DType = DType::NVFP4;
}

/// The bits of a number of 16, 32 or 64 bits.
///
/// # Safety
/// It can be read.
#[inline(always)]
unsafe fn number<T>(from: *const u8) -> T {
    // SAFETY: promised by the caller, and any bits are a number.
    unsafe { from.cast::<T>().read_unaligned() }
}
