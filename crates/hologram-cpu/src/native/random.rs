//! `random_uniform` and `random_normal`: key u32 [4] → the numbers of Philox4x32-10 (Salmon et al., "Parallel random
//! numbers: as easy as 1, 2, 3", 2011), as `f32`, `f16`, `bf16` or `u32`, equal to the operations' programs to the bit.

use std::sync::Arc;

use hologram_device::{DType, KernelSpec, Operation, TensorSpec};
use hologram_isa::Type;
use hologram_isa::decompose::{Scalar, cos, log, sin};

use super::elements;
use super::narrow::{Element, convert};
use super::simd::{Isa, Simd, fence, simd_entry};
use super::stream::is_non_temporal;
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};

struct Random {
    isa: Isa,
    normal: bool,
    ty: Type,
    output: TensorSpec,
    uses_step: bool,
}

/// Counters that are computed at a time, and the words of such a block, four per counter.
const COUNTERS: usize = 64;
const BLOCK: usize = 4 * COUNTERS;
const PIECE: usize = 64 * BLOCK;

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// The native kernel for random numbers; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [key] = spec.inputs.as_slice() else { return None };
    let Operation::Random { normal } = spec.op else { return None };
    let DType::Plain(ty) = spec.output.format else { return None };
    let served = spec.in_place.is_none()
        && key.format == DType::U32
        && key.max_rows() * key.row_len() == 4
        && super::is_dense(&spec.output)
        && (matches!(ty, Type::F32 | Type::F16 | Type::BF16) || ty == Type::U32 && !normal);
    let (output, uses_step) = (spec.output.clone(), spec.uses_step());
    served.then(|| {
        Arc::new(Random { isa: Isa::widest(features), normal, ty, output, uses_step }) as Arc<dyn NativeKernel>
    })
}

impl Random {
    /// The significant bits of a uniform number.
    fn bits(&self) -> u32 {
        match self.ty {
            Type::F16 if !self.normal => 11,
            Type::BF16 if !self.normal => 8,
            _ => 24,
        }
    }

    fn floats<E: Element>(&self, args: &Args<'_>, worker: &Worker<'_>, len: usize) {
        /// Memory for a block, aligned to a cache line.
        #[repr(align(64))]
        struct Block([f32; BLOCK]);
        let (key, mut block) = (args.read::<u32>(0), Block([0.0; BLOCK]));
        let non_temporal = is_non_temporal(args.raw(1), len * size_of::<E>());
        let out = args.output::<E>(1);
        while let Some(piece) = worker.next(len.div_ceil(PIECE)) {
            for at in (piece * PIECE..((piece + 1) * PIECE).min(len)).step_by(BLOCK) {
                let mut words = [0; BLOCK];
                philox(self.isa, key, at as u64 / 4, &mut words);
                if self.normal {
                    normal(self.isa, &words, &mut block.0)
                } else {
                    uniform(self.isa, &words, self.bits(), &mut block.0)
                }
                let end = (at + BLOCK).min(len);
                // SAFETY: each piece is claimed by one worker.
                convert(self.isa, &block.0[..end - at], unsafe { out.part(at..end) }, non_temporal);
            }
        }
        fence();
    }
}

impl NativeKernel for Random {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let len = elements(&self.output, if self.uses_step { args.step() } else { &[] });
        if args.raw(0).bytes < 16 || args.raw(1).bytes < len * self.ty.size() {
            return Err(format!("a buffer is too small for {len} numbers"));
        }
        match self.ty {
            Type::F16 => self.floats::<half::f16>(args, worker, len),
            Type::BF16 => self.floats::<half::bf16>(args, worker, len),
            Type::U32 => {
                let out = args.output::<u32>(1);
                while let Some(piece) = worker.next(len.div_ceil(PIECE)) {
                    for at in (piece * PIECE..((piece + 1) * PIECE).min(len)).step_by(BLOCK) {
                        let (mut words, end) = ([0; BLOCK], (at + BLOCK).min(len));
                        philox(self.isa, args.read::<u32>(0), at as u64 / 4, &mut words);
                        // SAFETY: each piece is claimed by one worker.
                        unsafe { out.part(at..end) }.copy_from_slice(&words[..end - at]);
                    }
                }
            }
            _ => self.floats::<f32>(args, worker, len),
        }
        Ok(())
    }
}

simd_entry! {
    /// The words of [`COUNTERS`] counters starting at `first`, four each.
    fn philox(key: &[u32], first: u64, words: &mut [u32; BLOCK]) = philox_with
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "registers are indexed in several arrays at once")]
fn philox_with<S: Simd>(_: S, key: &[u32], first: u64, words: &mut [u32; BLOCK]) {
    let [k0, k1, low, high] = [0, 1, 2, 3].map(|i| key.get(i).copied().unwrap_or(0));
    let start = (u64::from(low) | u64::from(high) << 32).wrapping_add(first);
    let mut c = [[0u32; COUNTERS]; 4];
    for i in 0..COUNTERS {
        let counter = start.wrapping_add(i as u64);
        (c[0][i], c[1][i]) = (counter as u32, (counter >> 32) as u32);
    }
    let mut key = [k0, k1];
    for _ in 0..10 {
        for i in 0..COUNTERS {
            let p0 = u64::from(c[0][i]) * u64::from(MULTIPLIERS[0]);
            let p1 = u64::from(c[2][i]) * u64::from(MULTIPLIERS[1]);
            c[0][i] = (p1 >> 32) as u32 ^ c[1][i] ^ key[0];
            c[1][i] = p1 as u32;
            c[2][i] = (p0 >> 32) as u32 ^ c[3][i] ^ key[1];
            c[3][i] = p0 as u32;
        }
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    for (i, to) in words.chunks_exact_mut(4).enumerate() {
        to.copy_from_slice(&[c[0][i], c[1][i], c[2][i], c[3][i]]);
    }
}

simd_entry! {
    /// The upper bits of words as numbers in [0, 1).
    fn uniform(words: &[u32; BLOCK], bits: u32, to: &mut [f32; BLOCK]) = uniform_with
}

#[inline(always)]
fn uniform_with<S: Simd>(_: S, words: &[u32; BLOCK], bits: u32, to: &mut [f32; BLOCK]) {
    let unit = 1.0 / (1u32 << bits) as f32;
    to.iter_mut().zip(words).for_each(|(to, word)| *to = (word >> (32 - bits)) as i32 as f32 * unit);
}

simd_entry! {
    /// Numbers of the standard normal distribution, two per pair of words (Box and Muller, 1958).
    fn normal(words: &[u32; BLOCK], to: &mut [f32; BLOCK]) = normal_with
}

#[inline(always)]
fn normal_with<S: Simd>(_: S, words: &[u32; BLOCK], to: &mut [f32; BLOCK]) {
    const UNIT: f32 = 1.0 / (1u32 << 24) as f32;
    let (mut radius, mut angle) = ([0f32; BLOCK / 2], [0f32; BLOCK / 2]);
    for (i, pair) in words.chunks_exact(2).enumerate() {
        radius[i] = ((pair[0] >> 8) + 1) as i32 as f32 * UNIT;
        angle[i] = (pair[1] >> 8) as i32 as f32 * UNIT * std::f32::consts::TAU;
    }
    radius.iter_mut().for_each(|u| *u = (log(&Scalar, *u) * -2.0).sqrt());
    let (mut x, mut y) = ([0f32; BLOCK / 2], [0f32; BLOCK / 2]);
    x.iter_mut().zip(angle).zip(radius).for_each(|((x, angle), radius)| *x = radius * cos(&Scalar, angle));
    y.iter_mut().zip(angle).zip(radius).for_each(|((y, angle), radius)| *y = radius * sin(&Scalar, angle));
    for (i, to) in to.chunks_exact_mut(2).enumerate() {
        to.copy_from_slice(&[x[i], y[i]]);
    }
}
