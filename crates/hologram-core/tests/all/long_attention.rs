//! Attention over caches as long as those that are measured, on an NVIDIA GPU and on the CPU.

use hologram_core::{DType, Dim, Executor, Graph, Result, Tensor};

const HEADS: [usize; 2] = [32, 8];
const D: usize = 128;
const BLOCK: usize = 32;

/// The bytes of a cache: floats around zero, or codes and scales.
fn cache(format: DType, rows: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9u32;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x
    };
    let mut bytes = vec![0; format.bytes(rows, D).unwrap()];
    let views = format.views(rows, D);
    for (view, is_codes) in views.iter().zip([true, false]) {
        let of_view = &mut bytes[view.offset..view.offset + view.bytes];
        match (format, is_codes) {
            (DType::Q8Planes | DType::Q4Planes, true) => of_view.iter_mut().for_each(|b| *b = (next() >> 9) as u8),
            // Magnitudes of 2^-7 to 1.9, as E4M3 and as f16; scales of 2^-9 to 2^-7.
            (DType::F8, _) => of_view.iter_mut().for_each(|b| *b = (next() >> 9) as u8 & 0xbf),
            (_, true) => of_view.chunks_exact_mut(2).for_each(|b| {
                let v = next();
                b.copy_from_slice(&[(v >> 8) as u8, (v >> 16) as u8 & 0x83 | (0x20 + (v >> 24) as u8 % 7 * 4)]);
            }),
            (_, false) => of_view.chunks_exact_mut(2).for_each(|b| {
                let v = next();
                b.copy_from_slice(&[(v >> 8) as u8, 0x18 + (v >> 24) as u8 % 8]);
            }),
        }
    }
    bytes
}

/// One token of each of `sequences` of `len` positions.
fn attended(device: &str, format: DType, sequences: usize, len: usize) -> Result<Vec<f32>> {
    let executor = Executor::open(device, None)?;
    let (blocks, per) = (sequences * len / BLOCK, len / BLOCK);
    let shape = [blocks, HEADS[1], BLOCK, D];
    let rows = blocks * HEADS[1] * BLOCK;
    let bytes = cache(format, rows);
    let mut g = Graph::new();
    let words = |g: &mut Graph, shape: &[usize], values: Vec<u32>| -> Result<_> {
        g.constant(&Tensor::from_slice(&executor, shape, &values)?)
    };
    let q = g.input("q", DType::F32, &[sequences, HEADS[0], D].map(Dim::Fixed))?;
    let [k, v] = [0, 1].map(|_| Tensor::from_bytes(&executor, format, &shape, &bytes).and_then(|t| g.constant(&t)));
    let positions = words(&mut g, &[sequences], vec![len as u32 - 1; sequences])?;
    let of = words(&mut g, &[sequences], (0..sequences as u32).collect())?;
    // Blocks backwards.
    let table = words(&mut g, &[sequences, per], (0..blocks as u32).rev().collect())?;
    let out = g.attention(q, k?, v?, positions, of, table, 1.0 / (D as f32).sqrt())?;
    g.output("out", out)?;
    let mut plan = g.compile(&executor, &[])?;
    let queries = |i: usize| ((i * 7919 + i / 31) % 2003) as f32 / 1001.0 - 1.0;
    plan.write("q", &(0..sequences * HEADS[0] * D).map(queries).collect::<Vec<f32>>())?;
    plan.run()?;
    plan.read("out")
}

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn long_caches_are_attended_as_on_the_cpu() {
    let mut wrong = Vec::new();
    for format in [DType::F16, DType::F8, DType::Q8Planes, DType::Q4Planes] {
        for (sequences, len) in [(1, 32768), (8, 4096)] {
            let [gpu, cpu] = ["cuda", "cpu"].map(|device| attended(device, format, sequences, len).unwrap());
            let greatest = cpu.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            let off = gpu.iter().zip(&cpu).map(|(a, b)| (a - b).abs());
            let off = off.fold(0.0f32, |most, v| if v.is_nan() { f32::INFINITY } else { most.max(v) });
            println!("{format}, {sequences} of {len}: {off:.1e} of {greatest:.1e}");
            if greatest == 0.0 || off > 1e-5 * greatest {
                wrong.push(format!("{format}, {sequences} of {len}: {off} of {greatest}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
