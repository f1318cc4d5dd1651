use hologram_device::{BlockType, Elementwise, GroupNode, Operand};

use super::*;
use crate::Part;
use crate::kernels::experts::Experts;

const H200: Target = Target::nvidia(90, 132, 232_448);

fn tensor(format: DType, shape: &[Extent]) -> TensorSpec {
    TensorSpec { format, shape: shape.to_vec() }
}

/// Products of `tokens` tokens with 2 of 16 experts' matrices, of 96 rows of 256 elements.
fn inputs(x: DType, w: DType, tokens: usize) -> (Vec<TensorSpec>, TensorSpec) {
    let n = Extent::Step { slot: 0, max: tokens };
    let [k, m, two] = [256, 96, 2].map(Extent::Fixed);
    let inputs = vec![
        tensor(x, &[n, k]),
        tensor(w, &[Extent::Fixed(16 * 96), k]),
        tensor(DType::U32, &[n, two]),
        tensor(w, &[Extent::Fixed(16 * 96), k]),
        tensor(DType::F32, &[n, two]),
        tensor(DType::F32, &[n, m]),
    ];
    (inputs, tensor(DType::F32, &[n, Extent::Fixed(192)]))
}

fn entries(kernel: &NativeKernel) -> Vec<(&str, [u32; 3])> {
    let entry = |part: &Part| match part {
        Part::Kernel(launch) => (launch.entry.clone().leak() as &str, launch.grid),
        Part::Blas(_) => ("blas", [0; 3]),
    };
    kernel.parts.iter().map(entry).collect()
}

#[test]
fn the_kernel_follows_formats_and_tokens() {
    let codes = DType::I8Groups { group: 32 };
    let q4_k = DType::Planes(BlockType::Q4_K);
    let many = |entry, tiles| vec![("expert_order", [1, 1, 1]), (entry, [1, tiles, 1])];
    for (x, w, tokens, wanted) in [
        (DType::F32, DType::F32, 1, vec![("experts_f32_f32", [3, 2, 1])]),
        (codes, q4_k, 8, vec![("experts_q4_k_i8", [3, 16, 1])]),
        (DType::BF16, DType::BF16, 8, vec![("experts_bf16_bf16", [3, 16, 1])]),
        (DType::BF16, DType::BF16, 9, many("experts_bf16_8", 18)),
        (DType::BF16, q4_k, 64, many("experts_q4_k_8", 32)),
        (DType::BF16, DType::Q8Planes, 512, many("experts_q8_64", 32)),
        (DType::F32, q4_k, 512, vec![("experts_q4_k_f32", [3, 1024, 1])]),
        (codes, DType::T2Planes, 1, vec![]),
        (DType::I8Groups { group: 256 }, q4_k, 1, vec![]),
    ] {
        let (all, output) = inputs(x, w, tokens);
        let op = Operation::ExpertMatmul { experts: 16 };
        let spec = KernelSpec { op, inputs: all[..3].to_vec(), output, in_place: None };
        let found = find(&spec, H200);
        let found = found.as_ref().map(entries).unwrap_or_default();
        assert_eq!(found, wanted, "{x:?} {w:?} {tokens}");
    }
}

#[test]
fn gates_and_sums_are_part_of_the_products() {
    let (all, product) = inputs(DType::I8Groups { group: 32 }, DType::Planes(BlockType::Q4_K), 4);
    let op = Operation::ExpertMatmul { experts: 16 };
    let node = |op: Operation, operands: &[Operand], output: &TensorSpec| GroupNode {
        op,
        operands: operands.to_vec(),
        output: output.clone(),
        in_place: None,
    };
    let [x, w, ids, up, weights, residual] = [0, 1, 2, 3, 4, 5].map(Operand::Input);
    let [first, second] = [0, 1].map(Operand::Node);
    let down = node(op.clone(), &[x, w, ids], &product);
    let sum = node(Operation::ExpertSum, &[first, weights], &all[5]);
    let gate = |operands: [Operand; 2]| {
        let second = node(op.clone(), &[x, up, ids], &product);
        vec![down.clone(), second, node(Elementwise::Swiglu.into(), &operands, &product)]
    };
    for (nodes, after, grid, matrices) in [
        (gate([first, second]), After::Swiglu, [6, 8, 1], [1, 4]),
        (gate([second, first]), After::Swiglu, [6, 8, 1], [4, 1]),
        (vec![down.clone(), sum.clone()], After::Sum, [24, 4, 1], [1, 0]),
        (
            vec![down.clone(), sum, node(Elementwise::Add.into(), &[residual, second], &all[5])],
            After::SumAdd,
            [24, 4, 1],
            [1, 0],
        ),
    ] {
        let last = nodes.len() - 1;
        let group = GroupSpec::new(all.clone(), nodes, vec![last]).expect("a group");
        let kernel = find_group(&group, H200).expect("a kernel");
        let [Part::Kernel(launch)] = &kernel.parts[..] else { panic!("{kernel:?}") };
        let args = launch.filled::<Experts>();
        assert_eq!((args.after, launch.grid), (after as u32, grid));
        // Codes have a view of scales after them, and Q4_K has two planes.
        let place = |i: usize| if i == 0 { Memory::Null } else { Memory::Binding(i + if i == 1 { 1 } else { 2 }) };
        assert_eq!([args.w0, args.w1], matrices.map(place));
    }
}
