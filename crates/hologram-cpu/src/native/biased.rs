//! A bias and the operation after it, as of linear layers: x [.., d] + bias [d], then GELU or the sum with a tensor of
//! x's shape, all of `f32`, the result also rounded to a narrow float. They equal the operations' programs to the bit.

use std::sync::Arc;

use hologram_device::{AfterBias, DType, Extent, Fused, GroupSpec, KernelSpec, Operation, TensorSpec};
use hologram_isa::decompose::{Scalar, erf};

use super::narrow::{Element, convert, is_in_f32, with_element};
use super::simd::{Isa, Simd, simd_entry};
use super::stream::map_with;
use super::{elements, input, is_dense, room};
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};

struct Biased {
    isa: Isa,
    x: TensorSpec,
    /// Elements of a row.
    d: usize,
    after: AfterBias,
    /// The arguments of x and of the bias, and the number of inputs.
    at: [usize; 3],
    format: DType,
    uses_step: bool,
}

/// Elements of a piece of work, in whole rows.
const PIECE: usize = 16 << 10;
/// Elements that are computed before they are rounded.
const BLOCK: usize = 512;

/// The native kernel for a group, and the spec of its launch.
pub(super) fn find_group(group: &GroupSpec, features: Features) -> Option<(Arc<dyn NativeKernel>, KernelSpec)> {
    let Fused::Biased(biased) = &group.fused else { return None };
    let (x, output) = (&group.inputs[biased.x], &group.nodes.last()?.output);
    let Extent::Fixed(d @ 1..) = *x.shape.last()? else { return None };
    let served = x.format == DType::F32
        && group.inputs[biased.bias].format == DType::F32
        && is_in_f32(output.format)
        && is_dense(x);
    let kernel = || Biased {
        isa: Isa::widest(features),
        x: x.clone(),
        d,
        after: biased.after,
        at: [biased.x, biased.bias, group.inputs.len()],
        format: output.format,
        uses_step: group.uses_step(),
    };
    let spec = KernelSpec {
        op: Operation::FusedElementwise,
        inputs: group.inputs.clone(),
        output: output.clone(),
        in_place: None,
    };
    served.then(|| (Arc::new(kernel()) as Arc<dyn NativeKernel>, spec))
}

impl Biased {
    fn map<E: Element>(&self, args: &Args<'_>, worker: &Worker<'_>) -> Result<(), String> {
        /// Memory for a block, aligned to a cache line.
        #[repr(align(64))]
        struct Block([f32; BLOCK]);
        let (d, [x, bias, result]) = (self.d, self.at);
        let len = elements(&self.x, if self.uses_step { args.step() } else { &[] });
        let (x, bias) = (input::<f32>(args, x, len)?, input::<f32>(args, bias, d)?);
        let residual = match self.after {
            AfterBias::Add { residual } => input::<f32>(args, residual, len)?,
            AfterBias::Gelu => x,
        };
        room::<E>(args, result, len)?;
        let (out, mut block) = (args.output::<E>(result), Block([0.0; BLOCK]));
        let (rows, per_piece) = (len / d, (PIECE / d).max(1));
        while let Some(piece) = worker.next(rows.div_ceil(per_piece)) {
            for row in piece * per_piece..((piece + 1) * per_piece).min(rows) {
                for from in (0..d).step_by(BLOCK) {
                    let to = (from + BLOCK).min(d);
                    let (part, y) = (row * d + from..row * d + to, &mut block.0[..to - from]);
                    let (x, bias) = (&x[part.clone()], &bias[from..to]);
                    match self.after {
                        AfterBias::Gelu => gelu(self.isa, x, bias, y),
                        AfterBias::Add { .. } => add(self.isa, x, bias, &residual[part.clone()], y),
                    }
                    // SAFETY: each row is claimed by one worker.
                    convert(self.isa, y, unsafe { out.part(part) }, false);
                }
            }
        }
        Ok(())
    }
}

impl NativeKernel for Biased {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        with_element!(self.format, E => self.map::<E>(args, worker))
    }
}

simd_entry! {
    fn gelu(x: &[f32], bias: &[f32], out: &mut [f32]) = gelu_with
}

#[inline(always)]
fn gelu_with<S: Simd>(s: S, x: &[f32], bias: &[f32], out: &mut [f32]) {
    map_with(s, [x, bias], out, false, |[x, bias]| {
        let x = x + bias;
        x * 0.5 * (erf(&Scalar, x * std::f32::consts::FRAC_1_SQRT_2) + 1.0)
    });
}

simd_entry! {
    fn add(x: &[f32], bias: &[f32], residual: &[f32], out: &mut [f32]) = add_with
}

#[inline(always)]
fn add_with<S: Simd>(s: S, x: &[f32], bias: &[f32], residual: &[f32], out: &mut [f32]) {
    map_with(s, [x, bias, residual], out, false, |[x, bias, residual]| x + bias + residual);
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{Memory, Random, feature_sets, launch};
    use half::bf16;
    use hologram_device::{Elementwise as E, GroupNode, Operand};

    pub(crate) fn agrees_with_the_definition() {
        for (d, after, narrow) in [3072, 600, 5].into_iter().flat_map(|d: usize| {
            [E::Gelu, E::Add].into_iter().flat_map(move |after| [(d, after, false), (d, after, true)])
        }) {
            // A run of fewer rows than the most.
            let (rows, most) = (37, 40);
            let tensor = |format| TensorSpec { format, shape: vec![Extent::step(0, most), Extent::Fixed(d)] };
            let vector = TensorSpec { format: DType::F32, shape: vec![Extent::Fixed(d)] };
            let node = |op: Operation, operands: &[Operand], format| GroupNode {
                op,
                operands: operands.to_vec(),
                output: tensor(format),
                in_place: None,
            };
            let mut nodes = vec![node(E::Add.into(), &[Operand::Input(0), Operand::Input(1)], DType::F32)];
            let mut inputs = vec![tensor(DType::F32), vector];
            if after == E::Add {
                inputs.push(tensor(DType::F32));
                nodes.push(node(after.into(), &[Operand::Input(2), Operand::Node(0)], DType::F32));
            } else {
                nodes.push(node(after.into(), &[Operand::Node(0)], DType::F32));
            }
            if narrow {
                nodes.push(node(Operation::Cast, &[Operand::Node(1)], DType::BF16));
            }
            let last = nodes.len() - 1;
            let group = GroupSpec::new(inputs, nodes, vec![last]).expect("a group");
            let wide = |seed| Random(seed).floats(most * d).iter().map(|x| x * 8.0).collect::<Vec<f32>>();
            let (x, bias, residual) = (wide(1), Random(2).floats(d), wide(3));
            for features in feature_sets() {
                let (kernel, _) = find_group(&group, features).expect("served");
                let mut memory = vec![Memory::of(&x), Memory::of(&bias), Memory::of(&residual)];
                memory.truncate(group.inputs.len());
                memory
                    .extend([Memory::filled(most * d * if narrow { 2 } else { 4 }, 0xff), Memory::of(&[rows as u32])]);
                launch(&*kernel, &mut memory, 2).expect("runs");
                let out = &memory[group.inputs.len()];
                let out: Vec<f32> = match narrow {
                    true => out.elements::<u16>().iter().map(|y| bf16::from_bits(*y).to_f32()).collect(),
                    false => out.elements::<f32>().to_vec(),
                };
                for (i, y) in out[..rows * d].iter().enumerate() {
                    let sum = f64::from(x[i] + bias[i % d]);
                    let (want, size) = match after {
                        E::Add => (f64::from(x[i] + bias[i % d] + residual[i]), 0.0),
                        _ => {
                            let erf = hologram_isa::decompose::double::erf(&Scalar, sum / f64::sqrt(2.0));
                            (sum / 2.0 * (1.0 + erf), sum.abs())
                        }
                    };
                    let rounding = if narrow { want.abs() / 256.0 } else { 0.0 };
                    let bound = size * 2.0 * f64::from(f32::EPSILON) + rounding;
                    let what = || format!("{after:?} of {sum} by {features:?}, d {d}, narrow {narrow}");
                    assert!((f64::from(*y) - want).abs() <= bound, "{}: {y} is not {want}", what());
                }
                assert!(out[rows * d..].iter().all(|y| y.is_nan()), "wrote behind the run's rows");
            }
        }
    }
}
