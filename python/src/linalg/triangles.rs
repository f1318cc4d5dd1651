//! Products of triangles: Gaussian elimination and Cholesky's decomposition (Golub and Van Loan, *Matrix Computations*,
//! 3.4 and 4.2). Matrices are row-major.

/// A square matrix with its rows in another order, as a lower triangle with ones on its diagonal times an upper one.
pub struct Lu {
    n: usize,
    /// Both triangles in one.
    both: Vec<f64>,
    /// Per row its place in the matrix.
    order: Vec<usize>,
    /// Whether that order is an odd permutation.
    odd: bool,
}

impl Lu {
    /// Decomposes a matrix of `n` rows, with the largest element of each column as its pivot.
    pub fn of(matrix: &[f64], n: usize) -> Lu {
        let (mut both, mut order, mut odd) = (matrix.to_vec(), (0..n).collect::<Vec<_>>(), false);
        for k in 0..n {
            // NaN counts as greatest, so that it reaches the results.
            let size = |i: &usize| both[i * n + k].abs();
            let pivot = (k..n).rev().max_by(|i, j| size(i).total_cmp(&size(j))).unwrap_or(k);
            if pivot != k {
                (0..n).for_each(|j| both.swap(k * n + j, pivot * n + j));
                order.swap(k, pivot);
                odd = !odd;
            }
            let (above, below) = both.split_at_mut((k + 1) * n);
            let row = &above[k * n..];
            if row[k] == 0.0 {
                continue;
            }
            for own in below.chunks_exact_mut(n) {
                own[k] /= row[k];
                let factor = own[k];
                own[k + 1..].iter_mut().zip(&row[k + 1..]).for_each(|(v, above)| *v -= factor * above);
            }
        }
        Lu { n, both, order, odd }
    }

    fn diagonal(&self) -> impl Iterator<Item = f64> {
        self.both.iter().step_by(self.n + 1).copied()
    }

    /// The determinant.
    pub fn determinant(&self) -> f64 {
        self.diagonal().product::<f64>() * if self.odd { -1.0 } else { 1.0 }
    }

    /// The determinant's sign and the logarithm of its magnitude.
    pub fn log_determinant(&self) -> [f64; 2] {
        let first = if self.odd { -1.0 } else { 1.0 };
        let sign = |v: f64| if v == 0.0 || v.is_nan() { v } else { v.signum() };
        [self.diagonal().fold(first, |s, v| s * sign(v)), self.diagonal().map(|v| v.abs().ln()).sum()]
    }

    /// The solution of the matrix times X = `right`, which has `columns` columns; `None` if the matrix is singular.
    pub fn solve(&self, right: &[f64], columns: usize) -> Option<Vec<f64>> {
        if self.diagonal().any(|v| v == 0.0) {
            return None;
        }
        let (n, row) = (self.n, |i: usize| i * columns..(i + 1) * columns);
        let mut x: Vec<f64> = self.order.iter().flat_map(|i| &right[row(*i)]).copied().collect();
        let subtract = |x: &mut [f64], from: usize, other: usize| {
            let factor = self.both[from * n + other];
            for j in 0..columns {
                x[from * columns + j] -= factor * x[other * columns + j];
            }
        };
        for i in 0..n {
            (0..i).for_each(|k| subtract(&mut x, i, k));
        }
        for i in (0..n).rev() {
            (i + 1..n).for_each(|k| subtract(&mut x, i, k));
            x[row(i)].iter_mut().for_each(|v| *v /= self.both[i * n + i]);
        }
        Some(x)
    }
}

/// The lower triangle whose product with its transpose is a symmetric matrix of `n` rows, of which the lower triangle
/// is read; `None` unless it is positive definite.
pub fn cholesky(matrix: &[f64], n: usize) -> Option<Vec<f64>> {
    let mut lower = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..=i {
            let dot: f64 = (0..j).map(|k| lower[i * n + k] * lower[j * n + k]).sum();
            let rest = matrix[i * n + j] - dot;
            lower[i * n + j] = match i == j {
                false => rest / lower[j * n + j],
                true if rest > 0.0 => rest.sqrt(),
                true => return None,
            };
        }
    }
    Some(lower)
}
