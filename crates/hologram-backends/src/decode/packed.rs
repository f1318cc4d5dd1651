//! Weights in planes: [`Packed`].

use super::number;
use crate::{Factors, IQ4_VALUES, Packed};

/// Elements of a chunk.
const CHUNK: usize = 32;

/// Decodes all blocks of a tensor.
pub fn decode(packed: Packed, bytes: &[u8], out: &mut [f32]) {
    let len = packed.blocks().block_len();
    let [low, high, _] = packed.plane_bytes().map(|n| n * CHUNK / len);
    let Some(at) = packed.planes(out.len() / len) else { return };
    for (c, out) in out.chunks_exact_mut(CHUNK).enumerate() {
        let (low, high) = (&bytes[at[0] + c * low..][..low], &bytes[at[1] + c * high..][..high]);
        let block = c * CHUNK / len;
        // Of blocks of 256 a record belongs to 8 chunks.
        let record = &bytes[at[2] + block * packed.record_bytes()..][..packed.record_bytes()];
        for (e, y) in out.iter_mut().enumerate() {
            let (scale, minimum) = factors(packed, record, (c * CHUNK + e) % len);
            *y = scale * f32::from(code(packed, low, high, e)) - minimum;
        }
    }
}

/// The code of element `e` of a chunk, as it is multiplied.
fn code(packed: Packed, low: &[u8], high: &[u8], e: usize) -> i8 {
    let quarter = |bytes: &[u8]| bytes[e / 16 * 4 + e % 4] >> (e / 4 % 4 * 2) & 3;
    let low_part = match (packed.low_bits(), packed.is_table()) {
        (2, _) => quarter(low),
        (_, true) => low[e / 2] >> (e % 2 * 4) & 15,
        (_, false) => low[e % 16] >> (e / 16 * 4) & 15,
    };
    let high_part = match packed.high_bits() {
        2 => quarter(high),
        1 => high[e % 4] >> (e / 4) & 1,
        _ => 0,
    };
    if packed.is_table() {
        return IQ4_VALUES[usize::from(low_part)];
    }
    (low_part | high_part << packed.low_bits()) as i8 - packed.bias() as i8
}

/// The scale and the minimum of element `e` of a block.
fn factors(packed: Packed, record: &[u8], e: usize) -> (f32, f32) {
    let d = number(record, 0);
    let m = if packed.numbers() == 2 { number(record, 2) } else { 0.0 };
    let bytes = &record[2 * packed.numbers()..];
    match packed.factors() {
        Factors::None => (d, -m),
        Factors::Pairs => (d * f32::from(bytes[e / 32 * 2]), m * f32::from(bytes[e / 32 * 2 + 1])),
        Factors::Halves => (d * f32::from(bytes[e / 16] & 15), m * f32::from(bytes[e / 16] >> 4)),
        Factors::Signed(run) => (d * f32::from(bytes[e / run] as i8), 0.0),
    }
}
