//! `sample`: logits f32 [n, v], numbers f32 [n, 2], words u32 [n, 4] → u32 [n]. One launch looks at all logits with many workgroups, the second
//! at what matters of them with one workgroup a row.

use super::launch::{Count, Places, launch};
use super::{Arg, NativeKernel, Part, Target};
use crate::{Format, KernelSpec, Operation};

/// Logits of which the first launch keeps the greatest.
const PIECE: usize = 32;
/// Pieces of a workgroup of the first launch: four for each of 8 SIMD-groups.
const PIECES: usize = 32;

/// The native kernel for `sample`.
pub(super) fn find(spec: &KernelSpec, _target: Target) -> Option<NativeKernel> {
    let [logits, numbers, words] = spec.inputs.as_slice() else { return None };
    let formats = [logits, numbers, words, &spec.output].map(|t| t.format);
    if spec.op != Operation::Sample
        || formats != [Format::F32, Format::F32, Format::U32, Format::U32]
        || logits.shape.len() != 2
    {
        return None;
    }
    let (places, rows, v) = (Places::of(spec), Count::rows(logits)?, logits.row_len());
    let pieces = v.div_ceil(PIECE);
    // Keys, then sums.
    let plane = rows.max().checked_mul(pieces * 4)?;
    let inputs = [places.input(0, 0), places.input(1, 0), places.input(2, 0)];
    let scratch = [Arg::Scratch(0), Arg::Scratch(plane)];
    let numbers = |mut args: Vec<Arg>| -> Option<Vec<Arg>> {
        args.push(places.step());
        args.extend(rows.numbers());
        args.push(Arg::U32(u32::try_from(v).ok()?));
        Some(args)
    };
    let scan = numbers([inputs.as_slice(), &scratch].concat())?;
    let choose = numbers([inputs.as_slice(), &scratch, &[places.output(0)]].concat())?;
    let scan = launch("sample", "sample_scan".into(), [pieces.div_ceil(PIECES), rows.max()], 256, scan)?;
    let choose = launch("sample", "sample_choose".into(), [rows.max(), 1], 1024, choose)?;
    let parts = vec![Part::Kernel(scan), Part::Kernel(choose)];
    Some(NativeKernel { parts, scratch: plane.checked_mul(2)?, counters: 0 })
}
