//! A mixture's router for few tokens in one launch (`kernels/cuda/router.cu`).

use std::sync::Arc;

use hologram_device::{Conversion, DType, Extent, Fused, GroupSpec};

use super::kernels::cuda::route::{SOFTMAX_AFTER, SOFTMAX_BEFORE};
use super::kernels::cuda::router as kernel;
use super::launch::{Count, Places, all_f32, launch_of, number, one_token};
use super::{FEW_TOKENS, Memory, NativeKernel, Part, StackPhase, Target, stack};

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
    let args = Arc::new(args);
    let phase =
        (stack::fuses_to_stacks(target) && one_token(args.tokens).is_some()).then(|| StackPhase::Router(args.clone()));
    let launch = launch_of(args, format!("router_{of_lane}"), [n.div_ceil(threads / 32), tokens.max()], threads)?;
    let (scratch, counters) = (tokens.max() * n * 4, tokens.max() * 4);
    Some(NativeKernel { parts: vec![Part::Kernel(launch)], scratch, counters, phase })
}

#[cfg(test)]
mod tests {
    use hologram_device::{Elementwise, GroupNode, Operand, Operation, TensorSpec};

    use super::*;

    const H200: Target = Target::nvidia(90, 132, 232_448);

    /// The norm of `tokens` tokens of 2,048 elements, the choice of 8 of 128 experts, and the conversion to codes,
    /// whose node is left out if it is not `converted`; with results of these nodes.
    fn group(tokens: usize, biased: bool, converted: bool, outputs: &[usize]) -> Option<GroupSpec> {
        let n = Extent::step(0, tokens);
        let tensor = |format, shape: &[Extent]| TensorSpec { format, shape: shape.to_vec() };
        let [k, experts, chosen] = [2048, 128, 8].map(Extent::Fixed);
        let of_token = |format, width| tensor(format, &[n, width]);
        let (x, scores) = (of_token(DType::F32, k), of_token(DType::F32, experts));
        let inputs = vec![
            x.clone(),
            tensor(DType::F32, &[k]),
            tensor(DType::F32, &[experts, k]),
            tensor(DType::F32, &[experts]),
        ];
        let mut nodes: Vec<GroupNode> = Vec::new();
        let mut node = |op: Operation, operands: &[Operand], output: &TensorSpec| {
            nodes.push(GroupNode { op, operands: operands.to_vec(), output: output.clone(), in_place: None });
            Operand::Node(nodes.len() - 1)
        };
        let [x_at, gain, w, bias] = [0, 1, 2, 3].map(Operand::Input);
        let normed = node(Operation::RmsNorm { eps: 1e-6.into() }, &[x_at, gain], &x);
        let mut of_scores = node(Operation::Matmul, &[normed, w], &scores);
        if biased {
            of_scores = node(Elementwise::Add.into(), &[of_scores, bias], &scores);
        }
        let ids = node(Operation::TopK { k: 8 }, &[of_scores], &of_token(DType::U32, chosen));
        let greatest = node(Operation::Take { axis: 1 }, &[of_scores, ids], &of_token(DType::F32, chosen));
        node(Operation::Softmax { log: false, axis: 1 }, &[greatest], &of_token(DType::F32, chosen));
        if converted {
            let codes = of_token(DType::I8Groups { group: 32 }, k);
            node(Operation::Quantize { group: 32, floor: 0.0.into() }, &[normed], &codes);
        }
        GroupSpec::new(inputs, nodes, outputs.to_vec())
    }

    #[test]
    fn a_router_is_one_launch() {
        for (tokens, biased, converted, outputs) in
            [(1, false, true, &[2, 4, 5][..]), (8, true, true, &[0, 3, 5, 6]), (1, true, false, &[0, 3, 5])]
        {
            let group = group(tokens, biased, converted, outputs).expect("a group");
            let kernel = find_group(&group, H200).expect("a kernel");
            let [Part::Kernel(launch)] = &kernel.parts[..] else { panic!("{kernel:?}") };
            let args = launch.filled::<kernel::Router>();
            assert_eq!((launch.entry.as_str(), launch.grid), ("router_4", [32, tokens as u32, 1]));
            assert_eq!((args.biased, args.stored), (u32::from(biased), u32::from(outputs[0] == 0)));
            // Four inputs; codes have scales after them; the step block is last.
            let first = 4 + usize::from(outputs[0] == 0);
            assert_eq!([args.ids, args.weights], [first, first + 1].map(Memory::Binding));
            let codes = if converted { [first + 2, first + 3].map(Memory::Binding) } else { [Memory::Null; 2] };
            assert_eq!([args.converted, args.x_scales], codes);
            assert_eq!(args.tokens.step, Memory::Binding(first + if converted { 4 } else { 2 }));
            assert_eq!((kernel.scratch, kernel.counters), (tokens * 128 * 4, tokens * 4));
        }
        let many = group(9, false, true, &[2, 4, 5]).expect("a group");
        assert!(find_group(&many, H200).is_none());
        let few = group(1, false, true, &[2, 4, 5]).expect("a group");
        assert!(find_group(&few, Target::APPLE).is_none());
        // Scores that others read are no result of the kernel.
        assert!(group(1, false, true, &[1, 2, 4, 5]).is_none());
    }
}
