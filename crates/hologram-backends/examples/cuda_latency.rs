//! Host-side costs of the CUDA device: launches, graphs, small copies, large copies.
//!
//! `cargo run --release --example cuda_latency`

use std::time::Instant;

use hologram_backends::{Backend, Binding, Launch, LaunchConfig, Result, open};
use hologram_isa::parse;

const ADD: &str = "kernel add_one(x: buffer<u32, readwrite>) workgroup(64) {
  %i = global.x
  %v = load.u32 x[%i]
  %w = add.u32 %v, 1
  store.u32 x[%i], %w
}";

/// Median seconds of `work` after ten warm-up runs; every run starts with an empty queue.
fn median(device: &dyn Backend, runs: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(runs);
    for run in 0..runs + 10 {
        device.synchronize()?;
        let start = Instant::now();
        work()?;
        let time = start.elapsed().as_secs_f64();
        if run >= 10 {
            times.push(time);
        }
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[runs / 2])
}

fn print(what: &str, seconds: f64) {
    println!("{what:<58} {:>10.2} us", seconds * 1e6);
}

fn main() -> Result<()> {
    let device = &*open("cuda", None)?;
    println!("{}", device.info().name);
    let x = device.allocate_buffer(64 * 4)?;
    let pipeline = device.compile(&parse(ADD)?)?;
    let launch = Launch { pipeline, bindings: vec![Binding::whole(&x)], config: LaunchConfig { grid: [1, 1, 1] } };
    let one = device.record(std::slice::from_ref(&launch))?;
    print("submit of one launch, host time", median(device, 1000, || device.submit(&one).map(drop))?);
    let burst = median(device, 50, || (0..100).try_for_each(|_| device.submit(&one).map(drop)))?;
    print("submit of one launch, 100 after each other, host time each", burst / 100.0);
    let wait = median(device, 1000, || device.wait(device.submit(&one)?))?;
    print("submit of one launch and wait", wait);
    for n in [10, 300] {
        let list = device.record(&vec![launch.clone(); n])?;
        print(&format!("submit of {n} launches, host time"), median(device, 300, || device.submit(&list).map(drop))?);
        let all = median(device, 300, || device.wait(device.submit(&list)?))?;
        print(&format!("submit of {n} launches and wait, each"), all / n as f64);
        let times = device.measure().profile(&list)?;
        print(&format!("profile of {n} launches, each"), times.iter().map(|t| t.1).sum::<f64>() / n as f64);
        let start = Instant::now();
        drop(device.record(&vec![launch.clone(); n])?);
        print(&format!("record of {n} launches"), start.elapsed().as_secs_f64());
    }
    let mut word = [0; 4];
    let step = device.allocate_buffer(4096)?;
    let data = vec![1; 128 << 20];
    print("write of 4 KiB, host time", median(device, 1000, || device.copy_to_buffer(&step, 0, &data[..4096]))?);
    print("read of 4 bytes from an empty queue", median(device, 1000, || device.copy_from_buffer(&x, 0, &mut word))?);
    let token = median(device, 1000, || {
        device.copy_to_buffer(&step, 0, &data[..4096])?;
        device.submit(&one)?;
        device.copy_from_buffer(&x, 0, &mut word)
    })?;
    print("write, submit and read: what a token needs", token);
    let big = device.allocate_buffer(data.len())?;
    let mut back = vec![0; data.len()];
    for bytes in [512 << 10, 8 << 20, 128 << 20] {
        let up = median(device, 10, || {
            device.copy_to_buffer(&big, 0, &data[..bytes])?;
            device.copy_buffer(&big, 0, &x, 0, 4)?;
            device.synchronize()
        })?;
        let down = median(device, 10, || device.copy_from_buffer(&big, 0, &mut back[..bytes]))?;
        let rate = |t: f64| bytes as f64 / t / 1e9;
        println!("{:>8} KiB up {:>6.1} GB/s, down {:>6.1} GB/s", bytes >> 10, rate(up), rate(down));
    }
    println!("copy bandwidth {:.1} GB/s", device.measure().copy_bandwidth()? / 1e9);
    Ok(())
}
