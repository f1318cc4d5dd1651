//! Common code of the kernels of this folder: counts known only at run time, bindings, launches of one part.

use std::sync::Arc;

use hologram_device::{BlockType, DType, Extent, KernelSpec, TensorSpec};

use super::arguments::Counted;
use super::{KernelArgs, KernelLaunch, Memory, NativeKernel, Part, Target};

/// A product of fixed sizes and at most one extent, before the step block is known: [`Counted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    /// Word of the step block; `u32::MAX` where the number is fixed.
    slot: u32,
    most: u32,
    per: u32,
}

impl Count {
    /// The product of these sizes; `None` for more than one extent, or near the limit of a `u32`.
    pub fn of(sizes: &[Extent]) -> Option<Count> {
        let (mut slot, mut most, mut per) = (u32::MAX, 1, 1usize);
        for size in sizes {
            match *size {
                Extent::Fixed(n) => per = per.checked_mul(n)?,
                Extent::Step { slot: s, max, .. } if slot == u32::MAX => (slot, most) = (s, max),
                Extent::Step { .. } => return None,
            }
        }
        // Workgroups may count some elements beyond the last one.
        per.checked_mul(most).filter(|n| *n <= u32::MAX as usize - (1 << 16))?;
        Some(Count { slot, most: u32::try_from(most).ok()?, per: u32::try_from(per).ok()? })
    }

    /// The number of elements of a tensor.
    pub fn elements(tensor: &TensorSpec) -> Option<Count> {
        Count::of(&tensor.shape)
    }

    /// The number of rows of a tensor.
    pub fn rows(tensor: &TensorSpec) -> Option<Count> {
        Count::of(tensor.shape.split_last().map_or(&[], |(_, rows)| rows))
    }

    /// Multiplied by a fixed number.
    pub fn times(self, n: usize) -> Option<Count> {
        let per = (self.per as usize).checked_mul(n)?;
        per.checked_mul(self.most as usize).filter(|n| *n <= u32::MAX as usize - (1 << 16))?;
        Some(Count { per: u32::try_from(per).ok()?, ..self })
    }

    /// A quarter of it; `None` if it may not be a multiple of 4.
    pub fn quarter(self) -> Option<Count> {
        self.per.is_multiple_of(4).then_some(Count { per: self.per / 4, ..self })
    }

    /// The greatest value.
    pub fn max(self) -> usize {
        self.most as usize * self.per as usize
    }

    /// Whether it is known before a run.
    pub fn is_fixed(self) -> bool {
        self.slot == u32::MAX
    }

    /// Whether it is a multiple of 4 whatever the extent.
    pub fn in_fours(self) -> bool {
        self.per.is_multiple_of(4)
    }

    /// In the kernels' representation, with the step block.
    pub fn of_step(self, step: Memory) -> Counted {
        let Count { slot, most, per } = self;
        Counted { step, slot, most, per }
    }
}

/// The bindings of a spec's tensors.
#[derive(Clone, Debug)]
pub(super) struct Places {
    inputs: Vec<usize>,
    output: usize,
    step: Option<usize>,
}

impl Places {
    /// For an operation.
    pub fn of(spec: &KernelSpec) -> Places {
        let (inputs, mut next) = places(&spec.inputs);
        let output = match spec.in_place {
            Some(input) => inputs.get(input).copied().unwrap_or(next),
            None => {
                next += views(&spec.output);
                next - views(&spec.output)
            }
        };
        Places { inputs, output, step: spec.uses_step().then_some(next) }
    }

    /// For a group with one result that is bound.
    pub fn of_group(group: &hologram_device::GroupSpec, output: &TensorSpec) -> Places {
        let (inputs, next) = places(&group.inputs);
        Places { inputs, output: next, step: group.uses_step().then_some(next + views(output)) }
    }

    /// For a group whose results are bound one after the other, with one view each but the last: result `i` is
    /// `output(i)`.
    pub fn of_results(group: &hologram_device::GroupSpec) -> Places {
        let (inputs, next) = places(&group.inputs);
        let results: usize = group.outputs.iter().filter_map(|i| group.nodes.get(*i)).map(|n| views(&n.output)).sum();
        Places { inputs, output: next, step: group.uses_step().then_some(next + results) }
    }

    /// The binding of an input's first view.
    pub fn at(&self, input: usize) -> usize {
        self.inputs.get(input).copied().unwrap_or(usize::MAX)
    }

    /// View `view` of an input.
    pub fn input(&self, input: usize, view: usize) -> Memory {
        Memory::Binding(self.inputs.get(input).map_or(usize::MAX, |at| at + view))
    }

    /// View `view` of the output.
    pub fn output(&self, view: usize) -> Memory {
        Memory::Binding(self.output + view)
    }

    /// The step block; unused memory if every size is fixed.
    pub fn step(&self) -> Memory {
        Memory::optional(self.step)
    }

    /// A count in the kernels' representation.
    pub fn counted(&self, count: Count) -> Counted {
        count.of_step(self.step())
    }
}

fn places(inputs: &[TensorSpec]) -> (Vec<usize>, usize) {
    let mut next = 0;
    let at = |t: &TensorSpec| {
        next += views(t);
        next - views(t)
    };
    (inputs.iter().map(at).collect(), next)
}

fn views(tensor: &TensorSpec) -> usize {
    tensor.format.views(tensor.max_rows(), tensor.row_len()).len()
}

/// A launch of `groups` workgroups of `threads` threads, both in x, that itself waits for the launches before it.
pub(super) fn launch(
    args: impl KernelArgs,
    entry: impl Into<String>,
    groups: [usize; 2],
    threads: usize,
) -> Option<KernelLaunch> {
    launch_of(Arc::new(args), entry, groups, threads)
}

/// As [`launch`], with shared arguments.
pub(super) fn launch_of(
    args: Arc<dyn KernelArgs>,
    entry: impl Into<String>,
    [x, y]: [usize; 2],
    threads: usize,
) -> Option<KernelLaunch> {
    let entry = entry.into();
    let kernel = args.entries().iter().zip(args.threads()).find(|(name, _)| **name == entry);
    debug_assert!(kernel.is_some(), "{entry} does not take {args:?}");
    debug_assert!(kernel.is_none_or(|(_, most)| threads <= *most), "{entry} in workgroups of {threads} threads");
    // Limits of a grid: 2³¹ − 1 workgroups in x, 65,535 in y.
    let x = u32::try_from(x.max(1)).ok().filter(|x| *x <= i32::MAX as u32)?;
    let y = u32::try_from(y.max(1)).ok().filter(|y| *y <= 65_535)?;
    let block = [u32::try_from(threads).ok()?, 1, 1];
    Some(KernelLaunch { args, entry, grid: [x, y, 1], block, shared: 0, cluster: 1, early: true })
}

/// The most matrices that share a launch's activations.
pub(super) const MATRICES: usize = 3;

/// Converts to 32 bits; `None` if the number does not fit.
pub(super) fn number(n: usize) -> Option<u32> {
    u32::try_from(n).ok()
}

/// The step block and the slot of the number of tokens in it, if there is always at most one token.
pub(super) fn one_token(tokens: Counted) -> Option<(Memory, u32)> {
    (tokens.most.checked_mul(tokens.per)? == 1).then_some((tokens.step, tokens.slot))
}

/// A native kernel of one launch.
pub(super) fn single(launch: KernelLaunch) -> NativeKernel {
    NativeKernel { parts: vec![Part::Kernel(launch)], scratch: 0, counters: 0, phase: None }
}

/// Whether tensors are plain `f32`.
pub(super) fn all_f32<'a>(tensors: impl IntoIterator<Item = &'a TensorSpec>) -> bool {
    tensors.into_iter().all(|t| t.format == DType::F32)
}

/// The limit of few rows per multiprocessor, for float results and for quantised ones.
pub(super) const FEW: usize = 8;
pub(super) const FEW_QUANTIZED: usize = 2;

/// How a workgroup holds a row of `n` elements in registers (`rows.h`): fours per thread, 2 or 8, and threads; `None`
/// if the row is too long or not a multiple of four. With up to `few` rows per multiprocessor the maximum number of
/// threads is faster.
pub(super) fn row_in_registers(n: usize, rows: usize, target: Target, few: usize) -> Option<(usize, usize)> {
    let threads = |fours: usize| n.div_ceil(128 * fours) * 32;
    let few = rows <= few * target.multiprocessors as usize && threads(2) <= 1024;
    let fours = if few || n <= 256 { 2 } else { 8 };
    (n > 0 && n.is_multiple_of(4) && threads(fours) <= 1024).then(|| (fours, threads(fours)))
}

/// The part of kernel names for a packed type.
pub(super) fn packed_name(packed: BlockType) -> String {
    packed.name().to_lowercase()
}

/// The planes of packed weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planes {
    pub low: Memory,
    /// Null for codes without a high plane.
    pub high: Memory,
    pub records: Memory,
}

impl Planes {
    /// No weights.
    pub const NONE: Planes = Planes { low: Memory::Null, high: Memory::Null, records: Memory::Null };

    /// The planes of weights whose first view has this index among the bindings.
    pub fn at(packed: BlockType, at: usize) -> Planes {
        let high = usize::from(packed.high_bits() > 0);
        let [low, records] = [at, at + 1 + high].map(Memory::Binding);
        Planes { low, high: Memory::optional((high == 1).then_some(at + 1)), records }
    }
}
