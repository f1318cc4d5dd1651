//! The block formats of GGUF whose codes are indices of a grid: a table of vectors of eight or four values.
//!
//! Only the host and the CPU's kernels read them. Other devices get [`GridType::recoded`], the same values with four
//! bits per element.

use super::BlockType;

/// Elements of a block.
pub const GRID_BLOCK: usize = 256;

/// A grid format of GGUF, by its GGUF name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(non_camel_case_types, reason = "GGUF's names")]
pub enum GridType {
    /// GGUF `IQ1_S`, 50 bytes: an `f16` scale `d`; 32 bytes `q`; per run of 32 a `u16` `h`. Eight elements are the
    /// entry `q | bits of h << 8` of a grid of -1, 0 and 1, three bits of `h` each; to all of a run an eighth is added,
    /// or subtracted if bit 15 is set. The scale is `d·(2s + 1)` with bits 12 to 14 of `h` as `s`.
    IQ1_S,
    /// GGUF `IQ1_M`, 56 bytes: 32 bytes `q`; 16 bytes of nibbles, one per entry, with its high bits (0 to 2) and
    /// whether the eighth is subtracted (bit 3); four `u16` with a scale of three bits per run of 16 and, in their
    /// highest four bits, the `f16` scale `d`.
    IQ1_M,
    /// GGUF `IQ2_XXS`, 66 bytes: an `f16` scale `d`; per run of 32 four bytes, the entries of eight elements each, and
    /// a `u32` with seven bits of signs per entry (the eighth makes their number even) and a scale `s` in its highest
    /// four bits. The scale is `d·(2s + 1) / 8`; the grid has 8, 25 and 43.
    IQ2_XXS,
    /// GGUF `IQ2_XS`, 74 bytes: an `f16` scale `d`; 32 `u16`, an entry (9 bits) with its signs as in
    /// [`GridType::IQ2_XXS`]; a nibble `s` per run of 16.
    IQ2_XS,
    /// GGUF `IQ2_S`, 82 bytes: an `f16` scale `d`; 32 bytes `q`; a byte of signs per entry; two high bits per entry; a
    /// nibble `s` per run of 16, as in [`GridType::IQ2_XS`].
    IQ2_S,
    /// GGUF `IQ3_XXS`, 98 bytes: an `f16` scale `d`; 64 bytes, the entries of four elements each; per run of 32 a `u32`
    /// of signs and scale as in [`GridType::IQ2_XXS`]. The scale is `d·(2s + 1) / 4`; the grid has even values from 4
    /// to 62.
    IQ3_XXS,
    /// GGUF `IQ3_S`, 110 bytes: an `f16` scale `d`; 64 bytes `q`; a high bit per entry; a byte of signs per eight
    /// elements; a nibble `s` per run of 32. The scale is `d·(2s + 1)`; the grid has the odd values from 1 to 15.
    IQ3_S,
}

impl GridType {
    /// All of them.
    pub const ALL: [GridType; 7] = [
        GridType::IQ1_S,
        GridType::IQ1_M,
        GridType::IQ2_XXS,
        GridType::IQ2_XS,
        GridType::IQ2_S,
        GridType::IQ3_XXS,
        GridType::IQ3_S,
    ];

    /// GGUF's name.
    pub const fn name(self) -> &'static str {
        match self {
            GridType::IQ1_S => "IQ1_S",
            GridType::IQ1_M => "IQ1_M",
            GridType::IQ2_XXS => "IQ2_XXS",
            GridType::IQ2_XS => "IQ2_XS",
            GridType::IQ2_S => "IQ2_S",
            GridType::IQ3_XXS => "IQ3_XXS",
            GridType::IQ3_S => "IQ3_S",
        }
    }

    /// The number of the type in a GGUF file.
    pub const fn id(self) -> u32 {
        match self {
            GridType::IQ1_S => 19,
            GridType::IQ1_M => 29,
            GridType::IQ2_XXS => 16,
            GridType::IQ2_XS => 17,
            GridType::IQ2_S => 22,
            GridType::IQ3_XXS => 18,
            GridType::IQ3_S => 21,
        }
    }

    /// Bytes of a block of [`GRID_BLOCK`] elements.
    pub const fn bytes(self) -> usize {
        match self {
            GridType::IQ1_S => 50,
            GridType::IQ1_M => 56,
            GridType::IQ2_XXS => 66,
            GridType::IQ2_XS => 74,
            GridType::IQ2_S => 82,
            GridType::IQ3_XXS => 98,
            GridType::IQ3_S => 110,
        }
    }

    /// Elements that share a scale.
    pub const fn run(self) -> usize {
        match self {
            GridType::IQ1_M | GridType::IQ2_XS | GridType::IQ2_S => 16,
            GridType::IQ1_S | GridType::IQ2_XXS | GridType::IQ3_XXS | GridType::IQ3_S => 32,
        }
    }

    /// Scales are multiples of `d` divided by this number; codes are the values multiplied by it.
    pub const fn divisor(self) -> u32 {
        match self {
            GridType::IQ1_S | GridType::IQ1_M | GridType::IQ2_XXS | GridType::IQ2_XS | GridType::IQ2_S => 8,
            GridType::IQ3_XXS => 4,
            GridType::IQ3_S => 1,
        }
    }

    /// The scale `d` for which blocks of random bits have values around 0 with a standard deviation of about 1.
    pub(super) const fn unit(self) -> f32 {
        match self {
            GridType::IQ1_S | GridType::IQ1_M => 1.0 / 7.6,
            GridType::IQ2_XXS | GridType::IQ2_XS | GridType::IQ2_S => 1.0 / 51.0,
            GridType::IQ3_XXS => 1.0 / 139.0,
            GridType::IQ3_S => 1.0 / 157.0,
        }
    }

    /// The format with the same values for devices that do not read the grid.
    pub const fn recoded(self) -> BlockType {
        match self {
            GridType::IQ1_S | GridType::IQ1_M | GridType::IQ2_XXS | GridType::IQ2_XS | GridType::IQ2_S => {
                BlockType::IQ2_N
            }
            GridType::IQ3_XXS => BlockType::IQ3_XXS_N,
            GridType::IQ3_S => BlockType::IQ3_S_N,
        }
    }
}
