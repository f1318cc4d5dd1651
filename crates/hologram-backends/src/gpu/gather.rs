//! `gather`: rows of a table in any weight format by ids u32 [n] → f32 [n, d].

use super::launch::{Count, Places, launch, packed_args, packed_name, single};
use super::{Arg, NativeKernel, Target};
use crate::{Extent, Format, KernelSpec, Operation};
use hologram_isa::Type;

/// The native kernel for `gather`.
pub(super) fn find(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    let [table, ids] = spec.inputs.as_slice() else { return None };
    let ([rows, Extent::Fixed(d)], [n]) = (table.shape.as_slice(), ids.shape.as_slice()) else { return None };
    let served = spec.op == Operation::Gather
        && spec.in_place.is_none()
        && ids.format == Format::U32
        && spec.output.format == Format::F32
        && spec.output.shape == [*n, Extent::Fixed(*d)];
    if !served {
        return None;
    }
    let (entry, views) = match table.format {
        Format::Plain(Type::F32) => ("gather_f32", 1),
        Format::Plain(Type::F16) => ("gather_f16", 1),
        Format::Plain(Type::BF16) => ("gather_bf16", 1),
        Format::Q8_0 => ("gather_q8", 2),
        Format::Q4_0 => ("gather_q4", 2),
        Format::TQ2_0 => ("gather_t2", 2),
        Format::Q8Planes => ("gather_q8_planes", 2),
        Format::Q4Planes => ("gather_q4_planes", 2),
        Format::T2Planes => ("gather_t2_planes", 2),
        Format::Planes(_) => ("", 0),
        _ => return None,
    };
    let (places, tokens) = (Places::of(spec), Count::of(&[*n])?);
    let [slot, most] = match *rows {
        Extent::Fixed(rows) => [u32::MAX, u32::try_from(rows).ok()?],
        Extent::Step { slot, max } => [slot, u32::try_from(max).ok()?],
    };
    let mut args: Vec<Arg> = (0..views).map(|view| places.input(0, view)).collect();
    let (mut kernel, mut columns) = (("gather", entry.to_string()), 1024);
    if let Format::Planes(packed) = table.format {
        args.extend(packed_args(packed, |view| places.input(0, view), 0));
        (kernel, columns) = (("packed", format!("gather_{}", packed_name(packed))), 2048);
    }
    args.extend([places.input(1, 0), places.output(0), places.step()]);
    args.extend(tokens.numbers());
    args.extend([slot, most, u32::try_from(*d).ok()?].map(Arg::U32));
    args.push(Arg::Fault);
    Some(single(launch(kernel.0, kernel.1, [tokens.max(), d.div_ceil(columns)], 256, args)?))
}
