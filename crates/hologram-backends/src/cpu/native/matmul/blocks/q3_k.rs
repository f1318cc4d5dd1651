//! `Q3_K`: 32 bytes of third bits, 64 of two bits, 16 scales of six bits, d; codes are 4 too great, scales 32.

use super::{Field, Scales, SuperBlock, double, quad, twice, word};
use crate::Format;

pub struct Q3K;

impl SuperBlock for Q3K {
    const FORMAT: Format = Format::Q3_K;
    const BYTES: usize = 110;
    const RUN: usize = 16;
    const OFFSET: f32 = 4.0;
    const ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

    #[inline(always)]
    fn fields(unit: usize) -> [Field; 2] {
        [
            Field { at: 32 + 32 * (unit / 4), shift: 2 * (unit as u32 % 4), bits: 2, to: 0 },
            Field { at: 0, shift: unit as u32, bits: 1, to: 2 },
        ]
    }

    #[inline(always)]
    unsafe fn scales(block: *const u8) -> Scales {
        // SAFETY: promised by the caller.
        let (low, high, d) = unsafe { (quad(block.add(96)), double(block.add(104)), word(block.add(108))) };
        // Bits 2j and 2j + 1 of the last four bytes are the high ones of scales 4j to 4j + 3.
        let high = |first: u32| {
            let pair = u64::from(high >> (2 * first)) | u64::from(high >> (2 * first + 2)) << 32;
            (pair & 0x0303_0303_0303_0303) << 4
        };
        let low = [low, low >> 4].map(|bits| bits & 0x0f0f_0f0f_0f0f_0f0f);
        // Less 32 in each byte: no byte borrows, as each has its highest bit set meanwhile.
        let signed = |bits: u64| ((bits | 0x8080_8080_8080_8080) - 0x2020_2020_2020_2020) ^ 0x8080_8080_8080_8080;
        let of_runs = [signed(low[0] | high(0)), signed(low[1] | high(2))];
        Scales { halves: twice(d), of_runs, minimums: Some(of_runs) }
    }
}
