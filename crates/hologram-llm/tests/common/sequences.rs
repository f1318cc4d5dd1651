//! Decoding many sequences at once gives the same results as each alone: on any device, with random weights that depend
//! on their context as trained ones do.
//!
//! The batched steps are those of real use. A step of one sequence is computed in the precision that the device chooses
//! for the batched step it is compared with (`Session::fix_precision`), so that they differ only by the order of sums
//! and the resulting rounding.

use std::fmt::Write;

use hologram_backends::{DType, Policy};
use hologram_core::Executor;
use hologram_llm::sampling::{Sampler, SamplerConfig};
use hologram_llm::{Input, Logits, Model, Session, SessionOptions, Shape, WeightTypes};

/// Numbers of sequences: both sides of every number at which a device changes kernels, precision or plans.
pub const COUNTS: [usize; 13] = [1, 2, 3, 4, 5, 8, 9, 16, 31, 64, 128, 256, 257];

/// Per case the tokens already in the sequence and the tokens of a prompt fed at once.
const PIECES: [(usize, usize); 4] = [(0, 64), (33, 64), (5, 128), (0, 256)];

/// One model and cache.
pub struct Case {
    pub shape: Shape,
    pub types: WeightTypes,
    pub kv: DType,
}

/// How much of a case to check.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// Numbers of sequences decoded at once, in ascending order.
    pub counts: &'a [usize],
    /// Maximum tokens of a context, and of a piece of a prompt.
    pub longest: usize,
    /// The step size that determines the precision of everything; `None`: the device chooses.
    pub precision: Option<usize>,
}

/// The results of a case.
pub struct Findings {
    /// Descriptions of failures.
    pub wrong: Vec<String>,
    /// The largest difference of a logit, relative to the largest logit of its row.
    pub worst: f64,
    /// The smallest difference that another context makes, likewise.
    pub least_of_contexts: f64,
    /// The numbers of sequences whose steps used cuBLASLt, which requires fixed sizes.
    pub by_blas: Vec<usize>,
}

/// A small model: two blocks, `heads` query heads of `d` elements and `kv_heads` key/value heads.
pub fn shape(types: WeightTypes, d: usize, heads: usize, kv_heads: usize, ffn: usize) -> Shape {
    let ternary = is_ternary(types);
    Shape {
        name: if ternary { "small-bitnet" } else { "small-llama" },
        architecture: if ternary { "bitnet-b1.58" } else { "llama" },
        layers: 2,
        width: d * heads,
        ffn,
        experts: None,
        heads,
        kv_heads,
        head_dim: d,
        vocab: 512,
        rope_base: 10000.0,
        tied_embedding: ternary.then_some(DType::Q8_0),
        biases: false,
        more: |_| {},
    }
}

/// The weight types of this name.
pub fn types(name: &str) -> WeightTypes {
    WeightTypes::all().find(|types| types.name() == name).unwrap()
}

/// Only BitNet has ternary weights.
fn is_ternary(types: WeightTypes) -> bool {
    types.name().starts_with("TQ")
}

impl Case {
    pub fn name(&self) -> String {
        let Shape { width, heads, kv_heads, .. } = self.shape;
        let kv = self.kv.name();
        format!("{} d={} heads {heads}/{kv_heads} kv {kv}", self.types.name(), width / heads)
    }

    /// The maximum difference of a logit between two runs, relative to the largest logit of the row.
    ///
    /// Sums in another order differ by some 1e-6, the only difference with `f32` activations: 1e-3 leaves room for
    /// cancellation and for a cached code that is rounded the other way. Activations rounded to steps of s (relative to
    /// their deviation) are sometimes rounded to the neighbour. The difference s meets the next rounding, and in the
    /// worst case two runs differ as much as their rounding errors: nine roundings between embedding and logits, each
    /// s/√6, give 1.2·s. The largest of 512 logits is off by four times as much, while the largest logit is three times
    /// the deviation: 1.6·s. In `bf16` s is about 2⁻⁷, and attention's products may be rounded too; with 8 bits and a
    /// scale per 32 or 256 values s is up to 2.9/127. A scale per row of squares, as before BitNet's last product,
    /// follows the largest of some hundred values: s is 0.1 in two of the nine. In FP8, which GPUs take from 65 tokens
    /// on, s is up to 2⁻³ of a value, about 0.09 of the deviation. A cache of such floats has that step too, but only a
    /// few of its values, those next to the middle of two, are rounded the other way.
    fn bound(&self, policy: &Policy) -> f64 {
        let choices = [DType::F32, DType::BF16];
        let in_bf16 = || policy.activations(DType::F16, 256, usize::MAX, &choices) == Some(DType::BF16);
        let of_cache: f64 = if self.kv == DType::F8 { 1e-2 } else { 0.0 };
        let of_weights = match self.types.name().as_str() {
            "F16" if in_bf16() => 2e-2,
            "F32" | "F16" => 1e-3,
            "BF16" => 2e-2,
            _ if is_ternary(self.types) => 1e-1,
            "F8_E4M3" => 1.5e-1,
            _ => 4e-2,
        };
        of_cache.max(of_weights)
    }
}

/// The context of a sequence: a few to some hundred tokens, which end around the boundaries of cache blocks.
fn context(sequence: usize, vocab: usize, longest: usize) -> Vec<u32> {
    const LENGTHS: [usize; 16] = [5, 31, 32, 33, 2, 64, 9, 65, 17, 96, 3, 40, 1, 130, 23, 63];
    let len = if sequence % 32 == 20 { 300 } else { LENGTHS[sequence % LENGTHS.len()] };
    (0..len.min(longest)).map(|i| token(sequence, i, vocab)).collect()
}

/// A token of a sequence, by a hash.
fn token(sequence: usize, at: usize, vocab: usize) -> u32 {
    let mut h = (sequence as u32).wrapping_mul(0x9e37_79b1) ^ (at as u32 + 1).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 15)).wrapping_mul(0xc2b2_ae35);
    (h ^ (h >> 13)) % vocab as u32
}

/// The token to decode. Every second sequence has the same, so that their logits differ only by their contexts.
fn next(sequence: usize) -> u32 {
    [7, 300][sequence % 2]
}

/// The largest |got - want|, relative to the largest |want|.
fn difference(got: &[f32], want: &[f32]) -> f64 {
    let greatest = want.iter().fold(0.0, |m: f32, v| m.max(v.abs()));
    // A NaN counts as infinite.
    let off = got.iter().zip(want).map(|(g, w)| (g - w).abs());
    let off = off.fold(0.0, |m: f32, v| if v.is_nan() { f32::INFINITY } else { m.max(v) });
    f64::from(off) / f64::from(greatest)
}

/// The two highest logits, the higher one's token first.
fn best(row: &[f32]) -> (usize, f32, f32) {
    row.iter().enumerate().fold((0, f32::NEG_INFINITY, f32::NEG_INFINITY), |(at, first, second), (i, v)| {
        if *v > first { (i, *v, first) } else { (at, first, second.max(*v)) }
    })
}

/// A session with the contexts of `sequences` sequences, none for 0, whose steps have at most `batch` tokens.
fn session(case: &Case, model: &Model, sequences: usize, longest: usize, batch: Option<usize>) -> Session {
    let options = SessionOptions {
        // One block more than the longest context or piece and the token after it need.
        context: (longest + 64).next_multiple_of(32),
        batch,
        sequences,
        kv: Some(case.kv),
        device_sampling: Some(true),
        ..SessionOptions::default()
    };
    model.session(options).unwrap()
}

/// Numbers of sequences with the same result share a plan, as long as it has a power of two of them.
fn bucket(count: usize) -> usize {
    count.next_power_of_two()
}

/// The logits of each sequence alone, in the precision of the steps for each count.
struct Alone {
    /// Per bucket of counts, rows of logits.
    rows: Vec<(usize, Vec<Vec<f32>>)>,
}

impl Alone {
    fn of(session: &mut Session, work: Work<'_>) -> Alone {
        let vocab = session.vocab();
        let mut rows: Vec<(usize, Vec<Vec<f32>>)> = Vec::new();
        for count in work.counts {
            match rows.last_mut() {
                Some((size, _)) if *size == bucket(*count) => {}
                _ => rows.push((bucket(*count), Vec::new())),
            }
        }
        let most = |size: usize| work.counts.iter().copied().filter(|c| bucket(*c) == size).max().unwrap_or(0);
        for sequence in 0..work.counts.last().copied().unwrap_or(0) {
            let context = context(sequence, vocab, work.longest);
            session.truncate(0, 0);
            session.fix_precision(work.precision);
            session.feed(0, &context, Logits::None).unwrap();
            for (size, rows) in rows.iter_mut().filter(|(size, _)| sequence < most(*size)) {
                // That of the group's largest step, whose plan the session knows.
                session.fix_precision(work.precision.or(Some(most(*size))));
                rows.push(session.feed(0, &[next(sequence)], Logits::Last).unwrap().to_vec());
                session.truncate(0, context.len());
            }
        }
        Alone { rows }
    }

    fn row(&self, count: usize, sequence: usize) -> &[f32] {
        let (_, rows) = self.rows.iter().find(|(size, _)| *size == bucket(count)).unwrap();
        &rows[sequence]
    }
}

/// Decodes one token of each of many sequences at once and compares with the same sequences alone.
pub fn check(executor: &Executor, case: &Case, work: Work<'_>) -> Findings {
    let model = Model::random(&case.shape, case.types, executor).unwrap();
    let all = work.counts.last().copied().unwrap_or(0);
    let mut alone = session(case, &model, 1, work.longest, None);
    let expected = Alone::of(&mut alone, work);
    let mut many = session(case, &model, all, work.longest, None);
    many.fix_precision(work.precision);
    let vocab = many.vocab();
    for sequence in 0..all {
        many.feed(sequence, &context(sequence, vocab, work.longest), Logits::None).unwrap();
    }
    let (name, bound) = (case.name(), case.bound(executor.backend().policy()));
    let mut found = Findings { wrong: Vec::new(), worst: 0.0, least_of_contexts: f64::INFINITY, by_blas: Vec::new() };
    for sequence in 2..all {
        let count = work.counts.iter().copied().find(|c| *c > sequence).unwrap_or(all);
        let by_context = difference(expected.row(count, sequence), expected.row(count, sequence - 2));
        found.least_of_contexts = found.least_of_contexts.min(by_context);
    }
    if found.least_of_contexts < 2.0 * bound {
        found.wrong.push(format!("{name}: another context changes logits by {:.1e} only", found.least_of_contexts));
    }
    for count in work.counts {
        // The order of rows differs from that of sequences, so that mixing them up is detected.
        let fed: Vec<(usize, u32)> = (0..*count).rev().map(|s| (s, next(s))).collect();
        let lengths: Vec<usize> = (0..*count).map(|s| many.len(s)).collect();
        let restore = |many: &mut Session| lengths.iter().enumerate().for_each(|(s, len)| many.truncate(s, *len));
        let rows: Vec<Vec<f32>> = many.feed_batch(&fed).unwrap().chunks(vocab).map(<[f32]>::to_vec).collect();
        assert_eq!(rows.len(), *count);
        if many.profile().is_ok_and(|kernels| kernels.iter().any(|(kernel, _)| kernel.contains("cuBLASLt"))) {
            found.by_blas.push(*count);
        }
        restore(&mut many);
        let mut wrong = Vec::new();
        for ((sequence, _), got) in fed.iter().zip(&rows) {
            let want = expected.row(*count, *sequence);
            let off = difference(got, want);
            found.worst = found.worst.max(off);
            let ((token, _, _), (wanted, first, second)) = (best(got), best(want));
            let greatest = want.iter().fold(0.0, |m: f32, v| m.max(v.abs()));
            let other = token != wanted && f64::from(first - second) > 2.0 * bound * f64::from(greatest);
            if off > bound || other {
                wrong.push((*sequence, off));
            }
        }
        if let Some((sequence, off)) = wrong.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a }) {
            let of_context = lengths[sequence];
            found.wrong.push(format!(
                "{name}: of {count} sequences at once {} are wrong; sequence {sequence}, of {of_context} tokens, by {off:.1e} of the \
                 greatest logit (at most {bound:.0e})",
                wrong.len()
            ));
        }
        for config in [SamplerConfig::GREEDY, SamplerConfig { seed: 5, ..SamplerConfig::default() }] {
            let mut sampler = Sampler::new(config).unwrap();
            let chosen = many.sample_batch(&fed, &mut sampler).unwrap().to_vec();
            restore(&mut many);
            let host: Vec<u32> = rows
                .iter()
                .zip(&fed)
                .map(|(row, (sequence, _))| sampler.sample(row, lengths[*sequence] as u64 + 1).unwrap())
                .collect();
            if chosen != host {
                // A draw may fall on the border of two tokens, where sums in another order decide; it does so rarely.
                let differ = chosen.iter().zip(&host).filter(|(a, b)| a != b).count();
                if config.temperature > 0.0 && differ <= count / 200 {
                    continue;
                }
                found.wrong.push(format!(
                    "{name}: of {count} sequences at once the device chooses other tokens than the host for {differ} (temperature {})",
                    config.temperature
                ));
            }
        }
    }
    pieces(case, work, bound, &mut alone, &mut many, &mut found);
    found
}

/// Feeds pieces of a prompt to one of many sequences and compares all logits with those of a session of one sequence.
fn pieces(case: &Case, work: Work<'_>, bound: f64, alone: &mut Session, many: &mut Session, found: &mut Findings) {
    let (vocab, last) = (many.vocab(), work.counts.last().copied().unwrap_or(1) - 1);
    alone.fix_precision(work.precision);
    for (before, len) in PIECES.into_iter().filter(|(_, len)| *len <= work.longest) {
        let tokens: Vec<u32> = (0..before + len).map(|i| token(1000, i, vocab)).collect();
        let feed = |session: &mut Session, sequence: usize| {
            session.truncate(sequence, 0);
            session.feed(sequence, &tokens[..before], Logits::None).unwrap();
            session.feed(sequence, &tokens[before..], Logits::All).unwrap().to_vec()
        };
        let (want, got) = (feed(alone, 0), feed(many, last));
        let rows = got.chunks(vocab).zip(want.chunks(vocab)).map(|(got, want)| difference(got, want));
        let (at, off) = rows.enumerate().reduce(|a, b| if b.1 > a.1 { b } else { a }).unwrap();
        found.worst = found.worst.max(off);
        if off > bound {
            found.wrong.push(format!(
                "{}: a piece of {len} tokens after {before}, beside {last} sequences, is wrong by {off:.1e} at token {at}",
                case.name()
            ));
        }
    }
}

/// Reads prompts of these lengths in one step each, and compares all logits with those of steps of 64 tokens in the same
/// precision. Returns descriptions of failures.
pub fn check_prompts(executor: &Executor, case: &Case, lengths: &[usize]) -> Vec<String> {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let model = Model::random(&case.shape, case.types, executor).unwrap();
    let [mut whole, mut parts] = [(); 2].map(|()| session(case, &model, 1, longest, Some(longest)));
    let (vocab, bound) = (whole.vocab(), case.bound(executor.backend().policy()));
    let mut wrong = Vec::new();
    for len in lengths {
        let tokens: Vec<u32> = (0..*len).map(|i| token(*len, i, vocab)).collect();
        for session in [&mut whole, &mut parts] {
            session.truncate(0, 0);
            session.fix_precision(Some(*len));
        }
        let got = whole.feed(0, &tokens, Logits::All).unwrap().to_vec();
        let want: Vec<f32> =
            tokens.chunks(64).flat_map(|part| parts.feed(0, part, Logits::All).unwrap().to_vec()).collect();
        assert_eq!(got.len(), len * vocab);
        let rows = got.chunks(vocab).zip(want.chunks(vocab)).map(|(got, want)| difference(got, want));
        let (at, off) = rows.enumerate().reduce(|a, b| if b.1 > a.1 { b } else { a }).unwrap();
        if off > bound {
            let name = case.name();
            wrong.push(format!(
                "{name}: a prompt of {len} tokens is wrong by {off:.1e} at token {at} (at most {bound:.0e})"
            ));
        }
    }
    wrong
}

/// A step with a token of each of 40 sequences and a piece of another one's prompt, which begins at each of these
/// positions in turn: all logits are those of the same tokens fed sequence by sequence, the piece in small steps.
/// Returns descriptions of failures.
pub fn check_beside(executor: &Executor, case: &Case, positions: &[usize]) -> Vec<String> {
    const TEXTS: usize = 40;
    const PIECE: usize = 120;
    let model = Model::random(&case.shape, case.types, executor).unwrap();
    let longest = positions.iter().max().unwrap() + PIECE;
    // As many sequences as the step's plan has tokens.
    let [mut together, mut alone] = [(); 2].map(|()| session(case, &model, 256, longest, Some(256)));
    let (vocab, bound) = (together.vocab(), case.bound(executor.backend().policy()));
    let tokens = |sequence: usize, range: std::ops::Range<usize>| -> Vec<u32> {
        range.map(|i| token(sequence, i, vocab)).collect()
    };
    let length = |text: usize| 1 + text * 37 % 211;
    for session in [&mut together, &mut alone] {
        session.fix_precision(Some(TEXTS + PIECE));
        for text in 0..TEXTS {
            session.feed(text, &tokens(text, 0..length(text)), Logits::None).unwrap();
        }
    }
    let mut wrong = Vec::new();
    for from in positions {
        for session in [&mut together, &mut alone] {
            (0..TEXTS).for_each(|text| session.truncate(text, length(text)));
            session.truncate(TEXTS, 0);
            session.feed(TEXTS, &tokens(TEXTS, 0..*from), Logits::None).unwrap();
        }
        let last: Vec<Vec<u32>> = (0..TEXTS).map(|text| tokens(text, length(text)..length(text) + 1)).collect();
        let piece = tokens(TEXTS, *from..from + PIECE);
        let input = |(sequence, tokens)| Input { sequence, tokens, logits: Logits::All };
        let texts = last.iter().map(Vec::as_slice).enumerate();
        let inputs: Vec<Input<'_>> = texts.chain([(TEXTS, &piece[..])]).map(input).collect();
        let got = together.feed_inputs(&inputs).unwrap().to_vec();
        let pieces = inputs.iter().flat_map(|input| input.tokens.chunks(24).map(|part| (input.sequence, part)));
        let want: Vec<f32> =
            pieces.flat_map(|(sequence, part)| alone.feed(sequence, part, Logits::All).unwrap().to_vec()).collect();
        assert_eq!(got.len(), (TEXTS + PIECE) * vocab);
        let rows = got.chunks(vocab).zip(want.chunks(vocab)).map(|(got, want)| difference(got, want));
        let (at, off) = rows.enumerate().reduce(|a, b| if b.1 > a.1 { b } else { a }).unwrap();
        if off > bound {
            wrong.push(format!(
                "{}: beside a piece from {from} on, token {at} is wrong by {off:.1e} (at most {bound:.0e})",
                case.name()
            ));
        }
    }
    wrong
}

/// Every weight type with every cache type, with heads of 64 and 128 elements in turn and several query heads per
/// key/value head, and some with only one. Rows have `width` elements, those of the feed-forward network `ffn`.
pub fn cases(width: usize, ffn: usize) -> Vec<Case> {
    let caches = [DType::F32, DType::F16, DType::F8, DType::Q8Planes];
    let shapes = |types| {
        let (small, large) = (width / 64, width / 128);
        [
            (64, small, small / 2),
            (128, large, large / 2),
            (64, small, 1),
            (128, large, 1),
            (64, small, small),
            (128, large, large),
        ]
        .map(|(d, heads, kv_heads)| shape(types, d, heads, kv_heads, ffn))
    };
    let mut cases = Vec::new();
    // Formats that have no planes run by programs on a GPU, which would take minutes.
    let by_program = |types: &WeightTypes| {
        let format = DType::from_name(&types.name()).map(|format| format.recoded().in_planes());
        format.is_some_and(|format| matches!(format, DType::Block(_)))
    };
    for (i, types) in WeightTypes::all().filter(|types| !by_program(types)).enumerate() {
        let everything = ["F32", "BF16", "Q8_0", "TQ2_0"].contains(&types.name().as_str());
        for (j, kv) in caches.into_iter().enumerate() {
            let shapes = shapes(types).into_iter().enumerate();
            let chosen = shapes.filter(|(at, _)| everything && kv != DType::F8 || *at == (i + j) % 4);
            cases.extend(chosen.map(|(_, shape)| Case { shape, types, kv }));
        }
    }
    cases
}

/// The cases whose steps used cuBLASLt, with their numbers of tokens.
pub type ByBlas = Vec<(String, Vec<usize>)>;

/// Checks all cases, prints the results of each and returns the failures.
pub fn check_all(executor: &Executor, cases: &[(Case, Work<'_>)]) -> (Vec<String>, ByBlas) {
    let (mut wrong, mut by_blas) = (Vec::new(), ByBlas::new());
    for (case, work) in cases {
        let started = std::time::Instant::now();
        let found = check(executor, case, *work);
        let mut line = format!(
            "{}: worst {:.1e}, another context {:.2}, {:.2} s",
            case.name(),
            found.worst,
            found.least_of_contexts,
            started.elapsed().as_secs_f64()
        );
        if !found.by_blas.is_empty() {
            write!(line, ", cuBLASLt with {:?} sequences", found.by_blas).unwrap();
            by_blas.push((case.name(), found.by_blas));
        }
        println!("{line}");
        wrong.extend(found.wrong);
    }
    (wrong, by_blas)
}
