//! How the elements of a tensor lie in memory: plain types and block-quantised layouts.

use hologram_isa::Type;

/// The storage format of a tensor.
///
/// A block-quantised format packs the elements of a *row* (the last dimension) into blocks, so a row's length must be a multiple of
/// [`Format::block_len`]. Layouts are those of GGUF, byte for byte, so that a mapped file is used in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Elements of a plain type, one after the other.
    Plain(Type),
    /// GGUF `Q8_0`: blocks of 32 as an `f16` scale `d` and 32 `i8` codes `q`; the value is `d·q`. 34 bytes.
    Q8_0,
    /// GGUF `Q4_0`: blocks of 32 as an `f16` scale `d` and 16 bytes; byte `j` holds code `j` (low half) and `j + 16` (high half);
    /// the value is `d·(code - 8)`. 18 bytes.
    Q4_0,
    /// GGUF `TQ2_0`, ternary: blocks of 256 as 64 bytes and an `f16` scale `d`; bits `2l..2l+2` of byte `32h + m` hold the code of
    /// element `128h + 32l + m`; the value is `d·(code - 1)`. 66 bytes.
    TQ2_0,
    /// The codes and scales of [`Format::Q8_0`] in two planes: the `i8` codes of all elements in row-major order, then, at the next
    /// multiple of 64 bytes, the `f16` scales of all blocks of 32. What GPUs read, in whole aligned words.
    Q8Planes,
    /// [`Format::Q4_0`] in two planes: the 16 code bytes of every block, then the `f16` scales.
    Q4Planes,
    /// [`Format::TQ2_0`] in two planes: the 64 code bytes of every block of 256, then the `f16` scales.
    T2Planes,
    /// Activations quantised to `i8` in groups of `group` elements of a row: a plane of `i8` codes in row-major order, then, at the
    /// next multiple of 64 bytes, a plane of `f32` scales, one for each group; the value is `scale·code`.
    I8Groups {
        /// Elements that share a scale; divides the row's length.
        group: u32,
    },
}

impl Format {
    /// Plain `f32`.
    pub const F32: Format = Format::Plain(Type::F32);
    /// Plain `f16`.
    pub const F16: Format = Format::Plain(Type::F16);
    /// Plain `bf16`.
    pub const BF16: Format = Format::Plain(Type::BF16);
    /// Plain `u32`.
    pub const U32: Format = Format::Plain(Type::U32);
    /// Plain `i32`.
    pub const I32: Format = Format::Plain(Type::I32);

    /// The name users see: GGUF's for its formats.
    pub fn name(self) -> String {
        match self {
            Format::Plain(ty) => ty.name().to_string(),
            Format::Q8_0 => "Q8_0".into(),
            Format::Q4_0 => "Q4_0".into(),
            Format::TQ2_0 => "TQ2_0".into(),
            Format::Q8Planes => "Q8_0 (planes)".into(),
            Format::Q4Planes => "Q4_0 (planes)".into(),
            Format::T2Planes => "TQ2_0 (planes)".into(),
            Format::I8Groups { group } => format!("i8/{group}"),
        }
    }

    /// Elements in a block; 1 for plain types.
    pub const fn block_len(self) -> usize {
        match self {
            Format::Plain(_) => 1,
            Format::Q8_0 | Format::Q4_0 | Format::Q8Planes | Format::Q4Planes => 32,
            Format::TQ2_0 | Format::T2Planes => 256,
            Format::I8Groups { group } => group as usize,
        }
    }

    /// Bytes of one block; for formats of two planes those of its codes and its scale together.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::Plain(ty) => ty.size(),
            Format::Q8_0 | Format::Q8Planes => 34,
            Format::Q4_0 | Format::Q4Planes => 18,
            Format::TQ2_0 | Format::T2Planes => 66,
            Format::I8Groups { group } => group as usize + 4,
        }
    }

    /// The layout in two planes that holds the same values; the format itself where there is none.
    pub const fn in_planes(self) -> Format {
        match self {
            Format::Q8_0 => Format::Q8Planes,
            Format::Q4_0 => Format::Q4Planes,
            Format::TQ2_0 => Format::T2Planes,
            other => other,
        }
    }

    /// The format and, where there is one, its layout in two planes.
    pub fn layouts(self) -> impl Iterator<Item = Format> {
        std::iter::once(self).chain((self.in_planes() != self).then_some(self.in_planes()))
    }

    /// Bytes of a tensor of `rows` rows of `row_len` elements; `None` when the row is not a whole number of blocks or the size
    /// overflows.
    pub fn bytes(self, rows: usize, row_len: usize) -> Option<usize> {
        if self.block_len() == 0 || !row_len.is_multiple_of(self.block_len()) {
            return None;
        }
        let blocks = rows.checked_mul(row_len / self.block_len())?;
        match self.planes() {
            Some((codes, scale)) => {
                let codes = blocks.checked_mul(codes)?.checked_next_multiple_of(PLANE_ALIGN)?;
                codes.checked_add(blocks.checked_mul(scale.size())?)
            }
            None => blocks.checked_mul(self.block_bytes()),
        }
    }

    /// The views through which programs and kernels see a tensor of `rows` × `row_len` elements: each becomes one buffer parameter,
    /// in this order. Block formats give two views of the same bytes (codes as bytes, scales as `f16` elements).
    pub fn views(self, rows: usize, row_len: usize) -> Vec<View> {
        let whole = |element| View { element, offset: 0, bytes: self.bytes(rows, row_len).unwrap_or(0) };
        match self {
            Format::Plain(ty) => vec![whole(ty)],
            Format::Q8_0 => vec![whole(Type::I8), whole(Type::F16)],
            Format::Q4_0 | Format::TQ2_0 => vec![whole(Type::U8), whole(Type::F16)],
            Format::Q8Planes | Format::I8Groups { .. } => self.two_views(Type::I8, rows, row_len),
            Format::Q4Planes | Format::T2Planes => self.two_views(Type::U8, rows, row_len),
        }
    }

    /// For formats of two planes: the bytes of a block's codes, and the type of its scale.
    const fn planes(self) -> Option<(usize, Type)> {
        match self {
            Format::I8Groups { group } => Some((group as usize, Type::F32)),
            Format::Q8Planes => Some((32, Type::F16)),
            Format::Q4Planes => Some((16, Type::F16)),
            Format::T2Planes => Some((64, Type::F16)),
            Format::Plain(_) | Format::Q8_0 | Format::Q4_0 | Format::TQ2_0 => None,
        }
    }

    fn two_views(self, codes: Type, rows: usize, row_len: usize) -> Vec<View> {
        let Some((code_bytes, scale)) = self.planes() else { return Vec::new() };
        let blocks = rows * row_len / self.block_len().max(1);
        let bytes = blocks * code_bytes;
        let offset = bytes.next_multiple_of(PLANE_ALIGN);
        vec![View { element: codes, offset: 0, bytes }, View { element: scale, offset, bytes: blocks * scale.size() }]
    }
}

/// Alignment in bytes of the second plane of a two-plane format.
pub const PLANE_ALIGN: usize = 64;

/// One view of a tensor's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Element type of the buffer parameter.
    pub element: Type,
    /// First byte, relative to the tensor.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}
