//! Orthogonal decompositions: QR by Householder's reflections (Golub and Van Loan, *Matrix Computations*, 5.2) and
//! singular values by one-sided Jacobi rotations (8.6.3). Matrices are row-major.

/// Orthonormal columns `[rows, q]` and an upper triangle `[q, columns]` whose product is a matrix; q is the lesser of
/// its numbers of rows and columns, or that of rows if `complete`.
pub fn qr(matrix: &[f64], rows: usize, columns: usize, complete: bool) -> [Vec<f64>; 2] {
    let (mut r, mut reflections) = (matrix.to_vec(), Vec::new());
    for k in 0..rows.min(columns) {
        let mut v: Vec<f64> = (k..rows).map(|i| r[i * columns + k]).collect();
        let length = norm(&v);
        v[0] += if v[0] < 0.0 { -length } else { length };
        // v is scaled so that its squares do not overflow.
        let largest = v.iter().fold(0.0f64, |max, x| max.max(x.abs()));
        if largest > 0.0 {
            v.iter_mut().for_each(|x| *x /= largest);
        }
        reflect(&v, &mut r, k, columns);
        (k + 1..rows).for_each(|i| r[i * columns + k] = if length.is_nan() { f64::NAN } else { 0.0 });
        reflections.push(v);
    }
    let width = if complete { rows } else { rows.min(columns) };
    let mut q = vec![0.0; rows * width];
    (0..width).for_each(|i| q[i * width + i] = 1.0);
    for (k, v) in reflections.iter().enumerate().rev() {
        reflect(v, &mut q, k, width);
    }
    r.truncate(width * columns);
    [q, r]
}

/// Reflects the rows from `first` on at the plane that is orthogonal to `v`.
fn reflect(v: &[f64], matrix: &mut [f64], first: usize, columns: usize) {
    let square: f64 = v.iter().map(|x| x * x).sum();
    if square == 0.0 {
        return;
    }
    let part = &mut matrix[first * columns..];
    let mut dots = vec![0.0; columns];
    for (x, row) in v.iter().zip(part.chunks_exact(columns.max(1))) {
        dots.iter_mut().zip(row).for_each(|(dot, own)| *dot += x * own);
    }
    for (x, row) in v.iter().zip(part.chunks_exact_mut(columns.max(1))) {
        row.iter_mut().zip(&dots).for_each(|(own, dot)| *own -= 2.0 * x * dot / square);
    }
}

/// The length of a vector; no square overflows.
fn norm(v: &[f64]) -> f64 {
    let largest = v.iter().fold(0.0f64, |max, x| if x.is_nan() { *x } else { max.max(x.abs()) });
    if largest == 0.0 || !largest.is_finite() {
        return largest;
    }
    largest * v.iter().map(|x| (x / largest).powi(2)).sum::<f64>().sqrt()
}

/// What singular value decompositions give.
pub struct Svd {
    /// The singular values, greatest first.
    pub values: Vec<f64>,
    /// Per singular value its left vector, and if wanted further ones up to a whole basis.
    pub left: Vec<Vec<f64>>,
    /// The same of right vectors.
    pub right: Vec<Vec<f64>>,
}

/// Each pair of columns is rotated at most so often.
const SWEEPS: usize = 60;

/// Decomposes a matrix; `complete`: with a basis of all rows and of all columns. All is NaN if an element is not
/// finite.
pub fn svd(matrix: &[f64], rows: usize, columns: usize, complete: bool) -> Svd {
    if rows < columns {
        let turned = super::transposed(matrix, rows, columns);
        let Svd { values, left, right } = svd(&turned, columns, rows, complete);
        return Svd { values, left: right, right: left };
    }
    if matrix.iter().any(|v| !v.is_finite()) {
        let nan = |count: usize, len: usize| vec![vec![f64::NAN; len]; count];
        let left = nan(if complete { rows } else { columns }, rows);
        return Svd { values: vec![f64::NAN; columns], left, right: nan(columns, columns) };
    }
    let largest = matrix.iter().fold(0.0f64, |max, x| max.max(x.abs()));
    let scale = if largest > 0.0 { largest } else { 1.0 };
    let column = |j: usize| (0..rows).map(|i| matrix[i * columns + j] / scale).collect::<Vec<_>>();
    let unit = |j: usize| (0..columns).map(|i| f64::from(u8::from(i == j))).collect::<Vec<_>>();
    let mut pairs: Vec<(Vec<f64>, Vec<f64>)> = (0..columns).map(|j| (column(j), unit(j))).collect();
    for _ in 0..SWEEPS {
        let mut changed = false;
        for q in 1..columns {
            let (before, after) = pairs.split_at_mut(q);
            let second = &mut after[0];
            for first in before {
                let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                let both = dot(&first.0, &second.0);
                let (a, b) = (dot(&first.0, &first.0), dot(&second.0, &second.0));
                if both.abs() <= f64::EPSILON * (a * b).sqrt() {
                    continue;
                }
                changed = true;
                let zeta = (b - a) / (2.0 * both);
                let tangent = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
                let cosine = tangent.hypot(1.0).recip();
                rotate(&mut first.0, &mut second.0, cosine, cosine * tangent);
                rotate(&mut first.1, &mut second.1, cosine, cosine * tangent);
            }
        }
        if !changed {
            break;
        }
    }
    let mut parts: Vec<(f64, Vec<f64>, Vec<f64>)> = pairs.into_iter().map(|(u, v)| (norm(&u), u, v)).collect();
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut result = Svd { values: Vec::new(), left: Vec::new(), right: Vec::new() };
    for (length, u, v) in parts {
        // Vectors of value 0 are completed below; they are the last.
        if length > 0.0 {
            result.left.push(u.iter().map(|x| x / length).collect());
        }
        result.values.push(length * scale);
        result.right.push(v);
    }
    complete_basis(&mut result.left, rows, if complete { rows } else { columns });
    result
}

fn rotate(x: &mut [f64], y: &mut [f64], cosine: f64, sine: f64) {
    for (x, y) in x.iter_mut().zip(y) {
        (*x, *y) = (cosine * *x - sine * *y, sine * *x + cosine * *y);
    }
}

/// Adds vectors to orthonormal ones of `len` elements until there are `count`.
fn complete_basis(basis: &mut Vec<Vec<f64>>, len: usize, count: usize) {
    while basis.len() < count {
        // The axis that is least contained in them.
        let inside = |axis: usize| basis.iter().map(|v| v[axis].powi(2)).sum::<f64>();
        let axis = (0..len).min_by(|a, b| inside(*a).total_cmp(&inside(*b))).unwrap_or(0);
        let mut new: Vec<f64> = (0..len).map(|i| f64::from(u8::from(i == axis))).collect();
        // Twice, since the first time leaves rounding.
        for _ in 0..2 {
            for own in basis.iter() {
                let dot: f64 = own.iter().zip(&new).map(|(a, b)| a * b).sum();
                new.iter_mut().zip(own).for_each(|(v, own)| *v -= dot * own);
            }
        }
        let length = norm(&new);
        new.iter_mut().for_each(|v| *v /= length);
        basis.push(new);
    }
}
