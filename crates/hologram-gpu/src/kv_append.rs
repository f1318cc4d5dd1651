//! `kv_append`: x f32 [n, heads, d] into a paged cache [blocks, heads, block, d] at slots u32 [n], in place.

use super::kernels::kv_append::{KvAppend, KvAppendEight};
use super::launch::{Count, Places, launch, number, single};
use super::{NativeKernel, Target};
use hologram_device::{DType, Extent, KernelSpec, Operation};
use hologram_isa::Type;

/// The native kernel for `kv_append`.
pub(super) fn find(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    let [cache, x, slots] = spec.inputs.as_slice() else { return None };
    let [Extent::Fixed(blocks), Extent::Fixed(heads), Extent::Fixed(block), Extent::Fixed(d)] = cache.shape[..] else {
        return None;
    };
    let [n] = slots.shape[..] else { return None };
    let served = spec.op == Operation::KvAppend
        && spec.in_place == Some(0)
        && x.format == DType::F32
        && slots.format == DType::U32
        && x.shape == [n, Extent::Fixed(heads), Extent::Fixed(d)]
        && block > 0;
    let (places, count) = (Places::of(spec), Count::of(&[n])?);
    let grid = [count.max(), heads.checked_mul(d)?.div_ceil(1024)];
    let (x, slots, tokens) = (places.input(1, 0), places.input(2, 0), places.counted(count));
    let (blocks, heads, block, wide) = (number(blocks)?, number(heads)?, number(block)?, d.is_multiple_of(32));
    let (cache_at, d) = (places.input(0, 0), number(d)?);
    let floats = |entry| {
        let args = KvAppend { cache: cache_at, x, slots, tokens, blocks, heads, block, d };
        launch(args, entry, grid, 256)
    };
    let launch = match cache.format {
        DType::Plain(Type::F32) if served => floats("kv_append_f32")?,
        DType::Plain(Type::F16) if served => floats("kv_append_f16")?,
        DType::F8 if served => floats("kv_append_f8")?,
        DType::Q8Planes | DType::Q4Planes if served && wide => {
            let entry = if cache.format == DType::Q8Planes { "kv_append_eight" } else { "kv_append_four" };
            let scales = places.input(0, 1);
            let args = KvAppendEight { codes: cache_at, scales, x, slots, tokens, blocks, heads, block, d };
            launch(args, entry, grid, 256)?
        }
        _ => return None,
    };
    Some(single(launch))
}
