//! With `deterministic` the bits of a seeded request are the same alone and beside any others.

use hologram_core::Executor;

use crate::common::alone::{Case, FIXTURES, LOADS, Load, dense};

/// Requests that run at once.
const REQUESTS: usize = 40;

fn executor() -> Executor {
    Executor::open("cpu", Some(2)).unwrap()
}

/// Runs the cases with some loads and returns what differs.
fn check(cases: impl Iterator<Item = Case>, loads: &[Load]) -> Vec<String> {
    let (mut all, mut preempted) = (Vec::new(), false);
    for case in cases {
        for load in loads {
            let started = std::time::Instant::now();
            let (differing, stats) = case.differing(REQUESTS, *load, true);
            println!("{}, {load:?}: {} differ, {:.1?}", case.name, differing.len(), started.elapsed());
            assert!(stats.step_tokens > 3 * stats.steps, "requests share steps: {stats:?}");
            preempted |= stats.preemptions > 0;
            all.extend(differing);
        }
    }
    assert!(preempted || loads.iter().all(|load| load.blocks.is_none()), "nothing was preempted");
    all
}

#[test]
fn dense_models_give_the_same_bits_beside_others() {
    let executor = executor();
    assert_eq!(check(dense(&executor, 4).into_iter(), &LOADS[..1]), [""; 0]);
}

#[test]
fn architectures_give_the_same_bits_beside_others() {
    let executor = executor();
    let cases = FIXTURES.into_iter().map(|name| Case::fixture(&executor, name));
    assert_eq!(check(cases, &LOADS[..1]), [""; 0]);
}

#[test]
fn preempted_and_guessed_texts_have_the_same_bits() {
    let executor = executor();
    let cases = ["llama-tiny.gguf", "mixtral", "qwen3-next", "gemma3"].into_iter();
    assert_eq!(check(cases.map(|name| Case::fixture(&executor, name)), &LOADS[1..]), [""; 0]);
}

/// Without `deterministic` other requests do change bits: these requests would show it.
#[test]
fn other_requests_change_bits_otherwise() {
    let case = Case::fixture(&executor(), "llama-tiny.gguf");
    let (differing, _) = case.differing(REQUESTS, LOADS[0], false);
    assert!(!differing.is_empty());
}
