//! A device's description.

use std::fmt;

use hologram_isa::Capability;
use hologram_isa::meaning::Subnormals;

macro_rules! backend_types {
    ($($kind:ident $name:literal $doc:literal,)*) => {
        /// The kinds of backend.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum BackendType {
            $(#[doc = $doc] $kind,)*
        }

        impl BackendType {
            /// Every kind, best first.
            pub const ALL: [BackendType; [$($name),*].len()] = [$(BackendType::$kind),*];

            /// The name on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(BackendType::$kind => $name,)*
                }
            }
        }
    };
}

// Best first.
backend_types! {
    Cuda "cuda" "An NVIDIA GPU.",
    Metal "metal" "An Apple GPU.",
    Cpu "cpu" "The host's processor.",
    Reference "reference" "The reference interpreter: slow, checks everything.",
}

impl BackendType {
    /// Whether a machine may have several, so that `NAME:N` is number N.
    pub const fn is_numbered(self) -> bool {
        matches!(self, BackendType::Cuda)
    }
}

impl fmt::Display for BackendType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// As [`DeviceInfo::slack`], of Apple's GPUs: Metal promises functions of `f32` within 4 units in the last place and
/// `tanh` within 5, where bounds allow 2 (Metal Shading Language Specification, "Relative error").
pub const APPLE_SLACK: f64 = 2.5;

/// A device's description.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The kind of backend.
    pub backend: BackendType,
    /// The device's own name, such as the processor's.
    pub name: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Threads that a CPU runs in parallel; multiprocessors of an NVIDIA GPU; cores of an Apple GPU; 1 where the device
    /// does not report it.
    pub parallelism: usize,
    /// What programs and buffers may be at most.
    pub limits: DeviceLimits,
    /// The optional features of programs that the device supports.
    pub capabilities: Vec<Capability>,
    /// What arithmetic on `f32` does with subnormal numbers; `f16` and `f64` keep theirs on every device.
    pub subnormals: Subnormals,
    /// Instruction sets and features that kernels are chosen by, such as `avx512vnni`.
    pub features: Vec<&'static str>,
    /// Further details for users, by name, such as a GPU's driver.
    pub details: Vec<(&'static str, String)>,
}

impl DeviceInfo {
    /// How many times the error bound of an operation's definition its native kernels may be off.
    pub fn slack(&self) -> f64 {
        if self.backend == BackendType::Metal { APPLE_SLACK } else { 1.0 }
    }
}

/// The largest programs and buffers of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Threads of a workgroup.
    pub workgroup_threads: u32,
    /// Threads that run in lock step: a warp, a SIMD-group.
    pub subgroup_threads: u32,
    /// Bytes of shared memory of a workgroup. A program may use 32 KiB on every device; only native kernels use more.
    pub shared_bytes: u32,
    /// Bytes of a buffer, apart from the memory that is free.
    pub buffer_bytes: u64,
}

impl DeviceLimits {
    /// What a program may use on every device, with buffers of any size.
    pub const PROGRAM: DeviceLimits = DeviceLimits {
        workgroup_threads: hologram_isa::MAX_WORKGROUP,
        subgroup_threads: hologram_isa::SUBGROUP_SIZE,
        shared_bytes: hologram_isa::MAX_SHARED_BYTES as u32,
        buffer_bytes: isize::MAX as u64,
    };
}
