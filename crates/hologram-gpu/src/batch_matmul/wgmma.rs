//! Products on the tensor cores of compute capability 9.0: `kernels/cuda/batch_wgmma.cu`.

use hologram_isa::Type;

use super::{ENGINE, Pace, Product, Side, prepare, splits};
use crate::kernels::cuda::batch_wgmma::{MOST_SHARED, Multiply, RESERVED};
use crate::launch::{launch, number};
use crate::{KernelLaunch, NativeKernel, Target, TensorMap};

/// A form of the kernel: warpgroups of 64 rows, columns of a tile, and its pace, fitted to products of `bf16` on an
/// NVIDIA H100.
struct Form {
    groups: usize,
    columns: usize,
    stage: usize,
    ends: usize,
    /// Workgroups that share a multiprocessor.
    together: usize,
}

const fn form(groups: usize, columns: usize, stage: usize, ends: usize, together: usize) -> Form {
    Form { groups, columns, stage, ends, together }
}

const FORMS: [Form; 5] = [
    form(2, 256, 670, 1800, 1),
    form(2, 192, 510, 1500, 1),
    form(2, 128, 350, 900, 1),
    form(2, 64, 300, 1100, 1),
    form(1, 64, 350, 600, 2),
];

/// Lines of a panel, and bytes of a line in a stage.
const LINES: u32 = 64;
const STAGE: usize = 128;

/// The native kernel for a product whose operands are aligned, with this much scratch memory before its own.
pub(super) fn find(product: &Product, scratch: usize, target: Target) -> Option<NativeKernel> {
    let types = match product.format {
        Type::BF16 => "bf16",
        Type::F16 => "f16",
        Type::I8 => "i8",
        _ => return None,
    };
    let (turns, k) = (product.turns(), product.depth()?);
    if !target.is(90) || target.max_shared < MOST_SHARED || turns == "tt" {
        return None;
    }
    let (multiprocessors, stages) = (target.multiprocessors as usize, (k * product.format.size()).div_ceil(STAGE));
    let choice = |form: &'static Form| {
        let tiles = product.tiles(form.groups * 64, form.columns)?;
        let pace = Pace { stage: form.stage, ends: form.ends, places: form.together * multiprocessors };
        let (splits, time) = splits(product, tiles, stages, pace);
        Some((form, tiles, splits, time))
    };
    let (form, tiles, splits, _) = FORMS.iter().filter_map(choice).min_by_key(|choice| choice.3)?;
    let (a, b) = (map(&product.left, k, product.format)?, map(&product.right, k, product.format)?);
    let out = if splits == 1 { results(product) } else { None };
    prepare::joined(product, splits, scratch, |y| {
        let sizes = product.sizes(splits)?;
        let args = arguments!(Multiply of product, sizes, y; {
            finish: if out.is_some() { ENGINE } else { sizes.finish },
            // Where the copy engine does not store results, any matrix stands for them.
            out: out.unwrap_or_else(|| a.clone()),
            a,
            b,
        });
        let workgroups = tiles.checked_mul(splits)?.min(form.together * multiprocessors);
        let entry = format!("batch_wgmma_{types}_{turns}_{}_{}", form.groups, form.columns);
        let launch = launch(args, entry, [workgroups, 1], (form.groups + 1) * 128)?;
        Some(KernelLaunch { shared: (MOST_SHARED + RESERVED) / number(form.together)? - RESERVED, ..launch })
    })
}

/// The matrices of the result for the copy engine, in panels of 64 rows of 128 bytes; `None` if it cannot store them:
/// it knows no number of rows of a run, and rows begin at multiples of 16 bytes.
fn results(product: &Product) -> Option<TensorMap> {
    let (element, n) = (product.result.size(), product.n.max());
    let row = product.m * element;
    let served = product.finish == 0 && product.n.is_fixed() && row.is_multiple_of(16);
    served.then(|| {
        Some(TensorMap {
            memory: product.y,
            element: number(element)?,
            dims: vec![product.m as u64, n as u64, product.batches.max() as u64],
            strides: vec![row as u64, row.checked_mul(n)? as u64],
            tile: vec![number(STAGE / element)?, LINES, 1],
            swizzle: number(STAGE)?,
        })
    })?
}

/// The matrices of an operand for the copy engine, in panels of 128 bytes of `k` × 64 lines, or 64 of `k` × 64 lines.
fn map(side: &Side, k: usize, format: Type) -> Option<TensorMap> {
    let element = format.size();
    let size = if side.along { [k, side.lines] } else { [side.lines, k] };
    Some(TensorMap {
        memory: side.memory,
        element: number(element)?,
        dims: vec![size[0] as u64, size[1] as u64, side.matrices as u64],
        strides: vec![(side.pitch * element) as u64, side.size.checked_mul(element)? as u64],
        tile: vec![number(STAGE / element)?, LINES, 1],
        swizzle: number(STAGE)?,
    })
}
