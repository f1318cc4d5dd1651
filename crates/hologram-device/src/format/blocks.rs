//! The block formats, one row each. All code that reads blocks or their layout for GPUs uses these rows.

use super::DType;
use super::row::{Bits, BlockFormat, Codes, PlaneLayout, Row, Scales, Values};

/// The values that the codes of [`DType::IQ4_NL`] and [`DType::IQ4_XS`] select.
const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The values of `FP4` (E2M1), doubled.
const FP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// The values of the grid formats, as [`GridType::recoded`](super::GridType::recoded) has them. Those of `IQ1_S` and
/// `IQ1_M` are the first three and their opposites.
const IQ2_VALUES: [i8; 16] = [7, 1, 9, 8, 25, 43, 0, 0, -7, -1, -9, -8, -25, -43, 0, 0];
const IQ3_XXS_VALUES: [i8; 16] = [4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62];
const IQ3_S_VALUES: [i8; 16] = [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15];

/// Bits that keep their place in the number.
const fn bits(at: usize, run: usize, bits: u32) -> Bits {
    bits_to(at, run, bits, 0)
}

const fn bits_to(at: usize, run: usize, bits: u32, to: u32) -> Bits {
    Bits { at, run, bits, to }
}

macro_rules! block_formats {
    ($($(#[$doc:meta])+ $name:ident: $row:expr;)+) => {
        /// A block format, by its GGUF name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(non_camel_case_types, reason = "GGUF's names")]
        pub enum BlockType {
            $($(#[$doc])+ $name,)+
        }

        impl BlockType {
            /// All of them.
            pub const ALL: [BlockType; [$(BlockType::$name),+].len()] = [$(BlockType::$name),+];

            /// GGUF's name, or that of a format in no file.
            pub const fn name(self) -> &'static str {
                match self {
                    $(BlockType::$name => stringify!($name),)+
                }
            }

            /// Its row.
            pub const fn row(self) -> &'static BlockFormat {
                match self {
                    $(BlockType::$name => const { &$row },)+
                }
            }
        }

        impl DType {
            $($(#[$doc])+ pub const $name: DType = DType::Block(BlockType::$name);)+

            /// All block formats whose codes are bits or digits.
            pub const BLOCKS: [DType; BlockType::ALL.len()] = [$(DType::$name),+];
        }

        /// The formats as types.
        #[expect(non_camel_case_types, reason = "GGUF's names")]
        pub mod rows {
            use super::{BlockType, Row};
            $(
                #[doc = concat!("[`BlockType::", stringify!($name), "`].")]
                pub struct $name;
                impl Row for $name {
                    const BLOCK: BlockType = BlockType::$name;
                }
            )+
        }

        /// Evaluates an expression in which `$R` names the type of a [`BlockType`].
        macro_rules! with_row {
            ($block:expr, $R:ident => $e:expr) => {
                match $block {
                    $($crate::BlockType::$name => {
                        type $R = $crate::format::rows::$name;
                        $e
                    })+
                }
            };
        }
        pub(crate) use with_row;
    };
}

block_formats! {
    /// GGUF `Q4_0`: blocks of 32 as an `f16` scale `d` and 16 bytes; byte `j` holds code `j` (low nibble) and `j + 16`
    /// (high nibble); the value is `d·(code - 8)`. 18 bytes.
    Q4_0: BlockFormat {
        id: Some(2), len: 32, bytes: 18, planes: PlaneLayout::Codes, unit: [1.0 / 4.6, 0.0],
        codes: Codes::Bits(bits(2, 16, 4), None), values: Values::Offset(8),
        numbers: &[0], scales: Scales::One,
    };
    /// GGUF `Q4_1`: blocks of 32 as `f16` numbers `d` and `m` and 16 bytes of codes as in [`DType::Q4_0`]; the value
    /// is `d·code + m`. 20 bytes.
    Q4_1: BlockFormat {
        id: Some(3), len: 32, bytes: 20, planes: PlaneLayout::Chunks, unit: [1.0 / 4.6, -7.5 / 4.6],
        codes: Codes::Bits(bits(4, 16, 4), None), values: Values::Offset(0),
        numbers: &[0, 2], scales: Scales::One,
    };
    /// GGUF `Q5_0`: blocks of 32 as an `f16` scale `d`, 4 bytes whose bit `i` is the fifth bit of code `i`, and 16
    /// bytes of low bits as in [`DType::Q4_0`]; the value is `d·(code - 16)`. 22 bytes.
    Q5_0: BlockFormat {
        id: Some(6), len: 32, bytes: 22, planes: PlaneLayout::Chunks, unit: [1.0 / 9.2, 0.0],
        codes: Codes::Bits(bits(6, 16, 4), Some(bits_to(2, 1, 1, 4))), values: Values::Offset(16),
        numbers: &[0], scales: Scales::One,
    };
    /// GGUF `Q5_1`: as [`DType::Q5_0`] with an `f16` number `m` after `d`; the value is `d·code + m`. 24 bytes.
    Q5_1: BlockFormat {
        id: Some(7), len: 32, bytes: 24, planes: PlaneLayout::Chunks, unit: [1.0 / 9.2, -15.5 / 9.2],
        codes: Codes::Bits(bits(8, 16, 4), Some(bits_to(4, 1, 1, 4))), values: Values::Offset(0),
        numbers: &[0, 2], scales: Scales::One,
    };
    /// GGUF `Q8_0`: blocks of 32 as an `f16` scale `d` and 32 `i8` codes `q`; the value is `d·q`. 34 bytes.
    Q8_0: BlockFormat {
        id: Some(8), len: 32, bytes: 34, planes: PlaneLayout::Codes, unit: [1.0 / 74.0, 0.0],
        codes: Codes::Bits(bits(2, 32, 8), None), values: Values::Signed,
        numbers: &[0], scales: Scales::One,
    };
    /// GGUF `Q2_K`: blocks of 256 as 16 bytes, 64 bytes of codes as in [`DType::TQ2_0`], and `f16` numbers `d` and
    /// `dmin`. The 16 elements of run `j` have the scale `d·(byte j & 15)` and the minimum `dmin·(byte j >> 4)`; the
    /// value is scale·code - minimum. 84 bytes.
    Q2_K: BlockFormat {
        id: Some(10), len: 256, bytes: 84, planes: PlaneLayout::Chunks, unit: [1.0 / 14.0, 1.5 / 14.0],
        codes: Codes::Bits(bits(16, 32, 2), None), values: Values::Offset(0),
        numbers: &[80, 82], scales: Scales::Nibbles { at: 0 },
    };
    /// GGUF `Q3_K`: blocks of 256 as 32 bytes of third bits, 64 bytes of low bits as in [`DType::TQ2_0`], 12 bytes
    /// with 6 bits per run of 16, and an `f16` scale `d`. Bit `l` of byte `m` is the third bit of element `32l + m`;
    /// the value is `d·(bits - 32)·(code - 4)`. 110 bytes.
    Q3_K: BlockFormat {
        id: Some(11), len: 256, bytes: 110, planes: PlaneLayout::Chunks, unit: [1.0 / 43.0, 0.0],
        codes: Codes::Bits(bits(32, 32, 2), Some(bits_to(0, 32, 1, 2))), values: Values::Offset(4),
        numbers: &[108], scales: Scales::SixBits { run: 16, low: bits(96, 8, 4), high: bits_to(104, 4, 2, 4) },
    };
    /// GGUF `Q4_K`: blocks of 256 as `f16` numbers `d` and `dmin`, 12 bytes with two numbers of 6 bits, `s` and `m`,
    /// per run of 32, and 128 bytes; byte `32h + i` holds the codes of elements `64h + i` (low nibble) and
    /// `64h + 32 + i` (high nibble). The value is `d·s·code - dmin·m`. 144 bytes.
    Q4_K: BlockFormat {
        id: Some(12), len: 256, bytes: 144, planes: PlaneLayout::Chunks, unit: [1.0 / 260.0, 7.5 / 260.0],
        codes: Codes::Bits(bits(16, 32, 4), None), values: Values::Offset(0),
        numbers: &[0, 2], scales: Scales::SixBitPairs { at: 4 },
    };
    /// GGUF `Q5_K`: as [`DType::Q4_K`] with 32 bytes before the low bits; bit `l` of byte `i` is the fifth bit of
    /// element `32l + i`. 176 bytes.
    Q5_K: BlockFormat {
        id: Some(13), len: 256, bytes: 176, planes: PlaneLayout::Chunks, unit: [1.0 / 530.0, 15.5 / 530.0],
        codes: Codes::Bits(bits(48, 32, 4), Some(bits_to(16, 32, 1, 4))), values: Values::Offset(0),
        numbers: &[0, 2], scales: Scales::SixBitPairs { at: 4 },
    };
    /// GGUF `Q6_K`: blocks of 256 as 128 bytes of low bits, 64 bytes of high bits, an `i8` number `s` per run of 16,
    /// and an `f16` scale `d`. For `h` = 0 and 1, byte `64h + i` holds the low bits of elements `128h + i` and
    /// `128h + 64 + i`, and bits `2l..2l+2` of byte `32h + i` of the high part are those of element `128h + 32l + i`;
    /// the value is `d·s·(code - 32)`. 210 bytes.
    Q6_K: BlockFormat {
        id: Some(14), len: 256, bytes: 210, planes: PlaneLayout::Chunks, unit: [1.0 / 1370.0, 0.0],
        codes: Codes::Bits(bits(0, 64, 4), Some(bits_to(128, 32, 2, 4))), values: Values::Offset(32),
        numbers: &[208], scales: Scales::Signed { at: 192 },
    };
    /// GGUF `IQ4_NL`: as [`DType::Q4_0`], but a code is the index of one of 16 values: `d·value`. 18 bytes.
    IQ4_NL: BlockFormat {
        id: Some(20), len: 32, bytes: 18, planes: PlaneLayout::Chunks, unit: [1.0 / 69.0, 0.0],
        codes: Codes::Bits(bits(2, 16, 4), None), values: Values::Table(&IQ4_VALUES),
        numbers: &[0], scales: Scales::One,
    };
    /// GGUF `IQ4_XS`: blocks of 256 as an `f16` scale `d`, 2 bytes of high bits and 4 bytes of low bits of a 6-bit
    /// number `s` per run of 32, and 16 bytes per run as in [`DType::IQ4_NL`]; the value is `d·(s - 32)·value`. 136
    /// bytes.
    IQ4_XS: BlockFormat {
        id: Some(23), len: 256, bytes: 136, planes: PlaneLayout::Chunks, unit: [1.0 / 1280.0, 0.0],
        codes: Codes::Bits(bits(8, 16, 4), None), values: Values::Table(&IQ4_VALUES),
        numbers: &[0], scales: Scales::SixBits { run: 32, low: bits(4, 1, 4), high: bits_to(2, 1, 2, 4) },
    };
    /// GGUF `TQ1_0`, ternary: blocks of 256 as 52 bytes and an `f16` scale `d`. A byte holds five digits of base 3
    /// (each of the last four bytes holds four): digit `n` is `((byte·3ⁿ mod 256)·3) >> 8`. It is of element
    /// `32n + i` in byte `i < 32`, of `160 + 16n + i - 32` in byte `32 <= i < 48`, and of `240 + 4n + i - 48` in the
    /// last four; the value is `d·(digit - 1)`. 54 bytes.
    TQ1_0: BlockFormat {
        id: Some(34), len: 256, bytes: 54, planes: PlaneLayout::None, unit: [1.25, 0.0],
        codes: Codes::Trits([32, 16, 4]), values: Values::Ternary,
        numbers: &[52], scales: Scales::One,
    };
    /// GGUF `TQ2_0`, ternary: blocks of 256 as 64 bytes and an `f16` scale `d`; bits `2l..2l+2` of byte `32h + m` hold
    /// the code of element `128h + 32l + m`; the value is `d·(code - 1)`. 66 bytes.
    TQ2_0: BlockFormat {
        id: Some(35), len: 256, bytes: 66, planes: PlaneLayout::Codes, unit: [1.25, 0.0],
        codes: Codes::Bits(bits(0, 32, 2), None), values: Values::Ternary,
        numbers: &[64], scales: Scales::One,
    };
    /// GGUF `MXFP4`: blocks of 32 as a byte `e` and 16 bytes of codes as in [`DType::Q4_0`]; the value is
    /// `2^(e - 128)·FP4`, with doubled values of 4-bit floats (E2M1). 17 bytes.
    MXFP4: BlockFormat {
        id: Some(39), len: 32, bytes: 17, planes: PlaneLayout::Chunks, unit: [1.0 / 5.85, 0.0],
        codes: Codes::Bits(bits(1, 16, 4), None), values: Values::Table(&FP4_VALUES),
        numbers: &[], scales: Scales::E8M0 { at: 0 },
    };
    /// GGUF `NVFP4`: blocks of 64 as a byte per run of 16, a float `s` (E4M3 without sign), and 8 bytes of codes per
    /// run, low nibbles first; the value is `s/2·FP4` as in [`DType::MXFP4`]. 36 bytes.
    NVFP4: BlockFormat {
        id: Some(40), len: 64, bytes: 36, planes: PlaneLayout::Chunks, unit: [1.0 / 5.85, 0.0],
        codes: Codes::Bits(bits(4, 8, 4), None), values: Values::Table(&FP4_VALUES),
        numbers: &[], scales: Scales::UE4M3 { at: 0 },
    };
    /// FP8 of folders, in no GGUF file: blocks of 128 as an `f32` scale `s` and 128 floats `q` of a byte each (E4M3:
    /// sign, four bits of exponent, three of mantissa; the codes 127 and 255, not a number, do not occur); the value is
    /// `s·q`. 132 bytes.
    F8_E4M3: BlockFormat {
        id: None, len: 128, bytes: 132, planes: PlaneLayout::Chunks, unit: [1.0 / 107.0, 0.0],
        codes: Codes::Bits(bits(4, 128, 8), None), values: Values::E4M3,
        numbers: &[], scales: Scales::F32 { at: 0 },
    };
    /// The values of `IQ1_S`, `IQ1_M`, `IQ2_XXS`, `IQ2_XS` and `IQ2_S`, in no file: blocks of 256 as an `f16` scale
    /// `d`, 16 bytes `s`, one per run of 16, and codes as in [`DType::IQ4_XS`]; the value is `d/8·s·value`. 146 bytes.
    IQ2_N: BlockFormat {
        id: None, len: 256, bytes: 146, planes: PlaneLayout::Chunks, unit: [1.0 / 168.0, 0.0],
        codes: Codes::Bits(bits(18, 16, 4), None), values: Values::Table(&IQ2_VALUES),
        numbers: &[0], scales: Scales::Fractions { at: 2, run: 16, of: 8 },
    };
    /// The values of `IQ3_XXS`, in no file: as [`DType::IQ2_N`] with one `s` per run of 32; the value is `d/4·s·value`.
    /// 138 bytes.
    IQ3_XXS_N: BlockFormat {
        id: None, len: 256, bytes: 138, planes: PlaneLayout::Chunks, unit: [1.0 / 690.0, 0.0],
        codes: Codes::Bits(bits(10, 16, 4), None), values: Values::Table(&IQ3_XXS_VALUES),
        numbers: &[0], scales: Scales::Fractions { at: 2, run: 32, of: 4 },
    };
    /// The values of `IQ3_S`, as [`DType::IQ3_XXS_N`]; the value is `d·s·value`.
    IQ3_S_N: BlockFormat {
        id: None, len: 256, bytes: 138, planes: PlaneLayout::Chunks, unit: [1.0 / 690.0, 0.0],
        codes: Codes::Bits(bits(10, 16, 4), None), values: Values::Table(&IQ3_S_VALUES),
        numbers: &[0], scales: Scales::Fractions { at: 2, run: 32, of: 1 },
    };
}
