//! Kernels as phases of a stack: launches of a decoding step that a GPU can fuse to one, with what each computes.

use std::sync::Arc;

use hologram_device::{DType, Gate};

use super::kernels::attention_decode::AttentionDecode;
use super::kernels::cuda::attention_few::AttentionFew;
use super::kernels::cuda::router::Router;
use super::kernels::matvec_i8::MatvecI8;
use super::launch::Planes;
use super::{Memory, Target};

/// A kernel as a phase.
#[derive(Clone, Debug)]
pub enum StackPhase {
    /// Products of one token with ternary weights: a phase of `kernels/cuda/decode_stack.cu`.
    Ternary {
        /// The gate that makes one result of two matrices, if any.
        gate: Option<Gate>,
        /// The launch's arguments.
        args: Arc<MatvecI8>,
    },
    /// Attention over `f32` caches with heads of 128 elements and four query heads per key/value head: a phase of the
    /// same kernel.
    AttentionF32(Arc<AttentionDecode>),
    /// Products of one token with weights in codes, in floats of 16 bits or in `F8_E4M3`: a phase of
    /// `kernels/cuda/decode_layers.cu`, as all that follow.
    Products(PhaseProducts),
    /// What is added to the products before: part of their phase.
    Biases(PhaseBiases),
    /// Attention over `f16` caches that appends the token's rows; with the elements of a head.
    Attention(Arc<AttentionFew>, u32),
    /// A mixture's router.
    Router(Arc<Router>),
    /// Products with the matrices of the experts that a token has chosen, two and their gate.
    Experts(PhaseExperts),
    /// The sum of products with the chosen experts' matrices.
    ExpertSum(PhaseExperts),
}

/// A matrix of weights.
#[derive(Clone, Debug)]
pub struct PhaseMatrix {
    /// Its format: planes, `bf16` or `f16`.
    pub weights: DType,
    /// Its low and high plane and its records; of plain formats the first.
    pub planes: [Memory; 3],
    /// Its rows, or those of one expert.
    pub rows: u32,
}

impl PhaseMatrix {
    /// The matrix with `rows` rows whose first view has index `at` among the bindings; `None` if no phase has its
    /// weights.
    pub(super) fn of(weights: DType, at: usize, rows: u32) -> Option<PhaseMatrix> {
        let planes = match weights {
            DType::BF16 | DType::F16 => [Memory::Binding(at), Memory::Null, Memory::Null],
            DType::Planes(block) if !weights.is_ternary() => {
                let Planes { low, high, records } = Planes::at(block, at);
                [low, high, records]
            }
            _ => return None,
        };
        Some(PhaseMatrix { weights, planes, rows })
    }

    /// Whether weights are floats, which are multiplied with `f32` activations; codes are with 8-bit ones.
    pub fn has_floats(&self) -> bool {
        has_floats(self.weights)
    }

    /// Bytes of a row of `k` elements in each plane.
    pub fn row_bytes(&self, k: u32) -> Option<[u32; 3]> {
        let DType::Planes(block) = self.weights else { return Some([k * 2, 0, 0]) };
        let len = block.row().len as u32;
        k.is_multiple_of(len).then(|| block.plane_bytes().map(|bytes| k / len * bytes as u32))
    }
}

/// Whether weights of a phase are floats.
pub(super) fn has_floats(weights: DType) -> bool {
    weights.has_float_codes() || matches!(weights, DType::BF16 | DType::F16)
}

/// Whether a phase multiplies these weights by activations that were converted to this format. Weights that are floats
/// are multiplied by activations before their conversion, which are more precise.
pub(super) fn serves(weights: DType, converted: DType) -> bool {
    match has_floats(weights) {
        true => matches!(converted, DType::F32 | DType::BF16),
        false => converted == (DType::I8Groups { group: 32 }),
    }
}

/// Sums of one token's tensors and their biases.
#[derive(Clone, Debug)]
pub struct PhaseBiases {
    /// Each tensor, its bias, the result and its elements.
    pub sums: Vec<(Memory, Memory, Memory, u32)>,
    /// What is added to the only sum, if any.
    pub residual: Option<Memory>,
    /// The step block and the slot of the number of tokens in it; `u32::MAX`: there is always one.
    pub step: (Memory, u32),
}

/// Products of one token.
#[derive(Clone, Debug)]
pub struct PhaseProducts {
    /// `f32` activations.
    pub x: Memory,
    /// Weights of the norm before the products, if any, and its ε.
    pub norm: Option<(Memory, f32)>,
    /// Elements of a row.
    pub k: u32,
    /// One to three matrices, or two of a gate.
    pub matrices: Vec<PhaseMatrix>,
    /// The gate that makes one result of two matrices, if any.
    pub gate: Option<Gate>,
    /// What is added to the only result, if any.
    pub residual: Option<Memory>,
    /// A result for each matrix, or that of the gate.
    pub outputs: Vec<Memory>,
    /// The step block and the slot of the number of tokens in it; `u32::MAX`: there is always one.
    pub step: (Memory, u32),
}

/// Products with experts' matrices for one token.
#[derive(Clone, Debug)]
pub struct PhaseExperts {
    /// The router's codes or floats; of a sum `f32` activations of each slot.
    pub x: Memory,
    /// Elements of a row.
    pub k: u32,
    /// Chosen experts.
    pub slots: u32,
    /// All experts.
    pub experts: u32,
    /// The matrix, or two of a gate.
    pub matrices: Vec<PhaseMatrix>,
    /// The gate that makes one result of two matrices, if any.
    pub gate: Option<Gate>,
    /// What is added to products, if any: a row for each expert.
    pub bias: [Option<Memory>; 2],
    /// The chosen experts' indices.
    pub ids: Memory,
    /// Their weights in a sum.
    pub weights: Option<Memory>,
    /// What is added to a sum, if any.
    pub residual: Option<Memory>,
    /// The result.
    pub y: Memory,
    /// The step block and the slot of the number of tokens in it; `u32::MAX`: there is always one.
    pub step: (Memory, u32),
}

/// Whether a device fuses kernels to stacks.
pub fn fuses_to_stacks(target: Target) -> bool {
    target.is(90)
}
