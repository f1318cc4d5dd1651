//! The common start of every operation's program: parameters from the spec, run-time extents, and element access in any
//! format.

use hologram_backends::{DType, Extent, KernelSpec, TensorSpec};
use hologram_isa::{Access, Array, Builder, Type, Value};

use crate::error::{CoreError, Result};
use crate::ops::Launchable;

/// Rejects operands whose values are entries of tables that programs do not have.
///
/// # Errors
/// When an operand is in a [`DType::Grid`]: a device without a kernel recodes it when it is loaded.
pub fn without_grids(spec: &KernelSpec) -> Result<()> {
    match spec.inputs.iter().find(|t| matches!(t.format, DType::Grid(_))) {
        Some(t) => Err(CoreError::Program {
            program: spec.op.name().into(),
            reason: format!("no program reads {}; convert it to {}", t.format, t.format.recoded()),
        }),
        None => Ok(()),
    }
}

/// A program under construction with the parameters that [`KernelSpec`] describes.
pub struct Kernel {
    /// The program.
    pub b: Builder,
    /// The inputs in order.
    pub inputs: Vec<TensorArg>,
    /// The output; for operations in place, the same arrays as the input that it overwrites.
    pub output: TensorArg,
    /// Extents from the step block, loaded once at the start.
    extents: Vec<(u32, Value)>,
}

impl Kernel {
    /// Declares the parameters of a spec for a program with `threads` threads per workgroup.
    pub fn new(spec: &KernelSpec, threads: u32) -> Kernel {
        let mut b = Builder::new(spec.op.name(), [threads, 1, 1]);
        let mut inputs = Vec::with_capacity(spec.inputs.len());
        for (i, t) in spec.inputs.iter().enumerate() {
            let access = if spec.in_place == Some(i) { Access::ReadWrite } else { Access::Read };
            inputs.push(TensorArg::declare(&mut b, &format!("in{i}"), t, access));
        }
        let output = match spec.in_place {
            Some(i) => inputs[i].clone(),
            None => TensorArg::declare(&mut b, "out", &spec.output, Access::Write),
        };
        let mut extents = Vec::new();
        if spec.uses_step() {
            let step = b.buffer("step", Type::U32, Access::Read);
            for e in spec.inputs.iter().chain([&spec.output]).flat_map(|t| &t.shape) {
                if let Extent::Step { slot, .. } = e
                    && !extents.iter().any(|(s, _)| s == slot)
                {
                    let value = b.load(step, *slot);
                    extents.push((*slot, value));
                }
            }
        }
        Kernel { b, inputs, output, extents }
    }

    /// The size of a dimension as a `u32`.
    pub fn extent(&mut self, extent: Extent) -> Value {
        match extent {
            Extent::Fixed(n) => Value::from(n as u32),
            Extent::Step { slot, max, .. } => match self.extents.iter().find(|(s, _)| *s == slot) {
                Some((_, value)) => self.b.min(*value, max as u32),
                None => Value::from(max as u32),
            },
        }
    }

    /// The number of rows of a tensor: the product of all dimensions but the last.
    pub fn rows(&mut self, tensor: &TensorSpec) -> Value {
        let (mut fixed, mut value) = (1u32, None);
        for e in &tensor.shape[..tensor.shape.len().saturating_sub(1)] {
            match e {
                Extent::Fixed(n) => fixed *= *n as u32,
                Extent::Step { .. } => value = Some(self.extent(*e)),
            }
        }
        match value {
            Some(v) if fixed == 1 => v,
            Some(v) => self.b.mul(v, fixed),
            None => Value::from(fixed),
        }
    }

    /// The number of elements of a tensor.
    pub fn elements(&mut self, tensor: &TensorSpec) -> Value {
        if tensor.shape.len() == 1 {
            return self.extent(tensor.shape[0]);
        }
        let rows = self.rows(tensor);
        self.b.mul(rows, tensor.row_len() as u32)
    }

    /// Ends the program. `workgroups` is the number of workgroups in x; with 0, for empty results, no thread runs.
    ///
    /// # Errors
    /// Errors that the builder or the verifier found.
    pub fn finish(self, workgroups: usize) -> Result<Launchable> {
        Ok((self.b.finish()?, [workgroups as u32, 1, 1]))
    }
}

/// The quotient of a `u32` and a constant, by multiplication: devices have no 32-bit division that is as fast (Granlund
/// and Montgomery, "Division by invariant integers using multiplication", 1994).
pub fn divide(b: &mut Builder, i: Value, by: u32) -> Value {
    if by <= 1 {
        return i;
    }
    if by.is_power_of_two() {
        return b.shr(i, by.trailing_zeros());
    }
    let bits = 32 - (by - 1).leading_zeros();
    let factor = (((1u64 << bits) - u64::from(by)) << 32) / u64::from(by) + 1;
    let high = b.mulhi(i, factor as u32);
    let rest = b.sub(i, high);
    let rest = b.shr(rest, 1u32);
    let sum = b.add(high, rest);
    b.shr(sum, bits - 1)
}

/// A tensor parameter: its spec and the arrays of its views.
#[derive(Clone, Debug)]
pub struct TensorArg {
    /// Format and shape.
    pub spec: TensorSpec,
    /// One array per view of the format.
    pub views: Vec<Array>,
}

impl TensorArg {
    fn declare(b: &mut Builder, name: &str, spec: &TensorSpec, access: Access) -> TensorArg {
        let views = spec.format.views(spec.max_rows(), spec.row_len());
        let declare = |(i, v): (usize, &hologram_backends::View)| {
            let suffix = match i {
                0 => String::new(),
                1 => "_scale".into(),
                _ => format!("_{i}"),
            };
            b.buffer(&format!("{name}{suffix}"), v.element, access)
        };
        TensorArg { spec: spec.clone(), views: views.iter().enumerate().map(declare).collect() }
    }

    /// The element of a plain tensor at a row-major index, converted to `ty`.
    pub fn load_as(&self, b: &mut Builder, ty: Type, index: impl Into<Value>) -> Value {
        let value = b.load(self.views[0], index);
        b.cvt(ty, value)
    }

    /// Sets the element of a plain tensor at a row-major index; the value is converted.
    pub fn store(&self, b: &mut Builder, index: impl Into<Value>, value: impl Into<Value>) {
        b.store(self.views[0], index, value);
    }
}
