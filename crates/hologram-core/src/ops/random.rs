//! Random numbers by counter: Philox4x32-10 keyed by a seed, the same bits on every device.

use hologram_backends::{DType, KernelSpec, Operation};
use hologram_isa::{Builder, Type, Value};

use super::elementwise::bound;
use super::lines::not_for;
use super::sample::philox;
use super::{Kernel, Launchable, Mismatch, Op, philox4x32_10};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::eager::Call;
use crate::error::Result;
use crate::executor::Executor;
use crate::graph::{Graph, NodeId};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, Tensor, TensorType, plain};

/// The operation; the key is `u32 [4]`: the low and high 32 bits of the seed, then of the first counter.
#[derive(Debug)]
struct Random {
    normal: bool,
    ty: Type,
    shape: Vec<Dim>,
}

const THREADS: u32 = 128;
/// Elements per counter value, which one thread computes.
const WORDS: u32 = 4;

impl Graph {
    /// Uniformly distributed numbers in [0, 1): multiples of 2⁻²⁴ as `f32`, 2⁻¹¹ as `f16`, 2⁻⁸ as `bf16`;
    /// or 32 random bits as `u32`.
    ///
    /// The key is `u32 [4]`: the low and high 32 bits of the seed, then of the counter. Element `i` is made from word
    /// `i mod 4` of Philox4x32-10 at the counter plus `i / 4`. A tensor of `n` elements therefore uses `n / 4`
    /// counters, rounded up.
    ///
    /// # Errors
    /// When the key has another type or shape, or `dtype` is none of these.
    pub fn random_uniform(&mut self, key: NodeId, dtype: impl Into<DType>, shape: &[Dim]) -> Result<NodeId> {
        let ty = plain("random_uniform", dtype.into())?;
        self.apply(Random { normal: false, ty, shape: shape.to_vec() }, &[key])
    }

    /// Numbers of the standard normal distribution, as `f32`, `f16` or `bf16`. A pair of uniform numbers u and v, made
    /// from two words as in [`Graph::random_uniform`], gives √(−2·ln u)·cos(2πv) and √(−2·ln u)·sin(2πv)
    /// (Box and Muller, 1958).
    ///
    /// # Errors
    /// As [`Graph::random_uniform`].
    pub fn random_normal(&mut self, key: NodeId, dtype: impl Into<DType>, shape: &[Dim]) -> Result<NodeId> {
        let ty = plain("random_normal", dtype.into())?;
        self.apply(Random { normal: true, ty, shape: shape.to_vec() }, &[key])
    }
}

impl Tensor {
    /// Random numbers as [`Graph::random_uniform`] computes them.
    ///
    /// # Errors
    /// As [`Graph::random_uniform`]; errors of the device.
    pub fn random_uniform(
        executor: &Executor,
        dtype: impl Into<DType>,
        shape: &[usize],
        seed: u64,
        counter: u64,
    ) -> Result<Tensor> {
        Tensor::random(executor, false, plain("random_uniform", dtype.into())?, shape, [seed, counter])
    }

    /// Random numbers as [`Graph::random_normal`] computes them.
    ///
    /// # Errors
    /// As [`Graph::random_uniform`]; errors of the device.
    pub fn random_normal(
        executor: &Executor,
        dtype: impl Into<DType>,
        shape: &[usize],
        seed: u64,
        counter: u64,
    ) -> Result<Tensor> {
        Tensor::random(executor, true, plain("random_normal", dtype.into())?, shape, [seed, counter])
    }

    fn random(executor: &Executor, normal: bool, ty: Type, shape: &[usize], key: [u64; 2]) -> Result<Tensor> {
        let words = key.map(|word| [word as u32, (word >> 32) as u32]);
        let key = Tensor::from_slice(executor, &[4], words.as_flattened())?;
        let mut attributes = vec![u64::from(normal), ty as u64];
        attributes.extend(shape.iter().map(|n| *n as u64));
        let shape = shape.iter().map(|n| Dim::Fixed(*n)).collect();
        executor.cached(Call::Random, &attributes, &[&key], |g, v| g.apply(Random { normal, ty, shape }, v))
    }
}

impl Random {
    /// The number of significant bits of a uniform number.
    fn bits(&self) -> u32 {
        match self.ty {
            Type::F16 if !self.normal => 11,
            Type::BF16 if !self.normal => 8,
            _ => 24,
        }
    }

    /// A word's upper bits as a number in [0, 1), or in (0, 1] if `above` is 1.
    fn unit(&self, b: &mut Builder, word: Value, above: u32) -> Value {
        let bits = b.shr(word, 32 - self.bits());
        let bits = if above > 0 { b.add(bits, above) } else { bits };
        let number = b.cvt(Type::F32, bits);
        b.mul(number, 1.0f32 / (1u32 << self.bits()) as f32)
    }

    fn numbers(&self, b: &mut Builder, words: [Value; 4]) -> [Value; 4] {
        if self.ty == Type::U32 {
            return words;
        }
        if !self.normal {
            return words.map(|word| self.unit(b, word, 0));
        }
        let mut pair = |u: Value, v: Value| {
            let u = self.unit(b, u, 1);
            let log = b.log(u);
            let square = b.mul(log, -2.0f32);
            let radius = b.sqrt(square);
            let v = self.unit(b, v, 0);
            let angle = b.mul(v, std::f32::consts::TAU);
            let (cos, sin) = (b.cos(angle), b.sin(angle));
            [b.mul(radius, cos), b.mul(radius, sin)]
        };
        let [[p, q], [r, s]] = [pair(words[0], words[1]), pair(words[2], words[3])];
        [p, q, r, s]
    }
}

impl Op for Random {
    fn operation(&self) -> Operation {
        Operation::Random { normal: self.normal }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let takes = |ty| matches!(ty, Type::F16 | Type::BF16 | Type::F32) || !self.normal && ty == Type::U32;
        if !takes(self.ty) {
            return Err(not_for(DType::Plain(self.ty), takes));
        }
        match inputs {
            [key] if key.format == DType::U32 && key.shape == [Dim::Fixed(4)] => {
                Ok(TensorType::new(DType::Plain(self.ty), self.shape.clone()))
            }
            _ => Err("takes a key of 4 u32: seed and counter, each in two halves".into()),
        }
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let mut k = Kernel::new(spec, THREADS);
        let total = k.elements(&spec.output);
        let (key, out) = (k.inputs[0].views[0], k.output.clone());
        let b = &mut k.b;
        let t = b.global_x();
        let first = b.shl(t, 2u32);
        let inside = b.lt(first, total);
        b.if_(inside, |b| {
            let [low, high, counter, above] = [0u32, 1, 2, 3].map(|i| b.load(key, i));
            let counter = b.add(counter, t);
            let carry = b.lt(counter, t);
            let carry = b.cvt(Type::U32, carry);
            let above = b.add(above, carry);
            let words = philox(b, [counter, above, 0u32.into(), 0u32.into()], [low, high]);
            let numbers = self.numbers(b, words);
            let left = b.sub(total, first);
            let whole = b.ge(left, WORDS);
            let store = |b: &mut Builder, k: u32| {
                let at = b.add(first, k);
                out.store(b, at, numbers[k as usize]);
            };
            b.if_else(
                whole,
                |b| (0..WORDS).for_each(|k| store(b, k)),
                |b| {
                    for k in 0..WORDS - 1 {
                        let exists = b.gt(left, k);
                        b.if_(exists, |b| store(b, k));
                    }
                },
            );
        });
        let max = spec.output.max_rows() * spec.output.row_len();
        k.finish(max.div_ceil((THREADS * WORDS) as usize))
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let mut out = Reference::default();
        let [key] = inputs else { return out };
        let half = |i: usize| key.values[i] as u64;
        let (seed, counter) = ([half(0) as u32, half(1) as u32], half(2) | half(3) << 32);
        let size = |d: &Dim| if let Dim::Fixed(n) = d { *n } else { 0 };
        let unit =
            |word: u32, above: u32| f64::from((word >> (32 - self.bits())) + above) / f64::from(1u32 << self.bits());
        for i in 0..self.shape.iter().map(size).product::<usize>() {
            let counter = counter.wrapping_add(i as u64 / 4);
            let words = philox4x32_10([counter as u32, (counter >> 32) as u32, 0, 0], seed);
            let word = words[i % 4];
            if self.ty == Type::U32 {
                out.push(f64::from(word), 0.0);
            } else if !self.normal {
                out.push(unit(word, 0), 0.0);
            } else {
                let radius = (-2.0 * unit(words[i % 4 / 2 * 2], 1).ln()).sqrt();
                let angle = std::f64::consts::TAU * unit(words[i % 4 / 2 * 2 + 1], 0);
                let y = radius * if i % 2 == 0 { angle.cos() } else { angle.sin() };
                // The rounding of the angle contributes up to 4 units, the functions up to 4.
                out.push(y, bound(self.ty, y, 8.0 * radius, 1.0));
            }
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for normal in [false, true] {
        for ty in [Type::F32, Type::F16, Type::BF16, Type::U32] {
            // The second counter overflows its low 32 bits on the way.
            for (sizes, counter) in [(vec![], 0.0), (vec![0], 1.0), (vec![7, 431], 4_294_967_040.0), (vec![3], 5.0)] {
                let shape: Vec<Dim> = sizes.into_iter().map(Dim::Fixed).collect();
                let fill = Fill::Values(vec![123_456.0, 7.0, counter, 3.0]);
                let key = CaseInput { format: DType::U32, shape: vec![Dim::Fixed(4)], fill };
                if !(normal && ty == Type::U32) {
                    cases.push(Case::new(Random { normal, ty, shape }, &[]).input(key));
                }
            }
        }
    }
    cases
}
