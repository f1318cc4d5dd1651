//! Selects the products that cuBLASLt computes faster than our own kernels.

use hologram_device::{DType, Extent};

use super::{Mode, Product};
use crate::{BlasCall, BlasProduct, Target};

/// The range in which it was faster on an NVIDIA H200, for row lengths of 2048 to 14336: by 5 to 20 % with 64 to 512
/// tokens (10 to 57 % for numbers that are no power of two), by 0 to 14 % with 1024 and 2048. With fewer tokens or
/// smaller matrices our own kernels are as fast.
const TOKENS: usize = 64;
const MANY_TOKENS: usize = 512;
const ELEMENTS: usize = 1 << 22;

/// A product of one `bf16` matrix, with or without an addition, with fixed sizes: the library has no run-time extents.
pub(super) fn find(product: &Product, target: Target) -> Option<BlasCall> {
    let (Extent::Fixed(n), [m], k) = (product.tokens, product.rows.as_slice(), product.k) else { return None };
    let (adds, m) = (product.mode == Mode::Add, *m);
    let served = matches!(product.mode, Mode::Store | Mode::Add)
        && (product.x, product.w, product.narrow) == (DType::BF16, DType::BF16, false)
        && product.fits_tiles()
        && k.is_multiple_of(8);
    // With more tokens our own kernel was up to 19 % faster for an addition, whose operand it loads while it computes.
    let faster = n >= TOKENS && (n <= MANY_TOKENS || !adds) && m.checked_mul(k)? >= ELEMENTS;
    (served && faster && target.has(80)).then(|| BlasCall {
        product: BlasProduct { n, m, k, adds },
        x: product.x_args[0],
        w: product.w_args[0][0],
        add: product.add,
        y: product.y[0],
    })
}
