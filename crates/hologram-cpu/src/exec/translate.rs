//! Translates a verified program into decoded instructions.

use std::collections::HashMap;

use hologram_isa::{
    Inst, MAX_NESTING, Memory, Opcode, Operand, ParamKind, Program, Reg, SUBGROUP_SIZE, Signature, Stmt, StmtKind,
    Type, number_lines,
};

use super::atomic::update;
use super::code::*;
use super::facts::{Facts, Kind};
use super::lanes::{Forms, forms};
use super::level::Level;
use super::masks::Masks;
use super::memory::moves;
use crate::features::Features;

/// Masks that a nested block needs at most: those of a loop, or of both branches.
const MASKS_A_LEVEL: usize = 2;

/// The most masks of a program.
pub(super) const MAX_MASKS: usize = 1 + MASKS_A_LEVEL * (MAX_NESTING + 1);

/// Translates a program that the verifier has passed.
pub(crate) fn translate(program: &Program, features: Features) -> Code {
    // Faults name a line. A program built in memory has the lines of its printed text.
    let mut numbered = program.clone();
    if program.body.first().is_some_and(|s| s.line == 0) {
        number_lines(&mut numbered);
    }
    let level = Level::of(features);
    let threads = program.workgroup_threads() as usize;
    let registers = program.registers.len() as u32;
    let params = program.params.len() as u32;
    let constants = count_constants(&program.body) + 4;
    // Two words per uniform value.
    let uniform_words = (FIRST_PLACE + 2 * (params + registers + constants)).next_multiple_of(16);
    let mut t = Translator {
        program,
        level,
        facts: Facts::of(program),
        lanes: threads.next_multiple_of(SUBGROUP_SIZE as usize),
        first_register: FIRST_PLACE + 2 * params,
        next_constant: FIRST_PLACE + 2 * (params + registers),
        constants: HashMap::new(),
        lane_base: uniform_words,
        lane_registers: 0,
        free: Vec::new(),
        free_wide: Vec::new(),
        place: vec![None; program.registers.len()],
        builtins: Vec::new(),
        temporary: [0; 4],
        spare: 0,
        loops: Vec::new(),
        next_loop: 0,
        mask_count: 1,
        arrays: arrays(program),
    };
    // They hold values of both widths.
    t.temporary = [(); 4].map(|()| t.new_lanes(true));
    t.spare = t.new_lanes(false);
    let body = t.block(&numbered.body, 0);
    t.finish(body)
}

fn count_constants(block: &[Stmt]) -> u32 {
    let constant = |operand: &Operand| matches!(operand, Operand::Const(..)) as u32;
    block
        .iter()
        .map(|stmt| match &stmt.kind {
            StmtKind::Inst(inst) => inst.args.iter().map(constant).sum(),
            StmtKind::If { cond, then, otherwise } => {
                constant(cond) + count_constants(then) + count_constants(otherwise)
            }
            StmtKind::For { start, end, step, body, .. } => {
                constant(start) + constant(end) + constant(step) + count_constants(body)
            }
            StmtKind::Loop { body, .. } => count_constants(body),
            StmtKind::Break { cond, .. } | StmtKind::Continue { cond, .. } => cond.iter().map(constant).sum(),
        })
        .sum()
}

/// The arrays by number. Shared arrays get their places after all registers have theirs.
fn arrays(program: &Program) -> Vec<Array> {
    let mut slices = 0;
    let params = program.params.iter().map(|p| match p.kind {
        ParamKind::Buffer { element, .. } => {
            slices += 1;
            Array { name: p.name.clone(), kind: ArrayKind::Buffer { slice: slices - 1, size: element.size() } }
        }
        ParamKind::Scalar(_) => Array { name: p.name.clone(), kind: ArrayKind::Scalar },
    });
    let mut arrays: Vec<Array> = params.collect();
    arrays.extend(program.shared.iter().map(|s| {
        let kind = ArrayKind::Shared { place: 0, len: s.len as usize };
        Array { name: s.name.clone(), kind }
    }));
    arrays
}

/// An open loop. When it is divergent: the masks that `break` and `continue` clear up to.
#[derive(Clone, Copy)]
struct OpenLoop {
    alive: Option<MaskId>,
}

struct Translator<'a> {
    program: &'a Program,
    level: Level,
    facts: Facts,
    lanes: usize,
    /// The uniform word of register 0.
    first_register: Place,
    next_constant: Place,
    constants: HashMap<u64, Place>,
    /// The first place of registers with lanes.
    lane_base: Place,
    lane_registers: u32,
    /// Places that no live register uses, of 32 bits and of 64.
    free: Vec<Place>,
    free_wide: Vec<Place>,
    /// The lanes of each register that has them now.
    place: Vec<Option<Place>>,
    builtins: Vec<(Opcode, Place)>,
    /// For a result before it is committed, and for three operands.
    temporary: [Place; 4],
    /// For the machine.
    spare: Place,
    loops: Vec<OpenLoop>,
    next_loop: usize,
    mask_count: usize,
    arrays: Vec<Array>,
}

/// The instructions of a block under construction, and its mask.
struct Block {
    nodes: Vec<Node>,
    mask: MaskId,
}

impl Translator<'_> {
    fn finish(mut self, body: Vec<Node>) -> Code {
        let masks = self.lane_base + self.lane_registers * self.lanes as u32;
        self.lane_registers += self.mask_count as u32;
        let shared = self.lane_base + self.lane_registers * self.lanes as u32;
        let mut next = shared;
        for (array, declared) in self.arrays.iter_mut().skip(self.program.params.len()).zip(&self.program.shared) {
            let words = (declared.len as usize * declared.element.size()).div_ceil(4).next_multiple_of(16);
            array.kind = ArrayKind::Shared { place: next, len: declared.len as usize };
            next += words as u32;
        }
        let scalar = |(i, p): (usize, &hologram_isa::Param)| {
            matches!(p.kind, ParamKind::Scalar(_)).then_some(FIRST_PLACE + 2 * i as u32)
        };
        Code {
            name: self.program.name.clone(),
            workgroup: self.program.workgroup,
            threads: self.program.workgroup_threads() as usize,
            lanes: self.lanes,
            body,
            arrays: self.arrays,
            constants: self.constants.into_iter().map(|(word, place)| (place, word)).collect(),
            builtins: self.builtins,
            scalars: self.program.params.iter().enumerate().filter_map(scalar).collect(),
            shared: (shared, (next - shared) as usize),
            masks,
            spare: self.spare,
            words: next as usize,
            ops: Masks::of(self.level),
        }
    }

    fn block(&mut self, stmts: &[Stmt], mask: MaskId) -> Vec<Node> {
        self.mask_count = self.mask_count.max(mask + 1);
        let mut block = Block { nodes: Vec::new(), mask };
        // The local registers set in this block, each with the statement after which its lanes are free.
        let mut ends: Vec<(usize, Reg)> = Vec::new();
        for (index, stmt) in stmts.iter().enumerate() {
            self.stmt(stmt, &mut block);
            let set = match &stmt.kind {
                StmtKind::Inst(inst) => inst.dst,
                StmtKind::For { var, .. } => Some(*var),
                _ => None,
            };
            if let Some(reg) = set
                && self.facts.reg(reg).local
            {
                ends.push((self.facts.reg(reg).last_use, reg));
            }
            ends.retain(|(last, reg)| {
                let ended = *last <= index;
                if ended && let Some(place) = self.place[reg.0 as usize].take() {
                    let builtin = self.builtins.iter().any(|(_, p)| *p == place);
                    let wide = self.is_wide(*reg);
                    if !builtin {
                        if wide { &mut self.free_wide } else { &mut self.free }.push(place);
                    }
                }
                !ended
            });
        }
        block.nodes
    }

    fn new_lanes(&mut self, wide: bool) -> Place {
        let free = if wide { &mut self.free_wide } else { &mut self.free };
        free.pop().unwrap_or_else(|| {
            let place = self.lane_base + self.lane_registers * self.lanes as u32;
            self.lane_registers += 1 + wide as u32;
            place
        })
    }

    fn constant(&mut self, word: u64) -> Place {
        *self.constants.entry(word).or_insert_with(|| {
            self.next_constant += 2;
            self.next_constant - 2
        })
    }

    /// The uniform value of a register.
    fn uniform(&self, reg: Reg) -> Place {
        self.first_register + 2 * reg.0
    }

    /// The word of a uniform operand, or the base of an affine one.
    fn word(&mut self, operand: Operand) -> Place {
        match operand {
            Operand::Reg(reg) => self.uniform(reg),
            Operand::Scalar(index) => FIRST_PLACE + 2 * index,
            Operand::Const(_, word) => self.constant(word),
        }
    }

    fn is_wide(&self, reg: Reg) -> bool {
        self.program.registers[reg.0 as usize].ty.is_wide()
    }

    /// The lanes of a register, allocated if it has none yet.
    fn lanes_of(&mut self, reg: Reg) -> Place {
        match self.place[reg.0 as usize] {
            Some(place) => place,
            None => {
                let place = self.new_lanes(self.is_wide(reg));
                self.place[reg.0 as usize] = Some(place);
                place
            }
        }
    }

    /// An operand's lanes. A uniform operand is spread over the temporary of this number.
    fn as_lanes(&mut self, operand: Operand, temporary: usize, block: &mut Block) -> Place {
        match operand {
            Operand::Reg(reg) if self.facts.reg(reg).kind != Kind::Uniform => self.lanes_of(reg),
            _ => {
                let (from, dst) = (self.word(operand), self.temporary[temporary]);
                block.nodes.push(Node::Spread { dst, from, wide: self.type_of(operand).is_wide() });
                dst
            }
        }
    }

    fn value(&mut self, operand: Operand) -> Value {
        match operand {
            Operand::Reg(reg) if self.facts.reg(reg).kind != Kind::Uniform => Value::Lanes(self.lanes_of(reg)),
            _ => Value::Uniform(self.word(operand)),
        }
    }

    fn index(&mut self, operand: Operand) -> Index {
        match (self.facts.kind(operand), operand) {
            (Kind::Varying, Operand::Reg(reg)) => Index::Lanes(self.lanes_of(reg)),
            (Kind::Affine, _) => Index::Affine(self.word(operand)),
            _ => Index::Uniform(self.word(operand)),
        }
    }

    /// The place for the lanes of an instruction's result; those of a register that is not local are committed
    /// afterwards.
    fn result(&mut self, dst: Reg) -> Place {
        if self.facts.reg(dst).local { self.lanes_of(dst) } else { self.temporary[0] }
    }

    fn commit(&mut self, dst: Reg, from: Place, block: &mut Block) {
        let place = self.lanes_of(dst);
        if place != from {
            let wide = self.is_wide(dst);
            block.nodes.push(Node::Commit { dst: place, from, wide });
        }
    }

    fn stmt(&mut self, stmt: &Stmt, block: &mut Block) {
        let line = stmt.line;
        match &stmt.kind {
            StmtKind::Inst(inst) => self.inst(inst, line, block),
            StmtKind::If { cond, then, otherwise } => {
                let (kind, mask) = match (self.facts.kind(*cond), self.facts.comparison(*cond)) {
                    (Kind::Uniform, _) => (Cond::Uniform(self.word(*cond)), block.mask),
                    (_, Some((a, b))) => (Cond::Below { base: self.word(a), bound: self.word(b) }, block.mask + 2),
                    _ => (Cond::Lanes(self.as_lanes(*cond, 1, block)), block.mask + 2),
                };
                // The mask of the other branch lies below, where no block inside the first branch uses it.
                let other = if mask == block.mask { mask } else { mask - 1 };
                let then = self.block(then, mask);
                let otherwise = self.block(otherwise, other);
                block.nodes.push(Node::If { cond: kind, mask, then, otherwise });
            }
            StmtKind::For { var, start, end, step, body } => {
                let signed = self.program.registers[var.0 as usize].ty == Type::I32;
                match self.facts.reg(*var).kind {
                    Kind::Uniform => {
                        let [start, end, step] = [start, end, step].map(|o| self.word(*o));
                        let var = self.uniform(*var);
                        let body = self.body(body, block.mask);
                        block.nodes.push(Node::For { var, start, end, step, signed, line, body });
                    }
                    Kind::Affine => {
                        let [start, end, step] = [start, end, step].map(|o| self.word(*o));
                        let base = self.uniform(*var);
                        let lanes = self.facts.reg(*var).as_lanes.then(|| self.lanes_of(*var));
                        let mut body = self.body(body, block.mask);
                        if let Some(dst) = lanes {
                            body.nodes.insert(0, Node::Iota { dst, base });
                        }
                        block.nodes.push(Node::ForAffine { var: base, start, end, step, line, body });
                    }
                    Kind::Varying => {
                        // Copies: the operands are read once, and the body may change them.
                        let places = [start, end, step].map(|o| (self.new_lanes(false), *o));
                        for (place, operand) in places {
                            let from = self.as_lanes(operand, 1, block);
                            self.copy(place, from, block);
                        }
                        let [(start, _), (end, _), (step, _)] = places;
                        // A counter shared by several loops has no lanes while none of them runs.
                        self.place[var.0 as usize] = Some(start);
                        let body = self.body(body, block.mask);
                        let ops = Masks::of(self.level);
                        let advance = if signed { ops.advance_i } else { ops.advance_u };
                        block.nodes.push(Node::ForLanes { var: start, end, step, signed, advance, line, body });
                        self.free.extend([end, step]);
                    }
                }
            }
            StmtKind::Loop { max, body } => {
                let body = self.body(body, block.mask);
                block.nodes.push(Node::Loop { max: *max, body });
            }
            StmtKind::Break { depth, cond } => self.jump(Flow::Break(*depth), *depth, *cond, block),
            StmtKind::Continue { depth, cond } => self.jump(Flow::Continue(*depth), *depth, *cond, block),
        }
    }

    /// The body of a loop in a block with this mask.
    fn body(&mut self, stmts: &[Stmt], mask: MaskId) -> Body {
        let divergent = self.facts.divergent[self.next_loop];
        self.next_loop += 1;
        let alive = divergent.then_some(mask + 1);
        self.loops.push(OpenLoop { alive });
        let nodes = self.block(stmts, if divergent { mask + 2 } else { mask });
        self.loops.pop();
        Body { nodes, alive }
    }

    fn jump(&mut self, flow: Flow, depth: u32, cond: Option<Operand>, block: &mut Block) {
        let target = self.loops[self.loops.len() - 1 - depth as usize];
        match target.alive {
            None => {
                let cond = cond.map(|c| self.word(c));
                block.nodes.push(Node::Jump { cond, flow });
            }
            Some(alive) => {
                let cond = cond.map(|c| self.as_lanes(c, 1, block));
                let to = if matches!(flow, Flow::Break(_)) { alive } else { alive + 1 };
                block.nodes.push(Node::Leave { cond, to });
            }
        }
    }

    fn copy(&mut self, dst: Place, from: Place, block: &mut Block) {
        if let Some(Forms { lanes: [Some(f), ..], .. }) = forms(Opcode::Mov, Type::U32, Type::U32, self.level) {
            block.nodes.push(Node::Lanes { f, dst, args: [from; 3] });
        }
    }

    fn inst(&mut self, inst: &Inst, line: u32, block: &mut Block) {
        match inst.op.info().signature {
            // The workgroup runs in lock step: a thread that reaches the next instruction has finished this one.
            Signature::Barrier => {}
            Signature::Builtin => self.builtin(inst, block),
            Signature::Load => self.load(inst, line, block),
            Signature::Store => self.store(inst, line, block),
            Signature::Atomic | Signature::Exchange => self.atomic(inst, line, block),
            Signature::Reduce | Signature::Shuffle => self.subgroup(inst, block),
            Signature::Tile => self.tile(inst, block),
            _ if inst.op == Opcode::Broadcast => self.subgroup(inst, block),
            _ => self.compute(inst, line, block),
        }
    }

    fn builtin(&mut self, inst: &Inst, block: &mut Block) {
        use Opcode as O;
        let Some(dst) = inst.dst else { return };
        let copy = |f: &Forms, dst, from| Node::One { f: f.one, dst, args: [from; 3] };
        let Some(mov) = forms(O::Mov, Type::U32, Type::U32, self.level) else { return };
        let Some(mul) = forms(O::Mul, Type::U32, Type::U32, self.level) else { return };
        let Some(add) = forms(O::Add, Type::U32, Type::U32, self.level) else { return };
        let zero = self.constant(0);
        let word = self.uniform(dst);
        // The dimension of an index in the grid, and the thread's own index in it.
        let global = match inst.op {
            O::GlobalX => Some((0, O::ThreadX)),
            O::GlobalY => Some((1, O::ThreadY)),
            O::GlobalZ => Some((2, O::ThreadZ)),
            _ => None,
        };
        // The uniform part: the whole value, or the base to which the thread's own index is added.
        match inst.op {
            O::GroupX | O::GroupY | O::GroupZ => {
                block.nodes.push(copy(&mov, word, GROUP + (inst.op as u32 - O::GroupX as u32)));
            }
            O::GridX | O::GridY | O::GridZ => {
                block.nodes.push(copy(&mov, word, GRID + (inst.op as u32 - O::GridX as u32)));
            }
            _ => match global {
                Some((axis, _)) => {
                    let size = self.constant(self.program.workgroup[axis].into());
                    let group = GROUP + axis as u32;
                    block.nodes.push(Node::One { f: mul.one, dst: word, args: [group, size, group] });
                }
                None => block.nodes.push(copy(&mov, word, zero)),
            },
        }
        let kind = self.natural_kind(inst.op);
        let RegKind { actual, local, as_lanes } = self.reg_kind(dst);
        if actual == Kind::Uniform || (actual == Kind::Affine && !as_lanes) {
            return;
        }
        // Lanes: of a uniform value, of a base plus lane, or of a register kept in the arena.
        let place = self.result(dst);
        match kind {
            Kind::Uniform => block.nodes.push(Node::Spread { dst: place, from: word, wide: false }),
            Kind::Affine => block.nodes.push(Node::Iota { dst: place, base: word }),
            Kind::Varying => {
                let own = self.builtin_lanes(global.map_or(inst.op, |(_, thread)| thread));
                if global.is_some() {
                    if let Some(f) = add.lanes[0b010] {
                        block.nodes.push(Node::Lanes { f, dst: place, args: [own, word, word] });
                    }
                } else {
                    self.copy(place, own, block);
                }
            }
        }
        if !local {
            self.commit(dst, place, block);
        }
    }

    fn reg_kind(&self, reg: Reg) -> RegKind {
        let facts = self.facts.reg(reg);
        RegKind { actual: facts.kind, local: facts.local, as_lanes: facts.as_lanes }
    }

    /// The kind of a builtin's value, regardless of the register that it is written to.
    fn natural_kind(&self, op: Opcode) -> Kind {
        super::facts::builtin_kind(self.program, op)
    }

    /// The register that holds a builtin's lanes during the whole launch.
    fn builtin_lanes(&mut self, op: Opcode) -> Place {
        if let Some((_, place)) = self.builtins.iter().find(|(o, _)| *o == op) {
            return *place;
        }
        // A new register: a reused one would be overwritten in the next workgroup.
        self.lane_registers += 1;
        let place = self.lane_base + (self.lane_registers - 1) * self.lanes as u32;
        self.builtins.push((op, place));
        place
    }

    /// An instruction on each lane's own operands.
    fn compute(&mut self, inst: &Inst, line: u32, block: &mut Block) {
        let Some(dst) = inst.dst else { return };
        let from = inst.args.first().map_or(inst.ty, |a| self.type_of(*a));
        let Some(forms) = forms(inst.op, inst.ty, from, self.level) else { return };
        if matches!(inst.op, Opcode::Div | Opcode::Rem) && !inst.ty.is_float() {
            let divisor = self.value(inst.args[1]);
            let known = matches!(inst.args[1], Operand::Const(_, word) if word != 0);
            if !known {
                block.nodes.push(Node::NoZero { op: inst.op, divisor, wide: inst.ty.is_wide(), line });
            }
        }
        let uniform: Vec<bool> = inst.args.iter().map(|a| self.facts.kind(*a) == Kind::Uniform).collect();
        let all_uniform = uniform.iter().all(|u| *u);
        let RegKind { actual, local, as_lanes } = self.reg_kind(dst);
        let word = self.uniform(dst);
        if all_uniform || actual == Kind::Affine {
            // On affine operands this computes the base.
            let mut args = [0; 3];
            for (place, arg) in args.iter_mut().zip(&inst.args) {
                *place = self.word(*arg);
            }
            block.nodes.push(Node::One { f: forms.one, dst: word, args });
            if actual == Kind::Affine && as_lanes {
                let place = self.lanes_of(dst);
                block.nodes.push(Node::Iota { dst: place, base: word });
            } else if actual == Kind::Varying {
                let place = self.result(dst);
                block.nodes.push(Node::Spread { dst: place, from: word, wide: self.is_wide(dst) });
                if !local {
                    self.commit(dst, place, block);
                }
            }
            return;
        }
        if self.facts.comparison(Operand::Reg(dst)).is_some() && !as_lanes {
            return;
        }
        let mut args = inst.args.clone();
        let mut uniform = uniform;
        if inst.op == Opcode::Fma && uniform[0] && !uniform[1] {
            args.swap(0, 1);
            uniform.swap(0, 1);
        }
        let wanted = uniform.iter().enumerate().map(|(i, u)| (*u as usize) << i).sum::<usize>();
        // The form that spreads the fewest operands.
        let best = (0..8).filter(|form| form & !wanted == 0 && forms.lanes[*form].is_some());
        let Some(form) = best.max_by_key(|form| form.count_ones()) else { return };
        let mut places = [self.temporary[0]; 3];
        for (i, arg) in args.iter().enumerate() {
            places[i] = if form >> i & 1 == 1 { self.word(*arg) } else { self.as_lanes(*arg, 1 + i, block) };
        }
        let place = self.result(dst);
        if let Some(f) = forms.lanes[form] {
            block.nodes.push(Node::Lanes { f, dst: place, args: places });
        }
        if !local {
            self.commit(dst, place, block);
        }
    }

    fn type_of(&self, operand: Operand) -> Type {
        match operand {
            Operand::Reg(reg) => self.program.registers[reg.0 as usize].ty,
            Operand::Const(ty, _) => ty,
            Operand::Scalar(index) => match self.program.params[index as usize].kind {
                ParamKind::Scalar(ty) => ty,
                ParamKind::Buffer { element, .. } => element,
            },
        }
    }

    fn array(&self, memory: Option<Memory>) -> usize {
        match memory {
            Some(Memory::Param(index)) => index as usize,
            Some(Memory::Shared(index)) => self.program.params.len() + index as usize,
            None => 0,
        }
    }

    fn load(&mut self, inst: &Inst, line: u32, block: &mut Block) {
        let Some(dst) = inst.dst else { return };
        let (array, moves) = (self.array(inst.memory), moves(inst.ty, self.level));
        let index = self.index(inst.args[0]);
        let RegKind { actual, local, .. } = self.reg_kind(dst);
        if let Index::Uniform(index) = index {
            let word = self.uniform(dst);
            block.nodes.push(Node::LoadOne { array, moves, dst: word, index, line });
            if actual == Kind::Uniform {
                return;
            }
            let place = self.result(dst);
            block.nodes.push(Node::Spread { dst: place, from: word, wide: self.is_wide(dst) });
            if !local {
                self.commit(dst, place, block);
            }
            return;
        }
        let place = self.result(dst);
        block.nodes.push(Node::Load { array, moves, dst: place, index, line });
        if !local {
            self.commit(dst, place, block);
        }
    }

    fn store(&mut self, inst: &Inst, line: u32, block: &mut Block) {
        let (array, moves) = (self.array(inst.memory), moves(inst.ty, self.level));
        let index = self.index(inst.args[0]);
        let value = match (index, self.value(inst.args[1])) {
            (Index::Affine(_) | Index::Lanes(_), Value::Uniform(_)) => {
                Value::Lanes(self.as_lanes(inst.args[1], 1, block))
            }
            (_, value) => value,
        };
        block.nodes.push(Node::Store { array, moves, index, value, line });
    }

    fn atomic(&mut self, inst: &Inst, line: u32, block: &mut Block) {
        let (Some(dst), Some(update)) = (inst.dst, update(inst.op, inst.ty)) else { return };
        let mut places = [self.temporary[0]; 3];
        for (i, arg) in inst.args.iter().enumerate() {
            places[i] = self.as_lanes(*arg, 1 + i, block);
        }
        let [index, a, b] = places;
        let (array, place) = (self.array(inst.memory), self.result(dst));
        block.nodes.push(Node::Atomic { array, update, dst: place, index, values: [a, b], line });
        if !self.facts.reg(dst).local {
            self.commit(dst, place, block);
        }
    }

    fn tile(&mut self, inst: &Inst, block: &mut Block) {
        let Some(dst) = inst.dst else { return };
        let mut args = [self.temporary[0]; 3];
        for (i, arg) in inst.args.iter().enumerate() {
            args[i] = self.as_lanes(*arg, 1 + i, block);
        }
        let place = self.result(dst);
        block.nodes.push(Node::Tile { ty: inst.ty, dst: place, args });
        if !self.facts.reg(dst).local {
            self.commit(dst, place, block);
        }
    }

    fn subgroup(&mut self, inst: &Inst, block: &mut Block) {
        let Some(dst) = inst.dst else { return };
        let value = self.as_lanes(inst.args[0], 1, block);
        let lane = match inst.args.get(1) {
            Some(lane) => self.as_lanes(*lane, 2, block),
            None => value,
        };
        let place = self.result(dst);
        block.nodes.push(Node::Subgroup { op: inst.op, ty: inst.ty, dst: place, value, lane });
        if !self.facts.reg(dst).local {
            self.commit(dst, place, block);
        }
    }
}

/// The facts that decide where a register's value is kept.
struct RegKind {
    actual: Kind,
    local: bool,
    as_lanes: bool,
}
