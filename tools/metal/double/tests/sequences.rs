//! Many sequences decoded at once on the Metal backend give what each gives alone.

use hologram_backends::DType;
use hologram_core::Executor;
use hologram_llm::WeightTypes;
use metal_double as _;
use sequences::{Case, Work, check_all, shape};

#[allow(dead_code, reason = "the double runs a part of the cases")]
#[path = "../../../../crates/hologram-llm/tests/common/sequences.rs"]
mod sequences;

/// Weights, elements of a head, heads, key/value heads, and the type of the cache.
type Form = (&'static str, usize, usize, usize, DType);

fn check(forms: &[Form], work: Work<'_>) {
    let cases: Vec<_> = forms
        .iter()
        .map(|(name, d, heads, kv_heads, kv)| {
            let types = WeightTypes::all().find(|types| types.name() == *name).unwrap();
            (Case { shape: shape(types, *d, *heads, *kv_heads, 256), types, kv: *kv }, work)
        })
        .collect();
    let (wrong, _) = check_all(&Executor::open("metal", None).unwrap(), &cases);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn many_sequences_at_once_are_as_alone() {
    check(&[("F32", 64, 4, 1, DType::F32)], Work { counts: &[3, 64], longest: 33, precision: None });
}

#[test]
fn few_sequences_at_once_are_as_alone() {
    let forms = [
        ("BF16", 128, 2, 1, DType::F16),
        ("Q8_0", 64, 4, 4, DType::Q8Planes),
        ("Q4_K", 128, 2, 2, DType::F16),
        ("TQ2_0", 64, 4, 2, DType::F32),
    ];
    check(&forms, Work { counts: &[2, 5, 9], longest: 34, precision: None });
}
