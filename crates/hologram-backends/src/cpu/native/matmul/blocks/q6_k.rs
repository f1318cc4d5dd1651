//! `Q6_K`: 128 bytes of low half bytes, 64 of high bits, 16 signed scales, d; codes are 32 too great.

use super::{Field, Scales, SuperBlock, TwoRows, twice, word};
use crate::Format;

pub struct Q6K;

impl SuperBlock for Q6K {
    const FORMAT: Format = Format::Q6_K;
    const BYTES: usize = 210;
    const RUN: usize = 16;
    const OFFSET: Option<u8> = Some(32);

    #[inline(always)]
    fn fields(unit: usize) -> [Field; 2] {
        let (half, l) = (unit / 4, unit % 4);
        [
            Field { at: 64 * half + 32 * (l % 2), shift: 4 * (l as u32 / 2), bits: 4, to: 0 },
            Field { at: 128 + 32 * half, shift: 2 * l as u32, bits: 2, to: 4 },
        ]
    }

    #[inline(always)]
    unsafe fn scales<S: TwoRows>(s: S, blocks: [*const u8; 2]) -> Scales<S> {
        // SAFETY: promised by the caller.
        unsafe {
            let halves = blocks.map(|block| twice(word(block.add(208))));
            Scales { halves, of_runs: s.sixteens(blocks.map(|block| block.add(192))), minimums: None }
        }
    }
}
