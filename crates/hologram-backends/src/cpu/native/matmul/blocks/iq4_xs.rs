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
        let (mut low, mut high, mut factors) = ([0; 2], [0; 2], [0f32; 2]);
        for i in 0..count.div_ceil(8) {
            // SAFETY: promised by the caller: `first` and the number of units are multiples of 8.
            unsafe {
                let block = row.add((first / 8 + i) * 136);
                factors[i] = s.half(word(block));
                (low[i], high[i]) = (double(block.add(4)), u32::from(word(block.add(2))));
            }
        }
        let scales = s.mul(s.six_bits(low, high), s.by_eights(factors));
        (scales, scales)
    }

    #[inline(always)]
    unsafe fn halves<S: Bytes>(s: S, row: *const u8, unit: usize) -> [S::V; 2] {
        // SAFETY: promised by the caller.
        let [low, high] = unsafe { s.half_bytes(row.add(unit / 8 * 136 + 8 + unit % 8 * 16), 16) };
        [s.look_up(&VALUES, low), s.look_up(&VALUES, high)]
    }
}
