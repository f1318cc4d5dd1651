//! Measurements: the bandwidth of device memory, and the time of each kernel of a recording.

use std::sync::Arc;

use hologram_device::{Backend, KernelName, Result};

use super::backend::CudaBackend;
use super::context::CudaEvent;
use super::memory::range;
use super::record::Recording;

/// Bytes copied at a time: many times the largest cache.
const COPY: usize = 2 << 30;
/// Number of copies measured; the result is the median.
const COPIES: usize = 11;
/// Bytes of a copy that keeps the device busy, and the number of launches that the host surely makes meanwhile. At 5
/// TB/s, the fastest memory yet, the copy takes 50 microseconds; a launch with its event takes about 4.
const HOLD: usize = 128 << 20;
const STEPS_PER_HOLD: usize = 8;
/// Bytes of random data with which the source is filled.
const SEED: usize = 16 << 20;

/// Bytes read and written per second by copies within device memory.
pub(super) fn copy_bandwidth(device: &CudaBackend) -> Result<f64> {
    let bytes = COPY.min((device.info().memory_bytes / 8) as usize).next_multiple_of(SEED);
    let (from, to) = (device.allocate_buffer(bytes)?, device.allocate_buffer(bytes)?);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut seed = vec![0u8; SEED];
    for word in seed.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    device.copy_to_buffer(&from, 0, &seed)?;
    for offset in (SEED..bytes).step_by(SEED) {
        device.copy_buffer(&from, 0, &from, offset, SEED)?;
    }
    let context = device.context();
    let (start, end) = (CudaEvent::new(context, true)?, CudaEvent::new(context, true)?);
    let source = range(context, "copy_bandwidth", &from, 0, bytes, false)?;
    let target = range(context, "copy_bandwidth", &to, 0, bytes, true)?;
    let mut times = Vec::with_capacity(COPIES);
    for _ in 0..COPIES {
        device.queue().enqueue(source.usages.iter().chain(target.usages), |stream| {
            start.record(stream)?;
            // SAFETY: the ranges are two whole buffers of this size.
            let code =
                unsafe { (context.driver.cuMemcpyDtoDAsync_v2)(target.address, source.address, bytes, stream.raw) };
            context.check(code, || "measuring the copy bandwidth".into())?;
            end.record(stream)
        })?;
        device.synchronize()?;
        times.push(end.seconds_since(&start)?);
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(2.0 * bytes as f64 / times[COPIES / 2])
}

/// Runs the launches one by one; name and seconds of each.
pub(super) fn profile(device: &CudaBackend, recording: &Arc<Recording>) -> Result<Vec<(KernelName, f64)>> {
    let steps = &recording.steps;
    let events = (0..=steps.len()).map(|_| CudaEvent::new(device.context(), true)).collect::<Result<Vec<_>>>()?;
    // Copies keep the device busy until all launches are in the queue. Otherwise it would wait for the host between
    // small kernels, and the times would be the host's.
    let (from, to) = (device.allocate_buffer(HOLD)?, device.allocate_buffer(HOLD)?);
    for _ in 0..steps.len() / STEPS_PER_HOLD + 1 {
        device.copy_buffer(&from, 0, &to, 0, HOLD)?;
    }
    let mut queue = device.queue();
    let number = queue.run(recording, |stream| {
        events[0].record(stream)?;
        for (step, event) in steps.iter().zip(&events[1..]) {
            recording.launch_step(step, stream)?;
            event.record(stream)?;
        }
        Ok(())
    })?;
    drop(queue);
    device.wait_for(number)?;
    let mut times: Vec<_> = recording.names.iter().map(|name| (name.clone(), 0.0)).collect();
    for (step, pair) in steps.iter().zip(events.windows(2)) {
        times[step.launch].1 += pair[1].seconds_since(&pair[0])?;
    }
    // Fused launches have no times of their own.
    if times.len() > recording.launches {
        times.retain(|(_, seconds)| *seconds > 0.0);
    }
    Ok(times)
}
