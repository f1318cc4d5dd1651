//! Fuses the launches of a decoding step to stacks. A stack is one launch, whose phases pass values on without a kernel
//! boundary. Each phase reads the values that a phase before it wrote. Its other inputs are older than the stack, or the
//! same workgroup wrote them.

use std::ops::Range;

use hologram_device::host::Argument;
use hologram_gpu::kernels::cuda::{decode_layers, decode_stack};
use hologram_gpu::{Arg, KernelArgs, Memory, NativeKernel, StackPhase};

use super::record::Shape;

mod layers;
mod ternary;
#[cfg(test)]
mod tests;

/// Alignment of the parts of a stack's memory.
const ALIGN: usize = 256;
/// The fewest launches that are worth a stack's start-up cost.
const LEAST: usize = 4;

type Arguments = [Argument<(u64, usize)>];
/// Native kernels with their arguments, `None` for other launches.
type Launches<'a> = [Option<(&'a NativeKernel, &'a Arguments)>];

/// Launches fused to one.
pub(super) struct Stack {
    /// Their indices in the list.
    pub launches: Range<usize>,
    form: Form,
}

/// What a stack consists of.
enum Form {
    Ternary(ternary::Stack),
    Layers(layers::Stack),
}

/// The stacks of a list.
pub(super) fn plan(launches: &Launches, max_shared: u32, multiprocessors: u32) -> Vec<Stack> {
    // Without a router there are no layers to fuse: a dense list is not searched from each of its launches on.
    let routes = launches.iter().flatten().any(|(kernel, _)| matches!(kernel.phase, Some(StackPhase::Router(_))));
    let mut stacks = Vec::new();
    let mut at = 0;
    while at < launches.len() {
        let rest = &launches[at..];
        let found = match ternary::plan(rest, max_shared) {
            Some((stack, count)) => Some((Form::Ternary(stack), count)),
            None if routes => layers::plan(rest, max_shared, multiprocessors).map(|(s, n)| (Form::Layers(s), n)),
            None => None,
        };
        let count = found.as_ref().map_or(1, |(_, count)| *count);
        stacks.extend(found.map(|(form, count)| Stack { launches: at..at + count, form }));
        at += count;
    }
    stacks
}

impl Stack {
    /// The image, which has the name of its kernel.
    pub(super) fn image(&self) -> &'static str {
        match &self.form {
            Form::Ternary(_) => ternary::IMAGE,
            Form::Layers(_) => layers::IMAGE,
        }
    }

    fn exchange(&self) -> &Exchange {
        match &self.form {
            Form::Ternary(stack) => &stack.exchange,
            Form::Layers(stack) => &stack.exchange,
        }
    }

    /// Bytes of zeroed memory: the exchange, the number of runs, and the phases.
    pub(super) fn bytes(&self) -> usize {
        let phase = match &self.form {
            Form::Ternary(_) => decode_stack::PHASE_BYTES,
            Form::Layers(_) => decode_layers::PHASE_BYTES,
        };
        self.exchange().table() + self.exchange().places.len() * phase
    }

    /// The phases as the kernel reads them, and their offset in the stack's memory.
    pub(super) fn phases(&self) -> (usize, Vec<u8>) {
        let mut out = Vec::new();
        (0..self.exchange().places.len()).for_each(|p| match &self.form {
            Form::Ternary(stack) => stack.told(p).write(&mut out),
            Form::Layers(stack) => stack.told(p).write(&mut out),
        });
        (self.exchange().table(), out)
    }

    /// How the kernel is launched.
    pub(super) fn shape(&self) -> Shape {
        let (groups, threads, shared) = match &self.form {
            Form::Ternary(stack) => (stack.groups, decode_stack::ALL_THREADS, stack.shared),
            Form::Layers(stack) => (stack.groups, decode_layers::ALL_THREADS, stack.shared()),
        };
        let (grid, block) = ([groups, 1, 1], [threads, 1, 1]);
        Shape { grid, block, shared, cluster: 1, early: false, together: true }
    }

    /// The kernel's arguments, with the stack's memory.
    pub(super) fn arguments(&self, memory: u64) -> Vec<Arg> {
        match &self.form {
            Form::Ternary(stack) => stack.arguments(memory).list(),
            Form::Layers(stack) => stack.arguments(memory).list(),
        }
    }
}

/// Values common to all phases; `None` until a phase sets them.
#[derive(Default)]
struct Common {
    /// The step block and the slot of the number of tokens in it.
    step: Option<(u64, u32)>,
    attention: Option<Attention>,
}

/// What all phases of attention have in common; addresses are 0 where there is nothing.
#[derive(Clone, PartialEq)]
struct Attention {
    positions: u64,
    sequences: u64,
    slots: u64,
    table: u64,
    freqs: u64,
    heads: u32,
    kv_heads: u32,
    shift: u32,
    blocks: u32,
    rows: u32,
    columns: u32,
    pairs: u32,
    adjacent: u32,
    splits: u32,
    /// Elements of a head.
    d: u32,
}

impl Attention {
    /// No attention: the values have no meaning, but kernels divide by some of them.
    const NONE: Attention = Attention {
        positions: 0,
        sequences: 0,
        slots: 0,
        table: 0,
        freqs: 0,
        heads: 0,
        kv_heads: 1,
        shift: 0,
        blocks: 1,
        rows: 1,
        columns: 1,
        pairs: 0,
        adjacent: 0,
        splits: 1,
        d: 64,
    };
}

/// The common part of a launch's arguments, which are of one of two structures with the same names.
macro_rules! attention {
    ($args:expr, $at:expr, $splits:expr, $d:expr, $flags:expr) => {
        Attention {
            positions: $at($args.positions)?,
            sequences: $at($args.sequences)?,
            slots: $at($args.slots)?,
            table: $at($args.table)?,
            freqs: $at($args.freqs)?,
            heads: $args.heads,
            kv_heads: $args.kv_heads,
            shift: $args.shift,
            blocks: $args.blocks,
            rows: $args.rows,
            columns: $args.columns,
            pairs: $args.sizes >> hologram_gpu::kernels::attention::ATTENTION_PAIRS,
            adjacent: $flags & hologram_gpu::kernels::attention::ATTENTION_ADJACENT,
            splits: $splits,
            d: $d,
        }
    };
}
use attention;

/// The arguments of a kernel of phases: one of two structures with the same names, and fields of one alone.
macro_rules! arguments {
    ($kernel:ident, $stack:expr, $own:expr, $of:ident $(, $field:ident: $value:expr)*) => {{
        let $of = $stack.common.attention.clone().unwrap_or(Attention::NONE);
        let (step, step_slot) = $stack.common.step.unwrap_or((0, 0));
        $kernel {
            phases: memory($own + $stack.exchange.table() as u64),
            exchange: memory($own),
            runs: memory($own + $stack.exchange.runs() as u64),
            positions: memory($of.positions),
            sequences: memory($of.sequences),
            slots: memory($of.slots),
            table: memory($of.table),
            freqs: memory($of.freqs),
            step: memory(step),
            step_slot,
            count: $stack.phases.len() as u32,
            heads: $of.heads,
            kv_heads: $of.kv_heads,
            shift: $of.shift,
            blocks: $of.blocks,
            rows: $of.rows,
            columns: $of.columns,
            pairs: $of.pairs,
            adjacent: $of.adjacent,
            splits: $of.splits,
            $($field: $value,)*
        }
    }};
}
use arguments;

/// The address of an argument; 0 for none.
fn address(memory: Memory, arguments: &Arguments) -> Option<u64> {
    match memory {
        Memory::Null => Some(0),
        Memory::Binding(index) => match arguments.get(index)? {
            Argument::Slice((address, _)) => Some(*address),
            Argument::Scalar(_) => None,
        },
        Memory::Scratch(_) | Memory::Counters(_) | Memory::Fault | Memory::Address(_) => None,
    }
}

/// Memory of the device, or none.
fn memory(address: u64) -> Memory {
    if address == 0 { Memory::Null } else { Memory::Address(address) }
}

/// Where phases pass on values, and the number of runs after it: `exchange.h`.
struct Exchange {
    /// The place that each phase writes in floats, and its tag there.
    places: Vec<(u32, u32)>,
    /// Floats of all places.
    floats: usize,
}

impl Exchange {
    /// Places for results of the same length: they are used in turn. All of a place is written whenever it is used, so
    /// that no value in it is older than the last use.
    const PLACES: usize = 6;

    /// For phases that give so many floats; `None` if they are too many.
    fn of(gives: impl Iterator<Item = usize>) -> Option<Exchange> {
        // Where the places of each length begin, and the phases that give as much.
        let mut lengths: Vec<(usize, usize, Vec<usize>)> = Vec::new();
        let mut floats = 0usize;
        let mut count = 0;
        for (phase, gives) in gives.enumerate() {
            count += 1;
            match lengths.iter_mut().find(|l| l.0 == gives) {
                Some((.., phases)) => phases.push(phase),
                None => {
                    lengths.push((gives, floats, vec![phase]));
                    floats = floats.checked_add(gives.next_multiple_of(64).checked_mul(Self::PLACES)?)?;
                }
            }
        }
        u32::try_from(floats).ok()?;
        let mut places = vec![(0, 0); count];
        for (gives, begin, phases) in lengths {
            for (n, phase) in phases.iter().enumerate() {
                let place = n % Self::PLACES;
                // The tag of a place differs from the one before, which starts as zero. With an odd number of uses it
                // turns with each run.
                let uses = (phases.len() - place).div_ceil(Self::PLACES);
                let tag = (n / Self::PLACES + 1) & 1 | (uses & 1) << 1;
                places[*phase] = ((begin + place * gives.next_multiple_of(64)) as u32, tag as u32);
            }
        }
        Some(Exchange { places, floats })
    }

    /// The offset of the number of runs in bytes.
    fn runs(&self) -> usize {
        self.floats * 4
    }

    /// The offset of the phases in bytes.
    fn table(&self) -> usize {
        (self.runs() + 4).next_multiple_of(ALIGN)
    }

    /// The place that phase `p` writes.
    fn place(&self, p: usize) -> u32 {
        self.places[p].0
    }

    /// The tag of a place when phase `p` writes it.
    fn tag(&self, p: usize) -> u32 {
        self.places[p].1
    }
}
