//! Attention of whole sequences of `f16` or `bf16` with heads of 64 or 128 elements, and its gradients, on NVIDIA GPUs
//! of compute capability 8.0 and up: `kernels/cuda/flash.cu`.

use hologram_device::{DType, Flash, KernelSpec, Operation};
use hologram_isa::Type;

use super::kernels::cuda::flash::{FlashForward, FlashKeys, FlashQueries, FlashSums};
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
    let form = Form::of(*d);
    let places = Places::of(spec);
    let at = |i: usize| places.input(i, 0);
    let (n32, m32) = (number(*n)?, number(*m)?);
    let run = |args: KernelLaunch, lines: usize| {
        let shared = number(lines * (d + 8) * 2)?;
        (shared <= target.max_shared).then_some(KernelLaunch { shared, ..args })
    };
    let threads = |rows: usize| rows * 2;
    match part {
        Flash::Result => {
            let out = places.output(0);
            let args = FlashForward { q: at(0), k: at(1), v: at(2), out, scale, n: n32, m: m32, group, causal };
            let grid = [all, n.div_ceil(form.queries)];
            let launch = launch(args, format!("flash_forward_{name}_{d}"), grid, threads(form.queries))?;
            Some(single(run(launch, form.queries + 4 * form.forward_keys)?))
        }
        Flash::Sums => {
            let args = FlashSums { q: at(0), k: at(1), out: places.output(0), scale, n: n32, m: m32, group, causal };
            let grid = [all, n.div_ceil(SUMS)];
            let launch = launch(args, format!("flash_sums_{name}_{d}"), grid, threads(SUMS))?;
            Some(single(run(launch, SUMS + 2 * SUMS_KEYS)?))
        }
        Flash::Gradients => {
            let deltas = Memory::Scratch(0);
            let by_q = places.output(0);
            let [q, k, v, result, sums, grad] = [0, 1, 2, 3, 4, 5].map(at);
            let args = FlashQueries { q, k, v, result, sums, grad, by_q, deltas, scale, n: n32, m: m32, group, causal };
            let grid = [all, n.div_ceil(form.queries)];
            let entry = format!("flash_queries_{name}_{d}");
            let lines = (3 * form.queries).max(4 * GRADIENT_KEYS);
            let by_queries = run(launch(args, entry, grid, threads(form.queries))?, lines)?;
            let (by, keys_at) = (places.output(0), number(all * n * d)?);
            let args = FlashKeys { q, k, v, sums, grad, deltas, by, keys_at, scale, n: n32, m: m32, group, causal };
            let grid = [all_keys, m.div_ceil(form.keys)];
            let (own, tiles) = (2 * form.keys, 4 * form.tile_queries);
            let lines = if form.held { own.max(tiles) } else { own + tiles };
            let by_keys = run(launch(args, format!("flash_keys_{name}_{d}"), grid, threads(form.keys))?, lines)?;
            let scratch = (all * n).checked_mul(4)?;
            let parts = vec![Part::Kernel(by_queries), Part::Kernel(by_keys)];
            Some(NativeKernel { parts, scratch, counters: 0 })
        }
    }
}

/// Queries of a workgroup of the kernels of sums, and keys of a tile.
const SUMS: usize = 128;
const SUMS_KEYS: usize = 64;
/// Keys of a tile of the kernels of the gradient by the queries.
const GRADIENT_KEYS: usize = 32;

/// The tiles of the other kernels, as their declarations have them: the fastest of those measured (8 × 12 heads of 64
/// and 8 × 16 of 128 elements, 1,024 tokens).
#[derive(Clone, Copy)]
struct Form {
    /// Queries of a workgroup, and keys of a tile of the forward kernels.
    queries: usize,
    forward_keys: usize,
    /// Keys of a workgroup, and queries of a tile.
    keys: usize,
    tile_queries: usize,
    /// Whether a workgroup's keys and values are held in registers.
    held: bool,
}

impl Form {
    const fn of(d: usize) -> Form {
        match d {
            64 => Form { queries: 64, forward_keys: 64, keys: 64, tile_queries: 64, held: true },
            _ => Form { queries: 64, forward_keys: 32, keys: 64, tile_queries: 32, held: false },
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
        let form = Form::of(128);
        assert_eq!(parts[0].grid[..2], [16, 70usize.div_ceil(form.queries) as u32]);
        assert_eq!(parts[1].grid[..2], [4, 90usize.div_ceil(form.keys) as u32]);
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
