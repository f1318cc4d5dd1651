//! Products of `f32`, `f64`, `i32` and `i64`: `kernels/cuda/batch_plain.cu`.

use hologram_isa::Type;

use super::{Pace, Product, Side, prepare, splits};
use crate::kernels::cuda::batch_plain::{A_ALONG, B_ALONG, F64_LINE, F64_STAGES, Plain};
use crate::launch::{launch, number};
use crate::{KernelLaunch, NativeKernel, Target};

/// A form of the kernels: its name, rows and columns of a tile, and its pace: nanoseconds of a stage, here of 64
/// elements of the depth, where workgroups keep a multiprocessor busy; on an NVIDIA H100.
struct Form {
    name: &'static str,
    tile: [usize; 2],
    stage: usize,
}

const fn form(name: &'static str, tile: [usize; 2], stage: usize) -> Form {
    Form { name, tile, stage }
}

/// With vectors of elements, and without.
const F32: [Form; 3] = [
    form("batch_f32_128x128", [128, 128], 7000),
    form("batch_f32_256x64", [256, 64], 7500),
    form("batch_f32_64x64", [64, 64], 2400),
];
const F32_ANY: [Form; 2] =
    [form("batch_f32_any_128x128", [128, 128], 8500), form("batch_f32_any_64x64", [64, 64], 3200)];
const F64: [Form; 2] = [form("batch_f64_128", [128, 128], 6500), form("batch_f64_64", [128, 64], 3500)];
const F64_ANY: [Form; 1] = [form("batch_f64_any", [128, 64], 4500)];
const I32: [Form; 1] = [form("batch_i32", [64, 64], 3000)];
const I64: [Form; 1] = [form("batch_i64", [64, 64], 10_000)];
/// Nanoseconds before and after all stages.
const ENDS: usize = 3000;
const STAGE: usize = 64;

/// Bytes of the shared memory of a tile of `f64`.
fn shared(product: &Product, [rows, columns]: [usize; 2]) -> usize {
    if product.format == Type::F64 { (F64_STAGES * F64_LINE) as usize * (rows + columns) * Type::F64.size() } else { 0 }
}

/// A form for a product, its tiles, parts of the depth, and the estimated time in nanoseconds.
type Choice = (&'static Form, usize, usize, usize);

fn choose(product: &Product, target: Target) -> Option<Choice> {
    let vectors = |elements: usize| [product.left, product.right].iter().all(|side| whole(product, side, elements));
    let forms: &'static [Form] = match product.format {
        Type::F32 if vectors(4) => &F32,
        Type::F32 => &F32_ANY,
        Type::F64 if vectors(2) => &F64,
        Type::F64 => &F64_ANY,
        Type::I32 => &I32,
        Type::I64 => &I64,
        _ => return None,
    };
    let stages = product.k.max().div_ceil(STAGE);
    let choice = |form: &'static Form| {
        let tiles = product.tiles(form.tile[0], form.tile[1])?;
        let pace = Pace { stage: form.stage, ends: ENDS, places: target.multiprocessors as usize };
        // There is no addition of i64.
        let (splits, time) = match product.format {
            Type::I64 => (1, 0),
            _ => splits(product, tiles, stages, pace),
        };
        (shared(product, form.tile) <= target.max_shared as usize).then_some((form, tiles, splits, time))
    };
    forms.iter().filter_map(choice).min_by_key(|choice| choice.3)
}

/// The estimated time in nanoseconds.
pub(super) fn time(product: &Product, target: Target) -> Option<usize> {
    choose(product, target).map(|(_, _, _, time)| time)
}

/// The native kernel for a product.
pub(super) fn find(product: &Product, target: Target) -> Option<NativeKernel> {
    let (form, tiles, splits, _) = choose(product, target)?;
    let shared = number(shared(product, form.tile))?;
    prepare::joined(product, splits, 0, |y| {
        let sizes = product.sizes(splits)?;
        let args = arguments!(Plain of product, sizes, y; {
            a: product.left.memory,
            b: product.right.memory,
            finish: sizes.finish,
            a_pitch: number(product.left.pitch)?,
            a_size: number(product.left.size)?,
            b_pitch: number(product.right.pitch)?,
            b_size: number(product.right.size)?,
            sides: u32::from(product.left.along) * A_ALONG + u32::from(product.right.along) * B_ALONG,
        });
        // Kernels of pairs of f64 know how their sides lie.
        let entry = match form.name {
            "batch_f64_128" | "batch_f64_64" => format!("{}_{}", form.name, product.turns()),
            name => name.into(),
        };
        Some(KernelLaunch { shared, ..launch(args, entry, [tiles, splits], 256)? })
    })
}

/// Whether this many elements can be read at a time: either all of them are there or none.
fn whole(product: &Product, side: &Side, elements: usize) -> bool {
    let fixed = !side.along || product.depth().is_some();
    fixed && side.pitch.is_multiple_of(elements) && side.size.is_multiple_of(elements)
}
