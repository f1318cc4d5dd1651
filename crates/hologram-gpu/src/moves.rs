//! `copy_view` and `concat` of any plain type, by the widest words that fit, or in squares of a view whose columns lie one
//! after the other (`kernels/cuda/moves.cu`).

use super::kernels::cuda::moves::{Concat, CopyView, TurnView};
use super::launch::{Count, Places, launch, number, single};
use super::{Memory, NativeKernel, Target};

use hologram_device::{DType, Extent, KernelSpec, Operation, TensorSpec};

/// Words per workgroup.
const PIECE: usize = 256;
/// The most dimensions of a view, after neighbours that lie one after the other are joined.
const MOST_DIMS: usize = 4;
/// The least size of both dimensions of a view whose columns lie one after the other, for copies in squares.
const LEAST_SIDE: usize = 16;
/// The most tensors that one launch joins.
const MOST_JOINED: usize = 4;

/// The native kernel for one of these.
pub(super) fn find(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    let plain = matches!(spec.output.format, DType::Plain(_)) && spec.in_place.is_none();
    match &spec.op {
        Operation::CopyView { offset, strides } if plain => copy_view(spec, *offset, strides),
        Operation::Concat { axis } if plain => concat(spec, *axis as usize),
        _ => None,
    }
}

/// The widest word, in bytes, of which all these numbers of bytes are multiples.
fn word(bytes: impl IntoIterator<Item = usize>) -> usize {
    let all = bytes.into_iter().fold(16, |all, n| all | n);
    1 << all.trailing_zeros()
}

fn copy_view(spec: &KernelSpec, offset: u32, strides: &[u32]) -> Option<NativeKernel> {
    let [x] = spec.inputs.as_slice() else { return None };
    let (shape, size) = (&spec.output.shape, spec.output.format.block_bytes());
    if x.format != spec.output.format || shape.len() != strides.len() {
        return None;
    }
    // Dimensions and their distances, of which the outermost may vary.
    let mut dims: Vec<(Option<usize>, usize)> = Vec::new();
    for (i, (extent, stride)) in shape.iter().zip(strides).enumerate() {
        let (n, stride) = match *extent {
            Extent::Fixed(n) => (Some(n), *stride as usize),
            Extent::Step { .. } if i == 0 => (None, *stride as usize),
            Extent::Step { .. } => return None,
        };
        match (dims.last_mut(), n) {
            (Some(last), Some(n)) if last.1 == stride.checked_mul(n)? => {
                *last = (last.0.map(|outer| outer * n), stride);
            }
            (Some(_), Some(1)) => {}
            _ => dims.push((n, stride)),
        }
    }
    if let Some(kernel) = turn_view(spec, offset, &dims, size) {
        return Some(kernel);
    }
    // The innermost elements, if they are neighbours, are counted in bytes, and then in words.
    let bytes: Vec<usize> = dims.iter().map(|(_, stride)| stride.checked_mul(size)).collect::<Option<_>>()?;
    let dense = dims.last().is_some_and(|(n, stride)| *stride == 1 && n.is_some());
    let last = dims.last().and_then(|(n, _)| *n).unwrap_or(1);
    let outer = &bytes[..bytes.len().saturating_sub(1)];
    let start = (offset as usize).checked_mul(size)?;
    let word = if dense { word(outer.iter().copied().chain([last * size, start])) } else { size };
    let per = word / size;
    let mut sizes = [1u32; MOST_DIMS];
    let mut steps = [0u32; MOST_DIMS];
    let skipped = MOST_DIMS.checked_sub(dims.len())?;
    for (i, (n, stride)) in dims.iter().enumerate() {
        let innermost = i + 1 == dims.len();
        // Nothing lies outside of the outermost dimension: a size that is not known may be any.
        let n = n.unwrap_or(u32::MAX as usize);
        sizes[skipped + i] = number(if innermost && dense { n / per } else { n })?.max(1);
        steps[skipped + i] = number(if innermost { (*stride).max(usize::from(dense)) } else { stride / per })?;
    }
    let (places, total) = (Places::of(spec), words(&spec.output, per)?);
    let [_, n1, n2, n3] = sizes;
    let [s0, s1, s2, s3] = steps;
    let args = CopyView {
        x: places.input(0, 0),
        y: places.output(0),
        total: places.counted(total),
        n1,
        n2,
        n3,
        s0,
        s1,
        s2,
        s3,
        offset: number(offset as usize / per)?,
    };
    Some(single(launch(args, format!("copy_view_{word}"), [total.max().div_ceil(PIECE), 1], PIECE)?))
}

/// The kernel for a view whose neighbours lie in an outer dimension. `dims`: sizes, `None` for one that may vary, and
/// distances.
fn turn_view(spec: &KernelSpec, offset: u32, dims: &[(Option<usize>, usize)], size: usize) -> Option<NativeKernel> {
    let max = |i: usize| dims[i].0.unwrap_or_else(|| spec.output.shape.first().map_or(1, |e| e.max()));
    let (last, outer) = dims.split_last()?;
    let rows = outer.iter().position(|(_, stride)| *stride == 1)?;
    let (columns, apart) = (last.0?, last.1);
    let served = matches!(size, 1 | 2 | 4 | 8)
        && dims.len() <= MOST_DIMS
        && apart >= LEAST_SIDE
        && columns >= LEAST_SIDE
        && max(rows) >= LEAST_SIDE;
    if !served {
        return None;
    }
    // Strides of the output.
    let mut to = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        to[i - 1] = max(i).checked_mul(to[i])?;
    }
    // Size and both strides of the dimensions beside.
    let mut beside = (0..dims.len() - 1).filter(|i| *i != rows).map(|i| [max(i), dims[i].1, to[i]]);
    let [[n0, s0, t0], [n1, s1, t1]] = [0, 1].map(|_| beside.next().unwrap_or([1, 0, 0]));
    if beside.next().is_some() {
        return None;
    }
    let side = if size <= 2 { 64 } else { 32 };
    let squares = columns.div_ceil(side) * max(rows).div_ceil(side);
    let (places, total) = (Places::of(spec), Count::elements(&spec.output)?);
    let args = TurnView {
        x: places.input(0, 0),
        y: places.output(0),
        total: places.counted(total),
        n0: number(n0)?,
        n1: number(n1)?,
        rows: number(max(rows))?,
        columns: number(columns)?,
        s0: number(s0)?,
        s1: number(s1)?,
        s: number(apart)?,
        t0: number(t0)?,
        t1: number(t1)?,
        t: number(to[rows])?,
        offset,
    };
    let groups = squares.checked_mul(n0)?.checked_mul(n1)?;
    Some(single(launch(args, format!("turn_view_{size}"), [groups, 1], 256)?))
}

/// The number of words of `per` elements of a tensor.
fn words(tensor: &TensorSpec, per: usize) -> Option<Count> {
    let mut shape = tensor.shape.clone();
    // The elements that are joined to words are those of fixed dimensions.
    let fixed: usize = shape.iter().map(|e| if let Extent::Fixed(n) = e { *n } else { 1 }).product();
    shape.retain(|e| !matches!(e, Extent::Fixed(_)));
    shape.push(Extent::Fixed(fixed / per));
    fixed.is_multiple_of(per).then(|| Count::of(&shape)).flatten()
}

fn concat(spec: &KernelSpec, axis: usize) -> Option<NativeKernel> {
    let size = spec.output.format.block_bytes();
    let run = |t: &TensorSpec| {
        let fixed = |e: &Extent| if let Extent::Fixed(n) = e { Some(*n) } else { None };
        t.shape.get(axis..)?.iter().map(fixed).try_fold(size, |all, n| all.checked_mul(n?))
    };
    let runs = spec.inputs.iter().map(run).collect::<Option<Vec<_>>>()?;
    let served = spec.inputs.iter().all(|t| t.format == spec.output.format)
        && Some(runs.iter().sum()) == run(&spec.output)
        && (1..=MOST_JOINED).contains(&runs.len())
        && runs.iter().any(|n| *n > 0);
    if !served {
        return None;
    }
    let word = word(runs.iter().copied());
    let places = Places::of(spec);
    let total = words(&spec.output, word / size)?;
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| if i < runs.len() { places.input(i, 0) } else { Memory::Null });
    let mut lens = [0u32; MOST_JOINED];
    for (len, run) in lens.iter_mut().zip(&runs) {
        *len = number(run / word)?;
    }
    let [n0, n1, n2, n3] = lens;
    let args = Concat { a, b, c, d, y: places.output(0), total: places.counted(total), n0, n1, n2, n3 };
    Some(single(launch(args, format!("concat_{word}"), [total.max().div_ceil(PIECE), 1], PIECE)?))
}

#[cfg(test)]
mod tests {
    use super::super::kernels::cuda::moves::{Concat, CopyView, TurnView};
    use super::super::{NativeKernel, Part};
    use super::*;

    const TARGET: Target = Target::nvidia(90, 132, 227 * 1024);

    fn spec(op: Operation, ty: DType, inputs: &[&[Extent]], output: &[Extent]) -> KernelSpec {
        let tensor = |shape: &&[Extent]| TensorSpec { format: ty, shape: shape.to_vec() };
        KernelSpec { op, inputs: inputs.iter().map(tensor).collect(), output: tensor(&output), in_place: None }
    }

    fn only(kernel: &NativeKernel) -> &super::super::KernelLaunch {
        match &kernel.parts[..] {
            [Part::Kernel(launch)] => launch,
            other => panic!("{other:?}"),
        }
    }

    /// Where the kernel reads word `i`: as `moves.cu` has it.
    fn place(args: &CopyView, i: u32) -> u32 {
        let a = i / args.n3;
        let (b, at) = (a / args.n2, args.offset + (i - a * args.n3) * args.s3);
        let c = b / args.n1;
        at + c * args.s0 + (b - c * args.n1) * args.s1 + (a - b * args.n2) * args.s2
    }

    /// Dimensions that lie one after the other are one, and the widest words are copied.
    #[test]
    fn copies_of_views_take_wide_words() {
        let rows = Extent::step(0, 9);
        let fixed = Extent::Fixed;
        for (offset, strides, shape, ty, word) in [
            // The last 64 of 192 elements of 16 heads, which are neighbours.
            (128u32, &[3072u32, 192, 1][..], &[rows, fixed(16), fixed(64)][..], DType::F32, 16),
            // All elements of a row are neighbours.
            (6, &[200, 10, 1], &[rows, fixed(4), fixed(10)], DType::F16, 4),
            (3, &[7, 1], &[rows, fixed(4)], DType::F16, 2),
            (6, &[21, 1, 3], &[rows, fixed(3), fixed(4)], DType::F32, 4),
            // Columns, repeated rows, repeated elements, all dimensions apart.
            (0, &[1, 8], &[fixed(8), fixed(4)], DType::F32, 4),
            (0, &[0, 1], &[rows, fixed(8)], DType::U32, 16),
            (0, &[3, 1, 0], &[rows, fixed(3), fixed(8)], DType::F32, 4),
            (1, &[900, 7, 90, 2], &[rows, fixed(2), fixed(3), fixed(5)], DType::BF16, 2),
        ] {
            let op = Operation::CopyView { offset, strides: strides.to_vec() };
            let kernel = find(&spec(op, ty, &[&[fixed(1 << 20)]], shape), TARGET).unwrap();
            let launch = only(&kernel);
            let args = launch.filled::<CopyView>();
            assert_eq!(launch.entry, format!("copy_view_{word}"));
            let sizes: Vec<u32> = shape.iter().map(|e| e.max() as u32).collect();
            let per = word / ty.block_bytes() as u32;
            for i in 0..args.total.most * args.total.per {
                let (mut rest, mut want) = (i * per, offset);
                for (n, stride) in sizes.iter().zip(strides).rev() {
                    want += rest % n * stride;
                    rest /= n;
                }
                assert_eq!(place(args, i) * per, want, "word {i} of {args:?}");
            }
        }
    }

    /// Every element of a square goes where it belongs, whichever dimension its column is.
    #[test]
    fn copies_of_turned_views_go_in_squares() {
        let rows = Extent::step(0, 40);
        let fixed = Extent::Fixed;
        for (offset, strides, shape, ty, squares) in [
            (0u32, &[1u32, 100][..], &[fixed(100), fixed(70)][..], DType::F32, Some(12)),
            (5, &[1, 40], &[rows, fixed(20)], DType::F16, Some(1)),
            (0, &[2000, 1, 40], &[rows, fixed(33), fixed(50)], DType::U32, Some(40 * 4)),
            (3, &[1, 4000, 50], &[rows, fixed(7), fixed(64)], DType::F32, Some(7 * 4)),
            (0, &[9000, 1, 3000, 100], &[fixed(2), fixed(100), fixed(3), fixed(30)], DType::F32, Some(2 * 3 * 4)),
            // Few columns, few rows, columns that are near.
            (0, &[1, 100], &[fixed(100), fixed(8)], DType::F32, None),
            (0, &[1, 8], &[fixed(8), fixed(100)], DType::F32, None),
            (0, &[300, 1, 3], &[fixed(20), fixed(3), fixed(100)], DType::F32, None),
        ] {
            let op = Operation::CopyView { offset, strides: strides.to_vec() };
            let kernel = find(&spec(op, ty, &[&[fixed(1 << 20)]], shape), TARGET).unwrap();
            let launch = only(&kernel);
            let Some(squares) = squares else {
                assert!(launch.entry.starts_with("copy_view"), "{shape:?}");
                continue;
            };
            assert_eq!((&*launch.entry, launch.grid), (&*format!("turn_view_{}", ty.block_bytes()), [squares, 1, 1]));
            let a = launch.filled::<TurnView>();
            // As `moves.cu` goes through them.
            let mut seen = vec![None; (a.total.most * a.total.per) as usize];
            for (i, j) in (0..a.n0).flat_map(|i| (0..a.n1).map(move |j| (i, j))) {
                for (r, c) in (0..a.rows).flat_map(|r| (0..a.columns).map(move |c| (r, c))) {
                    let to = i * a.t0 + j * a.t1 + r * a.t + c;
                    seen[to as usize] = Some(a.offset + i * a.s0 + j * a.s1 + r + c * a.s);
                }
            }
            let sizes: Vec<u32> = shape.iter().map(|e| e.max() as u32).collect();
            for (i, from) in (0..).zip(seen) {
                let (mut rest, mut want) = (i, offset);
                for (n, stride) in sizes.iter().zip(strides).rev() {
                    want += rest % n * stride;
                    rest /= n;
                }
                assert_eq!(from, Some(want), "element {i} of {shape:?}");
            }
        }
    }

    #[test]
    fn tensors_are_joined_in_wide_words() {
        let rows = Extent::step(0, 9);
        let fixed = Extent::Fixed;
        let kernel = find(
            &spec(
                Operation::Concat { axis: 2 },
                DType::F32,
                &[&[rows, fixed(16), fixed(64)], &[rows, fixed(16), fixed(512)]],
                &[rows, fixed(16), fixed(576)],
            ),
            TARGET,
        )
        .unwrap();
        let (launch, total) = (only(&kernel), 9 * 16 * 144u32);
        let args = launch.filled::<Concat>();
        assert_eq!((launch.entry.as_str(), args.n0, args.n1, args.n2), ("concat_16", 16, 128, 0));
        assert_eq!((args.total.most * args.total.per, launch.grid[0]), (total, total.div_ceil(256)));
    }
}
