//! Which specs and groups have kernels, and which kernels; without a device.

use hologram_device::{
    AttentionPrecision, DType, Extent, GroupNode, GroupSpec, KernelSpec, Operand, Operation, RopeStyle, TensorSpec,
};

use super::super::kernels::attention_decode::{AttentionDecode, AttentionJoin};
use super::super::kernels::cuda::attention_few::{self, AttentionFew};
use super::super::kernels::cuda::attention_wgmma::AttentionWgmma;
use super::super::{Memory, NativeKernel, Part, Target};
use super::{find, find_group};

const TARGET: Target = Target::nvidia(90, 132, 227 * 1024);

fn tensor(format: DType, shape: &[Extent]) -> TensorSpec {
    TensorSpec { format, shape: shape.to_vec() }
}

fn fixed(sizes: &[usize]) -> Vec<Extent> {
    sizes.iter().map(|n| Extent::Fixed(*n)).collect()
}

/// Attention of up to `tokens` tokens, 8 heads to 2, in blocks of 32.
fn spec(tokens: usize, d: usize, cache: DType, sequences: usize, precision: u32) -> KernelSpec {
    let n = Extent::step(1, tokens);
    let q = tensor(DType::F32, &[n, Extent::Fixed(8), Extent::Fixed(d)]);
    let cache = tensor(cache, &fixed(&[64, 2, 32, d]));
    let index = tensor(DType::U32, &[n]);
    KernelSpec {
        op: attention(None, precision),
        inputs: vec![
            q.clone(),
            cache.clone(),
            cache,
            index.clone(),
            index,
            tensor(DType::U32, &fixed(&[sequences, 64])),
        ],
        output: q,
        in_place: None,
    }
}

fn attention(window: Option<u32>, precision: u32) -> Operation {
    let precision = if precision == 1 { AttentionPrecision::BF16 } else { AttentionPrecision::F32 };
    Operation::Attention { scale: 0.125.into(), precision, window, cap: None, pieces: false }
}

fn entries(kernel: &NativeKernel) -> Vec<&str> {
    fn entry(part: &Part) -> &str {
        match part {
            Part::Kernel(launch) => &launch.entry,
            Part::Blas(_) => "cuBLASLt",
        }
    }
    kernel.parts.iter().map(entry).collect()
}

/// On Apple GPUs a separate launch combines the splits of few tokens; there is a kernel for many tokens.
#[test]
fn attention_on_apple_gpus() {
    let apple = Target::apple(32);
    for (tokens, d, cache, sequences, want) in [
        (1, 128, DType::F32, 1, "attention_decode_float_128_4 attention_join_4"),
        (1, 128, DType::F16, 64, "attention_decode_half_128_4 attention_join_4"),
        (1, 128, DType::Q8Planes, 1, "attention_decode_eight_128_4 attention_join_4"),
        (1, 128, DType::F8, 1, "attention_decode_float_byte_128_4 attention_join_4"),
        (1, 128, DType::Q4Planes, 1, "attention_decode_four_bits_128_4 attention_join_4"),
        // As many workgroups as the device can hold, without splits.
        (40, 128, DType::F32, 64, "attention_decode_float_128_4"),
        (512, 128, DType::F16, 1, "attention_prefill_half_128"),
        (512, 80, DType::F32, 4, "attention_prefill_float_80"),
        (40, 64, DType::Q8Planes, 1, "attention_prefill_eight_64"),
        (40, 64, DType::F8, 1, "attention_prefill_float_byte_64"),
        (40, 64, DType::Q4Planes, 1, "attention_prefill_four_bits_64"),
        // Head sizes without a specialised kernel.
        (512, 256, DType::F16, 1, "attention_decode_half_0_4"),
    ] {
        for precision in [0, 1] {
            let kernel = find(&spec(tokens, d, cache, sequences, precision), apple).unwrap();
            assert_eq!(entries(&kernel).join(" "), want);
        }
    }
    // Splits of a window are combined too.
    let mut windowed = spec(1, 128, DType::F16, 1, 0);
    windowed.op = attention(Some(1000), 0);
    let kernel = find(&windowed, apple).unwrap();
    let [_, Part::Kernel(join)] = &kernel.parts[..] else { panic!("two launches") };
    assert_eq!(join.filled::<AttentionJoin>().window, 1000);
}

/// Independent tokens have the kernels of few tokens, whose splits depend on the plan alone, of however few sequences.
#[test]
fn independent_tokens_are_as_few() {
    for (target, want) in [(TARGET, "attention_few_128_8"), (Target::apple(32), "attention_decode_half_128_4")] {
        for sequences in [1, 64] {
            let mut spec = spec(32, 128, DType::F16, sequences, 1);
            for tensor in spec.inputs.iter_mut().chain([&mut spec.output]) {
                for n in tensor.shape.iter_mut().filter(|n| matches!(n, Extent::Step { .. })) {
                    *n = Extent::Step { slot: 1, max: 32, independent: true };
                }
            }
            let found = find(&spec, target).unwrap();
            let entry = &entries(&found)[0];
            assert!(entry.starts_with(want), "{entry} of {sequences} sequences, not {want}");
        }
    }
}

/// New rows are stored by the launch that reads them where one workgroup does both: of one token, with all heads that
/// share keys and values. Elsewhere the launch before attention stores them.
#[test]
fn on_apple_gpus_one_workgroup_stores_and_reads_a_row() {
    let served = |group: &GroupSpec| find_group(group, Target::apple(32)).map(|k| entries(&k).join(" "));
    let append = "attention_decode_float_64_4 attention_join_4".to_string();
    assert_eq!(served(&group(1, true)), Some(append));
    for tokens in 2..=8 {
        assert_eq!(served(&group(tokens, true)), None, "{tokens} tokens");
    }
    // 18 query heads of each key/value head are several workgroups.
    let wide = group(1, true).changed(|group| {
        group.inputs[0].shape[1] = Extent::Fixed(36);
        for node in [0, 4] {
            group.nodes[node].output.shape[1] = Extent::Fixed(36);
        }
    });
    assert_eq!(wide.and_then(|group| served(&group)), None);
    assert_eq!(served(&group(8, false)).as_deref(), Some("rope_append_f32"));
}

/// A workgroup of Apple's kernel for many tokens has 64 rows of whole tokens, of one key/value head's query heads each.
#[test]
fn prompts_have_workgroups_for_every_token() {
    for heads in 1..=64usize {
        for tokens in [65, 85, 91, 127, 512] {
            let mut spec = spec(tokens, 128, DType::F16, 1, 0);
            spec.inputs[0].shape[1] = Extent::Fixed(2 * heads);
            spec.output.shape[1] = Extent::Fixed(2 * heads);
            let kernel = find(&spec, Target::APPLE).unwrap();
            let Part::Kernel(launch) = &kernel.parts[0] else { panic!("a kernel") };
            assert_eq!(launch.entry, "attention_prefill_half_128");
            let whole = 64 / heads;
            assert!(launch.grid[1] as usize * whole >= tokens, "{tokens} tokens of {heads} heads: {:?}", launch.grid);
        }
    }
}

#[test]
fn attention_is_served_by_tokens_size_and_precision() {
    let (f32, f16) = (DType::F32, DType::F16);
    for (tokens, d, cache, sequences, precision, want) in [
        (1, 128, f32, 1, 0, "attention_decode_float_128_4"),
        (1, 128, f16, 1, 1, "attention_few_128_8"),
        (8, 64, f16, 4, 1, "attention_few_64_4"),
        (1, 80, f16, 1, 0, "attention_decode_half_0_4"),
        (512, 128, f32, 1, 1, "attention_round_f32 attention_prefill_bf16_128"),
        (64, 128, f16, 1, 1, "attention_wgmma_128"),
        (64, 256, f16, 1, 1, "attention_wgmma_256"),
        (64, 96, f16, 1, 1, "attention_round_f16 attention_prefill_bf16_96"),
        // Each token may belong to a sequence of its own.
        (64, 128, f16, 64, 1, "attention_few_128_4"),
        (512, 128, f32, 1, 0, "attention_prefill_f32_128"),
        (512, 80, f16, 1, 0, "attention_widen_f16 attention_prefill_f32_80"),
        (512, 256, f32, 1, 0, "attention_decode_float_0_4"),
        (1, 128, DType::Q8Planes, 1, 0, "attention_eight_128"),
        (1, 128, DType::F8, 1, 0, "attention_float_byte_128"),
        (1, 72, DType::F8, 1, 0, "attention_decode_float_byte_0_4"),
        (512, 64, DType::F8, 1, 0, "attention_widen_float_byte attention_prefill_f32_64"),
        (512, 64, DType::F8, 1, 1, "attention_round_float_byte attention_prefill_bf16_64"),
        (1, 128, DType::Q4Planes, 1, 0, "attention_four_128"),
        (1, 96, DType::Q8Planes, 1, 0, "attention_decode_eight_0_4"),
        (1, 96, DType::Q4Planes, 1, 0, "attention_decode_four_bits_0_4"),
        (512, 64, DType::Q8Planes, 1, 1, "attention_round_eight attention_prefill_bf16_64"),
        (512, 64, DType::Q4Planes, 1, 1, "attention_round_four attention_prefill_bf16_64"),
        (512, 72, f32, 1, 1, "attention_decode_float_0_4"),
    ] {
        let kernel = find(&spec(tokens, d, cache, sequences, precision), TARGET);
        assert_eq!(kernel.as_ref().map(|k| entries(k).join(" ")).as_deref(), Some(want), "{tokens} tokens, d {d}");
    }
    // Tokens that follow others of their sequence.
    let mut pieces = spec(64, 128, f16, 64, 1);
    pieces.op = Operation::Attention {
        scale: 0.125.into(),
        precision: AttentionPrecision::BF16,
        window: None,
        cap: None,
        pieces: true,
    };
    assert_eq!(find(&pieces, TARGET).as_ref().map(|k| entries(k).join(" ")).as_deref(), Some("attention_wgmma_128"));
    // Sizes that no kernel serves.
    for d in [4, 12, 264] {
        assert!(find(&spec(1, d, f32, 1, 0), TARGET).is_none(), "d {d}");
    }
    let faulty: [fn(&mut KernelSpec); 5] = [
        |s| s.op = Operation::Gather,
        |s| s.inputs[1].format = DType::BF16,
        |s| s.inputs[2].shape[0] = Extent::Fixed(63),
        |s| s.inputs[3].shape[0] = Extent::Fixed(1),
        |s| s.inputs[1].shape[2] = Extent::Fixed(24),
    ];
    for (i, fault) in faulty.iter().enumerate() {
        let mut spec = spec(1, 64, f32, 1, 0);
        fault(&mut spec);
        assert!(find(&spec, TARGET).is_none(), "fault {i}");
    }
}

/// The decoder's group: inputs q, positions, frequencies, k, key cache, slots, value cache, v, sequences, block table.
fn group(tokens: usize, attended: bool) -> GroupSpec {
    group_of(tokens, attended, DType::F32, 1)
}

/// The same with a cache of this type, of as many sequences.
fn group_of(tokens: usize, attended: bool, cache: DType, sequences: usize) -> GroupSpec {
    let spec_of_attention = spec(tokens, 64, cache, sequences, 0);
    let [q, cache, _, index, _, table] =
        <[TensorSpec; 6]>::try_from(spec_of_attention.inputs.clone()).expect("six inputs");
    let k = tensor(DType::F32, &[index.shape[0], Extent::Fixed(2), Extent::Fixed(64)]);
    let freqs = tensor(DType::F32, &fixed(&[32]));
    let node = |op, operands: &[Operand], output: &TensorSpec, in_place| GroupNode {
        op,
        operands: operands.to_vec(),
        output: output.clone(),
        in_place,
    };
    let (input, of) = (Operand::Input, Operand::Node);
    let rope = || Operation::Rope { style: RopeStyle::HalfSplit };
    let mut nodes = vec![
        node(rope(), &[input(0), input(1), input(2)], &q, None),
        node(rope(), &[input(3), input(1), input(2)], &k, None),
        node(Operation::KvAppend, &[input(4), of(1), input(5)], &cache, Some(0)),
        node(Operation::KvAppend, &[input(6), input(7), input(5)], &cache, Some(0)),
    ];
    let mut inputs = vec![q.clone(), index.clone(), freqs, k.clone(), cache.clone(), index.clone(), cache.clone(), k];
    if attended {
        inputs.extend([index, table]);
        let operands = [of(0), of(2), of(3), input(1), input(8), input(9)];
        nodes.push(node(spec_of_attention.op, &operands, &q, None));
    }
    GroupSpec::new(inputs, nodes, vec![if attended { 4 } else { 0 }]).expect("a group")
}

#[test]
fn groups_are_matched_by_structure() {
    let served = |group: &GroupSpec| find_group(group, TARGET).map(|k| entries(&k).join(" "));
    assert_eq!(served(&group(8, true)).as_deref(), Some("attention_decode_float_64_4"));
    assert_eq!(served(&group(512, false)).as_deref(), Some("rope_append_f32"));
    // More tokens than the limit of rows appended in the step.
    assert_eq!(served(&group(9, true)), None);
    assert_eq!(served(&group_of(9, true, DType::F16, 1)), None);
    // On tensor cores workgroups make the rows that they read, and may store their results as bf16.
    for (tokens, sequences, alone, converted) in [
        (2, 8, Some(0), None),
        (3, 8, Some(0), Some(1)),
        (32, 32, Some(0), Some(1)),
        (33, 128, None, None),
        (32, 31, None, None),
    ] {
        let narrow = |group: GroupSpec| {
            let kernel = find_group(&group, TARGET)?;
            let [Part::Kernel(launch)] = &kernel.parts[..] else { panic!("{kernel:?}") };
            assert_eq!(launch.entry, "attention_few_64_4");
            Some(launch.filled::<AttentionFew>().narrow)
        };
        let plain = group_of(tokens, true, DType::F16, sequences);
        let cast = plain.clone().changed(|group| {
            let of = group.nodes[4].output.clone();
            // The product after it takes heads as one row.
            let shape = vec![of.shape[0], Extent::Fixed(of.row_len() * 8)];
            let output = TensorSpec { format: DType::BF16, shape };
            group.nodes.push(GroupNode {
                op: Operation::Cast,
                operands: vec![Operand::Node(4)],
                output,
                in_place: None,
            });
            group.outputs = vec![5];
        });
        assert_eq!((narrow(plain), cast.and_then(narrow)), (alone, converted), "{tokens} tokens");
    }
    // Keys and values, and q and k, in reverse order.
    let other = group(1, true).changed(|other| {
        other.nodes.swap(2, 3);
        other.nodes.swap(0, 1);
        other.nodes[3].operands[1] = Operand::Node(0);
        other.nodes[4].operands[..3].copy_from_slice(&[Operand::Node(1), Operand::Node(3), Operand::Node(2)]);
    });
    assert_eq!(
        other.and_then(|g| served(&g)),
        served(&group(1, true)).map(|_| "attention_decode_float_64_4".to_string())
    );

    let faulty: [fn(&mut GroupSpec); 9] = [
        |g| g.outputs.push(0),
        |g| g.nodes[0].op = Operation::Rope { style: RopeStyle::Adjacent },
        |g| g.nodes[3].operands[0] = Operand::Input(4),
        |g| g.nodes[3].operands[2] = Operand::Input(1),
        |g| g.nodes[4].operands[0] = Operand::Input(0),
        |g| g.nodes[4].operands[3] = Operand::Input(5),
        |g| g.nodes[4].operands.swap(1, 2),
        |g| g.inputs[2].shape[0] = Extent::Fixed(30),
        |g| g.inputs[7].shape[1] = Extent::Fixed(1),
    ];
    for (i, fault) in faulty.iter().enumerate() {
        let faulty = group(1, true).changed(fault);
        assert_eq!(faulty.and_then(|g| served(&g)), None, "fault {i}");
    }
}

/// A step of several tokens has a column of workgroups for each token and for each part that they divide.
#[test]
fn workgroups_of_several_tokens_are_divided() {
    // For each of two heads there is room for 66 workgroups, or with many tokens 132 smaller ones: as many less the
    // tokens are divided, but at least half.
    for (tokens, divided) in [(2, 64), (32, 34), (256, 66)] {
        let kernel = find(&spec(tokens, 128, DType::F16, 256, 1), TARGET).expect("served");
        let [Part::Kernel(launch)] = kernel.parts.as_slice() else { panic!("one part") };
        let columns = divided + tokens as u32;
        assert_eq!(launch.grid, [columns, 2, 1], "{tokens} tokens");
        assert_eq!(launch.filled::<AttentionFew>().splits >> attention_few::DIVIDED, divided);
        assert_eq!((kernel.scratch, kernel.counters), (columns as usize * 2 * 8 * (128 + 2) * 4, tokens * 2 * 4));
    }
    let one = find(&spec(1, 128, DType::F16, 256, 1), TARGET).expect("served");
    let [Part::Kernel(launch)] = one.parts.as_slice() else { panic!("one part") };
    assert_eq!(launch.filled::<AttentionFew>().splits >> attention_few::DIVIDED, 0);
}

#[test]
fn parts_of_positions_lie_in_scratch_memory() {
    let kernel = find(&spec(1, 128, DType::F32, 1, 0), TARGET).expect("served");
    let [Part::Kernel(launch)] = kernel.parts.as_slice() else { panic!("one part") };
    assert_eq!(launch.args.list().len(), 31);
    // 2 · 132 workgroups for two heads, at most 64 splits.
    assert_eq!((launch.grid, kernel.counters), ([64, 2, 1], 8));
    let args = launch.filled::<AttentionDecode>();
    assert_eq!((args.partial, args.stats), (Memory::Scratch(0), Memory::Scratch(64 * 2 * 4 * 128 * 4)));
    assert_eq!(kernel.scratch, 64 * 2 * 4 * (128 + 2) * 4);
}

/// Every kernel gets caps, first positions and sinks as arguments.
#[test]
fn variants_are_told() {
    let apple = Target::apple(32);
    for (target, tokens, d, cache) in [
        (TARGET, 1, 128, DType::F16),
        (TARGET, 1, 64, DType::F32),
        (TARGET, 1, 64, DType::Q8Planes),
        (TARGET, 1, 64, DType::F8),
        (TARGET, 512, 128, DType::F16),
        (apple, 1, 128, DType::F16),
        (apple, 512, 128, DType::F16),
    ] {
        let plain = spec(tokens, d, cache, 1, 1);
        let mut varied = plain.clone();
        varied.op = Operation::Attention {
            scale: 0.125.into(),
            precision: AttentionPrecision::BF16,
            window: None,
            cap: Some(50.0.into()),
            pieces: false,
        };
        varied.inputs.push(plain.inputs[3].clone());
        varied.inputs.push(tensor(DType::F32, &fixed(&[8])));
        let (plain, varied) = [plain, varied].map(|s| find(&s, target).expect("served")).into();
        assert_eq!(entries(&varied), entries(&plain));
        let told = format!("{:?}", varied.parts);
        let places = if cache == DType::Q8Planes { [8, 9] } else { [6, 7] };
        let [firsts, sinks] = places.map(|i| format!("{:?}", Memory::Binding(i)));
        assert!(
            ["firsts", "slots"].iter().any(|n| told.contains(&format!("{n}: {firsts}")))
                && told.contains(&format!("sinks: {sinks}")),
            "{told}"
        );
        assert!(told.contains("cap: 72.13"), "{told}");
    }
}

/// A window bounds the splits of a token's positions, and is passed in the flags or as a number; a window that no
/// sequence exceeds is dropped.
#[test]
fn windows_are_told() {
    let windowed = |tokens: usize, window: u32| {
        let mut spec = spec(tokens, 128, DType::F16, 1, 1);
        spec.op = attention(Some(window), 1);
        find(&spec, TARGET)
    };
    let last = |kernel: &NativeKernel| match kernel.parts.last() {
        Some(Part::Kernel(launch)) => launch.clone(),
        _ => panic!("a kernel"),
    };
    for (window, flags, splits) in [(100, 4 | 100 << 5, 2), (1900, 4 | 1900 << 5, 16), (2048, 4, 16), (1 << 30, 4, 16)]
    {
        let launch = last(&windowed(1, window).expect("served"));
        assert_eq!(launch.filled::<AttentionFew>().flags, flags, "{window}");
        assert_eq!(launch.grid[0], splits, "{window}");
    }
    for (window, told) in [(100, 100), (2048, u32::MAX)] {
        let launch = last(&windowed(512, window).expect("served"));
        assert_eq!(launch.filled::<AttentionWgmma>().window, told);
    }
}

/// Heads of 512 and 576 elements over a cache of `f16`: few tokens, whose positions are split and joined, and prompts.
#[test]
fn attention_of_wide_heads() {
    for (tokens, d, cache, precision, want) in [
        (1, 576, DType::F16, 0, "attention_wide_few_576 attention_wide_join"),
        (8, 512, DType::F16, 1, "attention_wide_few_512 attention_wide_join"),
        (512, 576, DType::F16, 1, "attention_wide_many_576"),
        (40, 512, DType::F16, 1, "attention_wide_many_512"),
        // In the precision of one token; there are more groups of heads than multiprocessors.
        (512, 576, DType::F16, 0, "attention_wide_few_576"),
    ] {
        let kernel = find(&spec(tokens, d, cache, 1, precision), TARGET).unwrap();
        assert_eq!(entries(&kernel).join(" "), want);
        let Part::Kernel(launch) = &kernel.parts[0] else { panic!() };
        assert!(launch.shared <= TARGET.max_shared);
    }
    for (d, cache) in [(576, DType::F32), (576, DType::Q8Planes), (320, DType::F16), (640, DType::F16)] {
        assert!(find(&spec(1, d, cache, 1, 0), TARGET).is_none(), "{d} {cache:?}");
        assert!(find(&spec(40, d, cache, 1, 1), TARGET).is_none(), "{d} {cache:?}");
    }
    assert!(find(&spec(1, 576, DType::F16, 1, 0), Target::apple(32)).is_none());
}
