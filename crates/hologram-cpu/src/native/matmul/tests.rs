//! Every weight format × activation format × instruction set against an `f64` reference of the dequantized values.
//! For integer activations the reference is the exact value of the same integer arithmetic.

use half::{bf16, f16};
use hologram_device::{DType, Extent, KernelSpec, Operation, TensorSpec};

use super::find;
use crate::testing::{Memory, feature_sets, launch};

/// A small generator of repeatable numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn unit(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 30) as f32 - 1.0
    }

    /// A scale: of either sign, sometimes zero.
    fn scale(&mut self) -> f32 {
        if self.next().is_multiple_of(16) { 0.0 } else { self.unit() * 0.05 }
    }

    /// A byte, often an extreme code.
    fn byte(&mut self) -> u8 {
        match self.next() % 8 {
            0 => 0x80,
            1 => 0x7f,
            2 => 0xff,
            _ => self.next() as u8,
        }
    }
}

/// Random values of a format as packed bytes (all views), and dequantized one by one from the format's description.
fn tensor(random: &mut Random, format: DType, rows: usize, k: usize) -> (Vec<u8>, Vec<f64>) {
    let mut values = Vec::new();
    let mut bytes = Vec::new();
    if let DType::I8Groups { group } = format {
        let codes: Vec<u8> = (0..rows * k).map(|_| random.byte()).collect();
        let scales: Vec<f32> = (0..rows * k / group as usize).map(|_| random.scale()).collect();
        values
            .extend(codes.iter().enumerate().map(|(i, c)| f64::from(*c as i8) * f64::from(scales[i / group as usize])));
        bytes.extend(&codes);
        bytes.resize(codes.len().next_multiple_of(64), 0);
        bytes.extend(scales.iter().flat_map(|s| s.to_le_bytes()));
        return (bytes, values);
    }
    for _ in 0..rows * k / format.block_len() {
        let (d, x) = (f16::from_f32(random.scale()), random.unit());
        let scale = d.to_f64();
        match format {
            DType::F32 => {
                bytes.extend(x.to_le_bytes());
                values.push(f64::from(x));
            }
            DType::F16 => {
                bytes.extend(f16::from_f32(x).to_le_bytes());
                values.push(f16::from_f32(x).to_f64());
            }
            DType::BF16 => {
                bytes.extend(bf16::from_f32(x).to_le_bytes());
                values.push(bf16::from_f32(x).to_f64());
            }
            DType::Q8_0 => {
                let codes: [u8; 32] = std::array::from_fn(|_| random.byte());
                bytes.extend(d.to_le_bytes().iter().chain(&codes));
                values.extend(codes.map(|c| f64::from(c as i8) * scale));
            }
            DType::Q4_0 => {
                let codes: [u8; 16] = std::array::from_fn(|_| random.byte());
                bytes.extend(d.to_le_bytes().iter().chain(&codes));
                values.extend((0..32).map(|i| (f64::from(codes[i % 16] >> (4 * (i / 16)) & 15) - 8.0) * scale));
            }
            DType::TQ2_0 => {
                let codes: [u8; 64] = std::array::from_fn(|_| random.byte());
                bytes.extend(codes.iter().chain(&d.to_le_bytes()));
                let code = |i: usize| codes[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3;
                values.extend((0..256).map(|i| (f64::from(code(i)) - 1.0) * scale));
            }
            _ => {
                let mut block: Vec<u8> = (0..format.block_bytes()).map(|_| random.byte()).collect();
                for number in 0..format.numbers_at().len().max(1) {
                    format.set_number(&mut block, number, random.scale());
                }
                let mut decoded = vec![0.0; format.block_len()];
                format.decode_row(&block, &mut decoded).expect("a whole block");
                bytes.extend(block);
                values.extend(decoded.into_iter().map(f64::from));
            }
        }
    }
    (bytes, values)
}

/// Buffers for the views of a tensor.
fn memory(format: DType, bytes: &[u8], rows: usize, k: usize) -> Vec<Memory> {
    format.views(rows, k).iter().map(|v| Memory::of(&bytes[v.offset..v.offset + v.bytes])).collect()
}

fn check(x_format: impl Fn(usize) -> DType, w_format: DType, shapes: (&[usize], &[usize], &[usize])) {
    let mut random = Random(w_format.block_bytes() as u64);
    let (ns, ms, ks) = shapes;
    for &k in ks.iter().filter(|k| k.is_multiple_of(w_format.block_len())) {
        let x_format = x_format(k);
        for &m in ms {
            let (w_bytes, mut w) = tensor(&mut random, w_format, m, k);
            let rounds = x_format == DType::BF16 && w_format.is_quantized_weight();
            if rounds {
                w.iter_mut().for_each(|w| *w = bf16::from_f32(*w as f32).to_f64());
            }
            for &n in ns {
                // Odd counts are fixed; even ones vary and are below the maximum.
                let max = if n % 2 == 1 { n } else { n + 2 };
                let rows = if max == n { Extent::Fixed(n) } else { Extent::step(1, max) };
                let spec = KernelSpec {
                    op: Operation::Matmul,
                    inputs: vec![
                        TensorSpec { format: x_format, shape: vec![rows, Extent::Fixed(k)] },
                        TensorSpec { format: w_format, shape: vec![Extent::Fixed(m), Extent::Fixed(k)] },
                    ],
                    output: TensorSpec { format: DType::F32, shape: vec![rows, Extent::Fixed(m)] },
                    in_place: None,
                };
                let (x_bytes, x) = tensor(&mut random, x_format, max, k);
                let mut expected = Vec::with_capacity(n * m);
                for t in 0..n {
                    for row in 0..m {
                        // scale·code and minimum are summed separately, so the rounded numbers are as large as the
                        // largest of a block.
                        let w = &w[row * k..][..k];
                        let block = if w_format.has_minimum() { w_format.block_len() } else { 1 };
                        let products = x[t * k..][..k].chunks(block).zip(w.chunks(block)).map(|(x, w)| {
                            let greatest = w.iter().fold(0f64, |a, w| a.max(w.abs()));
                            let sum: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                            (sum, x.iter().map(|x| x.abs() * greatest).sum::<f64>())
                        });
                        expected.push(products.fold((0.0, 0.0), |(sum, size), p| (sum + p.0, size + p.1)));
                    }
                }
                // Without tiles no kernel rounds weights.
                for features in feature_sets().into_iter().filter(|f| f.amx || !rounds) {
                    let kernel =
                        find(&spec, features).unwrap_or_else(|| panic!("{spec:?} is not served with {features:?}"));
                    let mut buffers = memory(x_format, &x_bytes, max, k);
                    buffers.extend(memory(w_format, &w_bytes, m, k));
                    buffers.push(Memory::filled(max * m * 4, 0xff));
                    if max != n {
                        buffers.push(Memory::of(&[77u32, n as u32]));
                    }
                    launch(&*kernel, &mut buffers, 1 + n % 3).expect("the kernel runs");
                    let y: &[f32] = buffers[x_format.views(max, k).len() + w_format.views(m, k).len()].elements();
                    for (i, (y, (sum, size))) in y.iter().zip(&expected).enumerate() {
                        let bound = 2.0 * (k as f64).sqrt() * f64::from(f32::EPSILON) * size + 1e-37;
                        let what = || format!("{x_format:?} {w_format:?} n {n} m {m} k {k} {features:?} at {i}");
                        assert!((f64::from(*y) - sum).abs() <= bound, "{}: {y} is not {sum} ± {bound:e}", what());
                    }
                    let beyond = y[n * m..].iter().all(|y| y.to_bits() == u32::MAX);
                    assert!(beyond, "rows beyond the run's {n} were written");
                }
            }
        }
    }
}

const NS: &[usize] = &[1, 2, 3, 5, 8, 12, 17, 64];
const MS: &[usize] = &[1, 3, 17, 100];
const KS: &[usize] = &[32, 64, 256, 576, 768, 2048];

pub(crate) fn groups_of_32() {
    for w in [DType::Q8_0, DType::Q4_0, DType::TQ2_0] {
        check(|_| DType::I8Groups { group: 32 }, w, (NS, MS, KS));
    }
}

pub(crate) fn groups_of_32_with_other_blocks() {
    for w in [DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::IQ4_NL, DType::IQ4_XS, DType::MXFP4] {
        check(|_| DType::I8Groups { group: 32 }, w, (&[1, 2, 3, 5, 17], MS, KS));
    }
    check(|k| DType::I8Groups { group: k as u32 }, DType::IQ4_XS, (&[1, 6], &[5, 33], &[256, 768]));
}

pub(crate) fn floats_of_4_bits_and_grids() {
    for w in [DType::MXFP4, DType::NVFP4].into_iter().chain(DType::GRIDS) {
        check(|_| DType::I8Groups { group: 32 }, w, (&[1, 2, 3, 5, 8, 17, 32], MS, &[64, 256, 768]));
        check(|k| DType::I8Groups { group: k as u32 }, w, (&[1, 2, 5, 8, 32], &[5, 33], &[256, 768]));
        check(|_| DType::F32, w, (&[1, 6], &[33], &[256, 768]));
    }
}

pub(crate) fn super_blocks() {
    for w in [DType::Q2_K, DType::Q3_K, DType::Q4_K, DType::Q5_K, DType::Q6_K] {
        check(|_| DType::I8Groups { group: 256 }, w, (NS, MS, KS));
        check(|_| DType::I8Groups { group: 32 }, w, (&[1, 6], &[5, 33], &[256, 768]));
    }
}

pub(crate) fn ternary_groups() {
    check(|k| DType::I8Groups { group: k as u32 }, DType::TQ2_0, (NS, MS, KS));
    check(|_| DType::I8Groups { group: 96 }, DType::TQ2_0, (&[1, 2, 7, 13], &[5, 33], &[768]));
    check(|_| DType::I8Groups { group: 64 }, DType::TQ2_0, (&[1, 2, 7, 13], &[5, 33], &[256, 768]));
}

pub(crate) fn float_activations() {
    for w in [DType::F32, DType::F16, DType::BF16] {
        check(|_| DType::F32, w, (&[0, 1, 4, 5, 30], &[1, 3, 17, 100], &[1, 33, 100, 515, 1096]));
    }
    for w in [DType::Q8_0, DType::Q4_0, DType::TQ2_0] {
        check(|_| DType::F32, w, (&[1, 2, 3, 17], &[1, 17, 40], &[32, 64, 768]));
    }
    check(|_| DType::F32, DType::F8_E4M3, (&[1, 2, 3, 17], &[1, 17, 40], &[128, 768]));
    // On tiles in parts, or rows in place.
    for w in [DType::F16, DType::BF16] {
        check(|_| DType::F32, w, (&[4, 5, 6, 7, 8, 17, 32, 40], &[1, 17, 100, 300], &[32, 64, 768, 1088]));
    }
    check(|_| DType::F32, DType::F32, (&[3, 8, 17, 32, 65, 100], &[1, 100], &[64, 768, 1088]));
    check(|_| DType::BF16, DType::BF16, (&[4, 6, 7, 9, 24, 32], &[1, 17, 100, 300], &[32, 64, 1088, 2112]));
    check(|_| DType::BF16, DType::BF16, (NS, MS, &[1, 33, 100, 768, 2048, 2090]));
    check(|_| DType::BF16, DType::Q4_K, (&[33], &[300], &[1280]));
    // Several pieces of whole rows and of chunks.
    for w in [DType::BF16, DType::Q8_0] {
        check(|_| DType::BF16, w, (&[33, 64], &[1100], &[704, 1600]));
    }
    for w in DType::BLOCKS.into_iter().filter(|w| super::has_tiles(*w) && !w.is_ternary()) {
        check(|_| DType::BF16, w, (&[8, 17, 64], &[1, 17, 100], &[64, 768]));
    }
}

/// Sums of `f32` that parts of infinities and of the greatest numbers would spoil.
pub(crate) fn infinities_are_as_in_f32() {
    let (n, m, k) = (70, 40, 800);
    let fixed = |shape: [usize; 2]| TensorSpec { format: DType::F32, shape: shape.map(Extent::Fixed).to_vec() };
    let spec = KernelSpec {
        op: Operation::Matmul,
        inputs: vec![fixed([n, k]), fixed([m, k])],
        output: fixed([n, m]),
        in_place: None,
    };
    let (mut x, mut w) = (vec![1.0f32; n * k], vec![0.5f32; m * k]);
    (x[3 * k + 7], x[69 * k], x[20 * k + 1]) = (f32::INFINITY, f32::NEG_INFINITY, f32::NAN);
    (w[5 * k], w[39 * k + 159], x[6 * k + 159]) = (f32::NEG_INFINITY, f32::MAX, 0.25);
    for features in feature_sets() {
        let mut buffers = vec![Memory::of(&x), Memory::of(&w), Memory::filled(n * m * 4, 0xff)];
        launch(&*find(&spec, features).expect("served"), &mut buffers, 2).expect("runs");
        for (i, y) in buffers[2].elements::<f32>().iter().enumerate() {
            let products = x[i / m * k..][..k].iter().zip(&w[i % m * k..][..k]);
            let want = products.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>() as f32;
            let same = if want.is_nan() { y.is_nan() } else { *y == want };
            assert!(same, "{features:?}: token {} row {}: {y} is not {want}", i / m, i % m);
        }
    }
}

/// Experts of several, one and no slots, in several pieces.
pub(crate) fn experts_multiply_their_slots() {
    let (experts, m, k, slots, n) = (4, 150, 256, 2, 6);
    let ids: Vec<u32> = vec![0, 1, 0, 3, 0, 3, 0, 3, 3, 0, 3, 3];
    let fixed = |format, shape: [usize; 2]| TensorSpec { format, shape: shape.map(Extent::Fixed).to_vec() };
    let mut random = Random(5);
    for w_format in [DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::MXFP4, DType::NVFP4].into_iter().chain(DType::GRIDS)
    {
        let x_format = DType::I8Groups { group: w_format.block_len().max(32) as u32 };
        let (w_bytes, w) = tensor(&mut random, w_format, experts * m, k);
        for (width, features) in
            [k, k * slots].into_iter().flat_map(|w| feature_sets().into_iter().map(move |f| (w, f)))
        {
            let (x_bytes, x) = tensor(&mut random, x_format, n, width);
            let spec = KernelSpec {
                op: Operation::ExpertMatmul { experts: experts as u32 },
                inputs: vec![
                    fixed(x_format, [n, width]),
                    fixed(w_format, [experts * m, k]),
                    fixed(DType::U32, [n, slots]),
                ],
                output: fixed(DType::F32, [n, m * slots]),
                in_place: None,
            };
            let Some(kernel) = super::experts::find(&spec, features) else { continue };
            let mut buffers = memory(x_format, &x_bytes, n, width);
            buffers.extend(memory(w_format, &w_bytes, experts * m, k));
            buffers.push(Memory::of(&ids));
            buffers.push(Memory::filled(n * slots * m * 4, 0xff));
            launch(&*kernel, &mut buffers, 2).expect("the kernel runs");
            let y: &[f32] = buffers.last().expect("the result").elements();
            for (slot, expert) in ids.iter().enumerate() {
                let x = &x[if width == k { slot / slots } else { slot } * k..][..k];
                for row in 0..m {
                    let w = &w[(*expert as usize * m + row) * k..][..k];
                    let sum: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                    let size: f64 = x.iter().map(|x| x.abs()).sum::<f64>() * w.iter().fold(0.0, |a, w| w.abs().max(a));
                    let (y, bound) = (f64::from(y[slot * m + row]), 4e-6 * size + 1e-37);
                    let what = || format!("{w_format:?} width {width} {features:?}, slot {slot}, row {row}");
                    assert!((y - sum).abs() <= bound, "{}: {y} is not {sum} ± {bound:e}", what());
                }
            }
        }
    }
}

/// Independent tokens have the same bits in any number and order.
pub(crate) fn independent_tokens_do_not_depend_on_others() {
    const MOST: usize = 15;
    let n = Extent::Step { slot: 0, max: MOST, independent: true };
    let (mut random, m) = (Random(3), 37);
    let codes = DType::BLOCKS.into_iter().chain(DType::GRIDS).filter(|w| super::multiplies_codes(*w));
    let floats = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_K].map(|w| (DType::F32, w));
    let as_codes = codes.flat_map(|w| [32, 256].map(|group| (DType::I8Groups { group }, w)));
    let both = floats.into_iter().chain([(DType::BF16, DType::BF16)]).chain(as_codes);
    for ((x_format, w_format), k) in both.flat_map(|formats| [32usize, 768, 1024].map(|k| (formats, k))) {
        if !k.is_multiple_of(w_format.block_len()) || !k.is_multiple_of(x_format.block_len()) {
            continue;
        }
        let tensor_of = |format, rows: Extent, len| TensorSpec { format, shape: vec![rows, Extent::Fixed(len)] };
        let spec = KernelSpec {
            op: Operation::Matmul,
            inputs: vec![tensor_of(x_format, n, k), tensor_of(w_format, Extent::Fixed(m), k)],
            output: tensor_of(DType::F32, n, m),
            in_place: None,
        };
        let (x, _) = tensor(&mut random, x_format, MOST, k);
        let (w, _) = tensor(&mut random, w_format, m, k);
        let views = x_format.views(MOST, k).len();
        for features in feature_sets() {
            let Some(kernel) = find(&spec, features) else { continue };
            let run = |tokens: &[usize]| -> Vec<Vec<u32>> {
                let mut buffers = memory(x_format, &x, MOST, k);
                for view in &mut buffers {
                    let bytes = view.elements_mut::<u8>();
                    let (all, row) = (bytes.to_vec(), bytes.len() / MOST);
                    for (to, from) in bytes.chunks_exact_mut(row).zip(tokens) {
                        to.copy_from_slice(&all[from * row..(from + 1) * row]);
                    }
                }
                buffers.extend(memory(w_format, &w, m, k));
                buffers.push(Memory::filled(MOST * m * 4, 0xff));
                buffers.push(Memory::of(&[tokens.len() as u32]));
                launch(&*kernel, &mut buffers, 1 + tokens.len() % 3).expect("the kernel runs");
                let y: &[u32] = buffers[views + w_format.views(m, k).len()].elements();
                y.chunks(m).take(tokens.len()).map(<[u32]>::to_vec).collect()
            };
            let alone: Vec<Vec<u32>> = (0..MOST).flat_map(|token| run(&[token])).collect();
            for count in [2, 3, 4, 5, 9, MOST] {
                let tokens: Vec<usize> = (0..count).map(|i| (i * 7 + count) % MOST).collect();
                for (token, row) in tokens.iter().zip(run(&tokens)) {
                    let what = || format!("{x_format:?} {w_format:?} k {k} {features:?}, token {token} of {count}");
                    assert!(row == alone[*token], "{}", what());
                }
            }
        }
    }
}

pub(crate) fn what_is_not_served() {
    let fixed = |format, shape: [usize; 2]| TensorSpec { format, shape: shape.map(Extent::Fixed).to_vec() };
    let spec = |x, w, y| KernelSpec { op: Operation::Matmul, inputs: vec![x, w], output: y, in_place: None };
    let i8_groups = |group| DType::I8Groups { group };
    let y = || fixed(DType::F32, [2, 5]);
    for (name, spec) in [
        ("k differs", spec(fixed(DType::F32, [2, 64]), fixed(DType::F32, [5, 32]), y())),
        ("group does not fit", spec(fixed(i8_groups(48), [2, 96]), fixed(DType::Q8_0, [5, 96]), y())),
        ("bf16 with f32", spec(fixed(DType::BF16, [2, 64]), fixed(DType::F32, [5, 64]), y())),
        ("i8 with f32", spec(fixed(i8_groups(32), [2, 64]), fixed(DType::F32, [5, 64]), y())),
        ("rows differ", spec(fixed(DType::F32, [3, 64]), fixed(DType::F32, [5, 64]), y())),
        ("partial block", spec(fixed(DType::F32, [2, 40]), fixed(DType::Q8_0, [5, 40]), y())),
    ] {
        assert!(find(&spec, crate::features::Features::detect()).is_none(), "{name}");
    }
}
