//! Finds barriers and products of tiles that some threads of a workgroup may not reach.
//!
//! A register is *varying* if it may hold different values on two threads of a workgroup, a block if two threads may
//! come to it a different number of times. The analysis computes the smallest set that is closed under these rules;
//! what is left is uniform:
//!
//! - `thread.*`, `global.x`, `lane`, `subgroup` and the results of subgroup and atomic operations are varying;
//!   `group.*`, `grid.*`, scalars and constants are uniform. A load is uniform if its index is and its buffer is
//!   read-only: another thread may write any other.
//! - A register is varying everywhere if it is anywhere assigned a result of a varying operand, or assigned in a
//!   varying block.
//! - A block is varying if the block around it, the condition of its `if`, or the bounds or step of its `for` are.
//! - A loop's body is varying if a `break` or `continue` out of it has a varying condition or stands in a varying
//!   block: threads leave the loop in different rounds.
//!
//! The rules form a graph with registers and blocks as nodes, and the varying set is what its sources reach: linear in
//! the program.

use super::{Fault, line_of};
use crate::Opcode;
use crate::program::*;
use crate::table::Signature;

/// A block and its statement.
struct Block {
    /// `if`, `for` or `loop`.
    word: &'static str,
    /// Index of the statement, and its own line.
    stmt: (usize, u32),
}

struct Graph<'a> {
    program: &'a Program,
    /// Per node (registers first, then blocks) the nodes that vary if it does.
    dependents: Vec<Vec<usize>>,
    /// Nodes that always vary.
    sources: Vec<usize>,
    /// The blocks other than the kernel's.
    blocks: Vec<Block>,
    /// Per barrier and product of tiles the operation, block, statement index and line.
    barriers: Vec<(Opcode, usize, usize, u32)>,
    statements: usize,
    /// The nodes of the open loops' bodies.
    loops: Vec<usize>,
}

/// Checks the barriers of an otherwise verified program.
pub(super) fn check(program: &Program) -> Result<(), Fault> {
    let root = program.registers.len();
    let mut graph = Graph {
        program,
        dependents: vec![Vec::new(); root + 1],
        sources: Vec::new(),
        blocks: Vec::new(),
        barriers: Vec::new(),
        statements: 0,
        loops: Vec::new(),
    };
    graph.block(&program.body, root);
    graph.check()
}

impl Graph<'_> {
    fn block(&mut self, block: &[Stmt], here: usize) {
        for stmt in block {
            let at = (self.statements, stmt.line);
            self.statements += 1;
            match &stmt.kind {
                StmtKind::Inst(inst) => self.inst(inst, here, at),
                StmtKind::If { cond, then, otherwise } => {
                    for block in [then, otherwise] {
                        let inner = self.new_block("if", at, here);
                        self.depends(inner, *cond);
                        self.block(block, inner);
                    }
                }
                StmtKind::For { var, start, end, step, body } => {
                    let inner = self.new_block("for", at, here);
                    for operand in [start, end, step] {
                        self.depends(inner, *operand);
                    }
                    self.edge(inner, var.0 as usize);
                    self.loop_body(body, inner);
                }
                StmtKind::Loop { body, .. } => {
                    let inner = self.new_block("loop", at, here);
                    self.loop_body(body, inner);
                }
                StmtKind::Break { depth, cond } | StmtKind::Continue { depth, cond } => {
                    let target = self.loops.len().checked_sub(1 + *depth as usize).and_then(|i| self.loops.get(i));
                    if let Some(&target) = target {
                        self.edge(here, target);
                        if let Some(cond) = cond {
                            self.depends(target, *cond);
                        }
                    }
                }
            }
        }
    }

    fn inst(&mut self, inst: &Inst, here: usize, (index, line): (usize, u32)) {
        if matches!(inst.op.info().signature, Signature::Barrier | Signature::Tile) {
            self.barriers.push((inst.op, here, index, line));
        }
        let Some(dst) = inst.dst else { return };
        let dst = dst.0 as usize;
        if self.is_source(inst) {
            self.sources.push(dst);
        }
        self.edge(here, dst);
        for arg in &inst.args {
            self.depends(dst, *arg);
        }
    }

    fn is_source(&self, inst: &Inst) -> bool {
        use Opcode::*;
        match inst.op.info().signature {
            Signature::Builtin => !matches!(inst.op, GroupX | GroupY | GroupZ | GridX | GridY | GridZ),
            Signature::Reduce | Signature::Shuffle | Signature::Tile | Signature::Atomic | Signature::Exchange => true,
            Signature::Load => match inst.memory {
                Some(Memory::Param(index)) => !matches!(
                    self.program.params.get(index as usize),
                    Some(Param { kind: ParamKind::Buffer { access: Access::Read, .. }, .. })
                ),
                _ => true,
            },
            _ => inst.op == Broadcast,
        }
    }

    fn loop_body(&mut self, body: &[Stmt], inner: usize) {
        self.loops.push(inner);
        self.block(body, inner);
        self.loops.pop();
    }

    fn new_block(&mut self, word: &'static str, stmt: (usize, u32), outer: usize) -> usize {
        let node = self.dependents.len();
        self.dependents.push(Vec::new());
        self.blocks.push(Block { word, stmt });
        self.edge(outer, node);
        node
    }

    fn depends(&mut self, node: usize, operand: Operand) {
        if let Operand::Reg(reg) = operand {
            self.edge(reg.0 as usize, node);
        }
    }

    fn edge(&mut self, from: usize, to: usize) {
        if from != to {
            self.dependents[from].push(to);
        }
    }

    fn check(&self) -> Result<(), Fault> {
        // Per varying node, the node that makes it vary; sources cause themselves.
        let mut cause: Vec<Option<usize>> = vec![None; self.dependents.len()];
        let mut work = Vec::new();
        for &source in &self.sources {
            cause[source] = Some(source);
            work.push(source);
        }
        while let Some(node) = work.pop() {
            for &next in &self.dependents[node] {
                if cause[next].is_none() {
                    cause[next] = Some(node);
                    work.push(next);
                }
            }
        }
        for &(op, block, index, line) in &self.barriers {
            if cause[block].is_some() {
                let line = line_of(self.program, index, line);
                return Err(Fault { line, message: self.explain(op, block, &cause) });
            }
        }
        Ok(())
    }

    /// Explains why a block varies: names the statement with a varying register.
    fn explain(&self, op: Opcode, block: usize, cause: &[Option<usize>]) -> String {
        let registers = self.program.registers.len();
        let what = op.info().mnemonic;
        let mut node = block;
        while let Some(next) = cause[node] {
            if next < registers {
                let name = &self.program.registers[next].name;
                // The kernel's own block never varies, so a varying block has a statement.
                let Block { word, stmt: (index, line) } = &self.blocks[node - registers - 1];
                let line = line_of(self.program, *index, *line);
                return format!(
                    "not every thread of the workgroup arrives at this {what}: the {word} on line {line} depends on %{name}, which \
                     differs between threads"
                );
            }
            node = next;
        }
        format!("not every thread of the workgroup arrives at this {what}")
    }
}
