//! The register-tiled matrix product under both forms of attention.

use super::cache::Lines;
use crate::native::narrow::Element;
use crate::native::simd::Simd;

/// The left matrix: element (i, k) is at `data[i·row + k·step]`; each is multiplied with a vector of the right
/// matrix.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub(super) data: &'a [f32],
    pub(super) row: usize,
    pub(super) step: usize,
}

/// `c[i, j] = Σ_k a(i, k)·b[k, j]`, added to `c` when `ACC`, for `rows` × `vectors`·LANES elements and `depth`
/// terms. Rows of `b` and `c` are `b_row` and `c_row` apart. Each term of the first tiles prefetches an equal share of
/// `ahead`'s lines.
#[inline(always)]
pub(super) fn product<S: Simd, E: Element, const ACC: bool>(
    s: S,
    (rows, vectors, depth): (usize, usize, usize),
    a: Left<'_>,
    (b, b_row): (&[E], usize),
    (c, c_row): (&mut [f32], usize),
    ahead: &mut Lines,
) {
    if rows == 0 || vectors == 0 || (ACC && depth == 0) {
        return;
    }
    let width = vectors * S::LANES;
    assert!(depth == 0 || (rows - 1) * a.row + (depth - 1) * a.step < a.data.len());
    assert!(depth == 0 || (depth - 1) * b_row + width <= b.len());
    assert!((rows - 1) * c_row + width <= c.len());
    let at = Tile {
        depth,
        a: a.data.as_ptr(),
        a_row: a.row,
        a_step: a.step,
        b: b.as_ptr(),
        b_row,
        c: c.as_mut_ptr(),
        c_row,
        lines: ahead.left.div_ceil((depth * vectors.div_ceil(4)).max(1)),
    };
    let converted = size_of::<E>() < size_of::<f32>();
    let mut v = 0;
    while v < vectors {
        let left = vectors - v;
        // SAFETY: the assertions cover every element of the tiles, which stay within `rows` × `vectors`.
        unsafe {
            let column = at.shifted(0, v * S::LANES);
            // As many accumulators as fit the register file beside the operands, and enough to hide the latency of an
            // addition.
            v += match (left % 3 == 0, left >= 4, S::WIDE_FILE) {
                // Converted elements are converted once per eight rows.
                (_, _, true) if converted && rows >= 8 && left >= 2 => {
                    columns::<S, E, 8, 2, ACC>(s, rows, column, ahead)
                }
                (true, _, true) => columns::<S, E, 8, 3, ACC>(s, rows, column, ahead),
                (true, _, false) => columns::<S, E, 4, 3, ACC>(s, rows, column, ahead),
                (false, true, true) => columns::<S, E, 4, 4, ACC>(s, rows, column, ahead),
                (_, _, false) if converted && rows >= 8 => columns::<S, E, 8, 1, ACC>(s, rows, column, ahead),
                (false, true, false) => columns::<S, E, 2, 4, ACC>(s, rows, column, ahead),
                (false, false, _) if left == 2 => columns::<S, E, 4, 2, ACC>(s, rows, column, ahead),
                _ => columns::<S, E, 8, 1, ACC>(s, rows, column, ahead),
            };
        }
    }
}

/// Where a tile's operands start.
#[derive(Clone, Copy)]
struct Tile<E> {
    depth: usize,
    a: *const f32,
    a_row: usize,
    a_step: usize,
    b: *const E,
    b_row: usize,
    c: *mut f32,
    c_row: usize,
    /// Lines that each term prefetches.
    lines: usize,
}

impl<E: Element> Tile<E> {
    /// The tile `rows` further down and `columns` further right.
    ///
    /// # Safety
    /// It lies in the same matrices.
    #[inline(always)]
    unsafe fn shifted(mut self, rows: usize, columns: usize) -> Tile<E> {
        // SAFETY: the caller's promise.
        unsafe {
            self.a = self.a.add(rows * self.a_row);
            self.b = self.b.add(columns);
            self.c = self.c.add(rows * self.c_row + columns);
        }
        self
    }
}

/// All rows of `NV` vectors of columns, `MR` rows at a time; returns `NV`.
///
/// # Safety
/// The tile's pointers cover `rows` × `NV` vectors.
#[inline(always)]
unsafe fn columns<S: Simd, E: Element, const MR: usize, const NV: usize, const ACC: bool>(
    s: S,
    rows: usize,
    at: Tile<E>,
    ahead: &mut Lines,
) -> usize {
    let mut i = 0;
    // SAFETY: `i` stays below `rows`.
    unsafe {
        while i + MR <= rows {
            tile::<S, E, MR, NV, ACC>(s, at.shifted(i, 0), ahead);
            i += MR;
        }
        while i < rows {
            tile::<S, E, 1, NV, ACC>(s, at.shifted(i, 0), ahead);
            i += 1;
        }
    }
    NV
}

/// One tile of `MR` rows by `NV` vectors with its sums in registers.
///
/// # Safety
/// The pointers cover `MR` × `NV` vectors and `depth` terms.
#[inline(always)]
unsafe fn tile<S: Simd, E: Element, const MR: usize, const NV: usize, const ACC: bool>(
    s: S,
    at: Tile<E>,
    ahead: &mut Lines,
) {
    let mut sums = [[s.splat(0.0); NV]; MR];
    // SAFETY: the caller's promise.
    unsafe {
        if ACC {
            for (i, row) in sums.iter_mut().enumerate() {
                for (j, sum) in row.iter_mut().enumerate() {
                    *sum = s.load(at.c.add(i * at.c_row + j * S::LANES));
                }
            }
        }
        let (mut a, mut b) = (at.a, at.b);
        for _ in 0..at.depth {
            ahead.prefetch(at.lines);
            let mut right = [s.splat(0.0); NV];
            for (j, r) in right.iter_mut().enumerate() {
                *r = E::load(s, b.add(j * S::LANES));
            }
            for (i, row) in sums.iter_mut().enumerate() {
                let x = s.splat(*a.add(i * at.a_row));
                for (sum, r) in row.iter_mut().zip(right) {
                    *sum = s.fma(x, r, *sum);
                }
            }
            a = a.wrapping_add(at.a_step);
            b = b.wrapping_add(at.b_row);
        }
        for (i, row) in sums.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                s.store(at.c.add(i * at.c_row + j * S::LANES), *sum);
            }
        }
    }
}
