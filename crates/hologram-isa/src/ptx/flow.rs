//! Control flow.
//!
//! A statement without subgroup operations becomes plain branches: each thread follows its own path. A statement with
//! one is *joint*: the lanes that reach it know each other as a mask. At an `if` they vote, and each branch gets the
//! mask of its lanes; after it they wait for each other. A lane that leaves a joint block by `break` or `continue`
//! records its target in `%left`, skips the rest of the block with the others' knowledge (they vote again), and is back
//! when the iteration or the loop ends. So the lanes of a mask always reach the same instruction, whatever order the
//! hardware runs them in.

use super::Printer;
use super::asm::{Label, Pred, Word, line};
use super::vector::Action;
use super::{STEP, subgroup};
use crate::Type;
use crate::joint::{is_joint, is_joint_stmt, leaves};
use crate::program::{Operand, Stmt, StmtKind};

/// An open loop.
#[derive(Clone, Copy)]
pub(super) struct OpenLoop {
    joint: bool,
    /// The targets of `break` and `continue` if the loop is not joint.
    end: Label,
    next: Label,
}

/// A loop's head, in the operands that both kinds of loop have.
struct Counter {
    var: Word,
    end: Word,
    step: Word,
    signed: bool,
    /// Whether the count may exceed the maximum.
    wraps: bool,
}

impl Printer<'_> {
    /// A block in which each thread follows its own path.
    pub(super) fn block(&mut self, block: &[Stmt]) {
        for (stmt, action) in block.iter().zip(self.facts.actions(block)) {
            match action {
                Action::Single => self.stmt(stmt),
                Action::Group(group) => self.group(&group),
                Action::Tiles(insts) => self.tiles(&insts),
                Action::Nothing => {}
            }
        }
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match &stmt.kind {
            StmtKind::Inst(inst) => self.inst(inst, stmt.line, subgroup::FULL),
            StmtKind::If { cond, then, otherwise } => {
                let cond = self.pred(*cond);
                let (other, end) = (self.asm.label(), self.asm.label());
                self.asm.branch(Some((cond, false)), other);
                self.block(then);
                if !otherwise.is_empty() {
                    self.asm.branch(None, end);
                }
                self.asm.place(other);
                self.block(otherwise);
                self.asm.place(end);
            }
            StmtKind::For { body, .. } | StmtKind::Loop { body, .. } => {
                let (head, target) = (self.asm.label(), self.open_loop(false));
                let (counter, go) = self.start(&stmt.kind, stmt.line);
                self.asm.branch(Some((go, false)), target.end);
                self.asm.place(head);
                self.block(body);
                self.asm.place(target.next);
                let go = self.advance(&counter);
                self.asm.branch(Some((go, true)), head);
                self.asm.place(target.end);
                self.loops.pop();
            }
            StmtKind::Break { depth, cond } => self.jump(*depth, *cond, true),
            StmtKind::Continue { depth, cond } => self.jump(*depth, *cond, false),
        }
    }

    /// A jump out of a plain block, and out of the joint block around it to the end of that statement.
    fn jump(&mut self, depth: u32, cond: Option<Operand>, leave: bool) {
        let cond = cond.map(|c| (self.pred(c), true));
        let level = self.loops.len() - 1 - depth as usize;
        let target = self.loops[level];
        if target.joint {
            self.note_left(level, cond, leave);
            if let Some(escape) = self.escape {
                self.asm.branch(cond, escape);
            }
        } else {
            self.asm.branch(cond, if leave { target.end } else { target.next });
        }
    }

    fn note_left(&mut self, level: usize, cond: Option<(Pred, bool)>, leave: bool) {
        let code = code(level, leave);
        match cond {
            Some((pred, _)) => line!(self.asm, "@{pred} mov.u32 %left, {code}"),
            None => line!(self.asm, "mov.u32 %left, {code}"),
        }
    }

    /// A block whose lanes are those of `whole` and stay together.
    pub(super) fn joint_block(&mut self, block: &[Stmt], whole: Word) {
        let last_joint = block.iter().rposition(is_joint_stmt);
        let (mut mask, end) = (whole, self.asm.label());
        for (i, (stmt, action)) in block.iter().zip(self.facts.actions(block)).enumerate() {
            match (action, &stmt.kind) {
                (Action::Nothing, _) => {}
                (Action::Group(group), _) => self.group(&group),
                (Action::Tiles(insts), _) => self.tiles(&insts),
                (_, StmtKind::Inst(inst)) => self.inst(inst, stmt.line, mask),
                (_, StmtKind::Break { depth, cond } | StmtKind::Continue { depth, cond }) => {
                    let cond = cond.map(|c| (self.pred(c), true));
                    let leave = matches!(stmt.kind, StmtKind::Break { .. });
                    self.note_left(self.loops.len() - 1 - *depth as usize, cond, leave);
                }
                (_, StmtKind::If { cond, then, otherwise }) if is_joint(then) || is_joint(otherwise) => {
                    self.joint_if(*cond, then, otherwise, mask);
                }
                (_, StmtKind::For { body, .. } | StmtKind::Loop { body, .. }) if is_joint(body) => {
                    self.joint_loop(stmt, body, mask);
                }
                _ => {
                    let escape = self.asm.label();
                    let outer = self.escape.replace(escape);
                    self.stmt(stmt);
                    self.escape = outer;
                    self.asm.place(escape);
                }
            }
            if leaves(&stmt.kind, 0) && i + 1 < block.len() {
                let stays = self.asm.pred();
                line!(self.asm, "setp.eq.u32 {stays}, %left, 0");
                if last_joint.is_some_and(|last| last > i) {
                    mask = self.vote(stays, mask);
                }
                self.asm.branch(Some((stays, false)), end);
            }
        }
        self.asm.place(end);
        if last_joint.is_some() {
            line!(self.asm, "bar.warp.sync {whole}");
        }
    }

    /// The lanes of a mask where `cond` holds.
    fn vote(&mut self, cond: Pred, mask: Word) -> Word {
        let dst = self.asm.word();
        line!(self.asm, "vote.sync.ballot.b32 {dst}, {cond}, {mask}");
        dst
    }

    fn joint_if(&mut self, cond: Operand, then: &[Stmt], otherwise: &[Stmt], mask: Word) {
        let cond = self.pred(cond);
        let yes = self.vote(cond, mask);
        let no = self.asm.op("not.b32", &[yes]);
        let no = self.asm.op("and.b32", &[no, mask]);
        let (other, end) = (self.asm.label(), self.asm.label());
        self.asm.branch(Some((cond, false)), other);
        self.joint_block(then, yes);
        self.asm.branch(None, end);
        self.asm.place(other);
        self.joint_block(otherwise, no);
        self.asm.place(end);
        line!(self.asm, "bar.warp.sync {mask}");
    }

    fn joint_loop(&mut self, stmt: &Stmt, body: &[Stmt], whole: Word) {
        let level = self.loops.len();
        let (head, target) = (self.asm.label(), self.open_loop(true));
        let (counter, start) = self.start(&stmt.kind, stmt.line);
        let (go, mask) = (self.asm.pred(), self.asm.op("mov.b32", &[whole]));
        line!(self.asm, "mov.pred {go}, {start}");
        self.asm.place(head);
        let round = self.vote(go, mask);
        self.asm.mov(mask, round);
        self.asm.branch(Some((go, false)), target.end);
        self.joint_block(body, mask);
        let leaves = body.iter().any(|s| leaves(&s.kind, 0));
        if leaves {
            self.back(code(level, false));
        }
        let next = self.advance(&counter);
        line!(self.asm, "mov.pred {go}, {next}");
        if leaves {
            line!(self.asm, "setp.eq.and.u32 {go}, %left, 0, {go}");
        }
        self.asm.branch(None, head);
        self.asm.place(target.end);
        if leaves {
            self.back(code(level, true));
        }
        line!(self.asm, "bar.warp.sync {whole}");
        self.loops.pop();
    }

    /// Lanes that left to here are active again.
    fn back(&mut self, code: u32) {
        let here = self.asm.pred();
        line!(self.asm, "setp.eq.u32 {here}, %left, {code}");
        line!(self.asm, "@{here} mov.u32 %left, 0");
    }

    fn open_loop(&mut self, joint: bool) -> OpenLoop {
        let open = OpenLoop { joint, end: self.asm.label(), next: self.asm.label() };
        self.loops.push(open);
        open
    }

    /// Initializes a loop's counter. Returns whether there is a first iteration.
    fn start(&mut self, kind: &StmtKind, line: u32) -> (Counter, Pred) {
        let StmtKind::For { var, start, end, step, .. } = kind else {
            let max = if let StmtKind::Loop { max, .. } = kind { *max } else { 1 };
            let var = self.asm.op("mov.b32", &[Word::Const(0)]);
            let counter = Counter { var, end: Word::Const(max), step: Word::Const(1), signed: false, wraps: false };
            let go = self.asm.compare("setp.lt.u32", var, counter.end);
            return (counter, go);
        };
        let signed = self.type_of(*start) == Type::I32;
        // The operands are read once; the body may change registers.
        let [first, end, step] = [start, end, step].map(|o| self.word(*o));
        let (end, step) = (self.asm.copy(end), self.asm.copy(step));
        let var = Word::Var(var.0);
        let first = self.asm.op("mov.b32", &[first]);
        self.asm.mov(var, first);
        let ty = if signed { "s32" } else { "u32" };
        let mut go = self.asm.compare(&format!("setp.lt.{ty}"), var, end);
        if !matches!(step, Word::Const(_)) {
            let bad =
                self.asm.compare(&format!("setp.{}.{ty}", if signed { "le" } else { "eq" }), step, Word::Const(0));
            self.fault(bad, step, STEP, line);
            let good = self.asm.not(bad);
            go = self.asm.logic("and", go, good);
        }
        (Counter { var, end, step, signed, wraps: step != Word::Const(1) }, go)
    }

    /// Advances the counter. Returns whether there is another iteration.
    fn advance(&mut self, counter: &Counter) -> Pred {
        let Counter { var, end, step, signed, wraps } = *counter;
        let ty = if signed { "s32" } else { "u32" };
        let before = if wraps { self.asm.op("mov.b32", &[var]) } else { var };
        self.asm.op_into(var, "add.u32", &[var, step]);
        let go = self.asm.compare(&format!("setp.lt.{ty}"), var, end);
        if !wraps {
            return go;
        }
        // The count ends instead of wrapping.
        let on = self.asm.compare(&format!("setp.gt.{ty}"), var, before);
        self.asm.logic("and", go, on)
    }
}

/// The value of `%left` for a lane on its way to the end (`leave`) or the next iteration of the loop at this level; 0:
/// not leaving.
fn code(level: usize, leave: bool) -> u32 {
    2 * level as u32 + if leave { 1 } else { 2 }
}
