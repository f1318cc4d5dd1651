//! `Q4_1`: d, m, 16 bytes of half bytes.

use super::{Block32, Bytes};
use crate::Format;

pub struct Q4Min;

impl Block32 for Q4Min {
    const FORMAT: Format = Format::Q4_1;
    const BYTES: usize = 20;
    const OFFSET: i32 = 0;

    #[inline(always)]
    unsafe fn codes<S: Bytes>(s: S, row: *const u8, units: [usize; 2]) -> S::V {
        // SAFETY: promised by the caller.
        unsafe { s.nibbles(units.map(|unit| row.add(unit * 20 + 4))) }
    }

    #[inline(always)]
    unsafe fn halves<S: Bytes>(s: S, row: *const u8, unit: usize) -> [S::V; 2] {
        // SAFETY: promised by the caller.
        unsafe { s.half_bytes::<20>(row.add(unit * 20 + 4)) }
    }
}
