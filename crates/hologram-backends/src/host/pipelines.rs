//! The cache of compiled programs.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use hologram_isa::{Program, Stmt, StmtKind, print, verify};

use super::queue::Counters;
use crate::backend::Pipeline;
use crate::error::Result;

/// Pipelines by the whole text of their programs, and the lines that the program's faults name (a program read from a file has those
/// of the file).
#[derive(Default)]
pub(crate) struct Pipelines(Mutex<HashMap<(String, Vec<u32>), Pipeline>>);

impl Pipelines {
    /// The pipeline of a program: verified and compiled when it is new.
    ///
    /// # Errors
    /// The verifier's, and those of compiling.
    pub(crate) fn get_or_compile(
        &self,
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
            return Ok(pipeline.clone());
        }
        // Without the lock: compiling may take long, and two threads may compile different programs.
        verify(program)?;
        let pipeline = compile()?;
        Counters::add(&counters.compiled, 1);
        Ok(pipelines().entry(key).or_insert(pipeline).clone())
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
