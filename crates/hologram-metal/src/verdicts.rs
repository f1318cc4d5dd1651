//! Verdicts of self-tests on native kernels, which are compiled at run time: one for each text and operation, kept on disk for this system and
//! family of GPUs.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use hologram_device::cache::DiskCache;
use hologram_device::{Pipeline, Verdicts, note};
use hologram_gpu::{Part, texts};

use super::backend::{MetalBackend, NativePipeline};
use super::device::Device;

/// What stands on disk for a text that computes as it should; for another it is how it fails.
const RIGHT: &[u8] = b"right";

/// The verdicts that this process knows.
pub(super) struct Known {
    cache: DiskCache,
    right: Mutex<HashMap<(&'static str, String), bool>>,
}

impl Known {
    pub(super) fn new() -> Known {
        Known { cache: DiskCache::standard(), right: Mutex::default() }
    }

    fn set(&self, text: &'static str, op: &str, right: bool) -> bool {
        self.right.lock().unwrap_or_else(PoisonError::into_inner).insert((text, op.into()), right);
        right
    }
}

/// What a verdict is kept under: all that the machine code depends on, and the version of the tests.
fn key(device: &Device, text: &str, op: &str) -> Option<String> {
    let version = env!("CARGO_PKG_VERSION");
    let text = texts::text(text)?;
    Some(format!("verdict {version}, {op}, metal, {}, {}, safe math\n{text}", device.name, device.stamp))
}

fn say(device: &Device, text: &str, op: &str, failure: &str) {
    note(format!(
        "{}: the kernels {text} fail their self-test and do not serve {op}, whose program runs: {failure}",
        device.name
    ));
}

impl Verdicts for MetalBackend {
    fn texts(&self, kernel: &Pipeline) -> Vec<&'static str> {
        let parts = kernel.downcast::<NativePipeline>().map_or(&[][..], |native| &native.kernel.parts);
        let mut texts: Vec<_> = parts
            .iter()
            .filter_map(|part| match part {
                Part::Kernel(launch) => Some(launch.image()),
                Part::Blas(_) => None,
            })
            .collect();
        texts.dedup();
        texts
    }

    fn get(&self, text: &'static str, op: &str) -> Option<bool> {
        let known = &self.known;
        if let Some(right) = known.right.lock().unwrap_or_else(PoisonError::into_inner).get(&(text, op.into())) {
            return Some(*right);
        }
        let kept = known.cache.get(&key(&self.device, text, op)?)?;
        if kept != RIGHT {
            say(&self.device, text, op, &String::from_utf8_lossy(&kept));
        }
        Some(known.set(text, op, kept == RIGHT))
    }

    fn put(&self, text: &'static str, op: &str, verdict: Result<usize, String>) -> bool {
        if let (Some(key), true) = (key(&self.device, text, op), verdict != Ok(0)) {
            self.known.cache.put(&key, verdict.as_ref().map_or_else(|failure| failure.as_bytes(), |_| RIGHT));
        }
        if let Err(failure) = &verdict {
            say(&self.device, text, op, failure);
        }
        self.known.set(text, op, verdict.is_ok())
    }
}
