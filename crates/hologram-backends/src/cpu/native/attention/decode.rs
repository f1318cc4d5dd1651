//! A tile of few query rows: vectors run along the head's elements for the scores' dot products, along positions for the softmax,
//! and along the values' elements for the sums of values.

use super::product::{Left, product};
use super::{Attention, Inputs, LOWEST, Piece, Plan, STEP, Workspace, power};
use crate::cpu::native::simd::Simd;

static LANE_NUMBERS: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

#[inline(always)]
pub(super) fn attend<S: Simd>(
    s: S,
    kernel: &Attention,
    inputs: Inputs<'_>,
    piece: &Piece<'_>,
    ws: &mut Workspace<'_>,
    plan: &Plan,
    target: &mut [f32],
) -> Result<(), String> {
    let (d, rows) = (kernel.d, piece.rows());
    for (r, q) in ws.q.chunks_exact_mut(d).take(rows).enumerate() {
        let (token, head) = piece.token_head(r);
        for (to, x) in q.iter_mut().zip(&inputs.q[(token * kernel.heads + head) * d..]) {
            *to = x * kernel.scale;
        }
    }
    ws.acc[..rows * d].fill(0.0);
    ws.peak[..rows].fill(LOWEST);
    ws.total[..rows * S::LANES].fill(0.0);

    let mut start = piece.span.start;
    while start < piece.span.end {
        let end = (start + STEP).min(piece.span.end);
        let mut position = start;
        while position < end {
            let (keys, count) = kernel.cache_rows(s, inputs.k, piece, position, end, &mut *ws.decoded)?;
            for r in 0..rows {
                kernel.prefetch(inputs.v, piece, position, (r, rows));
                let q = &ws.q[r * d..(r + 1) * d];
                let scores = &mut ws.scores[r * STEP + (position - start)..(r + 1) * STEP];
                for i in (0..count).step_by(S::LANES) {
                    score(s, q, &keys[i * d..(i + S::LANES) * d], &mut scores[i..]);
                }
            }
            position += count;
        }
        for r in 0..rows {
            let position = inputs.positions[piece.token_head(r).0];
            let visible = (position as usize + 1).saturating_sub(start).min(end - start);
            // What lies before a row's window is as good as not there.
            let hidden = kernel.first_seen(position).saturating_sub(start).min(visible);
            ws.scores[r * STEP..r * STEP + hidden].fill(f32::NEG_INFINITY);
            let visible = if hidden == visible { 0 } else { visible };
            let row = Row {
                scores: &mut ws.scores[r * STEP..(r + 1) * STEP],
                acc: &mut ws.acc[r * d..(r + 1) * d],
                peak: &mut ws.peak[r],
                total: &mut ws.total[r * S::LANES..(r + 1) * S::LANES],
            };
            soften(s, row, visible, end - start);
        }
        let mut position = start;
        while position < end {
            let (values, count) = kernel.cache_rows(s, inputs.v, piece, position, end, &mut *ws.decoded)?;
            kernel.prefetch(inputs.k, piece, position + STEP, (0, 1));
            let powers = Left { data: &ws.scores[position - start..rows * STEP], row: STEP, step: 1 };
            product::<S, true>(s, (rows, d / S::LANES, count), powers, (values, d), (&mut *ws.acc, d));
            position += count;
        }
        start = end;
    }
    for (r, acc) in ws.acc.chunks_exact(d).take(rows).enumerate() {
        // SAFETY: a row's sums are one vector.
        let total = s.sum(unsafe { s.load(ws.total[r * S::LANES..(r + 1) * S::LANES].as_ptr()) });
        let (first, factor) = kernel.place(piece, r, (ws.peak[r], total), plan, target);
        for (to, x) in target[first..first + d].iter_mut().zip(acc) {
            *to = x * factor;
        }
    }
    Ok(())
}

/// The scores of one query row with LANES keys.
#[inline(always)]
fn score<S: Simd>(s: S, q: &[f32], keys: &[f32], scores: &mut [f32]) {
    let d = q.len();
    assert!(d.is_multiple_of(S::LANES) && keys.len() == S::LANES * d && scores.len() >= S::LANES);
    let mut sums = [s.splat(0.0); 16];
    for c in (0..d).step_by(S::LANES) {
        // SAFETY: a vector at `c` lies in the row, and in each of the LANES keys.
        unsafe {
            let x = s.load(q.as_ptr().add(c));
            for (i, sum) in sums.iter_mut().enumerate().take(S::LANES) {
                *sum = s.fma(x, s.load(keys.as_ptr().add(i * d + c)), *sum);
            }
        }
    }
    // SAFETY: there are LANES scores.
    unsafe { s.store(scores.as_mut_ptr(), s.sums(&sums)) };
}

/// A query row's state.
struct Row<'a> {
    scores: &'a mut [f32],
    acc: &'a mut [f32],
    peak: &'a mut f32,
    total: &'a mut [f32],
}

/// Turns the first `visible` of `count` scores into powers relative to the new running maximum, the others into 0, and brings the
/// running sums to that maximum.
#[inline(always)]
fn soften<S: Simd>(s: S, row: Row<'_>, visible: usize, count: usize) {
    let vectors = visible.div_ceil(S::LANES);
    let scores = &mut row.scores[..count.next_multiple_of(S::LANES)];
    scores[vectors * S::LANES..].fill(0.0);
    if visible == 0 {
        return;
    }
    let (scores, total) = (scores.as_mut_ptr(), row.total.as_mut_ptr());
    // SAFETY: `scores` has at least `vectors` vectors, `total` has one, `acc` a whole number, `LANE_NUMBERS` as many as any vector has.
    unsafe {
        let last = scores.add((vectors - 1) * S::LANES);
        let in_last = s.splat((visible - 1 - (vectors - 1) * S::LANES) as f32);
        s.store(last, s.keep_where_ge(s.load(last), in_last, s.load(LANE_NUMBERS.as_ptr())));
        let mut peak = s.splat(*row.peak);
        for i in 0..vectors {
            peak = s.max(peak, s.load(scores.add(i * S::LANES)));
        }
        let new_peak = s.peak(peak);
        let factor = power(s, s.splat(*row.peak - new_peak));
        *row.peak = new_peak;
        let peak = s.splat(new_peak);
        let mut sum = s.mul(s.load(total), factor);
        for i in 0..vectors {
            let power = power(s, s.sub(s.load(scores.add(i * S::LANES)), peak));
            s.store(scores.add(i * S::LANES), power);
            sum = s.add(sum, power);
        }
        s.store(total, sum);
        for acc in row.acc.chunks_exact_mut(S::LANES) {
            s.store(acc.as_mut_ptr(), s.mul(s.load(acc.as_ptr()), factor));
        }
    }
}
