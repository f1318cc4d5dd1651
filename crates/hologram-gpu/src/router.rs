//! A mixture's router for few tokens in one launch (`kernels/cuda/router.cu`).

use hologram_device::{Conversion, DType, Extent, Fused, GroupSpec};

use super::kernels::cuda::router as kernel;
use super::launch::{Count, Places, all_f32, launch, number};
use super::{FEW_TOKENS, Memory, NativeKernel, Part, Target};

/// The forms of the weights; the numbers are those of `Form` in `route.h`.
const SOFTMAX_AFTER: u32 = 1;
const SOFTMAX_BEFORE: u32 = 2;

/// The native kernel for a norm, a router's product and choice, and the conversion for the experts.
pub(super) fn find_group(group: &GroupSpec, target: Target) -> Option<NativeKernel> {
    let Fused::Router(router) = &group.fused else { return None };
    let [x, gain, matrix] = [router.x, router.norm.weights, router.weights].map(|i| group.inputs.get(i));
    let (x, gain, matrix) = (x?, gain?, matrix?);
    let ([tokens, Extent::Fixed(k)], [Extent::Fixed(n), Extent::Fixed(of_row)]) = (&x.shape[..], &matrix.shape[..])
    else {
        return None;
    };
    let bias = router.bias.map(|i| group.inputs.get(i));
    let of_lane = [4, 8, 32].into_iter().find(|v| *n <= v * 32)?;
    let served = target.has(80)
        && all_f32([x, gain, matrix])
        && tokens.max() <= FEW_TOKENS
        && k == of_row
        && *k > 0
        && k.is_multiple_of(32)
        && gain.shape == [Extent::Fixed(*k)]
        && bias.is_none_or(|b| b.is_some_and(|b| b.format == DType::F32 && b.shape == [Extent::Fixed(*n)]))
        && (1..=kernel::MOST_CHOSEN.min(number(*n)?)).contains(&router.k);
    if !served {
        return None;
    }
    let (conversion, least) = match router.conversion {
        None => (kernel::NONE, 0.0),
        Some(Conversion::Cast) => (kernel::TO_BF16, 0.0),
        Some(Conversion::Quantize { group: 32, floor }) => (kernel::TO_CODES, floor),
        Some(Conversion::Quantize { .. }) => return None,
    };
    let converted = group.outputs.last().and_then(|i| group.nodes.get(*i)).map(|node| node.output.format);
    if conversion == kernel::TO_BF16 && converted != Some(DType::BF16) {
        return None;
    }
    let (places, count) = (Places::of_results(group), Count::of(&[*tokens])?);
    let result = |i: usize| places.output(usize::from(router.normed) + i);
    let args = kernel::Router {
        x: places.input(router.x, 0),
        norm: places.input(router.norm.weights, 0),
        w: places.input(router.weights, 0),
        bias: Memory::optional(router.bias.map(|i| places.at(i))),
        normed: if router.normed { places.output(0) } else { Memory::Null },
        converted: if conversion == kernel::NONE { Memory::Null } else { result(2) },
        x_scales: if conversion == kernel::TO_CODES { result(3) } else { Memory::Null },
        ids: result(0),
        weights: result(1),
        logits: Memory::Scratch(0),
        counters: Memory::Counters(0),
        tokens: places.counted(count),
        k: number(*k)?,
        n: number(*n)?,
        chosen: router.k,
        form: if router.softmax_first { SOFTMAX_BEFORE } else { SOFTMAX_AFTER },
        biased: u32::from(router.bias.is_some()),
        stored: u32::from(router.normed),
        conversion,
        eps: router.norm.eps,
        least,
    };
    let threads = kernel::THREADS as usize;
    let launch = launch(args, format!("router_{of_lane}"), [n.div_ceil(threads / 32), tokens.max()], threads)?;
    let (scratch, counters) = (tokens.max() * n * 4, tokens.max() * 4);
    Some(NativeKernel { parts: vec![Part::Kernel(launch)], scratch, counters })
}
