//! Tensors.

use std::ffi::c_void;

use hologram_core::{DType, Tensor, bytes_of};
use hologram_isa::Type;

use crate::device::HologramDevice;
use crate::error::{HologramStatus, Result, guard, invalid};
use crate::pointers::{fill, give, list, object, place, release, room};

/// An array of numbers on a device. It does not change, except where a program writes to it.
pub struct HologramTensor(pub(crate) Tensor);

/// Element types.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HologramType {
    /// A byte, 0 or 1.
    Bool = 0,
    /// Signed, 8 bits.
    I8 = 1,
    /// Unsigned, 8 bits.
    U8 = 2,
    /// Signed, 16 bits.
    I16 = 3,
    /// Unsigned, 16 bits.
    U16 = 4,
    /// Signed, 32 bits.
    I32 = 5,
    /// Unsigned, 32 bits.
    U32 = 6,
    /// Signed, 64 bits.
    I64 = 7,
    /// Unsigned, 64 bits.
    U64 = 8,
    /// IEEE 754 binary16.
    F16 = 9,
    /// The upper half of a binary32.
    Bf16 = 10,
    /// IEEE 754 binary32.
    F32 = 11,
    /// IEEE 754 binary64, which not every device has.
    F64 = 12,
}

/// Numbers of types.
const TYPES: [(HologramType, Type); 13] = [
    (HologramType::Bool, Type::Bool),
    (HologramType::I8, Type::I8),
    (HologramType::U8, Type::U8),
    (HologramType::I16, Type::I16),
    (HologramType::U16, Type::U16),
    (HologramType::I32, Type::I32),
    (HologramType::U32, Type::U32),
    (HologramType::I64, Type::I64),
    (HologramType::U64, Type::U64),
    (HologramType::F16, Type::F16),
    (HologramType::Bf16, Type::BF16),
    (HologramType::F32, Type::F32),
    (HologramType::F64, Type::F64),
];

/// The type of a number of [`HologramType`].
pub fn type_of(number: i32) -> Result<Type> {
    match TYPES.iter().find(|(of, _)| *of as i32 == number) {
        Some((_, ty)) => Ok(*ty),
        None => invalid(format!("there is no element type {number}")),
    }
}

/// The type of a tensor's elements.
pub fn element(tensor: &Tensor) -> Result<Type> {
    match tensor.dtype() {
        DType::Plain(ty) => Ok(ty),
        other => invalid(format!("the tensor has elements of {}, which C has no type for", other.name())),
    }
}

/// Sizes of dimensions.
pub unsafe fn sizes(shape: *const i64, rank: usize) -> Result<Vec<usize>> {
    let size = |n: &i64| usize::try_from(*n).or_else(|_| invalid(format!("a dimension has size {n}")));
    list(shape, rank, "shape")?.iter().map(size).collect()
}

/// A tensor on a device with a copy of `bytes` bytes at `data`, in row-major order. `type` is a `HologramType`; a rank
/// of 0 is one number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_tensor_new(
    device: *const HologramDevice,
    r#type: i32,
    shape: *const i64,
    rank: usize,
    data: *const c_void,
    bytes: usize,
    tensor: *mut *mut HologramTensor,
) -> HologramStatus {
    guard(|| {
        let executor = &object(device, "device")?.executor;
        let (shape, data) = (sizes(shape, rank)?, list(data.cast::<u8>(), bytes, "data")?);
        let tensor = place(tensor, "tensor")?;
        give(tensor, HologramTensor(Tensor::from_bytes(executor, DType::Plain(type_of(r#type)?), &shape, data)?));
        Ok(())
    })
}

/// Another handle of the same tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_tensor_retain(
    tensor: *const HologramTensor,
    same: *mut *mut HologramTensor,
) -> HologramStatus {
    guard(|| {
        give(place(same, "same")?, HologramTensor(object(tensor, "tensor")?.0.clone()));
        Ok(())
    })
}

/// The tensor's element type, a `HologramType`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_tensor_type(tensor: *const HologramTensor, r#type: *mut i32) -> HologramStatus {
    guard(|| {
        let ty = element(&object(tensor, "tensor")?.0)?;
        let number = TYPES.iter().find(|(_, of)| *of == ty).map(|(number, _)| *number as i32);
        place(r#type, "type")?.write(number.unwrap_or_default());
        Ok(())
    })
}

/// The tensor's number of dimensions, and the sizes of the first `room` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_tensor_shape(
    tensor: *const HologramTensor,
    shape: *mut i64,
    room: usize,
    rank: *mut usize,
) -> HologramStatus {
    guard(|| {
        let of = object(tensor, "tensor")?.0.shape();
        let shape = self::room(shape, room, "shape")?;
        let rank = place(rank, "rank")?;
        fill(shape, &of.iter().take(shape.len()).map(|n| *n as i64).collect::<Vec<_>>());
        rank.write(of.len());
        Ok(())
    })
}

/// Waits for the tensor's elements and copies them, in row-major order, to `bytes` bytes at `data`: the product of its
/// sizes and of an element's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_tensor_read(
    tensor: *const HologramTensor,
    data: *mut c_void,
    bytes: usize,
) -> HologramStatus {
    guard(|| {
        let tensor = &object(tensor, "tensor")?.0;
        let own = tensor.shape().iter().product::<usize>() * element(tensor)?.size();
        if own != bytes {
            return invalid(format!("the tensor has {own} bytes, but there is room for {bytes}"));
        }
        fill(room(data.cast::<u8>(), bytes, "data")?, &read(tensor)?);
        Ok(())
    })
}

/// The bytes of a tensor's elements in order.
fn read(tensor: &Tensor) -> Result<Vec<u8>> {
    macro_rules! of {
        ($rust:ty) => {
            bytes_of(&tensor.to_vec::<$rust>()?).to_vec()
        };
    }
    Ok(match element(tensor)? {
        Type::Bool => tensor.to_bools()?.into_iter().map(u8::from).collect(),
        Type::I8 => of!(i8),
        Type::U8 => of!(u8),
        Type::I16 => of!(i16),
        Type::U16 => of!(u16),
        Type::I32 => of!(i32),
        Type::U32 => of!(u32),
        Type::I64 => of!(i64),
        Type::U64 => of!(u64),
        Type::F16 => of!(half::f16),
        Type::BF16 => of!(half::bf16),
        Type::F32 => of!(f32),
        Type::F64 => of!(f64),
    })
}

/// The tensor on another device, copied through the host unless it is there already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_tensor_to_device(
    tensor: *const HologramTensor,
    device: *const HologramDevice,
    moved: *mut *mut HologramTensor,
) -> HologramStatus {
    guard(|| {
        let (tensor, device) = (object(tensor, "tensor")?, object(device, "device")?);
        give(place(moved, "moved")?, HologramTensor(tensor.0.to(&device.executor)?));
        Ok(())
    })
}

/// Frees a tensor's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_tensor_release(tensor: *mut HologramTensor) {
    release(tensor);
}
