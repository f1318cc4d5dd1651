//! The reference decoders of the weight formats, from a tensor's bytes to `f32`.
//!
//! They define the meaning of a format for every test and every f64 reference, and agree bit for bit with the decoders
//! of the `gguf` Python package. Tuned kernels do not use them: a kernel reads the blocks itself.

mod blocks;
mod grid;
mod planes;
mod scale;
mod values;

pub use grid::{Grid, grid, grid_values};

use crate::format::{Row, with_row};
use crate::{BackendError, BlockFormat, DType, Result};
use half::{bf16, f16};
use hologram_isa::Type;

impl DType {
    /// Converts blocks to those of [`DType::recoded`] without loss: as many as both slices hold. Other formats are
    /// copied.
    pub fn recode(self, bytes: &[u8], out: &mut [u8]) {
        if self == DType::TQ1_0 {
            let blocks = bytes.chunks_exact(self.block_bytes());
            for (block, out) in blocks.zip(out.chunks_exact_mut(self.at_load().block_bytes())) {
                blocks::tq1_0_to_tq2_0(block, out);
            }
            return;
        }
        if let DType::Grid(ty) = self {
            return grid::recode(ty, bytes, out);
        }
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    }

    /// Dequantizes whole blocks: `out.len()` elements from exactly as many bytes as they take. Tensors can be
    /// dequantized row by row, or all at once when the rows are whole blocks; tensors in planes only all at once.
    ///
    /// # Errors
    /// A length that is not a whole number of blocks, bytes that do not match that length, or a format that does not
    /// hold floating-point weights.
    pub fn decode_row(self, bytes: &[u8], out: &mut [f32]) -> Result<()> {
        let fail = |reason: String| BackendError::InvalidArgument {
            device: "host".into(),
            operation: format!("decode {}", self.name()),
            reason,
        };
        let Some(expected) = self.bytes(1, out.len()) else {
            return Err(fail(format!("{} elements are not whole blocks of {}", out.len(), self.block_len())));
        };
        if bytes.len() != expected {
            return Err(fail(format!("{} elements take {expected} bytes, but {} were given", out.len(), bytes.len())));
        }
        match self {
            DType::Plain(Type::F32 | Type::F16 | Type::BF16) => decode(self, bytes, out),
            DType::Plain(_) | DType::I8Groups { .. } | DType::F8Groups { .. } | DType::F8 => {
                return Err(fail("it is not a format of floating-point weights".into()));
            }
            DType::Planes(block) if block.is_packed() => planes::decode_chunks(block, bytes, out),
            DType::Planes(block) => planes::decode_codes(block, bytes, out),
            _ => decode(self, bytes, out),
        }
        Ok(())
    }
}

/// Dequantizes rows in plain `f32`, `f16` or `bf16` or in a block format of GGUF: as many elements as both slices hold.
#[inline(always)]
pub fn decode(format: DType, bytes: &[u8], out: &mut [f32]) {
    match format {
        DType::Plain(Type::F16) => plain(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        DType::Plain(Type::BF16) => plain(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        DType::Plain(_) => plain(bytes, out, f32::from_le_bytes),
        DType::Block(block) => with_row!(block, R => {
            // Const generic arguments require a concrete type.
            const ROW: &BlockFormat = &<R as Row>::ROW;
            blocks::decode::<R, { ROW.bytes }, { ROW.len }, { ROW.len / ROW.run() }>(bytes, out)
        }),
        DType::Grid(ty) => grid::decode(ty, bytes, out),
        DType::Planes(_) | DType::I8Groups { .. } | DType::F8Groups { .. } | DType::F8 => {}
    }
}

/// Splits the blocks of a format whose codes are integers: calls `visit` for each with its codes, and a scale and a
/// minimum for each [`DType::scale_len`] of them; an element is scale·code - minimum. Does nothing for other formats.
#[inline(always)]
pub fn each_block(format: DType, bytes: &[u8], mut visit: impl FnMut(&[i8], &[f32], &[f32])) {
    if let DType::Grid(ty) = format {
        return grid::each(ty, bytes, |codes, scales| visit(codes, scales, &[0.0; 16][..scales.len()]));
    }
    if let DType::Block(block) = format
        && !format.has_float_codes()
    {
        with_row!(block, R => {
            const ROW: &BlockFormat = &<R as Row>::ROW;
            blocks::each::<R, { ROW.bytes }, { ROW.len }, { ROW.len / ROW.run() }>(bytes, visit)
        });
    }
}

#[inline(always)]
fn plain<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (b, y) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *y = decode(*b);
    }
}

/// The `f32` at a place of a block.
#[inline(always)]
fn single(b: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// The `f16` number at a place of a block.
#[inline(always)]
fn number(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}
