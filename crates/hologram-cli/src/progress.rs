//! A progress bar on the terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::status::status;

/// Shorter tasks show no bar.
const PATIENCE: Duration = Duration::from_millis(300);
/// Minimum time between updates.
const PERIOD: Duration = Duration::from_millis(50);
/// Characters of the bar.
const WIDTH: u64 = 30;

/// A progress bar on stderr if that is a terminal; it disappears when dropped.
pub struct Progress {
    what: &'static str,
    unit: &'static str,
    next: Option<Instant>,
    drawn: bool,
}

impl Progress {
    /// A bar for a task, counted in a unit.
    pub fn new(what: &'static str, unit: &'static str) -> Progress {
        let next = std::io::stderr().is_terminal().then(|| Instant::now() + PATIENCE);
        Progress { what, unit, next, drawn: false }
    }

    /// Shows that `done` of `of` units are done.
    pub fn at(&mut self, done: u64, of: u64) {
        let now = Instant::now();
        if self.next.is_some_and(|next| now >= next) {
            self.next = Some(now + PERIOD);
            self.drawn = true;
            let full = done.saturating_mul(WIDTH) / of.max(1);
            let bar: String = (0..WIDTH).map(|i| if i < full { '█' } else { '░' }).collect();
            status!("\r{} {bar} {done} of {of} {}\x1b[K", self.what, self.unit);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn {
            status!("\r\x1b[K");
        }
    }
}
