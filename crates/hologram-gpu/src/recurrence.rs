//! `recurrent_state` and `recurrence`, alone or together: state f32 [slots, h, v, k], keys [n, g, k], values [n, h, v],
//! decay and strength [n, h], runs u32 [r, 4], queries [n, g, k] → f32 [n, h, v].

use hologram_device::{
    DType, Extent, Fused, FusedRecurrence, GroupSpec, KernelSpec, Operation, Recurrence, TensorSpec,
};
use hologram_isa::Type;

use super::arguments::Actual;
use super::kernels::recurrence::{GIVEN, NEW_STATE, RESULTS, Recurrence as Arguments};
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
    let strength = rule.delta.then_some(4);
    let operands = FusedRecurrence {
        rule,
        state: 0,
        keys: 1,
        values: 2,
        decay: 3,
        strength,
        runs,
        queries: if state { 1 } else { runs + 1 },
    };
    let parts = if state { NEW_STATE } else { RESULTS };
    kernel(operands, &spec.inputs, &spec.output, &Places::of(spec), parts)
}

/// The native kernel for both.
pub(super) fn find_group(group: &GroupSpec, _: Target) -> Option<NativeKernel> {
    let Fused::Recurrence(operands) = group.fused else { return None };
    let output = &group.nodes.last()?.output;
    kernel(operands, &group.inputs, output, &Places::of_group(group, output), NEW_STATE | RESULTS | GIVEN)
}

fn kernel(
    operands: FusedRecurrence,
    tensors: &[TensorSpec],
    output: &TensorSpec,
    places: &Places,
    parts: u32,
) -> Option<NativeKernel> {
    let FusedRecurrence { rule, state, keys, values, decay, strength, runs, queries } = operands;
    let Recurrence { delta, tiled } = rule;
    let of = |i: usize| tensors.get(i);
    let floats = [state, keys, values, decay, strength.unwrap_or(decay), queries].map(of);
    let runs_spec = of(runs)?;
    let (
        [Extent::Fixed(slots), Extent::Fixed(h), Extent::Fixed(v), Extent::Fixed(k)],
        [n, Extent::Fixed(g), Extent::Fixed(of_key)],
        [r, Extent::Fixed(4)],
    ) = (of(state)?.shape.as_slice(), of(keys)?.shape.as_slice(), runs_spec.shape.as_slice())
    else {
        return None;
    };
    let (slots, h, g, v, k) = (*slots, *h, *g, *v, *k);
    let of_values = [*n, Extent::Fixed(h), Extent::Fixed(v)];
    let of_heads = [*n, Extent::Fixed(h)];
    let results = parts & RESULTS != 0;
    let served = floats.iter().all(Option::is_some)
        && all_f32(floats.into_iter().flatten().chain([output]))
        && runs_spec.format == DType::Plain(Type::U32)
        && of_key == &k
        && g > 0
        && h.is_multiple_of(g)
        && k.is_multiple_of(4)
        && (1..=256).contains(&k)
        && of(values)?.shape == of_values
        && [decay, strength.unwrap_or(decay)].iter().all(|i| tensors[*i].shape == of_heads)
        && (!results || (of(queries)?.shape == of(keys)?.shape && output.shape == of_values));
    if !served {
        return None;
    }
    let (tokens, most) = (Count::of(&[*n])?, r.max());
    let runs_now = match *r {
        Extent::Fixed(runs) => Actual { slot: u32::MAX, most: number(runs)? },
        Extent::Step { slot, max } => Actual { slot, most: number(max)? },
    };
    let args = Arguments {
        state: places.input(state, 0),
        keys: places.input(keys, 0),
        values: places.input(values, 0),
        decay: places.input(decay, 0),
        strength: strength.map_or(Memory::Null, |i| places.input(i, 0)),
        runs: places.input(runs, 0),
        queries: if results { places.input(queries, 0) } else { Memory::Null },
        y: if results { places.output(0) } else { Memory::Null },
        tokens: tokens.of_step(places.step()),
        runs_now,
        slots: number(slots)?,
        h: number(h)?,
        g: number(g)?,
        v: number(v)?,
        k: number(k)?,
        tiled: tiled.into(),
        parts,
    };
    let elements = [64, 128, 256].into_iter().find(|n| k <= *n)?;
    let entry = format!("recurrence_{}{elements}", if delta { "delta_" } else { "" });
    let groups = v.div_ceil(ROWS).checked_mul(h)?.checked_mul(most)?;
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

    const TOKENS: Extent = Extent::Step { slot: 0, max: 64 };
    const RUNS: Extent = Extent::Step { slot: 2, max: 8 };

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
        let args = launch.filled::<Arguments>();
        assert_eq!(
            (args.parts, args.slots, args.runs_now),
            (NEW_STATE | RESULTS | GIVEN, 6, Actual { slot: 2, most: 8 })
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
        for (spec, parts) in [(results, RESULTS), (state, NEW_STATE)] {
            let kernel = find(&spec, TARGET).unwrap();
            let [crate::Part::Kernel(launch)] = &kernel.parts[..] else { panic!("{kernel:?}") };
            let args = launch.filled::<Arguments>();
            assert_eq!((launch.entry.as_str(), args.parts, args.tiled), ("recurrence_128", parts, 1));
        }
    }
}
