//! Compiled code: loads programs and images as modules, each once.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUjit_option, CUjitInputType};
use hologram_device::cache::DiskCache;
use hologram_device::{BackendError, Result};

use super::context::{Context, Module};
use super::images::{self, IMAGES, Image};

/// The most bytes kept of the compiler's messages.
const LOG: usize = 16 << 10;
/// Dynamic shared memory that a kernel may use without a request.
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;
/// Workgroups in a cluster that every device with clusters can run.
const PORTABLE_CLUSTER: u32 = 8;

/// A kernel that can be launched; it keeps its module loaded.
#[derive(Clone)]
pub(super) struct Function {
    pub(super) raw: CUfunction,
    _module: Arc<Module>,
}

// SAFETY: the handle belongs to the module, which lives as long, and the driver accepts it on any thread.
unsafe impl Send for Function {}
// SAFETY: the handle never changes, and launches only read the function.
unsafe impl Sync for Function {}

/// The modules of a device.
pub(super) struct Modules {
    context: Arc<Context>,
    /// Compute capability as major · 10 + minor.
    capability: u32,
    /// The driver, which contains the compiler: part of the key of compiled code.
    driver: String,
    cache: DiskCache,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    images: HashMap<&'static str, Arc<Module>>,
    /// Kernels of images, with the dynamic shared memory requested for each.
    functions: HashMap<(&'static str, String), (Function, u32)>,
}

impl Modules {
    pub(super) fn new(context: &Arc<Context>, capability: u32, driver: String) -> Modules {
        let (context, cache) = (context.clone(), DiskCache::standard());
        Modules { context, capability, driver, cache, loaded: Mutex::default() }
    }

    /// The kernel of a program's PTX.
    ///
    /// # Errors
    /// The messages of the driver's compiler; [`BackendError::Device`].
    pub(super) fn program(&self, name: &str, ptx: &str, entry: &str) -> Result<Function> {
        let module = Arc::new(self.compiled(name, ptx)?);
        Ok(Function { raw: module.function(entry)?, _module: module })
    }

    /// A kernel of an image, for launches with this much dynamic shared memory in clusters of this size.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] when the image has no code for this device; [`BackendError::Device`].
    pub(super) fn kernel(&self, image: &'static str, entry: &str, shared: u32, cluster: u32) -> Result<Function> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = &mut *loaded;
        let module = match loaded.images.get(image) {
            Some(module) => module.clone(),
            None => {
                let module = Arc::new(self.image(image)?);
                loaded.images.insert(image, module.clone());
                module
            }
        };
        let key = (image, entry.to_string());
        let (function, asked) = match loaded.functions.get_mut(&key) {
            Some((function, asked)) => (function, asked),
            None => {
                let function = Function { raw: module.function(entry)?, _module: module };
                let (function, asked) = loaded.functions.entry(key).or_insert((function, SHARED_WITHOUT_ASKING));
                (function, asked)
            }
        };
        if shared > *asked {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            self.set(function, attribute, shared, entry)?;
            *asked = shared;
        }
        if cluster > PORTABLE_CLUSTER {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
            self.set(function, attribute, 1, entry)?;
        }
        Ok(function.clone())
    }

    fn set(&self, function: &Function, attribute: CUfunction_attribute, value: u32, entry: &str) -> Result<()> {
        self.context.enter()?;
        // SAFETY: the function's module is loaded.
        let code = unsafe { (self.context.driver.cuFuncSetAttribute)(function.raw, attribute, value as i32) };
        self.context.check(code, || format!("giving kernel {entry} {value} as {attribute:?}"))
    }

    fn image(&self, name: &'static str) -> Result<Module> {
        let unsupported = |what: String| BackendError::Unsupported { device: self.context.name.clone(), what };
        let image = IMAGES.iter().find(|i: &&Image| i.name == name);
        let image = image.ok_or_else(|| unsupported(format!("the native image {name}, which this build lacks,")))?;
        let damaged = || self.context.error("unpacking a native kernel", &format!("image {name} is damaged"));
        if self.capability == 90 {
            let cubin = images::unpack(image.cubin).map_err(|_| damaged())?;
            return Module::load(&self.context, &cubin, name);
        }
        let ptx = image.ptx.ok_or_else(|| unsupported(format!("the native image {name}, made for capability 9.0,")))?;
        let ptx = images::unpack_ptx(ptx).map_err(|_| damaged())?;
        self.compiled(name, &ptx)
    }

    /// Loads PTX as a module, through the cache on disk.
    fn compiled(&self, name: &str, ptx: &str) -> Result<Module> {
        let key = format!("cuda, capability {}, driver {}, no options\n{ptx}", self.capability, self.driver);
        if let Some(cubin) = self.cache.get(&key)
            && let Ok(module) = Module::load(&self.context, &cubin, name)
        {
            return Ok(module);
        }
        let cubin = self.link(name, ptx)?;
        let module = Module::load(&self.context, &cubin, name)?;
        self.cache.put(&key, &cubin);
        Ok(module)
    }

    /// Compiles PTX to machine code with the driver's compiler.
    fn link(&self, name: &str, ptx: &str) -> Result<Vec<u8>> {
        self.context.enter()?;
        let driver = self.context.driver;
        let text = CString::new(ptx).map_err(|_| self.context.error("compiling", "the text has a zero"))?;
        let mut log = vec![0u8; LOG];
        let mut options = [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG as *mut c_void];
        let mut state = std::ptr::null_mut();
        // SAFETY: the log and the options outlive the link, which ends below.
        let code = unsafe { (driver.cuLinkCreate_v2)(2, options.as_mut_ptr(), values.as_mut_ptr(), &mut state) };
        self.context.check(code, || format!("compiling {name}"))?;
        let bytes = text.as_bytes_with_nul();
        let (mut image, mut length) = (std::ptr::null_mut(), 0);
        // SAFETY: the text and its length with the final 0; no options of its own, no name.
        let added = unsafe {
            (driver.cuLinkAddData_v2)(
                state,
                CUjitInputType::CU_JIT_INPUT_PTX,
                bytes.as_ptr().cast_mut().cast(),
                bytes.len(),
                std::ptr::null(),
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        // SAFETY: writes an address and a length, which hold until the link is destroyed.
        let code = if added == 0 { unsafe { (driver.cuLinkComplete)(state, &mut image, &mut length) } } else { added };
        let cubin = if code == 0 && !image.is_null() {
            // SAFETY: the driver's buffer of that length; it is copied before the link is destroyed.
            unsafe { std::slice::from_raw_parts(image.cast::<u8>(), length) }.to_vec()
        } else {
            Vec::new()
        };
        // SAFETY: created above, destroyed once.
        unsafe { (driver.cuLinkDestroy)(state) };
        self.context.check(code, || {
            let end = log.iter().position(|b| *b == 0).unwrap_or(LOG);
            format!("compiling {name}: {}", String::from_utf8_lossy(&log[..end]).trim())
        })?;
        Ok(cubin)
    }
}
