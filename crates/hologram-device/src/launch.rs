//! Launches: pipelines with their arguments, and lists of them.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::memory::Buffer;

/// The name of a kernel, for errors and profiles: a native kernel's operations, or a program's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelName {
    /// The name.
    pub text: Arc<str>,
    /// Whether it is a program rather than a native kernel.
    pub is_program: bool,
}

impl std::ops::Deref for KernelName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Something compiled that can be launched: a program or a native kernel.
#[derive(Clone)]
pub struct Pipeline {
    /// The kernel's name.
    pub name: KernelName,
    inner: Arc<dyn Any + Send + Sync>,
}

impl Pipeline {
    /// Wraps a backend's native kernel.
    pub fn native<T: Any + Send + Sync>(name: &str, inner: T) -> Pipeline {
        Pipeline { name: KernelName { text: name.into(), is_program: false }, inner: Arc::new(inner) }
    }

    /// Wraps a backend's compiled program.
    pub fn program<T: Any + Send + Sync>(name: &str, inner: T) -> Pipeline {
        Pipeline { name: KernelName { text: name.into(), is_program: true }, inner: Arc::new(inner) }
    }

    /// The backend's own type, for the backend.
    pub fn downcast<T: 'static>(&self) -> Option<&T> {
        self.inner.downcast_ref()
    }
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pipeline({})", self.name)
    }
}

/// An argument of a launch.
#[derive(Clone, Debug)]
pub enum Binding {
    /// A byte range of a buffer, seen as elements of the parameter's type.
    Buffer {
        /// The buffer.
        buffer: Buffer,
        /// Bytes of it; aligned to the element.
        range: Range<usize>,
    },
    /// A scalar parameter, as its register word (see [`Type`](hologram_isa::Type)).
    Scalar(u64),
}

impl Binding {
    /// The whole buffer.
    pub fn whole(buffer: &Buffer) -> Binding {
        Binding::Buffer { buffer: buffer.clone(), range: 0..buffer.bytes() }
    }
}

/// How many workgroups run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Workgroups in x, y, z.
    pub grid: [u32; 3],
}

/// One kernel launch. Native kernels ignore the grid.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel.
    pub pipeline: Pipeline,
    /// Its arguments.
    pub bindings: Vec<Binding>,
    /// Workgroups, for programs.
    pub config: LaunchConfig,
}

/// Launches recorded once and run repeatedly; each sees the writes of earlier ones.
#[derive(Clone)]
pub struct CommandList {
    inner: Arc<dyn Any + Send + Sync>,
}

impl CommandList {
    /// Wraps a backend's recording.
    pub fn new<T: Any + Send + Sync>(inner: T) -> CommandList {
        CommandList { inner: Arc::new(inner) }
    }

    /// The backend's own type, for the backend.
    pub fn downcast<T: 'static>(&self) -> Option<&T> {
        self.inner.downcast_ref()
    }
}

/// A point in a device's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event(pub u64);
