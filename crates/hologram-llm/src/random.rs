//! Models of known shapes with random weights, made on the device.

use std::ops::Range;

use half::f16;
use hologram_backends::{Binding, Codes, DType, GridType, LaunchConfig, Scales, Values};
use hologram_core::{CoreError, Executor, Tensor};
use hologram_isa::{Access, Builder, Program, Type, Value};

use crate::error::Result;
use crate::models::Latent;
use crate::models::config::Config;
use crate::placement::Bytes;
use crate::quantize::{Facts, Recipe, fitting};
use crate::shapes::Shape;
use crate::weights::Weights;

/// The formats of a model's matrices, as in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightTypes {
    /// Format of most matrices.
    most: DType,
    /// The mixture that chooses by matrix; `None`: all have the same.
    mixture: Option<Recipe>,
}

impl From<DType> for WeightTypes {
    fn from(format: DType) -> WeightTypes {
        WeightTypes { most: format, mixture: None }
    }
}

impl WeightTypes {
    /// All choices: single formats, and llama.cpp's mixtures for Llama models.
    pub fn all() -> impl Iterator<Item = WeightTypes> {
        let plain = [DType::F32, DType::F16, DType::BF16].into_iter().chain(DType::BLOCKS).chain(DType::GRIDS);
        let mixed = ["Q4_K_M", "Q5_K_M"].into_iter().filter_map(Recipe::from_name);
        let mixed = mixed.map(|recipe| WeightTypes { most: recipe.format(), mixture: Some(recipe) });
        plain.map(WeightTypes::from).chain(mixed)
    }

    /// The name users see.
    pub fn name(self) -> String {
        self.mixture.map_or_else(|| self.most.name().to_uppercase(), |recipe| recipe.name.into())
    }
}

/// The standard deviation of attention scores. Queries and keys each have its square root.
///
/// With deviation 0 all positions would have equal weight, and the mean of n random values shrinks as 1/√n:
/// after some hundred positions the context would have no effect. With deviation s the weights are log-normal and
/// count like n·e^(−s²) equal ones, as long as that exceeds 1: for 500 positions like 9, whose mean has a
/// third of a value's deviation.
const SCORE_DEVIATION: f32 = 2.0;

/// Elements of biases, far below the deviation of what they are added to.
const BIAS: f32 = 0.01;

/// The factor of recurrent layers' time steps: states lose about a tenth with each token.
const DECAY: f32 = -0.1;

/// Random weights with which a model depends on its context as a trained one does, at any size.
///
/// A matrix with deviation g/√k, where k is the row length, multiplies the deviation of its input by g, provided that
/// its mean is 0. With mean m all results would contain m·Σx, which grows as k instead of √k; after a few blocks
/// all hidden states would be the same vector. Therefore:
///
/// - The embedding has deviation 1. Each norm has weights of 1 and restores deviation 1.
/// - Queries and keys have deviation √[`SCORE_DEVIATION`], so that attention focuses on a few positions.
/// - Every other matrix preserves the deviation. Attention and the feed-forward network then each add 0.3 to 1 times
///   the initial hidden state, at any width. Hidden states grow as the square root of the number of blocks, all parts
///   alike, and norms undo the growth.
/// - Logits have deviation 1. A tied embedding would make them √width times as large; the weights of the
///   last norm undo that.
pub(crate) struct RandomWeights<'a> {
    executor: &'a Executor,
    shape: &'a Shape,
    config: Config,
    types: WeightTypes,
}

impl<'a> RandomWeights<'a> {
    pub fn new(executor: &'a Executor, shape: &'a Shape, types: WeightTypes) -> RandomWeights<'a> {
        RandomWeights { executor, shape, config: shape.config(), types }
    }

    /// The format of a matrix, as `quantize` chooses it. `MXFP4` is for experts alone, as in files: the other matrices
    /// of mixtures are `Q8_0`.
    fn format(&self, name: &str, row_len: usize) -> DType {
        // Routers are small, and files keep them in f32.
        if name.contains("ffn_gate_inp") {
            return DType::F32;
        }
        let shape = self.shape;
        match (shape.tied_embedding, self.types) {
            (Some(format), _) if name == "token_embd.weight" => format,
            (tied, WeightTypes { mixture: Some(recipe), .. }) => {
                let facts = Facts::of_config(&self.config, tied.is_none(), false);
                facts.choose(recipe, name, &[1, row_len]).unwrap_or(DType::F32)
            }
            (_, WeightTypes { most: DType::MXFP4, .. }) if shape.experts.is_some() && !name.contains("_exps") => {
                fitting(DType::Q8_0, row_len)
            }
            (_, WeightTypes { most, .. }) => fitting(most, row_len),
        }
    }

    /// Bytes of the matrices; all other weights are negligible.
    pub fn bytes(&self) -> Bytes {
        let c = &self.config;
        let bytes = |name: &str, rows: usize, row_len: usize| {
            self.format(name, row_len).at_load().bytes(rows, row_len).unwrap_or(0) as u64
        };
        let of_layer = |i: usize| {
            let matrix =
                |(name, rows, row_len): (&str, usize, usize)| bytes(&format!("blk.{i}.{name}.weight"), rows, row_len);
            let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
            let [q, k, v, output] = match (c.latent, c.recurrent.and_then(|r| r.heads).filter(|_| c.recurs[i])) {
                (Some(l), _) => [c.heads * (l.plain + l.rotated), l.rank + l.rotated, 0, c.heads * l.value],
                (_, Some(heads)) => {
                    let [of_keys, of_values] = heads.widths();
                    [of_keys, of_keys, 2 * of_values, of_values]
                }
                (None, None) if c.recurrent.is_some() => [2 * q, kv, kv, q],
                (None, None) => [q, kv, kv, q],
            };
            let rest = [("attn_q", q, c.width), ("attn_k", k, c.width), ("attn_v", v, c.width)].map(matrix);
            let rest = rest.into_iter().sum::<u64>() + matrix(("attn_output", c.width, output));
            let networks = |names: [&str; 3], count: usize, ffn: usize| -> u64 {
                let [gate, up, down] = names;
                let gate = if c.bidirectional { 0 } else { matrix((gate, count * ffn, c.width)) };
                gate + matrix((up, count * ffn, c.width)) + matrix((down, count * c.width, ffn))
            };
            match c.experts.as_ref().filter(|experts| i >= experts.first) {
                None => Bytes { rest: rest + networks(["ffn_gate", "ffn_up", "ffn_down"], 1, c.ffn), experts: 0 },
                Some(e) => {
                    let shared = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
                    let own = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];
                    let shared = e.shared.map_or(0, |ffn| networks(shared, 1, ffn));
                    Bytes { rest: rest + shared, experts: networks(own, e.count, e.ffn) }
                }
            }
        };
        let layers = (0..c.layers).map(of_layer);
        let all = layers.fold(Bytes { rest: 0, experts: 0 }, |all, layer| Bytes {
            rest: all.rest + layer.rest,
            experts: all.experts + layer.experts,
        });
        let apart = self.shape.tied_embedding.is_none() && !c.bidirectional;
        let output = if apart { bytes("output.weight", c.vocab, c.width) } else { 0 };
        Bytes { rest: all.rest + bytes("token_embd.weight", c.vocab, c.width) + output, experts: all.experts }
    }

    /// A matrix with values of this name's own.
    fn values(&self, name: &str, format: DType, rows: usize, row_len: usize) -> Result<Tensor> {
        let format = self.executor.backend().policy().weight_layout(format.at_load());
        self.executor.backend().kernels().expect_weights(format);
        let seed = name.bytes().fold(0x811c9dc5u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
        let gain = match name.split('.').nth(2) {
            _ if name == "token_embd.weight" => (row_len as f32).sqrt(),
            Some("attn_q" | "attn_k") => SCORE_DEVIATION.sqrt(),
            _ => 1.0,
        };
        let deviation = gain / (row_len as f32).sqrt();
        Ok(random_values(self.executor, format, &[rows, row_len], seed, deviation)?)
    }
}

impl Weights for RandomWeights<'_> {
    fn executor(&self) -> &Executor {
        self.executor
    }

    fn small(&self, name: &str, [rows, row_len]: [usize; 2]) -> Result<Tensor> {
        Ok(self.vector(name, rows * row_len)?.reshape(&[rows, row_len])?)
    }

    fn expert_vectors(&self, name: &str, experts: usize, len: usize) -> Result<Option<Tensor>> {
        let all = self.optional_vector(name, experts * len)?;
        Ok(all.map(|all| all.reshape(&[experts, len])).transpose()?)
    }

    /// Of the optional tensors that are asked for by their shape, those that recent files have: the parts of latent
    /// attention's keys and values.
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let Latent { rank, plain, value, .. } = self.config.latent?;
        let heads = self.config.heads;
        match name.rsplit('.').nth(1)? {
            "attn_k_b" => Some(vec![heads, rank, plain]),
            "attn_v_b" => Some(vec![heads, value, rank]),
            _ => None,
        }
    }

    fn matrix(&self, name: &str, rows: usize, row_len: usize) -> Result<Tensor> {
        self.values(name, self.format(name, row_len), rows, row_len)
    }

    fn matrix_rows(&self, name: &str, _: usize, rows: Range<usize>, row_len: usize) -> Result<Tensor> {
        let format = self.format(name, row_len);
        self.values(&format!("{name} {}", rows.start), format, rows.len(), row_len)
    }

    fn expert_matrices(&self, name: &str, experts: usize, rows: usize, row_len: usize) -> Result<Tensor> {
        self.matrix(name, experts * rows, row_len)
    }

    fn optional_matrix(&self, name: &str, rows: usize, row_len: usize) -> Result<Option<Tensor>> {
        let tied = self.shape.tied_embedding.is_some();
        if tied { Ok(None) } else { self.matrix(name, rows, row_len).map(Some) }
    }

    fn vector(&self, name: &str, len: usize) -> Result<Tensor> {
        let tied = self.shape.tied_embedding.is_some() && name == "output_norm.weight";
        let weight = match tied {
            true => (len as f32).sqrt().recip(),
            false if name.ends_with(".ssm_a") => DECAY,
            false => 1.0,
        };
        Ok(Tensor::from_slice(self.executor, &[len], &vec![weight; len])?)
    }

    fn optional_vector(&self, name: &str, len: usize) -> Result<Option<Tensor>> {
        let has = self.shape.biases && name.ends_with(".bias");
        Ok(has.then(|| Tensor::from_slice(self.executor, &[len], &vec![BIAS; len])).transpose()?)
    }

    fn scale(&self, _name: &str) -> Result<Option<f32>> {
        Ok(None)
    }

    fn finish(&self, _ahead: std::ops::Range<usize>) -> Result<()> {
        Ok(())
    }

    fn optional_values(&self, _name: &str, _len: usize) -> Result<Option<Vec<f32>>> {
        Ok(None)
    }
}

/// Threads per workgroup, and maximum workgroups in x; larger grids continue in y.
const THREADS: u32 = 256;
const GRID_X: u32 = 1 << 15;

/// A tensor of random values in the range of trained weights, computed on the device: mean 0, standard deviation 0.02.
///
/// # Errors
/// When the shape does not fit the format or the device lacks the memory.
pub fn random_tensor(
    executor: &Executor,
    format: DType,
    shape: &[usize],
    seed: u32,
) -> std::result::Result<Tensor, CoreError> {
    random_values(executor, format, shape, seed, 0.02)
}

/// As [`random_tensor`], with this standard deviation.
fn random_values(
    executor: &Executor,
    format: DType,
    shape: &[usize],
    seed: u32,
    deviation: f32,
) -> std::result::Result<Tensor, CoreError> {
    if let Some(packed) = format.packed() {
        let blocks = random_values(executor, DType::Block(packed), shape, seed, deviation)?;
        return executor.eval([&blocks], |g, [blocks]| g.repack(blocks));
    }
    let tensor = Tensor::empty(executor, format, shape)?;
    let elements: usize = shape.iter().product();
    let run = |program: &Program, items: usize, views: &[usize], size: f32| -> std::result::Result<(), CoreError> {
        let all = tensor.bindings();
        let mut bindings: Vec<Binding> = views.iter().filter_map(|v| all.get(*v).cloned()).collect();
        bindings.extend([items as u64, seed.into(), size.to_bits().into()].map(Binding::Scalar));
        let groups = (items as u32).div_ceil(THREADS).max(1);
        let grid = [groups.min(GRID_X), groups.div_ceil(GRID_X), 1];
        Ok(executor.backend().execute_program(program, &bindings, &LaunchConfig { grid })?)
    };
    match format {
        DType::Plain(ty) => run(&fill_values(ty)?, elements, &[0], deviation)?,
        _ => {
            let (rows, row_len) = shape.split_last().map_or((1, 1), |(last, rest)| (rest.iter().product(), *last));
            let bytes = format.views(rows, row_len).first().map_or(0, |v| v.bytes);
            run(&fill_codes(format)?, bytes, &[0], 0.0)?;
            if let Some((at, count)) = scale_bytes(format) {
                let mut block = vec![0; format.block_bytes()];
                format.set_number(&mut block, 0, deviation * format.unit_numbers()[0]);
                let blocks = elements / format.block_len();
                run(&fill_scale_bytes(format, at, count)?, blocks * count, &[0], f32::from(block[at]))?;
                return Ok(tensor);
            }
            if format == DType::Grid(GridType::IQ1_M) {
                let scale = f16::from_f32(deviation * format.unit_numbers()[0]);
                let blocks = elements / format.block_len();
                run(&fill_iq1_m_scales()?, 4 * blocks, &[0], f32::from(scale.to_bits()))?;
                return Ok(tensor);
            }
            if let Some(Scales::F32 { at }) = format.row().map(|row| row.scales) {
                let size = deviation * format.unit_numbers()[0];
                run(&fill_scale_words(format, at)?, elements / format.block_len() * 4, &[0], size)?;
                return Ok(tensor);
            }
            let unit = Factors::of(format).map_or(1.0, |factors| factors.numbers);
            for number in 0..format.numbers_at().len().max(1) {
                let size = deviation * unit * format.unit_numbers()[number];
                run(&fill_numbers(format, number)?, elements / format.block_len(), &[1], size)?;
            }
        }
    }
    Ok(tensor)
}

/// A program with one thread per item. `counter` selects what is hashed; the body gets the buffer, the item's index,
/// the hash and the scalar `size`, and runs only for existing items.
fn per_item(
    name: &str,
    ty: Type,
    counter: impl FnOnce(&mut Builder, Value) -> Value,
    body: impl FnOnce(&mut Builder, hologram_isa::Array, Value, Value, Value),
) -> std::result::Result<Program, CoreError> {
    let mut b = Builder::new(name, [THREADS, 1, 1]);
    let out = b.buffer("out", ty, Access::Write);
    let items = b.scalar("items", Type::U32);
    let seed = b.scalar("seed", Type::U32);
    let size = b.scalar("size", Type::F32);
    let row = b.builtin(hologram_isa::Opcode::GroupY);
    let row = b.mul(row, GRID_X * THREADS);
    let column = b.global_x();
    let i = b.add(row, column);
    let inside = b.lt(i, items);
    b.if_(inside, |b| {
        let counter = counter(b, i);
        let hash = hash(b, counter, seed);
        body(b, out, i, hash, size);
    });
    Ok(b.finish()?)
}

/// A hash of an index: the finaliser of MurmurHash3 over index · odd constant + seed.
fn hash(b: &mut Builder, i: Value, seed: Value) -> Value {
    let mut h = b.mul(i, 0x9e37_79b1u32);
    h = b.add(h, seed);
    for (shift, factor) in [(16u32, 0x85eb_ca6bu32), (13, 0xc2b2_ae35)] {
        let s = b.shr(h, shift);
        h = b.xor(h, s);
        h = b.mul(h, factor);
    }
    let s = b.shr(h, 16u32);
    b.xor(h, s)
}

/// Uniform values with the standard deviation `size`.
fn fill_values(ty: Type) -> std::result::Result<Program, CoreError> {
    per_item(
        "random_values",
        ty,
        |_, i| i,
        |b, out, i, hash, size| {
            let signed = b.bitcast(Type::I32, hash);
            let v = b.cvt(Type::F32, signed);
            let v = b.mul(v, 1.732 / 2_147_483_648.0f32);
            let v = b.mul(v, size);
            b.store(out, i, v);
        },
    )
}

/// The position of the scales and minimums of each run, as multiples of the block's `f16` numbers.
struct Factors {
    /// Bytes of minimums. The bytes of their scales lie 4 bytes before.
    minimums: Range<u32>,
    /// Bytes whose low nibble belongs to a scale and whose high nibble to its minimum.
    nibbles: Range<u32>,
    /// Factor of [`DType::unit_numbers`] that gives deviation 1: those are meant for independent scales and minimums.
    numbers: f32,
}

impl Factors {
    /// The layout of a format whose runs have separate scales and minimums; `None` for others. `numbers` is the
    /// deviation of d·s·code - m·t with independent s and t, divided by that with equal ones.
    fn of(format: DType) -> Option<Factors> {
        match format {
            DType::Q2_K => Some(Factors { minimums: 0..0, nibbles: 0..16, numbers: 14.0 / 9.8 }),
            DType::Q4_K => Some(Factors { minimums: 8..12, nibbles: 12..16, numbers: 260.0 / 168.0 }),
            DType::Q5_K => Some(Factors { minimums: 8..12, nibbles: 12..16, numbers: 530.0 / 337.0 }),
            _ => None,
        }
    }
}

/// Whether a number lies in a range.
fn within(b: &mut Builder, i: Value, range: &Range<u32>) -> Value {
    let from_start = b.sub(i, range.start);
    b.lt(from_start, range.end - range.start)
}

/// Random codes in every byte of a block format's first view, which may also hold the scales.
///
/// A minimum equals its scale's factor, so that each run has a mean of about 0, like trained weights. If they were
/// independent, the means would hold a share p = 0.6 of the power of `Q4_K`. The runs of an embedding would have such
/// means too, so products with a matrix would be √((1 - p)² + 32·p²) = 3.4 times as large and attention scores 11
/// times: rounding would decide which position softmax selects.
fn fill_codes(format: DType) -> std::result::Result<Program, CoreError> {
    let ty = format.views(1, format.block_len()).first().map_or(Type::U8, |view| view.element);
    let factors = Factors::of(format);
    let in_block = |b: &mut Builder, i: Value| b.rem(i, format.block_bytes() as u32);
    // Codes in planes equal those of the file layout, so that a model is the same on every device.
    let counter = |b: &mut Builder, i: Value| {
        if let Some(factors) = &factors {
            let at = in_block(b, i);
            let minimum = within(b, at, &factors.minimums);
            let of_scale = b.sub(i, 4u32);
            return b.select(minimum, of_scale, i);
        }
        let DType::Planes(block) = format else { return i };
        let (row, [codes, ..]) = (block.row(), block.plane_bytes().map(|bytes| bytes as u32));
        let header = if let Codes::Bits(low, _) = row.codes { low.at as u32 } else { 0 };
        let block = b.div(i, codes);
        let start = b.mul(block, row.bytes as u32);
        let at = b.rem(i, codes);
        let at = b.add(start, at);
        b.add(at, header)
    };
    per_item("random_codes", ty, counter, |b, out, i, hash, _| {
        let mut byte = b.and(hash, 255u32);
        if format.row().is_some_and(|row| row.values == Values::Ternary && matches!(row.codes, Codes::Bits(..))) {
            // Ternary codes are 0, 1 or 2. Where both bits of a pair are set, clear the higher. Half of the weights are
            // then 0.
            let low = b.shl(byte, 1u32);
            let both = b.and(byte, low);
            let both = b.and(both, 0xaau32);
            byte = b.xor(byte, both);
        }
        if let Some(factors) = &factors {
            let at = in_block(b, i);
            let nibbles = within(b, at, &factors.nibbles);
            let low = b.and(byte, 15u32);
            let both = b.mul(low, 17u32);
            byte = b.select(nibbles, both, byte);
        }
        if format.has_float_codes() {
            // Of the floats, those that are no number are replaced.
            let bits = b.and(byte, 127u32);
            let none = b.eq(bits, 127u32);
            let other = b.sub(byte, 1u32);
            byte = b.select(none, other, byte);
        }
        let byte = b.cvt(ty, byte);
        b.store(out, i, byte);
    })
}

/// The place and number of a block's scales that are bytes, for formats without `f16` numbers.
fn scale_bytes(format: DType) -> Option<(usize, usize)> {
    match format.row()?.scales {
        Scales::E8M0 { at } => Some((at, 1)),
        Scales::UE4M3 { at } => Some((at, 4)),
        _ => None,
    }
}

/// `count` bytes from byte `at` of every block on, all equal to `size`.
fn fill_scale_bytes(format: DType, at: usize, count: usize) -> std::result::Result<Program, CoreError> {
    per_item(
        "random_scale_bytes",
        Type::U8,
        |_, i| i,
        |b, out, i, _, size| {
            let (block, which) = (b.div(i, count as u32), b.rem(i, count as u32));
            let start = b.mul(block, format.block_bytes() as u32);
            let place = b.add(start, which);
            let place = b.add(place, at as u32);
            let byte = b.cvt(Type::U32, size);
            let byte = b.cvt(Type::U8, byte);
            b.store(out, place, byte);
        },
    )
}

/// The `f32` at byte `at` of every block, `size`, byte by byte.
fn fill_scale_words(format: DType, at: usize) -> std::result::Result<Program, CoreError> {
    per_item(
        "random_scale_words",
        Type::U8,
        |_, i| i,
        |b, out, i, _, size| {
            let (block, which) = (b.shr(i, 2u32), b.and(i, 3u32));
            let start = b.mul(block, format.block_bytes() as u32);
            let place = b.add(start, which);
            let place = b.add(place, at as u32);
            let bits = b.bitcast(Type::U32, size);
            let shift = b.shl(which, 3u32);
            let byte = b.shr(bits, shift);
            let byte = b.and(byte, 255u32);
            let byte = b.cvt(Type::U8, byte);
            b.store(out, place, byte);
        },
    )
}

/// The scale of every block of `IQ1_M`, whose bits, `size`, are the high nibbles of four bytes. The low nibbles belong
/// to the scales of runs and stay random.
fn fill_iq1_m_scales() -> std::result::Result<Program, CoreError> {
    per_item(
        "random_iq1_m_scales",
        Type::U8,
        |_, i| i,
        |b, out, i, hash, size| {
            let (block, which) = (b.div(i, 4u32), b.rem(i, 4u32));
            let start = b.mul(block, GridType::IQ1_M.bytes() as u32);
            let place = b.mul(which, 2u32);
            let place = b.add(place, 49u32);
            let place = b.add(start, place);
            let bits = b.cvt(Type::U32, size);
            let shift = b.mul(which, 4u32);
            let high = b.shr(bits, shift);
            let high = b.shl(high, 4u32);
            let low = b.and(hash, 15u32);
            let byte = b.or(high, low);
            let byte = b.and(byte, 255u32);
            let byte = b.cvt(Type::U8, byte);
            b.store(out, place, byte);
        },
    )
}

/// One of the `f16` numbers of every block, with magnitude `size`.
///
/// The codes of some formats have a mean other than 0: those of `Q4_0` are from -8 to 7. Therefore each block has a
/// random sign. Ternary codes have mean 0, and their blocks all have the same sign, as in real models.
fn fill_numbers(format: DType, number: usize) -> std::result::Result<Program, CoreError> {
    // In units of 2 bytes.
    let (stride, offset) = match format.numbers_at().get(number) {
        Some(at) => (format.block_bytes() as u32 / 2, *at as u32 / 2),
        None => (1, 0),
    };
    per_item(
        "random_scales",
        Type::F16,
        |_, i| i,
        |b, out, i, hash, size| {
            let at = b.mul(i, stride);
            let at = b.add(at, offset);
            let mut number = size;
            if !format.is_ternary() {
                // Codes use the low bits of the hash.
                let sign = b.and(hash, 1u32 << 31);
                let bits = b.bitcast(Type::U32, size);
                let bits = b.xor(bits, sign);
                number = b.bitcast(Type::F32, bits);
            }
            b.store(out, at, number);
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_the_same_in_every_layout() {
        let executor = Executor::open("cpu", Some(2)).unwrap();
        for format in WeightTypes::all().map(|types| types.most).filter(|format| format.is_quantized_weight()) {
            let [blocks, planes] = [format, format.in_planes()].map(|layout| {
                let table = random_tensor(&executor, layout, &[5, 512], 7).unwrap();
                let ids = Tensor::from_slice(&executor, &[5], &[0u32, 1, 2, 3, 4]).unwrap();
                executor.eval([&table, &ids], |g, [table, ids]| g.gather(table, ids)).unwrap().to_vec::<f32>().unwrap()
            });
            assert_eq!(blocks, planes, "{}", format.name());
            let deviation = (blocks.iter().map(|v| v * v).sum::<f32>() / blocks.len() as f32).sqrt();
            // The scales of MXFP4 are powers of two.
            assert!((0.013..0.028).contains(&deviation), "{}: {deviation}", format.name());
        }
    }

    #[test]
    fn runs_have_a_mean_of_about_0() {
        let executor = Executor::open("cpu", Some(2)).unwrap();
        for format in DType::BLOCKS {
            let table = random_tensor(&executor, format, &[20, 512], 7).unwrap();
            let ids = Tensor::from_slice(&executor, &[20], &std::array::from_fn::<u32, 20, _>(|i| i as u32)).unwrap();
            let values = executor.eval([&table, &ids], |g, [table, ids]| g.gather(table, ids)).unwrap();
            let values = values.to_vec::<f32>().unwrap();
            let power = |values: &[f32]| values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
            let len = format.scale_len();
            let means: Vec<f32> = values.chunks(len).map(|run| run.iter().sum::<f32>() / len as f32).collect();
            // Independent values would give 1 / len; codes whose mean is not 0 would give 0.05.
            let share = power(&means) / power(&values);
            assert!(share < 1.0 / len as f32 + 0.07, "{}: {share}", format.name());
        }
    }
}
