//! Native kernels of the CPU: one file for each operation, and one line for each in [`KERNELS`].

pub(crate) mod bandwidth;
mod cast;
mod decode;
mod gather;
mod matmul;
mod quantize;

use std::sync::Arc;

use super::features::Features;
use super::kernel::NativeKernel;
use crate::{Extent, KernelSpec, TensorSpec};

/// A function that gives a kernel for the specs it serves.
type Find = fn(&KernelSpec, Features) -> Option<Arc<dyn NativeKernel>>;

/// Every native kernel; the first that answers serves.
const KERNELS: &[Find] = &[matmul::find, quantize::find, gather::find, cast::find];

/// The native kernel for a spec on a processor with these features.
pub fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    KERNELS.iter().find_map(|find| find(spec, features))
}

/// Whether the rows of a run are dense: memory is laid out for the greatest extents, so only the slowest dimension may vary.
fn only_slowest_varies(tensor: &TensorSpec) -> bool {
    tensor.shape.len() > 1 && tensor.shape.iter().skip(1).all(|e| matches!(e, Extent::Fixed(_)))
}
