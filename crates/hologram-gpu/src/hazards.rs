//! Places the barriers of a list: only they order the launches of a concurrent encoder. And tells which launches may
//! start before the one before has ended.

use std::collections::BTreeMap;
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

/// The memory that the launches so far write.
#[derive(Default)]
pub struct Written {
    /// Start and end of ranges that neither meet nor touch.
    ranges: BTreeMap<u64, u64>,
}

impl Written {
    /// Adds what a launch writes.
    pub fn add(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if start >= end {
            return;
        }
        while let Some((&from, &to)) = self.ranges.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            self.ranges.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.ranges.insert(start, end);
    }

    /// Whether any of these bytes is written.
    pub fn meets(&self, range: &Range<u64>) -> bool {
        range.start < range.end && self.ranges.range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_were_written_are_found() {
        let mut written = Written::default();
        for range in [10..20, 40..50, 5..5, 20..25, 30..41, 60..61] {
            written.add(range);
        }
        let found = |range: Range<u64>| written.meets(&range);
        for (range, want) in [
            (0..10, false),
            (0..11, true),
            (24..25, true),
            (25..30, false),
            (29..31, true),
            (45..46, true),
            (50..60, false),
            (12..12, false),
            (0..100, true),
        ] {
            assert_eq!(found(range.clone()), want, "{range:?}");
        }
        assert_eq!(written.ranges, BTreeMap::from([(10, 25), (30, 50), (60, 61)]));
    }

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
