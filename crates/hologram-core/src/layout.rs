//! Where the elements of a tensor or a view lie: an offset, and a stride per dimension.

use hologram_backends::Extent;

/// Offset and strides in elements, within the memory of the tensor that is viewed. A stride of 0 repeats elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The index of the first element.
    pub offset: usize,
    /// The distance from one index of a dimension to the next.
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

    /// Whether the elements of a tensor of these sizes are contiguous in row-major order. The first size does not
    /// matter.
    pub fn is_dense(&self, sizes: &[usize]) -> bool {
        let dense = Layout::dense(sizes).strides;
        sizes.iter().zip(&self.strides).zip(dense).enumerate().all(|(k, ((n, s), d))| (*n == 1 && k > 0) || *s == d)
    }

    /// Indices `start..end` of a dimension.
    ///
    /// # Errors
    /// When there is no such dimension or the range is not in it.
    pub fn slice(&self, sizes: &[usize], dim: usize, start: usize, end: usize) -> Result<(Vec<usize>, Layout), String> {
        let mut sizes = sizes.to_vec();
        let rank = sizes.len();
        let size = sizes.get_mut(dim).ok_or_else(|| format!("there is no dimension {dim} of {rank}"))?;
        if start > end || end > *size {
            return Err(format!("{start}..{end} is no range of the {size} indices of dimension {dim}"));
        }
        *size = end - start;
        let offset = self.offset + start * self.strides[dim];
        Ok((sizes, Layout { offset, strides: self.strides.clone() }))
    }

    /// Dimension `k` of the result is dimension `order[k]`.
    ///
    /// # Errors
    /// When `order` does not name each dimension once.
    pub fn permute(&self, sizes: &[usize], order: &[usize]) -> Result<(Vec<usize>, Layout), String> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..sizes.len()) {
            return Err(format!("{order:?} does not name each of {} dimensions once", sizes.len()));
        }
        let strides = order.iter().map(|d| self.strides[*d]).collect();
        Ok((order.iter().map(|d| sizes[*d]).collect(), Layout { offset: self.offset, strides }))
    }

    /// The layout that broadcasts a tensor of these sizes to `to`: leading dimensions that it lacks, and those of size
    /// 1, repeat.
    ///
    /// # Errors
    /// When the sizes do not fit.
    pub fn broadcast(&self, sizes: &[usize], to: &[usize]) -> Result<Layout, String> {
        let missing = to.len().checked_sub(sizes.len()).ok_or_else(|| format!("{to:?} has fewer dimensions"))?;
        let mut strides = vec![0; to.len()];
        for (k, (n, s)) in sizes.iter().zip(&self.strides).enumerate() {
            let want = to[missing + k];
            if *n != want && *n != 1 {
                return Err(format!("dimension {k} of size {n} does not repeat to {want}"));
            }
            strides[missing + k] = if *n == want { *s } else { 0 };
        }
        Ok(Layout { offset: self.offset, strides })
    }

    /// The same elements in row-major order with other sizes; `None` if strides cannot express that.
    pub fn reshape(&self, from: &[usize], to: &[usize]) -> Option<Layout> {
        let old: Vec<(usize, usize)> =
            from.iter().copied().zip(self.strides.iter().copied()).filter(|(n, _)| *n != 1).collect();
        let mut strides = vec![0; to.len()];
        // Matches dimensions from the last on, in runs of equally many elements that are contiguous.
        let (mut i, mut k) = (old.len(), to.len());
        while i > 0 {
            i -= 1;
            let (mut have, inner) = old[i];
            let (mut taken, mut stride) = (1, inner);
            loop {
                while taken < have && k > 0 && have.is_multiple_of(taken * to[k - 1].max(1)) {
                    k -= 1;
                    strides[k] = stride;
                    (taken, stride) = (taken * to[k], stride * to[k]);
                }
                if taken == have {
                    break;
                }
                if i == 0 || old[i - 1].1 != old[i].0 * old[i].1 {
                    return None;
                }
                i -= 1;
                have *= old[i].0;
            }
        }
        (to[..k].iter().all(|n| *n == 1)).then_some(Layout { offset: self.offset, strides })
    }

    /// The number of elements from the offset to the last element, inclusive; 0 for a tensor without elements.
    pub fn span(&self, sizes: &[usize]) -> usize {
        if sizes.contains(&0) {
            return 0;
        }
        1 + sizes.iter().zip(&self.strides).map(|(n, s)| (n - 1) * s).sum::<usize>()
    }
}

/// The index of an operand's element, computed from the row-major index of an output element: `offset` plus, for each
/// part, `(index / inner mod size) · stride`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IndexMap {
    pub offset: u32,
    /// The outermost part first.
    pub parts: Vec<Part>,
}

/// Neighbouring dimensions that an operand traverses with one stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub inner: u32,
    /// `None` for the outermost part of the output, which needs no remainder.
    pub size: Option<u32>,
    pub stride: u32,
}

impl IndexMap {
    /// The map of an operand whose shape broadcasts to the output's; `layout` is the operand's if it is a view.
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

    /// Whether every index maps to itself, so that the operand is read in the order in which the output is written.
    pub fn is_identity(&self) -> bool {
        self.offset == 0 && matches!(self.parts.as_slice(), [] | [Part { inner: 1, size: None, stride: 1 }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(layout: &Layout, sizes: &[usize]) -> Vec<usize> {
        let total: usize = sizes.iter().product();
        let at = |mut i: usize| {
            let mut at = layout.offset;
            for (n, s) in sizes.iter().zip(&layout.strides).rev() {
                at += i % n * s;
                i /= n;
            }
            at
        };
        (0..total).map(at).collect()
    }

    #[test]
    fn reshapes_keep_the_order_or_are_refused() {
        let whole = Layout::dense(&[4, 3, 2, 5]);
        let (sliced, view) = whole.slice(&[4, 3, 2, 5], 1, 1, 3).unwrap();
        let (turned, transposed) = whole.permute(&[4, 3, 2, 5], &[1, 0, 2, 3]).unwrap();
        let one = whole.broadcast(&[4, 3, 2, 5], &[1, 4, 3, 2, 5]).unwrap();
        for (from, layout, to, possible) in [
            (vec![4, 3, 2, 5], whole.clone(), vec![12, 10], true),
            (vec![4, 3, 2, 5], whole.clone(), vec![120], true),
            (vec![4, 3, 2, 5], whole.clone(), vec![8, 1, 15], true),
            (vec![1, 4, 3, 2, 5], one, vec![2, 60, 1], true),
            (sliced.clone(), view.clone(), vec![4, 20], true),
            (sliced.clone(), view.clone(), vec![2, 2, 4, 5], true),
            (sliced, view, vec![16, 5], false),
            (turned.clone(), transposed.clone(), vec![3, 4, 10], true),
            (turned.clone(), transposed.clone(), vec![3, 2, 2, 5, 2], true),
            (turned, transposed, vec![12, 10], false),
        ] {
            match layout.reshape(&from, &to) {
                Some(reshaped) => assert_eq!(read(&reshaped, &to), read(&layout, &from), "{from:?} as {to:?}"),
                None => assert!(!possible, "{from:?} as {to:?}"),
            }
        }
    }
}
