//! Products of up to 32 tokens with packed weights, which tensor cores multiply without an unpacked copy:
//! `kernels/cuda/gemm_few.cu`.

use hologram_device::DType;

use super::Product;
use crate::kernels::cuda::gemm_few::{self as text, Few};
use crate::launch::{launch, number, packed_name, single};
use crate::{KernelLaunch, NativeKernel, Target};

/// The most tokens of the form that wider kernels do not replace.
pub const TOKENS: usize = FORMS[0].tokens;
/// Threads of a workgroup.
const THREADS: usize = 256;
/// Elements of a chunk, of which types with long blocks have several in a record.
const CHUNK: usize = 32;
/// Elements of a block, of which each of the warps that share rows takes every fourth.
const BLOCK: usize = text::BLOCK as usize;
const WARPS: usize = text::PARTS as usize;
/// Floats between the sums of two tokens in shared memory.
const STRIDE: usize = text::STRIDE as usize;
/// Elements of a long row.
const LONG: usize = 8192;

/// A form of the kernel.
struct Form {
    /// Tokens of a workgroup.
    tokens: usize,
    /// Blocks of activations in shared memory at a time.
    blocks: usize,
    /// Workgroups that a multiprocessor holds.
    held: usize,
}

/// On an NVIDIA H200 the products of 8 billion parameters in `Q4_K` took 3.7 ms with 8 tokens and 7.0 ms with 32. With
/// 64 they took 11.5 ms in a form of 64; the unpacked copy's bytes take 8 ms.
const FORMS: [Form; 2] = [Form { tokens: 8, blocks: 48, held: 2 }, Form { tokens: 32, blocks: 16, held: 1 }];

impl Form {
    fn shared(&self) -> usize {
        let (activations, sums) = (self.blocks * BLOCK * self.tokens * 2, WARPS * self.tokens * STRIDE * 4);
        activations.max(sums)
    }
}

/// The native kernel for a product of matrices of one type. `None` for weights that are not packed: `Q4_0` and `Q8_0`
/// have kernels of their own that are as fast.
pub(super) fn find(product: &Product, target: Target) -> Option<NativeKernel> {
    let (most, k, rows) = (product.tokens.max(), product.k, &product.rows);
    let integers = product.packed_type().is_some_and(|packed| !DType::Block(packed).has_float_codes());
    let served =
        integers && target.has(80) && product.x == DType::BF16 && product.fits_tiles() && k.is_multiple_of(CHUNK);
    let form = FORMS.iter().find(|form| most <= form.tokens).filter(|_| served)?;
    let (packed, [first, second, third]) = product.planes()?;
    // Such kernels are empty there: the wider ones serve rows of whole blocks.
    if target.is(90) && packed.row().len > CHUNK {
        return None;
    }
    // Chunks of 32 elements are counted in 32 bits.
    if rows.iter().any(|m| m.checked_mul(k / CHUNK).is_none_or(|chunks| chunks > u32::MAX as usize)) {
        return None;
    }
    let groups = product.groups();
    let splits = splits(groups, k, form, target);
    let args = arguments!(Few of product; {
        x: product.x_args[0],
        w0: first.low,
        h0: first.high,
        s0: first.records,
        w1: second.low,
        h1: second.high,
        s1: second.records,
        w2: third.low,
        h2: third.high,
        s2: third.records,
        narrow: u32::from(product.narrow),
        splits: number(splits)?,
    });
    let launch = launch(args, format!("few_{}_{}", packed_name(packed), form.tokens), [groups * splits, 1], THREADS)?;
    let shared = number(form.shared()).filter(|bytes| *bytes <= target.max_shared)?;
    Some(single(KernelLaunch { shared, cluster: number(splits)?, ..launch }))
}

/// How many workgroups share a group of rows: as many as find room at the same time, each with a block for every warp.
/// Of short rows two workgroups on a multiprocessor win less than the sharing costs.
fn splits(groups: usize, k: usize, form: &Form, target: Target) -> usize {
    let places = target.multiprocessors as usize * if k < LONG { 1 } else { form.held };
    let fits = |splits: &usize| groups * splits <= places && k.div_ceil(BLOCK) >= splits * WARPS;
    if target.has(90) { [8, 4, 2].into_iter().find(fits).unwrap_or(1) } else { 1 }
}
