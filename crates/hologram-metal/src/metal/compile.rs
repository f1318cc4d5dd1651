//! Compiles texts with the system's compiler, on devices that cannot run them too.

use hologram_device::Result;
use hologram_gpu::texts;
use hologram_isa::{Capability, Program, msl};
use objc2_metal::MTLCreateSystemDefaultDevice;

use super::device::{relax_watchdog, unavailable};
use super::library::{LANGUAGE, compile};

/// Compiles every native kernel text, and those of `programs` that Metal can run, with the system's compiler; `failed`
/// gets the name and the compiler's message of each that it rejects. Returns the number of texts. The device need not
/// be an Apple GPU: nothing runs.
///
/// # Errors
/// [`BackendError::Unavailable`](hologram_device::BackendError::Unavailable) without a Metal device.
pub fn compile_kernels(
    programs: &mut dyn Iterator<Item = Program>,
    failed: &mut dyn FnMut(&str, &str),
) -> Result<usize> {
    relax_watchdog();
    let device = MTLCreateSystemDefaultDevice()
        .ok_or_else(|| unavailable("the system names no Metal device to this process".into()))?;
    let mut count = 0;
    let mut check = |name: &str, text: std::result::Result<String, String>| {
        count += 1;
        if let Err(reason) = text.and_then(|text| compile(&device, &text).map(drop)) {
            failed(name, &reason);
        }
    };
    for name in texts::names() {
        check(name, texts::text(name).ok_or_else(|| "this build lacks its text".into()));
    }
    for program in programs {
        if [Capability::F64, Capability::Atomic64].iter().any(|c| c.is_needed_by(&program)) {
            continue;
        }
        let printed = msl::print(&program, &msl::MslTarget { version: LANGUAGE });
        check(&program.name, printed.map(|kernel| kernel.text).map_err(|e| e.to_string()));
    }
    Ok(count)
}
