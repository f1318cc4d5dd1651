//! `Q5_0`: d, 32 high bits, 16 bytes of half bytes; codes are 16 too great.

use super::{Block32, Bytes, add_fifth_bits, double};
use crate::Format;

pub struct Q5;

impl Block32 for Q5 {
    const FORMAT: Format = Format::Q5_0;
    const BYTES: usize = 22;
    const OFFSET: i32 = 16;

    #[inline(always)]
    unsafe fn codes<S: Bytes>(s: S, row: *const u8, units: [usize; 2]) -> S::V {
        // SAFETY: promised by the caller.
        unsafe {
            let high = units.map(|unit| double(row.add(unit * 22 + 2)));
            s.add_sixteens(s.nibbles(units.map(|unit| row.add(unit * 22 + 6))), high)
        }
    }

    #[inline(always)]
    unsafe fn halves<S: Bytes>(s: S, row: *const u8, unit: usize) -> [S::V; 2] {
        // SAFETY: promised by the caller.
        unsafe { add_fifth_bits(s, s.half_bytes::<22>(row.add(unit * 22 + 6)), row.add(unit * 22 + 2), 22) }
    }
}
