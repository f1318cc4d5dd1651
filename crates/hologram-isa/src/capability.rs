//! Optional features that programs may need.

use crate::program::*;
use crate::{Inst, Opcode, Type};

/// A feature that a device may lack. A backend's device information lists its features; compiling a program that needs
/// another one fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Capability {
    /// Values of type `f64`.
    F64,
    /// Atomic operations on 64 bits.
    Atomic64,
    /// Matrix-tile products across a subgroup.
    MatrixTile,
}

impl Capability {
    /// Every capability.
    pub const ALL: [Capability; 3] = [Capability::F64, Capability::Atomic64, Capability::MatrixTile];

    /// The name in messages and lists.
    pub const fn name(self) -> &'static str {
        match self {
            Capability::F64 => "f64",
            Capability::Atomic64 => "64-bit atomic operations",
            Capability::MatrixTile => "matrix tiles",
        }
    }

    /// Whether a program needs it.
    pub fn is_needed_by(self, program: &Program) -> bool {
        let declared = program.params.iter().map(|p| match p.kind {
            ParamKind::Buffer { element: ty, .. } | ParamKind::Scalar(ty) => ty,
        });
        let declared = declared.chain(program.shared.iter().map(|s| s.element));
        let mut declared = declared.chain(program.registers.iter().map(|r| r.ty));
        match self {
            Capability::F64 => declared.any(|ty| ty == Type::F64) || any(&program.body, &names_f64),
            Capability::Atomic64 => {
                any(&program.body, &|inst| inst.op.info().signature.is_atomic() && inst.ty.is_wide())
            }
            Capability::MatrixTile => any(&program.body, &|inst| inst.op == Opcode::TileFma),
        }
    }
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether an instruction has a constant of type `f64`: `cvt.i32 1.5:f64` needs neither a register nor a parameter of
/// that type.
fn names_f64(inst: &Inst) -> bool {
    inst.ty == Type::F64 || inst.args.iter().any(|a| matches!(a, Operand::Const(Type::F64, _)))
}

fn any(block: &[Stmt], found: &dyn Fn(&Inst) -> bool) -> bool {
    block.iter().any(|stmt| match &stmt.kind {
        StmtKind::Inst(inst) => found(inst),
        StmtKind::If { then, otherwise, .. } => any(then, found) || any(otherwise, found),
        StmtKind::For { body, .. } | StmtKind::Loop { body, .. } => any(body, found),
        StmtKind::Break { .. } | StmtKind::Continue { .. } => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_need_what_they_name() {
        let cases = [
            ("", "", [false, false, false]),
            ("x: buffer<f64>", "", [true, false, false]),
            ("s: f64", "", [true, false, false]),
            ("", "if true {\n%i = cvt.i32 1.5:f64\n}", [true, false, false]),
            ("x: buffer<u32, readwrite>", "%a = atomic.add.u32 x[0], 1", [false, false, false]),
            ("x: buffer<i64, readwrite>", "%a = load.i64 x[0]", [false, false, false]),
            ("x: buffer<i64, readwrite>", "loop max 2 {\n%a = atomic.add.i64 x[0], 1\n}", [false, true, false]),
            ("a: u32", "%c = tile.fma.i8 a, a, 0", [false, false, true]),
        ];
        for (params, body, needs) in cases {
            let text = format!("kernel k({params}) workgroup(32) {{\n{body}\n}}");
            let program = crate::parse(&text).unwrap();
            crate::verify(&program).unwrap();
            assert_eq!(Capability::ALL.map(|c| c.is_needed_by(&program)), needs, "{text}");
        }
    }
}
