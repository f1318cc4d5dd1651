//! `Q4_0`: d, 16 bytes of half bytes; codes are 8 too great.

use super::HalfBytes;
use crate::Format;

pub struct Q4;

impl HalfBytes for Q4 {
    const FORMAT: Format = Format::Q4_0;
    const BYTES: usize = 18;
    const OFFSET: i32 = 8;
}
