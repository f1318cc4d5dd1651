//! The merging that byte-level BPE and SentencePiece BPE share: join the best pair of neighbours until none can be
//! joined.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A range of the text. The list is linked by index; a symbol that was joined to its left neighbour is empty.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    end: usize,
    prev: usize,
    next: usize,
}

/// No neighbour.
const NONE: usize = usize::MAX;

/// Candidates: rank, index of the left symbol, index of the right one, end of the pair. The heap yields the lowest
/// rank; of equal ranks, the leftmost.
type Candidate = Reverse<(u32, usize, usize, usize)>;

/// The buffers of [`Merger::run`], reused between words.
#[derive(Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Candidate>,
}

impl Merger {
    /// Joins the symbols of a text. `ends` are the ends of the initial symbols in rising order; the last is the end of
    /// the text. `rank(start, middle, end)` is the rank of joining two neighbours, lowest first; `None`: never.
    /// `each(start, end)` is called for every remaining symbol in order. Takes O(n log n) for n symbols.
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
            // Symbols grow only to the right, so a pair is unchanged if it ends at the same place and both symbols
            // exist.
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
