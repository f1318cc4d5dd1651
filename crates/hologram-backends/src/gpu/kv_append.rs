//! `kv_append`: x f32 [n, heads, d] into a paged cache [blocks, heads, block, d] at slots u32 [n], in place.

use super::launch::{Count, Places, launch, single};
use super::{Arg, NativeKernel, Target};
use crate::{Extent, Format, KernelSpec, Operation};
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
        && x.format == Format::F32
        && slots.format == Format::U32
        && x.shape == [n, Extent::Fixed(heads), Extent::Fixed(d)]
        && block > 0;
    let entry = match cache.format {
        Format::Plain(Type::F32) if served => "kv_append_f32",
        Format::Plain(Type::F16) if served => "kv_append_f16",
        Format::Q8Planes if served && d.is_multiple_of(32) => "kv_append_eight",
        _ => return None,
    };
    let (places, tokens) = (Places::of(spec), Count::of(&[n])?);
    let mut args = vec![places.input(0, 0)];
    args.extend((cache.format == Format::Q8Planes).then(|| places.input(0, 1)));
    args.extend([places.input(1, 0), places.input(2, 0), places.step()]);
    args.extend(tokens.numbers());
    for size in [blocks, heads, block, d] {
        args.push(Arg::U32(u32::try_from(size).ok()?));
    }
    args.push(Arg::Fault);
    let pieces = heads.checked_mul(d)?.div_ceil(1024);
    Some(single(launch("kv_append", entry.into(), [tokens.max(), pieces], 256, args)?))
}
