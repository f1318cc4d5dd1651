//! Facts about a program's registers and loops that the translator needs before it writes code.
//!
//! A register is *local* when one instruction sets it and only the block of that instruction (with the blocks inside)
//! reads it. Every thread that reads it was then active when it was set, in the same round of every enclosing loop. So
//! setting it may also touch inactive lanes, and its kind follows from its operands alone:
//!
//! - uniform: the same for all threads of a workgroup; computed once, as a scalar;
//! - affine: a uniform base plus the thread's index; computed once, and a load or store at such an index moves
//!   neighbouring elements;
//! - varying: a word per lane.
//!
//! Other registers are uniform where all the values that set them are uniform and every thread of the workgroup is
//! active when they are set; else varying. A load at a uniform index is uniform, because the workgroup makes it at one
//! moment.

use hologram_isa::{Inst, Opcode, Operand, Program, Reg, SUBGROUP_SIZE, Signature, Stmt, StmtKind, Type};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Uniform,
    Affine,
    Varying,
}

impl Kind {
    fn join(self, other: Kind) -> Kind {
        if self == other { self } else { Kind::Varying }
    }
}

/// Facts about a register.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegFacts {
    pub(super) kind: Kind,
    pub(super) local: bool,
    /// For local registers and counters: the last statement that reads it, in the block that sets it.
    pub(super) last_use: usize,
    /// Whether anything reads an affine register or an [`If by comparison`](Facts::comparison) as a word per lane.
    pub(super) as_lanes: bool,
}

/// Facts about a program.
pub(super) struct Facts {
    pub(super) regs: Vec<RegFacts>,
    /// For each `for` and `loop` in text order: whether threads may leave a round of it, or the loop, at different
    /// times.
    pub(super) divergent: Vec<bool>,
    /// For a local condition that is `affine < unchanging uniform` on u32: the two operands.
    comparisons: Vec<Option<(Operand, Operand)>>,
}

impl Facts {
    pub(super) fn of(program: &Program) -> Facts {
        let registers = program.registers.len();
        let mut scopes = Scopes { defs: vec![Def::default(); registers], stack: Vec::new(), blocks: 0, loops: 0 };
        scopes.block(&program.body);
        let local = |d: &Def| RegFacts {
            kind: Kind::Uniform,
            local: !d.escapes && d.count <= 1,
            last_use: d.last_use,
            as_lanes: false,
        };
        let mut facts = Facts {
            regs: scopes.defs.iter().map(local).collect(),
            divergent: vec![false; scopes.loops],
            comparisons: vec![None; registers],
        };
        // The least solution: everything starts uniform; kinds are raised until nothing changes.
        loop {
            let mut pass = Pass {
                program,
                facts: &mut facts,
                seen: vec![false; registers],
                changed: false,
                loops: Vec::new(),
                next_loop: 0,
            };
            pass.block(&program.body, false);
            if !pass.changed {
                break;
            }
        }
        facts.find_comparisons(&program.body);
        facts.find_lane_uses(&program.body);
        facts
    }

    pub(super) fn reg(&self, reg: Reg) -> &RegFacts {
        &self.regs[reg.0 as usize]
    }

    pub(super) fn kind(&self, operand: Operand) -> Kind {
        match operand {
            Operand::Reg(reg) => self.reg(reg).kind,
            Operand::Scalar(_) | Operand::Const(..) => Kind::Uniform,
        }
    }

    /// See [`Facts::comparisons`].
    pub(super) fn comparison(&self, cond: Operand) -> Option<(Operand, Operand)> {
        match cond {
            Operand::Reg(reg) => self.comparisons[reg.0 as usize],
            _ => None,
        }
    }

    /// Whether an operand keeps one value between the setting of a local register and its read.
    fn unchanging(&self, operand: Operand) -> bool {
        match operand {
            Operand::Reg(reg) => self.reg(reg).local,
            Operand::Scalar(_) | Operand::Const(..) => true,
        }
    }

    fn find_comparisons(&mut self, block: &[Stmt]) {
        for stmt in block {
            for inner in blocks(&stmt.kind) {
                self.find_comparisons(inner);
            }
            if let StmtKind::Inst(Inst { op: Opcode::Lt, ty: Type::U32, dst: Some(dst), args, .. }) = &stmt.kind
                && let [a, b] = args[..]
                && self.reg(*dst).local
                && (self.kind(a), self.kind(b)) == (Kind::Affine, Kind::Uniform)
                && self.unchanging(b)
            {
                self.comparisons[dst.0 as usize] = Some((a, b));
            }
        }
    }

    /// Marks the registers that must exist as a word per lane.
    fn find_lane_uses(&mut self, block: &[Stmt]) {
        for stmt in block {
            match &stmt.kind {
                StmtKind::Inst(inst) => {
                    let affine_result = inst.dst.is_some_and(|d| self.reg(d).kind == Kind::Affine);
                    // Set for an `if` alone: then nothing is computed here.
                    let comparison = inst.dst.and_then(|d| self.comparisons[d.0 as usize]).is_some();
                    for (i, arg) in inst.args.iter().enumerate() {
                        let index = i == 0 && matches!(inst.op, Opcode::Load | Opcode::Store);
                        let bound = comparison && i == 0 && !inst.dst.is_some_and(|d| self.reg(d).as_lanes);
                        if !(affine_result || index || bound) {
                            self.mark_lanes(*arg);
                        }
                    }
                }
                StmtKind::If { cond, .. } => {
                    if self.comparison(*cond).is_none() {
                        self.mark_lanes(*cond);
                    }
                }
                StmtKind::For { var, start, end, step, .. } => {
                    if self.reg(*var).kind == Kind::Varying {
                        for operand in [start, end, step] {
                            self.mark_lanes(*operand);
                        }
                    }
                }
                StmtKind::Break { cond, .. } | StmtKind::Continue { cond, .. } => {
                    if let Some(cond) = cond {
                        self.mark_lanes(*cond);
                    }
                }
                StmtKind::Loop { .. } => {}
            }
            for inner in blocks(&stmt.kind) {
                self.find_lane_uses(inner);
            }
        }
    }

    fn mark_lanes(&mut self, operand: Operand) {
        if let Operand::Reg(reg) = operand {
            self.regs[reg.0 as usize].as_lanes = true;
            // A condition that is needed as lanes is computed from lanes.
            if let Some((a, _)) = self.comparisons[reg.0 as usize] {
                self.mark_lanes(a);
            }
        }
    }
}

/// The blocks inside a statement.
fn blocks(kind: &StmtKind) -> Vec<&[Stmt]> {
    match kind {
        StmtKind::If { then, otherwise, .. } => vec![then, otherwise],
        StmtKind::For { body, .. } | StmtKind::Loop { body, .. } => vec![body],
        _ => Vec::new(),
    }
}

/// The operands that a statement itself reads.
fn operands(kind: &StmtKind) -> Vec<Operand> {
    match kind {
        StmtKind::Inst(inst) => inst.args.clone(),
        StmtKind::If { cond, .. } => vec![*cond],
        StmtKind::For { start, end, step, .. } => vec![*start, *end, *step],
        StmtKind::Loop { .. } => Vec::new(),
        StmtKind::Break { cond, .. } | StmtKind::Continue { cond, .. } => cond.iter().copied().collect(),
    }
}

/// Where a register is set and read.
#[derive(Clone, Copy, Default)]
struct Def {
    count: u32,
    /// The block that sets it.
    block: usize,
    last_use: usize,
    /// Read outside that block.
    escapes: bool,
}

/// Finds local registers.
struct Scopes {
    defs: Vec<Def>,
    /// The open blocks and the current statement of each.
    stack: Vec<(usize, usize)>,
    blocks: usize,
    loops: usize,
}

impl Scopes {
    fn block(&mut self, block: &[Stmt]) {
        let id = self.blocks;
        self.blocks += 1;
        self.stack.push((id, 0));
        for (index, stmt) in block.iter().enumerate() {
            if let Some(top) = self.stack.last_mut() {
                top.1 = index;
            }
            for operand in operands(&stmt.kind) {
                if let Operand::Reg(reg) = operand {
                    self.read(reg);
                }
            }
            match &stmt.kind {
                StmtKind::Inst(Inst { dst: Some(dst), .. }) => {
                    let def = &mut self.defs[dst.0 as usize];
                    def.count += 1;
                    def.block = id;
                    def.last_use = def.last_use.max(index);
                }
                StmtKind::For { var, .. } => {
                    // A counter belongs to the loop, and only its body reads it.
                    let def = &mut self.defs[var.0 as usize];
                    def.count = 1;
                    def.block = id;
                    def.last_use = def.last_use.max(index);
                    self.loops += 1;
                }
                StmtKind::Loop { .. } => self.loops += 1,
                _ => {}
            }
            for inner in blocks(&stmt.kind) {
                self.block(inner);
            }
        }
        self.stack.pop();
    }

    fn read(&mut self, reg: Reg) {
        let def = &mut self.defs[reg.0 as usize];
        match self.stack.iter().find(|(block, _)| def.count > 0 && *block == def.block) {
            Some((_, index)) => def.last_use = def.last_use.max(*index),
            None => def.escapes = true,
        }
    }
}

fn when(uniform: bool, affine: bool) -> Kind {
    match (uniform, affine) {
        (true, _) => Kind::Uniform,
        (_, true) => Kind::Affine,
        _ => Kind::Varying,
    }
}

/// The kind of a builtin's value.
pub(super) fn builtin_kind(program: &Program, op: Opcode) -> Kind {
    let [x, y, z] = program.workgroup;
    let threads = program.workgroup_threads();
    match op {
        Opcode::ThreadX | Opcode::GlobalX => when(x == 1, y == 1 && z == 1),
        Opcode::ThreadY | Opcode::GlobalY => when(y == 1, x == 1 && z == 1),
        Opcode::ThreadZ | Opcode::GlobalZ => when(z == 1, x == 1 && y == 1),
        Opcode::Lane => when(threads == 1, threads <= SUBGROUP_SIZE),
        Opcode::Subgroup => when(threads <= SUBGROUP_SIZE, false),
        _ => Kind::Uniform,
    }
}

/// One pass over the program that raises kinds.
struct Pass<'a> {
    program: &'a Program,
    facts: &'a mut Facts,
    /// Registers that this pass has reached.
    seen: Vec<bool>,
    changed: bool,
    /// The open loops: the number of each, and whether control in it has diverged between its threads so far.
    loops: Vec<(usize, bool)>,
    next_loop: usize,
}

impl Pass<'_> {
    /// `divergent`: whether some threads of the workgroup may be inactive here.
    fn block(&mut self, block: &[Stmt], divergent: bool) {
        for stmt in block {
            match &stmt.kind {
                StmtKind::Inst(inst) => {
                    if let Some(dst) = inst.dst {
                        let kind = self.inst(inst);
                        let keeps = self.facts.reg(dst).local || (kind == Kind::Uniform && !divergent);
                        self.raise(dst, if keeps { kind } else { Kind::Varying });
                    }
                }
                StmtKind::If { cond, then, otherwise } => {
                    let splits = self.facts.kind(*cond) != Kind::Uniform;
                    let before: Vec<bool> = self.loops.iter().map(|l| l.1).collect();
                    self.loops.iter_mut().for_each(|l| l.1 |= splits);
                    self.block(then, divergent || splits);
                    self.block(otherwise, divergent || splits);
                    self.loops.iter_mut().zip(before).for_each(|(l, before)| l.1 = before);
                }
                StmtKind::For { var, start, end, step, body } => {
                    let kinds = [start, end, step].map(|o| self.facts.kind(*o));
                    let kind = match kinds {
                        [Kind::Uniform, Kind::Uniform, Kind::Uniform] => Kind::Uniform,
                        [Kind::Affine, Kind::Uniform, Kind::Uniform]
                            if self.program.registers[var.0 as usize].ty == Type::U32 =>
                        {
                            Kind::Affine
                        }
                        _ => Kind::Varying,
                    };
                    self.raise(*var, kind);
                    let splits = self.facts.reg(*var).kind != Kind::Uniform;
                    self.loop_body(body, divergent, splits);
                }
                StmtKind::Loop { body, .. } => self.loop_body(body, divergent, false),
                StmtKind::Break { depth, cond } | StmtKind::Continue { depth, cond } => {
                    let inner = self.loops.len().saturating_sub(1 + *depth as usize);
                    let splits = cond.is_some_and(|c| self.facts.kind(c) != Kind::Uniform);
                    let target = self.loops.get(inner).copied();
                    if target.is_some_and(|(_, differs)| splits || differs) {
                        for (number, _) in self.loops[inner..].iter().copied() {
                            self.changed |= !self.facts.divergent[number];
                            self.facts.divergent[number] = true;
                        }
                    }
                }
            }
        }
    }

    fn loop_body(&mut self, body: &[Stmt], divergent: bool, splits: bool) {
        let number = self.next_loop;
        self.next_loop += 1;
        self.facts.divergent[number] |= splits;
        let splits = self.facts.divergent[number];
        let before: Vec<bool> = self.loops.iter().map(|l| l.1).collect();
        self.loops.iter_mut().for_each(|l| l.1 |= splits);
        self.loops.push((number, splits));
        self.block(body, divergent || splits);
        self.loops.pop();
        self.loops.iter_mut().zip(before).for_each(|(l, before)| l.1 = before);
    }

    fn raise(&mut self, reg: Reg, kind: Kind) {
        let index = reg.0 as usize;
        let first = !std::mem::replace(&mut self.seen[index], true);
        let facts = &mut self.facts.regs[index];
        // The first setting decides alone until a pass has found a greater kind; so a register set once may become
        // affine.
        let kind = if first && facts.kind == Kind::Uniform { kind } else { facts.kind.join(kind) };
        self.changed |= facts.kind != kind;
        facts.kind = kind;
    }

    /// The kind of an instruction's result.
    fn inst(&self, inst: &Inst) -> Kind {
        use Opcode as O;
        let kinds: Vec<Kind> = inst.args.iter().map(|a| self.facts.kind(*a)).collect();
        let uniform = kinds.iter().all(|k| *k == Kind::Uniform);
        match inst.op {
            O::Add if matches!(inst.ty, Type::I32 | Type::U32) => {
                let affine = matches!(kinds[..], [Kind::Affine, Kind::Uniform] | [Kind::Uniform, Kind::Affine]);
                when(uniform, affine)
            }
            O::Sub if matches!(inst.ty, Type::I32 | Type::U32) => {
                when(uniform, kinds[..] == [Kind::Affine, Kind::Uniform])
            }
            O::Mov => when(uniform, kinds[..] == [Kind::Affine]),
            O::Cvt | O::Bitcast if matches!(inst.ty, Type::I32 | Type::U32) => {
                when(uniform, kinds[..] == [Kind::Affine])
            }
            _ => match inst.op.info().signature {
                Signature::Builtin => builtin_kind(self.program, inst.op),
                Signature::Reduce | Signature::Shuffle | Signature::Tile => Kind::Varying,
                Signature::Atomic | Signature::Exchange => Kind::Varying,
                _ if inst.op == O::Broadcast => Kind::Varying,
                _ => when(uniform, false),
            },
        }
    }
}
