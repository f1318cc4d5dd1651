//! The driver's library: found when the program runs, its functions looked up by name once.
//!
//! The types are cudarc's. Its own loader panics where the library or one of its functions is missing, so it is not used.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute, CUgraph,
    CUgraphExec, CUjit_option, CUjitInputType, CUlaunchConfig, CUlinkState, CUmodule, CUstream, CUstreamCaptureMode,
    CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle,
};
use libloading::Library;

/// The oldest driver whose CUDA version serves: the embedded kernels are compiled by CUDA 13.0.
const MIN_VERSION: c_int = 13000;

/// Where the driver's library is looked for, in order.
#[cfg(windows)]
const LIBRARIES: &[&str] = &["nvcuda.dll"];
#[cfg(not(windows))]
const LIBRARIES: &[&str] = &["libcuda.so.1", "libcuda.so"];

/// What a driver function returns: 0, or an error's number. (Not cudarc's enumeration: a newer driver may know more.)
pub(super) type Code = c_uint;

macro_rules! functions {
    ($($name:ident($($ty:ty),*);)*) => {
        /// The driver's functions that the device uses.
        #[allow(non_snake_case, reason = "the driver's own names")]
        pub(super) struct Driver {
            $(pub(super) $name: unsafe extern "C" fn($($ty),*) -> Code,)*
            /// The CUDA version that the driver serves, as major · 1000 + minor · 10.
            pub(super) version: c_int,
            _library: Library,
        }

        impl Driver {
            /// Looks up every function.
            fn from_library(library: Library) -> Result<Driver, String> {
                let missing = |name: &str| format!("the driver's library has no function {name}: install a newer driver");
                Ok(Driver {
                    $($name: {
                        // SAFETY: the driver's header declares the function with this type.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($ty),*) -> Code>(stringify!($name).as_bytes())
                        };
                        *symbol.map_err(|_| missing(stringify!($name)))?
                    },)*
                    version: 0,
                    _library: library,
                })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
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

impl Driver {
    /// The driver of this machine, loaded and initialised once for the process.
    ///
    /// # Errors
    /// Why there is none that works, and what to do.
    pub(super) fn get() -> Result<&'static Driver, Missing> {
        static DRIVER: OnceLock<Result<Driver, Missing>> = OnceLock::new();
        DRIVER.get_or_init(|| Driver::load(LIBRARIES)).as_ref().map_err(Clone::clone)
    }

    /// The first of these libraries that can be loaded.
    fn load(libraries: &[&str]) -> Result<Driver, Missing> {
        // SAFETY: loading the driver runs its initialisers, which is what it is for.
        let library = libraries.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
        let Some(library) = library else {
            return Err(Missing::NoDriver(format!(
                "no NVIDIA driver is installed ({} was not found)",
                libraries.join(", ")
            )));
        };
        Driver::from_library(library).and_then(Driver::initialise).map_err(Missing::Unusable)
    }

    fn initialise(mut self) -> Result<Driver, String> {
        let mut version = 0;
        // SAFETY: writes one number.
        let code = unsafe { (self.cuDriverGetVersion)(&mut version) };
        self.named(code).map_err(|e| format!("the driver does not tell its version: {e}"))?;
        if version < MIN_VERSION {
            return Err(format!(
                "the driver serves CUDA {}, {} or newer is needed: install driver 580 or newer",
                version_text(version),
                version_text(MIN_VERSION)
            ));
        }
        self.version = version;
        // SAFETY: 0 is the only flag.
        let code = unsafe { (self.cuInit)(0) };
        self.named(code).map_err(|e| format!("the driver cannot start: {e}"))?;
        Ok(self)
    }

    /// The CUDA version that the driver serves, such as `13.0`.
    pub(super) fn version_text(&self) -> String {
        version_text(self.version)
    }

    /// A code other than 0 as the driver's name and sentence for it.
    pub(super) fn named(&self, code: Code) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let text = |find: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut text = std::ptr::null();
            // SAFETY: the driver stores the address of a constant string, or null for a code that it does not know.
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
    /// None is installed: a machine without an NVIDIA GPU.
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

    /// A library that is no driver, one that lacks functions, and one that is too old give an error each, never a panic.
    #[test]
    fn unusable_drivers_are_errors() {
        let none = Driver::load(&["libno-such-driver.so"]).err().unwrap();
        assert!(matches!(none, Missing::NoDriver(_)) && none.reason().contains("libno-such-driver.so"), "{none:?}");
        if !Command::new("cc").arg("--version").output().is_ok_and(|out| out.status.success()) {
            eprintln!("no C compiler: libraries that only pretend to be a driver are not tried");
            return;
        }
        let directory = std::env::temp_dir().join(format!("hologram-fake-driver-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let all = include_str!("driver.rs");
        let names = all.split("functions! {").nth(1).unwrap().split("\n}\n").next().unwrap();
        let names = names.lines().filter_map(|l| l.trim().strip_prefix("cu")?.split_once('(').map(|(name, _)| name));
        let names: Vec<_> = names.filter(|n| *n != "DriverGetVersion").collect();
        let every: String = names.iter().map(|n| format!("unsigned cu{n}() {{ return 100; }}\n")).collect();
        let version = |v: u32| format!("unsigned cuDriverGetVersion(int *v) {{ *v = {v}; return 0; }}\n");
        let cases = [
            ("empty", "int nothing;\n".to_string(), "no function cuInit"),
            ("partial", "unsigned cuInit(unsigned f) { return 0; }\n".into(), "no function cuDriverGetVersion"),
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
