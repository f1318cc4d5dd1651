//! The trait that every device implements, and the handles it gives out.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use hologram_isa::{Capability, Program};

use crate::Format;
use crate::error::{BackendError, Result};
use crate::metrics::Metrics;
use crate::spec::{GroupSpec, KernelSpec};

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
    /// Threads that run work at the same time on a CPU; multiprocessors on an NVIDIA GPU; 1 where the device does not tell.
    pub parallelism: usize,
    /// What programs may need that not every device has.
    pub capabilities: Vec<Capability>,
    /// Instruction sets and features that kernels are chosen by, such as `avx512vnni`.
    pub features: Vec<&'static str>,
    /// What else users may want to know, by name, such as a GPU's driver.
    pub details: Vec<(&'static str, String)>,
}

/// A range of device memory. Clones share it; the last one dropped frees it.
#[derive(Clone)]
pub struct Buffer {
    inner: Arc<dyn DeviceMemory>,
}

/// What a backend keeps behind a [`Buffer`]; freed on drop.
pub trait DeviceMemory: Any + Send + Sync {
    /// Size in bytes.
    fn bytes(&self) -> usize;
    /// The kind of backend that it belongs to.
    fn backend(&self) -> BackendType;
    /// For the backend's downcast.
    fn as_any(&self) -> &dyn Any;
}

impl Buffer {
    /// Wraps a backend's memory.
    pub fn new(memory: impl DeviceMemory) -> Buffer {
        Buffer { inner: Arc::new(memory) }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.inner.bytes()
    }

    /// The kind of backend that it belongs to.
    pub fn backend(&self) -> BackendType {
        self.inner.backend()
    }

    /// The backend's own type, for the backend.
    pub fn downcast<T: 'static>(&self) -> Option<&T> {
        self.inner.as_any().downcast_ref()
    }

    /// Whether both are the same memory.
    pub fn same_memory(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({}, {} bytes)", self.backend(), self.bytes())
    }
}

/// A fixed-size arena addressed by offset, for streaming data larger than the device.
#[derive(Clone, Debug)]
pub struct Pool(pub Buffer);

/// Host memory that a buffer may wrap without a copy: the owner is kept alive as long as the buffer.
///
/// Its address can only be given by [`ForeignMemory::new`], which is unsafe, or found by [`ForeignMemory::from_owner`]:
///
/// ```compile_fail,E0451
/// # use hologram_backends::ForeignMemory;
/// let memory = ForeignMemory { owner: std::sync::Arc::new(()), data: 8 as *const u8, bytes: 64 };
/// ```
pub struct ForeignMemory {
    /// Keeps the bytes alive, unmoved and unchanged (a mapped file, an array of another library).
    owner: Arc<dyn Any + Send + Sync>,
    data: *const u8,
    bytes: usize,
}

// SAFETY: the bytes are only read, and `owner`, which is Send and Sync, keeps them unchanged: see `ForeignMemory::new`.
unsafe impl Send for ForeignMemory {}
// SAFETY: shared references give only the address and shared slices of bytes that stay unchanged.
unsafe impl Sync for ForeignMemory {}

impl ForeignMemory {
    /// The bytes that an owner gives, which is asked for them once.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use hologram_backends::{Backend, ForeignMemory, ReferenceBackend};
    /// let device = ReferenceBackend::new();
    /// let buffer = device.wrap(ForeignMemory::from_owner(Arc::new(vec![1, 2, 3])))?;
    /// let mut bytes = [0; 2];
    /// device.copy_from_buffer(&buffer, 1, &mut bytes)?;
    /// assert_eq!(bytes, [2, 3]);
    /// # Ok::<(), hologram_backends::BackendError>(())
    /// ```
    ///
    /// Every thread may read the bytes as long as a buffer lives, so the owner must be `Send`, `Sync` and without borrows:
    ///
    /// ```compile_fail,E0597
    /// # use std::sync::Arc;
    /// # use hologram_backends::ForeignMemory;
    /// let bytes = vec![1, 2, 3];
    /// let memory = ForeignMemory::from_owner(Arc::new(bytes.as_slice()));
    /// ```
    pub fn from_owner<T: AsRef<[u8]> + Send + Sync + 'static>(owner: Arc<T>) -> ForeignMemory {
        let bytes: &[u8] = (*owner).as_ref();
        let (data, bytes) = (bytes.as_ptr(), bytes.len());
        // SAFETY: `bytes` borrows from the owner, and this borrow may last as long as the memory keeps its clone of the `Arc`: until then
        // the owner neither moves nor dies, and nobody gets a `&mut` to it. What an owner does through shared references (by interior
        // mutability) must respect the borrow, as for any caller of `as_ref` that keeps the slice.
        unsafe { ForeignMemory::new(owner, data, bytes) }
    }

    /// Bytes at an address.
    ///
    /// # Safety
    /// As long as `owner` lives, `data` is valid for reads of `bytes` bytes, which nobody writes. It may be null where there are no bytes.
    pub unsafe fn new(owner: Arc<dyn Any + Send + Sync>, data: *const u8, bytes: usize) -> ForeignMemory {
        ForeignMemory { owner, data, bytes }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: valid for reads and unchanged while the owner lives, as the caller of `new` has promised; the borrow keeps the owner.
        unsafe { std::slice::from_raw_parts(self.data, self.bytes) }
    }

    /// What keeps the bytes alive.
    pub fn owner(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.owner
    }
}

/// Something compiled that can be launched: a program or a native kernel.
#[derive(Clone)]
pub struct Pipeline {
    /// The kernel's name, for errors and profiles.
    pub name: Arc<str>,
    inner: Arc<dyn Any + Send + Sync>,
}

impl Pipeline {
    /// Wraps a backend's compiled kernel.
    pub fn new<T: Any + Send + Sync>(name: &str, inner: T) -> Pipeline {
        Pipeline { name: name.into(), inner: Arc::new(inner) }
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
    /// What runs.
    pub pipeline: Pipeline,
    /// Its arguments.
    pub bindings: Vec<Binding>,
    /// Workgroups, for programs.
    pub config: LaunchConfig,
}

/// What bounds an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CeilingKind {
    /// Reading memory.
    Read,
    /// Writing as many bytes as are read.
    Copy,
    /// Writing one byte for two that are read.
    Triad,
    /// Multiplications and additions of `f32`.
    F32,
    /// Dot products of `bf16`, summed in `f32`.
    Bf16,
    /// Dot products of 8-bit integers.
    I8,
}

/// See [`Backend::ceiling`].
#[derive(Clone, Debug)]
pub struct Ceiling {
    /// The launch, with memory of its own.
    pub launch: Launch,
    /// Bytes that it moves, or operations that it does: multiplications and additions, each counted.
    pub amount: f64,
}

/// Launches recorded once and run again and again; each sees the writes of those before it.
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

/// A device: memory, pipelines and a queue of work.
///
/// Work submitted to a backend runs in order. The error of a kernel sticks to what it was to write, to what the launches behind it in its
/// list were to write, and to everything that later lists compute from that: such a list does not run (or, on a device that works beside
/// the host, its results do not count). [`copy_from_buffer`](Backend::copy_from_buffer) of those bytes gives the error each time,
/// [`wait`](Backend::wait) with the event of such a list too; [`synchronize`](Backend::synchronize) gives the first error that nobody has
/// been told of, once. Bytes are good again when the host or a list that does not depend on them writes them. Nothing else is concerned.
pub trait Backend: Send + Sync {
    /// The device's description.
    fn info(&self) -> &DeviceInfo;

    /// Whether the device still answers.
    fn is_available(&self) -> bool {
        true
    }

    /// Memory of this many bytes with undefined content, aligned to at least 64 bytes.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn allocate_buffer(&self, bytes: usize) -> Result<Buffer>;

    /// Whether a buffer is this device's own, so that its work may use it.
    fn owns(&self, buffer: &Buffer) -> bool {
        buffer.backend() == self.info().backend
    }

    /// Gives memory back; dropping the last clone does the same.
    fn free_buffer(&self, buffer: Buffer) {
        drop(buffer);
    }

    /// A buffer over foreign host memory, which kernels may only read. Zero-copy where the device shares memory with the host, else
    /// a copy.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn wrap(&self, memory: ForeignMemory) -> Result<Buffer>;

    /// Copies host bytes into a buffer at a byte offset.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`] when the range is outside.
    fn copy_to_buffer(&self, buffer: &Buffer, offset: usize, data: &[u8]) -> Result<()>;

    /// Waits for the queue and copies bytes at an offset to the host.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`] when the range is outside; the error of the launch because of which the bytes have no content.
    fn copy_from_buffer(&self, buffer: &Buffer, offset: usize, data: &mut [u8]) -> Result<()>;

    /// Copies between buffers of this device, in queue order. The ranges may lie in one buffer but not overlap.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`] when a range is outside or they overlap.
    fn copy_buffer(&self, from: &Buffer, from_offset: usize, to: &Buffer, to_offset: usize, bytes: usize)
    -> Result<()>;

    /// Declares the content of bytes good that a failed launch was to write: whoever calls this knows which of them it has left alone, as
    /// a cache of which only a new part was being written.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`] when the range is outside.
    fn clear_error(&self, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()>;

    /// Compiles a program, or finds it in the cache (keyed by the program's whole text).
    ///
    /// # Errors
    /// The verifier's error; [`BackendError::Unsupported`].
    fn compile(&self, program: &Program) -> Result<Pipeline>;

    /// A native kernel for this operation; `None` means: compile the operation's program.
    fn native(&self, spec: &KernelSpec) -> Option<Pipeline>;

    /// A native kernel that computes several operations together; `None` means: launch them one by one.
    fn native_group(&self, _group: &GroupSpec) -> Option<Pipeline> {
        None
    }

    /// Whether the device serves this operation, whose sizes are all fixed, faster than the same with sizes that are known only when it
    /// runs. Then a step of exactly these sizes is worth a plan of its own.
    fn prefers_fixed(&self, _spec: &KernelSpec) -> bool {
        false
    }

    /// Whether the host's memory is the device's, so that [`Backend::wrap`] copies nothing.
    fn shares_host_memory(&self) -> bool {
        false
    }

    /// Bytes of memory that new buffers may take now; `None` where the device does not tell.
    fn available_memory(&self) -> Option<u64> {
        None
    }

    /// The layout in which this device's kernels read weights of a format, holding the same values. Weights are converted once, when
    /// they are loaded.
    fn weight_layout(&self, format: Format) -> Format {
        format
    }

    /// Says that weights of this layout are about to be loaded, so that the device may begin at once what their products need and takes long.
    fn expect_weights(&self, _layout: Format) {}

    /// Which of several formats of activations (the first is the most natural) suits a product with weights of this layout in a step
    /// of up to `tokens` tokens. The graph then says so: it is never a kernel's own choice.
    fn activations(&self, _weights: Format, _tokens: usize, choices: &[Format]) -> Option<Format> {
        choices.first().copied()
    }

    /// Which of several formats (the first is the most precise) attention's products suit in a step of up to `tokens` tokens. The graph
    /// then says so, as with [`Backend::activations`].
    fn attention_products(&self, _tokens: usize, choices: &[Format]) -> Option<Format> {
        choices.first().copied()
    }

    /// How many neighbouring elements a thread of an elementwise program should work on: 1, or 4 where a device moves four elements
    /// with one instruction.
    fn elements_per_thread(&self) -> u32 {
        1
    }

    /// Which of several formats (the first is the most precise) suits a model's cache of keys and values.
    fn cache_format(&self, choices: &[Format]) -> Option<Format> {
        choices.first().copied()
    }

    /// Checks launches (arguments, alignment, ranges) and prepares them to be run repeatedly.
    ///
    /// # Errors
    /// [`BackendError::InvalidArgument`] with the kernel and the argument.
    fn record(&self, launches: &[Launch]) -> Result<CommandList>;

    /// Enqueues a recording.
    ///
    /// # Errors
    /// Only what is known at once; errors of kernels come at the next wait.
    fn submit(&self, list: &CommandList) -> Result<Event>;

    /// Waits until the queue has passed the event.
    ///
    /// # Errors
    /// Why the list failed that the event is of, as often as it is asked; the last 1,024 such lists are remembered.
    fn wait(&self, event: Event) -> Result<()>;

    /// Waits for everything submitted.
    ///
    /// # Errors
    /// The first error that nobody has been told of, once.
    fn synchronize(&self) -> Result<()>;

    /// Runs the launches of a recording one by one, in order, and gives for each its kernel's name and the seconds it took on the
    /// device. For tuning: the sum is more than a replay takes.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] for a device that cannot; the error of the list.
    fn profile(&self, _list: &CommandList) -> Result<Vec<(Arc<str>, f64)>> {
        let (device, what) = (self.info().backend.to_string(), "measuring single kernels".into());
        Err(BackendError::Unsupported { device, what })
    }

    /// Verdicts on native kernels that this device compiles where it runs, and which a self-test must therefore pass before they serve; none
    /// where kernels come compiled.
    fn verdicts(&self) -> Option<&dyn Verdicts> {
        None
    }

    /// Does some work while the device's own tools capture what it is given, into a new document with this name (for Metal a `.gputrace`,
    /// which Xcode opens).
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] for a device that has no such tools; [`BackendError::Device`] with why the system does not capture.
    /// The work is then not done.
    fn capture(&self, _path: &Path, _work: &mut dyn FnMut()) -> Result<()> {
        let (device, what) = (self.info().backend.to_string(), "a frame capture, which Metal makes,".into());
        Err(BackendError::Unsupported { device, what })
    }

    /// Counters since the device was opened.
    fn metrics(&self) -> Metrics;

    /// Sustained read bandwidth of device memory in bytes per second, measured now: the ceiling of kernels bound by memory.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`]; [`BackendError::Unsupported`] for a device that has no such measurement.
    fn read_bandwidth(&self) -> Result<f64> {
        let (device, what) = (self.info().backend.to_string(), "measuring its read bandwidth".into());
        Err(BackendError::Unsupported { device, what })
    }

    /// Sustained bandwidth of a copy within device memory in bytes per second, counting bytes read and bytes written, measured now.
    ///
    /// # Errors
    /// As [`Backend::read_bandwidth`].
    fn copy_bandwidth(&self) -> Result<f64> {
        let (device, what) = (self.info().backend.to_string(), "measuring its copy bandwidth".into());
        Err(BackendError::Unsupported { device, what })
    }

    /// A launch that does nothing but what bounds an operation, as fast as the device can, to be timed beside the operation; `None`
    /// for a device that has no such launch.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn ceiling(&self, _kind: CeilingKind) -> Result<Option<Ceiling>> {
        Ok(None)
    }

    /// A fixed-size arena.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    fn allocate_pool(&self, bytes: usize) -> Result<Pool> {
        self.allocate_buffer(bytes).map(Pool)
    }

    /// Gives an arena back.
    fn free_pool(&self, pool: Pool) {
        self.free_buffer(pool.0);
    }

    /// Copies host bytes into an arena.
    ///
    /// # Errors
    /// As [`Backend::copy_to_buffer`].
    fn copy_to_pool(&self, pool: &Pool, offset: usize, data: &[u8]) -> Result<()> {
        self.copy_to_buffer(&pool.0, offset, data)
    }

    /// Copies bytes of an arena to the host.
    ///
    /// # Errors
    /// As [`Backend::copy_from_buffer`].
    fn copy_from_pool(&self, pool: &Pool, offset: usize, data: &mut [u8]) -> Result<()> {
        self.copy_from_buffer(&pool.0, offset, data)
    }

    /// Compiles a program, runs it once and waits.
    ///
    /// # Errors
    /// Those of compiling, recording and running.
    fn execute_program(&self, program: &Program, bindings: &[Binding], config: &LaunchConfig) -> Result<()> {
        let pipeline = self.compile(program)?;
        let list = self.record(&[Launch { pipeline, bindings: bindings.to_vec(), config: *config }])?;
        let event = self.submit(&list)?;
        self.wait(event)
    }
}

/// What self-tests have said of native kernels, kept for this system and device: see [`Backend::verdicts`].
pub trait Verdicts {
    /// The texts that a pipeline's kernels are compiled from; none for a program.
    fn texts(&self, kernel: &Pipeline) -> Vec<&'static str>;

    /// Whether the kernels of a text compute an operation as they should; `None` where that was not tested.
    fn get(&self, text: &'static str, op: &str) -> Option<bool>;

    /// Keeps a verdict: how many cases were right, or how the first failed that was not. Returns whether the text may serve. A device keeps
    /// no verdict of no case beyond this process.
    fn put(&self, text: &'static str, op: &str, verdict: std::result::Result<usize, String>) -> bool;
}

/// Checks that `offset..offset + bytes` lies in a buffer.
///
/// # Errors
/// [`BackendError::InvalidArgument`].
pub fn check_range(device: BackendType, operation: &str, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()> {
    match offset.checked_add(bytes) {
        Some(end) if end <= buffer.bytes() => Ok(()),
        _ => Err(BackendError::InvalidArgument {
            device: device.to_string(),
            operation: operation.to_string(),
            reason: format!("bytes {offset}..+{bytes} lie outside a buffer of {} bytes", buffer.bytes()),
        }),
    }
}

/// Checks that the two ranges of a copy do not overlap.
///
/// # Errors
/// [`BackendError::InvalidArgument`].
pub fn check_apart(
    device: BackendType,
    (from, from_offset): (&Buffer, usize),
    (to, to_offset): (&Buffer, usize),
    bytes: usize,
) -> Result<()> {
    if !from.same_memory(to) || from_offset.abs_diff(to_offset) >= bytes {
        return Ok(());
    }
    Err(BackendError::InvalidArgument {
        device: device.to_string(),
        operation: "copy_buffer".into(),
        reason: format!("{bytes} bytes at {from_offset} and at {to_offset} of one buffer overlap"),
    })
}
