//! Arguments of kernels. A kernel's text declares their kinds and order (`kernels/arguments.h`); a launch fills in the
//! structure generated from the declaration ([`super::kernels`]).

use std::any::Any;
use std::fmt::Debug;

use hologram_device::Extent;

/// The arguments of a kernel: a structure of [`super::kernels`].
pub trait KernelArgs: Any + Debug + Send + Sync {
    /// The image of its kernels: the name of their text without its extension.
    fn image(&self) -> &'static str;
    /// The kernels that take these arguments.
    fn entries(&self) -> &'static [&'static str];
    /// The most threads of a workgroup of each of these kernels, as its text declares them.
    fn threads(&self) -> &'static [usize];
    /// The arguments in the order of the kernel's declaration, without the next launch's ranges.
    fn list(&self) -> Vec<Arg>;
    /// The memory that the kernel reads before the launch before it has ended: `EARLY` in `arguments.h`. A launch after
    /// one that writes it must not start early.
    fn early(&self) -> Vec<Memory> {
        Vec::new()
    }
    /// The ranges that the launch reads and nothing writes, if its kernel takes as many ranges of the next launch after
    /// all other arguments. It prefetches parts of them into the L2 when its own reading ends, so that the memory does
    /// not idle between the launches.
    fn reads(&self) -> Option<&[Range]> {
        None
    }
}

/// An argument as the device receives it.
#[derive(Clone, Debug)]
pub enum Arg {
    /// An address.
    Memory(Memory),
    /// A number.
    U32(u32),
    /// A number.
    F32(f32),
    /// A description of a matrix for the bulk tensor copy engine, passed by value.
    TensorMap(TensorMap),
}

/// Memory that an argument points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// A binding, by its index among the spec's bindings.
    Binding(usize),
    /// The scratch memory, at this offset.
    Scratch(usize),
    /// The zeroed memory, at this offset.
    Counters(usize),
    /// The launch's fault record. A kernel with an index out of range records it there, skips the element, and goes on;
    /// the error is reported at the next wait.
    Fault,
    /// Unused memory. A kernel recognises it by a number, as Metal takes no null pointers for buffers.
    Null,
    /// A known address of the device.
    Address(u64),
}

impl Memory {
    /// A binding, or unused memory.
    pub fn optional(place: Option<usize>) -> Memory {
        place.map_or(Memory::Null, Memory::Binding)
    }
}

/// A matrix in memory as the bulk tensor copy engine sees it (compute capability 9.0).
#[derive(Clone, Debug)]
pub struct TensorMap {
    /// The matrix's memory.
    pub memory: Memory,
    /// Size of an element in bytes: 1, 2 (bf16 or f16) or 4.
    pub element: u32,
    /// Sizes, fastest first.
    pub dims: Vec<u64>,
    /// Bytes from row to row, from the second dimension on; multiples of 16.
    pub strides: Vec<u64>,
    /// Sizes of a tile, fastest first.
    pub tile: Vec<u32>,
    /// Bytes of the swizzle pattern: 0, 32, 64 or 128.
    pub swizzle: u32,
}

/// A size that may be known only at run time: `EXTENT` in `arguments.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actual {
    /// Word of the step block; `u32::MAX` where the size is fixed.
    pub slot: u32,
    /// The greatest value.
    pub most: u32,
}

impl Actual {
    /// Of a size; `None` beyond 32 bits.
    pub fn of(extent: Extent) -> Option<Actual> {
        let (slot, most) = match extent {
            Extent::Fixed(n) => (u32::MAX, n),
            Extent::Step { slot, max, .. } => (slot, max),
        };
        Some(Actual { slot, most: u32::try_from(most).ok()? })
    }
}

/// A count with the step block that it is read from: `COUNT` in `arguments.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The step block; null where the count is fixed.
    pub step: Memory,
    /// Word of the step block; `u32::MAX` where the count is fixed.
    pub slot: u32,
    /// The greatest value of the word.
    pub most: u32,
    /// The factor that multiplies the word.
    pub per: u32,
}

/// Bytes of which workgroup x reads `len` from byte x · `stride` on, up to `total`: `AHEAD_RANGE` in `stream.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The memory of the first byte.
    pub at: Memory,
    /// The total number of bytes.
    pub total: u32,
    /// Bytes between the starts of consecutive workgroups.
    pub stride: u32,
    /// Bytes that a workgroup reads.
    pub len: u32,
}

impl Range {
    /// No bytes.
    pub const NONE: Range = Range { at: Memory::Null, total: 0, stride: 0, len: 0 };
}
