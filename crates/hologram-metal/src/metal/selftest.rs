//! Runs the cases of a kernel text on the device, and stores the verdict on disk for this system and family of GPUs.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use hologram_device::cache::DiskCache;
use hologram_device::host::{Rule, RuleKind};
use hologram_device::{Backend, BackendError, Binding, Launch, LaunchConfig, Pipeline, Result, note};
use hologram_gpu::{NativeKernel, Part, texts};
use hologram_isa::Type;

use super::backend::{MetalBackend, NativePipeline};
use super::device::Device;
use super::library::compiled_for;
use crate::selftest::{CASES, Case, TestBinding, read};

/// The stored verdict of a correct text; for others the failure is stored.
const RIGHT: &[u8] = b"right";

/// The verdicts known to this process.
pub(super) struct Verdicts {
    cache: DiskCache,
    right: Mutex<HashMap<&'static str, bool>>,
}

/// The table, read once.
fn cases() -> &'static [Case] {
    static READ: LazyLock<Vec<Case>> = LazyLock::new(|| read(CASES).unwrap_or_default());
    &READ
}

/// The cache key of a verdict: everything that the machine code depends on, and the cases.
fn key(device: &Device, text: &str) -> Option<String> {
    let source = texts::text(text)?;
    let quoted = format!("\"{text}\"");
    let of_text: String = CASES.lines().filter(|line| line.contains(&quoted)).collect();
    Some(format!("verdict, {}\n{source}\n{of_text}", compiled_for(device)))
}

impl Verdicts {
    pub(super) fn new() -> Verdicts {
        Verdicts { cache: DiskCache::standard(), right: Mutex::default() }
    }
}

impl MetalBackend {
    /// Returns the kernel if all its texts compute correctly.
    pub(super) fn admit(&self, kernel: NativeKernel) -> Option<NativeKernel> {
        let texts = kernel.parts.iter().filter_map(|part| match part {
            Part::Kernel(launch) => Some(launch.image()),
            Part::Blas(_) => None,
        });
        // Each text is tested, whatever the results of the others.
        (texts.filter(|text| !self.is_right(text)).count() == 0).then_some(kernel)
    }

    fn is_right(&self, text: &'static str) -> bool {
        let verdicts = &self.verdicts;
        // Held during the test, so that no other thread starts the same one.
        let mut right = verdicts.right.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(right) = right.get(text) {
            return *right;
        }
        let key = key(&self.device, text);
        let kept = key.as_ref().and_then(|key| verdicts.cache.get(key));
        let failure = match kept {
            Some(kept) => (kept != RIGHT).then(|| String::from_utf8_lossy(&kept).into_owned()),
            None => match self.failure_of(text) {
                Ok(failure) => {
                    if let Some(key) = &key {
                        verdicts.cache.put(key, failure.as_ref().map_or(RIGHT, |reason| reason.as_bytes()));
                    }
                    failure
                }
                // The device fails in ways that say nothing about the kernels: their users get the error.
                Err(_) => None,
            },
        };
        if let Some(reason) = &failure {
            note(format!(
                "{}: the kernels {text} fail their self-test, and programs run in their place: {reason}",
                self.device.name
            ));
        }
        right.insert(text, failure.is_none());
        failure.is_none()
    }

    /// The failure of the first case of a text that fails, if any.
    ///
    /// # Errors
    /// When the device fails in a way that says nothing about the kernels.
    fn failure_of(&self, text: &str) -> Result<Option<String>> {
        for case in cases().iter().filter(|case| case.texts.iter().any(|t| t == text)) {
            let failure = match self.run_case(case) {
                Ok(failure) => failure,
                // A kernel does not compile, or fails.
                Err(BackendError::Kernel { reason, .. }) => Some(reason),
                Err(e) => return Err(e),
            };
            if let Some(reason) = failure {
                return Ok(Some(format!("{}: {reason}", case.name)));
            }
        }
        Ok(None)
    }

    fn run_case(&self, case: &Case) -> Result<Option<String>> {
        let broken = |reason: String| BackendError::InvalidArgument {
            device: self.device.name.clone(),
            operation: format!("the self-test {}", case.name),
            reason,
        };
        let (mut before, mut buffers) = (Vec::new(), Vec::new());
        for buffer in &case.buffers {
            let memory = buffer.memory().map_err(broken)?;
            let on_device = self.allocate_buffer(memory.len())?;
            self.copy_to_buffer(&on_device, 0, &memory)?;
            buffers.push(on_device);
            before.push(memory);
        }
        let mut launches = Vec::new();
        for launch in &case.launches {
            let bind = |b: &TestBinding| {
                let buffer = buffers.get(b.buffer)?.clone();
                Some(Binding::Buffer { buffer, range: b.start..b.start.checked_add(b.bytes)? })
            };
            let bindings: Option<Vec<Binding>> = launch.bindings.iter().map(bind).collect();
            let rules = launch.bindings.iter().enumerate().map(|(i, b)| rule(i, b)).collect();
            let kernel = launch.kernel().map_err(broken)?;
            launches.push(Launch {
                pipeline: Pipeline::native(&case.name, NativePipeline { kernel, flops: 0, rules }),
                bindings: bindings.ok_or_else(|| broken("a binding lies outside its buffer".into()))?,
                config: LaunchConfig { grid: [1, 1, 1] },
            });
        }
        let list = self.record(&launches)?;
        let event = self.submit(&list)?;
        self.wait(event)?;
        for result in &case.results {
            let (mut after, no_buffer) = (vec![0; result.bytes], || broken("a result has no memory".into()));
            self.copy_from_buffer(buffers.get(result.buffer).ok_or_else(no_buffer)?, result.start, &mut after)?;
            let before = before.get(result.buffer).and_then(|b| b.get(result.start..result.start + result.bytes));
            if let Some(reason) = result.failure(before.ok_or_else(no_buffer)?, &after) {
                return Ok(Some(reason));
            }
        }
        Ok(None)
    }
}

fn rule(index: usize, binding: &TestBinding) -> Rule {
    let TestBinding { bytes, read, write, .. } = *binding;
    let kind = RuleKind::Buffer { element: Type::U8, read, write, min_bytes: bytes, distinct: true };
    Rule { name: format!("binding {index}"), kind }
}
