//! `IQ4_NL`: d, 16 bytes of half bytes that choose among 16 values.

use super::{Block32, Bytes};
use crate::Format;

/// The values, 128 too great.
pub const VALUES: [u8; 16] = {
    let mut all = [0; 16];
    let mut i = 0;
    while i < 16 {
        all[i] = (crate::IQ4_VALUES[i] as i16 + 128) as u8;
        i += 1;
    }
    all
};

pub struct Iq4Nl;

impl Block32 for Iq4Nl {
    const FORMAT: Format = Format::IQ4_NL;
    const BYTES: usize = 18;
    const OFFSET: i32 = 128;
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn codes<S: Bytes>(s: S, row: *const u8, units: [usize; 2]) -> S::V {
        // SAFETY: promised by the caller.
        s.look_up(&VALUES, unsafe { s.nibbles(units.map(|unit| row.add(unit * 18 + 2))) })
    }

    #[inline(always)]
    unsafe fn halves<S: Bytes>(s: S, row: *const u8, unit: usize) -> [S::V; 2] {
        // SAFETY: promised by the caller.
        let [low, high] = unsafe { s.half_bytes::<18>(row.add(unit * 18 + 2)) };
        [s.look_up(&VALUES, low), s.look_up(&VALUES, high)]
    }
}
