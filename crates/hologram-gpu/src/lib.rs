//! What GPUs share: which native kernel serves an operation or a group, with its grid and arguments. One file for each operation or
//! group, and one line for each in `kernels` or `group_kernels`.
//!
//! Kernel texts that serve every GPU are in `kernels/shared/`; those that need one vendor's units are in `kernels/cuda/` and
//! `kernels/metal/`. Nothing here touches a device: `hologram-cuda` and `hologram-metal` resolve the arguments and launch.

mod arguments;
mod attention;
mod dry;
mod elementwise;
mod gather;
mod gemm;
mod hazards;
mod kv_append;
mod launch;
mod matvec;
mod policy;
mod quantize;
mod reduce;
mod repack;
mod rms_norm;
mod rope;
mod sample;
mod softmax;
mod take;
pub mod texts;
mod top_k;

/// What the kernel texts declare: for each declaration a structure of its arguments, in a module of the text's name.
/// Made by `build/`.
#[allow(missing_docs, reason = "the texts document their arguments")]
pub mod kernels {
    include!(concat!(env!("OUT_DIR"), "/arguments.rs"));
}

pub use arguments::{Arg, KernelArgs, Memory, Range, TensorMap};
pub use dry::{DryGpu, DryRun};
pub use gemm::Unpacked;
pub use hazards::Hazards;
pub use policy::policy;

use std::sync::Arc;

use hologram_device::{Fused, Gate, GroupSpec, KernelSpec, Operation};

/// The most tokens of a step that kernels bound by memory serve; with more, tensor cores are faster.
pub const FEW_TOKENS: usize = 8;

/// The most tokens of a step for which products of 8-bit codes with weights in 8 or 4 bits are faster than those of `bf16` on tensor cores: on an
/// NVIDIA H200 by 10 to 42 % with 4 tokens, while with 8 they were slower by 14 to 30 %.
pub const FEW_TOKENS_AS_CODES: usize = 4;

/// The GPU that kernels are chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Who made it.
    pub vendor: Vendor,
    /// Multiprocessors of an NVIDIA GPU, cores of an Apple GPU.
    pub multiprocessors: u32,
    /// The most shared memory of a workgroup in bytes, when a kernel requests it.
    pub max_shared: u32,
}

/// The maker of a GPU, with what its kernels differ by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA.
    Nvidia {
        /// Compute capability as major · 10 + minor: 90 for an H100 or H200.
        capability: u32,
    },
    /// Apple.
    Apple,
}

impl Target {
    /// An NVIDIA GPU.
    pub const fn nvidia(capability: u32, multiprocessors: u32, max_shared: u32) -> Target {
        Target { vendor: Vendor::Nvidia { capability }, multiprocessors, max_shared }
    }

    /// An Apple GPU, with 32 KiB of threadgroup memory, and as many workgroups at a time as give work to each core of most (M1 to M5
    /// Max have up to 40): Metal does not say how many there are.
    pub const APPLE: Target = Target { vendor: Vendor::Apple, multiprocessors: 64, max_shared: 32 << 10 };

    /// Whether it is an Apple GPU.
    pub fn is_apple(self) -> bool {
        self.vendor == Vendor::Apple
    }

    /// The compute capability of an NVIDIA GPU; 0 for others.
    pub fn capability(self) -> u32 {
        match self.vendor {
            Vendor::Nvidia { capability } => capability,
            Vendor::Apple => 0,
        }
    }

    /// Whether it is an NVIDIA GPU of at least this compute capability.
    pub fn has(self, capability: u32) -> bool {
        matches!(self.vendor, Vendor::Nvidia { capability: own } if own >= capability)
    }

    /// Whether it is an NVIDIA GPU of exactly this compute capability.
    pub fn is(self, capability: u32) -> bool {
        self.vendor == Vendor::Nvidia { capability }
    }
}

/// What serves a spec or a group: its parts run one after the other.
#[derive(Clone, Debug)]
pub struct NativeKernel {
    /// The parts in order.
    pub parts: Vec<Part>,
    /// Bytes of scratch memory that all recordings on a device share; its content lasts from part to part, not longer.
    pub scratch: usize,
    /// Bytes of memory of the recording's own, zeroed when it is recorded: counters that every run leaves at zero.
    pub counters: usize,
}

impl NativeKernel {
    /// Whether the device has all texts: Apple GPUs compile those that serve them.
    fn serves(&self, target: Target) -> bool {
        let there = |part: &Part| match part {
            Part::Kernel(launch) => texts::is_there(launch.image()),
            Part::Blas(_) => false,
        };
        !target.is_apple() || self.parts.iter().all(there)
    }
}

/// One step of a native kernel.
#[derive(Clone, Debug)]
pub enum Part {
    /// A kernel of an image.
    Kernel(KernelLaunch),
    /// A product by cuBLASLt, with the workspace at the beginning of the scratch memory.
    Blas(Box<BlasCall>),
}

/// A product y [n, m] = x [n, k] · w [m, k]ᵀ of `bf16` matrices with sums and results in `f32`, as cuBLASLt is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlasProduct {
    /// Rows of x.
    pub n: usize,
    /// Rows of w.
    pub m: usize,
    /// Elements of a row of both.
    pub k: usize,
    /// Whether another matrix `[n, m]` is added to it.
    pub adds: bool,
}

/// Bytes that cuBLASLt may use as workspace, at the beginning of the scratch memory.
pub const BLAS_WORKSPACE: usize = 32 << 20;

/// A product with its operands.
#[derive(Clone, Debug)]
pub struct BlasCall {
    /// Its sizes.
    pub product: BlasProduct,
    /// Left side.
    pub x: Memory,
    /// Right side.
    pub w: Memory,
    /// What is added; [`Memory::Null`] where nothing is.
    pub add: Memory,
    /// Result.
    pub y: Memory,
}

/// A launch of a kernel of an image. All numbers are fixed when it is recorded: a kernel reads the actual extents from the step block
/// and its superfluous workgroups end at once.
#[derive(Clone, Debug)]
pub struct KernelLaunch {
    /// The arguments, which know the image.
    pub args: Arc<dyn KernelArgs>,
    /// The kernel's name in the image.
    pub entry: String,
    /// Workgroups in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a workgroup in x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory; more than 48 KiB is asked for by the launcher.
    pub shared: u32,
    /// Workgroups of a cluster in x; 1 for none.
    pub cluster: u32,
    /// Whether the kernel calls `DEPENDENCY_WAIT()` before it touches memory that other launches write or read, so that it may start
    /// while the launch before it ends (programmatic dependent launch).
    pub early: bool,
    /// The phase of a stack that it can be, where it can be joined with others.
    pub phase: Option<StackPhase>,
}

impl KernelLaunch {
    /// The image, by the name of its source without its ending.
    pub fn image(&self) -> &'static str {
        self.args.image()
    }

    /// The arguments as those of one declaration.
    #[cfg(test)]
    pub fn filled<A: KernelArgs>(&self) -> &A {
        let args: &dyn std::any::Any = &*self.args;
        args.downcast_ref().unwrap_or_else(|| panic!("{} takes {:?}", self.entry, self.args))
    }

    /// Whether the kernel notes faults.
    pub fn has_fault_record(&self) -> bool {
        self.args.list().iter().any(|arg| matches!(arg, Arg::Memory(Memory::Fault)))
    }
}

/// A launch as a phase of `kernels/cuda/decode_stack.cu`, with its arguments.
#[derive(Clone, Debug)]
pub enum StackPhase {
    /// Products of one token with ternary weights.
    Products {
        /// How two matrices make one result, where they do.
        gate: Option<Gate>,
        /// The launch's arguments.
        args: Arc<kernels::matvec_i8::MatvecI8>,
    },
    /// Attention over `f32` caches to heads of 128 elements, four for each key/value head.
    Attention(Arc<kernels::attention_decode::AttentionDecode>),
}

/// A function that gives a kernel for the specs it serves.
type Find = fn(&KernelSpec, Target) -> Option<NativeKernel>;
/// A function that gives a kernel for the groups it serves.
type FindGroup = fn(&GroupSpec, Target) -> Option<NativeKernel>;

/// The native kernels of an operation, in the order in which they are tried; none where its program runs.
fn kernels(op: &Operation) -> &'static [Find] {
    match op {
        Operation::RmsNorm { .. } => &[rms_norm::find],
        Operation::Quantize { .. } => &[quantize::find],
        Operation::Elementwise(_) | Operation::Cast | Operation::Copy => &[elementwise::find],
        Operation::Gather => &[gather::find],
        Operation::Attention { .. } => &[attention::find],
        Operation::Rope { .. } => &[rope::find],
        Operation::KvAppend => &[kv_append::find],
        Operation::Softmax { .. } => &[softmax::find],
        Operation::Reduce { .. } => &[reduce::find],
        Operation::TopK { .. } => &[top_k::find],
        Operation::Take { .. } => &[take::find],
        Operation::Repack => &[repack::find],
        Operation::Sample => &[sample::find],
        Operation::Matmul => &[matvec::find, gemm::find, matvec::find_rest],
        Operation::FusedElementwise
        | Operation::Fill { .. }
        | Operation::Arange { .. }
        | Operation::Random { .. }
        | Operation::CopyView { .. }
        | Operation::Concat { .. }
        | Operation::Pad { .. }
        | Operation::Scatter { .. }
        | Operation::ArgReduce { .. }
        | Operation::ChunkSums { .. }
        | Operation::CumSum { .. }
        | Operation::SortBlocks { .. }
        | Operation::SortMerge { .. }
        | Operation::ArgSort { .. }
        | Operation::LayerNorm { .. }
        | Operation::BatchMatmul { .. }
        | Operation::Conv2d { .. }
        | Operation::Loss(_)
        | Operation::CrossEntropy
        | Operation::Probe(_) => &[],
    }
}

/// The native kernels of a group, in the order in which they are tried.
fn group_kernels(fused: &Fused) -> &'static [FindGroup] {
    match fused {
        Fused::NormConvert(_) => &[rms_norm::find_group],
        Fused::CacheUpdate(_) => &[attention::find_group],
        Fused::Products(_) => &[matvec::find_group, gemm::find_group],
        Fused::SortLines { .. } => &[],
    }
}

/// The native kernel for a spec on this device.
pub fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    kernels(&spec.op).iter().find_map(|find| find(spec, target)).filter(|kernel| kernel.serves(target))
}

/// The native kernel for a group on this device.
pub fn find_group(group: &GroupSpec, target: Target) -> Option<NativeKernel> {
    group_kernels(&group.fused).iter().find_map(|find| find(group, target)).filter(|kernel| kernel.serves(target))
}

/// What cuBLASLt computes faster than the native kernel for a spec, where the library is there, and what is unpacked before it.
pub fn find_blas(spec: &KernelSpec, target: Target) -> Option<(BlasCall, Unpacked)> {
    gemm::find_blas(spec, target)
}

/// As [`find_blas`], for a group.
pub fn find_blas_group(group: &GroupSpec, target: Target) -> Option<(BlasCall, Unpacked)> {
    gemm::find_blas_group(group, target)
}
