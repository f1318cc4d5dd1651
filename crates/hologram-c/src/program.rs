//! Atlas programs.

use std::ffi::{c_char, c_void};

use hologram_core::{Argument, CompiledProgram};
use hologram_isa::{ParamKind, Program, Type};

use crate::device::HologramDevice;
use crate::error::{HologramStatus, Result, guard, invalid};
use crate::pointers::{counted_text, give, list, object, place, release};
use crate::tensor::HologramTensor;

/// A program, compiled for a device.
pub struct HologramProgram {
    program: Program,
    compiled: CompiledProgram,
}

/// An argument of a program: a tensor for a buffer; for a number its bytes, in the type of the parameter.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HologramArgument {
    /// The tensor, or NULL for a number.
    pub tensor: *const HologramTensor,
    /// The number, or NULL for a tensor.
    pub number: *const c_void,
}

/// Compiles the text of a program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_program_new(
    device: *const HologramDevice,
    text: *const c_char,
    len: usize,
    program: *mut *mut HologramProgram,
) -> HologramStatus {
    guard(|| {
        let device = object(device, "device")?;
        let (text, place) = (counted_text(text, len, "text")?, place(program, "program")?);
        let program = hologram_isa::parse(text).map_err(hologram_core::CoreError::from)?;
        let compiled = device.executor.compile_program(&program)?;
        give(place, HologramProgram { program, compiled });
        Ok(())
    })
}

/// The number of the program's parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_program_parameters(
    program: *const HologramProgram,
    count: *mut usize,
) -> HologramStatus {
    guard(|| {
        place(count, "count")?.write(object(program, "program")?.program.params.len());
        Ok(())
    })
}

/// Runs `x` · `y` · `z` workgroups of a program with an argument per parameter, and waits. The program changes the
/// tensors of buffers that it writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_program_run(
    program: *const HologramProgram,
    x: u32,
    y: u32,
    z: u32,
    arguments: *const HologramArgument,
    count: usize,
) -> HologramStatus {
    guard(|| {
        let HologramProgram { program, compiled } = object(program, "program")?;
        let given = list(arguments, count, "arguments")?;
        if given.len() != program.params.len() {
            return invalid(format!("{} takes {} arguments, not {count}", program.name, program.params.len()));
        }
        let mut arguments = Vec::with_capacity(count);
        for (param, given) in program.params.iter().zip(given) {
            arguments.push(match param.kind {
                ParamKind::Buffer { .. } => Argument::from(&object(given.tensor, &param.name)?.0),
                ParamKind::Scalar(ty) => number(given.number, ty, &param.name)?,
            });
        }
        Ok(compiled.run([x, y, z], &arguments)?)
    })
}

/// A number as an argument.
unsafe fn number(pointer: *const c_void, ty: Type, name: &str) -> Result<Argument> {
    object(pointer.cast::<u8>(), name)?;
    macro_rules! of {
        ($rust:ty) => {
            Argument::from(pointer.cast::<$rust>().read_unaligned())
        };
    }
    Ok(match ty {
        Type::Bool => Argument::from(pointer.cast::<u8>().read() != 0),
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

/// Frees a program.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hologram_program_release(program: *mut HologramProgram) {
    release(program);
}
