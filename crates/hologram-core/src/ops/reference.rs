//! The data types of references: operands and results.

use hologram_backends::DType;

/// An operand on the host: actual shape and dequantized values.
#[derive(Clone, Debug)]
pub struct HostTensor {
    /// The storage format that it was dequantized from.
    pub format: DType,
    /// Actual sizes, slowest first.
    pub shape: Vec<usize>,
    /// Dequantized values, row-major.
    pub values: Vec<f64>,
}

impl HostTensor {
    /// Length of the last dimension.
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// A reference result.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// Values, row-major.
    pub values: Vec<f64>,
    /// The maximum absolute deviation of each value.
    pub bounds: Vec<f64>,
}

impl Reference {
    /// Appends a value with its bound.
    pub fn push(&mut self, value: f64, bound: f64) {
        self.values.push(value);
        self.bounds.push(bound);
    }

    /// With bounds that are so many times as large, as a device needs ([`hologram_backends::DeviceInfo::slack`]).
    #[must_use]
    pub fn loosened(mut self, slack: f64) -> Reference {
        self.bounds.iter_mut().for_each(|bound| *bound *= slack);
        self
    }
}
