//! The functions that Atlas defines by decomposition, as functions of the text, and their fast forms.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Write};

use crate::decompose::{self, Arith};
use crate::{Opcode, Type};

/// The helper that functions call.
pub(super) const LESS: &str = "lt_f32";

/// A value in a function: its parameter, a temporary, or a constant.
#[derive(Clone, Copy)]
enum Term {
    X,
    Tmp(u32),
    Float(u32),
    Word(u32),
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Term::X => write!(f, "x"),
            Term::Tmp(n) => write!(f, "t{n}"),
            Term::Float(bits) => f.write_str(&super::constant(Type::F32, u64::from(*bits))),
            Term::Word(word) => write!(f, "0x{word:x}u"),
        }
    }
}

/// [`Arith`] that appends lines.
struct Emit {
    text: RefCell<String>,
    names: Cell<u32>,
    depth: Cell<usize>,
}

impl Emit {
    fn line(&self, text: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text.borrow_mut(), "{:width$}{text}", "", width = 4 * self.depth.get());
    }

    fn name(&self) -> Term {
        self.names.set(self.names.get() + 1);
        Term::Tmp(self.names.get())
    }

    fn set(&self, ty: &str, value: fmt::Arguments<'_>) -> Term {
        let dst = self.name();
        self.line(format_args!("const {ty} {dst} = {value};"));
        dst
    }
}

/// The text of a function of the table; `None` for any other operation.
pub(super) fn exact(op: Opcode, name: &str) -> Option<String> {
    let emit = Emit { text: RefCell::default(), names: Cell::new(0), depth: Cell::new(1) };
    let result = decompose::function(&emit, op, Term::X)?;
    Some(format!("static inline float {name}(float x)\n{{\n{}    return {result};\n}}\n", emit.text.into_inner()))
}

/// The fast form of an operation; `None` if Metal's functions exceed the table's error bound, so that the exact form is
/// used. From the "Metal Shading Language Specification", section on relative errors: fast `log` and `log2` within 3
/// ulp, or 2⁻²¹ where 0.5 < x < 2; non-fast `sin` and `cos` within 4 ulp.
pub(super) fn fast(op: Opcode, args: &[String]) -> Option<String> {
    let [x] = args else { return None };
    Some(match op {
        Opcode::Log => format!("fast::log({x})"),
        Opcode::Log2 => format!("fast::log2({x})"),
        Opcode::Sin => format!("precise::sin({x})"),
        Opcode::Cos => format!("precise::cos({x})"),
        _ => return None,
    })
}

/// Methods of one expression each.
macro_rules! expressions {
    ($($name:ident($($a:ident),*) = $ty:literal $format:literal;)*) => {$(
        fn $name(&self, $($a: Term),*) -> Term {
            self.set($ty, format_args!($format))
        }
    )*};
}

impl Arith<f32> for Emit {
    type F = Term;
    type U = Term;
    type B = Term;

    fn f(v: f32) -> Term {
        Term::Float(v.to_bits())
    }
    fn u(v: u32) -> Term {
        Term::Word(v)
    }
    expressions! {
        add(a, b) = "float" "{a} + {b}";
        sub(a, b) = "float" "{a} - {b}";
        mul(a, b) = "float" "{a} * {b}";
        div(a, b) = "float" "{a} / {b}";
        fma(a, b, c) = "float" "fma({a}, {b}, {c})";
        abs(a) = "float" "as_type<float>(as_type<uint>({a}) & 0x7fffffffu)";
        select(c, a, b) = "float" "{c} ? {a} : {b}";
        bits_of(a) = "uint" "as_type<uint>({a})";
        float_of(a) = "float" "as_type<float>({a})";
        int_to_f(a) = "float" "float(int({a}))";
        add_u(a, b) = "uint" "{a} + {b}";
        sub_u(a, b) = "uint" "{a} - {b}";
        mul_u(a, b) = "uint" "{a} * {b}";
        mulhi_u(a, b) = "uint" "mulhi({a}, {b})";
        and(a, b) = "uint" "{a} & {b}";
        or(a, b) = "uint" "{a} | {b}";
        xor(a, b) = "uint" "{a} ^ {b}";
        shl(a, b) = "uint" "{a} << {b}";
        shr(a, b) = "uint" "{a} >> {b}";
        lt_u(a, b) = "bool" "{a} < {b}";
        select_u(c, a, b) = "uint" "{c} ? {a} : {b}";
    }
    fn lt(&self, a: Term, b: Term) -> Term {
        // See the helper. Subnormal numbers compare with a normal one as 0 does.
        let is_normal = |term| matches!(term, Term::Float(bits) if f32::from_bits(bits).abs() >= f32::MIN_POSITIVE);
        if is_normal(a) || is_normal(b) {
            self.set("bool", format_args!("{a} < {b}"))
        } else {
            self.set("bool", format_args!("{LESS}({a}, {b})"))
        }
    }
    fn rare(&self, c: Term, usual: (Term, Term), f: impl FnOnce() -> (Term, Term)) -> (Term, Term) {
        let (q, r) = (self.name(), self.name());
        self.line(format_args!("uint {q} = {};", usual.0));
        self.line(format_args!("float {r} = {};", usual.1));
        self.line(format_args!("if ({c}) {{"));
        self.depth.set(self.depth.get() + 1);
        let (other_q, other_r) = f();
        self.line(format_args!("{q} = {other_q};"));
        self.line(format_args!("{r} = {other_r};"));
        self.depth.set(self.depth.get() - 1);
        self.line(format_args!("}}"));
        (q, r)
    }
}
