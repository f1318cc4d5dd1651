//! Storage formats of tensors: plain types and block-quantised layouts.
//!
//! A block format is defined by its row in `blocks.rs`; `row.rs` explains the fields of a row.

mod blocks;
mod grid;
mod planes;
mod row;

pub(crate) use blocks::with_row;
pub use blocks::{BlockType, rows};
pub use grid::{GRID_BLOCK, GridType};
use hologram_isa::Type;
pub use planes::Factors;
pub use row::{Bits, BlockFormat, Codes, PlaneLayout, Row, Scales, Values};

/// The element type of a tensor: plain elements, or blocks of quantised ones.
///
/// A block-quantised format packs the elements of a *row* (the last dimension) into blocks, so a row's length must be a
/// multiple of [`DType::block_len`]. Layouts are those of GGUF, byte for byte, so that a mapped file is used in place.
///
/// ```
/// use hologram_device::DType;
///
/// assert_eq!(format!("{:?}", [DType::F32, DType::Q4_K]), "[F32, Q4_K]");
/// assert_eq!(format!("{:?} {0}", DType::Q8Planes), "Planes(Q8_0) Q8_0 (planes)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// Elements of a plain type, one after the other.
    Plain(Type),
    /// A block format, such as [`DType::Q8_0`].
    Block(BlockType),
    /// A block format of GGUF whose codes are indices of a grid, such as `IQ2_XXS`. Programs do not read it: see
    /// [`DType::recoded`].
    Grid(GridType),
    /// The values of a block format as GPUs read them: [`PlaneLayout`].
    Planes(BlockType),
    /// Activations quantised to `i8` in groups of `group` elements of a row. A plane of `i8` codes in row-major order
    /// is followed, at the next multiple of 64 bytes, by a plane of `f32` scales, one per group; the value is
    /// `scale·code`.
    I8Groups {
        /// Elements that share a scale; divides the row's length.
        group: u32,
    },
    /// Activations as floats of a byte ([`Values::e4m3`]) with a scale per group of `group` elements of a row, in
    /// planes as [`DType::I8Groups`]; the value is `scale·code`.
    F8Groups {
        /// Elements that share a scale; divides the row's length.
        group: u32,
    },
    /// Elements of KV caches as floats of a byte without scales ([`Values::f8`]), one after the other.
    F8,
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.name())
    }
}

/// As users write it in Rust, without `DType::`: `F32`, `Q4_K`.
impl std::fmt::Debug for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DType::Plain(ty) => f.pad(&ty.name().to_ascii_uppercase()),
            DType::Block(block) => f.pad(block.name()),
            DType::Grid(grid) => f.pad(grid.name()),
            DType::Planes(block) => write!(f, "Planes({})", block.name()),
            DType::I8Groups { group } => write!(f, "I8Groups {{ group: {group} }}"),
            DType::F8Groups { group } => write!(f, "F8Groups {{ group: {group} }}"),
            DType::F8 => f.pad("F8"),
        }
    }
}

impl From<Type> for DType {
    fn from(ty: Type) -> DType {
        DType::Plain(ty)
    }
}

impl DType {
    /// Plain `bool`.
    pub const BOOL: DType = DType::Plain(Type::Bool);
    /// Plain `i8`.
    pub const I8: DType = DType::Plain(Type::I8);
    /// Plain `u8`.
    pub const U8: DType = DType::Plain(Type::U8);
    /// Plain `i16`.
    pub const I16: DType = DType::Plain(Type::I16);
    /// Plain `u16`.
    pub const U16: DType = DType::Plain(Type::U16);
    /// Plain `i32`.
    pub const I32: DType = DType::Plain(Type::I32);
    /// Plain `u32`.
    pub const U32: DType = DType::Plain(Type::U32);
    /// Plain `i64`.
    pub const I64: DType = DType::Plain(Type::I64);
    /// Plain `u64`.
    pub const U64: DType = DType::Plain(Type::U64);
    /// Plain `f16`.
    pub const F16: DType = DType::Plain(Type::F16);
    /// Plain `bf16`.
    pub const BF16: DType = DType::Plain(Type::BF16);
    /// Plain `f32`.
    pub const F32: DType = DType::Plain(Type::F32);
    /// Plain `f64`.
    pub const F64: DType = DType::Plain(Type::F64);

    /// [`DType::Q8_0`] in planes: the `i8` codes of all elements in row-major order, then the `f16` scales of all
    /// blocks.
    #[expect(non_upper_case_globals, reason = "named as a variant, as its place is in patterns")]
    pub const Q8Planes: DType = DType::Planes(BlockType::Q8_0);
    /// [`DType::Q4_0`] in planes: the 16 code bytes of every block, then the `f16` scales.
    #[expect(non_upper_case_globals, reason = "GGUF's spelling")]
    pub const Q4Planes: DType = DType::Planes(BlockType::Q4_0);
    /// [`DType::TQ2_0`] in planes: the 64 code bytes of every block, then the `f16` scales.
    #[expect(non_upper_case_globals, reason = "GGUF's spelling")]
    pub const T2Planes: DType = DType::Planes(BlockType::TQ2_0);

    /// The formats whose codes are indices of a grid.
    pub const GRIDS: [DType; GridType::ALL.len()] = {
        let (mut all, mut i) = ([DType::BOOL; GridType::ALL.len()], 0);
        while i < all.len() {
            all[i] = DType::Grid(GridType::ALL[i]);
            i += 1;
        }
        all
    };

    /// The name users see: GGUF's for its formats.
    pub fn name(self) -> String {
        match self {
            DType::Plain(ty) => ty.name().to_string(),
            DType::Block(block) => block.name().to_string(),
            DType::Grid(grid) => grid.name().to_string(),
            DType::Planes(block) => format!("{} (planes)", block.name()),
            DType::I8Groups { group } => format!("i8/{group}"),
            DType::F8Groups { group } => format!("f8/{group}"),
            DType::F8 => "f8".into(),
        }
    }

    /// The format with this name: the inverse of [`DType::name`].
    pub fn from_name(name: &str) -> Option<DType> {
        if let Some(ty) = Type::from_name(name) {
            return Some(DType::Plain(ty));
        }
        if let Some(group) = name.strip_prefix("i8/") {
            return group.parse().ok().map(|group| DType::I8Groups { group });
        }
        if let Some(group) = name.strip_prefix("f8/") {
            return group.parse().ok().map(|group| DType::F8Groups { group });
        }
        if name == "f8" {
            return Some(DType::F8);
        }
        let of_block = |block: BlockType| [DType::Block(block), DType::Planes(block)];
        BlockType::ALL.into_iter().flat_map(of_block).chain(DType::GRIDS).find(|format| format.name() == name)
    }

    /// The row of a format in blocks or in planes.
    pub const fn row(self) -> Option<&'static BlockFormat> {
        match self {
            DType::Block(block) | DType::Planes(block) => Some(block.row()),
            DType::Plain(_) | DType::Grid(_) | DType::I8Groups { .. } | DType::F8Groups { .. } | DType::F8 => None,
        }
    }

    /// Elements in a block; 1 for plain types.
    pub const fn block_len(self) -> usize {
        match self {
            DType::Plain(_) | DType::F8 => 1,
            DType::Block(block) | DType::Planes(block) => block.row().len,
            DType::Grid(_) => GRID_BLOCK,
            DType::I8Groups { group } | DType::F8Groups { group } => group as usize,
        }
    }

    /// Bytes of one block; for formats in planes, of all planes together.
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::Plain(ty) => ty.size(),
            DType::Block(block) => block.row().bytes,
            DType::Grid(grid) => grid.bytes(),
            DType::Planes(block) => {
                let [low, high, record] = block.plane_bytes();
                low + high + record
            }
            DType::I8Groups { group } | DType::F8Groups { group } => group as usize + 4,
            DType::F8 => 1,
        }
    }

    /// Elements that share a scale and, if there are minimums, a minimum; 1 for plain types. Divides
    /// [`DType::block_len`].
    pub const fn scale_len(self) -> usize {
        match self {
            DType::Block(block) | DType::Planes(block) => block.row().run(),
            DType::Grid(grid) => grid.run(),
            DType::Plain(_) | DType::I8Groups { .. } | DType::F8Groups { .. } | DType::F8 => self.block_len(),
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

    /// Whether codes are floats, not integers.
    pub const fn has_float_codes(self) -> bool {
        matches!(self.row(), Some(BlockFormat { values: Values::E4M3, .. }))
            || matches!(self, DType::F8Groups { .. } | DType::F8)
    }

    /// Whether the format holds weights as codes with scales, in blocks or in planes.
    pub const fn is_quantized_weight(self) -> bool {
        self.row().is_some() || matches!(self, DType::Grid(_))
    }

    /// For the block formats of GGUF: offsets in a block of the `f16` number that scales are multiples of and, if there
    /// are minimums, of the number that these are multiples of. Empty for others.
    pub const fn numbers_at(self) -> &'static [usize] {
        match self {
            DType::Block(block) => block.row().numbers,
            // Its bits are in four places.
            DType::Grid(GridType::IQ1_M) => &[],
            DType::Grid(_) => &[0],
            _ => &[],
        }
    }

    /// The numbers of [`DType::numbers_at`] for which blocks of random bits have values around 0 with a standard
    /// deviation of about 1; for formats in planes, the numbers of their blocks.
    pub const fn unit_numbers(self) -> [f32; 2] {
        match self {
            DType::Block(block) | DType::Planes(block) => block.row().unit,
            DType::Grid(grid) => [grid.unit(), 0.0],
            DType::Plain(_) | DType::I8Groups { .. } | DType::F8Groups { .. } | DType::F8 => [1.0, 0.0],
        }
    }

    /// The format that weights are converted to when they are loaded, on every device, with the same values:
    /// [`DType::TQ2_0`] for [`DType::TQ1_0`], because kernels serve it; otherwise the format itself.
    /// [`DType::recode`] converts.
    pub const fn at_load(self) -> DType {
        match self {
            DType::TQ1_0 => DType::TQ2_0,
            other => other,
        }
    }

    /// The format with the same values that programs read: [`DType::at_load`], and [`GridType::recoded`] for a format
    /// whose codes are indices of a grid. [`DType::recode`] converts.
    pub const fn recoded(self) -> DType {
        match self {
            DType::Grid(grid) => DType::Block(grid.recoded()),
            other => other.at_load(),
        }
    }

    /// The layout in planes with the same values; the format itself if there is none.
    pub const fn in_planes(self) -> DType {
        match self {
            DType::Block(block) if !matches!(block.row().planes, PlaneLayout::None) => DType::Planes(block),
            other => other,
        }
    }

    /// The format and, if there is one, its layout in planes.
    pub fn layouts(self) -> impl Iterator<Item = DType> {
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
            DType::Planes(block) => block.planes(blocks).map(|at| at[3]),
            DType::I8Groups { group } | DType::F8Groups { group } => {
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
            DType::Plain(ty) => vec![whole(ty)],
            DType::F8 => vec![whole(Type::U8)],
            DType::Block(block) if block.numbers() == 0 => vec![whole(block.code_type())],
            DType::Block(block) => vec![whole(block.code_type()), whole(Type::F16)],
            DType::Grid(_) => vec![whole(Type::U8), whole(Type::F16)],
            DType::Planes(block) => block.views(blocks),
            DType::I8Groups { group } | DType::F8Groups { group } => {
                let element = if self.has_float_codes() { Type::U8 } else { Type::I8 };
                let bytes = blocks * group as usize;
                let offset = bytes.next_multiple_of(PLANE_ALIGN);
                vec![View { element, offset: 0, bytes }, View { element: Type::F32, offset, bytes: blocks * 4 }]
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
