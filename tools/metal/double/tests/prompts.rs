//! The command buffers of a prompt.

use hologram_core::Executor;
use hologram_llm::{Logits, Model, SessionOptions};
use metal_double::counts;

const FIXTURE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../../crates/hologram-llm/tests/fixtures/llama-tiny.gguf");

/// A prompt of more work than a command buffer may have is several of them, with the same results.
#[test]
fn prompts_in_several_command_buffers() {
    let feed = |ms: &str| {
        // SAFETY: no other thread reads the environment now.
        unsafe { std::env::set_var("HOLOGRAM_COMMAND_MS", ms) };
        let executor = Executor::open("metal", None).unwrap();
        let model = Model::load_on(FIXTURE, &executor).unwrap();
        let options = SessionOptions { context: 64, batch: Some(16), ..SessionOptions::default() };
        let mut session = model.session(options).unwrap();
        let before = counts();
        let logits = session.feed(0, &[1, 5, 9, 2, 7, 7, 3, 4], Logits::Last).unwrap().to_vec();
        // The same list again, of which the next run is encoded ahead.
        let again = session.feed(0, &[1, 5, 9, 2, 7, 7, 3, 4], Logits::Last).unwrap().to_vec();
        let third = session.feed(0, &[1, 5, 9, 2, 7, 7, 3, 4], Logits::Last).unwrap().to_vec();
        ([logits, again, third], counts().commits - before.commits, counts().dispatches - before.dispatches)
    };
    // Self-tests, which are command buffers too, run when a kernel first serves and the cache has no verdict.
    feed("100");
    let (whole, one, _) = feed("100");
    let (split, each, launches) = feed("0");
    let (some, several, _) = feed("0.002");
    // SAFETY: as above.
    unsafe { std::env::remove_var("HOLOGRAM_COMMAND_MS") };
    assert_eq!((&whole, one), (&split, 3));
    assert_eq!(whole, some);
    assert!(
        each >= launches - launches / 3 && (one + 1..each).contains(&several),
        "{one} {several} {each} of {launches}"
    );
}
