//! A device's description.

use std::fmt;

use hologram_isa::Capability;

/// The kinds of backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendType {
    /// The host's processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// An Apple GPU.
    Metal,
    /// The reference interpreter: slow, checks everything.
    Reference,
}

impl BackendType {
    /// Every kind, best first.
    pub const ALL: [BackendType; 4] = [BackendType::Cuda, BackendType::Metal, BackendType::Cpu, BackendType::Reference];

    /// Whether a machine may have several, so that `NAME:N` is number N.
    pub const fn is_numbered(self) -> bool {
        matches!(self, BackendType::Cuda)
    }

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            BackendType::Cpu => "cpu",
            BackendType::Cuda => "cuda",
            BackendType::Metal => "metal",
            BackendType::Reference => "reference",
        }
    }
}

impl fmt::Display for BackendType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A device's description.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The kind of backend.
    pub backend: BackendType,
    /// The device's own name, such as the processor's.
    pub name: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Threads that a CPU runs in parallel; multiprocessors of an NVIDIA GPU; 1 where the device does not report it.
    pub parallelism: usize,
    /// The optional features of programs that the device supports.
    pub capabilities: Vec<Capability>,
    /// Instruction sets and features that kernels are chosen by, such as `avx512vnni`.
    pub features: Vec<&'static str>,
    /// Further details for users, by name, such as a GPU's driver.
    pub details: Vec<(&'static str, String)>,
}
