//! The arithmetic of an operation, which says about how long a launch takes.

use std::ops::Range;

use hologram_device::{GroupSpec, KernelSpec, Operation, TensorSpec};

/// Multiplications and additions, each counted, at the step's maximum number of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Those of matrix products.
    pub products: u64,
    /// Those of attention, with every position that a token may see.
    pub attention: u64,
}

impl Work {
    /// The work of an operation.
    pub fn of_spec(spec: &KernelSpec) -> Work {
        of(&spec.op, &spec.inputs.iter().collect::<Vec<_>>())
    }

    /// The work of a group's operations.
    pub fn of_group(group: &GroupSpec) -> Work {
        group.nodes.iter().fold(Work::default(), |all, node| {
            let one = of(&node.op, &node.operands.iter().map(|o| group.operand(*o)).collect::<Vec<_>>());
            Work {
                products: all.products.saturating_add(one.products),
                attention: all.attention.saturating_add(one.attention),
            }
        })
    }

    /// All of it.
    pub fn flops(self) -> u64 {
        self.products.saturating_add(self.attention)
    }
}

fn of(op: &Operation, operands: &[&TensorSpec]) -> Work {
    match (op, operands) {
        (Operation::Matmul, [x, w]) => Work { products: product(x, w), ..Work::default() },
        (Operation::ExpertMatmul { experts }, [_, w, ids, ..]) => {
            // Each chosen expert's matrix is multiplied with one row.
            let products = elements(ids).saturating_mul(2).saturating_mul(elements(w) / u64::from(*experts).max(1));
            Work { products, ..Work::default() }
        }
        (Operation::Attention { window, .. }, [q, k, _, _, _, table, ..]) => {
            // A cache is [blocks, heads, positions of a block, elements]; the table has a row of blocks per sequence.
            let block = k.shape.get(2).map_or(1, |e| e.max()) as u64;
            let positions = (table.row_len() as u64).saturating_mul(block);
            let seen = window.map_or(positions, |window| positions.min(window.into()));
            Work { attention: elements(q).saturating_mul(4).saturating_mul(seen), ..Work::default() }
        }
        _ => Work::default(),
    }
}

/// Operations of the product of `x [n, k]` with `w [m, k]`.
fn product(x: &TensorSpec, w: &TensorSpec) -> u64 {
    let m = w.shape.first().map_or(1, |e| e.max()) as u64;
    elements(x).saturating_mul(2).saturating_mul(m)
}

fn elements(tensor: &TensorSpec) -> u64 {
    tensor.shape.iter().map(|e| e.max() as u64).product()
}

/// Splits steps of these costs into consecutive parts that cost at most `most`; a step that costs more is a part.
pub fn split(costs: &[f64], most: f64) -> Vec<Range<usize>> {
    let (mut parts, mut start, mut sum) = (Vec::new(), 0, 0.0);
    for (i, one) in costs.iter().enumerate() {
        if i > start && sum + one > most {
            parts.push(start..i);
            (start, sum) = (i, 0.0);
        }
        sum += one;
    }
    // A list without steps has a part, which is waited for.
    parts.push(start..costs.len());
    parts
}

#[cfg(test)]
mod tests {
    use hologram_device::{DType, Extent};
    use hologram_isa::Type;

    use super::*;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "parts are ranges")]
    fn parts_cost_little_and_have_every_step() {
        for (costs, parts) in [
            (&[][..], &[0..0][..]),
            (&[0.25], &[0..1]),
            (&[0.02, 0.02, 0.02], &[0..3]),
            (&[0.06, 0.06, 0.02, 0.03], &[0..1, 1..3, 3..4]),
            (&[0.01, 0.5, 0.01], &[0..1, 1..2, 2..3]),
        ] {
            assert_eq!(split(costs, 0.1), parts, "{costs:?}");
        }
    }

    /// A prompt of 512 tokens for the layers of an 8-billion model.
    #[test]
    fn products_and_attention_are_counted() {
        let tensor =
            |format, shape: &[usize]| TensorSpec { format, shape: shape.iter().map(|n| Extent::Fixed(*n)).collect() };
        let [f32, i32] = [DType::F32, DType::Plain(Type::I32)];
        let [x, w] = [tensor(f32, &[512, 4096]), tensor(DType::Q4_K, &[14336, 4096])];
        let products = of(&Operation::Matmul, &[&x, &w]);
        assert_eq!(products, Work { products: 2 * 512 * 4096 * 14336, attention: 0 });
        let [q, k, table] = [tensor(f32, &[512, 32, 128]), tensor(f32, &[64, 8, 32, 128]), tensor(i32, &[1, 64])];
        let positions = tensor(i32, &[512]);
        for (window, seen) in [(None, 2048), (Some(512), 512), (Some(4096), 2048)] {
            let precision = hologram_device::AttentionPrecision::F32;
            let op = Operation::Attention { scale: 1.0.into(), precision, window, cap: None, pieces: false };
            let work = of(&op, &[&q, &k, &k, &positions, &positions, &table]);
            assert_eq!(work.flops(), 4 * 512 * 4096 * seen, "{window:?}");
        }
    }
}
