//! Vectors of bytes behind one trait, so that the decoder of a block format and the kernels over it are written once and compiled for
//! each instruction set.
//!
//! As with [`Simd`](crate::native::simd::Simd), methods are inlined into functions with the target feature, and a value of an
//! instruction set's type is the evidence that the processor has it.

use super::blocks::SuperBlock;

#[cfg(target_arch = "x86_64")]
macro_rules! wrapped {
    ($e:expr) => {
        // SAFETY: the value `self` is the evidence that the processor has the instructions; what is read or written the caller promises.
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
pub use vnni::Vnni;

/// Bits of 32 consecutive elements in a block: byte `at + i` holds those of element `i`, from bit `shift` on; they are taken to bit `to`
/// of the element's code.
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

    /// What keeps the field's bits at their place in the code.
    pub const fn mask(self) -> u8 {
        (((1u32 << self.bits) - 1) << self.to) as u8
    }

    /// How far the bits move to the left; negative for the right.
    pub const fn left(self) -> i32 {
        self.to as i32 - self.shift as i32
    }
}

/// What a block of 256 says of its factors, of two rows together.
pub trait TwoRows: Copy {
    /// 16 bytes of each of two rows.
    type Sixteens: Copy;
    /// Two factors of each of two rows.
    type Factors: Copy;

    /// # Safety
    /// 16 bytes at each place can be read.
    unsafe fn sixteens(self, rows: [*const u8; 2]) -> Self::Sixteens;

    /// The low halves of bytes, and the high ones.
    fn half_sixteens(self, both: Self::Sixteens) -> [Self::Sixteens; 2];

    /// 16 numbers of six bits of each row, less 32: their low four bits are the halves of the first number's bytes, low ones first; bits
    /// 2j and 2j + 1 of the other's bytes are the high ones of numbers 4j to 4j + 3.
    fn signed_sixes(self, low: [u64; 2], high: [u32; 2]) -> Self::Sixteens;

    /// Scales and minimums of `Q4_K` and `Q5_K`, from the first 16 bytes of their blocks: bytes 4 to 15 hold 8 + 8 numbers of six bits. The
    /// first four of each are the low bits of bytes 4–7 and 8–11, whose high bits are those of the last four; these have their low
    /// bits in bytes 12–15.
    fn eight_and_eight(self, blocks: Self::Sixteens) -> Self::Sixteens;

    /// The first row's 16 bytes.
    fn first_sixteen(self, of: Self::Sixteens) -> [i8; 16];

    /// Two `f16` of each row, the first in the low bits, times a factor.
    fn factors(self, halves: [u32; 2], by: f32) -> Self::Factors;
}

/// Vectors of [`Bytes::LEN`] bytes: codes of one *unit* of 32 consecutive elements, or of two.
pub trait Bytes: TwoRows {
    /// Bytes, or `LEN / 2` 16-bit or `LEN / 4` 32-bit integers.
    type V: Copy;
    /// `LEN / 4` values of `f32`.
    type F: Copy;
    /// The scales of the runs of a block of two rows each.
    type Scales: Copy;
    /// Integer sums of two rows.
    type Sums: Copy;
    /// `f32` sums of two rows.
    type Totals: Copy;
    /// The same, of minimums.
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

    /// One field of a block for each unit of the vector, each with the same `to` and `bits`.
    ///
    /// # Safety
    /// The fields lie in the block.
    unsafe fn field(self, block: *const u8, units: [Field; 2]) -> Self::V;

    /// Half bytes, low ones of 16 bytes first and then the high ones, of a block of 32 for each unit.
    ///
    /// # Safety
    /// 16 bytes at each used place can be read.
    unsafe fn nibbles(self, units: [*const u8; 2]) -> Self::V;

    /// Half bytes of twice as many units: the low ones of the 16 bytes at `first` and at each `stride` after it, and the high ones.
    ///
    /// # Safety
    /// The bytes can be read.
    unsafe fn half_bytes(self, first: *const u8, stride: usize) -> [Self::V; 2];

    /// The first 16 bytes of each unit of two vectors, and the last 16.
    fn split_units(self, vectors: [Self::V; 2]) -> [Self::V; 2];

    /// # Safety
    /// `LEN` bytes can be written.
    unsafe fn store(self, to: *mut u8, v: Self::V);

    /// 32 bytes of each unit.
    ///
    /// # Safety
    /// 32 bytes at each used place can be read.
    unsafe fn pair(self, units: [*const u8; 2]) -> Self::V;

    /// Half bytes, and 16 more where a unit's bit is set.
    fn add_sixteens(self, halves: Self::V, units: [u32; 2]) -> Self::V;

    fn or(self, a: Self::V, b: Self::V) -> Self::V;
    fn xor(self, a: Self::V, byte: u8) -> Self::V;

    /// The table's entries for indices below 16.
    fn look_up(self, table: &[u8; 16], indices: Self::V) -> Self::V;

    /// What takes the products of signed bytes with a code of each off their sums.
    fn less(self, code: u8, x: Self::V) -> Self::V;

    /// Signed bytes as the scales of runs, times what is given for each.
    fn scales(self, of_runs: Self::Sixteens, lift: Option<&[i16; 16]>) -> Self::Scales;

    /// Adds the products of vector `vector` of a block, its units in [`SuperBlock::ORDER`], times the scales of their runs: codes up to 63 of
    /// each row and signed bytes, on top of what [`Bytes::less`] gave or zeros.
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
    /// These can be written.
    unsafe fn store_sums(self, to: *mut u8, sums: &[i16; 16]);

    /// Adds the second factor times the dot product of 16 bytes up to 127 of each row with numbers stored by [`Bytes::store_sums`], in parts.
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

    /// What the lanes of each row's vector add up to are its sums, plus its minimums times a factor.
    fn rows(self, totals: Self::Totals, lows: Self::Lows, factor: f32) -> [Self::F; 2];

    /// Sums of four neighbouring products of any unsigned and signed bytes, exact, in 32 bits. Codes of more than six bits are `WIDE`.
    fn dots<const WIDE: bool>(self, codes: Self::V, x: Self::V) -> Self::V;

    /// As [`Bytes::dots`], of units as [`Bytes::split_units`] gives them: the sums of four lanes are of one unit.
    fn dots_of_halves<const WIDE: bool>(self, codes: [Self::V; 2], x: [Self::V; 2]) -> Self::V;

    /// Adds integers times factors.
    fn add_products(self, to: Self::F, sums: Self::V, factors: Self::F) -> Self::F;

    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;

    /// Stores what the lanes of each of the first `count` (up to `LANES`) vectors add up to.
    ///
    /// # Safety
    /// `count` values can be written.
    unsafe fn store_totals(self, vectors: &[Self::F; 16], to: *mut f32, count: usize);
    fn half(self, bits: u16) -> f32;

    /// The `f16` at byte `at` of each of `count` (up to `LANES`) blocks of `stride` bytes; 0 for the others.
    ///
    /// # Safety
    /// The blocks can be read.
    unsafe fn halves(self, first: *const u8, at: usize, stride: usize, count: usize) -> Self::F;

    /// The first two `f16` of each of `count` (up to `LANES`) blocks of `stride` bytes; 0 for the others.
    ///
    /// # Safety
    /// The blocks can be read.
    #[inline(always)]
    unsafe fn pairs(self, first: *const u8, stride: usize, count: usize) -> (Self::F, Self::F) {
        // SAFETY: promised by the caller.
        unsafe { (self.halves(first, 0, stride, count), self.halves(first, 2, stride, count)) }
    }

    /// Numbers of six bits less 32, of eight lanes each: their low four bits, and their high two.
    fn six_bits(self, low: [u32; 2], high: [u32; 2]) -> Self::F;

    /// One value in the first eight lanes, the other in those after them.
    fn by_eights(self, values: [f32; 2]) -> Self::F;

    /// For vector `index` of `LANES` units: each unit's factor in all lanes of its sums.
    fn pick(self, factors: Self::F, index: usize) -> Self::F;

    /// The same for the sums of [`Bytes::dots_of_halves`].
    fn pick_of_halves(self, factors: Self::F, index: usize) -> Self::F;
}
