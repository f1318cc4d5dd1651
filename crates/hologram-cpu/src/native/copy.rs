//! `copy`: copies a tensor of any plain format to new memory.

use std::sync::Arc;

use hologram_device::{DType, KernelSpec, Operation, TensorSpec};

use super::super::features::Features;
use super::super::kernel::{Args, NativeKernel, Worker};
use super::simd::{Isa, Simd, fence, simd_entry};
use super::stream::{is_non_temporal, map_with};
use super::{elements, input, is_dense, room};

struct Copy {
    isa: Isa,
    x: TensorSpec,
    uses_step: bool,
}

/// Bytes of a piece of work.
const PIECE: usize = 64 << 10;
/// As [`PIECE`], for copies with non-temporal stores.
const PIECE_NON_TEMPORAL: usize = 256 << 10;

/// The native kernel for `copy`; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x] = spec.inputs.as_slice() else { return None };
    let served = spec.op == Operation::Copy
        && spec.in_place.is_none()
        && *x == spec.output
        && matches!(x.format, DType::Plain(_))
        && is_dense(x);
    let kernel = || Copy { isa: Isa::widest(features), x: x.clone(), uses_step: spec.uses_step() };
    served.then(|| Arc::new(kernel()) as Arc<dyn NativeKernel>)
}

impl NativeKernel for Copy {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let count = elements(&self.x, if self.uses_step { args.step() } else { &[] });
        let len = count * self.x.format.block_bytes();
        let x = input::<u8>(args, 0, len)?;
        room::<u8>(args, 1, len)?;
        let out = args.output::<u8>(1);
        let non_temporal = is_non_temporal(args.raw(1), len) && x.as_ptr().addr().is_multiple_of(4);
        let size = if non_temporal { PIECE_NON_TEMPORAL } else { PIECE };
        while let Some(index) = worker.next(len.div_ceil(size)) {
            let piece = index * size..((index + 1) * size).min(len);
            // SAFETY: each piece is claimed by one worker.
            let (x, out) = (&x[piece.clone()], unsafe { out.part(piece) });
            if non_temporal {
                // SAFETY: any bytes are floats, which are only moved; both begin at whole floats.
                let ((_, x, x_rest), (_, out, rest)) = unsafe { (x.align_to::<f32>(), out.align_to_mut::<f32>()) };
                copy_past(self.isa, x, out);
                rest.copy_from_slice(x_rest);
            } else {
                out.copy_from_slice(x);
            }
        }
        fence();
        Ok(())
    }
}

/// Copies bytes. Uses non-temporal stores when `non_temporal` is set and there are many bytes; call [`fence`] after the
/// last such call of a phase.
pub(super) fn copy_bytes(isa: Isa, x: &[u8], out: &mut [u8], non_temporal: bool) {
    // Rows begin anywhere: bytes before the first whole cache line are stored through the caches.
    let head = out.as_ptr().align_offset(64);
    if !non_temporal || x.len() < 2048 || out.len() != x.len() || !(x.as_ptr().addr() + head).is_multiple_of(4) {
        return out.copy_from_slice(x);
    }
    let ((first, x), (to, out)) = (x.split_at(head), out.split_at_mut(head));
    to.copy_from_slice(first);
    // SAFETY: any bytes are floats, which are only moved; both begin at whole floats.
    let ((_, x, x_rest), (_, out, rest)) = unsafe { (x.align_to::<f32>(), out.align_to_mut::<f32>()) };
    copy_past(isa, x, out);
    rest.copy_from_slice(x_rest);
}

simd_entry! {
    fn copy_past(x: &[f32], out: &mut [f32]) = copy_with
}

#[inline(always)]
fn copy_with<S: Simd>(s: S, x: &[f32], out: &mut [f32]) {
    map_with(s, [x], out, true, |[x]| x);
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;
    use crate::native::stream::NON_TEMPORAL_BYTES;
    use crate::testing::{Memory, feature_sets, launch};
    use hologram_device::Extent;
    use hologram_isa::Type;

    pub(crate) fn copies_every_byte_and_no_other() {
        let non_temporal = NON_TEMPORAL_BYTES + 3;
        for (ty, rows, len) in
            [(Type::U8, 0u32, 7), (Type::U8, 3, 70_001), (Type::U8, 1, non_temporal), (Type::F16, 2, 33)]
        {
            let shape = vec![Extent::step(0, rows as usize + 1), Extent::Fixed(len)];
            let x = TensorSpec { format: DType::Plain(ty), shape };
            let spec = KernelSpec { op: Operation::Copy, inputs: vec![x.clone()], output: x, in_place: None };
            let bytes = spec.output.max_bytes();
            let data: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
            for features in feature_sets() {
                let mut memory = [Memory::of(&data), Memory::filled(bytes, 0xee), Memory::of(&[rows])];
                launch(&*find(&spec, features).expect("served"), &mut memory, 3).expect("runs");
                let (copied, rest) = memory[1].elements::<u8>().split_at(rows as usize * len * ty.size());
                assert!(copied == &data[..copied.len()], "{features:?} {ty} {rows} × {len}");
                assert!(rest.iter().all(|b| *b == 0xee), "{features:?}: wrote behind the run's rows");
            }
        }
    }
}
