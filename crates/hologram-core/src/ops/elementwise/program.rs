//! The program of an elementwise expression over operands that broadcast or are views.

use std::cell::Cell;

use hologram_backends::{DType, KernelSpec};
use hologram_isa::{Builder, SUBGROUP_SIZE, Type, Value};

use super::{register_type, sizes};
use crate::error::{CoreError, Result};
use crate::layout::{IndexMap, Layout};
use crate::ops::kernel::divide;
use crate::ops::{Kernel, Launchable, TensorArg};

/// The most threads per workgroup if each thread has one element, and if each has four.
const THREADS: u32 = 256;
const THREADS_OF_FOUR: u32 = 128;

/// The program of an elementwise expression. `layouts` gives, by operand, the layouts of views. Operands broadcast to
/// the output's shape. Each thread has `per_thread` consecutive elements: 1, or 4, which a device can load and store
/// together.
///
/// # Errors
/// When the expression cannot be emitted.
pub(crate) fn elementwise_program(
    spec: &KernelSpec,
    layouts: &[Option<&Layout>],
    per_thread: u32,
    emit: impl Fn(&mut Builder, &[Value]) -> Option<Value>,
) -> Result<Launchable> {
    build(spec, layouts, per_thread, false, emit)
}

/// The program of a copy of one operand, bit by bit.
///
/// # Errors
/// As [`elementwise_program`].
pub(crate) fn copy_program(spec: &KernelSpec, layouts: &[Option<&Layout>], per_thread: u32) -> Result<Launchable> {
    build(spec, layouts, per_thread, true, |_, v| v.first().copied())
}

/// With `raw`, elements are loaded as they are, otherwise in the type they are computed in.
fn build(
    spec: &KernelSpec,
    layouts: &[Option<&Layout>],
    per_thread: u32,
    raw: bool,
    emit: impl Fn(&mut Builder, &[Value]) -> Option<Value>,
) -> Result<Launchable> {
    let max = sizes(&spec.output.shape);
    let (each, most) = if per_thread == 4 { (4, THREADS_OF_FOUR) } else { (1, THREADS) };
    // A small tensor has small workgroups: the CPU computes all threads of one, with elements or without.
    let needed = max.div_ceil(each).next_multiple_of(SUBGROUP_SIZE as usize).max(SUBGROUP_SIZE as usize);
    let threads = most.min(u32::try_from(needed).unwrap_or(most));
    let mut k = Kernel::new(spec, threads);
    let total = k.elements(&spec.output);
    let operand = |(i, arg): (usize, &TensorArg)| Operand {
        map: IndexMap::of(&spec.output.shape, &arg.spec.shape, layouts.get(i).copied().flatten()),
        arg: arg.clone(),
        raw,
    };
    let operands: Vec<Operand> = k.inputs.iter().enumerate().map(operand).collect();
    let output = k.output.clone();
    let emitted = Cell::new(true);
    let value = |b: &mut Builder, args: &[Value]| {
        emit(b, args).unwrap_or_else(|| {
            emitted.set(false);
            Value::from(0.0f32)
        })
    };
    let one = |b: &mut Builder, i: Value| {
        let args: Vec<Value> = operands.iter().map(|o| o.load(b, i)).collect();
        let value = value(b, &args);
        output.store(b, i, value);
    };
    let t = k.b.global_x();
    if per_thread == 4 {
        // A thread has elements 4·t to 4·t + 3; the thread after the last whole four has the remainder.
        let fours = k.b.shr(total, 2u32);
        let (whole, last) = (k.b.lt(t, fours), k.b.eq(t, fours));
        let first = k.b.shl(t, 2u32);
        let four = |b: &mut Builder| {
            let args: Vec<[Value; 4]> = operands.iter().map(|o| o.load_four(b, first)).collect();
            let values = [0, 1, 2, 3].map(|k| value(b, &args.iter().map(|a| a[k]).collect::<Vec<_>>()));
            for (k, value) in (0u32..).zip(values) {
                let i = b.add(first, k);
                output.store(b, i, value);
            }
        };
        k.b.if_else(whole, four, |b| b.if_(last, |b| b.for_(first, total, 1u32, one)));
    } else {
        let inside = k.b.lt(t, total);
        k.b.if_(inside, |b| one(b, t));
    }
    if !emitted.get() {
        return Err(CoreError::Graph(format!("{}: an operand has no value", spec.op)));
    }
    k.finish(max.div_ceil(each).div_ceil(threads as usize))
}

/// An operand and where its elements lie.
struct Operand {
    map: IndexMap,
    arg: TensorArg,
    raw: bool,
}

impl Operand {
    /// The operand's element for an element of the output, in the register type.
    fn load(&self, b: &mut Builder, i: Value) -> Value {
        let at = self.index(b, i);
        self.at(b, at)
    }

    /// The operand's elements for four elements of the output, which begin at a multiple of four.
    fn load_four(&self, b: &mut Builder, first: Value) -> [Value; 4] {
        let neighbours = match self.map.parts.last() {
            None => Some(0),
            Some(p) if p.inner == 1 && p.size.is_none_or(|n| n.is_multiple_of(4)) => Some(p.stride),
            Some(_) => None,
        };
        match neighbours {
            Some(0) => [self.load(b, first); 4],
            Some(stride) => {
                let at = self.index(b, first);
                [0, 1, 2, 3].map(|k: u32| {
                    let at = b.add(at, k * stride);
                    self.at(b, at)
                })
            }
            None => [0, 1, 2, 3].map(|k: u32| {
                let i = b.add(first, k);
                self.load(b, i)
            }),
        }
    }

    fn at(&self, b: &mut Builder, at: Value) -> Value {
        let value = b.load(self.arg.views[0], at);
        match self.arg.spec.format {
            _ if self.raw => value,
            DType::Plain(ty) => b.cvt(register_type(ty), value),
            _ => b.cvt(Type::F32, value),
        }
    }

    /// The operand's index for element `i` of the output.
    fn index(&self, b: &mut Builder, i: Value) -> Value {
        if self.map.is_identity() {
            return i;
        }
        let mut sum: Option<Value> = None;
        for part in self.map.parts.iter().filter(|p| p.stride > 0) {
            let mut at = divide(b, i, part.inner);
            if let Some(n) = part.size {
                let whole = divide(b, at, n);
                let whole = b.mul(whole, n);
                at = b.sub(at, whole);
            }
            if part.stride > 1 {
                at = b.mul(at, part.stride);
            }
            sum = Some(match sum {
                Some(sum) => b.add(sum, at),
                None => at,
            });
        }
        match sum {
            Some(sum) if self.map.offset > 0 => b.add(sum, self.map.offset),
            Some(sum) => sum,
            None => Value::from(self.map.offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use hologram_backends::{Extent, TensorSpec};
    use hologram_isa::interp::{Binding, interpret};

    use super::*;

    /// The result of the program of x · y + x with `per_thread` elements per thread, and 64 bytes beyond the output's
    /// end.
    fn run(shape: &[Extent], repeated: &[Extent], actual: u32, per_thread: u32) -> Vec<u8> {
        let tensor = |shape: &[Extent]| TensorSpec { format: DType::F32, shape: shape.to_vec() };
        let spec = KernelSpec {
            op: hologram_backends::Operation::FusedElementwise,
            inputs: vec![tensor(shape), tensor(repeated)],
            output: tensor(shape),
            in_place: None,
        };
        let emit = |b: &mut Builder, v: &[Value]| {
            let product = b.mul(v[0], v[1]);
            Some(b.add(product, v[0]))
        };
        let (program, grid) = elementwise_program(&spec, &[], per_thread, emit).unwrap();
        let bytes = |n: usize| (0..n).flat_map(|i| (i as f32 * 0.37 - 5.0).to_le_bytes()).collect::<Vec<u8>>();
        let (n, m) = (spec.output.max_bytes() / 4, spec.inputs[1].max_bytes() / 4);
        let (mut x, mut y, mut out, mut step) = (bytes(n), bytes(m), vec![0xee; n * 4 + 64], actual.to_le_bytes());
        let len = |memory: usize, len: usize| Binding::Buffer { memory, offset: 0, len };
        let mut bindings = vec![len(0, n * 4), len(1, m * 4), len(2, n * 4)];
        if spec.uses_step() {
            bindings.push(len(3, 4));
        }
        interpret(&program, grid, &mut [&mut x, &mut y, &mut out, &mut step], &bindings).unwrap();
        out
    }

    #[test]
    fn four_elements_a_thread_give_what_one_gives() {
        let (fixed, rows) = (Extent::Fixed, Extent::step(0, 5));
        for width in [1, 3, 4, 8, 33, 257] {
            for actual in [0, 1, 3, 5] {
                let shape = [rows, fixed(width)];
                for repeated in [&shape[..], &shape[1..], &[rows, fixed(1)], &[fixed(1), fixed(1)], &[]] {
                    assert!(
                        run(&shape, repeated, actual, 1) == run(&shape, repeated, actual, 4),
                        "{actual} of {shape:?} with {repeated:?}"
                    );
                }
            }
        }
        assert!(run(&[fixed(1030)], &[fixed(1030)], 0, 1) == run(&[fixed(1030)], &[fixed(1030)], 0, 4));
    }
}
