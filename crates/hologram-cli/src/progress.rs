//! A bar on the terminal for what takes a while.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::status::status;

/// What takes less shows nothing.
const PATIENCE: Duration = Duration::from_millis(300);
/// Time between two states of the bar.
const PERIOD: Duration = Duration::from_millis(50);
/// Characters of the bar.
const WIDTH: u64 = 30;

/// A bar on standard error, where that is a terminal; it disappears when dropped.
pub struct Progress {
    what: &'static str,
    unit: &'static str,
    next: Option<Instant>,
    drawn: bool,
}

impl Progress {
    /// A bar for doing something, counted in a unit.
    pub fn new(what: &'static str, unit: &'static str) -> Progress {
        let next = std::io::stderr().is_terminal().then(|| Instant::now() + PATIENCE);
        Progress { what, unit, next, drawn: false }
    }

    /// Shows that so many of so many are done.
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
