//! The tests of `hologram bench`: which there are, and how one is measured.

use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Instant;

use hologram_backends::{BackendType, KernelName};
use hologram_core::Executor;
use hologram_llm::sampling::{Sampler, SamplerConfig};
use hologram_llm::{Embedder, Logits, Model, Pooling, Session, SessionOptions};

use super::bench_bytes::Reads;
use crate::args::{BenchArgs, Kv, usage};
use crate::capture::{self, Capture};
use crate::progress::Progress;
use crate::trace::Trace;

/// The sizes to measure, in every combination.
pub(super) struct Sizes {
    prompts: Vec<usize>,
    decodes: Vec<usize>,
    depths: Vec<usize>,
    batches: Vec<usize>,
    /// The context length that the user chose.
    ctx: Option<usize>,
}

impl Sizes {
    /// Those of the command line.
    ///
    /// # Errors
    /// A usage error if there is nothing to measure.
    pub fn of(args: &BenchArgs) -> anyhow::Result<Sizes> {
        let list = |sizes: &[u32]| {
            let once = |i: &usize| !sizes[..*i].contains(&sizes[*i]);
            (0..sizes.len()).filter(once).map(|i| sizes[i] as usize).collect::<Vec<_>>()
        };
        let (mut prompts, mut decodes) = (list(&args.prompt), list(args.decode.as_deref().unwrap_or(&[128])));
        [&mut prompts, &mut decodes].into_iter().for_each(|tests| tests.retain(|n| *n > 0));
        if prompts.is_empty() && decodes.is_empty() {
            return usage("nothing to measure: -p and -n are both 0");
        }
        let depths = list(&args.depth);
        let ctx = args.ctx.map(|n| n as usize);
        Ok(Sizes { prompts, decodes, depths, batches: list(&args.batch), ctx })
    }

    /// The only value of an option that may have several elsewhere.
    ///
    /// # Errors
    /// A usage error if there are several.
    pub fn only(option: &str, sizes: &[u32]) -> anyhow::Result<usize> {
        match sizes {
            [size] => Ok(*size as usize),
            _ => usage(format!("--concurrency measures one size, but {option} has {}", sizes.len())),
        }
    }

    /// Checks that the longest test fits into the context.
    fn check(&self, model: &Model) -> anyhow::Result<()> {
        let depth = self.depths.iter().copied().max().unwrap_or(0);
        // An encoder decodes nothing.
        let decodes = if model.config().bidirectional { &[] } else { self.decodes.as_slice() };
        let longest = self.prompts.iter().chain(decodes).copied().max().unwrap_or(0);
        let (needed, own) = (depth + longest, model.config().context);
        if needed <= self.ctx.unwrap_or(own) {
            return Ok(());
        }
        let tests = if depth > 0 { format!("-d {depth} and the test take") } else { "the test takes".into() };
        let limit = match self.ctx {
            Some(ctx) => format!("--ctx is {ctx}"),
            // An encoder may have learned no more positions.
            None if model.config().bidirectional => format!("the model has {own}; give a smaller -p"),
            None => format!("the model has {own}; --ctx {needed} measures it nevertheless"),
        };
        usage(format!("{tests} {needed} tokens of context, but {limit}"))
    }
}

/// One line of the table.
pub(super) struct Row {
    /// The name, as in `llama-bench`.
    pub name: String,
    /// Tokens in the context before the test.
    pub depth: usize,
    /// Sequences.
    pub batch: usize,
    /// Tokens of each text, if texts are measured.
    pub text: Option<usize>,
    /// What it reads.
    pub reads: Reads,
    /// Tokens per second of each repetition, summed over all sequences, in ascending order.
    pub rates: Vec<f64>,
    /// The last step kernel by kernel, if requested.
    pub profile: String,
}

impl Row {
    fn new(name: String, (depth, batch): (usize, usize), text: Option<usize>, reads: Reads) -> Row {
        let name = if depth > 0 { format!("{name} @ d{depth}") } else { name };
        Row { name, depth, batch, text, reads, rates: Vec::new(), profile: String::new() }
    }
}

/// The results so far.
#[derive(Default)]
pub(super) struct Results {
    pub rows: Vec<Row>,
    /// Bytes per second that the memory delivered, measured between the tests, and of what.
    pub bandwidths: Vec<f64>,
    pub bound: &'static str,
}

impl Results {
    /// Measures tests in turns with the bandwidth, so that all see the same state of the machine. The first round
    /// compiles and warms up and is not counted. `test` measures one and is told if it warms up.
    fn measure(
        &mut self,
        executor: &Executor,
        repetitions: u32,
        rows: &mut [Row],
        mut test: impl FnMut(usize, bool) -> anyhow::Result<f64>,
    ) -> anyhow::Result<()> {
        let mut progress = Progress::new("measuring", "tests");
        let (tests, of) = (rows.len() as u64, (u64::from(repetitions) + 1) * rows.len() as u64);
        for round in 0..=repetitions {
            let (kind, bandwidth) = ceiling(executor)?;
            self.bound = kind;
            if round > 0 {
                self.bandwidths.push(bandwidth);
            }
            for (i, row) in rows.iter_mut().enumerate() {
                progress.at(u64::from(round) * tests + i as u64, of);
                let rate = test(i, round == 0)?;
                if round > 0 {
                    row.rates.push(rate);
                }
            }
        }
        rows.iter_mut().for_each(|row| row.rates.sort_by(f64::total_cmp));
        Ok(())
    }

    /// The median bandwidth, and the best: no test can exceed that.
    pub fn bandwidth(&mut self) -> (f64, f64) {
        self.bandwidths.sort_by(f64::total_cmp);
        (median(&self.bandwidths), self.bandwidths.last().copied().unwrap_or(0.0))
    }
}

/// The memory ceiling: its kind and bytes per second. For a GPU, copies by its copy engine; for a CPU, reads.
fn ceiling(executor: &Executor) -> anyhow::Result<(&'static str, f64)> {
    let backend = executor.backend();
    Ok(match backend.info().backend {
        BackendType::Cuda | BackendType::Metal => ("copy", backend.measure().copy_bandwidth()?),
        _ => ("read", backend.measure().read_bandwidth()?),
    })
}

/// Token `i` of all texts.
fn token(model: &Model, i: usize) -> u32 {
    (i * 7919 % model.config().vocab) as u32
}

/// Measures an encoder: texts of each length and number, each test a call of [`Embedder::embed`].
///
/// # Errors
/// A usage error for options that have no meaning; errors of the device.
pub(super) fn encoder(args: &BenchArgs, sizes: &Sizes, model: &Model, results: &mut Results) -> anyhow::Result<()> {
    if args.decode.is_some() || sizes.depths.iter().any(|depth| *depth > 0) || args.kv.is_some() {
        return usage("an encoder continues no text: -p and -b give the tokens and the number of its texts");
    }
    if args.profile.is_some() || args.capture.is_some() {
        return usage("--profile and --capture show the steps of decoders");
    }
    if sizes.prompts.is_empty() {
        return usage("nothing to measure: -p is 0, and an encoder decodes nothing");
    }
    sizes.check(model)?;
    let longest = sizes.prompts.iter().copied().max().unwrap_or(1);
    let mut embedder = Embedder::new(model, sizes.ctx.unwrap_or(longest))?;
    // Random weights are of models that take the first token's vector.
    let pooling = model.files().map_or(Pooling::Cls, |_| embedder.pooling());
    let mut rows = Vec::new();
    let mut texts: Vec<Vec<Vec<u32>>> = Vec::new();
    for tokens in &sizes.prompts {
        for batch in &sizes.batches {
            let name = if *batch > 1 { format!("pp{tokens} x{batch}") } else { format!("pp{tokens}") };
            let reads = Reads::texts(*batch, *tokens, embedder.texts_per_step(*tokens), model.bytes_per_token());
            rows.push(Row::new(name, (0, *batch), Some(*tokens), reads));
            let text = |text: usize| (0..*tokens).map(|i| token(model, i + text)).collect();
            texts.push((0..*batch).map(text).collect());
        }
    }
    let texts: Vec<Vec<&[u32]>> = texts.iter().map(|texts| texts.iter().map(Vec::as_slice).collect()).collect();
    results.measure(model.executor(), args.repetitions, &mut rows, |i, _| {
        let started = Instant::now();
        embedder.embed(&texts[i], pooling)?;
        Ok(texts[i].iter().map(|text| text.len()).sum::<usize>() as f64 / started.elapsed().as_secs_f64())
    })?;
    results.rows.append(&mut rows);
    Ok(())
}

/// Measures a decoder: for each depth and number of sequences a session with its tests. Prompts are of one sequence, so
/// that they are measured once per depth.
///
/// # Errors
/// A usage error when a test does not fit into the context; errors of the device.
pub(super) fn decoder(
    args: &BenchArgs,
    sizes: &Sizes,
    model: &Model,
    (trace, capture): (Option<&Trace>, &Option<Capture>),
    results: &mut Results,
) -> anyhow::Result<()> {
    sizes.check(model)?;
    let combinations: Vec<(usize, usize, &[usize])> = sizes
        .depths
        .iter()
        .flat_map(|depth| {
            let prompts = |i: usize| if i == 0 { sizes.prompts.as_slice() } else { &[] };
            sizes.batches.iter().enumerate().map(move |(i, batch)| (*depth, *batch, prompts(i)))
        })
        .filter(|(_, _, prompts)| !(prompts.is_empty() && sizes.decodes.is_empty()))
        .collect();
    let last = combinations.len().saturating_sub(1);
    for (i, (depth, batch, prompts)) in combinations.into_iter().enumerate() {
        let capture = if i == last { capture } else { &None };
        let mut group = Group::new(args, sizes, model, (depth, batch), prompts)?;
        group.fill()?;
        let Group { session, tests, rows } = &mut group;
        results.measure(model.executor(), args.repetitions, rows, |i, warms_up| {
            let test = &tests[i];
            let few = test.tokens.len().min(4);
            let tokens = if warms_up && !test.prefill { &test.tokens[..few] } else { &test.tokens };
            test.measure(session, tokens)
        })?;
        if let (Some(_), Some(test)) = (capture, tests.last()) {
            let last = test.last_steps(session)?;
            capture::around(capture, model.executor(), || test.extend(session, last))?;
        }
        for (test, row) in tests.iter().zip(rows).filter(|_| trace.is_some()) {
            let Some(trace) = trace else { break };
            let traced = test.last_steps(session)?;
            trace.turn(true);
            trace.step(&row.name, || test.extend(session, traced))?;
            trace.turn(false);
            row.profile = profile(&row.name, session)?;
        }
        results.rows.append(&mut group.rows);
    }
    Ok(())
}

/// A session and the tests that it serves.
struct Group {
    session: Session,
    tests: Vec<Test>,
    rows: Vec<Row>,
}

impl Group {
    fn new(
        args: &BenchArgs,
        sizes: &Sizes,
        model: &Model,
        (depth, batch): (usize, usize),
        prompts: &[usize],
    ) -> anyhow::Result<Group> {
        let most = |sizes: &[usize]| depth + sizes.iter().copied().max().unwrap_or(0);
        let (prompt, decode) = (most(prompts), most(&sizes.decodes));
        let blocks = |tokens: usize| tokens.div_ceil(hologram_llm::BLOCK_SIZE);
        let options = SessionOptions {
            context: sizes.ctx.unwrap_or(prompt.max(decode)),
            sequences: batch,
            kv: args.kv.map(Kv::format),
            // Only one sequence has a prompt's test.
            blocks: Some((batch * blocks(decode) + blocks(prompt)).max(1)),
            ..SessionOptions::default()
        };
        let session = model.session(options)?;
        let weights = model.bytes_per_token();
        let cache = |positions| session.cache_bytes(positions);
        let (mut tests, mut rows) = (Vec::new(), Vec::new());
        let context: Rc<[u32]> = (0..depth).map(|i| token(model, i)).collect();
        let mut add = |name: String, n: usize, prefill: bool, batch: usize, reads: Reads| {
            let tokens = (depth..depth + n).map(|i| token(model, i)).collect();
            tests.push(Test { context: context.clone(), tokens, prefill, batch });
            rows.push(Row::new(name, (depth, batch), None, reads));
        };
        for prompt in prompts {
            let reads = Reads::prompt(depth..depth + prompt, session.batch(), weights, cache);
            add(format!("pp{prompt}"), *prompt, true, 1, reads);
        }
        for decode in &sizes.decodes {
            let name = if batch > 1 { format!("tg{decode} x{batch}") } else { format!("tg{decode}") };
            let reads = Reads::decode(depth..depth + decode, batch, session.batch(), weights, cache);
            add(name, *decode, false, batch, reads);
        }
        Ok(Group { session, tests, rows })
    }

    /// Feeds the tokens before the tests.
    fn fill(&mut self) -> anyhow::Result<()> {
        match self.tests.iter().max_by_key(|test| test.batch) {
            Some(test) => test.rewind(&mut self.session),
            None => Ok(()),
        }
    }
}

/// A test of a decoder.
struct Test {
    /// The tokens before the test.
    context: Rc<[u32]>,
    /// The input tokens: fed at once, or one by one.
    tokens: Vec<u32>,
    prefill: bool,
    batch: usize,
}

/// Steps of a decode test in a trace or capture.
const TRACED_STEPS: usize = 4;

/// Number of times that the last step is profiled; each kernel's median counts.
const PROFILES: usize = 7;

impl Test {
    /// Feeds these tokens. Returns the tokens per second of all sequences.
    fn measure(&self, session: &mut Session, tokens: &[u32]) -> anyhow::Result<f64> {
        self.rewind(session)?;
        let started = Instant::now();
        self.extend(session, tokens)?;
        Ok((tokens.len() * self.batch) as f64 / started.elapsed().as_secs_f64())
    }

    /// Resets the sequences to the start of the test. Models with states compute the tokens before it again: they keep
    /// the states of the last steps only.
    fn rewind(&self, session: &mut Session) -> anyhow::Result<()> {
        for sequence in 0..self.batch {
            let kept =
                session.keep_prefix(sequence, &[&self.context[..], &self.tokens[..self.tokens.len().min(1)]].concat());
            let missing = &self.context[kept..];
            if !missing.is_empty() {
                // Logits are waited for: no test's time has a part of this.
                session.feed(sequence, missing, Logits::Last)?;
            }
        }
        Ok(())
    }

    /// Feeds the tokens except those of the last steps, which it returns.
    fn last_steps(&self, session: &mut Session) -> anyhow::Result<&[u32]> {
        let before = if self.prefill { 0 } else { self.tokens.len().saturating_sub(TRACED_STEPS) };
        let (before, last) = self.tokens.split_at(before);
        self.rewind(session)?;
        if !before.is_empty() {
            self.extend(session, before)?;
        }
        Ok(last)
    }

    /// Feeds tokens.
    fn extend(&self, session: &mut Session, tokens: &[u32]) -> anyhow::Result<()> {
        // Samples like a generation, but continues with the test's own tokens.
        let mut sampler = Sampler::new(SamplerConfig::GREEDY)?;
        if self.prefill {
            session.sample(0, tokens, &mut sampler)?;
            return Ok(());
        }
        let mut step = Vec::with_capacity(self.batch);
        for token in tokens {
            step.clear();
            step.extend((0..self.batch).map(|sequence| (sequence, *token)));
            session.sample_batch(&step, &mut sampler)?;
        }
        Ok(())
    }
}

/// The kernels of a session's last step, grouped by name, slowest first.
fn profile(test: &str, session: &Session) -> anyhow::Result<String> {
    let runs = (0..PROFILES).map(|_| session.profile()).collect::<Result<Vec<_>, _>>()?;
    let mut kernels: Vec<(&KernelName, usize, f64)> = Vec::new();
    for (i, (name, _)) in runs[0].iter().enumerate() {
        let mut times: Vec<f64> = runs.iter().map(|run| run[i].1).collect();
        times.sort_by(f64::total_cmp);
        match kernels.iter_mut().find(|k| k.0 == name) {
            Some(kernel) => {
                kernel.1 += 1;
                kernel.2 += median(&times);
            }
            None => kernels.push((name, 1, median(&times))),
        }
    }
    kernels.sort_by(|a, b| b.2.total_cmp(&a.2));
    let all: f64 = kernels.iter().map(|k| k.2).sum();
    let launches: usize = kernels.iter().map(|k| k.1).sum();
    let programs: usize = kernels.iter().filter(|k| k.0.is_program).map(|k| k.1).sum();
    let mut out = format!("\n{test}, the last step: {launches} kernels one by one, {:.1} us", all * 1e6);
    match programs {
        0 => writeln!(out, "; all native")?,
        1 => writeln!(out, "; 1 runs as a program")?,
        _ => writeln!(out, "; {programs} run as programs")?,
    }
    writeln!(out, "{:>7} {:>10} {:>9} {:>6}  kernel", "count", "total us", "each us", "share")?;
    for (name, count, seconds) in kernels {
        let (us, share) = (seconds * 1e6, 100.0 * seconds / all);
        let program = if name.is_program { " (program)" } else { "" };
        writeln!(out, "{count:>7} {us:>10.1} {:>9.2} {share:>5.1}%  {name}{program}", us / count as f64)?;
    }
    Ok(out)
}

pub(super) fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_of_a_model_with_states_begins_with_its_context() -> anyhow::Result<()> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../hologram-llm/tests/fixtures/qwen3-next/model.gguf");
        let model = Model::load_on(file, &Executor::new_with_backend(BackendType::Cpu)?)?;
        let mut session = model.session(SessionOptions::default())?;
        let context: Rc<[u32]> = (0..20).map(|i| token(&model, i)).collect();
        let tokens = (20..40).map(|i| token(&model, i)).collect();
        let test = Test { context: context.clone(), tokens, prefill: false, batch: 1 };
        test.rewind(&mut session)?;
        // Further back than states go.
        test.extend(&mut session, &test.tokens)?;
        test.rewind(&mut session)?;
        let next = [&context[..], &[0]].concat();
        assert_eq!(session.keep_prefix(0, &next), context.len());
        Ok(())
    }
}
