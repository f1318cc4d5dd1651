//! Eigenvalues of symmetric matrices: Householder's reduction to a tridiagonal matrix and QL steps with implicit
//! shifts, after EISPACK's `tred2` and `tql2` (Bowdler, Martin, Reinsch and Wilkinson, *Handbook for Automatic
//! Computation*, 1971).

/// Steps for an eigenvalue; few need more than 3.
const STEPS: usize = 60;

/// The eigenvalues of a symmetric matrix of `n` rows, of which the lower triangle is read, in ascending order, each
/// with its vector. All are NaN if an element is not finite.
pub fn eigh(matrix: &[f64], n: usize) -> Vec<(f64, Vec<f64>)> {
    if matrix.iter().any(|v| !v.is_finite()) {
        return vec![(f64::NAN, vec![f64::NAN; n]); n];
    }
    // The squares of scaled elements neither overflow nor vanish.
    let largest = matrix.iter().fold(0.0f64, |max, x| max.max(x.abs()));
    let scale = if largest > 0.0 { largest } else { 1.0 };
    let mut solver = Solver::new(n, |i, j| matrix[i.max(j) * n + i.min(j)] / scale);
    solver.reduce();
    solver.iterate();
    let vectors = solver.v.chunks_exact(n.max(1)).map(<[f64]>::to_vec);
    let mut pairs: Vec<(f64, Vec<f64>)> = solver.d.iter().map(|value| value * scale).zip(vectors).collect();
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    pairs
}

struct Solver {
    n: usize,
    /// The columns of the transformation, one after another.
    v: Vec<f64>,
    /// The diagonal, and what is beside it.
    d: Vec<f64>,
    e: Vec<f64>,
}

impl Solver {
    fn new(n: usize, of: impl Fn(usize, usize) -> f64) -> Solver {
        let v = (0..n).flat_map(|j| (0..n).map(move |i| (i, j))).map(|(i, j)| of(i, j)).collect();
        Solver { n, v, d: vec![0.0; n], e: vec![0.0; n] }
    }

    fn at(&mut self, row: usize, column: usize) -> &mut f64 {
        &mut self.v[column * self.n + row]
    }

    /// Makes the matrix tridiagonal.
    fn reduce(&mut self) {
        let n = self.n;
        for j in 0..n {
            self.d[j] = *self.at(n - 1, j);
        }
        for i in (1..n).rev() {
            let scale: f64 = self.d[..i].iter().map(|x| x.abs()).sum();
            let mut h = 0.0;
            if scale == 0.0 {
                self.e[i] = self.d[i - 1];
                for j in 0..i {
                    self.d[j] = *self.at(i - 1, j);
                    *self.at(i, j) = 0.0;
                    *self.at(j, i) = 0.0;
                }
            } else {
                for x in &mut self.d[..i] {
                    *x /= scale;
                    h += *x * *x;
                }
                let f = self.d[i - 1];
                let g = if f > 0.0 { -h.sqrt() } else { h.sqrt() };
                self.e[i] = scale * g;
                h -= f * g;
                self.d[i - 1] = f - g;
                self.similar(i, h);
            }
            self.d[i] = h;
        }
        self.accumulate();
    }

    /// Applies the reflection of row `i` to the part before it.
    fn similar(&mut self, i: usize, h: f64) {
        self.e[..i].fill(0.0);
        for j in 0..i {
            let f = self.d[j];
            *self.at(j, i) = f;
            let mut g = self.e[j] + *self.at(j, j) * f;
            for k in j + 1..i {
                let v = *self.at(k, j);
                g += v * self.d[k];
                self.e[k] += v * f;
            }
            self.e[j] = g;
        }
        let mut f = 0.0;
        for j in 0..i {
            self.e[j] /= h;
            f += self.e[j] * self.d[j];
        }
        let half = f / (h + h);
        for j in 0..i {
            self.e[j] -= half * self.d[j];
        }
        for j in 0..i {
            let (f, g) = (self.d[j], self.e[j]);
            for k in j..i {
                let change = f * self.e[k] + g * self.d[k];
                *self.at(k, j) -= change;
            }
            self.d[j] = *self.at(i - 1, j);
            *self.at(i, j) = 0.0;
        }
    }

    /// Multiplies the reflections.
    fn accumulate(&mut self) {
        let n = self.n;
        for i in 0..n.saturating_sub(1) {
            *self.at(n - 1, i) = *self.at(i, i);
            *self.at(i, i) = 1.0;
            let h = self.d[i + 1];
            if h != 0.0 {
                for k in 0..=i {
                    self.d[k] = *self.at(k, i + 1) / h;
                }
                for j in 0..=i {
                    let g: f64 = (0..=i).map(|k| *self.at(k, i + 1) * *self.at(k, j)).sum();
                    for k in 0..=i {
                        let change = g * self.d[k];
                        *self.at(k, j) -= change;
                    }
                }
            }
            for k in 0..=i {
                *self.at(k, i + 1) = 0.0;
            }
        }
        for j in 0..n {
            self.d[j] = *self.at(n - 1, j);
            *self.at(n - 1, j) = 0.0;
        }
        if n > 0 {
            *self.at(n - 1, n - 1) = 1.0;
            self.e[0] = 0.0;
        }
    }

    /// Makes the tridiagonal matrix diagonal.
    fn iterate(&mut self) {
        let n = self.n;
        self.e.rotate_left(usize::from(n > 0));
        let (mut shifted, mut largest) = (0.0, 0.0f64);
        for l in 0..n {
            largest = largest.max(self.d[l].abs() + self.e[l].abs());
            let small = |e: f64| e.abs() <= f64::EPSILON * largest;
            // The last is 0.
            let m = (l..n).find(|m| small(self.e[*m])).unwrap_or(n - 1);
            if m > l {
                for _ in 0..STEPS {
                    shifted += self.step(l, m);
                    if small(self.e[l]) {
                        break;
                    }
                }
            }
            self.d[l] += shifted;
            self.e[l] = 0.0;
        }
    }

    /// A QL step of the rows from `l` to `m`. Returns the shift.
    fn step(&mut self, l: usize, m: usize) -> f64 {
        let n = self.n;
        let (d, e) = (&mut self.d, &mut self.e);
        let g = d[l];
        let p = (d[l + 1] - g) / (2.0 * e[l]);
        let r = if p < 0.0 { -p.hypot(1.0) } else { p.hypot(1.0) };
        d[l] = e[l] / (p + r);
        d[l + 1] = e[l] * (p + r);
        let (next, shift) = (d[l + 1], g - d[l]);
        d[l + 2..].iter_mut().for_each(|v| *v -= shift);
        let (mut p, beside) = (d[m], e[l + 1]);
        let (mut c, mut c2, mut c3, mut s, mut s2) = (1.0, 1.0, 1.0, 0.0, 0.0);
        for i in (l..m).rev() {
            (c3, c2, s2) = (c2, c, s);
            let (g, h) = (c * e[i], c * p);
            let r = p.hypot(e[i]);
            e[i + 1] = s * r;
            (s, c) = (e[i] / r, p / r);
            p = c * d[i] - s * g;
            d[i + 1] = h + s * (c * g + s * d[i]);
            let (first, second) = self.v[i * n..(i + 2) * n].split_at_mut(n);
            for (x, y) in first.iter_mut().zip(second) {
                (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
            }
        }
        let p = -s * s2 * c3 * beside * e[l] / next;
        e[l] = s * p;
        d[l] = c * p;
        shift
    }
}
