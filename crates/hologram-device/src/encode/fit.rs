//! The scale and the minimum with the least weighted squared error for the values of a run.

/// An element is scale·code - minimum.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fit {
    /// The scale.
    pub scale: f32,
    /// The minimum; 0 for formats without minimums.
    pub minimum: f32,
}

/// Codes from 0 to `most`, with a minimum of at least 0. The candidates are `steps` (start, step, count) added to
/// `most`.
pub fn fit_unsigned(values: &[f32], weights: &[f32], most: u32, [start, step, count]: [f32; 3]) -> Fit {
    let top = most as f32;
    let (least, largest) = values.iter().fold((f32::MAX, f32::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    let least = least.min(0.0);
    if largest <= least {
        return Fit { scale: 0.0, minimum: -least };
    }
    let code = |v: f32, inverse: f32| (inverse * (v - least)).round_ties_even().clamp(0.0, top);
    let error = |fit: Fit, inverse: f32| -> f32 {
        let each = values.iter().zip(weights);
        each.map(|(v, w)| w * (fit.scale * code(*v, inverse) - fit.minimum - v).powi(2)).sum()
    };
    let range = largest - least;
    let mut best = Fit { scale: range / top, minimum: -least };
    let mut least_error = error(best, top / range);
    let (all, sum_x) = values.iter().zip(weights).fold((0.0, 0.0), |(n, x), (v, w)| (n + w, x + w * v));
    for i in 0..=count as u32 {
        let inverse = (start + step * i as f32 + top) / range;
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0, 0.0, 0.0);
        for (v, w) in values.iter().zip(weights) {
            let l = code(*v, inverse);
            (sum_l, sum_l2, sum_xl) = (sum_l + w * l, sum_l2 + w * l * l, sum_xl + w * l * v);
        }
        let determinant = all * sum_l2 - sum_l * sum_l;
        if determinant <= 0.0 {
            continue;
        }
        let mut fit = Fit {
            scale: (all * sum_xl - sum_x * sum_l) / determinant,
            minimum: -(sum_l2 * sum_x - sum_l * sum_xl) / determinant,
        };
        if fit.minimum < 0.0 {
            fit = Fit { scale: sum_xl / sum_l2, minimum: 0.0 };
        }
        let here = error(fit, inverse);
        if here < least_error {
            (best, least_error) = (fit, here);
        }
    }
    best
}

/// Codes from -`most` to `most` - 1.
pub fn fit_signed(values: &[f32], weights: &[f32], most: i32) -> Fit {
    let extreme = super::extreme(values);
    if extreme == 0.0 {
        return Fit::default();
    }
    let top = most as f32;
    let candidate = |i: i32| -(top + 0.1 * i as f32) / extreme;
    best_of((-9..=9).map(candidate), values, weights, |v| v.round_ties_even().clamp(-top, top - 1.0))
}

/// Codes that are entries of a table.
pub fn fit_table(values: &[f32], weights: &[f32], table: &[i8; 16]) -> Fit {
    let extreme = super::extreme(values);
    if extreme == 0.0 {
        return Fit::default();
    }
    let first = f32::from(table[0]);
    let candidate = |i: i32| (first + i as f32) / extreme;
    best_of((-7..=7).map(candidate), values, weights, |v| f32::from(table[usize::from(nearest(table, v))]))
}

/// The scale that fits the codes best of those that each inverse scale gives.
fn best_of(inverses: impl Iterator<Item = f32>, values: &[f32], weights: &[f32], code: impl Fn(f32) -> f32) -> Fit {
    let (mut best, mut most) = (0.0, 0.0);
    for inverse in inverses {
        let (mut sum_xl, mut sum_l2) = (0.0, 0.0);
        for (v, w) in values.iter().zip(weights) {
            let l = code(inverse * v);
            (sum_xl, sum_l2) = (sum_xl + w * v * l, sum_l2 + w * l * l);
        }
        // What the fit takes off the squared error.
        if sum_l2 > 0.0 && sum_xl * sum_xl > most * sum_l2 {
            (best, most) = (sum_xl / sum_l2, sum_xl * sum_xl / sum_l2);
        }
    }
    Fit { scale: best, minimum: 0.0 }
}

/// The index of the nearest entry.
pub fn nearest(table: &[i8; 16], value: f32) -> u8 {
    let distance = |i: u8| (f32::from(table[usize::from(i)]) - value).abs();
    (1..16).fold(0, |best, i| if distance(i) < distance(best) { i } else { best })
}
