//! The tensor types of GGUF files, with what is needed to check and list a file.

use hologram_backends::{BlockType, DType, GridType};

/// A tensor type of GGUF and its storage size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// The number in the file.
    pub id: u32,
    /// The common name, such as `Q4_K`.
    pub name: &'static str,
    /// Elements per block; divides the row length.
    pub block_len: usize,
    /// Bytes per block.
    pub block_bytes: usize,
    /// Extra bytes per row.
    pub row_extra: usize,
    /// Extra bytes per tensor.
    pub tensor_extra: usize,
    /// The format that backends compute with, if any.
    pub format: Option<DType>,
}

const fn ty(id: u32, name: &'static str, block_len: usize, block_bytes: usize) -> TensorType {
    TensorType { id, name, block_len, block_bytes, row_extra: 0, tensor_extra: 0, format: None }
}

const fn supported(id: u32, name: &'static str, format: DType) -> TensorType {
    TensorType { format: Some(format), ..ty(id, name, format.block_len(), format.block_bytes()) }
}

/// The number of `I2_S`.
const I2_S: u32 = 36;

/// Types that llama.cpp has removed.
static REMOVED: [(u32, &str); 7] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

/// The block formats, which have their type numbers.
static BLOCKS: [TensorType; BLOCK_COUNT] = {
    let (mut all, mut n, mut i) = ([ty(0, "", 1, 1); BLOCK_COUNT], 0, 0);
    while i < BlockType::ALL.len() {
        let block = BlockType::ALL[i];
        // The others are in no file.
        if let Some(id) = block.row().id {
            all[n] = supported(id, block.name(), DType::Block(block));
            n += 1;
        }
        i += 1;
    }
    i = 0;
    while i < GridType::ALL.len() {
        let grid = GridType::ALL[i];
        all[n + i] = supported(grid.id(), grid.name(), DType::Grid(grid));
        i += 1;
    }
    all
};

/// Their number.
const BLOCK_COUNT: usize = {
    let (mut n, mut i) = (GridType::ALL.len(), 0);
    while i < BlockType::ALL.len() {
        n += BlockType::ALL[i].row().id.is_some() as usize;
        i += 1;
    }
    n
};

/// All other types of known size. `Q8_1` and `Q8_K` hold activations during a run and never occur in files.
static OTHERS: [TensorType; 15] = [
    supported(0, "F32", DType::F32),
    supported(1, "F16", DType::F16),
    ty(9, "Q8_1", 32, 36),
    ty(15, "Q8_K", 256, 292),
    ty(24, "I8", 1, 1),
    ty(25, "I16", 1, 2),
    ty(26, "I32", 1, 4),
    ty(27, "I64", 1, 8),
    ty(28, "F64", 1, 8),
    supported(30, "BF16", DType::BF16),
    // bitnet.cpp: blocks of 128 codes, then 32 bytes that begin with the tensor's scale.
    TensorType { tensor_extra: super::i2_s::TAIL, ..ty(I2_S, "I2_S", 128, 32) },
    ty(41, "Q1_0", 128, 18),
    ty(42, "Q2_0", 64, 18),
    // ik_llama.cpp: one scale per row.
    TensorType { row_extra: 2, ..ty(134, "IQ1_BN", 64, 13) },
    TensorType { row_extra: 4, ..ty(135, "IQ2_BN", 64, 16) },
];

impl TensorType {
    /// The type with this number.
    pub fn from_id(id: u32) -> Option<&'static TensorType> {
        BLOCKS.iter().chain(&OTHERS).find(|t| t.id == id)
    }

    /// The type with this name, in any case.
    pub fn from_name(name: &str) -> Option<&'static TensorType> {
        BLOCKS.iter().chain(&OTHERS).find(|t| t.name.eq_ignore_ascii_case(name))
    }

    /// The type of a format; `None` if files do not have it.
    pub fn of(format: DType) -> Option<&'static TensorType> {
        BLOCKS.iter().chain(&OTHERS).find(|t| t.format == Some(format))
    }

    /// The name of a removed type.
    pub(super) fn removed(id: u32) -> Option<&'static str> {
        REMOVED.iter().find(|t| t.0 == id).map(|t| t.1)
    }

    /// Whether this is `I2_S`, which is converted on load.
    pub fn is_i2_s(&self) -> bool {
        self.id == I2_S
    }

    /// Whether models of this type can run.
    pub fn is_supported(&self) -> bool {
        self.format.is_some() || self.is_i2_s()
    }

    /// The names of the types that backends compute with, for error messages.
    pub fn supported_names() -> String {
        let mut types: Vec<&TensorType> = BLOCKS.iter().chain(&OTHERS).filter(|t| t.is_supported()).collect();
        types.sort_by_key(|t| t.id);
        types.iter().map(|t| t.name).collect::<Vec<_>>().join(", ")
    }

    /// Bytes of a tensor with `rows` rows of `row_len` elements. `None` if a row is not whole blocks or the size
    /// overflows.
    pub fn bytes(&self, rows: usize, row_len: usize) -> Option<usize> {
        if !row_len.is_multiple_of(self.block_len) {
            return None;
        }
        let row = (row_len / self.block_len).checked_mul(self.block_bytes)?.checked_add(self.row_extra)?;
        row.checked_mul(rows)?.checked_add(self.tensor_extra)
    }
}
