//! Checks the arguments of a launch against its pipeline's rules, once, when it is recorded.

use std::ops::Range;
use std::sync::Arc;

use hologram_isa::{Access, ParamKind, Program, Type};

use super::RawSlice;
use super::memory::{Allocator, host_memory};
use crate::error::{BackendError, Result};
use crate::info::BackendType;
use crate::launch::{Binding, Launch};
use crate::memory::Buffer;
use crate::spec::{Extent, GroupSpec, KernelSpec, TensorSpec};

/// The rule for one argument of a pipeline.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The parameter's name, for errors.
    pub name: String,
    /// Its requirements.
    pub kind: RuleKind,
}

/// The requirements of an argument.
#[derive(Clone, Copy, Debug)]
pub enum RuleKind {
    /// A range of a buffer.
    Buffer {
        /// The type of its elements.
        element: Type,
        /// Whether it is read.
        read: bool,
        /// Whether it is written.
        write: bool,
        /// The least size in bytes.
        min_bytes: usize,
        /// Whether this argument must not overlap another where either is written. Native kernels hold slices, and a
        /// written slice must be unaliased; programs address each element separately.
        distinct: bool,
    },
    /// A number.
    Scalar(Type),
}

/// A checked argument; `M` is the device's representation of a range of memory.
#[derive(Clone, Copy, Debug)]
pub enum Argument<M = RawSlice> {
    /// A range of memory.
    Slice(M),
    /// A number, as its register word.
    Scalar(u64),
}

/// The range of a buffer that a launch uses.
pub struct Wanted<'a> {
    /// The current operation, for errors; [`resolve_with`] replaces it.
    pub operation: &'a str,
    pub buffer: &'a Buffer,
    pub offset: usize,
    pub bytes: usize,
    /// Whether the kernel writes to it.
    pub write: bool,
}

/// The rules of a program's parameters.
pub fn rules_of_program(program: &Program) -> Vec<Rule> {
    let rule = |p: &hologram_isa::Param| {
        let kind = match p.kind {
            ParamKind::Buffer { element, access } => {
                let (read, write) = (access != Access::Write, access != Access::Read);
                RuleKind::Buffer { element, read, write, min_bytes: 0, distinct: false }
            }
            ParamKind::Scalar(ty) => RuleKind::Scalar(ty),
        };
        Rule { name: p.name.clone(), kind }
    };
    program.params.iter().map(rule).collect()
}

/// The rules of a native kernel: the views of its spec's operands, and the step block. Kernels rely on the sizes.
pub fn rules_of_spec(spec: &KernelSpec) -> Vec<Rule> {
    let output = if spec.in_place.is_none() { Some((&spec.output, "output".to_string(), [false, true])) } else { None };
    let access = |i: usize| [true, spec.in_place == Some(i)];
    let inputs = spec.inputs.iter().enumerate().map(|(i, t)| (t, format!("input {i}"), access(i)));
    rules_of_tensors(inputs.chain(output), spec.inputs.iter().chain([&spec.output]))
}

/// The rules of a native kernel of a group.
pub fn rules_of_group(group: &GroupSpec) -> Vec<Rule> {
    let bound = group.bound().into_iter().enumerate().map(|(i, (tensor, write))| {
        let outputs = i.checked_sub(group.inputs.len());
        let name = outputs.map_or_else(|| format!("input {i}"), |i| format!("output {i}"));
        (tensor, name, [outputs.is_none(), write])
    });
    rules_of_tensors(bound, group.inputs.iter().chain(group.nodes.iter().map(|n| &n.output)))
}

/// The rules of the bound tensors' views, given whether they are read and written; and of the step block if it holds an
/// extent of any tensor of `all`.
fn rules_of_tensors<'a>(
    bound: impl Iterator<Item = (&'a TensorSpec, String, [bool; 2])>,
    all: impl Iterator<Item = &'a TensorSpec>,
) -> Vec<Rule> {
    let mut rules = Vec::new();
    for (tensor, name, [read, write]) in bound {
        for view in tensor.format.views(tensor.max_rows(), tensor.row_len()) {
            let kind = RuleKind::Buffer { element: view.element, read, write, min_bytes: view.bytes, distinct: true };
            rules.push(Rule { name: name.clone(), kind });
        }
    }
    let slot = |extent: &Extent| match extent {
        Extent::Step { slot, .. } => Some(*slot as usize),
        Extent::Fixed(_) => None,
    };
    if let Some(last) = all.flat_map(|t| &t.shape).filter_map(slot).max() {
        let min_bytes = (last + 1) * 4;
        let kind = RuleKind::Buffer { element: Type::U32, read: true, write: false, min_bytes, distinct: true };
        rules.push(Rule { name: "the step block".into(), kind });
    }
    rules
}

/// Checks the arguments of a launch of `kernel` on the device with this allocator, which works in the host's memory.
///
/// # Errors
/// As [`resolve_with`].
pub fn resolve(
    allocator: &Arc<Allocator>,
    kernel: &str,
    rules: &[Rule],
    bindings: &[Binding],
) -> Result<Vec<Argument>> {
    resolve_with(allocator.device(), kernel, rules, bindings, |w| {
        let slice = host_memory(allocator, w.operation, w.buffer, w.offset, w.bytes, w.write)?.raw();
        Ok((slice, slice.data.addr()))
    })
}

/// Checks the arguments of a launch of `kernel`. `find` returns a range of the device's memory with its address, or why
/// it cannot be used.
///
/// # Errors
/// [`BackendError::InvalidArgument`] with the kernel and the argument.
pub fn resolve_with<M>(
    device: BackendType,
    kernel: &str,
    rules: &[Rule],
    bindings: &[Binding],
    find: impl Fn(&Wanted<'_>) -> Result<(M, usize)>,
) -> Result<Vec<Argument<M>>> {
    let invalid = |reason: String| BackendError::InvalidArgument {
        device: device.to_string(),
        operation: format!("recording kernel {kernel}"),
        reason,
    };
    if rules.len() != bindings.len() {
        let names: Vec<_> = rules.iter().map(|r| r.name.as_str()).collect();
        return Err(invalid(format!(
            "it takes {} arguments ({}), {} are bound",
            rules.len(),
            names.join(", "),
            bindings.len()
        )));
    }
    let mut arguments = Vec::with_capacity(rules.len());
    // Of the distinct arguments: index, address range, and whether it is written.
    let mut distinct: Vec<(usize, Range<usize>, bool)> = Vec::new();
    for (index, (rule, binding)) in rules.iter().zip(bindings).enumerate() {
        // Only errors need these texts, which would take longer than the rest of a small launch.
        let what = || format!("argument {index} ({})", rule.name);
        let argument = match (rule.kind, binding) {
            (
                RuleKind::Buffer { element, write, min_bytes, distinct: alone, .. },
                Binding::Buffer { buffer, range },
            ) => {
                let Some(bytes) = range.end.checked_sub(range.start) else {
                    return Err(invalid(format!("{}: the range {range:?} ends before it starts", what())));
                };
                let found = find(&Wanted { operation: kernel, buffer, offset: range.start, bytes, write });
                let (slice, address) = found.map_err(|error| match error {
                    BackendError::InvalidArgument { device, reason, .. } => {
                        let operation = format!("recording kernel {kernel}, {}", what());
                        BackendError::InvalidArgument { device, operation, reason }
                    }
                    error => error,
                })?;
                let size = element.size();
                if address % size != 0 || bytes % size != 0 {
                    return Err(invalid(format!(
                        "{}: bytes {range:?} are not whole, aligned {element} elements",
                        what()
                    )));
                }
                if bytes < min_bytes {
                    return Err(invalid(format!("{}: {bytes} bytes are bound, the kernel needs {min_bytes}", what())));
                }
                if alone && bytes > 0 {
                    let here = address..address + bytes;
                    let meets = |(_, there, written): &&(usize, Range<usize>, bool)| {
                        (write || *written) && here.start < there.end && there.start < here.end
                    };
                    if let Some((other, _, written)) = distinct.iter().find(meets) {
                        let (other_name, written) = (&rules[*other].name, if *written { "that" } else { "this" });
                        return Err(invalid(format!(
                            "{} overlaps argument {other} ({other_name}), and the kernel writes {written} one; bind \
                             memory of its own",
                            what()
                        )));
                    }
                    distinct.push((index, here, write));
                }
                Argument::Slice(slice)
            }
            (RuleKind::Scalar(ty), Binding::Scalar(word)) => {
                if !ty.is_word(*word) {
                    return Err(invalid(format!("{}: {word:#x} is not the register word of a {ty}", what())));
                }
                Argument::Scalar(*word)
            }
            (RuleKind::Buffer { .. }, Binding::Scalar(_)) => {
                return Err(invalid(format!("{}: it is a buffer, a scalar is bound", what())));
            }
            (RuleKind::Scalar(_), Binding::Buffer { .. }) => {
                return Err(invalid(format!("{}: it is a scalar, a buffer is bound", what())));
            }
        };
        arguments.push(argument);
    }
    Ok(arguments)
}

/// The buffers that launches refer to.
pub fn buffers_of(launches: &[Launch]) -> Vec<Buffer> {
    let buffers = launches.iter().flat_map(|l| &l.bindings).filter_map(|binding| match binding {
        Binding::Buffer { buffer, .. } => Some(buffer.clone()),
        Binding::Scalar(_) => None,
    });
    buffers.collect()
}
