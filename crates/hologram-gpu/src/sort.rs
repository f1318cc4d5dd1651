//! The order of the elements of rows (`kernels/cuda/sort.cu`): lines of neighbours, of up to 4,096 elements.

use hologram_device::{DType, Extent, Fused, GroupSpec, KernelSpec, Operation, SORT_BLOCK, TensorSpec};
use hologram_isa::Type;

use super::kernels::cuda::sort::{Sort, V};
use super::launch::{Count, Places, launch, number, single};
use super::{NativeKernel, Target};

/// Elements of the longest rows of each kernel.
const SIZES: [usize; 5] = [256, 512, 1024, 2048, 4096];

/// The native kernel for lines of one block.
pub(super) fn find(spec: &KernelSpec, _: Target) -> Option<NativeKernel> {
    let (Operation::SortBlocks { axis, descending }, [x]) = (&spec.op, spec.inputs.as_slice()) else { return None };
    let whole = spec.in_place.is_none() && x.shape.get(*axis as usize)?.max() <= SORT_BLOCK;
    if whole { sort(x, &spec.output, *axis, *descending, &Places::of(spec)) } else { None }
}

/// The native kernel for lines of several blocks.
pub(super) fn find_group(group: &GroupSpec, _: Target) -> Option<NativeKernel> {
    let (Fused::SortLines { axis, descending }, [x]) = (&group.fused, group.inputs.as_slice()) else { return None };
    let output = &group.nodes.last()?.output;
    sort(x, output, *axis, *descending, &Places::of_group(group, output))
}

fn sort(x: &TensorSpec, order: &TensorSpec, axis: u32, descending: bool, places: &Places) -> Option<NativeKernel> {
    // The numbers are those of the types in `sort.cu`.
    let ty = match x.format {
        DType::Plain(Type::F32) => 0,
        DType::Plain(Type::F16) => 1,
        DType::Plain(Type::BF16) => 2,
        DType::Plain(Type::I32) => 3,
        DType::Plain(Type::U32) => 4,
        _ => return None,
    };
    // Rows of a size that is known, whose elements are neighbours.
    let (outer, rest) = x.shape.split_at_checked(axis as usize)?;
    let (Extent::Fixed(n), inner) = rest.split_first()? else { return None };
    if inner.iter().any(|e| *e != Extent::Fixed(1)) {
        return None;
    }
    let (n, rows) = (*n, Count::of(outer)?);
    let size = SIZES.into_iter().find(|size| n <= *size)?;
    if n == 0 || order.format != DType::U32 || order.shape != x.shape {
        return None;
    }
    let args = Sort {
        x: places.input(0, 0),
        y: places.output(0),
        rows: places.counted(rows),
        n: number(n)?,
        format: ty,
        descending: u32::from(descending),
    };
    Some(single(launch(args, format!("sort_{size}"), [rows.max(), 1], size / V as usize)?))
}

#[cfg(test)]
mod tests {
    use hologram_device::{GroupNode, Operand};

    use super::*;
    use crate::Part;

    const TARGET: Target = Target::nvidia(90, 132, 227 * 1024);

    #[test]
    fn rows_have_kernels_of_their_size() {
        let tensor = |format, shape: &[Extent]| TensorSpec { format, shape: shape.to_vec() };
        let (rows, fixed) = (Extent::step(0, 40), Extent::Fixed);
        let entry = |kernel: Option<NativeKernel>| {
            kernel.map(|kernel| match &kernel.parts[..] {
                [Part::Kernel(launch)] => (launch.entry.clone(), launch.grid[0], launch.block[0]),
                other => panic!("{other:?}"),
            })
        };
        for (n, axis, ty, wanted) in [
            (7, 1, DType::F32, Some(("sort_256", 40, 32))),
            (300, 1, DType::BF16, Some(("sort_512", 40, 64))),
            (1000, 1, DType::F16, Some(("sort_1024", 40, 128))),
            (4096, 1, DType::U32, Some(("sort_4096", 40, 512))),
            // Longer rows, columns, a type whose keys have 64 bits.
            (4097, 1, DType::F32, None),
            (7, 0, DType::F32, None),
            (300, 1, DType::Plain(Type::F64), None),
        ] {
            let (x, order) = (tensor(ty, &[rows, fixed(n)]), tensor(DType::U32, &[rows, fixed(n)]));
            let node = |op, operands: &[Operand]| GroupNode {
                op,
                operands: operands.to_vec(),
                output: order.clone(),
                in_place: None,
            };
            let blocks = Operation::SortBlocks { axis, descending: true };
            let found = if n <= SORT_BLOCK {
                find(&KernelSpec { op: blocks, inputs: vec![x], output: order.clone(), in_place: None }, TARGET)
            } else {
                let mut nodes = vec![node(blocks, &[Operand::Input(0)])];
                let mut run = SORT_BLOCK;
                while run < n {
                    let merge = Operation::SortMerge { axis, descending: true, run: run as u32 };
                    nodes.push(node(merge, &[Operand::Input(0), Operand::Node(nodes.len() - 1)]));
                    run *= 2;
                }
                let last = nodes.len() - 1;
                find_group(&GroupSpec::new(vec![x], nodes, vec![last]).expect("a group"), TARGET)
            };
            let wanted = wanted.map(|(entry, groups, threads): (&str, u32, u32)| (entry.to_string(), groups, threads));
            assert_eq!(entry(found), wanted, "{n} {ty:?}");
        }
    }
}
