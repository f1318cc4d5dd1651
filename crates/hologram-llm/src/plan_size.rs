//! How many tokens a plan has.

/// The size of the plan for so many tokens or outputs: the next power of two, or five or six eighths of it if it is at
/// least 512.
///
/// Kernels divide the work for the size of their plan, and with many tokens too large a plan costs time: an 8B on an
/// H200 reads a prompt of 600 tokens a quarter faster with a plan of 640 than of 1,024. Seven eighths are slower than
/// the whole.
pub(crate) fn plan_size(n: usize) -> usize {
    let power = n.max(1).checked_next_power_of_two().unwrap_or(usize::MAX);
    let eighths = [5, 6].map(|eighths| power / 8 * eighths);
    eighths.into_iter().find(|size| power >= 512 && n <= *size).unwrap_or(power)
}

/// The largest size of a plan that has at most `n` tokens; 1 for none.
pub(crate) fn plan_within(n: usize) -> usize {
    let power = n.max(1).checked_next_power_of_two().unwrap_or(usize::MAX);
    let sizes = [8, 6, 5, 4].map(|eighths| plan_size(power.saturating_mul(eighths) / 8));
    sizes.into_iter().find(|size| *size <= n).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::{plan_size, plan_within};

    #[test]
    fn plans_have_few_sizes_and_room_for_their_tokens() {
        let small = [(0, 1), (5, 8), (256, 256), (257, 320), (320, 320), (321, 384), (385, 512)];
        let large = [(600, 640), (641, 768), (769, 1024), (1100, 1280), (2048, 2048), (usize::MAX, usize::MAX)];
        for (n, size) in small.into_iter().chain(large) {
            assert_eq!(plan_size(n), size, "{n} tokens");
        }
        let within = [(0, 1), (1, 1), (3, 2), (255, 128), (287, 256), (320, 320), (383, 320), (500, 384), (1100, 1024)];
        for (n, size) in within {
            assert_eq!(plan_within(n), size, "{n} tokens");
        }
    }
}
