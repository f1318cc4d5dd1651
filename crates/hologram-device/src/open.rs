//! Finding and opening the devices of a kind.

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::Result;
use crate::info::{BackendType, DeviceInfo};

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// A CPU's worker threads, 1 to 1024; by default one per physical core that the process may use. Other devices
    /// ignore it.
    pub threads: Option<usize>,
    /// The most bytes of device memory that buffers and the allocator's cache may hold together; by default only the
    /// device limits them.
    pub memory_cap: Option<u64>,
    /// The precision of products of `f32` matrices.
    pub precision: Precision,
}

/// The precision of products of `f32` matrices; their sums are always in `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// That of `f32`.
    #[default]
    Exact,
    /// Elements may be rounded to tf32, which has 11 bits, before they are multiplied: faster on tensor cores of NVIDIA
    /// GPUs. Other devices do not open with it.
    Tf32,
}

impl Precision {
    /// All precisions.
    pub const ALL: [Precision; 2] = [Precision::Exact, Precision::Tf32];

    /// The name, as users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::Exact => "exact",
            Precision::Tf32 => "tf32",
        }
    }

    /// The precision of a name.
    pub fn from_name(name: &str) -> Option<Precision> {
        Precision::ALL.into_iter().find(|precision| precision.name() == name)
    }
}

/// A kind of device, implemented by the device's crate for code that opens devices by name.
pub trait DeviceKind: Sync {
    /// The kind; its name opens a device of it.
    fn backend(&self) -> BackendType;

    /// This machine's devices, each with the name that opens it: its description, or why it cannot be used. A broken
    /// driver has one entry in place of its devices.
    fn devices(&self) -> Vec<(String, Result<DeviceInfo>)>;

    /// Opens device number `number`; 0 for kinds without numbers.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`](crate::BackendError::Unavailable) with what is missing.
    fn open(&self, number: u32, options: &OpenOptions) -> Result<Arc<dyn Backend>>;

    /// Opens the first device that can be opened.
    ///
    /// # Errors
    /// Why none can be opened, if the user would expect one; `None` where the machine has no such device.
    fn open_any(&self, options: &OpenOptions) -> std::result::Result<Arc<dyn Backend>, Option<String>> {
        self.open(0, options).map_err(|error| Some(error.to_string()))
    }
}
