use hologram_device::{
    BlockType, DType, Elementwise, Extent, GroupNode, GroupSpec, KernelSpec, Operand, Operation, TensorSpec,
};

use super::super::kernels::cuda::gemm_codes::Codes;
use super::super::kernels::cuda::gemm_few::Few;
use super::super::kernels::cuda::gemm_wgmma::Multiply;
use super::super::kernels::cuda::gemm_wide::Wide;
use super::super::kernels::metal::matmul_simdgroup::Matmul;
use super::super::kernels::packed::Unpack;
use super::super::{BlasProduct, FEW_TOKENS, FEW_TOKENS_AS_F32, KernelLaunch, Memory, NativeKernel, Part, Target};
use super::{Product, codes, find, find_blas, find_blas_group, find_group};

const H200: Target = Target::nvidia(90, 132, 227 * 1024);
const A100: Target = Target::nvidia(80, 108, 163 * 1024);

fn tensor(format: DType, shape: [Extent; 2]) -> TensorSpec {
    TensorSpec { format, shape: shape.to_vec() }
}

fn tokens(max: usize) -> Extent {
    Extent::step(1, max)
}

fn spec(x: DType, w: DType, n: usize, m: usize, k: usize) -> KernelSpec {
    KernelSpec {
        op: Operation::Matmul,
        inputs: vec![tensor(x, [tokens(n), Extent::Fixed(k)]), tensor(w, [Extent::Fixed(m), Extent::Fixed(k)])],
        output: tensor(DType::F32, [tokens(n), Extent::Fixed(m)]),
        in_place: None,
    }
}

fn launch(kernel: Option<NativeKernel>) -> Option<KernelLaunch> {
    match kernel?.parts.into_iter().next()? {
        Part::Kernel(launch) => Some(launch),
        Part::Blas(_) => None,
    }
}

fn name(kernel: Option<NativeKernel>) -> Option<(String, u32)> {
    launch(kernel).map(|l| (l.entry, l.cluster))
}

/// On Apple GPUs one kernel serves most formats of activations and weights, for any shape.
#[test]
fn products_on_apple_gpus() {
    let apple = Target::apple(32);
    let cases = [
        (DType::F32, DType::Q8Planes, 256, Some("matmul_f32_q8")),
        (DType::F32, DType::BF16, 131, Some("matmul_f32_bf16")),
        (DType::BF16, DType::BF16, 256, Some("matmul_bf16_bf16")),
        (DType::BF16, DType::Q4Planes, 256, Some("matmul_bf16_q4")),
        (DType::BF16, DType::F32, 256, None),
        (DType::BF16, DType::F16, 131, Some("matmul_bf16_f16")),
        (DType::F32, DType::F16, 256, Some("matmul_f32_f16")),
        (DType::I8Groups { group: 256 }, DType::T2Planes, 256, Some("matmul_i8_t2")),
        (DType::I8Groups { group: 6 }, DType::T2Planes, 768, None),
        (DType::BF16, DType::Q8_0, 256, None),
    ];
    for (x, w, k, want) in cases {
        let found = launch(find(&spec(x, w, 70, 67, k), apple));
        assert_eq!(found.as_ref().map(|l| l.entry.as_str()), want, "{} · {}", x.name(), w.name());
        if let Some(launch) = found {
            assert_eq!((launch.image(), launch.grid, launch.block), ("matmul_simdgroup", [2, 2, 1], [128, 1, 1]));
        }
    }
}

/// Weights in `f16` meet `f32` in steps of few tokens and `bf16` in longer ones, on GPUs of both vendors. `f16` would
/// be as fast, but activations may exceed its range.
#[test]
fn f16_meets_bf16_in_prompts() {
    for (target, few) in [(Target::apple(10), FEW_TOKENS), (H200, FEW_TOKENS_AS_F32), (A100, FEW_TOKENS_AS_F32)] {
        let policy = crate::policy(target);
        let choices = [DType::F32, DType::BF16];
        let chosen = [1, few, few + 1, 4096].map(|n| policy.activations(DType::F16, 4096, n, &choices));
        assert_eq!(chosen, [DType::F32, DType::F32, DType::BF16, DType::BF16].map(Some), "{target:?}");
        let found = name(find(&spec(DType::BF16, DType::F16, 512, 4096, 4096), target)).expect("a kernel").0;
        assert!(found.contains("_f16"), "{found}");
    }
}

/// Products that share activations are one launch per format of matrices. A gate, whose halves share a tile, and an
/// addition are one launch.
#[test]
fn groups_on_apple_gpus() {
    let apple = Target::apple(32);
    let planes = DType::Planes;
    let matrix = |format, m: usize| tensor(format, [Extent::Fixed(m), Extent::Fixed(2048)]);
    let product = |w| node(Operation::Matmul, &[Operand::Input(0), Operand::Input(w)], DType::F32, 1024);
    let parts = |group: &GroupSpec| -> Vec<(String, [u32; 3])> {
        let part = |part| match part {
            Part::Kernel(l) => (l.entry, l.grid),
            Part::Blas(_) => Default::default(),
        };
        find_group(group, apple).map_or_else(Vec::new, |k| k.parts.into_iter().map(part).collect())
    };
    let group = |x, w: &[DType], rest: Vec<GroupNode>| {
        let mut inputs = vec![tensor(x, [tokens(512), Extent::Fixed(2048)])];
        inputs.extend(w.iter().map(|w| matrix(*w, 1024)));
        let mut nodes: Vec<GroupNode> = (1..=w.len()).map(product).collect();
        nodes.extend(rest);
        let outputs = if nodes.len() == w.len() { (0..w.len()).collect() } else { vec![nodes.len() - 1] };
        GroupSpec::new(inputs, nodes, outputs).expect("a group")
    };
    let (q4, q6, f32) = (planes(BlockType::Q4_K), planes(BlockType::Q6_K), DType::F32);
    let one = |entry: &str, tiles| vec![(entry.to_string(), [8, tiles, 1])];
    assert_eq!(parts(&group(f32, &[q4, q4, q4], vec![])), one("matmul_f32_q4_k", 48));
    let mixed = [one("matmul_f32_q4_k", 32), one("matmul_f32_q6_k", 16)].concat();
    assert_eq!(parts(&group(f32, &[q4, q4, q6], vec![])), mixed);
    let gate = |x| node(Elementwise::Swiglu, &[Operand::Node(1), Operand::Node(0)], x, 1024);
    assert_eq!(parts(&group(f32, &[q4, q4], vec![gate(f32)])), one("matmul_f32_q4_k", 32));
    assert_eq!(parts(&group(f32, &[q4, q6], vec![gate(f32)])), []);
    let gated = group(DType::I8Groups { group: 2048 }, &[DType::T2Planes; 2], vec![gate(f32)]);
    assert_eq!(parts(&gated), one("matmul_i8_t2", 32));
    // Its operands are in reverse order; no rows of a second matrix follow.
    let launch = launch(find_group(&gated, apple)).unwrap();
    let a = launch.filled::<Matmul>();
    let places = [a.w0, a.w1, a.w2, a.s0, a.s1, a.y0];
    assert_eq!(places, [Some(4), Some(2), None, Some(5), Some(3), Some(6)].map(Memory::optional));
    assert_eq!((a.m0, a.m1), (1024, 0));
    // With at most 32 tokens a tile has more rows.
    let few = group(f32, &[q4, q4, q4], vec![]).changed(|few| {
        few.inputs[0].shape[0] = tokens(32);
        few.nodes.iter_mut().for_each(|node| node.output.shape[0] = tokens(32));
    });
    let few = few.expect("a group");
    assert_eq!(parts(&few), vec![("matmul_f32_q4_k".to_string(), [1, 24, 1])]);
    // Beside activations in bf16, which prompts have, they are staged as bf16.
    assert_eq!(parts(&group(DType::BF16, &[q4, q4], vec![gate(f32)])), one("matmul_bf16_q4_k", 32));
    let found = find(&spec(DType::BF16, q4, 70, 67, 256), apple).unwrap();
    assert_eq!((found.parts.len(), found.scratch), (1, 0));
    // Floats of a byte are dequantized first.
    let found = find(&spec(DType::BF16, planes(BlockType::F8_E4M3), 70, 67, 256), apple).unwrap();
    assert_eq!(found.parts.len(), 2);
}

/// Which kernel serves which product, on which device.
#[test]
fn products() {
    let i8 = |group| DType::I8Groups { group };
    let cases = [
        // The shapes of models of 8 and 1 billion parameters.
        (DType::BF16, DType::BF16, 512, 6144, 4096, Some(("wgmma_bf16_3_128", 1)), Some("mma_bf16_128")),
        (DType::BF16, DType::BF16, 512, 4096, 4096, Some(("wgmma_bf16_2_128", 1)), Some("mma_bf16_128")),
        (DType::BF16, DType::Q8Planes, 512, 4096, 14336, Some(("wgmma_q8_2_256", 2)), Some("mma_q8_128")),
        (DType::BF16, DType::Q4Planes, 512, 28672, 4096, Some(("wgmma_q4_2_256", 1)), Some("mma_q4_128")),
        (DType::BF16, DType::BF16, 512, 2048, 2048, Some(("wgmma_bf16_2_64", 1)), Some("mma_bf16_128")),
        (DType::BF16, DType::Q8Planes, 512, 2048, 8192, Some(("wgmma_q8_2_128", 2)), Some("mma_q8_128")),
        (DType::BF16, DType::BF16, 16, 2048, 2048, Some(("wgmma_bf16_2_32", 4)), Some("mma_bf16_32")),
        (DType::BF16, DType::F16, 512, 6144, 4096, Some(("wgmma_f16_3_128", 1)), Some("mma_f16_128")),
        (DType::BF16, DType::F16, 16, 2048, 2048, Some(("wgmma_f16_2_32", 4)), Some("mma_f16_32")),
        // A few tokens each of several sequences.
        (DType::BF16, DType::Q4Planes, 16, 4096, 14336, Some(("wgmma_q4_4_32", 6)), Some("mma_q4_32")),
        (DType::BF16, DType::Q4Planes, 32, 28672, 4096, Some(("wgmma_q4_4_32", 1)), Some("mma_q4_32")),
        (i8(2560), DType::T2Planes, 512, 3840, 2560, Some(("wgmma_t2_2_128", 1)), Some("mma_t2_i8_128")),
        // Groups that are neither a block nor a row, and activations in blocks of 32: mma.sync on every device.
        (i8(512), DType::T2Planes, 20, 256, 1024, Some(("mma_t2_i8_32", 1)), Some("mma_t2_i8_32")),
        (i8(32), DType::Q8Planes, 64, 256, 1024, Some(("mma_q8_i8_64", 1)), Some("mma_q8_i8_64")),
        // f32, whatever the shape.
        (DType::F32, DType::F32, 37, 67, 131, Some(("matmul_f32_f32", 1)), Some("matmul_f32_f32")),
        (DType::F32, DType::T2Planes, 37, 67, 768, Some(("matmul_f32_t2", 1)), Some("matmul_f32_t2")),
        // Row counts that are no multiple of four, row lengths that are no whole stages; formats of files.
        (DType::BF16, DType::F16, 64, 70, 512, Some(("matmul_bf16_f16", 1)), Some("matmul_bf16_f16")),
        (DType::BF16, DType::BF16, 64, 64, 131, Some(("matmul_bf16_bf16", 1)), Some("matmul_bf16_bf16")),
        (DType::BF16, DType::Q8Planes, 64, 64, 96, Some(("matmul_bf16_q8", 1)), Some("matmul_bf16_q8")),
        (DType::BF16, DType::Q8_0, 64, 64, 128, None, None),
        (i8(128), DType::T2Planes, 64, 64, 1024, None, None),
        (i8(64), DType::Q8Planes, 64, 64, 1024, None, None),
    ];
    for (x, w, n, m, k, h200, a100) in cases {
        let spec = spec(x, w, n, m, k);
        let of = |target| name(find(&spec, target));
        let what = format!("{} · {} {n} {m} {k}", x.name(), w.name());
        assert_eq!(of(H200), h200.map(|(name, cluster)| (name.into(), cluster)), "{what}");
        assert_eq!(of(A100), a100.map(|name| (name.into(), 1)), "{what}");
    }
    let mut other = spec(DType::BF16, DType::BF16, 64, 64, 64);
    other.op = Operation::Gather;
    assert!(find(&other, H200).is_none());
    other.op = Operation::Matmul;
    other.output.format = DType::BF16;
    assert!(find(&other, H200).is_none());
}

fn node(op: impl Into<Operation>, operands: &[Operand], format: DType, m: usize) -> GroupNode {
    let output = tensor(format, [tokens(512), Extent::Fixed(m)]);
    GroupNode { op: op.into(), operands: operands.to_vec(), output, in_place: None }
}

fn bindings(launch: &KernelLaunch) -> Vec<Memory> {
    let a = launch.filled::<Multiply>();
    let maps = [&a.x, &a.w0, &a.w1, &a.w2].map(|map| map.memory);
    [&maps[..], &[a.x_scales, a.s0, a.s1, a.s2, a.add, a.y0, a.y1, a.y2, a.step]].concat()
}

/// Which groups have kernels, and their arguments: x, w0, w1, w2 (as maps), scales of x and of each matrix, the addend,
/// three results, the step block.
#[test]
fn groups() {
    use Operand::{Input, Node};
    let x = tensor(DType::BF16, [tokens(512), Extent::Fixed(256)]);
    let w = |m| tensor(DType::Q8Planes, [Extent::Fixed(m), Extent::Fixed(256)]);
    let product = |w, m| node(Operation::Matmul, &[Input(0), Input(w)], DType::F32, m);
    let group = |inputs: Vec<TensorSpec>, nodes: Vec<GroupNode>, outputs: &[usize]| {
        GroupSpec::new([vec![x.clone()], inputs].concat(), nodes, outputs.to_vec())
    };
    let served = |g: &Option<GroupSpec>| launch(find_group(g.as_ref()?, H200)).map(|l| bindings(&l));
    let at = |places: [usize; 13]| Some(places.map(|p| Memory::optional((p < 99).then_some(p))).to_vec());
    const NO: usize = 99;

    let qkv = group(vec![w(64), w(32), w(32)], vec![product(1, 64), product(2, 32), product(3, 32)], &[0, 1, 2]);
    assert_eq!(served(&qkv), at([0, 1, 3, 5, NO, 2, 4, 6, NO, 7, 8, 9, 10]));
    let two = group(vec![w(64), w(32)], vec![product(1, 64), product(2, 32)], &[0, 1]);
    assert_eq!(served(&two), at([0, 1, 3, 1, NO, 2, 4, NO, NO, 5, 6, NO, 7]));

    let residual = tensor(DType::F32, [tokens(512), Extent::Fixed(64)]);
    let sum = |operands: &[Operand]| node(Elementwise::Add, operands, DType::F32, 64);
    for operands in [[Node(0), Input(2)], [Input(2), Node(0)]] {
        let added = group(vec![w(64), residual.clone()], vec![product(1, 64), sum(&operands)], &[1]);
        assert_eq!(served(&added), at([0, 1, 1, 1, NO, 2, NO, NO, 3, 4, NO, NO, 5]));
    }

    let gate = |op: Elementwise, operands: &[Operand]| node(op, operands, DType::F32, 64);
    let gated = |last: Vec<GroupNode>, outputs: &[usize]| {
        group(vec![w(64), w(64)], [vec![product(1, 64), product(2, 64)], last].concat(), outputs)
    };
    let swiglu = gate(Elementwise::Swiglu, &[Node(0), Node(1)]);
    assert_eq!(served(&gated(vec![swiglu.clone()], &[2])), at([0, 1, 3, 1, NO, 2, 4, NO, NO, 5, NO, NO, 6]));
    // The gate's operands in reverse order.
    let turned = gate(Elementwise::Relu2Mul, &[Node(1), Node(0)]);
    assert_eq!(served(&gated(vec![turned], &[2])), at([0, 3, 1, 3, NO, 4, 2, NO, NO, 5, NO, NO, 6]));
    let cast = node(Operation::Cast, &[Node(2)], DType::BF16, 64);
    assert!(served(&gated(vec![swiglu.clone(), cast.clone()], &[3])).is_some());

    // A second required result, another left side, other formats, other sizes.
    assert!(served(&gated(vec![swiglu.clone()], &[0, 2])).is_none());
    assert!(served(&gated(vec![swiglu, cast], &[2, 3])).is_none());
    assert!(served(&group(vec![w(64)], vec![product(1, 64)], &[0])).is_none());
    let own = node(Operation::Matmul, &[Input(2), Input(1)], DType::F32, 64);
    assert!(served(&group(vec![w(64), x.clone()], vec![product(1, 64), own], &[0, 1])).is_none());
    let bf16 = tensor(DType::BF16, [Extent::Fixed(64), Extent::Fixed(256)]);
    assert!(served(&group(vec![w(64), bf16], vec![product(1, 64), product(2, 64)], &[0, 1])).is_none());
    let short = tensor(DType::F32, [tokens(512), Extent::Fixed(1)]);
    let added = group(vec![w(64), short], vec![product(1, 64), sum(&[Node(0), Input(2)])], &[1]);
    assert!(served(&added).is_none());
}

/// Which products cuBLASLt gets, and the bindings of their tensors.
#[test]
fn products_of_the_library() {
    const BF16: DType = DType::BF16;
    let fixed = |w, n, m, k| {
        let mut spec = spec(BF16, w, n, m, k);
        spec.inputs[0].shape[0] = Extent::Fixed(n);
        spec.output.shape[0] = Extent::Fixed(n);
        spec
    };
    let cases = [
        (BF16, 512, 4096, 4096, true),
        (BF16, 64, 2048, 2048, true),
        (BF16, 300, 128256, 4096, true),
        // Few tokens, small matrices, weights dequantized in the kernel, rows and row lengths that are not multiples of
        // a vector.
        (BF16, 63, 4096, 4096, false),
        (BF16, 512, 2048, 1024, false),
        (DType::Q8Planes, 512, 4096, 4096, false),
        (BF16, 512, 4097, 4096, false),
        (BF16, 512, 4096, 4100, false),
    ];
    let places = |c: &super::BlasCall| [c.x, c.w, c.add, c.y];
    let at = |places: [Option<usize>; 4]| places.map(Memory::optional);
    for (w, n, m, k, served) in cases {
        let call = find_blas(&fixed(w, n, m, k), A100).map(|(call, _)| call);
        let product = BlasProduct { n, m, k, adds: false };
        assert_eq!(call.as_ref().map(|c| c.product), served.then_some(product), "{} {n} {m} {k}", w.name());
        assert!(call.is_none_or(|c| places(&c) == at([Some(0), Some(1), None, Some(2)])));
        // Rows beyond a run-time extent must remain unchanged.
        assert!(find_blas(&spec(w, w, n, m, k), H200).is_none());
    }

    let added = |n: usize| {
        let matrix = |format, m, k| tensor(format, [Extent::Fixed(m), Extent::Fixed(k)]);
        let node = |op, operands: [Operand; 2]| {
            let (operands, output) = (operands.to_vec(), matrix(DType::F32, n, 4096));
            GroupNode { op, operands, output, in_place: None }
        };
        let inputs = vec![matrix(BF16, n, 4096), matrix(BF16, 4096, 4096), matrix(DType::F32, n, 4096)];
        let nodes = vec![
            node(Operation::Matmul, [Operand::Input(0), Operand::Input(1)]),
            node(Elementwise::Add.into(), [Operand::Input(2), Operand::Node(0)]),
        ];
        GroupSpec::new(inputs, nodes, vec![1]).expect("a group")
    };
    let (call, _) = find_blas_group(&added(512), H200).unwrap();
    assert_eq!(call.product, BlasProduct { n: 512, m: 4096, k: 4096, adds: true });
    assert_eq!(places(&call), at([Some(0), Some(1), Some(2), Some(3)]));
    assert!(find_blas_group(&added(1024), H200).is_none());
    let two = added(512).changed(|two| {
        two.nodes[1] = two.nodes[0].clone();
        two.outputs = vec![0, 1];
    });
    assert!(find_blas_group(&two.expect("a group"), H200).is_none());
}

/// Codes of up to 16 tokens are multiplied on compute capability 9.0: by a workgroup for each multiprocessor, and by a
/// cluster where rows are too long for one, or tiles few.
#[test]
fn few_tokens_of_codes() {
    let codes = DType::I8Groups { group: 32 };
    let cases = [
        (DType::Q4Planes, 8, 4096, 4096, Some(("codes_q4_8", 132, 1, 6))),
        (DType::Planes(BlockType::Q4_K), 2, 28672, 4096, Some(("codes_q4_k_8", 132, 1, 6))),
        (DType::Planes(BlockType::Q6_K), 8, 4096, 14336, Some(("codes_q6_k_8", 132, 2, 4))),
        (DType::Q8Planes, 8, 4096, 14336, Some(("codes_q8_8", 132, 2, 4))),
        (DType::Q8Planes, 8, 1024, 4096, Some(("codes_q8_8", 128, 2, 5))),
        (DType::Q4Planes, 8, 40, 4096, Some(("codes_q4_8", 24, 8, 6))),
        (DType::Planes(BlockType::Q4_K), 8, 3_000_000, 4096, Some(("codes_q4_k_8", 2930, 1, 6))),
        (DType::Planes(BlockType::Q4_K), 9, 28672, 4096, Some(("codes_q4_k_16", 132, 1, 4))),
        (DType::Planes(BlockType::Q6_K), 16, 4096, 14336, Some(("codes_q6_k_16", 120, 4, 4))),
        // More tokens; rows that are not whole units; ternary weights.
        (DType::Planes(BlockType::Q4_K), 17, 4096, 4096, None),
        (DType::Q4Planes, 8, 4096, 4096 + 128, None),
        (DType::T2Planes, 8, 4096, 4096, None),
    ];
    for (w, n, m, k, want) in cases {
        let spec = spec(codes, w, n, m, k);
        let found = launch(codes::find(&Product::of(&spec).unwrap(), H200));
        let found = found.map(|l| {
            assert!(l.shared <= H200.max_shared);
            let stages = l.filled::<Codes>().stages;
            (l.entry.clone(), l.grid[0], l.cluster, stages)
        });
        let want = want.map(|(name, grid, cluster, stages)| (name.to_string(), grid, cluster, stages));
        assert_eq!(found, want, "{} {n} {m} {k}", w.name());
        assert!(codes::find(&Product::of(&spec).unwrap(), A100).is_none());
    }
}

/// The kernel and its launch count the same bytes of shared memory, for each type.
#[test]
fn bytes_of_codes_are_those_of_the_text() {
    let text = include_str!("../../kernels/cuda/gemm_codes.cu");
    let list = text.split_once("COUNTED_BY_HOST(DO)").and_then(|(_, rest)| rest.split_once("#define")).unwrap().0;
    let mut types = 0;
    for entry in list.split("DO(").skip(1) {
        let fields: Vec<&str> = entry.split_once(')').unwrap().0.split(", ").collect();
        let (name, numbers) = (fields[0], [1, 2, 3].map(|i| fields[i].parse::<usize>().unwrap()));
        let named = |weights: &BlockType| match name {
            "Q8" => *weights == BlockType::Q8_0,
            "Q4" => *weights == BlockType::Q4_0,
            _ => weights.name() == name,
        };
        let weights = BlockType::ALL.into_iter().find(named).unwrap_or_else(|| panic!("{name}"));
        let form = codes::Form::of(weights);
        assert_eq!([form.unit, form.lines, form.activations], numbers, "{name}");
        types += 1;
    }
    assert_eq!(types, 17);
}

/// What the device's preferences send to kernels for codes has one, whatever the weights' type and row length.
#[test]
fn preferred_codes_have_kernels() {
    let codes = DType::I8Groups { group: 32 };
    let policy = crate::policy(H200);
    let mut beyond = 0;
    let weights = DType::BLOCKS.map(|format| policy.weight_layout(format));
    for weights in weights {
        for k in [256, 512, 2048, 4096, 6144, 6400, 8192, 14336, 16384, 28672, 53248] {
            for n in [9, 12, 16, 17] {
                if policy.activations(weights, k, n, &[DType::F32, DType::BF16, codes]) == Some(codes) {
                    beyond += 1;
                    for m in [40, 1024, 28672] {
                        assert!(find(&spec(codes, weights, n, m, k), H200).is_some(), "{} {n} {m} {k}", weights.name());
                    }
                }
            }
        }
    }
    assert!(beyond > 0);
}

/// Packed matrices are multiplied as they are stored, in a launch for each run of one type; clusters share groups of
/// rows where there are few. With more than 32 tokens devices without warpgroup matrix units dequantize them first.
#[test]
fn few_tokens_with_packed_matrices() {
    let of = |spec: &KernelSpec, target| launch(find(spec, target)).map(|l| (l.entry.clone(), l.grid[0], l.cluster));
    let cases = [
        (BlockType::Q4_K, 8, 4096, 4096, ("exact_q4_k_4_32", 96, 6), ("few_q4_k_8", 64)),
        (BlockType::Q6_K, 8, 4096, 14336, ("exact_q6_k_4_32", 96, 6), ("few_q6_k_8", 64)),
        (BlockType::Q6_K, 9, 4096, 14336, ("exact_q6_k_4_32", 96, 6), ("few_q6_k_32", 64)),
        (BlockType::IQ4_XS, 32, 28672, 4096, ("wide_iq4_xs_2_32", 132, 1), ("few_iq4_xs_32", 448)),
        (BlockType::Q4_K, 33, 4096, 4096, ("wide_q4_k_3_64", 88, 4), ("unpack_q4_k", 8192)),
        (BlockType::Q5_0, 512, 4096, 14336, ("wide_q5_0_2_256", 128, 2), ("unpack_q5_0", 28672)),
        (BlockType::Q5_0, 2, 72, 96, ("few_q5_0_8", 2, 1), ("few_q5_0_8", 2)),
        // Rows that are no whole stages.
        (BlockType::Q5_0, 32, 72, 96, ("few_q5_0_32", 2, 1), ("few_q5_0_32", 2)),
    ];
    for (packed, n, m, k, (name, grid, cluster), (old, one)) in cases {
        let spec = spec(DType::BF16, DType::Planes(packed), n, m, k);
        assert_eq!(of(&spec, H200), Some((name.into(), grid, cluster)), "{name} {m} {k}");
        assert_eq!(of(&spec, A100), Some((old.into(), one, 1)), "{name} {m} {k}");
        assert!(find_blas(&spec, H200).is_none());
    }
    let q4 = DType::Planes(BlockType::Q4_K);

    // Two types: the third matrix is the second launch's first.
    let matrix = |format, m: usize| tensor(format, [Extent::Fixed(m), Extent::Fixed(512)]);
    let qkv = |n: usize, target| {
        let product = |w, m| {
            let output = tensor(DType::F32, [tokens(n), Extent::Fixed(m)]);
            let operands = vec![Operand::Input(0), Operand::Input(w)];
            GroupNode { op: Operation::Matmul, operands, output, in_place: None }
        };
        let (x, q6) = (tensor(DType::BF16, [tokens(n), Extent::Fixed(512)]), DType::Planes(BlockType::Q6_K));
        let inputs = vec![x, matrix(q4, 128), matrix(q4, 64), matrix(q6, 32)];
        let products = vec![product(1, 128), product(2, 64), product(3, 32)];
        find_group(&GroupSpec::new(inputs, products, vec![0, 1, 2]).expect("a group"), target).unwrap()
    };
    let kernel = qkv(8, A100);
    let parts: Vec<_> = kernel
        .parts
        .iter()
        .map(|part| {
            let Part::Kernel(l) = part else { panic!("a kernel") };
            let a = l.filled::<Few>();
            (l.entry.as_str(), [a.w0, a.w1, a.h0, a.s0, a.y0, a.y1, a.step], [a.m0, a.m1])
        })
        .collect();
    let at = |places: [usize; 7]| places.map(|p| Memory::optional((p < 99).then_some(p)));
    assert_eq!(
        parts,
        [
            ("few_q4_k_8", at([1, 4, 99, 2, 11, 12, 14]), [128, 64]),
            ("few_q6_k_8", at([7, 99, 8, 9, 13, 99, 14]), [32, 0]),
        ]
    );
    let wide: Vec<_> = qkv(32, H200)
        .parts
        .iter()
        .map(|part| {
            let Part::Kernel(l) = part else { panic!("a kernel") };
            let a = l.filled::<Wide>();
            let places = [a.w0.memory, a.w1.memory, a.h0, a.s0, a.s1, a.y0, a.y1];
            (l.entry.clone(), places, [a.w0.tile[0], a.w0.swizzle, a.m0, a.m1])
        })
        .collect();
    let q4_k = ("wide_q4_k_2_32".into(), at([1, 4, 99, 2, 5, 11, 12]), [32, 32, 128, 64]);
    // The first matrix stands in for a second one.
    assert_eq!(wide, [q4_k, ("wide_q6_k_2_32".into(), at([7, 7, 8, 9, 99, 13, 99]), [32, 32, 32, 0])]);
}

/// Floats of a byte with a scale per token are multiplied as they are, on compute capability 9.0; `bf16` ones by
/// weights that are widened.
#[test]
fn floats_of_a_byte() {
    let w = DType::Planes(BlockType::F8_E4M3);
    let of = |x, n, m, k, target| launch(find(&spec(x, w, n, m, k), target)).map(|l| (l.entry.clone(), l.cluster));
    let f8 = |group: usize| DType::F8Groups { group: group as u32 };
    for (n, m, k, entry) in [
        (512, 28672, 4096, ("float8_2_128", 1)),
        (512, 4096, 14336, ("float8_2_128", 1)),
        (128, 4096, 4096, ("float8_2_64", 2)),
        (65, 1024, 4096, ("float8_2_64", 4)),
    ] {
        let found = of(f8(k), n, m, k, H200).expect("a kernel");
        assert_eq!((&*found.0, found.1), entry, "{n} {m} {k}");
        assert!(of(f8(k), n, m, k, A100).is_none() && of(f8(128), n, m, k, H200).is_none());
    }
    assert_eq!(of(DType::BF16, 32, 28672, 4096, H200).expect("a kernel").0, "wide_f8_e4m3_2_32");
    assert_eq!(of(DType::BF16, 8, 28672, 4096, H200).expect("a kernel").0, "wide_f8_e4m3_2_32");
    assert_eq!(of(DType::BF16, 8, 4096, 4096, A100).expect("a kernel").0, "unpack_f8_e4m3");
    let policy = crate::policy(H200);
    let choices = [DType::F32, DType::BF16, f8(4096)];
    let chosen = [1, 2, 3, 64, 65, 512].map(|n| policy.activations(w, 4096, n, &choices));
    let [f32, bf16, f8] = choices.map(Some);
    assert_eq!(chosen, [f32, f32, bf16, bf16, f8, f8]);
}

/// The sizes of `products_cuda.rs` in hologram-llm, which compares results on a GPU, have every tile for packed
/// weights.
#[test]
fn wide_tiles() {
    let cases = [
        (27, 28672, 4096, "exact", "4_32", 1),
        (32, 4096, 14336, "exact", "4_32", 6),
        // Rows that are no whole stages.
        (32, 4096, 4160, "wide", "2_32", 3),
        (50, 4096, 4096, "wide", "3_64", 4),
        (50, 28672, 4096, "wide", "2_64", 1),
        (170, 4096, 4096, "wide", "3_64", 2),
        (512, 28672, 4096, "wide", "2_256", 1),
        (512, 4096, 14336, "wide", "2_256", 2),
    ];
    for (n, m, k, kind, tile, cluster) in cases {
        for packed in [BlockType::Q4_1, BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K, BlockType::MXFP4] {
            if k % packed.row().len != 0 {
                continue;
            }
            let spec = spec(DType::BF16, DType::Planes(packed), n, m, k);
            let launch = launch(find(&spec, H200)).unwrap();
            let (entry, cluster_of) = (&launch.entry, launch.cluster);
            let wanted = format!("{kind}_{}_{tile}", crate::launch::packed_name(packed));
            assert!(*entry == wanted && cluster_of == cluster, "{entry} in {cluster_of}, not {wanted} in {cluster}");
        }
    }
}

/// Every kernel that is chosen for planes is one of its image, and has room in shared memory.
#[test]
fn chosen_tiles_are_kernels() {
    for format in DType::BLOCKS.into_iter().map(|block| (crate::policy(H200).weight_layout)(block)) {
        for (n, m, k) in [3, 16, 31, 32, 33, 64, 65, 300, 2048].into_iter().flat_map(|n| {
            [(4096, 4096), (28672, 4096), (4096, 14336), (6144, 4096), (640, 1280), (128256, 2048)]
                .map(|(m, k)| (n, m, k))
        }) {
            // A launch asserts that its image has the kernel.
            let Some(launch) = launch(find(&spec(DType::BF16, format, n, m, k), H200)) else { continue };
            let KernelLaunch { entry, shared, .. } = launch;
            assert!(shared <= H200.max_shared, "{} [{n}, {m}, {k}]: {shared} bytes for {entry}", format.name());
        }
    }
}

/// Packed matrices are dequantized after the library's workspace, one after the other, and then multiplied as `bf16`.
#[test]
fn packed_matrices_are_unpacked_first() {
    let (q4, q6) = (DType::Planes(BlockType::Q4_K), DType::Planes(BlockType::Q6_K));
    let scratch = |memory| if let Memory::Scratch(at) = memory { Some(at - (32 << 20)) } else { None };
    let parts = |kernel: &NativeKernel| -> Vec<(String, Option<usize>)> {
        let part = |part: &Part| match part {
            Part::Kernel(l) if l.image() == "packed" => (l.entry.clone(), scratch(l.filled::<Unpack>().y)),
            Part::Kernel(l) => (l.entry.clone(), None),
            Part::Blas(call) => ("blas".into(), scratch(call.w)),
        };
        kernel.parts.iter().map(part).collect()
    };
    let one = find(&spec(DType::BF16, q4, 512, 4096, 4096), A100).unwrap();
    assert_eq!(parts(&one)[0], ("unpack_q4_k".into(), Some(0)));
    assert_eq!((one.parts.len(), one.scratch), (2, (32 << 20) + 4096 * 4096 * 2));
    let Part::Kernel(unpack) = &one.parts[0] else { panic!("a kernel") };
    let a = unpack.filled::<Unpack>();
    assert_eq!([a.low, a.high, a.records], [Memory::Binding(1), Memory::Null, Memory::Binding(2)]);
    // Two formats, and a gate with operands in reverse order.
    let matrix = |format, m, k| tensor(format, [Extent::Fixed(m), Extent::Fixed(k)]);
    let node = |op, operands: [Operand; 2]| {
        let output = tensor(DType::F32, [tokens(64), Extent::Fixed(1024)]);
        GroupNode { op, operands: operands.to_vec(), output, in_place: None }
    };
    let inputs =
        vec![tensor(DType::BF16, [tokens(64), Extent::Fixed(2048)]), matrix(q4, 1024, 2048), matrix(q6, 1024, 2048)];
    let nodes = vec![
        node(Operation::Matmul, [Operand::Input(0), Operand::Input(1)]),
        node(Operation::Matmul, [Operand::Input(0), Operand::Input(2)]),
        node(Elementwise::Swiglu.into(), [Operand::Node(1), Operand::Node(0)]),
    ];
    let gate = GroupSpec::new(inputs, nodes, vec![2]).expect("a group");
    let kernel = find_group(&gate, H200).unwrap();
    let (first, second) = (Some(0), Some(1024 * 2048 * 2));
    assert_eq!(parts(&kernel)[..2], [("unpack_q6_k".into(), first), ("unpack_q4_k".into(), second)]);
    let mut fixed = spec(DType::BF16, q6, 512, 4096, 4096);
    (fixed.inputs[0].shape[0], fixed.output.shape[0]) = (Extent::Fixed(512), Extent::Fixed(512));
    assert!(find_blas(&fixed, H200).is_none());
    let (call, unpacked) = find_blas(&fixed, A100).unwrap();
    assert_eq!(scratch(call.w), Some(0));
    let kernel = NativeKernel { parts: vec![Part::Blas(Box::new(call))], scratch: 1, counters: 0, phase: None };
    assert_eq!(parts(&unpacked.before(kernel)), [("unpack_q6_k".into(), Some(0)), ("blas".into(), Some(0))]);
    // f32 or 8-bit activations, and matrices of 2 GiB.
    for (x, m) in [(DType::F32, 64), (DType::I8Groups { group: 32 }, 64), (DType::BF16, 1 << 18)] {
        assert!(find(&spec(x, q4, 64, m, 4096), A100).is_none(), "{x:?} {m}");
    }
}
