//! Stores the keys or values of new tokens in a paged cache, in place.

use hologram_backends::{Format, KernelSpec};
use hologram_isa::Type;

use super::{Kernel, Launchable, Op};
use crate::conformance::{Case, CaseInput, Fill, HostTensor, Reference};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::tensor::{Dim, TensorType};

/// The operation; the cache is `[blocks, kv_heads, block_size, d]`, `x` `f32 [n, kv_heads, d]`, `slots` `u32 [n]`.
#[derive(Debug)]
struct KvAppend;

impl Graph {
    /// Stores token t of `x` (`f32 [n, kv_heads, d]`) in `cache`, a state of `f32` or `f16 [blocks, kv_heads, block_size, d]`: every
    /// head at block `slots[t] / block_size`, offset `slots[t] % block_size`. Returns the cache's new version. A slot outside the
    /// cache is an error of the run; two tokens must not name one slot.
    ///
    /// # Errors
    /// When the operands do not fit or the cache is not a state.
    pub fn kv_append(&mut self, cache: NodeId, x: NodeId, slots: NodeId) -> Result<NodeId> {
        self.apply(KvAppend, &[cache, x, slots])
    }
}

const THREADS: u32 = 256;

impl Op for KvAppend {
    fn name(&self) -> &'static str {
        "kv_append"
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, String> {
        let [cache, x, slots] = inputs else { return Err("takes a cache, x and slots".into()) };
        if !matches!(cache.format, Format::F32 | Format::F16) || x.format != Format::F32 || slots.format != Format::U32
        {
            return Err("takes a cache of f32 or f16, f32 x and u32 slots".into());
        }
        match (cache.shape.as_slice(), x.shape.as_slice(), slots.shape.as_slice()) {
            ([Dim::Fixed(_), heads, Dim::Fixed(block_size), d], [n, h, e], [s])
                if heads == h && d == e && n == s && *block_size > 0 =>
            {
                Ok((*cache).clone())
            }
            _ => Err("takes a cache [blocks, heads, block size, d], x [n, heads, d] and slots [n]".into()),
        }
    }

    fn in_place(&self) -> Option<usize> {
        Some(0)
    }

    /// One thread for each element of `x`.
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
            // No cache has an element at u32::MAX, so that the store to a slot outside fails.
            let at = b.select(exists, at, u32::MAX);
            let value = x.load(b, i);
            cache.store(b, at, value);
        });
        let max = spec.inputs[1].max_rows() * spec.inputs[1].row_len();
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [cache, x, slots] = inputs else { return Reference::default() };
        let [_, heads, block_size, d] = cache.shape[..] else { return Reference::default() };
        let mut values = cache.values.clone();
        for (t, slot) in slots.values.iter().enumerate() {
            let (block, offset) = (*slot as usize / block_size, *slot as usize % block_size);
            for head in 0..heads {
                let to = ((block * heads + head) * block_size + offset) * d;
                let from = (t * heads + head) * d;
                for e in 0..d {
                    values[to + e] = super::rounded(x.values[from + e], cache.format);
                }
            }
        }
        let bounds = vec![0.0; values.len()];
        Reference { values, bounds }
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in [Type::F32, Type::F16] {
        for (blocks, heads, block_size, d, max, slots) in [
            (1, 1, 16, 1, 1, vec![0.0]),
            (2, 2, 16, 8, 4, vec![]),
            (3, 2, 16, 33, 5, vec![47.0, 0.0, 15.0, 16.0]),
            (4, 4, 32, 64, 6, vec![31.0, 32.0, 33.0, 127.0, 5.0, 64.0]),
        ] {
            let n = slots.len();
            let dims = |sizes: &[usize]| sizes.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
            cases.push(
                Case::new(KvAppend, &[(max, n)])
                    .input(CaseInput::normal(Format::Plain(ty), &dims(&[blocks, heads, block_size, d])))
                    .input(CaseInput::normal(Format::F32, &[Dim::Extent(0), Dim::Fixed(heads), Dim::Fixed(d)]))
                    .input(CaseInput { format: Format::U32, shape: vec![Dim::Extent(0)], fill: Fill::Values(slots) }),
            );
        }
    }
    cases
}
