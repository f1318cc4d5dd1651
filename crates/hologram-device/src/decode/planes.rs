//! Weights in planes: [`PlaneLayout`](crate::PlaneLayout).

use super::{decode, number, single};
use crate::{BlockType, Codes, DType, Factors, Scales, Values};

/// Elements of a chunk.
const CHUNK: usize = 32;

/// Dequantizes all blocks of a tensor with [`PlaneLayout::Codes`](crate::PlaneLayout::Codes).
pub fn decode_codes(block: BlockType, bytes: &[u8], out: &mut [f32]) {
    let (row, [codes, _, scale]) = (block.row(), block.plane_bytes());
    let (Some(at), Codes::Bits(low, _)) = (block.planes(out.len() / row.len), row.codes) else { return };
    let mut whole = vec![0; row.bytes];
    for (i, out) in out.chunks_exact_mut(row.len).enumerate() {
        whole[low.at..low.at + codes].copy_from_slice(&bytes[at[0] + i * codes..][..codes]);
        whole[row.numbers[0]..][..scale].copy_from_slice(&bytes[at[2] + i * scale..][..scale]);
        decode(DType::Block(block), &whole, out);
    }
}

/// Dequantizes all blocks of a tensor with [`PlaneLayout::Chunks`](crate::PlaneLayout::Chunks).
pub fn decode_chunks(packed: BlockType, bytes: &[u8], out: &mut [f32]) {
    let len = packed.row().len;
    let [low, high, _] = packed.plane_bytes().map(|n| n * CHUNK / len);
    let Some(at) = packed.planes(out.len() / len) else { return };
    for (c, out) in out.chunks_exact_mut(CHUNK).enumerate() {
        let (low, high) = (&bytes[at[0] + c * low..][..low], &bytes[at[1] + c * high..][..high]);
        let block = c * CHUNK / len;
        // In formats with blocks of 256 a record belongs to 8 chunks.
        let record = &bytes[at[2] + block * packed.record_bytes()..][..packed.record_bytes()];
        for (e, y) in out.iter_mut().enumerate() {
            let (scale, minimum) = factors(packed, record, (c * CHUNK + e) % len);
            *y = match packed.row().values {
                Values::E4M3 => scale * Values::e4m3(low[e]),
                _ => scale * f32::from(code(packed, low, high, e)) - minimum,
            };
        }
    }
}

/// The code of element `e` of a chunk, as it is multiplied.
fn code(packed: BlockType, low: &[u8], high: &[u8], e: usize) -> i8 {
    let quarter = |bytes: &[u8]| bytes[e / 16 * 4 + e % 4] >> (e / 4 % 4 * 2) & 3;
    let low_part = match (packed.low_bits(), packed.table()) {
        (2, _) => quarter(low),
        (_, Some(_)) => low[e / 2] >> (e % 2 * 4) & 15,
        (_, None) => low[e % 16] >> (e / 16 * 4) & 15,
    };
    let high_part = match packed.high_bits() {
        2 => quarter(high),
        1 => high[e % 4] >> (e / 4) & 1,
        _ => 0,
    };
    if let Some(table) = packed.table() {
        return table[usize::from(low_part)];
    }
    (low_part | high_part << packed.low_bits()) as i8 - packed.bias() as i8
}

/// The scale and the minimum of element `e` of a block.
fn factors(packed: BlockType, record: &[u8], e: usize) -> (f32, f32) {
    let d = if packed.numbers() > 0 { number(record, 0) / packed.divisor() as f32 } else { 1.0 };
    let m = if packed.numbers() == 2 { number(record, 2) } else { 0.0 };
    let bytes = &record[2 * packed.numbers()..];
    match packed.factors() {
        Factors::None => (d, -m),
        Factors::Pairs => (d * f32::from(bytes[e / 32 * 2]), m * f32::from(bytes[e / 32 * 2 + 1])),
        Factors::Nibbles => (d * f32::from(bytes[e / 16] & 15), m * f32::from(bytes[e / 16] >> 4)),
        Factors::Signed(run) => (d * f32::from(bytes[e / run] as i8), 0.0),
        Factors::Exponent => (Scales::e8m0(bytes[0]), 0.0),
        Factors::Floats => (Scales::ue4m3(bytes[e / 16]), 0.0),
        Factors::Whole => (single(bytes, 0), 0.0),
    }
}
