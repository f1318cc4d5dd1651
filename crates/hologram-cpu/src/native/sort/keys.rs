//! Elements and their indices as numbers with the order of the elements.

use half::{bf16, f16};

use super::{DIGIT, DIGITS, LONG, VALUES};
use crate::kernel::{Args, Pod};

/// The elements of an argument.
pub(super) trait Keys {
    /// An element above its index; for types of 64 bits only the element's upper half.
    fn number(&self, at: usize, index: usize) -> u64;

    /// Sorts `len` elements; element `i` lies at `at(i)`. `put(i, index)` receives the index, counted from `start`, of
    /// the i-th in order. The scratch memory is that of [`super::ArgSort`] for blocks of at least `len`.
    fn sort(
        &self,
        scratch: &mut [u8],
        len: usize,
        start: usize,
        at: impl Fn(usize) -> usize,
        put: impl FnMut(usize, u32),
    );
}

/// A type of elements.
pub(super) trait Key: Pod {
    /// The key type: `u32` or `u64`.
    type Bits: Copy + Ord;

    /// Numbers in the order of the elements, ascending.
    fn bits(self) -> Self::Bits;
}

macro_rules! keys {
    ($($ty:ty as $bits:ty: |$x:ident| $key:expr;)*) => {$(
        impl Key for $ty {
            type Bits = $bits;

            #[inline(always)]
            fn bits(self) -> $bits {
                let $x = self;
                $key
            }
        }
    )*};
}

keys! {
    u8 as u32: |x| u32::from(x);
    u16 as u32: |x| u32::from(x);
    u32 as u32: |x| x;
    u64 as u64: |x| x;
    i8 as u32: |x| (i32::from(x) as u32) ^ 1 << 31;
    i16 as u32: |x| (i32::from(x) as u32) ^ 1 << 31;
    i32 as u32: |x| (x as u32) ^ 1 << 31;
    i64 as u64: |x| (x as u64) ^ 1 << 63;
    f16 as u32: |x| x.to_f32().bits();
    bf16 as u32: |x| x.to_f32().bits();
    f32 as u32: |x| {
        // +0 for −0. Then negative numbers are inverted, and the others lie above them.
        let bits = (x + 0.0).to_bits();
        let key = bits ^ ((bits as i32 >> 31) as u32 | 1 << 31);
        if x.is_nan() { u32::MAX } else { key }
    };
    f64 as u64: |x| {
        let bits = (x + 0.0).to_bits();
        let key = bits ^ ((bits as i64 >> 63) as u64 | 1 << 63);
        if x.is_nan() { u64::MAX } else { key }
    };
}

/// Elements of 32 bits and less.
pub(super) struct Short<'a, T> {
    pub x: &'a [T],
    /// Inverts the order of the keys.
    pub flip: u32,
}

/// Elements of 64 bits.
pub(super) struct Wide<'a, T> {
    pub x: &'a [T],
    pub flip: u64,
}

impl<'a, T: Key<Bits = u32>> Short<'a, T> {
    pub(super) fn new(args: &Args<'a>, descending: bool) -> Short<'a, T> {
        Short { x: args.read(0), flip: if descending { u32::MAX } else { 0 } }
    }
}

impl<'a, T: Key<Bits = u64>> Wide<'a, T> {
    pub(super) fn new(args: &Args<'a>, descending: bool) -> Wide<'a, T> {
        Wide { x: args.read(0), flip: if descending { u64::MAX } else { 0 } }
    }
}

impl<T: Key<Bits = u32>> Keys for Short<'_, T> {
    #[inline(always)]
    fn number(&self, at: usize, index: usize) -> u64 {
        u64::from(self.x[at].bits() ^ self.flip) << 32 | index as u64
    }

    #[inline]
    fn sort(
        &self,
        scratch: &mut [u8],
        len: usize,
        start: usize,
        at: impl Fn(usize) -> usize,
        mut put: impl FnMut(usize, u32),
    ) {
        // SAFETY: any bytes are numbers; the scratch is aligned, and holds two sets of numbers and the counts.
        let (numbers, counts) = unsafe { scratch.align_to_mut::<u64>().1 }.split_at_mut(2 * len);
        let (numbers, others) = numbers.split_at_mut(len);
        numbers.iter_mut().enumerate().for_each(|(i, to)| *to = self.number(at(i), start + i));
        if len < LONG {
            numbers.sort_unstable();
            return numbers.iter().enumerate().for_each(|(i, number)| put(i, *number as u32));
        }
        // SAFETY: any bytes are counts.
        let counts = unsafe { counts.align_to_mut::<u32>().1 };
        by_digits(numbers, others, &mut counts[..DIGITS * VALUES], put);
    }
}

/// Sorts numbers by the digits of their upper halves, the lowest digit first. A digit that all have in common takes no
/// time.
fn by_digits<'a>(mut from: &'a mut [u64], mut to: &'a mut [u64], counts: &mut [u32], mut put: impl FnMut(usize, u32)) {
    let value = |number: u64, digit: usize| (number >> (32 + DIGIT * digit as u32)) as usize & (VALUES - 1);
    counts.fill(0);
    for number in &*from {
        for digit in 0..DIGITS {
            counts[digit * VALUES + value(*number, digit)] += 1;
        }
    }
    for (digit, places) in counts.chunks_exact_mut(VALUES).enumerate() {
        if from.first().is_some_and(|number| places[value(*number, digit)] as usize == from.len()) {
            continue;
        }
        let mut before = 0;
        for place in &mut *places {
            before += std::mem::replace(place, before);
        }
        for number in &*from {
            let place = &mut places[value(*number, digit)];
            to[*place as usize] = *number;
            *place += 1;
        }
        std::mem::swap(&mut from, &mut to);
    }
    from.iter().enumerate().for_each(|(i, number)| put(i, *number as u32));
}

impl<T: Key<Bits = u64>> Keys for Wide<'_, T> {
    fn number(&self, at: usize, _index: usize) -> u64 {
        self.x[at].bits() ^ self.flip
    }

    fn sort(
        &self,
        scratch: &mut [u8],
        len: usize,
        start: usize,
        at: impl Fn(usize) -> usize,
        mut put: impl FnMut(usize, u32),
    ) {
        // SAFETY: any bytes are numbers; the scratch is aligned, and holds as many pairs.
        let pairs = unsafe { scratch.align_to_mut::<[u64; 2]>().1 };
        let pairs = &mut pairs[..len];
        pairs.iter_mut().enumerate().for_each(|(i, to)| *to = [self.number(at(i), 0), (start + i) as u64]);
        pairs.sort_unstable();
        pairs.iter().enumerate().for_each(|(i, pair)| put(i, pair[1] as u32));
    }
}

/// Runs an expression with the keys of argument 0, whose elements are of a type.
macro_rules! with_keys {
    ($ty:expr, $descending:expr, $args:expr, $keys:ident => $run:expr) => {{
        macro_rules! short {
            ($t:ty) => {{
                let $keys = $crate::native::sort::keys::Short::<$t>::new($args, $descending);
                $run
            }};
        }
        macro_rules! wide {
            ($t:ty) => {{
                let $keys = $crate::native::sort::keys::Wide::<$t>::new($args, $descending);
                $run
            }};
        }
        match $ty {
            hologram_isa::Type::U8 | hologram_isa::Type::Bool => short!(u8),
            hologram_isa::Type::U16 => short!(u16),
            hologram_isa::Type::U32 => short!(u32),
            hologram_isa::Type::U64 => wide!(u64),
            hologram_isa::Type::I8 => short!(i8),
            hologram_isa::Type::I16 => short!(i16),
            hologram_isa::Type::I32 => short!(i32),
            hologram_isa::Type::I64 => wide!(i64),
            hologram_isa::Type::F16 => short!(half::f16),
            hologram_isa::Type::BF16 => short!(half::bf16),
            hologram_isa::Type::F32 => short!(f32),
            hologram_isa::Type::F64 => wide!(f64),
        }
    }};
}
pub(super) use with_keys;
