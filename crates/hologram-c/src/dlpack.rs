//! DLPack 1 (<https://dmlc.github.io/dlpack>), both ways: tensors over memory of other libraries, and the other way
//! round. `dlpack.h` has the structures.

use std::any::Any;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use hologram_backends::{BackendType, ForeignPointer};
use hologram_core::{DType, Executor, Tensor};
use hologram_isa::Type;

use crate::device::{self, HologramDevice};
use crate::error::{HologramStatus, Result, guard, invalid};
use crate::pointers::{give, list, object, place};
use crate::tensor::{HologramTensor, element, sizes};

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

/// The major version that is read and written.
const MAJOR: u32 = 1;
const READ_ONLY: u64 = 1;

/// The most dimensions of a structure that is read.
const MAX_RANK: i32 = 64;

/// `DLTensor`.
#[repr(C)]
struct Raw {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// A tensor of another library, as in `dlpack.h`.
#[repr(C)]
pub struct DLManagedTensorVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    flags: u64,
    tensor: Raw,
}

/// DLPack's code and width of a type.
fn code(ty: Type) -> (u8, u8) {
    let code = match ty {
        Type::Bool => 6,
        Type::BF16 => 4,
        Type::F16 | Type::F32 | Type::F64 => 2,
        Type::U8 | Type::U16 | Type::U32 | Type::U64 => 1,
        Type::I8 | Type::I16 | Type::I32 | Type::I64 => 0,
    };
    (code, 8 * ty.size() as u8)
}

/// DLPack's numbers of a device.
fn device_of(executor: &Executor) -> Result<(i32, i32)> {
    let info = executor.info();
    match info.backend {
        BackendType::Cpu | BackendType::Reference => Ok((CPU, 0)),
        BackendType::Cuda => Ok((CUDA, device::number(executor))),
        other => invalid(format!("DLPack has no addresses of {other}: hologram_tensor_to_device copies to \"cpu\"")),
    }
}

/// What an exported structure keeps alive.
struct Exported {
    _tensor: Tensor,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

unsafe extern "C" fn free(managed: *mut DLManagedTensorVersioned) {
    if !managed.is_null() {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Exported>()));
    }
}

/// The tensor's memory as a `DLManagedTensorVersioned`, whose deleter the consumer calls. The call waits for the
/// elements, which must not be changed while the tensor is in use here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_tensor_to_dlpack(
    tensor: *const HologramTensor,
    managed: *mut *mut DLManagedTensorVersioned,
) -> HologramStatus {
    guard(|| {
        let (tensor, managed) = (object(tensor, "tensor")?.0.clone(), place(managed, "managed")?);
        let (device_type, device_id) = device_of(tensor.executor())?;
        let (code, bits) = code(element(&tensor)?);
        tensor.wait()?;
        let Some(address) = tensor.address() else {
            return invalid("the device's memory has no address for other libraries");
        };
        let numbers = |list: &[usize]| list.iter().map(|n| *n as i64).collect::<Vec<_>>();
        let (shape, strides) = (numbers(tensor.shape()), numbers(&tensor.strides()));
        let empty = shape.contains(&0);
        let mut exported = Box::new(Exported { _tensor: tensor, shape, strides });
        let raw = Raw {
            data: if empty { ptr::null_mut() } else { ptr::with_exposed_provenance_mut(address as usize) },
            device_type,
            device_id,
            ndim: exported.shape.len() as i32,
            code,
            bits,
            lanes: 1,
            shape: exported.shape.as_mut_ptr(),
            strides: exported.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        let context = Box::into_raw(exported).cast();
        let version = [MAJOR, 1];
        give(managed, DLManagedTensorVersioned { version, context, deleter: Some(free), flags: 0, tensor: raw });
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
        // Only the fields before this check have the same place in every version.
        if of.version[0] != MAJOR {
            return invalid(format!("DLPack {}.{} cannot be read", of.version[0], of.version[1]));
        }
        let raw = &of.tensor;
        let own = device_of(executor)?;
        let fits = match raw.device_type {
            CPU | CUDA_HOST => own.0 == CPU,
            CUDA | CUDA_MANAGED => own == (CUDA, raw.device_id),
            _ => false,
        };
        if !fits {
            let theirs = (raw.device_type, raw.device_id);
            return invalid(format!("the array is on DLPack's device {theirs:?}, the tensor would be on {own:?}"));
        }
        let same = |ty: &&Type| code(**ty) == (raw.code, raw.bits) && raw.lanes == 1;
        let Some(ty) = Type::ALL.iter().find(same).copied() else {
            let (code, bits, lanes) = (raw.code, raw.bits, raw.lanes);
            return invalid(format!("there is no type for DLPack's code {code} of {bits} bits and {lanes} lanes"));
        };
        if !(0..=MAX_RANK).contains(&raw.ndim) {
            return invalid(format!("the array has {} dimensions", raw.ndim));
        }
        let rank = raw.ndim as usize;
        let shape = sizes(raw.shape, rank)?;
        let given = if raw.strides.is_null() { None } else { Some(list(raw.strides, rank, "strides")?) };
        let mut dense = vec![1usize; rank];
        for k in (1..rank).rev() {
            dense[k - 1] = dense[k].saturating_mul(shape[k].max(1));
        }
        let stride = |k: usize| match given {
            // The stride of a dimension of size 1 means nothing.
            Some(strides) if shape[k] > 1 => usize::try_from(strides[k]).or_else(|_| {
                invalid(format!("the array has a stride of {}: copy it in ascending order first", strides[k]))
            }),
            _ => Ok(dense[k]),
        };
        let strides = (0..rank).map(stride).collect::<Result<Vec<_>>>()?;
        let reach = |reach: usize, (n, s): (&usize, &usize)| n.saturating_sub(1).checked_mul(*s)?.checked_add(reach);
        let elements = shape.iter().zip(&strides).try_fold(1, reach);
        let bytes = elements.and_then(|n| n.checked_mul(ty.size()));
        let (Some(bytes), Ok(offset)) = (bytes, usize::try_from(raw.byte_offset)) else {
            return invalid("the array is larger than any memory");
        };
        if shape.contains(&0) {
            give(tensor, HologramTensor(Tensor::empty(executor, DType::Plain(ty), &shape)?));
            drop(Taken(managed));
            return Ok(());
        }
        if raw.data.is_null() {
            return invalid("the array's data is NULL");
        }
        let address = raw.data.expose_provenance().wrapping_add(offset);
        if !address.is_multiple_of(ty.size()) {
            return invalid(format!("the array is not aligned to its elements of {} bytes", ty.size()));
        }
        let taken = Arc::new(Taken(managed));
        let owner: Arc<dyn Any + Send + Sync> = taken.clone();
        let memory = ForeignPointer::new(owner, address as u64, bytes, of.flags & READ_ONLY == 0);
        match Tensor::from_pointer(executor, memory, DType::Plain(ty), &shape, Some(&strides)) {
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
