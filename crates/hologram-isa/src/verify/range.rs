//! Finds indices of shared arrays that are always out of bounds.
//!
//! Each `u32` register set by only one instruction has a range, computed from the ranges of its operands: `thread.x` is
//! less than the workgroup size, a counter lies between its loop's constant bounds, a constant is itself. A register
//! set by several instructions, or by an operation not listed below, has the full range. An index is a fault if even
//! its minimum is out of bounds, because the statement then always fails. Other indices are checked at run time.

use super::{Fault, line_of};
use crate::program::*;
use crate::{Opcode, Type};

/// Minimum and maximum.
#[derive(Clone, Copy)]
struct Range(u64, u64);

const ANY: Range = Range(0, u32::MAX as u64);

struct Ranges<'a> {
    program: &'a Program,
    /// Number of instructions that set each register.
    set: Vec<u32>,
    ranges: Vec<Range>,
    statements: usize,
}

/// Checks the shared indices of an otherwise verified program.
pub(super) fn check(program: &Program) -> Result<(), Fault> {
    let registers = program.registers.len();
    let mut ranges = Ranges { program, set: vec![0; registers], ranges: vec![ANY; registers], statements: 0 };
    ranges.count(&program.body);
    ranges.block(&program.body)
}

impl Ranges<'_> {
    fn count(&mut self, block: &[Stmt]) {
        for stmt in block {
            match &stmt.kind {
                StmtKind::Inst(inst) => {
                    if let Some(dst) = inst.dst {
                        self.set[dst.0 as usize] += 1;
                    }
                }
                StmtKind::If { then, otherwise, .. } => {
                    self.count(then);
                    self.count(otherwise);
                }
                StmtKind::For { body, .. } | StmtKind::Loop { body, .. } => self.count(body),
                StmtKind::Break { .. } | StmtKind::Continue { .. } => {}
            }
        }
    }

    fn block(&mut self, block: &[Stmt]) -> Result<(), Fault> {
        for stmt in block {
            let index = self.statements;
            self.statements += 1;
            match &stmt.kind {
                StmtKind::Inst(inst) => {
                    self.access(inst)
                        .map_err(|message| Fault { line: line_of(self.program, index, stmt.line), message })?;
                    self.inst(inst);
                }
                StmtKind::If { then, otherwise, .. } => {
                    self.block(then)?;
                    self.block(otherwise)?;
                }
                StmtKind::For { var, start, end, body, .. } => {
                    let (Range(start, _), Range(_, end)) = (self.value(*start), self.value(*end));
                    let unsigned = self.program.registers[var.0 as usize].ty == Type::U32;
                    let runs = unsigned && start < end;
                    self.ranges[var.0 as usize] = if runs { Range(start, end - 1) } else { ANY };
                    self.block(body)?;
                }
                StmtKind::Loop { body, .. } => self.block(body)?,
                StmtKind::Break { .. } | StmtKind::Continue { .. } => {}
            }
        }
        Ok(())
    }

    fn access(&self, inst: &Inst) -> Result<(), String> {
        let (Some(Memory::Shared(array)), Some(index)) = (inst.memory, inst.args.first()) else { return Ok(()) };
        let SharedArray { name, len, .. } = &self.program.shared[array as usize];
        match self.value(*index) {
            Range(least, _) if least < u64::from(*len) => Ok(()),
            Range(least, most) if least == most => {
                Err(format!("index {least} is outside {name}, which has {len} elements"))
            }
            Range(least, _) => Err(format!("the index is at least {least}, outside {name}, which has {len} elements")),
        }
    }

    fn value(&self, operand: Operand) -> Range {
        match operand {
            Operand::Reg(reg) => self.ranges[reg.0 as usize],
            Operand::Const(Type::U32, word) => Range(word, word),
            Operand::Const(..) | Operand::Scalar(_) => ANY,
        }
    }

    fn inst(&mut self, inst: &Inst) {
        let Some(dst) = inst.dst.map(|dst| dst.0 as usize) else { return };
        if self.set[dst] == 1 && self.program.registers[dst].ty == Type::U32 && inst.ty == Type::U32 {
            self.ranges[dst] = self.result(inst).filter(|r| r.1 <= ANY.1).unwrap_or(ANY);
        }
    }

    /// The range of a result; `None` if it is the full range or may wrap.
    fn result(&self, inst: &Inst) -> Option<Range> {
        let [x, y, z] = self.program.workgroup.map(u64::from);
        let threads = x * y * z;
        let args: Vec<Range> = inst.args.iter().map(|a| self.value(*a)).collect();
        Some(match (inst.op, args.as_slice()) {
            (Opcode::ThreadX, _) => Range(0, x - 1),
            (Opcode::ThreadY, _) => Range(0, y - 1),
            (Opcode::ThreadZ, _) => Range(0, z - 1),
            (Opcode::Lane, _) => Range(0, threads.min(u64::from(SUBGROUP_SIZE)) - 1),
            (Opcode::Subgroup, _) => Range(0, (threads - 1) / u64::from(SUBGROUP_SIZE)),
            (Opcode::Mov, [a]) => *a,
            (Opcode::Select, [_, a, b]) => Range(a.0.min(b.0), a.1.max(b.1)),
            (Opcode::Add, [a, b]) => Range(a.0 + b.0, a.1 + b.1),
            (Opcode::Sub, [a, b]) => Range(a.0.checked_sub(b.1)?, a.1 - b.0),
            (Opcode::Mul, [a, b]) => Range(a.0 * b.0, a.1.checked_mul(b.1)?),
            (Opcode::Div, [a, b]) if b.0 > 0 => Range(a.0 / b.1, a.1 / b.0),
            (Opcode::Rem, [a, b]) if b.0 > a.1 => *a,
            (Opcode::Rem, [a, b]) if b.0 > 0 => Range(0, a.1.min(b.1 - 1)),
            (Opcode::Min, [a, b]) => Range(a.0.min(b.0), a.1.min(b.1)),
            (Opcode::Max, [a, b]) => Range(a.0.max(b.0), a.1.max(b.1)),
            (Opcode::And, [a, b]) => Range(0, a.1.min(b.1)),
            (Opcode::Shl, [a, b]) if b.1 < 32 => Range(a.0 << b.0, a.1 << b.1),
            (Opcode::Shr, [a, b]) if b.1 < 32 => Range(a.0 >> b.1, a.1 >> b.0),
            _ => return None,
        })
    }
}
