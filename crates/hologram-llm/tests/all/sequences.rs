//! Decoding many sequences at once gives the same results as each alone: on the CPU, and on a device whose steps have
//! fixed sizes.

use std::sync::Arc;

use crate::common::discrete::Discrete;
use crate::common::sequences::{COUNTS, Case, Work, cases, check_all, check_beside, check_prompts, shape, types};
use hologram_backends::DType;
use hologram_core::Executor;

/// A check of a few seconds.
const QUICK: Work<'_> = Work { counts: &[2, 3, 5, 9, 64], longest: 70, precision: None };

fn case(name: &str, d: usize, heads: usize, kv_heads: usize, kv: DType) -> Case {
    Case { shape: shape(types(name), d, heads, kv_heads, 512), types: types(name), kv }
}

#[test]
fn sequences_at_once_are_as_alone() {
    let cases = [
        case("F32", 64, 4, 1, DType::F32),
        case("F16", 128, 2, 1, DType::F16),
        case("BF16", 64, 4, 2, DType::Q8Planes),
        case("Q8_0", 64, 4, 4, DType::F16),
        case("Q4_K_M", 128, 2, 1, DType::Q8Planes),
        case("TQ2_0", 64, 4, 2, DType::F32),
        case("BF16", 128, 2, 1, DType::F8),
    ];
    let executor = Executor::open("cpu", Some(2)).unwrap();
    let (wrong, _) = check_all(&executor, &cases.map(|case| (case, QUICK)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn prompts_of_any_length_are_as_in_small_steps() {
    let executor = Executor::open("cpu", Some(2)).unwrap();
    for case in [case("BF16", 64, 4, 2, DType::F16), case("Q4_0", 128, 2, 1, DType::Q8Planes)] {
        let wrong = check_prompts(&executor, &case, &[300, 384, 600]);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

#[test]
fn texts_beside_pieces_of_prompts_are_as_alone() {
    let executor = Executor::open("cpu", Some(2)).unwrap();
    let wrong = check_beside(&executor, &case("Q4_0", 64, 4, 2, DType::F16), &[0, 600]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn steps_of_fixed_sizes_are_as_others() {
    let cases = [
        case("F32", 64, 4, 2, DType::F16),
        case("BF16", 128, 2, 1, DType::F32),
        case("F16", 64, 4, 1, DType::Q8Planes),
    ];
    let work = Work { counts: &[2, 3, 64], longest: 70, precision: None };
    let device = Arc::new(Discrete::new(2, None));
    let (wrong, _) = check_all(&Executor::from_backend(device.clone()), &cases.map(|case| (case, work)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let fixed = device.fixed_steps();
    assert!([2, 64].iter().all(|n| fixed.contains(n)) && !fixed.contains(&3), "{fixed:?}");
}

/// All types of weights, caches and heads, and all numbers of sequences.
#[test]
#[ignore = "takes many minutes: for a nightly run"]
fn nightly_all_types_and_numbers_of_sequences_are_as_alone() {
    let work = Work { counts: &COUNTS, longest: 300, precision: None };
    let cases: Vec<_> = cases(256, 512).into_iter().map(|case| (case, work)).collect();
    let (wrong, _) = check_all(&Executor::open("cpu", None).unwrap(), &cases);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
