//! Decoding many sequences at once on an NVIDIA GPU gives the same results as each alone.

use hologram_backends::{DType, Extent, KernelSpec, TensorSpec};
use hologram_core::Executor;
use sequences::{COUNTS, Case, Work, cases, check_all, check_beside, check_prompts, shape, types};

#[path = "common/sequences.rs"]
mod sequences;

/// Row length of hidden states and of the feed-forward network, whose last product is large enough for cuBLASLt and
/// therefore for steps of fixed size.
const WIDTH: usize = 512;
const FFN: usize = 8192;

/// Whether steps of this many tokens have fixed sizes with `bf16` weights, which shows that cuBLASLt was found.
fn prefers_fixed(executor: &Executor, tokens: usize) -> bool {
    let tensor = |format, sizes: [usize; 2]| TensorSpec { format, shape: sizes.map(Extent::Fixed).to_vec() };
    executor.backend().kernels().prefers_fixed(&KernelSpec {
        op: hologram_backends::Operation::Matmul,
        inputs: vec![tensor(DType::BF16, [tokens, FFN]), tensor(DType::BF16, [WIDTH, FFN])],
        output: tensor(DType::F32, [tokens, WIDTH]),
        in_place: None,
    })
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn sequences_at_once_are_as_alone() {
    let executor = Executor::open("cuda", None).unwrap();
    let work = Work { counts: &COUNTS, longest: 300, precision: None };
    let cases: Vec<_> = cases(WIDTH, FFN).into_iter().map(|case| (case, work)).collect();
    let (wrong, by_blas) = check_all(&executor, &cases);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if !prefers_fixed(&executor, 64) {
        println!("cuBLASLt was not found: steps of fixed sizes were not checked");
        return;
    }
    let with_bf16: Vec<_> = by_blas.iter().filter(|(name, _)| name.starts_with("BF16 ")).collect();
    let fixed = [64, 128, 256];
    assert!(!with_bf16.is_empty() && with_bf16.iter().all(|(_, counts)| *counts == fixed), "{by_blas:?}");
}

/// Steps of many tokens in the precision of single tokens: 8-bit activations if the weights allow them, and attention
/// in `f32`.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn sequences_at_once_are_as_alone_in_the_precision_of_one_token() {
    let executor = Executor::open("cuda", None).unwrap();
    let work = Work { counts: &[2, 9, 64, 65], longest: 100, precision: Some(1) };
    let mut chosen = Vec::new();
    for types in hologram_llm::WeightTypes::all() {
        let kv = match types.name().as_str() {
            "BF16" | "Q4_K" => DType::F16,
            "Q8_0" => DType::Q8Planes,
            "F16" => DType::F8,
            "Q4_0" => DType::F32,
            _ => continue,
        };
        chosen.extend([(64, 8, 2), (128, 4, 1)].map(|(d, heads, kv_heads)| {
            let shape = shape(types, d, heads, kv_heads, FFN);
            (Case { shape, types, kv }, work)
        }));
    }
    let (wrong, _) = check_all(&executor, &chosen);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Prompts whose plans have five and six eighths of a power of two tokens, whole ones, and some that are padded.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn prompts_of_any_length_are_as_in_small_steps() {
    const LENGTHS: [usize; 12] = [300, 320, 384, 600, 640, 700, 768, 900, 1024, 1100, 1280, 1536];
    let executor = Executor::open("cuda", None).unwrap();
    let mut wrong = Vec::new();
    for (name, kv) in [("BF16", DType::F16), ("F16", DType::F16), ("F32", DType::F32), ("Q4_K", DType::Q8Planes)] {
        let case = Case { shape: shape(types(name), 128, 4, 2, FFN), types: types(name), kv };
        wrong.extend(check_prompts(&executor, &case, &LENGTHS));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Short and long prompts: a step's plan depends on what its tokens share of the cache.
#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn texts_beside_pieces_of_prompts_are_as_alone() {
    let executor = Executor::open("cuda", None).unwrap();
    let mut wrong = Vec::new();
    let caches = [DType::F16, DType::F32, DType::Q8Planes, DType::F8];
    for (kv, (d, heads, kv_heads)) in caches.into_iter().zip([(128, 8, 2), (64, 8, 2), (128, 4, 4), (64, 4, 1)]) {
        for name in ["BF16", "Q4_K"] {
            let case = Case { shape: shape(types(name), d, heads, kv_heads, FFN), types: types(name), kv };
            wrong.extend(check_beside(&executor, &case, &[0, 900, 2500]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
