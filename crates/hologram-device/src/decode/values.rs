//! Any tensor's elements as `f64`, one by one: for tests and self-tests.

use half::{bf16, f16};
use hologram_isa::Type;

use crate::error::Result;
use crate::{DType, Values};

impl DType {
    /// The first `len` elements of a tensor with memory for `max_rows` rows of `row_len` elements; fewer if the bytes
    /// end earlier.
    ///
    /// # Errors
    /// When the bytes are not whole blocks.
    pub fn values(self, max_rows: usize, row_len: usize, len: usize, data: &[u8]) -> Result<Vec<f64>> {
        Ok(match self {
            DType::Plain(ty) => data.chunks_exact(ty.size()).take(len).map(|element| number(ty, element)).collect(),
            DType::F8 => data.iter().take(len).map(|code| Values::f8(*code).into()).collect(),
            DType::I8Groups { group } | DType::F8Groups { group } => {
                let floats = self.has_float_codes();
                let code = |code: u8| if floats { Values::e4m3(code).into() } else { f64::from(code as i8) };
                let at = self.views(max_rows, row_len).last().map_or(0, |v| v.offset);
                let scales = data.get(at..).unwrap_or_default().chunks_exact(4).map(|b| number(Type::F32, b));
                let scales = scales.flat_map(|scale| std::iter::repeat_n(scale, group as usize));
                data.iter().take(len).zip(scales).map(|(byte, scale)| code(*byte) * scale).collect()
            }
            DType::Block(_) | DType::Grid(_) | DType::Planes(_) => {
                // Planes are dequantized whole; elsewhere the first elements lie in the first bytes.
                let decoded = if matches!(self, DType::Planes(_)) { max_rows * row_len } else { len };
                let bytes = self.bytes(1, decoded).unwrap_or(0).min(data.len());
                let mut values = vec![0.0f32; decoded];
                self.decode_row(&data[..bytes], &mut values)?;
                values.truncate(len);
                values.into_iter().map(f64::from).collect()
            }
        })
    }
}

/// The value of an element.
fn number(ty: Type, element: &[u8]) -> f64 {
    let mut bytes = [0; 8];
    bytes[..element.len()].copy_from_slice(element);
    let word = u64::from_le_bytes(bytes);
    match ty {
        Type::Bool | Type::U8 | Type::U16 | Type::U32 => word as u32 as f64,
        Type::U64 => word as f64,
        Type::I8 => f64::from(word as i8),
        Type::I16 => f64::from(word as i16),
        Type::I32 => f64::from(word as i32),
        Type::I64 => word as i64 as f64,
        Type::F16 => f16::from_bits(word as u16).to_f64(),
        Type::BF16 => bf16::from_bits(word as u16).to_f64(),
        Type::F32 => f64::from(f32::from_bits(word as u32)),
        Type::F64 => f64::from_bits(word),
    }
}
