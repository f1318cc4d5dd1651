//! Prints programs as PTX, the portable assembly of NVIDIA GPUs.
//!
//! The text computes the same as the [interpreter](crate::interp), bit for bit: every floating-point instruction names
//! its rounding, none flushes subnormal numbers or may be contracted, functions are the expansions of
//! [`decompose`](crate::decompose), and cases that PTX leaves open are written out. See NVIDIA, "Parallel Thread
//! Execution ISA".
//!
//! # Entry parameters
//!
//! In order, per parameter of the program: a buffer is a `.u64` device address and a `.u32` number of elements (may be
//! saturated); a scalar is its register word, a `.u64` for a 64-bit type and a `.u32` for any other. The last parameter
//! is the `.u64` address of the fault record, eight `u32`: 0 without a fault and 1 after the first, the line, the
//! memory, the element, the workgroup's x, y and z, and the linear thread. The memory is a parameter's index,
//! [`SHARED`] with a shared array's index, or one of [`STEP`], [`DIV_BY_ZERO`] and [`REM_BY_ZERO`]. A thread with a
//! fault continues (a load gives 0, a store is skipped, a loop has no iterations), so that no barrier waits for it. The
//! record holds one thread's first fault.

mod asm;
mod flow;
mod functions;
mod inst;
mod memory;
mod subgroup;
mod vector;

use std::fmt::Write;

use crate::program::*;
use crate::{IsaError, Type, number_lines, verify};
use asm::{Asm, Label, Pred, Word, line};
use flow::OpenLoop;

/// The bit that marks a shared array in a fault record.
pub const SHARED: u32 = 0x8000_0000;
/// The memory in a fault record for a `for` whose step is not positive; the element is the step.
pub const STEP: u32 = 0xffff_ffff;
/// The memory in a fault record for an integer `div` by zero.
pub const DIV_BY_ZERO: u32 = 0xffff_fffe;
/// The memory in a fault record for a `rem` by zero.
pub const REM_BY_ZERO: u32 = 0xffff_fffd;

/// The target of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtxTarget {
    /// Compute capability, ten times the major number plus the minor: 80, 86, 89, 90.
    pub capability: u32,
    /// PTX version; 7.0 supports capability 8.0, 7.8 supports 9.0.
    pub version: (u32, u32),
}

/// A program as PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxKernel {
    /// The module.
    pub text: String,
    /// The name of its only entry.
    pub entry: String,
}

/// Prints a program. The workgroup size is fixed in the text; the grid is free.
///
/// From capability 9.0 on, the kernel begins by waiting for the previous kernel, so that it may be launched before that
/// one ends (programmatic dependent launch).
///
/// # Errors
/// The verifier's errors, and [`IsaError::Build`] for a target below capability 8.0 or PTX 7.0 (7.8 for capability
/// 9.0).
pub fn print(program: &Program, target: &PtxTarget) -> Result<PtxKernel, IsaError> {
    verify(program)?;
    let waits = target.capability >= 90;
    let (least, (major, minor)) = (if waits { (7, 8) } else { (7, 0) }, target.version);
    if target.capability < 80 || target.version < least {
        let message = format!(
            "PTX is printed for compute capability 80 and PTX 7.0 or later (7.8 for 90), not for {} and PTX {major}.{minor}",
            target.capability
        );
        return Err(IsaError::Build { program: program.name.clone(), message });
    }
    // Faults name a line; a program built in memory gets those of its printed text.
    let mut numbered = program.clone();
    if program.body.first().is_some_and(|s| s.line == 0) {
        number_lines(&mut numbered);
    }
    let entry = format!("hologram_{}", program.name.replace('.', "_"));
    let mut printer = Printer::new(program);
    if crate::joint::is_joint(&numbered.body) {
        let whole = printer.whole_subgroup();
        printer.joint_block(&numbered.body, whole);
    } else {
        printer.block(&numbered.body);
    }
    if let Some(message) = printer.unknown {
        return Err(IsaError::Build { program: program.name.clone(), message });
    }
    let mut text = format!(".version {major}.{minor}\n.target sm_{}\n.address_size 64\n\n", target.capability);
    printer.finish(&entry, waits, &mut text);
    Ok(PtxKernel { text, entry })
}

/// A body under construction. The first temporaries of each kind belong to the parameters: `%d` holds a buffer's
/// address or a wide scalar, `%t` its length or a scalar, `%p` whether a buffer is aligned for vectors or a scalar's
/// truth.
struct Printer<'a> {
    program: &'a Program,
    asm: Asm,
    facts: vector::Facts,
    /// Whether a parameter is used, and whether its alignment is.
    used: Vec<bool>,
    vectors: Vec<bool>,
    /// Line and memory of each possible fault.
    sites: Vec<(u32, u32)>,
    loops: Vec<OpenLoop>,
    /// The target of a plain statement inside a joint block that leaves a joint loop.
    escape: Option<Label>,
    /// An instruction that this printer does not support.
    unknown: Option<String>,
}

impl<'a> Printer<'a> {
    fn new(program: &'a Program) -> Printer<'a> {
        let params = program.params.len();
        Printer {
            program,
            asm: Asm::after(params as u32),
            facts: vector::Facts::of(program),
            used: vec![false; params],
            vectors: vec![false; params],
            sites: Vec::new(),
            loops: Vec::new(),
            escape: None,
            unknown: None,
        }
    }

    /// One instruction; a subgroup operation runs on the lanes of `mask`.
    fn inst(&mut self, inst: &Inst, line: u32, mask: Word) {
        if inst.op == crate::Opcode::Barrier {
            line!(self.asm, "bar.sync 0");
            return;
        }
        if let Some(memory) = inst.memory {
            return self.access(inst, memory, line);
        }
        let Some(dst) = inst.dst else { return };
        if inst.op == crate::Opcode::TileFma {
            return self.tiles(&[inst]);
        }
        if crate::joint::is_subgroup(inst.op) {
            let value = self.subgroup(inst, mask);
            return self.set(dst, value);
        }
        if self.program.registers[dst.0 as usize].ty == Type::Bool {
            let value = self.truth_inst(inst);
            line!(self.asm, "mov.pred %b{}, {value}", dst.0);
        } else {
            let value = self.word_inst(inst, line);
            let var = self.var(dst);
            self.asm.mov(var, value);
        }
    }

    /// The register of the text for a register of the program that is not a `bool`.
    fn var(&self, reg: Reg) -> Word {
        if self.program.registers[reg.0 as usize].ty.is_wide() { Word::WideVar(reg.0) } else { Word::Var(reg.0) }
    }

    /// Sets a register from a register word.
    fn set(&mut self, dst: Reg, value: Word) {
        if self.program.registers[dst.0 as usize].ty == Type::Bool {
            line!(self.asm, "setp.ne.u32 %b{}, {value}, 0", dst.0);
        } else {
            let var = self.var(dst);
            self.asm.mov(var, value);
        }
    }

    fn type_of(&self, operand: Operand) -> Type {
        match operand {
            Operand::Const(ty, _) => ty,
            Operand::Reg(reg) => self.program.registers[reg.0 as usize].ty,
            Operand::Scalar(index) => match self.program.params[index as usize].kind {
                ParamKind::Scalar(ty) | ParamKind::Buffer { element: ty, .. } => ty,
            },
        }
    }

    /// An operand that is a word; a `bool` as 1 or 0.
    fn word(&mut self, operand: Operand) -> Word {
        if self.type_of(operand) == Type::Bool && !matches!(operand, Operand::Const(..)) {
            let truth = self.pred(operand);
            return self.asm.word_of(truth);
        }
        match operand {
            Operand::Reg(reg) => self.var(reg),
            Operand::Const(ty, word) => Word::constant(ty, word),
            Operand::Scalar(index) => {
                self.used[index as usize] = true;
                if self.type_of(operand).is_wide() { Word::WideTmp(index) } else { Word::Tmp(index) }
            }
        }
    }

    /// An operand that is a truth value.
    fn pred(&mut self, operand: Operand) -> Pred {
        match operand {
            Operand::Reg(reg) => Pred::Var(reg.0),
            Operand::Const(_, word) => self.asm.truth(Word::Const(word as u32)),
            Operand::Scalar(index) => {
                self.used[index as usize] = true;
                Pred::Tmp(index)
            }
        }
    }

    /// The entry around the body.
    fn finish(mut self, entry: &str, waits: bool, text: &mut String) {
        // Writing to a string cannot fail.
        if !self.sites.is_empty() {
            let words: Vec<String> = self.sites.iter().map(|(line, memory)| format!("{line}, {memory}")).collect();
            let count = 2 * words.len();
            let _ =
                writeln!(text, ".global .align 4 .u32 {entry}_faults[{count}] = {{\n\t{}\n}};\n", words.join(",\n\t"));
            self.record(entry);
        }
        let body = std::mem::take(&mut self.asm.text);
        self.prologue(waits);
        let params = self.program.params.iter().enumerate().flat_map(|(i, p)| match p.kind {
            ParamKind::Buffer { .. } => vec![format!(".param .u64 p{i}"), format!(".param .u32 p{i}_len")],
            ParamKind::Scalar(ty) => vec![format!(".param .u{} p{i}", if ty.is_wide() { 64 } else { 32 })],
        });
        let params: Vec<String> = params.chain([".param .u64 faults".to_string()]).collect();
        let [x, y, z] = self.program.workgroup;
        let _ = writeln!(text, ".visible .entry {entry}(\n\t{}\n)\n.reqntid {x}, {y}, {z}\n{{", params.join(",\n\t"));
        *text += &self.asm.declarations(&self.program.registers);
        *text += "\t.reg .u32 %site, %element, %left;\n";
        for (i, array) in self.program.shared.iter().enumerate() {
            let bytes = array.len as usize * array.element.size();
            let _ = writeln!(text, "\t.shared .align 16 .b8 shared{i}[{bytes}];");
        }
        *text += &self.asm.text;
        *text += &body;
        *text += "\tret;\n}\n";
    }

    /// Loads the parameters that the body uses.
    fn prologue(&mut self, waits: bool) {
        if waits {
            line!(self.asm, "griddepcontrol.wait");
        }
        line!(self.asm, "mov.u32 %left, 0");
        line!(self.asm, "mov.u32 %site, 0");
        line!(self.asm, "mov.u32 %element, 0");
        for (i, param) in self.program.params.iter().enumerate().filter(|(i, _)| self.used[*i]) {
            match param.kind {
                ParamKind::Buffer { element, .. } => {
                    line!(self.asm, "ld.param.u64 %d{i}, [p{i}]");
                    line!(self.asm, "cvta.to.global.u64 %d{i}, %d{i}");
                    line!(self.asm, "ld.param.u32 %t{i}, [p{i}_len]");
                    if self.vectors[i] {
                        let low = self.asm.word();
                        line!(self.asm, "cvt.u32.u64 {low}, %d{i}");
                        line!(self.asm, "and.b32 {low}, {low}, {}", 4 * element.size() - 1);
                        line!(self.asm, "setp.eq.u32 %p{i}, {low}, 0");
                    }
                }
                ParamKind::Scalar(ty) if ty.is_wide() => line!(self.asm, "ld.param.u64 %d{i}, [p{i}]"),
                ParamKind::Scalar(ty) => {
                    line!(self.asm, "ld.param.u32 %t{i}, [p{i}]");
                    if ty == Type::Bool {
                        line!(self.asm, "setp.ne.u32 %p{i}, %t{i}, 0");
                    }
                }
            }
        }
    }

    /// Writes the fault recorded by this thread, if it is the first to.
    fn record(&mut self, entry: &str) {
        let end = self.asm.label();
        let none = self.asm.pred();
        line!(self.asm, "setp.eq.u32 {none}, %site, 0");
        self.asm.branch(Some((none, true)), end);
        let (record, table) = (self.asm.wide(), self.asm.wide());
        line!(self.asm, "ld.param.u64 {record}, [faults]");
        line!(self.asm, "cvta.to.global.u64 {record}, {record}");
        let before = self.asm.word();
        line!(self.asm, "atom.global.cas.b32 {before}, [{record}], 0, 1");
        let taken = self.asm.compare("setp.ne.u32", before, Word::Const(0));
        self.asm.branch(Some((taken, true)), end);
        let index = self.asm.word();
        line!(self.asm, "sub.u32 {index}, %site, 1");
        line!(self.asm, "mov.u64 {table}, {entry}_faults");
        line!(self.asm, "mad.wide.u32 {table}, {index}, 8, {table}");
        let (at, memory) = (self.asm.word(), self.asm.word());
        line!(self.asm, "ld.global.u32 {at}, [{table}]");
        line!(self.asm, "ld.global.u32 {memory}, [{table}+4]");
        let thread = self.linear_thread();
        let group = ["%ctaid.x", "%ctaid.y", "%ctaid.z"].map(|name| self.special(name));
        let words = [at, memory].map(|w| w.to_string()).into_iter().chain(["%element".to_string()]);
        let words = words.chain(group.into_iter().chain([thread]).map(|w| w.to_string()));
        for (i, word) in words.enumerate() {
            line!(self.asm, "st.global.u32 [{record}+{}], {word}", 4 * (i + 1));
        }
        self.asm.place(end);
    }
}
