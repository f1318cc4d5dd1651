//! The bandwidth of device memory, measured.

use hologram_device::{Backend, Result};

use super::backend::MetalBackend;

/// Bytes copied at a time: many times the largest cache.
const COPY: u64 = 1 << 30;
/// Number of copies measured; the result is the median.
const COPIES: usize = 11;
/// Bytes of random data with which the source is filled.
const SEED: usize = 16 << 20;

/// Bytes read and written per second by copies within device memory, by the device's own clock.
pub(super) fn copy_bandwidth(device: &MetalBackend) -> Result<f64> {
    let bytes = (COPY.min(device.info().memory_bytes / 8) as usize).next_multiple_of(SEED);
    let (from, to) = (device.allocate_buffer(bytes)?, device.allocate_buffer(bytes)?);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut seed = vec![0u8; SEED];
    for word in seed.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    for offset in (0..bytes).step_by(SEED) {
        device.copy_to_buffer(&from, offset, &seed)?;
    }
    let mut times = Vec::with_capacity(COPIES);
    for _ in 0..COPIES {
        times.push(device.timed_copy(&from, &to, bytes)?);
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(2.0 * bytes as f64 / times[COPIES / 2])
}
