//! Control flow.
//!
//! A statement without subgroup operations is printed directly: each thread follows its own path. A statement with one
//! is *joint*: all lanes of a subgroup walk through it together, each with a `bool` that says whether it is active.
//! Plain statements inside are guarded by an `if`. A lane that leaves a joint block by `break` or `continue` records
//! its target in `left`, becomes inactive, and is active again when the iteration or the loop ends. So every lane
//! reaches every subgroup operation, whatever order the hardware runs them in.
//!
//! The language cannot jump out of several loops: a `break` or `continue` of an outer one also records its target in
//! `left`, and each loop in between ends.

use super::{Printer, STEP, line, register_type};
use crate::joint::{inner, is_joint, is_joint_stmt, is_subgroup, leaves};
use crate::program::{Operand, Stmt, StmtKind};
use crate::{Opcode, Type};

/// An open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A loop of the text, reached by `break` and `continue`.
    Plain,
    Joint,
}

/// The numbers of a loop, as names in the text.
struct Counter {
    ty: &'static str,
    now: String,
    end: String,
    step: String,
}

impl Counter {
    /// Whether there is another iteration, before [`Counter::next`]. The count ends instead of wrapping.
    fn more(&self) -> String {
        format!("uint({}) < uint({}) - uint({})", self.step, self.end, self.now)
    }

    fn next(&self) -> String {
        format!("{} = {}(uint({}) + uint({}))", self.now, self.ty, self.now, self.step)
    }
}

impl Printer<'_> {
    /// The whole body.
    pub(super) fn body(&mut self, block: &[Stmt]) {
        if is_joint(block) { self.joint_block(block, None) } else { self.block(block) }
    }

    /// A block in which each thread follows its own path.
    fn block(&mut self, block: &[Stmt]) {
        for stmt in block {
            self.stmt(stmt);
        }
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match &stmt.kind {
            StmtKind::Inst(inst) => self.inst(inst, stmt.line),
            StmtKind::If { cond, then, otherwise } => {
                let cond = self.value(*cond);
                self.open(format_args!("if ({cond})"));
                self.block(then);
                self.close();
                if !otherwise.is_empty() {
                    self.open(format_args!("else"));
                    self.block(otherwise);
                    self.close();
                }
            }
            StmtKind::For { .. } | StmtKind::Loop { .. } => {
                self.plain_loop(stmt);
                self.go_on_leaving(&stmt.kind);
            }
            StmtKind::Break { depth, cond } => self.jump(*depth, *cond, true),
            StmtKind::Continue { depth, cond } => self.jump(*depth, *cond, false),
        }
    }

    fn plain_loop(&mut self, stmt: &Stmt) {
        let body = inner(&stmt.kind).next().unwrap_or(&[]);
        match &stmt.kind {
            StmtKind::For { var, start, end, step, .. } => {
                let ty = register_type(self.type_of(*start));
                let (now, last) = (self.name("c"), self.name("e"));
                let values = [start, end, step].map(|o| self.value(*o));
                line!(self, "const {ty} {last} = {};", values[1]);
                if matches!(step, Operand::Const(_, 1)) {
                    self.open(format_args!("for ({ty} {now} = {}; {now} < {last}; ++{now})", values[0]));
                } else {
                    let (by, go) = (self.name("by"), self.name("g"));
                    line!(self, "const {ty} {by} = {};", values[2]);
                    line!(self, "{ty} {now} = {};", values[0]);
                    let good = self.checked_step(*step, &by, stmt.line);
                    line!(self, "bool {go} = {now} < {last}{good};");
                    let counter = Counter { ty, now: now.clone(), end: last, step: by };
                    self.open(format_args!("for (; {go}; {go} = {}, {})", counter.more(), counter.next()));
                }
                line!(self, "v{} = {now};", var.0);
            }
            StmtKind::Loop { max, .. } => {
                let now = self.name("c");
                self.open(format_args!("for (uint {now} = 0u; {now} < {max}u; ++{now})"));
            }
            _ => return,
        }
        self.loops.push(Frame::Plain);
        self.block(body);
        self.loops.pop();
        self.close();
    }

    /// Records the fault of a step that may not be positive. Returns the additional condition of the first iteration.
    fn checked_step(&mut self, step: Operand, by: &str, line: u32) -> String {
        if matches!(step, Operand::Const(..)) {
            // Checked by the verifier.
            return String::new();
        }
        let fault = self.fault(line, STEP, &format!("uint({by})"));
        line!(self, "if ({by} <= 0) {fault}");
        format!(" && {by} > 0")
    }

    /// A jump of a plain statement.
    fn jump(&mut self, depth: u32, cond: Option<Operand>, leave: bool) {
        let level = self.loops.len() - 1 - depth as usize;
        let word = if leave { "break" } else { "continue" };
        let action = if depth == 0 && self.loops[level] == Frame::Plain {
            format!("{word};")
        } else {
            self.leaves = true;
            format!("{{ left = {}u; break; }}", code(level, leave))
        };
        match cond.map(|c| self.value(c)) {
            Some(cond) => line!(self, "if ({cond}) {action}"),
            // Conditional, so that following statements remain reachable.
            None => line!(self, "if (true) {action}"),
        }
    }

    /// After a plain loop that threads may leave together with an outer one: continues leaving.
    fn go_on_leaving(&mut self, kind: &StmtKind) {
        if !leaves(kind, 0) {
            return;
        }
        if self.loops.last() == Some(&Frame::Plain) {
            let level = self.loops.len() - 1;
            line!(self, "if (left == {}u) {{ left = 0u; break; }}", code(level, true));
            line!(self, "if (left == {}u) {{ left = 0u; continue; }}", code(level, false));
        }
        line!(self, "if (left != 0u) break;");
    }

    /// A block that all lanes walk through. Lanes are active where the variable `active`, which may change, is true;
    /// without it, all are.
    fn joint_block(&mut self, block: &[Stmt], active: Option<&str>) {
        let mut open = false;
        for stmt in block {
            let together = match &stmt.kind {
                StmtKind::Inst(inst) => is_subgroup(inst.op) || matches!(inst.op, Opcode::Barrier | Opcode::TileFma),
                _ => is_joint_stmt(stmt),
            };
            if let Some(active) = active
                && open == together
            {
                if together {
                    self.close()
                } else {
                    self.open(format_args!("if ({active})"))
                }
                open = !together;
            }
            match &stmt.kind {
                StmtKind::Inst(inst) if is_subgroup(inst.op) => self.subgroup(inst, active),
                StmtKind::If { cond, then, otherwise } if together => self.joint_if(*cond, then, otherwise, active),
                StmtKind::For { .. } | StmtKind::Loop { .. } if together => self.joint_loop(stmt, active),
                StmtKind::Break { depth, cond } | StmtKind::Continue { depth, cond } => {
                    let leave = matches!(stmt.kind, StmtKind::Break { .. });
                    let code = code(self.loops.len() - 1 - *depth as usize, leave);
                    let cond = cond.map_or("true".into(), |c| self.value(c));
                    self.leaves = true;
                    line!(self, "if ({cond}) left = {code}u;");
                }
                kind if leaves(kind, 0) => {
                    self.open(format_args!("do"));
                    self.stmt(stmt);
                    self.depth -= 1;
                    line!(self, "}} while (false);");
                }
                _ => self.stmt(stmt),
            }
            if leaves(&stmt.kind, 0)
                && let Some(active) = active
            {
                if open {
                    self.close();
                    open = false;
                }
                line!(self, "{active} = {active} && left == 0u;");
            }
        }
        if open {
            self.close();
        }
    }

    fn joint_if(&mut self, cond: Operand, then: &[Stmt], otherwise: &[Stmt], active: Option<&str>) {
        let cond = self.value(cond);
        let all = active.map_or(String::new(), |a| format!("{a} && "));
        let (yes, no) = (self.name("m"), self.name("m"));
        line!(self, "bool {yes} = {all}{cond};");
        if !otherwise.is_empty() {
            line!(self, "bool {no} = {all}!{cond};");
        }
        for (block, mask) in [(then, &yes), (otherwise, &no)] {
            if !block.is_empty() {
                self.open(format_args!("if (simd_any({mask}))"));
                self.joint_block(block, Some(mask));
                self.close();
            }
        }
    }

    fn joint_loop(&mut self, stmt: &Stmt, active: Option<&str>) {
        let level = self.loops.len();
        let body = inner(&stmt.kind).next().unwrap_or(&[]);
        let (go, round) = (self.name("g"), self.name("m"));
        let (now, end, step) = (self.name("c"), self.name("e"), self.name("by"));
        line!(self, "bool {go} = {};", active.unwrap_or("true"));
        let (counter, var) = if let StmtKind::For { var, start, end: last, step: by, .. } = &stmt.kind {
            let ty = register_type(self.type_of(*start));
            let values = [start, last, by].map(|o| self.value(*o));
            line!(self, "{ty} {now} = 0, {end} = 0, {step} = 1;");
            self.open(format_args!("if ({go})"));
            line!(self, "{now} = {}; {end} = {}; {step} = {};", values[0], values[1], values[2]);
            let good = self.checked_step(*by, &step, stmt.line);
            line!(self, "{go} = {now} < {end}{good};");
            self.close();
            (Counter { ty, now, end, step }, Some(var))
        } else {
            let max = if let StmtKind::Loop { max, .. } = &stmt.kind { *max } else { 1 };
            line!(self, "uint {now} = 0u, {end} = {max}u, {step} = 1u;");
            (Counter { ty: register_type(Type::U32), now, end, step }, None)
        };
        self.open(format_args!("while (simd_any({go}))"));
        line!(self, "bool {round} = {go};");
        if let Some(var) = var {
            line!(self, "if ({go}) v{} = {};", var.0, counter.now);
        }
        self.loops.push(Frame::Joint);
        self.joint_block(body, Some(&round));
        self.loops.pop();
        let leaves = body.iter().any(|s| leaves(&s.kind, 0));
        if leaves {
            line!(self, "if (left == {}u) left = 0u;", code(level, false));
        }
        let stays = if leaves { "left == 0u && " } else { "" };
        line!(self, "if ({go}) {{ {go} = {stays}{}; {}; }}", counter.more(), counter.next());
        self.close();
        if leaves {
            line!(self, "if (left == {}u) left = 0u;", code(level, true));
        }
    }
}

/// The value of `left` for a thread on its way to the end (`leave`) or the next iteration of the loop at this level; 0:
/// not leaving.
fn code(level: usize, leave: bool) -> u32 {
    2 * level as u32 + if leave { 1 } else { 2 }
}
