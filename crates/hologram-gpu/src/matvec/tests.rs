use hologram_device::{BlockType, Elementwise, GroupNode, Operand};

use super::super::kernels::cuda::matvec_two::MatvecTwo;
use super::super::kernels::matvec_i8::MatvecI8;
use super::super::kernels::matvec_packed::MatvecPacked;
use super::super::{Part, Range};
use super::*;

const H200: Target = Target::nvidia(90, 132, 232_448);
const TOKENS: Extent = Extent::step(0, 1);
const I32: fn(usize) -> DType = |_| DType::I8Groups { group: 32 };
const ROW: fn(usize) -> DType = |k| DType::I8Groups { group: k as u32 };
const BF16: fn(usize) -> DType = |_| DType::BF16;

fn tensor(format: DType, shape: &[usize]) -> TensorSpec {
    TensorSpec { format, shape: shape.iter().map(|n| Extent::Fixed(*n)).collect() }
}

fn rows(format: DType, tokens: Extent, k: usize) -> TensorSpec {
    TensorSpec { format, shape: vec![tokens, Extent::Fixed(k)] }
}

/// A group as a table's row: its operations and their parameters.
#[derive(Clone)]
struct Shape {
    tokens: Extent,
    weights: DType,
    /// The format of converted activations, by the length of a row; `None`: f32.
    converted: Option<fn(usize) -> DType>,
    norm: bool,
    k: usize,
    rows: Vec<usize>,
    /// `""`, `swiglu`, `relu2_mul` (`+cast`: to bf16), `add`, or `added`: with the product on the right.
    after: &'static str,
}

fn group(s: &Shape) -> GroupSpec {
    try_group(s).expect("a group")
}

/// `None` if no device has such a group.
fn try_group(s: &Shape) -> Option<GroupSpec> {
    let (x, mut inputs, mut nodes) = (rows(DType::F32, s.tokens, s.k), Vec::new(), Vec::new());
    let node = |op: Operation, operands: &[Operand], output: &TensorSpec| GroupNode {
        op,
        operands: operands.to_vec(),
        output: output.clone(),
        in_place: None,
    };
    inputs.push(x.clone());
    let mut last = Operand::Input(0);
    if s.norm {
        inputs.push(tensor(DType::F32, &[s.k]));
        nodes.push(node(Operation::RmsNorm { eps: 1e-5.into() }, &[last, Operand::Input(1)], &x));
        last = Operand::Node(0);
    }
    if let Some(format) = s.converted.map(|f| f(s.k)) {
        let op = match format {
            DType::I8Groups { group } => Operation::Quantize { group, floor: 1e-5.into() },
            _ => Operation::Cast,
        };
        nodes.push(node(op, &[last], &rows(format, s.tokens, s.k)));
        last = Operand::Node(nodes.len() - 1);
    }
    let first = nodes.len();
    for m in &s.rows {
        inputs.push(tensor(s.weights, &[*m, s.k]));
        let operands = [last, Operand::Input(inputs.len() - 1)];
        nodes.push(node(Operation::Matmul, &operands, &rows(DType::F32, s.tokens, *m)));
    }
    let product = Operand::Node(first);
    let out = rows(DType::F32, s.tokens, s.rows[0]);
    match s.after {
        "" => {}
        "add" | "added" => {
            inputs.push(out.clone());
            let residual = Operand::Input(inputs.len() - 1);
            let operands = if s.after == "add" { [product, residual] } else { [residual, product] };
            nodes.push(node(Elementwise::Add.into(), &operands, &out));
        }
        gate => {
            let (gate, cast) = gate.strip_suffix("+cast").map_or((gate, false), |g| (g, true));
            let op = if gate == "swiglu" { Elementwise::Swiglu } else { Elementwise::Relu2Mul };
            nodes.push(node(op.into(), &[product, Operand::Node(first + 1)], &out));
            if cast {
                nodes.push(node(Operation::Cast, &[Operand::Node(first + 2)], &rows(DType::BF16, s.tokens, s.rows[0])));
            }
        }
    }
    let outputs = if s.after.is_empty() { (first..nodes.len()).collect() } else { vec![nodes.len() - 1] };
    GroupSpec::new(inputs, nodes, outputs)
}

fn shape(
    weights: DType,
    converted: Option<fn(usize) -> DType>,
    norm: bool,
    k: usize,
    rows: &[usize],
    after: &'static str,
) -> Shape {
    Shape { tokens: TOKENS, weights, converted, norm, k, rows: rows.to_vec(), after }
}

/// The groups of a decoding step: Llama 8B in three formats, Llama 1B, BitNet 2B.
fn layers() -> Vec<Shape> {
    let mut all = Vec::new();
    for (weights, converted) in [(DType::BF16, BF16), (DType::Q8Planes, I32), (DType::Q4Planes, I32)] {
        for (d, kv, ffn) in [(4096, 1024, 14336), (2048, 512, 8192)] {
            all.push(shape(weights, Some(converted), true, d, &[d, kv, kv], ""));
            all.push(shape(weights, Some(converted), false, d, &[d], "added"));
            all.push(shape(weights, Some(converted), true, d, &[ffn, ffn], "swiglu"));
            all.push(shape(weights, Some(converted), false, ffn, &[d], "add"));
            all.push(shape(weights, Some(converted), true, d, &[128_256], ""));
        }
    }
    all.push(shape(DType::BF16, Some(BF16), true, 4096, &[14336, 14336], "swiglu+cast"));
    all.push(shape(DType::BF16, Some(BF16), true, 4096, &[14336, 14336], "relu2_mul+cast"));
    all.push(shape(DType::T2Planes, Some(ROW), true, 2560, &[2560, 640, 640], ""));
    all.push(shape(DType::T2Planes, Some(ROW), true, 2560, &[2560], "added"));
    all.push(shape(DType::T2Planes, Some(ROW), true, 2560, &[6912, 6912], "relu2_mul"));
    all.push(shape(DType::T2Planes, Some(ROW), true, 6912, &[2560], "add"));
    all.push(shape(DType::Q8Planes, Some(I32), true, 2560, &[128_256], ""));
    all
}

fn launch(kernel: &NativeKernel) -> &KernelLaunch {
    let [Part::Kernel(launch)] = &kernel.parts[..] else { panic!("one launch") };
    launch
}

#[test]
fn groups_of_a_decoding_step_have_kernels() {
    for s in layers() {
        let found = find_group(&group(&s), H200).unwrap_or_else(|| panic!("{} {:?} {}", s.k, s.rows, s.after));
        let launch = launch(&found);
        let int8 = s.weights != DType::BF16;
        let image = if int8 { "matvec_i8" } else { "matvec" };
        assert_eq!((launch.image(), launch.grid, launch.block), (image, [132, 1, 1], [512, 1, 1]));
        // The next launch's ranges come after the arguments: six ranges of four.
        let (own, ahead) = (launch.args.list().len(), launch.args.reads().map(|reads| reads.len()));
        assert!(launch.early && (own, ahead) == if int8 { (26, Some(6)) } else { (28, None) });
        // One workgroup per multiprocessor, which reserves 1 KiB for each.
        assert!(2 * (launch.shared + 1024) > 233_472, "{} bytes for {} {:?}", launch.shared, s.k, s.rows);
    }
    // More tokens, down to a tile that fits, and smaller devices.
    let small = Target::nvidia(86, 68, 101_376);
    for max in [2, 3, 8] {
        for s in layers() {
            let s = Shape { tokens: Extent::step(0, max), ..s };
            for target in [H200, small] {
                let found = find_group(&group(&s), target);
                // With more than two tokens tensor cores are faster, for 8-bit and 4-bit weights only those of 9.0.
                let codes = matches!(s.weights, DType::Q8Planes | DType::Q4Planes);
                let served = if codes { target == small } else { max <= 2 };
                assert_eq!(found.is_some(), served, "{max} {} {:?}", s.k, s.rows);
                let Some(found) = found else { continue };
                let launch = launch(&found);
                assert!(launch.shared <= target.max_shared && launch.grid[1] as usize * 8 >= max);
            }
        }
    }
}

#[test]
fn bindings_are_in_the_order_of_the_group() {
    let find = |s: &Shape| find_group(&group(s), H200).expect("a kernel");
    let places = |k: &NativeKernel| {
        let a = launch(k).filled::<Matvec>();
        [a.x, a.x_scales, a.norm, a.w0, a.w1, a.w2, a.s0, a.s1, a.s2, a.y0, a.y1, a.y2, a.residual, a.step]
    };
    let at = |places: [usize; 14]| places.map(|i| Memory::optional((i != 99).then_some(i)));
    // x, norm, then codes and scales of q, k, v; q, k, v; the step block.
    let qkv = find(&shape(DType::Q8Planes, Some(I32), true, 64, &[8, 4, 4], ""));
    assert_eq!(places(&qkv), at([0, 99, 1, 2, 4, 6, 3, 5, 7, 8, 9, 10, 99, 11]));
    let added = find(&shape(DType::BF16, Some(BF16), false, 64, &[8], "added"));
    assert_eq!(places(&added), at([0, 99, 99, 1, 99, 99, 99, 99, 99, 3, 99, 99, 2, 4]));
    // A gate with operands in reverse order takes its matrices in reverse order.
    let gate = group(&shape(DType::BF16, Some(BF16), false, 64, &[8, 8], "swiglu"));
    let gate = gate.changed(|g| g.nodes[3].operands.swap(0, 1)).expect("a group");
    assert_eq!(places(&find_group(&gate, H200).expect("a kernel"))[3..5], [Memory::Binding(2), Memory::Binding(1)]);
}

#[test]
fn launches_of_one_token_tell_what_they_read() {
    let find = |s: &Shape| find_group(&group(s), H200).expect("a kernel");
    let kernel = find(&shape(DType::Q8Planes, Some(I32), true, 128, &[8, 4, 4], ""));
    let launch = launch(&kernel);
    // x, norm, then codes and scales of q, k, v; q, k, v; no residual; the step block.
    let expected = [0, 1, 2, 4, 6, 3, 5, 7, 8, 9, 10, 99, 11].map(|i| Memory::optional((i != 99).then_some(i)));
    let a = launch.filled::<MatvecI8>();
    let places = [a.x, a.norm, a.w0, a.w1, a.w2, a.s0, a.s1, a.s2, a.y0, a.y1, a.y2, a.residual, a.step];
    assert_eq!(places, expected);
    // Codes and scales of a row have 128 and 8 bytes; 132 workgroups prefetch a line of 128 bytes each.
    let range = |at, total| Range { at: Memory::Binding(at), total, stride: 128, len: 128 };
    assert_eq!((a.reads[0], a.reads[5]), (range(2, 8 * 128), range(7, 4 * 8)));
    // Large matrices are prefetched in part.
    let kernel = find(&shape(DType::Q8Planes, Some(I32), true, 4096, &[128_256], ""));
    let [Part::Kernel(head)] = &kernel.parts[..] else { panic!("one launch") };
    let reads = head.filled::<MatvecI8>().reads;
    let Range { stride, len, .. } = reads[0];
    assert!(len > 0 && len * 40 < stride, "{len} of {stride}");
    assert_eq!(reads[2], Range::NONE);
}

#[test]
fn near_misses_are_refused() {
    let good = shape(DType::Q4Planes, Some(I32), true, 64, &[8, 8], "swiglu");
    assert!(find_group(&group(&good), H200).is_some());
    let refused = [
        Shape { tokens: Extent::step(0, 9), ..good.clone() },
        Shape { weights: DType::Q4_0, ..good.clone() },
        Shape { weights: DType::T2Planes, ..good.clone() },
        Shape { weights: DType::BF16, ..good.clone() },
        Shape { converted: Some(BF16), ..good.clone() },
        Shape { rows: vec![8], ..good.clone() },
        Shape { k: 16_384, ..good.clone() },
        Shape { weights: DType::T2Planes, converted: Some(|_| DType::I8Groups { group: 256 }), k: 512, ..good.clone() },
        Shape { rows: vec![8; 5], after: "", ..good.clone() },
        Shape { converted: Some(BF16), weights: DType::BF16, k: 68, ..good.clone() },
    ];
    for (i, s) in refused.iter().enumerate() {
        assert!(try_group(s).is_none_or(|g| find_group(&g, H200).is_none()), "row {i}");
    }
    let edits: [fn(&mut GroupSpec); 8] = [
        // The value of a product is required too.
        |g| g.outputs.insert(0, 2),
        // Another gate, another order, a product of another input.
        |g| g.nodes[4].op = Elementwise::Mul.into(),
        |g| {
            // A conversion of a value other than the gate's.
            let mut cast = GroupNode { op: Operation::Cast, operands: vec![Operand::Node(2)], ..g.nodes[4].clone() };
            cast.output.format = DType::BF16;
            g.nodes.push(cast);
            g.outputs = vec![5];
        },
        |g| g.nodes[4].operands[0] = Operand::Input(0),
        |g| g.nodes[3].operands[0] = Operand::Node(0),
        |g| g.nodes[2].operands[1] = Operand::Input(9),
        // Norm weights of another length; quantised in groups other than the stated ones.
        |g| g.inputs[1].shape = vec![Extent::Fixed(32)],
        |g| g.nodes[1].op = Operation::Quantize { group: 64, floor: 1e-5.into() },
    ];
    for (i, edit) in edits.iter().enumerate() {
        assert!(group(&good).changed(edit).is_none_or(|g| find_group(&g, H200).is_none()), "edit {i}");
    }
}

#[test]
fn products_alone_have_kernels() {
    let spec = |x: DType, w: DType, tokens: usize, k: usize| KernelSpec {
        op: Operation::Matmul,
        inputs: vec![tensor(x, &[tokens, k]), tensor(w, &[70, k])],
        output: tensor(DType::F32, &[tokens, 70]),
        in_place: None,
    };
    let i8 = |group: u32| DType::I8Groups { group };
    for (x, w, k, name) in [
        (DType::F32, DType::F32, 4, "f32_f32_t4_r2"),
        (DType::F32, DType::F16, 8, "f16_f32_t4_r2"),
        (DType::F32, DType::BF16, 320, "bf16_f32_t4_r2"),
        (DType::BF16, DType::BF16, 320, "bf16_bf16_t4_r2"),
        (i8(32), DType::Q8Planes, 4096, "q8_i8_t4_r2"),
        (i8(32), DType::Q4Planes, 96, "q4_i8_t4_r2"),
        (i8(64), DType::T2Planes, 256, "t2_i8_t4_r2"),
        (i8(2560), DType::T2Planes, 2560, "t2_i8_t4_r2"),
    ] {
        let found = find_rest(&spec(x, w, 3, k), H200).unwrap_or_else(|| panic!("{name} {k}"));
        assert_eq!(launch(&found).entry, name);
        let as_codes = w == DType::Q8Planes && k == 4096;
        let fastest = !as_codes && !matches!((x, w), (DType::BF16, _) | (_, DType::T2Planes));
        assert_eq!(find(&spec(x, w, 3, k), H200).is_some(), fastest, "{name} {k}");
        assert_eq!(find(&spec(x, w, 2, k), H200).is_some(), !as_codes, "{name} {k}");
    }
    for (x, w, tokens, k) in [
        (DType::F32, DType::F32, 3, 131),
        (DType::F32, DType::F32, 0, 64),
        (DType::BF16, DType::BF16, 9, 64),
        (DType::BF16, DType::F16, 1, 64),
        (i8(64), DType::Q8Planes, 1, 64),
        (i8(96), DType::T2Planes, 1, 768),
    ] {
        assert!(find_rest(&spec(x, w, tokens, k), H200).is_none(), "{x:?} {w:?} {tokens} {k}");
    }
}

/// Packed weights: which kernel, how many launches, the bindings of their planes; and groups without a kernel.
#[test]
fn packed_weights_have_kernels() {
    let planes = DType::Planes;
    let entries = |kernel: &NativeKernel| -> Vec<String> {
        let entry = |part: &Part| match part {
            Part::Kernel(launch) => launch.entry.clone(),
            Part::Blas(_) => String::new(),
        };
        kernel.parts.iter().map(entry).collect()
    };
    let q4 = shape(planes(BlockType::Q4_K), Some(I32), true, 4096, &[4096, 1024, 1024], "");
    let of_integers = |block: &BlockType| block.is_packed() && !planes(*block).has_float_codes();
    for packed in BlockType::ALL.into_iter().filter(of_integers) {
        let s = Shape { weights: planes(packed), ..q4.clone() };
        let found = find_group(&group(&s), H200).expect("a kernel");
        assert_eq!(entries(&found), [format!("{}_rows", format!("{packed:?}").to_lowercase())]);
        assert!(find_group(&group(&Shape { rows: vec![14336], after: "", ..s }), H200).is_some());
    }
    // Floats of a byte are multiplied by f32 activations.
    let f8 = Shape { weights: planes(BlockType::F8_E4M3), converted: None, ..q4.clone() };
    assert_eq!(entries(&find_group(&group(&f8), H200).expect("a kernel")), ["f8_f32_t1_r2"]);
    assert!(find_group(&group(&Shape { converted: Some(I32), ..f8 }), H200).is_none());
    for (weights, norm, k, rows, after, entry) in [
        (BlockType::Q4_K, true, 4096, vec![14336, 14336], "swiglu", Some("q4_k_gate")),
        (BlockType::Q6_K, false, 14336, vec![4096], "add", Some("q6_k_long")),
        (BlockType::Q5_0, false, 4864, vec![896], "added", Some("q5_0_rows")),
        (BlockType::Q4_K, true, 8192, vec![1024], "", Some("q4_k_long")),
        (BlockType::Q4_K, true, 5120, vec![17408, 17408], "swiglu", Some("q4_k_long_gate")),
        (BlockType::Q4_K, false, 5120, vec![17408, 17408], "swiglu", Some("q4_k_gate")),
        // Types without a kernel for a gate, and for norms or gates of long rows.
        (BlockType::Q5_1, true, 2048, vec![64, 64], "swiglu", None),
        (BlockType::Q6_K, true, 8192, vec![1024], "", None),
        (BlockType::Q4_1, true, 8192, vec![1024], "", None),
        (BlockType::Q6_K, false, 5120, vec![1024, 1024], "swiglu", None),
    ] {
        let s = shape(planes(weights), Some(I32), norm, k, &rows, after);
        let found = find_group(&group(&s), H200);
        assert_eq!(found.map(|k| entries(&k)), entry.map(|e| vec![e.to_string()]), "{weights:?} {k} {after}");
    }
    // A value matrix of another format, for which no kernel of both is there, is a separate launch; its planes follow
    // those of the others.
    let mut mixed = group(&q4);
    mixed.inputs[4].format = planes(BlockType::Q3_K);
    let found = find_group(&mixed, H200).expect("kernels");
    assert_eq!(entries(&found), ["q4_k_rows", "q3_k_rows"]);
    let [Part::Kernel(first), Part::Kernel(second)] = &found.parts[..] else { panic!("two launches") };
    // Low planes, records, high planes, results.
    let (a, b) = (first.filled::<MatvecPacked>(), second.filled::<MatvecPacked>());
    let expected = [2, 5, 3, 6, 99, 12, 13].map(|i| Memory::optional((i != 99).then_some(i)));
    assert_eq!([a.w0, a.w1, a.s0, a.s1, a.h0, a.y0, a.y1], expected);
    let expected = [Some(8), None, Some(10), Some(9), Some(14)].map(Memory::optional);
    assert_eq!([b.w0, b.w1, b.s0, b.h0, b.y0], expected);
    // SIMD-groups share tiles so that all have as much to do.
    for (k, m, teams) in [(4096, 14_336, (14, 1)), (4096, 12_288, (4, 4)), (5120, 17_408, (3, 5))] {
        let gate = Shape { k, rows: vec![m, m], after: "swiglu", ..q4.clone() };
        let found = find_group(&group(&gate), H200).expect("a kernel");
        let a = launch(&found).filled::<MatvecPacked>();
        assert_eq!((a.teams, a.slices), teams, "{m}");
    }
    // As many matrices of one type as a launch has.
    let found = find_group(&group(&Shape { rows: vec![64, 32, 8, 8], ..q4.clone() }), H200).expect("kernels");
    assert_eq!(entries(&found), ["q4_k_rows", "q4_k_rows"]);
    let [Part::Kernel(first), Part::Kernel(second)] = &found.parts[..] else { panic!("two launches") };
    let (a, b) = (first.filled::<MatvecPacked>(), second.filled::<MatvecPacked>());
    assert_eq!([(a.m0, a.m1, a.m2), (b.m0, b.m1, b.m2)], [(64, 32, 8), (8, 0, 0)]);
    // Activations already quantised, rows of any length, up to 8 tokens.
    let spec = |tokens: usize, k: usize| KernelSpec {
        op: Operation::Matmul,
        inputs: vec![tensor(I32(k), &[tokens, k]), tensor(planes(BlockType::Q5_1), &[70, k])],
        output: tensor(DType::F32, &[tokens, 70]),
        in_place: None,
    };
    for (tokens, k, served) in
        [(1, 96, true), (8, 28_704, true), (8, 28_672, false), (9, 96, false), (1, 1 << 20, false)]
    {
        let found = find(&spec(tokens, k), H200);
        assert_eq!(found.is_some(), served, "{tokens} {k}");
        assert!(found.is_none_or(|f| launch(&f).grid == [70, tokens as u32, 1]));
    }
}

/// Matrices of two types are one launch, in which multiprocessors are divided as their bytes are.
#[test]
fn packed_weights_of_two_types_are_one_launch() {
    let planes = DType::Planes;
    let entry = |types: &[BlockType], s: &Shape| {
        let mut mixed = group(s);
        let matrices = mixed.inputs.iter_mut().filter(|t| matches!(t.format, DType::Planes(_)));
        matrices.zip(types).for_each(|(t, of)| t.format = planes(*of));
        let found = find_group(&mixed, H200).expect("a kernel");
        (launch(&found).entry.clone(), launch(&found).filled::<MatvecTwo>().clone(), launch(&found).grid)
    };
    let [q4, q5, q6] = [BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K];
    let s = shape(planes(q4), Some(I32), true, 4096, &[4096, 1024, 1024], "");
    let (name, a, grid) = entry(&[q4, q4, q6], &s);
    assert_eq!((&*name, grid), ("q4_k_q6_k_rows", [132, 1, 1]));
    // x, norm; low planes, high planes, records; results; the step block.
    let at = |i: usize| Memory::optional((i != 99).then_some(i));
    assert_eq!([a.x, a.norm, a.x_scales, a.step], [0, 1, 99, 15].map(at));
    let first = [a.first_w0, a.first_w1, a.first_w2, a.first_h0, a.first_s0, a.first_s1, a.first_y0, a.first_y1];
    assert_eq!(first, [2, 5, 99, 99, 3, 6, 12, 13].map(at));
    let second = [a.second_w0, a.second_w1, a.second_h0, a.second_s0, a.second_y0, a.second_y1];
    assert_eq!(second, [8, 99, 9, 10, 14, 99].map(at));
    assert_eq!((a.first_m0, a.first_m1, a.second_m0, a.second_m1), (4096, 1024, 1024, 0));
    // The input of a linear recurrence: with the norm, all four.
    let s = Shape { k: 5120, rows: vec![10_240, 6_144, 48, 48], ..s };
    let (name, a, grid) = entry(&[q5, q4, q4, q4], &s);
    assert_eq!((&*name, grid), ("q4_k_q5_k_long", [132, 1, 1]));
    assert_eq!((a.first_m0, a.first_m1, a.second_m0), (6_144, 48, 10_240));
    assert_eq!(
        (a.first_each * a.split + a.first_over, a.second_each * (132 - a.split) + a.second_over),
        (6_240, 10_240)
    );
    let share = f64::from(a.split) / 132.0;
    assert!((0.28..0.38).contains(&share), "{share}");
    // Already quantised; and no kernel for long rows of scarce registers.
    let ready = Shape { norm: false, ..s.clone() };
    assert_eq!(entry(&[q5, q4, q4, q4], &ready).0, "q4_k_q5_k_rows");
    let mut mixed = group(&s);
    mixed.inputs[2].format = planes(q6);
    assert!(find_group(&mixed, H200).is_none());
}

/// Apple GPUs have 32 KiB per workgroup, so that many rows take more workgroups. No more memory is requested than is
/// used.
#[test]
fn products_fit_an_apple_gpu() {
    let apple = Target::apple(32);
    let planes = DType::Planes;
    for (weights, norm, k, rows, after, groups) in [
        (planes(BlockType::Q4_K), true, 4096, vec![4096, 1024, 1024], "", 32),
        (planes(BlockType::Q4_K), true, 4096, vec![14336, 14336], "swiglu", 32),
        (planes(BlockType::Q6_K), false, 14336, vec![4096], "add", 32),
        (planes(BlockType::Q6_K), true, 4096, vec![256_000], "", 64),
        (planes(BlockType::Q6_K), true, 3584, vec![1 << 20], "", 256),
        (DType::Q8Planes, true, 4096, vec![256_000], "", 64),
        (DType::Q4Planes, false, 14336, vec![4096], "add", 32),
        (DType::BF16, true, 4096, vec![4096, 1024, 1024], "", 32),
        (DType::BF16, true, 4096, vec![14336, 14336], "swiglu+cast", 32),
        (DType::BF16, true, 4096, vec![128_256], "", 32),
        (DType::F16, true, 4096, vec![14336, 14336], "swiglu", 32),
        (DType::F16, false, 14336, vec![4096], "add", 32),
    ] {
        let converted: Option<fn(usize) -> DType> = match weights {
            DType::BF16 => Some(BF16),
            DType::F16 => None,
            _ => Some(I32),
        };
        let s = shape(weights, converted, norm, k, &rows, after);
        let found = find_group(&group(&s), apple).unwrap_or_else(|| panic!("{weights:?} {rows:?} {k} {after}"));
        let launch = launch(&found);
        assert_eq!(launch.grid, [groups, 1, 1], "{weights:?} {rows:?}");
        assert!(launch.shared <= 32 << 10 && launch.shared as usize > rows[0] / 64, "{} of {weights:?}", launch.shared);
    }
}

/// Codes meet `f32` on Apple GPUs, up to the number of tokens from which matrix units multiply bf16: with the norm, a
/// gate or an addition in the launch, as many workgroups as the cores hold.
#[test]
fn codes_meet_floats_on_apple_gpus() {
    let apple = Target::apple(10);
    let planes = DType::Planes;
    let entry = |s: &Shape| find_group(&group(s), apple).map(|k| (launch(&k).entry.clone(), launch(&k).grid));
    for (weights, norm, k, rows, after, want, groups) in [
        (planes(BlockType::Q4_K), true, 4096, vec![4096, 1024, 1024], "", "q4_k_rows", 60),
        (planes(BlockType::Q4_K), true, 4096, vec![14336, 14336], "swiglu", "q4_k_gate", 60),
        (planes(BlockType::Q6_K), false, 14336, vec![4096], "add", "q6_k_rows", 60),
        (DType::Q8Planes, true, 896, vec![128, 64, 64], "", "q8_rows", 16),
        (DType::Q4Planes, true, 96, vec![9, 9], "relu2_mul", "q4_gate", 2),
    ] {
        let s = shape(weights, None, norm, k, &rows, after);
        assert_eq!(entry(&s), Some((want.to_string(), [groups, 1, 1])), "{weights:?} {after}");
        // As the device prefers it.
        let prefers = |tokens: usize| {
            let found = crate::policy(apple).activations;
            let of = |p: &&hologram_device::Preference| p.tokens.contains(&tokens) && (p.weights)(weights, k);
            found.iter().find(of).map(|p| p.format)
        };
        assert_eq!([1, 8, 9].map(prefers), [DType::F32, DType::F32, DType::BF16].map(Some));
    }
    // A gate of a rare type is a launch of its own; ternary weights are multiplied by codes.
    assert_eq!(entry(&shape(planes(BlockType::Q2_K), None, true, 512, &[64, 64], "swiglu")), None);
    assert_eq!(entry(&shape(DType::T2Planes, None, false, 512, &[64], "add")), None);
    // On NVIDIA GPUs codes meet codes.
    assert!(find_group(&group(&shape(planes(BlockType::Q4_K), None, true, 512, &[64], "")), H200).is_none());
}
