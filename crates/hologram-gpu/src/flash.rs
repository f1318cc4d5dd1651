//! Attention of whole sequences of `f16` or `bf16` with heads of 64 or 128 elements, and its gradients, on NVIDIA GPUs
//! of compute capability 8.0 and up: `kernels/cuda/flash.cu`.

use hologram_device::{DType, Flash, KernelSpec, Operation};
use hologram_isa::Type;

use super::kernels::cuda::flash::{self as text, FlashForward, FlashKeys, FlashQueries, FlashSums};
use super::launch::{Places, launch, number, single};
use super::{KernelLaunch, Memory, NativeKernel, Part, Target};

/// The native kernel for a part of the attention.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let Operation::FlashAttention { scale, causal, part } = spec.op else { return None };
    let scale = scale.get();
    let [q, k, ..] = spec.inputs.as_slice() else { return None };
    let name = match q.format {
        DType::Plain(Type::F16) => "f16",
        DType::Plain(Type::BF16) => "bf16",
        _ => return None,
    };
    let shapes = [q, k].map(|t| t.shape.iter().map(|e| e.max()).collect::<Vec<_>>());
    let ([outer @ .., heads, n, d], [.., of_keys, m, _]) = (shapes[0].as_slice(), shapes[1].as_slice()) else {
        return None;
    };
    let (outer, causal) = (outer.iter().product::<usize>(), u32::from(causal));
    let (all, all_keys, group) = (outer * heads, outer * of_keys, number(heads / (*of_keys).max(1))?);
    // The kernels count queries and keys of all heads in 32 bits, and begin with the greatest score: the scale is
    // positive.
    let small = |rows: usize| rows.checked_mul(*d).is_some_and(|n| n < u32::MAX as usize / 4);
    let served = matches!(d, 64 | 128)
        && scale.is_finite()
        && scale > 0.0
        && small(all * n)
        && small(all_keys * m)
        && all * n > 0
        && spec.in_place.is_none()
        && target.has(80);
    if !served {
        return None;
    }
    let long = *d > 64;
    let places = Places::of(spec);
    let at = |i: usize| places.input(i, 0);
    let (n32, m32) = (number(*n)?, number(*m)?);
    let run = |args: KernelLaunch, lines: usize| {
        let shared = number(lines * (d + text::PAD as usize) * 2)?;
        (shared <= target.max_shared).then_some(KernelLaunch { shared, ..args })
    };
    // A warp has 16 lines.
    let threads = |rows: usize| rows * 2;
    let [forward, sums_of, queries, keys] =
        [text::FORWARD_LINES, text::SUMS_LINES, text::QUERIES_LINES, text::KEYS_LINES].map(|n| n as usize);
    match part {
        Flash::Result => {
            let out = places.output(0);
            let args = FlashForward { q: at(0), k: at(1), v: at(2), out, scale, n: n32, m: m32, group, causal };
            let grid = [all, n.div_ceil(forward)];
            let launch = launch(args, format!("flash_forward_{name}_{d}"), grid, threads(forward))?;
            let tile = if long { text::FORWARD_TILE_128 } else { text::FORWARD_TILE_64 };
            Some(single(run(launch, forward + 4 * tile as usize)?))
        }
        Flash::Sums => {
            let args = FlashSums { q: at(0), k: at(1), out: places.output(0), scale, n: n32, m: m32, group, causal };
            let grid = [all, n.div_ceil(sums_of)];
            let launch = launch(args, format!("flash_sums_{name}_{d}"), grid, threads(sums_of))?;
            Some(single(run(launch, sums_of + 2 * text::SUMS_TILE as usize)?))
        }
        Flash::Gradients => {
            let deltas = Memory::Scratch(0);
            let by_q = places.output(0);
            let [q, k, v, result, sums, grad] = [0, 1, 2, 3, 4, 5].map(at);
            let args = FlashQueries { q, k, v, result, sums, grad, by_q, deltas, scale, n: n32, m: m32, group, causal };
            let grid = [all, n.div_ceil(queries)];
            let entry = format!("flash_queries_{name}_{d}");
            let lines = (3 * queries).max(4 * text::QUERIES_TILE as usize);
            let by_queries = run(launch(args, entry, grid, threads(queries))?, lines)?;
            let (by, keys_at) = (places.output(0), number(all * n * d)?);
            let args = FlashKeys { q, k, v, sums, grad, deltas, by, keys_at, scale, n: n32, m: m32, group, causal };
            let grid = [all_keys, m.div_ceil(keys)];
            let tile = if long { text::KEYS_TILE_128 } else { text::KEYS_TILE_64 };
            let (own, tiles) = (2 * keys, 4 * tile as usize);
            let held = *d <= text::MOST_HELD as usize;
            let lines = if held { own.max(tiles) } else { own + tiles };
            let by_keys = run(launch(args, format!("flash_keys_{name}_{d}"), grid, threads(keys))?, lines)?;
            let scratch = (all * n).checked_mul(4)?;
            let parts = vec![Part::Kernel(by_queries), Part::Kernel(by_keys)];
            Some(NativeKernel { parts, scratch, counters: 0, phase: None })
        }
    }
}

#[cfg(test)]
mod tests {
    use hologram_device::{Extent, TensorSpec};

    use super::*;

    fn launches(part: Flash, format: DType, scale: f32, q: [usize; 4], k: [usize; 4]) -> Option<Vec<KernelLaunch>> {
        let tensor = |format: DType, shape: &[usize]| {
            let shape = shape.iter().map(|n| Extent::Fixed(*n)).collect();
            TensorSpec { format, shape }
        };
        let (of_q, of_k, sums) = (tensor(format, &q), tensor(format, &k), tensor(DType::F32, &q[..3]));
        let (inputs, output) = match part {
            Flash::Sums => (vec![of_q, of_k], sums),
            Flash::Result => (vec![of_q.clone(), of_k.clone(), of_k], of_q),
            Flash::Gradients => {
                let elements = q.iter().product::<usize>() + 2 * k.iter().product::<usize>();
                let all = tensor(format, &[elements]);
                (vec![of_q.clone(), of_k.clone(), of_k, of_q.clone(), sums, of_q], all)
            }
        };
        let op = Operation::FlashAttention { scale: scale.into(), causal: true, part };
        let spec = KernelSpec { op, inputs, output, in_place: None };
        let kernel = crate::find(&spec, Target::nvidia(90, 132, 227 * 1024))?;
        let launch = |part: Part| match part {
            Part::Kernel(launch) => launch,
            Part::Blas(_) => panic!("a product"),
        };
        Some(kernel.parts.into_iter().map(launch).collect())
    }

    #[test]
    fn every_part_has_its_tiles() {
        let shapes = ([8, 12, 1024, 64], [8, 12, 1024, 64]);
        let of = |part: Flash| launches(part, DType::BF16, 0.125, shapes.0, shapes.1).expect("a kernel");
        let forward = of(Flash::Result).remove(0);
        assert_eq!((&*forward.entry, forward.grid), ("flash_forward_bf16_64", [96, 16, 1]));
        assert_eq!((forward.block[0], forward.shared), (128, (64 + 4 * 64) * 72 * 2));
        assert_eq!(of(Flash::Sums)[0].filled::<FlashSums>().group, 1);
        let [by_queries, by_keys] = &of(Flash::Gradients)[..] else { panic!("two launches") };
        assert_eq!(by_queries.filled::<FlashQueries>().deltas, by_keys.filled::<FlashKeys>().deltas);
        assert_eq!(by_keys.filled::<FlashKeys>().keys_at, 8 * 12 * 1024 * 64);
        assert_eq!(by_keys.grid[0], 96);
    }

    #[test]
    fn heads_share_keys() {
        let parts = launches(Flash::Gradients, DType::F16, 0.1, [2, 8, 70, 128], [2, 2, 90, 128]).expect("a kernel");
        assert_eq!(parts[0].grid[..2], [16, 70u32.div_ceil(text::QUERIES_LINES)]);
        assert_eq!(parts[1].grid[..2], [4, 90u32.div_ceil(text::KEYS_LINES)]);
        assert_eq!(parts[1].filled::<FlashKeys>().group, 4);
    }

    #[test]
    fn the_rest_runs_as_programs() {
        let (q, k) = ([1, 2, 8, 64], [1, 2, 8, 64]);
        assert!(launches(Flash::Result, DType::BF16, 0.125, q, k).is_some());
        assert!(launches(Flash::Result, DType::F32, 0.125, q, k).is_none());
        assert!(launches(Flash::Result, DType::BF16, -0.125, q, k).is_none());
        assert!(launches(Flash::Result, DType::BF16, 0.125, [1, 2, 8, 80], [1, 2, 8, 80]).is_none());
        assert!(launches(Flash::Result, DType::BF16, 0.125, [1, 2, 0, 64], k).is_none());
    }
}
