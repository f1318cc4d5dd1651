//! Online softmax: scores become exponentials relative to the greatest score so far.

use std::ops::Range;

use super::{STEP, TILE_ROWS, Work, exp};
use crate::native::simd::Simd;

/// The softmax state of as many query rows as a vector has lanes, or fewer. With fewer, a vector holds several
/// positions: the rows of the first, then those of the second, and so on.
pub(super) struct Column<'a> {
    /// Vectors of scores, `width` apart.
    pub(super) scores: &'a mut [f32],
    pub(super) width: usize,
    /// Query rows in a vector.
    pub(super) rows: usize,
    /// Running maximum and running sum of each lane.
    pub(super) peak: &'a mut [f32],
    pub(super) total: &'a mut [f32],
}

/// The first and the last position that each query row of a tile attends to.
pub(super) struct Seen {
    first: [usize; TILE_ROWS],
    last: [usize; TILE_ROWS],
    /// Positions that all rows attend to.
    by_all: Range<usize>,
}

impl Seen {
    /// For `rows` rows, including padding rows.
    pub(super) fn of(work: Work<'_>, rows: usize) -> Seen {
        let mut seen = Seen { first: [0; TILE_ROWS], last: [0; TILE_ROWS], by_all: 0..usize::MAX };
        for r in 0..rows {
            let token = work.piece.token_head(r).0;
            let last = work.inputs.positions[token] as usize;
            (seen.first[r], seen.last[r]) = (work.kernel.first_seen(&work.inputs, token), last);
            seen.by_all = seen.by_all.start.max(seen.first[r])..seen.by_all.end.min(seen.last[r] + 1);
        }
        seen
    }

    /// Per-lane limits for these rows, repeated over the lanes, in a step of these positions; `None` if all rows see
    /// all of them.
    pub(super) fn limits(&self, rows: Range<usize>, step: Range<usize>) -> Option<Limits> {
        if self.by_all.start <= step.start && step.end <= self.by_all.end {
            return None;
        }
        let mut limits = ([0.0; 16], [0.0; 16]);
        for lane in 0..16 {
            let row = rows.start + lane % rows.len();
            limits.0[lane] = self.first[row].saturating_sub(step.start).min(STEP) as f32;
            // One position before the step's first if the row sees none.
            limits.1[lane] = (self.last[row] + 1).saturating_sub(step.start).min(STEP + 1) as f32 - 1.0;
        }
        Some(limits)
    }
}

/// For each lane the first and the last position, relative to the first score, that its query row sees.
pub(super) type Limits = ([f32; 16], [f32; 16]);

/// Turns `count` vectors of scores into exponentials relative to the new running maximum and rescales the running sums
/// to it. Returns the factor that rescales sums of values. With `limits`, a row's scores before its first and behind
/// its last position count as negative infinity.
#[inline(always)]
pub(super) fn online_softmax<S: Simd>(s: S, column: Column<'_>, count: usize, limits: Option<&Limits>) -> S::V {
    let Column { scores, width, rows, peak, total } = column;
    assert!(count > 0 && (count - 1) * width + S::LANES <= scores.len());
    assert!(peak.len() == S::LANES && total.len() == S::LANES);
    let scores = scores.as_mut_ptr();
    // SAFETY: the assertions cover `count` vectors of scores, one of peak and total; limits have 16 each.
    unsafe {
        let old_peak = s.load(peak.as_ptr());
        let mut peaks = [old_peak; 4];
        if let Some((firsts, limits)) = limits {
            let (firsts, limits) = (s.load(firsts.as_ptr()), s.load(limits.as_ptr()));
            let mut positions = [0.0; 16];
            for (lane, position) in positions.iter_mut().enumerate() {
                *position = (lane / rows) as f32;
            }
            let positions = s.load(positions.as_ptr());
            for i in 0..count {
                let at = s.add(positions, s.splat((i * (S::LANES / rows)) as f32));
                let score = s.keep_where_ge(s.load(scores.add(i * width)), limits, at);
                let score = s.keep_where_ge(score, at, firsts);
                s.store(scores.add(i * width), score);
                peaks[0] = s.max(peaks[0], score);
            }
        } else {
            let mut i = 0;
            while i + 4 <= count {
                for (j, peak) in peaks.iter_mut().enumerate() {
                    *peak = s.max(*peak, s.load(scores.add((i + j) * width)));
                }
                i += 4;
            }
            for i in i..count {
                peaks[0] = s.max(peaks[0], s.load(scores.add(i * width)));
            }
        }
        s.store(peak.as_mut_ptr(), s.max(s.max(peaks[0], peaks[1]), s.max(peaks[2], peaks[3])));
        for r in 0..if rows < S::LANES { rows } else { 0 } {
            let of_row = peak.iter().skip(r).step_by(rows).copied().fold(f32::NEG_INFINITY, f32::max);
            peak.iter_mut().skip(r).step_by(rows).for_each(|p| *p = of_row);
        }
        let peak = s.load(peak.as_ptr());
        let factor = exp(s, s.sub(old_peak, peak));
        let mut sum = s.mul(s.load(total.as_ptr()), factor);
        for i in 0..count {
            let exp = exp(s, s.sub(s.load(scores.add(i * width)), peak));
            s.store(scores.add(i * width), exp);
            sum = s.add(sum, exp);
        }
        s.store(total.as_mut_ptr(), sum);
        factor
    }
}
