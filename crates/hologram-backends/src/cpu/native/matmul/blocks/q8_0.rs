//! `Q8_0`: d, 32 signed bytes.

use super::{Block32, Bytes};
use crate::Format;

pub struct Q8;

impl Block32 for Q8 {
    const FORMAT: Format = Format::Q8_0;
    const BYTES: usize = 34;
    const OFFSET: i32 = 128;
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn codes<S: Bytes>(s: S, row: *const u8, units: [usize; 2]) -> S::V {
        // SAFETY: promised by the caller.
        s.xor(unsafe { s.pair(units.map(|unit| row.add(unit * 34 + 2))) }, 0x80)
    }
}
