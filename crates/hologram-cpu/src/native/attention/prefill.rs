//! A tile of many query rows: a row in each vector lane, so scores, softmax and sums of values need no work across
//! lanes. Scores are kept as [position, row], sums of values as [element, row].

use super::online_softmax::{Column, Seen, online_softmax};
use super::product::{Left, product};
use super::{STEP, TILE_ROWS, Work, Workspace};
use crate::native::simd::Simd;

#[inline(always)]
pub(super) fn attend<S: Simd>(s: S, work: Work<'_>, ws: &mut Workspace<'_>, target: &mut [f32]) -> Result<(), String> {
    let Work { kernel, inputs, piece, plan } = work;
    let (d, rows) = (kernel.d, piece.rows());
    let width = rows.next_multiple_of(S::LANES);
    let vectors = width / S::LANES;

    let seen = Seen::of(work, width);
    let mut q_rows = [std::ptr::null(); TILE_ROWS];
    for (r, q_row) in q_rows[..width].iter_mut().enumerate() {
        let (token, head) = piece.token_head(r);
        *q_row = inputs.q[(token * kernel.heads + head) * d..][..d].as_ptr();
    }
    assert!(d * width <= ws.q.len());
    let q = ws.q.as_mut_ptr();
    for (v, q_rows) in q_rows[..width].chunks_exact(S::LANES).enumerate() {
        for i in (0..d).step_by(S::LANES) {
            let (mut from, mut to) = ([std::ptr::null(); 16], [std::ptr::null_mut(); 16]);
            for lane in 0..S::LANES {
                from[lane] = q_rows[lane].wrapping_add(i);
                to[lane] = q.wrapping_add((i + lane) * width + v * S::LANES);
            }
            // SAFETY: each query row has d elements, a multiple of LANES; `q` has d rows of `width`.
            unsafe { s.transpose(&from, s.splat(kernel.scale), &to) };
        }
    }
    ws.acc[..d * width].fill(0.0);
    for r in 0..width {
        (ws.peak[r], ws.total[r]) = kernel.begin(work, r);
    }

    let mut start = piece.span.start;
    while start < piece.span.end {
        let end = (start + STEP).min(piece.span.end);
        let mut position = start;
        while position < end {
            let (keys, count) = kernel.float_rows(s, inputs.k, piece, position, end, &mut *ws.decoded)?;
            let mut ahead = kernel.lines(inputs.v, piece, position);
            // Padding to 8 fills the product's register tiles; the padded scores are not read.
            let size = (count.next_multiple_of(8), vectors, d);
            let scores = &mut ws.scores[(position - start) * width..];
            let keys = Left { data: keys, row: d, step: 1 };
            product::<S, f32, false>(s, size, keys, (&*ws.q, width), (scores, width), &mut ahead);
            position += count;
        }
        kernel.cap_scores(s, &mut ws.scores[..(end - start) * width]);
        for v in 0..vectors {
            let lanes = v * S::LANES..(v + 1) * S::LANES;
            let column = Column {
                scores: &mut ws.scores[lanes.start..(end - start) * width],
                width,
                rows: S::LANES,
                peak: &mut ws.peak[lanes.clone()],
                total: &mut ws.total[lanes.clone()],
            };
            let limits = seen.limits(lanes.clone(), start..end);
            let factor = online_softmax(s, column, end - start, limits.as_ref());
            for acc in ws.acc[..d * width].chunks_exact_mut(width) {
                let acc = acc[lanes.clone()].as_mut_ptr();
                // SAFETY: the slice has as many elements as a vector.
                unsafe { s.store(acc, s.mul(s.load(acc), factor)) };
            }
        }
        let mut position = start;
        while position < end {
            let (values, count) = kernel.float_rows(s, inputs.v, piece, position, end, &mut *ws.decoded)?;
            let mut ahead = kernel.lines(inputs.k, piece, position + STEP);
            let exponentials = &ws.scores[(position - start) * width..];
            let values = Left { data: values, row: 1, step: d };
            let size = (d, vectors, count);
            product::<S, f32, true>(s, size, values, (exponentials, width), (&mut *ws.acc, width), &mut ahead);
            position += count;
        }
        start = end;
    }
    assert!(d * width <= ws.acc.len());
    for v in 0..vectors {
        let (mut places, mut factors) = ([None; 16], [0.0; 16]);
        for lane in 0..S::LANES.min(rows - v * S::LANES) {
            let r = v * S::LANES + lane;
            let (first, factor) = kernel.place(piece, r, (ws.peak[r], ws.total[r]), plan, target);
            assert!(first + d <= target.len());
            (places[lane], factors[lane]) = (Some(first), factor);
        }
        let (acc, target, padding) = (ws.acc.as_ptr(), target.as_mut_ptr(), ws.q.as_mut_ptr());
        for i in (0..d).step_by(S::LANES) {
            let (mut from, mut to) = ([std::ptr::null(); 16], [std::ptr::null_mut(); 16]);
            for lane in 0..S::LANES {
                from[lane] = acc.wrapping_add((i + lane) * width + v * S::LANES);
                // Padding lanes write to the queries' memory.
                to[lane] = places[lane].map_or(padding, |first| target.wrapping_add(first + i));
            }
            // SAFETY: the assertions cover d rows of `acc` and d elements at each place, where d is a multiple of
            // LANES; the queries' memory has at least LANES elements, `factors` 16.
            unsafe { s.transpose(&from, s.load(factors.as_ptr()), &to) };
        }
    }
    Ok(())
}
