//! Storage formats of tensors: plain types and block-quantised layouts.
//!
//! A block format is defined by its row in `blocks.rs`; `row.rs` explains the fields of a row.

mod blocks;
mod planes;
mod row;

pub(crate) use blocks::with_row;
pub use blocks::{BlockType, rows};
use hologram_isa::Type;
pub use planes::Factors;
pub use row::{Bits, BlockFormat, Codes, PlaneLayout, Row, Scales, Values};

/// The storage format of a tensor.
///
/// A block-quantised format packs the elements of a *row* (the last dimension) into blocks, so a row's length must be a
/// multiple of [`Format::block_len`]. Layouts are those of GGUF, byte for byte, so that a mapped file is used in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Elements of a plain type, one after the other.
    Plain(Type),
    /// A block format of GGUF, such as [`Format::Q8_0`].
    Block(BlockType),
    /// The values of a block format as GPUs read them: [`PlaneLayout`].
    Planes(BlockType),
    /// Activations quantised to `i8` in groups of `group` elements of a row. A plane of `i8` codes in row-major order
    /// is followed, at the next multiple of 64 bytes, by a plane of `f32` scales, one per group; the value is
    /// `scale·code`.
    I8Groups {
        /// Elements that share a scale; divides the row's length.
        group: u32,
    },
}

impl From<Type> for Format {
    fn from(ty: Type) -> Format {
        Format::Plain(ty)
    }
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

    /// [`Format::Q8_0`] in planes: the `i8` codes of all elements in row-major order, then the `f16` scales of all
    /// blocks.
    #[expect(non_upper_case_globals, reason = "named as a variant, as its place is in patterns")]
    pub const Q8Planes: Format = Format::Planes(BlockType::Q8_0);
    /// [`Format::Q4_0`] in planes: the 16 code bytes of every block, then the `f16` scales.
    #[expect(non_upper_case_globals, reason = "as above")]
    pub const Q4Planes: Format = Format::Planes(BlockType::Q4_0);
    /// [`Format::TQ2_0`] in planes: the 64 code bytes of every block, then the `f16` scales.
    #[expect(non_upper_case_globals, reason = "as above")]
    pub const T2Planes: Format = Format::Planes(BlockType::TQ2_0);

    /// The name users see: GGUF's for its formats.
    pub fn name(self) -> String {
        match self {
            Format::Plain(ty) => ty.name().to_string(),
            Format::Block(block) => block.name().to_string(),
            Format::Planes(block) => format!("{} (planes)", block.name()),
            Format::I8Groups { group } => format!("i8/{group}"),
        }
    }

    /// The format with this name: the inverse of [`Format::name`].
    pub fn from_name(name: &str) -> Option<Format> {
        if let Some(ty) = Type::from_name(name) {
            return Some(Format::Plain(ty));
        }
        if let Some(group) = name.strip_prefix("i8/") {
            return group.parse().ok().map(|group| Format::I8Groups { group });
        }
        let of_block = |block: BlockType| [Format::Block(block), Format::Planes(block)];
        BlockType::ALL.into_iter().flat_map(of_block).find(|format| format.name() == name)
    }

    /// The row of a format in blocks or in planes.
    pub const fn row(self) -> Option<&'static BlockFormat> {
        match self {
            Format::Block(block) | Format::Planes(block) => Some(block.row()),
            Format::Plain(_) | Format::I8Groups { .. } => None,
        }
    }

    /// Elements in a block; 1 for plain types.
    pub const fn block_len(self) -> usize {
        match self {
            Format::Plain(_) => 1,
            Format::Block(block) | Format::Planes(block) => block.row().len,
            Format::I8Groups { group } => group as usize,
        }
    }

    /// Bytes of one block; for formats in planes, of all planes together.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::Plain(ty) => ty.size(),
            Format::Block(block) => block.row().bytes,
            Format::Planes(block) => {
                let [low, high, record] = block.plane_bytes();
                low + high + record
            }
            Format::I8Groups { group } => group as usize + 4,
        }
    }

    /// Elements that share a scale and, if there are minimums, a minimum; 1 for plain types. Divides
    /// [`Format::block_len`].
    pub const fn scale_len(self) -> usize {
        match self.row() {
            Some(row) => row.run(),
            None => self.block_len(),
        }
    }

    /// Whether values are scale·code - minimum, with a minimum per scale; otherwise they are scale·code.
    pub const fn has_minimum(self) -> bool {
        matches!(self.row(), Some(row) if row.has_minimum())
    }

    /// Whether codes are -1, 0 and 1.
    pub const fn is_ternary(self) -> bool {
        matches!(self.row(), Some(BlockFormat { values: Values::Ternary, .. }))
    }

    /// Whether the format holds weights as codes with scales, in blocks or in planes.
    pub const fn is_quantized_weight(self) -> bool {
        self.row().is_some()
    }

    /// For the block formats of GGUF: offsets in a block of the `f16` number that scales are multiples of and, if there
    /// are minimums, of the number that these are multiples of. Empty for others.
    pub const fn numbers_at(self) -> &'static [usize] {
        match self {
            Format::Block(block) => block.row().numbers,
            _ => &[],
        }
    }

    /// The numbers of [`Format::numbers_at`] for which blocks of random bits have values around 0 with a standard
    /// deviation of about 1; for formats in planes, the numbers of their blocks.
    pub const fn unit_numbers(self) -> [f32; 2] {
        match self.row() {
            Some(row) => row.unit,
            None => [1.0, 0.0],
        }
    }

    /// The format that weights are converted to when they are loaded, on every device, with the same values:
    /// [`Format::TQ2_0`] for [`Format::TQ1_0`], because kernels serve it; otherwise the format itself.
    /// [`Format::recode`] converts.
    pub const fn at_load(self) -> Format {
        match self {
            Format::TQ1_0 => Format::TQ2_0,
            other => other,
        }
    }

    /// The layout in planes with the same values; the format itself if there is none.
    pub const fn in_planes(self) -> Format {
        match self {
            Format::Block(block) if !matches!(block.row().planes, PlaneLayout::None) => Format::Planes(block),
            other => other,
        }
    }

    /// The format and, if there is one, its layout in planes.
    pub fn layouts(self) -> impl Iterator<Item = Format> {
        std::iter::once(self).chain((self.in_planes() != self).then_some(self.in_planes()))
    }

    /// Bytes of a tensor of `rows` rows of `row_len` elements; `None` when the row is not a whole number of blocks or
    /// the size overflows.
    pub fn bytes(self, rows: usize, row_len: usize) -> Option<usize> {
        if self.block_len() == 0 || !row_len.is_multiple_of(self.block_len()) {
            return None;
        }
        let blocks = rows.checked_mul(row_len / self.block_len())?;
        match self {
            Format::Planes(block) => block.planes(blocks).map(|at| at[3]),
            Format::I8Groups { group } => {
                let codes = blocks.checked_mul(group as usize)?.checked_next_multiple_of(PLANE_ALIGN)?;
                codes.checked_add(blocks.checked_mul(4)?)
            }
            _ => blocks.checked_mul(self.block_bytes()),
        }
    }

    /// The views through which programs and kernels see a tensor of `rows` × `row_len` elements: each is one buffer
    /// parameter, in this order. Block formats give two views of the same bytes (codes as bytes, scales as `f16`
    /// elements).
    pub fn views(self, rows: usize, row_len: usize) -> Vec<View> {
        let whole = |element| View { element, offset: 0, bytes: self.bytes(rows, row_len).unwrap_or(0) };
        let blocks = rows * row_len / self.block_len().max(1);
        match self {
            Format::Plain(ty) => vec![whole(ty)],
            Format::Block(block) => vec![whole(block.code_type()), whole(Type::F16)],
            Format::Planes(block) => block.views(blocks),
            Format::I8Groups { group } => {
                let bytes = blocks * group as usize;
                let offset = bytes.next_multiple_of(PLANE_ALIGN);
                vec![
                    View { element: Type::I8, offset: 0, bytes },
                    View { element: Type::F32, offset, bytes: blocks * 4 },
                ]
            }
        }
    }
}

/// Alignment of planes in bytes.
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
