use hologram_device::{BlockType, Elementwise, GroupNode, Operand};

use super::*;
use crate::Part;
use crate::kernels::cuda::experts_tiles;
use crate::kernels::expert_sums::Sums;
use crate::kernels::experts::Experts;

const H200: Target = Target::nvidia(90, 132, 232_448);

fn tensor(format: DType, shape: &[Extent]) -> TensorSpec {
    TensorSpec { format, shape: shape.to_vec() }
}

/// Products of `tokens` tokens with 2 of 16 experts' matrices, of 96 rows of 256 elements.
fn inputs(x: DType, w: DType, tokens: usize) -> (Vec<TensorSpec>, TensorSpec) {
    let n = Extent::step(0, tokens);
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
    let f8 = DType::Planes(BlockType::F8_E4M3);
    let many = |entry, tiles| vec![("expert_order", [1, 1, 1]), (entry, [1, tiles, 1])];
    let wide = |entry| vec![("expert_order", [1, 1, 1]), ("expert_rows", [128, 1, 1]), (entry, [32, 1, 1])];
    for (x, w, tokens, wanted) in [
        (DType::F32, DType::F32, 1, vec![("experts_f32_f32", [3, 2, 1])]),
        (codes, q4_k, 8, vec![("experts_q4_k_i8", [3, 16, 1])]),
        (DType::BF16, DType::BF16, 8, vec![("experts_bf16_bf16", [3, 16, 1])]),
        (DType::BF16, DType::BF16, 9, many("experts_bf16_8", 18)),
        (DType::BF16, q4_k, 64, many("experts_q4_k_8", 32)),
        (DType::BF16, DType::Q8Planes, 512, wide("experts_wide_q8_64")),
        (DType::BF16, q4_k, 512, wide("experts_wide_q4_k_64")),
        (DType::F32, f8, 1, vec![("experts_f8_e4m3", [6, 2, 1])]),
        // Tiles of 16 rows, with eight warps each as long as all are resident.
        (codes, DType::Planes(BlockType::MXFP4), 1, vec![("experts_mxfp4", [6, 2, 1])]),
        (codes, DType::Planes(BlockType::IQ2_N), 8, vec![("experts_iq2_n", [6, 16, 1])]),
        (DType::BF16, f8, 8, vec![("experts_f8_e4m3_bf16", [3, 16, 1])]),
        (DType::BF16, f8, 512, wide("experts_wide_f8_e4m3_64")),
        // Apple GPUs alone have kernels for f32 beside codes.
        (DType::F32, q4_k, 512, vec![]),
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
    // Many slots for each expert; rows that are no whole stages; another GPU.
    let found = |w, tokens, k, target| {
        let (mut all, output) = inputs(DType::BF16, w, tokens);
        (all[0].shape[1], all[1].shape[1]) = (Extent::Fixed(k), Extent::Fixed(k));
        let op = Operation::ExpertMatmul { experts: 16 };
        find(&KernelSpec { op, inputs: all[..3].to_vec(), output, in_place: None }, target).expect("a kernel")
    };
    assert_eq!(entries(&found(q4_k, 768, 256, H200))[2], ("experts_wide_q4_k_128", [28, 1, 1]));
    assert_eq!(entries(&found(DType::BF16, 512, 96, H200)), many("experts_bf16_8", 144));
    let sm_80 = Target::nvidia(80, 108, 166_912);
    assert_eq!(entries(&found(q4_k, 512, 256, sm_80)), many("experts_q4_k_64", 32));
}

#[test]
fn gates_are_part_of_the_products() {
    let (all, product) = inputs(DType::I8Groups { group: 32 }, DType::Planes(BlockType::Q4_K), 4);
    let op = Operation::ExpertMatmul { experts: 16 };
    let node = |op: Operation, operands: &[Operand], output: &TensorSpec| GroupNode {
        op,
        operands: operands.to_vec(),
        output: output.clone(),
        in_place: None,
    };
    let [x, w, ids, up] = [0, 1, 2, 3].map(Operand::Input);
    let [first, second] = [0, 1].map(Operand::Node);
    let down = node(op.clone(), &[x, w, ids], &product);
    let gate = |operands: [Operand; 2], gate: Elementwise| {
        let second = node(op.clone(), &[x, up, ids], &product);
        vec![down.clone(), second, node(gate.into(), &operands, &product)]
    };
    // Codes have a view of scales after them, and Q4_K has two planes.
    let place = |i: usize| if i == 0 { Memory::Null } else { Memory::Binding(i + if i == 1 { 1 } else { 2 }) };
    for (nodes, after, matrices) in [
        (gate([first, second], Elementwise::Swiglu), After::Swiglu, [1, 4]),
        (gate([second, first], Elementwise::Relu2Mul), After::Relu2, [4, 1]),
        (gate([first, second], Elementwise::ClampedSwiglu), After::ClampedSwiglu, [1, 4]),
    ] {
        let group = GroupSpec::new(all.clone(), nodes, vec![2]).expect("a group");
        let kernel = find_group(&group, H200).expect("a kernel");
        let [Part::Kernel(launch)] = &kernel.parts[..] else { panic!("{kernel:?}") };
        let args = launch.filled::<Experts>();
        assert_eq!((args.after, launch.grid, args.biased), (after as u32, [6, 8, 1], 0));
        assert_eq!([args.w0, args.w1], matrices.map(place));
    }
}

/// Few tokens with floats of 8 bits: tiles of 16 rows, of which half are a gate's second matrix, and as many warps to a
/// tile as are resident.
#[test]
fn floats_of_8_bits_have_tiles() {
    let f8 = DType::Planes(BlockType::F8_E4M3);
    let fixed = Extent::Fixed;
    let found = |tokens: usize, experts: usize, slots: usize, d: usize, m: usize, target: Target| {
        let n = Extent::step(0, tokens);
        let matrix = tensor(f8, &[fixed(experts * m), fixed(d)]);
        let down = tensor(f8, &[fixed(experts * d), fixed(m)]);
        let all = vec![
            tensor(DType::F32, &[n, fixed(d)]),
            matrix.clone(),
            matrix,
            tensor(DType::U32, &[n, fixed(slots)]),
            tensor(DType::F32, &[n, fixed(slots * m)]),
            down,
            tensor(DType::F32, &[n, fixed(slots)]),
        ];
        let op = Operation::ExpertMatmul { experts: experts as u32 };
        let node = |op: Operation, operands: &[Operand], output: TensorSpec| GroupNode {
            op,
            operands: operands.to_vec(),
            output,
            in_place: None,
        };
        let [x, gate, up, ids, y, down, weights] = std::array::from_fn(Operand::Input);
        let product = tensor(DType::F32, &[n, fixed(slots * m)]);
        let gated = vec![
            node(op.clone(), &[x, gate, ids], product.clone()),
            node(op.clone(), &[x, up, ids], product.clone()),
            node(Elementwise::Swiglu.into(), &[Operand::Node(0), Operand::Node(1)], product),
        ];
        let summed = vec![
            node(op, &[y, down, ids], tensor(DType::F32, &[n, fixed(slots * d)])),
            node(Operation::ExpertSum, &[Operand::Node(0), weights], tensor(DType::F32, &[n, fixed(d)])),
        ];
        [(gated, 2), (summed, 1)].map(|(nodes, last)| {
            let group = GroupSpec::new(all.clone(), nodes, vec![last]).expect("a group");
            find_group(&group, target)
        })
    };
    let layer = |tokens, experts, slots, d, m, target| {
        found(tokens, experts, slots, d, m, target).map(|kernel| kernel.expect("a kernel"))
    };
    // Qwen3 30B A3B: 768 tiles of a gate with four warps each, two warps for each slot of a sum.
    let [gate, sum] = layer(1, 128, 8, 2048, 768, H200);
    assert_eq!(
        (entries(&gate), entries(&sum)),
        (vec![("experts_f8_e4m3", [48, 8, 1])], vec![("sums_f8_e4m3", [128, 1, 1])])
    );
    let ([Part::Kernel(gate)], [Part::Kernel(sum)]) = (&gate.parts[..], &sum.parts[..]) else { panic!("two launches") };
    let (a, b) = (gate.filled::<experts_tiles::Experts>(), sum.filled::<experts_tiles::Sums>());
    assert_eq!((a.slices, a.after, a.per_slot, a.k, a.m), (4, 1, 0, 2048, 768));
    assert_eq!((b.slices, b.per_slot, b.k, b.m), (2, 1, 768, 2048));
    // Matrices have two planes: codes and scales.
    assert_eq!([a.x, a.w0, a.s0, a.w1, a.s1, a.ids], [0, 1, 2, 3, 4, 5].map(Memory::Binding));
    assert_eq!([b.x, b.w, b.s, b.ids, b.weights], [6, 7, 8, 5, 9].map(Memory::Binding));
    assert_eq!((gate.shared, sum.shared), (2048 * 4 + 32 + 8 * 16, 8 * (768 * 4 + 32 + 3 * 16)));
    // With more tokens a warp has a tile to itself; rows too long for shared memory have another kernel, Apple GPUs
    // programs.
    let [gate, _] = layer(8, 128, 8, 2048, 768, H200);
    assert_eq!(entries(&gate), [("experts_f8_e4m3", [12, 64, 1])]);
    let [gate, sum] = layer(1, 128, 16, 2048, 8192, H200);
    assert_eq!((entries(&gate)[0].0, entries(&sum)[0].0), ("experts_f8_e4m3", "sums_f8_e4m3_f32"));
    assert!(found(1, 128, 8, 2048, 768, Target::APPLE).iter().all(Option::is_none));
}

/// The conversion is part of the sum of products with codes, whose kernel has no other form.
#[test]
fn sums_quantize_their_activations() {
    for (format, entry, groups, shared) in [
        // Two slots of each token: eight teams of eight rows. Codes of 256 elements and what belongs to 8 chunks.
        (BlockType::Q4_K, "sums_q4_k_codes", 2, 256 + 64),
        // Tiles of 16 rows; a chunk of zeros besides.
        (BlockType::MXFP4, "sums_mxfp4", 6, 256 + 64 + 16),
    ] {
        sum_quantizes_its_activations(format, entry, groups, shared);
    }
}

fn sum_quantizes_its_activations(format: BlockType, entry: &str, groups: u32, shared: u32) {
    let (mut all, product) = inputs(DType::F32, DType::Planes(format), 4);
    let codes = tensor(DType::I8Groups { group: 32 }, &all[0].shape);
    let node = |op: Operation, operands: &[Operand], output: &TensorSpec| GroupNode {
        op,
        operands: operands.to_vec(),
        output: output.clone(),
        in_place: None,
    };
    let bias = all.len();
    all.push(tensor(DType::F32, &[16, 96].map(Extent::Fixed)));
    let [x, w, ids, weights, residual, bias] = [0, 1, 2, 4, 5, bias].map(Operand::Input);
    let nodes = [
        node(Operation::Quantize { group: 32, floor: 0.5.into() }, &[x], &codes),
        node(Operation::ExpertMatmul { experts: 16 }, &[Operand::Node(0), w, ids, bias], &product),
        node(Operation::ExpertSum, &[Operand::Node(1), weights], &all[5]),
        node(Elementwise::Add.into(), &[residual, Operand::Node(2)], &all[5]),
    ];
    for (from, added) in [(0, true), (0, false), (1, true)] {
        let mut nodes = nodes[from..if added { 4 } else { 3 }].to_vec();
        let mut all = all.clone();
        if from == 1 {
            all[0] = codes.clone();
            for (i, node) in nodes.iter_mut().enumerate() {
                for operand in &mut node.operands {
                    match operand {
                        Operand::Node(0) if i == 0 => *operand = Operand::Input(0),
                        Operand::Node(of) => *of -= 1,
                        Operand::Input(_) => {}
                    }
                }
            }
        }
        let last = nodes.len() - 1;
        let group = GroupSpec::new(all, nodes, vec![last]).expect("a group");
        let kernel = find_group(&group, H200);
        if from == 1 {
            assert!(kernel.is_none(), "{kernel:?}");
            continue;
        }
        let kernel = kernel.expect("a kernel");
        let [Part::Kernel(launch)] = &kernel.parts[..] else { panic!("{kernel:?}") };
        assert_eq!((launch.entry.as_str(), launch.grid, launch.shared), (entry, [groups, 4, 1], shared));
        let args = if format == BlockType::MXFP4 {
            let args = launch.filled::<experts_tiles::Sums>();
            (args.per_slot, args.added, args.biased, args.least)
        } else {
            let args = launch.filled::<Sums>();
            (args.per_slot, args.added, args.biased, args.least)
        };
        assert_eq!(args, (0, u32::from(added), 1, 0.5));
    }
}
