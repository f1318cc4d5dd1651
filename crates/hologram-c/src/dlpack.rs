//! DLPack 1 (<https://dmlc.github.io/dlpack>), both ways: tensors over memory of other libraries, and the other way
//! round. `dlpack.h` has the structures.

use std::any::Any;
use std::sync::Arc;

use hologram_backends::{BackendType, ForeignPointer};
use hologram_core::dlpack::{
    CPU, CUDA, CUDA_HOST, CUDA_MANAGED, DLManagedTensorVersioned, Exported, READ_ONLY, VERSION, is_read_only,
};
use hologram_core::{DType, Executor, Tensor};

use crate::device::{self, HologramDevice};
use crate::error::{HologramStatus, Result, guard, invalid};
use crate::pointers::{give, object, place};
use crate::tensor::{HologramTensor, element};

/// DLPack's numbers of a device.
fn device_of(executor: &Executor) -> Result<[i32; 2]> {
    let info = executor.info();
    match info.backend {
        BackendType::Cpu | BackendType::Reference => Ok([CPU, 0]),
        BackendType::Cuda => Ok([CUDA, device::number(executor)]),
        other => invalid(format!("DLPack has no addresses of {other}: hologram_tensor_to_device copies to \"cpu\"")),
    }
}

unsafe extern "C" fn free(managed: *mut DLManagedTensorVersioned) {
    if !managed.is_null() {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Exported>()));
    }
}

/// The tensor's memory as a `DLManagedTensorVersioned`, whose deleter the consumer calls. The call waits for the
/// elements, which must not be changed while the tensor is in use here. The structure is flagged as read-only if
/// several indices have one element, or the tensor's own memory is read-only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_tensor_to_dlpack(
    tensor: *const HologramTensor,
    managed: *mut *mut DLManagedTensorVersioned,
) -> HologramStatus {
    guard(|| {
        let (tensor, managed) = (object(tensor, "tensor")?.0.clone(), place(managed, "managed")?);
        let device = device_of(tensor.executor())?;
        element(&tensor)?;
        tensor.wait()?;
        let flags = if is_read_only(&tensor) { READ_ONLY } else { 0 };
        let Some((exported, tensor)) = Exported::new(tensor, device) else {
            return invalid("the device's memory has no address for other libraries");
        };
        let context = Box::into_raw(exported).cast();
        give(managed, DLManagedTensorVersioned { version: VERSION, context, deleter: Some(free), flags, tensor });
        Ok(())
    })
}

/// A structure whose deleter is called when the last tensor over its memory is freed.
struct Taken(*mut DLManagedTensorVersioned);

// SAFETY: the protocol lets the consumer call the deleter on any thread.
unsafe impl Send for Taken {}
// SAFETY: a shared reference gives nothing.
unsafe impl Sync for Taken {}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: the structure was given to this library, and lives until its deleter is called.
        let deleter = unsafe { (*self.0).deleter };
        if let Some(deleter) = deleter {
            // SAFETY: only this calls it, once.
            unsafe { deleter(self.0) };
        }
    }
}

/// A tensor over the memory of a `DLManagedTensorVersioned`, without a copy, on a device that has the memory. Takes the
/// structure: its deleter is called when the memory is no longer used. After a failure the structure is still the
/// caller's. The elements must not change while the tensor is in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_tensor_from_dlpack(
    device: *const HologramDevice,
    managed: *mut DLManagedTensorVersioned,
    tensor: *mut *mut HologramTensor,
) -> HologramStatus {
    guard(|| {
        let (executor, of) = (&object(device, "device")?.executor, object(managed, "managed")?);
        let tensor = place(tensor, "tensor")?;
        of.version.check().or_else(invalid)?;
        let (raw, own) = (&of.tensor, device_of(executor)?);
        let fits = match raw.device_type {
            CPU | CUDA_HOST => own[0] == CPU,
            CUDA | CUDA_MANAGED => own == [CUDA, raw.device_id],
            _ => false,
        };
        if !fits {
            let theirs = [raw.device_type, raw.device_id];
            return invalid(format!("the array is on DLPack's device {theirs:?}, the tensor would be on {own:?}"));
        }
        let described = raw.describe().or_else(invalid)?;
        let (ty, shape) = (described.ty, &described.shape);
        let (strides, bytes) = described.span().or_else(invalid)?;
        if described.elements == 0 {
            give(tensor, HologramTensor(Tensor::empty(executor, DType::Plain(ty), shape)?));
            drop(Taken(managed));
            return Ok(());
        }
        if !described.address.is_multiple_of(ty.size()) {
            return invalid(format!("the array is not aligned to its elements of {} bytes", ty.size()));
        }
        let taken = Arc::new(Taken(managed));
        let owner: Arc<dyn Any + Send + Sync> = taken.clone();
        let memory = ForeignPointer::new(owner, described.address as u64, bytes, of.flags & READ_ONLY == 0);
        match Tensor::from_pointer(executor, memory, DType::Plain(ty), shape, Some(&strides)) {
            Ok(made) => give(tensor, HologramTensor(made)),
            Err(e) => {
                // The structure stays the caller's.
                if let Some(taken) = Arc::into_inner(taken) {
                    std::mem::forget(taken);
                }
                return Err(e.into());
            }
        }
        Ok(())
    })
}
