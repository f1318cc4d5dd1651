//! Checks the arguments of a launch against what its pipeline takes, once, when it is recorded.

use hologram_isa::{Access, ParamKind, Program, Type};

use super::memory::host_memory;
use crate::backend::{BackendType, Binding, Buffer, Launch};
use crate::cpu::kernel::RawSlice;
use crate::error::{BackendError, Result};
use crate::spec::{Extent, KernelSpec};

/// What a pipeline takes as one argument.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// The parameter's name, for errors.
    pub(crate) name: String,
    pub(crate) kind: RuleKind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum RuleKind {
    Buffer { element: Type, write: bool, min_bytes: usize },
    Scalar(Type),
}

/// A checked argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    Slice(RawSlice),
    Scalar(u32),
}

/// The arguments of a program: its parameters.
pub(crate) fn rules_of_program(program: &Program) -> Vec<Rule> {
    let rule = |p: &hologram_isa::Param| {
        let kind = match p.kind {
            ParamKind::Buffer { element, access } => {
                RuleKind::Buffer { element, write: access != Access::Read, min_bytes: 0 }
            }
            ParamKind::Scalar(ty) => RuleKind::Scalar(ty),
        };
        Rule { name: p.name.clone(), kind }
    };
    program.params.iter().map(rule).collect()
}

/// The arguments of a native kernel: the views of its spec's operands, and the step block. Kernels rely on the sizes.
pub(crate) fn rules_of_spec(spec: &KernelSpec) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut slots = 0;
    let output = if spec.in_place.is_none() { Some((&spec.output, "output".to_string(), true)) } else { None };
    let inputs = spec.inputs.iter().enumerate().map(|(i, t)| (t, format!("input {i}"), spec.in_place == Some(i)));
    for (tensor, name, write) in inputs.chain(output) {
        for view in tensor.format.views(tensor.max_rows(), tensor.row_len()) {
            let kind = RuleKind::Buffer { element: view.element, write, min_bytes: view.bytes };
            rules.push(Rule { name: name.clone(), kind });
        }
    }
    for extent in spec.inputs.iter().chain([&spec.output]).flat_map(|t| &t.shape) {
        if let Extent::Step { slot, .. } = extent {
            slots = slots.max(*slot as usize + 1);
        }
    }
    if spec.uses_step() {
        let kind = RuleKind::Buffer { element: Type::U32, write: false, min_bytes: slots * 4 };
        rules.push(Rule { name: "the step block".into(), kind });
    }
    rules
}

/// Checks the arguments of a launch of `kernel` and finds their memory.
///
/// # Errors
/// [`BackendError::InvalidArgument`] with the kernel and the argument.
pub(crate) fn resolve(
    device: BackendType,
    kernel: &str,
    rules: &[Rule],
    bindings: &[Binding],
) -> Result<Vec<Argument>> {
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
    for (index, (rule, binding)) in rules.iter().zip(bindings).enumerate() {
        let what = format!("argument {index} ({})", rule.name);
        let argument = match (rule.kind, binding) {
            (RuleKind::Buffer { element, write, min_bytes }, Binding::Buffer { buffer, range }) => {
                let Some(bytes) = range.end.checked_sub(range.start) else {
                    return Err(invalid(format!("{what}: the range {range:?} ends before it starts")));
                };
                let operation = format!("recording kernel {kernel}, {what}");
                let slice = host_memory(device, &operation, buffer, range.start, bytes, write)?.0;
                let size = element.size();
                if slice.data.addr() % size != 0 || bytes % size != 0 {
                    return Err(invalid(format!("{what}: bytes {range:?} are not whole, aligned {element} elements")));
                }
                if bytes < min_bytes {
                    return Err(invalid(format!("{what}: {bytes} bytes are bound, the kernel needs {min_bytes}")));
                }
                Argument::Slice(slice)
            }
            (RuleKind::Scalar(ty), Binding::Scalar(word)) => {
                if !is_word_of(ty, *word) {
                    return Err(invalid(format!("{what}: {word:#x} is not the register word of a {ty}")));
                }
                Argument::Scalar(*word)
            }
            (RuleKind::Buffer { .. }, Binding::Scalar(_)) => {
                return Err(invalid(format!("{what}: it is a buffer, a scalar is bound")));
            }
            (RuleKind::Scalar(_), Binding::Buffer { .. }) => {
                return Err(invalid(format!("{what}: it is a scalar, a buffer is bound")));
            }
        };
        arguments.push(argument);
    }
    Ok(arguments)
}

/// Whether a register word is a value of a type, as [`Type`] says how values lie in words.
fn is_word_of(ty: Type, word: u32) -> bool {
    match ty {
        Type::Bool => word <= 1,
        Type::I8 => i8::try_from(word as i32).is_ok(),
        Type::U8 => word <= 0xff,
        Type::F16 | Type::BF16 => word <= 0xffff,
        Type::I32 | Type::U32 | Type::F32 => true,
    }
}

/// The buffers that launches refer to.
pub(crate) fn buffers_of(launches: &[Launch]) -> Vec<Buffer> {
    let buffers = launches.iter().flat_map(|l| &l.bindings).filter_map(|binding| match binding {
        Binding::Buffer { buffer, .. } => Some(buffer.clone()),
        Binding::Scalar(_) => None,
    });
    buffers.collect()
}
