//! The C interface of Hologram: `hologram.h` is made from these files by cbindgen, `docs/c.md` explains it.
//!
//! Every function checks its arguments, returns a status and never lets a panic cross the boundary. Objects are opaque
//! handles that their `_release` function frees; it takes NULL too. A handle may be used by several threads at once,
//! except while it is released. Option structures begin with their size, so that later versions can extend them.

// Functions are unsafe because of their pointers, for which one rule holds: what is given must be NULL or point to as
// many valid elements as the header says.
#![allow(clippy::missing_safety_doc, reason = "the rule is the same for all functions and stands in the header")]
#![allow(unsafe_op_in_unsafe_fn, reason = "whole bodies rely on that rule")]

mod device;
mod dlpack;
mod error;
mod function;
mod generate;
mod model;
mod pointers;
mod program;
mod tensor;

use std::ffi::c_char;

/// The version of this interface. It grows with every change; programs for an older version keep working while the
/// major version, `HOLOGRAM_ABI_VERSION / 1000`, is the same.
pub const HOLOGRAM_ABI_VERSION: u32 = 1000;

/// The library's `HOLOGRAM_ABI_VERSION`, for comparison with the header's.
#[unsafe(no_mangle)]
pub extern "C" fn hologram_abi_version() -> u32 {
    HOLOGRAM_ABI_VERSION
}

/// The library's version, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn hologram_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
