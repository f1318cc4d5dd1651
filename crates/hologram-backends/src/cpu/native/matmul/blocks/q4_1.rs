//! `Q4_1`: d, m, 16 bytes of half bytes.

use super::HalfBytes;
use crate::Format;

pub struct Q4Min;

impl HalfBytes for Q4Min {
    const FORMAT: Format = Format::Q4_1;
    const BYTES: usize = 20;
    const OFFSET: i32 = 0;
}
