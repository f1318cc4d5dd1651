//! `Q5_1`: d, m, 32 high bits, 16 bytes of half bytes.

use super::{Block32, Bytes, add_fifth_bits, double};
use crate::Format;

pub struct Q5Min;

impl Block32 for Q5Min {
    const FORMAT: Format = Format::Q5_1;
    const BYTES: usize = 24;
    const OFFSET: i32 = 0;

    #[inline(always)]
    unsafe fn codes<S: Bytes>(s: S, row: *const u8, units: [usize; 2]) -> S::V {
        // SAFETY: promised by the caller.
        unsafe {
            let high = units.map(|unit| double(row.add(unit * 24 + 4)));
            s.add_sixteens(s.nibbles(units.map(|unit| row.add(unit * 24 + 8))), high)
        }
    }

    #[inline(always)]
    unsafe fn halves<S: Bytes>(s: S, row: *const u8, unit: usize) -> [S::V; 2] {
        // SAFETY: promised by the caller.
        unsafe { add_fifth_bits(s, s.half_bytes::<24>(row.add(unit * 24 + 8)), row.add(unit * 24 + 4), 24) }
    }
}
