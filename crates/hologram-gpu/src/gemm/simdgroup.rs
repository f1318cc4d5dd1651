//! Products of many tokens on the matrix units of Apple GPUs: `kernels/metal/matmul_simdgroup.metal`; for packed
//! weights `matmul_packed.metal`.

use super::{Mode, Product};
use crate::kernels::metal::{matmul_packed, matmul_simdgroup};
use crate::launch::{Count, Planes, launch, number, packed_name};
use crate::{Memory, NativeKernel, Part};
use hologram_device::DType;
use matmul_simdgroup as tiles;

/// Tokens and rows of a workgroup's tile, for many tokens and for at most 32; with a gate the tile has half the rows of
/// each matrix.
const TILE: [usize; 2] = [tiles::TOKENS as usize, tiles::ROWS as usize];
const WIDE_TILE: [usize; 2] = [tiles::WIDE_TOKENS as usize, tiles::WIDE_ROWS as usize];

/// A matrix in the kernels' terms.
#[derive(Clone, Debug)]
struct Matrix {
    /// Its format's part of the kernel's name.
    name: String,
    packed: bool,
    /// Elements or codes (low plane), scales or records.
    planes: Planes,
    /// Its rows, and the result that they give.
    rows: usize,
    y: Memory,
}

/// The native kernel for a product: one launch per run of matrices with one format.
pub(super) fn find(product: &Product) -> Option<NativeKernel> {
    let group = product.activation_group();
    let x = match product.x {
        DType::F32 => "f32",
        DType::BF16 => "bf16",
        DType::I8Groups { .. } if group.is_multiple_of(4) && product.k.is_multiple_of(group) => "i8",
        _ => return None,
    };
    let matrices: Option<Vec<Matrix>> = (0..product.rows.len()).map(|i| matrix(product, x, i)).collect();
    let matrices = matrices?;
    let runs: Vec<&[Matrix]> = matrices.chunk_by(|a, b| a.name == b.name).collect();
    if runs.len() > 1 && product.mode != Mode::Store {
        return None;
    }
    let parts: Option<Vec<Part>> = runs.into_iter().map(|run| part(product, x, run)).collect();
    Some(NativeKernel { parts: parts?, scratch: 0, counters: 0, phase: None })
}

fn matrix(product: &Product, x: &str, i: usize) -> Option<Matrix> {
    let (name, planes) = match product.packed.get(i)? {
        Some((packed, _)) if DType::Block(*packed).has_float_codes() => return None,
        Some((packed, at)) if x != "i8" => (packed_name(*packed), Planes::at(*packed, *at)),
        Some(_) => return None,
        None => {
            let name = match product.w {
                DType::BF16 => "bf16",
                DType::Q8Planes => "q8",
                DType::Q4Planes => "q4",
                DType::T2Planes => "t2",
                DType::F16 => "f16",
                // Elements of 32 bits are not rounded to the type of the activations.
                DType::F32 if x != "bf16" => "f32",
                _ => return None,
            };
            let [low, records] = *product.w_args.get(i)?;
            (name.to_string(), Planes { low, high: Memory::Null, records })
        }
    };
    // With a gate there is one result.
    let packed = product.packed.get(i)?.is_some();
    Some(Matrix { name, packed, planes, rows: *product.rows.get(i)?, y: product.result(i) })
}

/// A launch for matrices of one format.
fn part(product: &Product, x: &str, run: &[Matrix]) -> Option<Part> {
    let [elements, x_scales] = product.x_args;
    let planes = |i: usize| run.get(i).map_or(Planes::NONE, |m| m.planes);
    let result = |i: usize| run.get(i).map_or(Memory::Null, |m| m.y);
    // Kernels also count a tile's rows beyond the last one.
    let size = |n: usize| number(n).filter(|n| *n < u32::MAX - (1 << 16));
    let own = |i: usize| size(run.get(i).filter(|_| i == 0 || !product.gated()).map_or(0, |m| m.rows));
    let count = Count::of(&[product.tokens])?.of_step(product.step);
    let tokens = product.tokens.max();
    let wide = tokens <= WIDE_TILE[0];
    let ([first, second, third], [m0, m1, m2]) = ([0, 1, 2].map(planes), [own(0)?, own(1)?, own(2)?]);
    let (k, group) = (size(product.k)?, size(product.activation_group())?);
    // The kernels of both texts.
    macro_rules! args {
        ($text:ident) => {
            $text::Matmul {
                x: elements,
                x_scales,
                w0: first.low,
                w1: second.low,
                w2: third.low,
                s0: first.records,
                s1: second.records,
                s2: third.records,
                h0: first.high,
                h1: second.high,
                h2: third.high,
                add: product.add,
                y0: result(0),
                y1: result(1),
                y2: result(2),
                tokens: count,
                m0,
                m1,
                m2,
                k,
                group,
                mode: product.mode as u32,
                narrow: u32::from(product.narrow),
                wide: u32::from(wide),
            }
        };
    }
    let (matrix, [tile, rows]) = (run.first()?, if wide { WIDE_TILE } else { TILE });
    let tiles = match product.gated() {
        true => matrix.rows.div_ceil(rows / 2),
        false => run.iter().map(|m| m.rows.div_ceil(rows)).sum(),
    };
    let (entry, grid) = (format!("matmul_{x}_{}", matrix.name), [tokens.div_ceil(tile), tiles]);
    let launch = match matrix.packed {
        true => launch(args!(matmul_packed), entry, grid, 128),
        false => launch(args!(matmul_simdgroup), entry, grid, 128),
    };
    launch.map(Part::Kernel)
}
