//! A function body under construction: registers, labels and instructions.

use std::fmt::{self, Write};

use crate::{Register, Type};

/// A value of 32 bits, or of 64 if wide: the program's register of this number, a temporary, or a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Var(u32),
    Tmp(u32),
    Const(u32),
    WideVar(u32),
    WideTmp(u32),
    WideConst(u64),
}

impl Word {
    /// A constant of a type.
    pub(super) fn constant(ty: Type, word: u64) -> Word {
        if ty.is_wide() { Word::WideConst(word) } else { Word::Const(word as u32) }
    }

    pub(super) fn is_wide(self) -> bool {
        matches!(self, Word::WideVar(_) | Word::WideTmp(_) | Word::WideConst(_))
    }

    pub(super) fn is_constant(self) -> bool {
        matches!(self, Word::Const(_) | Word::WideConst(_))
    }

    /// The text of an operand. Constants are written in the last type of the instruction `op`.
    fn operand(self, op: &str) -> String {
        match self {
            Word::Const(bits) if op.ends_with(".f32") => format!("0f{bits:08X}"),
            Word::WideConst(bits) if op.ends_with(".f64") => format!("0d{bits:016X}"),
            _ => self.to_string(),
        }
    }
}

/// A truth value: the program's `bool` register of this number, or a temporary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pred {
    Var(u32),
    Tmp(u32),
}

/// A place in the code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label(u32);

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word::Var(n) => write!(f, "%v{n}"),
            Word::Tmp(n) => write!(f, "%t{n}"),
            Word::Const(word) => write!(f, "0x{word:x}"),
            Word::WideVar(n) => write!(f, "%w{n}"),
            Word::WideTmp(n) => write!(f, "%d{n}"),
            Word::WideConst(word) => write!(f, "0x{word:x}"),
        }
    }
}

impl fmt::Display for Pred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pred::Var(n) => write!(f, "%b{n}"),
            Pred::Tmp(n) => write!(f, "%p{n}"),
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}", self.0)
    }
}

/// A body under construction.
#[derive(Debug, Default)]
pub(super) struct Asm {
    /// The instructions so far.
    pub(super) text: String,
    words: u32,
    preds: u32,
    wides: u32,
    halves: u32,
    labels: u32,
}

/// Appends a formatted line, indented.
macro_rules! line {
    ($asm:expr, $($format:tt)*) => {
        $asm.line(format_args!($($format)*))
    };
}
pub(super) use line;

impl Asm {
    /// An empty body with the first `reserved` temporaries of words, truth values and addresses taken.
    pub(super) fn after(reserved: u32) -> Asm {
        Asm { words: reserved, preds: reserved, wides: reserved, ..Asm::default() }
    }

    /// The declarations of the registers used, plus the program's own registers.
    pub(super) fn declarations(&self, program: &[Register]) -> String {
        let mut text = String::new();
        let registers = program.len() as u32;
        let wide = program.iter().any(|r| r.ty.is_wide());
        let declared = [
            ("b32", "v", registers),
            ("b64", "w", if wide { registers } else { 0 }),
            ("pred", "b", registers),
            ("b32", "t", self.words),
            ("pred", "p", self.preds),
            ("b64", "d", self.wides),
            ("b16", "h", self.halves),
        ];
        for (ty, name, count) in declared {
            if count > 0 {
                let _ = writeln!(text, "\t.reg .{ty} %{name}<{count}>;");
            }
        }
        text
    }

    pub(super) fn line(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "\t{text};");
    }

    pub(super) fn word(&mut self) -> Word {
        self.words += 1;
        Word::Tmp(self.words - 1)
    }

    pub(super) fn pred(&mut self) -> Pred {
        self.preds += 1;
        Pred::Tmp(self.preds - 1)
    }

    pub(super) fn wide(&mut self) -> Word {
        self.wides += 1;
        Word::WideTmp(self.wides - 1)
    }

    /// A temporary for a value of a type.
    pub(super) fn temporary(&mut self, ty: Type) -> Word {
        if ty.is_wide() { self.wide() } else { self.word() }
    }

    /// The number of a 16-bit temporary, `%h`.
    pub(super) fn half(&mut self) -> u32 {
        self.halves += 1;
        self.halves - 1
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }

    pub(super) fn place(&mut self, label: Label) {
        let _ = writeln!(self.text, "{label}:");
    }

    /// An instruction with its operands.
    pub(super) fn op_into(&mut self, dst: Word, op: &str, args: &[Word]) {
        let _ = write!(self.text, "\t{op} {dst}");
        for arg in args {
            let _ = write!(self.text, ", {}", arg.operand(op));
        }
        self.text += ";\n";
    }

    /// The same with a temporary for the result, whose type the mnemonic names; in a conversion it precedes the
    /// operand's.
    pub(super) fn op(&mut self, op: &str, args: &[Word]) -> Word {
        let mut types = op.rsplit('.');
        let result = if op.starts_with("cvt.") { types.nth(1) } else { types.next() };
        let dst = if result.is_some_and(|ty| ty.ends_with("64")) { self.wide() } else { self.word() };
        self.op_into(dst, op, args);
        dst
    }

    /// `setp` or a similar instruction; `op` is the whole mnemonic.
    pub(super) fn compare(&mut self, op: &str, a: Word, b: Word) -> Pred {
        let dst = self.pred();
        line!(self, "{op} {dst}, {}, {}", a.operand(op), b.operand(op));
        dst
    }

    /// An operation on truth values: `and`, `or`, `xor`.
    pub(super) fn logic(&mut self, op: &str, a: Pred, b: Pred) -> Pred {
        let dst = self.pred();
        line!(self, "{op}.pred {dst}, {a}, {b}");
        dst
    }

    pub(super) fn not(&mut self, a: Pred) -> Pred {
        let dst = self.pred();
        line!(self, "not.pred {dst}, {a}");
        dst
    }

    pub(super) fn select(&mut self, c: Pred, a: Word, b: Word) -> Word {
        let (dst, bits) = if a.is_wide() { (self.wide(), 64) } else { (self.word(), 32) };
        line!(self, "selp.b{bits} {dst}, {a}, {b}, {c}");
        dst
    }

    pub(super) fn mov(&mut self, dst: Word, src: Word) {
        line!(self, "mov.b{} {dst}, {src}", if dst.is_wide() { 64 } else { 32 });
    }

    /// A new register with the value of `src`.
    pub(super) fn fresh(&mut self, src: Word) -> Word {
        self.op(if src.is_wide() { "mov.b64" } else { "mov.b32" }, &[src])
    }

    /// A copy that is independent of later changes of `src`. A constant is its own copy.
    pub(super) fn copy(&mut self, src: Word) -> Word {
        if src.is_constant() { src } else { self.fresh(src) }
    }

    /// Whether a word is not 0.
    pub(super) fn truth(&mut self, word: Word) -> Pred {
        let word = if word.is_constant() { self.fresh(word) } else { word };
        let (op, zero) =
            if word.is_wide() { ("setp.ne.u64", Word::WideConst(0)) } else { ("setp.ne.u32", Word::Const(0)) };
        self.compare(op, word, zero)
    }

    /// 1 or 0.
    pub(super) fn word_of(&mut self, truth: Pred) -> Word {
        self.select(truth, Word::Const(1), Word::Const(0))
    }

    /// Branches to a label, where `cond` has the given value if present.
    pub(super) fn branch(&mut self, cond: Option<(Pred, bool)>, to: Label) {
        match cond {
            Some((pred, true)) => line!(self, "@{pred} bra {to}"),
            Some((pred, false)) => line!(self, "@!{pred} bra {to}"),
            None => line!(self, "bra {to}"),
        }
    }
}
