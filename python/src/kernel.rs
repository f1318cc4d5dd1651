//! Atlas programs of one's own on tensors.

use hologram_core::{Argument, CompiledProgram};
use hologram_isa::{ParamKind, Program, Type};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::device;
use crate::dtype;
use crate::error::{Result, value, wrong_type};
use crate::tape;
use crate::tensor::{PyTensor, encode};
use crate::wait::worked;

/// An Atlas program, compiled for a device when it first runs there.
#[pyclass(frozen, name = "Kernel", module = "hologram")]
pub struct PyKernel {
    program: Program,
    compiled: std::sync::Mutex<std::collections::HashMap<String, CompiledProgram>>,
    text: String,
}

#[pymethods]
impl PyKernel {
    #[new]
    fn new(text: &str) -> Result<PyKernel> {
        let program = hologram_isa::parse(text).map_err(hologram_core::CoreError::from)?;
        Ok(PyKernel { program, compiled: std::sync::Mutex::default(), text: text.into() })
    }

    /// The program's name.
    #[getter]
    fn name(&self) -> String {
        self.program.name.to_string()
    }

    /// The parameters: name, element type, and whether it is a buffer.
    #[getter]
    fn parameters(&self) -> Vec<(String, &'static str, bool)> {
        let one = |param: &hologram_isa::Param| match param.kind {
            ParamKind::Buffer { element, .. } => (param.name.to_string(), dtype::name(element), true),
            ParamKind::Scalar(ty) => (param.name.to_string(), dtype::name(ty), false),
        };
        self.program.params.iter().map(one).collect()
    }

    /// Threads of a workgroup, in x, y and z.
    #[getter]
    fn workgroup(&self) -> [u32; 3] {
        self.program.workgroup
    }

    /// The program's text.
    #[getter]
    fn text(&self) -> &str {
        &self.text
    }

    /// Runs `grid` workgroups with tensors for buffers and numbers for scalars, in the order of the parameters, on the
    /// tensors' device. Tensors of parameters that the program writes change in place.
    #[pyo3(signature = (*args, grid))]
    fn __call__(&self, py: Python<'_>, args: &Bound<'_, PyTuple>, grid: &Bound<'_, PyAny>) -> Result<()> {
        let grid = workgroups(grid)?;
        let params = &self.program.params;
        if args.len() != params.len() {
            return wrong_type(format!("{} takes {} arguments, not {}", self.name(), params.len(), args.len()));
        }
        let mut device: Option<String> = None;
        let mut arguments = Vec::with_capacity(args.len());
        for (param, arg) in params.iter().zip(args.iter()) {
            let element = match param.kind {
                ParamKind::Buffer { element, .. } => element,
                ParamKind::Scalar(ty) => {
                    arguments.push(number(&arg, ty)?);
                    continue;
                }
            };
            let Ok(tensor) = arg.cast::<PyTensor>() else {
                let class = arg.get_type().name()?;
                return wrong_type(format!("{} is a buffer and takes a tensor, not {class}", param.name));
            };
            let inner = tensor.get().get()?;
            tape::refuse_eager(&format!("the kernel {}", self.name()), &[&inner])?;
            if inner.ty() != element {
                let (wanted, own) = (dtype::name(element), dtype::name(inner.ty()));
                return wrong_type(format!("{} is a buffer of {wanted}, not of {own}", param.name));
            }
            let own = inner.device.to_string();
            if *device.get_or_insert_with(|| own.clone()) != own {
                return value("the tensors lie on several devices");
            }
            arguments.push(Argument::from(&inner.tensor));
        }
        let (name, executor) = device::open(py, device.as_deref())?;
        let mut compiled = self.compiled.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A fork's child compiles anew for its own devices.
        let key = format!("{name} {}", device::generation());
        let ready = match compiled.get(&key) {
            Some(ready) => ready.clone(),
            None => {
                let (of, program) = (executor.clone(), self.program.clone());
                let ready = worked(py, &executor, 0, move || of.compile_program(&program))??;
                compiled.insert(key, ready.clone());
                ready
            }
        };
        drop(compiled);
        let workgroup = self.program.workgroup;
        let threads = grid.iter().chain(&workgroup).fold(1, |all, n| usize::saturating_mul(all, *n as usize));
        let run = move || ready.submit(grid, &arguments).map(drop);
        Ok(worked(py, &executor, threads, run)??)
    }

    fn __repr__(&self) -> String {
        format!("Kernel({})", self.name())
    }
}

/// The number of workgroups in x, y and z: a number, or one to three.
fn workgroups(grid: &Bound<'_, PyAny>) -> Result<[u32; 3]> {
    fn index<'py>(n: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        n.call_method0("__index__")
    }
    let numbers = match index(grid) {
        Ok(n) => vec![n],
        Err(_) => grid.try_iter().and_then(Iterator::collect::<PyResult<Vec<_>>>).or_else(|_| {
            let class = grid.get_type().name()?;
            wrong_type(format!("grid is the number of workgroups in x, y and z: one to three numbers, not {class}"))
        })?,
    };
    if numbers.is_empty() || numbers.len() > 3 {
        return value("grid is the number of workgroups in x, y and z: one to three numbers");
    }
    let mut all = [1; 3];
    for (to, number) in all.iter_mut().zip(&numbers) {
        let whole = index(number).or_else(|_| wrong_type(format!("grid has {number}, which is no whole number")))?;
        *to = whole.extract().or_else(|_| value(format!("grid has {whole}, but must be from 0 to {}", u32::MAX)))?;
    }
    Ok(all)
}

/// A number as an argument of the parameter's type.
fn number(object: &Bound<'_, PyAny>, ty: Type) -> Result<Argument> {
    let (word, _) = encode(object, ty)?;
    macro_rules! of {
        ($rust:ty) => {{
            let mut bytes = [0; size_of::<$rust>()];
            bytes.copy_from_slice(&word[..size_of::<$rust>()]);
            Argument::from(<$rust>::from_le_bytes(bytes))
        }};
    }
    Ok(match ty {
        Type::Bool => Argument::from(word[0] != 0),
        Type::I8 => of!(i8),
        Type::U8 => of!(u8),
        Type::I16 => of!(i16),
        Type::U16 => of!(u16),
        Type::I32 => of!(i32),
        Type::U32 => of!(u32),
        Type::I64 => of!(i64),
        Type::U64 => of!(u64),
        Type::F16 => of!(half::f16),
        Type::BF16 => of!(half::bf16),
        Type::F32 => of!(f32),
        Type::F64 => of!(f64),
    })
}
