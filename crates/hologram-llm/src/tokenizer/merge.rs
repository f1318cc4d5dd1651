//! The merging that byte-level BPE and SentencePiece BPE share: join the best pair of neighbours until no pair may be joined.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A stretch of the text; the list is linked by index, and a symbol that was joined to its left neighbour has length zero.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    end: usize,
    prev: usize,
    next: usize,
}

/// No neighbour.
const NONE: usize = usize::MAX;

/// Candidates: rank, index of the left symbol, index of the right one, end of the pair. The heap yields the lowest rank, and of
/// equal ranks the leftmost.
type Candidate = Reverse<(u32, usize, usize, usize)>;

/// The working memory of [`Merger::run`], kept from word to word.
#[derive(Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Candidate>,
}

impl Merger {
    /// Joins symbols of a text. `ends` are the ends of the first symbols, rising, the last being the end of the text.
    /// `rank(start, middle, end)` says how early two neighbours are joined, lowest first; `None` for never. `each(start, end)` is
    /// called for every symbol that remains, in order. Takes n log n steps for n symbols.
    pub fn run(
        &mut self,
        ends: impl Iterator<Item = usize>,
        mut rank: impl FnMut(usize, usize, usize) -> Option<u32>,
        mut each: impl FnMut(usize, usize),
    ) {
        let Merger { symbols, heap } = self;
        symbols.clear();
        heap.clear();
        let mut start = 0;
        for end in ends {
            let i = symbols.len();
            symbols.push(Symbol { start, end, prev: i.wrapping_sub(1), next: i + 1 });
            start = end;
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        let mut offer = |symbols: &[Symbol], heap: &mut BinaryHeap<Candidate>, left: usize, right: usize| {
            // `NONE` is out of range.
            if let (Some(a), Some(b)) = (symbols.get(left), symbols.get(right))
                && let Some(rank) = rank(a.start, a.end, b.end)
            {
                heap.push(Reverse((rank, left, right, b.end)));
            }
        };
        for i in 1..symbols.len() {
            offer(symbols, heap, i - 1, i);
        }
        while let Some(Reverse((_, left, right, end))) = heap.pop() {
            let (a, b) = (symbols[left], symbols[right]);
            // Symbols only grow to the right, so the pair is still as it was offered when it ends at the same place and both live.
            if a.start == a.end || b.start == b.end || a.end != b.start || b.end != end {
                continue;
            }
            symbols[left] = Symbol { end, next: b.next, ..a };
            symbols[right].end = b.start;
            if let Some(after) = symbols.get_mut(b.next) {
                after.prev = left;
            }
            offer(symbols, heap, a.prev, left);
            offer(symbols, heap, left, b.next);
        }
        let mut i = 0;
        while let Some(symbol) = symbols.get(i) {
            each(symbol.start, symbol.end);
            i = symbol.next;
        }
    }
}
