//! Stores the keys or values of new tokens in a paged cache, in place.

use hologram_backends::{DType, KernelSpec, Operation};
use hologram_isa::{Opcode, Type};

use super::quantize_f8::float_code;
use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// The operation; the cache is `[blocks, kv_heads, block_size, d]`, `x` `f32 [n, kv_heads, d]`, `slots` `u32 [n]`.
#[derive(Debug)]
struct KvAppend;

impl Graph {
    /// Stores token t of `x` (`f32 [n, kv_heads, d]`) in `cache`, a state `[blocks, kv_heads, block_size, d]` of `f32`,
    /// `f16`, [`DType::F8`], [`DType::Q8Planes`] or [`DType::Q4Planes`]: every head at block `slots[t] / block_size`,
    /// offset `slots[t] % block_size`. Returns the cache's new version. A slot outside the cache is an error of the
    /// run. Two tokens must not have the same slot.
    ///
    /// A cache of `F8` has no scales: its elements have 4 significant bits from 2⁻⁶ on, are multiples of 2⁻⁹ below, and
    /// larger ones than 448 become 448.
    ///
    /// Caches in 8 and 4 bits quantize in blocks of 32 elements. With a the maximum magnitude of a block, its scale is
    /// a / 127 rounded to `f16`, and its codes are x · (127 / a) rounded to nearest even, at most 127 in magnitude; all
    /// are 0 if a is 0. A block with a NaN is NaN. In 4 bits a has the sign of its element (+ if both are there), the
    /// scale is -a / 8, and the codes are x · (-8 / a), at least -8 and at most 7.
    ///
    /// # Errors
    /// When the operands do not fit or the cache is not a state.
    pub fn kv_append(&mut self, cache: NodeId, x: NodeId, slots: NodeId) -> Result<NodeId> {
        self.apply(KvAppend, &[cache, x, slots])
    }
}

const THREADS: u32 = 256;

impl Op for KvAppend {
    fn operation(&self) -> Operation {
        Operation::KvAppend
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [cache, x, slots] = inputs else { return Err("takes a cache, x and slots".into()) };
        let formats = [DType::F32, DType::F16, DType::F8, DType::Q8Planes, DType::Q4Planes];
        let stored = formats.contains(&cache.format);
        if !stored || x.format != DType::F32 || slots.format != DType::U32 {
            return Err("takes a cache of f32, f16, f8, Q8_0 or Q4_0 (planes), f32 x and u32 slots".into());
        }
        match (cache.shape.as_slice(), x.shape.as_slice(), slots.shape.as_slice()) {
            ([Dim::Fixed(_), heads, Dim::Fixed(block_size), d], [n, h, e], [s])
                if heads == h && d == e && n == s && *block_size > 0 =>
            {
                if matches!(d, Dim::Fixed(d) if !d.is_multiple_of(cache.format.block_len())) {
                    return Err("a cache in 8 or 4 bits has heads of whole blocks of 32 elements".into());
                }
                Ok((*cache).clone())
            }
            _ => Err("takes a cache [blocks, heads, block size, d], x [n, heads, d] and slots [n]".into()),
        }
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    /// One thread per element of `x`; a subgroup of 32 threads makes a block of codes.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let size = |i: usize| spec.output.shape.get(i).map_or(1, |e| e.max()) as u32;
        let (blocks, heads, block_size, d) = (size(0), size(1), size(2), size(3));
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.inputs[1]);
        let (x, slots, cache) = (k.inputs[1].clone(), k.inputs[2].clone(), k.output.clone());
        let b = &mut k.b;
        let i = b.global_x();
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let column = b.rem(i, d);
            let row = b.div(i, d);
            let head = b.rem(row, heads);
            let token = b.div(row, heads);
            let slot = b.load(slots.views[0], token);
            let exists = b.lt(slot, blocks * block_size);
            let block = b.div(slot, block_size);
            let offset = b.rem(slot, block_size);
            let at = b.mul(block, heads);
            let at = b.add(at, head);
            let at = b.mul(at, block_size);
            let at = b.add(at, offset);
            let at = b.mul(at, d);
            let at = b.add(at, column);
            // No cache has an element at u32::MAX: the store to a slot that is out of range fails.
            let at = b.select(exists, at, u32::MAX);
            let value = x.load(b, i);
            if spec.output.format == DType::F8 {
                let code = float_code(b, value);
                let is_number = b.eq(value, value);
                let code = b.select(is_number, code, 127u32);
                let code = b.cvt(Type::U8, code);
                b.store(cache.views[0], at, code);
                return;
            }
            if spec.output.format.block_len() == 1 {
                cache.store(b, at, value);
                return;
            }
            let magnitude = b.abs(value);
            // As bits, NaN is the greatest magnitude.
            let magnitude = b.bitcast(Type::U32, magnitude);
            let greatest = b.subgroup_max(magnitude);
            let greatest = b.bitcast(Type::F32, greatest);
            let zero = b.eq(greatest, 0.0f32);
            let four = spec.output.format == DType::Q4Planes;
            let (most, least, steps) = if four { (7.0f32, -8.0f32, -8.0f32) } else { (127.0, -127.0, 127.0) };
            let extreme = match four {
                false => greatest,
                true => {
                    let top = b.subgroup_max(value);
                    let positive = b.eq(top, greatest);
                    let opposite = b.neg(greatest);
                    b.select(positive, greatest, opposite)
                }
            };
            let inverse = b.div(steps, extreme);
            let inverse = b.select(zero, 0.0f32, inverse);
            let code = b.mul(value, inverse);
            let code = b.round(code);
            let code = b.max(code, least);
            let code = b.min(code, most);
            let lane = b.builtin(Opcode::Lane);
            if four {
                let code = b.add(code, 8.0f32);
                let code = b.cvt(Type::U32, code);
                let upper = b.add(lane, 16u32);
                let upper = b.shuffle(code, upper);
                let upper = b.shl(upper, 4u32);
                let both = b.or(code, upper);
                let both = b.cvt(Type::U8, both);
                let stores = b.lt(lane, 16u32);
                b.if_(stores, |b| {
                    // A byte has elements i and i + 16 of a block.
                    let byte = b.sub(at, lane);
                    let byte = b.shr(byte, 1u32);
                    let byte = b.add(byte, lane);
                    let byte = b.select(exists, byte, u32::MAX);
                    b.store(cache.views[0], byte, both);
                });
            } else {
                let code = b.cvt(Type::I8, code);
                b.store(cache.views[0], at, code);
            }
            let leader = b.eq(lane, 0u32);
            b.if_(leader, |b| {
                let scale = b.div(extreme, steps);
                let scale = b.cvt(Type::F16, scale);
                let at = b.shr(at, 5u32);
                b.store(cache.views[1], at, scale);
            });
        });
        let max = spec.inputs[1].max_rows() * spec.inputs[1].row_len();
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [cache, x, slots] = inputs else { return Reference::default() };
        let [_, heads, block_size, d] = cache.shape[..] else { return Reference::default() };
        let mut values = cache.values.clone();
        let mut bounds = vec![0.0; values.len()];
        for (t, slot) in slots.values.iter().enumerate() {
            let (block, offset) = (*slot as usize / block_size, *slot as usize % block_size);
            for head in 0..heads {
                let to = ((block * heads + head) * block_size + offset) * d;
                let from = (t * heads + head) * d;
                if cache.format.block_len() > 1 {
                    let x = x.values[from..from + d].chunks(BLOCK);
                    for ((x, y), bounds) in x.zip(values[to..].chunks_mut(BLOCK)).zip(bounds[to..].chunks_mut(BLOCK)) {
                        quantized(cache.format, x, y, bounds);
                    }
                    continue;
                }
                for e in 0..d {
                    values[to + e] = super::rounded(x.values[from + e], cache.format);
                }
            }
        }
        Reference { values, bounds }
    }
}

/// Elements per scale in 8 and 4 bits.
const BLOCK: usize = DType::Q8Planes.block_len();

/// Quantizes a block to a format's bits and bounds its values' deviation.
fn quantized(format: DType, x: &[f64], y: &mut [f64], bounds: &mut [f64]) {
    let greatest = super::widest(0.0, x);
    let (extreme, steps, range) = match format {
        DType::Q4Planes if x.contains(&greatest) => (greatest, -8.0, (-8.0, 7.0)),
        DType::Q4Planes => (-greatest, -8.0, (-8.0, 7.0)),
        _ => (greatest, 127.0, (-127.0, 127.0)),
    };
    let scale = half::f16::from_f32(extreme as f32 / steps as f32).to_f64();
    for ((x, y), bound) in x.iter().zip(y).zip(bounds) {
        let code = if greatest == 0.0 { 0.0 } else { (x * steps / extreme).max(range.0).min(range.1) };
        // The quotient is off by at most 2⁻²³, which changes only codes that are this close to a tie.
        let tie = (code - code.floor() - 0.5).abs() <= code.abs() * f64::from(f32::EPSILON);
        (*y, *bound) = (code.round_ties_even() * scale, if tie { scale.abs() } else { 0.0 });
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in [DType::F32, DType::F16, DType::F8, DType::Q8Planes, DType::Q4Planes] {
        let shapes = [
            (1, 1, 16, 1, 1, vec![0.0]),
            (2, 2, 16, 8, 4, vec![]),
            (3, 2, 16, 33, 5, vec![47.0, 0.0, 15.0, 16.0]),
            (4, 4, 32, 64, 6, vec![31.0, 32.0, 33.0, 127.0, 5.0, 64.0]),
            (3, 3, 16, 96, 3, vec![17.0, 40.0]),
        ];
        for (blocks, heads, block_size, d, max, slots) in shapes {
            if !usize::is_multiple_of(d, format.block_len()) {
                continue;
            }
            let n = slots.len();
            let dims = |sizes: &[usize]| sizes.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
            cases.push(
                Case::new(KvAppend, &[(max, n)])
                    .input(CaseInput::normal(format, &dims(&[blocks, heads, block_size, d])))
                    .input(CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(heads), Dim::Fixed(d)]))
                    .input(CaseInput { format: DType::U32, shape: vec![Dim::Extent(0)], fill: Fill::Values(slots) }),
            );
        }
    }
    let dims = [1, 2, 16, 32].map(Dim::Fixed);
    let one_nan: Vec<f32> = (0..64).map(|i| if i == 40 { f32::NAN } else { i as f32 }).collect();
    let fixed = |format, shape: &[Dim], fill| CaseInput { format, shape: shape.to_vec(), fill };
    // The greatest and the least element are as far from 0; all are 0.
    let both = (0..64).map(|i| if i < 32 { (i % 2) as f32 * 2.0 - 1.0 } else { 0.0 }).collect();
    // Ties of normal and of subnormal floats of a byte, the greatest, what is beyond it, and what is none.
    let mut ties = vec![448.0, 17.0, 19.0, -0.5 / 512.0, -1.5 / 512.0, 1e-6, -464.0, 7.5 / 512.0];
    ties.extend([465.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e30, -0.0, 15.5 / 1024.0, 240.0]);
    ties.extend((0..48).map(|i| (i as f32 - 24.0) * 1.0625));
    let odd =
        [(DType::Q8Planes, one_nan.clone()), (DType::Q4Planes, one_nan), (DType::Q4Planes, both), (DType::F8, ties)];
    for (format, values) in odd {
        cases.push(
            Case::new(KvAppend, &[])
                .input(CaseInput::normal(format, &dims))
                .input(fixed(DType::F32, &[Dim::Fixed(1), dims[1], dims[3]], Fill::Values(values)))
                .input(fixed(DType::U32, &[Dim::Fixed(1)], Fill::Values(vec![3.0]))),
        );
    }
    cases
}
