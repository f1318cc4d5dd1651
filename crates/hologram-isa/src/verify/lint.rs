//! Warnings about likely mistakes.

use super::line_of;
use crate::program::*;
use crate::table::Signature;
use crate::{Opcode, Type};

/// A warning about a valid program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// 1-based line, as in the errors of [`verify()`](crate::verify()); 0 for a parameter or shared array.
    pub line: u32,
    /// The message.
    pub message: String,
}

/// Likely mistakes in a verified program, in text order: unused parameters, shared arrays and results, unreachable
/// statements, loops that never run, integer divisions by the constant 0, floats whose bits are a small number.
pub fn lint(program: &Program) -> Vec<Warning> {
    let mut linter = Linter {
        program,
        statements: 0,
        params: vec![false; program.params.len()],
        shared: vec![[false; 2]; program.shared.len()],
        read: vec![false; program.registers.len()],
        set: vec![None; program.registers.len()],
        warnings: Vec::new(),
    };
    linter.block(&program.body);
    let Linter { params, shared, read, set, mut warnings, .. } = linter;
    for (register, set) in set.iter().enumerate().filter(|(register, _)| !read[*register]) {
        if let Some(line) = *set {
            let message = format!("nothing reads %{}", program.registers[register].name);
            warnings.push(Warning { line, message });
        }
    }
    warnings.sort_by_key(|warning| warning.line);
    let unused = params.iter().zip(&program.params).filter(|(used, _)| !**used);
    let unused = unused.map(|(_, param)| format!("nothing uses the parameter {}", param.name));
    let unread = shared.iter().zip(&program.shared).filter_map(|([loaded, stored], array)| match (loaded, stored) {
        (true, true) => None,
        (true, false) => Some(format!("nothing stores into the shared array {}", array.name)),
        (false, true) => Some(format!("nothing loads from the shared array {}", array.name)),
        (false, false) => Some(format!("nothing uses the shared array {}", array.name)),
    });
    let header = unused.chain(unread).map(|message| Warning { line: 0, message });
    header.chain(warnings).collect()
}

/// The value of a float constant that is closer to 0 than normal floats are, as small hexadecimal digits give.
fn subnormal(ty: Type, bits: u64) -> Option<String> {
    let (single, double) = (f32::from_bits(bits as u32), f64::from_bits(bits));
    match ty {
        Type::F32 if single.is_subnormal() => Some(format!("{single:e}")),
        Type::F64 if double.is_subnormal() => Some(format!("{double:e}")),
        _ => None,
    }
}

struct Linter<'a> {
    program: &'a Program,
    statements: usize,
    /// Whether each parameter is used.
    params: Vec<bool>,
    /// Whether each shared array is loaded from, and stored into.
    shared: Vec<[bool; 2]>,
    /// Whether each register is read.
    read: Vec<bool>,
    /// The line of the instruction that first sets each register, for registers set only by side-effect-free
    /// instructions.
    set: Vec<Option<u32>>,
    warnings: Vec<Warning>,
}

impl Linter<'_> {
    /// Returns whether threads reach the block's end.
    fn block(&mut self, block: &[Stmt]) -> bool {
        let (mut falls, mut told) = (true, false);
        for stmt in block {
            let line = line_of(self.program, self.statements, stmt.line);
            self.statements += 1;
            if !falls && !told {
                told = true;
                self.warn(line, "unreachable: every thread has left by a break or continue".into());
            }
            match &stmt.kind {
                StmtKind::Inst(inst) => self.inst(inst, line),
                StmtKind::If { cond, then, otherwise } => {
                    self.read(*cond);
                    let then = self.block(then);
                    falls &= self.block(otherwise) || then;
                }
                StmtKind::For { var, start, end, step, body } => {
                    for operand in [start, end, step] {
                        self.read(*operand);
                    }
                    if let (Operand::Const(ty, start), Operand::Const(_, end)) = (*start, *end) {
                        let signed = ty == Type::I32;
                        if if signed { start as i32 >= end as i32 } else { start >= end } {
                            let name = &self.program.registers[var.0 as usize].name;
                            self.warn(line, format!("the loop of %{name} never runs: its end is not beyond its start"));
                        }
                    }
                    self.block(body);
                }
                StmtKind::Loop { body, .. } => _ = self.block(body),
                StmtKind::Break { cond, .. } | StmtKind::Continue { cond, .. } => match cond {
                    Some(cond) => self.read(*cond),
                    None => falls = false,
                },
            }
        }
        falls
    }

    fn inst(&mut self, inst: &Inst, line: u32) {
        for arg in &inst.args {
            self.read(*arg);
            if let Operand::Const(ty, bits) = *arg
                && let Some(value) = subnormal(ty, bits)
            {
                let as_number = "write a number with a decimal point if that is not meant";
                self.warn(line, format!("{bits:#x} is the bits of the float {value}; {as_number}"));
            }
        }
        let signature = inst.op.info().signature;
        match inst.memory {
            Some(Memory::Param(index)) => self.params[index as usize] = true,
            Some(Memory::Shared(index)) => {
                let [loaded, stored] = &mut self.shared[index as usize];
                *loaded |= signature != Signature::Store;
                *stored |= signature != Signature::Load;
            }
            None => {}
        }
        // Instructions that change memory are not unused.
        if let Some(dst) = inst.dst
            && (inst.memory.is_none() || signature == Signature::Load)
        {
            self.set[dst.0 as usize].get_or_insert(line);
        }
        if let (Opcode::Div | Opcode::Rem, Some(Operand::Const(ty, 0))) = (inst.op, inst.args.get(1))
            && !ty.is_float()
        {
            self.warn(line, "division by 0".into());
        }
    }

    fn read(&mut self, operand: Operand) {
        match operand {
            Operand::Reg(reg) => self.read[reg.0 as usize] = true,
            Operand::Scalar(index) => self.params[index as usize] = true,
            Operand::Const(..) => {}
        }
    }

    fn warn(&mut self, line: u32, message: String) {
        self.warnings.push(Warning { line, message });
    }
}
