//! Devices.

use std::collections::HashMap;
use std::ffi::c_char;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hologram_backends::Backend;
use hologram_core::{Executor, Function};

use crate::error::{HologramStatus, guard, invalid};
use crate::pointers::{give, give_text, object, place, release, text};

/// A device: a CPU or a GPU with its memory and queue.
pub struct HologramDevice {
    pub(crate) executor: Executor,
    /// Single operations, compiled at their first use.
    pub(crate) operations: Mutex<HashMap<String, Arc<Function>>>,
}

/// What a device has.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HologramDeviceInfo {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Cores of a CPU, multiprocessors of a GPU.
    pub parallelism: u64,
    /// The most threads of a workgroup.
    pub workgroup_threads: u32,
    /// Threads of a subgroup.
    pub subgroup_threads: u32,
}

/// The numbers of open devices of one kind, by their backends.
static NUMBERS: Mutex<Vec<(Weak<dyn Backend>, i32)>> = Mutex::new(Vec::new());

/// Which device of its kind it is, as in the name that opened it.
pub fn number(executor: &Executor) -> i32 {
    let numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    let own =
        |(backend, _): &&(Weak<dyn Backend>, i32)| std::ptr::addr_eq(backend.as_ptr(), Arc::as_ptr(executor.backend()));
    numbers.iter().find(own).map_or(0, |(_, number)| *number)
}

/// Opens a device by name: "auto", "cpu", "cuda", "cuda:1", "metal" or "reference". `threads` are worker threads of the
/// CPU; 0 is one per physical core.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_device_open(
    name: *const c_char,
    threads: usize,
    device: *mut *mut HologramDevice,
) -> HologramStatus {
    guard(|| {
        let (name, device) = (text(name, "name")?, place(device, "device")?);
        if threads > 1024 {
            return invalid(format!("threads is {threads}, but must be at most 1024"));
        }
        let executor = Executor::open(name, (threads > 0).then_some(threads))?;
        let index = name.split_once(':').and_then(|(_, number)| number.parse().ok()).unwrap_or(0);
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.retain(|(backend, _)| backend.strong_count() > 0);
        numbers.push((Arc::downgrade(executor.backend()), index));
        drop(numbers);
        give(device, HologramDevice { executor, operations: Mutex::default() });
        Ok(())
    })
}

/// The names of this machine's devices, the fastest first, one per line. Free them by `hologram_string_release`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_device_names(names: *mut *mut c_char) -> HologramStatus {
    guard(|| {
        let names = place(names, "names")?;
        let all = hologram_backends::available_backends();
        give_text(names, all.iter().map(|backend| backend.to_string()).collect::<Vec<_>>().join("\n"))
    })
}

/// The device's own name, such as that of the GPU. Free it by `hologram_string_release`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_device_name(device: *const HologramDevice, name: *mut *mut c_char) -> HologramStatus {
    guard(|| give_text(place(name, "name")?, object(device, "device")?.executor.info().name.clone()))
}

/// Fills in what the device has, as far as `struct_size`, which the caller sets, reaches.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_device_info(
    device: *const HologramDevice,
    info: *mut HologramDeviceInfo,
) -> HologramStatus {
    guard(|| {
        let of = object(device, "device")?.executor.info();
        let size = object(info.cast::<usize>(), "info")?;
        let own = HologramDeviceInfo {
            struct_size: *size,
            memory_bytes: of.memory_bytes,
            parallelism: of.parallelism as u64,
            workgroup_threads: of.limits.workgroup_threads,
            subgroup_threads: of.limits.subgroup_threads,
        };
        if *size < size_of::<usize>() {
            return invalid(format!("info: struct_size is {size}; set it to sizeof(HologramDeviceInfo)"));
        }
        let bytes = (*size).min(size_of::<HologramDeviceInfo>());
        std::ptr::copy_nonoverlapping((&raw const own).cast::<u8>(), info.cast::<u8>(), bytes);
        Ok(())
    })
}

/// Waits until the device has done all its work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_device_synchronize(device: *const HologramDevice) -> HologramStatus {
    guard(|| Ok(object(device, "device")?.executor.synchronize()?))
}

/// Frees a device's handle. Its tensors, functions and models keep the device itself alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_device_release(device: *mut HologramDevice) {
    release(device);
}
