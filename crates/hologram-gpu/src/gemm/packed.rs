//! Dequantizes packed weights for a product on tensor cores: each matrix is written as `bf16` to the scratch memory
//! (`kernels/packed.k`).

use hologram_device::DType;

use super::Product;
use crate::kernels::packed::Unpack;
use crate::launch::{Planes, launch, number, packed_name};
use crate::{BLAS_WORKSPACE, Memory, NativeKernel, Part};

/// The most scratch memory for a product's matrices.
const MOST_BYTES: usize = 2 << 30;
/// Threads per workgroup, and elements per thread.
const THREADS: usize = 256;
const ELEMENTS: usize = 8;

/// A product whose matrices are all dequantized, with the launches that dequantize them.
pub struct Unpacked {
    /// The product.
    pub(super) product: Product,
    parts: Vec<Part>,
    scratch: usize,
}

impl Unpacked {
    /// The product's kernel, preceded by the dequantization.
    pub fn before(self, kernel: NativeKernel) -> NativeKernel {
        let mut parts = self.parts;
        parts.extend(kernel.parts);
        NativeKernel { parts, scratch: kernel.scratch.max(self.scratch), counters: kernel.counters, phase: None }
    }
}

/// The product over dequantized matrices; `None` if they exceed the scratch memory, or for other activation formats.
pub(super) fn unpack(product: &Product) -> Option<Unpacked> {
    let mut unpacked = Unpacked { product: product.clone(), parts: Vec::new(), scratch: 0 };
    if product.packed.iter().any(Option::is_some) && product.x != DType::BF16 {
        return None;
    }
    // The library's workspace comes first.
    let mut at = BLAS_WORKSPACE;
    for (i, packed) in product.packed.iter().enumerate() {
        let Some((packed, first)) = *packed else { continue };
        let elements = product.rows.get(i)?.checked_mul(product.k)?;
        let total = elements / ELEMENTS;
        let Planes { low, high, records } = Planes::at(packed, first);
        let args = Unpack { low, high, records, y: Memory::Scratch(at), total: number(total)? };
        let entry = format!("unpack_{}", packed_name(packed));
        unpacked.parts.push(Part::Kernel(launch(args, entry, [total.div_ceil(THREADS), 1], THREADS)?));
        unpacked.product.w_args[i] = [Memory::Scratch(at), Memory::Null];
        unpacked.product.packed[i] = None;
        at = at.checked_add(elements.checked_mul(2)?.checked_next_multiple_of(256)?)?;
    }
    if !unpacked.parts.is_empty() {
        unpacked.scratch = at;
    }
    (at <= MOST_BYTES).then_some(unpacked)
}
