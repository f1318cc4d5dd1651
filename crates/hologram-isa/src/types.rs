//! Element and register types.

/// The type of a register, a scalar parameter or a memory element.
///
/// Arithmetic is defined on [`Type::I32`], [`Type::U32`], [`Type::I64`], [`Type::U64`], [`Type::F32`] and
/// [`Type::F64`]; logic also on [`Type::Bool`]. The narrow types exist in memory and in conversions: a program loads
/// `f16`, converts to `f32`, computes, converts back and stores.
///
/// A value is stored as a *register word*, a `u64`. 64-bit types fill it; for all others the upper 32 bits are 0. In
/// the lower bits, `i8` and `i16` are sign-extended, `u8` and `u16` zero-extended, `f16` and `bf16` are their bits,
/// `bool` is 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// True or false; one byte in memory (0 or 1; any other byte reads as true).
    Bool,
    /// 8-bit signed integer.
    I8,
    /// 8-bit unsigned integer.
    U8,
    /// 16-bit signed integer.
    I16,
    /// 16-bit unsigned integer.
    U16,
    /// 32-bit signed integer, wrapping.
    I32,
    /// 32-bit unsigned integer, wrapping.
    U32,
    /// 64-bit signed integer, wrapping.
    I64,
    /// 64-bit unsigned integer, wrapping.
    U64,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an IEEE 754 binary32.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64. Not every device has it.
    F64,
}

impl Type {
    /// Every type, in declaration order.
    pub const ALL: [Type; 13] = [
        Type::Bool,
        Type::I8,
        Type::U8,
        Type::I16,
        Type::U16,
        Type::I32,
        Type::U32,
        Type::I64,
        Type::U64,
        Type::F16,
        Type::BF16,
        Type::F32,
        Type::F64,
    ];

    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Type::Bool => "bool",
            Type::I8 => "i8",
            Type::U8 => "u8",
            Type::I16 => "i16",
            Type::U16 => "u16",
            Type::I32 => "i32",
            Type::U32 => "u32",
            Type::I64 => "i64",
            Type::U64 => "u64",
            Type::F16 => "f16",
            Type::BF16 => "bf16",
            Type::F32 => "f32",
            Type::F64 => "f64",
        }
    }

    /// The type with this name.
    pub fn from_name(name: &str) -> Option<Type> {
        Type::ALL.into_iter().find(|t| t.name() == name)
    }

    /// Bytes of one element in memory.
    pub const fn size(self) -> usize {
        match self {
            Type::Bool | Type::I8 | Type::U8 => 1,
            Type::I16 | Type::U16 | Type::F16 | Type::BF16 => 2,
            Type::I32 | Type::U32 | Type::F32 => 4,
            Type::I64 | Type::U64 | Type::F64 => 8,
        }
    }

    /// Whether this is `f16`, `bf16`, `f32` or `f64`.
    pub const fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::BF16 | Type::F32 | Type::F64)
    }

    /// Whether a value has 64 bits.
    pub const fn is_wide(self) -> bool {
        self.size() == 8
    }

    /// Whether `word` is a register word of this type, as described [above](Type).
    pub const fn is_word(self, word: u64) -> bool {
        let narrow = word <= u32::MAX as u64;
        let value = word as u32 as i32;
        match self {
            Type::Bool => word <= 1,
            Type::I8 => narrow && value == value as i8 as i32,
            Type::I16 => narrow && value == value as i16 as i32,
            Type::U8 => word <= u8::MAX as u64,
            Type::U16 | Type::F16 | Type::BF16 => word <= u16::MAX as u64,
            Type::I32 | Type::U32 | Type::F32 => narrow,
            Type::I64 | Type::U64 | Type::F64 => true,
        }
    }
}

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of types, used in the instruction table's type rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeSet(u16);

impl TypeSet {
    /// `i32`, `u32`, `i64`, `u64`.
    pub const INT: TypeSet = TypeSet::of(&[Type::I32, Type::U32, Type::I64, Type::U64]);
    /// `f32`, `f64`.
    pub const FLOAT: TypeSet = TypeSet::of(&[Type::F32, Type::F64]);
    /// `i32`, `i64`, `f32`, `f64`.
    pub const SIGNED: TypeSet = TypeSet::of(&[Type::I32, Type::I64, Type::F32, Type::F64]);
    /// `i32`, `u32`, `i64`, `u64`, `f32`, `f64`.
    pub const ARITH: TypeSet = TypeSet::of(&[Type::I32, Type::U32, Type::I64, Type::U64, Type::F32, Type::F64]);
    /// `bool`, `i32`, `u32`, `i64`, `u64`.
    pub const LOGIC: TypeSet = TypeSet::of(&[Type::Bool, Type::I32, Type::U32, Type::I64, Type::U64]);
    /// `i32`, `u32`.
    pub const WORD: TypeSet = TypeSet::of(&[Type::I32, Type::U32]);
    /// `i8`, `f16`, `bf16`.
    pub const TILE: TypeSet = TypeSet::of(&[Type::I8, Type::F16, Type::BF16]);
    /// `i32`, `u32`, `i64`, `u64`, `f32`.
    pub const SUMS: TypeSet = TypeSet::of(&[Type::I32, Type::U32, Type::I64, Type::U64, Type::F32]);
    /// Every type.
    pub const ANY: TypeSet = TypeSet::of(&Type::ALL);

    /// The set of these types.
    pub const fn of(types: &[Type]) -> TypeSet {
        let mut bits = 0;
        let mut i = 0;
        while i < types.len() {
            bits |= 1 << types[i] as u16;
            i += 1;
        }
        TypeSet(bits)
    }

    /// The members of both sets.
    pub const fn with(self, other: TypeSet) -> TypeSet {
        TypeSet(self.0 | other.0)
    }

    /// Whether `ty` is a member.
    pub const fn contains(self, ty: Type) -> bool {
        self.0 & (1 << ty as u16) != 0
    }

    /// The members in declaration order.
    pub fn iter(self) -> impl Iterator<Item = Type> {
        Type::ALL.into_iter().filter(move |t| self.contains(*t))
    }
}
