//! The kernels of the portable path.

use super::super::matmul::PackedRows;
use super::super::matmul::float::{Element, Kernels, Words};
use crate::kernel::Pod;

/// Columns of a panel, lines of a tile.
const ROWS: usize = 8;
const TOKENS: usize = 4;
/// Columns of a panel of words of 64 bits.
const HALF: usize = ROWS / 2;

/// Kernels in plain Rust.
pub(super) const FLOAT: Kernels = Kernels {
    rows: ROWS,
    panels_at_once: 1,
    tokens: TOKENS,
    few: 0,
    by_row: no_rows,
    transpose: transpose::<u32>,
    widen: None,
    multiply,
    multiply_lines: None,
    in_place: None,
};

/// Never called: `few` is 0, so single rows are never multiplied here.
///
/// # Safety
/// The output can be written.
unsafe fn no_rows(_: Words, _: Element, w: &PackedRows, _: *const u8, tokens: usize) {
    for (token, row) in (0..tokens).flat_map(|token| (0..w.count).map(move |row| (token, row))) {
        // SAFETY: promised by the caller.
        unsafe { *w.y.add(token * w.stride + row) = f32::NAN };
    }
}

/// Writes words of `count` rows interleaved; rows after the last repeat it.
///
/// # Safety
/// `words` words of each of `count` rows can be read and `words * lanes` written.
pub(super) unsafe fn transpose<W: Pod>(
    first: *const u8,
    row_bytes: usize,
    count: usize,
    words: usize,
    lanes: usize,
    to: *mut u8,
) {
    let to = to.cast::<W>();
    for word in 0..words {
        for lane in 0..lanes {
            let row = lane.min(count - 1);
            // SAFETY: promised by the caller.
            unsafe {
                let x = first.add(row * row_bytes).cast::<W>().add(word).read_unaligned();
                to.add(word * lanes + lane).write_unaligned(x);
            }
        }
    }
}

/// # Safety
/// Panel and tile have these words; the output can be written.
#[allow(clippy::too_many_arguments)]
unsafe fn multiply(
    words: Words,
    tokens: usize,
    steps: usize,
    panel: *const u8,
    _apart: usize,
    tile: *const u8,
    y: *mut u8,
    stride: usize,
    count: usize,
    first: bool,
) {
    let of = |word: i32| [word as i16, (word >> 16) as i16].map(i32::from);
    // SAFETY: promised by the caller; a panel of words of 64 bits has half as many rows.
    unsafe {
        match words {
            Words::F32 | Words::Bf16Pairs => {
                tile_of::<f32, ROWS>((tokens, steps, count, first), panel, tile, (y, stride), |sum, x, w| sum + x * w)
            }
            Words::F64 => {
                tile_of::<f64, HALF>((tokens, steps, count, first), panel, tile, (y, stride), |sum, x, w| sum + x * w)
            }
            Words::I32 => tile_of::<i32, ROWS>((tokens, steps, count, first), panel, tile, (y, stride), |sum, x, w| {
                sum.wrapping_add(x.wrapping_mul(w))
            }),
            Words::I64 => tile_of::<i64, HALF>((tokens, steps, count, first), panel, tile, (y, stride), |sum, x, w| {
                sum.wrapping_add(x.wrapping_mul(w))
            }),
            Words::I16Pairs => {
                tile_of::<i32, ROWS>((tokens, steps, count, first), panel, tile, (y, stride), |sum, x, w| {
                    let ([x, x_2], [w, w_2]) = (of(x), of(w));
                    sum.wrapping_add(x * w).wrapping_add(x_2 * w_2)
                })
            }
        }
    }
}

/// Multiplies a panel of `R` rows with a tile: (tokens, steps, rows, whether they are the first).
///
/// # Safety
/// As [`multiply`], for words and sums of type `W`.
#[inline(always)]
unsafe fn tile_of<W: Pod + Default, const R: usize>(
    (tokens, steps, count, first): (usize, usize, usize, bool),
    panel: *const u8,
    tile: *const u8,
    (y, stride): (*mut u8, usize),
    add: impl Fn(W, W, W) -> W,
) {
    let mut sums = [[W::default(); R]; TOKENS];
    let (panel, tile, y) = (panel.cast::<[W; R]>(), tile.cast::<W>(), y.cast::<W>());
    // SAFETY: promised by the caller.
    unsafe {
        if !first {
            for (t, sums) in sums.iter_mut().enumerate().take(tokens) {
                for (i, sum) in sums.iter_mut().enumerate().take(count) {
                    *sum = y.add(t * stride + i).read();
                }
            }
        }
        for step in 0..steps {
            let row = panel.add(step).read_unaligned();
            for (t, sums) in sums.iter_mut().enumerate().take(tokens) {
                let x = tile.add(step * tokens + t).read_unaligned();
                sums.iter_mut().zip(row).for_each(|(sum, w)| *sum = add(*sum, x, w));
            }
        }
        for (t, sums) in sums.iter().enumerate().take(tokens) {
            for (i, sum) in sums.iter().enumerate().take(count) {
                y.add(t * stride + i).write(*sum);
            }
        }
    }
}
