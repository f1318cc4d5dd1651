//! Matrices of experts that a folder holds in one tensor: gate and up together, plain or in MXFP4.

use hologram_backends::DType;
use hologram_core::Tensor;

use super::weights::FolderWeights;
use crate::error::Result;
use crate::models::ExpertFiles;
use crate::weights::Weights;

/// Codes of a block of MXFP4, and their bytes.
const BLOCK: usize = 32;

/// Some rows of each expert in a tensor that holds gate and up.
struct Part {
    /// All rows of an expert.
    total: usize,
    /// The first row, and the distance to the next.
    first: usize,
    step: usize,
}

impl FolderWeights<'_> {
    /// Which rows of the joined tensor are those of the tensor that GGUF files call `ours`.
    fn part(&self, ours: &str, rows: usize) -> Part {
        let is_up = ours.contains("_up_");
        match self.names.experts {
            _ if !is_up && !ours.contains("_gate_") || ours.contains("_gate_up_") => {
                Part { total: rows, first: 0, step: 1 }
            }
            ExpertFiles::Interleaved => Part { total: 2 * rows, first: usize::from(is_up), step: 2 },
            _ => Part { total: 2 * rows, first: if is_up { rows } else { 0 }, step: 1 },
        }
    }

    /// The matrices `[experts, rows, row_len]` of all experts, one after another.
    pub(super) fn joined_experts(&self, ours: &str, [experts, rows, row_len]: [usize; 3]) -> Result<Tensor> {
        let name = self.name_of(ours);
        let part = self.part(ours, rows);
        let stem = name.strip_suffix(".weight").unwrap_or(&name);
        let (format, bytes) = if self.folder().find(&format!("{stem}_blocks")).is_some() {
            (DType::MXFP4, self.mxfp4(stem, &part, [experts, rows, row_len])?)
        } else {
            let turned = self.names.experts == ExpertFiles::Interleaved;
            let name = if turned { stem } else { &name };
            let shape = if turned { [experts, row_len, part.total] } else { [experts, part.total, row_len] };
            let (shard, entry) = self.checked(name, &shape)?;
            let format = self.format(shard, entry)?;
            let (data, size) = (self.data(shard, entry), format.block_bytes());
            let mut bytes = Vec::with_capacity(experts * rows * row_len * size);
            for expert in data.chunks((part.total * row_len * size).max(1)) {
                for row in (0..rows).map(|r| part.first + r * part.step) {
                    if turned {
                        for column in expert.chunks((part.total * size).max(1)) {
                            bytes.extend_from_slice(&column[row * size..(row + 1) * size]);
                        }
                    } else {
                        bytes.extend_from_slice(&expert[row * row_len * size..(row + 1) * row_len * size]);
                    }
                }
            }
            (format, bytes)
        };
        let backend = self.executor.backend();
        let layout = backend.policy().weight_layout(format.at_load());
        backend.kernels().expect_weights(layout);
        Ok(Tensor::from_bytes_as(self.executor, format, layout, &[experts * rows, row_len], &bytes)?)
    }

    /// Blocks of MXFP4 as GGUF files hold them. Folders hold neighbouring codes in a byte, and the scales apart.
    fn mxfp4(&self, stem: &str, part: &Part, [experts, rows, row_len]: [usize; 3]) -> Result<Vec<u8>> {
        let blocks = row_len / BLOCK;
        let (shard, codes) = self.checked(&format!("{stem}_blocks"), &[experts, part.total, blocks, BLOCK / 2])?;
        let (of_scales, scales) = self.checked(&format!("{stem}_scales"), &[experts, part.total, blocks])?;
        let bad = |reason: String| self.bad(shard, format!("tensor {stem}_blocks {reason}"));
        if !row_len.is_multiple_of(BLOCK) {
            return Err(bad(format!("has rows of {row_len} elements, which are not whole blocks of {BLOCK}")));
        }
        if codes.dtype.name != "U8" || scales.dtype.name != "U8" {
            return Err(bad(format!(
                "and its scales are {} and {}, but must be U8",
                codes.dtype.name, scales.dtype.name
            )));
        }
        let (codes, scales) = (self.data(shard, codes), self.data(of_scales, scales));
        let mut bytes = Vec::with_capacity(experts * rows * blocks * (BLOCK / 2 + 1));
        for expert in 0..experts {
            for row in (0..rows).map(|r| expert * part.total + part.first + r * part.step) {
                for block in row * blocks..(row + 1) * blocks {
                    let own = &codes[block * BLOCK / 2..(block + 1) * BLOCK / 2];
                    let code = |i: usize| own[i / 2] >> (4 * (i % 2)) & 15;
                    bytes.push(scales[block]);
                    bytes.extend((0..BLOCK / 2).map(|i| code(i) | code(i + BLOCK / 2) << 4));
                }
            }
        }
        Ok(bytes)
    }

    /// The biases `[experts, len]` of all experts.
    pub(super) fn joined_biases(&self, ours: &str, [experts, len]: [usize; 2]) -> Result<Tensor> {
        let name = self.name_of(ours);
        let part = self.part(ours, len);
        let name = format!("{}_bias", name.strip_suffix(".bias").unwrap_or(&name));
        let (shard, entry) = self.checked(&name, &[experts, part.total])?;
        let all = self.values(shard, entry)?;
        let own = |expert: &[f32]| -> Vec<f32> { (0..len).map(|r| expert[part.first + r * part.step]).collect() };
        let values: Vec<f32> = all.chunks(part.total.max(1)).flat_map(own).collect();
        Ok(Tensor::from_slice(self.executor(), &[experts, len], &values)?)
    }
}
