//! Lane-wise instructions, which depend only on a thread's own operands.

use super::asm::{Pred, Word, line};
use super::{DIV_BY_ZERO, Printer, REM_BY_ZERO, functions};
use crate::program::{Inst, Operand};
use crate::{Opcode, Type};

impl Printer<'_> {
    /// An instruction whose result is a truth value.
    pub(super) fn truth_inst(&mut self, inst: &Inst) -> Pred {
        use Opcode::*;
        if inst.ty != Type::Bool || inst.op == Cvt || inst.op == Bitcast {
            return match inst.op {
                Cvt | Bitcast => self.truth_from(inst),
                _ => self.comparison(inst),
            };
        }
        let args: Vec<Pred> = inst.args.iter().map(|a| self.pred(*a)).collect();
        let asm = &mut self.asm;
        match (inst.op, args[..].as_ref()) {
            (Not, &[a]) => asm.not(a),
            (And, &[a, b]) => asm.logic("and", a, b),
            (Or, &[a, b]) => asm.logic("or", a, b),
            (Xor | Ne, &[a, b]) => asm.logic("xor", a, b),
            (Eq, &[a, b]) => {
                let differ = asm.logic("xor", a, b);
                asm.not(differ)
            }
            (Select, &[c, a, b]) => {
                let not = asm.not(c);
                let (a, b) = (asm.logic("and", c, a), asm.logic("and", not, b));
                asm.logic("or", a, b)
            }
            (Mov, &[a]) => a,
            _ => {
                self.unknown(inst);
                Pred::Var(0)
            }
        }
    }

    /// Makes printing fail because the printer lacks an instruction.
    pub(super) fn unknown(&mut self, inst: &Inst) {
        self.unknown.get_or_insert(format!("{}.{} has no form in PTX yet", inst.op.info().mnemonic, inst.ty));
    }

    fn comparison(&mut self, inst: &Inst) -> Pred {
        let (mut a, mut b) = (self.word(inst.args[0]), self.word(inst.args[1]));
        let ty = match inst.ty {
            Type::F16 | Type::BF16 => {
                (a, b) = (self.widened(inst.ty, a), self.widened(inst.ty, b));
                "f32"
            }
            Type::F32 => "f32",
            Type::F64 => "f64",
            Type::I32 => "s32",
            Type::I64 => "s64",
            Type::U64 => "u64",
            _ => "u32",
        };
        let op = match inst.op {
            Opcode::Eq => "eq",
            // True if an operand is NaN.
            Opcode::Ne if inst.ty.is_float() => "neu",
            Opcode::Ne => "ne",
            Opcode::Lt => "lt",
            Opcode::Le => "le",
            Opcode::Gt => "gt",
            Opcode::Ge => "ge",
            _ => {
                self.unknown(inst);
                "eq"
            }
        };
        self.asm.compare(&format!("setp.{op}.{ty}"), a, b)
    }

    /// An instruction whose result is a word.
    pub(super) fn word_inst(&mut self, inst: &Inst, line: u32) -> Word {
        use Opcode::*;
        match inst.op {
            Cvt => return self.convert(inst.ty, inst.args[0]),
            Bitcast => return self.bitcast(inst.ty, inst.args[0]),
            Select => {
                let c = self.pred(inst.args[0]);
                let (a, b) = (self.word(inst.args[1]), self.word(inst.args[2]));
                return self.asm.select(c, a, b);
            }
            _ => {}
        }
        let args: Vec<Word> = inst.args.iter().map(|a| self.word(*a)).collect();
        if inst.fast
            && let Some(value) = functions::fast(&mut self.asm, inst.op, &args)
        {
            return value;
        }
        if let &[x] = &args[..]
            && inst.ty.is_float()
            && let Some(value) = functions::exact(&mut self.asm, inst.op, x)
        {
            return value;
        }
        let wide = inst.ty.is_wide();
        let float = inst.ty.is_float();
        // The type as float, as integer of its signedness, as unsigned integer, as bits.
        let f = if wide { "f64" } else { "f32" };
        let i = match inst.ty {
            Type::I32 => "s32",
            Type::I64 => "s64",
            Type::U64 => "u64",
            _ => "u32",
        };
        let (u, b) = if wide { ("u64", "b64") } else { ("u32", "b32") };
        let zero = Word::constant(inst.ty, 0);
        let sign = Word::constant(inst.ty, if wide { 1 << 63 } else { 1 << 31 });
        let magnitude = Word::constant(inst.ty, if wide { u64::MAX >> 1 } else { u64::from(u32::MAX >> 1) });
        let op = match inst.op {
            ThreadX | ThreadY | ThreadZ | GroupX | GroupY | GroupZ | GridX | GridY | GridZ | GlobalX | GlobalY
            | GlobalZ | Lane | Subgroup => return self.builtin(inst.op),
            Div | Rem if !float => return self.divide(inst, args[0], args[1], line),
            Add if float => format!("add.rn.{f}"),
            Sub if float => format!("sub.rn.{f}"),
            Mul if float => format!("mul.rn.{f}"),
            Div => format!("div.rn.{f}"),
            Fma => format!("fma.rn.{f}"),
            Min if float => format!("min.{f}"),
            Max if float => format!("max.{f}"),
            // On bits, so that NaN too changes only its sign.
            Abs if float => return self.asm.op(&format!("and.{b}"), &[args[0], magnitude]),
            Neg if float => return self.asm.op(&format!("xor.{b}"), &[args[0], sign]),
            Sqrt => format!("sqrt.rn.{f}"),
            Floor => format!("cvt.rmi.{f}.{f}"),
            Ceil => format!("cvt.rpi.{f}.{f}"),
            Trunc => format!("cvt.rzi.{f}.{f}"),
            Round => format!("cvt.rni.{f}.{f}"),
            Dot4 => format!("dp4a.{i}.{i}"),
            PopCount | LeadingZeros => {
                let op = if inst.op == PopCount { format!("popc.{b}") } else { format!("clz.{b}") };
                let count = self.asm.word();
                let operand = self.asm.copy(args[0]);
                self.asm.op_into(count, &op, &[operand]);
                return if wide { self.asm.op("cvt.u64.u32", &[count]) } else { count };
            }
            Add => format!("add.{u}"),
            Sub => format!("sub.{u}"),
            Mul => format!("mul.lo.{u}"),
            MulHi => format!("mul.hi.{i}"),
            Min => format!("min.{i}"),
            Max => format!("max.{i}"),
            Abs => {
                // `abs` does not handle the minimum integer.
                let negative = self.asm.op(&format!("sub.{u}"), &[zero, args[0]]);
                let below = self.asm.compare(&format!("setp.lt.{i}"), args[0], zero);
                return self.asm.select(below, negative, args[0]);
            }
            Neg => return self.asm.op(&format!("sub.{u}"), &[zero, args[0]]),
            And => format!("and.{b}"),
            Or => format!("or.{b}"),
            Xor => format!("xor.{b}"),
            Not => format!("not.{b}"),
            // Shift counts above the width act as the width.
            Shl => format!("shl.{b}"),
            Shr => format!("shr.{i}"),
            Mov => format!("mov.{b}"),
            _ => {
                self.unknown(inst);
                format!("mov.{b}")
            }
        };
        self.asm.op(&op, &args)
    }

    fn builtin(&mut self, op: Opcode) -> Word {
        use Opcode::*;
        let special = |name: &str| name.to_string();
        let name = match op {
            ThreadX => special("%tid.x"),
            ThreadY => special("%tid.y"),
            ThreadZ => special("%tid.z"),
            GroupX => special("%ctaid.x"),
            GroupY => special("%ctaid.y"),
            GroupZ => special("%ctaid.z"),
            GridX => special("%nctaid.x"),
            GridY => special("%nctaid.y"),
            GridZ => special("%nctaid.z"),
            GlobalX | GlobalY | GlobalZ => {
                let at = op as usize - GlobalX as usize;
                let (axis, size) = (["x", "y", "z"][at], self.program.workgroup[at]);
                let group = self.special(&format!("%ctaid.{axis}"));
                let thread = self.special(&format!("%tid.{axis}"));
                return self.asm.op("mad.lo.u32", &[group, Word::Const(size), thread]);
            }
            _ => {
                let linear = self.linear_thread();
                let (op, by) = if op == Lane { ("and.b32", 31) } else { ("shr.u32", 5) };
                return self.asm.op(op, &[linear, Word::Const(by)]);
            }
        };
        self.special(&name)
    }

    /// A special register.
    pub(super) fn special(&mut self, name: &str) -> Word {
        let dst = self.asm.word();
        line!(self.asm, "mov.u32 {dst}, {name}");
        dst
    }

    /// x + X·(y + Y·z).
    pub(super) fn linear_thread(&mut self) -> Word {
        let [sx, sy, sz] = self.program.workgroup;
        let x = self.special("%tid.x");
        if sy == 1 && sz == 1 {
            return x;
        }
        let (y, z) = (self.special("%tid.y"), self.special("%tid.z"));
        let rows = self.asm.op("mad.lo.u32", &[z, Word::Const(sy), y]);
        self.asm.op("mad.lo.u32", &[rows, Word::Const(sx), x])
    }

    /// Integer division and remainder. By zero: a fault, and the value of the table.
    fn divide(&mut self, inst: &Inst, a: Word, b: Word, line: u32) -> Word {
        let rem = inst.op == Opcode::Rem;
        let (ty, unsigned, minus_one) = match inst.ty {
            Type::I32 => ("s32", "u32", Some(Word::Const(u32::MAX))),
            Type::I64 => ("s64", "u64", Some(Word::WideConst(u64::MAX))),
            Type::U64 => ("u64", "u64", None),
            _ => ("u32", "u32", None),
        };
        let op = format!("{}.{ty}", if rem { "rem" } else { "div" });
        let [none, one] = [0, 1].map(|word| Word::constant(inst.ty, word));
        if b.is_constant() && b != none && Some(b) != minus_one {
            return self.asm.op(&op, &[a, b]);
        }
        let b = self.asm.fresh(b);
        let zero = self.asm.compare(&format!("setp.eq.{unsigned}"), b, none);
        self.fault(zero, Word::Const(0), if rem { REM_BY_ZERO } else { DIV_BY_ZERO }, line);
        // The instruction is undefined for these divisors.
        let mut safe = self.asm.select(zero, one, b);
        let negate = minus_one.map(|m| self.asm.compare(&format!("setp.eq.{unsigned}"), b, m));
        if let Some(negate) = negate {
            safe = self.asm.select(negate, one, safe);
        }
        let mut value = self.asm.op(&op, &[a, safe]);
        if !rem && let Some(negate) = negate {
            let negative = self.asm.op(&format!("sub.{unsigned}"), &[none, a]);
            value = self.asm.select(negate, negative, value);
        }
        self.asm.select(zero, if rem { a } else { none }, value)
    }

    /// `cvt` and `bitcast` to `bool`.
    fn truth_from(&mut self, inst: &Inst) -> Pred {
        let from = self.type_of(inst.args[0]);
        if from == Type::Bool {
            return self.pred(inst.args[0]);
        }
        let word = self.word(inst.args[0]);
        if inst.op == Opcode::Cvt && from == Type::F64 {
            return self.asm.compare("setp.neu.f64", word, Word::WideConst(0));
        }
        if inst.op == Opcode::Cvt && from.is_float() {
            let value = self.widened(from, word);
            return self.asm.compare("setp.neu.f32", value, Word::Const(0));
        }
        self.asm.truth(word)
    }

    fn bitcast(&mut self, to: Type, operand: Operand) -> Word {
        let word = self.word(operand);
        match (self.type_of(operand), to) {
            (from, to) if from == to => word,
            (_, Type::I8) => self.asm.op("bfe.s32", &[word, Word::Const(0), Word::Const(8)]),
            (_, Type::U8) => self.asm.op("and.b32", &[word, Word::Const(0xff)]),
            (_, Type::I16) => self.asm.op("bfe.s32", &[word, Word::Const(0), Word::Const(16)]),
            (Type::I16, _) => self.asm.op("and.b32", &[word, Word::Const(0xffff)]),
            _ => word,
        }
    }

    /// The exact value of a float word as `f32`, for all types except `f64`.
    fn widened(&mut self, ty: Type, word: Word) -> Word {
        match ty {
            Type::F16 => {
                let word = self.asm.fresh(word);
                let (half, dst) = (self.asm.half(), self.asm.word());
                line!(self.asm, "cvt.u16.u32 %h{half}, {word}");
                line!(self.asm, "cvt.f32.f16 {dst}, %h{half}");
                dst
            }
            Type::BF16 => self.asm.op("shl.b32", &[word, Word::Const(16)]),
            _ => word,
        }
    }

    /// `f32` to a shorter float, rounded to nearest even.
    fn narrow(&mut self, to: Type, value: Word) -> Word {
        let name = if to == Type::F16 { "f16" } else { "bf16" };
        let value = self.asm.fresh(value);
        let (half, dst) = (self.asm.half(), self.asm.word());
        line!(self.asm, "cvt.rn.{name}.f32 %h{half}, {value}");
        line!(self.asm, "cvt.u32.u16 {dst}, %h{half}");
        dst
    }

    /// `cvt` to any type except `bool`.
    fn convert(&mut self, to: Type, operand: Operand) -> Word {
        let from = self.type_of(operand);
        let word = self.word(operand);
        if from == to {
            return word;
        }
        if from.is_float() {
            return match (from, to) {
                (Type::F64, _) => self.float_to(to, word, "f64"),
                _ => {
                    let value = self.widened(from, word);
                    self.float_to(to, value, "f32")
                }
            };
        }
        self.integer_to(to, from, word)
    }

    /// A number of the float type `ty`, `f32` or `f64`, as one of `to`.
    fn float_to(&mut self, to: Type, value: Word, ty: &str) -> Word {
        let limits = match to {
            Type::I8 => Some((-128, 127)),
            Type::U8 => Some((0, 255)),
            Type::I16 => Some((-32768, 32767)),
            Type::U16 => Some((0, 65535)),
            _ => None,
        };
        let whole = match to {
            Type::F32 if ty == "f32" => return value,
            Type::F32 => return self.asm.op("cvt.rn.f32.f64", &[value]),
            Type::F64 => return self.asm.op("cvt.f64.f32", &[value]),
            Type::F16 | Type::BF16 if ty == "f32" => return self.narrow(to, value),
            Type::F16 | Type::BF16 => {
                let value = self.asm.fresh(value);
                let near = self.asm.op("cvt.rz.f32.f64", &[value]);
                let back = self.asm.op("cvt.f64.f32", &[near]);
                let lost = self.asm.compare("setp.neu.f64", back, value);
                return self.narrow_odd(to, near, lost);
            }
            // Clamped to the range, NaN to 0.
            Type::U32 => "u32",
            Type::I64 => "s64",
            Type::U64 => "u64",
            _ => "s32",
        };
        let value = self.asm.fresh(value);
        let mut result = self.asm.op(&format!("cvt.rzi.{whole}.{ty}"), &[value]);
        if to.is_wide() || ty == "f64" {
            // With 64 bits on either side NaN gives another result.
            let number = self.asm.compare(&format!("setp.num.{ty}"), value, value);
            result = self.asm.select(number, result, Word::constant(to, 0));
        }
        if let Some((low, high)) = limits {
            result = self.asm.op("max.s32", &[result, Word::Const(low as u32)]);
            result = self.asm.op("min.s32", &[result, Word::Const(high)]);
        }
        result
    }

    /// An integer, or a `bool`, as a number of `to`.
    fn integer_to(&mut self, to: Type, from: Type, word: Word) -> Word {
        let ty = match from {
            Type::U32 => "u32",
            Type::I64 => "s64",
            Type::U64 => "u64",
            _ => "s32",
        };
        if matches!(to, Type::I64 | Type::U64) {
            return match from {
                Type::I64 | Type::U64 => word,
                Type::U32 => self.asm.op("cvt.u64.u32", &[word]),
                _ => self.asm.op("cvt.s64.s32", &[word]),
            };
        }
        if to == Type::F64 {
            return self.asm.op(&format!("cvt.rn.f64.{ty}"), &[word]);
        }
        if to.is_float() {
            let word = self.asm.fresh(word);
            if to == Type::BF16 {
                let near = self.asm.op(&format!("cvt.rz.f32.{ty}"), &[word]);
                let back = self.asm.op(&format!("cvt.rzi.{ty}.f32"), &[near]);
                let lost = self.asm.compare(&format!("setp.ne.{}", ty.replace('s', "u")), back, word);
                return self.narrow_odd(to, near, lost);
            }
            let value = self.asm.op(&format!("cvt.rn.f32.{ty}"), &[word]);
            // Integers that f32 rounds are outside the range of f16.
            return if to == Type::F16 { self.narrow(to, value) } else { value };
        }
        let low = if from.is_wide() { self.asm.op("cvt.u32.u64", &[word]) } else { word };
        match to {
            Type::I8 => self.asm.op("bfe.s32", &[low, Word::Const(0), Word::Const(8)]),
            Type::U8 => self.asm.op("and.b32", &[low, Word::Const(0xff)]),
            Type::I16 => self.asm.op("bfe.s32", &[low, Word::Const(0), Word::Const(16)]),
            Type::U16 => self.asm.op("and.b32", &[low, Word::Const(0xffff)]),
            _ => low,
        }
    }

    /// [`Self::narrow`] of a number that was rounded toward zero to the `f32` `near`. Rounds `near` to odd (sets the
    /// last bit if inexact), so that the second rounding equals rounding once.
    fn narrow_odd(&mut self, to: Type, near: Word, lost: Pred) -> Word {
        let lost = self.asm.word_of(lost);
        let near = self.asm.op("or.b32", &[near, lost]);
        self.narrow(to, near)
    }
}
