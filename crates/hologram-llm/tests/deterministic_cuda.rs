//! With `deterministic` the bits of a seeded request are the same alone and beside any others, on an NVIDIA GPU.

use hologram_core::Executor;

#[path = "common/alone.rs"]
mod alone;

use alone::{Case, FIXTURES, LOADS, dense};

/// Requests that run at once: more than a plan has tokens.
const REQUESTS: usize = 60;

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn requests_give_the_same_bits_beside_others() {
    let executor = Executor::open("cuda", None).unwrap();
    let fixtures = FIXTURES.into_iter().map(|name| Case::fixture(&executor, name));
    let mut all = Vec::new();
    for case in dense(&executor, 8).into_iter().chain(fixtures) {
        for load in LOADS {
            let started = std::time::Instant::now();
            let (differing, stats) = case.differing(REQUESTS, load, true);
            println!(
                "{}, {} at once: {} differ, {} preemptions, {:.1?}",
                case.name,
                load.sequences,
                differing.len(),
                stats.preemptions,
                started.elapsed()
            );
            assert!(stats.step_tokens > 3 * stats.steps, "requests share steps: {stats:?}");
            all.extend(differing);
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}
