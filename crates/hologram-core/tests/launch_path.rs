//! Running a compiled plan neither allocates nor computes a hash: the host's part of a launch is a constant few microseconds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use hologram_core::{Executor, Graph, Result, Tensor};

/// The system's allocator, counting what each thread asks for.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work; counting touches no memory but a thread's own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn running_a_plan_allocates_nothing() -> Result<()> {
    let executor = Executor::open("cpu", Some(2))?;
    let n = 16_384;
    let x = Tensor::from_slice(&executor, &[n], &vec![1.0f32; n])?;
    let mut g = Graph::new();
    let (a, b) = (g.constant(&x)?, g.constant(&x)?);
    let sum = g.add(a, b)?;
    let turned = g.reshape(sum, &[128.into(), 128.into()])?;
    let turned = g.transpose(turned)?;
    let turned = g.exp(turned)?;
    g.output("sum", sum)?;
    g.output("turned", turned)?;
    let mut plan = g.compile(&executor, &[])?;
    assert_eq!(plan.launches(), 2);
    plan.run()?;
    let before = ALLOCATIONS.with(Cell::get);
    for _ in 0..10 {
        plan.run()?;
        plan.submit()?.wait()?;
    }
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
    assert_eq!(plan.read::<f32>("sum")?, vec![2.0; n]);
    Ok(())
}
