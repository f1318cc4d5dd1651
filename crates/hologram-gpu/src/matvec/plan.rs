//! The division of a few tokens' products among threads: the numbers that `matvec.k` takes, and its shared memory.

use hologram_device::{BlockType, DType};
use hologram_isa::Type;

use crate::Target;

/// Elements of a row that a thread keeps at once, for a norm or for a group that is the whole row.
const HELD: usize = 16;
/// The least activation group for which a chunk of ternary weights has one scale; with narrower groups it has four.
const ONE_SCALE: usize = 128;
/// Memory for the sums of squares and the greatest magnitudes of two tokens, and for the number of tokens.
const REDUCTION_BYTES: usize = 272;

/// The products with kernels that take one row at a time: those that are large in models.
const ONE_ROW: [(&str, &str); 1] = [("bf16", "bf16")];

/// A weight format as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weights {
    /// Its part of the kernel's name.
    pub name: &'static str,
    /// Elements in a chunk of 16 bytes.
    pub chunk: usize,
    /// Elements that a row's length must be a multiple of.
    pub unit: usize,
    /// Whether scales lie in a plane of their own.
    pub scaled: bool,
}

impl Weights {
    /// The weights of a tensor's format.
    pub fn of(format: DType) -> Option<Weights> {
        let (name, chunk, unit, scaled) = match format {
            DType::Plain(Type::F32) => ("f32", 4, 4, false),
            DType::Plain(Type::F16) => ("f16", 8, 8, false),
            DType::Plain(Type::BF16) => ("bf16", 8, 8, false),
            DType::Q8Planes => ("q8", 16, 32, true),
            DType::Q4Planes => ("q4", 32, 32, true),
            DType::T2Planes => ("t2", 64, 256, true),
            DType::Planes(BlockType::F8_E4M3) => ("f8", 16, 128, true),
            _ => return None,
        };
        Some(Weights { name, chunk, unit, scaled })
    }

    /// Chunks that a thread has in flight.
    fn ring(self) -> usize {
        match (self.name, self.scaled) {
            ("t2", _) => 6,
            (_, true) => 8,
            _ => 10,
        }
    }
}

/// The format of the activations in the products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Activations {
    F32,
    Bf16,
    /// 8-bit codes in groups.
    I8 {
        group: u32,
    },
}

impl Activations {
    /// The activations of an operand's format.
    pub fn of(format: DType) -> Option<Activations> {
        match format {
            DType::Plain(Type::F32) => Some(Activations::F32),
            DType::Plain(Type::BF16) => Some(Activations::Bf16),
            DType::I8Groups { group } => Some(Activations::I8 { group }),
            _ => None,
        }
    }

    /// Whether there is a kernel for the product.
    pub fn fits(self, weights: Weights, k: usize) -> bool {
        match self {
            Activations::F32 => !weights.scaled || weights.name == "f8",
            Activations::Bf16 => weights.name == "bf16",
            Activations::I8 { group } => {
                let group = group as usize;
                let divides = group > 0 && k.is_multiple_of(group);
                match weights.name {
                    "q8" | "q4" => group == 32,
                    "t2" => divides && (group.is_multiple_of(256) || matches!(group, 32 | 64 | 128)),
                    _ => false,
                }
            }
        }
    }

    /// Its part of the kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Activations::F32 => "f32",
            Activations::Bf16 => "bf16",
            Activations::I8 { .. } => "i8",
        }
    }

    const fn bytes(self) -> usize {
        match self {
            Activations::F32 => 4,
            Activations::Bf16 => 2,
            Activations::I8 { .. } => 1,
        }
    }
}

/// The work to divide.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub weights: Weights,
    pub activations: Activations,
    /// Length of rows.
    pub k: usize,
    /// Rows of all matrices; with a gate, of one.
    pub rows: usize,
    /// Whether each row of the result combines rows of two matrices.
    pub gated: bool,
    /// The greatest number of tokens.
    pub tokens: usize,
    /// Whether the activations are already converted.
    pub ready: bool,
    /// Whether a norm comes first.
    pub norm: bool,
    /// Whether the product has an addition.
    pub added: bool,
}

/// A division of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub workgroups: usize,
    pub threads: usize,
    /// Log2 of the threads along a row.
    pub lanes: usize,
    /// Rows that a thread computes at a time.
    pub rows: usize,
    /// Tokens that a workgroup computes.
    pub tokens: usize,
    /// Bytes of shared memory.
    pub shared: usize,
}

impl Plan {
    /// A workgroup on each multiprocessor, with as many tokens as fit.
    pub fn of(work: &Work, target: Target) -> Option<Plan> {
        let tokens = work.tokens.checked_next_power_of_two()?;
        // Activations for ternary weights that are quantised in the kernel must form one group.
        let whole = matches!(work.activations, Activations::I8 { .. }) && work.weights.name == "t2" && !work.ready;
        if whole && work.activations != (Activations::I8 { group: u32::try_from(work.k).ok()? }) {
            return None;
        }
        let held = work.norm || whole;
        [512, 256].into_iter().filter(|threads| !held || work.k <= HELD * threads).find_map(|threads| {
            let tokens = std::iter::successors(Some(tokens), |t| (*t > 1).then_some(t / 2));
            tokens.map(|t| Plan::with(work, target, threads, t)).find(|p| p.shared <= target.max_shared as usize)
        })
    }

    fn with(work: &Work, target: Target, threads: usize, tokens: usize) -> Plan {
        let workgroups = work.rows.min(target.multiprocessors as usize).max(1);
        let (share, chunks) = (work.rows.div_ceil(workgroups), work.k / work.weights.chunk);
        // One row at a time: products of one token without a gate.
        let single = tokens == 1 && !work.gated && ONE_ROW.contains(&(work.weights.name, work.activations.name()));
        let rows = if single { 1 } else { 2 };
        // The iterations of a thread: rounds of chunks for each set of rows.
        let iterations = |lanes: usize| {
            let units = (threads >> lanes) * if work.gated { 1 } else { rows };
            (share.div_ceil(units), chunks.div_ceil(1 << lanes))
        };
        // Approximate instructions of a thread: its chunks, and the end of each row. Short runs of chunks are slow to
        // read.
        let cost = |lanes: usize| {
            let ternary = work.weights.name == "t2";
            let chunk = if ternary { [20, 20, 20, 10, 10, 10] } else { [20, 20, 20, 20, 11, 10] }[lanes.min(5)];
            let (sets, rounds) = iterations(lanes);
            sets * (rounds * chunk + 2 * lanes.min(5) + 4)
        };
        let lanes = (2..=threads.ilog2() as usize).min_by_key(|l| cost(*l)).unwrap_or(5);
        let (sets, rounds) = iterations(lanes);
        let ring = (work.weights.ring() / rows).min(sets * rounds) * rows;
        let shared = if target.is_apple() {
            // Prefetched data, a norm's weights and unconverted activations are not in shared memory.
            let staged = if work.activations == Activations::F32 && !work.norm { 0 } else { work.activations.bytes() };
            shared(&Work { norm: false, ..*work }, share, 0, lanes, tokens, staged)
        } else {
            // More than half of a multiprocessor's memory: otherwise two workgroups of an early launch could share a
            // multiprocessor while another had none.
            let all = shared(work, share, threads * ring, lanes, tokens, work.activations.bytes());
            all.max(target.max_shared as usize / 2 + 1)
        };
        Plan { workgroups, threads, lanes, rows, tokens, shared }
    }
}

/// The memory of a workgroup, in the kernel's order: the ring and its scales; activations with their chunks' metadata;
/// sums of norms; sums of rows with their addends; the norm's weights. `staged`: bytes per element of the activations.
fn shared(work: &Work, share: usize, ring: usize, lanes: usize, tokens: usize, staged: usize) -> usize {
    let parts = match work.activations {
        Activations::I8 { group } if work.weights.name == "t2" && (group as usize) < ONE_SCALE => 4,
        _ => 1,
    };
    let integer = matches!(work.activations, Activations::I8 { .. });
    let meta = if integer { (tokens * work.k / work.weights.chunk * parts).div_ceil(2) * 16 } else { 0 };
    let sums = share * (1 + usize::from(work.gated)) * (((1 << lanes) / 32).max(1) + usize::from(work.added)) * tokens;
    let norm = if work.norm { work.k * 4 } else { 0 };
    let ring = ring * if work.weights.scaled { 20 } else { 16 };
    ring + tokens * work.k * staged + meta + REDUCTION_BYTES + sums.div_ceil(4) * 16 + norm
}
