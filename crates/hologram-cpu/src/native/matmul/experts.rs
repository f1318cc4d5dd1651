//! `expert_matmul`: products with the matrices of the experts that each token has chosen.
//!
//! A slot is a token and one of its experts. A piece of the work is some rows of one expert's matrix, which all slots
//! of that expert are multiplied with while the rows are in a near cache: each matrix is read once, by the row kernels
//! of `matmul`, which take some slots at a time.

use std::ops::Range;
use std::sync::Arc;

use hologram_device::{DType, Extent, KernelSpec, Operation, TensorSpec};

use super::float::{self, Element, Words};
use super::rows::{self, Prepared, RowKernels, TOGETHER};
use super::{NativeKernel, PackedRows, rows_of};
use crate::features::Features;
use crate::kernel::{Args, Worker};
use crate::native::decode::decode;
use crate::native::{input, only_slowest_varies, room};

/// The most bytes of the rows of a piece.
const PIECE: usize = 64 << 10;

/// The kernel for activations in 8 bits, and for float activations with plain weights; `None` for others.
pub fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let Operation::ExpertMatmul { experts } = spec.op else { return None };
    let [x, w, ids, bias @ ..] = spec.inputs.as_slice() else { return None };
    let (experts, slots, k) = (experts as usize, ids.row_len(), w.row_len());
    let rows = w.max_rows();
    let served = spec.in_place.is_none()
        && experts > 0
        && slots > 0
        && k > 0
        && rows.is_multiple_of(experts)
        && [x, ids, &spec.output].iter().all(|t| t.shape.len() == 2 && only_slowest_varies(t))
        && [k, k * slots].contains(&x.row_len())
        && spec.output.row_len() == rows / experts * slots
        && spec.output.format == DType::F32
        && ids.format == DType::U32
        && w.format.bytes(rows, k).is_some();
    let m = rows / experts.max(1);
    let of_bias = [experts, m].map(Extent::Fixed);
    if !served || bias.len() > 1 || bias.iter().any(|b| b.format != DType::F32 || b.shape != of_bias) {
        return None;
    }
    let by = match x.format {
        DType::I8Groups { group } => By::Codes(group as usize, rows::find(w.format, k, group as usize, features)?),
        DType::F32 | DType::BF16 => {
            let (kernels, element) = (float::kernels(features)?, float::element(w.format)?);
            let pairs = x.format == DType::BF16 && features.bf16 && features.avx512;
            let both = x.format == DType::F32 || w.format == DType::BF16;
            By::Floats(both.then_some(if pairs { Words::Bf16Pairs } else { Words::F32 })?, element, kernels)
        }
        _ => return None,
    };
    let (x, w, biased, dynamic) = (x.clone(), w.format, !bias.is_empty(), spec.uses_step());
    Some(Arc::new(ExpertMatmul { by, x, w, biased, experts, slots, m, k, dynamic }))
}

/// The row kernels.
enum By {
    /// For codes in groups of this many elements.
    Codes(usize, RowKernels),
    Floats(Words, Element, float::Kernels),
}

struct ExpertMatmul {
    by: By,
    x: TensorSpec,
    w: DType,
    /// Whether a row for each expert is added to its results.
    biased: bool,
    experts: usize,
    /// Experts of a token.
    slots: usize,
    /// Rows of an expert's matrix.
    m: usize,
    k: usize,
    dynamic: bool,
}

/// Some rows of an expert's matrix.
struct Piece {
    expert: usize,
    rows: Range<usize>,
    /// The first row, of all experts' rows, that this worker multiplies next.
    next: usize,
}

/// A launch's memory, checked for size.
struct Operands<'a> {
    x: &'a [u8],
    scales: &'a [f32],
    w: &'a [u8],
    row_bytes: usize,
    ids: &'a [u32],
    bias: &'a [f32],
    y: *mut f32,
}

impl ExpertMatmul {
    fn operands<'a>(&self, args: &Args<'a>) -> Result<Operands<'a>, String> {
        let n = self.x.rows(if self.dynamic { args.step() } else { &[] });
        let width = self.x.row_len();
        let (x, scales, x_views): (&[u8], &[f32], usize) = match self.by {
            By::Codes(group, _) => (input(args, 0, n * width)?, input(args, 1, n * width / group)?, 2),
            By::Floats(..) => (input(args, 0, n * width * self.x.format.block_bytes())?, &[], 1),
        };
        let (Some(w_bytes), Some(row_bytes)) = (self.w.bytes(self.experts * self.m, self.k), self.w.bytes(1, self.k))
        else {
            return Err("the weights are too large".into());
        };
        let w = input(args, x_views, w_bytes)?;
        let ids_at = x_views + self.w.views(1, self.k).len();
        let ids: &[u32] = input(args, ids_at, n * self.slots)?;
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.experts) {
            return Err(format!("expert {id} is not one of {}", self.experts));
        }
        let bias = if self.biased { input(args, ids_at + 1, self.experts * self.m)? } else { &[] };
        let result = ids_at + 1 + usize::from(self.biased);
        room::<f32>(args, result, n * self.slots * self.m)?;
        Ok(Operands { x, scales, w, row_bytes, ids, bias, y: args.raw(result).data.cast() })
    }

    /// Words of scratch memory for the slots in the order of their experts: of each expert the end, then the slots.
    fn order_len(&self) -> usize {
        (self.experts + self.x.max_rows() * self.slots).next_multiple_of(16)
    }

    /// Bytes of scratch memory for a prepared row of activations.
    fn prepared_len(&self) -> usize {
        let bytes = match &self.by {
            By::Codes(_, kernels) => (kernels.prepared)(self.k),
            By::Floats(..) => self.k * 4,
        };
        bytes.next_multiple_of(64).max(64)
    }

    /// The most rows of a piece.
    fn most_rows(&self) -> usize {
        (PIECE / self.w.bytes(1, self.k).unwrap_or(PIECE).max(1)).max(8)
    }

    /// Bytes of scratch memory for the prepared rows, codes and results of slots that are multiplied together.
    fn together_len(&self) -> usize {
        TOGETHER * (self.prepared_len() + self.k.next_multiple_of(64) + (self.most_rows() * 4).next_multiple_of(64))
    }

    /// Multiplies some rows of an expert's matrix with up to [`TOGETHER`] slots. `scratch` begins with the prepared
    /// row of activations that `prepared` names.
    fn multiply(
        &self,
        o: &Operands<'_>,
        piece: &Piece,
        slots: &[u32],
        scratch: &mut [u8],
        prepared: &mut Option<usize>,
    ) {
        match &self.by {
            By::Codes(group, kernels) => self.multiply_codes(o, piece, slots, scratch, prepared, (*group, kernels)),
            By::Floats(words, element, kernels) => {
                for slot in slots {
                    self.multiply_floats(o, piece, *slot as usize, scratch, (*words, *element, kernels));
                }
            }
        }
        if !self.biased {
            return;
        }
        let Piece { expert, rows, .. } = piece;
        let bias = &o.bias[expert * self.m + rows.start..][..rows.len()];
        for slot in slots {
            // SAFETY: the output has a row of `m` elements for each slot, which was written just now.
            let y =
                unsafe { std::slice::from_raw_parts_mut(o.y.add(*slot as usize * self.m + rows.start), rows.len()) };
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
    }

    /// The row of a slot's activations.
    fn row_of(&self, slot: usize) -> usize {
        if self.x.row_len() == self.k { slot / self.slots } else { slot }
    }

    /// The rows of a piece, with where their products go.
    fn rows(&self, o: &Operands<'_>, piece: &Piece, y: *mut f32, stride: usize) -> PackedRows {
        let first = (piece.expert * self.m + piece.rows.start) * o.row_bytes;
        let first = o.w[first..first + piece.rows.len() * o.row_bytes].as_ptr();
        let next = o.w[piece.next * o.row_bytes..].as_ptr();
        PackedRows { first, bytes: o.row_bytes, count: piece.rows.len(), k: self.k, y, stride, next }
    }

    fn multiply_codes(
        &self,
        o: &Operands<'_>,
        piece: &Piece,
        slots: &[u32],
        scratch: &mut [u8],
        prepared: &mut Option<usize>,
        (group, kernels): (usize, &RowKernels),
    ) {
        let (k, extra_bytes, count, from) = (self.k, self.prepared_len(), piece.rows.len(), piece.rows.start);
        let (extra, rest) = scratch.split_at_mut(TOGETHER * extra_bytes);
        let (gathered, results) = rest.split_at_mut((TOGETHER * k).next_multiple_of(64));
        for ((slot, extra), gathered) in
            slots.iter().zip(extra.chunks_exact_mut(extra_bytes)).zip(gathered.chunks_exact_mut(k))
        {
            let row = self.row_of(*slot as usize);
            // With one token, many pieces follow each other that are multiplied with the same row.
            if slots.len() == 1 && prepared.replace(row) == Some(row) {
                break;
            }
            let codes = &o.x[row * k..(row + 1) * k];
            let scales = &o.scales[row * (k / group)..(row + 1) * (k / group)];
            // SAFETY: any byte is an i8; the scratch has room for a prepared row.
            unsafe {
                let signed = std::slice::from_raw_parts(codes.as_ptr().cast::<i8>(), k);
                (kernels.prepare)(signed, scales, group, extra.as_mut_ptr());
            }
            if slots.len() > 1 {
                *prepared = None;
                gathered.copy_from_slice(codes);
            }
        }
        let codes = match slots {
            [slot] => o.x[self.row_of(*slot as usize) * k..].as_ptr(),
            _ => gathered.as_ptr(),
        };
        let x = Prepared { codes, extra: extra.as_ptr(), extra_bytes };
        // SAFETY: the output has a row of `m` elements for each slot.
        let of_slot = |slot: u32| unsafe { o.y.add(slot as usize * self.m + from) };
        if let [slot] = slots {
            // SAFETY: the rows exist; the kernels are of this processor's instruction set; this worker has claimed
            // these elements of the output.
            unsafe { kernels.multiply[0](&self.rows(o, piece, of_slot(*slot), self.m), &x) };
            return;
        }
        // SAFETY: any bytes are floats.
        let results = &mut unsafe { results.align_to_mut::<f32>().1 }[..slots.len() * count];
        let w = self.rows(o, piece, results.as_mut_ptr(), count);
        // SAFETY: as above; the results have a row for each slot.
        unsafe { kernels.multiply[slots.len() - 1](&w, &x) };
        for (slot, results) in slots.iter().zip(results.chunks_exact(count)) {
            // SAFETY: this worker has claimed these elements of the output.
            unsafe { std::slice::from_raw_parts_mut(of_slot(*slot), count) }.copy_from_slice(results);
        }
    }

    fn multiply_floats(
        &self,
        o: &Operands<'_>,
        piece: &Piece,
        slot: usize,
        scratch: &mut [u8],
        (words, element, kernels): (Words, Element, &float::Kernels),
    ) {
        let bytes = self.k * self.x.format.block_bytes();
        let row = self.row_of(slot);
        // SAFETY: the output has a row of `m` elements for each slot.
        let y = unsafe { o.y.add(slot * self.m + piece.rows.start) };
        let w = self.rows(o, piece, y, self.m);
        let mut x = &o.x[row * bytes..(row + 1) * bytes];
        if words == Words::F32 && self.x.format == DType::BF16 {
            // SAFETY: any bytes are floats; the scratch is aligned to 64 bytes.
            let floats = &mut unsafe { scratch.align_to_mut::<f32>().1 }[..self.k];
            decode(DType::BF16, x, floats);
            // SAFETY: floats are bytes.
            x = unsafe { floats.align_to::<u8>().1 };
        }
        // SAFETY: the rows exist; the kernels are of this processor's instruction set; this worker has claimed these
        // elements of the output.
        unsafe { (kernels.by_row)(words, element, &w, x.as_ptr(), 1) };
    }
}

impl NativeKernel for ExpertMatmul {
    fn worker_scratch(&self) -> usize {
        self.order_len() * 4 + self.together_len()
    }

    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let o = self.operands(args)?;
        let scratch = std::mem::take(&mut worker.scratch);
        let (order, prepared) = scratch.split_at_mut(self.order_len() * 4);
        // SAFETY: any bytes are words; the scratch is aligned to 64 bytes.
        let (ends, order) = unsafe { order.align_to_mut::<u32>().1 }.split_at_mut(self.experts);
        // The slots by expert, in their order.
        ends.fill(0);
        o.ids.iter().for_each(|id| ends[*id as usize] += 1);
        let mut used = 0;
        let mut start = 0;
        for end in ends.iter_mut() {
            used += usize::from(*end > 0);
            (*end, start) = (start, start + *end);
        }
        for (slot, id) in o.ids.iter().enumerate() {
            let end = &mut ends[*id as usize];
            order[*end as usize] = slot as u32;
            *end += 1;
        }
        if used == 0 {
            return Ok(());
        }
        let pieces = (worker.count * 12).div_ceil(used);
        let rows = self.m.div_ceil(pieces).max(8).min(self.most_rows());
        let of_expert = self.m.div_ceil(rows);
        // Pieces are claimed in order, so the expert is found from the last piece's.
        let (mut expert, mut before) = (0, 0);
        let slots = |ends: &[u32], expert: usize| match expert {
            0 => 0..ends[0] as usize,
            _ => ends[expert - 1] as usize..ends[expert] as usize,
        };
        let mut claim = || {
            let piece = worker.next(used * of_expert)?;
            while slots(ends, expert).is_empty() || before < piece / of_expert {
                before += usize::from(!slots(ends, expert).is_empty());
                expert += 1;
            }
            Some((expert, rows_of(piece % of_expert, rows, self.m)))
        };
        // The next piece is claimed before the current one is computed, so that its memory can be prefetched.
        let (mut claimed, mut row) = (claim(), None);
        while let Some((expert, rows)) = claimed {
            claimed = claim();
            let next = claimed.as_ref().map_or(expert * self.m + rows.start, |(e, rows)| e * self.m + rows.start);
            let piece = Piece { expert, rows, next };
            for slots in order[slots(ends, expert)].chunks(TOGETHER) {
                self.multiply(&o, &piece, slots, prepared, &mut row);
            }
        }
        Ok(())
    }
}
