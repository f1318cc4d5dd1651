//! Vectors of bytes behind one trait, so that the decoder of a block format and the kernels over it are written once
//! and compiled for each instruction set.
//!
//! As with [`Simd`](crate::native::simd::Simd), methods are inlined into functions with the target feature. A value of
//! an instruction set's type is the evidence that the processor has it.

use super::blocks::SuperBlock;

#[cfg(target_arch = "x86_64")]
macro_rules! wrapped {
    ($e:expr) => {
        // SAFETY: the value `self` is evidence that the processor has the instructions; the caller promises the memory.
        unsafe { $e }
    };
}
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod two_rows;
#[cfg(target_arch = "x86_64")]
mod vnni;
#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use vnni::{Vnni, hidden};

/// Bits of 32 consecutive elements in a block: byte `at + i` holds those of element `i`, starting at bit `shift`. They
/// become bits from `to` on of the element's code.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub at: usize,
    pub shift: u32,
    pub bits: u32,
    pub to: u32,
}

impl Field {
    /// No bits.
    pub const NONE: Field = Field { at: 0, shift: 0, bits: 0, to: 0 };

    /// Mask of the field's bits in the code.
    pub const fn mask(self) -> u8 {
        (((1u32 << self.bits) - 1) << self.to) as u8
    }

    /// Left shift from the byte to the code; negative for a right shift.
    pub const fn left(self) -> i32 {
        self.to as i32 - self.shift as i32
    }
}

/// Reads the factors of blocks of 256, of two rows together.
pub trait TwoRows: Copy {
    /// 16 bytes of each of two rows.
    type Sixteens: Copy;
    /// Two factors of each of two rows.
    type Factors: Copy;

    /// # Safety
    /// 16 bytes at each place can be read.
    unsafe fn sixteens(self, rows: [*const u8; 2]) -> Self::Sixteens;

    /// The low nibbles of the bytes, and the high nibbles.
    fn half_sixteens(self, both: Self::Sixteens) -> [Self::Sixteens; 2];

    /// 16 six-bit numbers per row, minus 32. The nibbles of `low`'s bytes are their low four bits: first all low
    /// nibbles, then all high nibbles. Bits 2j and 2j + 1 of `high`'s bytes are the high two bits of the four numbers
    /// from 4j on.
    fn signed_sixes(self, low: [u64; 2], high: [u32; 2]) -> Self::Sixteens;

    /// Scales and minimums of `Q4_K` and `Q5_K`, from the first 16 bytes of their blocks. Bytes 4 to 15 hold 8 scales
    /// and 8 minimums of six bits. The first four of each are the low six bits of bytes 4–7 and 8–11; the high two
    /// bits of these bytes belong to the last four, whose low four bits are in bytes 12–15.
    fn eight_and_eight(self, blocks: Self::Sixteens) -> Self::Sixteens;

    /// The first row's 16 bytes.
    fn first_sixteen(self, of: Self::Sixteens) -> [i8; 16];

    /// Two `f16` per row, the first in the low bits, times a factor.
    fn factors(self, halves: [u32; 2], by: f32) -> Self::Factors;
}

/// Vectors of [`Bytes::LEN`] bytes: codes of one *unit* of 32 consecutive elements, or of two.
pub trait Bytes: TwoRows {
    /// Bytes, or `LEN / 2` 16-bit or `LEN / 4` 32-bit integers.
    type V: Copy;
    /// `LEN / 4` values of `f32`.
    type F: Copy;
    /// The scales of the runs of a block in each of two rows.
    type Scales: Copy;
    /// Integer sums of two rows.
    type Sums: Copy;
    /// `f32` sums of two rows.
    type Totals: Copy;
    /// `f32` sums of minimums of two rows.
    type Lows: Copy;
    /// Bytes of a vector: 32 or 64.
    const LEN: usize;
    /// Units of a vector.
    const UNITS: usize = Self::LEN / 32;
    /// Values of an `F`.
    const LANES: usize = Self::LEN / 4;

    fn zero(self) -> Self::V;
    fn zero_f(self) -> Self::F;
    fn no_sums(self) -> Self::Sums;
    fn no_totals(self) -> Self::Totals;
    fn no_lows(self) -> Self::Lows;

    /// # Safety
    /// `LEN` bytes can be read.
    unsafe fn load(self, from: *const u8) -> Self::V;

    /// # Safety
    /// `LANES` values can be read.
    unsafe fn load_f(self, from: *const f32) -> Self::F;

    /// One field of a block per unit of the vector; all with the same `to` and `bits`.
    ///
    /// # Safety
    /// The fields lie in the block.
    unsafe fn field(self, block: *const u8, units: [Field; 2]) -> Self::V;

    /// Nibbles of a block of 32 per unit: the low nibbles of 16 bytes, then the high ones.
    ///
    /// # Safety
    /// 16 bytes at each used place can be read.
    unsafe fn nibbles(self, units: [*const u8; 2]) -> Self::V;

    /// Nibbles of twice as many units: the low nibbles of the 16 bytes at `first` and at each `stride` after it, and
    /// the high ones.
    ///
    /// # Safety
    /// The bytes can be read.
    unsafe fn strided_nibbles(self, first: *const u8, stride: usize) -> [Self::V; 2];

    /// The first 16 bytes of each unit of two vectors, and the last 16.
    fn split_units(self, vectors: [Self::V; 2]) -> [Self::V; 2];

    /// # Safety
    /// `LEN` bytes can be written.
    unsafe fn store(self, to: *mut u8, v: Self::V);

    /// 32 bytes per unit.
    ///
    /// # Safety
    /// 32 bytes at each used place can be read.
    unsafe fn pair(self, units: [*const u8; 2]) -> Self::V;

    /// Nibbles, plus 16 where a unit's bit is set.
    fn add_sixteens(self, halves: Self::V, units: [u32; 2]) -> Self::V;

    fn or(self, a: Self::V, b: Self::V) -> Self::V;
    fn xor(self, a: Self::V, byte: u8) -> Self::V;

    /// The table's entries for indices below 16.
    fn look_up(self, table: &[u8; 16], indices: Self::V) -> Self::V;

    /// The offset correction: −code · Σ x per lane. Added to sums of products, it undoes the offset that made the
    /// codes unsigned.
    fn offset_correction(self, code: u8, x: Self::V) -> Self::V;

    /// Signed bytes as the scales of runs, times `lift` of each run.
    fn scales(self, of_runs: Self::Sixteens, lift: Option<&[i16; 16]>) -> Self::Scales;

    /// Adds the products of vector `vector` of a block times the scales of their runs. Units are in
    /// [`SuperBlock::ORDER`]. Products are of codes up to 63 of each row and signed bytes; `on` is
    /// [`Bytes::offset_correction`] or zeros and is added first.
    fn add_runs<B: SuperBlock>(
        self,
        sums: Self::Sums,
        vector: usize,
        on: Self::V,
        codes: [Self::V; 2],
        x: Self::V,
        scales: Self::Scales,
    ) -> Self::Sums;

    /// Adds integers times the first factor of their row.
    fn add_sums(self, to: Self::Totals, sums: Self::Sums, factors: Self::Factors) -> Self::Totals;

    /// Stores 16 numbers for [`Bytes::add_minimums`], in 32 bytes.
    ///
    /// # Safety
    /// The 32 bytes can be written.
    unsafe fn store_sums(self, to: *mut u8, sums: &[i16; 16]);

    /// Adds, in parts, the second factor times a dot product per row: 16 bytes up to 127 with numbers stored by
    /// [`Bytes::store_sums`].
    ///
    /// # Safety
    /// 32 bytes can be read.
    unsafe fn add_minimums(
        self,
        to: Self::Lows,
        minimums: Self::Sixteens,
        with: *const u8,
        factors: Self::Factors,
    ) -> Self::Lows;

    /// For each row a vector whose lanes add up to the row's sum plus its minimums times a factor.
    fn rows(self, totals: Self::Totals, lows: Self::Lows, factor: f32) -> [Self::F; 2];

    /// Sums of four neighbouring products of any unsigned and signed bytes, exact, in 32 bits. `WIDE`: codes have more
    /// than six bits.
    fn dots<const WIDE: bool>(self, codes: Self::V, x: Self::V) -> Self::V;

    /// As [`Bytes::dots`], for units split by [`Bytes::split_units`]: each four lanes of sums belong to one unit.
    fn dots_of_halves<const WIDE: bool>(self, codes: [Self::V; 2], x: [Self::V; 2]) -> Self::V;

    /// Adds integers times factors.
    fn add_products(self, to: Self::F, sums: Self::V, factors: Self::F) -> Self::F;

    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;

    /// Stores the sum of the lanes of each of the first `count` (up to `LANES`) vectors.
    ///
    /// # Safety
    /// `count` values can be written.
    unsafe fn store_totals(self, vectors: &[Self::F; 16], to: *mut f32, count: usize);
    fn float_of_f16(self, bits: u16) -> f32;

    /// The `f16` at byte `at` of each of `count` (up to `LANES`) blocks of `stride` bytes; 0 in the other lanes.
    ///
    /// # Safety
    /// The blocks can be read.
    unsafe fn halves(self, first: *const u8, at: usize, stride: usize, count: usize) -> Self::F;

    /// The first two `f16` of each of `count` (up to `LANES`) blocks of `stride` bytes; 0 in the other lanes.
    ///
    /// # Safety
    /// The blocks can be read.
    #[inline(always)]
    unsafe fn pairs(self, first: *const u8, stride: usize, count: usize) -> (Self::F, Self::F) {
        // SAFETY: promised by the caller.
        unsafe { (self.halves(first, 0, stride, count), self.halves(first, 2, stride, count)) }
    }

    /// 2^(e - 128) of the byte e at byte `at` of each of `count` (up to `LANES`) blocks of `stride` bytes; 0 in the
    /// other lanes.
    ///
    /// # Safety
    /// The blocks can be read, and four bytes from each e on.
    unsafe fn powers_of_two(self, first: *const u8, at: usize, stride: usize, count: usize) -> Self::F;

    /// Six-bit numbers minus 32, eight lanes per block: from their low four bits and their high two bits.
    fn six_bits(self, low: [u32; 2], high: [u32; 2]) -> Self::F;

    /// The first value in the first eight lanes, the second in the lanes after them.
    fn by_eights(self, values: [f32; 2]) -> Self::F;

    /// For vector `index` of `LANES` units: each unit's factor in all lanes of its sums.
    fn pick(self, factors: Self::F, index: usize) -> Self::F;

    /// As [`Bytes::pick`], for the sums of [`Bytes::dots_of_halves`].
    fn pick_of_halves(self, factors: Self::F, index: usize) -> Self::F;
}
