//! Loads, stores and atomic operations. Every index is checked; on a fault the thread records it and continues.

use super::Printer;
use super::asm::{Pred, Word, line};
use super::vector::Group;
use crate::program::{Inst, Memory, Operand};
use crate::{Opcode, Type};

/// A memory in the generated code.
struct Place {
    /// `global` or `shared`.
    space: &'static str,
    /// Its code in the fault record.
    code: u32,
}

impl Printer<'_> {
    fn place(memory: Memory) -> Place {
        match memory {
            Memory::Param(index) => Place { space: "global", code: index },
            Memory::Shared(index) => Place { space: "shared", code: 0x8000_0000 | index },
        }
    }

    /// The suffix for moves between memory and a register, which extend as described at [`Type`].
    fn suffix(ty: Type, load: bool) -> &'static str {
        match ty {
            Type::I8 if load => "s8",
            Type::Bool | Type::U8 | Type::I8 => "u8",
            Type::I16 if load => "s16",
            Type::I16 | Type::U16 | Type::F16 | Type::BF16 => "u16",
            Type::I64 | Type::U64 | Type::F64 => "b64",
            Type::I32 | Type::U32 | Type::F32 => "b32",
        }
    }

    /// The address of an element, as an operand.
    fn address(&mut self, memory: Memory, ty: Type, index: Word) -> String {
        let size = ty.size();
        match memory {
            Memory::Param(param) => {
                let base = self.base(param);
                let (at, index) = (self.asm.wide(), self.asm.copy(index));
                line!(self.asm, "mad.wide.u32 {at}, {index}, {size}, {base}");
                at.to_string()
            }
            Memory::Shared(array) => {
                let base = self.asm.word();
                line!(self.asm, "mov.u32 {base}, shared{array}");
                let at = self.asm.op("mad.lo.u32", &[index, Word::Const(size as u32), base]);
                at.to_string()
            }
        }
    }

    /// Whether an index lies in the memory; `None` if that is known.
    fn inside(&mut self, memory: Memory, index: Word) -> Option<Pred> {
        let len = match memory {
            Memory::Param(param) => self.len(param),
            Memory::Shared(array) => {
                let len = self.program.shared[array as usize].len;
                if matches!(index, Word::Const(at) if at < len) {
                    return None;
                }
                Word::Const(len)
            }
        };
        Some(self.asm.compare("setp.lt.u32", index, len))
    }

    /// A load, store or atomic operation of one element.
    pub(super) fn access(&mut self, inst: &Inst, memory: Memory, line: u32) {
        let index = self.word(inst.args[0]);
        // The index may be the register that is loaded.
        let index = if inst.dst.is_some() { self.asm.copy(index) } else { index };
        match inst.op {
            Opcode::Load => {
                let value = self.load(memory, inst.ty, index, line);
                if let Some(dst) = inst.dst {
                    self.set(dst, value);
                }
            }
            Opcode::Store => self.store(memory, inst.ty, index, inst.args[1], line),
            _ => self.update(inst, memory, index, line),
        }
    }

    /// An atomic operation; if the index is out of bounds it gives 0.
    fn update(&mut self, inst: &Inst, memory: Memory, index: Word, line: u32) {
        use Opcode::*;
        let values: Vec<Word> = inst.args[1..].iter().map(|a| self.stored(*a)).collect();
        let (unsigned, bits) = if inst.ty.is_wide() { ("u64", "b64") } else { ("u32", "b32") };
        let number = match inst.ty {
            Type::F32 => "f32",
            Type::I32 => "s32",
            _ => unsigned,
        };
        let op = match inst.op {
            // Signed sums have the same bits.
            AtomicAdd if inst.ty != Type::F32 => format!("add.{unsigned}"),
            AtomicAdd => format!("add.{number}"),
            AtomicMin => format!("min.{number}"),
            AtomicMax => format!("max.{number}"),
            AtomicAnd => format!("and.{bits}"),
            AtomicOr => format!("or.{bits}"),
            AtomicXor => format!("xor.{bits}"),
            AtomicExchange => format!("exch.{bits}"),
            AtomicCompareExchange => format!("cas.{bits}"),
            _ => return self.unknown(inst),
        };
        let guard = self.guard(memory, index, line);
        let at = self.address(memory, inst.ty, index);
        let dst = self.asm.temporary(inst.ty);
        if !guard.is_empty() {
            self.asm.mov(dst, Word::constant(inst.ty, 0));
        }
        let values: Vec<String> = values.iter().map(Word::to_string).collect();
        line!(self.asm, "{guard}atom.{}.{op} {dst}, [{at}], {}", Self::place(memory).space, values.join(", "));
        if let Some(reg) = inst.dst {
            self.set(reg, dst);
        }
    }

    fn guard(&mut self, memory: Memory, index: Word, line: u32) -> String {
        let Some(inside) = self.inside(memory, index) else { return String::new() };
        let outside = self.asm.not(inside);
        self.fault(outside, index, Self::place(memory).code, line);
        format!("@{inside} ")
    }

    fn load(&mut self, memory: Memory, ty: Type, index: Word, line: u32) -> Word {
        let guard = self.guard(memory, index, line);
        let at = self.address(memory, ty, index);
        let dst = self.asm.temporary(ty);
        if !guard.is_empty() {
            self.asm.mov(dst, Word::constant(ty, 0));
        }
        let (space, suffix) = (Self::place(memory).space, Self::suffix(ty, true));
        line!(self.asm, "{guard}ld.{space}.{suffix} {dst}, [{at}]");
        dst
    }

    fn store(&mut self, memory: Memory, ty: Type, index: Word, value: Operand, line: u32) {
        let guard = self.guard(memory, index, line);
        let at = self.address(memory, ty, index);
        let value = self.stored(value);
        let (space, suffix) = (Self::place(memory).space, Self::suffix(ty, false));
        line!(self.asm, "{guard}st.{space}.{suffix} [{at}], {value}");
    }

    /// An operand as the register for a store.
    fn stored(&mut self, value: Operand) -> Word {
        let word = if self.type_of(value) == Type::Bool {
            let truth = self.pred(value);
            self.asm.word_of(truth)
        } else {
            self.word(value)
        };
        if word.is_constant() { self.asm.fresh(word) } else { word }
    }

    /// Moves four adjacent elements at once if all are in bounds and the address is aligned, else one by one.
    pub(super) fn group(&mut self, group: &Group<'_>) {
        let Memory::Param(param) = group.memory else { return };
        let (first, ty) = (group.insts[0].0, group.ty);
        let load = first.op == Opcode::Load;
        let index = self.word(group.index.0);
        let index = self.asm.op("sub.u32", &[index, Word::Const(group.index.1)]);
        let last = self.asm.op("add.u32", &[index, Word::Const(3)]);
        let (len, aligned) = (self.len(param), self.aligned(param));
        let together = self.asm.pred();
        line!(self.asm, "setp.lt.and.u32 {together}, {last}, {len}, {aligned}");
        let (apart, end) = (self.asm.label(), self.asm.label());
        let suffix = Self::suffix(ty, load);
        let at = self.address(group.memory, ty, index);
        self.asm.branch(Some((together, false)), apart);
        if load {
            let words: Vec<Word> = group.insts.iter().map(|_| self.asm.word()).collect();
            let list: Vec<String> = words.iter().map(Word::to_string).collect();
            line!(self.asm, "ld.global.v4.{suffix} {{{}}}, [{at}]", list.join(", "));
            self.asm.branch(None, end);
            self.asm.place(apart);
            for (i, (_, line)) in group.insts.iter().enumerate() {
                let one = self.asm.op("add.u32", &[index, Word::Const(i as u32)]);
                let value = self.load(group.memory, ty, one, *line);
                self.asm.mov(words[i], value);
            }
            self.asm.place(end);
            for ((inst, _), word) in group.insts.iter().zip(words) {
                if let Some(dst) = inst.dst {
                    self.set(dst, word);
                }
            }
        } else {
            let list: Vec<String> = group.insts.iter().map(|(i, _)| self.stored(i.args[1]).to_string()).collect();
            line!(self.asm, "st.global.v4.{suffix} [{at}], {{{}}}", list.join(", "));
            self.asm.branch(None, end);
            self.asm.place(apart);
            for (i, (inst, line)) in group.insts.iter().enumerate() {
                let one = self.asm.op("add.u32", &[index, Word::Const(i as u32)]);
                self.store(group.memory, ty, one, inst.args[1], *line);
            }
            self.asm.place(end);
        }
    }

    /// The address of a buffer.
    fn base(&mut self, param: u32) -> Word {
        self.used[param as usize] = true;
        Word::WideTmp(param)
    }

    /// The number of elements of a buffer.
    fn len(&mut self, param: u32) -> Word {
        self.used[param as usize] = true;
        Word::Tmp(param)
    }

    /// Whether a buffer's address is a multiple of four elements.
    fn aligned(&mut self, param: u32) -> Pred {
        self.vectors[param as usize] = true;
        Pred::Tmp(param)
    }

    /// Records a fault where `bad`, unless this thread has recorded one before.
    pub(super) fn fault(&mut self, bad: Pred, index: Word, memory: u32, line: u32) {
        self.sites.push((line, memory));
        let (site, first) = (self.sites.len(), self.asm.pred());
        line!(self.asm, "setp.eq.and.u32 {first}, %site, 0, {bad}");
        line!(self.asm, "@{first} mov.u32 %site, {site}");
        line!(self.asm, "@{first} mov.b32 %element, {index}");
    }
}
