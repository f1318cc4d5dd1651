//! Linear recurrences along the tokens of sequences: the state of gated DeltaNet, of Mamba2 and of linear attention.

use hologram_backends::{DType, KernelSpec, Operation, Recurrence};
use hologram_isa::{Opcode, Type, Value};

use super::causal_conv::Run;
#[cfg(feature = "conformance")]
use super::causal_conv::{run_inputs, run_lists};
use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// The state after the tokens, or the results for them; the inputs are those of the methods in order.
#[derive(Debug)]
struct Recur {
    rule: Recurrence,
    /// Whether it makes the state.
    state: bool,
}

/// The operands of a linear recurrence of n tokens with h value heads and g key heads, which divide h.
#[derive(Clone, Copy, Debug)]
pub struct RecurrenceOperands {
    /// `f32 [n, g, k]`, k at most 256.
    pub keys: NodeId,
    /// `f32 [n, h, v]`.
    pub values: NodeId,
    /// `f32 [n, h]`: the factor of the state before each token.
    pub decay: NodeId,
    /// `f32 [n, h]`: the factor of what is added, for the delta rule only.
    pub strength: Option<NodeId>,
    /// `u32 [r, 4]`, as for [`Graph::conv_state`].
    pub runs: NodeId,
}

impl Graph {
    /// The state `f32 [slots, h, v, k]` of a linear recurrence after each run of tokens, in the run's slot after them.
    ///
    /// For each token in turn S ← decay · S + u kᵀ. Here u is the value or, by the delta rule (Yang et al., 2024,
    /// arXiv:2412.06464), strength · (value − decay · S k) with S of before the token.
    ///
    /// # Errors
    /// When the operands do not fit or the state is none.
    pub fn recurrent_state(&mut self, state: NodeId, rule: Recurrence, x: RecurrenceOperands) -> Result<NodeId> {
        let inputs: Vec<NodeId> =
            [state, x.keys, x.values, x.decay].into_iter().chain(x.strength).chain([x.runs]).collect();
        self.apply(Recur { rule, state: true }, &inputs)
    }

    /// S q after each token, `f32 [n, h, v]`, with S of [`Graph::recurrent_state`] and `queries` like the keys. `state`
    /// may be that operation's result if all runs have different slots before and after.
    ///
    /// # Errors
    /// When the operands do not fit.
    pub fn recurrence(
        &mut self,
        state: NodeId,
        rule: Recurrence,
        queries: NodeId,
        x: RecurrenceOperands,
    ) -> Result<NodeId> {
        let inputs: Vec<NodeId> =
            [state, x.keys, x.values, x.decay].into_iter().chain(x.strength).chain([x.runs, queries]).collect();
        self.apply(Recur { rule, state: false }, &inputs)
    }
}

/// A thread has one row of a head's state in shared memory.
const THREADS: u32 = 32;
const MAX_KEY: usize = 256;

impl Recur {
    /// The indices of strength, runs and queries among the inputs.
    fn places(&self) -> (Option<usize>, usize, usize) {
        let runs = if self.rule.delta { 5 } else { 4 };
        (self.rule.delta.then_some(4), runs, runs + 1)
    }
}

impl Op for Recur {
    fn operation(&self) -> Operation {
        if self.state { Operation::RecurrentState(self.rule) } else { Operation::Recurrence(self.rule) }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let (strength, runs, queries) = self.places();
        if inputs.len() != if self.state { queries } else { queries + 1 } {
            return Err("takes a state, keys, values, decay, strength for the delta rule, runs, and queries".into());
        }
        let [state, keys, values, decay] = [0, 1, 2, 3].map(|i| inputs[i]);
        let floats = inputs.iter().enumerate().all(|(i, t)| i == runs || t.format == DType::F32);
        if !floats || inputs[runs].format != DType::U32 {
            return Err("takes f32 operands and u32 runs".into());
        }
        let (
            [Dim::Fixed(_), Dim::Fixed(h), Dim::Fixed(v), Dim::Fixed(k)],
            [n, Dim::Fixed(g), Dim::Fixed(of_key)],
            [of_values, Dim::Fixed(heads), Dim::Fixed(of_value)],
            [_, Dim::Fixed(4)],
        ) = (state.shape.as_slice(), keys.shape.as_slice(), values.shape.as_slice(), inputs[runs].shape.as_slice())
        else {
            return Err("takes a state [slots, h, v, k], keys [n, g, k], values [n, h, v] and runs [r, 4]".into());
        };
        let per_head = [*n, Dim::Fixed(*h)];
        let fits = (h, v, k, n) == (heads, of_value, of_key, of_values)
            && std::iter::once(decay).chain(strength.map(|i| inputs[i])).all(|t| t.shape.as_slice() == per_head)
            && (self.state || inputs[queries].shape == keys.shape);
        if !fits {
            return Err("the sizes of state, keys, values, decay, strength and queries differ".into());
        }
        if *g == 0 || !h.is_multiple_of(*g) || *v == 0 || !(1..=MAX_KEY).contains(k) {
            return Err(format!("takes heads of 1 to {MAX_KEY} elements, whose number the key heads divide").into());
        }
        Ok(if self.state { state.clone() } else { values.clone() })
    }

    fn in_place(&self) -> Option<usize> {
        self.state.then_some(0)
    }

    /// One workgroup per run, head and 32 rows of the head's state, which its threads keep in shared memory.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let size = |i: usize| spec.inputs[0].shape.get(i).map_or(1, |e| e.max()) as u32;
        let (slots, h, v, dk) = (size(0), size(1), size(2), size(3));
        let g = spec.inputs[1].shape.get(1).map_or(1, |e| e.max()) as u32;
        let (of_strength, of_runs, of_queries) = self.places();
        let parts = v.div_ceil(THREADS);
        let mut kernel = Kernel::new(spec, THREADS);
        let row = kernel.b.shared("row", Type::F32, dk * THREADS);
        let runs_now = kernel.rows(&spec.inputs[of_runs]);
        let [state, keys, values, decay] = [0, 1, 2, 3].map(|i| kernel.inputs[i].clone());
        let strength = of_strength.map(|i| kernel.inputs[i].clone());
        let runs = kernel.inputs[of_runs].clone();
        let queries = (!self.state).then(|| kernel.inputs[of_queries].clone());
        let out = kernel.output.clone();
        let b = &mut kernel.b;
        let group = b.builtin(Opcode::GroupX);
        let thread = b.builtin(Opcode::ThreadX);
        let (part, rest) = (b.rem(group, parts), b.div(group, parts));
        let (head, index) = (b.rem(rest, h), b.div(rest, h));
        let j = b.mul(part, THREADS);
        let j = b.add(j, thread);
        let (inside, owned) = (b.lt(index, runs_now), b.lt(j, v));
        let mine = b.and(inside, owned);
        b.if_(mine, |b| {
            let run = Run::load(b, &runs, index);
            let any = b.gt(run.count, 0u32);
            b.if_(any, |b| {
                let key_head = if self.rule.tiled { b.rem(head, g) } else { b.div(head, h / g) };
                // The first element of the thread's row in a slot.
                let place = |b: &mut hologram_isa::Builder, slot: Value| {
                    let at = b.mul(slot, h);
                    let at = b.add(at, head);
                    let at = b.mul(at, v);
                    let at = b.add(at, j);
                    b.mul(at, dk)
                };
                let mine = |b: &mut hologram_isa::Builder, i: Value| {
                    let at = b.mul(i, THREADS);
                    b.add(at, thread)
                };
                let known = b.lt(run.from, slots);
                let from = place(b, run.from);
                b.for_(0u32, dk, 1u32, |b, i| {
                    let value = b.var(0.0f32);
                    b.if_(known, |b| {
                        let at = b.add(from, i);
                        let old = b.load(state.views[0], at);
                        b.assign(value, old);
                    });
                    let at = mine(b, i);
                    b.store(row, at, value);
                });
                let end = b.add(run.first, run.count);
                b.for_(run.first, end, 1u32, |b, token| {
                    let of_token = b.mul(token, h);
                    let of_token = b.add(of_token, head);
                    let factor = b.load(decay.views[0], of_token);
                    let of_row = b.mul(of_token, v);
                    let of_row = b.add(of_row, j);
                    let value = b.load(values.views[0], of_row);
                    let added = b.var(value);
                    let key = b.mul(token, g);
                    let key = b.add(key, key_head);
                    let key = b.mul(key, dk);
                    if let Some(strength) = &strength {
                        let known = b.var(0.0f32);
                        b.for_(0u32, dk, 1u32, |b, i| {
                            let (at, of_key) = (mine(b, i), b.add(key, i));
                            let (s, k) = (b.load(row, at), b.load(keys.views[0], of_key));
                            b.assign_op(known, Opcode::Fma, &[s, k, known]);
                        });
                        let known = b.mul(known, factor);
                        let lacking = b.sub(value, known);
                        let strength = b.load(strength.views[0], of_token);
                        b.assign_op(added, Opcode::Mul, &[lacking, strength]);
                    }
                    let result = b.var(0.0f32);
                    b.for_(0u32, dk, 1u32, |b, i| {
                        let (at, of_key) = (mine(b, i), b.add(key, i));
                        let (s, k) = (b.load(row, at), b.load(keys.views[0], of_key));
                        let s = b.mul(s, factor);
                        let s = b.inst(Opcode::Fma, Type::F32, &[k, added, s]);
                        b.store(row, at, s);
                        if let Some(queries) = &queries {
                            let q = b.load(queries.views[0], of_key);
                            b.assign_op(result, Opcode::Fma, &[s, q, result]);
                        }
                    });
                    if !self.state {
                        out.store(b, of_row, result);
                    }
                });
                if self.state {
                    let exists = b.lt(run.to, slots);
                    let to = place(b, run.to);
                    b.for_(0u32, dk, 1u32, |b, i| {
                        let at = mine(b, i);
                        let s = b.load(row, at);
                        let at = b.add(to, i);
                        // No state has an element at u32::MAX: the store to a slot that is out of range fails.
                        let at = b.select(exists, at, u32::MAX);
                        b.store(state.views[0], at, s);
                    });
                }
            });
        });
        kernel.finish(spec.inputs[of_runs].max_rows() * (h * parts) as usize)
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let (of_strength, of_runs, of_queries) = self.places();
        let [state, keys, values, decay, ..] = inputs else { return Reference::default() };
        let [slots, h, v, dk] = state.shape[..] else { return Reference::default() };
        let (g, epsilon) = (keys.shape[1], f64::from(f32::EPSILON));
        let mut out = match self.state {
            true => Reference { values: state.values.clone(), bounds: vec![0.0; state.values.len()] },
            false => Reference { values: vec![0.0; values.values.len()], bounds: vec![0.0; values.values.len()] },
        };
        let runs = &inputs[of_runs];
        let all = (0..runs.shape[0]).flat_map(|r| (0..h).flat_map(move |i| (0..v).map(move |j| (r, i, j))));
        for (index, head, j) in all {
            let [first, count, from, to] = Run::of(runs, index);
            if count == 0 {
                continue;
            }
            let place = |slot: usize| ((slot * h + head) * v + j) * dk;
            // Each element of the row and how far it may be off.
            let mut row: Vec<[f64; 2]> = match from < slots {
                true => state.values[place(from)..][..dk].iter().map(|s| [*s, 0.0]).collect(),
                false => vec![[0.0; 2]; dk],
            };
            // A product of the row with the vector, with the error of its sum.
            let product = |row: &[[f64; 2]], with: &[f64]| {
                row.iter().zip(with).fold([0.0, 0.0], |[sum, error], ([s, e], x)| {
                    [sum + s * x, error + e * x.abs() + dk as f64 * epsilon * (s * x).abs()]
                })
            };
            for token in first..first + count {
                let at = token * h + head;
                let of_key = (token * g + self.rule.key_head(head, h, g)) * dk;
                let key = &keys.values[of_key..][..dk];
                let (factor, value) = (decay.values[at], values.values[at * v + j]);
                let [added, error] = match of_strength {
                    None => [value, 0.0],
                    Some(i) => {
                        let strength = inputs[i].values[at];
                        let [known, off] = product(&row, key).map(|x| x * factor);
                        let rounding = 3.0 * epsilon * (value.abs() + known.abs());
                        [strength * (value - known), strength.abs() * (off.abs() + rounding)]
                    }
                };
                for ([s, e], k) in row.iter_mut().zip(key) {
                    let (kept, new) = (*s * factor, k * added);
                    *e = *e * factor.abs() + error * k.abs() + 2.0 * epsilon * (kept.abs() + new.abs());
                    *s = kept + new;
                }
                if !self.state {
                    let [result, off] = product(&row, &inputs[of_queries].values[of_key..][..dk]);
                    (out.values[at * v + j], out.bounds[at * v + j]) = (result, off);
                }
            }
            if self.state {
                for (i, [s, e]) in row.into_iter().enumerate() {
                    (out.values[place(to) + i], out.bounds[place(to) + i]) = (s, e);
                }
            }
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let sizes = [(1, 1, 1, 1), (4, 2, 33, 24), (6, 3, 64, 40), (2, 1, 16, 256), (4, 4, 128, 128)];
    let rules = [(false, false), (true, false), (true, true)].map(|(delta, tiled)| Recurrence { delta, tiled });
    for (at, (h, g, v, k)) in sizes.into_iter().enumerate() {
        for (slots, [tokens, most], list) in run_lists() {
            for rule in rules {
                // The largest size has one list of each kind.
                if at == 4 && (list.len() != 2 || rule.tiled) {
                    continue;
                }
                let (runs, _, n) = run_inputs(&list);
                let input = |shape: &[usize], scale: f32| CaseInput {
                    format: DType::F32,
                    shape: std::iter::once(Dim::Extent(0)).chain(shape.iter().map(|n| Dim::Fixed(*n))).collect(),
                    fill: Fill::Normal(scale),
                };
                let of_keys = (k as f32).sqrt().recip();
                for state in [true, false] {
                    let mut case = Case::new(Recur { rule, state }, &[(tokens, n), (most, list.len())])
                        .input(CaseInput::normal(DType::F32, &[slots, h, v, k].map(Dim::Fixed)))
                        .input(input(&[g, k], of_keys))
                        .input(input(&[h, v], 1.0))
                        .input(input(&[h], 0.5));
                    if rule.delta {
                        case = case.input(input(&[h], 0.5));
                    }
                    case = case.input(runs.clone());
                    cases.push(if state { case } else { case.input(input(&[g, k], of_keys)) });
                }
            }
        }
    }
    cases
}
