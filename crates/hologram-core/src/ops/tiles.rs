//! Matrix products by tiles in shared memory, for the programs of all products.

use hologram_backends::DType;
use hologram_isa::{Array, Builder, Opcode, Type, Value};

use super::lines::number;

/// Threads per workgroup, 16 × 16; each computes 4 × 4 elements of a square of the result.
pub(super) const THREADS: u32 = 256;
/// The side of the square that a workgroup computes, and the depth of the pieces that it keeps in shared memory.
const SIDE: u32 = 64;
const DEPTH: u32 = 16;
/// The length of a line of a piece, with padding, so that threads that store along the depth use different banks.
const LINE: u32 = SIDE + 1;

/// Whether squares are worth it for a result of these sizes; otherwise each thread computes an element.
pub(super) fn pay(rows: usize, columns: usize) -> bool {
    rows >= 8 && columns >= 8
}

/// The squares that cover a result, in rows and columns.
pub(super) fn squares(rows: usize, columns: usize) -> [usize; 2] {
    [rows.div_ceil(SIDE as usize), columns.div_ceil(SIDE as usize)]
}

/// Loads an element of an operand by its row (or column) and its index along the depth.
type Load<'a> = &'a dyn Fn(&mut Builder, Value, Value) -> Value;

/// One side of a product.
pub(super) struct Side<'a> {
    /// The number of rows (or columns).
    pub lines: Value,
    /// Loads the element of a line at a depth, in the type of the sums.
    pub load: Load<'a>,
    /// Whether neighbours in memory lie along the depth.
    pub along_depth: bool,
}

/// Computes the square at `place` of the result and passes its elements, with row and column, to `store`. All threads
/// of the workgroup must call it together. Each sum is one chain in the order of the depth.
pub(super) fn square(
    b: &mut Builder,
    ty: Type,
    depth: Value,
    sides: [Side<'_>; 2],
    place: [Value; 2],
    store: impl Fn(&mut Builder, Value, Value, Value),
) {
    let pieces = ["rows", "columns"].map(|name| b.shared(name, ty, DEPTH * LINE));
    let thread = b.builtin(Opcode::ThreadX);
    let across = [b.shr(thread, 4u32), b.and(thread, 15u32)];
    let first = place.map(|p| b.mul(p, SIDE));
    let sums: Vec<Value> = (0..16).map(|_| b.var(number(ty, 0.0))).collect();
    b.for_(0u32, depth, DEPTH, |b, base| {
        for ((side, piece), first) in sides.iter().zip(pieces).zip(first) {
            fill(b, ty, side, piece, first, thread, base, depth);
        }
        b.barrier();
        b.for_(0u32, DEPTH, 1u32, |b, d| {
            let line = b.mul(d, LINE);
            let values = [0, 1].map(|s| {
                let from = b.add(line, across[s]);
                [0u32, 16, 32, 48].map(|offset| {
                    let from = b.add(from, offset);
                    b.load(pieces[s], from)
                })
            });
            for (i, sum) in sums.iter().enumerate() {
                add_product(b, *sum, values[0][i / 4], values[1][i % 4]);
            }
        });
        b.barrier();
    });
    for (i, sum) in sums.iter().enumerate() {
        let [row, column] = [(i / 4, 0), (i % 4, 1)].map(|(step, s)| {
            let at = b.add(first[s], across[s]);
            b.add(at, 16 * step as u32)
        });
        let inside = b.lt(row, sides[0].lines);
        let within = b.lt(column, sides[1].lines);
        let inside = b.and(inside, within);
        b.if_(inside, |b| store(b, row, column, *sum));
    }
}

/// Loads a piece of one side into shared memory, with zeros beyond the matrix.
#[expect(clippy::too_many_arguments, reason = "the loop's own state")]
fn fill(
    b: &mut Builder,
    ty: Type,
    side: &Side<'_>,
    piece: Array,
    first: Value,
    thread: Value,
    base: Value,
    depth: Value,
) {
    for part in 0..SIDE * DEPTH / THREADS {
        let i = b.add(thread, part * THREADS);
        let (along, across) = if side.along_depth {
            (b.and(i, DEPTH - 1), b.shr(i, DEPTH.trailing_zeros()))
        } else {
            (b.shr(i, SIDE.trailing_zeros()), b.and(i, SIDE - 1))
        };
        let (d, line) = (b.add(base, along), b.add(first, across));
        let inside = b.lt(d, depth);
        let within = b.lt(line, side.lines);
        let inside = b.and(inside, within);
        let value = b.var(number(ty, 0.0));
        b.if_(inside, |b| {
            let v = (side.load)(b, line, d);
            b.assign(value, v);
        });
        let to = b.mul(along, LINE);
        let to = b.add(to, across);
        b.store(piece, to, value);
    }
}

/// sum += x·y, with one rounding for floats.
pub(super) fn add_product(b: &mut Builder, sum: Value, x: Value, y: Value) {
    if sum.ty.is_float() {
        b.assign_op(sum, Opcode::Fma, &[x, y, sum]);
    } else {
        let product = b.mul(x, y);
        b.assign_op(sum, Opcode::Add, &[sum, product]);
    }
}

/// The type in which products of a format's elements are summed.
pub(super) fn summed(format: DType) -> Type {
    super::lines::computed(super::lines::plain(format).unwrap_or(Type::F32))
}
