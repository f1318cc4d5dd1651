//! The record in which a GPU kernel stores its first fault, in the format of the programs' printers, and its error.

use std::sync::Arc;

use hologram_isa::{IsaError, Program, ptx, shown_index};

use crate::error::BackendError;
use crate::info::BackendType;
use crate::launch::KernelName;

/// Words of a fault record.
pub const FAULT_WORDS: usize = 8;

/// The kernel of a fault record.
pub enum Faulty {
    /// A program.
    Program {
        /// The program that the record's line refers to.
        program: Arc<Program>,
        /// Elements of each parameter's buffer; 0 for scalars.
        elements: Vec<u32>,
    },
    /// A native kernel, by its launch's name.
    Native(KernelName),
}

impl Faulty {
    /// The error; for a program it has the interpreter's sentence.
    pub fn error(
        &self,
        device: BackendType,
        [_, line, memory, element, x, y, z, thread]: [u32; FAULT_WORDS],
    ) -> BackendError {
        let (program, elements) = match self {
            Faulty::Program { program, elements } => (program, elements),
            Faulty::Native(kernel) => {
                let reason = format!("index {element} is outside the {memory} that there are");
                return BackendError::Kernel { device: device.to_string(), kernel: kernel.to_string(), reason };
            }
        };
        let index = shown_index(element);
        let outside = |what: &str, name: &str, len: u32| {
            format!("element {index} of {what} {name} is outside: it has {len} elements")
        };
        let message = match memory {
            ptx::STEP => format!("the step of a for loop is {}, it must be positive", element as i32),
            ptx::DIV_BY_ZERO => "div by zero".into(),
            ptx::REM_BY_ZERO => "rem by zero".into(),
            _ if memory & ptx::SHARED != 0 => match program.shared.get((memory & !ptx::SHARED) as usize) {
                Some(array) => outside("shared array", &array.name, array.len),
                None => format!("element {index} is outside a shared array"),
            },
            _ => match (program.params.get(memory as usize), elements.get(memory as usize)) {
                (Some(param), Some(len)) => outside("buffer", &param.name, *len),
                _ => format!("element {index} is outside a buffer"),
            },
        };
        IsaError::Run { program: program.name.clone(), line, group: [x, y, z], thread, message }.into()
    }
}
