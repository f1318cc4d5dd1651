//! Stacks of layers with weights in codes and floats.

use hologram_gpu::kernels::cuda::decode_layers as kernel;

use super::super::layers;
use super::*;

/// A model's sizes and types.
#[derive(Clone, Copy, Debug)]
struct Model {
    width: usize,
    heads: usize,
    kv_heads: usize,
    /// Elements of a head, and whether queries and keys have norms.
    d: usize,
    normed: bool,
    ffn: usize,
    /// Experts and chosen ones; none: the layers are dense.
    experts: Option<(usize, usize)>,
    weights: DType,
    /// Of values.
    values: DType,
    /// Whether all products have biases, and gates are clamped.
    biased: bool,
    style: RopeStyle,
    window: Option<u32>,
    sinks: bool,
    /// Blocks of 32 positions.
    blocks: usize,
}

const DENSE: Model = Model {
    width: 2048,
    heads: 16,
    kv_heads: 4,
    d: 128,
    normed: false,
    ffn: 5632,
    experts: None,
    weights: DType::Planes(BlockType::Q4_K),
    values: DType::Planes(BlockType::Q6_K),
    biased: false,
    style: RopeStyle::Adjacent,
    window: None,
    sinks: false,
    blocks: 256,
};
const MIXTURE: Model = Model {
    width: 1024,
    heads: 16,
    kv_heads: 2,
    normed: true,
    ffn: 256,
    experts: Some((64, 6)),
    style: RopeStyle::HalfSplit,
    ..DENSE
};

/// The conversion of activations of this many elements before products with such weights.
fn conversion(weights: DType, k: usize) -> Option<(Operation, TensorSpec)> {
    match weights {
        DType::BF16 => Some((Operation::Cast, token(DType::BF16, &[k]))),
        DType::F16 | DType::Planes(BlockType::F8_E4M3) => None,
        _ => {
            let quantize = Operation::Quantize { group: 32, floor: 0.0.into() };
            Some((quantize, token(DType::I8Groups { group: 32 }, &[k])))
        }
    }
}

/// `[norm]`, `[conversion]`, products with matrices of these types and rows, and the operation after them. Inputs: x, `[norm]`,
/// matrices, residual.
fn products(k: usize, rows: &[(DType, usize)], norm: bool, after: Option<Elementwise>) -> GroupSpec {
    let x = token(DType::F32, &[k]);
    let (mut inputs, mut nodes) = (vec![x.clone()], Vec::new());
    let mut from = Operand::Input(0);
    if norm {
        inputs.push(fixed(DType::F32, &[k]));
        nodes.push(node(Operation::RmsNorm { eps: 1e-5.into() }, &[from, Operand::Input(1)], &x));
        from = Operand::Node(0);
    }
    if let Some((op, to)) = conversion(rows[0].0, k) {
        nodes.push(node(op, &[from], &to));
        from = Operand::Node(nodes.len() - 1);
    }
    let first = nodes.len();
    for (weights, m) in rows {
        inputs.push(fixed(*weights, &[*m, k]));
        let operands = [from, Operand::Input(inputs.len() - 1)];
        nodes.push(node(Operation::Matmul, &operands, &token(DType::F32, &[*m])));
    }
    let out = token(DType::F32, &[rows[0].1]);
    match after {
        None => {}
        Some(Elementwise::Add) => {
            inputs.push(out.clone());
            nodes.push(node(Elementwise::Add, &[Operand::Node(first), Operand::Input(inputs.len() - 1)], &out));
        }
        Some(gate) => nodes.push(node(gate, &[Operand::Node(first), Operand::Node(first + 1)], &out)),
    }
    let outputs = if after.is_none() { (first..nodes.len()).collect() } else { vec![nodes.len() - 1] };
    GroupSpec::new(inputs, nodes, outputs).expect("a group")
}

/// Inputs: q, positions, frequencies, k, key cache, slots, value cache, v, sequences, block table, and norms' weights of
/// q and k, sinks.
fn attention(model: Model) -> GroupSpec {
    let Model { heads, kv_heads, d, normed, style, window, sinks, blocks, .. } = model;
    let (q, k) = (token(DType::F32, &[heads, d]), token(DType::F32, &[kv_heads, d]));
    let (cache, index) = (fixed(DType::F16, &[blocks, kv_heads, 32, d]), token(DType::U32, &[]));
    let (input, of) = (Operand::Input, Operand::Node);
    let append = |operands: &[Operand]| GroupNode { in_place: Some(0), ..node(Operation::KvAppend, operands, &cache) };
    let attention = Operation::Attention {
        scale: (1.0 / (d as f32).sqrt()).into(),
        precision: AttentionPrecision::F32,
        window,
        cap: None,
        pieces: false,
    };
    let mut nodes = Vec::new();
    let [mut q_at, mut k_at] = [0, 3].map(input);
    if normed {
        let norm = Operation::RmsNorm { eps: 1e-6.into() };
        nodes.push(node(norm.clone(), &[q_at, input(10)], &q));
        nodes.push(node(norm, &[k_at, input(11)], &k));
        (q_at, k_at) = (of(0), of(1));
    }
    let n = nodes.len();
    nodes.extend([
        node(Operation::Rope { style }, &[q_at, input(1), input(2)], &q),
        node(Operation::Rope { style }, &[k_at, input(1), input(2)], &k),
        append(&[input(4), of(n + 1), input(5)]),
        append(&[input(6), input(7), input(5)]),
    ]);
    let mut operands = vec![of(n), of(n + 2), of(n + 3), input(1), input(8), input(9)];
    operands.extend(sinks.then(|| input(if normed { 12 } else { 10 })));
    nodes.push(node(attention, &operands, &q));
    let (table, frequencies) = (fixed(DType::U32, &[1, blocks]), fixed(DType::F32, &[d / 2]));
    let mut inputs =
        vec![q, index.clone(), frequencies, k.clone(), cache.clone(), index.clone(), cache, k, index.clone(), table];
    inputs.extend((0..if normed { 2 } else { 0 }).map(|_| fixed(DType::F32, &[d])));
    inputs.extend(sinks.then(|| fixed(DType::F32, &[heads])));
    GroupSpec::new(inputs, nodes, vec![n + 4]).expect("a group")
}

/// Sums of tensors of this many elements and their biases; of one, another tensor is added too. Inputs: tensors, biases,
/// what is added.
fn biases(rows: &[usize]) -> GroupSpec {
    let tensors: Vec<_> = rows.iter().map(|m| token(DType::F32, &[*m])).collect();
    let mut inputs = tensors.clone();
    inputs.extend(rows.iter().map(|m| fixed(DType::F32, &[*m])));
    let add = |(i, tensor)| node(Elementwise::Add, &[Operand::Input(i), Operand::Input(rows.len() + i)], tensor);
    let mut nodes: Vec<_> = tensors.iter().enumerate().map(add).collect();
    if let [one] = &tensors[..] {
        inputs.push(one.clone());
        nodes.push(node(Elementwise::Add, &[Operand::Node(0), Operand::Input(2)], one));
    }
    let outputs = if rows.len() == 1 { vec![1] } else { (0..rows.len()).collect() };
    GroupSpec::new(inputs, nodes, outputs).expect("a group")
}

/// The router, gate and up of the chosen experts, and their sum. Inputs: x, norm, the router's rows, `[bias]`; what the
/// experts multiply, gate, up, ids, `[biases]`; hidden, down, ids, weights, residual, `[biases]`. Results: what the
/// experts multiply if it is the norm's result, ids, weights, and it otherwise; hidden; y.
fn mixture(model: Model, experts: usize, chosen: usize) -> [GroupSpec; 3] {
    let Model { width, ffn, weights, biased, .. } = model;
    let x = token(DType::F32, &[width]);
    let (scores, ids, shares) =
        (token(DType::F32, &[experts]), token(DType::U32, &[chosen]), token(DType::F32, &[chosen]));
    let (input, of) = (Operand::Input, Operand::Node);
    let of_experts = |m: usize| fixed(DType::F32, &[experts, m]);
    let mut inputs = vec![x.clone(), fixed(DType::F32, &[width]), fixed(DType::F32, &[experts, width])];
    let mut nodes = vec![
        node(Operation::RmsNorm { eps: 1e-6.into() }, &[input(0), input(1)], &x),
        node(Operation::Matmul, &[of(0), input(2)], &scores),
    ];
    if biased {
        inputs.push(fixed(DType::F32, &[experts]));
        nodes.push(node(Elementwise::Add, &[of(1), input(3)], &scores));
    }
    let n = nodes.len();
    nodes.extend([
        node(Operation::TopK { k: chosen as u32 }, &[of(n - 1)], &ids),
        node(Operation::Take { axis: 1 }, &[of(n - 1), of(n)], &shares),
        node(Operation::Softmax { log: false, axis: 1 }, &[of(n + 1)], &shares),
    ]);
    let converted = conversion(weights, width);
    let outputs = if converted.is_some() { vec![n, n + 2, n + 3] } else { vec![0, n, n + 2] };
    nodes.extend(converted.iter().map(|(op, to)| node(op.clone(), &[of(0)], to)));
    let router = GroupSpec::new(inputs, nodes, outputs).expect("a group");
    let op = Operation::ExpertMatmul { experts: experts as u32 };
    let matrix = fixed(weights, &[experts * ffn, width]);
    let hidden = token(DType::F32, &[chosen * ffn]);
    let product = |w: usize, bias: usize| {
        let operands = [input(0), input(w), input(3), input(bias)];
        node(op.clone(), &operands[..if biased { 4 } else { 3 }], &hidden)
    };
    let gate = if biased { Elementwise::ClampedSwiglu } else { Elementwise::Swiglu };
    let nodes = vec![product(1, 4), product(2, 5), node(gate, &[of(0), of(1)], &hidden)];
    let mut inputs = vec![converted.map_or(x.clone(), |(_, to)| to), matrix.clone(), matrix, ids.clone()];
    inputs.extend(biased.then(|| [ffn; 2].map(of_experts)).into_iter().flatten());
    let gate = GroupSpec::new(inputs, nodes, vec![2]).expect("a group");
    let converted = conversion(weights, chosen * ffn);
    let mut nodes: Vec<_> = converted.iter().map(|(op, to)| node(op.clone(), &[input(0)], to)).collect();
    let (n, read) = (nodes.len(), if converted.is_some() { of(0) } else { input(0) });
    let operands = [read, input(1), input(2), input(5)];
    nodes.extend([
        node(op, &operands[..if biased { 4 } else { 3 }], &token(DType::F32, &[chosen * width])),
        node(Operation::ExpertSum, &[of(n), input(3)], &x),
        node(Elementwise::Add, &[input(4), of(n + 1)], &x),
    ]);
    let mut inputs = vec![hidden, fixed(weights, &[experts * width, ffn]), ids, shares, x];
    inputs.extend(biased.then(|| of_experts(width)));
    let sum = GroupSpec::new(inputs, nodes, vec![n + 2]).expect("a group");
    [router, gate, sum]
}

/// The launches of layers, with the numbers of their tensors as in the other stack's tests.
fn launches(model: Model, count: usize) -> Vec<Group> {
    let Model { width, heads, kv_heads, d, ffn, weights, values, .. } = model;
    let (q_rows, kv) = (heads * d, kv_heads * d);
    let next = Cell::new(6);
    let new = || next.replace(next.get() + 1);
    let mut x = 0;
    let mut all = Vec::new();
    for _ in 0..count {
        let (q, k, v, out, mid, y) = (new(), new(), new(), new(), new(), new());
        let qkv = [(weights, q_rows), (weights, kv), (values, kv)];
        let plain = if model.biased { [new(), new(), new()] } else { [q, k, v] };
        let [a, b, c] = plain;
        all.push((products(width, &qkv, true, None), vec![x, new(), new(), new(), new(), a, b, c]));
        if model.biased {
            all.push((biases(&[q_rows, kv, kv]), vec![a, b, c, new(), new(), new(), q, k, v]));
        }
        let mut tensors = vec![q, 1, 5, k, new(), 2, new(), v, 3, 4];
        tensors.extend((0..2 * usize::from(model.normed) + usize::from(model.sinks)).map(|_| new()));
        tensors.push(out);
        all.push((attention(model), tensors));
        let of_attention = |after| products(q_rows, &[(weights, width)], false, after);
        if model.biased {
            let plain = new();
            all.push((of_attention(None), vec![out, new(), plain]));
            all.push((biases(&[width]), vec![plain, new(), x, mid]));
        } else {
            all.push((of_attention(Some(Elementwise::Add)), vec![out, new(), x, mid]));
        }
        if let Some((experts, chosen)) = model.experts {
            let [router, gate, sum] = mixture(model, experts, chosen);
            let (ids, shares, codes, hidden) = (new(), new(), new(), new());
            let of_biases = |n: usize| (0..if model.biased { n } else { 0 }).map(|_| new()).collect::<Vec<_>>();
            let results = match conversion(weights, width) {
                Some(_) => [ids, shares, codes],
                None => [codes, ids, shares],
            };
            all.push((router, [vec![mid, new(), new()], of_biases(1), results.to_vec()].concat()));
            all.push((gate, [vec![codes, new(), new(), ids], of_biases(2), vec![hidden]].concat()));
            all.push((sum, [vec![hidden, new(), ids, shares, mid], of_biases(1), vec![y]].concat()));
        } else {
            let hidden = new();
            let gate = products(width, &[(weights, ffn), (weights, ffn)], true, Some(Elementwise::Swiglu));
            all.push((gate, vec![mid, new(), new(), new(), hidden]));
            let down = products(ffn, &[(weights, width)], false, Some(Elementwise::Add));
            all.push((down, vec![hidden, new(), mid, y]));
        }
        x = y;
    }
    all
}

/// The first launch and the end of each stack; checks the invariants of every stack.
fn stacks(launches: &[Group], max_shared: u32) -> Vec<[usize; 2]> {
    let kernels = kernels(launches);
    let refs: Vec<_> = kernels.iter().map(|(kernel, arguments)| Some((kernel, arguments.as_slice()))).collect();
    let stacks = plan(&refs, max_shared, H200.multiprocessors);
    for stack in &stacks {
        assert!(stack.shape().shared <= max_shared);
        let (at, table) = stack.phases();
        assert_eq!((at % 16, at + table.len()), (0, stack.bytes()));
        let Form::Layers(stack) = &stack.form else { panic!("products with codes") };
        check(stack);
    }
    stacks.into_iter().map(|s| [s.launches.start, s.launches.end]).collect()
}

fn check(stack: &layers::Stack) {
    let told: Vec<_> = (0..stack.phases.len()).map(|p| stack.told(p)).collect();
    let mut places = std::collections::HashMap::new();
    for run in 0..4 {
        for (p, phase) in told.iter().enumerate() {
            let bit = |tag: u32| (tag ^ (run & tag >> 1)) & 1;
            let (at, given) = (phase.out_at, bit(phase.out_tag));
            let before = places.insert(at, given).unwrap_or_default();
            assert_ne!(before, given, "run {run}, phase {p}");
            // What a phase reads was written at most two phases before.
            for (source, read) in [
                (stack.phases[p].source, (phase.in_at, phase.in_tag)),
                (stack.phases[p].logits, (phase.logits_at, phase.logits_tag)),
            ] {
                let Some(source) = source else { continue };
                assert!(source < p && p - source <= 2);
                assert_eq!(read, (told[source].out_at, told[source].out_tag));
            }
        }
    }
    for phase in told.iter().filter(|p| p.kind == kernel::PRODUCTS) {
        // The kernel divides by multiplying.
        let warps = kernel::THREADS / 32;
        assert!(phase.flags & kernel::FLOATS != 0 || (0..warps).all(|w| (w * phase.magic) >> 8 == w / phase.parts));
        if phase.segments > 1 {
            assert!((0..phase.k / 32).all(|c| (c * phase.segment_magic) >> 16 == c / phase.chunks));
        }
        // Pieces have room, with what copies bring besides.
        let copies = if phase.flags & kernel::GATED != 0 { 2 } else { phase.segments };
        for m in 0..3 {
            let row: u32 = phase.bytes[3 * m..3 * m + 3].iter().sum();
            assert!(phase.piece[m] * row * copies + 3 * copies * 47 <= stack.slot_bytes || copies == 2 && m > 0);
            assert!(row == 0 || phase.piece[m] > 0 || copies == 2 && m > 0);
        }
    }
}

#[test]
fn layers_become_one_launch() {
    let most = H200.max_shared;
    for (model, count) in models() {
        let launches = launches(model, count);
        assert_eq!(stacks(&launches, most), [[0, launches.len()]], "{model:?}");
    }
    // Each type of weights that the kernel takes is in one of them.
    let there = |ty: &DType| models().iter().any(|(m, _)| m.weights == *ty || m.values == *ty);
    let types = BlockType::ALL.iter().map(|block| DType::Planes(*block)).chain([DType::F16, DType::BF16]);
    assert!(types.filter(|ty| layers::type_of(*ty).is_some()).all(|ty| there(&ty)));
    assert!(stacks(&launches(DENSE, 4), most).is_empty());
    // Rows of floats that are too long: the sums are launches of their own.
    let most_joined = Model { ffn: 1024, experts: Some((64, 8)), weights: DType::BF16, values: DType::BF16, ..MIXTURE };
    assert_eq!(stacks(&launches(most_joined, 2), most), [[0, 5], [6, 11]]);
    // A router needs its experts; results of others are not added; too many query heads of a key/value head, or
    // positions; too few rows for all workgroups.
    let mixture = launches(MIXTURE, 3);
    assert!(stacks(&mixture[..4], most).is_empty());
    assert_eq!(stacks(&mixture[..10], most), [[0, 9]]);
    let mut other = mixture.clone();
    other[10].1[0] = 0;
    assert_eq!(stacks(&other, most), [[0, 9], [12, 18]]);
    let mut other = mixture.clone();
    other[8].1[2] = other[6].1[5];
    assert_eq!(stacks(&other, most), [[0, 8], [8, 18]]);
    assert!(stacks(&launches(Model { kv_heads: 1, ..MIXTURE }, 3), most).is_empty());
    assert!(stacks(&launches(Model { blocks: 257, ..MIXTURE }, 3), most).is_empty());
    let (weights, values) = (DType::Planes(BlockType::Q4_0), DType::Planes(BlockType::Q4_0));
    assert!(stacks(&launches(Model { width: 128, weights, values, ..MIXTURE }, 2), most).is_empty());
}

/// Models that a GPU runs, with their numbers of layers: every type of weights, heads of both sizes, 1 to 8 query heads of
/// a key/value head.
fn models() -> Vec<(Model, usize)> {
    let planes = DType::Planes;
    let of = |weights, values| Model { weights: planes(weights), values: planes(values), ..MIXTURE };
    let floats = |ty| Model { weights: ty, values: ty, ..MIXTURE };
    let long = Model { width: 2048, ffn: 768, experts: Some((128, 8)), ..MIXTURE };
    let fewer = Model { heads: 32, kv_heads: 4, experts: Some((16, 8)), ..long };
    vec![
        (MIXTURE, 3),
        (Model { heads: 32, kv_heads: 4, values: planes(BlockType::Q4_K), ..long }, 2),
        (Model { experts: Some((200, 10)), ..of(BlockType::Q4_0, BlockType::Q8_0) }, 2),
        (Model { normed: false, style: RopeStyle::Adjacent, kv_heads: 4, ..of(BlockType::Q6_K, BlockType::Q5_K) }, 2),
        (Model { width: 4096, ..of(BlockType::Q8_0, BlockType::Q4_1) }, 2),
        (Model { heads: 12, kv_heads: 12, d: 64, sinks: true, ..of(BlockType::Q5_0, BlockType::Q5_1) }, 2),
        (Model { heads: 28, kv_heads: 4, d: 64, window: Some(100), ..of(BlockType::Q3_K, BlockType::Q2_K) }, 2),
        (Model { heads: 18, kv_heads: 3, ..of(BlockType::IQ4_XS, BlockType::IQ4_NL) }, 1),
        (Model { width: 1536, ffn: 2048, experts: Some((32, 4)), ..of(BlockType::MXFP4, BlockType::NVFP4) }, 2),
        (of(BlockType::Q5_K, BlockType::IQ2_N), 1),
        (of(BlockType::Q2_K, BlockType::IQ3_S_N), 1),
        (of(BlockType::IQ3_XXS_N, BlockType::Q4_0), 1),
        // The sizes of gpt-oss, and of Qwen3 30B A3B.
        (
            Model {
                width: 2880,
                heads: 64,
                kv_heads: 8,
                d: 64,
                normed: false,
                sinks: true,
                window: Some(128),
                ffn: 2880,
                experts: Some((8, 4)),
                biased: true,
                ..of(BlockType::MXFP4, BlockType::MXFP4)
            },
            2,
        ),
        (Model { biased: true, ..of(BlockType::Q4_0, BlockType::Q8_0) }, 3),
        (Model { weights: DType::BF16, values: DType::BF16, ..fewer }, 2),
        (Model { weights: planes(BlockType::F8_E4M3), values: planes(BlockType::F8_E4M3), ..fewer }, 2),
        (Model { width: 4096, experts: Some((16, 6)), ..floats(DType::BF16) }, 2),
        (Model { biased: true, kv_heads: 4, ..floats(DType::BF16) }, 3),
        (Model { width: 1536, ffn: 640, biased: true, ..floats(planes(BlockType::F8_E4M3)) }, 2),
        (floats(DType::F16), 3),
    ]
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn layers_compute_what_their_launches_do() {
    let device = CudaBackend::new(0).unwrap();
    for (number, (model, count)) in models().into_iter().enumerate() {
        compare(&device, number, model, count);
    }
}

fn compare(device: &CudaBackend, number: usize, model: Model, count: usize) {
    let launches = launches(model, count);
    let step = device.allocate_buffer(4).unwrap();
    let (all, tensors) = on_device(device, &launches, &step);
    let blocks: Vec<u32> = (0..model.blocks as u32).map(|b| (b * 7 + 3) % model.blocks as u32).collect();
    write(device, &tensors[4][0], &blocks);
    write(device, &tensors[3][0], &[0]);
    for (group, numbers) in &launches {
        for (spec, tensor) in group.inputs.iter().zip(numbers) {
            // Caches of random bits have no numbers in them.
            if spec.format == DType::F16 && spec.shape.len() == 4 {
                let ones = [0x3555_b666, 0x3800_3aaa, 0xb5a0_2f00, 0x3111_b000];
                let words: Vec<u32> =
                    (0..tensors[*tensor][0].bytes() / 4).map(|i| ones[(i * 7 % 4) ^ (i / 96 % 4)]).collect();
                write(device, &tensors[*tensor][0], &words);
            }
        }
    }
    write(device, &tensors[1][0], &[0]);
    write(device, &tensors[2][0], &[blocks[0] * 32]);
    write(device, &step, &[1]);
    let joined = device.record(&all).unwrap();
    let single: Vec<_> = all.iter().map(|l| device.record(std::slice::from_ref(l)).unwrap()).collect();
    // A single launch with its own name, on devices that have the kernel.
    let names = device.measure().profile(&joined).unwrap();
    if !names.iter().any(|(name, _)| name.contains(&format!("{} launches", launches.len()))) {
        assert_ne!(device.info().details.iter().find(|d| d.0 == "capability").map(|d| d.1.as_str()), Some("9.0"));
        return;
    }
    for position in [0u32, 1, 31, 32, 575, 2047, 8191] {
        write(device, &tensors[1][0], &[position]);
        write(device, &tensors[2][0], &[blocks[position as usize / 32] * 32 + position % 32]);
        for list in &single {
            device.submit(list).unwrap();
        }
        let results: Vec<usize> = launches.iter().flat_map(|(g, t)| t[g.inputs.len()..].to_vec()).collect();
        let values = |t: &usize| tensors[*t].iter().map(|view| read(device, view)).collect::<Vec<_>>();
        let want: Vec<_> = results.iter().map(values).collect();
        results.iter().for_each(|t| write(device, &tensors[*t][0], &[0x7fc0_0000; 1]));
        device.submit(&joined).unwrap();
        for (i, (tensor, want)) in results.iter().zip(&want).enumerate() {
            let got = values(tensor);
            let spec = launches.iter().find_map(|(g, t)| {
                let bound = g.bound();
                t.iter().position(|u| u == tensor).map(|at| bound[at].0.clone())
            });
            let format = spec.expect("a tensor").format;
            if format == DType::U32 {
                // Experts whose logits nearly meet may be chosen otherwise; all that follows then differs.
                if got != *want {
                    assert!(i > 6, "model {number}, experts of the first layer at {position}");
                    break;
                }
                continue;
            }
            if matches!(format, DType::I8Groups { .. }) {
                let bytes = |v: &[f32]| v.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect::<Vec<u8>>();
                let far = bytes(&got[0])
                    .iter()
                    .zip(bytes(&want[0]))
                    .filter(|(a, b)| (**a as i8).abs_diff(*b as i8) > 2)
                    .count();
                assert!(far < 8, "model {number}, tensor {tensor}: {far} codes");
                continue;
            }
            let (got, want) = (&got[0], &want[0]);
            let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
                got.iter().zip(want).map(|(g, w)| f(f64::from(*g), f64::from(*w))).sum()
            };
            // Sums in another order occasionally change an 8-bit code by one, which later products magnify.
            let error = (sum(&|g, w| (g - w).powi(2)) / sum(&|_, w| w * w)).sqrt();
            let bound = if i < 4 { 2e-3 } else { 4e-2 };
            assert!(error < bound, "model {number}, result {i} (tensor {tensor}) at position {position}: {error:.1e}");
        }
    }
}
