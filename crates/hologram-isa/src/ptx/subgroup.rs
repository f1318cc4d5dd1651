//! Operations across the lanes of a subgroup. A mask from the control flow says which lanes participate, so that the
//! program, not the hardware's scheduling, determines the active lanes.

use super::Printer;
use super::asm::{Word, line};
use crate::program::{Inst, SUBGROUP_SIZE};
use crate::{Opcode, Type};

/// Every lane.
pub(super) const FULL: Word = Word::Const(u32::MAX);

impl Printer<'_> {
    /// The lanes of a subgroup that have threads.
    pub(super) fn whole_subgroup(&mut self) -> Word {
        let threads = self.program.workgroup_threads();
        if threads.is_multiple_of(SUBGROUP_SIZE) {
            return FULL;
        }
        if threads < SUBGROUP_SIZE {
            return Word::Const((1 << threads) - 1);
        }
        let linear = self.linear_thread();
        let first = self.asm.op("and.b32", &[linear, Word::Const(!31)]);
        let there = self.asm.op("sub.u32", &[Word::Const(threads), first]);
        // A shift by 32 or more gives 0, and 0 − 1 is every lane.
        let one = self.asm.op("mov.b32", &[Word::Const(1)]);
        let bit = self.asm.op("shl.b32", &[one, there]);
        self.asm.op("sub.u32", &[bit, Word::Const(1)])
    }

    /// A subgroup operation on the lanes of `mask`, all of which execute it.
    pub(super) fn subgroup(&mut self, inst: &Inst, mask: Word) -> Word {
        let value = if inst.ty == Type::Bool {
            let truth = self.pred(inst.args[0]);
            self.asm.word_of(truth)
        } else {
            self.word(inst.args[0])
        };
        let value = self.asm.fresh(value);
        let (float, signed) = (inst.ty == Type::F32, inst.ty == Type::I32);
        match inst.op {
            Opcode::SubgroupAdd if float => self.butterfly("add.rn.f32", value, mask),
            Opcode::SubgroupAdd | Opcode::SubgroupMin | Opcode::SubgroupMax if inst.ty.is_wide() => {
                self.butterfly(wide_step(inst.op, inst.ty), value, mask)
            }
            Opcode::SubgroupAdd => self.across("redux.sync.add.u32", value, mask),
            Opcode::SubgroupMin if float => self.extreme("redux.sync.min.s32", value, mask, 0x7fff_ffff),
            Opcode::SubgroupMax if float => self.extreme("redux.sync.max.s32", value, mask, 0xffff_ffff),
            Opcode::SubgroupMin if signed => self.across("redux.sync.min.s32", value, mask),
            Opcode::SubgroupMin => self.across("redux.sync.min.u32", value, mask),
            Opcode::SubgroupMax if signed => self.across("redux.sync.max.s32", value, mask),
            Opcode::SubgroupMax => self.across("redux.sync.max.u32", value, mask),
            Opcode::Broadcast => {
                let lowest = if mask == FULL { Word::Const(0) } else { self.lowest(mask) };
                self.shuffle(value, lowest, mask)
            }
            Opcode::Shuffle => {
                let lane = self.word(inst.args[1]);
                let lane = self.asm.op("and.b32", &[lane, Word::Const(31)]);
                let other = self.shuffle(value, lane, mask);
                if mask == FULL {
                    return other;
                }
                let there = self.asm.op("shr.u32", &[mask, lane]);
                let there = self.asm.op("and.b32", &[there, Word::Const(1)]);
                let there = self.asm.truth(there);
                self.asm.select(there, other, value)
            }
            _ => {
                self.unknown(inst);
                value
            }
        }
    }

    /// One product of tiles, or two with the same right tile. The device's left tile has 16 rows; the lower 8 are those
    /// of the second product, or 0.
    pub(super) fn tiles(&mut self, insts: &[&Inst]) {
        let first = insts[0];
        let (shape, types) = match first.ty {
            Type::I8 => ("m16n8k16", "s32.s8.s8.s32"),
            Type::F16 => ("m16n8k8", "f32.f16.f16.f32"),
            Type::BF16 => ("m16n8k8", "f32.bf16.bf16.f32"),
            _ => return self.unknown(first),
        };
        // The instruction requires registers, also for constants.
        let register = |p: &mut Self, operand| {
            let word = p.word(operand);
            if word.is_constant() { p.asm.fresh(word) } else { word }
        };
        let zero = self.asm.fresh(Word::Const(0));
        let (mut a, mut c) = ([zero; 2], [zero; 4]);
        let b = register(self, first.args[1]);
        for (i, inst) in insts.iter().enumerate() {
            a[i] = register(self, inst.args[0]);
            let sums = register(self, inst.args[2]);
            let (low, high) = (self.asm.word(), self.asm.word());
            line!(self.asm, "mov.b64 {{{low}, {high}}}, {sums}");
            (c[2 * i], c[2 * i + 1]) = (low, high);
        }
        let d = [(); 4].map(|()| self.asm.word());
        let list = |words: &[Word]| words.iter().map(Word::to_string).collect::<Vec<_>>().join(", ");
        let (to, left, sums) = (list(&d), list(&a), list(&c));
        line!(self.asm, "mma.sync.aligned.{shape}.row.col.{types} {{{to}}}, {{{left}}}, {{{b}}}, {{{sums}}}");
        for (i, inst) in insts.iter().enumerate() {
            let value = self.asm.wide();
            line!(self.asm, "mov.b64 {value}, {{{}, {}}}", d[2 * i], d[2 * i + 1]);
            if let Some(dst) = inst.dst {
                self.set(dst, value);
            }
        }
    }

    fn across(&mut self, op: &str, value: Word, mask: Word) -> Word {
        self.asm.op(op, &[value, mask])
    }

    fn shuffle(&mut self, value: Word, lane: Word, mask: Word) -> Word {
        self.shuffle_by("shfl.sync.idx.b32", value, lane, mask)
    }

    /// A shuffle of words; a wide value is shuffled as its two halves.
    fn shuffle_by(&mut self, op: &str, value: Word, lane: Word, mask: Word) -> Word {
        if !value.is_wide() {
            return self.asm.op(op, &[value, lane, Word::Const(31), mask]);
        }
        let (low, high, dst) = (self.asm.word(), self.asm.word(), self.asm.wide());
        line!(self.asm, "mov.b64 {{{low}, {high}}}, {value}");
        let [low, high] = [low, high].map(|half| self.asm.op(op, &[half, lane, Word::Const(31), mask]));
        line!(self.asm, "mov.b64 {dst}, {{{low}, {high}}}");
        dst
    }

    /// The lowest lane of a mask; 0xffffffff if it is empty.
    fn lowest(&mut self, mask: Word) -> Word {
        let reversed = self.asm.op("brev.b32", &[mask]);
        self.asm.op("bfind.shiftamt.u32", &[reversed])
    }

    /// The sum, by additions `op` in the defined order, or the minimum or maximum. Before the step with distance d,
    /// every lane's partial result is that of its class, the lanes equal to it modulo 2·d. It adds the class of lane
    /// xor d, which any active lane of that class holds. A class without active lanes changes nothing.
    fn butterfly(&mut self, op: &str, value: Word, mask: Word) -> Word {
        let sum = self.asm.fresh(value);
        let (sparse, end) = (self.asm.label(), self.asm.label());
        if mask != FULL {
            let full = self.asm.compare("setp.eq.u32", mask, FULL);
            self.asm.branch(Some((full, false)), sparse);
        }
        for distance in [16, 8, 4, 2, 1] {
            let other = self.shuffle_by("shfl.sync.bfly.b32", sum, Word::Const(distance), FULL);
            self.asm.op_into(sum, op, &[sum, other]);
        }
        if mask == FULL {
            return sum;
        }
        self.asm.branch(None, end);
        self.asm.place(sparse);
        let linear = self.linear_thread();
        for distance in [16u32, 8, 4, 2, 1] {
            // The lanes 0, 2·d, 4·d, …, shifted to the other class.
            let class: u32 = (0..32).step_by(2 * distance as usize).map(|lane| 1u32 << lane).sum();
            let class = self.asm.op("mov.b32", &[Word::Const(class)]);
            let other = self.asm.op("xor.b32", &[linear, Word::Const(distance)]);
            let other = self.asm.op("and.b32", &[other, Word::Const(2 * distance - 1)]);
            let class = self.asm.op("shl.b32", &[class, other]);
            let class = self.asm.op("and.b32", &[class, mask]);
            let there = self.asm.truth(class);
            let lane = self.lowest(class);
            let lane = self.asm.op("and.b32", &[lane, Word::Const(31)]);
            let other = self.shuffle(sum, lane, mask);
            line!(self.asm, "@{there} {op} {sum}, {sum}, {other}");
        }
        self.asm.place(end);
        sum
    }

    /// The minimum or maximum of floats, as integers in the same order: −0 below +0; NaN, as the word `nan`, loses.
    fn extreme(&mut self, op: &str, value: Word, mask: Word, nan: u32) -> Word {
        let number = self.asm.compare("setp.num.f32", value, value);
        let value = self.asm.select(number, value, Word::Const(nan));
        let key = self.order(value);
        let best = self.across(op, key, mask);
        self.order(best)
    }

    /// Converts a float's bits to an `i32` in the same order, and back.
    fn order(&mut self, word: Word) -> Word {
        let sign = self.asm.op("shr.s32", &[word, Word::Const(31)]);
        let flip = self.asm.op("and.b32", &[sign, Word::Const(0x7fff_ffff)]);
        self.asm.op("xor.b32", &[word, flip])
    }
}

/// The instruction that combines two lanes' 64-bit values.
fn wide_step(op: Opcode, ty: Type) -> &'static str {
    match (op, ty) {
        (Opcode::SubgroupAdd, Type::F64) => "add.rn.f64",
        (Opcode::SubgroupAdd, _) => "add.u64",
        (Opcode::SubgroupMin, Type::F64) => "min.f64",
        (Opcode::SubgroupMin, Type::I64) => "min.s64",
        (Opcode::SubgroupMin, _) => "min.u64",
        (_, Type::F64) => "max.f64",
        (_, Type::I64) => "max.s64",
        _ => "max.u64",
    }
}
