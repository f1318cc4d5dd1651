//! Prints programs in the Metal Shading Language, for Apple GPUs.
//!
//! The text computes the same as the [interpreter](crate::interp), bit for bit, on devices with IEEE 754 arithmetic:
//! contraction is off, functions are the expansions of [`decompose`](crate::decompose), and cases that the language
//! leaves open are written out. Compile it in safe math mode (`MTLMathMode.safe`, before macOS 15 `fastMathEnabled =
//! NO`). Apple's "Metal Shading Language Specification" allows one exception in any mode, which its GPUs make use of:
//! arithmetic counts subnormal numbers of `f32` as 0 ([`Subnormals::Flushed`](crate::meaning::Subnormals)).
//! Comparisons, `min`, `max`, `floor`, `ceil` and conversions to `bool` are therefore written on integers.
//!
//! # Bindings
//!
//! The program's buffers are `[[buffer(0)]]` and up, in order ([`MslArgument::binding`]). After the last comes a block
//! of constant words ([`MslKernel::argument_binding`]), one per parameter: a buffer's number of elements (may be
//! saturated), a scalar's register word. It is absent without parameters. After it comes the fault record, in the
//! format of the [PTX printer](crate::ptx); it is absent if the program cannot fault ([`MslKernel::faults`]).
//!
//! # Faults
//!
//! A thread with a fault continues (a load gives 0, a store is skipped, a loop has no iterations), so that no barrier
//! waits for it. The record holds one thread's first fault.

mod flow;
mod functions;
mod helpers;
mod inst;
mod memory;
mod subgroup;

use std::fmt::Write;

use crate::program::*;
use crate::{Capability, IsaError, Opcode, Type, number_lines, verify};
use helpers::Helpers;

pub use crate::ptx::{DIV_BY_ZERO, REM_BY_ZERO, SHARED, STEP};

/// Number of buffers that a kernel can bind.
pub const MAX_BINDINGS: usize = 31;
/// Maximum bytes of threadgroup memory.
pub const MAX_THREADGROUP_BYTES: usize = 32 * 1024;

/// The target of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MslTarget {
    /// Language version: 2.3 (macOS 11) or later. From 3.0 on there are atomic float additions.
    pub version: (u32, u32),
}

impl Default for MslTarget {
    /// Version 3.0: macOS 13, iOS 16.
    fn default() -> MslTarget {
        MslTarget { version: (3, 0) }
    }
}

/// A program in the Metal Shading Language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MslKernel {
    /// The library's source.
    pub text: String,
    /// The name of its only kernel.
    pub entry: String,
    /// The parameters of the program, in order.
    pub arguments: Vec<MslArgument>,
    /// Size of the block of constant words in bytes, a multiple of 8; 0 if absent.
    pub argument_bytes: usize,
    /// The binding of that block.
    pub argument_binding: usize,
    /// The binding of the fault record, if any.
    pub faults: Option<usize>,
    /// Bytes of threadgroup memory.
    pub threadgroup_bytes: usize,
}

/// The position of a parameter's word in the block of constant words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MslArgument {
    /// The binding of a buffer.
    pub binding: Option<usize>,
    /// Offset of the word in bytes.
    pub offset: usize,
    /// 4 or 8.
    pub size: usize,
}

/// Prints a program. The workgroup size is fixed in the text; the grid is free.
///
/// # Errors
/// The verifier's errors; [`IsaError::Build`] for a target below version 2.3, for a program with more buffers than
/// bindings or more than 32 KB of shared arrays, and for one that needs `f64` or 64-bit atomic operations, by the
/// [`Capability`]'s name.
pub fn print(program: &Program, target: &MslTarget) -> Result<MslKernel, IsaError> {
    verify(program)?;
    let error = |message: String| IsaError::Build { program: program.name.clone(), message };
    let (major, minor) = target.version;
    if target.version < (2, 3) {
        return Err(error(format!("Metal version {major}.{minor} is not supported; the minimum is 2.3")));
    }
    for lacking in [Capability::F64, Capability::Atomic64] {
        if lacking.is_needed_by(program) {
            return Err(error(format!("Metal has no {lacking}")));
        }
    }
    let buffers = program.params.iter().filter(|p| matches!(p.kind, ParamKind::Buffer { .. })).count();
    if buffers + 2 > MAX_BINDINGS {
        let most = MAX_BINDINGS - 2;
        return Err(error(format!("{buffers} buffers, but Metal binds at most {most} beside the kernel's own")));
    }
    let threadgroup_bytes =
        program.shared.iter().map(|s| (s.len as usize * s.element.size()).next_multiple_of(16)).sum();
    if threadgroup_bytes > MAX_THREADGROUP_BYTES {
        return Err(error(format!(
            "{threadgroup_bytes} bytes of shared arrays, but Metal has {MAX_THREADGROUP_BYTES}, of which each array takes a multiple of 16"
        )));
    }
    // Faults name a line; a program built in memory gets those of its printed text.
    let mut numbered = program.clone();
    if program.body.first().is_some_and(|s| s.line == 0) {
        number_lines(&mut numbered);
    }
    let mut printer = Printer::new(program, *target);
    printer.body(&numbered.body);
    if let Some(message) = printer.unknown {
        return Err(error(message));
    }
    let (arguments, argument_bytes) = arguments(program);
    let entry = format!("hologram_{}", program.name.replace('.', "_"));
    let faults = (!printer.sites.is_empty()).then_some(buffers + 1);
    let text = printer.finish(&entry);
    Ok(MslKernel { text, entry, arguments, argument_bytes, argument_binding: buffers, faults, threadgroup_bytes })
}

/// The position of each parameter's word, and the block's size.
fn arguments(program: &Program) -> (Vec<MslArgument>, usize) {
    let (mut end, mut buffers) = (0usize, 0..);
    let arguments = program.params.iter().map(|param| {
        let size = if matches!(param.kind, ParamKind::Scalar(ty) if ty.is_wide()) { 8 } else { 4 };
        let offset = end.next_multiple_of(size);
        end = offset + size;
        let binding = if matches!(param.kind, ParamKind::Buffer { .. }) { buffers.next() } else { None };
        MslArgument { binding, offset, size }
    });
    let arguments: Vec<MslArgument> = arguments.collect();
    (arguments, end.next_multiple_of(8))
}

/// The type of a register in the text. 16-bit floats are stored as bits; narrow integers are extended to 32 bits.
fn register_type(ty: Type) -> &'static str {
    match ty {
        Type::Bool => "bool",
        Type::I8 | Type::I16 | Type::I32 => "int",
        Type::U8 | Type::U16 | Type::U32 => "uint",
        Type::F16 | Type::BF16 => "ushort",
        Type::I64 => "long",
        Type::U64 => "ulong",
        Type::F32 => "float",
        // Rejected earlier.
        Type::F64 => "double",
    }
}

/// The type of an element in memory.
fn element_type(ty: Type) -> &'static str {
    match ty {
        Type::Bool | Type::U8 => "uchar",
        Type::I8 => "char",
        Type::I16 => "short",
        Type::U16 => "ushort",
        _ => register_type(ty),
    }
}

/// A constant of a type, from its register word.
fn constant(ty: Type, word: u64) -> String {
    let low = word as u32;
    match ty {
        Type::Bool => (word != 0).to_string(),
        Type::I8 | Type::I16 | Type::I32 => match low as i32 {
            i32::MIN => "(-2147483647 - 1)".into(),
            negative @ ..0 => format!("({negative})"),
            value => value.to_string(),
        },
        Type::U8 | Type::U16 | Type::U32 => format!("{low}u"),
        Type::F16 | Type::BF16 => format!("ushort({low}u)"),
        Type::I64 => format!("long(0x{word:x}ul)"),
        Type::U64 => format!("0x{word:x}ul"),
        _ => format!("as_type<float>(0x{low:08x}u)"),
    }
}

/// A body under construction.
struct Printer<'a> {
    program: &'a Program,
    target: MslTarget,
    text: String,
    depth: usize,
    helpers: Helpers,
    /// Line and memory of each possible fault.
    sites: Vec<(u32, u32)>,
    loops: Vec<flow::Frame>,
    /// The number of the next temporary name.
    names: u32,
    /// Whether lanes that left a joint block must be recorded.
    leaves: bool,
    /// Which positions the body reads.
    positions: [bool; 4],
    /// An instruction that this printer does not support.
    unknown: Option<String>,
}

/// A position that a kernel receives.
#[derive(Clone, Copy)]
enum Position {
    Local,
    Group,
    Grid,
    Linear,
}

/// Appends a formatted line, indented.
macro_rules! line {
    ($printer:expr, $($format:tt)*) => {
        $printer.line(format_args!($($format)*))
    };
}
use line;

impl<'a> Printer<'a> {
    fn new(program: &'a Program, target: MslTarget) -> Printer<'a> {
        Printer {
            program,
            target,
            text: String::new(),
            depth: 1,
            helpers: Helpers::default(),
            sites: Vec::new(),
            loops: Vec::new(),
            names: 0,
            leaves: false,
            positions: [false; 4],
            unknown: None,
        }
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{:width$}{text}", "", width = 4 * self.depth);
    }

    /// A line that opens a block.
    fn open(&mut self, text: std::fmt::Arguments<'_>) {
        self.line(format_args!("{text} {{"));
        self.depth += 1;
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.line(format_args!("}}"));
    }

    /// A fresh name.
    fn name(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }

    /// A position's name, which is added to the entry.
    fn position(&mut self, which: Position) -> &'static str {
        self.positions[which as usize] = true;
        match which {
            Position::Local => "local",
            Position::Group => "group",
            Position::Grid => "grid",
            Position::Linear => "linear",
        }
    }

    fn type_of(&self, operand: Operand) -> Type {
        match operand {
            Operand::Const(ty, _) => ty,
            Operand::Reg(reg) => self.program.registers[reg.0 as usize].ty,
            Operand::Scalar(index) => match self.program.params[index as usize].kind {
                ParamKind::Scalar(ty) | ParamKind::Buffer { element: ty, .. } => ty,
            },
        }
    }

    /// An operand as an expression of its register type.
    fn value(&self, operand: Operand) -> String {
        match operand {
            Operand::Reg(reg) => format!("v{}", reg.0),
            Operand::Const(ty, word) => constant(ty, word),
            Operand::Scalar(index) => match self.type_of(operand) {
                Type::Bool => format!("(a.p{index} != 0u)"),
                Type::F16 | Type::BF16 => format!("ushort(a.p{index})"),
                _ => format!("a.p{index}"),
            },
        }
    }

    /// A helper function's name, which is added to the text.
    fn helper(&mut self, name: &'static str) -> &'static str {
        self.helpers.add(name);
        name
    }

    /// Makes printing fail because the printer lacks an instruction.
    fn unknown(&mut self, inst: &Inst) {
        self.unknown.get_or_insert(format!("{}.{} is not supported in Metal yet", inst.op.info().mnemonic, inst.ty));
    }

    /// The statement that records a possible fault at a line; `element` is the index or operand.
    fn fault(&mut self, line: u32, memory: u32, element: &str) -> String {
        self.sites.push((line, memory));
        let note = self.helper("note");
        format!("{note}(site, element, {}u, {element});", self.sites.len())
    }

    /// One instruction. In a joint block all lanes reach it, and `active` says whether this lane participates.
    fn inst(&mut self, inst: &Inst, line: u32) {
        if inst.op == Opcode::Barrier {
            line!(self, "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);");
            return;
        }
        if let Some(memory) = inst.memory {
            return self.access(inst, memory, line);
        }
        let Some(dst) = inst.dst else { return };
        if inst.op == Opcode::TileFma {
            return self.tile(inst, dst);
        }
        let value = self.lane_wise(inst, line);
        line!(self, "v{} = {value};", dst.0);
    }

    /// The library around the body.
    fn finish(mut self, entry: &str) -> String {
        let body = std::mem::take(&mut self.text);
        let program = self.program;
        let mut out = String::from("#include <metal_stdlib>\nusing namespace metal;\n#pragma clang fp contract(off)\n");
        if self.target.version >= (3, 2) {
            out += "#pragma METAL fp contract(off)\n#pragma METAL fp math_mode(safe)\n";
        }
        out += "\n";
        if !program.params.is_empty() {
            out += "struct Arguments {\n";
            for (i, param) in program.params.iter().enumerate() {
                let _ = match param.kind {
                    ParamKind::Buffer { .. } => writeln!(out, "    uint p{i};"),
                    ParamKind::Scalar(Type::Bool | Type::F16 | Type::BF16) => writeln!(out, "    uint p{i};"),
                    ParamKind::Scalar(ty) => writeln!(out, "    {} p{i};", register_type(ty)),
                };
            }
            out += "};\n\n";
        }
        if !self.sites.is_empty() {
            let words: Vec<String> = self.sites.iter().map(|(line, memory)| format!("{line}u, {memory}u")).collect();
            let _ =
                writeln!(out, "constant uint sites[{}] = {{\n    {}\n}};\n", 2 * words.len(), words.join(",\n    "));
            for which in [Position::Group, Position::Linear] {
                self.position(which);
            }
        }
        out += &self.helpers.text();
        let _ = writeln!(out, "[[max_total_threads_per_threadgroup({})]]", program.workgroup_threads());
        let _ = writeln!(out, "kernel void {entry}({})\n{{", self.parameters().join(",\n    "));
        for (i, register) in program.registers.iter().enumerate() {
            let _ = writeln!(out, "    {} v{i};", register_type(register.ty));
        }
        for (i, array) in program.shared.iter().enumerate() {
            let _ = writeln!(out, "    threadgroup {} s{i}[{}];", element_type(array.element), array.len);
        }
        if self.leaves {
            out += "    uint left = 0u;\n";
        }
        if !self.sites.is_empty() {
            out += "    uint site = 0u, element = 0u;\n";
        }
        out += &body;
        if !self.sites.is_empty() {
            out += "    if (site != 0u) record(faults, sites[2u * site - 2u], sites[2u * site - 1u], element, group, linear);\n";
        }
        out += "}\n";
        out
    }

    /// The kernel's parameters.
    fn parameters(&self) -> Vec<String> {
        let program = self.program;
        let mut out = Vec::new();
        for (i, param) in program.params.iter().enumerate() {
            if let ParamKind::Buffer { element, access } = param.kind {
                let constant = if access == Access::Read { "const " } else { "" };
                out.push(format!("device {constant}{} *b{i} [[buffer({})]]", element_type(element), out.len()));
            }
        }
        let count = out.len();
        if !program.params.is_empty() {
            out.push(format!("constant Arguments &a [[buffer({count})]]"));
        }
        if !self.sites.is_empty() {
            out.push(format!("device atomic_uint *faults [[buffer({})]]", count + 1));
        }
        let positions = [
            "uint3 local [[thread_position_in_threadgroup]]",
            "uint3 group [[threadgroup_position_in_grid]]",
            "uint3 grid [[threadgroups_per_grid]]",
            "uint linear [[thread_index_in_threadgroup]]",
        ];
        out.extend(positions.iter().zip(self.positions).filter(|(_, used)| *used).map(|(p, _)| p.to_string()));
        out
    }
}
