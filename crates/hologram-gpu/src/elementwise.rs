//! Elementwise operations on f32, `cast`, and `copy` of any plain type.

use super::kernels::elementwise::{Binary, CopyBytes, Unary};
use super::launch::{Count, Places, all_f32, launch, single};
use super::{KernelLaunch, Memory, NativeKernel, Target};

use hologram_device::{DType, Elementwise as E, Extent, KernelSpec, Operation, TensorSpec};
use hologram_isa::Type;
const UNARY: [E; 7] = [E::Neg, E::Abs, E::Exp, E::Tanh, E::Relu, E::Sigmoid, E::Silu];
const BINARY: [E; 8] = [E::Add, E::Sub, E::Mul, E::Div, E::Max, E::Min, E::Swiglu, E::Relu2Mul];
/// Elements per workgroup.
const PIECE: usize = 1024;

/// The native kernel for an elementwise operation.
pub(super) fn find(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    if spec.in_place.is_some() {
        return None;
    }
    let (places, total) = (Places::of(spec), Count::elements(&spec.output)?);
    match spec.inputs.as_slice() {
        [x] if x.shape != spec.output.shape => None,
        [x] if spec.op == Operation::Copy && x.format == spec.output.format => copy(spec, &places, total),
        [x] if all_f32([x]) => {
            let entry = match (&spec.op, spec.output.format) {
                (Operation::Cast, DType::Plain(ty @ (Type::F32 | Type::F16 | Type::BF16))) => {
                    format!("cast_{}", ty.name())
                }
                (Operation::Elementwise(op), DType::F32) if UNARY.contains(op) => format!("map_{}", op.name()),
                _ => return None,
            };
            unary(entry, &places, total)
        }
        [a, b] if all_f32([a, b, &spec.output]) => {
            let Operation::Elementwise(op) = spec.op else { return None };
            if !BINARY.contains(&op) {
                return None;
            }
            let (na, nb) = (repeats(a, &spec.output)?, repeats(b, &spec.output)?);
            let whole = |n: u32| n <= 1 || n.is_multiple_of(4);
            let fours = total.in_fours() && whole(na) && whole(nb);
            let args = Binary {
                a: places.input(0, 0),
                b: places.input(1, 0),
                y: places.output(0),
                total: places.counted(total),
                na,
                nb,
                fours: fours.into(),
            };
            Some(single(launch(args, format!("map_{}", op.name()), [total.max().div_ceil(PIECE), 1], 256)?))
        }
        _ => None,
    }
}

fn unary(entry: String, places: &Places, total: Count) -> Option<NativeKernel> {
    Some(single(of_one(entry, places.input(0, 0), places.output(0), total, places.step())?))
}

/// The launch that converts `f32` to `bf16`.
pub(super) fn to_bf16(a: Memory, y: Memory, total: Count, step: Memory) -> Option<KernelLaunch> {
    of_one("cast_bf16".into(), a, y, total, step)
}

fn of_one(entry: String, a: Memory, y: Memory, total: Count, step: Memory) -> Option<KernelLaunch> {
    let args = Unary { a, y, total: total.of_step(step), fours: total.in_fours().into() };
    launch(args, entry, [total.max().div_ceil(PIECE), 1], 256)
}

/// Copies words of four bytes, or bytes if the size may not be a multiple of four.
fn copy(spec: &KernelSpec, places: &Places, total: Count) -> Option<NativeKernel> {
    let DType::Plain(ty) = spec.output.format else { return None };
    let bytes = total.times(ty.size());
    let words = if ty.size() == 4 { Some(total) } else { bytes.and_then(Count::quarter) };
    if let Some(words) = words {
        return unary("cast_f32".into(), places, words);
    }
    let bytes = bytes?;
    let args = CopyBytes { x: places.input(0, 0), y: places.output(0), total: places.counted(bytes) };
    Some(single(launch(args, "copy_bytes", [bytes.max().div_ceil(PIECE), 1], 256)?))
}

/// After how many elements an operand repeats: 0 if it has the output's shape; otherwise its shape must be the output's
/// last dimensions.
fn repeats(operand: &TensorSpec, output: &TensorSpec) -> Option<u32> {
    if operand.shape == output.shape {
        return Some(0);
    }
    let fixed = operand.shape.iter().all(|e| matches!(e, Extent::Fixed(1..)));
    let elements = operand.max_rows().checked_mul(operand.row_len())?;
    (fixed && output.shape.ends_with(&operand.shape)).then(|| u32::try_from(elements).ok()).flatten()
}
