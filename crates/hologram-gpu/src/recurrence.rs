//! `recurrent_state` and `recurrence`, alone or together with what models compute before and after them: state f32
//! [slots, h, v, k], keys [n, g, k], values [n, h, v], decay and strength [n, h], runs u32 [r, 4], queries [n, g, k] →
//! f32 [n, h, v].

use hologram_device::{
    DType, Decay, Extent, Fused, FusedNorm, FusedRecurrence, GroupSpec, KernelSpec, Operation, Recurrence, Rows,
    Strength, TensorSpec,
};
use hologram_isa::Type;

use super::arguments::Actual;
use super::kernels::recurrence as text;
use super::launch::{Count, Places, all_f32, launch, number, single};
use super::{Memory, NativeKernel, Target};

/// Rows of a head's state, and threads, of a workgroup.
const ROWS: usize = 32;
const THREADS: usize = 128;

/// The native kernel for one of the two operations.
pub(super) fn find(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    let (rule, state) = match spec.op {
        Operation::RecurrentState(rule) => (rule, true),
        Operation::Recurrence(rule) => (rule, false),
        _ => return None,
    };
    let runs = if rule.delta { 5 } else { 4 };
    let (inputs, in_place) = if state { (runs + 1, Some(0)) } else { (runs + 2, None) };
    if spec.inputs.len() != inputs || spec.in_place != in_place {
        return None;
    }
    let rows = |input: usize| {
        let sizes = spec.inputs[input].shape.get(1..)?.iter();
        let shape: Vec<usize> =
            sizes.map(|e| if let Extent::Fixed(n) = e { Some(*n) } else { None }).collect::<Option<_>>()?;
        Some(Rows { input, offset: 0, stride: shape.iter().product(), shape })
    };
    let operands = FusedRecurrence {
        rule,
        state: 0,
        runs,
        keys: (rows(1)?, None),
        queries: (rows(if state { 1 } else { runs + 1 })?, None),
        values: rows(2)?,
        decay: Decay::Given(3),
        strength: if rule.delta { Strength::Given(4) } else { Strength::One },
        skip: None,
    };
    let parts = if state { text::NEW_STATE } else { text::RESULTS };
    kernel(&operands, &spec.inputs, &spec.output, &Places::of(spec), parts)
}

/// The native kernel for both.
pub(super) fn find_group(group: &GroupSpec, _: Target) -> Option<NativeKernel> {
    let Fused::Recurrence(operands) = &group.fused else { return None };
    let output = &group.nodes.last()?.output;
    let parts = text::NEW_STATE | text::RESULTS | text::GIVEN;
    kernel(operands, &group.inputs, output, &Places::of_group(group, output), parts)
}

fn kernel(
    operands: &FusedRecurrence,
    tensors: &[TensorSpec],
    output: &TensorSpec,
    places: &Places,
    mut parts: u32,
) -> Option<NativeKernel> {
    let Recurrence { delta, tiled } = operands.rule;
    let (of_state, of_runs) = (tensors.get(operands.state)?, tensors.get(operands.runs)?);
    let (
        [Extent::Fixed(slots), Extent::Fixed(h), Extent::Fixed(v), Extent::Fixed(k)],
        [r, Extent::Fixed(4)],
        [g, of_key],
    ) = (of_state.shape.as_slice(), of_runs.shape.as_slice(), operands.keys.0.shape.as_slice())
    else {
        return None;
    };
    let (slots, h, v, k, g, results) = (*slots, *h, *v, *k, *g, parts & text::RESULTS != 0);
    let n = *tensors.get(operands.keys.0.input)?.shape.first()?;
    let float = |i: usize, shape: &[Extent]| {
        tensors.get(i).filter(|t| t.format == DType::F32 && t.shape == shape).map(|_| places.input(i, 0))
    };
    let of_heads = [Extent::Fixed(h)];
    let of_tokens = [n, Extent::Fixed(h)];
    let rows = |rows: &Rows, shape: [usize; 2]| {
        let spec = tensors.get(rows.input)?;
        let len: usize = shape.iter().product();
        let stored = Count::of(spec.shape.get(1..)?)?.max();
        let fits = rows.shape == shape
            && spec.format == DType::F32
            && spec.shape.first() == Some(&n)
            && stored == rows.stride
            && rows.offset + len <= rows.stride
            && rows.offset.is_multiple_of(4)
            && rows.stride.is_multiple_of(4);
        let (at, stride) = (number(rows.offset)?, number(rows.stride)?);
        fits.then(|| (places.input(rows.input, 0), at, stride))
    };
    let mut normed = |(of, norm): &(Rows, Option<FusedNorm>), flag: u32| {
        let (vectors, at, stride) = rows(of, [g, k])?;
        let (weights, eps) = match norm {
            None => (Memory::Null, 0.0),
            Some(norm) => {
                parts |= flag;
                (float(norm.weights, &[Extent::Fixed(k)])?, norm.eps)
            }
        };
        Some((vectors, at, stride, weights, eps))
    };
    let served = all_f32([of_state, output])
        && of_runs.format == DType::Plain(Type::U32)
        && *of_key == k
        && g > 0
        && h.is_multiple_of(g)
        && k.is_multiple_of(4)
        && (1..=256).contains(&k)
        && (!results || output.shape == [n, Extent::Fixed(h), Extent::Fixed(v)]);
    if !served {
        return None;
    }
    let (keys, key_at, key_stride, key_norm, key_eps) = normed(&operands.keys, text::NORM_KEYS)?;
    let (queries, query_at, query_stride, query_norm, query_eps) = match results {
        true => normed(&operands.queries, text::NORM_QUERIES)?,
        // The kernel reads some, without a use.
        false => (keys, key_at, key_stride, Memory::Null, key_eps),
    };
    // The kernel has one of each.
    let both = operands.keys.1.is_some() == operands.queries.1.is_some();
    if query_stride != key_stride || (both && key_eps != query_eps) {
        return None;
    }
    // Copies of values are by element: their rows need no alignment, but other shapes are not worth a case.
    let (values, value_at, value_stride) = match rows(&operands.values, [h, v]) {
        Some(values) => values,
        None if operands.values.offset == 0 && operands.values.stride == h * v => {
            let shape = [n, Extent::Fixed(h), Extent::Fixed(v)];
            (float(operands.values.input, &shape)?, 0, number(h * v)?)
        }
        None => return None,
    };
    let (decay, bias, factor) = match operands.decay {
        Decay::Given(decay) => (float(decay, &of_tokens)?, Memory::Null, Memory::Null),
        Decay::Timed { time, bias, factor } => {
            parts |= text::TIMED;
            (float(time, &of_tokens)?, float(bias, &of_heads)?, float(factor, &of_heads)?)
        }
    };
    let strength = match operands.strength {
        Strength::One if !delta => Memory::Null,
        Strength::Given(strength) if delta => float(strength, &of_tokens)?,
        Strength::Sigmoid(strength) if delta => {
            parts |= text::SIGMOID;
            float(strength, &of_tokens)?
        }
        Strength::Time if !delta => {
            parts |= text::SCALED;
            Memory::Null
        }
        _ => return None,
    };
    let skip = match operands.skip {
        None => Memory::Null,
        Some(skip) => {
            parts |= text::SKIP;
            if delta {
                return None;
            }
            float(skip, &[Extent::Fixed(h), Extent::Fixed(1)])?
        }
    };
    parts |= if tiled { text::TILED } else { 0 };
    let runs_now = Actual::of(*r)?;
    let args = text::Recurrence {
        state: places.input(operands.state, 0),
        keys,
        values,
        decay,
        strength: if skip == Memory::Null { strength } else { skip },
        runs: places.input(operands.runs, 0),
        queries,
        y: if results { places.output(0) } else { Memory::Null },
        key_norm,
        query_norm,
        bias,
        factor,
        tokens: Count::of(&[n])?.of_step(places.step()),
        runs_now,
        key_at,
        query_at,
        key_stride,
        value_at,
        value_stride,
        slots: number(slots)?,
        h: number(h)?,
        g: number(g)?,
        v: number(v)?,
        k: number(k)?,
        parts,
        eps: key_eps.max(query_eps),
    };
    let elements = [64, 128, 256].into_iter().find(|n| k <= *n)?;
    let entry = format!("recurrence_{}{elements}", if delta { "delta_" } else { "" });
    let groups = v.div_ceil(ROWS).checked_mul(h)?.checked_mul(r.max())?;
    Some(single(launch(args, entry, [groups, 1], THREADS)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hologram_device::GroupNode;
    use hologram_device::Operand;

    fn spec(format: DType, shape: &[Extent]) -> TensorSpec {
        TensorSpec { format, shape: shape.to_vec() }
    }

    const TOKENS: Extent = Extent::step(0, 64);
    const RUNS: Extent = Extent::step(2, 8);

    /// State, keys, values, decay, strength, runs and queries.
    fn tensors(h: usize, g: usize, v: usize, k: usize) -> Vec<TensorSpec> {
        let fixed = |sizes: &[usize]| sizes.iter().map(|n| Extent::Fixed(*n)).collect::<Vec<_>>();
        let rows = |sizes: &[usize]| [vec![TOKENS], fixed(sizes)].concat();
        vec![
            spec(DType::F32, &fixed(&[6, h, v, k])),
            spec(DType::F32, &rows(&[g, k])),
            spec(DType::F32, &rows(&[h, v])),
            spec(DType::F32, &rows(&[h])),
            spec(DType::F32, &rows(&[h])),
            spec(DType::U32, &[RUNS, Extent::Fixed(4)]),
            spec(DType::F32, &rows(&[g, k])),
        ]
    }

    fn group(h: usize, g: usize, v: usize, k: usize) -> GroupSpec {
        let inputs = tensors(h, g, v, k);
        let rule = Recurrence { delta: true, tiled: false };
        let operands: Vec<Operand> = (0..6).map(Operand::Input).collect();
        let mut of_results = operands.clone();
        of_results[0] = Operand::Node(0);
        of_results.push(Operand::Input(6));
        let nodes = vec![
            GroupNode { op: Operation::RecurrentState(rule), operands, output: inputs[0].clone(), in_place: Some(0) },
            GroupNode {
                op: Operation::Recurrence(rule),
                operands: of_results,
                output: inputs[2].clone(),
                in_place: None,
            },
        ];
        GroupSpec::new(inputs, nodes, vec![1]).unwrap()
    }

    const TARGET: Target = Target::nvidia(90, 132, 227 << 10);

    #[test]
    fn state_and_results_are_one_launch() {
        let kernel = find_group(&group(32, 16, 128, 128), TARGET).unwrap();
        let [crate::Part::Kernel(launch)] = &kernel.parts[..] else { panic!("{kernel:?}") };
        assert_eq!((launch.entry.as_str(), launch.grid), ("recurrence_delta_128", [4 * 32 * 8, 1, 1]));
        let args = launch.filled::<text::Recurrence>();
        assert_eq!(
            (args.parts, args.slots, args.runs_now),
            (text::NEW_STATE | text::RESULTS | text::GIVEN, 6, Actual { slot: 2, most: 8 })
        );
        assert_eq!((args.y, args.tokens.step), (Memory::Binding(7), Memory::Binding(8)));
    }

    #[test]
    fn sizes_choose_the_kernel() {
        let entry = |v: usize, k: usize| {
            let kernel = find_group(&group(4, 2, v, k), TARGET)?;
            let crate::Part::Kernel(launch) = &kernel.parts[0] else { return None };
            Some((launch.entry.clone(), launch.grid[0]))
        };
        assert_eq!(entry(64, 64), Some(("recurrence_delta_64".into(), 2 * 4 * 8)));
        assert_eq!(entry(33, 256), Some(("recurrence_delta_256".into(), 2 * 4 * 8)));
        // Rows that are no multiple of 16 bytes have the program.
        assert_eq!(entry(64, 62), None);
    }

    #[test]
    fn each_operation_has_a_kernel() {
        let rule = Recurrence { delta: false, tiled: true };
        let all = tensors(8, 2, 64, 128);
        let mut inputs = all.clone();
        inputs.remove(4);
        let results = KernelSpec {
            op: Operation::Recurrence(rule),
            output: all[2].clone(),
            inputs: inputs.clone(),
            in_place: None,
        };
        inputs.pop();
        let state =
            KernelSpec { op: Operation::RecurrentState(rule), output: all[0].clone(), inputs, in_place: Some(0) };
        for (spec, parts) in [(results, text::RESULTS), (state, text::NEW_STATE)] {
            let kernel = find(&spec, TARGET).unwrap();
            let [crate::Part::Kernel(launch)] = &kernel.parts[..] else { panic!("{kernel:?}") };
            let args = launch.filled::<text::Recurrence>();
            assert_eq!((launch.entry.as_str(), args.parts), ("recurrence_128", parts | text::TILED));
        }
    }
}
