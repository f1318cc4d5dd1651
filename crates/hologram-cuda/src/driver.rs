//! The driver's library: found at run time, its functions looked up by name once.
//!
//! The types are cudarc's. Its loader is not used, because it panics if the library or one of its functions is missing.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute, CUgraph,
    CUgraphExec, CUjit_option, CUjitInputType, CUlaunchConfig, CUlinkState, CUmodule, CUstream, CUstreamCaptureMode,
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle,
};
use libloading::Library;

/// The oldest accepted CUDA version of a driver: the embedded kernels are compiled by CUDA 13.0.
const MIN_VERSION: c_int = 13000;
/// The advice for an older driver.
const INSTALL: &str = "install driver 580 or newer";

/// Names of the driver's library, in search order.
#[cfg(windows)]
const LIBRARIES: &[&str] = &["nvcuda.dll"];
#[cfg(not(windows))]
const LIBRARIES: &[&str] = &["libcuda.so.1", "libcuda.so"];

/// A driver function's result: 0, or an error number. cudarc's enumeration is not used, because newer drivers may add
/// codes.
pub(super) type Code = c_uint;

macro_rules! functions {
    ($($name:ident($($ty:ty),*);)*) => {
        /// The driver's functions used here.
        #[allow(non_snake_case, reason = "the driver's own names")]
        pub(super) struct Driver {
            $(pub(super) $name: unsafe extern "C" fn($($ty),*) -> Code,)*
            /// The driver's CUDA version as major · 1000 + minor · 10.
            version: c_int,
            _library: Library,
        }

        impl Driver {
            /// Looks up every function, but checks the version first: an old driver lacks some functions.
            fn from_library(library: Library) -> Result<Driver, String> {
                let version = new_enough(&library)?;
                Ok(Driver {
                    $($name: {
                        // SAFETY: the driver's header declares the function with this type.
                        unsafe { function::<unsafe extern "C" fn($($ty),*) -> Code>(&library, stringify!($name))? }
                    },)*
                    version,
                    _library: library,
                })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuGetErrorName(Code, *mut *const c_char);
    cuGetErrorString(Code, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuCtxSetCurrent(CUcontext);
    cuCtxRecordEvent(CUcontext, CUevent);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamSynchronize(CUstream);
    cuStreamWaitEvent(CUstream, CUevent, c_uint);
    cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
    cuStreamEndCapture(CUstream, *mut CUgraph);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuEventSynchronize(CUevent);
    cuEventQuery(CUevent);
    cuEventElapsedTime(*mut f32, CUevent, CUevent);
    cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, u64);
    cuGraphUpload(CUgraphExec, CUstream);
    cuGraphLaunch(CUgraphExec, CUstream);
    cuGraphDestroy(CUgraph);
    cuGraphExecDestroy(CUgraphExec);
    cuLinkCreate_v2(c_uint, *mut CUjit_option, *mut *mut c_void, *mut CUlinkState);
    cuLinkAddData_v2(CUlinkState, CUjitInputType, *mut c_void, usize, *const c_char, c_uint, *mut CUjit_option, *mut *mut c_void);
    cuLinkComplete(CUlinkState, *mut *mut c_void, *mut usize);
    cuLinkDestroy(CUlinkState);
    cuModuleLoadData(*mut CUmodule, *const c_void);
    cuModuleUnload(CUmodule);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuFuncSetAttribute(CUfunction, CUfunction_attribute, c_int);
    cuLaunchKernelEx(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
    cuTensorMapEncodeTiled(
        *mut CUtensorMap, CUtensorMapDataType, u32, *mut c_void, *const u64, *const u64, *const u32, *const u32,
        CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill
    );
}

/// Looks up one function.
///
/// # Safety
/// `F` is the type of a pointer to the function of this name.
unsafe fn function<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller promises that `F` is the function's type.
    let symbol = unsafe { library.get::<F>(name.as_bytes()) };
    symbol.map(|f| *f).map_err(|_| format!("the driver's library has no function {name}: {INSTALL}"))
}

/// The driver's CUDA version, if it is new enough.
fn new_enough(library: &Library) -> Result<c_int, String> {
    // SAFETY: the driver's header declares the function with this type.
    let get = unsafe { function::<unsafe extern "C" fn(*mut c_int) -> Code>(library, "cuDriverGetVersion")? };
    let mut version = 0;
    // SAFETY: writes one number.
    let code = unsafe { get(&mut version) };
    if code != 0 {
        return Err(format!("the driver does not tell its version: error {code}"));
    }
    if version < MIN_VERSION {
        let (serves, needed) = (version_text(version), version_text(MIN_VERSION));
        return Err(format!("the driver serves CUDA {serves}, {needed} or newer is needed: {INSTALL}"));
    }
    Ok(version)
}

/// Whether a library failed to load because no file has this name, as opposed to a file that is present but unusable.
pub(super) fn is_absent(name: &str, error: &str) -> bool {
    // ERROR_MOD_NOT_FOUND, as the standard library ends its text.
    if cfg!(windows) {
        return error.ends_with("(os error 126)");
    }
    // No NVIDIA driver exists for Apple's machines, and their loader's text lists every place that it searched.
    if cfg!(target_vendor = "apple") {
        return true;
    }
    // glibc's text begins with the name; musl's has a few words before it. If a library that this one needs is missing,
    // its name stands there instead. glibc reports a library for another processor in the same way; only a path
    // distinguishes the two.
    let text = error.strip_prefix("Error loading shared library ").unwrap_or(error);
    let this = text.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'));
    this && text.contains("No such file") && !(name.contains('/') && Path::new(name).exists())
}

impl Driver {
    /// The driver of this machine, loaded and initialised once per process.
    ///
    /// # Errors
    /// Why no driver works, and what to do.
    pub(super) fn get() -> Result<&'static Driver, Missing> {
        static DRIVER: OnceLock<Result<Driver, Missing>> = OnceLock::new();
        DRIVER.get_or_init(|| Driver::load(LIBRARIES)).as_ref().map_err(Clone::clone)
    }

    /// The first of these libraries that loads.
    fn load(libraries: &[&str]) -> Result<Driver, Missing> {
        let mut broken = None;
        for name in libraries {
            // SAFETY: loading the driver runs its initialisers, which is intended.
            match unsafe { Library::new(*name) } {
                Ok(library) => {
                    return Driver::from_library(library).and_then(Driver::initialise).map_err(Missing::Unusable);
                }
                Err(error) => {
                    // The loader's own text is the error's source.
                    let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                    if broken.is_none() && !is_absent(name, &text) {
                        broken = Some(format!("{name} cannot be loaded: {text}"));
                    }
                }
            }
        }
        Err(broken.map_or_else(
            || Missing::NoDriver(format!("no NVIDIA driver is installed (found none of {})", libraries.join(", "))),
            Missing::Unusable,
        ))
    }

    fn initialise(self) -> Result<Driver, String> {
        // SAFETY: 0 is the only flag.
        let code = unsafe { (self.cuInit)(0) };
        self.named(code).map_err(|e| format!("the driver cannot start: {e}"))?;
        Ok(self)
    }

    /// The driver's CUDA version, such as `13.0`.
    pub(super) fn version_text(&self) -> String {
        version_text(self.version)
    }

    /// Converts a code other than 0 to the driver's name and sentence for it.
    pub(super) fn named(&self, code: Code) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let text = |find: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut text = std::ptr::null();
            // SAFETY: the driver stores the address of a constant string, or null for an unknown code.
            let known = unsafe { find(code, &mut text) } == 0 && !text.is_null();
            // SAFETY: a string that ends with 0 and lives as long as the library.
            known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match (text(self.cuGetErrorString), text(self.cuGetErrorName)) {
            (Some(sentence), Some(name)) => Err(format!("{sentence} ({name})")),
            _ => Err(format!("error {code}")),
        }
    }
}

/// Why there is no driver.
#[derive(Clone, Debug)]
pub(super) enum Missing {
    /// None is installed: the machine has no NVIDIA GPU, or not its software.
    NoDriver(String),
    /// One is installed but does not work.
    Unusable(String),
}

impl Missing {
    pub(super) fn reason(&self) -> &str {
        match self {
            Missing::NoDriver(reason) | Missing::Unusable(reason) => reason,
        }
    }
}

fn version_text(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::process::Command;

    /// A file that is no driver, a driver that lacks functions, and one that is too old each give an error, never a
    /// panic.
    #[test]
    fn unusable_drivers_are_errors() {
        let none = Driver::load(&["libno-such-driver.so"]).err().unwrap();
        assert!(matches!(none, Missing::NoDriver(_)) && none.reason().contains("libno-such-driver.so"), "{none:?}");
        let directory = std::env::temp_dir().join(format!("hologram-fake-driver-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        // The head of a library for a processor that does not exist.
        let mut foreign = vec![0; 4096];
        foreign[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\xff\xfe");
        for (name, bytes) in
            [("junk", vec![b'x'; 4096]), ("short", vec![b'x']), ("no-bytes", vec![]), ("foreign", foreign)]
        {
            let path = directory.join(name);
            std::fs::write(&path, bytes).unwrap();
            let path = path.to_str().unwrap();
            let error = Driver::load(&["libno-such-driver.so", path]).err().unwrap();
            assert!(matches!(error, Missing::Unusable(_)), "{name}: {error:?}");
            assert!(error.reason().starts_with(&format!("{path} cannot be loaded: ")), "{name}: {error:?}");
        }
        let compiler = Command::new("cc").arg("--version").output();
        assert!(
            compiler.is_ok_and(|out| out.status.success()),
            "libraries that pretend to be a driver are built by cc"
        );
        let all = include_str!("driver.rs");
        let names = all.split("functions! {").nth(1).unwrap().split("\n}\n").next().unwrap();
        let names = names.lines().filter_map(|l| l.trim().strip_prefix("cu")?.split_once('(').map(|(name, _)| name));
        let every: String = names.map(|n| format!("unsigned cu{n}() {{ return 100; }}\n")).collect();
        let version = |v: u32| format!("unsigned cuDriverGetVersion(int *v) {{ *v = {v}; return 0; }}\n");
        let cases = [
            ("empty", "int nothing;\n".to_string(), "no function cuDriverGetVersion: install driver 580 or newer"),
            ("mute", "unsigned cuDriverGetVersion(int *v) { return 3; }\n".into(), "not tell its version: error 3"),
            ("partial", version(13000), "no function cuInit: install driver 580 or newer"),
            ("older", version(11080), "CUDA 11.8, 13.0 or newer is needed: install driver 580 or newer"),
            ("old", every.clone() + &version(12040), "the driver serves CUDA 12.4, 13.0 or newer is needed"),
            ("broken", every + &version(13000), "the driver cannot start: error 100"),
        ];
        for (name, source, expected) in cases {
            let (c, so) = (directory.join(format!("{name}.c")), directory.join(format!("{name}.so")));
            std::fs::write(&c, source).unwrap();
            let built = Command::new("cc").args(["-w", "-shared", "-fPIC", "-o"]).args([&so, &c]).status().unwrap();
            assert!(built.success());
            let error = Driver::load(&[so.to_str().unwrap()]).err().unwrap();
            assert!(matches!(error, Missing::Unusable(_)) && error.reason().contains(expected), "{name}: {error:?}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
