//! Where the elements of a tensor, or of a view of one, lie: an offset and a stride for each dimension.

use hologram_backends::Extent;

/// Offset and strides in elements, within the memory of the tensor that is looked at. Strides of 0 repeat elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The first element.
    pub offset: usize,
    /// From one index of a dimension to the next.
    pub strides: Vec<usize>,
}

impl Layout {
    /// Row-major, from the start.
    pub fn dense(sizes: &[usize]) -> Layout {
        let mut strides = vec![1usize; sizes.len()];
        for i in (1..sizes.len()).rev() {
            strides[i - 1] = strides[i].saturating_mul(sizes[i]);
        }
        Layout { offset: 0, strides }
    }
}

/// How the index of an element of an operand follows from the row-major index of an element of the output: the sum of `offset` and,
/// for each part, `(index / inner mod size) · stride`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IndexMap {
    pub offset: u32,
    /// The outermost first.
    pub parts: Vec<Part>,
}

/// Neighbouring dimensions that an operand goes through with one stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub inner: u32,
    /// `None` for the outermost part of the output, which needs no remainder.
    pub size: Option<u32>,
    pub stride: u32,
}

impl IndexMap {
    /// For an operand of a shape that broadcasts to the output's; `layout` is its own where it is a view.
    pub fn of(output: &[Extent], operand: &[Extent], layout: Option<&Layout>) -> IndexMap {
        let dense = Layout::dense(&operand.iter().map(|e| e.max()).collect::<Vec<_>>());
        let layout = layout.unwrap_or(&dense);
        let missing = output.len().saturating_sub(operand.len());
        let mut parts: Vec<Part> = Vec::new();
        let mut inner = 1u32;
        for (k, extent) in output.iter().enumerate().rev() {
            if *extent == Extent::Fixed(1) {
                continue;
            }
            let own = k.checked_sub(missing);
            let repeats = own.is_none_or(|j| operand[j] == Extent::Fixed(1));
            let stride = own.filter(|_| !repeats).map_or(0, |j| layout.strides[j] as u32);
            let size = extent.max().max(1) as u32;
            match parts.last_mut() {
                Some(Part { size: Some(n), stride: s, .. }) if s.wrapping_mul(*n) == stride => *n *= size,
                _ => parts.push(Part { inner, size: Some(size), stride }),
            }
            inner = inner.saturating_mul(size);
        }
        if let Some(outermost) = parts.last_mut() {
            outermost.size = None;
        }
        parts.reverse();
        IndexMap { offset: layout.offset as u32, parts }
    }

    /// Whether every index is its own: the operand is read as the output is written.
    pub fn is_identity(&self) -> bool {
        self.offset == 0 && matches!(self.parts.as_slice(), [] | [Part { inner: 1, size: None, stride: 1 }])
    }
}
