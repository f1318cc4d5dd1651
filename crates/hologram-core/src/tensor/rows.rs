//! The bytes of a tensor's rows, in its format's own layout: to keep a part of a tensor and put it back unchanged.

use std::ops::Range;

use super::Tensor;
use crate::error::{CoreError, Result};

impl Tensor {
    /// Bytes of each index of the first dimension, in all parts of the format together.
    ///
    /// # Errors
    /// When the tensor is a view, or its format keeps several indices together.
    pub fn row_bytes(&self) -> Result<usize> {
        Ok(self.row_parts()?.iter().map(|(_, bytes)| bytes).sum())
    }

    /// Waits for the device's work and appends the bytes of these indices of the first dimension to `bytes`: for each
    /// part of the format those of all indices.
    ///
    /// # Errors
    /// As [`Tensor::row_bytes`]; when the range is outside; the error of the operation that computes them.
    pub fn read_rows(&self, rows: Range<usize>, bytes: &mut Vec<u8>) -> Result<()> {
        for (at, part) in self.parts_of(&rows)? {
            let start = bytes.len();
            bytes.resize(start + part, 0);
            self.executor.backend().copy_from_buffer(&self.buffer, at, &mut bytes[start..])?;
        }
        Ok(())
    }

    /// Writes what [`Tensor::read_rows`] read from a tensor of the same format and row.
    ///
    /// # Errors
    /// As [`Tensor::read_rows`]; when the number of bytes is wrong.
    pub fn write_rows(&self, rows: Range<usize>, bytes: &[u8]) -> Result<()> {
        let parts = self.parts_of(&rows)?;
        let all: usize = parts.iter().map(|(_, part)| part).sum();
        if all != bytes.len() {
            return Err(CoreError::Tensor(format!("{} rows take {all} bytes, not {}", rows.len(), bytes.len())));
        }
        let mut rest = bytes;
        for (at, part) in parts {
            let (of_part, after) = rest.split_at(part);
            self.executor.backend().copy_to_buffer(&self.buffer, at, of_part)?;
            rest = after;
        }
        Ok(())
    }

    /// Where the bytes of these rows begin in the buffer, and how many they are, for each part of the format.
    fn parts_of(&self, rows: &Range<usize>) -> Result<Vec<(usize, usize)>> {
        let all = self.shape.first().copied().unwrap_or(0);
        if rows.start > rows.end || rows.end > all {
            return Err(CoreError::Tensor(format!("rows {rows:?} are outside of {all}")));
        }
        let place = |(at, bytes): (usize, usize)| (self.offset + at + rows.start * bytes, rows.len() * bytes);
        Ok(self.row_parts()?.into_iter().map(place).collect())
    }

    /// Where each part of the format begins, and its bytes per row.
    fn row_parts(&self) -> Result<Vec<(usize, usize)>> {
        if self.strides.is_some() {
            return Err(CoreError::Tensor("a view has no rows of its own: copy it first".into()));
        }
        let (ranges, rows) = (self.ranges(), self.shape.first().copied().unwrap_or(0).max(1));
        let mixed = ranges.iter().any(|range| !range.len().is_multiple_of(rows));
        if mixed || ranges.windows(2).any(|pair| pair[1].start < pair[0].end) {
            return Err(CoreError::Tensor(format!("rows of {} do not lie apart", self.format.name())));
        }
        Ok(ranges.into_iter().map(|range| (range.start, range.len() / rows)).collect())
    }
}
