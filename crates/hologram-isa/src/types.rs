//! Element and register types.

/// The type of a register, a scalar parameter or a memory element.
///
/// Arithmetic is defined on [`Type::I32`], [`Type::U32`] and [`Type::F32`]; logic also on [`Type::Bool`]. The narrow types exist in
/// memory and in conversions: a program loads `f16`, converts to `f32`, computes, converts back and stores.
/// In registers every value occupies one 32-bit word: `i8` sign-extended, `u8` zero-extended, `f16` and `bf16` as their bits in the
/// low half, `bool` as 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// True or false; one byte in memory (0 or 1; any other byte reads as true).
    Bool,
    /// 8-bit signed integer.
    I8,
    /// 8-bit unsigned integer.
    U8,
    /// 32-bit signed integer, wrapping.
    I32,
    /// 32-bit unsigned integer, wrapping.
    U32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an IEEE 754 binary32.
    BF16,
    /// IEEE 754 binary32.
    F32,
}

impl Type {
    /// Every type, in declaration order.
    pub const ALL: [Type; 8] = [Type::Bool, Type::I8, Type::U8, Type::I32, Type::U32, Type::F16, Type::BF16, Type::F32];

    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Type::Bool => "bool",
            Type::I8 => "i8",
            Type::U8 => "u8",
            Type::I32 => "i32",
            Type::U32 => "u32",
            Type::F16 => "f16",
            Type::BF16 => "bf16",
            Type::F32 => "f32",
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
            Type::F16 | Type::BF16 => 2,
            Type::I32 | Type::U32 | Type::F32 => 4,
        }
    }

    /// Whether this is `f16`, `bf16` or `f32`.
    pub const fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::BF16 | Type::F32)
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
    /// `i32`, `u32`.
    pub const INT: TypeSet = TypeSet::of(&[Type::I32, Type::U32]);
    /// `f32`.
    pub const FLOAT: TypeSet = TypeSet::of(&[Type::F32]);
    /// `i32`, `f32`.
    pub const SIGNED: TypeSet = TypeSet::of(&[Type::I32, Type::F32]);
    /// `i32`, `u32`, `f32`.
    pub const ARITH: TypeSet = TypeSet::of(&[Type::I32, Type::U32, Type::F32]);
    /// `bool`, `i32`, `u32`.
    pub const LOGIC: TypeSet = TypeSet::of(&[Type::Bool, Type::I32, Type::U32]);
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

    /// Whether `ty` is a member.
    pub const fn contains(self, ty: Type) -> bool {
        self.0 & (1 << ty as u16) != 0
    }

    /// The members in declaration order.
    pub fn iter(self) -> impl Iterator<Item = Type> {
        Type::ALL.into_iter().filter(move |t| self.contains(*t))
    }
}
