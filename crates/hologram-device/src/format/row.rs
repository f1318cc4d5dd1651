//! The parts of a block format's row in the table of `blocks.rs`.

use super::BlockType;

/// A block format of GGUF: where the bits of a block lie and what they stand for. An element is scale·code - minimum.
#[derive(Clone, Copy, Debug)]
pub struct BlockFormat {
    /// The number of the type in a GGUF file.
    pub id: u32,
    /// Elements of a block.
    pub len: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// Where the bits of the codes lie.
    pub codes: Codes,
    /// What the bits of a code stand for.
    pub values: Values,
    /// The first bytes of the `f16` number `d` that scales are multiples of and, where there are minimums, of the number `m` of these.
    pub numbers: &'static [usize],
    /// How scales and minimums follow from `d` and `m`.
    pub scales: Scales,
    /// The layout for GPUs.
    pub planes: PlaneLayout,
    /// `d` and `m` with which blocks of random bits have values around 0 with a standard deviation of about 1.
    pub unit: [f32; 2],
}

/// Bits of consecutive numbers: `run` bytes from byte `at` on hold `bits` bits each of the first `run` numbers in their lowest bits,
/// those of the next `run` numbers above them, and so on; the next `run` bytes follow. They are taken to bit `to` of the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// The first byte.
    pub at: usize,
    /// Bytes of a run: a power of two.
    pub run: usize,
    /// 1, 2, 4 or 8.
    pub bits: u32,
    /// Their lowest place in the number.
    pub to: u32,
}

/// Where the bits of a block's codes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// The low bits, and the others where there are more.
    Bits(Bits, Option<Bits>),
    /// Digits of base 3 in three parts with so many bytes; a byte holds five, of the last part four. Digit `n` of a byte is
    /// `((byte·3ⁿ mod 256)·3) >> 8`; the first digits of all bytes of a part come first.
    Trits([usize; 3]),
}

/// What the bits of a code stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Themselves, less a number.
    Offset(u8),
    /// 0, 1 and 2 stand for -1, 0 and 1.
    Ternary,
    /// An `i8`.
    Signed,
    /// Entries of a table.
    Table(&'static [i8; 16]),
}

/// The scales and minimums of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// One for the block: `d`, and `-m`.
    One,
    /// For each run of 16 from byte `at` on a byte: `d` times its low four bits, `m` times the others.
    Nibbles {
        /// The first byte.
        at: usize,
    },
    /// For each run of 32 two numbers of six bits in 12 bytes from `at` on, which `d` and `m` are multiplied with. The first four of each are
    /// the low bits of bytes 0 to 3 and 4 to 7. The last four have their low bits in bytes 8 to 11 (four of the first number, then four of
    /// the second) and their high bits above those of the first four.
    SixBitPairs {
        /// The first byte.
        at: usize,
    },
    /// For each run of `run` elements six bits; 32 less than these is what `d` is multiplied with.
    SixBits {
        /// Elements of a run.
        run: usize,
        /// Four of the bits.
        low: Bits,
        /// The two others.
        high: Bits,
    },
    /// For each run of 16 from byte `at` on an `i8`, which `d` is multiplied with.
    Signed {
        /// The first byte.
        at: usize,
    },
}

/// How codes and scales lie for GPUs, which read whole aligned words: in planes that begin at multiples of [`super::PLANE_ALIGN`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneLayout {
    /// There is none.
    None,
    /// Two planes: the code bytes of all blocks as the file has them, then the `f16` scales of all blocks.
    Codes,
    /// Rows are taken apart in chunks of 32 elements; the chunks of all rows follow each other. A code has as many bits as in the file and
    /// is never negative; they are split between two planes:
    ///
    /// - the low plane has 4 bits of each code, 16 bytes a chunk (byte `j` holds the elements `j` and `16 + j`; of codes that are entries of
    ///   a table `2j` and `2j + 1`), or 2 bits, 8 bytes a chunk (bits `2l..2l+2` of byte `4w + i` are of element `16w + 4l + i`);
    /// - the high plane, where codes are longer, has 2 bits in the same order or 1 bit, 4 bytes a chunk (bit `l` of byte `i` is of element
    ///   `4l + i`).
    ///
    /// The last plane has a record for each block of the file: `d` and, where there are minimums, `m`, then the bytes of
    /// [`super::Factors`]. Nothing is rounded: values are those of the blocks, and take as many bytes (of `Q4_K` and `Q5_K` 4 more for 256
    /// elements, of `IQ4_XS` 2 more).
    Chunks,
}

/// A block format as a type: its row's numbers are constants in the functions that are compiled for it.
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

    /// The byte that holds the bits of number `i`, and their lowest place there.
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
    /// What is added to values to make them unsigned.
    pub const fn offset(self) -> u8 {
        match self {
            Values::Offset(offset) => offset,
            Values::Ternary => 1,
            Values::Signed | Values::Table(_) => 128,
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
            Scales::One => self.len,
            Scales::SixBits { run, .. } => run,
            Scales::SixBitPairs { .. } => 32,
            Scales::Nibbles { .. } | Scales::Signed { .. } => 16,
        }
    }

    /// Whether there are minimums.
    pub const fn has_minimum(&self) -> bool {
        self.numbers.len() == 2
    }
}
