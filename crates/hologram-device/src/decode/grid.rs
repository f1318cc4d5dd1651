//! Splits blocks whose codes are indices of a grid: [`GridType`].

use crate::BlockType;
use crate::format::{GRID_BLOCK, GridType, Values};

/// Aligned to a line, so that no load of a vector touches two.
#[repr(C, align(64))]
struct Aligned<T>(T);

/// The entries of all grids: see `tools/fixtures/make_grids.py`.
static FILE: &[u8; 9216] = include_bytes!("../format/grids.bin");

static ENTRIES: Aligned<[u16; 4608]> = {
    let (mut all, mut i) = ([0; 4608], 0);
    while i < all.len() {
        all[i] = FILE[2 * i] as u16 | (FILE[2 * i + 1] as u16) << 8;
        i += 1;
    }
    Aligned(all)
};

/// The entries of a grid from entry `first` of the file on: each digit of `bits` bits selects a value.
const fn values<const N: usize, const V: usize>(first: usize, bits: u32, values: &[u8]) -> Aligned<[[u8; V]; N]> {
    let (mut all, mut i) = ([[0; V]; N], 0);
    while i < N {
        let mut e = 0;
        while e < V {
            let entry = FILE[2 * (first + i)] as usize | (FILE[2 * (first + i) + 1] as usize) << 8;
            all[i][e] = values[entry >> (bits * e as u32) & ((1 << bits) - 1)];
            e += 1;
        }
        i += 1;
    }
    Aligned(all)
}

const IQ1_VALUES: [u8; 4] = [0, 8, 16, 0];
const IQ2_VALUES: [u8; 4] = [8, 25, 43, 0];
const IQ3_XXS_VALUES: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const IQ3_S_VALUES: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
static IQ1: Aligned<[[u8; 8]; 2048]> = values(0, 2, &IQ1_VALUES);
static IQ2_XXS: Aligned<[[u8; 8]; 256]> = values(2048, 2, &IQ2_VALUES);
static IQ2_XS: Aligned<[[u8; 8]; 512]> = values(2304, 2, &IQ2_VALUES);
static IQ2_S: Aligned<[[u8; 8]; 1024]> = values(2816, 2, &IQ2_VALUES);
static IQ3_XXS: Aligned<[[u8; 4]; 256]> = values(3840, 3, &IQ3_XXS_VALUES);
static IQ3_S: Aligned<[[u8; 4]; 512]> = values(4096, 3, &IQ3_S_VALUES);

/// A grid's tables, for kernels that read its blocks.
pub struct Grid {
    /// The entries as numbers: the digits of an entry, the first in the lowest bits, select its [`grid_values`]. A
    /// digit has two bits in grids of eight values, three in grids of four.
    pub entries: &'static [u16],
    /// The entries' values, if they have eight.
    pub eights: &'static [[u8; 8]],
    /// The entries' values, if they have four.
    pub fours: &'static [[u8; 4]],
}

/// The tables of a grid format.
#[inline(always)]
pub fn grid(ty: GridType) -> Grid {
    let (first, eights): (_, &'static [[u8; 8]]) = match ty {
        GridType::IQ1_S | GridType::IQ1_M => (0, &IQ1.0),
        GridType::IQ2_XXS => (2048, &IQ2_XXS.0),
        GridType::IQ2_XS => (2304, &IQ2_XS.0),
        GridType::IQ2_S => (2816, &IQ2_S.0),
        GridType::IQ3_XXS => return Grid { entries: &ENTRIES.0[3840..4096], eights: &[], fours: &IQ3_XXS.0 },
        GridType::IQ3_S => return Grid { entries: &ENTRIES.0[4096..], eights: &[], fours: &IQ3_S.0 },
    };
    Grid { entries: &ENTRIES.0[first..first + eights.len()], eights, fours: &[] }
}

/// The values of a grid that digits select: magnitudes, for the IQ1 types the values times 8, plus 8.
pub const fn grid_values(ty: GridType) -> &'static [u8] {
    match ty {
        GridType::IQ1_S | GridType::IQ1_M => &IQ1_VALUES,
        GridType::IQ2_XXS | GridType::IQ2_XS | GridType::IQ2_S => &IQ2_VALUES,
        GridType::IQ3_XXS => &IQ3_XXS_VALUES,
        GridType::IQ3_S => &IQ3_S_VALUES,
    }
}

/// A byte of 0xff per set bit of the index.
static MASKS: [u64; 256] = {
    let (mut all, mut i) = ([0; 256], 0);
    while i < 256 {
        let mut bit = 0;
        while bit < 8 {
            if i >> bit & 1 == 1 {
                all[i] |= 0xff << (8 * bit);
            }
            bit += 1;
        }
        i += 1;
    }
    all
};

/// The block's `f16` scale as bits, the codes, and the integer factor of each run: an element is
/// `d / divisor · factor · code`. `block` has [`GridType::bytes`] bytes.
#[inline(always)]
pub fn split(ty: GridType, block: &[u8], codes: &mut [i8; GRID_BLOCK], factors: &mut [u8; 16]) -> u16 {
    let u16_at = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    let u32_at = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let factor = |bits: u8| 2 * bits + 1;
    let eights = codes.as_chunks_mut::<8>().0;
    match ty {
        GridType::IQ1_S => {
            for (i, to) in eights.iter_mut().enumerate() {
                let h = u16_at(34 + i / 4 * 2);
                shifted(usize::from(block[2 + i]) | usize::from(h >> (i % 4 * 3) & 7) << 8, h >> 15 == 1, to);
                factors[i / 4] = factor((h >> 12 & 7) as u8);
            }
        }
        GridType::IQ1_M => {
            for (i, to) in eights.iter_mut().enumerate() {
                let h = block[32 + i / 2] >> (i % 2 * 4);
                shifted(usize::from(block[i]) | usize::from(h & 7) << 8, h & 8 != 0, to);
                factors[i / 2] = factor((u16_at(48 + i / 8 * 2) >> (i / 2 % 4 * 3) & 7) as u8);
            }
            return (0..4).fold(0, |d, i| d | u16_at(48 + 2 * i) >> 12 << (4 * i));
        }
        GridType::IQ2_XXS => {
            for (i, to) in eights.iter_mut().enumerate() {
                let both = u32_at(6 + i / 4 * 8);
                signed(IQ2_XXS.0[usize::from(block[2 + i / 4 * 8 + i % 4])], even(both >> (i % 4 * 7)), to);
                factors[i / 4] = factor((both >> 28) as u8);
            }
        }
        GridType::IQ2_XS => {
            for (i, to) in eights.iter_mut().enumerate() {
                let q = u16_at(2 + 2 * i);
                signed(IQ2_XS.0[usize::from(q & 511)], even(u32::from(q >> 9)), to);
                factors[i / 2] = factor(block[66 + i / 4] >> (i / 2 % 2 * 4) & 15);
            }
        }
        GridType::IQ2_S => {
            for (i, to) in eights.iter_mut().enumerate() {
                let high = usize::from(block[66 + i / 4] >> (i % 4 * 2) & 3);
                signed(IQ2_S.0[usize::from(block[2 + i]) | high << 8], block[34 + i], to);
                factors[i / 2] = factor(block[74 + i / 4] >> (i / 2 % 2 * 4) & 15);
            }
        }
        GridType::IQ3_XXS => {
            for (i, to) in eights.iter_mut().enumerate() {
                let both = u32_at(66 + i / 4 * 4);
                let entry = |j: usize| IQ3_XXS.0[usize::from(block[2 + 2 * i + j])];
                signed(joined(entry(0), entry(1)), even(both >> (i % 4 * 7)), to);
                factors[i / 4] = factor((both >> 28) as u8);
            }
        }
        GridType::IQ3_S => {
            for (i, to) in eights.iter_mut().enumerate() {
                let high = block[66 + i / 4];
                let entry = |j: usize| {
                    let bit = usize::from(high >> (i % 4 * 2 + j) & 1);
                    IQ3_S.0[usize::from(block[2 + 2 * i + j]) | bit << 8]
                };
                signed(joined(entry(0), entry(1)), block[74 + i], to);
                factors[i / 4] = factor(block[106 + i / 8] >> (i / 4 % 2 * 4) & 15);
            }
        }
    }
    u16_at(0)
}

/// Eight codes of an IQ1 type: an eighth is subtracted if `minus`, else added.
#[inline(always)]
fn shifted(entry: usize, minus: bool, to: &mut [i8; 8]) {
    let offset = if minus { -9 } else { -7 };
    *to = IQ1.0[entry].map(|value| value as i8 + offset);
}

/// Eight values with a byte of signs.
#[inline(always)]
fn signed(values: [u8; 8], signs: u8, to: &mut [i8; 8]) {
    // The complement plus 1; no value is 0, so nothing is carried to the next byte.
    let mask = MASKS[usize::from(signs)];
    let values = (u64::from_le_bytes(values) ^ mask) + (mask & 0x0101_0101_0101_0101);
    *to = values.to_le_bytes().map(|byte| byte as i8);
}

/// The lowest seven bits with an eighth that makes the number of set bits even.
#[inline(always)]
fn even(signs: u32) -> u8 {
    let signs = signs as u8 & 127;
    signs | (signs.count_ones() as u8 & 1) << 7
}

#[inline(always)]
fn joined(low: [u8; 4], high: [u8; 4]) -> [u8; 8] {
    [low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]]
}

/// Calls `visit` for each block with its codes and the scale of each run.
#[inline(always)]
pub fn each(ty: GridType, bytes: &[u8], mut visit: impl FnMut(&[i8; GRID_BLOCK], &[f32])) {
    let (mut codes, mut factors, mut scales) = ([0; GRID_BLOCK], [0; 16], [0.0; 16]);
    // The division is exact: the divisor is a power of two, and f32 has subnormals far below those of f16.
    let per = 1.0 / ty.divisor() as f32;
    for block in bytes.chunks_exact(ty.bytes()) {
        let d = half::f16::from_bits(split(ty, block, &mut codes, &mut factors)).to_f32() * per;
        scales.iter_mut().zip(&factors).for_each(|(scale, factor)| *scale = d * f32::from(*factor));
        visit(&codes, &scales[..GRID_BLOCK / ty.run()]);
    }
}

/// Dequantizes as many blocks as both slices hold.
#[inline(always)]
pub fn decode(ty: GridType, bytes: &[u8], out: &mut [f32]) {
    let mut blocks = out.chunks_exact_mut(GRID_BLOCK);
    each(ty, bytes, |codes, scales| {
        let Some(out) = blocks.next() else { return };
        for ((out, codes), scale) in out.chunks_exact_mut(ty.run()).zip(codes.chunks_exact(ty.run())).zip(scales) {
            out.iter_mut().zip(codes).for_each(|(y, code)| *y = scale * f32::from(*code));
        }
    });
}

/// Converts blocks to those of [`GridType::recoded`]: as many as both slices hold.
pub fn recode(ty: GridType, bytes: &[u8], out: &mut [u8]) {
    let to = ty.recoded();
    let (row, indices) = (to.row(), indices(to));
    let (crate::Codes::Bits(bits, _), crate::Scales::Fractions { at, run, .. }) = (row.codes, row.scales) else {
        return;
    };
    let (mut codes, mut factors) = ([0; GRID_BLOCK], [0; 16]);
    for (block, out) in bytes.chunks_exact(ty.bytes()).zip(out.chunks_exact_mut(row.bytes)) {
        let d = split(ty, block, &mut codes, &mut factors);
        out.fill(0);
        out[row.numbers[0]..][..2].copy_from_slice(&d.to_le_bytes());
        for (i, factor) in out[at..at + GRID_BLOCK / run].iter_mut().enumerate() {
            *factor = factors[i * run / ty.run()];
        }
        for (i, code) in codes.iter().enumerate() {
            let (at, shift) = bits.place(i);
            out[at] |= indices[usize::from(*code as u8)] << shift;
        }
    }
}

/// The index in a format's table by the byte of a value.
fn indices(block: BlockType) -> [u8; 256] {
    let mut all = [0; 256];
    if let Values::Table(table) = block.row().values {
        for (i, value) in table.iter().enumerate().rev() {
            all[usize::from(*value as u8)] = i as u8;
        }
    }
    all
}
