//! The kernels of the portable path.

use super::super::matmul::PackedRows;
use super::super::matmul::float::{Element, Kernels, Words};

/// Columns of a panel, lines of a tile.
const ROWS: usize = 8;
const TOKENS: usize = 4;

/// Kernels in plain Rust.
pub(super) const FLOAT: Kernels = Kernels {
    rows: ROWS,
    panels_at_once: 1,
    tokens: TOKENS,
    few: 0,
    by_row: no_rows,
    transpose,
    widen: None,
    multiply,
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

/// # Safety
/// `words` words of each of `count` rows can be read and `words * lanes` written.
unsafe fn transpose(first: *const u8, row_bytes: usize, count: usize, words: usize, lanes: usize, to: *mut u8) {
    for word in 0..words {
        for lane in 0..lanes {
            let row = lane.min(count - 1);
            // SAFETY: promised by the caller.
            unsafe {
                let x = first.add(row * row_bytes + 4 * word).cast::<u32>().read_unaligned();
                to.add((word * lanes + lane) * 4).cast::<u32>().write_unaligned(x);
            }
        }
    }
}

/// # Safety
/// Panel and tile have these words; the output can be written.
#[allow(clippy::too_many_arguments)]
unsafe fn multiply(
    _: Words,
    tokens: usize,
    steps: usize,
    panel: *const u8,
    _apart: usize,
    tile: *const u8,
    y: *mut f32,
    stride: usize,
    count: usize,
    first: bool,
) {
    let mut sums = [[0f32; ROWS]; TOKENS];
    let (panel, tile) = (panel.cast::<[f32; ROWS]>(), tile.cast::<f32>());
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
                sums.iter_mut().zip(row).for_each(|(sum, w)| *sum += x * w);
            }
        }
        for (t, sums) in sums.iter().enumerate().take(tokens) {
            for (i, sum) in sums.iter().enumerate().take(count) {
                y.add(t * stride + i).write(*sum);
            }
        }
    }
}
