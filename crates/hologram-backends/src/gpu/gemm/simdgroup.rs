//! Products of many tokens on the matrix units of Apple GPUs: `metal/kernels/matmul_simdgroup.metal`, of packed weights `matmul_packed.metal`.

use super::{Mode, Product};
use crate::Format;
use crate::gpu::launch::{Count, launch, packed_args, packed_name};
use crate::gpu::{Arg, NativeKernel, Part};
use hologram_isa::Type;

/// Tokens and rows of a workgroup's tile, of many tokens and of at most 32; of a gate it has half of the rows of each matrix.
const TILE: [usize; 2] = [64, 64];
const WIDE_TILE: [usize; 2] = [32, 128];

/// A matrix as the kernels take it.
#[derive(Clone, Debug)]
struct Matrix {
    image: &'static str,
    /// The name of its format in the kernel's.
    name: String,
    /// Elements or codes, scales or records, high plane.
    planes: [Arg; 3],
    /// Its rows, and the result that they make.
    rows: usize,
    y: Arg,
}

/// The native kernel for a product: a launch, or as many as matrices have formats.
pub(super) fn find(product: &Product) -> Option<NativeKernel> {
    let group = product.activation_group();
    let x = match product.x {
        Format::Plain(Type::F32) => "f32",
        Format::BF16 => "bf16",
        Format::I8Groups { .. } if group.is_multiple_of(4) && product.k.is_multiple_of(group) => "i8",
        _ => return None,
    };
    let matrices: Option<Vec<Matrix>> = (0..product.rows.len()).map(|i| matrix(product, x, i)).collect();
    let matrices = matrices?;
    let runs: Vec<&[Matrix]> = matrices.chunk_by(|a, b| a.name == b.name).collect();
    if runs.len() > 1 && product.mode != Mode::Store {
        return None;
    }
    let parts: Option<Vec<Part>> = runs.into_iter().map(|run| part(product, x, run)).collect();
    Some(NativeKernel { parts: parts?, scratch: 0, counters: 0 })
}

fn matrix(product: &Product, x: &str, i: usize) -> Option<Matrix> {
    let (image, name, planes) = match product.packed.get(i)? {
        Some((packed, at)) if x == "f32" => {
            let [low, high, records] = packed_args(*packed, Arg::Binding, *at);
            ("matmul_packed", packed_name(*packed), [low, records, high])
        }
        Some(_) => return None,
        None => {
            let name = match product.w {
                Format::BF16 => "bf16",
                Format::Q8Planes => "q8",
                Format::Q4Planes => "q4",
                Format::T2Planes => "t2",
                // Elements of another type are not rounded to that of activations.
                _ if x == "bf16" => return None,
                Format::Plain(Type::F32) => "f32",
                Format::Plain(Type::F16) => "f16",
                _ => return None,
            };
            let [codes, scales] = product.w_args.get(i)?.clone();
            ("matmul_simdgroup", name.to_string(), [codes, scales, Arg::Null])
        }
    };
    // A gate has one result.
    let y = product.y.get(i).cloned().unwrap_or(Arg::Null);
    Some(Matrix { image, name, planes, rows: *product.rows.get(i)?, y })
}

/// A launch for matrices of one format.
fn part(product: &Product, x: &str, run: &[Matrix]) -> Option<Part> {
    let [elements, x_scales] = product.x_args.clone();
    let mut args = vec![elements, x_scales];
    let of_each = |of: &dyn Fn(&Matrix) -> Arg| (0..3).map(|i| run.get(i).map_or(Arg::Null, of)).collect::<Vec<_>>();
    for plane in 0..3 {
        args.extend(of_each(&|m| m.planes[plane].clone()));
    }
    args.push(product.add.clone());
    args.extend(of_each(&|m| m.y.clone()));
    args.push(product.step.clone());
    args.extend(Count::of(&[product.tokens])?.numbers());
    // Rows of a tile beyond the last are counted too.
    let number = |n: usize| u32::try_from(n).ok().filter(|n| *n < u32::MAX - (1 << 16)).map(Arg::U32);
    for i in 0..3 {
        let own = run.get(i).filter(|_| i == 0 || !product.gated());
        args.push(number(own.map_or(0, |m| m.rows))?);
    }
    args.extend([number(product.k)?, number(product.activation_group())?]);
    let tokens = product.tokens.max();
    let wide = tokens <= WIDE_TILE[0];
    args.extend([Arg::U32(product.mode as u32), Arg::U32(u32::from(product.narrow)), Arg::U32(u32::from(wide))]);
    let (first, [tile, rows]) = (run.first()?, if wide { WIDE_TILE } else { TILE });
    let tiles = match product.gated() {
        true => first.rows.div_ceil(rows / 2),
        false => run.iter().map(|m| m.rows.div_ceil(rows)).sum(),
    };
    let (entry, grid) = (format!("matmul_{x}_{}", first.name), [tokens.div_ceil(tile), tiles]);
    launch(first.image, entry, grid, 128, args).map(Part::Kernel)
}
