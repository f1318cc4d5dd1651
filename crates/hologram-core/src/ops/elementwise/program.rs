//! The program of an elementwise expression over operands that broadcast or are views.

use std::cell::Cell;

use hologram_backends::{DType, KernelSpec, TensorSpec};
use hologram_isa::{Builder, Opcode, SUBGROUP_SIZE, Type, Value};

use super::{register_type, sizes};
use crate::error::{CoreError, Result};
use crate::layout::{IndexMap, Layout, Part};
use crate::ops::kernel::divide;
use crate::ops::{Kernel, Launchable, TensorArg};

/// The most threads per workgroup if each thread has one element, and if each has four.
const THREADS: u32 = 256;
const THREADS_OF_FOUR: u32 = 128;
/// The fewest columns of rows that have workgroups of their own, and the most threads of those.
const LEAST_COLUMNS: u32 = 64;
const THREADS_OF_ROW: u32 = 512;
/// Rows and fours of a row in a workgroup's square of the output, and in a subgroup's, where an operand's neighbours
/// lie in other rows. A subgroup then reads and writes whole runs of 32 bytes or more of both.
const SQUARE: [u32; 2] = [32, 4];
const SQUARE_OF_SUBGROUP: [u32; 2] = [16, 2];

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
    let map = |(i, input): (usize, &TensorSpec)| {
        IndexMap::of(&spec.output.shape, &input.shape, layouts.get(i).copied().flatten())
    };
    let maps: Vec<IndexMap> = spec.inputs.iter().enumerate().map(map).collect();
    let columns = in_rows(&maps).filter(|_| per_thread == 1);
    let threads = match columns {
        Some(columns) => columns.div_ceil(columns.div_ceil(THREADS_OF_ROW)).next_multiple_of(SUBGROUP_SIZE),
        None => most.min(u32::try_from(needed).unwrap_or(most)),
    };
    let mut k = Kernel::new(spec, threads);
    let total = k.elements(&spec.output);
    let operand = |(map, arg): (IndexMap, &TensorArg)| Operand { map, arg: arg.clone(), raw };
    let operands: Vec<Operand> = maps.into_iter().zip(&k.inputs).map(operand).collect();
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
    let each_of_four = |b: &mut Builder, first: Value| {
        let args: Vec<[Value; 4]> = operands.iter().map(|o| o.load_four(b, first)).collect();
        let values = [0, 1, 2, 3].map(|k| value(b, &args.iter().map(|a| a[k]).collect::<Vec<_>>()));
        for (k, value) in (0u32..).zip(values) {
            let i = b.add(first, k);
            output.store(b, i, value);
        }
    };
    if let Some(columns) = turned(&spec.output, &operands).filter(|_| per_thread == 4) {
        // A thread has four elements of a row, a workgroup a square of them.
        let (fours, across) = (columns / 4, (columns / 4).div_ceil(SQUARE[1]));
        let (group, thread) = (k.b.builtin(Opcode::GroupX), k.b.builtin(Opcode::ThreadX));
        let square = divide(&mut k.b, group, across);
        let before = k.b.mul(square, across);
        let place = [square, k.b.sub(group, before)];
        let lane = k.b.and(thread, SUBGROUP_SIZE - 1);
        let subgroup = k.b.shr(thread, SUBGROUP_SIZE.trailing_zeros());
        let [rows, fours_of_subgroup] = SQUARE_OF_SUBGROUP;
        let down = SQUARE[0] / rows;
        let inside = [k.b.and(lane, rows - 1), k.b.shr(lane, rows.trailing_zeros())];
        let own = [k.b.and(subgroup, down - 1), k.b.shr(subgroup, down.trailing_zeros())];
        let [row, four] = [0, 1].map(|d| {
            let square = k.b.mul(place[d], SQUARE[d]);
            let own = k.b.mul(own[d], [rows, fours_of_subgroup][d]);
            let own = k.b.add(own, inside[d]);
            k.b.add(square, own)
        });
        let first = k.b.mul(row, fours);
        let first = k.b.add(first, four);
        let whole = k.b.shr(total, 2u32);
        let (in_row, in_output) = (k.b.lt(four, fours), k.b.lt(first, whole));
        let first = k.b.shl(first, 2u32);
        k.b.if_(in_row, |b| b.if_(in_output, |b| each_of_four(b, first)));
        return finish(spec, k, emitted.get(), (max / columns as usize).div_ceil(SQUARE[0] as usize) * across as usize);
    }
    if let Some(columns) = columns {
        // A workgroup has a part of a row: its threads have the row in common, and neighbouring columns.
        let across = columns.div_ceil(threads);
        let (group, thread) = (k.b.builtin(Opcode::GroupX), k.b.builtin(Opcode::ThreadX));
        let row = divide(&mut k.b, group, across);
        let before = k.b.mul(row, across);
        let part = k.b.sub(group, before);
        let first = k.b.mul(part, threads);
        let column = k.b.add(first, thread);
        let start = k.b.mul(row, columns);
        let i = k.b.add(start, first);
        let i = k.b.add(i, thread);
        let store = |b: &mut Builder| {
            let args: Vec<Value> = operands.iter().map(|o| o.load_in_row(b, i, row, column, columns)).collect();
            let value = value(b, &args);
            output.store(b, i, value);
        };
        let (in_row, in_output) = (k.b.lt(column, columns), k.b.lt(i, total));
        k.b.if_(in_row, |b| b.if_(in_output, store));
        return finish(spec, k, emitted.get(), max.div_ceil(columns as usize) * across as usize);
    }
    let t = k.b.global_x();
    if per_thread == 4 {
        // A thread has elements 4·t to 4·t + 3; the thread after the last whole four has the remainder.
        let fours = k.b.shr(total, 2u32);
        let (whole, last) = (k.b.lt(t, fours), k.b.eq(t, fours));
        let first = k.b.shl(t, 2u32);
        k.b.if_else(whole, |b| each_of_four(b, first), |b| b.if_(last, |b| b.for_(first, total, 1u32, one)));
    } else {
        let inside = k.b.lt(t, total);
        k.b.if_(inside, |b| one(b, t));
    }
    finish(spec, k, emitted.get(), max.div_ceil(each).div_ceil(threads as usize))
}

/// Ends the program with so many workgroups; `emitted`: whether every operand has a value.
fn finish(spec: &KernelSpec, k: Kernel, emitted: bool, workgroups: usize) -> Result<Launchable> {
    if !emitted {
        return Err(CoreError::Graph(format!("{}: an operand has no value", spec.op)));
    }
    k.finish(workgroups)
}

/// The columns of the output's rows, if neighbours of an operand lie in neighbouring rows and those of a row far apart.
/// Rows are whole fours, and there are enough rows and columns for squares.
fn turned(output: &TensorSpec, operands: &[Operand]) -> Option<u32> {
    let max = sizes(&output.shape);
    let [rows, fours] = SQUARE;
    let far = SQUARE_OF_SUBGROUP[0];
    let columns = operands.iter().find_map(|o| match o.map.parts.as_slice() {
        [.., Part { inner, size, stride: 1 }, Part { inner: 1, size: Some(n), stride }] if inner == n => {
            (*stride >= far && size.is_none_or(|rows| rows >= far)).then_some(*n)
        }
        _ => None,
    })?;
    let enough = columns >= 4 * fours && max / columns as usize >= rows as usize;
    (enough && columns.is_multiple_of(4)).then_some(columns)
}

/// The columns of the output's rows, if operands are easier to find by row and column than by one index: each has one
/// stride along a row. `None` where rows would be short.
fn in_rows(operands: &[IndexMap]) -> Option<u32> {
    let parts = || operands.iter().filter(|map| !map.is_identity()).flat_map(|map| &map.parts);
    // The sizes at which an operand's stride changes.
    let columns = parts().flat_map(|p| [Some(p.inner), p.size.map(|n| p.inner.saturating_mul(n))]).flatten();
    let fits = |columns: &u32| {
        parts().all(|p| match p.size {
            _ if p.inner.is_multiple_of(*columns) => true,
            None => p.inner == 1,
            Some(n) => p.inner == 1 && n.is_multiple_of(*columns),
        })
    };
    columns.filter(|n| *n >= LEAST_COLUMNS && fits(n)).max()
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

    /// The operand's element for element `i` of the output, in a row and column of [`in_rows`].
    fn load_in_row(&self, b: &mut Builder, i: Value, row: Value, column: Value, columns: u32) -> Value {
        if self.map.is_identity() {
            return self.at(b, i);
        }
        let mut sum: Option<Value> = None;
        for part in self.map.parts.iter().filter(|p| p.stride > 0) {
            let along = !part.inner.is_multiple_of(columns);
            // A row's first element.
            let mut of_row = if along { b.mul(row, columns) } else { divide(b, row, part.inner / columns) };
            if let Some(n) = part.size {
                let whole = divide(b, of_row, n);
                let whole = b.mul(whole, n);
                of_row = b.sub(of_row, whole);
            }
            for index in [Some(of_row), along.then_some(column)].into_iter().flatten() {
                let index = if part.stride > 1 { b.mul(index, part.stride) } else { index };
                sum = Some(sum.map_or(index, |sum| b.add(sum, index)));
            }
        }
        let at = self.moved(b, sum);
        self.at(b, at)
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
        self.moved(b, sum)
    }

    /// A sum of the map's parts and its offset.
    fn moved(&self, b: &mut Builder, sum: Option<Value>) -> Value {
        match sum {
            Some(sum) if self.map.offset > 0 => b.add(sum, self.map.offset),
            Some(sum) => sum,
            None => Value::from(self.map.offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use hologram_backends::Extent;
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
        for width in [1, 3, 4, 8, 33, 64, 257, 384] {
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

    /// Programs of views whose neighbours lie in other rows: whole squares and parts of them, rows of several matrices,
    /// an extent, an operand that lies as the output does.
    #[test]
    fn squares_of_turned_views_give_what_rows_give() {
        let (fixed, rows) = (Extent::Fixed, Extent::step(0, 50));
        for (shape, strides, in_squares) in [
            (vec![fixed(32), fixed(16)], vec![1, 32], true),
            (vec![fixed(70), fixed(36)], vec![1, 70], true),
            (vec![rows, fixed(20)], vec![1, 50], true),
            (vec![fixed(3), fixed(17), fixed(24)], vec![17 * 24, 1, 17], true),
            // Neighbours in a row are no whole fours, too few rows, neighbours that are near.
            (vec![fixed(40), fixed(18)], vec![1, 40], false),
            (vec![fixed(8), fixed(128)], vec![1, 8], false),
            (vec![fixed(20), fixed(8), fixed(32)], vec![256, 1, 8], false),
        ] {
            let n: usize = shape.iter().map(|e| e.max()).product();
            let tensor = |shape: &[Extent]| TensorSpec { format: DType::F32, shape: shape.to_vec() };
            let spec = KernelSpec {
                op: hologram_backends::Operation::FusedElementwise,
                inputs: vec![tensor(&shape), tensor(&shape)],
                output: tensor(&shape),
                in_place: None,
            };
            let view = Layout { offset: 0, strides };
            let result = |per_thread: u32, actual: u32| {
                let emit = |b: &mut Builder, v: &[Value]| Some(b.sub(v[0], v[1]));
                let (program, grid) = elementwise_program(&spec, &[Some(&view), None], per_thread, emit).unwrap();
                let bytes = |by: f32| (0..n).flat_map(|i| (i as f32 * by - 5.0).to_le_bytes()).collect::<Vec<u8>>();
                let (mut x, mut y, mut out) = (bytes(0.37), bytes(1.25), vec![0xee; n * 4 + 64]);
                let mut bindings: Vec<Binding> =
                    (0..3).map(|memory| Binding::Buffer { memory, offset: 0, len: n * 4 }).collect();
                if spec.uses_step() {
                    bindings.push(Binding::Buffer { memory: 3, offset: 0, len: 4 });
                }
                let mut step = actual.to_le_bytes();
                interpret(&program, grid, &mut [&mut x, &mut y, &mut out, &mut step], &bindings).unwrap();
                (out, program.to_string().contains("group.x"))
            };
            for actual in [0, 1, 33, 50] {
                let ((by_one, _), (by_four, squares)) = (result(1, actual), result(4, actual));
                assert!(by_one == by_four, "{actual} of {shape:?}");
                assert_eq!(squares, in_squares, "{shape:?}");
            }
        }
    }
}
