//! One GPU's context and its objects: streams, events, modules, graphs, pinned memory. Dropping an object frees it.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute as Attribute, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec,
    CUmodule, CUstream, CUstreamCaptureMode,
};
use hologram_device::{BackendError, Result};

use super::driver::{Code, Driver};

/// Codes after which a context returns only the same error: the device is lost to this process.
const LOST: &[Code] = &[214, 220, 221, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721];

/// The code at the end of a capture that something else invalidated.
const CAPTURE_INVALIDATED: Code = 901;
/// Attempts at a capture.
const CAPTURES: usize = 8;

/// A GPU's primary context, shared with other libraries of the process.
pub(super) struct Context {
    pub(super) driver: &'static Driver,
    device: CUdevice,
    context: CUcontext,
    /// The device as users name it: `cuda:0`.
    pub(super) name: String,
    /// Why the device is lost, once it is.
    lost: OnceLock<String>,
}

// SAFETY: the driver's functions may be called from any thread, and the handles are only numbers.
unsafe impl Send for Context {}
// SAFETY: the driver allows concurrent calls with one context, the handles never change, and `lost` is a `OnceLock`.
unsafe impl Sync for Context {}

/// Facts about a GPU that need no context.
pub(super) struct DeviceFacts {
    pub(super) name: String,
    pub(super) memory_bytes: u64,
    /// Compute capability as major · 10 + minor.
    pub(super) capability: u32,
    pub(super) multiprocessors: u32,
    pub(super) max_shared: u32,
}

/// The number of GPUs.
///
/// # Errors
/// The driver's.
pub(super) fn device_count(driver: &Driver) -> std::result::Result<u32, String> {
    let mut count = 0;
    // SAFETY: writes one number.
    driver.named(unsafe { (driver.cuDeviceGetCount)(&mut count) })?;
    Ok(count.max(0) as u32)
}

/// The driver's description of a GPU.
///
/// # Errors
/// The driver's.
pub(super) fn device_facts(driver: &Driver, ordinal: u32) -> std::result::Result<(CUdevice, DeviceFacts), String> {
    let mut device = 0;
    let mut name = [0 as c_char; 256];
    let mut memory = 0;
    // SAFETY: writes one variable of its type.
    driver.named(unsafe { (driver.cuDeviceGet)(&mut device, ordinal as c_int) })?;
    // SAFETY: writes at most the name's 256 bytes.
    driver.named(unsafe { (driver.cuDeviceGetName)(name.as_mut_ptr(), name.len() as c_int, device) })?;
    // SAFETY: writes one variable of its type.
    driver.named(unsafe { (driver.cuDeviceTotalMem_v2)(&mut memory, device) })?;
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: writes one number.
        driver.named(unsafe { (driver.cuDeviceGetAttribute)(&mut value, attribute, device) })?;
        Ok::<u32, String>(value.max(0) as u32)
    };
    let name = name.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect::<Vec<_>>();
    let facts = DeviceFacts {
        name: String::from_utf8_lossy(&name).into_owned(),
        memory_bytes: memory as u64,
        capability: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? * 10
            + attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        max_shared: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
    };
    Ok((device, facts))
}

impl Context {
    /// Retains the primary context of a GPU.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn new(
        driver: &'static Driver,
        device: CUdevice,
        name: String,
    ) -> std::result::Result<Arc<Context>, String> {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes one handle.
        driver.named(unsafe { (driver.cuDevicePrimaryCtxRetain)(&mut context, device) })?;
        Ok(Arc::new(Context { driver, device, context, name, lost: OnceLock::new() }))
    }

    /// Makes the context current on the calling thread, as every other function here requires.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] when the device is lost.
    pub(super) fn enter(&self) -> Result<()> {
        if let Some(why) = self.lost.get() {
            return Err(self.lost_error(why));
        }
        // SAFETY: the context is retained.
        self.check(unsafe { (self.driver.cuCtxSetCurrent)(self.context) }, || "entering its context".into())
    }

    /// As [`Context::enter`], for drops: whether the device still answers.
    fn enter_to_free(&self) {
        // SAFETY: the context is retained. After a failure the following calls fail too, which drops ignore.
        unsafe { (self.driver.cuCtxSetCurrent)(self.context) };
    }

    /// Turns a code of the driver into an error of the operation; records whether it means that the device is lost.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub(super) fn check(&self, code: Code, operation: impl FnOnce() -> String) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let reason = self.driver.named(code).err().unwrap_or_default();
        if LOST.contains(&code) {
            self.lost.get_or_init(|| reason.clone());
        }
        Err(BackendError::Device { device: self.name.clone(), operation: operation(), reason })
    }

    /// Whether the device is lost.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    fn lost_error(&self, why: &str) -> BackendError {
        let reason = format!("it is lost to this process after an error: {why}; start the program again");
        BackendError::Unavailable { device: self.name.clone(), reason }
    }

    /// Free and total bytes of the device's memory.
    pub(super) fn memory(&self) -> Option<(u64, u64)> {
        self.enter().ok()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        let code = unsafe { (self.driver.cuMemGetInfo_v2)(&mut free, &mut total) };
        (code == 0).then_some((free as u64, total as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `new` retained it once; every object in it holds an `Arc` of the context, so all are gone.
        unsafe { (self.driver.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident($handle:ty), $free:ident;)*) => {$(
        $(#[$doc])*
        pub(super) struct $name {
            pub(super) raw: $handle,
            pub(super) context: Arc<Context>,
        }

        // SAFETY: the driver's functions accept the handle on any thread; the queue's lock orders operations that must
        // not overlap.
        unsafe impl Send for $name {}
        // SAFETY: shared references only read the handle, which is constant; the queue's lock orders uses that must not
        // overlap.
        unsafe impl Sync for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                self.context.enter_to_free();
                // SAFETY: the constructor made the handle, and nothing uses it after this drop.
                unsafe { (self.context.driver.$free)(self.raw) };
            }
        }
    )*};
}

handles! {
    /// A stream that does not wait for the default stream.
    Stream(CUstream), cuStreamDestroy_v2;
    /// An event.
    CudaEvent(CUevent), cuEventDestroy_v2;
    /// A loaded module.
    Module(CUmodule), cuModuleUnload;
    /// A graph.
    Graph(CUgraph), cuGraphDestroy;
    /// A graph that can be launched.
    GraphExec(CUgraphExec), cuGraphExecDestroy;
    /// Device memory.
    DeviceBlock(CUdeviceptr), cuMemFree_v2;
    /// Host memory that the device reads and writes directly, at the same address.
    Pinned(*mut c_void), cuMemFreeHost;
}

impl Stream {
    pub(super) fn new(context: &Arc<Context>) -> Result<Stream> {
        const NON_BLOCKING: u32 = 1;
        context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        let code = unsafe { (context.driver.cuStreamCreate)(&mut raw, NON_BLOCKING) };
        context.check(code, || "creating a stream".into())?;
        Ok(Stream { raw, context: context.clone() })
    }

    /// Makes later work of this stream wait for the event.
    pub(super) fn wait_for(&self, event: &CudaEvent) -> Result<()> {
        // SAFETY: both live.
        let code = unsafe { (self.context.driver.cuStreamWaitEvent)(self.raw, event.raw, 0) };
        self.context.check(code, || "ordering streams".into())
    }

    /// Waits for everything in the stream.
    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives.
        let code = unsafe { (self.context.driver.cuStreamSynchronize)(self.raw) };
        self.context.check(code, || "waiting for its queue".into())
    }

    /// Records the work that `work` puts into the stream as a graph, without running it. Another thread or library of
    /// the process may invalidate a capture; then it starts again after a pause.
    ///
    /// # Errors
    /// Those of `work`, and the driver's.
    pub(super) fn capture(&self, work: impl Fn() -> Result<()>) -> Result<Graph> {
        const PAUSE: std::time::Duration = std::time::Duration::from_millis(10);
        for _ in 1..CAPTURES {
            match self.capture_once(&work) {
                (CAPTURE_INVALIDATED, _) => std::thread::sleep(PAUSE),
                (_, captured) => return captured,
            }
        }
        self.capture_once(&work).1
    }

    /// One capture: the driver's code at its end, and the result.
    fn capture_once(&self, work: impl Fn() -> Result<()>) -> (Code, Result<Graph>) {
        let driver = self.context.driver;
        // SAFETY: the stream lives, and only this function's caller uses it.
        let begun =
            unsafe { (driver.cuStreamBeginCapture_v2)(self.raw, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) };
        if let Err(error) = self.context.check(begun, || "beginning a graph".into()) {
            return (begun, Err(error));
        }
        let done = work();
        let mut raw = std::ptr::null_mut();
        // SAFETY: ends the capture above; after a failure the graph is null.
        let code = unsafe { (driver.cuStreamEndCapture)(self.raw, &mut raw) };
        let graph = (!raw.is_null()).then(|| Graph { raw, context: self.context.clone() });
        let ended = done.and_then(|()| self.context.check(code, || "ending a graph".into()));
        let none = || self.context.error("ending a graph", "the driver gave none");
        (code, ended.and_then(|()| graph.ok_or_else(none)))
    }
}

impl Context {
    pub(super) fn error(&self, operation: &str, reason: &str) -> BackendError {
        BackendError::Device { device: self.name.clone(), operation: operation.into(), reason: reason.into() }
    }
}

impl Graph {
    pub(super) fn instantiate(&self) -> Result<GraphExec> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph lives; writes one handle.
        let code = unsafe { (self.context.driver.cuGraphInstantiateWithFlags)(&mut raw, self.raw, 0) };
        self.context.check(code, || "making a graph ready".into())?;
        Ok(GraphExec { raw, context: self.context.clone() })
    }
}

impl GraphExec {
    /// Uploads the graph to the device, so that its first launch need not.
    pub(super) fn upload(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both live.
        let code = unsafe { (self.context.driver.cuGraphUpload)(self.raw, stream.raw) };
        self.context.check(code, || "uploading a graph".into())
    }

    pub(super) fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both live; the recording keeps the memory of the graph's kernels alive.
        let code = unsafe { (self.context.driver.cuGraphLaunch)(self.raw, stream.raw) };
        self.context.check(code, || "launching a graph".into())
    }
}

impl CudaEvent {
    /// An event for ordering, or, with `timing`, one that records the time.
    pub(super) fn new(context: &Arc<Context>, timing: bool) -> Result<CudaEvent> {
        const DISABLE_TIMING: u32 = 2;
        context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        let code = unsafe { (context.driver.cuEventCreate)(&mut raw, if timing { 0 } else { DISABLE_TIMING }) };
        context.check(code, || "creating an event".into())?;
        Ok(CudaEvent { raw, context: context.clone() })
    }

    pub(super) fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both live.
        let code = unsafe { (self.context.driver.cuEventRecord)(self.raw, stream.raw) };
        self.context.check(code, || "recording an event".into())
    }

    /// Records all work of the primary context so far, in whatever stream it is.
    pub(super) fn record_all(&self) -> Result<()> {
        // SAFETY: both live.
        let code = unsafe { (self.context.driver.cuCtxRecordEvent)(self.context.context, self.raw) };
        self.context.check(code, || "recording an event of all streams".into())
    }

    /// Records the event in a stream of another library.
    ///
    /// # Safety
    /// `stream` is a stream of the primary context, or a number of a default stream.
    pub(super) unsafe fn record_in(&self, stream: u64) -> Result<()> {
        // SAFETY: the event lives; the caller promises the stream.
        let code = unsafe { (self.context.driver.cuEventRecord)(self.raw, stream as usize as CUstream) };
        self.context.check(code, || "recording an event in another library's stream".into())
    }

    /// Makes later work of another library's stream wait for the event.
    ///
    /// # Safety
    /// As [`CudaEvent::record_in`].
    pub(super) unsafe fn hold_back(&self, stream: u64) -> Result<()> {
        // SAFETY: the event lives; the caller promises the stream.
        let code = unsafe { (self.context.driver.cuStreamWaitEvent)(stream as usize as CUstream, self.raw, 0) };
        self.context.check(code, || "ordering another library's stream".into())
    }

    /// Waits until the device has passed the event.
    pub(super) fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives.
        let code = unsafe { (self.context.driver.cuEventSynchronize)(self.raw) };
        self.context.check(code, || "waiting for its queue".into())
    }

    /// Whether the device has passed the event.
    pub(super) fn has_passed(&self) -> Result<bool> {
        const NOT_READY: u32 = 600;
        // SAFETY: the event lives.
        let code = unsafe { (self.context.driver.cuEventQuery)(self.raw) };
        match code {
            NOT_READY => Ok(false),
            _ => self.context.check(code, || "asking for the progress of its queue".into()).map(|()| true),
        }
    }

    /// Seconds from an earlier event to this one; both were passed.
    pub(super) fn seconds_since(&self, start: &CudaEvent) -> Result<f64> {
        let mut milliseconds = 0.0;
        // SAFETY: writes one number.
        let code = unsafe { (self.context.driver.cuEventElapsedTime)(&mut milliseconds, start.raw, self.raw) };
        self.context.check(code, || "reading a time".into())?;
        Ok(f64::from(milliseconds) / 1000.0)
    }
}

impl Module {
    /// Loads a cubin.
    pub(super) fn load(context: &Arc<Context>, image: &[u8], what: &str) -> Result<Module> {
        context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a cubin carries its length in its header.
        let code = unsafe { (context.driver.cuModuleLoadData)(&mut raw, image.as_ptr().cast()) };
        context.check(code, || format!("loading {what}"))?;
        Ok(Module { raw, context: context.clone() })
    }

    pub(super) fn function(&self, name: &str) -> Result<CUfunction> {
        let mut raw = std::ptr::null_mut();
        let text = CString::new(name).map_err(|_| self.context.error("finding a kernel", "its name has a zero"))?;
        // SAFETY: writes one handle; the name ends with 0.
        let code = unsafe { (self.context.driver.cuModuleGetFunction)(&mut raw, self.raw, text.as_ptr()) };
        self.context.check(code, || format!("finding kernel {name}"))?;
        Ok(raw)
    }
}

impl Pinned {
    /// Zeroed host memory.
    pub(super) fn new(context: &Arc<Context>, bytes: usize) -> Result<Pinned> {
        const PORTABLE_AND_MAPPED: u32 = 1 | 2;
        context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one address.
        let code = unsafe { (context.driver.cuMemHostAlloc)(&mut raw, bytes, PORTABLE_AND_MAPPED) };
        context.check(code, || format!("allocating {bytes} bytes of pinned host memory"))?;
        // SAFETY: the memory just allocated.
        unsafe { raw.cast::<u8>().write_bytes(0, bytes) };
        Ok(Pinned { raw, context: context.clone() })
    }
}
