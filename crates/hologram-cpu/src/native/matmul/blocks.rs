//! The block formats as the kernels for few tokens read them. Byte offsets come from the formats' rows and are
//! constants. This module has only the instructions for each kind of scale, the order of units, and the list of formats
//! (`formats!`).
//!
//! [`SuperBlock`] formats have blocks of 256 with integer scales per run of 16 or 32, so a block's products are summed
//! in integers. [`Block32`] formats have an `f32` scale per unit of 32.

use hologram_device::DType;
use hologram_device::format::{self, Bits, Row, Values, rows};

use super::bytes::{Bytes, Field, TwoRows};

/// A block of 256 elements. Each has the value d·s·(code − [`OFFSET`](SuperBlock::OFFSET)), or d·s·code − m·n;
/// s and n are integers of its run.
pub trait SuperBlock: Row {
    /// Bytes of a block.
    const BYTES: usize = Self::ROW.bytes;
    /// Elements of a run: 16 or 32.
    const RUN: usize = Self::ROW.run();
    /// The offset that makes signed codes unsigned; `None` if a block has minimums.
    const OFFSET: Option<u8> = if Self::ROW.has_minimum() { None } else { Some(Self::ROW.values.offset()) };
    /// The order in which units are multiplied. The two units of a vector are best side by side, with their bits at the
    /// same position.
    const ORDER: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    /// Left shift of each unit's codes when they are multiplied, which saves shifting them back. Shifted codes must not
    /// exceed 63.
    const LEFT: [u32; 8] = [0; 8];

    /// The two fields that make up the codes of a unit of 32; the second may be [`Field::NONE`].
    #[inline(always)]
    fn fields(unit: usize) -> [Field; 2] {
        let (low, high) = const { Self::ROW.bits() };
        [field(low, unit), high.map_or(Field::NONE, |high| field(high, unit))]
    }

    /// The factors of one block in each of two rows.
    ///
    /// # Safety
    /// The blocks can be read.
    #[inline(always)]
    unsafe fn scales<S: TwoRows>(s: S, blocks: [*const u8; 2]) -> Scales<S> {
        let d = const {
            // The instructions below assume this layout.
            assert!(
                Self::ROW.len == 256 && (!Self::ROW.has_minimum() || Self::ROW.numbers[1] == Self::ROW.numbers[0] + 2)
            );
            assert!(match Self::ROW.scales {
                format::Scales::SixBits { run, low, high } => run == 16 && low.run == 8 && high.run == 4,
                format::Scales::SixBitPairs { at } => at == 4,
                format::Scales::Nibbles { .. } | format::Scales::Signed { .. } => true,
                _ => false,
            });
            Self::ROW.numbers[0]
        };
        let at = |at: usize| blocks.map(|block| block.wrapping_add(at));
        // SAFETY: promised by the caller; all reads lie in the block, as the row states.
        unsafe {
            let halves = match Self::ROW.has_minimum() {
                true => at(d).map(|number| load_u32(number)),
                false => at(d).map(|number| broadcast_u16(load_u16(number))),
            };
            let mut minimums = None;
            let of_runs = match const { Self::ROW.scales } {
                format::Scales::Nibbles { at: both } => {
                    let [low, high] = s.half_sixteens(s.sixteens(at(both)));
                    minimums = Some(high);
                    low
                }
                format::Scales::SixBitPairs { .. } => s.eight_and_eight(s.sixteens(blocks)),
                format::Scales::SixBits { low, high, .. } => {
                    s.signed_sixes(at(low.at).map(|low| load_u64(low)), at(high.at).map(|high| load_u32(high)))
                }
                format::Scales::Signed { at: bytes } => s.sixteens(at(bytes)),
                _ => s.sixteens(blocks),
            };
            Scales { halves, of_runs, minimums }
        }
    }
}

/// The field of a unit.
#[inline(always)]
const fn field(bits: Bits, unit: usize) -> Field {
    let (at, shift) = bits.place(32 * unit);
    Field { at, shift, bits: bits.bits, to: bits.to }
}

/// The factors of two blocks of 256.
#[derive(Clone, Copy)]
pub struct Scales<S: TwoRows> {
    /// The bits of d in the low 16 bits, those of m above them.
    pub halves: [u32; 2],
    /// s of each run, signed bytes: 16 of them, or 8 and then n of each run.
    pub of_runs: S::Sixteens,
    /// n of each of 16 runs, for formats with so many runs and minimums.
    pub minimums: Option<S::Sixteens>,
}

/// Units of 32 elements with an `f32` scale each, in blocks of one or several. Codes are bytes, or nibbles with or
/// without a fifth bit.
pub trait Block32: Row {
    /// Bytes of a block.
    const BYTES: usize = Self::ROW.bytes;
    /// Units of a block.
    const UNITS: usize = Self::ROW.len / 32;
    /// The offset that makes signed codes unsigned; 0 if there is a minimum, which is added.
    const OFFSET: i32 = if Self::ROW.has_minimum() { 0 } else { offset::<Self>() as i32 };
    /// Whether codes exceed six bits.
    const WIDE: bool = offset::<Self>() == 128;
    /// The first byte of a block's codes.
    const CODES: usize = {
        let low = Self::ROW.bits().0;
        assert!(low.bits == 8 || low.bits == 4 && low.run == 16);
        low.at
    };
    /// Whether a code takes a byte. If it takes less, [`Block32::halves`] is cheaper than [`Block32::codes`].
    const WHOLE_BYTES: bool = Self::ROW.bits().0.bits == 8;
    /// The first of four bytes of fifth bits, if codes have them.
    const FIFTH_BITS: Option<usize> = match Self::ROW.bits().1 {
        Some(high) => {
            assert!(high.bits == 1 && high.run == 1 && high.to == 4);
            Some(high.at)
        }
        None => None,
    };
    /// The values of nibbles plus the offset, if they differ from the codes.
    const VALUES: Option<&'static [u8; 16]> = match Self::ROW.values {
        Values::Table(_) => Some(&Unsigned::<Self>::VALUES),
        _ => None,
    };

    /// The codes of one unit, or of two for vectors of two units.
    ///
    /// # Safety
    /// The units exist in the row.
    #[inline(always)]
    unsafe fn codes<S: Bytes>(s: S, row: *const u8, units: [usize; 2]) -> S::V {
        let places = units.map(|unit| codes_of_unit::<Self>(row, unit));
        // SAFETY: promised by the caller.
        unsafe {
            if Self::WHOLE_BYTES {
                return s.xor(s.pair(places), 0x80);
            }
            let mut codes = s.nibbles(places);
            if let Some(at) = Self::FIFTH_BITS {
                codes = s.add_sixteens(codes, units.map(|unit| load_u32(row.add(unit * Self::BYTES + at))));
            }
            match Self::VALUES {
                Some(values) => s.look_up(values, codes),
                None => codes,
            }
        }
    }

    /// The codes of twice as many units, split as by [`Bytes::split_units`].
    ///
    /// # Safety
    /// The units exist in the row.
    #[inline(always)]
    unsafe fn halves<S: Bytes>(s: S, row: *const u8, unit: usize) -> [S::V; 2] {
        // SAFETY: promised by the caller; vectors of two units hold the halves of four.
        unsafe {
            if Self::WHOLE_BYTES {
                let next = unit + S::UNITS;
                let first = Self::codes(s, row, [unit, next - 1]);
                return s.split_units([first, Self::codes(s, row, [next, next + S::UNITS - 1])]);
            }
            let stride = if Self::UNITS == 1 { Self::BYTES } else { 16 };
            let [mut low, mut high] = s.strided_nibbles(codes_of_unit::<Self>(row, unit), stride);
            if let Some(fifth_bits) = Self::FIFTH_BITS {
                let first = row.add(unit * Self::BYTES + fifth_bits);
                let load = |unit: usize, at: usize| u32::from(load_u16(first.add(unit * Self::BYTES + at)));
                let pair = |unit: usize, at: usize| load(unit, at) | load(unit + 1, at) << 16;
                let bits = |at: usize| [pair(0, at), if S::UNITS == 2 { pair(2, at) } else { 0 }];
                (low, high) = (s.add_sixteens(low, bits(0)), s.add_sixteens(high, bits(2)));
            }
            match Self::VALUES {
                Some(values) => [s.look_up(values, low), s.look_up(values, high)],
                None => [low, high],
            }
        }
    }

    /// Scales and minimums (if `OFFSET` is 0) of `count` (up to `LANES`) units starting at `first`; 0 in the other
    /// lanes. Without minimums the second result repeats the scales.
    ///
    /// # Safety
    /// The units exist in the row.
    #[inline(always)]
    unsafe fn scales<S: Bytes>(s: S, row: *const u8, first: usize, count: usize) -> (S::F, S::F) {
        const {
            // The instructions below assume this layout.
            let numbers = Self::ROW.numbers;
            assert!(match Self::ROW.scales {
                format::Scales::E8M0 { .. } => numbers.is_empty() && !Self::ROW.has_minimum(),
                _ => numbers[0] == 0 && (!Self::ROW.has_minimum() || numbers[1] == 2),
            });
            assert!(match Self::ROW.scales {
                format::Scales::One | format::Scales::E8M0 { .. } => Self::UNITS == 1,
                format::Scales::SixBits { run, low, high } => run == 32 && low.run == 1 && high.run == 1,
                _ => false,
            });
        }
        if let format::Scales::SixBits { low: low_bits, high: high_bits, .. } = const { Self::ROW.scales } {
            let (mut low, mut high, mut factors) = ([0; 2], [0; 2], [0f32; 2]);
            for i in 0..count.div_ceil(8) {
                // SAFETY: promised by the caller: `first` and the number of units are multiples of 8.
                unsafe {
                    let block = row.add((first / 8 + i) * Self::BYTES);
                    factors[i] = s.float_of_f16(load_u16(block));
                    (low[i], high[i]) =
                        (load_u32(block.add(low_bits.at)), u32::from(load_u16(block.add(high_bits.at))));
                }
            }
            let scales = s.mul(s.six_bits(low, high), s.by_eights(factors));
            return (scales, scales);
        }
        if let format::Scales::E8M0 { at } = const { Self::ROW.scales } {
            // SAFETY: promised by the caller; a block is longer than 4 bytes.
            let scales = unsafe { s.powers_of_two(row.add(first * Self::BYTES), at, Self::BYTES, count) };
            return (scales, scales);
        }
        // SAFETY: promised by the caller; a block is longer than 4 bytes.
        unsafe {
            let first = row.add(first * Self::BYTES);
            if Self::OFFSET == 0 {
                return s.pairs(first, Self::BYTES, count);
            }
            let scales = s.halves(first, 0, Self::BYTES, count);
            (scales, scales)
        }
    }
}

/// The first byte of a unit's codes.
#[inline(always)]
fn codes_of_unit<B: Block32 + ?Sized>(row: *const u8, unit: usize) -> *const u8 {
    row.wrapping_add(unit / B::UNITS * B::BYTES + B::CODES + unit % B::UNITS * 16)
}

/// What makes codes unsigned. Of a table of small values it is small, as sums with it are taken off again: their
/// rounding counts.
const fn offset<B: Row + ?Sized>() -> u8 {
    if let Values::Table(table) = B::ROW.values {
        let (mut i, mut small) = (0, true);
        while i < 16 {
            small &= table[i] >= -16 && table[i] < 16;
            i += 1;
        }
        if small {
            return 16;
        }
    }
    B::ROW.values.offset()
}

/// A table of values plus the offset.
struct Unsigned<B: ?Sized>(std::marker::PhantomData<B>);

impl<B: Row + ?Sized> Unsigned<B> {
    const VALUES: [u8; 16] = {
        let (mut all, mut i) = ([0; 16], 0);
        while let Values::Table(table) = B::ROW.values
            && i < 16
        {
            all[i] = (table[i] as i16 + offset::<B>() as i16) as u8;
            i += 1;
        }
        all
    };
}

/// The bits of a `u16`.
///
/// # Safety
/// Two bytes can be read.
#[inline(always)]
unsafe fn load_u16(from: *const u8) -> u16 {
    // SAFETY: promised by the caller.
    u16::from_le(unsafe { from.cast::<u16>().read_unaligned() })
}

/// The 16 bits in both halves of a `u32`.
#[inline(always)]
fn broadcast_u16(value: u16) -> u32 {
    u32::from(value) * 0x1_0001
}

/// The bits of a `u32`.
///
/// # Safety
/// Four bytes can be read.
#[inline(always)]
unsafe fn load_u32(from: *const u8) -> u32 {
    // SAFETY: promised by the caller.
    u32::from_le(unsafe { from.cast::<u32>().read_unaligned() })
}

/// The bits of a `u64`.
///
/// # Safety
/// Eight bytes can be read.
#[inline(always)]
unsafe fn load_u64(from: *const u8) -> u64 {
    // SAFETY: promised by the caller.
    u64::from_le(unsafe { from.cast::<u64>().read_unaligned() })
}

macro_rules! formats {
    (256: $($super:ident),*; 32: $($block:ident),*; nibbles: $($nibbles:ident),*) => {
        /// Calls the function for the format's type; `None` for a format without one.
        macro_rules! for_format {
            ($format:expr, super $on_super:ident, block $on_block:ident, nibbles $on_nibbles:ident) => {
                match $format {
                    $(DType::$super => Some($on_super::<hologram_device::format::rows::$super>()),)*
                    $(DType::$block => Some($on_block::<hologram_device::format::rows::$block>()),)*
                    $(DType::$nibbles => Some($on_nibbles::<hologram_device::format::rows::$nibbles>()),)*
                    _ => None,
                }
            };
        }
        pub(super) use for_format;
        $(impl Block32 for rows::$block {})*
        $(impl Block32 for rows::$nibbles {})*
    };
}

/// Whether the format is in the list.
pub fn is_listed(format: DType) -> bool {
    fn listed<B>() {}
    for_format!(format, super listed, block listed, nibbles listed).is_some()
}

formats! {
    256: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K;
    32: Q8_0, IQ4_XS;
    nibbles: Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4
}

impl SuperBlock for rows::Q2_K {
    const ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
    const LEFT: [u32; 8] = [0, 2, 0, 2, 0, 2, 0, 2];
}

impl SuperBlock for rows::Q3_K {
    const ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
    const LEFT: [u32; 8] = [0, 1, 2, 3, 0, 1, 2, 3];
}

impl SuperBlock for rows::Q4_K {
    const ORDER: [usize; 8] = [0, 2, 1, 3, 4, 6, 5, 7];
}

impl SuperBlock for rows::Q5_K {
    const ORDER: [usize; 8] = [0, 2, 1, 3, 4, 6, 5, 7];
}

impl SuperBlock for rows::Q6_K {}
