//! The functions that Atlas defines by decomposition, in PTX.

use std::cell::RefCell;

use super::asm::{Asm, Pred, Word};
use crate::Opcode;
use crate::decompose::{self, Arith, double};

/// [`Arith`] that appends instructions.
struct Emit<'a>(RefCell<&'a mut Asm>);

/// Appends the exact expansion of a function of the table; `None` for any other operation.
pub(super) fn exact(asm: &mut Asm, op: Opcode, x: Word) -> Option<Word> {
    let a = &Emit(RefCell::new(asm));
    if x.is_wide() { double::function(a, op, x) } else { decompose::function(a, op, x) }
}

/// log2 e and ln 2.
const LOG2_E: Word = Word::Const(std::f32::consts::LOG2_E.to_bits());
const LN_2: Word = Word::Const(std::f32::consts::LN_2.to_bits());

/// Appends the fast form of an operation; `None` if it has none. The instructions' errors are those of NVIDIA's
/// "Parallel Thread Execution ISA".
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
        // `tanh.approx` has only 11 bits. Use the exact form's polynomial near 0, and 1 − 2 / (e^2x + 1) elsewhere.
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

/// Methods of one instruction each.
macro_rules! instructions {
    ($($name:ident($($a:ident),*) = $op:expr;)*) => {$(
        fn $name(&self, $($a: Word),*) -> Word {
            self.0.borrow_mut().op($op, &[$($a),*])
        }
    )*};
}

impl Emit<'_> {
    /// A shift count, which has 32 bits.
    fn count(&self, word: Word) -> Word {
        match word {
            Word::WideConst(count) => Word::Const(count as u32),
            word if word.is_wide() => self.0.borrow_mut().op("cvt.u32.u64", &[word]),
            word => word,
        }
    }
}

/// [`Arith`] on a float type: the word, its constants, and the number of bits.
macro_rules! arith {
    ($($f:ident $u:ident $constant:ident $bits:literal;)*) => {$(
        impl Arith<$f> for Emit<'_> {
            type F = Word;
            type U = Word;
            type B = Pred;

            fn f(v: $f) -> Word {
                Word::$constant(v.to_bits())
            }
            fn u(v: $u) -> Word {
                Word::$constant(v)
            }
            instructions! {
                add(a, b) = concat!("add.rn.f", $bits);
                sub(a, b) = concat!("sub.rn.f", $bits);
                mul(a, b) = concat!("mul.rn.f", $bits);
                div(a, b) = concat!("div.rn.f", $bits);
                fma(a, b, c) = concat!("fma.rn.f", $bits);
                int_to_f(a) = concat!("cvt.rn.f", $bits, ".s", $bits);
                add_u(a, b) = concat!("add.u", $bits);
                sub_u(a, b) = concat!("sub.u", $bits);
                mul_u(a, b) = concat!("mul.lo.u", $bits);
                mulhi_u(a, b) = concat!("mul.hi.u", $bits);
                and(a, b) = concat!("and.b", $bits);
                or(a, b) = concat!("or.b", $bits);
                xor(a, b) = concat!("xor.b", $bits);
            }
            fn shl(&self, a: Word, b: Word) -> Word {
                let b = self.count(b);
                self.0.borrow_mut().op(concat!("shl.b", $bits), &[a, b])
            }
            fn shr(&self, a: Word, b: Word) -> Word {
                let b = self.count(b);
                self.0.borrow_mut().op(concat!("shr.u", $bits), &[a, b])
            }
            fn abs(&self, a: Word) -> Word {
                self.0.borrow_mut().op(concat!("and.b", $bits), &[a, Word::$constant($u::MAX >> 1)])
            }
            fn lt(&self, a: Word, b: Word) -> Pred {
                self.0.borrow_mut().compare(concat!("setp.lt.f", $bits), a, b)
            }
            fn lt_u(&self, a: Word, b: Word) -> Pred {
                self.0.borrow_mut().compare(concat!("setp.lt.u", $bits), a, b)
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
                    let (q, r) = (asm.fresh(usual.0), asm.fresh(usual.1));
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
    )*};
}
arith! {
    f32 u32 Const "32";
    f64 u64 WideConst "64";
}
