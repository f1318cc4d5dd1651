//! Atlas programs of one's own, run on tensors.

use hologram_backends::{Binding, DType, Launch, LaunchConfig, Pipeline};
use hologram_isa::{Param, ParamKind, Program, Type};

use crate::error::{CoreError, Result};
use crate::executor::{Buffer, Executor};
use crate::graph::Event;
use crate::tensor::{Element, Tensor, bytes_of};

/// An Atlas program compiled for a device.
///
/// ```
/// use hologram_core::{Executor, Tensor};
///
/// # fn main() -> hologram_core::Result<()> {
/// let executor = Executor::new_auto()?;
/// let square = executor.program(
///     "kernel square(x: buffer<f32>, y: buffer<f32, write>, n: u32) workgroup(64) {
///        %i = global.x
///        %inside = lt.u32 %i, n
///        if %inside {
///          %v = load.f32 x[%i]
///          %v2 = mul.f32 %v, %v
///          store.f32 y[%i], %v2
///        }
///      }",
/// )?;
/// let x = Tensor::from_slice(&executor, &[3], &[1.0f32, -2.0, 3.0])?;
/// let y = Tensor::full(&executor, hologram_core::DType::F32, &[3], 0.0)?;
/// square.run([1, 1, 1], &[(&x).into(), (&y).into(), 3u32.into()])?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 4.0, 9.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CompiledProgram {
    executor: Executor,
    pipeline: Pipeline,
    params: Vec<Param>,
}

/// An argument of a [`CompiledProgram`]: a tensor with contiguous elements, a buffer, or a number. Numbers have the
/// type of the parameter: `3u32.into()` for `n: u32`.
#[derive(Clone, Debug)]
pub struct Argument {
    ty: Option<Type>,
    /// The argument's description, for messages.
    shown: String,
    binding: Option<Binding>,
}

impl From<&Tensor> for Argument {
    fn from(tensor: &Tensor) -> Argument {
        let mut bindings = tensor.bindings();
        // Block formats have several buffers, and no element type.
        let binding = if bindings.len() == 1 && tensor.is_contiguous() { bindings.pop() } else { None };
        let ty = if let DType::Plain(ty) = tensor.dtype() { Some(ty) } else { None };
        Argument { ty, shown: format!("{tensor:?}"), binding }
    }
}

impl<T: Element> From<&Buffer<T>> for Argument {
    fn from(buffer: &Buffer<T>) -> Argument {
        let shown = format!("a buffer of {}", T::TYPE);
        Argument { ty: Some(T::TYPE), shown, binding: Some(Binding::whole(buffer.raw())) }
    }
}

macro_rules! numbers {
    ($($rust:ty as $word:ty;)*) => {$(
        impl From<$rust> for Argument {
            fn from(value: $rust) -> Argument {
                let mut word = [0; 8];
                // Narrow integers fill 32 bits of their word.
                let wide = <$word>::from(value);
                word[..size_of::<$word>()].copy_from_slice(bytes_of(&[wide]));
                let shown = format!("a number of {}", <$rust as Element>::TYPE);
                Argument { ty: Some(<$rust as Element>::TYPE), shown, binding: Some(Binding::Scalar(u64::from_le_bytes(word))) }
            }
        }
    )*};
}
numbers! {
    i8 as i32; i16 as i32; i32 as i32; i64 as i64; u8 as u32; u16 as u32; u32 as u32; u64 as u64; f32 as f32; f64 as f64;
    half::f16 as half::f16; half::bf16 as half::bf16;
}

impl From<bool> for Argument {
    fn from(value: bool) -> Argument {
        let binding = Some(Binding::Scalar(value.into()));
        Argument { ty: Some(Type::Bool), shown: "a number of bool".into(), binding }
    }
}

impl Executor {
    /// Compiles an Atlas program in text form.
    ///
    /// # Errors
    /// The program's fault, with its line; when the device lacks a capability that it needs.
    pub fn program(&self, text: &str) -> Result<CompiledProgram> {
        let program = hologram_isa::parse(text)?;
        self.compile_program(&program)
    }

    /// Compiles a program, for example one that [`hologram_isa::Builder`] made.
    ///
    /// # Errors
    /// As [`Executor::program`].
    pub fn compile_program(&self, program: &Program) -> Result<CompiledProgram> {
        let pipeline = self.backend().compile(program)?;
        Ok(CompiledProgram { executor: self.clone(), pipeline, params: program.params.clone() })
    }
}

impl CompiledProgram {
    /// Submits a run of `grid` workgroups in x, y and z, with arguments in the order of the parameters. Returns when
    /// the device has accepted it.
    ///
    /// # Errors
    /// When an argument does not fit its parameter; errors that the device detects at once. Errors of the run come with
    /// the event, and with reads of the results.
    pub fn submit(&self, grid: [u32; 3], args: &[Argument]) -> Result<Event> {
        let fail = |reason: String| Err(CoreError::Program { program: self.pipeline.name.to_string(), reason });
        if args.len() != self.params.len() {
            return fail(format!("it has {} parameters, but {} arguments are given", self.params.len(), args.len()));
        }
        let mut bindings = Vec::with_capacity(args.len());
        for (param, arg) in self.params.iter().zip(args) {
            let (wanted, ty) = match param.kind {
                ParamKind::Buffer { element, .. } => (format!("a buffer of {element}"), element),
                ParamKind::Scalar(ty) => (format!("a number of {ty}"), ty),
            };
            let buffer = matches!(param.kind, ParamKind::Buffer { .. });
            if let Some(Binding::Buffer { buffer, .. }) = &arg.binding
                && !self.executor.backend().owns(buffer)
            {
                return fail(format!("{}, given for {}, is of another executor", arg.shown, param.name));
            }
            match &arg.binding {
                Some(b) if arg.ty == Some(ty) && matches!(b, Binding::Buffer { .. }) == buffer => {
                    bindings.push(b.clone())
                }
                None if buffer && arg.ty == Some(ty) => {
                    return fail(format!(
                        "{} is a view, and {} takes elements in order: use contiguous()",
                        arg.shown, param.name
                    ));
                }
                _ => return fail(format!("parameter {} is {wanted}, not {}", param.name, arg.shown)),
            }
        }
        let launch = Launch { pipeline: self.pipeline.clone(), bindings, config: LaunchConfig { grid } };
        let backend = self.executor.backend();
        let event = backend.submit(&backend.record(&[launch])?)?;
        Ok(Event { executor: self.executor.clone(), event })
    }

    /// As [`CompiledProgram::submit`], and waits.
    ///
    /// # Errors
    /// As [`CompiledProgram::submit`]; errors of the run.
    pub fn run(&self, grid: [u32; 3], args: &[Argument]) -> Result<()> {
        self.submit(grid, args)?.wait()
    }
}
