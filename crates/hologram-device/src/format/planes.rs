//! The layouts in planes of the block formats: [`PlaneLayout`].

use super::row::{Bits, Codes, PlaneLayout, Scales, Values};
use super::{BlockType, DType, PLANE_ALIGN, View};
use hologram_isa::Type;

/// The bytes after the numbers `d` and `m` in a record of [`PlaneLayout::Chunks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    /// Nothing: the scale is `d`, the minimum `-m`.
    None,
    /// Per 32 elements an unsigned byte `s` and an unsigned byte `t`: the scale is `d·s`, the minimum `m·t`.
    Pairs,
    /// Per 16 elements a byte: the scale is `d` times its low nibble, the minimum `m` times its high nibble.
    Nibbles,
    /// Per so many elements a signed byte `s`: the scale is `d·s`, or a fraction of it
    /// ([`Scales::Fractions`]).
    Signed(usize),
    /// A byte of [`Scales::E8M0`], the scale itself.
    Exponent,
    /// Per 16 elements a byte of [`Scales::UE4M3`], the scale itself.
    Floats,
    /// The `f32` scale itself, in four bytes.
    Whole,
}

impl BlockType {
    /// Whether the layout in planes is [`PlaneLayout::Chunks`].
    pub const fn is_packed(self) -> bool {
        matches!(self.row().planes, PlaneLayout::Chunks)
    }

    /// Bits of a code in the low plane.
    pub const fn low_bits(self) -> usize {
        match self.row().codes {
            Codes::Bits(low, _) => low.bits as usize,
            Codes::Trits(_) => 0,
        }
    }

    /// Bits of a code in the high plane; 0 where there is none.
    pub const fn high_bits(self) -> usize {
        match self.row().codes {
            Codes::Bits(_, Some(Bits { bits, .. })) => bits as usize,
            _ => 0,
        }
    }

    /// The values that codes are indices of.
    pub const fn table(self) -> Option<&'static [i8; 16]> {
        match self.row().values {
            Values::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The number subtracted from a code before it is multiplied.
    pub const fn bias(self) -> u8 {
        match self.row().values {
            Values::Offset(offset) => offset,
            _ => 0,
        }
    }

    /// The bytes of a record after its `f16` numbers.
    pub const fn factors(self) -> Factors {
        match self.row().scales {
            Scales::One => Factors::None,
            Scales::E8M0 { .. } => Factors::Exponent,
            Scales::UE4M3 { .. } => Factors::Floats,
            Scales::F32 { .. } => Factors::Whole,
            Scales::SixBitPairs { .. } => Factors::Pairs,
            Scales::Nibbles { .. } => Factors::Nibbles,
            Scales::SixBits { .. } | Scales::Signed { .. } | Scales::Fractions { .. } => {
                Factors::Signed(self.row().run())
            }
        }
    }

    /// Scales are multiples of `d` divided by this number: [`Scales::Fractions`].
    pub const fn divisor(self) -> u32 {
        match self.row().scales {
            Scales::Fractions { of, .. } => of,
            _ => 1,
        }
    }

    /// The `f16` numbers of a record: `d`, and `m` where there are minimums; none where scales are floats themselves.
    pub const fn numbers(self) -> usize {
        self.row().numbers.len()
    }

    /// Bytes of a record.
    pub const fn record_bytes(self) -> usize {
        let factors = match self.factors() {
            Factors::None => 0,
            Factors::Exponent => 1,
            Factors::Whole => 4,
            Factors::Pairs | Factors::Nibbles | Factors::Floats => self.row().len / 16,
            Factors::Signed(run) => self.row().len / run,
        };
        2 * self.numbers() + factors
    }

    /// Bytes of a block in each plane: codes, high bits of codes, and the record or the scale.
    pub const fn plane_bytes(self) -> [usize; 3] {
        let len = self.row().len;
        [len * self.low_bits() / 8, len * self.high_bits() / 8, self.record_bytes()]
    }

    /// Offsets of the planes of this many blocks, and the end of the last one; `None` on overflow or without such a
    /// layout.
    pub fn planes(self, blocks: usize) -> Option<[usize; 4]> {
        if matches!(self.row().planes, PlaneLayout::None) {
            return None;
        }
        let mut at = [0usize; 4];
        for (i, bytes) in self.plane_bytes().into_iter().enumerate() {
            let end = at[i].checked_add(blocks.checked_mul(bytes)?)?;
            at[i + 1] = if i < 2 { end.checked_next_multiple_of(PLANE_ALIGN)? } else { end };
        }
        Some(at)
    }

    /// The views of this many blocks: the codes' low plane; the high plane if there is one; records as bytes, except
    /// for [`PlaneLayout::Codes`], whose last plane holds only scales; and the `f16` numbers if there are any.
    pub(super) fn views(self, blocks: usize) -> Vec<View> {
        let (at, bytes) = (self.planes(blocks).unwrap_or([0; 4]), self.plane_bytes().map(|n| n * blocks));
        let view = |element, plane: usize| View { element, offset: at[plane], bytes: bytes[plane] };
        let mut views = vec![view(self.code_type(), 0)];
        views.extend((self.high_bits() > 0).then(|| view(Type::U8, 1)));
        views.extend(self.is_packed().then(|| view(Type::U8, 2)));
        views.extend((self.numbers() > 0).then(|| view(Type::F16, 2)));
        views
    }

    /// The element type of the view of codes, in blocks and in planes.
    pub(super) const fn code_type(self) -> Type {
        match self.row().values {
            Values::Signed => Type::I8,
            _ => Type::U8,
        }
    }
}

impl DType {
    /// The block type of a tensor in [`PlaneLayout::Chunks`].
    pub const fn packed(self) -> Option<BlockType> {
        match self {
            DType::Planes(block) if block.is_packed() => Some(block),
            _ => None,
        }
    }
}
