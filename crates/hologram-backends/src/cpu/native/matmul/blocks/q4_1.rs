//! `Q4_1`: d, m, 16 bytes of half bytes.

use super::{Block32, Bytes};
use crate::Format;

pub struct Q4Min;

impl Block32 for Q4Min {
    const FORMAT: Format = Format::Q4_1;
    const BYTES: usize = 20;
    const OFFSET: i32 = 0;
    const HALF_BYTES: Option<usize> = Some(4);

    #[inline(always)]
    unsafe fn codes<S: Bytes>(s: S, row: *const u8, units: [usize; 2]) -> S::V {
        // SAFETY: promised by the caller.
        unsafe { s.nibbles(units.map(|unit| row.add(unit * 20 + 4))) }
    }
}
