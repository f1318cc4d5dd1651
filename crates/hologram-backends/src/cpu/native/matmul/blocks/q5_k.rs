//! `Q5_K`: as `Q4_K` with a fifth bit of each code.

use super::{Field, Scales, SuperBlock, TwoRows, double};
use crate::Format;

pub struct Q5K;

impl SuperBlock for Q5K {
    const FORMAT: Format = Format::Q5_K;
    const BYTES: usize = 176;
    const RUN: usize = 32;
    const ORDER: [usize; 8] = [0, 2, 1, 3, 4, 6, 5, 7];

    #[inline(always)]
    fn fields(unit: usize) -> [Field; 2] {
        [
            Field { at: 48 + 32 * (unit / 2), shift: 4 * (unit as u32 % 2), bits: 4, to: 0 },
            Field { at: 16, shift: unit as u32, bits: 1, to: 4 },
        ]
    }

    #[inline(always)]
    unsafe fn scales<S: TwoRows>(s: S, blocks: [*const u8; 2]) -> Scales<S> {
        // SAFETY: promised by the caller.
        let (halves, firsts) = unsafe { (blocks.map(|block| double(block)), s.sixteens(blocks)) };
        Scales { halves, of_runs: s.eight_and_eight(firsts), minimums: None }
    }
}
