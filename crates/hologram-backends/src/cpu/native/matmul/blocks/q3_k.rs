//! `Q3_K`: 32 bytes of third bits, 64 of two bits, 16 scales of six bits, d; codes are 4 too great, scales 32.

use super::{Field, Scales, SuperBlock, TwoRows, double, quad, twice, word};
use crate::Format;

pub struct Q3K;

impl SuperBlock for Q3K {
    const FORMAT: Format = Format::Q3_K;
    const BYTES: usize = 110;
    const RUN: usize = 16;
    const OFFSET: Option<u8> = Some(4);
    const ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
    const LEFT: [u32; 8] = [0, 1, 2, 3, 0, 1, 2, 3];

    #[inline(always)]
    fn fields(unit: usize) -> [Field; 2] {
        [
            Field { at: 32 + 32 * (unit / 4), shift: 2 * (unit as u32 % 4), bits: 2, to: 0 },
            Field { at: 0, shift: unit as u32, bits: 1, to: 2 },
        ]
    }

    #[inline(always)]
    unsafe fn scales<S: TwoRows>(s: S, blocks: [*const u8; 2]) -> Scales<S> {
        // SAFETY: promised by the caller.
        unsafe {
            let low = blocks.map(|block| quad(block.add(96)));
            let high = blocks.map(|block| double(block.add(104)));
            let halves = blocks.map(|block| twice(word(block.add(108))));
            Scales { halves, of_runs: s.signed_sixes(low, high), minimums: None }
        }
    }
}
