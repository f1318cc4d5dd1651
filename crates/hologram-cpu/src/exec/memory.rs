//! Loads and stores of lanes: runs of neighbouring elements at once, anything else lane by lane.

use hologram_isa::Type;

use super::level::{Level, leveled};

/// How an element lies in memory and in a register.
trait Element: 'static {
    /// The bytes of an element.
    type Raw: Copy;
    /// A register's value, of 32 or 64 bits.
    type Word: Copy;
    fn word(raw: Self::Raw) -> Self::Word;
    fn raw(word: Self::Word) -> Self::Raw;
}

macro_rules! elements {
    ($($name:ident $raw:ty, $word_ty:ty, |$r:ident| $word:expr, |$w:ident| $to_raw:expr;)*) => {$(
        struct $name;
        impl Element for $name {
            type Raw = $raw;
            type Word = $word_ty;
            #[inline(always)]
            fn word($r: $raw) -> $word_ty {
                $word
            }
            #[inline(always)]
            fn raw($w: $word_ty) -> $raw {
                $to_raw
            }
        }
    )*};
}

elements! {
    Truth u8, u32, |r| (r != 0) as u32, |w| w as u8;
    Signed8 i8, u32, |r| r as u32, |w| w as i8;
    Unsigned8 u8, u32, |r| r as u32, |w| w as u8;
    Signed16 i16, u32, |r| r as u32, |w| w as i16;
    Unsigned16 u16, u32, |r| r as u32, |w| w as u16;
    Word32 u32, u32, |r| r, |w| w;
    Word64 u64, u64, |r| r, |w| w;
}

/// The memory that an instruction addresses.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    /// The first element, aligned.
    pub(super) data: *mut u8,
    /// Elements.
    pub(super) len: usize,
}

/// A number that no lane has: no lane failed.
pub(super) const NO_LANE: usize = usize::MAX;

/// Lanes that are examined together; if their elements are neighbours, they are moved at once.
const RUN: usize = 16;

/// The moves of one element type. Registers are given by their first word; elements of 64 bits take two words each. All
/// take memory aligned to the element, which other workers may be writing: the value that a racing program reads is
/// undefined, as on every device. `gather` and `scatter` take `n` in multiples of [`RUN`] and return the first active
/// lane with an index outside, or [`NO_LANE`].
#[derive(Clone, Copy)]
pub(super) struct Moves {
    /// `(dst, src, n)`: n elements starting at `src`.
    pub(super) load_run: unsafe fn(*mut u32, *const u8, usize),
    /// `(dst, src, n)`: n elements starting at `dst`.
    pub(super) store_run: unsafe fn(*mut u8, *const u32, usize),
    /// `(dst, memory, indices, mask, n)`.
    pub(super) gather: unsafe fn(*mut u32, Memory, *const u32, *const u32, usize) -> usize,
    /// `(memory, indices, values, mask, n)`, in the order of lanes.
    pub(super) scatter: unsafe fn(Memory, *const u32, *const u32, *const u32, usize) -> usize,
    /// Bytes of an element.
    pub(super) size: usize,
}

#[inline(always)]
unsafe fn load<E: Element>(dst: *mut u32, src: *const u8, n: usize) {
    let (dst, src) = (dst.cast::<E::Word>(), src.cast::<E::Raw>());
    for i in 0..n {
        // SAFETY: the caller promises n elements in both places.
        unsafe { dst.add(i).write(E::word(src.add(i).read())) };
    }
}

#[inline(always)]
unsafe fn store<E: Element>(dst: *mut u8, src: *const u32, n: usize) {
    let (dst, src) = (dst.cast::<E::Raw>(), src.cast::<E::Word>());
    for i in 0..n {
        // SAFETY: the caller promises n elements in both places.
        unsafe { dst.add(i).write(E::raw(src.add(i).read())) };
    }
}

/// The first of 16 indices, if they are consecutive and inside.
#[inline(always)]
fn run(index: &[u32; RUN], len: usize) -> Option<usize> {
    let first = index[0];
    let mut differs = 0;
    for (j, index) in index.iter().enumerate() {
        differs |= *index ^ first.wrapping_add(j as u32);
    }
    (differs == 0 && first as usize + RUN <= len).then_some(first as usize)
}

#[inline(always)]
unsafe fn load_any<E: Element>(dst: *mut u32, memory: Memory, index: *const u32, mask: *const u32, n: usize) -> usize {
    for start in (0..n).step_by(RUN) {
        // SAFETY: the caller promises n lanes, a multiple of 16, everywhere; elements are read only inside the memory.
        unsafe {
            let dst = dst.cast::<E::Word>().add(start);
            let (index, mask) = (&*index.add(start).cast::<[u32; RUN]>(), mask.add(start));
            if let Some(first) = run(index, memory.len) {
                load::<E>(dst.cast(), memory.data.add(first * size_of::<E::Raw>()), RUN);
                continue;
            }
            let data = memory.data.cast::<E::Raw>();
            if index.iter().fold(0, |a, b| a.max(*b)) as usize >= memory.len {
                for (j, index) in index.iter().enumerate() {
                    if (*index as usize) < memory.len {
                        dst.add(j).write(E::word(data.add(*index as usize).read()));
                    } else if mask.add(j).read() != 0 {
                        return start + j;
                    }
                }
                continue;
            }
            for (j, index) in index.iter().enumerate() {
                dst.add(j).write(E::word(data.add(*index as usize).read()));
            }
        }
    }
    NO_LANE
}

#[inline(always)]
unsafe fn store_any<E: Element>(
    memory: Memory,
    index: *const u32,
    values: *const u32,
    mask: *const u32,
    n: usize,
) -> usize {
    for start in (0..n).step_by(RUN) {
        // SAFETY: as in `load_any`.
        unsafe {
            let values = values.cast::<E::Word>().add(start);
            let index = &*index.add(start).cast::<[u32; RUN]>();
            let mask = &*mask.add(start).cast::<[u32; RUN]>();
            let all = mask.iter().fold(1, |a, b| a & b) != 0;
            if all && let Some(first) = run(index, memory.len) {
                store::<E>(memory.data.add(first * size_of::<E::Raw>()), values.cast(), RUN);
                continue;
            }
            let data = memory.data.cast::<E::Raw>();
            for j in 0..RUN {
                if mask[j] == 0 {
                    continue;
                }
                let index = index[j] as usize;
                if index >= memory.len {
                    return start + j;
                }
                data.add(index).write(E::raw(values.add(j).read()));
            }
        }
    }
    NO_LANE
}

leveled! { fn load_run[E: Element][E] = load(dst: *mut u32, src: *const u8, n: usize) }
leveled! { fn store_run[E: Element][E] = store(dst: *mut u8, src: *const u32, n: usize) }
leveled! {
    fn gather[E: Element][E] =
        load_any(dst: *mut u32, memory: Memory, index: *const u32, mask: *const u32, n: usize) -> usize
}
leveled! {
    fn scatter[E: Element][E] =
        store_any(memory: Memory, index: *const u32, values: *const u32, mask: *const u32, n: usize) -> usize
}

/// The moves of a type.
pub(super) fn moves(ty: Type, level: Level) -> Moves {
    fn of<E: Element>(level: Level) -> Moves {
        Moves {
            load_run: load_run::<E>(level),
            store_run: store_run::<E>(level),
            gather: gather::<E>(level),
            scatter: scatter::<E>(level),
            size: size_of::<E::Raw>(),
        }
    }
    match ty {
        Type::Bool => of::<Truth>(level),
        Type::I8 => of::<Signed8>(level),
        Type::U8 => of::<Unsigned8>(level),
        Type::I16 => of::<Signed16>(level),
        Type::U16 | Type::F16 | Type::BF16 => of::<Unsigned16>(level),
        Type::I32 | Type::U32 | Type::F32 => of::<Word32>(level),
        Type::I64 | Type::U64 | Type::F64 => of::<Word64>(level),
    }
}
