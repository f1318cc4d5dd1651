use half::f16;
use hologram_device::{AttentionPrecision, DType, Extent, KernelSpec, Operation, TensorSpec};
use hologram_isa::Type;

use super::find;
use crate::testing::{Memory, Random, feature_sets, launch};

struct Case {
    heads: usize,
    kv_heads: usize,
    d: usize,
    block_size: usize,
    f16: bool,
    window: Option<u32>,
    workers: usize,
    /// Sequence and position of each token.
    tokens: Vec<(u32, u32)>,
}

const SEQUENCES: usize = 3;

impl Case {
    fn max_blocks(&self) -> usize {
        320usize.div_ceil(self.block_size)
    }

    fn spec(&self) -> KernelSpec {
        let tensor = |format, shape: &[usize]| TensorSpec {
            format,
            shape: shape.iter().map(|n| if *n == 0 { Extent::step(1, 200) } else { Extent::Fixed(*n) }).collect(),
        };
        let cache = tensor(
            if self.f16 { DType::F16 } else { DType::F32 },
            &[SEQUENCES * self.max_blocks() + 1, self.kv_heads, self.block_size, self.d],
        );
        let q = tensor(DType::F32, &[0, self.heads, self.d]);
        let ids = tensor(DType::Plain(Type::U32), &[0]);
        let table = tensor(DType::U32, &[SEQUENCES, self.max_blocks()]);
        KernelSpec {
            op: Operation::Attention {
                scale: 0.3.into(),
                precision: AttentionPrecision::F32,
                window: self.window,
                cap: None,
                pieces: false,
            },
            inputs: vec![q.clone(), cache.clone(), cache, ids.clone(), ids, table],
            output: q,
            in_place: None,
        }
    }

    /// The arguments. Blocks are scattered; elements that no token may see are NaN.
    fn arguments(&self) -> Vec<Memory> {
        let mut random = Random(7 + self.tokens.len() as u64);
        let (max_blocks, block_len) = (self.max_blocks(), self.block_size * self.d);
        let q = random.floats(200 * self.heads * self.d);
        let blocks = SEQUENCES * max_blocks;
        // A permutation, because the stride is coprime to the number of blocks.
        let stride =
            (7usize..).find(|s| (2..=*s).all(|f| !(s.is_multiple_of(f) && blocks.is_multiple_of(f)))).unwrap_or(1);
        let table: Vec<u32> = (0..blocks).map(|i| (1 + (i * stride + 3) % blocks) as u32).collect();
        let mut caches = [0, 1].map(|_| vec![f32::NAN; (blocks + 1) * self.kv_heads * block_len]);
        for cache in &mut caches {
            for (i, block) in table.iter().enumerate() {
                let sequence = (i / max_blocks) as u32;
                let seen = self.tokens.iter().filter(|t| t.0 == sequence).map(|t| t.1 as usize + 1).max().unwrap_or(0);
                for head in 0..self.kv_heads {
                    let rows = seen.saturating_sub(i % max_blocks * self.block_size).min(self.block_size);
                    let first = (*block as usize * self.kv_heads + head) * block_len;
                    for x in &mut cache[first..first + rows * self.d] {
                        *x = f16::from_f32(2.0 * random.float()).to_f32();
                    }
                }
            }
        }
        let cache = |values: &[f32]| match self.f16 {
            true => Memory::of(&values.iter().map(|x| f16::from_f32(*x)).collect::<Vec<_>>()),
            false => Memory::of(values),
        };
        let padded = |f: fn(&(u32, u32)) -> u32| {
            let mut ids: Vec<u32> = self.tokens.iter().map(f).collect();
            ids.resize(200, u32::MAX);
            Memory::of(&ids)
        };
        vec![
            Memory::of(&q),
            cache(&caches[0]),
            cache(&caches[1]),
            padded(|t| t.1),
            padded(|t| t.0),
            Memory::of(&table),
            Memory::filled(q.len() * 4, 0xff),
            Memory::of(&[u32::MAX, self.tokens.len() as u32]),
        ]
    }

    /// The definition, in f64.
    fn reference(&self, memory: &[Memory]) -> Vec<f64> {
        let floats = |m: &Memory| -> Vec<f64> {
            match self.f16 {
                true => m.elements::<f16>().iter().map(|x| x.to_f64()).collect(),
                false => m.elements::<f32>().iter().map(|x| f64::from(*x)).collect(),
            }
        };
        let (q, k, v, table) =
            (memory[0].elements::<f32>(), floats(&memory[1]), floats(&memory[2]), memory[5].elements::<u32>());
        let mut out = Vec::new();
        for (t, (sequence, position)) in self.tokens.iter().enumerate() {
            for head in 0..self.heads {
                let kv_head = head / (self.heads / self.kv_heads);
                let row = |p: usize| {
                    let block = table[*sequence as usize * self.max_blocks() + p / self.block_size] as usize;
                    let row = (block * self.kv_heads + kv_head) * self.block_size + p % self.block_size;
                    row * self.d..(row + 1) * self.d
                };
                let q = &q[(t * self.heads + head) * self.d..][..self.d];
                let score =
                    |p| q.iter().zip(&k[row(p)]).map(|(q, k)| f64::from(*q) * k).sum::<f64>() * f64::from(0.3f32);
                let first = self.window.map_or(0, |n| (position + 1).saturating_sub(n)) as usize;
                let scores: Vec<f64> = (first..=*position as usize).map(score).collect();
                let peak = scores.iter().copied().fold(f64::MIN, f64::max);
                let total: f64 = scores.iter().map(|s| (s - peak).exp()).sum();
                let mut sums = vec![0.0; self.d];
                for (p, score) in scores.iter().enumerate() {
                    for (sum, v) in sums.iter_mut().zip(&v[row(first + p)]) {
                        *sum += (score - peak).exp() / total * v;
                    }
                }
                out.extend(sums);
            }
        }
        out
    }
}

fn run(from: u32, count: u32, sequence: u32) -> Vec<(u32, u32)> {
    (from..from + count).map(|p| (sequence, p)).collect()
}

pub(crate) fn agrees_with_the_definition() {
    let batches = [
        vec![],
        run(0, 1, 0),
        run(299, 1, 2),
        run(130, 3, 1),
        run(0, 65, 0),
        run(100, 65, 1),
        // A part of a prompt, a decoded token and a short prompt together.
        [run(17, 40, 2), run(250, 1, 0), run(0, 5, 1)].concat(),
        // Unordered positions, a sequence that returns.
        vec![(0, 5), (0, 300), (0, 31), (1, 32), (2, 0), (0, 6), (1, 7)],
    ];
    let shapes = [
        (8, 1, 64, 32),
        (1, 1, 32, 16),
        (6, 2, 80, 16),
        (4, 4, 128, 32),
        (6, 3, 16, 48),
        (50, 1, 32, 32),
        (8, 4, 64, 160),
    ];
    for (i, tokens) in batches.iter().enumerate() {
        for (j, (heads, kv_heads, d, block_size)) in shapes.into_iter().enumerate() {
            let (f16, workers) = ((i + j) % 2 == 1, 1 + (i + j) % 3);
            let window = [None, Some(1), Some(40), None, Some(150)][(i + 2 * j) % 5];
            let case = Case { heads, kv_heads, d, block_size, f16, window, workers, tokens: tokens.clone() };
            let want = case.reference(&case.arguments());
            for features in feature_sets() {
                let mut memory = case.arguments();
                let kernel = find(&case.spec(), features).expect("served");
                launch(&*kernel, &mut memory, case.workers).expect("valid");
                let (got, rest) = memory[6].elements::<f32>().split_at(want.len());
                for (got, want) in got.chunks(d).zip(want.chunks(d)) {
                    let norm = want.iter().map(|x| x * x).sum::<f64>().sqrt();
                    let off = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum::<f64>().sqrt();
                    assert!(off <= 1e-5 * norm, "{features:?} batch {i} shape {j}: off by {off} of {norm}");
                }
                assert!(rest.iter().all(|x| x.to_bits() == u32::MAX), "wrote behind the run's tokens");
            }
        }
    }
}

/// Independent tokens have the same bits alone and beside others.
pub(crate) fn independent_tokens_do_not_depend_on_others() {
    let tokens = vec![(0, 5), (2, 319), (0, 6), (1, 130), (1, 131), (2, 17), (0, 310), (0, 0)];
    for (heads, kv_heads, d, f16, window) in
        [(8, 1, 64, true, None), (6, 2, 80, false, Some(150)), (4, 4, 32, true, Some(40)), (50, 1, 32, false, None)]
    {
        let of = |tokens| Case { heads, kv_heads, d, block_size: 32, f16, window, workers: 3, tokens };
        let case = of(tokens.clone());
        let mut spec = case.spec();
        for tensor in spec.inputs.iter_mut().chain([&mut spec.output]) {
            for extent in tensor.shape.iter_mut().filter(|n| matches!(n, Extent::Step { .. })) {
                *extent = Extent::Step { slot: 1, max: 16, independent: true };
            }
        }
        for features in feature_sets() {
            let kernel = find(&spec, features).expect("served");
            let mut memory = case.arguments();
            launch(&*kernel, &mut memory, case.workers).expect("valid");
            let len = heads * d;
            let all: Vec<Vec<u32>> = memory[6].elements::<u32>().chunks(len).map(<[u32]>::to_vec).collect();
            for (t, (sequence, position)) in tokens.iter().enumerate() {
                let mut memory = case.arguments();
                memory[0].elements_mut::<f32>().copy_within(t * len..(t + 1) * len, 0);
                memory[3].elements_mut::<u32>()[0] = *position;
                memory[4].elements_mut::<u32>()[0] = *sequence;
                memory[7].elements_mut::<u32>()[1] = 1;
                launch(&*kernel, &mut memory, 1).expect("valid");
                assert!(memory[6].elements::<u32>()[..len] == all[t], "{features:?}, {heads} heads, token {t}");
            }
        }
    }
}

pub(crate) fn names_what_lies_outside() {
    let good = Case {
        heads: 4,
        kv_heads: 2,
        d: 32,
        block_size: 32,
        f16: false,
        window: None,
        workers: 2,
        tokens: run(60, 9, 1),
    };
    // The argument, the element and its wrong value; the error.
    let table = good.max_blocks();
    let faults = [
        (3, 4, 320, "token 4: position 320 is outside a block table of 10 blocks of 32 positions"),
        (3, 4, u32::MAX, "token 4: position 4294967295 is outside"),
        (4, 8, 3, "token 8: sequence 3 is outside a block table of 3 sequences"),
        (5, table + 1, 31, "sequence 1: entry 1 of the block table names block 31, outside a cache of 31 blocks"),
    ];
    for features in feature_sets() {
        for (argument, element, value, error) in faults {
            let mut memory = good.arguments();
            memory[argument].elements_mut::<u32>()[element] = value;
            let kernel = find(&good.spec(), features).expect("served");
            let got = launch(&*kernel, &mut memory, good.workers).expect_err(error);
            assert!(got.contains(error), "{got}");
        }
    }
}

pub(crate) fn leaves_other_layouts_to_the_program() {
    let case =
        Case { heads: 4, kv_heads: 2, d: 40, block_size: 32, f16: false, window: None, workers: 1, tokens: vec![] };
    assert!(find(&case.spec(), feature_sets()[0]).is_none());
}
