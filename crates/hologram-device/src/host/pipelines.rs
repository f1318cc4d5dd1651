//! The cache of compiled programs.

use std::sync::{Mutex, PoisonError};

use hologram_isa::{Capability, Program, Stmt, StmtKind, print, verify};

use super::queue::Counters;
use crate::error::{BackendError, Result};
use crate::info::DeviceInfo;
use crate::launch::Pipeline;
use crate::lru::Lru;

/// The most pipelines that a device keeps: some 20 MB of programs of usual size.
const CAPACITY: usize = 1024;

/// Pipelines by the whole text of their programs and the lines that their faults name (for a program read from a file,
/// lines of the file). The least recently used ones are evicted; recordings keep their pipelines alive.
pub struct Pipelines(Mutex<Lru<(String, Vec<u32>), Pipeline>>);

impl Default for Pipelines {
    fn default() -> Pipelines {
        Pipelines(Mutex::new(Lru::new(CAPACITY)))
    }
}

impl Pipelines {
    /// The pipeline of a program: verified and compiled when it is new.
    ///
    /// # Errors
    /// The verifier's, [`BackendError::Unsupported`] for what the device lacks, and those of compiling.
    pub fn get_or_compile(
        &self,
        info: &DeviceInfo,
        counters: &Counters,
        program: &Program,
        compile: impl FnOnce() -> Result<Pipeline>,
    ) -> Result<Pipeline> {
        let mut lines = Vec::new();
        collect_lines(&program.body, &mut lines);
        let key = (print(program), lines);
        let pipelines = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = pipelines().get(&key) {
            Counters::add(&counters.hits, 1);
            return Ok(pipeline);
        }
        // Without the lock: compiling may take long, and two threads may compile different programs.
        verify(program)?;
        check_needs(info, program)?;
        let pipeline = compile()?;
        Counters::add(&counters.compiled, 1);
        let mut pipelines = pipelines();
        let before = pipelines.evicted();
        let pipeline = pipelines.insert(key, pipeline);
        Counters::add(&counters.evicted, (pipelines.evicted() - before) as usize);
        Ok(pipeline)
    }
}

/// Rejects a program that needs a capability that the device lacks.
fn check_needs(info: &DeviceInfo, program: &Program) -> Result<()> {
    let lacking = |c: &Capability| !info.capabilities.contains(c) && c.is_needed_by(program);
    match Capability::ALL.into_iter().find(lacking) {
        None => Ok(()),
        Some(capability) => Err(BackendError::Unsupported {
            device: info.backend.to_string(),
            what: format!("{capability}, which program {} needs,", program.name),
        }),
    }
}

fn collect_lines(block: &[Stmt], lines: &mut Vec<u32>) {
    for stmt in block {
        lines.push(stmt.line);
        match &stmt.kind {
            StmtKind::If { then, otherwise, .. } => {
                collect_lines(then, lines);
                collect_lines(otherwise, lines);
            }
            StmtKind::For { body, .. } | StmtKind::Loop { body, .. } => collect_lines(body, lines),
            StmtKind::Inst(_) | StmtKind::Break { .. } | StmtKind::Continue { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::BackendType;

    #[test]
    fn what_a_device_lacks_is_named() {
        let program = hologram_isa::parse("kernel scale(x: buffer<f64>) workgroup(1) {\n}").unwrap();
        let info = |capabilities| DeviceInfo {
            backend: BackendType::Metal,
            name: "a GPU".into(),
            memory_bytes: 0,
            parallelism: 1,
            limits: crate::info::DeviceLimits::PROGRAM,
            capabilities,
            subnormals: Default::default(),
            features: Vec::new(),
            details: Vec::new(),
        };
        let compile = |capabilities| {
            let pipeline = || Ok(Pipeline::program("scale", ()));
            Pipelines::default().get_or_compile(&info(capabilities), &Counters::default(), &program, pipeline)
        };
        assert!(compile(vec![Capability::F64]).is_ok());
        let error = compile(vec![Capability::Atomic64]).err().unwrap().to_string();
        assert_eq!(error, "metal: f64, which program scale needs, is not supported by this device");
    }
}
