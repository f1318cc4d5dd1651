//! `Q5_1`: d, m, 32 high bits, 16 bytes of half bytes.

use super::HalfBytes;
use crate::Format;

pub struct Q5Min;

impl HalfBytes for Q5Min {
    const FORMAT: Format = Format::Q5_1;
    const BYTES: usize = 24;
    const OFFSET: i32 = 0;
    const FIFTH_BITS: bool = true;
}
