//! Prints programs.

use std::fmt::Write;

use super::{FAST, constant};
use crate::Type;
use crate::program::*;

/// Columns above which each parameter gets its own line.
const WIDTH: usize = 120;

/// The program as text. [`parse()`](crate::parse) reads a verified program back unchanged.
pub fn print(program: &Program) -> String {
    Printer::run(program).out
}

/// Sets the line of every statement to its line in the text of [`print()`].
pub fn number_lines(program: &mut Program) {
    fn set(block: &mut [Stmt], lines: &mut impl Iterator<Item = u32>) {
        for stmt in block {
            stmt.line = lines.next().unwrap_or_default();
            match &mut stmt.kind {
                StmtKind::If { then, otherwise, .. } => {
                    set(then, lines);
                    set(otherwise, lines);
                }
                StmtKind::For { body, .. } | StmtKind::Loop { body, .. } => set(body, lines),
                StmtKind::Inst(_) | StmtKind::Break { .. } | StmtKind::Continue { .. } => {}
            }
        }
    }
    let mut lines = statement_lines(program).into_iter();
    set(&mut program.body, &mut lines);
}

/// The line of each statement in the text of [`print()`], outer before inner, in text order.
pub(crate) fn statement_lines(program: &Program) -> Vec<u32> {
    Printer::run(program).lines
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&print(self))
    }
}

impl Program {
    /// A hash (FNV-1a, 128 bits) of the text of [`print()`]. It is the same for equal programs in every process, and in
    /// every release that prints them alike. It keys pipeline caches and does not resist attackers.
    pub fn text_hash(&self) -> u128 {
        print(self).bytes().fold(0x6c62272e07bb014262b821756295c58d, |hash: u128, byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0000000001000000000000000000013b)
        })
    }
}

struct Printer<'a> {
    program: &'a Program,
    out: String,
    /// The current line, 1-based.
    line: u32,
    /// Line of each statement so far.
    lines: Vec<u32>,
    indent: usize,
    /// Per open loop, whether a `break` or `continue` names it.
    loops: Vec<bool>,
}

impl<'a> Printer<'a> {
    fn run(program: &'a Program) -> Printer<'a> {
        let mut p = Printer { program, out: String::new(), line: 1, lines: Vec::new(), indent: 0, loops: Vec::new() };
        p.header();
        p.block(&program.body);
        p.end_line("}");
        p
    }

    fn header(&mut self) {
        let program = self.program;
        let [x, y, z] = program.workgroup;
        let sizes = match (y, z) {
            (1, 1) => format!("{x}"),
            (_, 1) => format!("{x}, {y}"),
            _ => format!("{x}, {y}, {z}"),
        };
        let params: Vec<String> = program.params.iter().map(param).collect();
        let mut tail = format!(") workgroup({sizes})");
        if !program.shared.is_empty() {
            let arrays: Vec<_> =
                program.shared.iter().map(|a| format!("{}: {}[{}]", a.name, a.element, a.len)).collect();
            let _ = write!(tail, " shared({})", arrays.join(", "));
        }
        if !Declared::in_order(program) {
            let registers: Vec<_> = program.registers.iter().map(|r| format!("%{}: {}", r.name, r.ty)).collect();
            let _ = write!(tail, " registers({})", registers.join(", "));
        }
        tail += " {";
        let one_line = format!("kernel {}({}{tail}", program.name, params.join(", "));
        if one_line.len() <= WIDTH || params.is_empty() {
            self.end_line(&one_line);
        } else {
            self.end_line(&format!("kernel {}(", program.name));
            for param in params {
                self.end_line(&format!("  {param},"));
            }
            self.end_line(&tail);
        }
    }

    fn block(&mut self, block: &[Stmt]) {
        self.indent += 1;
        for stmt in block {
            self.lines.push(self.line);
            self.stmt(&stmt.kind);
        }
        self.indent -= 1;
    }

    fn stmt(&mut self, kind: &StmtKind) {
        match kind {
            StmtKind::Inst(inst) => {
                let text = self.inst(inst);
                self.end_line(&text);
            }
            StmtKind::If { cond, then, otherwise } => {
                let cond = self.operand(*cond, Some(Type::Bool));
                self.end_line(&format!("if {cond} {{"));
                self.block(then);
                if !otherwise.is_empty() {
                    self.end_line("} else {");
                    self.block(otherwise);
                }
                self.end_line("}");
            }
            StmtKind::For { var, start, end, step, body } => {
                let ty = self.program.registers.get(var.0 as usize).map_or(Type::U32, |r| r.ty);
                let [start, end, step] = [start, end, step].map(|o| self.operand(*o, Some(ty)));
                let label = self.label(body);
                let var = self.register(*var);
                self.end_line(&format!("for {label}{var}: {ty} = {start} to {end} step {step} {{"));
                self.loop_body(body);
            }
            StmtKind::Loop { max, body } => {
                let label = self.label(body);
                self.end_line(&format!("loop {label}max {max} {{"));
                self.loop_body(body);
            }
            StmtKind::Break { depth, cond } => self.jump("break", *depth, *cond),
            StmtKind::Continue { depth, cond } => self.jump("continue", *depth, *cond),
        }
    }

    fn loop_body(&mut self, body: &[Stmt]) {
        self.loops.push(true);
        self.block(body);
        self.loops.pop();
        self.end_line("}");
    }

    /// `@loopN ` for a loop inside N others if a jump from an inner loop names it, else nothing.
    fn label(&self, body: &[Stmt]) -> String {
        if named_from_inside(body, 0) { format!("@loop{} ", self.loops.len()) } else { String::new() }
    }

    fn jump(&mut self, word: &str, depth: u32, cond: Option<Operand>) {
        let mut text = word.to_string();
        if depth > 0 {
            let level = self.loops.len() as i64 - 1 - i64::from(depth);
            let _ = write!(text, " @loop{level}");
        }
        if let Some(cond) = cond {
            let _ = write!(text, " if {}", self.operand(cond, Some(Type::Bool)));
        }
        self.end_line(&text);
    }

    fn inst(&self, inst: &Inst) -> String {
        let info = inst.op.info();
        let mut text = String::new();
        if let Some(dst) = inst.dst {
            let _ = write!(text, "{} = ", self.register(dst));
        }
        text += info.mnemonic;
        if inst.fast {
            text += FAST;
        }
        if info.signature.carries_type() {
            let _ = write!(text, ".{}", inst.ty);
        }
        let rules = info.signature.operands();
        for (i, arg) in inst.args.iter().enumerate() {
            let ty = rules.get(i).and_then(|r| r.resolve(inst.ty));
            let arg = self.operand(*arg, ty);
            let _ = match inst.memory {
                Some(memory) if i == 0 => write!(text, " {}[{arg}]", self.memory(memory)),
                _ => write!(text, "{} {arg}", if i == 0 { "" } else { "," }),
            };
        }
        text
    }

    fn operand(&self, operand: Operand, position: Option<Type>) -> String {
        match operand {
            Operand::Reg(reg) => self.register(reg),
            Operand::Scalar(i) => self.program.params.get(i as usize).map_or("?".into(), |p| p.name.clone()),
            Operand::Const(ty, word) if position == Some(ty) => constant::format(ty, word),
            Operand::Const(ty, word) => format!("{}:{ty}", constant::format(ty, word)),
        }
    }

    fn register(&self, reg: Reg) -> String {
        self.program.registers.get(reg.0 as usize).map_or("%?".into(), |r| format!("%{}", r.name))
    }

    fn memory(&self, memory: Memory) -> &str {
        match memory {
            Memory::Param(i) => self.program.params.get(i as usize).map_or("?", |p| &p.name),
            Memory::Shared(i) => self.program.shared.get(i as usize).map_or("?", |a| &a.name),
        }
    }

    fn end_line(&mut self, text: &str) {
        for _ in 0..self.indent {
            self.out += "  ";
        }
        self.out += text;
        self.out.push('\n');
        self.line += 1;
    }
}

fn param(param: &Param) -> String {
    let name = &param.name;
    match param.kind {
        ParamKind::Scalar(ty) => format!("{name}: {ty}"),
        ParamKind::Buffer { element, access: Access::Read } => format!("{name}: buffer<{element}>"),
        ParamKind::Buffer { element, access: Access::Write } => format!("{name}: buffer<{element}, write>"),
        ParamKind::Buffer { element, access: Access::ReadWrite } => format!("{name}: buffer<{element}, readwrite>"),
    }
}

/// Whether a jump inside `block`, which is inside `inner` loops of the loop in question, names that loop from within
/// another.
fn named_from_inside(block: &[Stmt], inner: u32) -> bool {
    block.iter().any(|stmt| match &stmt.kind {
        StmtKind::Break { depth, .. } | StmtKind::Continue { depth, .. } => *depth > 0 && *depth == inner,
        StmtKind::If { then, otherwise, .. } => named_from_inside(then, inner) || named_from_inside(otherwise, inner),
        StmtKind::For { body, .. } | StmtKind::Loop { body, .. } => named_from_inside(body, inner + 1),
        StmtKind::Inst(_) => false,
    })
}

/// Follows the parser's rule for declaring registers: in order of first assignment, with the assigned type.
struct Declared<'a> {
    program: &'a Program,
    count: usize,
}

impl Declared<'_> {
    /// Whether the rule reproduces the program's register table.
    fn in_order(program: &Program) -> bool {
        let mut declared = Declared { program, count: 0 };
        declared.block(&program.body) && declared.count == program.registers.len()
    }

    fn block(&mut self, block: &[Stmt]) -> bool {
        block.iter().all(|stmt| match &stmt.kind {
            StmtKind::Inst(inst) => {
                let result = inst.op.info().signature.result(inst.ty);
                inst.args.iter().all(|a| self.uses(*a))
                    && inst.dst.is_none_or(|dst| result.is_some_and(|ty| self.defines(dst, ty)))
            }
            StmtKind::If { cond, then, otherwise } => self.uses(*cond) && self.block(then) && self.block(otherwise),
            StmtKind::For { var, start, end, step, body } => {
                let ty = self.program.registers.get(var.0 as usize).map_or(Type::U32, |r| r.ty);
                [start, end, step].iter().all(|o| self.uses(**o)) && self.defines(*var, ty) && self.block(body)
            }
            StmtKind::Loop { body, .. } => self.block(body),
            StmtKind::Break { cond, .. } | StmtKind::Continue { cond, .. } => cond.is_none_or(|c| self.uses(c)),
        })
    }

    fn uses(&self, operand: Operand) -> bool {
        !matches!(operand, Operand::Reg(reg) if reg.0 as usize >= self.count)
    }

    fn defines(&mut self, reg: Reg, ty: Type) -> bool {
        let index = reg.0 as usize;
        if index == self.count {
            self.count += 1;
        }
        index < self.count && self.program.registers.get(index).is_some_and(|r| r.ty == ty)
    }
}
