//! The conformance cases of the elementwise operations: each with each of its types over a short table of shapes.

use std::sync::Arc;

use hologram_backends::DType;
use hologram_backends::Elementwise as E;
use hologram_isa::Type;

use super::table::rows;
use super::{Kind, Map, cast, constant};
use crate::conformance::{Case, CaseInput, Fill, View};
use crate::ops::SharedOp;
use crate::tensor::Dim;

pub(in crate::ops) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for map in rows() {
        for ty in map.scalar.types.iter() {
            cases.extend(of_type(map, ty));
        }
    }
    cases.extend(cast::cases());
    cases.extend(constant::cases());
    cases
}

/// The rows that have gradients, with their number of operands.
pub(crate) fn gradient_rows() -> Vec<(SharedOp, usize)> {
    let with = rows().into_iter().filter(|map| map.scalar.gradients.is_some());
    with.map(|map| (Arc::new(map) as SharedOp, map.scalar.operands)).collect()
}

/// Cases with no element, one element, odd numbers of elements and more than one workgroup; with an extent and without;
/// with operands that broadcast; and corner cases.
fn of_type(map: Map, ty: Type) -> Vec<Case> {
    let operands = map.scalar.operands;
    let mut cases = Vec::new();
    let push = |cases: &mut Vec<Case>, extents: &[(usize, usize)], shapes: &[Vec<Dim>]| {
        let mut case = Case::new(map, extents);
        for i in 0..operands {
            // The last shape repeats for further operands; a shorter one broadcasts.
            let shape = &shapes[i.min(shapes.len() - 1)];
            case = case.input(input(map, i, ty, extents, shape));
        }
        cases.push(case);
    };
    let fixed = |sizes: &[usize]| sizes.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
    let rows = |d: usize| vec![Dim::Extent(0), Dim::Fixed(d)];
    push(&mut cases, &[(3, 0)], &[rows(5)]);
    push(&mut cases, &[(4, 3)], &[rows(37)]);
    push(&mut cases, &[], &[fixed(&[])]);
    push(&mut cases, &[], &[fixed(&[1031])]);
    if operands > 1 {
        push(&mut cases, &[(4, 3)], &[rows(33), fixed(&[33])]);
        push(&mut cases, &[(4, 3)], &[rows(1), fixed(&[1, 12])]);
        push(&mut cases, &[], &[fixed(&[2, 3, 1, 5]), fixed(&[3, 4, 1]), fixed(&[])]);
        push(&mut cases, &[], &[fixed(&[0, 7]), fixed(&[7])]);
    }
    if operands > 1 && ty.size() != 2 {
        // The last operand is a permuted part of a tensor.
        let order = [View::Slice(0, 1, 4), View::Permute(vec![2, 0, 1])];
        let shapes = [fixed(&[8, 3, 5]), fixed(&[5, 5, 8])];
        let case = (0..operands).fold(Case::new(map, &[]), |case, i| {
            case.input(input(map, i, ty, &[], &shapes[usize::from(i + 1 == operands)]))
        });
        cases.push(order.into_iter().fold(case, Case::view));
    }
    // A large shape, for kernels whose threads loop over elements.
    if ty == Type::F32 && matches!(map.scalar.op, E::Add | E::Relu) {
        push(&mut cases, &[(8, 8)], &[rows(9001)]);
    }
    cases.extend(corners(map, ty));
    cases
}

/// Numbers that lie in the type's range and are meaningful for the operation.
fn input(map: Map, operand: usize, ty: Type, extents: &[(usize, usize)], shape: &[Dim]) -> CaseInput {
    let size = |d: &Dim| match d {
        Dim::Fixed(n) => *n,
        Dim::Extent(e) => extents[*e as usize].1,
    };
    let count = shape.iter().map(size).product::<usize>();
    let (op, last) = (map.scalar.op, operand + 1 == map.scalar.operands);
    let (ty, fill) = match ty {
        _ if map.scalar.kind == Kind::Choose && operand == 0 => (Type::Bool, Fill::Below(2)),
        Type::Bool => (ty, Fill::Below(2)),
        _ if ty.is_float() && matches!(op, E::Log | E::Log2 | E::Log10 | E::Sqrt | E::Rsqrt) => {
            (ty, Fill::Values((0..count).map(|i| ((i * 37 + 1) % 1009) as f32 * 0.31).collect()))
        }
        _ if ty.is_float() && matches!(op, E::Asin | E::Acos | E::Atanh) => {
            (ty, Fill::Values((0..count).map(|i| ((i * 37) % 1009) as f32 / 504.0 - 1.0).collect()))
        }
        _ if ty.is_float() && op == E::Acosh => {
            (ty, Fill::Values((0..count).map(|i| 1.0 + ((i * 37) % 1009) as f32 * 0.01).collect()))
        }
        _ if ty.is_float() => (ty, Fill::Normal(if op == E::Pow { 4.0 } else { 1.0 })),
        _ if op == E::Pow => {
            let signed = matches!(ty, Type::I8 | Type::I16 | Type::I32 | Type::I64);
            // Results that are exact in f64, in which they are compared, and wrap in the narrow types.
            let value = |i: usize| match (last, signed) {
                (true, true) => (i % 14) as f32 - 3.0,
                (true, false) => (i % 11) as f32,
                (false, true) => (i * 7 % 23) as f32 - 11.0,
                (false, false) => (i * 7 % 23) as f32,
            };
            (ty, Fill::Values((0..count).map(value).collect()))
        }
        // Divisors other than 0; shift counts from 0 to 39, below and above the width of all but 64-bit types.
        _ if matches!(op, E::Div | E::Rem | E::Remainder | E::FloorDivide) && last => {
            let signed = matches!(ty, Type::I8 | Type::I16 | Type::I32 | Type::I64);
            let value = |i: usize| if signed && i % 3 == 1 { -((i % 50 + 1) as f32) } else { (i % 90 + 1) as f32 };
            (ty, Fill::Values((0..count).map(value).collect()))
        }
        _ if matches!(op, E::Shl | E::Shr) && last => (ty, Fill::Values((0..count).map(|i| (i % 40) as f32).collect())),
        Type::I8 => (ty, Fill::Normal(60.0)),
        Type::U8 => (ty, Fill::Below(256)),
        Type::I16 => (ty, Fill::Normal(1e4)),
        Type::U16 => (ty, Fill::Below(1 << 16)),
        Type::I32 => (ty, Fill::Normal(1e6)),
        // Results that are exact in f64, in which they are compared.
        Type::I64 => (ty, Fill::Normal(1e7)),
        _ => (ty, Fill::Below(1 << 24)),
    };
    CaseInput { format: DType::Plain(ty), shape: shape.to_vec(), fill }
}

/// Each combination of the values at which functions break, or of the least and greatest integers.
fn corners(map: Map, ty: Type) -> Option<Case> {
    const FLOATS: [f32; 20] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.5,
        -3.0,
        88.0,
        -88.0,
        104.0,
        -104.0,
        1e-30,
        1e15,
        -1e15,
        1e-15,
        1e-41,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    // An intermediate overflow in a gate's product is meaningless together with an infinite operand.
    let gate = matches!(map.scalar.op, E::Swiglu | E::Relu2Mul | E::ClampedSwiglu);
    let values: Vec<f32> = match ty {
        _ if ty.is_float() => FLOATS.into_iter().filter(|v| !gate || v.is_nan() || v.abs() < 200.0).collect(),
        Type::I8 => vec![-128.0, -127.0, -1.0, 0.0, 1.0, 127.0],
        Type::U8 => vec![0.0, 1.0, 2.0, 254.0, 255.0],
        Type::I16 => vec![-32768.0, -1.0, 0.0, 1.0, 32767.0],
        Type::U16 => vec![0.0, 1.0, 2.0, 65534.0, 65535.0],
        Type::I32 => vec![-2147483648.0, -1.0, 0.0, 1.0, 2147483520.0, 16_777_215.0],
        Type::U32 => vec![0.0, 1.0, 4294967040.0, 2147483648.0],
        _ => return None,
    };
    let (operands, n) = (map.scalar.operands, values.len());
    let divides = matches!(map.scalar.op, E::Div | E::Rem | E::Remainder | E::FloorDivide);
    // Neighbours of infinity are no numbers of the reference: `tests/all/functions.rs` has them.
    if map.scalar.kind == Kind::Choose || map.scalar.op == E::NextAfter || (divides && !ty.is_float()) {
        return None;
    }
    let count = n.pow(operands as u32);
    let mut case = Case::new(map, &[]);
    for k in 0..operands {
        let values = (0..count).map(|i| values[i / n.pow(k as u32) % n]).collect();
        let shape = vec![Dim::Fixed(count)];
        case = case.input(CaseInput { format: DType::Plain(ty), shape, fill: Fill::Values(values) });
    }
    Some(case)
}
