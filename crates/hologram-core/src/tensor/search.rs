//! Searching and distinct elements: computed by several operations.

use hologram_backends::DType;
use hologram_isa::Type;

use super::{Dim, Tensor};
use crate::eager::Call;
use crate::error::{CoreError, Result};

/// The distinct elements of a tensor, by [`Tensor::unique`].
#[derive(Clone, Debug)]
pub struct Unique {
    /// The distinct elements in ascending order: `[k]`.
    pub values: Tensor,
    /// The row-major index (`i64 [k]`) of the first element that has each value.
    pub indices: Tensor,
    /// The index (`i64`, of the tensor's shape) of each element's value in `values`.
    pub inverse: Tensor,
    /// How many elements have each value (`i64 [k]`).
    pub counts: Tensor,
}

impl Tensor {
    /// The places (`u32`, of `values`' shape) at which `values` can be inserted in this line of ascending numbers and
    /// keep it in order: before equal elements, or behind them with `right`. NaN counts as greater than all numbers.
    ///
    /// # Errors
    /// When the tensor is no line, or the types differ or are no numbers; errors of the device.
    pub fn search_sorted(&self, values: &Tensor, right: bool) -> Result<Tensor> {
        let &[n] = self.shape() else {
            return Err(self.refuse("search_sorted", "takes one dimension".into()));
        };
        if self.dtype() != values.dtype() || self.dtype() == DType::Plain(Type::Bool) {
            return Err(
                self.refuse("search_sorted", format!("takes numbers of one type, not {}", values.dtype().name()))
            );
        }
        if n == 0 || values.shape().contains(&0) {
            return Tensor::zeros(self.executor(), DType::U32, values.shape());
        }
        let m = values.shape().iter().product();
        let line = values.reshape(&[m])?;
        let found = self.executor().cached(Call::SearchSorted, &[right.into()], &[self, &line], |g, v| {
            let &[sorted, value] = v else { return Err(CoreError::Graph("search_sorted takes two operands".into())) };
            let number = |g: &mut crate::Graph, n: usize| g.scalar(DType::U32, n as f64);
            let (one, last) = (number(g, 1)?, number(g, n - 1)?);
            let mut low = g.full(DType::U32, &[Dim::Fixed(m)], 0.0)?;
            let mut high = g.full(DType::U32, &[Dim::Fixed(m)], n as f64)?;
            // Each step halves the range low..high of places.
            for _ in 0..usize::BITS - n.leading_zeros() {
                let size = g.sub(high, low)?;
                let half = g.shr(size, one)?;
                let middle = g.add(low, half)?;
                let at = g.minimum(middle, last)?;
                let probe = g.take_along(sorted, at, 0)?;
                let mut behind = if right { g.le(probe, value)? } else { g.lt(probe, value)? };
                if matches!(self.dtype(), DType::Plain(ty) if ty.is_float()) {
                    let mut nan = g.isnan(value)?;
                    if !right {
                        let number = g.eq(probe, probe)?;
                        nan = g.and(nan, number)?;
                    }
                    behind = g.or(behind, nan)?;
                }
                let open = g.lt(low, high)?;
                let (up, before) = (g.and(open, behind)?, g.not(behind)?);
                let down = g.and(open, before)?;
                let above = g.add(middle, one)?;
                low = g.select(up, above, low)?;
                high = g.select(down, middle, high)?;
            }
            Ok(low)
        })?;
        found.reshape(values.shape())
    }

    /// The distinct elements. Each NaN is distinct; −0 equals +0. Waits for their number.
    ///
    /// # Errors
    /// When the format is not plain; errors of the device.
    pub fn unique(&self) -> Result<Unique> {
        let n: usize = self.shape().iter().product();
        let line = self.reshape(&[n])?;
        if n == 0 {
            let none = Tensor::zeros(self.executor(), Type::I64, &[0])?;
            let inverse = Tensor::zeros(self.executor(), Type::I64, self.shape())?;
            return Ok(Unique { values: line, indices: none.clone(), inverse, counts: none });
        }
        let is_bool = self.dtype() == DType::Plain(Type::Bool);
        let line = if is_bool { line.cast(Type::U8)? } else { line };
        let order = line.arg_sort(0, false)?;
        let sorted = line.take_along(&order, 0)?;
        let first = Tensor::ones(self.executor(), Type::Bool, &[1])?;
        let begins = Tensor::cat(&[&first, &sorted.slice(0, 1, n)?.ne(sorted.slice(0, 0, n - 1)?)?], 0)?;
        let starts = begins.flat_nonzero()?;
        let k = starts.shape()[0];
        let end = Tensor::full(self.executor(), DType::U32, &[1], n as f64)?;
        let ends = Tensor::cat(&[&starts.slice(0, 1, k)?, &end], 0)?;
        let ranks = (begins.cast(Type::U32)?.cumsum(0)? - 1.0)?;
        let inverse = order.zeros_like()?.scatter(&order, &ranks, 0)?;
        let values = sorted.take_along(&starts, 0)?;
        Ok(Unique {
            values: if is_bool { values.cast(Type::Bool)? } else { values },
            indices: order.take_along(&starts, 0)?.cast(Type::I64)?,
            inverse: inverse.cast(Type::I64)?.reshape(self.shape())?,
            counts: (ends - &starts)?.cast(Type::I64)?,
        })
    }
}
