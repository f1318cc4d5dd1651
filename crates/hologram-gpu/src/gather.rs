//! `gather`: rows of a table in any weight format by ids u32 [n] → f32 [n, d].

use super::arguments::Actual;
use super::kernels::gather::{GatherBlocks, GatherPlain};
use super::kernels::packed::Gather;
use super::launch::{Count, Places, Planes, launch, number, packed_name, single};
use super::{NativeKernel, Target};
use hologram_device::{DType, Extent, KernelSpec, Operation};
use hologram_isa::Type;

/// The native kernel for `gather`.
pub(super) fn find(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    let [table, ids] = spec.inputs.as_slice() else { return None };
    let ([rows, Extent::Fixed(d)], [n]) = (table.shape.as_slice(), ids.shape.as_slice()) else { return None };
    let served = spec.op == Operation::Gather
        && spec.in_place.is_none()
        && ids.format == DType::U32
        && spec.output.format == DType::F32
        && spec.output.shape == [*n, Extent::Fixed(*d)];
    if !served {
        return None;
    }
    let (places, tokens, n) = (Places::of(spec), Count::of(&[*n])?, number(*d)?);
    let rows = Actual::of(*rows)?;
    let grid = |columns| [tokens.max(), d.div_ceil(columns)];
    let (ids, y, tokens) = (places.input(1, 0), places.output(0), places.counted(tokens));
    let plain = |entry| {
        let args = GatherPlain { x: places.input(0, 0), ids, y, tokens, rows, n };
        launch(args, entry, grid(1024), 256)
    };
    let blocks = |entry| {
        let args = GatherBlocks { q: places.input(0, 0), d: places.input(0, 1), ids, y, tokens, rows, n };
        launch(args, entry, grid(1024), 256)
    };
    let launch = match table.format {
        DType::Plain(Type::F32) => plain("gather_f32")?,
        DType::Plain(Type::F16) => plain("gather_f16")?,
        DType::Plain(Type::BF16) => plain("gather_bf16")?,
        DType::Q8_0 => blocks("gather_q8")?,
        DType::Q4_0 => blocks("gather_q4")?,
        DType::TQ2_0 => blocks("gather_t2")?,
        DType::Q8Planes => blocks("gather_q8_planes")?,
        DType::Q4Planes => blocks("gather_q4_planes")?,
        DType::T2Planes => blocks("gather_t2_planes")?,
        DType::Planes(packed) => {
            let Planes { low, high, records } = Planes::at(packed, places.at(0));
            let args = Gather { low, high, records, ids, y, tokens, rows, n };
            launch(args, format!("gather_{}", packed_name(packed)), grid(2048), 256)?
        }
        _ => return None,
    };
    Some(single(launch))
}
