//! Threads of another library's OpenMP runtime as a device's workers.
//!
//! After its work an OpenMP runtime keeps its threads busy waiting for more, so that workers of our own would share
//! the processors with them. Where such a library calls us between its own work, its threads take ours as well.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::pool::Job;

/// `GOMP_parallel` of GCC's runtime, which LLVM's has on Linux, too: calls a function with its data once on each of so
/// many threads, of which the caller is one, and returns when all have ended. The last argument is 0.
type Parallel = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);

/// An OpenMP runtime in this process, and the number of its threads to use.
#[derive(Clone, Copy, Debug)]
pub struct OpenMp {
    parallel: Parallel,
    threads: usize,
}

thread_local! {
    static CURRENT: Cell<Option<OpenMp>> = const { Cell::new(None) };
}

impl OpenMp {
    /// The runtime whose function `GOMP_parallel` lies at this address; `None` if that is 0.
    ///
    /// # Safety
    /// The address is that of this function, or 0, and the runtime stays loaded.
    pub unsafe fn new(parallel: usize, threads: usize) -> Option<OpenMp> {
        if parallel == 0 {
            return None;
        }
        // SAFETY: the caller promises a function of this type.
        let parallel = unsafe { std::mem::transmute::<usize, Parallel>(parallel) };
        Some(OpenMp { parallel, threads: threads.max(1) })
    }

    /// Calls `work`. CPU devices compute what it submits from this thread on the runtime's threads, at most as many as
    /// they have workers.
    pub fn lend<R>(self, work: impl FnOnce() -> R) -> R {
        /// Sets back what was current, also after a panic.
        struct Back(Option<OpenMp>);
        impl Drop for Back {
            fn drop(&mut self) {
                CURRENT.set(self.0);
            }
        }
        let _back = Back(CURRENT.replace(Some(self)));
        work()
    }

    /// The runtime that is lent to this thread's work.
    pub(crate) fn current() -> Option<OpenMp> {
        CURRENT.get()
    }

    /// Runs `job` on the runtime's threads, at most `most`; each has a number of its own. It must not unwind.
    pub(crate) fn run(self, most: usize, job: &Job<'_>) {
        struct Call<'a> {
            job: &'a Job<'a>,
            entered: AtomicUsize,
        }
        unsafe extern "C" fn enter(call: *mut c_void) {
            // SAFETY: `run` passes a call, which it keeps until all threads have returned.
            let call = unsafe { &*call.cast::<Call<'_>>() };
            (call.job)(call.entered.fetch_add(1, Ordering::Relaxed));
        }
        let call = Call { job, entered: AtomicUsize::new(0) };
        let data = std::ptr::from_ref(&call).cast_mut().cast();
        // SAFETY: the function is the runtime's, as `new`'s caller promised; the job is Sync and its call outlives it.
        unsafe { (self.parallel)(enter, data, self.threads.min(most) as c_uint, 0) };
    }
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;
    use crate::pool::Workers;

    /// As `GOMP_parallel`, by threads that end.
    unsafe extern "C" fn parallel(f: unsafe extern "C" fn(*mut c_void), data: *mut c_void, threads: c_uint, _: c_uint) {
        let data = data as usize;
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // SAFETY: the data is meant for all threads, and lives until the scope ends.
                scope.spawn(move || unsafe { f(data as *mut c_void) });
            }
            // SAFETY: as above.
            unsafe { f(data as *mut c_void) };
        });
    }

    pub(crate) fn lent_threads_do_the_work() {
        let mut workers = Workers::new(3).unwrap();
        for (lent, expected) in [(1, 0b1), (2, 0b11), (3, 0b111), (8, 0b111)] {
            // SAFETY: the function is as it should be.
            let openmp = unsafe { OpenMp::new(parallel as *const () as usize, lent) }.unwrap();
            let (seen, calls) = (AtomicUsize::new(0), AtomicUsize::new(0));
            openmp.lend(|| {
                workers.run(&|index| {
                    seen.fetch_or(1 << index, Ordering::Relaxed);
                    calls.fetch_add(1, Ordering::Relaxed);
                });
            });
            assert_eq!(seen.into_inner(), expected, "numbers of {lent} lent threads");
            assert_eq!(calls.into_inner(), expected.count_ones() as usize);
            assert!(OpenMp::current().is_none(), "lent for longer than the work");
        }
        // SAFETY: there is no function.
        assert!(unsafe { OpenMp::new(0, 4) }.is_none());
    }
}
