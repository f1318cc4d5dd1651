//! Checks programs. A verified program keeps these rules, which devices rely on:
//!
//! 1. Names are identifiers and differ; parameters and shared arrays share one namespace, registers have their own.
//! 2. Every workgroup size is at least 1, their product at most [`MAX_WORKGROUP`]; shared arrays are not empty and hold
//!    at most [`MAX_SHARED_BYTES`] together. The counts stay within [`MAX_NESTING`] and the limits beside it.
//! 3. Every register, parameter and shared array that a statement names exists.
//! 4. Operands, results and conditions have the types that the instruction table gives; constants are words of their
//!    type; `.fast` is used only where the table has that form.
//! 5. Loads, stores and atomic operations name a memory with the mnemonic's element type; loads need a readable buffer,
//!    stores a writable one, atomic operations one that is both; no index of a shared array is always out of bounds
//!    (see the range module).
//! 6. A register is read only where every path from the start assigns it. What a loop's body or one branch assigns does
//!    not count after it.
//! 7. A `for` counter is an `i32` or `u32` that only its `for` sets, and is read only inside the loop. A constant step
//!    is positive.
//! 8. `loop` has at least one iteration; `break` and `continue` name an enclosing loop.
//! 9. Every thread of the workgroup reaches each barrier and product of tiles (see the uniformity module); products of
//!    tiles need workgroups of whole subgroups.

use crate::builder::{Value, check_args};
use crate::program::*;
use crate::table::Signature;
use crate::text::{CONSTANT_WORDS, is_name_byte, statement_lines};
use crate::{IsaError, Type};

mod lint;
mod range;
mod uniformity;

pub use lint::{Warning, lint};

/// Checks everything that devices rely on: names and limits, operand types, that registers are assigned before they are
/// read on every path, the direction of memory access and indices of shared arrays, loops, and that the whole workgroup
/// reaches every barrier. A barrier is rejected if a branch or loop around it depends on a register that may differ
/// between threads.
///
/// # Errors
/// [`IsaError::Verify`] with the first fault in text order (indices of shared arrays, then barriers, after all others)
/// and its line: that of the statement's source, or for a program built in memory that of [`print()`](crate::print())'s
/// text.
pub fn verify(program: &Program) -> Result<(), IsaError> {
    let error = |line, message| Err(IsaError::Verify { program: program.name.clone(), line, message });
    if let Err((_, message)) = check_header(program) {
        return error(1, message);
    }
    let mut checker = Checker::new(program);
    let body = checker.block(&program.body, 1);
    if let Err(Fault { line, message }) =
        body.and_then(|_| range::check(program)).and_then(|_| uniformity::check(program))
    {
        return error(line, message);
    }
    Ok(())
}

/// A fault of a statement.
struct Fault {
    line: u32,
    message: String,
}

/// The line of statement `index` (outer before inner, in text order), whose own line is `line`.
fn line_of(program: &Program, index: usize, line: u32) -> u32 {
    if line != 0 { line } else { statement_lines(program).get(index).copied().unwrap_or_default() }
}

/// Rules 1 and 2. The error contains the index of the faulty item: 0 for the kernel, then its parameters, then its
/// shared arrays.
pub(crate) fn check_header(program: &Program) -> Result<(), (usize, String)> {
    let arrays = program.shared.iter().map(|a| &a.name);
    let names: Vec<&String> = program.params.iter().map(|p| &p.name).chain(arrays).collect();
    if program.params.len() > MAX_PARAMS || program.shared.len() > MAX_PARAMS {
        return Err((0, format!("more than {MAX_PARAMS} parameters or shared arrays")));
    }
    check_name(&program.name).map_err(|m| (0, format!("the kernel's name {m}")))?;
    if program.workgroup.iter().any(|n| *n == 0 || *n > MAX_WORKGROUP) || program.workgroup_threads() > MAX_WORKGROUP {
        let [x, y, z] = program.workgroup;
        let rule = format!("each size must be at least 1 and their product at most {MAX_WORKGROUP}");
        return Err((0, format!("workgroup({x}, {y}, {z}): {rule}")));
    }
    for (i, name) in names.iter().enumerate() {
        check_name(name).map_err(|m| (1 + i, format!("the name of a parameter or shared array {m}")))?;
        if CONSTANT_WORDS.contains(&name.as_str()) {
            return Err((1 + i, format!("{name} is a constant and cannot be a name")));
        }
        if names[..i].contains(name) {
            return Err((1 + i, format!("the name {name} is used twice")));
        }
    }
    let mut bytes = 0;
    for (i, array) in program.shared.iter().enumerate() {
        let item = 1 + program.params.len() + i;
        bytes += u64::from(array.len) * array.element.size() as u64;
        if array.len == 0 {
            return Err((item, format!("the shared array {} is empty", array.name)));
        }
        if bytes > MAX_SHARED_BYTES as u64 {
            return Err((item, format!("the shared arrays need more than {MAX_SHARED_BYTES} bytes")));
        }
    }
    if program.registers.len() > MAX_REGISTERS {
        return Err((0, format!("more than {MAX_REGISTERS} registers")));
    }
    let mut registers = std::collections::HashSet::new();
    for Register { name, .. } in &program.registers {
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_name_byte) {
            return Err((
                0,
                format!("register name {name:?}: expected at most {MAX_NAME} of letters, digits, _ and ."),
            ));
        }
        if !registers.insert(name) {
            return Err((0, format!("two registers are named %{name}")));
        }
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), String> {
    let starts_well = name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic());
    if name.len() > MAX_NAME {
        Err(format!("is longer than {MAX_NAME} bytes"))
    } else if !starts_well || !name.bytes().all(is_name_byte) {
        Err(format!("is {name:?}: expected a letter or _, then letters, digits, _ and ."))
    } else {
        Ok(())
    }
}

/// Walks the body once for rules 3 to 8.
struct Checker<'a> {
    program: &'a Program,
    /// Statements visited so far; the current one has index `statements - 1`.
    statements: usize,
    /// Whether a register is the counter of a `for` visited so far.
    counter: Vec<bool>,
    /// Whether an instruction visited so far sets a register.
    set: Vec<bool>,
    /// Registers assigned on every path to here.
    assigned: Vec<bool>,
    /// The registers set in `assigned`, in order, to undo a block's assignments.
    trail: Vec<Reg>,
    /// False after an unconditional `break` or `continue`.
    reachable: bool,
    /// Open loops.
    loops: u32,
}

impl<'a> Checker<'a> {
    fn new(program: &'a Program) -> Checker<'a> {
        let registers = program.registers.len();
        Checker {
            program,
            statements: 0,
            counter: vec![false; registers],
            set: vec![false; registers],
            assigned: vec![false; registers],
            trail: Vec::new(),
            reachable: true,
            loops: 0,
        }
    }

    fn block(&mut self, block: &[Stmt], depth: usize) -> Result<(), Fault> {
        for stmt in block {
            let index = self.statements;
            self.statements += 1;
            let program = self.program;
            let fault = |message| Fault { line: line_of(program, index, stmt.line), message };
            if depth > MAX_NESTING {
                return Err(fault(format!("blocks are nested more than {MAX_NESTING} deep")));
            }
            if index >= MAX_STATEMENTS {
                return Err(fault(format!("more than {MAX_STATEMENTS} statements")));
            }
            self.head(&stmt.kind)
                .map_err(|message| Fault { line: line_of(self.program, index, stmt.line), message })?;
            match &stmt.kind {
                StmtKind::Inst(_) => {}
                StmtKind::If { then, otherwise, .. } => {
                    let reachable = self.reachable;
                    let (then, then_falls) = self.branch(then, depth)?;
                    self.reachable = reachable;
                    let (otherwise, otherwise_falls) = self.branch(otherwise, depth)?;
                    self.reachable = then_falls || otherwise_falls;
                    // Only paths that reach the end of the `if` count.
                    let after = match (then_falls, otherwise_falls) {
                        (true, false) => then,
                        (false, _) => otherwise,
                        (true, true) => {
                            let set: std::collections::HashSet<Reg> = otherwise.into_iter().collect();
                            then.into_iter().filter(|reg| set.contains(reg)).collect()
                        }
                    };
                    for reg in after {
                        self.assign(reg);
                    }
                }
                StmtKind::For { var, body, .. } => {
                    let reachable = self.reachable;
                    let mark = self.trail.len();
                    self.assign(*var);
                    self.loop_body(body, depth)?;
                    self.take_back(mark);
                    self.reachable = reachable;
                }
                StmtKind::Loop { body, .. } => {
                    let reachable = self.reachable;
                    let mark = self.trail.len();
                    self.loop_body(body, depth)?;
                    self.take_back(mark);
                    self.reachable = reachable;
                }
                StmtKind::Break { cond, .. } | StmtKind::Continue { cond, .. } => self.reachable &= cond.is_some(),
            }
        }
        Ok(())
    }

    /// Checks a branch. Returns the registers that it assigns, undone, and whether threads reach its end.
    fn branch(&mut self, block: &[Stmt], depth: usize) -> Result<(Vec<Reg>, bool), Fault> {
        let mark = self.trail.len();
        self.block(block, depth + 1)?;
        Ok((self.take_back(mark), self.reachable))
    }

    fn loop_body(&mut self, body: &[Stmt], depth: usize) -> Result<(), Fault> {
        self.loops += 1;
        self.block(body, depth + 1)?;
        self.loops -= 1;
        Ok(())
    }

    fn assign(&mut self, reg: Reg) {
        let assigned = &mut self.assigned[reg.0 as usize];
        if !*assigned {
            *assigned = true;
            self.trail.push(reg);
        }
    }

    fn take_back(&mut self, mark: usize) -> Vec<Reg> {
        let taken = self.trail.split_off(mark);
        for reg in &taken {
            self.assigned[reg.0 as usize] = false;
        }
        taken
    }

    /// Checks a statement without its blocks and assigns an instruction's result.
    fn head(&mut self, kind: &StmtKind) -> Result<(), String> {
        match kind {
            StmtKind::Inst(inst) => self.inst(inst),
            StmtKind::If { cond, .. } => self.condition("if", *cond),
            StmtKind::For { var, start, end, step, .. } => {
                let ty = self.register(*var)?.ty;
                let name = &self.program.registers[var.0 as usize].name;
                if !matches!(ty, Type::I32 | Type::U32) {
                    return Err(format!("the counter %{name} must be an i32 or u32, not {ty}"));
                }
                for (what, operand) in [("first value", start), ("limit", end), ("step", step)] {
                    let value = self.value(*operand)?;
                    if value.ty != ty {
                        return Err(format!("the {what} must be {ty} like the counter %{name}, not {}", value.ty));
                    }
                }
                if let Operand::Const(_, word) = *step
                    && (word == 0 || (ty == Type::I32 && (word as u32 as i32) < 0))
                {
                    return Err("the step must be greater than 0".into());
                }
                if self.set[var.0 as usize] {
                    return Err(format!("the counter %{name} is also set by an instruction"));
                }
                if self.assigned[var.0 as usize] {
                    return Err(format!("the counter %{name} already counts a loop around this one"));
                }
                self.counter[var.0 as usize] = true;
                Ok(())
            }
            StmtKind::Loop { max: 0, .. } => Err("a loop must have at least 1 iteration".into()),
            StmtKind::Loop { .. } => Ok(()),
            StmtKind::Break { depth, cond } => self.jump("break", *depth, *cond),
            StmtKind::Continue { depth, cond } => self.jump("continue", *depth, *cond),
        }
    }

    fn jump(&mut self, word: &str, depth: u32, cond: Option<Operand>) -> Result<(), String> {
        if depth >= self.loops {
            return Err(format!("{word} refers to the enclosing loop {depth}, but only {} exist", self.loops));
        }
        cond.map_or(Ok(()), |cond| self.condition(word, cond))
    }

    fn condition(&self, word: &str, cond: Operand) -> Result<(), String> {
        match self.value(cond)?.ty {
            Type::Bool => Ok(()),
            ty => Err(format!("the condition of {word} must be bool, not {ty}")),
        }
    }

    fn inst(&mut self, inst: &Inst) -> Result<(), String> {
        let info = inst.op.info();
        let name = info.mnemonic;
        let args = inst.args.iter().map(|a| self.value(*a)).collect::<Result<Vec<_>, _>>()?;
        check_args(inst.op, inst.ty, &args)?;
        if !info.signature.carries_type() && inst.ty != Type::U32 {
            return Err(format!("{name} has no type, but was given {}", inst.ty));
        }
        if inst.fast && !inst.op.has_fast(inst.ty) {
            return Err(format!("{name}.{} has no fast form", inst.ty));
        }
        let threads = self.program.workgroup_threads();
        if info.signature == Signature::Tile && !threads.is_multiple_of(SUBGROUP_SIZE) {
            return Err(format!(
                "{name} requires whole subgroups of {SUBGROUP_SIZE} threads, but the workgroup has {threads}"
            ));
        }
        match (inst.memory, info.signature.has_memory()) {
            (None, true) => return Err(format!("{name} requires a buffer or shared array")),
            (Some(_), false) => return Err(format!("{name} has no memory operand")),
            (Some(memory), true) => self.access(inst, memory)?,
            (None, false) => {}
        }
        match (inst.dst, info.signature.result(inst.ty)) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err(format!("{name} requires a register for its result")),
            (Some(_), None) => Err(format!("{name} has no result")),
            (Some(dst), Some(ty)) => {
                let register = self.register(dst)?;
                if register.ty != ty {
                    return Err(format!("{name} gives {ty}, but %{} is {}", register.name, register.ty));
                }
                if self.counter[dst.0 as usize] {
                    return Err(format!(
                        "%{} is the counter of a for loop, which only the loop may set",
                        register.name
                    ));
                }
                self.set[dst.0 as usize] = true;
                self.assign(dst);
                Ok(())
            }
        }
    }

    /// Rule 5.
    fn access(&self, inst: &Inst, memory: Memory) -> Result<(), String> {
        let signature = inst.op.info().signature;
        let (load, atomic) = (signature == Signature::Load, signature.is_atomic());
        let (name, element) = match memory {
            Memory::Param(index) => match self.program.params.get(index as usize) {
                Some(Param { name, kind: ParamKind::Buffer { element, access } }) => {
                    match access {
                        Access::Read | Access::Write if atomic => {
                            return Err(format!("{name} must be readwrite for an atomic operation"));
                        }
                        Access::Write if load => {
                            return Err(format!("{name} is write-only and cannot be loaded from"));
                        }
                        Access::Read if !load => {
                            return Err(format!("{name} is read-only and cannot be stored into"));
                        }
                        _ => {}
                    }
                    (name, *element)
                }
                Some(Param { name, .. }) => return Err(format!("{name} is a scalar, not a buffer")),
                None => return Err(format!("there is no parameter {index}")),
            },
            Memory::Shared(index) => {
                let Some(array) = self.program.shared.get(index as usize) else {
                    return Err(format!("there is no shared array {index}"));
                };
                (&array.name, array.element)
            }
        };
        if element == inst.ty { Ok(()) } else { Err(format!("{name} holds {element}, not {}", inst.ty)) }
    }

    /// An operand that may be read here, with its type.
    fn value(&self, operand: Operand) -> Result<Value, String> {
        let ty = match operand {
            Operand::Reg(reg) => {
                let register = self.register(reg)?;
                if self.reachable && !self.assigned[reg.0 as usize] {
                    let name = &register.name;
                    return Err(if self.counter[reg.0 as usize] {
                        format!("%{name} is the counter of a for loop and is read outside of it")
                    } else {
                        format!("%{name} is read, but not every path to here assigns it")
                    });
                }
                register.ty
            }
            Operand::Scalar(index) => match self.program.params.get(index as usize) {
                Some(Param { kind: ParamKind::Scalar(ty), .. }) => *ty,
                Some(Param { name, .. }) => return Err(format!("{name} is a buffer, not a scalar")),
                None => return Err(format!("there is no parameter {index}")),
            },
            Operand::Const(ty, word) if ty.is_word(word) => ty,
            Operand::Const(ty, word) => return Err(format!("{word:#x} is not a constant of type {ty}")),
        };
        Ok(Value { operand, ty })
    }

    fn register(&self, reg: Reg) -> Result<&'a Register, String> {
        self.program.registers.get(reg.0 as usize).ok_or_else(|| format!("there is no register {}", reg.0))
    }
}
