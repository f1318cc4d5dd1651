//! The static memory plan: assigns lifetimes to offsets in one arena.

/// A value that needs memory from step `first` to step `last`, both included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    pub bytes: usize,
    pub first: usize,
    pub last: usize,
}

/// Alignment of every value, in bytes.
const ALIGN: usize = 64;

/// Assigns offsets such that values alive at the same step do not overlap. Returns the offsets and the arena's size.
/// Greedy by size: the largest values are placed first, each at the lowest offset that is free for its whole life.
pub(crate) fn assign(values: &[Lifetime]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(values[*i].bytes), values[*i].first));
    let mut offsets = vec![0; values.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(values.len());
    let mut size = 0;
    for i in order {
        let v = values[i];
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|j| values[**j].first <= v.last && v.first <= values[**j].last)
            .map(|j| (offsets[*j], offsets[*j] + values[*j].bytes))
            .collect();
        taken.sort_unstable();
        let mut at = 0;
        for (start, end) in taken {
            if at + v.bytes <= start {
                break;
            }
            at = at.max(end.next_multiple_of(ALIGN));
        }
        offsets[i] = at;
        size = size.max(at + v.bytes);
        placed.push(i);
    }
    (offsets, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_alive_together_do_not_overlap_and_space_is_reused() {
        let mut seed = 1u64;
        let mut draw = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for _ in 0..200 {
            let values: Vec<Lifetime> = (0..40)
                .map(|_| {
                    let first = draw(30) as usize;
                    Lifetime { bytes: draw(1000) as usize + 1, first, last: first + draw(5) as usize }
                })
                .collect();
            let (offsets, size) = assign(&values);
            for i in 0..values.len() {
                assert!(offsets[i] + values[i].bytes <= size && offsets[i].is_multiple_of(ALIGN));
                for j in 0..i {
                    let (a, b) = (values[i], values[j]);
                    let alive = a.first <= b.last && b.first <= a.last;
                    let overlap = offsets[i] < offsets[j] + b.bytes && offsets[j] < offsets[i] + a.bytes;
                    assert!(!(alive && overlap), "{a:?} and {b:?}");
                }
            }
        }
        let chain: Vec<Lifetime> = (0..10).map(|i| Lifetime { bytes: 64, first: i, last: i + 1 }).collect();
        assert_eq!(assign(&chain).1, 128, "a chain needs two values at a time");
    }
}
