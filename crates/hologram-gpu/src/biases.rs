//! Biases of two or three tensors, as of queries, keys and values (`kernels/shared/biases.k`).

use hologram_device::{Extent, Fused, GroupSpec};

use super::kernels::biases::{Biases, THREADS};
use super::launch::{Count, Places, all_f32, launch, number, single};
use super::{Memory, NativeKernel, Target};

/// The native kernel for two or three additions of a bias.
pub(super) fn find_group(group: &GroupSpec, _: Target) -> Option<NativeKernel> {
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
    let threads = THREADS as usize;
    Some(single(launch(args, "biases", [columns.div_ceil(threads), count.max()], threads)?))
}
