//! Weights in planes for GPUs: how the codes and scales of GGUF's blocks lie so that threads read whole aligned words.

use crate::{Format, PLANE_ALIGN, View};
use hologram_isa::Type;

/// The types of GGUF that [`Format::Planes`] holds, by their names.
///
/// Rows are taken apart in chunks of 32 elements; the chunks of all rows follow each other. A code has as many bits as in the file and is
/// never negative; they are split between two planes:
///
/// - the low plane has 4 bits of each code, 16 bytes a chunk (byte `j` holds the elements `j` and `16 + j`; of the `IQ4` types `2j` and
///   `2j + 1`), or 2 bits, 8 bytes a chunk (bits `2l..2l+2` of byte `4w + i` are of element `16w + 4l + i`);
/// - the high plane, where codes are longer, has 2 bits in the same order or 1 bit, 4 bytes a chunk (bit `l` of byte `i` is of element
///   `4l + i`).
///
/// The last plane has a record for each block of the file: the `f16` scale `d` and, where there are minimums, the `f16` number `m`, then
/// the bytes of [`Factors`]. The planes begin at multiples of [`PLANE_ALIGN`] bytes. Nothing is rounded: values are those of the blocks, and
/// take as many bytes (of `Q4_K` and `Q5_K` 4 more for 256 elements, of `IQ4_XS` 2 more).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(non_camel_case_types, reason = "GGUF's names")]
pub enum Packed {
    /// [`Format::Q4_1`].
    Q4_1,
    /// [`Format::Q5_0`].
    Q5_0,
    /// [`Format::Q5_1`].
    Q5_1,
    /// [`Format::Q2_K`].
    Q2_K,
    /// [`Format::Q3_K`].
    Q3_K,
    /// [`Format::Q4_K`].
    Q4_K,
    /// [`Format::Q5_K`].
    Q5_K,
    /// [`Format::Q6_K`].
    Q6_K,
    /// [`Format::IQ4_NL`].
    IQ4_NL,
    /// [`Format::IQ4_XS`].
    IQ4_XS,
}

/// What follows the numbers `d` and `m` in a record, and what they are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    /// Nothing: the scale is `d`, the minimum `-m`.
    None,
    /// For each 32 elements a byte `s` and a byte `t`, both without a sign: the scale is `d·s`, the minimum `m·t`.
    Pairs,
    /// For each 16 elements a byte: the scale is `d` times its low half, the minimum `m` times its high half.
    Halves,
    /// For each so many elements a signed byte `s`: the scale is `d·s`.
    Signed(usize),
}

impl Packed {
    /// All of them.
    pub const ALL: [Packed; 10] = [
        Packed::Q4_1,
        Packed::Q5_0,
        Packed::Q5_1,
        Packed::Q2_K,
        Packed::Q3_K,
        Packed::Q4_K,
        Packed::Q5_K,
        Packed::Q6_K,
        Packed::IQ4_NL,
        Packed::IQ4_XS,
    ];

    /// The format of the file's blocks.
    pub const fn blocks(self) -> Format {
        match self {
            Packed::Q4_1 => Format::Q4_1,
            Packed::Q5_0 => Format::Q5_0,
            Packed::Q5_1 => Format::Q5_1,
            Packed::Q2_K => Format::Q2_K,
            Packed::Q3_K => Format::Q3_K,
            Packed::Q4_K => Format::Q4_K,
            Packed::Q5_K => Format::Q5_K,
            Packed::Q6_K => Format::Q6_K,
            Packed::IQ4_NL => Format::IQ4_NL,
            Packed::IQ4_XS => Format::IQ4_XS,
        }
    }

    /// Bits of a code in the low plane.
    pub const fn low_bits(self) -> usize {
        match self {
            Packed::Q2_K | Packed::Q3_K => 2,
            _ => 4,
        }
    }

    /// Bits of a code in the high plane; 0 where there is none.
    pub const fn high_bits(self) -> usize {
        match self {
            Packed::Q3_K | Packed::Q5_0 | Packed::Q5_1 | Packed::Q5_K => 1,
            Packed::Q6_K => 2,
            _ => 0,
        }
    }

    /// Whether codes are indices of [`crate::IQ4_VALUES`].
    pub const fn is_table(self) -> bool {
        matches!(self, Packed::IQ4_NL | Packed::IQ4_XS)
    }

    /// What is taken off a code before it is multiplied.
    pub const fn bias(self) -> u8 {
        match self {
            Packed::Q3_K => 4,
            Packed::Q5_0 => 16,
            Packed::Q6_K => 32,
            _ => 0,
        }
    }

    /// What a record holds after its `f16` numbers.
    pub const fn factors(self) -> Factors {
        match self {
            Packed::Q4_1 | Packed::Q5_0 | Packed::Q5_1 | Packed::IQ4_NL => Factors::None,
            Packed::Q4_K | Packed::Q5_K => Factors::Pairs,
            Packed::Q2_K => Factors::Halves,
            Packed::Q3_K | Packed::Q6_K => Factors::Signed(16),
            Packed::IQ4_XS => Factors::Signed(32),
        }
    }

    /// The `f16` numbers of a record: `d`, and `m` where there are minimums.
    pub const fn numbers(self) -> usize {
        if self.blocks().has_minimum() { 2 } else { 1 }
    }

    /// Bytes of a record.
    pub const fn record_bytes(self) -> usize {
        let factors = match self.factors() {
            Factors::None => 0,
            Factors::Pairs | Factors::Halves => 16,
            Factors::Signed(run) => 256 / run,
        };
        2 * self.numbers() + factors
    }

    /// Bytes of a block in each of the three planes.
    pub const fn plane_bytes(self) -> [usize; 3] {
        let len = self.blocks().block_len();
        [len * self.low_bits() / 8, len * self.high_bits() / 8, self.record_bytes()]
    }

    /// Where the planes of so many blocks begin, and where the last one ends; `None` when that overflows.
    pub fn planes(self, blocks: usize) -> Option<[usize; 4]> {
        let mut at = [0usize; 4];
        for (i, bytes) in self.plane_bytes().into_iter().enumerate() {
            let end = at[i].checked_add(blocks.checked_mul(bytes)?)?;
            at[i + 1] = if i < 2 { end.checked_next_multiple_of(PLANE_ALIGN)? } else { end };
        }
        Some(at)
    }

    /// The views of so many blocks: the low plane, the high plane where there is one, and the records as bytes and as `f16` numbers.
    pub(crate) fn views(self, blocks: usize) -> Vec<View> {
        let (at, bytes) = (self.planes(blocks).unwrap_or([0; 4]), self.plane_bytes().map(|n| n * blocks));
        let view = |element, plane: usize| View { element, offset: at[plane], bytes: bytes[plane] };
        let mut views = vec![view(Type::U8, 0)];
        views.extend((self.high_bits() > 0).then(|| view(Type::U8, 1)));
        views.extend([view(Type::U8, 2), view(Type::F16, 2)]);
        views
    }
}
