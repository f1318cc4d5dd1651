//! Preferences of GPUs.

use hologram_device::{DType, Policy, Preference};

use super::gemm::{CODES_TOKENS, CODES_UNIT, MOST_WHOLE_CODES};
use super::{
    FEW_TOKENS, FEW_TOKENS_AS_CODES, FEW_TOKENS_AS_F32, FEW_TOKENS_AS_PACKED_CODES, FEW_TOKENS_BEFORE_F8, Target,
    Vendor,
};

/// Tokens of the smallest tile of tensor cores.
const TOKENS_OF_TILE: usize = 32;

/// The weights of a preference.
type Suits = fn(DType, usize) -> bool;

/// Whether weights are in planes of integers.
fn has_integers(weights: DType) -> bool {
    matches!(weights, DType::Planes(_)) && !weights.has_float_codes()
}

/// Whether products multiply weights' codes with codes of groups of 32 activations.
fn has_codes(weights: DType) -> bool {
    has_integers(weights) && !weights.is_ternary()
}

/// The preferences of a GPU.
pub fn policy(target: Target) -> Policy {
    let any: Suits = |_, _| true;
    let codes: Suits = |weights, _| has_codes(weights);
    let packed: Suits = |weights, _| has_integers(weights) && weights.packed().is_some();
    let floats: Suits = |weights, _| weights.has_float_codes();
    let f16: Suits = |weights, _| weights == DType::F16;
    // Codes of more tokens have no kernels but these.
    let whole: Suits = |weights, k| has_codes(weights) && k.is_multiple_of(CODES_UNIT) && k <= MOST_WHOLE_CODES;
    let prefer = |format, weights, tokens| Preference { format, weights, tokens };
    let as_codes = DType::I8Groups { group: 32 };
    // With few tokens codes are multiplied, with more of them where tensor cores do it. Then tensor cores multiply
    // dequantized weights faster. Apple GPUs have no instruction for products of codes: with few tokens f32 meets what
    // becomes of them in registers, with more bf16 halves the memory of a tile.
    let (few, few_packed, few_whole) = match target.is(90) {
        true => (FEW_TOKENS, FEW_TOKENS, CODES_TOKENS),
        false => (FEW_TOKENS_AS_CODES, FEW_TOKENS_AS_PACKED_CODES, 0),
    };
    // With more tokens tensor cores multiply floats of 8 bits, where they do.
    let few_floats = if target.is(90) { FEW_TOKENS_BEFORE_F8 } else { usize::MAX - 1 };
    let activations = match target.vendor {
        Vendor::Nvidia { .. } => vec![
            prefer(DType::F32, floats, 0..=FEW_TOKENS_AS_F32),
            prefer(DType::F8Groups { group: 0 }, floats, few_floats + 1..=usize::MAX),
            prefer(DType::BF16, floats, FEW_TOKENS_AS_F32 + 1..=usize::MAX),
            prefer(as_codes, whole, 0..=few_whole),
            prefer(as_codes, packed, 0..=few_packed),
            prefer(DType::BF16, packed, few_packed + 1..=usize::MAX),
            prefer(as_codes, codes, 0..=few),
            prefer(DType::BF16, codes, few + 1..=usize::MAX),
            prefer(DType::F32, f16, 0..=FEW_TOKENS_AS_F32),
            prefer(DType::BF16, f16, FEW_TOKENS_AS_F32 + 1..=usize::MAX),
        ],
        Vendor::Apple => vec![
            prefer(DType::F32, codes, 0..=FEW_TOKENS),
            prefer(DType::BF16, codes, FEW_TOKENS + 1..=usize::MAX),
            prefer(DType::F32, f16, 0..=FEW_TOKENS),
            prefer(DType::BF16, f16, FEW_TOKENS + 1..=usize::MAX),
        ],
    };
    let attention = Preference { format: DType::BF16, weights: any, tokens: FEW_TOKENS + 1..=usize::MAX };
    Policy {
        shares_host_memory: target.is_apple(),
        // Of the widest access.
        alignment: 16,
        // Memory moves vectors of four f32 the fastest.
        elements_per_thread: 4,
        // Grids are tables that only the host reads.
        weight_layout: |format| format.recoded().in_planes(),
        activations,
        // Those have no kernels for floats of 8 bits on both sides.
        not_of_experts: |format| matches!(format, DType::F8Groups { .. }),
        attention: if target.is_apple() { Vec::new() } else { vec![attention] },
        // Decoding reads the whole cache for every token.
        cache: Some(DType::F16),
        // One tile of tensor cores, which takes as long with fewer tokens. On Apple GPUs each token by itself.
        independent_tokens: if target.is_apple() { 1 } else { TOKENS_OF_TILE },
        // Of these each of 128 experts has a tile's worth, and a tile of a dense product takes all multiprocessors.
        prompt_tokens: if target.is_apple() { 512 } else { 2048 },
    }
}
