//! A tile of many query rows: a row in each vector lane, so scores, softmax and sums of values need no work across lanes. Scores are
//! kept as [position, row], sums of values as [element, row].

use super::product::{Left, product};
use super::{Attention, Inputs, LOWEST, Piece, Plan, STEP, TILE_ROWS, Workspace, power};
use crate::cpu::native::simd::Simd;

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
    let width = rows.next_multiple_of(S::LANES);
    let vectors = width / S::LANES;

    // The first and the last position that each row sees; rows of padding are copies of the first row, and are never written out.
    let mut last_visible = [inputs.positions[piece.tokens.start]; TILE_ROWS];
    let mut first_visible = [0; TILE_ROWS];
    let mut q_rows = [std::ptr::null(); TILE_ROWS];
    for r in 0..width {
        let (token, head) = piece.token_head(if r < rows { r } else { 0 });
        last_visible[r] = inputs.positions[token];
        first_visible[r] = kernel.first_seen(inputs.positions[token]);
        q_rows[r] = inputs.q[(token * kernel.heads + head) * d..][..d].as_ptr();
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
    let all_see = last_visible[..width].iter().copied().min().unwrap_or(0) as usize;
    let all_see_from = first_visible[..width].iter().copied().max().unwrap_or(0);
    ws.acc[..d * width].fill(0.0);
    ws.peak[..width].fill(LOWEST);
    ws.total[..width].fill(0.0);

    let mut start = piece.span.start;
    while start < piece.span.end {
        let end = (start + STEP).min(piece.span.end);
        let mut position = start;
        while position < end {
            let (keys, count) = kernel.cache_rows(s, inputs.k, piece, position, end, &mut *ws.decoded)?;
            kernel.prefetch(inputs.v, piece, position, (0, 1));
            // Padding to 8 fills the product's register tiles; the padded scores are not read.
            let size = (count.next_multiple_of(8), vectors, d);
            let scores = &mut ws.scores[(position - start) * width..];
            product::<S, false>(s, size, Left { data: keys, row: d, step: 1 }, (&*ws.q, width), (scores, width));
            position += count;
        }
        for v in 0..vectors {
            let lanes = v * S::LANES..(v + 1) * S::LANES;
            let (mut firsts, mut limits) = ([0.0; 16], [0.0; 16]);
            for (first, from) in firsts.iter_mut().zip(&first_visible[lanes.clone()]) {
                *first = from.saturating_sub(start).min(STEP) as f32;
            }
            for (limit, last) in limits.iter_mut().zip(&last_visible[lanes.clone()]) {
                *limit = (i64::from(*last) - start as i64).clamp(-1, STEP as i64) as f32;
            }
            let column = Column {
                scores: &mut ws.scores[lanes.start..(end - start) * width],
                acc: &mut ws.acc[lanes.start..d * width],
                peak: &mut ws.peak[lanes.clone()],
                total: &mut ws.total[lanes],
                width,
            };
            let limits = (all_see + 1 < end || all_see_from > start).then_some((firsts, limits));
            soften(s, column, end - start, d, limits);
        }
        let mut position = start;
        while position < end {
            let (values, count) = kernel.cache_rows(s, inputs.v, piece, position, end, &mut *ws.decoded)?;
            kernel.prefetch(inputs.k, piece, position + STEP, (0, 1));
            let powers = &ws.scores[(position - start) * width..];
            product::<S, true>(
                s,
                (d, vectors, count),
                Left { data: values, row: 1, step: d },
                (powers, width),
                (&mut *ws.acc, width),
            );
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
                // The queries' memory takes what the lanes of padding give.
                to[lane] = places[lane].map_or(padding, |first| target.wrapping_add(first + i));
            }
            // SAFETY: the assertions cover d rows of `acc` and d elements at each place, d being a multiple of LANES; the
            // queries' memory has at least LANES elements, `factors` 16.
            unsafe { s.transpose(&from, s.load(factors.as_ptr()), &to) };
        }
    }
    Ok(())
}

/// The state of a vector of query rows; consecutive positions or elements are `width` apart.
struct Column<'a> {
    scores: &'a mut [f32],
    acc: &'a mut [f32],
    peak: &'a mut [f32],
    total: &'a mut [f32],
    width: usize,
}

/// Turns `count` scores of each row into powers relative to the new running maximum and brings the running sums to it. With `limits`,
/// a row's scores before its first and behind its last position count as negative infinity.
#[inline(always)]
fn soften<S: Simd>(s: S, column: Column<'_>, count: usize, d: usize, limits: Option<([f32; 16], [f32; 16])>) {
    let width = column.width;
    assert!(count > 0 && (count - 1) * width + S::LANES <= column.scores.len());
    assert!(d > 0 && (d - 1) * width + S::LANES <= column.acc.len());
    assert!(column.peak.len() == S::LANES && column.total.len() == S::LANES);
    let scores = column.scores.as_mut_ptr();
    // SAFETY: the assertions cover `count` vectors of scores, `d` of acc, one of peak and total; limits have 16 each.
    unsafe {
        let old_peak = s.load(column.peak.as_ptr());
        let mut peaks = [old_peak; 4];
        if let Some((firsts, limits)) = limits {
            let (firsts, limits) = (s.load(firsts.as_ptr()), s.load(limits.as_ptr()));
            for p in 0..count {
                let at = s.splat(p as f32);
                let score = s.keep_where_ge(s.load(scores.add(p * width)), limits, at);
                let score = s.keep_where_ge(score, at, firsts);
                s.store(scores.add(p * width), score);
                peaks[0] = s.max(peaks[0], score);
            }
        } else {
            let mut p = 0;
            while p + 4 <= count {
                for (i, peak) in peaks.iter_mut().enumerate() {
                    *peak = s.max(*peak, s.load(scores.add((p + i) * width)));
                }
                p += 4;
            }
            for p in p..count {
                peaks[0] = s.max(peaks[0], s.load(scores.add(p * width)));
            }
        }
        let peak = s.max(s.max(peaks[0], peaks[1]), s.max(peaks[2], peaks[3]));
        s.store(column.peak.as_mut_ptr(), peak);
        let factor = power(s, s.sub(old_peak, peak));
        let mut sum = s.mul(s.load(column.total.as_ptr()), factor);
        for p in 0..count {
            let power = power(s, s.sub(s.load(scores.add(p * width)), peak));
            s.store(scores.add(p * width), power);
            sum = s.add(sum, power);
        }
        s.store(column.total.as_mut_ptr(), sum);
        let acc = column.acc.as_mut_ptr();
        for i in 0..d {
            s.store(acc.add(i * width), s.mul(s.load(acc.add(i * width)), factor));
        }
    }
}
