//! A sequence that leaves a session and comes back goes on as if it had stayed, on any device.

use std::path::{Path, PathBuf};

use hologram_backends::DType;
use hologram_core::Executor;
use hologram_llm::{LlmError, Logits, Model, Session, SessionOptions, Snapshot};

/// Attention, windows, latent vectors, and recurrent layers of several kinds.
#[allow(dead_code, reason = "the Metal double checks some")]
pub const MODELS: [&str; 8] =
    ["llama-tiny.gguf", "llama3-scaled", "gemma3", "deepseek-v2", "lfm2", "qwen3-5", "qwen3-next", "granite-4"];

pub const CACHES: [DType; 4] = [DType::F32, DType::F16, DType::F8, DType::Q8Planes];

pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(super::FIXTURES).join(name)
}

pub fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 3 + ((i + 1).wrapping_mul(0x9e37_79b1).wrapping_add(seed * 977) >> 9) % 60).collect()
}

fn session(model: &Model, kv: DType) -> Result<Session, LlmError> {
    model.session(SessionOptions { context: 128, sequences: 2, kv: Some(kv), ..SessionOptions::default() })
}

/// Checks models with every kind of cache that they can have. Returns the number of pairs.
pub fn check(executor: &Executor, folder: &Path, models: &[&str]) -> usize {
    let mut checked = 0;
    for name in models {
        let model = Model::load_on(fixture(name), executor).unwrap();
        for kv in CACHES {
            // Heads that are no whole blocks have no cache of 8 bits.
            let Ok(mut first) = session(&model, kv) else { continue };
            let what = format!("{name}, {}", kv.name());
            // Other blocks than those it will come back to; a whole number of blocks and a part.
            first.feed(0, &prompt(2, 40), Logits::None).unwrap();
            for len in [64, 75] {
                first.truncate(1, 0);
                first.feed(1, &prompt(1, len - 1), Logits::None).unwrap();
                first.feed(1, &prompt(1, len)[len - 1..], Logits::Last).unwrap();
                let path = folder.join("talk");
                let snapshot = first.snapshot(1).unwrap().with_note("said");
                assert_eq!(snapshot.write(&path).unwrap(), std::fs::metadata(&path).unwrap().len());
                let more = prompt(3, 9);
                let want = first.feed(1, &more, Logits::All).unwrap().to_vec();
                let read = Snapshot::read(&path).unwrap();
                assert_eq!((read.tokens(), read.computed(), read.note()), (&prompt(1, len)[..], len, "said"));
                let mut second = session(&model, kv).unwrap();
                second.feed(0, &prompt(4, 70), Logits::None).unwrap();
                assert_eq!(second.restore(0, &read).unwrap(), len);
                assert_eq!(second.tokens(0), prompt(1, len));
                assert!(second.feed(0, &more, Logits::All).unwrap() == want, "{what}, {len} tokens: other logits");
            }
            checked += 1;
        }
    }
    checked
}
