//! Common code of operations along a dimension: a tensor as `[outer, n, inner]`, and workgroups that process
//! neighbouring lines together.

use hologram_backends::{DType, Extent, TensorSpec};
use hologram_isa::{Array, Builder, Opcode, Type, Value};

use super::{Kernel, Mismatch};
use crate::tensor::{Dim, TensorType};

/// Threads per workgroup.
pub(super) const THREADS: u32 = 256;

/// The size of the dimension that an operation works along.
pub(super) fn along(x: &TensorType, dim: usize) -> Result<Dim, String> {
    match x.shape.get(dim) {
        Some(d) => Ok(*d),
        None => Err(format!("there is no dimension {dim}")),
    }
}

/// As [`along`], for operations that have no result for lines without elements.
pub(super) fn along_some(x: &TensorType, dim: usize) -> Result<Dim, String> {
    match along(x, dim)? {
        Dim::Fixed(0) => Err(format!("dimension {dim} has no elements")),
        d => Ok(d),
    }
}

/// A shape without one of its dimensions.
pub(super) fn without(shape: &[Dim], dim: usize) -> Vec<Dim> {
    shape.iter().enumerate().filter(|(i, _)| *i != dim).map(|(_, d)| *d).collect()
}

/// The element type of a plain format.
pub(super) fn plain(format: DType) -> Option<Type> {
    match format {
        DType::Plain(ty) => Some(ty),
        _ => None,
    }
}

/// Rejects a type, and names the types that the operation takes.
pub(super) fn not_for(format: DType, takes: impl Fn(Type) -> bool) -> Mismatch {
    let names: Vec<&str> = Type::ALL.into_iter().filter(|ty| takes(*ty)).map(Type::name).collect();
    Mismatch::Type(format!("does not exist for {}; it takes {}", format.name(), names.join(", ")))
}

/// The type that a plain element is computed in: narrow types are widened.
pub(super) const fn computed(ty: Type) -> Type {
    match ty {
        Type::F16 | Type::BF16 => Type::F32,
        Type::I8 | Type::I16 => Type::I32,
        Type::U8 | Type::U16 | Type::Bool => Type::U32,
        other => other,
    }
}

/// Whether this is a type of numbers: any except `bool`.
pub(super) fn is_number(ty: Type) -> bool {
    ty != Type::Bool
}

/// Whether a plain format is of floats.
pub(super) fn is_float(format: DType) -> bool {
    plain(format).is_some_and(Type::is_float)
}

/// Whether a plain format is of floats computed in `f32`.
pub(super) fn is_in_f32(format: DType) -> bool {
    plain(format).is_some_and(|ty| computed(ty) == Type::F32)
}

/// The distance from 1 to the next number of the type that a format is computed in. Twice that for `f64`, because
/// references have its roundings too.
pub(super) fn epsilon(format: DType) -> f64 {
    match format {
        DType::Plain(Type::F64) => 2.0 * f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    }
}

/// A constant of a type that [`computed`] gives.
pub(super) fn number(ty: Type, value: f64) -> Value {
    match ty {
        Type::I32 => Value::from(value as i32),
        Type::U32 => Value::from(value as u32),
        Type::I64 => Value::from(value as i64),
        Type::U64 => Value::from(value as u64),
        Type::F64 => Value::from(value),
        _ => Value::from(value as f32),
    }
}

/// The number of elements of a tensor before and after a dimension: the sizes of the layout `[outer, n, inner]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    /// Maximum product of the dimensions before.
    pub outer: usize,
    /// Maximum size of the dimension.
    pub n: usize,
    /// Product of the dimensions after.
    pub inner: usize,
}

impl Lines {
    /// The lines of a tensor along a dimension.
    pub(super) fn of(spec: &TensorSpec, dim: usize) -> Lines {
        let product = |shape: &[Extent]| shape.iter().map(|e| e.max()).product();
        let (before, after) = spec.shape.split_at(dim.min(spec.shape.len()));
        let (n, inner) = after.split_first().map_or((1, 1), |(n, rest)| (n.max(), product(rest)));
        Lines { outer: product(before), n, inner }
    }

    /// The lines of a tensor on the host.
    pub(super) fn on_host(shape: &[usize], dim: usize) -> Lines {
        let (before, after) = shape.split_at(dim.min(shape.len()));
        let (n, inner) = after.split_first().map_or((1, 1), |(n, rest)| (*n, rest.iter().product()));
        Lines { outer: before.iter().product(), n, inner }
    }

    /// The number of lines.
    pub(super) fn count(&self) -> usize {
        self.outer * self.inner
    }

    /// The indices of the elements of a line, on the host.
    pub(super) fn elements(&self, line: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        let Lines { n, inner, .. } = *self;
        let start = line / inner.max(1) * n * inner + line % inner.max(1);
        (0..n).map(move |i| start + i * inner)
    }
}

/// The product of a tensor's dimensions before `dim`, in this run.
pub(super) fn outer(k: &mut Kernel, spec: &TensorSpec, dim: usize) -> Value {
    let mut total = Value::from(1u32);
    for e in spec.shape.iter().take(dim) {
        let n = k.extent(*e);
        total = if total == Value::from(1u32) { n } else { k.b.mul(total, n) };
    }
    total
}

/// A workgroup of [`THREADS`] threads on up to 32 neighbouring lines, so that neighbouring threads load neighbouring
/// elements: `width` lines side by side, each with `THREADS / width` threads along it.
pub(super) struct Tile {
    width: u32,
    /// Threads per line.
    pub parts: u32,
    /// Index of the thread along its line.
    pub part: Value,
    /// Index of the thread's line in the tensor.
    pub line: Value,
    /// The end of the thread's loops: the line's length, or 0 if the thread has no line.
    pub end: Value,
    /// The line's length.
    pub n: Value,
    /// Whether the thread is the first of a line.
    pub leads: Value,
    /// Whether the workgroup has lines at all; uniform in the workgroup.
    pub active: Value,
    thread: Value,
    start: Value,
    inner: u32,
}

impl Tile {
    /// Finds the thread's position. The grid has [`Tile::workgroups`] workgroups.
    pub(super) fn new(k: &mut Kernel, spec: &TensorSpec, dim: usize) -> Tile {
        let lines = Lines::of(spec, dim);
        let (width, tiles) = Tile::shape(&lines);
        let outers = outer(k, spec, dim);
        let n = spec.shape.get(dim).map_or_else(|| Value::from(1u32), |e| k.extent(*e));
        let b = &mut k.b;
        let (group, thread) = (b.builtin(Opcode::GroupX), b.builtin(Opcode::ThreadX));
        let inner = lines.inner as u32;
        let (outer, tile) =
            if tiles == 1 { (group, Value::from(0u32)) } else { (b.div(group, tiles), b.rem(group, tiles)) };
        let active = b.lt(outer, outers);
        let (column, part) = if width == 1 {
            (Value::from(0u32), thread)
        } else {
            (b.and(thread, width - 1), b.shr(thread, width.trailing_zeros()))
        };
        let first = b.mul(tile, width);
        let column = b.add(first, column);
        let inside = b.lt(column, inner);
        let row = b.mul(outer, inner);
        let line = b.add(row, column);
        let stride = b.mul(n, inner);
        let start = b.mul(outer, stride);
        let start = b.add(start, column);
        let end = b.select(inside, n, 0u32);
        let first = b.eq(part, 0u32);
        let leads = b.and(first, inside);
        Tile { width, parts: THREADS / width, part, line, end, n, leads, active, thread, start, inner }
    }

    fn shape(lines: &Lines) -> (u32, u32) {
        let width = lines.inner.clamp(1, 32).next_power_of_two();
        (width as u32, lines.inner.div_ceil(width).max(1) as u32)
    }

    /// The number of workgroups for all lines.
    pub(super) fn workgroups(lines: &Lines) -> usize {
        lines.outer * Tile::shape(lines).1 as usize
    }

    /// Index of the line's element `i`.
    pub(super) fn at(&self, b: &mut Builder, i: Value) -> Value {
        let offset = if self.inner == 1 { i } else { b.mul(i, self.inner) };
        b.add(self.start, offset)
    }

    /// Iterates over the thread's elements of its line.
    pub(super) fn each(&self, b: &mut Builder, body: impl FnOnce(&mut Builder, Value)) {
        b.for_(self.part, self.end, self.parts, body);
    }

    /// Combines the values of a line's threads as a tree; every thread gets the line's result. `shared` holds
    /// [`THREADS`] elements per value. All threads of the workgroup must call it together.
    pub(super) fn combine<const N: usize>(
        &self,
        b: &mut Builder,
        shared: [Array; N],
        values: [Value; N],
        combine: impl Fn(&mut Builder, [Value; N], [Value; N]) -> [Value; N],
    ) -> [Value; N] {
        let total = values.map(|v| b.var(v));
        for (to, value) in shared.iter().zip(total) {
            b.store(*to, self.thread, value);
        }
        b.barrier();
        let mut parts = self.parts / 2;
        while parts > 0 {
            let working = b.lt(self.part, parts);
            b.if_(working, |b| {
                let other = b.add(self.thread, parts * self.width);
                let others = shared.map(|from| b.load(from, other));
                let both = combine(b, total, others);
                for i in 0..N {
                    b.assign(total[i], both[i]);
                    b.store(shared[i], self.thread, both[i]);
                }
            });
            b.barrier();
            parts /= 2;
        }
        let first = if self.width == 1 { Value::from(0u32) } else { b.and(self.thread, self.width - 1) };
        let result = shared.map(|from| b.load(from, first));
        b.barrier();
        result
    }

    /// Reduces the values of a line's threads with an operation of two operands.
    pub(super) fn reduce(&self, b: &mut Builder, shared: Array, op: Opcode, value: Value) -> Value {
        let [total] = self.combine(b, [shared], [value], |b, [x], [y]| [b.inst(op, x.ty, &[x, y])]);
        total
    }
}

/// The bound of a value that is computed within `bound` and then stored in a format.
pub(super) fn stored(format: DType, value: f64, bound: f64) -> f64 {
    // Half a unit in the last place, relative; half the least step (`f16`) or the least normal number (`bf16`).
    let (relative, least) = match format {
        DType::Plain(Type::F16) => (2f64.powi(-11), 2f64.powi(-25)),
        DType::Plain(Type::BF16) => (2f64.powi(-8), f64::from(f32::MIN_POSITIVE)),
        _ => return bound,
    };
    bound + (value.abs() + bound) * relative + least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lie_along_the_dimension() {
        let lines = |dim: usize, line: usize| Lines::on_host(&[2, 3, 4], dim).elements(line).collect::<Vec<_>>();
        assert_eq!(lines(0, 5), [5, 17]);
        assert_eq!(lines(1, 5), [13, 17, 21]);
        assert_eq!(lines(2, 5), [20, 21, 22, 23]);
    }
}
