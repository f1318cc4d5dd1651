//! `causal_conv`, alone or with the update of its state, a bias and silu: state f32 [slots, w - 1, c], x [n, c],
//! weights [c, w], the tokens' runs u32 [n], runs u32 [r, 4] → f32 [n, c].

use hologram_device::{DType, Extent, Fused, FusedConv, GroupSpec, KernelSpec, TensorSpec};
use hologram_isa::Type;

use super::arguments::Actual;
use super::kernels::causal_conv::{BIAS, CausalConv, NEW_STATE, SILU};
use super::launch::{Count, Places, all_f32, launch, number, single};
use super::{Memory, NativeKernel, Target};

/// Threads of a workgroup, each of which takes four channels.
const THREADS: usize = 64;
/// Tokens of a thread in long steps, and the steps in which it has one, because each token may have a run of its own.
const EACH: usize = 8;
const SHORT: usize = 64;

/// The native kernel for the convolution.
pub(super) fn find(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    if spec.inputs.len() != 5 || spec.in_place.is_some() {
        return None;
    }
    let operands = FusedConv { state: 0, x: 1, weights: 2, token_runs: 3, runs: 4, bias: None, silu: false };
    kernel(operands, &spec.inputs, &spec.output, &Places::of(spec), 0)
}

/// The native kernel for state and results.
pub(super) fn find_group(group: &GroupSpec, _: Target) -> Option<NativeKernel> {
    let Fused::CausalConv(operands) = group.fused else { return None };
    let output = &group.nodes.last()?.output;
    kernel(operands, &group.inputs, output, &Places::of_group(group, output), NEW_STATE)
}

fn kernel(
    operands: FusedConv,
    tensors: &[TensorSpec],
    output: &TensorSpec,
    places: &Places,
    mut parts: u32,
) -> Option<NativeKernel> {
    let FusedConv { state, x, weights, token_runs, runs, bias, silu } = operands;
    let of = |i: usize| tensors.get(i);
    let ([Extent::Fixed(slots), Extent::Fixed(before), Extent::Fixed(c)], [n, _], [r, Extent::Fixed(4)]) =
        (of(state)?.shape.as_slice(), of(x)?.shape.as_slice(), of(runs)?.shape.as_slice())
    else {
        return None;
    };
    let (slots, width, c) = (*slots, before + 1, *c);
    let floats = [state, x, weights, bias.unwrap_or(x)].map(of);
    let served = floats.iter().all(Option::is_some)
        && all_f32(floats.into_iter().flatten().chain([output]))
        && [token_runs, runs].iter().all(|i| tensors[*i].format == DType::Plain(Type::U32))
        && (2..=4).contains(&width)
        && c.is_multiple_of(4)
        && of(x)?.shape == [*n, Extent::Fixed(c)]
        && output.shape == of(x)?.shape
        && of(weights)?.shape == [c, width].map(Extent::Fixed)
        && of(token_runs)?.shape == [*n]
        && bias.is_none_or(|i| tensors[i].shape == [Extent::Fixed(c)]);
    if !served {
        return None;
    }
    parts |= if silu { SILU } else { 0 } | if bias.is_some() { BIAS } else { 0 };
    let tokens = Count::of(&[*n])?;
    let each = if tokens.max() <= SHORT { 1 } else { EACH };
    let runs_now = Actual::of(*r)?;
    let args = CausalConv {
        state: places.input(state, 0),
        x: places.input(x, 0),
        weights: places.input(weights, 0),
        token_runs: places.input(token_runs, 0),
        runs: places.input(runs, 0),
        bias: bias.map_or(Memory::Null, |i| places.input(i, 0)),
        y: places.output(0),
        tokens: tokens.of_step(places.step()),
        runs_now,
        slots: number(slots)?,
        c: number(c)?,
        each: number(each)?,
        parts,
    };
    let grid = [(c / 4).div_ceil(THREADS), tokens.max().div_ceil(each)];
    Some(single(launch(args, format!("causal_conv_{width}"), grid, THREADS)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hologram_device::{Elementwise, GroupNode, Operand, Operation};

    /// The group for `n` tokens, with a bias and silu or without.
    fn group(n: usize, c: usize, width: usize, bias: bool, silu: bool) -> GroupSpec {
        let spec = |format, shape: &[Extent]| TensorSpec { format, shape: shape.to_vec() };
        let fixed = Extent::Fixed;
        let mut inputs = vec![
            spec(DType::F32, &[fixed(4), fixed(width - 1), fixed(c)]),
            spec(DType::F32, &[fixed(n), fixed(c)]),
            spec(DType::U32, &[Extent::step(1, n), fixed(4)]),
            spec(DType::F32, &[fixed(c), fixed(width)]),
            spec(DType::U32, &[fixed(n)]),
        ];
        let (state, y) = (inputs[0].clone(), inputs[1].clone());
        let node =
            |op, operands, output: &TensorSpec, in_place| GroupNode { op, operands, output: output.clone(), in_place };
        let mut nodes = vec![
            node(Operation::ConvState, [0, 1, 2].map(Operand::Input).to_vec(), &state, Some(0)),
            node(
                Operation::CausalConv,
                [Operand::Node(0), Operand::Input(1), Operand::Input(3), Operand::Input(4), Operand::Input(2)].to_vec(),
                &y,
                None,
            ),
        ];
        if bias {
            inputs.push(spec(DType::F32, &[fixed(c)]));
            let op = Elementwise::Add.into();
            nodes.push(node(op, vec![Operand::Node(1), Operand::Input(5)], &y, None));
        }
        if silu {
            let last = Operand::Node(nodes.len() - 1);
            nodes.push(node(Elementwise::Silu.into(), vec![last], &y, None));
        }
        let last = nodes.len() - 1;
        GroupSpec::new(inputs, nodes, vec![last]).unwrap()
    }

    const TARGET: Target = Target::nvidia(90, 132, 227 << 10);

    fn launch_of(group: &GroupSpec) -> (String, [u32; 3], u32, u32) {
        let kernel = find_group(group, TARGET).unwrap();
        let [crate::Part::Kernel(launch)] = &kernel.parts[..] else { panic!("{kernel:?}") };
        let args = launch.filled::<CausalConv>();
        (launch.entry.clone(), launch.grid, args.each, args.parts)
    }

    #[test]
    fn state_bias_and_activation_are_one_launch() {
        let expected = ("causal_conv_4".to_string(), [32, 1, 1], 1, NEW_STATE | SILU | BIAS);
        assert_eq!(launch_of(&group(1, 8192, 4, true, true)), expected);
        assert_eq!(launch_of(&group(1, 8192, 4, false, true)).3, NEW_STATE | SILU);
        assert_eq!(launch_of(&group(64, 1024, 3, false, false)), ("causal_conv_3".into(), [4, 64, 1], 1, NEW_STATE));
        assert_eq!(
            launch_of(&group(512, 1024, 3, true, false)),
            ("causal_conv_3".into(), [4, 64, 1], 8, NEW_STATE | BIAS)
        );
    }

    #[test]
    fn other_sizes_have_programs() {
        for (c, width) in [(37, 4), (256, 5)] {
            assert!(find_group(&group(1, c, width, false, false), TARGET).is_none());
        }
    }
}
