//! What an Apple GPU runs natively, and the formats that suit it: the same on every platform, so that a dry run counts what a device would do.

use super::texts::NAMES;
use crate::Format;
use crate::gpu::{self, NativeKernel, Part};
use crate::spec::{GroupSpec, KernelSpec};

/// What native kernels are chosen by: a device without CUDA's units, threadgroup memory of 32 KiB, and as many workgroups at a time as give
/// work to each core of most Apple GPUs (M1 to M5 Max have up to 40); Metal does not say how many there are.
const TARGET: gpu::Target = gpu::Target::apple(64, 32 << 10);

/// Whether all parts of a kernel have a text that serves Apple GPUs.
fn is_shared(kernel: &NativeKernel) -> bool {
    kernel.parts.iter().all(|part| match part {
        Part::Kernel(launch) => NAMES.contains(&launch.image()),
        Part::Blas(_) => false,
    })
}

/// The native kernel for a spec.
pub(super) fn find(spec: &KernelSpec) -> Option<NativeKernel> {
    gpu::find(spec, TARGET).filter(is_shared)
}

/// The native kernel for a group.
pub(super) fn find_group(group: &GroupSpec) -> Option<NativeKernel> {
    gpu::find_group(group, TARGET).filter(is_shared)
}

/// The layout that kernels read weights of a format in.
pub(super) fn weight_layout(format: Format) -> Format {
    gpu::weight_layout(format)
}

/// See [`Backend::activations`](crate::Backend::activations).
pub(super) fn activations(weights: Format, tokens: usize, choices: &[Format]) -> Option<Format> {
    // Few tokens are multiplied as codes, of many there are native products of f32 activations only.
    let planes = matches!(weights, Format::Planes(_)) && !weights.is_ternary();
    let wanted = if tokens > gpu::FEW_TOKENS { Format::F32 } else { Format::I8Groups { group: 32 } };
    choices.iter().find(|c| planes && **c == wanted).or(choices.first()).copied()
}

/// See [`Backend::cache_format`](crate::Backend::cache_format).
pub(super) fn cache_format(choices: &[Format]) -> Option<Format> {
    // Decoding reads the whole cache with every token.
    choices.iter().find(|c| **c == Format::F16).or(choices.first()).copied()
}
