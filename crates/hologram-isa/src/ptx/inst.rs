//! Lane-wise instructions: those that depend on a thread's own operands alone.

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

    /// Makes printing fail: this module lacks an instruction.
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
            Type::I32 => "s32",
            _ => "u32",
        };
        let op = match inst.op {
            Opcode::Eq => "eq",
            // True where an operand is NaN.
            Opcode::Ne if ty == "f32" => "neu",
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
            && let Some(value) = functions::exact(&mut self.asm, inst.op, x)
        {
            return value;
        }
        let signed = inst.ty == Type::I32;
        let float = inst.ty == Type::F32;
        let op = match inst.op {
            ThreadX | ThreadY | ThreadZ | GroupX | GroupY | GroupZ | GridX | GridY | GridZ | GlobalX | Lane
            | Subgroup => return self.builtin(inst.op),
            Div | Rem if !float => return self.divide(inst, args[0], args[1], line),
            Add if float => "add.rn.f32",
            Sub if float => "sub.rn.f32",
            Mul if float => "mul.rn.f32",
            Div => "div.rn.f32",
            Fma => "fma.rn.f32",
            Min if float => "min.f32",
            Max if float => "max.f32",
            // By its bits, so that a NaN too has its sign changed and nothing else.
            Abs if float => return self.asm.op("and.b32", &[args[0], Word::Const(0x7fff_ffff)]),
            Neg if float => return self.asm.op("xor.b32", &[args[0], Word::Const(0x8000_0000)]),
            Sqrt => "sqrt.rn.f32",
            Floor => "cvt.rmi.f32.f32",
            Ceil => "cvt.rpi.f32.f32",
            Trunc => "cvt.rzi.f32.f32",
            Round => "cvt.rni.f32.f32",
            Add => "add.u32",
            Sub => "sub.u32",
            Mul => "mul.lo.u32",
            MulHi if signed => "mul.hi.s32",
            MulHi => "mul.hi.u32",
            Min if signed => "min.s32",
            Min => "min.u32",
            Max if signed => "max.s32",
            Max => "max.u32",
            Abs => {
                // The least i32 has no absolute value in `abs.s32`.
                let negative = self.asm.op("sub.u32", &[Word::Const(0), args[0]]);
                let below = self.asm.compare("setp.lt.s32", args[0], Word::Const(0));
                return self.asm.select(below, negative, args[0]);
            }
            Neg => return self.asm.op("sub.u32", &[Word::Const(0), args[0]]),
            And => "and.b32",
            Or => "or.b32",
            Xor => "xor.b32",
            Not => "not.b32",
            // Shifts by more than the width shift by the width.
            Shl => "shl.b32",
            Shr if signed => "shr.s32",
            Shr => "shr.u32",
            Mov => "mov.b32",
            _ => {
                self.unknown(inst);
                "mov.b32"
            }
        };
        self.asm.op(op, &args)
    }

    fn builtin(&mut self, op: Opcode) -> Word {
        use Opcode::*;
        let [x, _, _] = self.program.workgroup;
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
            GlobalX => {
                let group = self.special("%ctaid.x");
                let thread = self.special("%tid.x");
                return self.asm.op("mad.lo.u32", &[group, Word::Const(x), thread]);
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

    /// Integer division and remainder. By zero: a fault, and the table's value.
    fn divide(&mut self, inst: &Inst, a: Word, b: Word, line: u32) -> Word {
        let rem = inst.op == Opcode::Rem;
        let op = match (rem, inst.ty) {
            (false, Type::I32) => "div.s32",
            (false, _) => "div.u32",
            (true, Type::I32) => "rem.s32",
            (true, _) => "rem.u32",
        };
        let minus_one = inst.ty == Type::I32;
        if let Word::Const(divisor) = b
            && divisor != 0
            && !(minus_one && divisor == u32::MAX)
        {
            return self.asm.op(op, &[a, b]);
        }
        let b = self.asm.op("mov.b32", &[b]);
        let zero = self.asm.compare("setp.eq.u32", b, Word::Const(0));
        self.fault(zero, Word::Const(0), if rem { REM_BY_ZERO } else { DIV_BY_ZERO }, line);
        // What the instruction gives for these divisors is not defined.
        let mut safe = self.asm.select(zero, Word::Const(1), b);
        let negate = minus_one.then(|| self.asm.compare("setp.eq.u32", b, Word::Const(u32::MAX)));
        if let Some(negate) = negate {
            safe = self.asm.select(negate, Word::Const(1), safe);
        }
        let mut value = self.asm.op(op, &[a, safe]);
        if !rem && let Some(negate) = negate {
            let negative = self.asm.op("sub.u32", &[Word::Const(0), a]);
            value = self.asm.select(negate, negative, value);
        }
        self.asm.select(zero, if rem { a } else { Word::Const(0) }, value)
    }

    /// `cvt` and `bitcast` to `bool`.
    fn truth_from(&mut self, inst: &Inst) -> Pred {
        let from = self.type_of(inst.args[0]);
        if from == Type::Bool {
            return self.pred(inst.args[0]);
        }
        let word = self.word(inst.args[0]);
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
            _ => word,
        }
    }

    /// The value of a float type's word, exactly.
    fn widened(&mut self, ty: Type, word: Word) -> Word {
        match ty {
            Type::F16 => {
                let word = self.asm.op("mov.b32", &[word]);
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
        let value = self.asm.op("mov.b32", &[value]);
        let (half, dst) = (self.asm.half(), self.asm.word());
        line!(self.asm, "cvt.rn.{name}.f32 %h{half}, {value}");
        line!(self.asm, "cvt.u32.u16 {dst}, %h{half}");
        dst
    }

    /// `cvt` to any type but `bool`.
    fn convert(&mut self, to: Type, operand: Operand) -> Word {
        let from = self.type_of(operand);
        let word = self.word(operand);
        if from == to {
            return word;
        }
        let limit = |this: &mut Self, op: &str, word: Word, by: i32| this.asm.op(op, &[word, Word::Const(by as u32)]);
        if from.is_float() {
            let value = self.widened(from, word);
            return match to {
                Type::F32 => value,
                Type::F16 | Type::BF16 => self.narrow(to, value),
                // Clamped to the range, NaN to 0.
                Type::U32 => self.asm.op("cvt.rzi.u32.f32", &[value]),
                _ => {
                    let whole = self.asm.op("cvt.rzi.s32.f32", &[value]);
                    let (low, high) = match to {
                        Type::I8 => (-128, 127),
                        Type::U8 => (0, 255),
                        _ => return whole,
                    };
                    let whole = limit(self, "max.s32", whole, low);
                    limit(self, "min.s32", whole, high)
                }
            };
        }
        let unsigned = from == Type::U32;
        match to {
            Type::I8 => self.asm.op("bfe.s32", &[word, Word::Const(0), Word::Const(8)]),
            Type::U8 => self.asm.op("and.b32", &[word, Word::Const(0xff)]),
            Type::F32 | Type::F16 => {
                let value = self.asm.op(if unsigned { "cvt.rn.f32.u32" } else { "cvt.rn.f32.s32" }, &[word]);
                // Whole numbers that f32 rounds are beyond the range of f16.
                if to == Type::F16 { self.narrow(to, value) } else { value }
            }
            Type::BF16 => {
                // Rounded to odd first (toward zero, and the last bit set where anything was lost), so that the second rounding
                // gives what rounding once would.
                let word = self.asm.op("mov.b32", &[word]);
                let (there, back) = if unsigned {
                    ("cvt.rz.f32.u32", "cvt.rzi.u32.f32")
                } else {
                    ("cvt.rz.f32.s32", "cvt.rzi.s32.f32")
                };
                let value = self.asm.op(there, &[word]);
                let back = self.asm.op(back, &[value]);
                let lost = self.asm.compare("setp.ne.u32", back, word);
                let lost = self.asm.word_of(lost);
                let value = self.asm.op("or.b32", &[value, lost]);
                self.narrow(to, value)
            }
            _ => word,
        }
    }
}
