//! The reference interpreter: the definition of a program's behaviour.
//!
//! It runs one workgroup after another, each in lock step: an instruction runs on every active thread before the next
//! one, `if` and loops narrow the set of active threads, and a register is an array over the threads. It checks what
//! devices do not: every index, division by zero, shared elements read before they are written, threads that access the
//! same shared element without a barrier in between, and barriers that not every thread reaches.

mod machine;
mod shared;

use crate::meaning::Subnormals;
use crate::program::*;
use crate::{IsaError, Type, number_lines};
use machine::Machine;

/// A parameter's binding in a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// A range of one of the launch's memories. Ranges may overlap: one memory can be seen as several element types.
    Buffer {
        /// Index of the memory.
        memory: usize,
        /// First byte; a multiple of the element's size.
        offset: usize,
        /// Bytes; a multiple of the element's size.
        len: usize,
    },
    /// A scalar as the register word described at [`Type`].
    Scalar(u64),
}

/// One of the memories of a launch.
#[derive(Debug)]
pub enum Bytes<'a> {
    /// Read-only memory.
    Read(&'a [u8]),
    /// Writable memory.
    Write(&'a mut [u8]),
}

impl std::ops::Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Read(bytes) => bytes,
            Bytes::Write(bytes) => bytes,
        }
    }
}

/// Runs a program on a grid of workgroups. `bindings` has one entry per parameter, in order; elements are
/// little-endian.
///
/// # Errors
/// [`IsaError::Launch`] if the bindings do not fit the parameters; [`IsaError::Run`] with line, workgroup and thread at
/// the first fault. The memories then stay as they are at that moment.
pub fn interpret(
    program: &Program,
    grid: [u32; 3],
    memories: &mut [&mut [u8]],
    bindings: &[Binding],
) -> Result<(), IsaError> {
    let mut memories: Vec<Bytes<'_>> = memories.iter_mut().map(|bytes| Bytes::Write(bytes)).collect();
    interpret_in(program, grid, &mut memories, bindings, Subnormals::Kept)
}

/// As [`interpret`], with memories that may be read-only, as a device with such arithmetic does it.
///
/// # Errors
/// As [`interpret`], and when a writable parameter is bound to read-only memory.
pub fn interpret_in(
    program: &Program,
    grid: [u32; 3],
    memories: &mut [Bytes<'_>],
    bindings: &[Binding],
    subnormals: Subnormals,
) -> Result<(), IsaError> {
    let launch_error = |message| Err(IsaError::Launch { program: program.name.clone(), message });
    let (given, taken) = (bindings.len(), program.params.len());
    if given != taken {
        let names: Vec<&str> = program.params.iter().map(|p| p.name.as_str()).collect();
        return launch_error(format!("it takes {taken} arguments ({}), {given} are bound", names.join(", ")));
    }
    for (param, binding) in program.params.iter().zip(bindings) {
        if let Err(message) = check(param.kind, *binding, memories) {
            return launch_error(format!("parameter {}: {message}", param.name));
        }
    }
    let threads = program.workgroup.iter().try_fold(1u32, |n, size| n.checked_mul(*size));
    if !threads.is_some_and(|n| (1..=MAX_WORKGROUP).contains(&n)) {
        return launch_error(format!("a workgroup of {:?} threads", program.workgroup));
    }
    let shared_bytes: usize =
        program.shared.iter().map(|a| (a.len as usize).saturating_mul(a.element.size())).fold(0, usize::saturating_add);
    if shared_bytes > MAX_SHARED_BYTES {
        return launch_error(format!("{shared_bytes} bytes of shared memory are more than {MAX_SHARED_BYTES}"));
    }
    // A program built in memory has no lines; errors give those of its printed text.
    let numbered;
    let mut program = program;
    if program.body.first().is_some_and(|s| s.line == 0) {
        let mut copy = program.clone();
        number_lines(&mut copy);
        numbered = copy;
        program = &numbered;
    }
    let mut machine = Machine::new(program, grid, memories, bindings, subnormals);
    for z in 0..grid[2] {
        for y in 0..grid[1] {
            for x in 0..grid[0] {
                machine.run_group([x, y, z])?;
            }
        }
    }
    Ok(())
}

/// Checks that a binding fits a parameter. The error says what is wrong.
fn check(kind: ParamKind, binding: Binding, memories: &[Bytes<'_>]) -> Result<(), String> {
    match (kind, binding) {
        (ParamKind::Scalar(ty), Binding::Scalar(word)) if ty.is_word(word) => Ok(()),
        (ParamKind::Scalar(ty), Binding::Scalar(word)) => Err(format!("{word:#x} is not the register word of a {ty}")),
        (ParamKind::Scalar(ty), Binding::Buffer { .. }) => Err(format!("it is a scalar {ty}, a buffer is bound")),
        (ParamKind::Buffer { .. }, Binding::Scalar(_)) => Err("it is a buffer, a scalar is bound".into()),
        (ParamKind::Buffer { element, access }, Binding::Buffer { memory, offset, len }) => {
            let Some(bytes) = memories.get(memory) else {
                return Err(format!("memory {memory} is bound, but there are only {}", memories.len()));
            };
            if access != Access::Read && matches!(bytes, Bytes::Read(_)) {
                return Err(format!("it is writable, but memory {memory} is read-only"));
            }
            if offset.checked_add(len).is_none_or(|end| end > bytes.len()) {
                return Err(format!("{len} bytes from byte {offset} do not fit in {} bytes", bytes.len()));
            }
            if !offset.is_multiple_of(element.size()) || !len.is_multiple_of(element.size()) {
                return Err(format!("{len} bytes from byte {offset} are not whole, aligned elements of {element}"));
            }
            Ok(())
        }
    }
}

/// The type of an operand; `None` if it does not exist.
fn operand_type(program: &Program, operand: Operand) -> Option<Type> {
    match operand {
        Operand::Const(ty, _) => Some(ty),
        Operand::Reg(Reg(r)) => program.registers.get(r as usize).map(|r| r.ty),
        Operand::Scalar(p) => match program.params.get(p as usize)?.kind {
            ParamKind::Scalar(ty) => Some(ty),
            ParamKind::Buffer { .. } => None,
        },
    }
}
