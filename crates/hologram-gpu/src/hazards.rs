//! Places the barriers of a list: only they order the launches of a concurrent encoder.

use std::ops::Range;

use hologram_device::host::Use;

/// The memory that launches since the last barrier use.
#[derive(Default)]
pub struct Hazards {
    read: Vec<Range<u64>>,
    written: Vec<Range<u64>>,
}

impl Hazards {
    /// Whether a launch with these uses must come after a barrier; records the uses either way.
    pub fn needs_barrier<'a>(&mut self, uses: impl Iterator<Item = &'a Use> + Clone) -> bool {
        let meets = |ranges: &[Range<u64>], u: &Use| ranges.iter().any(|r| r.start < u.end && u.start < r.end);
        let waits = uses.clone().any(|u| meets(&self.written, u) || u.write && meets(&self.read, u));
        if waits {
            *self = Hazards::default();
        }
        for u in uses.filter(|u| u.start < u.end) {
            let to = if u.write { &mut self.written } else { &mut self.read };
            to.push(u.start..u.end);
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Touches<'a> = &'a [(Range<u64>, &'a str)];

    #[test]
    fn barriers_stand_between_a_write_and_what_touches_it_and_nowhere_else() {
        let one = |(bytes, how): &(Range<u64>, &str)| Use {
            launch: 0,
            start: bytes.start,
            end: bytes.end,
            read: how.contains('r'),
            write: how.contains('w'),
        };
        // Each launch with its uses, and whether it needs a barrier.
        let launches: [(Touches, bool); 8] = [
            (&[(0..10, "r"), (10..20, "w")], false),
            (&[(0..10, "r"), (20..30, "w")], false),
            (&[(19..20, "r"), (30..40, "w")], true),
            // Uses before the barrier no longer count.
            (&[(20..30, "r"), (40..50, "w")], false),
            // Written after it was read, and written twice.
            (&[(25..26, "w")], true),
            (&[(25..26, "w")], true),
            (&[(31..31, "w"), (30..30, "r")], false),
            (&[(0..10, "r"), (50..60, "rw")], false),
        ];
        let mut hazards = Hazards::default();
        for (i, (list, waits)) in launches.iter().enumerate() {
            let uses: Vec<Use> = list.iter().map(one).collect();
            assert_eq!(hazards.needs_barrier(uses.iter()), *waits, "launch {i}");
        }
    }
}
