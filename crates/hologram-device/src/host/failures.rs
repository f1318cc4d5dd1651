//! Tracks failures: the bytes that a failed launch was to write, and those to be computed from them. Every read of them
//! returns the error of that launch until something else writes them. Other memory is unaffected.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::binding::{Argument, Rule, RuleKind};
use crate::error::{BackendError, Result};
use crate::info::BackendType;
use crate::launch::Event;

/// Failed submissions whose errors can still be retrieved by their events.
const REMEMBERED: usize = 1024;

/// Memory that a launch of a list uses, as a range of the device's addresses.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// The launch, counted from the first of the list.
    pub launch: u32,
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Whether it is read.
    pub read: bool,
    /// Whether it is written.
    pub write: bool,
}

/// The memory that a launch uses: its checked arguments; `place` returns the bytes of each.
pub fn uses_of<'a, M>(
    launch: usize,
    rules: &'a [Rule],
    arguments: &'a [Argument<M>],
    place: impl Fn(&M) -> Range<u64> + 'a,
) -> impl Iterator<Item = Use> + 'a {
    rules.iter().zip(arguments).filter_map(move |(rule, argument)| match (rule.kind, argument) {
        (RuleKind::Buffer { read, write, .. }, Argument::Slice(memory)) => {
            let Range { start, end } = place(memory);
            Some(Use { launch: launch as u32, start, end, read, write })
        }
        _ => None,
    })
}

/// The result of a list: the launch that failed, if any, and why.
pub type Outcome = std::result::Result<(), (usize, BackendError)>;

/// An error with the number of its failure, which tells whether it was reported.
#[derive(Clone, Debug)]
struct Failure {
    id: u64,
    error: BackendError,
}

/// Bytes left undefined by a failure.
#[derive(Clone, Debug)]
struct Failed {
    start: u64,
    end: u64,
    why: Arc<Failure>,
}

/// The failures of a device.
#[derive(Debug, Default)]
pub struct Failures {
    /// Whether any bytes have failed: the only check of a launch as long as nothing has.
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// These do not overlap.
    failed: Vec<Failed>,
    submissions: VecDeque<(RangeInclusive<u64>, Arc<Failure>)>,
    /// The first unreported failure.
    untold: Option<Arc<Failure>>,
    count: u64,
}

impl Failures {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the failed bytes.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        self.any.store(!state.failed.is_empty(), Ordering::Release);
    }

    /// Whether any bytes have failed.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Runs submission `number` on a device that has finished when `work` returns, unless it would compute from failed
    /// bytes. `work` returns the launch that failed.
    pub fn run(&self, number: u64, uses: &[Use], work: impl FnOnce() -> Outcome) {
        if self.derive(number..=number, uses) {
            return;
        }
        match work() {
            Ok(()) => self.succeed(uses),
            Err((launch, error)) => self.fail(number..=number, uses, launch, error),
        }
    }

    /// Whether a list would compute from failed bytes; if so, its outputs fail too.
    pub fn derive(&self, numbers: RangeInclusive<u64>, uses: &[Use]) -> bool {
        if !self.any() {
            return false;
        }
        let mut derived = false;
        self.change(|state| {
            if let Some(why) = state.reason(uses) {
                derived = true;
                state.mark(uses, why.clone());
                state.note(numbers, why);
            }
        });
        derived
    }

    /// Declares the outputs of a list that has run good.
    pub fn succeed(&self, uses: &[Use]) {
        if self.any() {
            self.change(|state| uses.iter().filter(|u| u.write).for_each(|u| state.clear(u.start..u.end)));
        }
    }

    /// Declares that launch `first` of a list failed: its outputs and those of later launches are undefined, those of
    /// earlier launches are good.
    pub fn fail(&self, numbers: RangeInclusive<u64>, uses: &[Use], first: usize, error: BackendError) {
        self.change(|state| {
            state.count += 1;
            let why = Arc::new(Failure { id: state.count, error });
            let at = uses.partition_point(|u| (u.launch as usize) < first);
            uses[..at].iter().filter(|u| u.write).for_each(|u| state.clear(u.start..u.end));
            state.mark(&uses[at..], why.clone());
            state.note(numbers, why.clone());
            state.untold.get_or_insert(why);
        });
    }

    /// Declares bytes good, after new content was written or the buffer was freed.
    pub fn clear(&self, bytes: Range<u64>) {
        if self.any() {
            self.change(|state| state.clear(bytes));
        }
    }

    /// Copies the failures of bytes along with the bytes.
    pub fn copy(&self, from: u64, to: u64, bytes: u64) {
        if self.any() {
            self.change(|state| {
                let of_source = |f: &Failed| {
                    let (start, end) = (f.start.max(from), f.end.min(from + bytes));
                    (start < end).then(|| Failed { start: to + (start - from), end: to + (end - from), ..f.clone() })
                };
                let copied: Vec<Failed> = state.failed.iter().filter_map(of_source).collect();
                state.clear(to..to + bytes);
                state.failed.extend(copied);
            });
        }
    }

    /// Returns the error of bytes that are about to be read, at every call.
    pub fn check(&self, bytes: Range<u64>) -> Result<()> {
        if !self.any() {
            return Ok(());
        }
        let mut state = self.state();
        match state.of(&bytes) {
            Some(why) => Err(state.tell(&why)),
            None => Ok(()),
        }
    }

    /// Returns the error of a submission, at every call, as long as it is remembered.
    ///
    /// # Errors
    /// That error; [`BackendError::InvalidArgument`] for an event beyond the last submission.
    pub fn wait(&self, device: BackendType, event: Event, submitted: u64) -> Result<()> {
        if event.0 > submitted {
            return Err(BackendError::InvalidArgument {
                device: device.to_string(),
                operation: "wait".into(),
                reason: format!("event {} was never submitted to this device", event.0),
            });
        }
        let mut state = self.state();
        let found =
            state.submissions.iter().find(|(numbers, _)| numbers.contains(&event.0)).map(|(_, why)| why.clone());
        match found {
            Some(why) => Err(state.tell(&why)),
            None => Ok(()),
        }
    }

    /// Returns the first unreported error and clears it.
    pub fn synchronize(&self) -> Result<()> {
        self.state().untold.take().map_or(Ok(()), |why| Err(why.error.clone()))
    }
}

impl State {
    /// The failure of bytes.
    fn of(&self, bytes: &Range<u64>) -> Option<Arc<Failure>> {
        self.failed.iter().find(|f| f.start < bytes.end && bytes.start < f.end).map(|f| f.why.clone())
    }

    /// The failure that a list would compute from; bytes that the list writes before it reads them do not count.
    fn reason(&self, uses: &[Use]) -> Option<Arc<Failure>> {
        let mut then = State { failed: self.failed.clone(), ..State::default() };
        for launch in uses.chunk_by(|a, b| a.launch == b.launch) {
            if let Some(why) = launch.iter().filter(|u| u.read).find_map(|u| then.of(&(u.start..u.end))) {
                return Some(why);
            }
            launch.iter().filter(|u| u.write).for_each(|u| then.clear(u.start..u.end));
        }
        None
    }

    fn clear(&mut self, bytes: Range<u64>) {
        let mut rest = Vec::new();
        self.failed.retain_mut(|f| {
            if f.end <= bytes.start || bytes.end <= f.start || bytes.is_empty() {
                return true;
            }
            if bytes.end < f.end {
                rest.push(Failed { start: bytes.end, ..f.clone() });
            }
            f.end = bytes.start;
            f.start < f.end
        });
        self.failed.append(&mut rest);
    }

    fn mark(&mut self, uses: &[Use], why: Arc<Failure>) {
        for u in uses.iter().filter(|u| u.write && u.start < u.end) {
            self.clear(u.start..u.end);
            self.failed.push(Failed { start: u.start, end: u.end, why: why.clone() });
        }
    }

    fn note(&mut self, numbers: RangeInclusive<u64>, why: Arc<Failure>) {
        if self.submissions.len() == REMEMBERED {
            self.submissions.pop_front();
        }
        self.submissions.push_back((numbers, why));
    }

    fn tell(&mut self, why: &Failure) -> BackendError {
        if self.untold.as_ref().is_some_and(|untold| untold.id == why.id) {
            self.untold = None;
        }
        why.error.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(list: &[(u32, Range<u64>, &str)]) -> Vec<Use> {
        let one = |(launch, bytes, how): &(u32, Range<u64>, &str)| Use {
            launch: *launch,
            start: bytes.start,
            end: bytes.end,
            read: how.contains('r'),
            write: how.contains('w'),
        };
        list.iter().map(one).collect()
    }

    #[test]
    fn bytes_fail_with_what_they_are_computed_from_and_are_good_again_when_written() {
        let failures = Failures::default();
        let error =
            |what: &str| BackendError::Kernel { device: "cpu".into(), kernel: what.into(), reason: "fails".into() };
        let state =
            |ranges: &[Range<u64>]| ranges.iter().map(|r| failures.check(r.clone()).is_ok()).collect::<Vec<_>>();
        let run = |number, list: &[(u32, Range<u64>, &str)], fails: Option<(usize, &str)>| {
            let mut ran = false;
            failures.run(number, &uses(list), || {
                ran = true;
                fails.map_or(Ok(()), |(launch, what)| Err((launch, error(what))))
            });
            ran
        };
        // The second of three launches fails: the first one's output is good.
        let list = [(0, 0..10, "w"), (1, 0..10, "r"), (1, 10..20, "w"), (2, 20..30, "w")];
        assert!(run(1, &list, Some((1, "second"))));
        assert_eq!(state(&[0..10, 10..11, 19..21, 29..30, 30..99]), [true, false, false, false, true]);
        // Reading has reported the error; its event still returns it each time, others return none.
        assert!(failures.synchronize().is_ok());
        let wait = |n| failures.wait(BackendType::Cpu, Event(n), 9);
        assert!(wait(1).is_err() && wait(1).is_err() && wait(2).is_ok() && wait(10).is_err());
        // A list that computes from it does not run and fails with the same sentence; an independent one runs.
        assert!(!run(2, &[(0, 25..26, "r"), (0, 40..50, "w")], None));
        assert!(failures.check(49..60).unwrap_err().to_string().contains("second"));
        assert!(wait(2).is_err());
        assert!(run(3, &[(0, 0..10, "r"), (0, 50..60, "w")], None));
        // A list that writes bytes before it reads them makes them good, also in part.
        assert!(run(4, &[(0, 10..20, "w"), (1, 10..20, "rw")], None));
        assert_eq!(state(&[10..20, 20..21, 40..41]), [true, false, false]);
        // An update in place reads the old content.
        assert!(!run(5, &[(0, 15..25, "rw")], None));
        assert_eq!(state(&[10..15, 15..16, 29..30]), [true, false, false]);
        // Copies carry failures along, and replace failed bytes by good ones.
        failures.copy(24, 100, 10);
        assert_eq!(state(&[100..106, 106..110, 90..100]), [false, true, true]);
        failures.copy(200, 102, 2);
        assert_eq!(state(&[100..102, 102..104, 104..106]), [false, true, false]);
        for bytes in [15..30, 40..50, 100..106] {
            failures.clear(bytes);
        }
        assert!(!failures.any());
        // Neither was reported: `synchronize` returns the first, once.
        run(6, &[(0, 0..1, "w")], Some((0, "third")));
        run(7, &[(0, 1..2, "w")], Some((0, "fourth")));
        assert!(failures.synchronize().unwrap_err().to_string().contains("third"));
        assert!(failures.synchronize().is_ok() && wait(7).is_err());
    }
}
