//! The functions that Atlas defines by decomposition, written down in PTX.

use std::cell::RefCell;

use super::asm::{Asm, Pred, Word};
use crate::Opcode;
use crate::decompose::{self, Arith};

/// [`Arith`] that appends instructions.
struct Emit<'a>(RefCell<&'a mut Asm>);

/// Appends the exact expansion of a function of the table; `None` for any other operation.
pub(super) fn exact(asm: &mut Asm, op: Opcode, x: Word) -> Option<Word> {
    let a = &Emit(RefCell::new(asm));
    Some(match op {
        Opcode::Exp => decompose::exp(a, x),
        Opcode::Exp2 => decompose::exp2(a, x),
        Opcode::Log => decompose::log(a, x),
        Opcode::Log2 => decompose::log2(a, x),
        Opcode::Sin => decompose::sin(a, x),
        Opcode::Cos => decompose::cos(a, x),
        Opcode::Tanh => decompose::tanh(a, x),
        Opcode::Erf => decompose::erf(a, x),
        _ => return None,
    })
}

/// log2 e and ln 2.
const LOG2_E: Word = Word::Const(std::f32::consts::LOG2_E.to_bits());
const LN_2: Word = Word::Const(std::f32::consts::LN_2.to_bits());

/// Appends the fast form of an operation; `None` where it has none. The errors of the instructions are those that NVIDIA's
/// "Parallel Thread Execution ISA" states.
pub(super) fn fast(asm: &mut Asm, op: Opcode, args: &[Word]) -> Option<Word> {
    let one = Word::Const(1f32.to_bits());
    Some(match (op, args) {
        (Opcode::Div, &[a, b]) if a == one => asm.op("rcp.approx.ftz.f32", &[b]),
        (Opcode::Div, &[a, b]) => asm.op("div.full.f32", &[a, b]),
        (Opcode::Sqrt, &[x]) => asm.op("sqrt.approx.f32", &[x]),
        (Opcode::Exp, &[x]) => {
            let y = asm.op("mul.rn.f32", &[x, LOG2_E]);
            asm.op("ex2.approx.ftz.f32", &[y])
        }
        (Opcode::Exp2, &[x]) => asm.op("ex2.approx.ftz.f32", &[x]),
        (Opcode::Log, &[x]) => {
            let y = asm.op("lg2.approx.f32", &[x]);
            asm.op("mul.rn.f32", &[y, LN_2])
        }
        (Opcode::Log2, &[x]) => asm.op("lg2.approx.f32", &[x]),
        (Opcode::Sin, &[x]) => asm.op("sin.approx.f32", &[x]),
        (Opcode::Cos, &[x]) => asm.op("cos.approx.f32", &[x]),
        // `tanh.approx` has 11 bits. So: the exact form's polynomial near 0, and 1 − 2 / (e^2x + 1) elsewhere.
        (Opcode::Tanh, &[x]) => {
            let y = asm.op("and.b32", &[x, Word::Const(0x7fff_ffff)]);
            let near = decompose::tanh_near(&Emit(RefCell::new(asm)), y);
            let z = asm.op("mul.rn.f32", &[y, Word::Const((2.0 * std::f32::consts::LOG2_E).to_bits())]);
            let e = asm.op("ex2.approx.ftz.f32", &[z]);
            let d = asm.op("add.rn.f32", &[e, one]);
            let r = asm.op("rcp.approx.ftz.f32", &[d]);
            let far = asm.op("fma.rn.f32", &[r, Word::Const((-2f32).to_bits()), one]);
            let small = asm.compare("setp.lt.f32", y, Word::Const(decompose::TANH_NEAR.to_bits()));
            let v = asm.select(small, near, far);
            asm.op("copysign.f32", &[x, v])
        }
        _ => return None,
    })
}

/// Methods that are one instruction each.
macro_rules! instructions {
    ($($name:ident($($a:ident),*) = $op:literal;)*) => {$(
        fn $name(&self, $($a: Word),*) -> Word {
            self.0.borrow_mut().op($op, &[$($a),*])
        }
    )*};
}

impl Arith for Emit<'_> {
    type F = Word;
    type U = Word;
    type B = Pred;

    fn f(v: f32) -> Word {
        Word::Const(v.to_bits())
    }
    fn u(v: u32) -> Word {
        Word::Const(v)
    }
    instructions! {
        add(a, b) = "add.rn.f32";
        sub(a, b) = "sub.rn.f32";
        mul(a, b) = "mul.rn.f32";
        div(a, b) = "div.rn.f32";
        fma(a, b, c) = "fma.rn.f32";
        int_to_f(a) = "cvt.rn.f32.s32";
        add_u(a, b) = "add.u32";
        sub_u(a, b) = "sub.u32";
        mul_u(a, b) = "mul.lo.u32";
        mulhi_u(a, b) = "mul.hi.u32";
        and(a, b) = "and.b32";
        or(a, b) = "or.b32";
        xor(a, b) = "xor.b32";
        shl(a, b) = "shl.b32";
        shr(a, b) = "shr.u32";
    }
    fn abs(&self, a: Word) -> Word {
        self.and(a, Word::Const(0x7fff_ffff))
    }
    fn lt(&self, a: Word, b: Word) -> Pred {
        self.0.borrow_mut().compare("setp.lt.f32", a, b)
    }
    fn lt_u(&self, a: Word, b: Word) -> Pred {
        self.0.borrow_mut().compare("setp.lt.u32", a, b)
    }
    fn select(&self, c: Pred, a: Word, b: Word) -> Word {
        self.0.borrow_mut().select(c, a, b)
    }
    fn select_u(&self, c: Pred, a: Word, b: Word) -> Word {
        self.0.borrow_mut().select(c, a, b)
    }
    fn bits_of(&self, a: Word) -> Word {
        a
    }
    fn float_of(&self, a: Word) -> Word {
        a
    }
    fn rare(&self, c: Pred, usual: (Word, Word), f: impl FnOnce() -> (Word, Word)) -> (Word, Word) {
        let (q, r, end) = {
            let mut asm = self.0.borrow_mut();
            let (q, r) = (asm.op("mov.b32", &[usual.0]), asm.op("mov.b32", &[usual.1]));
            let end = asm.label();
            asm.branch(Some((c, false)), end);
            (q, r, end)
        };
        let (other_q, other_r) = f();
        let mut asm = self.0.borrow_mut();
        asm.mov(q, other_q);
        asm.mov(r, other_r);
        asm.place(end);
        (q, r)
    }
}
