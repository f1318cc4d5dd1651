//! Lane-wise instructions, which depend only on a thread's own operands.

use super::{DIV_BY_ZERO, Position, Printer, REM_BY_ZERO, functions, line, register_type};
use crate::program::{Inst, Operand};
use crate::{Opcode, Type};

impl Printer<'_> {
    /// A lane-wise instruction as an expression of its result's register type.
    pub(super) fn lane_wise(&mut self, inst: &Inst, line: u32) -> String {
        use Opcode::*;
        match inst.op {
            Cvt => return self.convert(inst.ty, inst.args[0]),
            Bitcast => return self.bitcast(inst.ty, inst.args[0]),
            ThreadX | ThreadY | ThreadZ | GroupX | GroupY | GroupZ | GridX | GridY | GridZ | GlobalX | GlobalY
            | GlobalZ | Lane | Subgroup => return self.builtin(inst.op),
            Div | Rem if !inst.ty.is_float() => return self.divide(inst, line),
            _ => {}
        }
        let args: Vec<String> = inst.args.iter().map(|a| self.value(*a)).collect();
        if inst.fast
            && let Some(value) = functions::fast(inst.op, &args)
        {
            return value;
        }
        match (inst.op, &args[..]) {
            (Mov, [a]) => a.clone(),
            (Select, [c, a, b]) => format!("{c} ? {a} : {b}"),
            (Eq | Ne | Lt | Le | Gt | Ge, [a, b]) => self.compare(inst, a, b),
            _ if inst.ty == Type::F32 => self.float(inst, &args),
            _ if inst.ty == Type::Bool => match (inst.op, &args[..]) {
                (Not, [a]) => format!("!{a}"),
                (And, [a, b]) => format!("{a} && {b}"),
                (Or, [a, b]) => format!("{a} || {b}"),
                (Xor, [a, b]) => format!("{a} != {b}"),
                _ => self.none(inst),
            },
            _ => self.integer(inst, &args),
        }
    }

    fn compare(&mut self, inst: &Inst, a: &str, b: &str) -> String {
        use Opcode::*;
        let (a, b) = (self.widened(inst.ty, a.into()), self.widened(inst.ty, b.into()));
        if matches!(inst.ty, Type::F32 | Type::BF16) && !inst.args.iter().any(|arg| is_normal(inst.ty, *arg)) {
            let (name, a, b) = match inst.op {
                Eq | Ne => ("eq_f32", a, b),
                Lt => ("lt_f32", a, b),
                Gt => ("lt_f32", b, a),
                Le => ("le_f32", a, b),
                _ => ("le_f32", b, a),
            };
            let not = if inst.op == Ne { "!" } else { "" };
            return format!("{not}{}({a}, {b})", self.helper(name));
        }
        let op = match inst.op {
            Eq => "==",
            Ne => "!=",
            Lt => "<",
            Le => "<=",
            Gt => ">",
            _ => ">=",
        };
        format!("{a} {op} {b}")
    }

    fn none(&mut self, inst: &Inst) -> String {
        self.unknown(inst);
        String::new()
    }

    fn float(&mut self, inst: &Inst, args: &[String]) -> String {
        use Opcode::*;
        match (inst.op, args) {
            (Add, [a, b]) => format!("{a} + {b}"),
            (Sub, [a, b]) => format!("{a} - {b}"),
            (Mul, [a, b]) => format!("{a} * {b}"),
            (Div, [a, b]) => format!("{a} / {b}"),
            (Fma, [a, b, c]) => format!("fma({a}, {b}, {c})"),
            (Min, [a, b]) => format!("{}({a}, {b})", self.helper("min_f32")),
            (Max, [a, b]) => format!("{}({a}, {b})", self.helper("max_f32")),
            // On bits, so that NaN too changes only its sign.
            (Abs, [a]) => format!("as_type<float>(as_type<uint>({a}) & 0x7fffffffu)"),
            (Neg, [a]) => format!("as_type<float>(as_type<uint>({a}) ^ 0x80000000u)"),
            (Sqrt, [a]) => format!("precise::sqrt({a})"),
            (Floor, [a]) => format!("{}({a})", self.helper("floor_f32")),
            (Ceil, [a]) => format!("{}({a})", self.helper("ceil_f32")),
            (Trunc, [a]) => format!("trunc({a})"),
            (Round, [a]) => format!("rint({a})"),
            (op, [a]) => match self.helpers.function(op) {
                Some(name) => format!("{name}({a})"),
                None => self.none(inst),
            },
            _ => self.none(inst),
        }
    }

    fn integer(&mut self, inst: &Inst, args: &[String]) -> String {
        use Opcode::*;
        let ty = register_type(inst.ty);
        let (wide, signed) = (inst.ty.is_wide(), matches!(inst.ty, Type::I32 | Type::I64));
        // Signed overflow is undefined, so compute unsigned.
        let unsigned = if wide { "ulong" } else { "uint" };
        let wrapping = |op: &str, a: &str, b: &str| {
            if signed { format!("{ty}({unsigned}({a}) {op} {unsigned}({b}))") } else { format!("{a} {op} {b}") }
        };
        let bits = if wide { 64 } else { 32 };
        match (inst.op, args) {
            (Add, [a, b]) => wrapping("+", a, b),
            (Sub, [a, b]) => wrapping("-", a, b),
            (Mul, [a, b]) => wrapping("*", a, b),
            (Neg, [a]) => wrapping("-", "0", a),
            (Abs, [a]) => format!("{a} < 0 ? {} : {a}", wrapping("-", "0", a)),
            (MulHi, [a, b]) if wide => {
                let name = self.helper(if signed { "mulhi_i64" } else { "mulhi_u64" });
                format!("{name}({a}, {b})")
            }
            (MulHi, [a, b]) => format!("mulhi({a}, {b})"),
            (Dot4, [a, b, c]) => {
                let name = self.helper(if signed { "dot4_i32" } else { "dot4_u32" });
                format!("{name}({a}, {b}, {c})")
            }
            (Min, [a, b]) => format!("{a} < {b} ? {a} : {b}"),
            (Max, [a, b]) => format!("{a} > {b} ? {a} : {b}"),
            (And, [a, b]) => format!("{a} & {b}"),
            (Or, [a, b]) => format!("{a} | {b}"),
            (Xor, [a, b]) => format!("{a} ^ {b}"),
            (Not, [a]) => format!("~{a}"),
            // A shift by the width or more is undefined.
            (Shl, [a, n]) => format!("{n} < {bits}u ? {ty}({unsigned}({a}) << {n}) : {ty}(0)"),
            (Shr, [a, n]) if signed => format!("{a} >> ({n} < {bits}u ? {n} : {}u)", bits - 1),
            (Shr, [a, n]) => format!("{n} < {bits}u ? {a} >> {n} : {ty}(0)"),
            (PopCount, [a]) if wide => format!("{ty}({}(ulong({a})))", self.helper("popcount_u64")),
            (LeadingZeros, [a]) if wide => format!("{ty}({}(ulong({a})))", self.helper("clz_u64")),
            (PopCount, [a]) => format!("popcount({a})"),
            (LeadingZeros, [a]) => format!("clz({a})"),
            _ => self.none(inst),
        }
    }

    /// Integer division and remainder; division by zero is a fault.
    fn divide(&mut self, inst: &Inst, line: u32) -> String {
        let rem = inst.op == Opcode::Rem;
        let name = self.helper(match (inst.ty, rem) {
            (Type::I32, false) => "div_i32",
            (Type::I32, true) => "rem_i32",
            (Type::I64, false) => "div_i64",
            (Type::I64, true) => "rem_i64",
            (Type::U64, false) => "div_u64",
            (Type::U64, true) => "rem_u64",
            (_, false) => "div_u32",
            (_, true) => "rem_u32",
        });
        let (a, b) = (self.value(inst.args[0]), self.value(inst.args[1]));
        if !matches!(inst.args[1], Operand::Const(_, word) if word != 0) {
            let fault = self.fault(line, if rem { REM_BY_ZERO } else { DIV_BY_ZERO }, "0u");
            line!(self, "if ({b} == 0) {fault}");
        }
        format!("{name}({a}, {b})")
    }

    fn builtin(&mut self, op: Opcode) -> String {
        use Opcode::*;
        let which = match op {
            ThreadX | ThreadY | ThreadZ => Position::Local,
            GroupX | GroupY | GroupZ => Position::Group,
            GridX | GridY | GridZ => Position::Grid,
            GlobalX | GlobalY | GlobalZ => {
                let (group, local) = (self.position(Position::Group), self.position(Position::Local));
                let axis = op as usize - GlobalX as usize;
                let name = ["x", "y", "z"][axis];
                return format!("{group}.{name} * {}u + {local}.{name}", self.program.workgroup[axis]);
            }
            _ => {
                let linear = self.position(Position::Linear);
                return if op == Lane { format!("{linear} & 31u") } else { format!("{linear} >> 5") };
            }
        };
        let axis = match op {
            ThreadX | GroupX | GridX => "x",
            ThreadY | GroupY | GridY => "y",
            _ => "z",
        };
        format!("{}.{axis}", self.position(which))
    }

    /// Widens a 16-bit float to `float` exactly; other values are unchanged.
    fn widened(&mut self, ty: Type, value: String) -> String {
        match ty {
            Type::F16 => format!("{}({value})", self.helper("f32_of_f16")),
            Type::BF16 => format!("{}({value})", self.helper("f32_of_bf16")),
            _ => value,
        }
    }

    fn bitcast(&mut self, to: Type, operand: Operand) -> String {
        let from = self.type_of(operand);
        let value = self.value(operand);
        match (from, to) {
            _ if from == to => value,
            (Type::F32, Type::I32) => format!("as_type<int>({value})"),
            (Type::F32, _) => format!("as_type<uint>({value})"),
            (_, Type::F32) => format!("as_type<float>({value})"),
            (_, Type::Bool) => format!("(uint({value}) & 0xffu) != 0u"),
            (_, Type::I8) => format!("int(char({value}))"),
            (_, Type::U8) => format!("uint(uchar({value}))"),
            (_, Type::I16) => format!("int(short({value}))"),
            (_, Type::U16) => format!("uint(ushort({value}))"),
            _ => format!("{}({value})", register_type(to)),
        }
    }

    /// `cvt` to any type.
    fn convert(&mut self, to: Type, operand: Operand) -> String {
        let from = self.type_of(operand);
        let value = self.value(operand);
        if from == to {
            return value;
        }
        if from.is_float() {
            let value = self.widened(from, value);
            return self.float_to(to, value);
        }
        match to {
            Type::Bool => format!("{value} != 0"),
            Type::I8 => format!("int(char({value}))"),
            Type::U8 => format!("uint(uchar({value}))"),
            Type::I16 => format!("int(short({value}))"),
            Type::U16 => format!("uint(ushort({value}))"),
            Type::BF16 => {
                let odd = match from {
                    Type::I32 | Type::I64 => format!("{}(long({value}))", self.helper("odd_i64")),
                    Type::U32 | Type::U64 => format!("{}(ulong({value}))", self.helper("odd_u64")),
                    // Few enough bits to be exact in f32.
                    _ => format!("float({value})"),
                };
                format!("{}({odd})", self.helper("bf16_of"))
            }
            // Integers that f32 rounds are outside the range of f16.
            Type::F16 => format!("{}(float({value}))", self.helper("f16_of")),
            _ => format!("{}({value})", register_type(to)),
        }
    }

    /// A `float` as another type.
    fn float_to(&mut self, to: Type, value: String) -> String {
        let clamped = |p: &mut Self, low: i32, high: i32| {
            let whole = p.helper("i32_of");
            format!("clamp({whole}({value}), {low}, {high})")
        };
        match to {
            // A subnormal number is not 0.
            Type::Bool => format!("(as_type<uint>({value}) & 0x7fffffffu) != 0u"),
            Type::I8 => clamped(self, -128, 127),
            Type::U8 => format!("uint({})", clamped(self, 0, 255)),
            Type::I16 => clamped(self, -32768, 32767),
            Type::U16 => format!("uint({})", clamped(self, 0, 65535)),
            Type::I32 => format!("{}({value})", self.helper("i32_of")),
            Type::U32 => format!("{}({value})", self.helper("u32_of")),
            Type::I64 => format!("{}({value})", self.helper("i64_of")),
            Type::U64 => format!("{}({value})", self.helper("u64_of")),
            Type::F16 => format!("{}({value})", self.helper("f16_of")),
            Type::BF16 => format!("{}({value})", self.helper("bf16_of")),
            Type::F32 | Type::F64 => value,
        }
    }
}

/// Whether an operand is a constant that compares with subnormal numbers as with 0: neither 0 nor subnormal itself.
fn is_normal(ty: Type, operand: Operand) -> bool {
    let Operand::Const(_, word) = operand else { return false };
    let bits = if ty == Type::BF16 { (word as u32) << 16 } else { word as u32 };
    f32::from_bits(bits).abs() >= f32::MIN_POSITIVE
}
