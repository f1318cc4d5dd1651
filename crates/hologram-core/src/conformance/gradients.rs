//! The gradients of every differentiable operation against central differences of its reference in `f64`, and on a
//! device against the same gradients from references.

use hologram_backends::{DType, RopeStyle};
use hologram_isa::{Capability, Type};

use super::HostTensor;
use super::data::Random;
use crate::error::{CoreError, Result};
use crate::executor::Executor;
use crate::graph::{Graph, NodeId, Source};
use crate::layout::Layout;
use crate::ops::{Activation, Conv2dOptions, LossReduction, MatmulOptions, Pool2dOptions, Reduction, gradient_rows};
use crate::tensor::{Dim, TensorAttention};

/// The values of an operand.
#[derive(Clone, Debug)]
enum Values {
    /// Random floats of a range, of which the gradient is checked.
    Between(f64, f64),
    /// These floats; the gradient is checked.
    Floats(Vec<f64>),
    /// Indices, or the truth of a condition.
    Given(Vec<f64>),
}

/// An operand: its type, shape and values.
type Operand = (Type, Vec<usize>, Values);

type Build = Box<dyn Fn(&mut Graph, &[NodeId]) -> Result<NodeId>>;

/// A function of which the gradients by its float operands are checked.
struct Case {
    name: String,
    operands: Vec<Operand>,
    build: Build,
}

/// Checks every case: the gradient of a random weighted sum of the result, computed by references in `f64`, against
/// central differences; with a device, its gradients against those of the references. Returns the number of cases, and
/// a sentence for each failure.
pub fn check_gradients(executor: Option<&Executor>) -> (usize, Vec<String>) {
    let cases = cases();
    let failures = cases.iter().enumerate().filter_map(|(seed, case)| {
        let failure = match case.check(executor, seed as u64) {
            Ok(failure) => failure?,
            Err(e) => e.to_string(),
        };
        Some(format!("{}: {failure}", case.name))
    });
    (cases.len(), failures.collect())
}

fn fixed(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|n| Dim::Fixed(*n)).collect()
}

impl Case {
    fn check(&self, executor: Option<&Executor>, seed: u64) -> Result<Option<String>> {
        let mut random = Random::new(seed);
        // A device without f64 computes the cases in f32.
        let narrow = executor.is_some_and(|e| !e.info().capabilities.contains(&Capability::F64));
        let mut leaves = Vec::new();
        for (ty, shape, values) in &self.operands {
            let count = shape.iter().product();
            let values: Vec<f64> = match values {
                // Steps of 1/1024 are exact in f32, and no two elements are equal or close to a corner.
                Values::Between(low, high) => (0..count)
                    .map(|_| ((low + (high - low) * random.unit()) * 1024.0).round() / 1024.0 + 1.0 / 4096.0)
                    .collect(),
                Values::Floats(values) | Values::Given(values) => values.clone(),
            };
            let ty = if narrow && *ty == Type::F64 { &Type::F32 } else { ty };
            leaves.push(HostTensor { format: DType::Plain(*ty), shape: shape.clone(), values });
        }
        let mut g = Graph::new();
        let inputs =
            leaves.iter().enumerate().map(|(i, leaf)| g.input(&i.to_string(), leaf.format, &fixed(&leaf.shape)));
        let inputs: Vec<NodeId> = inputs.collect::<Result<_>>()?;
        let result = (self.build)(&mut g, &inputs)?;
        let ty = g.type_of(result)?.clone();
        let weights = g.input("weights", ty.format, &ty.shape)?;
        let shape = g.fixed_shape(result).unwrap_or_default();
        let values = (0..shape.iter().product()).map(|_| (random.unit() * 64.0).round() / 32.0 - 1.0).collect();
        leaves.push(HostTensor { format: ty.format, shape, values });
        let weighted = g.mul(result, weights)?;
        let loss = if ty.shape.is_empty() { weighted } else { g.reduce_all(weighted, Reduction::Sum)? };
        let checked = |(_, operand): &(usize, &Operand)| !matches!(operand.2, Values::Given(_));
        let which: Vec<usize> = self.operands.iter().enumerate().filter(checked).map(|(i, _)| i).collect();
        let forward = g.nodes.len();
        let wrt: Vec<NodeId> = which.iter().map(|i| inputs[*i]).collect();
        let grads = g.gradients(loss, &wrt)?;

        let values = evaluate(&g, &leaves, g.nodes.len())?;
        for (k, operand) in which.iter().enumerate() {
            let by_rule = &values[grads[k].0 as usize].values;
            for (at, by_rule) in by_rule.iter().enumerate() {
                // A power of two, so that the moved operands are exact in f32.
                let step = 1.0 / f64::from(1 << 17);
                let moved = |by: f64| -> Result<f64> {
                    let mut leaves = leaves.clone();
                    leaves[*operand].values[at] += by;
                    Ok(evaluate(&g, &leaves, forward)?[loss.0 as usize].values[0])
                };
                let difference = (moved(step)? - moved(-step)?) / (2.0 * step);
                // The error of the difference: its third derivative, and the roundings of the loss over the step.
                let off = (by_rule - difference).abs();
                if off.is_nan() || off > 1e-6 * (1.0 + difference.abs()) {
                    return Ok(Some(format!("by operand {operand}, element {at}: {by_rule}, not {difference}")));
                }
            }
        }
        let Some(executor) = executor else { return Ok(None) };
        for (k, grad) in grads.iter().enumerate() {
            let grad = if g.is_computed(*grad) { *grad } else { g.copy(*grad)? };
            g.output(&k.to_string(), grad)?;
        }
        let mut plan = g.compile(executor, &[])?;
        for (i, leaf) in leaves.iter().enumerate() {
            let name = if i + 1 == leaves.len() { "weights".to_string() } else { i.to_string() };
            let v = &leaf.values;
            match leaf.format {
                DType::Plain(Type::F64) => plan.write(&name, v)?,
                DType::Plain(Type::F32) => plan.write(&name, &v.iter().map(|v| *v as f32).collect::<Vec<_>>())?,
                DType::Plain(Type::U32) => plan.write(&name, &v.iter().map(|v| *v as u32).collect::<Vec<_>>())?,
                _ => plan.write_bools(&name, &v.iter().map(|v| *v != 0.0).collect::<Vec<_>>())?,
            }
        }
        plan.run()?;
        for (k, grad) in grads.iter().enumerate() {
            let want = &values[grad.0 as usize].values;
            let (have, unit): (Vec<f64>, f64) = match g.ty(*grad).format {
                DType::Plain(Type::F64) => (plan.read(&k.to_string())?, 1e-12),
                _ => (plan.read::<f32>(&k.to_string())?.into_iter().map(f64::from).collect(), 1e-4),
            };
            let size = want.iter().fold(1.0f64, |a, v| a.max(v.abs()));
            let off = |i: &usize| (have[*i] - want[*i]).abs();
            if let Some(at) = (0..want.len()).find(|i| off(i).is_nan() || off(i) > unit * size) {
                let operand = which[k];
                return Ok(Some(format!(
                    "on the device, by operand {operand}, element {at}: {}, not {}",
                    have[at], want[at]
                )));
            }
        }
        Ok(None)
    }
}

/// The values of a graph's first `count` nodes, from references in `f64`; the inputs in their order.
fn evaluate(g: &Graph, inputs: &[HostTensor], count: usize) -> Result<Vec<HostTensor>> {
    let mut values: Vec<HostTensor> = Vec::with_capacity(count);
    let mut leaves = inputs.iter();
    for index in 0..count {
        let id = g.node(index);
        let node = &g.nodes[index];
        let shape = g.fixed_shape(id).unwrap_or_default();
        let of = match &node.source {
            Source::Input { .. } => match leaves.next() {
                Some(leaf) => leaf.values.clone(),
                None => return Err(CoreError::Graph("an input has no value".into())),
            },
            Source::Tensor(_) => return Err(CoreError::Graph("a case has inputs only".into())),
            Source::View(of, _) => {
                let layout = node.layout.clone().unwrap_or_else(|| Layout::dense(&shape));
                let place = |mut i: usize| {
                    let dims = shape.iter().zip(&layout.strides).rev();
                    layout.offset + dims.map(|(n, stride)| (i % n * stride, i /= n).0).sum::<usize>()
                };
                let of = &values[of.0 as usize].values;
                (0..shape.iter().product()).map(|i| of[place(i)]).collect()
            }
            Source::Part { .. } => return Err(CoreError::Graph("a case runs on one device".into())),
            Source::Op { op, inputs } => {
                let operands: Vec<HostTensor> = inputs.iter().map(|i| values[i.0 as usize].clone()).collect();
                op.reference(&operands).values
            }
        };
        values.push(HostTensor { format: node.ty.format, shape, values: of });
    }
    Ok(values)
}

fn floats(shape: &[usize]) -> Operand {
    (Type::F64, shape.to_vec(), Values::Between(-1.5, 1.5))
}

fn singles(shape: &[usize]) -> Operand {
    (Type::F32, shape.to_vec(), Values::Between(-1.5, 1.5))
}

fn indices(shape: &[usize], values: &[usize]) -> Operand {
    (Type::U32, shape.to_vec(), Values::Given(values.iter().map(|v| *v as f64).collect()))
}

fn case(name: &str, operands: &[Operand], build: impl Fn(&mut Graph, &[NodeId]) -> Result<NodeId> + 'static) -> Case {
    Case { name: name.into(), operands: operands.to_vec(), build: Box::new(build) }
}

fn cases() -> Vec<Case> {
    let mut cases = elementwise();
    cases.extend(views());
    cases.extend(along());
    cases.extend(products());
    cases.extend(models());
    cases
}

/// Every row of the table that has gradients, where it is smooth: of positive and of negative operands.
fn elementwise() -> Vec<Case> {
    let mut cases = Vec::new();
    for (op, operands) in gradient_rows() {
        let name = op.name();
        let positive = matches!(name, "sqrt" | "rsqrt" | "log" | "log2" | "log10" | "log1p" | "pow");
        for (low, high) in [(0.3, 0.9), (-0.9, -0.3)] {
            let (low, high) = match name {
                "acosh" if low > 0.0 => (1.2, 2.0),
                "acosh" => continue,
                _ if positive && low < 0.0 => continue,
                _ => (low, high),
            };
            let mut list = vec![(Type::F64, vec![2, 3], Values::Between(low, high)); operands];
            if name == "select" {
                list[0] = (Type::Bool, vec![2, 3], Values::Given(vec![1.0, 0.0, 0.0, 1.0, 1.0, 0.0]));
            }
            if name == "clip" {
                list[0].2 = Values::Between(-1.0, 1.0);
                (list[1].2, list[2].2) = (Values::Between(-0.5, -0.1), Values::Between(0.1, 0.5));
            }
            let op = op.clone();
            cases.push(case(name, &list, move |g, v| g.apply_shared(op.clone(), v)));
        }
    }
    cases.push(case("equal operands share", &[(Type::F64, vec![2], Values::Floats(vec![0.5, -0.25]))], |g, v| {
        let doubled = g.mul_scalar(v[0], 2.0)?;
        let same = g.mul_scalar(v[0], 2.0)?;
        g.maximum(doubled, same)
    }));
    cases.push(case("operands broadcast", &[floats(&[2, 1, 3]), floats(&[4, 1]), floats(&[])], |g, v| {
        let product = g.mul(v[0], v[1])?;
        g.mul_add(product, v[2], v[1])
    }));
    cases.push(case("cast", &[floats(&[3])], |g, v| g.cast(v[0], Type::F32)));
    cases.push(case("a value of several uses", &[floats(&[3])], |g, v| {
        let e = g.exp(v[0])?;
        let square = g.mul(e, v[0])?;
        let sum = g.add(square, e)?;
        g.mul(sum, sum)
    }));
    cases
}

fn views() -> Vec<Case> {
    vec![
        case("slice", &[floats(&[3, 5])], |g, v| {
            let part = g.slice(v[0], 1, 1, 4)?;
            g.exp(part)
        }),
        case("permute", &[floats(&[2, 3, 4])], |g, v| {
            let turned = g.permute(v[0], &[2, 0, 1])?;
            g.exp(turned)
        }),
        case("reshape of a transposed value", &[floats(&[3, 4])], |g, v| {
            let turned = g.transpose(v[0])?;
            let line = g.reshape(turned, &fixed(&[2, 6]))?;
            g.exp(line)
        }),
        case("broadcast_to", &[floats(&[3, 1])], |g, v| {
            let wide = g.broadcast_to(v[0], &fixed(&[2, 3, 4]))?;
            g.exp(wide)
        }),
        case("copy", &[floats(&[3])], |g, v| g.copy(v[0])),
        case("pad", &[floats(&[2, 3])], |g, v| g.pad(v[0], &[(1, 0), (2, 1)], 0.5)),
        case("cat", &[floats(&[2, 1]), floats(&[2, 3]), floats(&[2, 2])], |g, v| {
            let all = g.cat(v, 1)?;
            g.exp(all)
        }),
    ]
}

fn along() -> Vec<Case> {
    let mut cases = Vec::new();
    for reduction in [Reduction::Sum, Reduction::Mean, Reduction::Prod, Reduction::Max, Reduction::Min] {
        for dim in 0..3 {
            let name = format!("reduce {reduction:?} {dim}");
            cases.push(case(&name, &[floats(&[2, 3, 4])], move |g, v| g.reduce(v[0], reduction, dim)));
        }
    }
    for zeros in [vec![0.5, 0.0, 2.0], vec![0.0, 3.0, 0.0]] {
        let x = (Type::F64, vec![3], Values::Floats(zeros));
        cases.push(case("a product with zeros", &[x], |g, v| g.reduce(v[0], Reduction::Prod, 0)));
    }
    for dim in 0..3 {
        let x = [floats(&[2, 3, 4])];
        for descending in [false, true] {
            cases.push(case("sort", &x, move |g, v| g.sort(v[0], dim, descending)));
        }
        cases.push(case("softmax", &x, move |g, v| g.softmax(v[0], dim)));
        cases.push(case("log_softmax", &x, move |g, v| g.log_softmax(v[0], dim)));
        cases.push(case("cumsum", &x, move |g, v| g.cumsum(v[0], dim)));
        cases.push(case("cumprod", &x, move |g, v| g.cumprod(v[0], dim)));
    }
    cases.push(case("a long cumsum", &[floats(&[2100])], |g, v| {
        let sums = g.cumsum(v[0], 0)?;
        let ends = g.slice(sums, 0, 2090, 2092)?;
        g.mul_scalar(ends, 0.5)
    }));
    cases.extend([
        case("take_along, an index per slice", &[floats(&[3, 4, 2]), indices(&[5], &[0, 3, 3, 1, 0])], |g, v| {
            g.take_along(v[0], v[1], 1)
        }),
        case(
            "take_along, an index per element",
            &[floats(&[2, 3]), indices(&[2, 4], &[0, 2, 2, 1, 1, 1, 0, 1])],
            |g, v| g.take_along(v[0], v[1], 1),
        ),
        case("scatter", &[floats(&[4, 2]), indices(&[3], &[1, 3, 1]), floats(&[3, 2])], |g, v| {
            g.scatter(v[0], v[1], v[2], 0)
        }),
        case("scatter_add", &[floats(&[4, 2]), indices(&[3], &[1, 3, 1]), floats(&[3, 2])], |g, v| {
            let sums = g.scatter_add(v[0], v[1], v[2], 0)?;
            g.exp(sums)
        }),
        case("top_k", &[singles(&[2, 5])], |g, v| Ok(g.top_k(v[0], 3)?.0)),
        case("top_k of f64", &[floats(&[2, 5])], |g, v| Ok(g.top_k(v[0], 3)?.0)),
        case("gather", &[singles(&[4, 3]), indices(&[5], &[1, 3, 1, 0, 1])], |g, v| g.gather(v[0], v[1])),
        case("gather of several ids", &[singles(&[4, 3]), indices(&[2, 2], &[1, 3, 1, 0])], |g, v| {
            g.gather(v[0], v[1])
        }),
    ]);
    cases
}

fn products() -> Vec<Case> {
    let mut cases = Vec::new();
    for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
        let a = if transpose_a { [3, 2] } else { [2, 3] };
        let b = if transpose_b { [4, 3] } else { [3, 4] };
        let options = MatmulOptions { transpose_a, transpose_b, ..MatmulOptions::default() };
        for (of_a, of_b) in [(&[][..], &[][..]), (&[2], &[2]), (&[2], &[]), (&[], &[2]), (&[2, 1], &[3])] {
            let operands = [floats(&[of_a, &a[..]].concat()), floats(&[of_b, &b[..]].concat())];
            let name = format!("batch_matmul {transpose_a} {transpose_b} {of_a:?} {of_b:?}");
            cases.push(case(&name, &operands, move |g, v| g.batch_matmul(v[0], v[1], &options)));
        }
    }
    for activation in [Activation::Relu, Activation::Gelu, Activation::Silu] {
        let operands = [floats(&[2, 2, 3]), floats(&[3, 4]), floats(&[4]), floats(&[2, 2, 4])];
        cases.push(case("batch_matmul with an epilogue", &operands, move |g, v| {
            let (bias, residual) = (Some(v[2]), Some(v[3]));
            let options = MatmulOptions { bias, activation: Some(activation), residual, ..MatmulOptions::default() };
            g.batch_matmul(v[0], v[1], &options)
        }));
    }
    cases.push(case("linear", &[singles(&[3, 4]), singles(&[2, 4])], |g, v| g.linear(v[0], v[1])));
    for (stride, padding, dilation, groups) in [
        ([1, 1], [0, 0], [1, 1], 1),
        ([2, 1], [1, 2], [1, 1], 1),
        ([1, 2], [0, 1], [2, 1], 2),
        ([3, 2], [3, 0], [1, 2], 1),
    ] {
        let operands = [floats(&[2, 2, 6, 7]), floats(&[4, 2 / groups, 2, 3]), floats(&[4])];
        let name = format!("conv2d {stride:?} {padding:?} {dilation:?} {groups}");
        cases.push(case(&name, &operands, move |g, v| {
            g.conv2d(v[0], v[1], &Conv2dOptions { stride, padding, dilation, groups, bias: Some(v[2]) })
        }));
    }
    for reduction in [Reduction::Max, Reduction::Min, Reduction::Mean, Reduction::Sum] {
        for (kernel, stride, padding) in [([2, 2], [2, 2], [0, 0]), ([3, 2], [2, 1], [1, 1]), ([1, 3], [3, 2], [0, 1])]
        {
            let options = Pool2dOptions { kernel, stride, padding };
            let name = format!("pool2d {reduction:?} {options:?}");
            cases.push(case(&name, &[floats(&[2, 2, 5, 6])], move |g, v| g.pool2d(v[0], reduction, &options)));
        }
    }
    cases
}

fn models() -> Vec<Case> {
    let mut cases = vec![
        case("rms_norm", &[floats(&[2, 3, 4]), floats(&[4])], |g, v| g.rms_norm(v[0], v[1], 1e-3)),
        case("layer_norm", &[floats(&[2, 3, 4]), floats(&[4]), floats(&[4])], |g, v| {
            g.layer_norm(v[0], v[1], v[2], 1e-3)
        }),
    ];
    for reduction in [LossReduction::None, LossReduction::Mean, LossReduction::Sum] {
        let pair = [floats(&[2, 3]), floats(&[2, 3])];
        cases.push(case("mse_loss", &pair, move |g, v| g.mse_loss(v[0], v[1], reduction)));
        cases.push(case("bce_with_logits", &pair, move |g, v| g.bce_with_logits(v[0], v[1], reduction)));
        cases.push(case("cross_entropy", &[floats(&[3, 4]), indices(&[3], &[1, 3, 0])], move |g, v| {
            g.cross_entropy(v[0], v[1], reduction)
        }));
    }
    for style in [RopeStyle::Adjacent, RopeStyle::HalfSplit] {
        let freqs = (Type::F32, vec![2], Values::Given(vec![1.0, 0.25]));
        cases.push(case("rope", &[singles(&[3, 2, 5]), indices(&[3], &[0, 1, 7]), freqs], move |g, v| {
            g.rope(v[0], v[1], v[2], style)
        }));
    }
    // Three of four experts are chosen, one of them by two tokens, one twice by a token.
    let experts = || indices(&[3, 2], &[1, 3, 1, 1, 0, 3]);
    for width in [4, 8] {
        cases.push(case("expert_linear", &[singles(&[3, width]), singles(&[4 * 2, 4]), experts()], |g, v| {
            g.expert_linear(v[0], v[1], v[2], 4)
        }));
    }
    cases.extend([
        case("expert_sum", &[singles(&[3, 8]), singles(&[3, 2])], |g, v| g.expert_sum(v[0], v[1])),
        // A mixture of experts: the router's greatest logits choose them, and their softmax weighs the results.
        case("a mixture of experts", &[singles(&[3, 4]), singles(&[5, 4]), singles(&[5 * 4, 4])], |g, v| {
            let router = g.linear(v[0], v[1])?;
            let (logits, ids) = g.top_k(router, 2)?;
            let weights = g.softmax(logits, 1)?;
            let results = g.expert_linear(v[0], v[2], ids, 5)?;
            g.expert_sum(results, weights)
        }),
    ]);
    for causal in [false, true] {
        let operands = [floats(&[2, 4, 3, 2]), floats(&[2, 2, 5, 2]), floats(&[2, 2, 5, 3])];
        cases.push(case("attention", &operands, move |g, v| {
            g.dot_product_attention(v[0], v[1], v[2], &TensorAttention { scale: None, causal })
        }));
        let operands = [floats(&[2, 4, 3, 2]), floats(&[2, 2, 5, 2]), floats(&[2, 2, 5, 2])];
        cases.push(case("flash_attention", &operands, move |g, v| {
            g.flash_attention(v[0], v[1], v[2], &TensorAttention { scale: None, causal })
        }));
    }
    cases
}
