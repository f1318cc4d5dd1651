//! The text of a function body under construction: registers, labels and instructions.

use std::fmt::{self, Write};

/// A 32-bit value: the program's register of this number, a temporary, or a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Var(u32),
    Tmp(u32),
    Const(u32),
}

/// A truth value: the program's `bool` register of this number, or a temporary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pred {
    Var(u32),
    Tmp(u32),
}

/// A 64-bit temporary: an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wide(pub(super) u32);

/// A place in the code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label(u32);

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word::Var(n) => write!(f, "%v{n}"),
            Word::Tmp(n) => write!(f, "%t{n}"),
            Word::Const(word) => write!(f, "0x{word:x}"),
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

impl fmt::Display for Wide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%d{}", self.0)
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
    /// An empty body in which the first `reserved` temporaries of words, truth values and addresses are taken.
    pub(super) fn after(reserved: u32) -> Asm {
        Asm { words: reserved, preds: reserved, wides: reserved, ..Asm::default() }
    }

    /// The declarations of the registers used, for a program with this many registers of its own.
    pub(super) fn declarations(&self, registers: usize) -> String {
        let mut text = String::new();
        let declared = [
            ("b32", "v", registers as u32),
            ("pred", "b", registers as u32),
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
        // Writing to a string does not fail.
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

    pub(super) fn wide(&mut self) -> Wide {
        self.wides += 1;
        Wide(self.wides - 1)
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

    /// An instruction with its operands; constants are printed as floats where it reads `.f32`.
    pub(super) fn op_into(&mut self, dst: Word, op: &str, args: &[Word]) {
        let _ = write!(self.text, "\t{op} {dst}");
        for arg in args {
            let _ = match arg {
                Word::Const(bits) if op.ends_with(".f32") => write!(self.text, ", 0f{bits:08X}"),
                _ => write!(self.text, ", {arg}"),
            };
        }
        self.text += ";\n";
    }

    /// The same with a temporary for the result.
    pub(super) fn op(&mut self, op: &str, args: &[Word]) -> Word {
        let dst = self.word();
        self.op_into(dst, op, args);
        dst
    }

    /// `setp` or a kin of it: `op` is the whole mnemonic.
    pub(super) fn compare(&mut self, op: &str, a: Word, b: Word) -> Pred {
        let dst = self.pred();
        let float = op.ends_with(".f32");
        let text = |w: Word| match w {
            Word::Const(bits) if float => format!("0f{bits:08X}"),
            _ => w.to_string(),
        };
        line!(self, "{op} {dst}, {}, {}", text(a), text(b));
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
        let dst = self.word();
        line!(self, "selp.b32 {dst}, {a}, {b}, {c}");
        dst
    }

    pub(super) fn mov(&mut self, dst: Word, src: Word) {
        line!(self, "mov.b32 {dst}, {src}");
    }

    /// A copy that later changes of `src` do not touch; a constant is its own.
    pub(super) fn copy(&mut self, src: Word) -> Word {
        match src {
            Word::Const(_) => src,
            _ => self.op("mov.b32", &[src]),
        }
    }

    /// Whether a word is not 0.
    pub(super) fn truth(&mut self, word: Word) -> Pred {
        let word = match word {
            Word::Const(_) => self.op("mov.b32", &[word]),
            _ => word,
        };
        self.compare("setp.ne.u32", word, Word::Const(0))
    }

    /// 1 or 0.
    pub(super) fn word_of(&mut self, truth: Pred) -> Word {
        self.select(truth, Word::Const(1), Word::Const(0))
    }

    /// Goes to a label, where `cond` has the given value.
    pub(super) fn branch(&mut self, cond: Option<(Pred, bool)>, to: Label) {
        match cond {
            Some((pred, true)) => line!(self, "@{pred} bra {to}"),
            Some((pred, false)) => line!(self, "@!{pred} bra {to}"),
            None => line!(self, "bra {to}"),
        }
    }
}
