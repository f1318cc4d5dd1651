//! A test double of Metal on Linux: the unmodified backend runs against it, its kernels on the CPU.
//!
//! Messages' signatures are compared with those of Apple's headers (by objc2, in builds with debug assertions), what
//! Metal leaves undefined ends the process with a sentence, and so does an object that is alive at its end.

use std::ffi::{CStr, CString, c_char, c_int};

/// What the double has counted in this process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Command buffers that were committed.
    pub commits: i64,
    /// Waits for command buffers that were not done.
    pub waits: i64,
    /// Buffers that were made, but for those over memory that was there.
    pub buffers: i64,
    /// Kernels that were encoded.
    pub dispatches: i64,
    /// Barriers between them.
    pub barriers: i64,
    /// Encoders.
    pub encoders: i64,
    /// Copies that were encoded.
    pub copies: i64,
    /// Archives of compiled kernels that were written.
    pub archives_written: i64,
    /// Archives that were read.
    pub archives_read: i64,
    /// Command buffers that a capture has.
    pub captured: i64,
    /// Requests that a residency set be resident.
    pub residency_requests: i64,
    /// Members of the residency set that was last committed.
    pub residents: i64,
}

unsafe extern "C" {
    safe fn metal_double_live_objects() -> i64;
    safe fn metal_double_hold(hold: c_int);
    unsafe fn metal_double_fail(after: i64, n: i64, why: *const c_char);
    unsafe fn metal_double_plant(from: *const c_char, to: *const c_char);
    safe static metal_double_counts: Counts;
}

/// Objects that are alive, once what a queue's thread is about to free is freed.
pub fn live_objects() -> i64 {
    metal_double_live_objects()
}

/// Why a command buffer fails, in Metal's words.
#[derive(Clone, Copy, Debug)]
pub enum Failure {
    /// There is no memory for it.
    OutOfMemory,
    /// A kernel reached outside of memory.
    PageFault,
    /// It took too long.
    Timeout,
    /// Another's fault ended it.
    InnocentVictim,
    /// It kept the display waiting; its queue ignores what comes after it.
    ImpactingInteractivity,
}

impl Failure {
    /// The description that Metal gives.
    pub fn text(self) -> &'static CStr {
        match self {
            Failure::OutOfMemory => c"Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
            Failure::PageFault => {
                c"Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)"
            }
            Failure::Timeout => c"Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
            Failure::InnocentVictim => c"Innocent Victim (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)",
            Failure::ImpactingInteractivity => {
                c"Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)"
            }
        }
    }
}

/// Has `n` command buffers fail, after so many that run.
pub fn fail(after: i64, n: i64, why: Failure) {
    // SAFETY: a text of C that is always there.
    unsafe { metal_double_fail(after, n, why.text().as_ptr()) };
}

/// Has devices wait before their next command buffer, or go on.
pub fn hold(hold: bool) {
    metal_double_hold(hold.into());
}

/// Has the compiler take every `from` of the texts that it is given from now on (of up to 199 bytes) for `to`; nothing
/// where `from` is empty. No other thread may be using the double.
pub fn plant(from: &str, to: &str) {
    let [from, to] = [from, to].map(|text| CString::new(text).unwrap());
    // SAFETY: both are texts of C, which are copied.
    unsafe { metal_double_plant(from.as_ptr(), to.as_ptr()) };
}

/// The counts up to now. No other thread may be using the double.
pub fn counts() -> Counts {
    // SAFETY: valid for reads; the caller's promise keeps others from writing.
    unsafe { std::ptr::read_volatile(&raw const metal_double_counts) }
}
