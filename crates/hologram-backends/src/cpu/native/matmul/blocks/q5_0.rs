//! `Q5_0`: d, 32 high bits, 16 bytes of half bytes; codes are 16 too great.

use super::HalfBytes;
use crate::Format;

pub struct Q5;

impl HalfBytes for Q5 {
    const FORMAT: Format = Format::Q5_0;
    const BYTES: usize = 22;
    const OFFSET: i32 = 16;
    const FIFTH_BITS: bool = true;
}
