//! `Q2_K`: 16 bytes of scales (low half) and minimums (high half), 64 bytes of two bits, d, dmin.

use super::{Field, Scales, SuperBlock, TwoRows, double};
use crate::Format;

pub struct Q2K;

impl SuperBlock for Q2K {
    const FORMAT: Format = Format::Q2_K;
    const BYTES: usize = 84;
    const RUN: usize = 16;
    const ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
    const LEFT: [u32; 8] = [0, 2, 0, 2, 0, 2, 0, 2];

    #[inline(always)]
    fn fields(unit: usize) -> [Field; 2] {
        [Field { at: 16 + 32 * (unit / 4), shift: 2 * (unit as u32 % 4), bits: 2, to: 0 }, Field::NONE]
    }

    #[inline(always)]
    unsafe fn scales<S: TwoRows>(s: S, blocks: [*const u8; 2]) -> Scales<S> {
        // SAFETY: promised by the caller.
        let (both, halves) = unsafe { (s.sixteens(blocks), blocks.map(|block| double(block.add(80)))) };
        let [of_runs, minimums] = s.half_sixteens(both);
        Scales { halves, of_runs, minimums: Some(minimums) }
    }
}
