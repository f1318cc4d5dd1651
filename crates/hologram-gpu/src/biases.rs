//! Biases of two or three tensors, as of queries, keys and values, and a bias with an addition, for a few tokens
//! (`kernels/shared/biases.k`).

use hologram_device::{AfterBias, DType, Extent, Fused, GroupSpec};

use super::kernels::biases::{Biased, Biases, THREADS};
use super::launch::{Count, Places, all_f32, launch, number, one_token, single};
use super::stack::{self, PhaseBiases};
use super::{FEW_TOKENS, KernelArgs, Memory, NativeKernel, StackPhase, Target};

/// The native kernel for two or three additions of a bias.
pub(super) fn find_group(group: &GroupSpec, target: Target) -> Option<NativeKernel> {
    let Fused::Biases(sums) = &group.fused else { return None };
    let (mut tokens, mut rows) = (None, [0; 3]);
    for ((x, bias), m) in sums.iter().zip(&mut rows) {
        let (x, bias) = (group.inputs.get(*x)?, group.inputs.get(*bias)?);
        let [n, Extent::Fixed(width)] = x.shape[..] else { return None };
        let fits = all_f32([x, bias]) && bias.shape == [Extent::Fixed(width)] && tokens.is_none_or(|t| t == n);
        if !fits || width == 0 {
            return None;
        }
        (tokens, *m) = (Some(n), width);
    }
    let (places, count) = (Places::of_results(group), Count::of(&[tokens?])?);
    let of = |i: usize| sums.get(i).map_or([Memory::Null; 2], |(x, bias)| [*x, *bias].map(|i| places.input(i, 0)));
    let result = |i: usize| if i < sums.len() { places.output(i) } else { Memory::Null };
    let [[x0, b0], [x1, b1], [x2, b2]] = [0, 1, 2].map(of);
    let [m0, m1, m2] = rows.map(number);
    let (m0, m1, m2) = (m0?, m1?, m2?);
    let columns = m0.checked_add(m1)?.checked_add(m2)? as usize;
    let args = Biases {
        x0,
        b0,
        y0: result(0),
        x1,
        b1,
        y1: result(1),
        x2,
        b2,
        y2: result(2),
        tokens: places.counted(count),
        m0,
        m1,
        m2,
    };
    let all = [(x0, b0, args.y0, m0), (x1, b1, args.y1, m1), (x2, b2, args.y2, m2)];
    let phase =
        one_token(args.tokens).map(|step| PhaseBiases { sums: all[..sums.len()].to_vec(), residual: None, step });
    kernel(args, "biases", [columns, count.max()], phase, target)
}

/// The native kernel for a bias and an addition, for a few tokens: programs are bound by memory with many.
pub(super) fn find_biased(group: &GroupSpec, target: Target) -> Option<NativeKernel> {
    let Fused::Biased(biased) = &group.fused else { return None };
    let AfterBias::Add { residual } = biased.after else { return None };
    let (x, bias, output) = (group.inputs.get(biased.x)?, group.inputs.get(biased.bias)?, &group.nodes.last()?.output);
    let [tokens, Extent::Fixed(width)] = x.shape[..] else { return None };
    let served = all_f32([x, bias]) && output.format == DType::F32 && width > 0 && tokens.max() <= FEW_TOKENS;
    let (places, count) = (Places::of_group(group, output), Count::of(&[tokens])?);
    let [x, b, r] = [biased.x, biased.bias, residual].map(|i| places.input(i, 0));
    let args = Biased { x, b, r, y: places.output(0), tokens: places.counted(count), m: number(width)? };
    let sums = vec![(x, b, args.y, args.m)];
    let phase = one_token(args.tokens).map(|step| PhaseBiases { sums, residual: Some(r), step });
    let m = args.m as usize;
    if served { kernel(args, "biased", [m, count.max()], phase, target) } else { None }
}

fn kernel(
    args: impl KernelArgs,
    entry: &str,
    [columns, rows]: [usize; 2],
    phase: Option<PhaseBiases>,
    target: Target,
) -> Option<NativeKernel> {
    let threads = THREADS as usize;
    let phase = phase.filter(|_| stack::fuses_to_stacks(target)).map(StackPhase::Biases);
    Some(NativeKernel { phase, ..single(launch(args, entry, [columns.div_ceil(threads), rows], threads)?) })
}
