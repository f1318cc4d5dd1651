//! The common base of all devices.
//!
//! For users of devices: the trait [`Backend`] with its handles ([`Buffer`], [`Pipeline`], [`CommandList`]), requests
//! for kernels as typed data ([`KernelSpec`], [`GroupSpec`]), the storage formats of tensors ([`DType`]) and the
//! reference device. Users reach it through `hologram-backends`. For devices: the shared modules [`host`],
//! [`format`](mod@format), [`decode`] and [`cache`]. Nothing here depends on a particular device or model.

mod backend;
pub mod cache;
#[cfg(feature = "random")]
pub mod compare;
pub mod decode;
mod encode;
mod error;
pub mod format;
mod fused;
pub mod host;
mod info;
mod kernels;
mod launch;
mod lru;
mod measure;
mod memory;
mod metrics;
mod notes;
mod open;
mod operation;
mod pass_on;
mod policy;
mod reference;
mod spec;

pub use backend::{Backend, Streams};
pub use cache::{CacheInfo, cache_info, check_cache, clear_cache};
pub use error::{BackendError, Result};
pub use format::{
    Bits, BlockFormat, BlockType, Codes, DType, Factors, GRID_BLOCK, GridType, PLANE_ALIGN, PlaneLayout, Scales,
    Values, View,
};
pub use fused::{
    AfterBias, AfterExperts, AfterProducts, Biased, CacheUpdate, Conversion, Decay, Fused, FusedAttention, FusedConv,
    FusedExperts, FusedNorm, FusedProduct, FusedProducts, FusedRecurrence, Gate, MOST_PRODUCTS, NormConvert, NormGate,
    Norms, Route, Router, Rows, SORT_BLOCK, Strength,
};
#[doc(no_inline)]
pub use hologram_isa::Program;
pub use info::{APPLE_SLACK, BackendType, DeviceInfo, DeviceLimits};
pub use kernels::Kernels;
pub use launch::{Binding, CommandList, Event, KernelName, Launch, LaunchConfig, Pipeline};
pub use lru::Lru;
pub use measure::{Ceiling, CeilingKind, Measure};
pub use memory::{Buffer, DeviceMemory, ForeignMemory, ForeignPointer, POINTER_ALIGN, Pool, check_apart, check_range};
pub use metrics::{MemoryMetrics, Metrics};
pub use notes::{busy, note, take_notes, watch};
pub use open::{DeviceKind, OpenOptions, Precision};
pub use operation::{
    Activation, AttentionPrecision, ElementLoss, Elementwise, F32, F64, Flash, Float, Operation, OptimizerRule,
    Recurrence, Reduction, RopeStyle,
};
pub use policy::{Policy, Preference};
pub use reference::{Reference, ReferenceBackend};
pub use spec::{Extent, GroupNode, GroupSpec, KernelSpec, Operand, TensorSpec};
