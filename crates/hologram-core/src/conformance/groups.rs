//! Cases of groups: operations that one kernel of a device may compute, in the forms that models have them.
//!
//! Each case runs with and without native kernels against the composition of the operations' references in `f64`.

mod cases;
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
use crate::ops::{AttentionOptions, RopeStyle};
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
    Biased(Biased),
    Route(Route),
    Router(Router),
    Experts(Experts),
    Cache(Cache),
    Recurrent(recurrent::Layer),
}

/// Products that share their left side, and the operations before and after them.
#[derive(Clone, Debug)]
struct Products {
    norm: bool,
    convert: Convert,
    /// The format of the first weight, and of the others.
    weights: DType,
    others: DType,
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

/// A tensor of this width, its bias, and GELU or the sum with another tensor, converted.
#[derive(Clone, Debug)]
struct Biased {
    width: usize,
    gelu: bool,
    convert: Convert,
}

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
    /// Position of the first token.
    first: usize,
    /// Tokens that follow each other in a sequence, one of as many as there are tokens; all in one sequence for `None`.
    each: Option<usize>,
    /// Whether heads have sinks.
    sinks: bool,
    /// Whether the result becomes `bf16`, as rows of all heads.
    bf16: bool,
    /// Whether heads' queries and keys are normalised first.
    norms: bool,
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
        for (i, m) in self.rows.iter().enumerate() {
            let format = if i == 0 { self.weights } else { self.others };
            let w = d.leaf(CaseInput::normal(format, &[(*m).into(), self.k.into()]))?;
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

impl Biased {
    fn build(&self, d: &mut Drawing<'_>) -> Result<Vec<NodeId>> {
        let tensor = CaseInput::normal(DType::F32, &[TOKENS, self.width.into()]);
        let (x, bias) = (d.leaf(tensor.clone())?, d.leaf(CaseInput::normal(DType::F32, &[self.width.into()]))?);
        let y = d.graph.add(x, bias)?;
        let y = if self.gelu {
            d.graph.gelu(y)?
        } else {
            let residual = d.leaf(tensor)?;
            d.graph.add(residual, y)?
        };
        Ok(vec![self.convert.apply(&mut d.graph, y)?])
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
        let (sequences, each) = if let Some(each) = self.each { (max, each) } else { (1, max) };
        let per_sequence = (self.first + max).div_ceil(BLOCK);
        let sequence = |t: usize| t / each;
        let position = |t: usize| (self.first + 7 * sequence(t) + t % each) % (per_sequence * BLOCK);
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

        let (mut q, mut k) = (q, k);
        if self.norms {
            let [of_q, of_k] = [0, 1].map(|_| d.leaf(CaseInput::normal(DType::F32, &[self.d.into()])));
            (q, k) = (d.graph.rms_norm(q, of_q?, 1e-6)?, d.graph.rms_norm(k, of_k?, 1e-6)?);
        }
        let q = d.graph.rope(q, positions, frequencies, self.style)?;
        let k = d.graph.rope(k, positions, frequencies, self.style)?;
        let k = d.graph.kv_append(k_cache, k, slots)?;
        let v = d.graph.kv_append(v_cache, v, slots)?;
        let Some(mut options) = self.attention else { return Ok(vec![q]) };
        if self.sinks {
            options.sinks = Some(d.leaf(CaseInput::normal(DType::F32, &[self.heads.0.into()]))?);
        }
        let scale = 1.0 / (self.d as f32).sqrt();
        let y = d.graph.attention_with(q, k, v, positions, of, table, scale, options)?;
        if !self.bf16 {
            return Ok(vec![y]);
        }
        let rows = d.graph.reshape(y, &[TOKENS, (self.heads.0 * self.d).into()])?;
        Ok(vec![d.graph.cast(rows, Type::BF16)?])
    }
}

impl GroupCase {
    /// Approximate number of multiplications.
    fn work(&self) -> usize {
        match &self.kind {
            Kind::Products(p) => self.tokens.1 * p.k * p.rows.iter().sum::<usize>().max(1),
            Kind::Biases(b) => self.tokens.1 * b.0.iter().sum::<usize>(),
            Kind::Biased(b) => self.tokens.1 * b.width,
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
            Kind::Biases(_) | Kind::Biased(_) | Kind::Norms(_) | Kind::Route(_) | Kind::Recurrent(_) => {
                return "f32".into();
            }
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
            Kind::Biased(b) => b.build(&mut d)?,
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
        // Chains of elementwise operations are one step before they are one group.
        let fewer = plan.launches() < d.graph.steps().len();
        let grouped = native && (fewer || matches!(self.kind, Kind::Biased(_)));
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
    cases::cases(|format| executor.backend().policy().weight_layout(format))
}
