//! The overhead of launches: once compiled, a plan runs without allocation on any thread and without lookups in
//! a cache of pipelines.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use hologram_backends::{Binding, Launch, LaunchConfig};
use hologram_core::{CompileOptions, DType, Dim, Executor, Graph, Tensor, conformance};
use hologram_isa::{Access, Builder, Type};

/// The system's allocator with a counter of allocations.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations and pipeline lookups while `work` runs. Takes the minimum of several runs, because threads allocate when
/// they start, which may be after their first launch.
fn costs(executor: &Executor, mut work: impl FnMut()) -> (usize, u64) {
    let lookups = || {
        let metrics = executor.metrics();
        metrics.pipelines_compiled + metrics.pipeline_hits
    };
    let once = |_| {
        let before = (ALLOCATIONS.load(Ordering::Relaxed), lookups());
        work();
        (ALLOCATIONS.load(Ordering::Relaxed) - before.0, lookups() - before.1)
    };
    (0..5).map(once).min().unwrap_or((usize::MAX, u64::MAX))
}

/// One test only, because parallel tests would be counted too.
#[test]
fn launches_allocate_nothing_and_look_nothing_up() {
    let executor = Executor::open("cpu", Some(2)).expect("there is always a CPU");
    // The counter works.
    assert!(costs(&executor, || drop(std::hint::black_box(vec![1u8; 100]))).0 > 0);

    let vector = |v: f32| Tensor::from_slice(&executor, &[16384], &[v; 16384]).unwrap();
    let quarter = Tensor::from_slice(&executor, &[], &[0.25f32]).unwrap();
    for native in [true, false] {
        // A native kernel, a fused chain, a row reduction in two phases, an input and an extent.
        let mut g = Graph::new();
        let n = g.extent("n", 64);
        let (x, y) = (g.constant(&vector(1.0)).unwrap(), g.constant(&vector(2.0)).unwrap());
        let rows = g.input("rows", DType::F32, &[n, Dim::Fixed(33)]).unwrap();
        let quarter = g.constant(&quarter).unwrap();
        let sum = g.add(x, y).unwrap();
        let chain = conformance::chain(&mut g, x, sum, quarter).unwrap();
        let total = g.reduce_sum(chain).unwrap();
        let probabilities = g.softmax_rows(rows).unwrap();
        g.output("total", total).unwrap();
        g.output("probabilities", probabilities).unwrap();
        let options = CompileOptions { native, ..CompileOptions::default() };
        let mut plan = g.compile_with(&executor, &[], options).unwrap();
        let (data, mut total) = ([0.5f32; 33 * 7], [0.0f32]);
        let mut call = |times: usize| {
            for i in 0..times {
                plan.set_extent("n", 1 + i % 7).unwrap();
                plan.write("rows", &data).unwrap();
                plan.run().unwrap();
                plan.read_into("total", &mut total).unwrap();
            }
        };
        call(1);
        assert_eq!(costs(&executor, || call(100)), (0, 0), "native kernels: {native}");
        assert!(total[0].is_finite());
    }

    let mut b = Builder::new("empty", [1, 1, 1]);
    b.buffer("out", Type::F32, Access::Write);
    let backend = executor.backend();
    let pipeline = backend.compile(&b.finish().unwrap()).unwrap();
    let bindings = vec![Binding::whole(&backend.allocate_buffer(64).unwrap())];
    let list = backend.record(&[Launch { pipeline, bindings, config: LaunchConfig { grid: [1; 3] } }]).unwrap();
    let submit = || {
        for _ in 0..100 {
            backend.submit(&list).unwrap();
        }
    };
    submit();
    assert_eq!(costs(&executor, submit), (0, 0), "an empty launch");
}
