//! DLPack 1 (<https://dmlc.github.io/dlpack>): the structures by which array libraries share memory, as `dlpack.h` has
//! them. The C interface and the Python package exchange them; what both must know of them is here.

use std::ffi::c_void;
use std::ptr;

use hologram_backends::DType;
use hologram_isa::Type;

use crate::tensor::Tensor;

/// The kind of a device: the host.
pub const CPU: i32 = 1;
/// An NVIDIA GPU.
pub const CUDA: i32 = 2;
/// The host's memory that CUDA has pinned.
pub const CUDA_HOST: i32 = 3;
/// CUDA's managed memory.
pub const CUDA_MANAGED: i32 = 13;

/// Flag: the consumer must not write.
pub const READ_ONLY: u64 = 1;
/// Flag: the memory is a copy of the consumer's own.
pub const IS_COPIED: u64 = 2;

/// The version that is written; any of the same major number is read.
pub const VERSION: Version = Version { major: 1, minor: 1 };

/// The most dimensions of a structure that is read.
const MAX_RANK: usize = 64;

/// `DLPackVersion`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Structures of another major version have other fields.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
}

impl Version {
    /// Whether structures of this version can be read. Only the fields before the version have the same place in every
    /// one.
    ///
    /// # Errors
    /// A sentence that names the version.
    pub fn check(self) -> Result<(), String> {
        match self.major == VERSION.major {
            true => Ok(()),
            false => Err(format!("DLPack {}.{} cannot be read", self.major, self.minor)),
        }
    }
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementType {
    /// The kind of numbers.
    pub code: u8,
    /// Their size.
    pub bits: u8,
    /// Numbers per element.
    pub lanes: u16,
}

impl From<Type> for ElementType {
    fn from(ty: Type) -> ElementType {
        let code = match ty {
            Type::Bool => 6,
            Type::BF16 => 4,
            Type::F16 | Type::F32 | Type::F64 => 2,
            Type::U8 | Type::U16 | Type::U32 | Type::U64 => 1,
            Type::I8 | Type::I16 | Type::I32 | Type::I64 => 0,
        };
        ElementType { code, bits: 8 * ty.size() as u8, lanes: 1 }
    }
}

impl TryFrom<ElementType> for Type {
    type Error = String;

    fn try_from(of: ElementType) -> Result<Type, String> {
        let ty = Type::ALL.iter().find(|ty| ElementType::from(**ty) == of).copied();
        let ElementType { code, bits, lanes } = of;
        ty.ok_or_else(|| format!("there is no element type for DLPack's code {code} of {bits} bits and {lanes} lanes"))
    }
}

/// `DLTensor`.
#[repr(C)]
#[derive(Debug)]
pub struct DLTensor {
    /// The memory; the first element is `byte_offset` bytes behind.
    pub data: *mut c_void,
    /// The kind of device.
    pub device_type: i32,
    /// Which one of its kind.
    pub device_id: i32,
    /// The number of dimensions.
    pub ndim: i32,
    /// The elements' type.
    pub dtype: ElementType,
    /// The size of each dimension.
    pub shape: *mut i64,
    /// The distance of each dimension's elements, in elements; null for row-major order.
    pub strides: *mut i64,
    /// The place of the first element.
    pub byte_offset: u64,
}

/// `DLManagedTensor`, of before version 1.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The memory.
    pub tensor: DLTensor,
    /// The producer's own.
    pub context: *mut c_void,
    /// Frees the structure; the consumer calls it once.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// The version of the structure.
    pub version: Version,
    /// The producer's own.
    pub context: *mut c_void,
    /// Frees the structure; the consumer calls it once.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// [`READ_ONLY`], [`IS_COPIED`].
    pub flags: u64,
    /// The memory.
    pub tensor: DLTensor,
}

/// What a [`DLTensor`] says, checked.
#[derive(Clone, Debug)]
pub struct Described {
    /// The elements' type.
    pub ty: Type,
    /// The size of each dimension.
    pub shape: Vec<usize>,
    /// The distance of each dimension's elements, in elements. Of a dimension of size 1 it means nothing, and is that
    /// of row-major order.
    pub strides: Vec<i64>,
    /// The host's or the device's address of the first element.
    pub address: usize,
    /// The number of elements.
    pub elements: usize,
}

impl DLTensor {
    /// Reads the description.
    ///
    /// # Errors
    /// A sentence that says what of it no tensor can have.
    ///
    /// # Safety
    /// Shape and strides, unless they are null, have as many numbers as there are dimensions.
    pub unsafe fn describe(&self) -> Result<Described, String> {
        let ty = Type::try_from(self.dtype)?;
        let rank = usize::try_from(self.ndim).ok().filter(|rank| *rank <= MAX_RANK);
        let rank = rank.ok_or_else(|| format!("the array has {} dimensions", self.ndim))?;
        if rank > 0 && self.shape.is_null() {
            return Err("the array has no shape".into());
        }
        // SAFETY: promised by the caller.
        let list = |data: *mut i64| if rank == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data, rank) } };
        let size = |n: &i64| usize::try_from(*n).map_err(|_| format!("a dimension has size {n}"));
        let shape = list(self.shape).iter().map(size).collect::<Result<Vec<_>, String>>()?;
        let elements = shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
        let elements = elements.ok_or_else(|| format!("the array's shape {shape:?} is too large"))?;
        let mut strides = vec![1i64; rank];
        for k in (1..rank).rev() {
            strides[k - 1] = strides[k].saturating_mul(i64::try_from(shape[k].max(1)).unwrap_or(i64::MAX));
        }
        if !self.strides.is_null() {
            let given = list(self.strides).iter().zip(&shape);
            strides.iter_mut().zip(given).filter(|(_, (_, n))| **n > 1).for_each(|(to, (stride, _))| *to = *stride);
        }
        let address = self.data.expose_provenance();
        if elements > 0 && address == 0 {
            return Err("the array's data is NULL".into());
        }
        let offset = usize::try_from(self.byte_offset).ok().and_then(|offset| address.checked_add(offset));
        let address = offset.ok_or("the array is larger than any memory")?;
        Ok(Described { ty, shape, strides, address, elements })
    }
}

impl Described {
    /// The strides, and the bytes that the elements span from the first on.
    ///
    /// # Errors
    /// A sentence, when a stride is negative or the span larger than any memory.
    pub fn span(&self) -> Result<(Vec<usize>, usize), String> {
        let stride = |s: &i64| {
            usize::try_from(*s).map_err(|_| format!("the array has a stride of {s}: copy it in ascending order first"))
        };
        let strides = self.strides.iter().map(stride).collect::<Result<Vec<_>, _>>()?;
        let reach = |reach: usize, (n, s): (&usize, &usize)| n.saturating_sub(1).checked_mul(*s)?.checked_add(reach);
        let elements = self.shape.iter().zip(&strides).try_fold(1, reach);
        let bytes = elements.and_then(|n| n.checked_mul(self.ty.size()));
        Ok((strides, bytes.ok_or("the array is larger than any memory")?))
    }
}

/// What an exported structure needs as long as it lives: the memory, and the lists that it points to. When it is
/// dropped, the consumer's work in streams of a GPU may still use the memory; what uses it next comes after that work.
#[derive(Debug)]
pub struct Exported {
    tensor: Option<Tensor>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

/// Whether other libraries must not write a tensor's elements: its memory is foreign and read-only, or several indices
/// have one element.
pub fn is_read_only(tensor: &Tensor) -> bool {
    let strides = tensor.strides();
    let repeated = tensor.shape().iter().zip(&strides).any(|(n, stride)| *n > 1 && *stride == 0);
    repeated || !tensor.buffer().writable()
}

impl Exported {
    /// A tensor's memory on a device of this kind and number. The structure points into the box. `None` if the memory
    /// has no address, or the elements no type, for other libraries.
    pub fn new(tensor: Tensor, [device_type, device_id]: [i32; 2]) -> Option<(Box<Exported>, DLTensor)> {
        let (address, DType::Plain(ty)) = (tensor.address()?, tensor.dtype()) else { return None };
        let numbers = |list: &[usize]| list.iter().map(|n| *n as i64).collect::<Vec<_>>();
        let (shape, strides) = (numbers(tensor.shape()), numbers(&tensor.strides()));
        let mut exported = Box::new(Exported { tensor: Some(tensor), shape, strides });
        let empty = exported.shape.contains(&0);
        let raw = DLTensor {
            data: if empty { ptr::null_mut() } else { ptr::with_exposed_provenance_mut(address as usize) },
            device_type,
            device_id,
            ndim: exported.shape.len() as i32,
            dtype: ty.into(),
            shape: exported.shape.as_mut_ptr(),
            strides: exported.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        Some((exported, raw))
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        if let Some(tensor) = self.tensor.take()
            && let Some(streams) = tensor.executor().backend().streams()
            && streams.wait_for_all_streams(tensor.buffer()).is_err()
        {
            // The device cannot tell when its streams are done: the memory serves nobody again.
            std::mem::forget(tensor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_checked() {
        let f32 = ElementType::from(Type::F32);
        let (mut shape, mut strides) = ([2i64, 3], [-3i64, 1]);
        let mut raw = |dtype: ElementType, ndim: i32, data: usize| DLTensor {
            data: ptr::without_provenance_mut(data),
            device_type: CPU,
            device_id: 0,
            ndim,
            dtype,
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            byte_offset: 8,
        };
        // SAFETY: both lists have two numbers; longer ranks are rejected before they are read.
        let described = |raw: DLTensor| unsafe { raw.describe() };
        let of = described(raw(f32, 2, 64)).unwrap();
        assert_eq!((of.ty, of.shape.as_slice(), of.strides.as_slice()), (Type::F32, &[2, 3][..], &[-3, 1][..]));
        assert_eq!((of.address, of.elements), (72, 6));
        assert!(of.span().unwrap_err().contains("stride of -3"));
        let seven = ElementType { bits: 7, ..f32 };
        for (raw, message) in [
            (raw(seven, 2, 64), "7 bits"),
            (raw(f32, -1, 64), "-1 dimensions"),
            (raw(f32, 65, 64), "65 dimensions"),
            (raw(f32, 2, 0), "data is NULL"),
        ] {
            let error = described(raw).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
        for ty in Type::ALL {
            assert_eq!(Type::try_from(ElementType::from(ty)), Ok(ty));
        }
        assert!(Version { major: 2, minor: 0 }.check().is_err() && VERSION.check().is_ok());
    }
}
