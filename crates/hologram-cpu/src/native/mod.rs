//! Native kernels of the CPU: one file per operation, and one line each in `kernels`.

pub(crate) mod attention;
pub(crate) mod bandwidth;
pub(crate) mod batch_matmul;
pub(crate) mod biased;
pub(crate) mod cast;
mod causal_conv;
mod columns;
mod conv2d;
pub(crate) mod copy;
mod cumsum;
mod decode;
pub(crate) mod elementwise;
mod expert_sum;
pub(crate) mod gather;
mod gemm;
pub(crate) mod kv_append;
mod layer_norm;
mod lines;
pub(crate) mod matmul;
mod moves;
pub(crate) mod narrow;
mod pad;
pub(crate) mod peak;
pub(crate) mod quantize;
mod random;
mod recurrence;
pub(crate) mod reduce;
pub(crate) mod rms_norm;
pub(crate) mod rope;
mod rows;
mod scatter;
pub(crate) mod simd;
pub(crate) mod softmax;
pub(crate) mod sort;
pub(crate) mod stream;

use std::sync::Arc;

use hologram_device::{Extent, GroupSpec, KernelSpec, Operation, TensorSpec};

use super::features::Features;
use super::kernel::{Args, NativeKernel, Pod};

/// A function that returns a kernel for the specs that it supports.
type Find = fn(&KernelSpec, Features) -> Option<Arc<dyn NativeKernel>>;

/// The native kernels of an operation, in the order in which they are tried; none if the operation runs as its program.
fn kernels(op: &Operation) -> &'static [Find] {
    match op {
        Operation::Matmul => &[matmul::find],
        Operation::ExpertMatmul { .. } => &[matmul::experts::find],
        Operation::ExpertSum => &[expert_sum::find],
        Operation::BatchMatmul { .. } => &[batch_matmul::find],
        Operation::Conv2d { .. } => &[conv2d::find],
        Operation::Quantize { .. } => &[quantize::find],
        Operation::Gather => &[gather::find],
        Operation::Cast => &[cast::find],
        Operation::Attention { .. } => &[attention::find],
        Operation::RmsNorm { .. } => &[rms_norm::find],
        Operation::LayerNorm { .. } => &[layer_norm::find],
        Operation::Rope { .. } => &[rope::find],
        Operation::KvAppend => &[kv_append::find],
        Operation::RecurrentState(_) | Operation::Recurrence(_) => &[recurrence::find],
        Operation::ConvState | Operation::CausalConv => &[causal_conv::find],
        Operation::Elementwise(_) | Operation::Loss(_) => &[elementwise::find],
        Operation::Copy => &[copy::find],
        Operation::CopyView { .. } | Operation::Concat { .. } | Operation::Take { .. } => &[moves::find],
        Operation::Pad { .. } => &[pad::find],
        Operation::Scatter { .. } => &[scatter::find],
        Operation::Random { .. } => &[random::find],
        Operation::Softmax { .. } => &[softmax::find, columns::find],
        Operation::CrossEntropy => &[softmax::find],
        Operation::ChunkSums { .. } | Operation::CumSum { .. } => &[cumsum::find],
        Operation::SortBlocks { .. } | Operation::ArgSort { .. } => &[sort::find],
        Operation::TopK { .. } => &[sort::find_top_k],
        Operation::Reduce { .. } | Operation::ArgReduce { .. } => &[reduce::find],
        Operation::FusedElementwise
        | Operation::QuantizeF8 { .. }
        | Operation::Fill { .. }
        | Operation::Arange { .. }
        | Operation::OptimizerStep { .. }
        | Operation::SortMerge { .. }
        | Operation::Repack
        | Operation::FlashAttention { .. }
        | Operation::Sample
        | Operation::Probe(_) => &[],
    }
}

pub(crate) use matmul::{has_tiles, multiplies_codes};

/// The native kernel for a spec on a processor with these features.
pub(crate) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    kernels(&spec.op).iter().find_map(|find| find(spec, features))
}

/// The kernel for a group and the spec of its launch, if there is one: for biases, and for a sort of whole lines.
pub(crate) fn find_group(group: &GroupSpec, features: Features) -> Option<(Arc<dyn NativeKernel>, KernelSpec)> {
    if let Some(found) = biased::find_group(group, features) {
        return Some(found);
    }
    let spec = sort::of_group(group)?;
    Some((find(&spec, features)?, spec))
}

/// Whether the elements of a run lie consecutively at the start of a tensor's memory. True of vectors too.
fn is_dense(tensor: &TensorSpec) -> bool {
    tensor.shape.iter().skip(1).all(|e| matches!(e, Extent::Fixed(_)))
}

/// The elements of a dense tensor in a run with this step block.
fn elements(tensor: &TensorSpec, step: &[u32]) -> usize {
    tensor.shape.iter().map(|e| e.value(step)).product()
}

/// Whether the rows of a run are dense. Memory is laid out for the maximum extents, so only the slowest dimension may
/// vary.
fn only_slowest_varies(tensor: &TensorSpec) -> bool {
    tensor.shape.len() > 1 && tensor.shape.iter().skip(1).all(|e| matches!(e, Extent::Fixed(_)))
}

/// Checks that an output argument has room for `len` elements.
fn room<T: Pod>(args: &Args<'_>, index: usize, len: usize) -> Result<(), String> {
    let has = args.raw(index).bytes / size_of::<T>();
    if has < len { Err(format!("argument {index} has {has} elements, needs {len}")) } else { Ok(()) }
}

/// The first `len` elements of an argument.
fn input<'a, T: Pod>(args: &Args<'a>, index: usize, len: usize) -> Result<&'a [T], String> {
    let all = args.read::<T>(index);
    all.get(..len).ok_or_else(|| format!("argument {index} has {} elements, needs {len}", all.len()))
}
