//! `IQ4_XS`: blocks of 256 with d, 8 scales of six bits (32 too great), and half bytes as in `IQ4_NL` for each 32 elements.

use super::iq4_nl::VALUES;
use super::{Block32, Bytes, double, word};
use crate::Format;

pub struct Iq4Xs;

impl Block32 for Iq4Xs {
    const FORMAT: Format = Format::IQ4_XS;
    const BYTES: usize = 136;
    const UNITS: usize = 8;
    const OFFSET: i32 = 128;
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn codes<S: Bytes>(s: S, row: *const u8, units: [usize; 2]) -> S::V {
        // SAFETY: promised by the caller.
        s.look_up(&VALUES, unsafe { s.nibbles(units.map(|unit| row.add(unit / 8 * 136 + 8 + unit % 8 * 16))) })
    }

    #[inline(always)]
    unsafe fn scales<S: Bytes>(s: S, row: *const u8, first: usize, count: usize) -> (S::F, S::F) {
        let (mut scales, mut factors) = ([0u64; 2], [0f32; 16]);
        for (i, scales) in scales.iter_mut().enumerate().take(count.div_ceil(8)) {
            // SAFETY: promised by the caller: `first` and the number of units are multiples of 8.
            let (d, high, low) = unsafe {
                let block = row.add((first / 8 + i) * 136);
                (word(block), word(block.add(2)), double(block.add(4)))
            };
            // Half bytes and pairs of bits, each to a byte.
            let low = u64::from(low);
            let low = (low | low << 16) & 0x0000_ffff_0000_ffff;
            let low = (low | low << 8) & 0x00ff_00ff_00ff_00ff;
            let low = (low | low << 4) & 0x0f0f_0f0f_0f0f_0f0f;
            let high = u64::from(high);
            let high = (high | high << 24) & 0x0000_00ff_0000_00ff;
            let high = (high | high << 12) & 0x000f_000f_000f_000f;
            let high = (high | high << 6) & 0x0303_0303_0303_0303;
            *scales = (((low | high << 4) | 0x8080_8080_8080_8080) - 0x2020_2020_2020_2020) ^ 0x8080_8080_8080_8080;
            factors[8 * i..8 * i + 8].fill(s.half(d));
        }
        // SAFETY: the arrays hold the most lanes.
        let scales = unsafe { s.mul(s.signed(scales.as_ptr().cast()), s.load_f(factors.as_ptr())) };
        (scales, scales)
    }
}
