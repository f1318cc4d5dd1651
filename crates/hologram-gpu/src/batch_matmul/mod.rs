//! `batch_matmul` on NVIDIA GPUs: products of batches of matrices, each stored transposed or not, with bias, activation
//! and residual.
//!
//! [`wgmma`] and [`mma`] multiply `bf16`, `f16` and `i8` on tensor cores, [`plain`] the other types. `f32` goes to
//! tensor cores as tf32, in three parts, which are as precise as [`plain`], or rounded where the user permits it.
//! Tensor cores take lines that begin at multiples of 16 bytes, and `i8` along the depth: other operands are first
//! copied to the scratch memory. A product of few tiles is split along its depth, and the parts' sums are added by a
//! launch of their own.

/// The arguments of a product's kernel: what all take (`BATCH_SIZES` in `batch.h`), and its own.
macro_rules! arguments {
    ($kernel:ident of $product:expr, $sizes:expr, $y:expr; { $($own:ident $(: $value:expr)?),* $(,)? }) => {
        $kernel {
            bias: $product.bias,
            residual: $product.residual,
            y: $y,
            n: $product.n.of_step($product.step),
            m: $sizes.m,
            k: $sizes.k,
            batches: $sizes.batches,
            batches_per: $sizes.batches_per,
            fast: $sizes.fast,
            middle: $sizes.middle,
            a_slow: $sizes.a[0],
            a_middle: $sizes.a[1],
            a_fast: $sizes.a[2],
            b_slow: $sizes.b[0],
            b_middle: $sizes.b[1],
            b_fast: $sizes.b[2],
            splits: $sizes.splits,
            $($own $(: $value)?,)*
        }
    };
}

mod mma;
mod plain;
mod prepare;
#[cfg(test)]
mod tests;
mod wgmma;

use hologram_device::{Activation, DType, Extent, KernelSpec, Operation, TensorSpec};
use hologram_isa::Type;

use super::arguments::Actual;
use super::kernels::cuda::batch::{BIAS, ENGINE, GELU, RELU, RESIDUAL, SILU, SUMS};
use super::launch::{Count, Places, number};
use super::{Memory, NativeKernel, Target};

/// One operand: lines of `k` elements, rows of the left side or columns of the right side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    memory: Memory,
    /// Whether the elements of a line are neighbours; otherwise those of an element of `k` are.
    along: bool,
    lines: usize,
    /// Elements from line to line, or from element to element of `k`.
    pitch: usize,
    /// Elements of a matrix.
    size: usize,
    /// Matrices, and their distances for the result's batches: slow, middle, fast.
    matrices: usize,
    strides: [usize; 3],
}

/// A product with its sizes and operands.
#[derive(Clone, Debug)]
struct Product {
    /// Of the operands, and of the result.
    format: Type,
    result: Type,
    left: Side,
    right: Side,
    /// Rows and columns of a matrix of the result, and the depth.
    n: Count,
    m: usize,
    k: Extent,
    batches: Count,
    /// Sizes of the result's middle and fast batch dimensions.
    middle: usize,
    fast: usize,
    /// What is done with sums: bits of `batch.h`.
    finish: u32,
    bias: Memory,
    residual: Memory,
    y: Memory,
    step: Memory,
}

/// The native kernel for `batch_matmul`.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    chosen(&Product::of(spec)?, spec, target)
}

/// With more tokens `matmul` of matrices in any sizes is served here; kernels of its own serve fewer.
const FEW_TOKENS: usize = 64;

/// The native kernel for `matmul` (x · wᵀ) of `f32`, or of `bf16` in sizes that its own kernels on tensor cores lack.
pub(super) fn find_linear(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let product = Product::linear(spec)?;
    if product.n.max() <= FEW_TOKENS { None } else { chosen(&product, spec, target) }
}

fn chosen(product: &Product, spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    if !target.has(80) {
        return None;
    }
    match product.format {
        Type::BF16 | Type::F16 | Type::I8 => {
            let (product, prepared) = prepare::aligned(product, spec)?;
            let kernel = wgmma::find(&product, prepared.scratch, target);
            let kernel = kernel.or_else(|| mma::find(&product, prepared.scratch, target))?;
            Some(prepared.before(kernel))
        }
        Type::F32 => on_tensor_cores(product, spec, target).or_else(|| plain::find(product, target)),
        _ => plain::find(product, target),
    }
}

/// The kernel on tensor cores for `f32`, if it is faster than the plain one.
fn on_tensor_cores(product: &Product, spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let (aligned, prepared) = prepare::aligned(product, spec)?;
    let time = mma::time(&aligned, target)?.checked_add(prepared.time)?;
    let faster = plain::time(product, target).is_none_or(|plain| time < plain);
    let kernel = if faster { mma::find(&aligned, prepared.scratch, target) } else { None }?;
    Some(prepared.before(kernel))
}

/// A batch dimension of the result: its size, and the distances of the operands' matrices.
#[derive(Clone, Copy, Debug)]
struct Batch {
    size: Extent,
    strides: [usize; 2],
}

/// The batch dimensions, slowest first, without those of one element and with neighbours joined where both operands
/// allow it; `None` if more than three remain.
fn batches(spec: &KernelSpec, of: [&[Extent]; 2]) -> Option<Vec<Batch>> {
    let (result, _) = spec.output.shape.split_at_checked(spec.output.shape.len().checked_sub(2)?)?;
    let mut joined: Vec<Batch> = Vec::new();
    let mut step = [1, 1];
    for (back, size) in result.iter().rev().enumerate() {
        let mut strides = [0, 0];
        for (side, shape) in of.iter().enumerate() {
            if let Some(own) = shape.len().checked_sub(back + 1).and_then(|i| shape.get(i)) {
                strides[side] = if *own == Extent::Fixed(1) { 0 } else { step[side] };
                step[side] *= own.max();
            }
        }
        if *size == Extent::Fixed(1) {
            continue;
        }
        match joined.last_mut() {
            // The faster dimension's size is fixed, as only the slowest may vary.
            Some(fast)
                if (0..2).all(|i| strides[i] == fast.strides[i] * fast.size.max()) && *size != Extent::Fixed(0) =>
            {
                fast.size = match *size {
                    Extent::Fixed(n) => Extent::Fixed(n * fast.size.max()),
                    // As a count of its own below.
                    Extent::Step { .. } => {
                        joined.push(Batch { size: *size, strides });
                        continue;
                    }
                };
            }
            _ => joined.push(Batch { size: *size, strides }),
        }
    }
    joined.reverse();
    (joined.len() <= 3).then_some(joined)
}

/// Whether only the slowest dimension may vary.
fn is_dense(tensor: &TensorSpec) -> bool {
    tensor.shape.iter().skip(1).all(|e| matches!(e, Extent::Fixed(_)))
}

impl Product {
    fn of(spec: &KernelSpec) -> Option<Product> {
        let Operation::BatchMatmul { transpose, bias, activation, residual } = spec.op else { return None };
        let [a, b, rest @ ..] = spec.inputs.as_slice() else { return None };
        let (DType::Plain(format), DType::Plain(result)) = (a.format, spec.output.format) else { return None };
        let served = spec.in_place.is_none()
            && b.format == a.format
            && rest.len() == usize::from(bias) + usize::from(residual)
            && rest.iter().all(|t| t.format == spec.output.format)
            && spec.inputs.iter().chain([&spec.output]).all(is_dense);
        if !served {
            return None;
        }
        let split = |t: &'_ TensorSpec, turned: bool| {
            let at = t.shape.len().checked_sub(2)?;
            let (x, y) = (t.shape[at], t.shape[at + 1]);
            Some(if turned { [y, x] } else { [x, y] })
        };
        let ([n, k], [l, m]) = (split(a, transpose[0])?, split(b, transpose[1])?);
        let before = |t: &TensorSpec| t.shape.len() - 2;
        let batch = batches(spec, [&a.shape[..before(a)], &b.shape[..before(b)]])?;
        // Only a tensor's first dimension varies, so columns of the result do not.
        let (Extent::Fixed(m), true) = (m, k == l) else { return None };
        let places = Places::of(spec);
        let side = |i: usize, t: &TensorSpec, along: bool, lines: usize| {
            let mut strides = [0; 3];
            for (to, from) in strides.iter_mut().rev().zip(batch.iter().rev()) {
                *to = from.strides[i];
            }
            Side {
                memory: places.input(i, 0),
                along,
                lines,
                pitch: t.row_len(),
                size: lines * k.max(),
                matrices: t.shape[..before(t)].iter().map(|e| e.max()).product(),
                strides,
            }
        };
        let fixed = |back: usize| batch.len().checked_sub(back).and_then(|i| batch.get(i)).map_or(1, |b| b.size.max());
        // A single dimension is the fast one; its distances do for the slow one too, whose number is then zero.
        let mut product = Product {
            format,
            result,
            left: side(0, a, !transpose[0], n.max()),
            right: side(1, b, transpose[1], m),
            n: Count::of(&[n])?,
            m,
            k,
            batches: Count::of(&batch.iter().map(|b| b.size).collect::<Vec<_>>())?,
            middle: fixed(2),
            fast: fixed(1),
            finish: if bias { BIAS } else { 0 }
                | if residual { RESIDUAL } else { 0 }
                | match activation {
                    None => 0,
                    Some(Activation::Relu) => RELU,
                    Some(Activation::Gelu) => GELU,
                    Some(Activation::Silu) => SILU,
                },
            bias: Memory::optional(bias.then(|| places.at(2))),
            residual: Memory::optional(residual.then(|| places.at(2 + usize::from(bias)))),
            y: places.output(0),
            step: places.step(),
        };
        // Rows of matrices that share the right side are rows of one product.
        let dense = product.left.matrices == product.batches.max();
        if product.left.along && dense && product.right.matrices == 1 {
            let sizes: Vec<Extent> = batch.iter().map(|b| b.size).chain([n]).collect();
            product.n = Count::of(&sizes)?;
            product.batches = Count::of(&[])?;
            (product.middle, product.fast) = (1, 1);
            let left = &mut product.left;
            (left.lines, left.matrices, left.strides) = (left.lines * left.matrices, 1, [0; 3]);
            left.size = left.lines * left.pitch;
        }
        (product.n.max() > 0 && m > 0 && product.batches.max() > 0).then_some(product)
    }

    /// x [n, k] · w [m, k]ᵀ, whose result is `f32`.
    fn linear(spec: &KernelSpec) -> Option<Product> {
        let [x, w] = spec.inputs.as_slice() else { return None };
        let formats = (x.format, w.format, spec.output.format);
        let (DType::Plain(format @ (Type::F32 | Type::BF16)), true) =
            (x.format, formats == (x.format, x.format, DType::F32) && spec.op == Operation::Matmul)
        else {
            return None;
        };
        let ([n, Extent::Fixed(k)], [Extent::Fixed(m), Extent::Fixed(l)]) = (x.shape.as_slice(), w.shape.as_slice())
        else {
            return None;
        };
        let places = Places::of(spec);
        let side = |i: usize, lines: usize| Side {
            memory: places.input(i, 0),
            along: true,
            lines,
            pitch: *k,
            size: lines * k,
            matrices: 1,
            strides: [0; 3],
        };
        let fits = spec.in_place.is_none() && k == l && *k > 0 && *m > 0 && n.max() > 0;
        fits.then_some(Product {
            format,
            result: Type::F32,
            left: side(0, n.max()),
            right: side(1, *m),
            n: Count::of(&[*n])?,
            m: *m,
            k: Extent::Fixed(*k),
            batches: Count::of(&[])?,
            middle: 1,
            fast: 1,
            finish: SUMS,
            bias: Memory::Null,
            residual: Memory::Null,
            y: places.output(0),
            step: places.step(),
        })
    }

    /// Whether the depth is fixed, and not empty.
    fn depth(&self) -> Option<usize> {
        match self.k {
            Extent::Fixed(k) if k > 0 => Some(k),
            _ => None,
        }
    }

    /// The two letters of which sides are transposed: `n` and `t`.
    fn turns(&self) -> &'static str {
        match (self.left.along, self.right.along) {
            (true, false) => "nn",
            (true, true) => "nt",
            (false, false) => "tn",
            (false, true) => "tt",
        }
    }

    /// The arguments that all kernels take, with this number of parts of the depth.
    fn sizes(&self, splits: usize) -> Option<Sizes> {
        // Kernels count some lines beyond the last ones.
        let size = |n: usize| number(n).filter(|n| *n < u32::MAX - (1 << 16));
        let strides =
            |side: &Side| Some([number(side.strides[0])?, number(side.strides[1])?, number(side.strides[2])?]);
        let batches = self.batches.of_step(self.step);
        Some(Sizes {
            m: size(self.m)?,
            k: Actual::of(self.k).filter(|_| size(self.k.max()).is_some())?,
            batches: Actual { slot: batches.slot, most: batches.most },
            batches_per: batches.per,
            fast: size(self.fast)?,
            middle: size(self.middle)?,
            a: strides(&self.left)?,
            b: strides(&self.right)?,
            finish: if splits > 1 { SUMS } else { self.finish },
            splits: number(splits)?,
        })
    }

    /// Bytes of the sums of the parts of the depth.
    fn sums(&self, splits: usize) -> Option<usize> {
        let elements = self.n.max().checked_mul(self.m)?.checked_mul(self.batches.max())?;
        if splits == 1 { Some(0) } else { elements.checked_mul(splits * self.result.size().max(4)) }
    }

    /// Tiles of the result of all batches.
    fn tiles(&self, rows: usize, columns: usize) -> Option<usize> {
        self.n.max().div_ceil(rows).checked_mul(self.m.div_ceil(columns))?.checked_mul(self.batches.max())
    }
}

/// Arguments of all kernels: `BATCH_SIZES` in `batch.h`.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    m: u32,
    k: Actual,
    batches: Actual,
    batches_per: u32,
    fast: u32,
    middle: u32,
    a: [u32; 3],
    b: [u32; 3],
    finish: u32,
    splits: u32,
}

/// How long a workgroup works, in nanoseconds: at a stage of the depth, and before and after all of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub stage: usize,
    pub ends: usize,
    /// Workgroups that work at a time.
    pub places: usize,
}

/// The most parts of the depth, and the most bytes of their sums.
const MOST_SPLITS: usize = 32;
const MOST_SUMS: usize = 256 << 20;
/// Nanoseconds of the launch that adds the parts, and bytes of their sums that are written and read in one.
const JOINING: usize = 2500;
const JOINED_BYTES: usize = 2500;

/// The number of parts of the depth with the least estimated time, and that time in nanoseconds.
fn splits(product: &Product, tiles: usize, stages: usize, pace: Pace) -> (usize, usize) {
    parts(|splits| product.sums(splits), tiles, stages, pace)
}

/// As [`splits`], for a product whose parts have sums of so many bytes.
pub(super) fn parts(sums: impl Fn(usize) -> Option<usize>, tiles: usize, stages: usize, pace: Pace) -> (usize, usize) {
    let time = |splits: usize| {
        let share = stages.div_ceil(splits);
        let sums = sums(splits)?;
        // Every part has some of the stages; many tiles keep the device busy without.
        let pays = tiles < 2 * pace.places && sums <= MOST_SUMS && share * (splits - 1) < stages;
        let fits = splits == 1 || pays;
        let waves = tiles.checked_mul(splits)?.div_ceil(pace.places.max(1));
        let joining = if splits == 1 { 0 } else { JOINING + sums / JOINED_BYTES };
        fits.then_some(waves.checked_mul(share * pace.stage + pace.ends)? + joining)
    };
    (1..=MOST_SPLITS).filter_map(|s| Some((s, time(s)?))).min_by_key(|(_, time)| *time).unwrap_or((1, usize::MAX))
}
