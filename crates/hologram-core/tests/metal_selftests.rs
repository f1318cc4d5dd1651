//! The table of self-tests of Metal's native kernels must match the operations' cases.
//!
//! `UPDATE_SELFTESTS=1 cargo test -p hologram-core --test metal_selftests` rewrites it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use hologram_backends::{
    Backend, Binding, Buffer, CommandList, DType, Event, GroupSpec, KernelSpec, Kernels, Launch, Pipeline, Policy,
    Program, ReferenceBackend, Result, Target,
};
use hologram_core::{Executor, conformance};
use hologram_gpu::{NativeKernel, find, find_group};
use hologram_metal::selftest::{
    self, CASES, Case, TestBinding, TestBuffer, TestChange, TestLaunch, TestResult, encode,
};

/// The maximum number of cases per kernel text, and the number of bytes after which no more are chosen.
const MAX_CASES: usize = 64;
const MAX_BYTES: usize = 128 << 10;
/// The preferred maximum size of a case in bytes: of the cases below it the largest are chosen.
const BYTES: usize = 3 << 10;

/// The launches of a plan on an Apple GPU, the memory before them, and the ranges that are read afterwards.
#[derive(Default)]
struct Captured {
    launches: Vec<Launch>,
    /// Buffers with their contents.
    memory: Vec<(Buffer, Vec<u8>)>,
    reads: Vec<(Buffer, Range<usize>)>,
}

/// A device that chooses kernels as for an Apple GPU, has memory, and launches nothing.
struct Capture {
    memory: ReferenceBackend,
    policy: Policy,
    last: Mutex<Captured>,
}

/// The content of a pipeline.
struct Chosen {
    kernel: NativeKernel,
    /// Whether each binding is read and written.
    access: Vec<[bool; 2]>,
}

impl Backend for Capture {
    hologram_backends::pass_on!(self => self.memory;
        info is_available measure streams allocate_buffer allocate_pool owns available_memory wrap copy_to_buffer
        copy_buffer clear_error wait synchronize);

    fn kernels(&self) -> &dyn Kernels {
        self
    }

    fn policy(&self) -> &Policy {
        &self.policy
    }

    fn copy_from_buffer(&self, buffer: &Buffer, offset: usize, data: &mut [u8]) -> Result<()> {
        self.last.lock().unwrap().reads.push((buffer.clone(), offset..offset + data.len()));
        self.memory.copy_from_buffer(buffer, offset, data)
    }

    fn record(&self, launches: &[Launch]) -> Result<CommandList> {
        Ok(CommandList::new(launches.to_vec()))
    }

    fn submit(&self, list: &CommandList) -> Result<Event> {
        let launches = list.downcast::<Vec<Launch>>().unwrap().clone();
        let mut memory: Vec<(Buffer, Vec<u8>)> = Vec::new();
        for binding in launches.iter().flat_map(|launch| &launch.bindings) {
            if let Binding::Buffer { buffer, .. } = binding
                && !memory.iter().any(|(known, _)| known.same_memory(buffer))
            {
                let mut bytes = vec![0; buffer.bytes()];
                self.memory.copy_from_buffer(buffer, 0, &mut bytes)?;
                memory.push((buffer.clone(), bytes));
            }
        }
        *self.last.lock().unwrap() = Captured { launches, memory, reads: Vec::new() };
        Ok(Event(0))
    }
}

impl Kernels for Capture {
    fn compile(&self, program: &Program) -> Result<Pipeline> {
        Ok(Pipeline::program(&program.name, ()))
    }

    fn native(&self, spec: &KernelSpec) -> Option<Pipeline> {
        let kernel = find(spec, Target::APPLE)?;
        let mut access = Vec::new();
        for (i, tensor) in spec.inputs.iter().enumerate() {
            let views = tensor.format.views(tensor.max_rows(), tensor.row_len()).len();
            access.extend(std::iter::repeat_n([true, spec.in_place == Some(i)], views));
        }
        if spec.in_place.is_none() {
            let views = spec.output.format.views(spec.output.max_rows(), spec.output.row_len()).len();
            access.extend(std::iter::repeat_n([false, true], views));
        }
        Some(Pipeline::native(spec.op.name(), Chosen { kernel, access }))
    }

    fn native_group(&self, group: &GroupSpec) -> Option<Pipeline> {
        let kernel = find_group(group, Target::APPLE)?;
        let mut access = Vec::new();
        for (i, (tensor, write)) in group.bound().into_iter().enumerate() {
            let views = tensor.format.views(tensor.max_rows(), tensor.row_len()).len();
            access.extend(std::iter::repeat_n([i < group.inputs.len(), write], views));
        }
        Some(Pipeline::native(&group.name(), Chosen { kernel, access }))
    }

    fn prefers_fixed(&self, _spec: &KernelSpec) -> bool {
        false
    }

    fn expect_weights(&self, _layout: DType) {}
}

/// Ranges of buffers; ranges that touch are merged.
struct Ranges<'a> {
    memory: &'a [(Buffer, Vec<u8>)],
    /// The buffer's index and a range of it.
    ranges: Vec<(usize, Range<usize>)>,
}

impl Ranges<'_> {
    fn place(&self, buffer: &Buffer) -> Option<usize> {
        self.memory.iter().position(|(known, _)| known.same_memory(buffer))
    }

    fn add(&mut self, buffer: &Buffer, range: &Range<usize>) -> Option<()> {
        let place = self.place(buffer)?;
        // Keeps the alignment.
        let mut range = range.start / 64 * 64..range.end;
        self.ranges.retain(|(other, r)| {
            let touch = *other == place && r.start <= range.end && range.start <= r.end;
            if touch {
                range = range.start.min(r.start)..range.end.max(r.end);
            }
            !touch
        });
        self.ranges.push((place, range));
        Some(())
    }

    /// The index of the range that contains `range`, and the offset in it.
    fn find(&self, buffer: &Buffer, range: &Range<usize>) -> Option<(usize, usize)> {
        let place = self.place(buffer)?;
        let holds = |(p, r): &(usize, Range<usize>)| *p == place && r.start <= range.start && range.end <= r.end;
        let at = self.ranges.iter().position(holds)?;
        Some((at, range.start - self.ranges[at].1.start))
    }
}

/// A line of the table; `None` if programs take part.
fn case(name: &str, captured: &Captured, outputs: &[conformance::CaseOutput]) -> Option<Case> {
    let mut ranges = Ranges { memory: &captured.memory, ranges: Vec::new() };
    let chosen: Option<Vec<&Chosen>> = captured.launches.iter().map(|l| l.pipeline.downcast()).collect();
    let chosen = chosen?;
    for launch in &captured.launches {
        for binding in &launch.bindings {
            let Binding::Buffer { buffer, range } = binding else { return None };
            ranges.add(buffer, range)?;
        }
    }
    assert_eq!(captured.reads.len(), outputs.len(), "{name}");
    for (buffer, range) in &captured.reads {
        ranges.add(buffer, range)?;
    }
    ranges.ranges.sort_by_key(|(place, range)| (*place, range.start));
    let buffers =
        ranges.ranges.iter().map(|(place, r)| TestBuffer::of(&captured.memory[*place].1[r.clone()])).collect();
    let mut launches = Vec::new();
    for (launch, chosen) in captured.launches.iter().zip(&chosen) {
        let mut bindings = Vec::new();
        for (i, binding) in launch.bindings.iter().enumerate() {
            let Binding::Buffer { buffer, range } = binding else { return None };
            let (place, start) = ranges.find(buffer, range)?;
            // The step block follows all tensors.
            let [read, write] = chosen.access.get(i).copied().unwrap_or([true, false]);
            bindings.push(TestBinding { buffer: place, start, bytes: range.len(), read, write });
        }
        launches.push(TestLaunch::of(&chosen.kernel, bindings).unwrap());
    }
    let (mut results, mut tests_something) = (Vec::new(), false);
    for ((buffer, range), output) in captured.reads.iter().zip(outputs) {
        let (place, start) = ranges.find(buffer, range)?;
        let (spec, at) = (&output.spec, ranges.ranges[place].1.start + start);
        let before = &captured.memory[ranges.ranges[place].0].1[at..at + range.len()];
        let len = output.reference.values.len();
        let result = TestResult {
            buffer: place,
            start,
            bytes: range.len(),
            format: spec.format.name(),
            max_rows: spec.max_rows(),
            row_len: spec.row_len(),
            len,
            changes: changes(
                &spec.format.values(spec.max_rows(), spec.row_len(), len, before).ok()?,
                &output.reference,
            ),
        };
        // Memory as it was before the launches is not a result.
        tests_something |= result.failure(before, before).is_some();
        results.push(result);
    }
    tests_something.then_some(())?;
    let texts: BTreeSet<String> = launches.iter().flat_map(|l| &l.parts).map(|p| p.text.clone()).collect();
    Some(Case { name: name.into(), texts: texts.into_iter().collect(), buffers, launches, results })
}

/// The values that differ between the memory and the reference.
fn changes(before: &[f64], reference: &conformance::Reference) -> Vec<TestChange> {
    // The table's values are rounded; two digits of a bound are enough.
    let rounded = |(value, bound): (&f64, &f64)| -> f32 {
        let bound = bound + value.abs() * f64::from(f32::EPSILON) / 2.0;
        format!("{:.1e}", bound * 1.05).parse().unwrap()
    };
    let (values, bounds) = (&reference.values, &reference.bounds);
    let same = |i: &usize| before[*i] == values[*i] && bounds[*i] == 0.0;
    let (mut changes, mut at) = (Vec::new(), 0);
    while let Some(first) = (at..values.len()).find(|i| !same(i)) {
        let end = (first..values.len()).find(same).unwrap_or(values.len());
        let bounds: Vec<f32> = values[first..end].iter().zip(&bounds[first..end]).map(rounded).collect();
        let values: Vec<f32> = values[first..end].iter().map(|v| *v as f32).collect();
        changes.push(TestChange { first, values: encode(&values), bounds: encode(&bounds) });
        at = end;
    }
    changes
}

fn bytes(case: &Case) -> usize {
    let results: usize = case.results.iter().flat_map(|r| &r.changes).map(|c| c.values.len() * 2).sum();
    case.buffers.iter().map(|b| b.contents.iter().map(|(_, c)| c.len()).sum::<usize>()).sum::<usize>() + results
}

fn entries(case: &Case) -> impl Iterator<Item = (&str, &str)> {
    case.launches.iter().flat_map(|l| &l.parts).map(|p| (p.text.as_str(), p.entry.as_str()))
}

/// Chooses, per kernel text, small cases that launch as many of its kernels as possible.
fn choose(mut all: Vec<Case>) -> Vec<Case> {
    // Cases below the preferred size come first, the largest of them first; then the others, the smallest first.
    all.sort_by_key(|case| match bytes(case) {
        size if size <= BYTES => BYTES - size,
        size => size,
    });
    let mut chosen: Vec<usize> = Vec::new();
    for text in hologram_gpu::texts::names() {
        let mut covered: BTreeSet<(&str, &str)> = chosen.iter().flat_map(|i| entries(&all[*i])).collect();
        let (mut cases, mut size) = (0, 0);
        for (i, case) in all.iter().enumerate().filter(|(_, case)| case.texts.iter().any(|t| t == text)) {
            let new = entries(case).any(|entry| entry.0 == text && !covered.contains(&entry));
            let fits = cases == 0 || size + bytes(case) < MAX_BYTES;
            if cases < MAX_CASES && fits && new && !chosen.contains(&i) {
                covered.extend(entries(case));
                chosen.push(i);
                cases += 1;
                size += bytes(case);
            }
        }
    }
    chosen.sort_unstable();
    chosen.into_iter().map(|i| all[i].clone()).collect()
}

/// Whether two cases are equal except for the last bits of expected values, which systems' functions round differently.
fn alike(a: &Case, b: &Case) -> bool {
    let numbers = |case: &Case| {
        let changes = case.results.iter().flat_map(|r| &r.changes);
        let [values, bounds] = changes.fold([vec![], vec![]], |[mut values, mut bounds], change| {
            values.extend(selftest::decode(&change.values).unwrap());
            bounds.extend(selftest::decode(&change.bounds).unwrap());
            [values, bounds]
        });
        (values, bounds)
    };
    let close = |a: &[f32], b: &[f32], share: f32| {
        a.len() == b.len()
            && a.iter().zip(b).all(|(a, b)| a.total_cmp(b).is_eq() || (a - b).abs() <= share * a.abs().max(b.abs()))
    };
    let without = |case: &Case| {
        let mut case = case.clone();
        case.results.iter_mut().flat_map(|r| &mut r.changes).for_each(|change| {
            change.values.clear();
            change.bounds.clear();
        });
        case
    };
    let ((a_values, a_bounds), (b_values, b_bounds)) = (numbers(a), numbers(b));
    close(&a_values, &b_values, 1e-6) && close(&a_bounds, &b_bounds, 0.1) && without(a) == without(b)
}

#[test]
fn the_table_is_what_the_references_give() {
    let memory = ReferenceBackend::new();
    let policy = hologram_gpu::policy(Target::APPLE);
    let device = Arc::new(Capture { memory, policy, last: Mutex::default() });
    let executor = Executor::from_backend(device.clone());
    let mut all = Vec::new();
    conformance::run_native(&executor, usize::MAX, |name, outputs| {
        let outputs = outputs().unwrap();
        let captured = std::mem::take(&mut *device.last.lock().unwrap());
        all.extend(case(name, &captured, &outputs));
    })
    .unwrap();
    let made = choose(all);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../hologram-metal/src/selftests.jsonl");
    if std::env::var_os("UPDATE_SELFTESTS").is_some() {
        let lines: String = made.iter().map(|case| selftest::line(case).unwrap() + "\n").collect();
        std::fs::write(path, lines).unwrap();
        return;
    }
    let kept = selftest::read(CASES).unwrap();
    let differs = made.iter().zip(&kept).find(|(made, kept)| !alike(made, kept)).map(|(made, _)| &made.name);
    assert!(
        made.len() == kept.len() && differs.is_none(),
        "{path} is out of date ({} cases, should be {}; the first that differs: {differs:?}); write it anew by \
         UPDATE_SELFTESTS=1 cargo test -p hologram-core --test metal_selftests",
        kept.len(),
        made.len()
    );
}
