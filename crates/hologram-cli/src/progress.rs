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
    /// When the task began, and how much was done then, where the rate is shown.
    since: Option<(Instant, u64)>,
    rate: bool,
}

impl Progress {
    /// A bar for a task, counted in a unit.
    pub fn new(what: &'static str, unit: &'static str) -> Progress {
        let next = std::io::stderr().is_terminal().then(|| Instant::now() + PATIENCE);
        Progress { what, unit, next, drawn: false, since: None, rate: false }
    }

    /// A bar that also shows units per second and the time left.
    pub fn with_rate(what: &'static str, unit: &'static str) -> Progress {
        Progress { rate: true, ..Progress::new(what, unit) }
    }

    /// Shows that `done` of `of` units are done.
    pub fn at(&mut self, done: u64, of: u64) {
        let now = Instant::now();
        let (start, before) = *self.since.get_or_insert((now, done));
        if self.next.is_some_and(|next| now >= next) {
            self.next = Some(now + PERIOD);
            self.drawn = true;
            let full = done.saturating_mul(WIDTH) / of.max(1);
            let bar: String = (0..WIDTH).map(|i| if i < full { '█' } else { '░' }).collect();
            let mut rate = String::new();
            let per_second = (done - before.min(done)) as f64 / (now - start).as_secs_f64();
            if self.rate && per_second > 0.0 {
                let left = of.saturating_sub(done) as f64 / per_second;
                rate = format!(", {per_second:.0} {}/s, {} left", self.unit, time(left));
            }
            // Without line wrapping: a narrow terminal shows what fits, and the next update overwrites it.
            status!("\r\x1b[?7l{} {bar} {done} of {of} {}{rate}\x1b[K\x1b[?7h", self.what, self.unit);
        }
    }
}

/// Seconds for people.
fn time(seconds: f64) -> String {
    match seconds {
        ..90.0 => format!("{seconds:.0} s"),
        ..5400.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn {
            status!("\r\x1b[K");
        }
    }
}
