//! `Q4_0`: d, 16 bytes of half bytes; codes are 8 too great.

use super::{Block32, Bytes};
use crate::Format;

pub struct Q4;

impl Block32 for Q4 {
    const FORMAT: Format = Format::Q4_0;
    const BYTES: usize = 18;
    const OFFSET: i32 = 8;

    #[inline(always)]
    unsafe fn codes<S: Bytes>(s: S, row: *const u8, units: [usize; 2]) -> S::V {
        // SAFETY: promised by the caller.
        unsafe { s.nibbles(units.map(|unit| row.add(unit * 18 + 2))) }
    }

    #[inline(always)]
    unsafe fn halves<S: Bytes>(s: S, row: *const u8, unit: usize) -> [S::V; 2] {
        // SAFETY: promised by the caller.
        unsafe { s.half_bytes::<18>(row.add(unit * 18 + 2)) }
    }
}
