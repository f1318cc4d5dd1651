//! The tensor operations: one file each, and one line each in the list below.
//!
//! A file has the operation's meaning, its shape and type rule, its portable program, its reference in `f64` with the
//! error bound, its test cases, and its method on [`Graph`].

mod arange;
mod arg_reduce;
mod attention;
mod batch_matmul;
mod blocks;
mod causal_conv;
mod concat;
mod conv2d;
mod copy;
mod cumsum;
mod dot_attention;
mod elementwise;
mod expert_matmul;
mod expert_sum;
mod flash_attention;
mod gather;
mod kernel;
mod kv_append;
mod layer_norm;
mod lines;
mod loss;
mod matmul;
mod optimizer;
mod pad;
mod pool2d;
mod quantize;
mod quantize_f8;
mod random;
mod recurrence;
mod reduce;
pub(crate) mod reference;
mod repack;
mod rms_norm;
mod rope;
mod sample;
mod scatter;
mod softmax;
mod sort;
mod take;
mod ternary;
mod tiles;
mod top_k;

use std::fmt;
use std::sync::Arc;

use hologram_backends::{DType, KernelSpec, Operation, Values};
use hologram_isa::{Builder, Type, Value};

pub use attention::AttentionOptions;
pub use batch_matmul::MatmulOptions;
pub use conv2d::Conv2dOptions;
pub(crate) use copy::Copy;
pub(crate) use elementwise::{Fill, copy_program, elementwise_program, register_type};
pub use hologram_backends::{Activation, AttentionPrecision, OptimizerRule, Recurrence, Reduction, RopeStyle};
pub use kernel::{Kernel, TensorArg};
pub use loss::LossReduction;
pub use optimizer::Optimizer;
pub use pool2d::Pool2dOptions;
pub use recurrence::RecurrenceOperands;
pub use reference::{HostTensor, Reference};
pub use repack::Recode;
pub use sample::philox4x32_10;

#[cfg(feature = "conformance")]
use crate::conformance::Case;
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp, no_derivative};
pub use crate::layout::Layout;
use crate::tensor::TensorType;

/// A program with the grid that covers its spec's maximum extents.
pub type Launchable = (hologram_isa::Program, [u32; 3]);

/// Why an operation rejects its inputs: a sentence.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Mismatch {
    /// It does not exist for the type of an input's elements.
    #[error("{0}")]
    Type(String),
    /// Shapes, formats or numbers do not fit.
    #[error("{0}")]
    Other(String),
}

impl From<String> for Mismatch {
    fn from(reason: String) -> Mismatch {
        Mismatch::Other(reason)
    }
}

impl From<&str> for Mismatch {
    fn from(reason: &str) -> Mismatch {
        Mismatch::Other(reason.into())
    }
}

/// A tensor operation: shape and type rule, portable program, reference.
pub trait Op: fmt::Debug + Send + Sync {
    /// The operation with its attributes, as backends know it.
    fn operation(&self) -> Operation;

    /// The operation's name, for messages.
    fn name(&self) -> &'static str {
        self.operation().name()
    }

    /// The output's type for these inputs.
    ///
    /// # Errors
    /// What does not fit.
    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch>;

    /// The input that the output overwrites, for operations on state.
    fn in_place(&self) -> Option<usize> {
        None
    }

    /// The scalar expression of an elementwise operation, which fusion uses.
    fn elementwise(&self) -> Option<&dyn Elementwise> {
        None
    }

    /// The portable program, with the parameters that [`KernelSpec`] describes.
    ///
    /// # Errors
    /// When [`Op::infer`] would reject the spec.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable>;

    /// Whether inputs may be views. If not, the graph copies views first.
    fn takes_views(&self) -> bool {
        self.elementwise().is_some()
    }

    /// The portable program for inputs that may be views, for operations that take views and are not elementwise.
    /// `layouts` gives the views' layouts by input, and may be empty; `per_thread` is the number of elements per thread
    /// of an elementwise program.
    fn program_of_views(
        &self,
        _spec: &KernelSpec,
        _layouts: &[Option<&Layout>],
        _per_thread: u32,
    ) -> Option<Result<Launchable>> {
        None
    }

    /// The gradient by each operand, from that by the result, as operations appended to the graph; `None` where it is 0
    /// or not wanted. Each has its operand's type and shape. The gradients by the operands of repeated (broadcast)
    /// elements are sums over the repetitions.
    ///
    /// # Errors
    /// When the operation has no derivative, which is the default.
    fn vjp(&self, _: &mut Graph, _: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        Err(no_derivative(self.name()))
    }

    /// The result in `f64`, with an absolute error bound per element.
    fn reference(&self, inputs: &[HostTensor]) -> Reference;
}

/// A scalar expression that is applied to every element. Operands come in the type that their elements are computed
/// in: `f32` for `f16` and `bf16`, 32 bits for narrower integers, otherwise their own. The result is converted to
/// the output's format.
pub trait Elementwise {
    /// Emits the expression.
    fn emit(&self, b: &mut Builder, args: &[Value]) -> Value;
}

/// The conformance cases of every operation: one line per file.
#[cfg(feature = "conformance")]
pub fn cases() -> Vec<Case> {
    let lists: &[fn() -> Vec<Case>] = &[
        elementwise::cases,
        gather::cases,
        rms_norm::cases,
        repack::cases,
        quantize::cases,
        quantize_f8::cases,
        matmul::cases,
        expert_matmul::cases,
        expert_sum::cases,
        batch_matmul::cases,
        rope::cases,
        kv_append::cases,
        causal_conv::cases,
        recurrence::cases,
        attention::cases,
        flash_attention::cases,
        copy::cases,
        concat::cases,
        pad::cases,
        arange::cases,
        random::cases,
        reduce::cases,
        arg_reduce::cases,
        softmax::cases,
        sample::cases,
        top_k::cases,
        take::cases,
        sort::cases,
        scatter::cases,
        cumsum::cases,
        layer_norm::cases,
        loss::cases,
        conv2d::cases,
        optimizer::cases,
    ];
    lists.iter().flat_map(|f| f()).collect()
}

/// Calls `conformance_suite!` with these tokens and the names of the operations: the tests of a device. A file of
/// [`cases`] may have several.
#[cfg(feature = "conformance")]
#[doc(hidden)]
#[macro_export]
macro_rules! with_operation_names {
    ($($tokens:tt)*) => {
        $crate::conformance_suite!($($tokens)*
            elementwise cast fill
            concat pad arange random_uniform random_normal
            gather repack rms_norm quantize quantize_f8 matmul expert_matmul expert_sum batch_matmul rope kv_append
            attention flash_attention flash_attention_sums flash_attention_gradients
            conv_state causal_conv recurrent_state recurrence
            copy reduce_sum reduce_mean reduce_prod reduce_max reduce_min arg_max arg_min
            softmax log_softmax sample top_k take sort_blocks sort_merge scatter scatter_add
            cumsum chunk_sums layer_norm mse_loss bce_with_logits cross_entropy conv2d optimizer_step
            groups
        );
    };
}

/// The elementwise operations that have gradients, with their number of operands.
#[cfg(feature = "conformance")]
pub(crate) use elementwise::gradient_rows;

/// A shared operation.
pub type SharedOp = Arc<dyn Op>;

/// Whether weights may have this format.
fn is_weight(format: DType) -> bool {
    matches!(format, DType::Plain(Type::F32 | Type::F16 | Type::BF16)) || format.is_quantized_weight()
}

/// The greatest of these magnitudes and `least`; NaN if any of them is NaN.
fn widest(least: f64, values: &[f64]) -> f64 {
    values.iter().fold(least, |a, v| if a < v.abs() || v.is_nan() { v.abs() } else { a })
}

/// An `f32` value, rounded to the nearest `f16` or `bf16`; unchanged for other formats.
pub(crate) fn rounded(value: f64, format: DType) -> f64 {
    match format {
        DType::Plain(Type::F16) => half::f16::from_f32(value as f32).to_f64(),
        DType::Plain(Type::BF16) => half::bf16::from_f32(value as f32).to_f64(),
        DType::F8 => Values::f8(Values::to_f8(value as f32)).into(),
        _ => value,
    }
}
