//! `Q2_K`: 16 bytes of scales (low half) and minimums (high half), 64 bytes of two bits, d, dmin.

use super::{Bytes, Field, Scales, SuperBlock, double, quad};
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
    unsafe fn scales<S: Bytes>(_: S, block: *const u8) -> Scales {
        const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        // SAFETY: promised by the caller.
        let (both, halves) = unsafe { ([quad(block), quad(block.add(8))], double(block.add(80))) };
        let minimums = Some(both.map(|bits| bits >> 4 & LOW));
        Scales { halves, of_runs: both.map(|bits| bits & LOW), minimums }
    }
}
