//! Interprets one workgroup.

use super::shared::{Shared, outside};
use super::{Binding, Bytes, operand_type};
use crate::meaning::{Subnormals, read_element, write_element};
use crate::program::*;
use crate::table::Signature;
use crate::{IsaError, Opcode, Type, shown_index};

/// Threads per subgroup.
const LANES: usize = SUBGROUP_SIZE as usize;

/// Which threads are active.
type Mask = Vec<bool>;

/// An open loop.
struct Loop {
    /// Threads that wait for the next iteration.
    continued: Mask,
    /// Threads that have left it.
    broken: Mask,
}

/// A launch in progress.
pub(super) struct Machine<'a, 'm> {
    program: &'a Program,
    grid: [u32; 3],
    memories: &'a mut [Bytes<'m>],
    bindings: &'a [Binding],
    subnormals: Subnormals,
    /// Threads of a workgroup.
    threads: usize,
    group: [u32; 3],
    /// The words of each register, per thread.
    registers: Vec<Vec<u64>>,
    shared: Vec<Shared>,
    /// Number of barriers passed by this workgroup, plus 1.
    phase: u32,
    /// Open loops, innermost last.
    loops: Vec<Loop>,
    /// The line of the current statement.
    line: u32,
}

impl<'a, 'm> Machine<'a, 'm> {
    /// A launch with checked bindings.
    pub(super) fn new(
        program: &'a Program,
        grid: [u32; 3],
        memories: &'a mut [Bytes<'m>],
        bindings: &'a [Binding],
        subnormals: Subnormals,
    ) -> Machine<'a, 'm> {
        let threads = program.workgroup_threads() as usize;
        let registers = vec![vec![0; threads]; program.registers.len()];
        let (group, shared, loops) = ([0; 3], Vec::new(), Vec::new());
        Machine {
            program,
            grid,
            memories,
            bindings,
            subnormals,
            threads,
            group,
            registers,
            shared,
            phase: 1,
            loops,
            line: 0,
        }
    }

    /// Runs one workgroup to its end.
    pub(super) fn run_group(&mut self, group: [u32; 3]) -> Result<(), IsaError> {
        self.group = group;
        self.shared = self.program.shared.iter().map(Shared::new).collect();
        self.phase = 1;
        let program = self.program;
        self.block(&program.body, &mut vec![true; self.threads])
    }

    /// Runs a block. Threads that leave it by `break` or `continue` are removed from `active`.
    fn block(&mut self, block: &[Stmt], active: &mut Mask) -> Result<(), IsaError> {
        for stmt in block {
            if !active.contains(&true) {
                return Ok(());
            }
            self.line = stmt.line;
            match &stmt.kind {
                StmtKind::Inst(inst) => self.inst(inst, active)?,
                StmtKind::If { cond, then, otherwise } => {
                    let cond = self.operand(*cond)?;
                    let mut yes: Mask = active.iter().zip(&cond).map(|(a, c)| *a && *c != 0).collect();
                    let mut no: Mask = active.iter().zip(&cond).map(|(a, c)| *a && *c == 0).collect();
                    self.block(then, &mut yes)?;
                    self.block(otherwise, &mut no)?;
                    *active = union(&yes, &no);
                }
                StmtKind::For { var, start, end, step, body } => {
                    self.counted_loop(*var, [*start, *end, *step], body, active)?;
                }
                StmtKind::Loop { max, body } => {
                    self.open_loop();
                    for _ in 0..*max {
                        if !active.contains(&true) {
                            break;
                        }
                        self.round(body, active)?;
                    }
                    self.close_loop(active);
                }
                StmtKind::Break { depth, cond } => {
                    let leaving = self.leaving(*cond, active)?;
                    let frame = self.frame(*depth)?;
                    frame.broken = union(&frame.broken, &leaving);
                }
                StmtKind::Continue { depth, cond } => {
                    let leaving = self.leaving(*cond, active)?;
                    let frame = self.frame(*depth)?;
                    frame.continued = union(&frame.continued, &leaving);
                }
            }
        }
        Ok(())
    }

    fn open_loop(&mut self) {
        let none = vec![false; self.threads];
        self.loops.push(Loop { continued: none.clone(), broken: none });
    }

    /// Runs a loop's body once. Threads that `continue` are active again afterwards.
    fn round(&mut self, body: &[Stmt], active: &mut Mask) -> Result<(), IsaError> {
        self.block(body, active)?;
        if let Some(frame) = self.loops.last_mut() {
            *active = union(active, &frame.continued);
            frame.continued.fill(false);
        }
        Ok(())
    }

    /// Ends the innermost loop. Threads that left it by `break` are active again.
    fn close_loop(&mut self, active: &mut Mask) {
        if let Some(frame) = self.loops.pop() {
            *active = union(active, &frame.broken);
        }
    }

    /// A `for` loop over the operands start, end and step.
    fn counted_loop(
        &mut self,
        var: Reg,
        bounds: [Operand; 3],
        body: &[Stmt],
        active: &mut Mask,
    ) -> Result<(), IsaError> {
        let signed = operand_type(self.program, Operand::Reg(var)) == Some(Type::I32);
        // A 64-bit counter never wraps.
        let widen = |w: u64| if signed { i64::from(w as u32 as i32) } else { w as i64 };
        let mut words = Vec::with_capacity(3);
        for operand in bounds {
            words.push(self.operand(operand)?.into_iter().map(widen).collect::<Vec<i64>>());
        }
        let [next, end, step] = words.as_mut_slice() else { return Ok(()) };
        if let Some(thread) = (0..self.threads).find(|t| active[*t] && step[*t] <= 0) {
            return Err(self.error(thread, format!("the step of a for loop is {}, it must be positive", step[thread])));
        }
        let line = self.line;
        self.open_loop();
        let mut finished = vec![false; self.threads];
        loop {
            for t in 0..self.threads {
                if active[t] && next[t] >= end[t] {
                    active[t] = false;
                    finished[t] = true;
                }
                if active[t] {
                    self.set(var, t, u64::from(next[t] as u32))?;
                    next[t] += step[t];
                }
            }
            if !active.contains(&true) {
                break;
            }
            self.round(body, active)?;
            self.line = line;
        }
        *active = finished;
        self.close_loop(active);
        Ok(())
    }

    /// Removes threads where `cond` holds from `active`.
    fn leaving(&mut self, cond: Option<Operand>, active: &mut Mask) -> Result<Mask, IsaError> {
        let leaving = match cond {
            Some(cond) => self.operand(cond)?.iter().zip(active.iter()).map(|(c, a)| *a && *c != 0).collect(),
            None => active.clone(),
        };
        for (a, leaves) in active.iter_mut().zip(&leaving) {
            *a &= !leaves;
        }
        Ok(leaving)
    }

    /// The loop of a `break` or `continue`.
    fn frame(&mut self, depth: u32) -> Result<&mut Loop, IsaError> {
        match self.loops.len().checked_sub(1 + depth as usize) {
            Some(index) => Ok(&mut self.loops[index]),
            None => Err(self.error(0, format!("loop depth {depth} does not exist"))),
        }
    }

    /// Runs one instruction on the active threads.
    fn inst(&mut self, inst: &Inst, active: &Mask) -> Result<(), IsaError> {
        let mut args = Vec::with_capacity(inst.args.len());
        for operand in &inst.args {
            args.push(self.operand(*operand)?);
        }
        match (inst.op, inst.memory) {
            (Opcode::Barrier, _) => {
                self.all_arrive(inst.op, active)?;
                self.phase += 1;
                return Ok(());
            }
            (_, Some(memory)) => return self.access(inst, memory, &args, active),
            _ => {}
        }
        let Some(dst) = inst.dst else { return Err(self.error(0, "the instruction has no destination".into())) };
        let unknown = |m: &Self, thread| {
            let message = format!("{}.{} does not exist for these operands", inst.op.info().mnemonic, inst.ty);
            Err(m.error(thread, message))
        };
        if matches!(inst.op.info().signature, Signature::Reduce | Signature::Shuffle) || inst.op == Opcode::Broadcast {
            for base in (0..self.threads).step_by(LANES) {
                let Some(words) = subgroup(self.subnormals, inst, &args, active, base) else {
                    return unknown(self, base);
                };
                for (thread, word) in (base..self.threads).zip(words).filter(|(t, _)| active[*t]) {
                    self.set(dst, thread, word)?;
                }
            }
            return Ok(());
        }
        if inst.op == Opcode::TileFma {
            self.all_arrive(inst.op, active)?;
            let lanes = |i: usize, base: usize| args.get(i).and_then(|words| words.get(base..)?.first_chunk::<LANES>());
            for base in (0..self.threads).step_by(LANES) {
                let operands = (lanes(0, base), lanes(1, base), lanes(2, base));
                let (Some(a), Some(b), Some(c)) = operands else { return unknown(self, base) };
                let Some(words) = self.subnormals.tile(inst.ty, &a.map(|w| w as u32), &b.map(|w| w as u32), c) else {
                    return unknown(self, base);
                };
                for (lane, word) in words.into_iter().enumerate() {
                    self.set(dst, base + lane, word)?;
                }
            }
            return Ok(());
        }
        let from = inst.args.first().and_then(|a| operand_type(self.program, *a)).unwrap_or(inst.ty);
        let whole = !inst.ty.is_float();
        let mut words = [0; 3];
        let Some(words) = words.get_mut(..args.len()) else { return unknown(self, 0) };
        for thread in (0..self.threads).filter(|t| active[*t]) {
            for (word, values) in words.iter_mut().zip(&args) {
                *word = values[thread];
            }
            if whole && matches!(inst.op, Opcode::Div | Opcode::Rem) && words.get(1) == Some(&0) {
                return Err(self.error(thread, format!("{} by zero", inst.op.info().mnemonic)));
            }
            let Some(word) =
                self.builtin(inst.op, thread as u32).or_else(|| self.subnormals.eval(inst.op, inst.ty, from, words))
            else {
                return unknown(self, thread);
            };
            self.set(dst, thread, word)?;
        }
        Ok(())
    }

    /// Checks that every thread of the workgroup is active.
    fn all_arrive(&self, op: Opcode, active: &Mask) -> Result<(), IsaError> {
        match active.iter().position(|a| !a) {
            Some(thread) => {
                let message = format!("this thread does not reach a {} that others wait at", op.info().mnemonic);
                Err(self.error(thread, message))
            }
            None => Ok(()),
        }
    }

    /// A position builtin.
    fn builtin(&self, op: Opcode, thread: u32) -> Option<u64> {
        let [sx, sy, sz] = self.program.workgroup;
        let [x, y, z] = [thread % sx, thread / sx % sy, thread / sx / sy];
        let word = match op {
            Opcode::ThreadX => x,
            Opcode::ThreadY => y,
            Opcode::ThreadZ => z,
            Opcode::GroupX => self.group[0],
            Opcode::GroupY => self.group[1],
            Opcode::GroupZ => self.group[2],
            Opcode::GridX => self.grid[0],
            Opcode::GridY => self.grid[1],
            Opcode::GridZ => self.grid[2],
            Opcode::GlobalX => self.group[0].wrapping_mul(sx).wrapping_add(x),
            Opcode::GlobalY => self.group[1].wrapping_mul(sy).wrapping_add(y),
            Opcode::GlobalZ => self.group[2].wrapping_mul(sz).wrapping_add(z),
            Opcode::Lane => thread % SUBGROUP_SIZE,
            Opcode::Subgroup => thread / SUBGROUP_SIZE,
            _ => return None,
        };
        Some(word.into())
    }

    /// A load, store or atomic update of one element per active thread, in thread order.
    fn access(&mut self, inst: &Inst, memory: Memory, args: &[Vec<u64>], active: &Mask) -> Result<(), IsaError> {
        let Some(indices) = args.first() else { return Err(self.error(0, "there is no index".into())) };
        for thread in (0..self.threads).filter(|t| active[*t]) {
            let index = indices[thread] as u32;
            let values: Vec<u64> = args.iter().skip(1).map(|values| values[thread]).collect();
            match (self.element(memory, inst, index, &values, thread as u32), inst.dst) {
                (Ok(word), Some(dst)) => self.set(dst, thread, word)?,
                (Ok(_), None) => {}
                (Err(what), _) => {
                    let kind = if matches!(memory, Memory::Shared(_)) { "shared array" } else { "buffer" };
                    let (name, index) = (self.memory_name(memory), shown_index(index));
                    return Err(self.error(thread, format!("element {index} of {kind} {name} {what}")));
                }
            }
        }
        Ok(())
    }

    /// Reads or sets an element, or both. Returns the value read.
    fn element(&mut self, memory: Memory, inst: &Inst, index: u32, values: &[u64], thread: u32) -> Result<u64, String> {
        const MISSING: &str = "does not exist";
        let ty = inst.ty;
        let subnormals = self.subnormals;
        let new = |old| {
            subnormals.update(inst.op, ty, old, values).ok_or_else(|| format!("has no {}", inst.op.info().mnemonic))
        };
        match memory {
            Memory::Shared(array) => {
                let shared = self.shared.get_mut(array as usize).ok_or(MISSING)?;
                match (inst.op, values) {
                    (Opcode::Store, &[word]) => shared.store(index, word, thread, self.phase).map(|()| word),
                    (Opcode::Load, _) => shared.load(index, thread, self.phase),
                    _ => shared.update(index, thread, self.phase, new),
                }
            }
            Memory::Param(param) => {
                let Some(&Binding::Buffer { memory, offset, len }) = self.bindings.get(param as usize) else {
                    return Err(MISSING.into());
                };
                let range = offset..offset.saturating_add(len);
                let memory = self.memories.get_mut(memory).ok_or(MISSING)?;
                let index = index as usize;
                let bytes = memory.get(range.clone()).ok_or(MISSING)?;
                let old = read_element(ty, bytes, index).ok_or_else(|| outside(len / ty.size()))?;
                let word = match (inst.op, values) {
                    (Opcode::Load, _) => return Ok(old),
                    (Opcode::Store, &[word]) => word,
                    _ => new(old)?,
                };
                let Bytes::Write(bytes) = memory else { return Err("is read-only".into()) };
                bytes.get_mut(range).and_then(|bytes| write_element(ty, bytes, index, word)).ok_or(MISSING)?;
                Ok(old)
            }
        }
    }

    fn memory_name(&self, memory: Memory) -> &str {
        let name = match memory {
            Memory::Param(p) => self.program.params.get(p as usize).map(|p| &p.name),
            Memory::Shared(s) => self.program.shared.get(s as usize).map(|s| &s.name),
        };
        name.map_or("?", String::as_str)
    }

    /// The words of an operand, per thread.
    fn operand(&self, operand: Operand) -> Result<Vec<u64>, IsaError> {
        let words = match operand {
            Operand::Const(_, word) => Some(vec![word; self.threads]),
            Operand::Reg(Reg(r)) => self.registers.get(r as usize).cloned(),
            Operand::Scalar(p) => match self.bindings.get(p as usize) {
                Some(Binding::Scalar(word)) => Some(vec![*word; self.threads]),
                _ => None,
            },
        };
        words.ok_or_else(|| self.error(0, format!("there is no operand {operand:?}")))
    }

    /// Sets a register of one thread.
    fn set(&mut self, reg: Reg, thread: usize, word: u64) -> Result<(), IsaError> {
        match self.registers.get_mut(reg.0 as usize).and_then(|r| r.get_mut(thread)) {
            Some(slot) => {
                *slot = word;
                Ok(())
            }
            None => Err(self.error(thread, format!("there is no register {}", reg.0))),
        }
    }

    fn error(&self, thread: usize, message: String) -> IsaError {
        let program = self.program.name.clone();
        IsaError::Run { program, line: self.line, group: self.group, thread: thread as u32, message }
    }
}

/// The results of a subgroup instruction for the lanes from thread `base` on. Those of inactive lanes are undefined.
fn subgroup(
    subnormals: Subnormals,
    inst: &Inst,
    args: &[Vec<u64>],
    active: &Mask,
    base: usize,
) -> Option<[u64; LANES]> {
    let values = args.first()?.get(base..)?;
    // The value of a lane if it exists and is active.
    let lane = |l: usize| active.get(base + l).is_some_and(|a| *a).then(|| values[l]);
    let Some(lowest) = (0..LANES).find_map(lane) else { return Some([0; LANES]) };
    Some(match inst.op {
        Opcode::SubgroupAdd => {
            let zero = match inst.ty {
                Type::F32 => (-0.0f32).to_bits().into(),
                Type::F64 => (-0.0f64).to_bits(),
                _ => 0,
            };
            let mut sums = std::array::from_fn(|l| lane(l).unwrap_or(zero));
            let there = values.len();
            for distance in [16, 8, 4, 2, 1] {
                let before: [u64; LANES] = sums;
                for (l, sum) in sums.iter_mut().enumerate() {
                    // Lanes that are equal modulo 2·distance have the same sum, which the lowest of them knows. Where
                    // none exists nothing is added, not even 0, which would flush a subnormal sum.
                    let other = (l ^ distance) % (2 * distance);
                    if other < there {
                        *sum = subnormals.eval(Opcode::Add, inst.ty, inst.ty, &[before[l], before[other]])?;
                    }
                }
            }
            sums
        }
        Opcode::SubgroupMin | Opcode::SubgroupMax => {
            let op = if inst.op == Opcode::SubgroupMin { Opcode::Min } else { Opcode::Max };
            let best = |best, value| subnormals.eval(op, inst.ty, inst.ty, &[best, value]);
            [(0..LANES).filter_map(lane).try_fold(lowest, best)?; LANES]
        }
        Opcode::Shuffle => {
            let sources = args.get(1)?.get(base..)?;
            std::array::from_fn(|l| match (sources.get(l), values.get(l)) {
                (Some(source), Some(own)) => lane(*source as usize % LANES).unwrap_or(*own),
                _ => 0,
            })
        }
        Opcode::Broadcast => [lowest; LANES],
        _ => return None,
    })
}

/// The threads in either mask.
fn union(a: &Mask, b: &Mask) -> Mask {
    a.iter().zip(b).map(|(a, b)| *a || *b).collect()
}
