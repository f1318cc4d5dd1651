//! Data larger than the memory that the device may use: the example `sum_file` under a cap.

#[path = "../../examples/sum_file.rs"]
mod sum_file;

use std::path::PathBuf;

use hologram_core::{DType, Executor, OpenOptions, bytes_of};

const CAP: u64 = 8 << 20;
const CHUNK: usize = 1 << 19;

/// A file in the system's temporary folder, removed on drop.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn streams_through_a_cap(device: &str) {
    let options = OpenOptions { threads: Some(2), memory_cap: Some(CAP), ..OpenOptions::default() };
    let executor = Executor::open_with(device, &options).unwrap();
    let error = executor.pool(64 << 20).unwrap_err().to_string();
    assert!(error.contains("cannot allocate 67108864 bytes") && error.contains("the cap is 8388608"), "{error}");
    // 64 MB and a part of a chunk, less than a chunk, and nothing. Small whole numbers, so sums are exact in any order.
    for len in [(64 << 20) / 4 + 77, 1000, 0usize] {
        let file = Temporary(std::env::temp_dir().join(format!("hologram-sum-{}-{device}-{len}", std::process::id())));
        let value = |i: usize| ((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60) as f32 - 5.0;
        let numbers: Vec<f32> = (0..len).map(value).collect();
        std::fs::write(&file.0, bytes_of(&numbers)).unwrap();
        let want: f64 = numbers.iter().map(|v| f64::from(*v)).sum();
        assert_eq!(sum_file::sum_file(&executor, &file.0, CHUNK).unwrap(), want, "{len} numbers on {device}");
        let memory = executor.metrics().memory;
        assert!(memory.peak <= CAP && memory.live + memory.cached <= CAP, "{memory:?}");
        assert!(memory.peak >= 4 << 20, "both halves lie on the device: {memory:?}");
    }
    let missing = std::env::temp_dir().join("hologram-there-is-no-such-file");
    assert!(sum_file::sum_file(&executor, &missing, CHUNK).is_err());
    // Offsets in a pool.
    let pool = executor.pool(1024).unwrap();
    let x = pool.tensor(512, DType::F32, &[4, 8]).unwrap();
    pool.write(512, &[1.5f32; 32]).unwrap();
    pool.write(516, &[2.5f32]).unwrap();
    let mut back = [0.0f32; 2];
    pool.read(512, &mut back).unwrap();
    assert_eq!((back, (&x + 1.0).unwrap().to_vec::<f32>().unwrap()[1]), ([1.5, 2.5], 3.5));
    for (error, text) in [
        (pool.tensor(4, DType::F32, &[1]).err(), "begins at a multiple of 64, not at 4"),
        (pool.tensor(960, DType::F32, &[17]).err(), "do not fit at byte 960"),
        (pool.write(1020, &[0u64]).err(), "lie outside"),
    ] {
        let error = error.unwrap().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn a_file_larger_than_the_cap_is_summed() {
    streams_through_a_cap("cpu");
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn a_file_larger_than_the_cap_is_summed_on_a_gpu() {
    streams_through_a_cap("cuda");
}
