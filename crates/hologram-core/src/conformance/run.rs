//! Runs cases on a device.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{LazyLock, Mutex, PoisonError};

use hologram_backends::{BackendError, DType, Extent, Operation, TensorSpec};
use hologram_isa::meaning::Subnormals;
use hologram_isa::{Capability, Type};

use super::data::{self, POISON, Random};
use super::groups::{self, GroupCase};
use super::{Case, Fill, HostTensor, Reference};
use crate::error::{CoreError, Result};
use crate::executor::Executor;
use crate::graph::{CompileOptions, Graph, Plan};
use crate::ops;
use crate::tensor::{Dim, Tensor};

/// The result of a case.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// The operation's name.
    pub op: &'static str,
    /// The case's index among the operation's cases.
    pub index: usize,
    /// The formats of the operands, without those of indices: `f32`, `i8 × Q4_0`.
    pub dtype: String,
    /// Formats and shapes.
    pub case: String,
    /// Whether a native kernel also ran: of the operation, or of some of a group's operations.
    pub native: bool,
    /// The failure; `None`: passed.
    pub failure: Option<String>,
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "case {} {}: {}", self.index, self.case, self.failure.as_deref().unwrap_or("ok"))
    }
}

/// The names of the operations that have cases, in order. The last, `groups`, stands for the cases of groups of
/// operations.
pub fn op_names() -> Vec<&'static str> {
    let mut ops: Vec<&'static str> = Vec::new();
    for case in all_cases() {
        if !ops.contains(&case.op.name()) {
            ops.push(case.op.name());
        }
    }
    ops.push(groups::NAME);
    ops
}

/// Runs every case of every operation.
pub fn run(executor: &Executor) -> Vec<CaseResult> {
    op_names().iter().flat_map(|op| run_op(executor, op, usize::MAX)).collect()
}

/// Runs the cases of an operation, or of groups, that take at most about `max_work` multiplications.
pub fn run_op(executor: &Executor, op: &str, max_work: usize) -> Vec<CaseResult> {
    if op == groups::NAME {
        return groups::run(executor, max_work);
    }
    let cases = all_cases().iter().filter(|c| c.op.name() == op).enumerate();
    cases.filter(|(_, c)| work(c) <= max_work).map(|(i, c)| run_case(executor, i, c)).collect()
}

/// Runs cases of every operation and of groups on several threads, for devices whose kernels take long to compile:
/// every case as program and as the device's native kernel if `all`. Else the first of each operation runs as both, the
/// first of each of its types natively, or as program where there is no kernel, and one in three of the others, and of
/// groups, natively.
pub fn run_on_threads(executor: &Executor, threads: usize, all: bool) -> Vec<CaseResult> {
    let mut seen = HashSet::new();
    let mut counts = HashMap::new();
    let of_operations = all_cases().iter().filter_map(|case| {
        let count = counts.entry(case.op.name()).or_insert(0);
        let index = *count;
        *count += 1;
        let first = seen.insert((case.op.name(), case.dtype()));
        let ways = match () {
            () if all || index == 0 => Ways::Both,
            () if first => Ways::Any,
            () => Ways::Native,
        };
        (first || all || index % 3 == 0).then_some((index, Job::Operation(case, ways)))
    });
    let groups = groups::cases_for(executor);
    let of_groups = groups.iter().enumerate().filter(|(index, _)| all || index % 3 == 0);
    let of_groups = of_groups.map(|(index, case)| (index, Job::Group(case)));
    // From the end: groups take longest.
    let jobs = Mutex::new(of_operations.chain(of_groups).collect::<Vec<_>>());
    let results = Mutex::new(Vec::new());
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some((index, job)) = next() {
                    let result = match job {
                        Job::Operation(case, Ways::Both) => run_case(executor, index, case),
                        Job::Operation(case, ways) => {
                            let native = run_ways(executor, index, case, &[true]);
                            let program = ways == Ways::Any && !native.native;
                            if program { run_ways(executor, index, case, &[false]) } else { native }
                        }
                        Job::Group(case) if all => case.run(executor, index),
                        Job::Group(case) => case.run_ways(executor, index, &[true]),
                    };
                    results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// How a case runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ways {
    /// As program and natively.
    Both,
    /// Natively where there is a kernel.
    Native,
    /// Natively, or as program.
    Any,
}

/// A case for a thread.
enum Job<'a> {
    /// Of an operation.
    Operation(&'a Case, Ways),
    Group(&'a GroupCase),
}

/// The cases of every operation, built once.
pub(super) fn all_cases() -> &'static [Case] {
    static CASES: LazyLock<Vec<Case>> = LazyLock::new(ops::cases);
    &CASES
}

/// Runs one case as the operation's program and, where the device has one, as its native kernel.
pub fn run_case(executor: &Executor, index: usize, case: &Case) -> CaseResult {
    run_ways(executor, index, case, &[false, true])
}

/// Runs one case as program (`false`) or as native kernel (`true`), one after the other.
fn run_ways(executor: &Executor, index: usize, case: &Case, ways: &[bool]) -> CaseResult {
    let mut result = CaseResult {
        op: case.op.name(),
        index,
        dtype: case.dtype(),
        case: case.to_string(),
        native: false,
        failure: None,
    };
    let mut known = None;
    for &native in ways {
        let way = if native { "native kernel" } else { "program" };
        let outcome = attempt(executor, index, case, native).and_then(|ran| {
            let outputs = ran.map(|ran| ran.outputs(&mut known)).transpose()?;
            Ok(outputs.map(|outputs| failure(&outputs)))
        });
        match outcome {
            Ok(None) => {}
            Ok(Some(Ok(None))) => result.native = native,
            Ok(Some(Ok(Some(reason)))) => result.failure = Some(format!("{way}: {reason}")),
            Ok(Some(Err(e))) => result.failure = Some(format!("{way}: {e}")),
            // A device must reject, by name, a capability that it does not list.
            Err(e) if refuses_what_it_lacks(executor, &e) => {}
            Err(e) => result.failure = Some(format!("{way}: {e}")),
        }
        if result.failure.is_some() {
            break;
        }
    }
    result
}

/// Whether a device rejected a capability that it does not list.
fn refuses_what_it_lacks(executor: &Executor, error: &CoreError) -> bool {
    let there = &executor.info().capabilities;
    let names = |what: &str| Capability::ALL.iter().any(|c| !there.contains(c) && what.starts_with(&format!("{c},")));
    matches!(error, CoreError::Backend(BackendError::Unsupported { what, .. }) if names(what))
}

/// A tensor that a case computes: the device's result and the reference.
#[derive(Clone, Debug)]
pub struct CaseOutput {
    /// The output's name, for cases with several outputs.
    pub name: String,
    /// The format and maximum shape of its memory.
    pub spec: TensorSpec,
    /// Whether the bytes beyond the actual extents must be unchanged.
    pub bounded: bool,
    /// The bytes that the device wrote.
    pub bytes: Vec<u8>,
    /// The expected values with their bounds.
    pub reference: Reference,
    /// On a device that flushes subnormal numbers: what it gives where it sees 0 in their place. Either is right.
    pub flushed: Option<Reference>,
}

/// Reads what a case computed, and computes its reference.
pub type Outputs<'a> = dyn Fn() -> Result<Vec<CaseOutput>> + 'a;

/// Describes the first wrong output; `None`: all are right.
///
/// # Errors
/// When an output's bytes do not belong to its format.
pub(super) fn failure(outputs: &[CaseOutput]) -> Result<Option<String>> {
    let several = outputs.len() > 1;
    for CaseOutput { name, spec, bounded, bytes, reference, flushed } in outputs {
        let len = reference.values.len();
        let wrong = match data::overwritten(spec, len, bytes).filter(|_| *bounded) {
            Some(at) => Some(format!("byte {at}, which lies beyond the extents, was written")),
            None => {
                let values = spec.format.values(spec.max_rows(), spec.row_len(), len, bytes)?;
                compare(&values, reference, flushed.as_ref(), spec.row_len())
            }
        };
        if let Some(reason) = wrong {
            return Ok(Some(if several { format!("{name}: {reason}") } else { reason }));
        }
    }
    Ok(None)
}

/// A case that ran.
struct Ran<'a> {
    executor: &'a Executor,
    case: &'a Case,
    operands: Vec<HostTensor>,
    /// The state that the operation changed.
    state: Option<Tensor>,
    plan: Plan,
}

/// A case's reference, and the one of a device that flushes subnormal numbers.
type Known = (Reference, Option<Reference>);

impl Ran<'_> {
    /// What the device wrote, with the reference, which is computed unless it is known.
    fn outputs(&self, known: &mut Option<Known>) -> Result<Vec<CaseOutput>> {
        let (reference, flushed) = known.get_or_insert_with(|| self.reference()).clone();
        let (bytes, spec) = match &self.state {
            Some(tensor) => {
                let mut bytes = vec![0; tensor.bytes()];
                self.executor.backend().copy_from_buffer(&tensor.buffer, tensor.offset, &mut bytes)?;
                (bytes, fixed_spec(tensor.dtype(), tensor.shape()))
            }
            None => (self.plan.read_raw("result")?, self.plan.output_spec("result")?.clone()),
        };
        let (name, bounded) = ("result".into(), self.state.is_none());
        Ok(vec![CaseOutput { name, spec, bounded, bytes, reference, flushed }])
    }

    fn reference(&self) -> Known {
        let slack = self.executor.info().slack();
        let reference = self.case.op.reference(&self.operands).loosened(slack);
        let flushes = self.executor.info().subnormals == Subnormals::Flushed;
        (reference, flushes.then(|| flushed(self.case, self.operands.clone()).loosened(slack)))
    }
}

/// Runs a case once. `None`: a native kernel was requested and the device has none.
///
/// # Errors
/// Errors of the device.
fn attempt<'a>(executor: &'a Executor, index: usize, case: &'a Case, native: bool) -> Result<Option<Ran<'a>>> {
    let mut random = Random::new(index as u64 + 1);
    let mut graph = Graph::new();
    for (i, (max, _)) in case.extents.iter().enumerate() {
        graph.extent(&format!("extent{i}"), *max);
    }
    let (mut nodes, mut operands, mut written) = (Vec::new(), Vec::new(), Vec::new());
    let mut state: Option<Tensor> = None;
    for (i, input) in case.inputs.iter().enumerate() {
        let (bytes, operand) = data::draw(&case.extents, input, &mut random)?;
        let tensor = || Tensor::from_bytes(executor, input.format, &operand.shape, &bytes);
        nodes.push(if case.op.in_place() == Some(i) {
            graph.state(state.insert(tensor()?))?
        } else if input.shape.iter().any(|d| matches!(d, Dim::Extent(_))) {
            let name = format!("input{i}");
            let node = graph.input(&name, input.format, &input.shape)?;
            written.push((name, bytes));
            node
        } else {
            graph.constant(&tensor()?)?
        });
        operands.push(operand);
    }
    for (i, view) in &case.views {
        nodes[*i] = view.apply(&mut graph, nodes[*i])?;
        operands[*i] = view.apply_to_host(&operands[*i], |d| case.size(d).1);
    }
    let result = graph.apply_shared(case.op.clone(), &nodes)?;
    if state.is_none() {
        graph.output("result", result)?;
    }
    let mut plan = graph.compile_with(executor, &[], CompileOptions { native, ..Default::default() })?;
    if native && plan.native_launches() == 0 {
        return Ok(None);
    }
    for (i, (_, actual)) in case.extents.iter().enumerate() {
        plan.set_extent(&format!("extent{i}"), *actual)?;
    }
    for (name, bytes) in &written {
        plan.write_raw(name, bytes)?;
    }
    plan.fill_arena(POISON)?;
    plan.run()?;
    Ok(Some(Ran { executor, case, operands, state, plan }))
}

/// A case's reference on operands whose subnormal numbers count as 0; so do those of the result.
fn flushed(case: &Case, mut operands: Vec<HostTensor>) -> Reference {
    let least = f64::from(f32::MIN_POSITIVE);
    for operand in operands.iter_mut().filter(|o| o.format != DType::Plain(Type::F64)) {
        operand.values.iter_mut().filter(|v| v.abs() < least).for_each(|v| *v = 0f64.copysign(*v));
    }
    let mut reference = case.op.reference(&operands);
    reference.bounds.iter_mut().for_each(|bound| *bound += least);
    reference
}

/// A tensor of fixed sizes.
pub(super) fn fixed_spec(format: DType, shape: &[usize]) -> TensorSpec {
    TensorSpec { format, shape: shape.iter().map(|n| Extent::Fixed(*n)).collect() }
}

/// Describes the first element that is beyond its bound, if any.
fn compare(got: &[f64], want: &Reference, flushed: Option<&Reference>, row_len: usize) -> Option<String> {
    if got.len() != want.values.len() {
        return Some(format!("the reference has {} elements, the result {}", want.values.len(), got.len()));
    }
    let right = |i: usize, of: &Reference| agree(got[i], of.values[i], of.bounds[i]);
    let wrong = |i: &usize| !right(*i, want) && !flushed.is_some_and(|flushed| right(*i, flushed));
    let failures: Vec<usize> = (0..got.len()).filter(wrong).collect();
    let i = *failures.first()?;
    Some(format!(
        "row {}, column {}: got {}, want {} ± {:.3e}; {} of {} elements are beyond their bounds",
        i / row_len.max(1),
        i % row_len.max(1),
        got[i],
        want.values[i],
        want.bounds[i],
        failures.len(),
        got.len()
    ))
}

/// Whether a result lies within the bound of the exact value. Infinity is right where the bound reaches beyond the
/// range of `f32`.
fn agree(got: f64, want: f64, bound: f64) -> bool {
    let max = f64::from(f32::MAX);
    if got.is_infinite() {
        want.is_sign_positive() == got.is_sign_positive() && want.abs() + bound >= max
    } else {
        want.is_nan() && got.is_nan() || (got - want).abs() <= bound
    }
}

/// Runs the cases of all operations and groups with a device's native kernels, where it has some. `each` gets the name
/// of each case and a function that gives its outputs. For tests of the kernels that a device launches.
///
/// # Errors
/// Errors of the device.
pub fn run_native(executor: &Executor, max_work: usize, mut each: impl FnMut(&str, &Outputs)) -> Result<()> {
    for op in op_names() {
        let cases = all_cases().iter().filter(|case| case.op.name() == op);
        for (index, case) in cases.enumerate().filter(|(_, case)| work(case) <= max_work) {
            match attempt(executor, index, case, true) {
                Ok(Some(ran)) => each(&case.to_string(), &|| ran.outputs(&mut None)),
                Ok(None) => {}
                Err(e) if refuses_what_it_lacks(executor, &e) => {}
                Err(e) => return Err(e),
            }
        }
    }
    groups::run_native(executor, max_work, each)
}

/// Approximate number of multiplications of a case.
pub(super) fn work(case: &Case) -> usize {
    let elements = |i: &super::CaseInput| i.shape.iter().map(|d| case.size(*d).1).product::<usize>();
    match case.inputs.as_slice() {
        [x, w] if case.op.operation() == Operation::Matmul => {
            elements(x) * w.shape.first().map_or(1, |d| case.size(*d).1)
        }
        [_, w, ids, ..] if let Operation::ExpertMatmul { experts } = case.op.operation() => {
            elements(ids) * elements(w) / experts.max(1) as usize
        }
        [x, w, ..] if matches!(case.op.operation(), Operation::BatchMatmul { .. }) => {
            elements(x) * w.shape.last().map_or(1, |d| case.size(*d).1)
        }
        [x, w, ..] if matches!(case.op.operation(), Operation::Conv2d { .. }) => {
            elements(x) * elements(w) / w.shape.get(1).map_or(1, |d| case.size(*d).1)
        }
        [q, _, _, positions, ..] if matches!(case.op.operation(), Operation::Attention { .. }) => {
            let values = if let Fill::Values(values) = &positions.fill { values.as_slice() } else { &[] };
            elements(q) * (values.iter().sum::<f32>() as usize / values.len().max(1) + 1)
        }
        // Each query meets the keys of its head.
        [q, k, ..] if matches!(case.op.operation(), Operation::FlashAttention { .. }) => {
            elements(q) * k.shape.get(2).map_or(1, |d| case.size(*d).1)
        }
        // Whole blocks, however short a line is.
        [x, ..] if let Operation::SortBlocks { axis, .. } = case.op.operation() => {
            let line = x.shape.get(axis as usize).map_or(1, |d| case.size(*d).1).max(1);
            elements(x) / line * line.next_multiple_of(hologram_backends::SORT_BLOCK)
        }
        inputs => inputs.iter().map(elements).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::agree;

    #[test]
    fn agreement_covers_overflow_and_nan() {
        for (got, want, bound, right) in [
            (1.0, 1.0 + 0.9e-7, 1e-7, true),
            (1.0, 1.0 + 1.1e-7, 1e-7, false),
            (f64::INFINITY, 1e39, 0.0, true),
            (f64::INFINITY, -1e39, 0.0, false),
            (f64::INFINITY, 1e38, 1e32, false),
            (f64::from(f32::MAX), 1e39, 1e33, false),
            (f64::NAN, 1.0, 1.0, false),
            (1.0, f64::NAN, 1.0, false),
            (f64::NAN, f64::NAN, 0.0, true),
            (0.0, -0.0, 0.0, true),
        ] {
            assert_eq!(agree(got, want, bound), right, "got {got}, want {want} ± {bound}");
        }
    }
}
