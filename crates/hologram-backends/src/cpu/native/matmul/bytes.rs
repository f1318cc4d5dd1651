//! Vectors of bytes behind one trait, so that the decoder of a block format and the kernels over it are written once and compiled for
//! each instruction set.
//!
//! As with [`Simd`](crate::cpu::native::simd::Simd), methods are inlined into functions with the target feature, and a value of an
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

/// Vectors of [`Bytes::LEN`] bytes: codes of one *unit* of 32 consecutive elements, or of two.
pub trait Bytes: Copy {
    /// Bytes, or `LEN / 2` 16-bit or `LEN / 4` 32-bit integers.
    type V: Copy;
    /// `LEN / 4` values of `f32`.
    type F: Copy;
    /// 16 values of `i16`.
    type H: Copy;
    /// 8 values of `f32`.
    type M: Copy;
    /// Two factors.
    type P: Copy;
    /// The scales of two vectors' runs.
    type S: Copy;
    /// Bytes of a vector: 32 or 64.
    const LEN: usize;
    /// Units of a vector.
    const UNITS: usize = Self::LEN / 32;
    /// Values of an `F`.
    const LANES: usize = Self::LEN / 4;

    fn zero(self) -> Self::V;
    fn zero_f(self) -> Self::F;
    fn zero_m(self) -> Self::M;

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

    /// Adds the products of two vectors of codes up to 63 and signed bytes, on top of what [`Bytes::less`] gave or zeros, times the scales
    /// of their runs, in 32 bits.
    fn add_runs(self, sum: Self::V, on: [Self::V; 2], codes: [Self::V; 2], x: [Self::V; 2], scales: Self::S)
    -> Self::V;

    /// What takes the products of signed bytes with a code of each off their sums.
    fn less(self, code: u8, x: Self::V) -> Self::V;

    /// 16 numbers of six bits, less 32: their low four bits are the halves of the first number's bytes, low ones first; bits 2j and 2j + 1
    /// of the other's bytes are the high ones of numbers 4j to 4j + 3.
    #[inline(always)]
    fn signed_sixes(self, low: u64, high: u32) -> [u64; 2] {
        let high = |first: u32| {
            let pair = u64::from(high >> (2 * first)) | u64::from(high >> (2 * first + 2)) << 32;
            (pair & 0x0303_0303_0303_0303) << 4
        };
        let low = [low, low >> 4].map(|bits| bits & 0x0f0f_0f0f_0f0f_0f0f);
        // Less 32 in each byte: no byte borrows, as each has its highest bit set meanwhile.
        let signed = |bits: u64| ((bits | 0x8080_8080_8080_8080) - 0x2020_2020_2020_2020) ^ 0x8080_8080_8080_8080;
        [signed(low[0] | high(0)), signed(low[1] | high(2))]
    }

    /// Sums of four neighbouring products of any unsigned and signed bytes, exact, in 32 bits. Codes of more than six bits are `WIDE`.
    fn dots<const WIDE: bool>(self, codes: Self::V, x: Self::V) -> Self::V;

    /// As [`Bytes::dots`], of units as [`Bytes::split_units`] gives them: the sums of four lanes are of one unit.
    fn dots_of_halves<const WIDE: bool>(self, codes: [Self::V; 2], x: [Self::V; 2]) -> Self::V;

    /// 16 signed bytes as `i16`.
    fn widen(self, bytes: [u64; 2]) -> Self::H;

    /// 16 values times others.
    fn times(self, values: Self::H, by: &[i16; 16]) -> Self::H;

    /// Of the scales of a block's runs those of two vectors, number `2 * pair` and the next in [`SuperBlock::ORDER`], for
    /// [`Bytes::add_runs`].
    fn spread<B: SuperBlock>(self, scales: Self::H, pair: usize) -> Self::S;

    /// Two `f16`, the first in the low bits, times a factor.
    fn scaled(self, halves: u32, factor: f32) -> Self::P;

    /// Adds the second factor times the dot product of 16 values with those at `with`, in parts.
    ///
    /// # Safety
    /// 16 values can be read.
    unsafe fn add_minimums(self, sum: Self::M, values: Self::H, with: *const i16, factors: Self::P) -> Self::M;

    /// Adds integers times the first factor.
    fn add_sums(self, to: Self::F, sums: Self::V, factors: Self::P) -> Self::F;

    /// Adds integers times factors.
    fn add_products(self, to: Self::F, sums: Self::V, factors: Self::F) -> Self::F;

    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;

    /// Adds eight values times a factor.
    fn add_halves(self, to: Self::F, values: Self::M, factor: f32) -> Self::F;

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
