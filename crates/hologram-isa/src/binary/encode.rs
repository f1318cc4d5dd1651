//! Writes the binary form.

use super::{HEADER, MAGIC, VERSION, crc32, flag, tag};
use crate::program::*;
use crate::{Opcode, Type};

/// The program in binary form. Equal programs give equal bytes.
pub fn encode(program: &Program) -> Vec<u8> {
    let mut writer = Writer { out: Vec::new(), types: Vec::new(), ops: Vec::new() };
    writer.program(program);
    let Writer { out: rest, types, ops } = writer;
    let mut lists = Writer { out: vec![0; HEADER], types: Vec::new(), ops: Vec::new() };
    lists.list(&types, |w, ty| w.name(ty.name()));
    lists.list(&ops, |w, op| w.name(op.info().mnemonic));
    let mut file = lists.out;
    file.extend_from_slice(&rest);
    let content = &file[HEADER..];
    let (checksum, length) = (crc32(content), content.len() as u64);
    file[..8].copy_from_slice(&MAGIC);
    file[8..12].copy_from_slice(&VERSION.to_le_bytes());
    file[12..16].copy_from_slice(&checksum.to_le_bytes());
    file[16..24].copy_from_slice(&length.to_le_bytes());
    file
}

struct Writer {
    out: Vec<u8>,
    /// Types and operations in the order of their first use.
    types: Vec<Type>,
    ops: Vec<Opcode>,
}

impl Writer {
    fn program(&mut self, program: &Program) {
        self.name(&program.name);
        for size in program.workgroup {
            self.number(size);
        }
        self.list(&program.params, |w, param| {
            w.name(&param.name);
            let (kind, ty) = match param.kind {
                ParamKind::Scalar(ty) => (0, ty),
                ParamKind::Buffer { element, access: Access::Read } => (1, element),
                ParamKind::Buffer { element, access: Access::Write } => (2, element),
                ParamKind::Buffer { element, access: Access::ReadWrite } => (3, element),
            };
            w.out.push(kind);
            w.ty(ty);
        });
        self.list(&program.shared, |w, array| {
            w.name(&array.name);
            w.ty(array.element);
            w.number(array.len);
        });
        self.list(&program.registers, |w, register| {
            w.name(&register.name);
            w.ty(register.ty);
        });
        self.block(&program.body);
    }

    fn block(&mut self, block: &[Stmt]) {
        self.list(block, |w, stmt| w.stmt(&stmt.kind));
    }

    fn stmt(&mut self, kind: &StmtKind) {
        match kind {
            StmtKind::Inst(inst) => {
                self.out.push(tag::INST);
                self.inst(inst);
            }
            StmtKind::If { cond, then, otherwise } => {
                self.out.push(tag::IF);
                self.operand(*cond);
                self.block(then);
                self.block(otherwise);
            }
            StmtKind::For { var, start, end, step, body } => {
                self.out.push(tag::FOR);
                self.number(var.0);
                for operand in [start, end, step] {
                    self.operand(*operand);
                }
                self.block(body);
            }
            StmtKind::Loop { max, body } => {
                self.out.push(tag::LOOP);
                self.number(*max);
                self.block(body);
            }
            StmtKind::Break { depth, cond } => self.jump([tag::BREAK, tag::BREAK_IF], *depth, *cond),
            StmtKind::Continue { depth, cond } => self.jump([tag::CONTINUE, tag::CONTINUE_IF], *depth, *cond),
        }
    }

    fn jump(&mut self, [always, conditional]: [u8; 2], depth: u32, cond: Option<Operand>) {
        self.out.push(if cond.is_some() { conditional } else { always });
        self.number(depth);
        if let Some(cond) = cond {
            self.operand(cond);
        }
    }

    fn inst(&mut self, inst: &Inst) {
        let memory = match inst.memory {
            None => (0, 0),
            Some(Memory::Param(index)) => (flag::PARAM, index),
            Some(Memory::Shared(index)) => (flag::SHARED, index),
        };
        let fast = if inst.fast { flag::FAST } else { 0 };
        let result = if inst.dst.is_some() { flag::RESULT } else { 0 };
        self.out.push(fast | result | memory.0);
        let op = index_of(&mut self.ops, inst.op);
        self.number(op);
        self.ty(inst.ty);
        if let Some(dst) = inst.dst {
            self.number(dst.0);
        }
        if inst.memory.is_some() {
            self.number(memory.1);
        }
        self.list(&inst.args, |w, arg| w.operand(*arg));
    }

    fn operand(&mut self, operand: Operand) {
        match operand {
            Operand::Reg(reg) => {
                self.out.push(0);
                self.number(reg.0);
            }
            Operand::Scalar(index) => {
                self.out.push(1);
                self.number(index);
            }
            Operand::Const(ty, word) => {
                self.out.push(2);
                self.ty(ty);
                self.number(word);
            }
        }
    }

    fn ty(&mut self, ty: Type) {
        let index = index_of(&mut self.types, ty);
        self.number(index);
    }

    fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Writer, &T)) {
        self.number(items.len() as u64);
        for i in items {
            item(self, i);
        }
    }

    fn name(&mut self, name: &str) {
        self.number(name.len() as u64);
        self.out.extend_from_slice(name.as_bytes());
    }

    fn number(&mut self, number: impl Into<u64>) {
        let mut rest = number.into();
        while rest >= 0x80 {
            self.out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.out.push(rest as u8);
    }
}

/// The index of an item in a list, to which it is appended on first use.
fn index_of<T: Copy + PartialEq>(list: &mut Vec<T>, item: T) -> u32 {
    let index = list.iter().position(|i| *i == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    });
    index as u32
}
