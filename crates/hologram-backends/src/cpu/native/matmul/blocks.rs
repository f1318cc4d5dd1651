//! The block formats as the kernels of few tokens read them: a file for each, a line in `formats!`, and everything else is shared.
//!
//! [`SuperBlock`] formats have blocks of 256 with integer scales of runs of 16 or 32, so that a block's products are summed in
//! integers; [`Block32`] formats have an `f32` scale for each unit of 32, as have those of [`HalfBytes`], whose blocks are all alike.

mod iq4_nl;
mod iq4_xs;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

use super::bytes::{Bytes, Field, TwoRows};
use crate::Format;

/// A block of 256 elements, each of value d·s·(code − [`OFFSET`](SuperBlock::OFFSET)), or d·s·code − m·n; s and n are integers of its run.
pub trait SuperBlock {
    const FORMAT: Format;
    /// Bytes of a block.
    const BYTES: usize;
    /// Elements of a run: 16 or 32.
    const RUN: usize;
    /// What was added to signed codes to make them unsigned; `None` where a block has minimums.
    const OFFSET: Option<u8> = None;
    /// The order in which units are worked on: those of a vector of two best lie side by side, with their bits at the same place.
    const ORDER: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    /// How many bits to the left codes of each unit may stay when they are multiplied (up to 63 all the same), which spares moving them.
    const LEFT: [u32; 8] = [0; 8];

    /// The two fields that make up the codes of a unit of 32; the second may be [`Field::NONE`].
    fn fields(unit: usize) -> [Field; 2];

    /// The factors of a block of each of two rows.
    ///
    /// # Safety
    /// The blocks can be read.
    unsafe fn scales<S: TwoRows>(s: S, blocks: [*const u8; 2]) -> Scales<S>;
}

/// The factors of two blocks of 256.
#[derive(Clone, Copy)]
pub struct Scales<S: TwoRows> {
    /// The bits of d, and above them those of m.
    pub halves: [u32; 2],
    /// s of each run, signed bytes: 16 of them, or 8 and then n of each run.
    pub of_runs: S::Sixteens,
    /// n of each of 16 runs, where there are so many with minimums.
    pub minimums: Option<S::Sixteens>,
}

/// Units of 32 elements with an `f32` scale each.
pub trait Block32 {
    const FORMAT: Format;
    /// Bytes of a unit; of a block of several the bytes of a block.
    const BYTES: usize;
    /// Units of a block.
    const UNITS: usize = 1;
    /// What was added to signed codes to make them unsigned; with 0 there is a minimum, which is added.
    const OFFSET: i32;
    /// Whether codes exceed six bits.
    const WIDE: bool = false;
    /// Whether a code takes a byte. Where it takes less, [`Block32::halves`] are had more easily than [`Block32::codes`].
    const WHOLE_BYTES: bool = Self::BYTES > 32 * Self::UNITS;

    /// The codes of one unit or, for vectors of two, of two.
    ///
    /// # Safety
    /// The units exist in the row.
    unsafe fn codes<S: Bytes>(s: S, row: *const u8, units: [usize; 2]) -> S::V;

    /// The codes of twice as many units, split as by [`Bytes::split_units`].
    ///
    /// # Safety
    /// The units exist in the row.
    #[inline(always)]
    unsafe fn halves<S: Bytes>(s: S, row: *const u8, unit: usize) -> [S::V; 2] {
        let next = unit + S::UNITS;
        // SAFETY: promised by the caller.
        unsafe {
            let first = Self::codes(s, row, [unit, next - 1]);
            s.split_units([first, Self::codes(s, row, [next, next + S::UNITS - 1])])
        }
    }

    /// Scales and, where `OFFSET` is 0, minimums of `count` (up to `LANES`) units from `first` on; 0 for the others. Without minimums
    /// the scales take their place.
    ///
    /// # Safety
    /// The units exist in the row.
    #[inline(always)]
    unsafe fn scales<S: Bytes>(s: S, row: *const u8, first: usize, count: usize) -> (S::F, S::F) {
        // SAFETY: promised by the caller; a block is longer than 4 bytes.
        unsafe {
            let first = row.add(first * Self::BYTES);
            if Self::OFFSET == 0 {
                return s.pairs(first, Self::BYTES, count);
            }
            let scales = s.halves(first, 0, Self::BYTES, count);
            (scales, scales)
        }
    }
}

/// Formats of one unit a block, whose last 16 bytes are half bytes.
pub trait HalfBytes {
    const FORMAT: Format;
    /// Bytes of a block.
    const BYTES: usize;
    /// As [`Block32::OFFSET`].
    const OFFSET: i32;
    /// Whether the codes' fifth bits are the four bytes before.
    const FIFTH_BITS: bool = false;
    /// What half bytes stand for, where it is not the codes themselves.
    const VALUES: Option<&'static [u8; 16]> = None;
}

impl<B: HalfBytes> Block32 for B {
    const FORMAT: Format = B::FORMAT;
    const BYTES: usize = B::BYTES;
    const OFFSET: i32 = B::OFFSET;
    const WIDE: bool = B::VALUES.is_some();

    #[inline(always)]
    unsafe fn codes<S: Bytes>(s: S, row: *const u8, units: [usize; 2]) -> S::V {
        // SAFETY: promised by the caller.
        unsafe {
            let half_bytes = units.map(|unit| row.add((unit + 1) * B::BYTES - 16));
            let mut codes = s.nibbles(half_bytes);
            if B::FIFTH_BITS {
                codes = s.add_sixteens(codes, half_bytes.map(|at| double(at.sub(4))));
            }
            match B::VALUES {
                Some(values) => s.look_up(values, codes),
                None => codes,
            }
        }
    }

    #[inline(always)]
    unsafe fn halves<S: Bytes>(s: S, row: *const u8, unit: usize) -> [S::V; 2] {
        // SAFETY: promised by the caller; vectors of two units hold the halves of four.
        unsafe {
            let half_bytes = row.add((unit + 1) * B::BYTES - 16);
            let [mut low, mut high] = s.half_bytes(half_bytes, B::BYTES);
            if B::FIFTH_BITS {
                let word = |unit: usize, at: usize| u32::from(word(half_bytes.add(unit * B::BYTES + at).sub(4)));
                let pair = |unit: usize, at: usize| word(unit, at) | word(unit + 1, at) << 16;
                let bits = |at: usize| [pair(0, at), if S::UNITS == 2 { pair(2, at) } else { 0 }];
                (low, high) = (s.add_sixteens(low, bits(0)), s.add_sixteens(high, bits(2)));
            }
            match B::VALUES {
                Some(values) => [s.look_up(values, low), s.look_up(values, high)],
                None => [low, high],
            }
        }
    }
}

/// The bits of a `u16`.
///
/// # Safety
/// Two bytes can be read.
#[inline(always)]
unsafe fn word(from: *const u8) -> u16 {
    // SAFETY: promised by the caller.
    u16::from_le(unsafe { from.cast::<u16>().read_unaligned() })
}

/// The bits of one half as those of both.
#[inline(always)]
fn twice(half: u16) -> u32 {
    u32::from(half) * 0x1_0001
}

/// The bits of a `u32`.
///
/// # Safety
/// Four bytes can be read.
#[inline(always)]
unsafe fn double(from: *const u8) -> u32 {
    // SAFETY: promised by the caller.
    u32::from_le(unsafe { from.cast::<u32>().read_unaligned() })
}

/// The bits of a `u64`.
///
/// # Safety
/// Eight bytes can be read.
#[inline(always)]
unsafe fn quad(from: *const u8) -> u64 {
    // SAFETY: promised by the caller.
    u64::from_le(unsafe { from.cast::<u64>().read_unaligned() })
}

macro_rules! formats {
    (256: $($super:ident::$super_ty:ident),*; 32: $($block:ident::$block_ty:ident),*; half bytes: $($half:ident::$half_ty:ident),*) => {
        /// Calls the function for the format's type; `None` for a format without one.
        macro_rules! for_format {
            ($format:expr, super $on_super:ident, block $on_block:ident, half_bytes $on_half:ident) => {
                match $format {
                    $(f if f == <$crate::cpu::native::matmul::blocks::$super_ty as $crate::cpu::native::matmul::blocks::SuperBlock>::FORMAT =>
                        Some($on_super::<$crate::cpu::native::matmul::blocks::$super_ty>()),)*
                    $(f if f == <$crate::cpu::native::matmul::blocks::$block_ty as $crate::cpu::native::matmul::blocks::Block32>::FORMAT =>
                        Some($on_block::<$crate::cpu::native::matmul::blocks::$block_ty>()),)*
                    $(f if f == <$crate::cpu::native::matmul::blocks::$half_ty as $crate::cpu::native::matmul::blocks::HalfBytes>::FORMAT =>
                        Some($on_half::<$crate::cpu::native::matmul::blocks::$half_ty>()),)*
                    _ => None,
                }
            };
        }
        pub(super) use for_format;
        $(pub use $super::$super_ty;)*
        $(pub use $block::$block_ty;)*
        $(pub use $half::$half_ty;)*
    };
}

formats! {
    256: q2_k::Q2K, q3_k::Q3K, q4_k::Q4K, q5_k::Q5K, q6_k::Q6K;
    32: q8_0::Q8, iq4_xs::Iq4Xs;
    half bytes: q4_0::Q4, q4_1::Q4Min, q5_0::Q5, q5_1::Q5Min, iq4_nl::Iq4Nl
}
