//! `Q5_K`: as `Q4_K` with a fifth bit of each code.

use super::{Bytes, Field, Scales, SuperBlock, six_bits, word};
use crate::Format;

pub struct Q5K;

impl SuperBlock for Q5K {
    const FORMAT: Format = Format::Q5_K;
    const BYTES: usize = 176;
    const RUN: usize = 32;

    #[inline(always)]
    fn fields(unit: usize) -> [Field; 2] {
        [
            Field { at: 48 + 32 * (unit / 2), shift: 4 * (unit as u32 % 2), bits: 4, to: 0 },
            Field { at: 16, shift: unit as u32, bits: 1, to: 4 },
        ]
    }

    #[inline(always)]
    unsafe fn scales<S: Bytes>(s: S, block: *const u8) -> Scales {
        // SAFETY: promised by the caller.
        let (d, m, of_runs) = unsafe { (word(block), word(block.add(2)), six_bits(block.add(4))) };
        Scales { d: s.half(d), m: s.half(m), of_runs, minimums: None }
    }
}
