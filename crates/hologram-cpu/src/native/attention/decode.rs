//! A tile of few query rows: vectors run along the head's elements, for the scores' dot products and for the sums of
//! values. Scores are kept as [position, row], so a vector holds several positions and the softmax needs no work across
//! lanes.

use half::f16;

use super::cache::{Lines, Rows};
use super::online_softmax::{Column, Seen, online_softmax};
use super::product::{Left, product};
use super::{STEP, Work, Workspace};
use crate::native::narrow::Element;
use crate::native::simd::Simd;

/// For at most [`MOST_DECODE_ROWS`](super::MOST_DECODE_ROWS) rows, and no more than a vector has lanes.
#[inline(always)]
pub(super) fn attend<S: Simd>(s: S, work: Work<'_>, ws: &mut Workspace<'_>, target: &mut [f32]) -> Result<(), String> {
    match work.piece.rows() {
        1 => attend_rows::<S, 1>(s, work, ws, target),
        2 => attend_rows::<S, 2>(s, work, ws, target),
        3..=4 => attend_rows::<S, 4>(s, work, ws, target),
        _ => attend_rows::<S, 8>(s, work, ws, target),
    }
}

/// `R` is the number of rows rounded up to a power of two.
#[inline(always)]
fn attend_rows<S: Simd, const R: usize>(
    s: S,
    work: Work<'_>,
    ws: &mut Workspace<'_>,
    target: &mut [f32],
) -> Result<(), String> {
    let Work { kernel, inputs, piece, plan } = work;
    let (d, rows) = (kernel.d, piece.rows());
    assert!(rows <= R && R <= S::LANES);
    let positions_of_vector = S::LANES / R;
    let seen = Seen::of(work, R);
    for r in 0..R {
        let (token, head) = piece.token_head(r);
        // A vector of each row, then the next vector of each row.
        let to = ws.q.chunks_exact_mut(S::LANES).skip(r).step_by(R);
        for (to, from) in to.zip(inputs.q[(token * kernel.heads + head) * d..][..d].chunks_exact(S::LANES)) {
            to.iter_mut().zip(from).for_each(|(to, x)| *to = x * kernel.scale);
        }
    }
    ws.acc[..rows * d].fill(0.0);
    for lane in 0..S::LANES {
        let (peak, total) = kernel.begin(work, lane % R);
        (ws.peak[lane], ws.total[lane]) = (peak, if lane < R { total } else { 0.0 });
    }

    let mut start = piece.span.start;
    while start < piece.span.end {
        let end = (start + STEP).min(piece.span.end);
        let mut position = start;
        while position < end {
            let (keys, count) = kernel.stored_rows(inputs.k, piece, position, end, &mut *ws.decoded)?;
            let mut ahead = kernel.lines(inputs.v, piece, position);
            let scores = &mut ws.scores[(position - start) * R..];
            match keys {
                Rows::F32(keys) => dots::<S, f32, R>(s, d, &*ws.q, keys, count, scores, &mut ahead),
                Rows::F16(keys) => dots::<S, f16, R>(s, d, &*ws.q, keys, count, scores, &mut ahead),
            }
            position += count;
        }
        let vectors = (end - start).div_ceil(positions_of_vector);
        kernel.cap_scores(s, &mut ws.scores[..vectors * S::LANES]);
        let column = Column {
            scores: &mut ws.scores[..vectors * S::LANES],
            width: S::LANES,
            rows: R,
            peak: &mut ws.peak[..S::LANES],
            total: &mut ws.total[..S::LANES],
        };
        // Positions that pad the last vector lie behind the last seen position.
        let limits = seen.limits(0..R, start..start + vectors * positions_of_vector);
        let factor = online_softmax(s, column, vectors, limits.as_ref());
        let mut factors = [0.0; 16];
        // SAFETY: `factors` has as many elements as any vector has lanes; a row of `acc` is a whole number of vectors.
        unsafe {
            s.store(factors.as_mut_ptr(), factor);
            for (acc, factor) in ws.acc.chunks_exact_mut(d).take(rows).zip(factors) {
                for acc in acc.chunks_exact_mut(S::LANES) {
                    s.store(acc.as_mut_ptr(), s.mul(s.load(acc.as_ptr()), s.splat(factor)));
                }
            }
        }
        let mut position = start;
        while position < end {
            let (values, count) = kernel.stored_rows(inputs.v, piece, position, end, &mut *ws.decoded)?;
            let mut ahead = kernel.lines(inputs.k, piece, position + STEP);
            let exponentials = Left { data: &ws.scores[(position - start) * R..], row: 1, step: R };
            let (size, acc) = ((rows, d / S::LANES, count), (&mut *ws.acc, d));
            match values {
                Rows::F32(values) => product::<S, f32, true>(s, size, exponentials, (values, d), acc, &mut ahead),
                Rows::F16(values) => product::<S, f16, true>(s, size, exponentials, (values, d), acc, &mut ahead),
            }
            position += count;
        }
        start = end;
    }
    for (r, acc) in ws.acc.chunks_exact(d).take(rows).enumerate() {
        let total = ws.total[r..S::LANES].iter().step_by(R).sum();
        let (first, factor) = kernel.place(piece, r, (ws.peak[r], total), plan, target);
        for (to, x) in target[first..first + d].iter_mut().zip(acc) {
            *to = x * factor;
        }
    }
    Ok(())
}

/// The scores of `count` keys, rounded up to whole vectors, with `R` query rows. Computes one vector of scores at a
/// time; each prefetches its share of the lines in `ahead`.
#[inline(always)]
fn dots<S: Simd, E: Element, const R: usize>(
    s: S,
    d: usize,
    q: &[f32],
    keys: &[E],
    count: usize,
    scores: &mut [f32],
    ahead: &mut Lines,
) {
    let positions = S::LANES / R;
    let vectors = count.div_ceil(positions);
    assert!(d.is_multiple_of(S::LANES) && q.len() >= R * d);
    assert!(keys.len() >= vectors * positions * d && scores.len() >= vectors * S::LANES);
    let lines = ahead.left.div_ceil(vectors);
    for i in 0..vectors {
        ahead.prefetch(lines);
        let mut sums = [s.splat(0.0); 16];
        for c in (0..d).step_by(S::LANES) {
            for p in 0..positions {
                // SAFETY: a vector at `c` lies in each key, and in each query row.
                unsafe {
                    let k = E::load(s, keys.as_ptr().add((i * positions + p) * d + c));
                    for r in 0..R {
                        let q = s.load(q.as_ptr().add(c * R + r * S::LANES));
                        sums[p * R + r] = s.fma(k, q, sums[p * R + r]);
                    }
                }
            }
        }
        // SAFETY: there are as many scores as the vectors have lanes.
        unsafe { s.store(scores.as_mut_ptr().add(i * S::LANES), s.sums(&sums)) };
    }
}
