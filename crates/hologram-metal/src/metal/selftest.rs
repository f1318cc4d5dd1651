//! Runs the cases of a kernel on the device, and stores the verdict on disk for this system and family of GPUs.

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
use crate::selftest::{CASES, Case, TestBinding, line, read};

/// The stored verdict of a correct kernel; for others the failure is stored.
const RIGHT: &[u8] = b"right";

/// The verdicts known to this process.
pub(super) struct Verdicts {
    cache: DiskCache,
    right: Mutex<HashMap<(&'static str, String), bool>>,
}

/// The table, read once.
fn cases() -> &'static [Case] {
    static READ: LazyLock<Vec<Case>> = LazyLock::new(|| read(CASES).unwrap_or_default());
    &READ
}

/// The cases that judge a kernel: those that launch it; of one that none launches the first of its text.
fn cases_of(text: &str, entry: &str) -> Vec<&'static Case> {
    let launches = |case: &&Case| case.parts().any(|part| part.text == text && part.entry == entry);
    let own: Vec<&Case> = cases().iter().filter(launches).collect();
    if own.is_empty() {
        cases().iter().find(|case| case.texts.iter().any(|t| t == text)).into_iter().collect()
    } else {
        own
    }
}

/// The cache key of a verdict: everything that the machine code depends on, and the cases.
fn key(device: &Device, text: &str, entry: &str) -> Option<String> {
    let source = texts::text_of_kernel(text, entry)?;
    let lines: Option<Vec<String>> = cases_of(text, entry).into_iter().map(|case| line(case).ok()).collect();
    Some(format!("verdict, {}\n{source}\n{}", compiled_for(device), lines?.concat()))
}

impl Verdicts {
    pub(super) fn new() -> Verdicts {
        Verdicts { cache: DiskCache::standard(), right: Mutex::default() }
    }
}

impl MetalBackend {
    /// Returns the kernel if all its parts compute correctly.
    pub(super) fn admit(&self, kernel: NativeKernel) -> Option<NativeKernel> {
        let parts = kernel.parts.iter().filter_map(|part| match part {
            Part::Kernel(launch) => Some((launch.image(), &*launch.entry)),
            Part::Blas(_) => None,
        });
        // Each part is tested, whatever the results of the others.
        (parts.filter(|(text, entry)| !self.is_right(text, entry)).count() == 0).then_some(kernel)
    }

    fn is_right(&self, text: &'static str, entry: &str) -> bool {
        let verdicts = &self.verdicts;
        // Held during the test, so that no other thread starts the same one.
        let mut right = verdicts.right.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (text, entry.to_string());
        if let Some(right) = right.get(&name) {
            return *right;
        }
        let key = key(&self.device, text, entry);
        let kept = key.as_ref().and_then(|key| verdicts.cache.get(key));
        let failure = match kept {
            Some(kept) => (kept != RIGHT).then(|| String::from_utf8_lossy(&kept).into_owned()),
            None => match self.failure_of(text, entry) {
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
                "{}: the kernel {entry} ({text}) fails its self-test, and programs run in its place: {reason}",
                self.device.name
            ));
        }
        right.insert(name, failure.is_none());
        failure.is_none()
    }

    /// The failure of the first case of a kernel that fails, if any.
    ///
    /// # Errors
    /// When the device fails in a way that says nothing about the kernels.
    fn failure_of(&self, text: &str, entry: &str) -> Result<Option<String>> {
        for case in cases_of(text, entry) {
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
