//! The structured program: one kernel as data.

use crate::{Opcode, Type};

/// Threads per subgroup on every device: lane `l` of subgroup `s` is thread `32·s + l` of the workgroup.
pub const SUBGROUP_SIZE: u32 = 32;

/// Maximum threads per workgroup.
pub const MAX_WORKGROUP: u32 = 1024;

/// Maximum bytes of shared memory per program.
pub const MAX_SHARED_BYTES: usize = 32 * 1024;

/// Maximum nesting of blocks, statements, registers, parameters or shared arrays, and name length in bytes of a
/// program: far above the needs of a kernel, and low enough that a hostile file exhausts neither stack nor memory.
pub const MAX_NESTING: usize = 64;
/// See [`MAX_NESTING`].
pub const MAX_STATEMENTS: usize = 1 << 16;
/// See [`MAX_NESTING`].
pub const MAX_REGISTERS: usize = 1 << 16;
/// See [`MAX_NESTING`].
pub const MAX_PARAMS: usize = 64;
/// See [`MAX_NESTING`].
pub const MAX_NAME: usize = 128;

/// One kernel: its parameters, workgroup, shared memory and structured body.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The kernel's name.
    pub name: String,
    /// Parameters in binding order.
    pub params: Vec<Param>,
    /// Threads per workgroup in x, y, z; their product is at most [`MAX_WORKGROUP`].
    pub workgroup: [u32; 3],
    /// Shared arrays, one instance per workgroup, with undefined initial content.
    pub shared: Vec<SharedArray>,
    /// Registers, private to each thread.
    pub registers: Vec<Register>,
    /// The body of each thread.
    pub body: Vec<Stmt>,
}

impl Program {
    /// Threads per workgroup.
    pub fn workgroup_threads(&self) -> u32 {
        self.workgroup.iter().product()
    }
}

/// A parameter of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// The name in the text form.
    pub name: String,
    /// What it binds to.
    pub kind: ParamKind,
}

/// What a parameter binds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// A range of a device buffer, indexed by element.
    Buffer {
        /// Element type.
        element: Type,
        /// The allowed accesses.
        access: Access,
    },
    /// A value that is equal for all threads.
    Scalar(Type),
}

/// Allowed accesses to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Loads only.
    Read,
    /// Stores only.
    Write,
    /// Loads and stores.
    ReadWrite,
}

/// An array shared by the threads of a workgroup.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedArray {
    /// The name in the text form.
    pub name: String,
    /// Element type.
    pub element: Type,
    /// Number of elements.
    pub len: u32,
}

/// A register declaration. Registers are typed and mutable, and must be assigned before they are read.
#[derive(Clone, Debug, PartialEq)]
pub struct Register {
    /// The name in the text form, without `%`; unique within the program.
    pub name: String,
    /// The type of every value it holds.
    pub ty: Type,
}

/// Index of a register in [`Program::registers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u32);

/// A value read by an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A register's current value.
    Reg(Reg),
    /// A scalar parameter, by its index in [`Program::params`].
    Scalar(u32),
    /// A constant, as the register word described at [`Type`].
    Const(Type, u64),
}

/// The memory of a load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// A buffer parameter, by its index in [`Program::params`].
    Param(u32),
    /// A shared array, by its index in [`Program::shared`].
    Shared(u32),
}

/// A statement with the line of text it came from (0 when built in memory).
#[derive(Clone, Debug)]
pub struct Stmt {
    /// 1-based source line, or 0.
    pub line: u32,
    /// What it does.
    pub kind: StmtKind,
}

/// Lines are ignored: they are not part of the meaning.
impl PartialEq for Stmt {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

/// What a statement does.
#[derive(Clone, Debug, PartialEq)]
pub enum StmtKind {
    /// One instruction of the table.
    Inst(Inst),
    /// Runs `then` on the threads where `cond` is true and `otherwise` on the others.
    If {
        /// A `bool`.
        cond: Operand,
        /// The block for true.
        then: Vec<Stmt>,
        /// The block for false; empty when there is none.
        otherwise: Vec<Stmt>,
    },
    /// A counted loop: `var` takes `start`, `start + step`, … while less than `end`. The three operands are read
    /// once, before the loop. `step` must not be 0 (for `i32` it must be positive). The count ends instead of wrapping.
    For {
        /// The counter, an `i32` or `u32` that the body must not assign.
        var: Reg,
        /// First value.
        start: Operand,
        /// Exclusive limit.
        end: Operand,
        /// Increment.
        step: Operand,
        /// Loop body.
        body: Vec<Stmt>,
    },
    /// A loop that ends by `break` or after `max` iterations.
    Loop {
        /// Maximum iterations, at least 1.
        max: u32,
        /// Loop body.
        body: Vec<Stmt>,
    },
    /// Leaves an enclosing loop.
    Break {
        /// 0 for the innermost loop, 1 for the next, …
        depth: u32,
        /// Only on threads where this `bool` is true.
        cond: Option<Operand>,
    },
    /// Continues with the next iteration of an enclosing loop.
    Continue {
        /// 0 for the innermost loop, 1 for the next, …
        depth: u32,
        /// Only on threads where this `bool` is true.
        cond: Option<Operand>,
    },
}

/// One instruction with its operands; see [`Opcode::info`].
#[derive(Clone, Debug, PartialEq)]
pub struct Inst {
    /// The operation.
    pub op: Opcode,
    /// Whether a device may use the error bound of [`OpInfo::fast`](crate::OpInfo::fast). Only for operations and types
    /// that have the form ([`Opcode::has_fast`]).
    pub fast: bool,
    /// The mnemonic's type: the type operated on; for `cvt` and `bitcast` the result's, for memory the element's.
    pub ty: Type,
    /// The register written, if the operation has a result.
    pub dst: Option<Reg>,
    /// The memory addressed by loads and stores.
    pub memory: Option<Memory>,
    /// Operands in the order of the table.
    pub args: Vec<Operand>,
}
