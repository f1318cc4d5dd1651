//! `IQ4_NL`: d, 16 bytes of half bytes that choose among 16 values.

use super::HalfBytes;
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

impl HalfBytes for Iq4Nl {
    const FORMAT: Format = Format::IQ4_NL;
    const BYTES: usize = 18;
    const OFFSET: i32 = 128;
    const VALUES: Option<&'static [u8; 16]> = Some(&VALUES);
}
