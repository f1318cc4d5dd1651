//! Sums a file of little-endian `f32` that may be larger than the device's memory.
//!
//! The data go through a pool of two buffers: the host writes one while the device sums the other, and a thread reads
//! the file ahead.
//!
//! ```text
//! cargo run --release -p hologram-core --example sum_file -- FILE [--device cpu|cuda] [--cap MIB]
//! ```
//!
//! The device uses at most `--cap` MiB in all (default 8), whatever the file's size.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use hologram_core::{DType, Event, Executor, Graph, OpenOptions, Plan, bytes_of_mut};

/// One of the pool's two buffers: its offset, the plan that sums it, and the run whose result is not read yet.
struct Half {
    offset: usize,
    plan: Plan,
    running: Option<Event>,
}

/// The sum of a file's numbers: `f32` sums of each chunk, added in `f64`. The device holds two times `chunk` numbers at
/// a time.
pub fn sum_file(executor: &Executor, path: &Path, chunk: usize) -> Result<f64, Box<dyn Error>> {
    let pool = executor.pool(2 * chunk * size_of::<f32>())?;
    let half = |index: usize| {
        let offset = index * chunk * size_of::<f32>();
        let mut graph = Graph::new();
        let x = graph.constant(&pool.tensor(offset, DType::F32, &[chunk])?)?;
        let sum = graph.reduce_sum(x)?;
        graph.output("sum", sum)?;
        Ok::<_, hologram_core::CoreError>(Half { offset, plan: graph.compile(executor, &[])?, running: None })
    };
    let mut halves = [half(0)?, half(1)?];
    let mut file = File::open(path)?;
    if !file.metadata()?.len().is_multiple_of(4) {
        return Err(format!("{} is not whole numbers of 4 bytes", path.display()).into());
    }

    // Three chunks on the host: one is being copied, one is full, one is being filled.
    let (full, chunks) = sync_channel::<std::io::Result<Vec<f32>>>(1);
    let (empty, used) = sync_channel::<Vec<f32>>(3);
    for _ in 0..3 {
        empty.send(vec![0.0; chunk])?;
    }
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for mut data in used {
                // The rest of the last chunk is zeros.
                data.fill(0.0);
                match fill(&mut file, bytes_of_mut(&mut data)) {
                    Ok(0) => break,
                    Ok(_) if full.send(Ok(data)).is_ok() => {}
                    Ok(_) => break,
                    Err(error) => {
                        let _ = full.send(Err(error));
                        break;
                    }
                }
            }
        });
        let mut total = 0.0;
        for (i, data) in chunks.into_iter().enumerate() {
            let data = data?;
            let half = &mut halves[i % 2];
            // Overlaps with the other buffer's run, and follows this buffer's last run: the device keeps the order of
            // work on the same memory.
            pool.write(half.offset, &data)?;
            total += half.finish()?;
            half.running = Some(half.plan.submit()?);
            // The reader thread may have ended at the end of the file.
            let _ = empty.send(data);
        }
        for half in &mut halves {
            total += half.finish()?;
        }
        Ok(total)
    })
}

impl Half {
    /// Waits for the last run and returns its sum.
    fn finish(&mut self) -> hologram_core::Result<f64> {
        let Some(event) = self.running.take() else { return Ok(0.0) };
        event.wait()?;
        let mut sum = [0.0f32];
        self.plan.read_into("sum", &mut sum)?;
        Ok(f64::from(sum[0]))
    }
}

/// Reads until `to` is full or the file ends; returns the number of bytes read.
fn fill(file: &mut File, mut to: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while !to.is_empty() {
        let n = file.read(to)?;
        if n == 0 {
            break;
        }
        filled += n;
        to = &mut to[n..];
    }
    Ok(filled)
}

#[allow(dead_code, reason = "a test uses the rest of the file")]
fn main() -> Result<(), Box<dyn Error>> {
    let (mut path, mut device, mut cap) = (None, "auto".to_string(), 8usize);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} takes a value"));
        match arg.as_str() {
            "--device" => device = value()?,
            "--cap" => cap = value()?.parse()?,
            _ => path = Some(arg),
        }
    }
    let path = path.ok_or("usage: sum_file FILE [--device cpu|cuda] [--cap MIB]; FILE holds raw little-endian f32")?;
    let cap_bytes = cap.checked_mul(1 << 20).ok_or("the cap is too large")?;
    let executor =
        Executor::open_with(&device, &OpenOptions { memory_cap: Some(cap_bytes as u64), ..OpenOptions::default() })?;
    let start = Instant::now();
    // The pool takes half of the cap; results and the kernels' scratch memory need little.
    let sum = sum_file(&executor, Path::new(&path), (cap_bytes / 16).next_multiple_of(64))?;
    let (seconds, bytes) = (start.elapsed().as_secs_f64(), std::fs::metadata(&path)?.len() as f64);
    let peak = executor.metrics().memory.peak as f64;
    println!(
        "sum {sum} of {:.1} MB in {:.1} ms, {:.2} GB/s; the {} held at most {:.1} of {:.1} MB",
        bytes / 1e6,
        seconds * 1e3,
        bytes / seconds / 1e9,
        executor.info().backend,
        peak / 1e6,
        cap_bytes as f64 / 1e6
    );
    Ok(())
}
