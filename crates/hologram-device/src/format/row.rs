//! The fields of a block format's row in `blocks.rs`.

use super::BlockType;

/// A block format: the places and the meaning of a block's bits. An element is scale·code - minimum.
#[derive(Clone, Copy, Debug)]
pub struct BlockFormat {
    /// The number of the type in a GGUF file; `None` for a format in no file.
    pub id: Option<u32>,
    /// Elements of a block.
    pub len: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// The places of the codes' bits.
    pub codes: Codes,
    /// The meaning of a code's bits.
    pub values: Values,
    /// Offsets of the `f16` number `d` that scales are multiples of, if there is one, and of the minimums' number `m`,
    /// if there are minimums.
    pub numbers: &'static [usize],
    /// How scales and minimums follow from `d` and `m`.
    pub scales: Scales,
    /// The layout for GPUs.
    pub planes: PlaneLayout,
    /// `d` and `m` for which blocks of random bits have values around 0 with a standard deviation of about 1.
    pub unit: [f32; 2],
}

/// Bits of consecutive numbers: `run` bytes from byte `at` on hold `bits` bits of each of the first `run` numbers in
/// their lowest bits, those of the next `run` numbers above them, and so on; the next `run` bytes follow. They become
/// the bits from `to` on of the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// The first byte.
    pub at: usize,
    /// Bytes per run: a power of two.
    pub run: usize,
    /// 1, 2, 4 or 8.
    pub bits: u32,
    /// Their lowest place in the number.
    pub to: u32,
}

/// The places of the bits of a block's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// The low bits, and the high bits of longer codes.
    Bits(Bits, Option<Bits>),
    /// Digits of base 3 in three parts of these sizes in bytes; a byte holds five digits, in the last part four. Digit
    /// `n` of a byte is `((byte·3ⁿ mod 256)·3) >> 8`; the first digits of all bytes of a part come first.
    Trits([usize; 3]),
}

/// The meaning of a code's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// The code minus this number.
    Offset(u8),
    /// 0, 1 and 2 stand for -1, 0 and 1.
    Ternary,
    /// An `i8`.
    Signed,
    /// Entries of a table.
    Table(&'static [i8; 16]),
    /// Floats with a sign, four bits of exponent (bias 7) and three of mantissa: [`Values::e4m3`].
    E4M3,
}

/// The scales and minimums of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// One for the block: `d`, and `-m`.
    One,
    /// A byte per run of 16, from byte `at` on: `d` times its low nibble, `m` times its high nibble.
    Nibbles {
        /// The first byte.
        at: usize,
    },
    /// Per run of 32 two numbers of six bits, which are multiplied by `d` and `m`, in 12 bytes from `at` on. The first
    /// four of each are the low bits of bytes 0 to 3 and 4 to 7. The last four have their low bits in bytes 8 to 11
    /// (four of the first number, then four of the second) and their high bits above those of the first four.
    SixBitPairs {
        /// The first byte.
        at: usize,
    },
    /// Per run of `run` elements six bits; `d` is multiplied by their value minus 32.
    SixBits {
        /// Elements of a run.
        run: usize,
        /// Four of the bits.
        low: Bits,
        /// The two others.
        high: Bits,
    },
    /// An `i8` per run of 16, from byte `at` on, which is multiplied by `d`.
    Signed {
        /// The first byte.
        at: usize,
    },
    /// An `i8` per run of `run` elements, from byte `at` on, which is multiplied by `d / of`.
    Fractions {
        /// The first byte.
        at: usize,
        /// Elements of a run: 16 or 32.
        run: usize,
        /// A power of two.
        of: u32,
    },
    /// One for the block, without `d`: `2^(e - 128)` with the byte `e` at `at`, a float of eight bits of exponent.
    E8M0 {
        /// The byte.
        at: usize,
    },
    /// A byte per run of 16, from byte `at` on, without `d`: half of a float with four bits of exponent (bias 7) and
    /// three of mantissa; 127 is 0. The highest bit has no meaning.
    UE4M3 {
        /// The first byte.
        at: usize,
    },
    /// One for the block, without `d`: the `f32` at byte `at`.
    F32 {
        /// The first byte.
        at: usize,
    },
}

/// The layout of codes and scales for GPUs, which read whole aligned words: planes aligned to [`super::PLANE_ALIGN`]
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneLayout {
    /// There is none.
    None,
    /// Two planes: the code bytes of all blocks as the file has them, then the `f16` scales of all blocks.
    Codes,
    /// Rows are split into chunks of 32 elements; the chunks of all rows follow each other. A code has as many bits as
    /// in the file and is never negative. Its bits are split between two planes:
    ///
    /// - The low plane has 4 bits of each code, 16 bytes per chunk (byte `j` holds the elements `j` and `16 + j`; if
    ///   codes are entries of a table, `2j` and `2j + 1`), or 2 bits, 8 bytes per chunk (bits `2l..2l+2` of byte
    ///   `4w + i` are of element `16w + 4l + i`), or 8 bits, a byte per element in their order.
    /// - The high plane, for longer codes, has 2 bits in the same order, or 1 bit, 4 bytes per chunk (bit `l` of byte
    ///   `i` is of element `4l + i`).
    ///
    /// The last plane has a record per block of the file: `d` and, if there are minimums, `m`, then the bytes of
    /// [`super::Factors`]. Nothing is rounded: values are those of the blocks, and take as many bytes (`Q4_K` and
    /// `Q5_K` 4 more per 256 elements, `IQ4_XS` 2 more).
    Chunks,
}

/// A block format as a type, which makes its row's numbers constants in functions compiled for it.
pub trait Row {
    /// The format.
    const BLOCK: BlockType;
    /// Its row.
    const ROW: BlockFormat = *Self::BLOCK.row();
}

impl Bits {
    /// Numbers that share a byte.
    #[inline(always)]
    pub const fn per_byte(self) -> usize {
        8 / self.bits as usize
    }

    /// The byte with the bits of number `i`, and their lowest bit there.
    #[inline(always)]
    pub const fn place(self, i: usize) -> (usize, u32) {
        let numbers = self.run * self.per_byte();
        (self.at + i / numbers * self.run + i % self.run, (i % numbers / self.run) as u32 * self.bits)
    }

    /// The bits of number `i` at their place in it.
    #[inline(always)]
    pub fn read(self, block: &[u8], i: usize) -> u8 {
        let (at, shift) = self.place(i);
        ((u32::from(block[at]) >> shift & ((1 << self.bits) - 1)) << self.to) as u8
    }
}

impl Values {
    /// The number added to values to make them unsigned.
    pub const fn offset(self) -> u8 {
        match self {
            Values::Offset(offset) => offset,
            Values::Ternary => 1,
            Values::Signed | Values::Table(_) => 128,
            Values::E4M3 => 0,
        }
    }

    /// The value of a code of [`Values::E4M3`]. The codes 127 and 255, not a number in E4M3, give ±480.
    #[inline(always)]
    pub const fn e4m3(code: u8) -> f32 {
        let bits = (code & 127) as u32;
        let magnitude = if bits < 8 { bits as f32 / 512.0 } else { f32::from_bits((bits << 20) + (120 << 23)) };
        f32::from_bits(magnitude.to_bits() | (code as u32 & 128) << 24)
    }

    /// The code of [`Values::E4M3`] that is nearest to a number, the even one of two; ±448 for larger ones.
    #[inline(always)]
    pub fn to_e4m3(value: f32) -> u8 {
        let magnitude = value.abs().min(448.0);
        let code = if magnitude < 1.0 / 64.0 {
            (magnitude * 512.0).round_ties_even() as u32
        } else {
            let bits = magnitude.to_bits();
            ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20) - (120 << 3)
        };
        (code | value.to_bits() >> 24 & 128) as u8
    }

    /// The value of an element of [`DType::F8`](crate::DType::F8): as [`Values::e4m3`], but 127 and 255 are NaN.
    #[inline(always)]
    pub const fn f8(code: u8) -> f32 {
        if code & 127 == 127 { f32::NAN } else { Values::e4m3(code) }
    }

    /// The element of [`DType::F8`](crate::DType::F8) for a number: as [`Values::to_e4m3`], 127 for NaN.
    #[inline(always)]
    pub fn to_f8(value: f32) -> u8 {
        if value.is_nan() { 127 } else { Values::to_e4m3(value) }
    }
}

impl Scales {
    /// The scale of a byte of [`Scales::E8M0`].
    #[inline(always)]
    pub const fn e8m0(byte: u8) -> f32 {
        // The two smallest are subnormal.
        f32::from_bits(if byte < 2 { 0x0020_0000 << byte } else { (byte as u32 - 1) << 23 })
    }

    /// The scale of a byte of [`Scales::UE4M3`].
    #[inline(always)]
    pub const fn ue4m3(byte: u8) -> f32 {
        let (exponent, mantissa) = ((byte >> 3 & 15) as u32, (byte & 7) as u32);
        if byte == 127 {
            0.0
        } else if exponent == 0 {
            mantissa as f32 / 1024.0
        } else {
            // A bias of 7, and the half.
            f32::from_bits((exponent + 127 - 8) << 23 | mantissa << 20)
        }
    }
}

impl BlockFormat {
    /// The low and the high bits of codes.
    ///
    /// # Panics
    /// At compile time, for a format whose codes are digits.
    pub const fn bits(&self) -> (Bits, Option<Bits>) {
        match self.codes {
            Codes::Bits(low, high) => (low, high),
            Codes::Trits(_) => panic!("the codes are no bits"),
        }
    }

    /// Elements that share a scale.
    pub const fn run(&self) -> usize {
        match self.scales {
            Scales::One | Scales::E8M0 { .. } | Scales::F32 { .. } => self.len,
            Scales::SixBits { run, .. } | Scales::Fractions { run, .. } => run,
            Scales::SixBitPairs { .. } => 32,
            Scales::Nibbles { .. } | Scales::Signed { .. } | Scales::UE4M3 { .. } => 16,
        }
    }

    /// Whether there are minimums.
    pub const fn has_minimum(&self) -> bool {
        self.numbers.len() == 2
    }
}
