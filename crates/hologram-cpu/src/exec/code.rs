//! Translated programs: a tree of decoded instructions whose operands are places in a worker's arena.

use hologram_isa::{Opcode, Type};

use super::atomic::UpdateFn;
use super::lanes::{LaneFn, WordFn};
use super::masks::{Advance, Masks};
use super::memory::Moves;

/// A place in the arena, in words: a uniform value, or the first of a register's lanes. A value of 64 bits takes two
/// words and lies at an even place.
pub(super) type Place = u32;

/// The mask of a block: an index into the machine's masks. Blocks at the same depth share them.
pub(super) type MaskId = usize;

/// The index of a load or store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Index {
    Uniform(Place),
    /// The base.
    Affine(Place),
    Lanes(Place),
}

/// The value of a store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Uniform(Place),
    Lanes(Place),
}

/// The condition of an `if`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cond {
    Uniform(Place),
    Lanes(Place),
    /// base + lane < bound.
    Below {
        base: Place,
        bound: Place,
    },
}

/// A decoded instruction.
pub(super) enum Node {
    /// A uniform result.
    One {
        f: WordFn,
        dst: Place,
        args: [Place; 3],
    },
    /// A result for each lane.
    Lanes {
        f: LaneFn,
        dst: Place,
        args: [Place; 3],
    },
    /// Every lane of `dst` becomes the value at `from`.
    Spread {
        dst: Place,
        from: Place,
        wide: bool,
    },
    /// dst = base + lane.
    Iota {
        dst: Place,
        base: Place,
    },
    /// The active lanes of `dst` become those of `from`.
    Commit {
        dst: Place,
        from: Place,
        wide: bool,
    },
    /// A division by zero on an active thread is an error.
    NoZero {
        op: Opcode,
        divisor: Value,
        wide: bool,
        line: u32,
    },
    /// A load at a uniform index.
    LoadOne {
        array: usize,
        moves: Moves,
        dst: Place,
        index: Place,
        line: u32,
    },
    Load {
        array: usize,
        moves: Moves,
        dst: Place,
        index: Index,
        line: u32,
    },
    Store {
        array: usize,
        moves: Moves,
        index: Index,
        value: Value,
        line: u32,
    },
    /// An atomic operation; every operand is lanes.
    Atomic {
        array: usize,
        update: UpdateFn,
        dst: Place,
        index: Place,
        values: [Place; 2],
        line: u32,
    },
    /// A subgroup operation on lanes.
    Subgroup {
        op: Opcode,
        ty: Type,
        dst: Place,
        value: Place,
        lane: Place,
    },
    /// A product of tiles, whose operands are lanes.
    Tile {
        ty: Type,
        dst: Place,
        args: [Place; 3],
    },
    If {
        cond: Cond,
        mask: MaskId,
        then: Vec<Node>,
        otherwise: Vec<Node>,
    },
    /// A counted loop whose counter is uniform.
    For {
        var: Place,
        start: Place,
        end: Place,
        step: Place,
        signed: bool,
        line: u32,
        body: Body,
    },
    /// A counted loop over u32 whose counter is var + lane.
    ForAffine {
        var: Place,
        start: Place,
        end: Place,
        step: Place,
        line: u32,
        body: Body,
    },
    /// A counted loop with a counter, an end and a step per lane; the body does not change end and step.
    ForLanes {
        var: Place,
        end: Place,
        step: Place,
        signed: bool,
        advance: Advance,
        line: u32,
        body: Body,
    },
    Loop {
        max: u32,
        body: Body,
    },
    /// Leaves a loop, or goes to its next round, with all active threads.
    Jump {
        cond: Option<Place>,
        flow: Flow,
    },
    /// As `Jump`, for the active threads where `cond` holds: removes them from all masks from this block's outward to
    /// `to`.
    Leave {
        cond: Option<Place>,
        to: MaskId,
    },
}

/// The body of a loop.
pub(super) struct Body {
    pub(super) nodes: Vec<Node>,
    /// Set when threads may leave at different times: the mask of the threads in the loop. The next mask has those in
    /// the round.
    pub(super) alive: Option<MaskId>,
}

/// How a block ends. The numbers count loops outward from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break(u32),
    Continue(u32),
}

/// An array that loads and stores address: parameters in order, then shared arrays.
pub(super) struct Array {
    pub(super) name: String,
    pub(super) kind: ArrayKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ArrayKind {
    /// The buffer of this number among the launch's slices, with elements of this many bytes.
    Buffer { slice: usize, size: usize },
    /// A shared array: its place and number of elements.
    Shared { place: Place, len: usize },
    /// A scalar parameter takes a number too.
    Scalar,
}

/// A translated program.
pub(crate) struct Code {
    pub(super) name: String,
    pub(super) workgroup: [u32; 3],
    /// Threads of a workgroup, and the lanes of a register: threads rounded up to whole subgroups.
    pub(super) threads: usize,
    pub(super) lanes: usize,
    pub(super) body: Vec<Node>,
    pub(super) arrays: Vec<Array>,
    /// Uniform values that are set once per launch.
    pub(super) constants: Vec<(Place, u64)>,
    /// Registers that are set once per launch: `thread.x` and its kin.
    pub(super) builtins: Vec<(Opcode, Place)>,
    /// Scalar parameters: where the next one's value goes.
    pub(super) scalars: Vec<Place>,
    /// Shared memory: first word and number of words, cleared for each workgroup.
    pub(super) shared: (Place, usize),
    /// The first of the registers that are masks, one per number.
    pub(super) masks: Place,
    /// A register for the machine's own use.
    pub(super) spare: Place,
    /// Words of a worker's arena.
    pub(super) words: usize,
    pub(super) ops: Masks,
}

impl Code {
    /// Bytes of a worker's arena.
    pub(crate) fn bytes(&self) -> usize {
        self.words * 4
    }
}

/// Places that are the same in every arena: the workgroup's index and the grid.
pub(super) const GROUP: Place = 0;
pub(super) const GRID: Place = 3;
/// The first place after them.
pub(super) const FIRST_PLACE: Place = 6;
