//! `pad`: a border of one value around a tensor of any plain type.

use std::sync::Arc;

use half::{bf16, f16};
use hologram_device::{DType, Extent, KernelSpec, Operation, TensorSpec};
use hologram_isa::Type;

use super::copy::copy_bytes;
use super::simd::{Isa, fence};
use super::stream::is_non_temporal;
use super::{elements, is_dense};
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};

/// A dimension over which rows are iterated: its sizes in the source and the result, and the border before it in the
/// result.
#[derive(Clone, Copy, Debug)]
struct Dimension {
    from: Extent,
    to: Extent,
    before: usize,
}

struct Pad {
    isa: Isa,
    output: TensorSpec,
    /// The dimensions before the last one with a border, slowest first.
    outer: Vec<Dimension>,
    /// Bytes of a row from that last dimension on: in the source, in the result, and of the border before it in the
    /// result.
    row: [usize; 3],
    /// The border's value.
    value: [u8; 8],
    size: usize,
    uses_step: bool,
}

/// Bytes of a piece of work.
const PIECE: usize = 128 << 10;

/// The bytes of a value in a type.
fn bytes(value: f64, ty: Type) -> [u8; 8] {
    let mut bytes = [0; 8];
    let mut set = |from: &[u8]| bytes[..from.len()].copy_from_slice(from);
    match ty {
        Type::F16 => set(&f16::from_f64(value).to_le_bytes()),
        Type::BF16 => set(&bf16::from_f64(value).to_le_bytes()),
        Type::F32 => set(&(value as f32).to_le_bytes()),
        Type::F64 => set(&value.to_le_bytes()),
        Type::U64 => set(&(value as u64).to_le_bytes()),
        _ => set(&(value as i64).to_le_bytes()),
    }
    bytes
}

/// The native kernel for `pad`; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x] = spec.inputs.as_slice() else { return None };
    let DType::Plain(ty) = x.format else { return None };
    let Operation::Pad { before, value } = &spec.op else { return None };
    if spec.in_place.is_some() || spec.output.format != x.format || !is_dense(&spec.output) {
        return None;
    }
    let value = value.get();
    let dimension =
        |((from, to), before): ((&Extent, &Extent), &u32)| Dimension { from: *from, to: *to, before: *before as usize };
    let mut outer: Vec<Dimension> = x.shape.iter().zip(&spec.output.shape).zip(before).map(dimension).collect();
    if outer.len() != spec.output.shape.len() || x.shape.len() != outer.len() {
        return None;
    }
    let size = x.format.block_bytes();
    let mut inner = size;
    // Dimensions without a border join the elements that are moved together. The first may vary, so it is iterated.
    while outer.len() > 1 && outer.last().is_some_and(|d| d.from == d.to) {
        inner *= outer.pop()?.to.max();
    }
    let Some(Dimension { from: Extent::Fixed(from), to: Extent::Fixed(to), before }) = outer.last().copied() else {
        return None;
    };
    outer.pop();
    let row = [from * inner, to * inner, before * inner];
    let (output, isa, uses_step) = (spec.output.clone(), Isa::widest(features), spec.uses_step());
    Some(Arc::new(Pad { isa, output, outer, row, value: bytes(value, ty), size, uses_step }))
}

impl Pad {
    /// The source row of a row of the result; `None` for a row of the border.
    fn source(&self, row: usize, step: &[u32]) -> Option<usize> {
        let (mut rest, mut at, mut stride) = (row, 0, 1);
        for dimension in self.outer.iter().rev() {
            let (from, to) = (dimension.from.value(step), dimension.to.value(step));
            at += (rest % to).checked_sub(dimension.before).filter(|i| *i < from)? * stride;
            rest /= to;
            stride *= from;
        }
        Some(at)
    }

    fn fill(&self, to: &mut [u8]) {
        let value = &self.value[..self.size];
        if value.iter().all(|byte| *byte == value[0]) {
            to.fill(value[0]);
        } else {
            to.chunks_exact_mut(self.size).for_each(|to| to.copy_from_slice(value));
        }
    }
}

impl NativeKernel for Pad {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let step = if self.uses_step { args.step() } else { &[] };
        let [from_bytes, to_bytes, before] = self.row;
        let all = elements(&self.output, step) * self.size;
        if all == 0 {
            return Ok(());
        }
        let (rows, x) = (all / to_bytes, args.read::<u8>(0));
        let sources: usize = self.outer.iter().map(|d| d.from.value(step)).product();
        if args.raw(1).bytes < all || x.len() < sources * from_bytes {
            return Err(format!("a buffer is too small for {rows} rows of {to_bytes} bytes"));
        }
        let non_temporal = is_non_temporal(args.raw(1), all);
        let per_piece = (PIECE / to_bytes).max(1);
        let out = args.output::<u8>(1);
        while let Some(piece) = worker.next(rows.div_ceil(per_piece)) {
            for row in piece * per_piece..((piece + 1) * per_piece).min(rows) {
                // SAFETY: each row is claimed by one worker.
                let to = unsafe { out.part(row * to_bytes..(row + 1) * to_bytes) };
                match self.source(row, step) {
                    None => self.fill(to),
                    Some(source) => {
                        let (first, rest) = to.split_at_mut(before);
                        let (middle, last) = rest.split_at_mut(from_bytes);
                        self.fill(first);
                        copy_bytes(self.isa, &x[source * from_bytes..(source + 1) * from_bytes], middle, non_temporal);
                        self.fill(last);
                    }
                }
            }
        }
        fence();
        Ok(())
    }
}
