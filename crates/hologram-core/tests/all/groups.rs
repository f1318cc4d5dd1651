//! Groups of operations: which are offered to a device, how their kernels are bound, and correct memory
//! and order around them.

use std::sync::{Arc, Mutex};

use hologram_backends::cpu::CpuBackend;
use hologram_backends::{
    Backend, Binding, CommandList, Extent, GroupNode, GroupSpec, KernelSpec, Kernels, Launch, LaunchConfig, Operand,
    Operation, Pipeline, Policy, TensorSpec, pass_on,
};
use hologram_core::ops::{Recurrence, RecurrenceOperands, RopeStyle};
use hologram_core::{CompileOptions, DType, Dim, Executor, Graph, NodeId, Result, Tensor, conformance};
use hologram_isa::{Access, Builder, Program, Type};

type Likes = fn(&GroupSpec) -> bool;
type BackendResult<T> = hologram_backends::Result<T>;

/// The CPU with kernels for the groups that it `likes`. Such a kernel first fills its outputs with NaN, as would a
/// kernel that writes them while it still reads. Then it computes the operations one by one through separate memory.
struct Grouping {
    cpu: CpuBackend,
    policy: Policy,
    likes: Likes,
    /// Whether the last operation of a group is left out.
    faulty: bool,
    offered: Mutex<Vec<GroupSpec>>,
}

/// The pipeline of a group.
struct GroupKernel(GroupSpec);

impl Grouping {
    fn open(likes: Likes) -> (Arc<Grouping>, Executor) {
        let cpu = CpuBackend::new(Some(2)).expect("there is always a CPU");
        let backend =
            Arc::new(Grouping { cpu, policy: Policy::default(), likes, faulty: false, offered: Mutex::default() });
        (backend.clone(), Executor::from_backend(backend))
    }

    /// The specification of a single operation of a group.
    fn single(group: &GroupSpec, node: &GroupNode) -> KernelSpec {
        KernelSpec {
            op: node.op.clone(),
            inputs: node.operands.iter().map(|o| group.operand(*o).clone()).collect(),
            output: node.output.clone(),
            in_place: node.in_place,
        }
    }

    /// The operations of the groups offered since the last call.
    fn offered(&self) -> Vec<String> {
        let specs = std::mem::take(&mut *self.offered.lock().unwrap());
        specs.iter().map(describe).collect()
    }

    /// The launches that compute a group with these bindings.
    fn expand(&self, group: &GroupSpec, bindings: &[Binding]) -> BackendResult<Vec<Launch>> {
        let count = |t: &TensorSpec| t.format.views(t.max_rows(), t.row_len()).len();
        let bound = group.bound();
        let mut rest = bindings;
        let mut places: Vec<Vec<Binding>> = Vec::new();
        for (tensor, _) in &bound {
            let (views, after) = rest.split_at(count(tensor));
            places.push(views.to_vec());
            rest = after;
        }
        assert_eq!(rest.len(), usize::from(group.uses_step()), "the step block comes last");
        let mut launches = Vec::new();
        for ((tensor, _), views) in bound.iter().zip(&places).skip(group.inputs.len()) {
            if let (DType::F32, [Binding::Buffer { range, .. }]) = (tensor.format, views.as_slice()) {
                let bindings = vec![views[0].clone(), Binding::Scalar((range.len() / 4) as u64)];
                let pipeline = self.cpu.kernels().compile(&fill_with_nan())?;
                let grid = [(range.len() / 4).div_ceil(64).max(1) as u32, 1, 1];
                launches.push(Launch { pipeline, bindings, config: LaunchConfig { grid } });
            }
        }
        let mut values: Vec<Vec<Binding>> = Vec::new();
        for (i, node) in group.nodes.iter().enumerate() {
            let operand = |o: &Operand| match o {
                Operand::Input(input) => places[*input].clone(),
                Operand::Node(node) => values[*node].clone(),
            };
            let mut args: Vec<Binding> = node.operands.iter().flat_map(operand).collect();
            let output = match (node.in_place, group.outputs.iter().position(|o| *o == i)) {
                (Some(state), _) => operand(&node.operands[state]),
                (None, Some(place)) => places[group.inputs.len() + place].clone(),
                (None, None) => {
                    let scratch = self.cpu.allocate_buffer(node.output.max_bytes())?;
                    let view = |v: hologram_backends::View| Binding::Buffer {
                        buffer: scratch.clone(),
                        range: v.offset..v.offset + v.bytes,
                    };
                    let t = &node.output;
                    t.format.views(t.max_rows(), t.row_len()).into_iter().map(view).collect()
                }
            };
            if node.in_place.is_none() {
                args.extend(output.iter().cloned());
            }
            let spec = Grouping::single(group, node);
            if spec.uses_step() {
                args.push(rest[0].clone());
            }
            let pipeline = self.cpu.kernels().native(&spec).expect("the group was refused otherwise");
            launches.push(Launch { pipeline, bindings: args, config: LaunchConfig { grid: [1, 1, 1] } });
            values.push(output);
        }
        if self.faulty {
            launches.pop();
        }
        Ok(launches)
    }
}

/// `matmul(1, 2) add(0, n0) -> n1`: operands are inputs, or nodes of the group.
fn describe(group: &GroupSpec) -> String {
    let operand = |o: &Operand| match o {
        Operand::Input(i) => i.to_string(),
        Operand::Node(i) => format!("n{i}"),
    };
    let node = |n: &GroupNode| format!("{}({})", n.op, n.operands.iter().map(operand).collect::<Vec<_>>().join(","));
    let nodes: Vec<String> = group.nodes.iter().map(node).collect();
    let outputs: Vec<String> = group.outputs.iter().map(|o| format!("n{o}")).collect();
    format!("{} -> {}", nodes.join(" "), outputs.join(","))
}

fn fill_with_nan() -> Program {
    let mut b = Builder::new("fill_with_nan", [64, 1, 1]);
    let out = b.buffer("out", Type::U32, Access::Write);
    let len = b.scalar("len", Type::U32);
    let i = b.global_x();
    let inside = b.lt(i, len);
    b.if_(inside, |b| b.store(out, i, u32::MAX));
    b.finish().expect("a valid program")
}

impl Backend for Grouping {
    pass_on!(self => self.cpu;
        info is_available measure streams allocate_buffer allocate_pool owns available_memory wrap copy_to_buffer
        copy_from_buffer copy_buffer clear_error submit wait synchronize);

    fn kernels(&self) -> &dyn Kernels {
        self
    }
    fn policy(&self) -> &Policy {
        &self.policy
    }
    fn record(&self, launches: &[Launch]) -> BackendResult<CommandList> {
        let mut all = Vec::new();
        for launch in launches {
            match launch.pipeline.downcast::<GroupKernel>() {
                Some(group) => all.extend(self.expand(&group.0, &launch.bindings)?),
                None => all.push(launch.clone()),
            }
        }
        self.cpu.record(&all)
    }
}

impl Kernels for Grouping {
    pass_on!(self => self.cpu.kernels(); compile native prefers_fixed expect_weights);

    fn native_group(&self, group: &GroupSpec) -> Option<Pipeline> {
        self.offered.lock().unwrap().push(group.clone());
        let possible =
            group.nodes.iter().all(|node| self.cpu.kernels().native(&Grouping::single(group, node)).is_some());
        (possible && (self.likes)(group)).then(|| Pipeline::native("group", GroupKernel(group.clone())))
    }
}

/// Pseudo-random numbers in -1..1.
fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as f32 / 2_147_483_648.0 - 1.0
    };
    (0..n).map(next).collect()
}

/// Adds weights to a graph.
struct Weights<'a> {
    executor: &'a Executor,
    seed: u32,
}

impl Weights<'_> {
    /// A matrix, or a vector of one row.
    fn add(&mut self, g: &mut Graph, shape: &[usize]) -> Result<NodeId> {
        self.seed += 1;
        let data = noise(shape.iter().product(), self.seed);
        g.constant(&Tensor::from_slice(self.executor, shape, &data)?)
    }

    fn norm(&mut self, g: &mut Graph, x: NodeId) -> Result<NodeId> {
        let w = self.add(g, &[D])?;
        g.rms_norm(x, w, 1e-5)
    }

    fn product(&mut self, g: &mut Graph, x: NodeId, rows: usize) -> Result<NodeId> {
        let w = self.add(g, &[rows, D])?;
        g.linear(x, w)
    }
}

const D: usize = 64;

#[test]
fn the_longest_candidates_are_offered_first() -> Result<()> {
    type Build = fn(&mut Graph, NodeId, &mut Weights) -> Result<NodeId>;
    let cases: &[(&str, Likes, Build, &[&str])] = &[
        (
            "three products of a norm",
            |g| g.nodes.len() == 2,
            |g, x, w| {
                let h = w.norm(g, x)?;
                let (a, b, c) = (w.product(g, h, D)?, w.product(g, h, D)?, w.product(g, h, D)?);
                let y = g.mul(a, b)?;
                g.mul(y, c)
            },
            &[
                "rms_norm(0,1) matmul(n0,2) matmul(n0,3) matmul(n0,4) -> n1,n2,n3",
                "matmul(0,1) matmul(0,2) matmul(0,3) -> n0,n1,n2",
                // With two products in a group the third still reads the norm, so no kernel may leave
                // out the norm's value.
                "matmul(0,1) matmul(0,2) -> n0,n1",
            ],
        ),
        (
            "four products of a norm",
            |g| g.nodes.len() == 5,
            |g, x, w| {
                let h = w.norm(g, x)?;
                let mut y = w.product(g, h, D)?;
                for _ in 0..3 {
                    let other = w.product(g, h, D)?;
                    y = g.mul(y, other)?;
                }
                Ok(y)
            },
            &["rms_norm(0,1) matmul(n0,2) matmul(n0,3) matmul(n0,4) matmul(n0,5) -> n1,n2,n3,n4"],
        ),
        (
            "a norm and a conversion that no product follows",
            |_| true,
            |g, x, w| {
                let h = w.norm(g, x)?;
                let h = g.cast(h, DType::BF16)?;
                let mut product = |g: &mut Graph| {
                    let w = w.add(g, &[D, D])?;
                    let w = g.cast(w, DType::BF16)?;
                    g.linear(h, w)
                };
                let (gate, up) = (product(g)?, product(g)?);
                g.swiglu(gate, up)
            },
            // Conversions of weights, which only tests have, stand between.
            &["rms_norm(0,1) cast(n0) -> n1"],
        ),
        (
            "a gate with a conversion and its norm",
            |g| matches!(g.nodes[0].op, Operation::Quantize { .. }),
            |g, x, w| {
                let h = w.norm(g, x)?;
                let h = g.quantize(h, 32, 0.0)?;
                let weight = |g: &mut Graph| -> Result<NodeId> {
                    g.constant(&Tensor::from_bytes(w.executor, DType::Q8_0, &[D, D], &[1; D * D / 32 * 34])?)
                };
                let (gate, up) = (weight(g)?, weight(g)?);
                let (gate, up) = (g.linear(h, gate)?, g.linear(h, up)?);
                g.relu2_mul(gate, up)
            },
            &[
                "rms_norm(0,1) quantize(n0) matmul(n1,2) matmul(n1,3) relu2_mul(n2,n3) -> n4",
                "quantize(0) matmul(n0,1) matmul(n0,2) relu2_mul(n1,n2) -> n3",
            ],
        ),
        (
            "a gate that is converted",
            |g| g.nodes[0].op == Operation::Cast || g.nodes.len() == 3,
            |g, x, w| {
                let (gate, up) = (w.product(g, x, D)?, w.product(g, x, D)?);
                let f = g.swiglu(gate, up)?;
                let f = g.cast(f, DType::BF16)?;
                let down = Tensor::from_slice(
                    w.executor,
                    &[D, D],
                    &noise(D * D, 8).into_iter().map(half::bf16::from_f32).collect::<Vec<_>>(),
                )?;
                let down = g.constant(&down)?;
                let y = g.linear(f, down)?;
                g.add(y, x)
            },
            &[
                "matmul(0,1) matmul(0,2) swiglu(n0,n1) cast(n2) -> n3",
                "matmul(0,1) matmul(0,2) swiglu(n0,n1) -> n2",
                "cast(0) matmul(n0,1) add(n1,2) -> n2",
            ],
        ),
        (
            "an addition in either order, and a value used elsewhere",
            |g| g.nodes.len() == 2,
            |g, x, w| {
                let a = w.product(g, x, D)?;
                let a = g.add(a, x)?;
                let h = w.norm(g, a)?;
                let b = w.product(g, h, D)?;
                g.output("h", h)?;
                g.add(a, b)
            },
            &["matmul(0,1) add(n0,0) -> n1", "matmul(0,1) add(2,n0) -> n1"],
        ),
        (
            "a recurrence with the copies and norms of its operands",
            |_| true,
            |g, x, w| {
                let part = |g: &mut Graph, start: usize, heads: usize| {
                    let x = g.slice(x, 1, start, start + 16 * heads)?;
                    let x = g.reshape(x, &[3.into(), heads.into(), 16.into()])?;
                    g.copy(x)
                };
                let (q, k, values) = (part(g, 0, 1)?, part(g, 16, 1)?, part(g, 32, 2)?);
                let norms = [w.add(g, &[16])?, w.add(g, &[16])?];
                let keys = g.rms_norm(k, norms[0], 1e-5)?;
                let queries = g.rms_norm(q, norms[1], 1e-5)?;
                let (decay, strength) = (w.add(g, &[3, 2])?, w.add(g, &[3, 2])?);
                let state = Tensor::from_slice(w.executor, &[2, 2, 16, 16], &noise(1024, 5))?;
                let state = g.state(&state)?;
                let runs = g.constant(&Tensor::from_slice(w.executor, &[1, 4], &[0u32, 3, 0, 1])?)?;
                let rule = Recurrence { delta: true, tiled: false };
                let operands = RecurrenceOperands { keys, values, decay, strength: Some(strength), runs };
                let state = g.recurrent_state(state, rule, operands)?;
                g.recurrence(state, rule, queries, operands)
            },
            &["copy_view(0) copy_view(0) copy_view(0) rms_norm(n1,1) rms_norm(n0,2) \
               recurrent_state(3,n3,n2,4,5,6) recurrence(n5,n3,n2,4,5,6,n4) -> n6"],
        ),
        (
            "a product with something that is not its prologue",
            |_| true,
            |g, x, w| {
                let h = w.norm(g, x)?;
                let y = w.product(g, x, D)?;
                let flat = g.reshape(y, &[Dim::Fixed(1), Dim::Fixed(D * 3)])?;
                let other = g.reshape(h, &[Dim::Fixed(1), Dim::Fixed(D * 3)])?;
                let y = g.add(flat, other)?;
                g.reshape(y, &[Dim::Fixed(3), Dim::Fixed(D)])
            },
            // The addition reads the product with another shape.
            &[],
        ),
    ];
    for (name, likes, build, expected) in cases {
        let (backend, executor) = Grouping::open(*likes);
        let mut g = Graph::new();
        let x = g.input("x", DType::F32, &[Dim::Fixed(3), Dim::Fixed(D)])?;
        let y = build(&mut g, x, &mut Weights { executor: &executor, seed: 0 })?;
        g.output("y", y)?;
        let mut plans = [
            g.compile(&executor, &[])?,
            g.compile_with(&executor, &[], CompileOptions { native: false, ..Default::default() })?,
        ];
        assert_eq!(backend.offered(), *expected, "{name}");
        let mut results = Vec::new();
        for plan in &mut plans {
            plan.write("x", &noise(3 * D, 99))?;
            plan.run()?;
            results.push(plan.read::<f32>("y")?);
        }
        let close = results[0].iter().zip(&results[1]).all(|(a, b)| (a - b).abs() <= 1e-4 * b.abs().max(1.0));
        assert!(close, "{name}: {:?} and {:?}", &results[0][..4], &results[1][..4]);
    }
    Ok(())
}

/// Two layers with caches; the maximum of both extents is 8.
fn layers(executor: &Executor, caches: &[[Tensor; 2]]) -> Result<Graph> {
    let mut g = Graph::new();
    let mut w = Weights { executor, seed: 0 };
    let tokens = g.extent("tokens", 8);
    let mut x = g.input("x", DType::F32, &[tokens, Dim::Fixed(D)])?;
    let index = |g: &mut Graph, name: &str| g.input(name, DType::U32, &[tokens]);
    let (slots, positions, sequences) =
        (index(&mut g, "slots")?, index(&mut g, "positions")?, index(&mut g, "sequences")?);
    let table = g.input("table", DType::U32, &[Dim::Fixed(1), Dim::Fixed(1)])?;
    let frequencies = w.add(&mut g, &[8])?;
    for cache in caches {
        let h = w.norm(&mut g, x)?;
        let mut heads = |g: &mut Graph, n: usize| {
            let y = w.product(g, h, n * 16)?;
            g.reshape(y, &[tokens, Dim::Fixed(n), Dim::Fixed(16)])
        };
        let (q, k, v) = (heads(&mut g, 4)?, heads(&mut g, 2)?, heads(&mut g, 2)?);
        let q = g.rope(q, positions, frequencies, RopeStyle::Adjacent)?;
        let k = g.rope(k, positions, frequencies, RopeStyle::Adjacent)?;
        let (k_cache, v_cache) = (g.state(&cache[0])?, g.state(&cache[1])?);
        let k = g.kv_append(k_cache, k, slots)?;
        let v = g.kv_append(v_cache, v, slots)?;
        let a = g.attention(q, k, v, positions, sequences, table, 0.25)?;
        let a = g.reshape(a, &[tokens, Dim::Fixed(D)])?;
        let a = w.product(&mut g, a, D)?;
        x = g.add(x, a)?;
        let h = w.norm(&mut g, x)?;
        let (gate, up) = (w.product(&mut g, h, D)?, w.product(&mut g, h, D)?);
        let f = g.swiglu(gate, up)?;
        let f = w.product(&mut g, f, D)?;
        x = g.add(x, f)?;
    }
    g.output("x", x)?;
    Ok(g)
}

#[test]
fn layers_of_groups_compute_what_single_kernels_compute() -> Result<()> {
    /// The bits of all results, with the number of launches.
    fn run(likes: Likes) -> Result<(Vec<u32>, usize)> {
        let (_, executor) = Grouping::open(likes);
        let cache = || -> Result<Tensor> {
            let cache = Tensor::empty(&executor, DType::F16, &[1, 2, 16, 16])?;
            cache.zero()?;
            Ok(cache)
        };
        let caches = [[cache()?, cache()?], [cache()?, cache()?]];
        let mut plan = layers(&executor, &caches)?.compile(&executor, &[])?;
        let mut results = Vec::new();
        for positions in [0..5u32, 5..6, 6..14] {
            let positions: Vec<u32> = positions.collect();
            plan.set_extent("tokens", positions.len())?;
            plan.write("x", &noise(positions.len() * D, positions[0]))?;
            for name in ["slots", "positions"] {
                plan.write(name, &positions)?;
            }
            plan.write("sequences", &vec![0u32; positions.len()])?;
            plan.write("table", &[0u32])?;
            plan.run()?;
            results.extend(plan.read::<f32>("x")?.iter().map(|v| v.to_bits()));
        }
        assert_eq!(plan.native_launches(), plan.launches());
        Ok((results, plan.launches()))
    }
    let (expected, launches) = run(|_| false)?;
    assert_eq!(launches, 2 * 17);
    assert!(expected.iter().all(|bits| f32::from_bits(*bits).is_finite()));
    let attention = |g: &GroupSpec| g.nodes.last().is_some_and(|n| matches!(n.op, Operation::Attention { .. }));
    let likes: [(Likes, usize); 4] = [
        (|_| true, 2 * 5),
        (|g| g.nodes.last().is_some_and(|n| !matches!(n.op, Operation::Attention { .. })), 2 * 6),
        (|g| g.nodes.len() == 2, 2 * 13),
        (|g| g.nodes[0].op == Operation::Matmul, 2 * 11),
    ];
    for (i, (likes, launches)) in likes.into_iter().enumerate() {
        assert_eq!(run(likes)?, (expected.clone(), launches), "preference {i}");
    }
    // The specification of the group of a cache's update and its attention.
    let (backend, executor) = Grouping::open(|_| false);
    let cache = || Tensor::empty(&executor, DType::F16, &[1, 2, 16, 16]);
    layers(&executor, &[[cache()?, cache()?]])?.compile(&executor, &[("tokens", 4)])?;
    let specs = backend.offered.lock().unwrap();
    let group = specs.iter().find(|g| attention(g)).expect("attention is offered");
    assert_eq!(
        describe(group),
        "rope(0,1,2) rope(3,1,2) kv_append(4,n1,5) kv_append(6,7,5) attention(n0,n2,n3,1,8,9) -> n4"
    );
    let written: Vec<bool> = group.bound().iter().map(|(_, written)| *written).collect();
    assert_eq!(written, [false, false, false, false, true, false, true, false, false, false, true]);
    let tokens = Extent::step(0, 4);
    assert_eq!(group.inputs[0].shape, [tokens, Extent::Fixed(4), Extent::Fixed(16)], "through the reshape");
    Ok(())
}

#[test]
fn the_conformance_suite_runs_groups_and_finds_their_faults() {
    for faulty in [false, true] {
        let cpu = CpuBackend::new(Some(2)).expect("there is always a CPU");
        let backend = Grouping { cpu, policy: Policy::default(), likes: |_| true, faulty, offered: Mutex::default() };
        let results = conformance::run_op(&Executor::from_backend(Arc::new(backend)), "groups", 100_000);
        let grouped = results.iter().filter(|r| r.native || r.failure.is_some()).count();
        assert!(results.len() > 100 && grouped > 80, "{grouped} of {} cases have groups", results.len());
        for result in results {
            match &result.failure {
                // Without tokens nothing can be wrong.
                None => assert!(!(faulty && result.native) || result.case.contains(" 0/"), "{result}: not found"),
                Some(failure) => assert!(faulty && failure.starts_with("a group's kernel: "), "{result}"),
            }
        }
    }
}
