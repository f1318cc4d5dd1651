//! How the elements of a tensor lie in memory: plain types and block-quantised layouts.

use crate::Packed;
use hologram_isa::Type;

/// The storage format of a tensor.
///
/// A block-quantised format packs the elements of a *row* (the last dimension) into blocks, so a row's length must be a multiple of
/// [`Format::block_len`]. Layouts are those of GGUF, byte for byte, so that a mapped file is used in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(non_camel_case_types, reason = "GGUF's names")]
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
    /// GGUF `Q4_1`: blocks of 32 as `f16` numbers `d` and `m` and 16 bytes of codes as in [`Format::Q4_0`]; the value is
    /// `d·code + m`. 20 bytes.
    Q4_1,
    /// GGUF `Q5_0`: blocks of 32 as an `f16` scale `d`, 4 bytes whose bit `i` is the fifth bit of code `i`, and 16 bytes of low halves as
    /// in [`Format::Q4_0`]; the value is `d·(code - 16)`. 22 bytes.
    Q5_0,
    /// GGUF `Q5_1`: as [`Format::Q5_0`] with an `f16` number `m` after `d`; the value is `d·code + m`. 24 bytes.
    Q5_1,
    /// GGUF `Q2_K`: blocks of 256 as 16 bytes, 64 bytes of codes as in [`Format::TQ2_0`], and `f16` numbers `d` and `dmin`. The 16
    /// elements of run `j` have the scale `d·(byte j & 15)` and the minimum `dmin·(byte j >> 4)`; the value is scale·code - minimum.
    /// 84 bytes.
    Q2_K,
    /// GGUF `Q3_K`: blocks of 256 as 32 bytes of third bits, 64 bytes of low bits as in [`Format::TQ2_0`], 12 bytes that hold 6 bits for
    /// each run of 16, and an `f16` scale `d`. Bit `l` of byte `m` is the third bit of element `32l + m`; the value is
    /// `d·(bits - 32)·(code - 4)`. 110 bytes.
    Q3_K,
    /// GGUF `Q4_K`: blocks of 256 as `f16` numbers `d` and `dmin`, 12 bytes that hold two numbers of 6 bits, `s` and `m`, for each run
    /// of 32, and 128 bytes; byte `32h + i` holds the codes of elements `64h + i` (low half) and `64h + 32 + i`. The value is
    /// `d·s·code - dmin·m`. 144 bytes.
    Q4_K,
    /// GGUF `Q5_K`: as [`Format::Q4_K`] with 32 bytes before the low halves; bit `l` of byte `i` is the fifth bit of element `32l + i`.
    /// 176 bytes.
    Q5_K,
    /// GGUF `Q6_K`: blocks of 256 as 128 bytes of low halves, 64 bytes of high bits, an `i8` number `s` for each run of 16, and an `f16`
    /// scale `d`. For each half `h`, byte `64h + i` holds the low bits of elements `128h + i` and `128h + 64 + i`, and bits `2l..2l+2` of
    /// byte `32h + i` of the high part those of element `128h + 32l + i`; the value is `d·s·(code - 32)`. 210 bytes.
    Q6_K,
    /// GGUF `IQ4_NL`: as [`Format::Q4_0`], but the value is `d·`[`IQ4_VALUES`]`[code]`. 18 bytes.
    IQ4_NL,
    /// GGUF `IQ4_XS`: blocks of 256 as an `f16` scale `d`, 2 bytes of high bits and 4 bytes of low halves of numbers `s` of 6 bits for
    /// each run of 32, and for each run 16 bytes as in [`Format::Q4_0`]; the value is `d·(s - 32)·`[`IQ4_VALUES`]`[code]`. 136 bytes.
    IQ4_XS,
    /// GGUF `TQ1_0`, ternary: blocks of 256 as 52 bytes and an `f16` scale `d`. A byte holds five digits of base 3 (the last four bytes
    /// four): digit `n` is `((byte·3ⁿ mod 256)·3) >> 8`, of element `32n + i` in byte `i < 32`, `160 + 16n + i - 32` in byte
    /// `32 <= i < 48`, and `240 + 4n + i - 48` in the last four; the value is `d·(digit - 1)`. 54 bytes.
    TQ1_0,
    /// The codes and scales of [`Format::Q8_0`] in two planes: the `i8` codes of all elements in row-major order, then, at the next
    /// multiple of 64 bytes, the `f16` scales of all blocks of 32. What GPUs read, in whole aligned words.
    Q8Planes,
    /// [`Format::Q4_0`] in two planes: the 16 code bytes of every block, then the `f16` scales.
    Q4Planes,
    /// [`Format::TQ2_0`] in two planes: the 64 code bytes of every block of 256, then the `f16` scales.
    T2Planes,
    /// One of the other types in planes.
    Planes(Packed),
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

    /// The block formats of GGUF.
    pub const BLOCKS: [Format; 14] = [
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q2_K,
        Format::Q3_K,
        Format::Q4_K,
        Format::Q5_K,
        Format::Q6_K,
        Format::IQ4_NL,
        Format::IQ4_XS,
        Format::TQ1_0,
        Format::TQ2_0,
    ];

    /// The name users see: GGUF's for its formats.
    pub fn name(self) -> String {
        match self {
            Format::Plain(ty) => ty.name().to_string(),
            // A variant is called as GGUF calls the type.
            block if Format::BLOCKS.contains(&block) => format!("{block:?}"),
            Format::Q8Planes => "Q8_0 (planes)".into(),
            Format::Q4Planes => "Q4_0 (planes)".into(),
            Format::T2Planes => "TQ2_0 (planes)".into(),
            Format::Planes(packed) => format!("{packed:?} (planes)"),
            Format::I8Groups { group } => format!("i8/{group}"),
            other => format!("{other:?}"),
        }
    }

    /// Elements in a block; 1 for plain types.
    pub const fn block_len(self) -> usize {
        match self {
            Format::Plain(_) => 1,
            Format::Q8_0 | Format::Q4_0 | Format::Q8Planes | Format::Q4Planes => 32,
            Format::Q4_1 | Format::Q5_0 | Format::Q5_1 | Format::IQ4_NL => 32,
            Format::Q2_K | Format::Q3_K | Format::Q4_K | Format::Q5_K | Format::Q6_K | Format::IQ4_XS => 256,
            Format::TQ1_0 | Format::TQ2_0 | Format::T2Planes => 256,
            Format::Planes(packed) => packed.blocks().block_len(),
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
            Format::Q4_1 => 20,
            Format::Q5_0 => 22,
            Format::Q5_1 => 24,
            Format::Q2_K => 84,
            Format::Q3_K => 110,
            Format::Q4_K => 144,
            Format::Q5_K => 176,
            Format::Q6_K => 210,
            Format::IQ4_NL => 18,
            Format::IQ4_XS => 136,
            Format::TQ1_0 => 54,
            Format::Planes(packed) => {
                let [low, high, record] = packed.plane_bytes();
                low + high + record
            }
            Format::I8Groups { group } => group as usize + 4,
        }
    }

    /// Elements that share a scale, and a minimum where there is one; 1 for plain types. Divides [`Format::block_len`].
    pub const fn scale_len(self) -> usize {
        match self {
            Format::Q2_K | Format::Q3_K | Format::Q6_K => 16,
            Format::Q4_K | Format::Q5_K | Format::IQ4_XS => 32,
            Format::Planes(packed) => packed.blocks().scale_len(),
            other => other.block_len(),
        }
    }

    /// Whether values are scale·code - minimum, with a minimum for each scale; else they are scale·code.
    pub const fn has_minimum(self) -> bool {
        match self {
            Format::Planes(packed) => packed.blocks().has_minimum(),
            other => matches!(other, Format::Q4_1 | Format::Q5_1 | Format::Q2_K | Format::Q4_K | Format::Q5_K),
        }
    }

    /// Whether codes are -1, 0 and 1.
    pub const fn is_ternary(self) -> bool {
        matches!(self, Format::TQ1_0 | Format::TQ2_0 | Format::T2Planes)
    }

    /// Whether the format holds weights as codes with scales, in blocks or in planes.
    pub const fn is_quantized_weight(self) -> bool {
        !matches!(self, Format::Plain(_) | Format::I8Groups { .. })
    }

    /// For the block formats of GGUF: the first bytes, in a block, of the `f16` number that scales are multiples of and, where there is
    /// one, of that which minimums are multiples of. Empty for others.
    pub const fn numbers_at(self) -> &'static [usize] {
        match self {
            Format::Q8_0 | Format::Q4_0 | Format::Q5_0 | Format::IQ4_NL | Format::IQ4_XS => &[0],
            Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
            Format::Q2_K => &[80, 82],
            Format::Q3_K => &[108],
            Format::Q6_K => &[208],
            Format::TQ1_0 => &[52],
            Format::TQ2_0 => &[64],
            Format::Q8Planes | Format::Q4Planes | Format::T2Planes | Format::Planes(_) => &[],
            Format::Plain(_) | Format::I8Groups { .. } => &[],
        }
    }

    /// The numbers of [`Format::numbers_at`] with which blocks of random bits have values around 0 with a standard deviation of about 1;
    /// for formats in planes those of the blocks that they are made of.
    pub const fn unit_numbers(self) -> [f32; 2] {
        match self {
            Format::Q8_0 | Format::Q8Planes => [1.0 / 74.0, 0.0],
            Format::Q4_0 | Format::Q4Planes => [1.0 / 4.6, 0.0],
            Format::Q4_1 => [1.0 / 4.6, -7.5 / 4.6],
            Format::Q5_0 => [1.0 / 9.2, 0.0],
            Format::Q5_1 => [1.0 / 9.2, -15.5 / 9.2],
            Format::Q2_K => [1.0 / 14.0, 1.5 / 14.0],
            Format::Q3_K => [1.0 / 43.0, 0.0],
            Format::Q4_K => [1.0 / 260.0, 7.5 / 260.0],
            Format::Q5_K => [1.0 / 530.0, 15.5 / 530.0],
            Format::Q6_K => [1.0 / 1370.0, 0.0],
            Format::IQ4_NL => [1.0 / 69.0, 0.0],
            Format::IQ4_XS => [1.0 / 1280.0, 0.0],
            Format::TQ1_0 | Format::TQ2_0 | Format::T2Planes => [1.25, 0.0],
            Format::Planes(packed) => packed.blocks().unit_numbers(),
            Format::Plain(_) | Format::I8Groups { .. } => [1.0, 0.0],
        }
    }

    /// The format of the same values that weights are converted to when they are loaded, on every device, because kernels serve it:
    /// [`Format::TQ2_0`] for [`Format::TQ1_0`]; else the format itself. [`Format::recode`] converts.
    pub const fn at_load(self) -> Format {
        match self {
            Format::TQ1_0 => Format::TQ2_0,
            other => other,
        }
    }

    /// The layout in planes that holds the same values; the format itself where there is none.
    pub const fn in_planes(self) -> Format {
        match self {
            Format::Q8_0 => Format::Q8Planes,
            Format::Q4_0 => Format::Q4Planes,
            Format::TQ2_0 => Format::T2Planes,
            Format::Q4_1 => Format::Planes(Packed::Q4_1),
            Format::Q5_0 => Format::Planes(Packed::Q5_0),
            Format::Q5_1 => Format::Planes(Packed::Q5_1),
            Format::Q2_K => Format::Planes(Packed::Q2_K),
            Format::Q3_K => Format::Planes(Packed::Q3_K),
            Format::Q4_K => Format::Planes(Packed::Q4_K),
            Format::Q5_K => Format::Planes(Packed::Q5_K),
            Format::Q6_K => Format::Planes(Packed::Q6_K),
            Format::IQ4_NL => Format::Planes(Packed::IQ4_NL),
            Format::IQ4_XS => Format::Planes(Packed::IQ4_XS),
            other => other,
        }
    }

    /// The format and, where there is one, its layout in planes.
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
        if let Format::Planes(packed) = self {
            return packed.planes(blocks).map(|at| at[3]);
        }
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
            Format::Q8Planes | Format::I8Groups { .. } => self.two_views(Type::I8, rows, row_len),
            Format::Q4Planes | Format::T2Planes => self.two_views(Type::U8, rows, row_len),
            Format::Planes(packed) => packed.views(rows * row_len / self.block_len()),
            _ => vec![whole(Type::U8), whole(Type::F16)],
        }
    }

    /// For formats of two planes: the bytes of a block's codes, and the type of its scale.
    const fn planes(self) -> Option<(usize, Type)> {
        match self {
            Format::I8Groups { group } => Some((group as usize, Type::F32)),
            Format::Q8Planes => Some((32, Type::F16)),
            Format::Q4Planes => Some((16, Type::F16)),
            Format::T2Planes => Some((64, Type::F16)),
            _ => None,
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

/// What the codes of [`Format::IQ4_NL`] and [`Format::IQ4_XS`] stand for.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Alignment in bytes of the planes of a format in planes.
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
