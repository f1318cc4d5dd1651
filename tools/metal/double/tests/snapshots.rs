//! Sequences that leave a session on the Metal backend and come back.

use hologram_core::Executor;
use metal_double as _;
use scratch::Scratch;

#[path = "../../../../crates/hologram-llm/tests/common/scratch.rs"]
mod scratch;
#[path = "../../../../crates/hologram-llm/tests/common/snapshots.rs"]
mod snapshots;

const FIXTURES: &str = "../../../crates/hologram-llm/tests/fixtures";

#[test]
fn sequences_leave_a_session_and_come_back() {
    let folder = Scratch::new("snapshots-metal");
    let executor = Executor::open("metal", None).unwrap();
    // Most of the files align their tensors to 8 bytes, which Metal's kernels cannot read in place.
    let models = ["llama-tiny.gguf", "gemma3", "lfm2", "granite-4"];
    assert_eq!(snapshots::check(&executor, &folder.0, &models), 13);
}
