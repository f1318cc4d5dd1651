//! Cases of groups: operations that one kernel of a device may compute, in the forms that models have them.
//!
//! Each case runs with and without native kernels against the composition of the operations' references in `f64`.

mod experts;

use hologram_backends::DType;
use hologram_isa::Type;

use experts::{Experts, Route, Router};

use super::bounded::{Bounded, evaluate};
use super::data::{self, POISON, Random};
use super::run::{CaseOutput, CaseResult, Outputs, failure, fixed_spec};
use super::{CaseInput, Fill, recurrent};
use crate::error::Result;
use crate::executor::Executor;
use crate::graph::{CompileOptions, Graph, NodeId, Plan};
use crate::ops::{AttentionOptions, AttentionPrecision, RopeStyle};
use crate::tensor::{Dim, Tensor};

/// The name under which these cases are listed with the operations.
pub(super) const NAME: &str = "groups";

/// A case: the operations and the number of tokens.
#[derive(Clone, Debug)]
pub(super) struct GroupCase {
    /// The maximum and the actual number of tokens.
    tokens: (usize, usize),
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Products(Products),
    Norms(Norms),
    Biases(Biases),
    Route(Route),
    Router(Router),
    Experts(Experts),
    Cache(Cache),
    Recurrent(recurrent::Layer),
}

/// Products with weights of one format that share their left side, and the operations before and after them.
#[derive(Clone, Debug)]
struct Products {
    norm: bool,
    convert: Convert,
    weights: DType,
    k: usize,
    /// Rows of each weight.
    rows: Vec<usize>,
    end: End,
}

/// The conversion of a product's left side.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Convert {
    None,
    BF16,
    I8 { group: usize, floor: f32 },
}

/// The use of the products.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// The products are the outputs.
    Products,
    Swiglu,
    Relu2,
    /// The gate's result is converted too.
    SwigluConverted(Convert),
    /// The gate of gpt-oss, of products with biases.
    ClampedSwiglu,
    /// The left side is added to the product, as the first or the second operand.
    Add {
        first: bool,
    },
    /// No product: the converted left side is the output.
    Converted,
}

/// Biases of tensors of these widths.
#[derive(Clone, Debug)]
struct Biases(Vec<usize>);

/// Two norms, of this many heads.
#[derive(Clone, Debug)]
struct Norms {
    heads: (usize, usize),
    d: usize,
}

/// Rotary embedding, the cache's update and, optionally, attention.
#[derive(Clone, Debug)]
struct Cache {
    attention: Option<AttentionOptions>,
    style: RopeStyle,
    kv: Type,
    heads: (usize, usize),
    d: usize,
    /// Position of the first token. The other tokens follow it, or each is in a sequence of its own.
    first: usize,
    batched: bool,
    /// Whether heads have sinks.
    sinks: bool,
}

/// A graph under construction with the values of its leaves.
pub(super) struct Drawing<'a> {
    executor: &'a Executor,
    extents: [(usize, usize); 1],
    random: Random,
    pub graph: Graph,
    leaves: Vec<(NodeId, Bounded)>,
    /// Inputs by name.
    written: Vec<(String, Vec<u8>)>,
    states: Vec<Tensor>,
}

impl Drawing<'_> {
    fn bytes(&mut self, input: &CaseInput) -> Result<(Vec<u8>, Bounded)> {
        let (bytes, tensor) = data::draw(&self.extents, input, &mut self.random)?;
        let bounds = vec![0.0; tensor.values.len()];
        Ok((bytes, Bounded { tensor, bounds }))
    }

    /// An input when its first dimension is the tokens, otherwise a constant.
    pub(super) fn leaf(&mut self, input: CaseInput) -> Result<NodeId> {
        let (bytes, value) = self.bytes(&input)?;
        let node = if matches!(input.shape.first(), Some(Dim::Extent(_))) {
            let name = format!("input{}", self.leaves.len());
            let node = self.graph.input(&name, input.format, &input.shape)?;
            self.written.push((name, bytes));
            node
        } else {
            let tensor = Tensor::from_bytes(self.executor, input.format, &value.tensor.shape, &bytes)?;
            self.graph.constant(&tensor)?
        };
        self.leaves.push((node, value));
        Ok(node)
    }

    pub(super) fn indices(&mut self, shape: &[Dim], values: impl IntoIterator<Item = usize>) -> Result<NodeId> {
        let fill = Fill::Values(values.into_iter().map(|v| v as f32).collect());
        self.leaf(CaseInput { format: DType::U32, shape: shape.to_vec(), fill })
    }

    pub(super) fn state(&mut self, input: &CaseInput) -> Result<NodeId> {
        let (bytes, value) = self.bytes(input)?;
        let tensor = Tensor::from_bytes(self.executor, input.format, &value.tensor.shape, &bytes)?;
        let node = self.graph.state(&tensor)?;
        self.states.push(tensor);
        self.leaves.push((node, value));
        Ok(node)
    }
}

pub(super) const TOKENS: Dim = Dim::Extent(0);

impl Convert {
    fn apply(self, g: &mut Graph, x: NodeId) -> Result<NodeId> {
        match self {
            Convert::None => Ok(x),
            Convert::BF16 => g.cast(x, Type::BF16),
            Convert::I8 { group, floor } => g.quantize(x, group as u32, floor),
        }
    }
}

impl Products {
    /// Adds the operations; returns the values to output.
    fn build(&self, d: &mut Drawing<'_>) -> Result<Vec<NodeId>> {
        let x = d.leaf(CaseInput::normal(DType::F32, &[TOKENS, self.k.into()]))?;
        let mut left = x;
        if self.norm {
            let w = d.leaf(CaseInput::normal(DType::F32, &[self.k.into()]))?;
            left = d.graph.rms_norm(left, w, 1e-5)?;
        }
        left = self.convert.apply(&mut d.graph, left)?;
        let mut products = Vec::new();
        for m in &self.rows {
            let w = d.leaf(CaseInput::normal(self.weights, &[(*m).into(), self.k.into()]))?;
            products.push(w);
        }
        for w in &mut products {
            *w = d.graph.linear(left, *w)?;
        }
        Ok(match (self.end, products.as_slice()) {
            (End::Converted, _) => vec![left],
            (End::Swiglu, [gate, up]) => vec![d.graph.swiglu(*gate, *up)?],
            (End::SwigluConverted(convert), [gate, up]) => {
                let gated = d.graph.swiglu(*gate, *up)?;
                vec![convert.apply(&mut d.graph, gated)?]
            }
            (End::Relu2, [gate, up]) => vec![d.graph.relu2_mul(*gate, *up)?],
            (End::Add { first: true }, [y]) => vec![d.graph.add(x, *y)?],
            (End::Add { first: false }, [y]) => vec![d.graph.add(*y, x)?],
            _ => products,
        })
    }
}

impl Biases {
    fn build(&self, d: &mut Drawing<'_>) -> Result<Vec<NodeId>> {
        let mut operands = Vec::new();
        for width in &self.0 {
            let x = d.leaf(CaseInput::normal(DType::F32, &[TOKENS, (*width).into()]))?;
            operands.push((x, d.leaf(CaseInput::normal(DType::F32, &[(*width).into()]))?));
        }
        operands.into_iter().map(|(x, bias)| d.graph.add(x, bias)).collect()
    }
}

impl Norms {
    fn build(&self, d: &mut Drawing<'_>) -> Result<Vec<NodeId>> {
        let mut results = Vec::new();
        for heads in [self.heads.0, self.heads.1] {
            let x = d.leaf(CaseInput::normal(DType::F32, &[TOKENS, heads.into(), self.d.into()]))?;
            let w = d.leaf(CaseInput::normal(DType::F32, &[self.d.into()]))?;
            results.push((x, w));
        }
        results.into_iter().map(|(x, w)| d.graph.rms_norm(x, w, 1e-6)).collect()
    }
}

/// Positions in a block.
const BLOCK: usize = 32;

impl Cache {
    fn build(&self, d: &mut Drawing<'_>) -> Result<Vec<NodeId>> {
        let (max, n) = d.extents[0];
        let sequences = if self.batched { max } else { 1 };
        let per_sequence = (self.first + max).div_ceil(BLOCK);
        let position =
            |t: usize| if self.batched { (self.first + 7 * t) % (per_sequence * BLOCK) } else { self.first + t };
        let sequence = |t: usize| if self.batched { t } else { 0 };
        // Blocks in an order that no kernel can assume.
        let block = |s: usize, i: usize| (s * per_sequence + i + 3) % (sequences * per_sequence);
        let slot = |t: usize| block(sequence(t), position(t) / BLOCK) * BLOCK + position(t) % BLOCK;

        let heads = |n: usize| CaseInput::normal(DType::F32, &[TOKENS, n.into(), self.d.into()]);
        let (q, k, v) = (d.leaf(heads(self.heads.0))?, d.leaf(heads(self.heads.1))?, d.leaf(heads(self.heads.1))?);
        let positions = d.indices(&[TOKENS], (0..n).map(position))?;
        let slots = d.indices(&[TOKENS], (0..n).map(slot))?;
        let of = d.indices(&[TOKENS], (0..n).map(sequence))?;
        let entries = (0..sequences).flat_map(|s| (0..per_sequence).map(move |i| block(s, i)));
        let table = d.indices(&[sequences.into(), per_sequence.into()], entries)?;
        let frequencies = (0..self.d / 2).map(|i| 500000f32.powf(-2.0 * i as f32 / self.d as f32)).collect();
        let frequencies = d.leaf(CaseInput {
            format: DType::F32,
            shape: vec![(self.d / 2).into()],
            fill: Fill::Values(frequencies),
        })?;
        let pool = [sequences * per_sequence, self.heads.1, BLOCK, self.d].map(Dim::Fixed);
        let pool = CaseInput::normal(DType::Plain(self.kv), &pool);
        let (k_cache, v_cache) = (d.state(&pool)?, d.state(&pool)?);

        let q = d.graph.rope(q, positions, frequencies, self.style)?;
        let k = d.graph.rope(k, positions, frequencies, self.style)?;
        let k = d.graph.kv_append(k_cache, k, slots)?;
        let v = d.graph.kv_append(v_cache, v, slots)?;
        let Some(mut options) = self.attention else { return Ok(vec![q]) };
        if self.sinks {
            options.sinks = Some(d.leaf(CaseInput::normal(DType::F32, &[self.heads.0.into()]))?);
        }
        let scale = 1.0 / (self.d as f32).sqrt();
        Ok(vec![d.graph.attention_with(q, k, v, positions, of, table, scale, options)?])
    }
}

impl GroupCase {
    /// Approximate number of multiplications.
    fn work(&self) -> usize {
        match &self.kind {
            Kind::Products(p) => self.tokens.1 * p.k * p.rows.iter().sum::<usize>().max(1),
            Kind::Biases(b) => self.tokens.1 * b.0.iter().sum::<usize>(),
            Kind::Norms(n) => self.tokens.1 * (n.heads.0 + n.heads.1) * n.d,
            Kind::Route(r) => self.tokens.1 * r.n,
            Kind::Router(r) => self.tokens.1 * r.n * r.width,
            Kind::Experts(e) => self.tokens.1 * e.slots * e.k * e.m,
            Kind::Cache(c) => self.tokens.1 * (c.first + self.tokens.1) * c.heads.0 * c.d * 2,
            Kind::Recurrent(layer) => self.tokens.1 * layer.work(),
        }
    }

    fn name(&self) -> String {
        format!("{:?} of {}/{} tokens", self.kind, self.tokens.1, self.tokens.0)
    }

    fn dtype(&self) -> String {
        let (convert, weights) = match &self.kind {
            Kind::Products(p) => (p.convert, p.weights),
            Kind::Biases(_) | Kind::Norms(_) | Kind::Route(_) | Kind::Recurrent(_) => return "f32".into(),
            Kind::Router(r) => (r.convert, DType::F32),
            Kind::Experts(e) => (e.convert, e.weights),
            Kind::Cache(c) => return c.kv.name().into(),
        };
        match convert {
            Convert::None => format!("f32 × {}", weights.name()),
            Convert::BF16 => format!("bf16 × {}", weights.name()),
            Convert::I8 { .. } => format!("i8 × {}", weights.name()),
        }
    }

    /// Runs the case as single programs and then as the device's kernels.
    pub(super) fn run(&self, executor: &Executor, index: usize) -> CaseResult {
        self.run_ways(executor, index, &[false, true])
    }

    /// Runs the case as single programs (`false`) or as the device's kernels (`true`), one after the other.
    pub(super) fn run_ways(&self, executor: &Executor, index: usize, ways: &[bool]) -> CaseResult {
        let (op, dtype, case) = (NAME, self.dtype(), self.name());
        let mut result = CaseResult { op, index, dtype, case, native: false, failure: None };
        let (mut known, mut drawn) = (None, None);
        for &native in ways {
            let way = if native { "native kernels" } else { "programs" };
            let outcome = self.attempt(executor, index, native, drawn.take()).and_then(|ran| {
                let Some(ran) = ran else { return Ok(None) };
                let failure = failure(&ran.outputs(&mut known)?)?;
                // States have changed.
                drawn = Some(ran.drawn).filter(|drawn| drawn.d.states.is_empty());
                Ok(Some((ran.grouped, failure)))
            });
            match outcome {
                Ok(None) => {}
                Ok(Some((grouped, Some(reason)))) => {
                    let way = if grouped { "a group's kernel" } else { way };
                    result.failure = Some(format!("{way}: {reason}"));
                }
                Ok(Some((grouped, None))) => result.native = grouped,
                Err(e) => result.failure = Some(format!("{way}: {e}")),
            }
            if result.failure.is_some() {
                break;
            }
        }
        result
    }

    /// Draws the case's operands and builds its graph.
    fn draw<'a>(&self, executor: &'a Executor, index: usize) -> Result<Drawn<'a>> {
        let mut graph = Graph::new();
        graph.extent("tokens", self.tokens.0);
        let mut d = Drawing {
            executor,
            extents: [self.tokens],
            random: Random::new(index as u64 + 1),
            graph,
            leaves: Vec::new(),
            written: Vec::new(),
            states: Vec::new(),
        };
        let wanted = match &self.kind {
            Kind::Products(p) => p.build(&mut d)?,
            Kind::Biases(b) => b.build(&mut d)?,
            Kind::Norms(n) => n.build(&mut d)?,
            Kind::Route(r) => r.build(&mut d)?,
            Kind::Router(r) => r.build(&mut d)?,
            Kind::Experts(e) => e.build(&mut d)?,
            Kind::Cache(c) => c.build(&mut d)?,
            Kind::Recurrent(layer) => layer.build(&mut d)?,
        };
        for (i, value) in wanted.iter().enumerate() {
            d.graph.output(&format!("output{i}"), *value)?;
        }
        Ok(Drawn { d, wanted })
    }

    /// Runs the case once, with these operands if they are drawn. `None`: native kernels were requested and the device
    /// has none.
    fn attempt<'a>(
        &self,
        executor: &'a Executor,
        index: usize,
        native: bool,
        drawn: Option<Drawn<'a>>,
    ) -> Result<Option<Ran<'a>>> {
        let drawn = drawn.map_or_else(|| self.draw(executor, index), Ok)?;
        let d = &drawn.d;
        let mut plan = d.graph.compile_apart(executor, CompileOptions { native, ..CompileOptions::default() })?;
        if native && plan.native_launches() == 0 {
            return Ok(None);
        }
        plan.set_extent("tokens", self.tokens.1)?;
        for (name, bytes) in &d.written {
            plan.write_raw(name, bytes)?;
        }
        plan.fill_arena(POISON)?;
        plan.run()?;
        let grouped = native && plan.launches() < d.graph.steps().len();
        Ok(Some(Ran { drawn, plan, grouped }))
    }
}

/// A case's operands and graph.
struct Drawn<'a> {
    d: Drawing<'a>,
    /// The values that are output.
    wanted: Vec<NodeId>,
}

/// A case that ran.
struct Ran<'a> {
    drawn: Drawn<'a>,
    plan: Plan,
    /// Whether native kernels of groups ran.
    grouped: bool,
}

/// The values of a case's nodes by the operations' references, and the newest version of each state.
type Known = (Vec<Bounded>, Vec<NodeId>);

impl Ran<'_> {
    /// Outputs and states, with their references, which are computed unless they are known.
    fn outputs(&self, known: &mut Option<Known>) -> Result<Vec<CaseOutput>> {
        let Drawn { d, wanted } = &self.drawn;
        if known.is_none() {
            *known = Some(evaluate(&d.graph, &d.extents, &d.leaves)?);
        }
        let Some((values, states)) = known else { return Ok(Vec::new()) };
        let slack = d.executor.info().slack();
        let reference = |node: NodeId| values[node.0 as usize].reference().loosened(slack);
        let mut outputs = Vec::new();
        for (i, value) in wanted.iter().enumerate() {
            let name = format!("output{i}");
            let (spec, bytes) = (self.plan.output_spec(&name)?.clone(), self.plan.read_raw(&name)?);
            outputs.push(CaseOutput { name, spec, bounded: true, bytes, reference: reference(*value), flushed: None });
        }
        for (i, (tensor, newest)) in d.states.iter().zip(states).enumerate() {
            let mut bytes = vec![0; tensor.bytes()];
            d.executor.backend().copy_from_buffer(&tensor.buffer, tensor.offset, &mut bytes)?;
            let (name, spec) = (format!("state {i}"), fixed_spec(tensor.dtype(), tensor.shape()));
            outputs.push(CaseOutput {
                name,
                spec,
                bounded: false,
                bytes,
                reference: reference(*newest),
                flushed: None,
            });
        }
        Ok(outputs)
    }
}

/// See [`super::run_native`].
pub(super) fn run_native(executor: &Executor, max_work: usize, mut each: impl FnMut(&str, &Outputs)) -> Result<()> {
    let cases = cases_for(executor);
    for (index, case) in cases.iter().enumerate().filter(|(_, case)| case.work() <= max_work) {
        if let Some(ran) = case.attempt(executor, index, true, None)?.filter(|ran| ran.grouped) {
            each(&case.name(), &|| ran.outputs(&mut None));
        }
    }
    Ok(())
}

/// Runs the cases that take at most about `max_work` multiplications, as single programs and then as the device's
/// kernels.
pub(super) fn run(executor: &Executor, max_work: usize) -> Vec<CaseResult> {
    let all = cases_for(executor).into_iter().enumerate();
    all.filter(|(_, c)| c.work() <= max_work).map(|(index, case)| case.run(executor, index)).collect()
}

/// All cases for a device.
pub(super) fn cases_for(executor: &Executor) -> Vec<GroupCase> {
    cases(|format| executor.backend().policy().weight_layout(format))
}

/// All cases, with weights laid out for a device.
fn cases(layout: impl Fn(DType) -> DType) -> Vec<GroupCase> {
    let mut cases = Vec::new();
    // Weights with the conversions of their left side that are valid for this row length.
    let pairs = |k: usize| {
        let i8 = |group, floor| Convert::I8 { group, floor };
        [
            (DType::F32, Convert::None),
            (DType::F16, Convert::None),
            (DType::BF16, Convert::BF16),
            (DType::Q8_0, i8(32, 0.0)),
            (DType::Q8_0, Convert::BF16),
            (DType::Q4_0, i8(32, 0.0)),
            (DType::Q4_0, Convert::BF16),
            (DType::TQ2_0, i8(256, 0.0)),
            (DType::TQ2_0, i8(k, 1e-5)),
            (DType::F16, Convert::BF16),
        ]
    };
    let forms: [(&[usize], End); 6] = [
        (&[48, 16, 16], End::Products),
        (&[40, 40], End::Swiglu),
        (&[40, 40], End::Relu2),
        (&[0], End::Add { first: true }),
        (&[0], End::Add { first: false }),
        (&[40], End::Products),
    ];
    let mut products = |tokens, norm, k: usize, rows: &[usize], end, (weights, convert): (DType, Convert)| {
        // An operand that is added has the left side's shape.
        let rows = rows.iter().map(|m| if *m == 0 { k } else { *m }).collect();
        let kind = Kind::Products(Products { norm, convert, weights: layout(weights), k, rows, end });
        cases.push(GroupCase { tokens, kind });
    };
    for (i, (rows, end)) in forms.iter().enumerate() {
        for (j, (short, long)) in pairs(256).into_iter().zip(pairs(512)).enumerate() {
            products((1, 1), (i + j) % 2 == 0, 512, rows, *end, long);
            products((1, 1), (i + j) % 2 == 1, 256, rows, *end, short);
            products((8, 5), true, 256, rows, *end, short);
        }
    }
    for pair in pairs(256) {
        products((40, 33), true, 256, &[96, 32, 32], End::Products, pair);
        products((40, 33), false, 256, &[72, 72], End::Swiglu, pair);
        products((4, 0), true, 256, &[0], End::Add { first: true }, pair);
    }
    for (tokens, i) in [((1, 1), 2), ((1, 1), 3), ((8, 5), 5), ((40, 33), 2), ((40, 33), 4), ((40, 33), 8)] {
        let pair = pairs(256)[i];
        let convert = if let Convert::I8 { floor, .. } = pair.1 { Convert::I8 { group: 32, floor } } else { pair.1 };
        products(tokens, i == 2, 256, &[64, 64], End::SwigluConverted(convert), pair);
    }
    // Rows and tokens of several tiles of any kernel.
    for i in [2, 3, 4, 8, 9] {
        products((1, 1), true, 2048, &[128, 64, 64], End::Products, pairs(2048)[i]);
        products((40, 33), false, 256, &[0], End::Add { first: true }, pairs(256)[i]);
        products((160, 130), true, 256, &[64, 64], End::Relu2, pairs(256)[i]);
    }
    // One token with rows for several tiles of each of many workgroups.
    for i in [3, 5, 8] {
        products((1, 1), true, 512, &[2300, 40, 41], End::Products, pairs(512)[i]);
        products((1, 1), true, 512, &[1300, 1300], End::Relu2, pairs(512)[i]);
    }
    // Sweeps over types and sizes. Where weights stay in blocks, one kernel reads rows of any type, and the sizes of
    // tiles mean nothing: such a device runs every third case of a sweep, of each type others.
    let in_planes = DType::BLOCKS.into_iter().any(|format| layout(format) != format);
    let taken = |weights: usize, size: usize| in_planes || (weights + size).is_multiple_of(3);
    let packed = || DType::BLOCKS.into_iter().filter(|f| f.in_planes().packed().is_some());
    let codes = Convert::I8 { group: 32, floor: 0.0 };
    let swept = [
        // A few tokens' codes, with rows for tiles of several matrices.
        ((8, 7), false, 512, &[72, 24, 40][..], End::Products, codes),
        ((8, 8), true, 512, &[72, 72], End::Swiglu, codes),
        ((6, 3), false, 256, &[0], End::Add { first: true }, codes),
        ((8, 6), false, 9216, &[40], End::Products, codes),
        ((16, 15), false, 512, &[72, 24, 40], End::Products, codes),
        ((16, 13), true, 512, &[72, 72], End::Swiglu, codes),
        ((16, 11), false, 9216, &[40], End::Products, codes),
        // Many tokens with weights that kernels widen themselves: parts of tiles, rows that workgroups share, an odd
        // number of records.
        ((30, 27), false, 512, &[72, 40], End::Products, Convert::BF16),
        ((64, 50), true, 256, &[40, 40], End::Swiglu, Convert::BF16),
        ((32, 29), false, 2304, &[40], End::Products, Convert::BF16),
        ((200, 170), false, 256, &[72], End::Products, Convert::BF16),
    ];
    for (i, weights) in [DType::Q8_0, DType::Q4_0].into_iter().chain(packed()).enumerate() {
        for (j, (tokens, norm, k, rows, end, convert)) in swept.into_iter().enumerate() {
            // Codes are multiplied with codes.
            if taken(i, j) && !(weights.has_float_codes() && convert == codes) {
                products(tokens, norm, k, rows, end, (weights, convert));
            }
        }
    }
    // Types that devices may lay out in planes of codes, factors and records.
    let swept = [
        ((1, 1), true, 2048, &[48, 16, 16][..], End::Products, codes),
        ((1, 1), true, 512, &[40, 40], End::Swiglu, codes),
        ((4, 3), false, 512, &[0], End::Add { first: true }, codes),
        ((1, 1), false, 8192, &[40], End::Products, codes),
        ((40, 33), true, 256, &[64, 64], End::Swiglu, Convert::BF16),
        ((40, 33), false, 256, &[0], End::Add { first: true }, Convert::BF16),
    ];
    for (i, weights) in packed().enumerate() {
        for (j, (tokens, norm, k, rows, end, convert)) in swept.into_iter().enumerate() {
            if taken(i, j) {
                let convert = if weights.has_float_codes() && convert == codes { Convert::None } else { convert };
                products(tokens, norm, k, rows, end, (weights, convert));
            }
        }
    }
    // Norms and gates of rows that are too long for a workgroup to keep.
    for weights in [DType::Q4_K, DType::IQ4_XS] {
        products((1, 1), true, 5120, &[48, 16], End::Products, (weights, codes));
        products((1, 1), true, 5120, &[40, 40], End::Swiglu, (weights, codes));
    }
    // Rows of which kernels that take 256 elements at a time have a part.
    for (weights, k) in [(DType::MXFP4, 1120), (DType::IQ4_NL, 96), (DType::Q5_0, 160), (DType::NVFP4, 2880)] {
        products((1, 1), true, k, &[37], End::Products, (weights, codes));
    }
    // The same where devices multiply codes with f32.
    let swept = [
        ((1, 1), true, 1280, &[24, 9, 10][..], End::Products),
        ((4, 3), true, 512, &[21, 21], End::Swiglu),
        ((8, 7), false, 256, &[0], End::Add { first: true }),
    ];
    for weights in [DType::Q8_0, DType::Q4_0].into_iter().chain(packed()).filter(|_| in_planes) {
        for (tokens, norm, k, rows, end) in swept {
            products(tokens, norm, k, rows, end, (weights, Convert::None));
        }
    }
    for (tokens, pair) in [((1, 1), pairs(512)[2]), ((5, 3), pairs(512)[3]), ((5, 3), pairs(512)[8])] {
        products(tokens, true, 512, &[], End::Converted, pair);
    }
    for (n, k) in [(60, 4), (128, 8), (200, 32), (512, 10)] {
        for softmax_first in [true, false] {
            for tokens in [(1, 1), (20, 17)] {
                cases.push(GroupCase { tokens, kind: Kind::Route(Route { n, k, softmax_first }) });
            }
        }
    }
    for (tokens, widths) in [((1, 1), vec![4096, 512, 512]), ((9, 7), vec![33, 20])] {
        cases.push(GroupCase { tokens, kind: Kind::Biases(Biases(widths)) });
    }
    for (tokens, heads, d) in [((1, 1), (32, 4), 128), ((5, 3), (3, 1), 256), ((20, 17), (4, 4), 1100)] {
        cases.push(GroupCase { tokens, kind: Kind::Norms(Norms { heads, d }) });
    }
    for (tokens, width, n, k) in [((1, 1), 2048, 128, 8), ((8, 5), 96, 33, 4), ((3, 3), 2880, 300, 6)] {
        for (i, convert) in [codes, Convert::BF16, Convert::None].into_iter().enumerate() {
            let (biased, softmax_first, normed) = (i == 0, i == 1, i != 1);
            let kind = Kind::Router(Router { convert, width, n, k, biased, softmax_first, normed });
            cases.push(GroupCase { tokens, kind });
        }
    }
    // A token, a few of which each has matrices of its own, and many with tiles of a few slots and of many.
    let plain = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0];
    for (i, weights) in plain.into_iter().chain(packed()).enumerate() {
        let (few, many) = match weights {
            DType::F32 => (Convert::None, Convert::None),
            w if w == DType::F16 || w.has_float_codes() => (Convert::None, Convert::BF16),
            DType::BF16 => (Convert::BF16, Convert::BF16),
            _ => (codes, Convert::BF16),
        };
        let swept = [
            ((1, 1), 6, 3, 256, 70, End::ClampedSwiglu, few),
            ((40, 33), 3, 2, 256, 140, End::ClampedSwiglu, many),
            ((1, 1), 6, 3, 512, 70, End::Swiglu, few),
            ((1, 1), 6, 5, 256, 45, End::Products, few),
            ((1, 1), 6, 3, 256, 48, End::Add { first: true }, few),
            ((8, 5), 16, 2, 256, 40, End::Relu2, few),
            ((8, 6), 16, 9, 256, 33, End::Add { first: false }, few),
            ((10, 9), 3, 2, 256, 300, End::Swiglu, many),
            ((40, 33), 3, 2, 512, 140, End::Relu2, many),
            ((40, 33), 3, 2, 256, 52, End::Products, many),
            ((130, 127), 2, 2, 256, 40, End::Swiglu, many),
        ];
        for (j, (tokens, experts, slots, k, m, end, convert)) in swept.into_iter().enumerate() {
            if taken(i, j) {
                let weights = layout(weights);
                let biased = end == End::ClampedSwiglu || matches!(end, End::Add { first: true });
                let kind = Kind::Experts(Experts { convert, weights, experts, slots, k, m, end, biased });
                cases.push(GroupCase { tokens, kind });
            }
        }
    }
    // Experts' rows of which kernels that take 256 elements at a time have a part, and many times as many.
    for (weights, k) in [(DType::MXFP4, 2880), (DType::IQ4_NL, 1120), (DType::NVFP4, 192), (DType::IQ3_S_N, 4352)] {
        for end in [End::ClampedSwiglu, End::Add { first: true }] {
            let weights = layout(weights);
            let experts =
                Experts { convert: codes, weights, experts: 4, slots: 2, k, m: 52, end, biased: k % 256 != 0 };
            cases.push(GroupCase { tokens: (2, 1), kind: Kind::Experts(experts) });
        }
    }
    for (style, kv) in [(RopeStyle::Adjacent, Type::F32), (RopeStyle::HalfSplit, Type::F16)] {
        for attention in [None, Some(AttentionPrecision::F32.into())] {
            let mut cache = |tokens, heads, d, first, batched| {
                let kind = Kind::Cache(Cache { attention, style, kv, heads, d, first, batched, sinks: false });
                cases.push(GroupCase { tokens, kind });
            };
            cache((1, 1), (4, 1), 64, 0, false);
            cache((1, 1), (8, 2), 128, 201, false);
            cache((1, 1), (3, 3), 80, 31, false);
            cache((1, 1), (8, 2), 64, 400, false);
            cache((4, 3), (6, 2), 64, 40, true);
            cache((40, 35), (4, 2), 64, 30, false);
        }
    }
    // Windows that end within a tile of any kernel.
    for (kv, heads, d, window) in [
        (Type::F32, (8, 2), 64, 1),
        (Type::F32, (4, 1), 128, 70),
        (Type::F16, (8, 2), 128, 33),
        (Type::F16, (8, 1), 64, 150),
    ] {
        let attention = Some(AttentionOptions {
            precision: AttentionPrecision::F32,
            window: Some(window),
            ..AttentionOptions::default()
        });
        // With the longer windows a cap and sinks as well.
        for sinks in [false, true].into_iter().filter(|sinks| !sinks || window > 100 || d == 128) {
            let attention = attention.map(|options| AttentionOptions { cap: sinks.then_some(2.0), ..options });
            for (tokens, first, batched) in [((1, 1), 201, false), ((4, 3), 40, true), ((40, 35), 130, false)] {
                let style = RopeStyle::HalfSplit;
                let kind = Kind::Cache(Cache { attention, style, kv, heads, d, first, batched, sinks });
                cases.push(GroupCase { tokens, kind });
            }
        }
    }
    // Query heads of a key/value head that do not divide the rows of a kernel's workgroup, for several workgroups.
    let attention = Some(AttentionPrecision::F32.into());
    let (style, kv) = (RopeStyle::HalfSplit, Type::F16);
    let cache = Cache { attention, style, kv, heads: (7, 1), d: 64, first: 0, batched: false, sinks: false };
    cases.push(GroupCase { tokens: (130, 127), kind: Kind::Cache(cache) });
    cases.extend(recurrent::cases().map(|(tokens, layer)| GroupCase { tokens, kind: Kind::Recurrent(layer) }));
    let attention = Some(AttentionPrecision::BF16.into());
    let cache = Cache {
        attention,
        style: RopeStyle::Adjacent,
        kv: Type::F32,
        heads: (8, 2),
        d: 128,
        first: 17,
        batched: false,
        sinks: false,
    };
    cases.push(GroupCase { tokens: (96, 70), kind: Kind::Cache(cache) });
    cases
}
