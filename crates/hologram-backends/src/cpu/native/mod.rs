//! Native kernels of the CPU: one file for each operation, and one line for each in [`KERNELS`].

mod decode;
mod matmul;

use std::sync::Arc;

use super::features::Features;
use super::kernel::NativeKernel;
use crate::KernelSpec;

/// A function that gives a kernel for the specs it serves.
type Find = fn(&KernelSpec, Features) -> Option<Arc<dyn NativeKernel>>;

/// Every native kernel; the first that answers serves.
const KERNELS: &[Find] = &[matmul::find];

/// The native kernel for a spec on a processor with these features.
pub fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    KERNELS.iter().find_map(|find| find(spec, features))
}
