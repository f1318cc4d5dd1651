//! The cases' input data, as bytes and as values.

use half::{bf16, f16};
use hologram_backends::{BlockType, DType, Scales, TensorSpec, Values};
use hologram_isa::Type;

use super::{CaseInput, Fill, HostTensor};
use crate::error::{CoreError, Result};
use crate::tensor::Dim;

/// The byte that fills results before a run: NaN in any float format.
pub(super) const POISON: u8 = 0xff;

/// The byte that fills inputs beyond the extents: a huge number, or an index outside any tensor. It differs from
/// [`POISON`], so that a copy of it is detected.
const BEYOND: u8 = 0xfe;

/// A generator of random numbers (SplitMix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u32
    }

    /// Uniform in (0, 1].
    pub(super) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f32 {
        ((-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }

    /// The scale of a block: now and then negative, zero or the smallest `f16`.
    fn scale(&mut self, size: f32) -> f32 {
        match self.below(16) {
            0 => 0.0,
            1 => f16::from_bits(1).to_f32(),
            2 => -size,
            _ => size * (0.5 + self.unit() as f32),
        }
    }
}

/// An input's bytes in its format's layout for the maximum extents, and its values. An extent is a pair of maximum and
/// actual value.
pub(super) fn draw(
    extents: &[(usize, usize)],
    input: &CaseInput,
    random: &mut Random,
) -> Result<(Vec<u8>, HostTensor)> {
    let size = |dim: &Dim| super::size(extents, *dim);
    let max: Vec<usize> = input.shape.iter().map(|d| size(d).0).collect();
    let shape: Vec<usize> = input.shape.iter().map(|d| size(d).1).collect();
    let (max_rows, row_len) = max.split_last().map_or((1, 1), |(last, rest)| (rest.iter().product(), *last));
    let len: usize = shape.iter().product();
    let rows = if max.len() < 2 { 1 } else { len / row_len.max(1) };
    let bytes = input
        .format
        .bytes(max_rows, row_len)
        .ok_or_else(|| CoreError::Tensor(format!("rows of {row_len} do not fit {}", input.format.name())))?;
    let mut data = vec![BEYOND; bytes];
    let number = |random: &mut Random, i: usize| match &input.fill {
        Fill::Normal(size) => size * random.normal(),
        Fill::Below(bound) => random.below(*bound) as f32,
        Fill::Values(values) => values.get(i).copied().unwrap_or_default(),
    };
    match (input.format, &input.fill) {
        (DType::F8, _) => {
            for (i, at) in data.iter_mut().take(len).enumerate() {
                *at = Values::to_f8(number(random, i));
            }
        }
        (DType::Plain(ty), _) => {
            for (i, at) in data.chunks_exact_mut(ty.size()).take(len).enumerate() {
                let value = number(random, i);
                match ty {
                    Type::F32 => at.copy_from_slice(&value.to_le_bytes()),
                    Type::F16 => at.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                    Type::BF16 => at.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                    Type::U32 => at.copy_from_slice(&(value as u32).to_le_bytes()),
                    Type::I32 => at.copy_from_slice(&(value as i32).to_le_bytes()),
                    Type::F64 => at.copy_from_slice(&f64::from(value).to_le_bytes()),
                    Type::U64 => at.copy_from_slice(&(value as u64).to_le_bytes()),
                    Type::I64 => at.copy_from_slice(&(value as i64).to_le_bytes()),
                    Type::U16 => at.copy_from_slice(&(value as u16).to_le_bytes()),
                    Type::I16 => at.copy_from_slice(&(value as i16).to_le_bytes()),
                    Type::I8 => at.copy_from_slice(&(value as i8).to_le_bytes()),
                    Type::U8 | Type::Bool => at.copy_from_slice(&[value as u8]),
                }
            }
        }
        (DType::I8Groups { group } | DType::F8Groups { group }, fill) => {
            let views = input.format.views(max_rows, row_len);
            for code in &mut data[..rows * row_len] {
                // Quantization never gives -128.
                *code = (random.below(255) as i32 - 127) as i8 as u8;
            }
            only_numbers(input.format, &mut data[..rows * row_len]);
            let scales = &mut data[views.last().map_or(0, |v| v.offset)..];
            for scale in scales.chunks_exact_mut(4).take(rows * row_len / group.max(1) as usize) {
                scale.copy_from_slice(&random.scale(size_of_fill(fill) / 64.0).to_le_bytes());
            }
        }
        (DType::Planes(block), fill) => {
            let blocks = |rows: usize| rows * row_len / input.format.block_len();
            draw_planes(block, [blocks(max_rows), blocks(rows)], size_of_fill(fill), &mut data, random)?;
        }
        (format, fill) => {
            // Any byte is a valid code.
            let (size, numbers) = (size_of_fill(fill), format.unit_numbers());
            let blocks = rows * row_len / format.block_len();
            for block in 0..blocks {
                let block = &mut data[block * format.block_bytes()..(block + 1) * format.block_bytes()];
                block.fill_with(|| random.next() as u8);
                only_numbers(format, block);
                for (which, number) in numbers.into_iter().enumerate().take(format.numbers_at().len().max(1)) {
                    format.set_number(block, which, random.scale(size * number));
                }
            }
        }
    }
    let values = input.format.values(max_rows, row_len, len, &data)?;
    Ok((data, HostTensor { format: input.format, shape, values }))
}

/// Draws `used` blocks of a tensor with room for `max` blocks. Codes and factors are random bytes; scales and minimums
/// have the magnitude that they have in blocks.
fn draw_planes(
    block: BlockType,
    [max, used]: [usize; 2],
    size: f32,
    data: &mut [u8],
    random: &mut Random,
) -> Result<()> {
    let overflow = || CoreError::Tensor(format!("{max} blocks do not fit {} in planes", block.name()));
    let (at, [codes, high, record]) = (block.planes(max).ok_or_else(overflow)?, block.plane_bytes());
    let unit = block.row().unit;
    if !block.is_packed() {
        for block in 0..used {
            data[block * codes..(block + 1) * codes].fill_with(|| random.next() as u8);
            let scale = f16::from_f32(random.scale(size * unit[0])).to_le_bytes();
            data[at[2] + 2 * block..][..2].copy_from_slice(&scale);
        }
        return Ok(());
    }
    for (at, bytes) in at.into_iter().zip([codes, high, record]) {
        data[at..at + used * bytes].fill_with(|| random.next() as u8);
    }
    only_numbers(DType::Planes(block), &mut data[..used * codes]);
    // Factors of 6 bits in the file have 8 bits here.
    let wider = match block.row().scales {
        Scales::SixBitPairs { .. } | Scales::SixBits { .. } => 0.25,
        _ => 1.0,
    };
    // Scales that are floats themselves are those of a block.
    let mut whole = vec![0; block.row().bytes];
    for record in data[at[2]..at[2] + used * record].chunks_exact_mut(record) {
        if let Scales::F32 { .. } = block.row().scales {
            record.copy_from_slice(&random.scale(size * unit[0]).to_le_bytes());
            continue;
        }
        if let Scales::E8M0 { at } | Scales::UE4M3 { at } = block.row().scales {
            for byte in record {
                DType::Block(block).set_number(&mut whole, 0, random.scale(size * unit[0]));
                *byte = whole[at];
            }
            continue;
        }
        for (at, number) in record.chunks_exact_mut(2).zip(unit).take(block.numbers()) {
            at.copy_from_slice(&f16::from_f32(random.scale(size * wider * number)).to_le_bytes());
        }
    }
    Ok(())
}

/// Replaces codes that stand for no number.
fn only_numbers(format: DType, codes: &mut [u8]) {
    if format.has_float_codes() {
        codes.iter_mut().filter(|code| **code & 127 == 127).for_each(|code| *code -= 1);
    }
}

fn size_of_fill(fill: &Fill) -> f32 {
    match fill {
        Fill::Normal(size) => *size,
        Fill::Below(_) | Fill::Values(_) => 1.0,
    }
}

/// The index of the first byte beyond the first `len` elements that is no longer [`POISON`].
pub(super) fn overwritten(spec: &TensorSpec, len: usize, data: &[u8]) -> Option<usize> {
    let (max_rows, row_len) = (spec.max_rows(), spec.row_len());
    let total = (max_rows * row_len).max(1);
    spec.format.views(max_rows, row_len).iter().find_map(|v| {
        // Only whole rows are used, so bytes are proportional to elements.
        let used = (v.bytes as u128 * len as u128 / total as u128) as usize;
        (v.offset + used..v.offset + v.bytes).find(|i| data[*i] != POISON)
    })
}
