//! `sample`: logits f32 [n, v], numbers f32 [n, 3], words u32 [n, 4] → u32 [n]. The first launch reads all logits
//! with many workgroups; the second reads the relevant ones with one workgroup per row.

use hologram_device::{DType, KernelSpec, Operation};

use super::kernels::sample::{SampleChoose, SampleScan};
use super::launch::{Count, Places, launch, number};
use super::{Memory, NativeKernel, Part, Target};

/// Logits of which the first launch keeps the greatest.
const PIECE: usize = 32;
/// Pieces per workgroup of the first launch: four for each of 8 SIMD-groups.
const PIECES: usize = 32;

/// The native kernel for `sample`.
pub(super) fn find(spec: &KernelSpec, _target: Target) -> Option<NativeKernel> {
    let [logits, numbers, words] = spec.inputs.as_slice() else { return None };
    let formats = [logits, numbers, words, &spec.output].map(|t| t.format);
    if spec.op != Operation::Sample
        || formats != [DType::F32, DType::F32, DType::U32, DType::U32]
        || logits.shape.len() != 2
    {
        return None;
    }
    let (places, rows, v) = (Places::of(spec), Count::rows(logits)?, logits.row_len());
    let pieces = v.div_ceil(PIECE);
    // Keys, then sums.
    let plane = rows.max().checked_mul(pieces * 4)?;
    let [logits, numbers, words] = [0, 1, 2].map(|i| places.input(i, 0));
    let [keys, sums] = [0, plane].map(Memory::Scratch);
    let (count, n) = (places.counted(rows), number(v)?);
    let scan = SampleScan { logits, numbers, words, keys, sums, rows: count, n };
    let choose = SampleChoose { logits, numbers, words, keys, sums, tokens: places.output(0), rows: count, n };
    let scan = launch(scan, "sample_scan", [pieces.div_ceil(PIECES), rows.max()], 256)?;
    let choose = launch(choose, "sample_choose", [rows.max(), 1], 1024)?;
    let parts = vec![Part::Kernel(scan), Part::Kernel(choose)];
    Some(NativeKernel { parts, scratch: plane.checked_mul(2)?, counters: 0, phase: None })
}
