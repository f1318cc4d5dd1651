//! `Q4_K`: d, dmin, 8 scales and minimums of six bits, 128 bytes of half bytes.

use super::{Field, Scales, SuperBlock, TwoRows, double};
use crate::Format;

pub struct Q4K;

impl SuperBlock for Q4K {
    const FORMAT: Format = Format::Q4_K;
    const BYTES: usize = 144;
    const RUN: usize = 32;
    const ORDER: [usize; 8] = [0, 2, 1, 3, 4, 6, 5, 7];

    #[inline(always)]
    fn fields(unit: usize) -> [Field; 2] {
        [Field { at: 16 + 32 * (unit / 2), shift: 4 * (unit as u32 % 2), bits: 4, to: 0 }, Field::NONE]
    }

    #[inline(always)]
    unsafe fn scales<S: TwoRows>(s: S, blocks: [*const u8; 2]) -> Scales<S> {
        // SAFETY: promised by the caller.
        let (halves, firsts) = unsafe { (blocks.map(|block| double(block)), s.sixteens(blocks)) };
        Scales { halves, of_runs: s.eight_and_eight(firsts), minimums: None }
    }
}
