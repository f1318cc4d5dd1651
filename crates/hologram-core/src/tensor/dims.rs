//! Names of dimensions in methods of tensors.

use std::fmt::Display;
use std::ops::RangeFull;

/// One dimension: 0 is the slowest, −1 the last.
pub trait Axis: Copy + Display {
    /// The index of the dimension in a tensor of this rank, if it exists.
    fn axis(self, rank: usize) -> Option<usize>;
}

macro_rules! axes {
    ($($ty:ty)*) => {$(
        impl Axis for $ty {
            fn axis(self, rank: usize) -> Option<usize> {
                let at = i64::try_from(self).ok()?;
                let at = if at < 0 { at.checked_add(i64::try_from(rank).ok()?)? } else { at };
                usize::try_from(at).ok().filter(|at| *at < rank)
            }
        }

        impl Dims for $ty {
            fn dims(&self, rank: usize) -> Result<Vec<usize>, String> {
                all(rank, [*self])
            }
        }
    )*};
}
axes!(i32 i64 isize usize);

/// Some dimensions: one, several as a tuple, an array or a slice, or all as `..`.
///
/// ```
/// use hologram_core::{Executor, Tensor};
///
/// let x = Tensor::from_slice(&Executor::open("cpu", None)?, &[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// assert_eq!(x.sum(0)?.to_vec::<f32>()?, [5.0, 7.0, 9.0]);
/// assert_eq!(x.sum(-1)?.to_vec::<f32>()?, [6.0, 15.0]);
/// assert_eq!(x.sum((0, 1))?.to_vec::<f32>()?, [21.0]);
/// assert_eq!(x.sum(..)?.to_vec::<f32>()?, [21.0]);
/// # Ok::<(), hologram_core::CoreError>(())
/// ```
pub trait Dims {
    /// The dimensions in a tensor of this rank, each once, in order.
    ///
    /// # Errors
    /// A dimension that does not exist, or one that is named twice.
    fn dims(&self, rank: usize) -> Result<Vec<usize>, String>;
}

fn all<A: Axis>(rank: usize, axes: impl IntoIterator<Item = A>) -> Result<Vec<usize>, String> {
    let one = |axis: A| axis.axis(rank).ok_or_else(|| format!("there is no dimension {axis}: it has {rank}"));
    let mut dims = axes.into_iter().map(one).collect::<Result<Vec<_>, _>>()?;
    dims.sort_unstable();
    match dims.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("dimension {} is named twice", pair[0])),
        None => Ok(dims),
    }
}

impl<A: Axis + TryInto<i64>> Dims for &[A] {
    fn dims(&self, rank: usize) -> Result<Vec<usize>, String> {
        all(rank, self.iter().copied())
    }
}

impl<A: Axis + TryInto<i64>, const N: usize> Dims for [A; N] {
    fn dims(&self, rank: usize) -> Result<Vec<usize>, String> {
        all(rank, *self)
    }
}

impl<A: Axis + TryInto<i64>> Dims for (A, A) {
    fn dims(&self, rank: usize) -> Result<Vec<usize>, String> {
        all(rank, [self.0, self.1])
    }
}

impl<A: Axis + TryInto<i64>> Dims for (A, A, A) {
    fn dims(&self, rank: usize) -> Result<Vec<usize>, String> {
        all(rank, [self.0, self.1, self.2])
    }
}

impl Dims for RangeFull {
    fn dims(&self, rank: usize) -> Result<Vec<usize>, String> {
        Ok((0..rank).collect())
    }
}
