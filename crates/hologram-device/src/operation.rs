//! The operations that a backend may compute, with their attributes: one enum, built by graphs and matched by devices.

use std::fmt;

/// A float attribute, compared by its bits: operations are keys of caches.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Float<const N: usize>([u8; N]);

/// An `f32` attribute.
pub type F32 = Float<4>;
/// An `f64` attribute.
pub type F64 = Float<8>;

impl F32 {
    /// The number.
    pub const fn get(self) -> f32 {
        f32::from_ne_bytes(self.0)
    }
}

impl F64 {
    /// The number.
    pub const fn get(self) -> f64 {
        f64::from_ne_bytes(self.0)
    }
}

impl From<f32> for F32 {
    fn from(value: f32) -> F32 {
        Float(value.to_ne_bytes())
    }
}

impl From<f64> for F64 {
    fn from(value: f64) -> F64 {
        Float(value.to_ne_bytes())
    }
}

impl<const N: usize> fmt::Debug for Float<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (<[u8; 4]>::try_from(&self.0[..]), <[u8; 8]>::try_from(&self.0[..])) {
            (Ok(bytes), _) => f32::from_ne_bytes(bytes).fmt(f),
            (_, Ok(bytes)) => f64::from_ne_bytes(bytes).fmt(f),
            _ => self.0.fmt(f),
        }
    }
}

macro_rules! elementwise {
    ($($variant:ident $name:literal,)*) => {
        /// The elementwise operations; the core's table of them defines each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum Elementwise {
            $($variant,)*
        }

        impl Elementwise {
            /// Every one.
            pub const ALL: &'static [Elementwise] = &[$(Elementwise::$variant),*];

            /// The name for profiles and programs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Elementwise::$variant => $name,)*
                }
            }
        }
    };
}

elementwise! {
    Add "add",
    Sub "sub",
    Mul "mul",
    Div "div",
    Rem "rem",
    Remainder "remainder",
    FloorDivide "floor_divide",
    MulAdd "mul_add",
    Max "maximum",
    Min "minimum",
    Clip "clip",
    Neg "neg",
    Abs "abs",
    Sqrt "sqrt",
    Rsqrt "rsqrt",
    Pow "pow",
    Exp "exp",
    Exp2 "exp2",
    Log "log",
    Log2 "log2",
    Sin "sin",
    Cos "cos",
    Tan "tan",
    Tanh "tanh",
    Asin "asin",
    Acos "acos",
    Atan "atan",
    Atan2 "atan2",
    Sinh "sinh",
    Cosh "cosh",
    Asinh "asinh",
    Acosh "acosh",
    Atanh "atanh",
    Expm1 "expm1",
    Log1p "log1p",
    Log10 "log10",
    Hypot "hypot",
    LogAddExp "logaddexp",
    Copysign "copysign",
    NextAfter "nextafter",
    Erf "erf",
    Floor "floor",
    Ceil "ceil",
    Round "round",
    Trunc "trunc",
    Sign "sign",
    Relu "relu",
    Sigmoid "sigmoid",
    Silu "silu",
    Softplus "softplus",
    Gelu "gelu",
    GeluTanh "gelu_tanh",
    Swiglu "swiglu",
    Relu2Mul "relu2_mul",
    ClampedSwiglu "clamped_swiglu",
    Eq "eq",
    Ne "ne",
    Lt "lt",
    Le "le",
    Gt "gt",
    Ge "ge",
    Signbit "signbit",
    IsNan "isnan",
    IsInf "isinf",
    IsFinite "isfinite",
    Select "select",
    And "and",
    Or "or",
    Xor "xor",
    Not "not",
    Shl "shl",
    Shr "shr",
}

/// The reduction of a line of elements. `f16` and `bf16` are computed in `f32` and rounded once, at the end; integers
/// wrap. A line is empty along a dimension of size 0, fixed or a run-time extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum; 0 for an empty line. Not for types below 32 bits other than `f16` and `bf16`.
    Sum,
    /// The mean, for floats only; NaN for an empty line.
    Mean,
    /// The product; 1 for an empty line. For the types that have sums.
    Prod,
    /// The greatest element. Numbers take precedence over NaNs, except in `arg_max`. An empty line has none: a fixed
    /// size of 0 is rejected, and a run-time extent of 0 gives NaN, or the least value of an integer type.
    Max,
    /// The least element. Numbers take precedence over NaNs. An empty line has none: a fixed size of 0 is rejected, and
    /// a run-time extent of 0 gives NaN, or the greatest value of an integer type.
    Min,
}

/// The activation after a matrix product and its bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// max(x, 0).
    Relu,
    /// x·Φ(x), with the error function (Hendrycks and Gimpel, 2016, arXiv:1606.08415).
    Gelu,
    /// x / (1 + e⁻ˣ).
    Silu,
}

/// Which elements of a head form a pair of a rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Elements 2i and 2i + 1.
    Adjacent,
    /// Elements i and i + r/2, where r is the rotary width.
    HalfSplit,
}

/// What a linear recurrence adds to its state, and which key head serves a value head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Recurrence {
    /// Whether it adds what the state lacks of the values (the delta rule), instead of the values.
    pub delta: bool,
    /// Of g key heads and h value heads, value head i uses key head i % g if true, i / (h / g) otherwise.
    pub tiled: bool,
}

impl Recurrence {
    /// The key head of value head `i`.
    pub const fn key_head(self, i: usize, heads: usize, key_heads: usize) -> usize {
        if self.tiled { i % key_heads } else { i / (heads / key_heads) }
    }
}

/// The least precision of the products in attention. A kernel may be more precise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AttentionPrecision {
    /// That of `f32` arithmetic.
    #[default]
    F32,
    /// q, k, v and the softmax weights may be rounded to `bf16` before multiplication; sums are in `f32`. It suits
    /// models whose weights or activations are no more precise, and enables the matrix units of devices.
    BF16,
}

/// Part of flash attention, which stores no scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flash {
    /// The result.
    Result,
    /// The logarithms of the sums of the exponentials of scores, one for each query.
    Sums,
    /// The gradients by the queries, the keys and the values, one after the other.
    Gradients,
}

/// A loss of each element with its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementLoss {
    /// (x − target)².
    Squared,
    /// Binary cross-entropy of a logit.
    BinaryCrossEntropy,
}

/// How an optimizer changes a parameter p by its gradient g and its moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OptimizerRule {
    /// m ← momentum·m + g, p ← p − rate·m; with Nesterov's momentum p ← p − rate·(g + momentum·m). Without momentum
    /// there is no m.
    Sgd {
        /// The momentum.
        momentum: F32,
        /// Whether it is Nesterov's.
        nesterov: bool,
    },
    /// m ← β₁·m + (1 − β₁)·g, v ← β₂·v + (1 − β₂)·g², p ← p − rate · m̂ / (√v̂ + ε) with m̂ and v̂ the moments divided
    /// by 1 − βᵗ (Kingma and Ba, 2014, arXiv:1412.6980).
    Adam {
        /// β₁ and β₂.
        betas: [F32; 2],
        /// ε.
        eps: F32,
        /// Whether the decay is rate·decay·p, apart from the moments (AdamW: Loshchilov and Hutter, 2017,
        /// arXiv:1711.05101); otherwise decay·p is added to the gradient.
        decoupled: bool,
    },
}

/// An operation on tensors with its attributes. Its operands and result are in the [`KernelSpec`](crate::KernelSpec)
/// that holds it; the core defines its meaning.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// One elementwise operation.
    Elementwise(Elementwise),
    /// A chain of elementwise operations in one program.
    FusedElementwise,
    /// Conversion to the output's type.
    Cast,
    /// Every element is `value`.
    Fill {
        /// The value.
        value: F64,
    },
    /// `start + i·step`.
    Arange {
        /// The first element.
        start: F64,
        /// The difference of neighbours.
        step: F64,
    },
    /// Numbers of the Philox generator.
    Random {
        /// Whether they are normally distributed; otherwise uniformly.
        normal: bool,
    },
    /// A dense copy.
    Copy,
    /// The dense copy of a view. The input is the storage that it views.
    CopyView {
        /// The element of the storage where the view begins.
        offset: u32,
        /// The distance of elements along each of the result's dimensions, slowest first.
        strides: Vec<u32>,
    },
    /// Tensors concatenated along a dimension.
    Concat {
        /// The dimension.
        axis: u32,
    },
    /// Padding with `value`; the padding after the tensor follows from the shapes.
    Pad {
        /// The padding before it in each dimension.
        before: Vec<u32>,
        /// The value.
        value: F64,
    },
    /// Rows of a table by id.
    Gather,
    /// Elements along a dimension by index.
    Take {
        /// The dimension.
        axis: u32,
    },
    /// Replaces, or adds to, elements given by indices.
    Scatter {
        /// Whether updates are added.
        add: bool,
        /// The dimension.
        axis: u32,
    },
    /// Reduces each line to a number.
    Reduce {
        /// The kind of reduction.
        reduction: Reduction,
        /// The dimension.
        axis: u32,
    },
    /// The index of a line's greatest or least element.
    ArgReduce {
        /// Whether it is the least.
        least: bool,
        /// The dimension.
        axis: u32,
    },
    /// exp(x) over its sum along a line.
    Softmax {
        /// Whether the result is its logarithm.
        log: bool,
        /// The dimension.
        axis: u32,
    },
    /// The sums of a line's chunks, the first part of a cumulative sum.
    ChunkSums {
        /// The dimension.
        axis: u32,
    },
    /// Cumulative sums, given those of the chunks before.
    CumSum {
        /// The dimension.
        axis: u32,
    },
    /// Indices that sort each block of a line.
    SortBlocks {
        /// The dimension.
        axis: u32,
        /// Whether the greatest comes first.
        descending: bool,
    },
    /// Sorted runs of a line merged in pairs.
    SortMerge {
        /// The dimension.
        axis: u32,
        /// Whether the greatest comes first.
        descending: bool,
        /// The length of a run before it.
        run: u32,
    },
    /// Indices that sort whole lines.
    ArgSort {
        /// The dimension.
        axis: u32,
        /// Whether the greatest comes first.
        descending: bool,
    },
    /// Indices of a row's greatest elements.
    TopK {
        /// How many.
        k: u32,
    },
    /// Normalises rows to mean 0 and variance 1, then scales and shifts.
    LayerNorm {
        /// Added to the variance.
        eps: F32,
    },
    /// Divides rows by their root mean square, then scales.
    RmsNorm {
        /// Added to the mean square.
        eps: F32,
    },
    /// x · wᵀ, with weights in any format.
    Matmul,
    /// x · wᵀ with the matrices of each token's experts.
    ExpertMatmul {
        /// The experts, whose matrices follow each other.
        experts: u32,
    },
    /// The sum of a token's experts' results, with weights.
    ExpertSum,
    /// Products of pairs of matrices.
    BatchMatmul {
        /// Whether the left and right matrices are transposed.
        transpose: [bool; 2],
        /// Whether a bias is the third operand.
        bias: bool,
        /// The activation after the bias.
        activation: Option<Activation>,
        /// Whether the last operand is added.
        residual: bool,
    },
    /// Convolution of images; each pair is for rows and columns.
    Conv2d {
        /// The distance of neighbouring windows.
        stride: [u32; 2],
        /// Zeros on each side.
        padding: [u32; 2],
        /// The distance of neighbouring elements of a window.
        dilation: [u32; 2],
        /// Groups of channels.
        groups: u32,
    },
    /// Activations quantised to 8 bits with a scale per group.
    Quantize {
        /// Elements of a group.
        group: u32,
        /// The least magnitude that a scale represents.
        floor: F32,
    },
    /// Activations as floats of 8 bits with a scale per group.
    QuantizeF8 {
        /// Elements of a group.
        group: u32,
    },
    /// Weights in the layout that a device's kernels read.
    Repack,
    /// Rotary position embedding.
    Rope {
        /// Which elements form a pair.
        style: RopeStyle,
    },
    /// Rows written to the cache of keys or values.
    KvAppend,
    /// The last inputs of sequences written to the state of a convolution.
    ConvState,
    /// Causal convolution of each channel along the tokens of sequences.
    CausalConv,
    /// The state of a linear recurrence after the tokens of sequences.
    RecurrentState(Recurrence),
    /// The results of a linear recurrence for the tokens of sequences.
    Recurrence(Recurrence),
    /// Attention over a paged cache.
    Attention {
        /// Factor of the scores.
        scale: F32,
        /// The least precision of its products.
        precision: AttentionPrecision,
        /// How many positions a token sees, its own included; all for `None`.
        window: Option<u32>,
        /// Scores s become `cap`·tanh(s / `cap`).
        cap: Option<F32>,
        /// Whether many tokens follow others of their sequence, so that it pays to read for all of them at once what
        /// they share of the cache.
        pieces: bool,
    },
    /// Attention of whole sequences without a cache.
    FlashAttention {
        /// Factor of the scores.
        scale: F32,
        /// Whether a query sees only the keys up to its own position; the last sees all.
        causal: bool,
        /// What is computed.
        part: Flash,
    },
    /// The choice of a token from logits.
    Sample,
    /// The loss of each element.
    Loss(ElementLoss),
    /// The cross-entropy of each row of logits.
    CrossEntropy,
    /// One step of an optimizer, in place.
    OptimizerStep {
        /// How a parameter follows its gradient.
        rule: OptimizerRule,
        /// The weight decay.
        decay: F32,
        /// How many of the parameters, from the first, decay.
        decayed: u32,
    },
    /// A launch that occurs in no graph, such as one that measures a ceiling; its name in profiles.
    Probe(&'static str),
}

impl Operation {
    /// The name for messages, profiles and programs. Nothing is looked up by it.
    pub const fn name(&self) -> &'static str {
        match self {
            Operation::Elementwise(operation) => operation.name(),
            Operation::FusedElementwise => "fused",
            Operation::Cast => "cast",
            Operation::Fill { .. } => "fill",
            Operation::Arange { .. } => "arange",
            Operation::Random { normal: false } => "random_uniform",
            Operation::Random { normal: true } => "random_normal",
            Operation::Copy => "copy",
            Operation::CopyView { .. } => "copy_view",
            Operation::Concat { .. } => "concat",
            Operation::Pad { .. } => "pad",
            Operation::Gather => "gather",
            Operation::Take { .. } => "take",
            Operation::Scatter { add: false, .. } => "scatter",
            Operation::Scatter { add: true, .. } => "scatter_add",
            Operation::Reduce { reduction: Reduction::Sum, .. } => "reduce_sum",
            Operation::Reduce { reduction: Reduction::Mean, .. } => "reduce_mean",
            Operation::Reduce { reduction: Reduction::Prod, .. } => "reduce_prod",
            Operation::Reduce { reduction: Reduction::Max, .. } => "reduce_max",
            Operation::Reduce { reduction: Reduction::Min, .. } => "reduce_min",
            Operation::ArgReduce { least: false, .. } => "arg_max",
            Operation::ArgReduce { least: true, .. } => "arg_min",
            Operation::Softmax { log: false, .. } => "softmax",
            Operation::Softmax { log: true, .. } => "log_softmax",
            Operation::ChunkSums { .. } => "chunk_sums",
            Operation::CumSum { .. } => "cumsum",
            Operation::SortBlocks { .. } => "sort_blocks",
            Operation::SortMerge { .. } => "sort_merge",
            Operation::ArgSort { .. } => "arg_sort",
            Operation::TopK { .. } => "top_k",
            Operation::LayerNorm { .. } => "layer_norm",
            Operation::RmsNorm { .. } => "rms_norm",
            Operation::Matmul => "matmul",
            Operation::ExpertMatmul { .. } => "expert_matmul",
            Operation::ExpertSum => "expert_sum",
            Operation::BatchMatmul { .. } => "batch_matmul",
            Operation::Conv2d { .. } => "conv2d",
            Operation::Quantize { .. } => "quantize",
            Operation::QuantizeF8 { .. } => "quantize_f8",
            Operation::Repack => "repack",
            Operation::Rope { .. } => "rope",
            Operation::KvAppend => "kv_append",
            Operation::OptimizerStep { .. } => "optimizer_step",
            Operation::ConvState => "conv_state",
            Operation::CausalConv => "causal_conv",
            Operation::RecurrentState(_) => "recurrent_state",
            Operation::Recurrence(_) => "recurrence",
            Operation::Attention { .. } => "attention",
            Operation::FlashAttention { part: Flash::Result, .. } => "flash_attention",
            Operation::FlashAttention { part: Flash::Sums, .. } => "flash_attention_sums",
            Operation::FlashAttention { part: Flash::Gradients, .. } => "flash_attention_gradients",
            Operation::Sample => "sample",
            Operation::Loss(ElementLoss::Squared) => "mse_loss",
            Operation::Loss(ElementLoss::BinaryCrossEntropy) => "bce_with_logits",
            Operation::CrossEntropy => "cross_entropy",
            Operation::Probe(name) => name,
        }
    }

    /// Whether it is this elementwise operation.
    pub fn is(&self, elementwise: Elementwise) -> bool {
        *self == Operation::Elementwise(elementwise)
    }
}

impl From<Elementwise> for Operation {
    fn from(operation: Elementwise) -> Operation {
        Operation::Elementwise(operation)
    }
}

/// The name.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
