//! `matmul` for steps of many tokens: on tensor cores, alone or fused with the operation after it, or in plain `f32`.
//!
//! A [`Product`] describes the request of a spec or a group; [`codes`], [`few`], [`wgmma`], [`mma`], [`simdgroup`] and
//! [`plain`] each decide which products their kernels serve, and [`blas`] which are faster with the library.

use hologram_device::{
    AfterProducts, BlockType, DType, Extent, Fused, Gate, GroupSpec, KernelSpec, Operation, TensorSpec,
};

/// The arguments of a kernel for products: those that all such kernels have, and its own.
macro_rules! arguments {
    ($kernel:ident of $product:expr; { $($own:ident $(: $value:expr)?),* $(,)? }) => {{
        let ([m0, m1, m2], (step, slot)) = ($product.row_numbers()?, $product.step_and_slot());
        $kernel {
            add: $product.add,
            y0: $product.result(0),
            y1: $product.result(1),
            y2: $product.result(2),
            step,
            slot,
            n: number($product.tokens.max())?,
            m0,
            m1,
            m2,
            k: number($product.k)?,
            mode: $product.mode as u32,
            $($own $(: $value)?,)*
        }
    }};
}

mod blas;
mod codes;
mod few;
mod mma;
mod packed;
mod plain;
mod simdgroup;
#[cfg(test)]
mod tests;
mod wgmma;

pub(super) use codes::{
    MOST_WHOLE as MOST_WHOLE_CODES, TOKENS as CODES_TOKENS, UNIT as CODES_UNIT, serves as serves_codes,
};
pub use packed::Unpacked;
pub(super) use wgmma::{Tile as WideTile, map as wide_map, stage_bytes};

use super::batch_matmul;
use super::launch::{MATRICES, Places, Planes, number};
use super::{BlasCall, Memory, NativeKernel, Target};

/// The operation on the sums before they are stored; the numbers are those of `Mode` in `gemm.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Nothing.
    Store = 0,
    /// Adds another tensor.
    Add = 1,
    /// Two matrices: silu(first) · second.
    Swiglu = 2,
    /// Two matrices: max(first, 0)² · second.
    Relu2 = 3,
    /// Two matrices of experts: gpt-oss' gate.
    ClampedSwiglu = 4,
}

/// x · wᵀ for one to three matrices that share x.
#[derive(Clone, Debug)]
struct Product {
    x: DType,
    /// The matrices' format; `bf16` for packed ones, which are dequantized first.
    w: DType,
    /// The packed matrices' types and the indices of their first bindings, in the order of `rows`.
    packed: Vec<Option<(BlockType, usize)>>,
    /// Tokens: rows of x.
    tokens: Extent,
    /// Elements of a row of x and of the matrices.
    k: usize,
    /// Rows of each matrix; with a gate, the gate's matrix comes first.
    rows: Vec<usize>,
    mode: Mode,
    /// Whether results are stored as `bf16` instead of `f32`.
    narrow: bool,
    /// Elements and scales of x; null where there is no second view.
    x_args: [Memory; 2],
    /// Elements and scales of each matrix.
    w_args: Vec<[Memory; 2]>,
    /// The addend.
    add: Memory,
    /// Each result.
    y: Vec<Memory>,
    /// The step block.
    step: Memory,
}

/// The native kernel for `matmul`.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let product = Product::of(spec)?;
    let plain = || plain::find(&product, target).filter(|_| product.packed == [None] && !target.is_apple());
    served(&product, target).or_else(|| batch_matmul::find_linear(spec, target)).or_else(plain)
}

/// The native kernel for two or three products that share x, for a product and an addition, and for two products and
/// their gate, with or without a conversion to `bf16` after it.
pub(super) fn find_group(group: &GroupSpec, target: Target) -> Option<NativeKernel> {
    served(&Product::of_group(group)?, target)
}

/// The product for `matmul` that cuBLASLt computes faster than the kernels here.
pub(super) fn find_blas(spec: &KernelSpec, target: Target) -> Option<(BlasCall, Unpacked)> {
    find_call(&Product::of(spec)?, target)
}

/// As [`find_blas`], for a product and an addition.
pub(super) fn find_blas_group(group: &GroupSpec, target: Target) -> Option<(BlasCall, Unpacked)> {
    find_call(&Product::of_group(group)?, target)
}

fn find_call(product: &Product, target: Target) -> Option<(BlasCall, Unpacked)> {
    if of_packed(product, target).is_some() {
        return None;
    }
    let unpacked = packed::unpack(product)?;
    Some((blas::find(&unpacked.product, target)?, unpacked))
}

fn served(product: &Product, target: Target) -> Option<NativeKernel> {
    if target.is_apple()
        && let Some(kernel) = simdgroup::find(product)
    {
        return Some(kernel);
    }
    if let Some(kernel) = of_packed(product, target).or_else(|| codes::find(product, target)) {
        return Some(kernel);
    }
    let unpacked = packed::unpack(product)?;
    if target.is_apple() {
        let kernel = simdgroup::find(&unpacked.product)?;
        return Some(unpacked.before(kernel));
    }
    let kernel = wgmma::find(&unpacked.product, target).or_else(|| mma::find(&unpacked.product, target))?;
    Some(unpacked.before(kernel))
}

/// The native kernel for packed weights that are widened in registers: a launch for each run of matrices of one type.
fn of_packed(product: &Product, target: Target) -> Option<NativeKernel> {
    let few = || by_type(product, |of_one| few::find(of_one, target));
    let many = || by_type(product, |of_one| wgmma::find_packed(of_one, target));
    if product.tokens.max() > few::TOKENS { many().or_else(few) } else { few().or_else(many) }
}

/// The launches for each run of matrices of one packed type, for which `find` gives a kernel.
fn by_type(product: &Product, find: impl Fn(&Product) -> Option<NativeKernel>) -> Option<NativeKernel> {
    let types: Vec<_> = product.packed.iter().map(|packed| packed.map(|(of, _)| of)).collect();
    let (mut parts, mut from) = (Vec::new(), 0);
    for run in types.chunk_by(|a, b| a == b) {
        if run.len() == types.len() {
            return find(product);
        }
        // The halves of a gate share a tile.
        if product.gated() {
            return None;
        }
        let of = from..from + run.len();
        from = of.end;
        let own = Product {
            rows: product.rows.get(of.clone())?.to_vec(),
            packed: product.packed.get(of.clone())?.to_vec(),
            w_args: product.w_args.get(of.clone())?.to_vec(),
            y: product.y.get(of)?.to_vec(),
            ..product.clone()
        };
        parts.extend(find(&own)?.parts);
    }
    Some(NativeKernel { parts, scratch: 0, counters: 0, phase: None })
}

/// Tokens, row length and rows of w of a product x [n, k] · w [m, k]ᵀ = y [n, m].
fn shape(x: &TensorSpec, w: &TensorSpec, y: &TensorSpec) -> Option<(Extent, usize, usize)> {
    let ([n, Extent::Fixed(k)], [Extent::Fixed(m), Extent::Fixed(l)]) = (x.shape.as_slice(), w.shape.as_slice()) else {
        return None;
    };
    let fits = k == l && *k > 0 && *m > 0 && y.format == DType::F32 && y.shape == [*n, Extent::Fixed(*m)];
    fits.then_some((*n, *k, *m))
}

/// The format of a matrix for the kernels; for a packed one also its type and place.
fn unpacked(w: &TensorSpec, at: usize) -> (DType, Option<(BlockType, usize)>) {
    match w.format.packed() {
        Some(packed) => (DType::BF16, Some((packed, at))),
        None => (w.format, None),
    }
}

/// The arguments of a tensor's views.
fn views(places: &Places, input: usize, tensor: &TensorSpec) -> [Memory; 2] {
    let second = match tensor.format {
        DType::Plain(_) => Memory::Null,
        _ => places.input(input, 1),
    };
    [places.input(input, 0), second]
}

impl Product {
    fn of(spec: &KernelSpec) -> Option<Product> {
        let [x, w] = spec.inputs.as_slice() else { return None };
        if spec.op != Operation::Matmul || spec.in_place.is_some() {
            return None;
        }
        let ((tokens, k, m), places) = (shape(x, w, &spec.output)?, Places::of(spec));
        let (format, packed) = unpacked(w, places.at(1));
        Some(Product {
            x: x.format,
            w: format,
            packed: vec![packed],
            tokens,
            k,
            rows: vec![m],
            mode: Mode::Store,
            narrow: false,
            x_args: views(&places, 0, x),
            w_args: vec![views(&places, 1, w)],
            add: Memory::Null,
            y: vec![places.output(0)],
            step: places.step(),
        })
    }

    fn of_group(group: &GroupSpec) -> Option<Product> {
        let Fused::Products(fused) = &group.fused else { return None };
        let alone = fused.products.len() == 1 && fused.after == AfterProducts::Store;
        if fused.norm.is_some() || fused.conversion.is_some() || alone || fused.products.len() > MATRICES {
            return None;
        }
        let places = Places::of_results(group);
        let (mode, narrow, add) = match fused.after {
            AfterProducts::Store => (Mode::Store, false, Memory::Null),
            AfterProducts::Add { residual } => (Mode::Add, false, places.input(residual, 0)),
            AfterProducts::Gate { gate: Gate::Swiglu, bf16 } => (Mode::Swiglu, bf16, Memory::Null),
            AfterProducts::Gate { gate: Gate::Relu2, bf16 } => (Mode::Relu2, bf16, Memory::Null),
            AfterProducts::Gate { gate: Gate::ClampedSwiglu, .. } => return None,
        };
        let x = group.inputs.get(fused.x)?;
        let (mut rows, mut w_args, mut packed, mut w_format, mut size) =
            (Vec::new(), Vec::new(), Vec::new(), None, None);
        for product in &fused.products {
            let w = group.inputs.get(product.weights)?;
            let (tokens, k, m) = shape(x, w, &product.value)?;
            let (format, of) = unpacked(w, places.at(product.weights));
            if w_format.is_some_and(|f| f != format) {
                return None;
            }
            (w_format, size) = (Some(format), Some((tokens, k)));
            packed.push(of);
            rows.push(m);
            w_args.push(views(&places, product.weights, w));
        }
        let (tokens, k) = size?;
        let y = (0..group.outputs.len()).map(|i| places.output(i)).collect();
        Some(Product {
            x: x.format,
            w: w_format?,
            packed,
            tokens,
            k,
            rows,
            mode,
            narrow,
            x_args: views(&places, fused.x, x),
            w_args,
            add,
            y,
            step: places.step(),
        })
    }

    /// Whether two matrices give one result.
    fn gated(&self) -> bool {
        matches!(self.mode, Mode::Swiglu | Mode::Relu2)
    }

    /// The packed type of the first matrix.
    fn packed_type(&self) -> Option<BlockType> {
        self.packed.first().copied().flatten().map(|(packed, _)| packed)
    }

    /// The packed type that all matrices have, and their planes, with none for a missing one.
    fn planes(&self) -> Option<(BlockType, [Planes; 3])> {
        let all = self.packed_type()?;
        let mut planes = [Planes::NONE; 3];
        for (to, packed) in planes.iter_mut().zip(&self.packed) {
            let (of, at) = packed.filter(|(of, _)| *of == all)?;
            *to = Planes::at(of, at);
        }
        Some((all, planes))
    }

    /// Whether the matrices' elements are floats.
    fn plain(&self) -> bool {
        matches!(self.w, DType::BF16 | DType::F16)
    }

    /// Groups of 64 rows that the kernels iterate over: see `gemm.h`.
    fn groups(&self) -> usize {
        if self.gated() { self.rows[0].div_ceil(32) } else { self.rows.iter().map(|m| m.div_ceil(64)).sum() }
    }

    /// Bytes of a row of a matrix's elements or codes.
    fn row_bytes(&self) -> usize {
        match self.w {
            DType::Q8Planes => self.k,
            DType::Q4Planes => self.k / 2,
            DType::T2Planes => self.k / 4,
            _ => self.k * 2,
        }
    }

    /// Elements per group of 8-bit activations; 0 for other activations.
    fn activation_group(&self) -> usize {
        match self.x {
            DType::I8Groups { group } => group as usize,
            _ => 0,
        }
    }

    /// Elements and scales of matrix `i`.
    fn matrix(&self, i: usize) -> [Memory; 2] {
        self.w_args.get(i).copied().unwrap_or([Memory::Null; 2])
    }

    /// Result `i`.
    fn result(&self, i: usize) -> Memory {
        self.y.get(i).copied().unwrap_or(Memory::Null)
    }

    /// The step block and its word with the number of tokens; no block if the number is fixed.
    fn step_and_slot(&self) -> (Memory, u32) {
        match self.tokens {
            Extent::Fixed(_) => (Memory::Null, 0),
            Extent::Step { slot, .. } => (self.step, slot),
        }
    }

    /// The number of rows of each matrix, as kernel arguments; both matrices of a gate share the first.
    fn row_numbers(&self) -> Option<[u32; 3]> {
        let rows = if self.gated() { &self.rows[..1] } else { &self.rows[..] };
        let row = |i: usize| number(rows.get(i).copied().unwrap_or(0));
        Some([row(0)?, row(1)?, row(2)?])
    }

    /// Whether results can be written four at a time, with 32-bit indices of rows.
    fn fits_tiles(&self) -> bool {
        let whole = |m: &usize| m.is_multiple_of(8) && *m < 1 << 30;
        self.rows.iter().all(whole) && self.k < 1 << 30 && self.tokens.max() < 1 << 30
    }
}
