//! Runs translated programs, one workgroup at a time.
//!
//! Control flow keeps a mask per block. A block is entered only with an active lane, and left when none is active any
//! more; a full mask costs nothing. Where the threads of a workgroup cannot diverge, no masks exist.

use hologram_isa::{IsaError, Opcode, shown_index};

use super::code::*;
use super::memory::{Memory, Moves, NO_LANE};
use super::subgroup::{Register, subgroup, tiles};
use super::translate::MAX_MASKS;
use crate::kernel::RawSlice;

/// The memory and arguments of a launch.
pub(crate) struct Launch<'a> {
    pub(crate) code: &'a Code,
    /// The memory of the buffer parameters, in order.
    pub(crate) slices: &'a [RawSlice],
    /// The words of the scalar parameters, in order.
    pub(crate) scalars: &'a [u64],
    pub(crate) grid: [u32; 3],
}

/// Where a program failed, and why.
struct Fault {
    line: u32,
    thread: usize,
    message: String,
}

/// How a block ends, or a fault.
type Outcome = Result<Flow, Box<Fault>>;

#[derive(Clone, Copy)]
struct Mask {
    words: *mut u32,
    /// Active lanes.
    active: u32,
}

/// One worker at a launch.
pub(crate) struct Machine<'a> {
    code: &'a Code,
    grid: [u32; 3],
    arena: *mut u32,
    masks: [Mask; MAX_MASKS],
    memories: [Memory; 2 * hologram_isa::MAX_PARAMS],
}

impl<'a> Machine<'a> {
    /// Prepares a launch in an arena of [`Code::bytes`].
    pub(crate) fn new(launch: &Launch<'a>, arena: &'a mut [u8]) -> Machine<'a> {
        let code = launch.code;
        assert!(arena.len() >= code.bytes() && arena.as_ptr().addr().is_multiple_of(64), "the arena is too small");
        let arena: *mut u32 = arena.as_mut_ptr().cast();
        let nowhere = Memory { data: arena.cast(), len: 0 };
        let mut machine = Machine {
            code,
            grid: launch.grid,
            arena,
            masks: [Mask { words: arena, active: 0 }; MAX_MASKS],
            memories: [nowhere; 2 * hologram_isa::MAX_PARAMS],
        };
        for (memory, array) in machine.memories.iter_mut().zip(&code.arrays) {
            *memory = match array.kind {
                ArrayKind::Buffer { slice, size } => {
                    let slice = launch.slices[slice];
                    Memory { data: slice.data, len: slice.bytes / size }
                }
                // SAFETY: places of the code lie in the arena, whose size was checked.
                ArrayKind::Shared { place, len } => Memory { data: unsafe { arena.add(place as usize) }.cast(), len },
                ArrayKind::Scalar => nowhere,
            };
        }
        for (i, n) in launch.grid.into_iter().enumerate() {
            machine.set(GRID + i as u32, n);
        }
        let scalars = code.scalars.iter().copied().zip(launch.scalars.iter().copied());
        for (place, word) in scalars.chain(code.constants.iter().copied()) {
            // Low word first, as the processor stores a value of 64 bits. Each place has two words.
            machine.set(place, word as u32);
            machine.set(place + 1, (word >> 32) as u32);
        }
        // The outermost mask: nothing removes lanes from it, so it serves every workgroup.
        machine.own_mask(0);
        machine.masks[0].active = code.threads as u32;
        for lane in 0..code.lanes {
            machine.set(code.masks + lane as u32, (lane < code.threads) as u32);
        }
        let [x, y, _] = code.workgroup.map(|n| n as usize);
        for (op, place) in &code.builtins {
            let (place, lanes) = (*place, code.lanes);
            // Most workgroups have one dimension. Divisions would take longer than a small program.
            match op {
                Opcode::ThreadX if x >= lanes => machine.fill(place, lanes, |thread| thread),
                Opcode::ThreadX => machine.fill(place, lanes, |thread| thread % x),
                Opcode::ThreadY => machine.fill(place, lanes, |thread| thread / x % y),
                Opcode::ThreadZ => machine.fill(place, lanes, |thread| thread / x / y),
                Opcode::Lane => machine.fill(place, lanes, |thread| thread % 32),
                _ => machine.fill(place, lanes, |thread| thread / 32),
            }
        }
        machine
    }

    /// Sets a register of every lane.
    fn fill(&mut self, place: u32, lanes: usize, word: impl Fn(usize) -> usize) {
        for thread in 0..lanes {
            self.set(place + thread as u32, word(thread) as u32);
        }
    }

    /// Runs the workgroup of this number in the grid.
    ///
    /// # Errors
    /// [`IsaError::Run`].
    pub(crate) fn run_group(&mut self, number: u64) -> Result<(), IsaError> {
        let code = self.code;
        let [x, y] = [self.grid[0].max(1) as u64, self.grid[1].max(1) as u64];
        let group = [number % x, number / x % y, number / x / y].map(|n| n as u32);
        for (i, n) in group.into_iter().enumerate() {
            self.set(GROUP + i as u32, n);
        }
        let (shared, words) = code.shared;
        // SAFETY: the shared memory is a part of the arena.
        unsafe { self.at(shared).write_bytes(0, words) };
        match self.block(&code.body, 0) {
            Ok(_) => Ok(()),
            Err(fault) => Err(IsaError::Run {
                program: code.name.clone(),
                line: fault.line,
                group,
                thread: fault.thread as u32,
                message: fault.message,
            }),
        }
    }

    #[inline(always)]
    fn at(&self, place: Place) -> *mut u32 {
        // SAFETY: places of the code lie in the arena, whose size was checked.
        unsafe { self.arena.add(place as usize) }
    }

    #[inline(always)]
    fn word(&self, place: Place) -> u32 {
        // SAFETY: the place lies in the arena, initialised memory that only this worker uses.
        unsafe { self.at(place).read() }
    }

    #[inline(always)]
    fn set(&mut self, place: Place, word: u32) {
        // SAFETY: the place lies in the arena, which only this worker uses.
        unsafe { self.at(place).write(word) }
    }

    fn is_full(&self, mask: MaskId) -> bool {
        self.masks[mask].active as usize == self.code.threads
    }

    /// The first active thread.
    fn first(&self, mask: MaskId) -> usize {
        // SAFETY: a mask has a word for each lane.
        (0..self.code.threads).find(|t| unsafe { self.masks[mask].words.add(*t).read() } != 0).unwrap_or(0)
    }

    /// Runs a block whose mask has an active lane, until its end or until none is active.
    fn block(&mut self, nodes: &[Node], mask: MaskId) -> Outcome {
        let lanes = self.code.lanes;
        for node in nodes {
            match node {
                Node::Lanes { f, dst, args: [a, b, c] } => {
                    // SAFETY: the translator gives each operand the lanes or the word that the form reads, and the
                    // result a register that no operand has; the level is one that the processor has.
                    unsafe { f(self.at(*dst), self.at(*a), self.at(*b), self.at(*c), lanes) }
                }
                Node::One { f, dst, args: [a, b, c] } => {
                    // SAFETY: the translator gives uniform values two words each, at even places.
                    unsafe { f(self.at(*dst), self.at(*a), self.at(*b), self.at(*c)) }
                }
                Node::Load { array, moves, dst, index, line } => {
                    self.load(*array, moves, *dst, *index, mask).or_else(|e| self.outside(*array, e, *line))?;
                }
                Node::Store { array, moves, index, value, line } => {
                    self.store(*array, moves, *index, *value, mask).or_else(|e| self.outside(*array, e, *line))?;
                }
                Node::Atomic { array, update, dst, index, values: [a, b], line } => {
                    let (indices, words) = (self.at(*index), self.masks[mask].words);
                    let (dst, a, b) = (self.at(*dst), self.at(*a), self.at(*b));
                    // SAFETY: registers and masks have `lanes` values; the array's elements have the operation's type.
                    let failed = unsafe { update(dst, self.memories[*array], indices, a, b, words, lanes) };
                    self.failed(failed, indices).or_else(|e| self.outside(*array, e, *line))?;
                }
                Node::LoadOne { array, moves, dst, index, line } => {
                    let (memory, index) = (self.memories[*array], self.word(*index));
                    if index as usize >= memory.len {
                        self.outside(*array, (self.first(mask), index), *line)?;
                    }
                    // SAFETY: the index is inside.
                    unsafe { (moves.load_run)(self.at(*dst), memory.data.add(index as usize * moves.size), 1) }
                }
                Node::Spread { dst, from, wide: false } => {
                    let word = self.word(*from);
                    // SAFETY: a register has `lanes` words.
                    unsafe { std::slice::from_raw_parts_mut(self.at(*dst), lanes) }.fill(word);
                }
                Node::Spread { dst, from, wide: true } => {
                    // SAFETY: a register of 64 bits has `lanes` values of two words, at an even place like the uniform
                    // one.
                    unsafe {
                        let value = self.at(*from).cast::<u64>().read();
                        std::slice::from_raw_parts_mut(self.at(*dst).cast::<u64>(), lanes).fill(value);
                    }
                }
                // SAFETY: a register has `lanes` words.
                Node::Iota { dst, base } => unsafe { (self.code.ops.iota)(self.at(*dst), self.word(*base), lanes) },
                Node::Commit { dst, from, wide } => {
                    let (dst, from) = (self.at(*dst), self.at(*from));
                    let (words, blend) = match wide {
                        false => (lanes, self.code.ops.blend),
                        true => (2 * lanes, self.code.ops.blend_wide),
                    };
                    // SAFETY: both registers lie in the arena with this many words, and they are different.
                    unsafe {
                        if self.is_full(mask) {
                            dst.copy_from_nonoverlapping(from, words);
                        } else {
                            blend(dst, from, self.masks[mask].words, lanes);
                        }
                    }
                }
                Node::NoZero { op, divisor, wide, line } => self.no_zero(*op, *divisor, *wide, mask, *line)?,
                Node::Subgroup { op, ty, dst, value, lane } => {
                    let register = |place| Register { words: self.at(place), lanes };
                    // SAFETY: registers and masks have as many words, those of 64 bits twice as many; the result is no
                    // operand.
                    unsafe {
                        let lane = std::slice::from_raw_parts(self.at(*lane), lanes);
                        let mask = std::slice::from_raw_parts(self.masks[mask].words, lanes);
                        subgroup(*op, *ty, register(*dst), register(*value), lane, mask);
                    }
                }
                Node::Tile { ty, dst, args } => {
                    let register = |place| Register { words: self.at(place), lanes };
                    // SAFETY: the operands have 32, 32 and 64 bits, the result 64; the result is no operand.
                    unsafe { tiles(*ty, register(*dst), args.map(register)) }
                }
                Node::If { cond, mask: inner, then, otherwise } => {
                    let flow = self.branch(*cond, mask, *inner, then, otherwise)?;
                    if flow != Flow::Next || self.masks[mask].active == 0 {
                        return Ok(flow);
                    }
                }
                Node::Jump { cond, flow } => {
                    if cond.is_none_or(|c| self.word(c) != 0) {
                        return Ok(*flow);
                    }
                }
                Node::Leave { cond, to } => {
                    self.leave(*cond, mask, *to);
                    if self.masks[mask].active == 0 {
                        return Ok(Flow::Next);
                    }
                }
                Node::For { .. } | Node::ForAffine { .. } | Node::ForLanes { .. } | Node::Loop { .. } => {
                    let flow = self.any_loop(node, mask)?;
                    if flow != Flow::Next || self.masks[mask].active == 0 {
                        return Ok(flow);
                    }
                }
            }
        }
        Ok(Flow::Next)
    }

    fn branch(&mut self, cond: Cond, mask: MaskId, inner: MaskId, then: &[Node], otherwise: &[Node]) -> Outcome {
        let Mask { words: outer, active } = self.masks[mask];
        if let Cond::Uniform(place) = cond {
            return self.block(if self.word(place) != 0 { then } else { otherwise }, mask);
        }
        // Lanes that leave a loop are removed from all masks up to the loop's own. So the other branch's mask must not
        // share words that an earlier branch left in it.
        let other = inner - 1;
        self.own_mask(other);
        match cond {
            Cond::Uniform(_) => {}
            Cond::Lanes(place) => {
                let (place, lanes) = (self.at(place), self.code.lanes);
                self.own_mask(inner);
                // SAFETY: masks and registers have `lanes` words.
                self.masks[inner].active = unsafe { (self.code.ops.and)(self.masks[inner].words, outer, place, lanes) };
                if !otherwise.is_empty() {
                    let words = self.masks[other].words;
                    // SAFETY: masks and registers have `lanes` words.
                    self.masks[other].active = unsafe { (self.code.ops.and_not)(words, outer, place, lanes) };
                }
            }
            Cond::Below { base, bound } => {
                let (base, bound) = (self.word(base), self.word(bound));
                self.below(mask, inner, base, bound);
                let taken = self.masks[inner].active;
                if taken == 0 {
                    self.masks[other] = self.masks[mask];
                } else if !otherwise.is_empty() {
                    let (words, taken_words) = (self.masks[other].words, self.masks[inner].words);
                    // SAFETY: masks have `lanes` words.
                    self.masks[other].active =
                        unsafe { (self.code.ops.and_not)(words, outer, taken_words, self.code.lanes) };
                }
                debug_assert!(taken <= active);
            }
        }
        if self.masks[inner].active > 0 {
            self.block(then, inner)?;
        }
        if !otherwise.is_empty() && self.masks[other].active > 0 {
            self.block(otherwise, other)?;
        }
        // Lanes that left a loop from inside have been removed from `mask`; no other flow leaves a divergent branch.
        Ok(Flow::Next)
    }

    /// Points a mask, which may share an outer one's words, at its own words.
    fn own_mask(&mut self, mask: MaskId) {
        self.masks[mask].words = self.at(self.code.masks + (mask * self.code.lanes) as u32);
    }

    /// Makes `inner` the lanes of `mask` where base + lane < bound. If that is all of them, `inner` shares the words of
    /// `mask`.
    fn below(&mut self, mask: MaskId, inner: MaskId, base: u32, bound: u32) {
        let threads = self.code.threads as u32;
        let last = base.checked_add(threads - 1);
        if last.is_some_and(|last| last < bound) {
            self.masks[inner] = self.masks[mask];
        } else if last.is_some() && base >= bound {
            self.masks[inner].active = 0;
        } else {
            self.own_mask(inner);
            let (words, outer) = (self.masks[inner].words, self.masks[mask].words);
            // SAFETY: masks have `lanes` words.
            self.masks[inner].active = unsafe { (self.code.ops.below)(words, outer, base, bound, self.code.lanes) };
        }
    }

    /// Removes the active lanes where the condition holds from the masks from `mask` outward to `to`.
    fn leave(&mut self, cond: Option<Place>, mask: MaskId, to: MaskId) {
        let (spare, lanes, own) = (self.at(self.code.spare), self.code.lanes, self.masks[mask].words);
        // SAFETY: masks and registers have `lanes` words.
        let leaving = unsafe { (self.code.ops.and)(spare, own, cond.map_or(own.cast_const(), |c| self.at(c)), lanes) };
        if leaving == 0 {
            return;
        }
        for mask in to..=mask {
            let words = self.masks[mask].words;
            // SAFETY: masks have `lanes` words. Some masks share them; removing lanes twice is the same as once.
            self.masks[mask].active = unsafe { (self.code.ops.and_not)(words, words, spare, lanes) };
        }
    }

    fn any_loop(&mut self, node: &Node, mask: MaskId) -> Outcome {
        match node {
            Node::For { var, start, end, step, signed, line, body } => {
                let widen = |word: u32| if *signed { word as i32 as i64 } else { word as i64 };
                let [mut next, end, step] = [*start, *end, *step].map(|place| widen(self.word(place)));
                if step <= 0 {
                    return self.bad_step(self.first(mask), step, *line);
                }
                self.enter(body, mask);
                while next < end {
                    self.set(*var, next as u32);
                    next += step;
                    if let Some(flow) = self.round(body, mask)? {
                        return Ok(flow);
                    }
                }
            }
            Node::ForAffine { var, start, end, step, line, body } => {
                let [start, end, step] = [*start, *end, *step].map(|place| self.word(place));
                if step == 0 {
                    return self.bad_step(self.first(mask), 0, *line);
                }
                self.enter(body, mask);
                let Some(alive) = body.alive else { return Ok(Flow::Next) };
                // Every lane has counted `ahead` so far, so it goes on if start + lane < end - ahead.
                let mut ahead = 0u64;
                while let Some(bound) = (end as u64).checked_sub(ahead) {
                    self.below(alive, alive + 1, start, bound as u32);
                    if self.masks[alive + 1].active == 0 {
                        break;
                    }
                    if self.masks[alive + 1].words == self.masks[alive].words {
                        // A lane that goes to the next round stays alive.
                        self.copy_mask(alive, alive + 1);
                    }
                    self.set(*var, start.wrapping_add(ahead as u32));
                    ahead += step as u64;
                    self.block(&body.nodes, alive + 1)?;
                }
            }
            Node::ForLanes { var, end, step, signed, advance, line, body } => {
                let (var, end, step, lanes) = (self.at(*var), self.at(*end), self.at(*step), self.code.lanes);
                self.enter(body, mask);
                let Some(alive) = body.alive else { return Ok(Flow::Next) };
                let words = self.masks[alive].words;
                let mut active = 0;
                for lane in 0..lanes {
                    // SAFETY: registers and masks have `lanes` words.
                    let (next, end, step, word) = unsafe {
                        (var.add(lane).read(), end.add(lane).read(), step.add(lane).read(), words.add(lane).read())
                    };
                    let widen = |word: u32| if *signed { word as i32 as i64 } else { word as i64 };
                    if word != 0 && widen(step) <= 0 {
                        return self.bad_step(lane, widen(step), *line);
                    }
                    let word = word & (widen(next) < widen(end)) as u32;
                    active += word;
                    // SAFETY: masks have `lanes` words.
                    unsafe { words.add(lane).write(word) };
                }
                self.masks[alive].active = active;
                while self.masks[alive].active > 0 {
                    self.round(body, mask)?;
                    // SAFETY: registers and masks have `lanes` words.
                    self.masks[alive].active = unsafe { advance(var, end, step, words, lanes) };
                }
            }
            Node::Loop { max, body } => {
                self.enter(body, mask);
                for _ in 0..*max {
                    if let Some(flow) = self.round(body, mask)? {
                        return Ok(flow);
                    }
                }
            }
            _ => {}
        }
        Ok(Flow::Next)
    }

    fn copy_mask(&mut self, from: MaskId, to: MaskId) {
        self.own_mask(to);
        let Mask { words, active } = self.masks[from];
        self.masks[to].active = active;
        // SAFETY: masks have `lanes` words, and the two have different ones.
        unsafe { self.masks[to].words.copy_from_nonoverlapping(words, self.code.lanes) };
    }

    /// Starts a loop. If threads may leave it at different times, it gets a mask of the threads in it.
    fn enter(&mut self, body: &Body, mask: MaskId) {
        if let Some(alive) = body.alive {
            self.copy_mask(mask, alive);
        }
    }

    /// Runs a loop's body once, with all threads in the loop. Returns how the loop ends, if it does.
    fn round(&mut self, body: &Body, mask: MaskId) -> Result<Option<Flow>, Box<Fault>> {
        match body.alive {
            None => Ok(match self.block(&body.nodes, mask)? {
                Flow::Next | Flow::Continue(0) => None,
                Flow::Break(0) => Some(Flow::Next),
                Flow::Break(n) => Some(Flow::Break(n - 1)),
                Flow::Continue(n) => Some(Flow::Continue(n - 1)),
            }),
            Some(alive) => {
                self.copy_mask(alive, alive + 1);
                self.block(&body.nodes, alive + 1)?;
                Ok((self.masks[alive].active == 0).then_some(Flow::Next))
            }
        }
    }

    fn load(
        &mut self,
        array: usize,
        moves: &Moves,
        dst: Place,
        index: Index,
        mask: MaskId,
    ) -> Result<(), (usize, u32)> {
        let memory = self.memories[array];
        let indices = match index {
            Index::Uniform(_) => return Ok(()),
            Index::Lanes(place) => self.at(place),
            Index::Affine(place) => {
                let base = self.word(place);
                if base as usize + self.code.threads <= memory.len {
                    // SAFETY: the elements are inside. Inactive lanes may be set too: the result is a local register or
                    // a temporary.
                    unsafe {
                        let from = memory.data.add(base as usize * moves.size);
                        (moves.load_run)(self.at(dst), from, self.code.threads);
                    }
                    return Ok(());
                }
                self.indices(base)
            }
        };
        // SAFETY: registers and masks have `lanes` words; the function reads no element outside.
        let failed = unsafe { (moves.gather)(self.at(dst), memory, indices, self.masks[mask].words, self.code.lanes) };
        self.failed(failed, indices)
    }

    fn store(
        &mut self,
        array: usize,
        moves: &Moves,
        index: Index,
        value: Value,
        mask: MaskId,
    ) -> Result<(), (usize, u32)> {
        let memory = self.memories[array];
        let value = match value {
            Value::Uniform(place) | Value::Lanes(place) if matches!(index, Index::Uniform(_)) => {
                // The last active thread's value stays.
                let lane = match value {
                    Value::Uniform(_) => 0,
                    // SAFETY: a mask has a word for each lane.
                    Value::Lanes(_) => (0..self.code.threads)
                        .rfind(|t| unsafe { self.masks[mask].words.add(*t).read() } != 0)
                        .unwrap_or(0),
                };
                self.at(place + (lane * moves.size.div_ceil(4)) as u32)
            }
            Value::Uniform(place) | Value::Lanes(place) => self.at(place),
        };
        let indices = match index {
            Index::Lanes(place) => self.at(place),
            Index::Uniform(place) => {
                let index = self.word(place);
                if index as usize >= memory.len {
                    return Err((self.first(mask), index));
                }
                // SAFETY: the index is inside.
                unsafe { (moves.store_run)(memory.data.add(index as usize * moves.size), value, 1) };
                return Ok(());
            }
            Index::Affine(place) => {
                let base = self.word(place);
                if self.is_full(mask) && base as usize + self.code.threads <= memory.len {
                    // SAFETY: the elements are inside.
                    unsafe {
                        (moves.store_run)(memory.data.add(base as usize * moves.size), value, self.code.threads);
                    }
                    return Ok(());
                }
                self.indices(base)
            }
        };
        // SAFETY: as in `load`.
        let failed = unsafe { (moves.scatter)(memory, indices, value, self.masks[mask].words, self.code.lanes) };
        self.failed(failed, indices)
    }

    /// The indices base + lane, in the spare register.
    fn indices(&mut self, base: u32) -> *mut u32 {
        let spare = self.at(self.code.spare);
        // SAFETY: registers have `lanes` words.
        unsafe { (self.code.ops.iota)(spare, base, self.code.lanes) };
        spare
    }

    fn failed(&self, lane: usize, indices: *const u32) -> Result<(), (usize, u32)> {
        if lane == NO_LANE {
            return Ok(());
        }
        // SAFETY: a lane's number is less than `lanes`.
        Err((lane, unsafe { indices.add(lane).read() }))
    }

    #[cold]
    fn outside(&self, array: usize, (thread, index): (usize, u32), line: u32) -> Result<(), Box<Fault>> {
        let Array { name, kind } = &self.code.arrays[array];
        let what = if matches!(kind, ArrayKind::Shared { .. }) { "shared array" } else { "buffer" };
        let (len, index) = (self.memories[array].len, shown_index(index));
        let message = format!("element {index} of {what} {name} is outside: it has {len} elements");
        Err(Box::new(Fault { line, thread, message }))
    }

    #[cold]
    fn bad_step(&self, thread: usize, step: i64, line: u32) -> Outcome {
        let message = format!("the step of a for loop is {step}, it must be positive");
        Err(Box::new(Fault { line, thread, message }))
    }

    fn no_zero(&self, op: Opcode, divisor: Value, wide: bool, mask: MaskId, line: u32) -> Result<(), Box<Fault>> {
        let words = if wide { 2 } else { 1 };
        // SAFETY: the translator states how many words a value has.
        let is_zero = |at: *const u32| unsafe { (0..words).all(|i| at.add(i).read() == 0) };
        let thread = match divisor {
            Value::Uniform(place) if !is_zero(self.at(place)) => return Ok(()),
            Value::Uniform(_) => self.first(mask),
            Value::Lanes(place) => {
                let (values, mask, lanes) = (self.at(place), self.masks[mask].words, self.code.lanes);
                let any_zero = if wide { self.code.ops.any_zero_wide } else { self.code.ops.any_zero };
                // SAFETY: masks and registers have `lanes` values.
                unsafe {
                    if !any_zero(values, mask, lanes) {
                        return Ok(());
                    }
                    (0..lanes).find(|l| is_zero(values.add(l * words)) && mask.add(*l).read() != 0).unwrap_or(0)
                }
            }
        };
        Err(Box::new(Fault { line, thread, message: format!("{} by zero", op.info().mnemonic) }))
    }
}
