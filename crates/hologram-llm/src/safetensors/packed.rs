//! Quantized matrices of folders: FP8, integers of 4 bits (compressed-tensors, GPTQ, AWQ, MLX) and NVFP4.
//!
//! Integers with a scale that `f16` represents, FP8 whose scales last for multiples of 128 elements, and NVFP4 become
//! blocks with the same values. Other FP8 times its scale, and integers whose scales change within 32 elements, are
//! rounded once to `bf16`.

use half::{bf16, f16};
use hologram_backends::{BlockType, DType};

/// A matrix as bytes of a format; its elements are multiplied by `factor`.
#[derive(Debug)]
pub struct Packed {
    pub format: DType,
    pub bytes: Vec<u8>,
    pub factor: Option<f32>,
}

/// An error continues the sentence "tensor NAME …".
type Result<T> = std::result::Result<T, String>;

/// Integers of 4 bits with scales: an element is `scale·code`, or `scale·code + bias`.
pub struct Integers<F> {
    pub rows: usize,
    pub row_len: usize,
    /// The code, scale and bias of an element, by row and column. A code is from -15 to 15, or from 0 to 15 with a
    /// bias.
    pub element: F,
    /// Whether there are biases.
    pub biased: bool,
}

impl<F: Fn(usize, usize) -> (i32, f32, f32)> Integers<F> {
    /// As `Q4_0`, `Q5_0` or `Q4_1` if all blocks of 32 have one scale and `f16` represents it, else as `bf16`.
    ///
    /// # Errors
    /// When a scale or a bias is not finite.
    pub fn pack(&self) -> Result<Packed> {
        let all = || (0..self.rows).flat_map(|r| (0..self.row_len).map(move |i| (r, i)));
        let exact = |v: f32| f16::from_f32(v).to_f32().to_bits() == v.to_bits();
        let (mut in_blocks, mut least, mut most) = (self.row_len.is_multiple_of(32), 0, 0);
        let mut of_block = (0.0, 0.0);
        for (r, i) in all() {
            let (code, scale, bias) = (self.element)(r, i);
            if !scale.is_finite() || !bias.is_finite() {
                return Err(format!("has the invalid scale {scale} or bias {bias} in row {r}"));
            }
            if i % 32 == 0 {
                of_block = (scale, bias);
                in_blocks &= exact(scale) && exact(bias);
            }
            in_blocks &= of_block == (scale, bias);
            (least, most) = (code.min(least), code.max(most));
        }
        if !in_blocks {
            let value = |(r, i)| {
                let (code, scale, bias) = (self.element)(r, i);
                bf16::from_f32(scale * code as f32 + bias).to_le_bytes()
            };
            return Ok(Packed { format: DType::BF16, bytes: all().flat_map(value).collect(), factor: None });
        }
        let block = match (self.biased, least < -8 || most > 7) {
            (true, _) => BlockType::Q4_1,
            (false, false) => BlockType::Q4_0,
            (false, true) => BlockType::Q5_0,
        };
        let (row, (low, high)) = (block.row(), block.row().bits());
        let mut bytes = vec![0; self.rows * self.row_len / 32 * row.bytes];
        for (n, (r, i)) in all().enumerate() {
            let (code, scale, bias) = (self.element)(r, i);
            let out = &mut bytes[n / 32 * row.bytes..][..row.bytes];
            if i % 32 == 0 {
                out[row.numbers[0]..][..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
                if let Some(at) = row.numbers.get(1) {
                    out[*at..at + 2].copy_from_slice(&f16::from_f32(bias).to_le_bytes());
                }
            }
            let code = (code + i32::from(block.bias())) as u8;
            for bits in std::iter::once(low).chain(high) {
                let (at, shift) = bits.place(i % 32);
                out[at] |= (code >> bits.to & ((1u32 << bits.bits) - 1) as u8) << shift;
            }
        }
        Ok(Packed { format: DType::Block(block), bytes, factor: None })
    }
}

/// The value of an FP8 number (E4M3); NaN for its two NaNs.
pub fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * ((exponent - 7) as f32).exp2(),
    };
    if byte & 128 == 0 { magnitude } else { -magnitude }
}

/// FP8 numbers with a scale per block of `block` rows and columns, as `F8_E4M3`, or as `bf16` if a run of 128 elements
/// has several scales.
///
/// # Errors
/// When there are not as many scales as blocks, a scale is not finite, or an element is NaN.
pub fn fp8(data: &[u8], [rows, row_len]: [usize; 2], block: [usize; 2], scales: &[f32]) -> Result<Packed> {
    let per_row = row_len.div_ceil(block[1].max(1));
    let expected = rows.div_ceil(block[0].max(1)) * per_row;
    if scales.len() != expected || data.len() != rows * row_len {
        return Err(format!("has {} scales, but blocks of {block:?} require {expected}", scales.len()));
    }
    if let Some(scale) = scales.iter().find(|scale| !scale.is_finite()) {
        return Err(format!("has the invalid scale {scale}"));
    }
    if let Some(at) = data.iter().position(|byte| byte & 127 == 127) {
        return Err(format!("has a NaN in row {}", at / row_len.max(1)));
    }
    const BLOCK: usize = DType::F8_E4M3.block_len();
    if row_len.is_multiple_of(BLOCK) && block[1].is_multiple_of(BLOCK) {
        let mut bytes = Vec::with_capacity(data.len() / BLOCK * DType::F8_E4M3.block_bytes());
        for (n, codes) in data.chunks_exact(BLOCK).enumerate() {
            let (r, i) = (n * BLOCK / row_len, n * BLOCK % row_len);
            bytes.extend(scales[r / block[0] * per_row + i / block[1]].to_le_bytes());
            bytes.extend(codes);
        }
        return Ok(Packed { format: DType::F8_E4M3, bytes, factor: None });
    }
    let values: [f32; 256] = std::array::from_fn(|byte| e4m3(byte as u8));
    let mut bytes = Vec::with_capacity(2 * data.len());
    for (r, row) in data.chunks_exact(row_len.max(1)).enumerate() {
        for (i, byte) in row.iter().enumerate() {
            let value = values[usize::from(*byte)];
            bytes.extend(bf16::from_f32(value * scales[r / block[0] * per_row + i / block[1]]).to_le_bytes());
        }
    }
    Ok(Packed { format: DType::BF16, bytes, factor: None })
}

/// Codes of 4 bits, two per byte, the first in the high nibble, whose values are those of `map` times the scale of
/// their block of `block` elements, as `bf16`: NF4 and FP4 of bitsandbytes (Dettmers et al., 2023, arXiv:2305.14314).
///
/// # Errors
/// When the counts do not fit, or a value or a scale is not finite.
pub fn mapped(codes: &[u8], map: &[f32], scales: &[f32], block: usize) -> Result<Packed> {
    let expected = (2 * codes.len()).div_ceil(block.max(1));
    if scales.len() != expected || map.len() != 16 {
        return Err(format!(
            "has {} scales and {} values, but blocks of {block} require {expected} and 16",
            scales.len(),
            map.len()
        ));
    }
    if let Some(scale) = scales.iter().chain(map).find(|scale| !scale.is_finite()) {
        return Err(format!("has the invalid scale {scale}"));
    }
    let code = |i: usize| usize::from(codes[i / 2] >> (4 - i % 2 * 4) & 15);
    let value = |i: usize| bf16::from_f32(map[code(i)] * scales[i / block.max(1)]).to_le_bytes();
    let bytes = (0..2 * codes.len()).flat_map(value).collect();
    Ok(Packed { format: DType::BF16, bytes, factor: None })
}

/// NVFP4: two floats of 4 bits per byte, the first in the low nibble, a scale (E4M3) per 16, and one for the matrix
/// that divides them all. The same values as blocks.
///
/// # Errors
/// When the counts do not fit, a scale is negative or NaN, or the matrix's is 0 or not finite.
pub fn nvfp4(codes: &[u8], scales: &[u8], divisor: f32, [rows, row_len]: [usize; 2]) -> Result<Packed> {
    const BLOCK: usize = DType::NVFP4.block_len();
    if !row_len.is_multiple_of(BLOCK) {
        return Err(format!("has {row_len} elements per row, which is not a multiple of the block size {BLOCK}"));
    }
    let elements = rows * row_len;
    if codes.len() != elements / 2 || scales.len() != elements / 16 {
        return Err(format!("has {} scales, but {} are required", scales.len(), elements / 16));
    }
    if let Some(byte) = scales.iter().find(|byte| **byte >= 127) {
        return Err(format!("has the invalid scale {}", e4m3(*byte)));
    }
    if !divisor.is_normal() {
        return Err(format!("has the invalid global scale {divisor}"));
    }
    let mut bytes = Vec::with_capacity(elements / BLOCK * DType::NVFP4.block_bytes());
    for (codes, scales) in codes.chunks_exact(BLOCK / 2).zip(scales.chunks_exact(BLOCK / 16)) {
        bytes.extend(scales);
        for run in codes.chunks_exact(8) {
            let nibble = |i: usize| run[i / 2] >> (i % 2 * 4) & 15;
            bytes.extend((0..8).map(|i| nibble(i) | nibble(8 + i) << 4));
        }
    }
    Ok(Packed { format: DType::NVFP4, bytes, factor: Some(1.0 / divisor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(packed: &Packed, len: usize) -> Vec<f32> {
        let mut values = vec![0.0; len];
        packed.format.decode_row(&packed.bytes, &mut values).unwrap();
        values.iter().map(|v| v * packed.factor.unwrap_or(1.0)).collect()
    }

    #[test]
    fn integers_keep_their_values() {
        // Codes, scales by column, bias, and the expected format.
        type Element = fn(usize, usize) -> (i32, f32, f32);
        let cases: [(Element, bool, DType); 5] = [
            (|r, i| ((i * 7 + r) as i32 % 16 - 8, 0.5 + r as f32, 0.0), false, DType::Q4_0),
            (|r, i| ((i * 7 + r) as i32 % 28 - 14, if i < 64 { 0.25 } else { -3.0 }, 0.0), false, DType::Q5_0),
            (|r, i| ((i + r) as i32 % 16, 0.125, -1.5), true, DType::Q4_1),
            // A scale that f16 does not represent, and one that changes within a block.
            (|_, i| (i as i32 % 16 - 8, 2.0f32.powi(-30), 0.0), false, DType::BF16),
            (|_, i| (i as i32 % 16 - 8, if i < 40 { 1.0 } else { 2.0 }, 0.0), false, DType::BF16),
        ];
        for (element, biased, format) in cases {
            let packed = Integers { rows: 3, row_len: 96, element, biased }.pack().unwrap();
            assert_eq!(packed.format, format);
            for (n, value) in values(&packed, 288).into_iter().enumerate() {
                let (code, scale, bias) = element(n / 96, n % 96);
                assert_eq!(value, scale * code as f32 + bias, "{format} {n}");
            }
        }
        let element = |_: usize, i: usize| (1, if i == 9 { f32::NAN } else { 1.0 }, 0.0);
        let error = Integers { rows: 1, row_len: 32, element, biased: false }.pack().unwrap_err();
        assert!(error.contains("invalid scale NaN"), "{error}");
    }

    #[test]
    fn floats_keep_their_values() {
        // All numbers but NaN; powers of two as scales are exact.
        let data: Vec<u8> = (0..=255).filter(|byte| byte & 127 != 127).chain([0, 1]).collect();
        let packed = fp8(&data, [4, 64], [3, 48], &[1.0, 2.0, 4.0, 0.5]).unwrap();
        for (n, value) in values(&packed, 256).into_iter().enumerate() {
            let scale = [[1.0, 2.0], [4.0, 0.5]][n / 64 / 3][n % 64 / 48];
            assert_eq!(value, e4m3(data[n]) * scale, "{n}");
        }
        assert_eq!([0x08, 0x7e, 0xb8, 0x01].map(e4m3), [1.0 / 64.0, 448.0, -1.0, 1.0 / 512.0]);

        // In blocks: scales that need all bits of f32 per tensor, per row and in blocks of 128 × 128, byte for byte.
        let long: Vec<u8> = data.iter().cycle().take(5 * 384).copied().collect();
        for block in [[5, 384], [1, 384], [128, 128], [2, 256]] {
            let per_row = 384usize.div_ceil(block[1]);
            let scales: Vec<f32> = (0..5usize.div_ceil(block[0]) * per_row).map(|i| 0.1 + i as f32 / 3.0).collect();
            let packed = fp8(&long, [5, 384], block, &scales).unwrap();
            assert_eq!(packed.format, DType::F8_E4M3);
            for (n, block_of_row) in packed.bytes.chunks_exact(132).enumerate() {
                assert_eq!(&block_of_row[4..], &long[n * 128..][..128], "{block:?} {n}");
            }
            for (n, value) in values(&packed, 5 * 384).into_iter().enumerate() {
                let scale = scales[n / 384 / block[0] * per_row + n % 384 / block[1]];
                assert_eq!(value.to_bits(), (e4m3(long[n]) * scale).to_bits(), "{block:?} {n}");
            }
        }

        let codes: Vec<u8> = (0..64).map(|i| (i * 37 % 256) as u8).collect();
        let scales = [0x38, 0x01, 0x7e, 0, 0x40, 0x41, 0x42, 0x07];
        let packed = nvfp4(&codes, &scales, 4.0, [2, 64]).unwrap();
        let float = |code: u8| {
            let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
            if code < 8 { magnitude } else { -magnitude }
        };
        for (n, value) in values(&packed, 128).into_iter().enumerate() {
            let code = codes[n / 2] >> (n % 2 * 4) & 15;
            assert_eq!(value, float(code) * e4m3(scales[n / 16]) / 4.0, "{n}");
        }
        for (error, want) in [
            (fp8(&data, [4, 64], [2, 64], &[1.0]), "has 1 scales, but blocks of [2, 64] require 2"),
            (fp8(&data, [4, 64], [4, 64], &[f32::NAN]), "invalid scale NaN"),
            (fp8(&[0x7f; 64], [1, 64], [1, 64], &[1.0]), "NaN in row 0"),
            (nvfp4(&codes, &[0xff; 8], 4.0, [2, 64]), "invalid scale NaN"),
            (nvfp4(&codes, &scales, 0.0, [2, 64]), "invalid global scale 0"),
            (nvfp4(&codes, &scales[1..], 1.0, [2, 64]), "has 7 scales, but 8 are required"),
        ] {
            let error = error.unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
