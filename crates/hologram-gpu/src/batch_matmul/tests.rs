use hologram_device::{DType, Extent, KernelSpec, Operation, TensorSpec};
use hologram_isa::Type;

use super::find;
use crate::kernels::cuda::batch_copy::{BatchPad, BatchTurn, Join};
use crate::kernels::cuda::batch_mma::Multiply as MultiplyMma;
use crate::kernels::cuda::batch_wgmma::Multiply;
use crate::{KernelLaunch, Memory, NativeKernel, Part, Target};

const H200: Target = Target::nvidia(90, 132, 227 * 1024);
const A100: Target = Target::nvidia(80, 108, 163 * 1024);

fn tensor(format: DType, shape: &[Extent]) -> TensorSpec {
    TensorSpec { format, shape: shape.to_vec() }
}

fn fixed(shape: &[usize]) -> Vec<Extent> {
    shape.iter().map(|n| Extent::Fixed(*n)).collect()
}

fn spec(format: Type, turns: [bool; 2], a: &[Extent], b: &[Extent], y: &[Extent]) -> KernelSpec {
    let result = if format == Type::I8 { Type::I32 } else { format };
    KernelSpec {
        op: Operation::BatchMatmul { transpose: turns, bias: false, activation: None, residual: false },
        inputs: vec![tensor(DType::Plain(format), a), tensor(DType::Plain(format), b)],
        output: tensor(DType::Plain(result), y),
        in_place: None,
    }
}

/// One product of matrices with fixed sizes.
fn product(format: Type, turns: &str, [n, m, k]: [usize; 3]) -> KernelSpec {
    let turns = [turns.starts_with('t'), turns.ends_with('t')];
    let of = |rows: usize, columns: usize, turned: bool| fixed(&if turned { [columns, rows] } else { [rows, columns] });
    spec(format, turns, &of(n, k, turns[0]), &of(k, m, turns[1]), &fixed(&[n, m]))
}

fn launches(kernel: Option<NativeKernel>) -> Vec<KernelLaunch> {
    let launch = |part| match part {
        Part::Kernel(launch) => launch,
        Part::Blas(call) => panic!("{call:?}"),
    };
    kernel.map_or_else(Vec::new, |kernel| kernel.parts.into_iter().map(launch).collect())
}

fn names(spec: &KernelSpec, target: Target) -> Vec<String> {
    launches(find(spec, target)).into_iter().map(|l| l.entry).collect()
}

/// Which kernels serve which product on which device.
#[test]
fn products() {
    use Type::{BF16, F16, F32, F64, I8, I32, I64, U8};
    let square = [4096; 3];
    for (format, turns, sizes, h200, a100) in [
        (BF16, "nn", square, &["batch_wgmma_bf16_nn_2_256"][..], &["batch_bf16_nn"][..]),
        (F16, "tn", square, &["batch_wgmma_f16_tn_2_256"], &["batch_f16_tn"]),
        (BF16, "nt", [1024; 3], &["batch_wgmma_bf16_nt_2_64"], &["batch_bf16_nt", "batch_join_bf16"]),
        (BF16, "tt", square, &["batch_bf16_tt"], &["batch_bf16_tt"]),
        // Lines that are not 16 bytes apart are copied first; i8 also if it does not lie along the depth.
        (BF16, "nn", [4096, 50257, 768], &["batch_pad", "batch_wgmma_bf16_nn_2_256"], &["batch_pad", "batch_bf16_nn"]),
        (
            BF16,
            "nn",
            [64, 65, 33],
            &["batch_pad", "batch_pad", "batch_wgmma_bf16_nn_1_64"],
            &["batch_pad", "batch_pad", "batch_bf16_nn"],
        ),
        (I8, "nt", square, &["batch_wgmma_i8_nt_2_256"], &["batch_i8_nt"]),
        (I8, "nn", square, &["batch_turn", "batch_wgmma_i8_nt_2_256"], &["batch_turn", "batch_i8_nt"]),
        // Few tiles are split along the depth.
        (
            BF16,
            "tn",
            [768, 768, 8192],
            &["batch_wgmma_bf16_tn_2_128", "batch_join_bf16"],
            &["batch_bf16_tn", "batch_join_bf16"],
        ),
        (F32, "nn", [64, 64, 8192], &["batch_f32_64x64", "batch_join_f32"], &["batch_f32_64x64", "batch_join_f32"]),
        // f32 in three parts, where there is enough to multiply.
        (F32, "tt", square, &["batch_tf32x3_tt"], &["batch_tf32x3_tt"]),
        (F32, "tn", [4096, 4096, 24], &["batch_f32_128x128"], &["batch_f32_128x128"]),
        (
            F32,
            "nn",
            [4096, 4095, 4097],
            &["batch_pad", "batch_pad", "batch_tf32x3_nn"],
            &["batch_pad", "batch_pad", "batch_tf32x3_nn"],
        ),
        (F32, "nn", [9, 9, 9], &["batch_f32_any_64x64"], &["batch_f32_any_64x64"]),
        (F64, "nt", [4096, 4096, 4095], &["batch_f64_any"], &["batch_f64_any"]),
        (F64, "nt", square, &["batch_f64_128_nt"], &["batch_f64_128_nt"]),
        (I32, "nn", square, &["batch_i32"], &["batch_i32"]),
        (I64, "nn", square, &["batch_i64"], &["batch_i64"]),
        (U8, "nn", square, &[], &[]),
    ] {
        let spec = product(format, turns, sizes);
        assert_eq!(names(&spec, H200), h200, "{format} {turns} {sizes:?}");
        assert_eq!(names(&spec, A100), a100, "{format} {turns} {sizes:?}");
        assert_eq!(names(&spec, Target::APPLE), [] as [&str; 0]);
        assert_eq!(names(&spec, Target::nvidia(75, 40, 64 << 10)), [] as [&str; 0]);
    }
    assert_eq!(names(&product(BF16, "nn", [0, 8, 8]), H200), [] as [&str; 0]);
    // Where the user permits it, tf32 in one part; GPUs that multiply tf32 as fast as f32 have no use for three.
    let rounding = |target| Target { tf32: true, ..target };
    let other = Target::nvidia(89, 128, 99 << 10);
    for (target, want) in
        [(rounding(H200), "batch_tf32_tn"), (rounding(other), "batch_tf32_tn"), (other, "batch_f32_128x128")]
    {
        assert_eq!(names(&product(F32, "tn", square), target), [want]);
    }
    assert_eq!(names(&product(BF16, "nn", square), rounding(H200)), ["batch_wgmma_bf16_nn_2_256"]);
    // An empty depth gives zeros, which the copy engine does not.
    assert_eq!(names(&product(BF16, "nn", [8, 8, 0]), H200), ["batch_bf16_nn"]);
}

/// x · wᵀ in sizes that its own kernels lack: results are sums as they are.
#[test]
fn linear_products() {
    let of = |format: DType, [n, m, k]: [usize; 3]| {
        let spec = KernelSpec {
            op: Operation::Matmul,
            inputs: vec![tensor(format, &fixed(&[n, k])), tensor(format, &fixed(&[m, k]))],
            output: tensor(DType::F32, &fixed(&[n, m])),
            in_place: None,
        };
        crate::find(&spec, H200)
    };
    let names = |kernel| launches(kernel).into_iter().map(|l| l.entry).collect::<Vec<_>>();
    let kernel = of(DType::BF16, [4096, 50257, 768]);
    assert_eq!(launches(kernel.clone())[0].filled::<Multiply>().finish, super::SUMS);
    assert_eq!(names(kernel), ["batch_wgmma_bf16_nt_2_256"]);
    assert_eq!(names(of(DType::F32, [4096, 4096, 4096])), ["batch_tf32x3_nt"]);
    // Those of the operation itself.
    assert_eq!(names(of(DType::BF16, [512, 4096, 4096])), ["wgmma_bf16_2_128"]);
    assert_eq!(names(of(DType::F32, [16, 4096, 4096])), ["matmul_small"]);
}

/// Matrices that share the right side are rows of one product; other batches are found by up to three numbers.
#[test]
fn batches() {
    let f = fixed;
    let of = |a: &[usize], b: &[usize], y: &[usize]| {
        let spec = spec(Type::BF16, [false; 2], &f(a), &f(b), &f(y));
        let launch = launches(find(&spec, A100)).into_iter().next()?;
        let m = launch.filled::<MultiplyMma>();
        let [a, b] = [[m.a_slow, m.a_middle, m.a_fast], [m.b_slow, m.b_middle, m.b_fast]];
        Some(((m.n.most * m.n.per, m.batches.most * m.batches_per), [m.middle, m.fast], a, b))
    };
    assert_eq!(of(&[8, 12, 64, 16], &[16, 64], &[8, 12, 64, 64]), Some(((6144, 1), [1, 1], [0; 3], [0; 3])));
    // Neighbouring dimensions of both are one.
    assert_eq!(
        of(&[8, 12, 64, 16], &[8, 12, 16, 64], &[8, 12, 64, 64]),
        Some(((64, 96), [1, 96], [0, 0, 1], [0, 0, 1]))
    );
    assert_eq!(of(&[64, 16], &[5, 16, 64], &[5, 64, 64]), Some(((64, 5), [1, 5], [0; 3], [0, 0, 1])));
    let mixed = of(&[3, 1, 2, 64, 16], &[2, 1, 16, 64], &[3, 2, 2, 64, 64]);
    assert_eq!(mixed, Some(((64, 12), [2, 2], [2, 0, 1], [0, 1, 0])));
    // Four dimensions that differ.
    assert_eq!(of(&[3, 1, 2, 1, 64, 16], &[1, 2, 1, 2, 16, 64], &[3, 2, 2, 2, 64, 64]), None);
    // A batch known only at run time.
    let step = |max| Extent::step(2, max);
    let [a, b, y] = [[16, 8], [8, 24], [16, 24]].map(|m| [&[step(9)], &*fixed(&m)].concat());
    let launch = launches(find(&spec(Type::F16, [false; 2], &a, &b, &y), H200)).remove(0);
    let m = launch.filled::<Multiply>();
    assert_eq!((m.batches.slot, m.batches.most, m.batches_per, m.fast, m.n.step), (2, 9, 1, 9, Memory::Binding(3)));
    assert_eq!((m.a.dims.as_slice(), m.b.strides.as_slice()), (&[8, 16, 9][..], &[48, 384][..]));
}

/// What the launches before and after a product read and write.
#[test]
fn copies_and_sums() {
    // a [8192, 50257] transposed · b [8192, 768]: the gradient by a large table.
    let kernel = find(&product(Type::BF16, "tn", [50257, 768, 8192]), H200).unwrap();
    let parts = launches(Some(kernel.clone()));
    let pad = parts[0].filled::<BatchPad>();
    assert_eq!((pad.x, pad.y, pad.bytes, pad.pitch), (Memory::Binding(0), Memory::Scratch(0), 100_514, 100_528));
    let m = parts[1].filled::<Multiply>();
    assert_eq!((m.a.memory, m.b.memory), (Memory::Scratch(0), Memory::Binding(1)));
    assert_eq!((m.a.dims.as_slice(), m.a.strides[0]), (&[50257, 8192, 1][..], 100_528));
    assert_eq!(kernel.scratch, 8192 * 100_528);
    // i8 that lies across comes along the depth.
    let parts = launches(find(&product(Type::I8, "tn", [100, 80, 50]), A100));
    let turn = parts[0].filled::<BatchTurn>();
    assert_eq!((turn.lines, turn.rows.most, turn.pitch, parts[0].grid[0]), (100, 50, 64, 2));
    let m = parts[2].filled::<MultiplyMma>();
    assert_eq!((parts[2].entry.as_str(), m.a_pitch, m.b_pitch), ("batch_i8_nt", 64, 64));
    assert_eq!((m.a, m.b), (Memory::Scratch(0), Memory::Scratch(6400)));
    // With a split depth the last launch adds bias, activation and residual.
    let mut spec = product(Type::F32, "nn", [64, 64, 8192]);
    spec.op = Operation::BatchMatmul {
        transpose: [false; 2],
        bias: true,
        activation: Some(hologram_device::Activation::Silu),
        residual: true,
    };
    spec.inputs.extend([tensor(DType::F32, &fixed(&[64])), tensor(DType::F32, &fixed(&[64, 64]))]);
    let kernel = find(&spec, H200).unwrap();
    let parts = launches(Some(kernel.clone()));
    let splits = parts[0].grid[1];
    let join = parts[1].filled::<Join>();
    assert_eq!(
        (join.splits, join.finish, join.bias, join.y),
        (splits, 1 + 2 + 12, Memory::Binding(2), Memory::Binding(4))
    );
    assert_eq!((kernel.scratch, parts[1].grid[0]), (splits as usize * 64 * 64 * 4, 4));
}
