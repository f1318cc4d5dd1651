//! Finds loads and stores of four adjacent elements that one instruction can move.
//!
//! Consider a register that only one instruction of the program sets. Wherever it may be read, it has the value that
//! this instruction computes from its operands' current values, if each of these is such a register too or a constant.
//! So facts about it hold everywhere: that it is another register plus a constant, and how many of its low bits are 0.

use std::collections::HashMap;

use crate::program::{Inst, Memory, Operand, Program, Reg, Stmt, StmtKind};
use crate::{Opcode, Type};

/// Elements per vector.
const WIDTH: u32 = 4;

/// Known facts about a `u32` or `i32`: `root + offset`, where at least `zeros` low bits of the root are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    /// `None` for a constant.
    root: Option<Reg>,
    offset: u32,
    zeros: u32,
}

impl Value {
    /// Number of low bits of the value that are 0.
    fn low_zeros(self) -> u32 {
        self.zeros.min(self.offset.trailing_zeros())
    }
}

/// Known facts about a program's registers.
pub(super) struct Facts {
    /// Number of instructions and loops that set each register.
    sets: Vec<u32>,
    values: Vec<Option<Value>>,
}

/// Loads or stores that become one instruction: in the order of their elements, with their lines.
pub(super) struct Group<'a> {
    pub(super) memory: Memory,
    pub(super) ty: Type,
    /// The index of an element that is known where the group is printed, and its distance from the first element.
    pub(super) index: (Operand, u32),
    pub(super) insts: Vec<(&'a Inst, u32)>,
}

/// How a statement is printed.
pub(super) enum Action<'a> {
    /// Unchanged.
    Single,
    /// Replaced by a group.
    Group(Group<'a>),
    /// Replaced by two products of tiles with the same right tile.
    Tiles([&'a Inst; 2]),
    /// Not at all: it is part of a group printed elsewhere.
    Nothing,
}

impl Facts {
    pub(super) fn of(program: &Program) -> Facts {
        let registers = program.registers.len();
        let mut facts = Facts { sets: vec![0; registers], values: vec![None; registers] };
        facts.count(&program.body);
        facts.learn(&program.body);
        facts
    }

    fn count(&mut self, block: &[Stmt]) {
        for stmt in block {
            match &stmt.kind {
                StmtKind::Inst(Inst { dst: Some(dst), .. }) => self.sets[dst.0 as usize] += 1,
                StmtKind::For { var, .. } => self.sets[var.0 as usize] += 1,
                _ => {}
            }
            crate::joint::inner(&stmt.kind).for_each(|block| self.count(block));
        }
    }

    fn learn(&mut self, block: &[Stmt]) {
        for stmt in block {
            match &stmt.kind {
                StmtKind::Inst(inst) => {
                    if let Some(dst) = inst.dst
                        && self.once(dst)
                    {
                        self.values[dst.0 as usize] = Some(self.result(inst, dst));
                    }
                }
                StmtKind::For { var, start, step, .. } if self.once(*var) => {
                    let zeros = |operand| self.value(operand).map_or(0, Value::low_zeros);
                    let zeros = zeros(*start).min(zeros(*step));
                    self.values[var.0 as usize] = Some(Value { root: Some(*var), offset: 0, zeros });
                }
                _ => {}
            }
            crate::joint::inner(&stmt.kind).for_each(|block| self.learn(block));
        }
    }

    fn once(&self, reg: Reg) -> bool {
        self.sets[reg.0 as usize] == 1
    }

    fn value(&self, operand: Operand) -> Option<Value> {
        match operand {
            Operand::Const(_, word) => Some(Value { root: None, offset: word as u32, zeros: 32 }),
            Operand::Reg(reg) => self.values[reg.0 as usize],
            Operand::Scalar(_) => None,
        }
    }

    fn result(&self, inst: &Inst, dst: Reg) -> Value {
        let own = |zeros| Value { root: Some(dst), offset: 0, zeros };
        if !matches!(inst.ty, Type::U32 | Type::I32) {
            return own(0);
        }
        let args: Vec<Option<Value>> = inst.args.iter().map(|a| self.value(*a)).collect();
        let zeros = |i: usize| args.get(i).copied().flatten().map_or(0, Value::low_zeros);
        match (inst.op, &args[..]) {
            (Opcode::Mov, [Some(a)]) => *a,
            (Opcode::Add, [Some(a), Some(b)]) if a.root.is_none() || b.root.is_none() => {
                Value { root: a.root.or(b.root), offset: a.offset.wrapping_add(b.offset), zeros: a.zeros.min(b.zeros) }
            }
            (Opcode::Sub, [Some(a), Some(Value { root: None, offset, .. })]) => {
                Value { offset: a.offset.wrapping_sub(*offset), ..*a }
            }
            (Opcode::Add | Opcode::Sub | Opcode::Or | Opcode::Xor | Opcode::Rem, _) => own(zeros(0).min(zeros(1))),
            (Opcode::Mul, _) => own((zeros(0) + zeros(1)).min(32)),
            (Opcode::And, _) => own(zeros(0).max(zeros(1))),
            (Opcode::Shl, [_, Some(Value { root: None, offset, .. })]) => own((zeros(0) + offset.min(&32)).min(32)),
            _ => own(0),
        }
    }

    /// Whether an operand keeps its value within a run of statements.
    fn unchanging(&self, operand: Operand) -> bool {
        !matches!(operand, Operand::Reg(reg) if !self.once(reg))
    }

    /// How to print each statement of a block.
    pub(super) fn actions<'a>(&self, block: &'a [Stmt]) -> Vec<Action<'a>> {
        let mut actions: Vec<Action<'_>> = block.iter().map(|_| Action::Single).collect();
        // Adjacent accesses since the last other access to memory, by the first of the four elements.
        let mut open: HashMap<(Memory, bool, Option<Reg>, u32), Vec<usize>> = HashMap::new();
        for (at, stmt) in block.iter().enumerate() {
            let StmtKind::Inst(inst) = &stmt.kind else {
                open.clear();
                continue;
            };
            if matches!(actions[at], Action::Single)
                && let Some(Stmt { kind: StmtKind::Inst(next), .. }) = block.get(at + 1)
                && are_pair(inst, next)
            {
                actions[at] = Action::Tiles([inst, next]);
                actions[at + 1] = Action::Nothing;
            }
            let load = match inst.op {
                Opcode::Load => true,
                Opcode::Store => false,
                _ if inst.op == Opcode::Barrier || inst.memory.is_some() => {
                    open.clear();
                    continue;
                }
                _ => continue,
            };
            // Loads move up to the first of their group, stores down to the last. Buffers may overlap, so no load moves
            // across a store, and no store across a load or a store of another group.
            let Some(key) = self.key(inst, load) else {
                open.retain(|k, _| load && k.1);
                continue;
            };
            open.retain(|k, _| if load { k.1 } else { *k == key });
            let members = open.entry(key).or_default();
            members.push(at);
            if members.len() == WIDTH as usize {
                let members = open.remove(&key).unwrap_or_default();
                self.close(block, members, load, &mut actions);
            }
        }
        actions
    }

    /// The group that an access may belong to.
    fn key(&self, inst: &Inst, load: bool) -> Option<(Memory, bool, Option<Reg>, u32)> {
        let (memory @ Memory::Param(_), index) = (inst.memory?, *inst.args.first()?) else { return None };
        // No instruction moves more than 16 bytes.
        if inst.ty.is_wide() {
            return None;
        }
        let movable = match inst.dst {
            Some(dst) => self.once(dst),
            None => inst.args.iter().all(|a| self.unchanging(*a)),
        };
        let value = self.value(index).filter(|v| v.zeros >= WIDTH.trailing_zeros() && movable)?;
        Some((memory, load, value.root, value.offset & !(WIDTH - 1)))
    }

    fn close<'a>(&self, block: &'a [Stmt], members: Vec<usize>, load: bool, actions: &mut [Action<'a>]) {
        let Some(at) = (if load { members.first() } else { members.last() }).copied() else { return };
        let offset = |inst: &Inst| inst.args.first().and_then(|i| self.value(*i)).map_or(0, |v| v.offset % WIDTH);
        let StmtKind::Inst(here) = &block[at].kind else { return };
        let mut insts: Vec<(&Inst, u32)> = members
            .iter()
            .filter_map(
                |m| if let StmtKind::Inst(inst) = &block[*m].kind { Some((inst, block[*m].line)) } else { None },
            )
            .collect();
        insts.sort_by_key(|(inst, _)| offset(inst));
        // Each element once.
        let Some((first, _)) = insts.first().copied() else { return };
        let (Some(memory), ty) = (first.memory, first.ty) else { return };
        if insts.iter().enumerate().any(|(i, (inst, _))| offset(inst) != i as u32) {
            return;
        }
        for member in members {
            actions[member] = Action::Nothing;
        }
        actions[at] = Action::Group(Group { memory, ty, index: (here.args[0], offset(here)), insts });
    }
}

/// Whether one device instruction can compute two adjacent products of tiles.
fn are_pair(first: &Inst, second: &Inst) -> bool {
    let by = |inst: &Inst| inst.args.get(1).copied();
    let reads = |reg| second.args.contains(&Operand::Reg(reg));
    (first.op, second.op) == (Opcode::TileFma, Opcode::TileFma)
        && (first.ty, by(first)) == (second.ty, by(second))
        && first.dst.is_some_and(|dst| Some(dst) != second.dst && !reads(dst))
}
