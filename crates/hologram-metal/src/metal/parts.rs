//! The length of command buffers. macOS ends one that keeps the display waiting for long (`ImpactingInteractivity`),
//! so each is short, by an estimate for the slowest GPU that is supported.

/// The variable that sets the milliseconds of a command buffer.
pub(super) const VARIABLE: &str = "HOLOGRAM_COMMAND_MS";
const DEFAULT_MS: f64 = 100.0;

/// Operations per second of a base M1 in matrix products: half of its peak of 2.6 TFLOPS.
const FLOPS: f64 = 1.3e12;
/// Bytes per second of its memory, of 68 GB/s.
const BYTES: f64 = 60e9;

/// The most seconds of a base M1 per command buffer.
pub(super) fn command_seconds() -> f64 {
    let set = std::env::var(VARIABLE).ok().and_then(|ms| ms.trim().parse::<f64>().ok());
    set.filter(|ms| *ms >= 0.0).unwrap_or(DEFAULT_MS) / 1e3
}

/// The seconds that a base M1 takes for this work, at the most.
pub(super) fn seconds(flops: u64, bytes: u64) -> f64 {
    (flops as f64 / FLOPS).max(bytes as f64 / BYTES)
}
