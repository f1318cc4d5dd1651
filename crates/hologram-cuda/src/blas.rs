//! cuBLASLt, NVIDIA's library of matrix products. It is optional, and loaded when `bf16` weights are loaded or a plan
//! can first use it.
//!
//! The functions used here are those of `cublasLt.h` and are the same in CUDA 12 and 13. As for the driver, they are
//! looked up by name once. The library takes a third of a second to load, and another 40 ms at its first choice of an
//! algorithm.

use std::collections::HashMap;
use std::error::Error;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};

use hologram_device::Result;
use hologram_gpu::{BLAS_WORKSPACE, BlasProduct};
use libloading::Library;

use super::context::{Context, Stream};
use super::driver::is_absent;

/// Names of the library, in search order.
#[cfg(windows)]
const LIBRARIES: &[&str] = &["cublasLt64_13.dll", "cublasLt64_12.dll"];
#[cfg(not(windows))]
const LIBRARIES: &[&str] = &["libcublasLt.so.13", "libcublasLt.so.12"];
/// A path to the library; 0 disables it.
const VARIABLE: &str = "HOLOGRAM_CUBLASLT";
/// Alignment of tensors in bytes.
const ALIGN: u32 = 16;

/// A function's result: 0, or an error number.
type Status = u32;
/// The library's objects, which it allocates itself.
type Object = *mut c_void;

/// `cublasLtMatmulAlgo_t`: an algorithm with its settings.
type Algorithm = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Default)]
struct Choice {
    algorithm: Algorithm,
    workspace: usize,
    status: Status,
    waves: f32,
    reserved: [c_int; 4],
}

// Values of the header's enumerations.
const COMPUTE_32F: u32 = 68;
const R_32F: u32 = 0;
const R_16BF: u32 = 14;
const DESC_TRANSA: u32 = 3;
const TRANSPOSED: u32 = 1;
const PREFERENCE_WORKSPACE: u32 = 1;
const PREFERENCE_ALIGNMENTS: std::ops::RangeInclusive<u32> = 5..=8;

macro_rules! functions {
    ($($name:ident($($ty:ty),*);)*) => {
        /// The library's functions used here.
        #[allow(non_snake_case, reason = "the library's own names")]
        pub(super) struct Functions {
            $($name: unsafe extern "C" fn($($ty),*) -> Status,)*
            /// The name under which it was found.
            name: String,
            _library: Library,
        }

        impl Functions {
            fn from_library(name: &str, library: Library) -> std::result::Result<Functions, String> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: the library's header declares the function with this type.
                        let symbol = unsafe { library.get::<unsafe extern "C" fn($($ty),*) -> Status>(stringify!($name)) };
                        *symbol.map_err(|_| format!("{name} has no function {}", stringify!($name)))?
                    },)*
                    name: name.to_string(),
                    _library: library,
                })
            }
        }
    };
}

functions! {
    cublasLtCreate(*mut Object);
    cublasLtDestroy(Object);
    cublasLtMatmulDescCreate(*mut Object, u32, u32);
    cublasLtMatmulDescSetAttribute(Object, u32, *const c_void, usize);
    cublasLtMatmulDescDestroy(Object);
    cublasLtMatrixLayoutCreate(*mut Object, u32, u64, u64, i64);
    cublasLtMatrixLayoutDestroy(Object);
    cublasLtMatmulPreferenceCreate(*mut Object);
    cublasLtMatmulPreferenceSetAttribute(Object, u32, *const c_void, usize);
    cublasLtMatmulPreferenceDestroy(Object);
    cublasLtMatmulAlgoGetHeuristic(Object, Object, Object, Object, Object, Object, Object, c_int, *mut Choice, *mut c_int);
    cublasLtMatmul(
        Object, Object, *const c_void, *const c_void, Object, *const c_void, Object, *const c_void, *const c_void, Object,
        *mut c_void, Object, *const Algorithm, *mut c_void, usize, Object
    );
}

impl Functions {
    /// The library of this machine, loaded once per process.
    ///
    /// # Errors
    /// Why it is not used.
    pub(super) fn get() -> std::result::Result<&'static Functions, &'static str> {
        static LIBRARY: OnceLock<std::result::Result<Functions, String>> = OnceLock::new();
        let found = LIBRARY.get_or_init(|| match std::env::var(VARIABLE).as_deref() {
            Ok("0") => Err(format!("not used ({VARIABLE} is 0)")),
            Ok(path) if !path.is_empty() => Functions::load(&[path]),
            _ => Functions::load(LIBRARIES),
        });
        found.as_ref().map_err(String::as_str)
    }

    /// Loads the library in the background, which takes a quarter of a second, while the process reads the weights.
    pub(super) fn load_ahead() {
        static BEGUN: Once = Once::new();
        BEGUN.call_once(|| {
            let load = || Functions::get().is_ok();
            // If no thread can be started, the library is loaded on first use.
            let _ = std::thread::Builder::new().name("cublaslt".into()).spawn(load);
        });
    }

    /// The name under which it was found.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The first of these libraries that exists.
    fn load(libraries: &[&str]) -> std::result::Result<Functions, String> {
        for name in libraries {
            // SAFETY: loading the library runs its initialisers, which is intended.
            match unsafe { Library::new(*name) } {
                Ok(library) => {
                    return Functions::from_library(name, library).map_err(|why| format!("not used: {why}"));
                }
                Err(error) => {
                    let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                    if !is_absent(name, &text) {
                        return Err(format!("not used: {name} cannot be loaded: {text}"));
                    }
                }
            }
        }
        Err(format!("not found ({})", libraries.join(", ")))
    }
}

/// The library on a GPU, with the products described to it.
pub(super) struct Blas {
    functions: &'static Functions,
    handle: Object,
    context: Arc<Context>,
    /// The described products; `None` where the library has no algorithm.
    products: Mutex<HashMap<BlasProduct, Option<Arc<Product>>>>,
}

// SAFETY: the header lets any thread use a handle.
unsafe impl Send for Blas {}
// SAFETY: the library's documentation allows several threads to use one handle, and `products` has a lock.
unsafe impl Sync for Blas {}

/// An object of the library with the function that frees it.
struct Owned {
    raw: Object,
    free: unsafe extern "C" fn(Object) -> Status,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the library made the object, and nothing uses it after this drop.
        unsafe { (self.free)(self.raw) };
    }
}

/// A product with its algorithm.
pub(super) struct Product {
    description: Owned,
    w: Owned,
    x: Owned,
    y: Owned,
    algorithm: Algorithm,
    /// Whether something is added.
    adds: bool,
}

// SAFETY: the objects belong to no thread, and nothing changes them after creation.
unsafe impl Send for Product {}
// SAFETY: shared references only read the objects, and launches do not change them.
unsafe impl Sync for Product {}

/// The addresses of a product's operands.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub(super) x: u64,
    pub(super) w: u64,
    /// The address of the addend; equals that of `y` if there is none.
    pub(super) add: u64,
    pub(super) y: u64,
    /// [`BLAS_WORKSPACE`] bytes.
    pub(super) workspace: u64,
}

impl Blas {
    /// The library for this GPU; `None` if none works.
    pub(super) fn new(context: &Arc<Context>) -> Option<Arc<Blas>> {
        let functions = Functions::get().ok()?;
        context.enter().ok()?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle, for the context that the thread has entered.
        let status = unsafe { (functions.cublasLtCreate)(&mut handle) };
        (status == 0)
            .then(|| Arc::new(Blas { functions, handle, context: context.clone(), products: Mutex::default() }))
    }

    /// A product, ready to enter a stream; `None` where the library has no algorithm for it.
    pub(super) fn product(&self, product: BlasProduct) -> Option<Arc<Product>> {
        let mut products = self.products.lock().unwrap_or_else(PoisonError::into_inner);
        products.entry(product).or_insert_with(|| self.describe(product).map(Arc::new)).clone()
    }

    /// The library's matrices are column-major: y as `[m, n]` is wᵀ · x with w as `[k, m]` and x as `[k, n]`.
    fn describe(&self, product: BlasProduct) -> Option<Product> {
        let f = self.functions;
        let BlasProduct { n, m, k, adds } = product;
        let made = |status: Status, raw: Object, free| (status == 0 && !raw.is_null()).then_some(Owned { raw, free });
        let layout = |ty: u32, rows: usize, columns: usize| {
            let mut raw = ptr::null_mut();
            // SAFETY: writes one object.
            let status = unsafe {
                (f.cublasLtMatrixLayoutCreate)(&mut raw, ty, rows as u64, columns as u64, i64::try_from(rows).ok()?)
            };
            made(status, raw, f.cublasLtMatrixLayoutDestroy)
        };
        let (w, x, y) = (layout(R_16BF, k, m)?, layout(R_16BF, k, n)?, layout(R_32F, m, n)?);
        let mut raw = ptr::null_mut();
        // SAFETY: writes one object.
        let status = unsafe { (f.cublasLtMatmulDescCreate)(&mut raw, COMPUTE_32F, R_32F) };
        let description = made(status, raw, f.cublasLtMatmulDescDestroy)?;
        // SAFETY: the attribute is a number of 4 bytes.
        let status = unsafe {
            (f.cublasLtMatmulDescSetAttribute)(description.raw, DESC_TRANSA, ptr::from_ref(&TRANSPOSED).cast(), 4)
        };
        let mut raw = ptr::null_mut();
        // SAFETY: writes one object.
        let created = unsafe { (f.cublasLtMatmulPreferenceCreate)(&mut raw) };
        let preference = made(created, raw, f.cublasLtMatmulPreferenceDestroy)?;
        let workspace = BLAS_WORKSPACE as u64;
        // SAFETY: the attribute is a number of 8 bytes.
        let sized = unsafe {
            let set = f.cublasLtMatmulPreferenceSetAttribute;
            set(preference.raw, PREFERENCE_WORKSPACE, ptr::from_ref(&workspace).cast(), 8)
        };
        let aligned = PREFERENCE_ALIGNMENTS.map(|attribute| {
            // SAFETY: the attribute is a number of 4 bytes.
            unsafe {
                let set = f.cublasLtMatmulPreferenceSetAttribute;
                set(preference.raw, attribute, ptr::from_ref(&ALIGN).cast(), 4)
            }
        });
        if status != 0 || sized != 0 || aligned.into_iter().any(|status| status != 0) {
            return None;
        }
        let (mut choice, mut count) = (Choice::default(), 0);
        // SAFETY: the objects live; writes at most one choice, and their number.
        let status = unsafe {
            (f.cublasLtMatmulAlgoGetHeuristic)(
                self.handle,
                description.raw,
                w.raw,
                x.raw,
                y.raw,
                y.raw,
                preference.raw,
                1,
                &mut choice,
                &mut count,
            )
        };
        let found = status == 0 && count == 1 && choice.status == 0 && choice.workspace <= BLAS_WORKSPACE;
        let algorithm = choice.algorithm;
        found.then(|| Product { description, w, x, y, algorithm, adds })
    }

    /// Puts the product into a stream.
    ///
    /// # Errors
    /// Those of the library.
    pub(super) fn launch(&self, product: &Product, operands: Operands, stream: &Stream) -> Result<()> {
        let Operands { x, w, add, y, workspace } = operands;
        let (one, beta) = (1.0f32, if product.adds { 1.0f32 } else { 0.0 });
        // SAFETY: the matrices have the described sizes, and the recording keeps their memory and the workspace alive.
        // The scalars are read before the call returns.
        let status = unsafe {
            (self.functions.cublasLtMatmul)(
                self.handle,
                product.description.raw,
                ptr::from_ref(&one).cast(),
                w as *const c_void,
                product.w.raw,
                x as *const c_void,
                product.x.raw,
                ptr::from_ref(&beta).cast(),
                add as *const c_void,
                product.y.raw,
                y as *mut c_void,
                product.y.raw,
                &product.algorithm,
                workspace as *mut c_void,
                BLAS_WORKSPACE,
                stream.raw.cast(),
            )
        };
        match status {
            0 => Ok(()),
            code => Err(self.context.error("launching a product of cuBLASLt", &format!("its status is {code}"))),
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: `new` made the handle; a product's objects do not belong to it.
            unsafe { (self.functions.cublasLtDestroy)(self.handle) };
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::process::Command;

    /// Errors name a missing library, a file that is no library and a missing function; a library with all functions
    /// loads.
    #[test]
    fn unusable_libraries_are_named() {
        let load = |libraries: &[&str]| Functions::load(libraries).map(|f| f.name().to_string());
        assert_eq!(
            load(&["libno-such-blas.so", "libnor-this.so"]).unwrap_err(),
            "not found (libno-such-blas.so, libnor-this.so)"
        );
        let directory = std::env::temp_dir().join(format!("hologram-fake-blas-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let junk = directory.join("junk");
        std::fs::write(&junk, [b'x'; 4096]).unwrap();
        let junk = junk.to_str().unwrap();
        let error = load(&["libno-such-blas.so", junk]).unwrap_err();
        assert!(error.starts_with(&format!("not used: {junk} cannot be loaded: ")), "{error}");
        let compiler = Command::new("cc").arg("--version").output();
        assert!(
            compiler.is_ok_and(|out| out.status.success()),
            "libraries that pretend to be cuBLASLt are built by cc"
        );
        let all = include_str!("blas.rs");
        let names = all.split("functions! {").nth(1).unwrap().split("\n}\n").next().unwrap();
        let names: Vec<_> =
            names.lines().filter_map(|l| Some(l.trim().strip_prefix("cublasLt")?.split_once('(')?.0)).collect();
        assert_eq!(names.len(), 12);
        for missing in [None, names.first(), names.last()] {
            let so = directory.join(format!("{}.so", missing.unwrap_or(&"whole")));
            let (c, so) = (so.with_extension("c"), so.to_str().unwrap());
            let has = names.iter().filter(|name| Some(*name) != missing);
            std::fs::write(&c, has.map(|n| format!("unsigned cublasLt{n}() {{ return 1; }}\n")).collect::<String>())
                .unwrap();
            assert!(Command::new("cc").args(["-w", "-shared", "-fPIC", "-o", so]).arg(&c).status().unwrap().success());
            let expected = match missing {
                None => Ok(so.to_string()),
                Some(name) => Err(format!("not used: {so} has no function cublasLt{name}")),
            };
            assert_eq!(load(&["libno-such-blas.so", so]), expected);
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
