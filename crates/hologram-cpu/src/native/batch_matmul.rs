//! `batch_matmul`: a [.., n, k], b [.., k, m], either of them transposed or not, plus an optional bias [m] and an
//! optional residual → [.., n, m] in the operands' type: `f32`, `f16`, `bf16`, `f64`, `i32` or `i64`. `i8` gives
//! `i32`.

use std::ops::Range;
use std::sync::Arc;

use hologram_device::{Activation, DType, Extent, KernelSpec, Operation, TensorSpec};
use hologram_isa::decompose::{Scalar, double, erf, exp};

use super::gemm::{Chunk, Gemm, LinesInMemory, Operands, Packer, Products, Side, Sizes};
use super::narrow::widen;
use super::simd::{Isa, Simd, simd_entry};
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Pod, Worker};

struct BatchMatmul {
    gemm: Gemm,
    isa: Isa,
    /// Of the operands.
    format: DType,
    left: Side,
    right: Side,
    /// Elements of one matrix in memory, for either side.
    matrices: [usize; 2],
    /// The stride in matrices of each of the result's batch dimensions, slowest first, for either side.
    strides: [Vec<usize>; 2],
    /// Sizes of the result's dimensions before the last two.
    batches: Vec<Extent>,
    n: Extent,
    m: Extent,
    k: Extent,
    lefts: Vec<Extent>,
    /// Whether rows and columns of the result are exchanged: a result of one column is computed as a row.
    turned: bool,
    bias: Option<usize>,
    activation: Option<Activation>,
    residual: Option<usize>,
    result: usize,
    uses_step: bool,
}

/// The batch dimensions of a matrix and its last two sizes, exchanged when it is `turned`.
fn split(t: &TensorSpec, turned: bool) -> Option<(&[Extent], [Extent; 2])> {
    let (batches, matrix) = t.shape.split_at_checked(t.shape.len().checked_sub(2)?)?;
    let [x, y] = *matrix else { return None };
    Some((batches, if turned { [y, x] } else { [x, y] }))
}

/// The stride in matrices of each of the result's batch dimensions, for an operand.
fn strides(operand: &[Extent], batches: usize) -> Vec<usize> {
    let mut strides = vec![0; batches];
    let mut stride = 1;
    for (i, size) in operand.iter().enumerate().rev() {
        strides[i + batches - operand.len()] = if *size == Extent::Fixed(1) { 0 } else { stride };
        stride *= size.max();
    }
    strides
}

/// The native kernel for `batch_matmul`; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [a, b, ..] = spec.inputs.as_slice() else { return None };
    let format = a.format;
    let Operation::BatchMatmul { transpose: turns, bias, activation, residual } = spec.op else { return None };
    let served = spec.in_place.is_none()
        && b.format == format
        && spec.inputs[2..].iter().all(|t| t.format == spec.output.format)
        // Only the slowest dimension may vary, so that matrices lie at fixed distances.
        && spec.inputs.iter().chain([&spec.output]).all(super::is_dense);
    if !served {
        return None;
    }
    let ((of_a, [n, k]), (of_b, [_, m])) = (split(a, turns[0])?, split(b, turns[1])?);
    let batches = spec.output.shape.get(..spec.output.shape.len().checked_sub(2)?)?.to_vec();
    if spec.inputs.len() != 2 + usize::from(bias) + usize::from(residual) {
        return None;
    }
    // Lines are rows of the left side and columns of the right side; both have `k` elements.
    let side = |t: &TensorSpec, along: bool| Side { format, along, stride: t.row_len() };
    let mut sides = [side(a, !turns[0]), side(b, turns[1])];
    let mut strides = [strides(of_a, batches.len()), strides(of_b, batches.len())];
    let mut matrices = [a, b].map(|t| t.shape[t.shape.len() - 2..].iter().map(|e| e.max()).product());
    let (mut rows, mut columns, mut lefts) = (n, m, of_a);
    let turned = m == Extent::Fixed(1) && n != Extent::Fixed(1);
    if turned {
        sides.swap(0, 1);
        strides.swap(0, 1);
        matrices.swap(0, 1);
        (rows, columns, lefts) = (m, n, of_b);
    }
    let product = |sizes: &[Extent]| sizes.iter().map(|e| e.max()).product();
    let max = Sizes { batches: product(&batches), lefts: product(lefts), n: rows.max(), m: columns.max(), k: k.max() };
    let lefts = lefts.to_vec();
    let [left, right] = sides;
    let gemm = Gemm::new(format, max, features).filter(|gemm| gemm.result() == spec.output.format)?;
    let gemm = gemm.reading_lines(left.along);
    Some(Arc::new(BatchMatmul {
        gemm,
        isa: Isa::widest(features),
        format,
        left,
        right,
        matrices,
        strides,
        batches,
        n: rows,
        m: columns,
        k,
        lefts,
        turned,
        bias: bias.then_some(2),
        activation,
        residual: residual.then_some(2 + usize::from(bias)),
        result: spec.inputs.len(),
        uses_step: spec.uses_step(),
    }))
}

impl BatchMatmul {
    /// Whether a bias is a row of `f32`, as are the lines of products.
    fn has_row(&self) -> bool {
        self.format == DType::F32 && !self.turned
    }

    /// The matrix of the left (0) or right (1) side in a batch.
    fn matrix(&self, side: usize, step: &[u32], batch: usize) -> usize {
        let (mut rest, mut matrix) = (batch, 0);
        for (size, stride) in self.batches.iter().zip(&self.strides[side]).rev() {
            let size = size.value(step).max(1);
            matrix += rest % size * stride;
            rest /= size;
        }
        matrix
    }
}

impl NativeKernel for BatchMatmul {
    fn phases(&self) -> usize {
        self.gemm.phases()
    }

    fn shared_scratch(&self) -> usize {
        self.gemm.shared_scratch()
    }

    fn worker_scratch(&self) -> usize {
        self.gemm.worker_scratch()
    }

    fn run(&self, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let step = if self.uses_step { args.step() } else { &[] };
        let product = |sizes: &[Extent]| sizes.iter().map(|e| e.value(step)).product();
        let sizes = Sizes {
            batches: product(&self.batches),
            lefts: product(&self.lefts),
            n: self.n.value(step),
            m: self.m.value(step),
            k: self.k.value(step),
        };
        let element = self.format.block_bytes();
        // Bytes that the matrices of a run take. A matrix is smaller than its maximum if its own size is the slowest
        // dimension.
        for (side, lines) in [(0, sizes.n), (1, sizes.m)] {
            let last = self.matrix(side, step, sizes.batches.saturating_sub(1));
            let bytes = (last * self.matrices[side] + lines * sizes.k) * element;
            if args.raw(usize::from(self.turned) ^ side).bytes < bytes && sizes.batches > 0 {
                return Err(format!("the buffer of a matrix is too small for {sizes:?}"));
            }
        }
        let run = Run { op: self, step, args, sizes };
        self.gemm.run(phase, &run, sizes, args.raw(self.result), worker)
    }
}

/// A run of the kernel.
struct Run<'a> {
    op: &'a BatchMatmul,
    step: &'a [u32],
    args: &'a Args<'a>,
    sizes: Sizes,
}

impl Run<'_> {
    /// The first byte of a matrix of a side.
    fn start(&self, side: usize, matrix: usize) -> *const u8 {
        let argument = usize::from(self.op.turned) ^ side;
        let at = matrix * self.op.matrices[side] * self.op.format.block_bytes();
        self.args.raw(argument).data.cast_const().wrapping_add(at)
    }
}

impl Operands for Run<'_> {
    fn left_of(&self, batch: usize) -> usize {
        self.op.matrix(0, self.step, batch)
    }

    fn lines(&self, matrix: usize) -> Option<LinesInMemory> {
        let Side { along, stride, .. } = self.op.left;
        let lines = || LinesInMemory { first: self.start(0, matrix).cast(), along, stride };
        self.op.gemm.reads_lines().then(lines)
    }

    unsafe fn pack_left(&self, packer: &mut Packer<'_>, matrix: usize, lines: Range<usize>, chunk: Chunk, to: *mut u8) {
        let lanes = lines.len();
        // SAFETY: promised by the caller; the buffer's size was checked.
        unsafe { self.op.left.pack(packer, self.start(0, matrix), lines, lanes, chunk, to) }
    }

    unsafe fn pack_right(
        &self,
        packer: &mut Packer<'_>,
        batch: usize,
        columns: Range<usize>,
        chunk: Chunk,
        to: *mut u8,
    ) {
        let (matrix, lanes) = (self.op.matrix(1, self.step, batch), packer.rows());
        // SAFETY: promised by the caller; the buffer's size was checked.
        unsafe { self.op.right.pack(packer, self.start(1, matrix), columns, lanes, chunk, to) }
    }

    fn bias(&self, columns: Range<usize>) -> Option<&[f32]> {
        let bias = self.op.bias.filter(|_| self.op.has_row())?;
        self.args.read(bias).get(columns)
    }

    fn finishes(&self) -> bool {
        let bias = self.op.bias.is_some() && !self.op.has_row();
        bias || self.op.activation.is_some() || self.op.residual.is_some()
    }

    fn finish(&self, isa: Isa, batch: usize, line: usize, columns: Range<usize>, products: Products<'_>) {
        match products {
            Products::F32(products) => self.finish_f32(isa, batch, line, columns, products),
            Products::F64(products) => self.finish_numbers(batch, line, columns, products),
            Products::I32(products) => self.finish_numbers(batch, line, columns, products),
            Products::I64(products) => self.finish_numbers(batch, line, columns, products),
        }
    }
}

impl Run<'_> {
    fn finish_f32(&self, isa: Isa, batch: usize, line: usize, columns: Range<usize>, products: &mut [f32]) {
        let op = self.op;
        if let Some(bias) = op.bias.filter(|_| !op.has_row()) {
            if op.turned {
                let mut one = [0.0];
                add_row(op, self.args, bias, 0..1, &mut one);
                products.iter_mut().for_each(|y| *y += one[0]);
            } else {
                add_row(op, self.args, bias, columns.clone(), products);
            }
        }
        match op.activation {
            None => {}
            Some(Activation::Relu) => relu(isa, products),
            Some(Activation::Gelu) => gelu(isa, products),
            Some(Activation::Silu) => silu(isa, products),
        }
        if let Some(residual) = op.residual {
            add_row(op, self.args, residual, self.results(batch, line, columns), products);
        }
    }

    fn finish_numbers<T: Number>(&self, batch: usize, line: usize, columns: Range<usize>, products: &mut [T]) {
        let op = self.op;
        if let Some(bias) = op.bias {
            let bias: &[T] = self.args.read(bias);
            match op.turned {
                true => products.iter_mut().for_each(|y| *y = y.plus(bias.first().copied().unwrap_or_default())),
                false => products.iter_mut().zip(&bias[columns.clone()]).for_each(|(y, x)| *y = y.plus(*x)),
            }
        }
        if let Some(activation) = op.activation {
            products.iter_mut().for_each(|y| *y = y.activated(activation));
        }
        if let Some(residual) = op.residual {
            let residual = &self.args.read::<T>(residual)[self.results(batch, line, columns)];
            products.iter_mut().zip(residual).for_each(|(y, x)| *y = y.plus(*x));
        }
    }

    /// Where results of a line lie.
    fn results(&self, batch: usize, line: usize, columns: Range<usize>) -> Range<usize> {
        let first = (batch * self.sizes.n + line) * self.sizes.m;
        first + columns.start..first + columns.end
    }
}

/// A type of products that are results.
trait Number: Pod + Default {
    fn plus(self, other: Self) -> Self;
    fn activated(self, activation: Activation) -> Self;
}

impl Number for f64 {
    fn plus(self, other: f64) -> f64 {
        self + other
    }

    fn activated(self, activation: Activation) -> f64 {
        match activation {
            Activation::Relu if self <= 0.0 => 0.0,
            Activation::Relu => self,
            Activation::Gelu => 0.5 * self * (double::erf(&Scalar, self * std::f64::consts::FRAC_1_SQRT_2) + 1.0),
            Activation::Silu => self / (double::exp(&Scalar, -self) + 1.0),
        }
    }
}

macro_rules! integers {
    ($($ty:ty)*) => {$(
        impl Number for $ty {
            fn plus(self, other: $ty) -> $ty {
                self.wrapping_add(other)
            }

            /// Integers have no activation but ReLU.
            fn activated(self, _: Activation) -> $ty {
                self.max(0)
            }
        }
    )*};
}
integers! { i32 i64 }

/// Adds elements of an argument. Adds nothing if its buffer lacks the range, which recording has ruled out.
fn add_row(op: &BatchMatmul, args: &Args<'_>, argument: usize, range: Range<usize>, to: &mut [f32]) {
    if op.format == DType::F32 {
        let x: &[f32] = args.read(argument);
        return add(op.isa, x.get(range).unwrap_or_default(), to);
    }
    let x: &[u16] = args.read(argument);
    let mut wide = [0f32; 64];
    let x = x.get(range).unwrap_or_default();
    for (x, to) in x.chunks(64).zip(to.chunks_mut(64)) {
        widen(op.isa, op.format, x, &mut wide[..x.len()]);
        add(op.isa, &wide[..x.len()], to);
    }
}

/// Defines loops over a row.
macro_rules! loops {
    ($($name:ident, $with:ident: |$y:ident $(, $x:ident)?| $value:expr;)*) => {$(
        simd_entry! {
            fn $name($($x: &[f32],)? to: &mut [f32]) = $with
        }

        #[inline(always)]
        fn $with<S: Simd>(_: S, $($x: &[f32],)? to: &mut [f32]) {
            loops!(@ to $(, $x)?, $y, $value);
        }
    )*};
    (@ $to:ident, $x:ident, $y:ident, $value:expr) => {
        $to.iter_mut().zip($x).for_each(|(to, $x)| { let $y = *to; *to = $value; })
    };
    (@ $to:ident, $y:ident, $value:expr) => {
        $to.iter_mut().for_each(|to| { let $y = *to; *to = $value; })
    };
}

loops! {
    add, add_with: |y, x| y + *x;
    // NaN stays.
    relu, relu_with: |y| if y <= 0.0 { 0.0 } else { y };
    gelu, gelu_with: |y| 0.5 * y * (erf(&Scalar, y * std::f32::consts::FRAC_1_SQRT_2) + 1.0);
    silu, silu_with: |y| y / (exp(&Scalar, -y) + 1.0);
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{Memory, Random, feature_sets, launch};

    fn spec(format: DType, shapes: [Vec<usize>; 3], transpose: [bool; 2]) -> KernelSpec {
        let result = if format == DType::I8 { DType::I32 } else { format };
        let tensor = |format, shape: &Vec<usize>| TensorSpec {
            format,
            shape: shape.iter().map(|n| Extent::Fixed(*n)).collect(),
        };
        KernelSpec {
            op: Operation::BatchMatmul { transpose, bias: false, activation: None, residual: false },
            inputs: vec![tensor(format, &shapes[0]), tensor(format, &shapes[1])],
            output: tensor(result, &shapes[2]),
            in_place: None,
        }
    }

    /// Two matrices of small whole numbers, of which every type's sums are exact.
    fn operands(format: DType, counts: [usize; 2]) -> [Memory; 2] {
        let mut random = Random(counts[0] as u64);
        counts.map(|count| {
            let numbers: Vec<i32> = (0..count).map(|_| (random.bits() % 9) as i32 - 4).collect();
            match format {
                DType::I8 => Memory::of(&numbers.iter().map(|n| *n as i8).collect::<Vec<_>>()),
                DType::I32 => Memory::of(&numbers),
                DType::I64 => Memory::of(&numbers.iter().map(|n| i64::from(*n)).collect::<Vec<_>>()),
                DType::F64 => Memory::of(&numbers.iter().map(|n| f64::from(*n)).collect::<Vec<_>>()),
                DType::BF16 => Memory::of(&numbers.iter().map(|n| half::bf16::from_f32(*n as f32)).collect::<Vec<_>>()),
                _ => Memory::of(&numbers.iter().map(|n| *n as f32).collect::<Vec<_>>()),
            }
        })
    }

    fn integers(format: DType, memory: &Memory) -> Vec<i64> {
        match format {
            DType::I8 | DType::I32 => memory.elements::<i32>().iter().map(|v| i64::from(*v)).collect(),
            DType::I64 => memory.elements::<i64>().to_vec(),
            DType::F64 => memory.elements::<f64>().iter().map(|v| *v as i64).collect(),
            _ => memory.elements::<f32>().iter().map(|v| *v as i64).collect(),
        }
    }

    pub(crate) fn products_of_every_type_are_exact_for_any_number_of_workers() {
        // Several blocks of lines and chunks of depth; so many columns that turned lines are packed; batches that a
        // worker packs itself; a column; no depth.
        for (batch, n, m, k) in [(1, 530, 37, 1100), (1, 14, 300, 520), (5, 21, 50, 70), (1, 33, 1, 515), (2, 3, 5, 0)]
        {
            for format in [DType::F32, DType::F64, DType::I8, DType::I32, DType::I64] {
                for transpose in [[false, false], [false, true], [true, false], [true, true]] {
                    let of =
                        |rows, columns, turned| if turned { [batch, columns, rows] } else { [batch, rows, columns] };
                    let (a, b) = (of(n, k, transpose[0]).to_vec(), of(k, m, transpose[1]).to_vec());
                    let spec = spec(format, [a, b, vec![batch, n, m]], transpose);
                    let numbers =
                        operands(DType::I64, [batch * n * k, batch * k * m]).map(|m| integers(DType::I64, &m));
                    let want: Vec<i64> = (0..batch * n * m)
                        .map(|i| {
                            let (batch, row, column) = (i / (n * m), i / m % n, i % m);
                            let product = |d: usize| {
                                let x = if transpose[0] { d * n + row } else { row * k + d };
                                let y = if transpose[1] { column * k + d } else { d * m + column };
                                numbers[0][batch * n * k + x] * numbers[1][batch * k * m + y]
                            };
                            (0..k).map(product).sum()
                        })
                        .collect();
                    for (features, workers) in feature_sets().into_iter().zip([1, 2, 3].into_iter().cycle()) {
                        let [a, b] = operands(format, [batch * n * k, batch * k * m]);
                        let width = spec.output.format.block_bytes();
                        let mut memory = [a, b, Memory::filled(batch * n * m * width, 0xff)];
                        launch(&*find(&spec, features).expect("served"), &mut memory, workers).expect("runs");
                        let place = format!("{features:?} {} {batch} × {n} × {m} × {k} {transpose:?}", format.name());
                        assert!(integers(format, &memory[2]) == want, "{place}");
                    }
                }
            }
        }
    }

    pub(crate) fn the_number_of_workers_changes_no_bit() {
        for (format, n) in [(DType::F32, 530), (DType::F64, 70), (DType::BF16, 530)] {
            let shape = vec![1, n, n];
            let spec = spec(format, [shape.clone(), shape.clone(), shape], [false, true]);
            let width = format.block_bytes();
            let mut random = Random(n as u64);
            let values: Vec<f64> = (0..n * n).map(|_| f64::from(random.float()) / 3.0).collect();
            let operand = || match format {
                DType::F64 => Memory::of(&values),
                DType::BF16 => Memory::of(&values.iter().map(|v| half::bf16::from_f64(*v)).collect::<Vec<_>>()),
                _ => Memory::of(&values.iter().map(|v| *v as f32).collect::<Vec<_>>()),
            };
            for features in feature_sets() {
                let results = [1, 2, 7].map(|workers| {
                    let mut memory = [operand(), operand(), Memory::filled(n * n * width, 0)];
                    launch(&*find(&spec, features).expect("served"), &mut memory, workers).expect("runs");
                    memory[2].elements::<u8>().to_vec()
                });
                assert!(results[0] == results[1] && results[0] == results[2], "{features:?} {}", format.name());
            }
        }
    }
}
