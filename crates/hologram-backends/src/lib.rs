//! Devices behind one trait.
//!
//! A [`Backend`] owns memory ([`Buffer`]), compiles Atlas programs and names native kernels ([`Pipeline`]), records launches into a
//! [`CommandList`] and runs the list again and again. Nothing above this crate knows a device; nothing in it knows a model.

mod backend;
mod cache;
pub mod compare;
pub mod cpu;
pub mod cuda;
mod decode;
mod error;
mod format;
mod fused;
mod gpu;
mod host;
mod lru;
pub mod metal;
mod metrics;
mod notes;
mod open;
mod operation;
mod reference;
mod spec;

pub use backend::*;
pub use cache::{CacheInfo, cache_info, clear_cache};
pub use error::{BackendError, Result};
pub use format::{
    Bits, BlockFormat, BlockType, Codes, Factors, Format, PLANE_ALIGN, PlaneLayout, Scales, Values, View,
};
pub use fused::{
    AfterProducts, CacheUpdate, Conversion, Fused, FusedAttention, FusedNorm, FusedProduct, FusedProducts, Gate,
    NormConvert, SORT_BLOCK,
};
pub use lru::Lru;
pub use metrics::{MemoryMetrics, Metrics};
pub use notes::take_notes;
pub use open::{OpenOptions, available_backends, devices, is_device_name, open, open_noting, open_with};
pub use operation::{
    Activation, AttentionPrecision, ElementLoss, Elementwise, F32, F64, Float, Operation, Reduction, RopeStyle,
};
pub use reference::ReferenceBackend;
pub use spec::{Extent, GroupNode, GroupSpec, KernelSpec, Operand, TensorSpec};
