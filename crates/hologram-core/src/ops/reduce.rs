//! Reductions along a dimension: sum, mean, product, the greatest and the least element.

#[cfg(feature = "conformance")]
use hologram_backends::DType;
use hologram_backends::{KernelSpec, Operation, Reduction};
use hologram_isa::{Array, Builder, Opcode, SUBGROUP_SIZE, Type, Value};

pub(super) use super::lines::THREADS;
use super::lines::{Lines, Tile, along, computed, epsilon, is_number, not_for, number, plain, stored, without};
use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Axis, Dim, TensorType};

/// The operation; `x` is of any plain numbers.
#[derive(Debug)]
struct Reduce {
    reduction: Reduction,
    dim: usize,
}

impl Graph {
    /// Reduces `x` along dimension `dim`, which the result does not have. The result has the type of `x`: any plain
    /// numbers for which the reduction is defined. A NaN makes every result NaN, the greatest and the least too. The
    /// dimension may be a run-time extent, which may be 0.
    ///
    /// # Errors
    /// When `x` has no such dimension or has a type without this reduction; for the greatest or least element also when
    /// the dimension is fixed at 0.
    pub fn reduce(&mut self, x: NodeId, reduction: Reduction, dim: impl Axis) -> Result<NodeId> {
        let dim = self.axis(Reduce { reduction, dim: 0 }.name(), x, dim)?;
        self.apply(Reduce { reduction, dim }, &[x])
    }

    /// Reduces all elements of `x` to a scalar.
    ///
    /// # Errors
    /// As [`Graph::reduce`].
    pub fn reduce_all(&mut self, x: NodeId, reduction: Reduction) -> Result<NodeId> {
        self.called("reduce_all", |g| g.of_all(reduction, x))
    }

    fn of_all(&mut self, reduction: Reduction, x: NodeId) -> Result<NodeId> {
        let shape = self.shape_of(x).to_vec();
        let fixed = |dims: &[Dim]| {
            dims.iter().try_fold(1usize, |n, d| if let Dim::Fixed(m) = d { n.checked_mul(*m) } else { None })
        };
        match (shape.as_slice(), fixed(&shape)) {
            ([_], _) => self.reduce(x, reduction, 0),
            (_, Some(n)) => {
                let line = self.reshape(x, &[Dim::Fixed(n)])?;
                self.reduce(line, reduction, 0)
            }
            // A run-time extent: the other dimensions are reduced first.
            ([first, rest @ ..], None) => {
                let n = fixed(rest).unwrap_or(0);
                let rows = self.reshape(x, &[*first, Dim::Fixed(n)])?;
                let rows = self.reduce(rows, reduction, 1)?;
                self.reduce(rows, reduction, 0)
            }
            ([], None) => self.reduce(x, reduction, 0),
        }
    }

    /// The sums of the rows of `x` (`[.., d]`), as [`Graph::reduce`] computes them: `[..]`, a scalar for one dimension.
    ///
    /// # Errors
    /// When the operand does not fit.
    pub fn reduce_sum(&mut self, x: NodeId) -> Result<NodeId> {
        self.reduce(x, Reduction::Sum, self.shape_of(x).len().saturating_sub(1))
    }

    /// The greatest elements of the rows of `x` (`[.., d]`), as [`Graph::reduce`] computes them: `[..]`, a
    /// scalar for one dimension.
    ///
    /// # Errors
    /// When the operand does not fit.
    pub fn reduce_max(&mut self, x: NodeId) -> Result<NodeId> {
        self.reduce(x, Reduction::Max, self.shape_of(x).len().saturating_sub(1))
    }
}

impl Reduce {
    /// Whether the result is one of the elements.
    fn picks(&self) -> bool {
        matches!(self.reduction, Reduction::Max | Reduction::Min)
    }

    /// Combines the results of two parts of a line. NaN is greater than any number, and less than any.
    fn join(&self, b: &mut Builder, x: Value, y: Value) -> [Value; 1] {
        let op = match self.reduction {
            Reduction::Sum | Reduction::Mean => Opcode::Add,
            Reduction::Prod => Opcode::Mul,
            Reduction::Max => Opcode::Max,
            Reduction::Min => Opcode::Min,
        };
        if !self.picks() || !x.ty.is_float() {
            return [b.inst(op, x.ty, &[x, y])];
        }
        let beyond = if op == Opcode::Max { b.gt(y, x) } else { b.lt(y, x) };
        let nan = b.ne(y, y);
        let wins = b.or(beyond, nan);
        [b.select(wins, y, x)]
    }

    /// The value that every element replaces, in a type that elements are computed in. A line of floats without
    /// elements has NaN as its greatest and least.
    fn identity(&self, ty: Type) -> Value {
        match (self.reduction, ty) {
            (Reduction::Sum | Reduction::Mean, _) => number(ty, 0.0),
            (Reduction::Prod, _) => number(ty, 1.0),
            // The conversion to an integer clamps.
            (Reduction::Max, ty) => number(ty, f64::NEG_INFINITY),
            (Reduction::Min, ty) => number(ty, f64::INFINITY),
        }
    }
}

impl Graph {
    /// The number of elements along a dimension of `x`, as a scalar of its type: a run-time extent's actual size.
    pub(crate) fn count(&mut self, x: NodeId, dim: usize) -> Result<NodeId> {
        let TensorType { format, shape } = self.ty(x).clone();
        match shape.get(dim) {
            Some(Dim::Fixed(n)) => self.full(format, &[], *n as f64),
            Some(extent) => {
                let ones = self.full(format, &[*extent], 1.0)?;
                self.reduce(ones, Reduction::Sum, 0)
            }
            None => self.full(format, &[], 1.0),
        }
    }
}

/// Whether the reduction is defined for a type.
fn exists_for(reduction: Reduction, ty: Type) -> bool {
    match reduction {
        Reduction::Sum | Reduction::Prod => ty.is_float() || computed(ty) == ty,
        Reduction::Mean => ty.is_float(),
        Reduction::Max | Reduction::Min => is_number(ty),
    }
}

impl Op for Reduce {
    fn operation(&self) -> Operation {
        Operation::Reduce { reduction: self.reduction, axis: self.dim as u32 }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x] = inputs else { return Err("takes x".into()) };
        let none = along(x, self.dim)? == Dim::Fixed(0);
        if none && matches!(self.reduction, Reduction::Max | Reduction::Min) {
            let which = if self.reduction == Reduction::Max { "greatest" } else { "least" };
            return Err(format!("there is no {which} of no elements: dimension {} has size 0", self.dim).into());
        }
        match plain(x.format) {
            Some(ty) if exists_for(self.reduction, ty) => Ok(TensorType::new(x.format, without(&x.shape, self.dim))),
            _ => Err(not_for(x.format, |ty| exists_for(self.reduction, ty))),
        }
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let ty = computed(plain(spec.output.format).unwrap_or(Type::F32));
        let mut k = Kernel::new(spec, THREADS);
        let partial = k.b.shared("partial", ty, THREADS);
        let tile = Tile::new(&mut k, &spec.inputs[0], self.dim);
        let (x, out) = (k.inputs[0].clone(), k.output.clone());
        let b = &mut k.b;
        b.if_(tile.active, |b| {
            let total = b.var(self.identity(ty));
            tile.each(b, |b, i| {
                let at = tile.at(b, i);
                let v = x.load_as(b, ty, at);
                let [v] = self.join(b, total, v);
                b.assign(total, v);
            });
            let [mut total] = tile.combine(b, [partial], [total], |b, [x], [y]| self.join(b, x, y));
            if self.picks() && ty.is_float() {
                let none = b.eq(tile.n, 0u32);
                total = b.select(none, number(ty, f64::NAN), total);
            }
            if self.reduction == Reduction::Mean {
                let n = b.cvt(ty, tile.n);
                total = b.div(total, n);
            }
            b.if_(tile.leads, |b| out.store(b, tile.line, total));
        });
        k.finish(Tile::workgroups(&Lines::of(&spec.inputs[0], self.dim)))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let x = call.inputs[0];
        let shape = g.shape_of(x).to_vec();
        let grad = g.widened(call.grad)?;
        let grad = g.unreduced(grad, self.dim, &shape)?;
        let wide = g.widened(x)?;
        let by_x = match self.reduction {
            Reduction::Sum => grad,
            Reduction::Mean => {
                let count = g.count(wide, self.dim)?;
                g.div(grad, count)?
            }
            Reduction::Max | Reduction::Min => {
                // Equal elements share the gradient.
                let y = g.unreduced(call.output, self.dim, &shape)?;
                let hits = g.eq(x, y)?;
                let ty = g.ty(wide).format;
                let hits = g.cast(hits, ty)?;
                let count = g.reduce(hits, Reduction::Sum, self.dim)?;
                let count = g.unreduced(count, self.dim, &shape)?;
                let share = g.div(hits, count)?;
                g.mul(grad, share)?
            }
            Reduction::Prod => {
                // The product of the other elements: those that are not 0, if none or only this one is.
                let (zero, one) = (g.zeros_like(wide)?, g.full(g.ty(wide).format, &[], 1.0)?);
                let zeros = g.eq(wide, zero)?;
                let others = g.select(zeros, one, wide)?;
                let product = g.reduce(others, Reduction::Prod, self.dim)?;
                let product = g.unreduced(product, self.dim, &shape)?;
                let ty = g.ty(wide).format;
                let counted = g.cast(zeros, ty)?;
                let count = g.reduce(counted, Reduction::Sum, self.dim)?;
                let count = g.unreduced(count, self.dim, &shape)?;
                let else_zero = g.sub(count, counted)?;
                let lives = g.eq(else_zero, zero)?;
                let rest = g.div(product, others)?;
                let rest = g.select(lives, rest, zero)?;
                g.mul(grad, rest)?
            }
        };
        let by_x = g.broadcast_to(by_x, &shape)?;
        Ok(vec![Some(g.cast_like(by_x, x)?)])
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x] = inputs else { return Reference::default() };
        let lines = Lines::on_host(&x.shape, self.dim);
        let float = plain(x.format).is_some_and(Type::is_float);
        let mut out = Reference::default();
        for line in 0..lines.count() {
            let values = || lines.elements(line).map(|at| x.values[at]);
            let n = lines.n as f64;
            let eps = epsilon(x.format);
            let (value, bound) = match self.reduction {
                Reduction::Sum | Reduction::Mean => {
                    let size: f64 = values().map(f64::abs).sum();
                    // Roundings add up like a random walk, each of half an ulp of a partial sum.
                    let bound = size * (n.sqrt() / 8.0 + 3.0) * eps;
                    let divisor = if self.reduction == Reduction::Mean { n } else { 1.0 };
                    (values().sum::<f64>() / divisor, bound / divisor)
                }
                Reduction::Prod => {
                    let product: f64 = values().product();
                    (product, product.abs() * n * eps + n * f64::from(f32::MIN_POSITIVE))
                }
                Reduction::Max | Reduction::Min => {
                    let fold = if self.reduction == Reduction::Max { f64::max } else { f64::min };
                    let nan = values().any(f64::is_nan);
                    (if nan { f64::NAN } else { values().fold(f64::NAN, fold) }, 0.0)
                }
            };
            let exact = !float || matches!(self.reduction, Reduction::Max | Reduction::Min);
            out.push(value, if exact { 0.0 } else { stored(x.format, value, bound) });
        }
        out
    }
}

/// Reduces a value over the [`THREADS`] threads of a workgroup by [`Opcode::Add`], [`Opcode::Min`] or [`Opcode::Max`].
/// Every thread gets the result. All threads must call it together. `partial` has one value per subgroup and may be
/// reused after the next barrier.
pub(super) fn workgroup_reduce(b: &mut Builder, partial: Array, op: Opcode, value: Value) -> Value {
    let value = match op {
        Opcode::Add => b.subgroup_add(value),
        Opcode::Min => b.subgroup_min(value),
        _ => b.subgroup_max(value),
    };
    let lane = b.builtin(Opcode::Lane);
    let subgroup = b.builtin(Opcode::Subgroup);
    let leader = b.eq(lane, 0u32);
    b.if_(leader, |b| b.store(partial, subgroup, value));
    b.barrier();
    let first = b.load(partial, 0u32);
    let total = b.var(first);
    b.for_(1u32, THREADS / SUBGROUP_SIZE, 1u32, |b, i| {
        let v = b.load(partial, i);
        b.assign_op(total, op, &[total, v]);
    });
    total
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    use Reduction::{Max, Mean, Min, Prod, Sum};
    let mut cases = Vec::new();
    for reduction in [Sum, Mean, Prod, Max, Min] {
        let reduce = |dim: usize| Reduce { reduction, dim };
        let rows = |rows: usize, max: usize, d: usize| {
            Case::new(reduce(1), &[(max, rows)]).input(CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(d)]))
        };
        let fixed = |ty: Type, dim: usize, shape: &[usize]| {
            let shape: Vec<Dim> = shape.iter().map(|n| Dim::Fixed(*n)).collect();
            let mut input = CaseInput::normal(DType::Plain(ty), &shape);
            input.fill = match ty {
                ty if ty.is_float() => Fill::Normal(1.0),
                Type::U8 | Type::U16 | Type::U32 | Type::U64 => Fill::Below(200),
                _ => Fill::Normal(40.0),
            };
            Case::new(reduce(dim), &[]).input(input)
        };
        let mut special = CaseInput::normal(DType::F32, &[Dim::Fixed(5)]);
        special.fill = Fill::Values(vec![-3.0, f32::NEG_INFINITY, -2.0, -2.5, -9.0]);
        cases.extend([rows(0, 3, 5), rows(5, 9, 257), rows(300, 400, 33)]);
        // Along the first of two dimensions: a run-time extent, and a fixed size equal to the other.
        let over = |n: usize| {
            Case::new(reduce(0), &[(700, n)]).input(CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(5)]))
        };
        cases.extend([over(1), over(700), fixed(Type::F32, 0, &[37, 37]), fixed(Type::F32, 1, &[37, 37])]);
        let single = [fixed(Type::F32, 0, &[1]), fixed(Type::F32, 1, &[3, 70, 64]), fixed(Type::F32, 2, &[3, 2, 64])];
        cases.extend(single);
        cases.push(Case::new(reduce(0), &[]).input(special));
        if matches!(reduction, Sum | Max) {
            cases.extend([rows(3, 3, 4096), fixed(Type::F32, 0, &[100_003])]);
        }
        // Long lines, which devices reduce in pieces.
        for ty in [Type::F32, Type::F16, Type::BF16] {
            let n = if reduction == Prod { 9 } else { 1000 };
            cases.extend([fixed(ty, 0, &[n, 136]), fixed(ty, 0, &[n, 37]), fixed(ty, 1, &[2, 20 * n + 8])]);
        }
        for ty in Type::ALL {
            if ty != Type::F32 && exists_for(reduction, ty) {
                let n = if reduction == Prod { 4 } else { 300 };
                cases.extend([fixed(ty, 1, &[3, n]), fixed(ty, 1, &[2, n, 40])]);
            }
        }
    }
    let nans = |reduction: Reduction| {
        let mut nans = CaseInput::normal(DType::F32, &[Dim::Fixed(2), Dim::Fixed(3)]);
        nans.fill = Fill::Values(vec![f32::NAN, -1.0, f32::NAN, f32::NAN, f32::NAN, f32::NAN]);
        Case::new(Reduce { reduction, dim: 1 }, &[]).input(nans)
    };
    cases.extend([Sum, Mean, Prod, Max, Min].map(nans));
    // No elements to reduce: fixed sizes, and an extent of 0.
    for reduction in [Sum, Mean, Prod] {
        for (dim, shape) in [(1, [3, 0, 2]), (0, [0, 3, 5]), (2, [2, 0, 0])] {
            let x = CaseInput::normal(DType::F32, &shape.map(Dim::Fixed));
            cases.push(Case::new(Reduce { reduction, dim }, &[]).input(x));
        }
    }
    for reduction in [Sum, Mean, Prod, Max, Min] {
        let x = CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(3)]);
        cases.push(Case::new(Reduce { reduction, dim: 0 }, &[(4, 0)]).input(x));
    }
    cases
}
