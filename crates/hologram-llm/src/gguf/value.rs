//! Metadata values, read from the mapping on request. Failed conversions name the reason.

use super::FileBytes;
use std::fmt;
use std::sync::Arc;

/// The type of a metadata value, with GGUF's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// 8-bit unsigned integer.
    U8,
    /// 8-bit signed integer.
    I8,
    /// 16-bit unsigned integer.
    U16,
    /// 16-bit signed integer.
    I16,
    /// 32-bit unsigned integer.
    U32,
    /// 32-bit signed integer.
    I32,
    /// 32-bit float.
    F32,
    /// One byte, 0 or 1.
    Bool,
    /// A length and that many bytes.
    String,
    /// An element type, a count and that many values.
    Array,
    /// 64-bit unsigned integer.
    U64,
    /// 64-bit signed integer.
    I64,
    /// 64-bit float.
    F64,
}

impl ValueType {
    const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// The type with this number in the file.
    pub fn from_id(id: u32) -> Option<ValueType> {
        ValueType::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The name for messages.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }

    /// Bytes of one value; `None` for strings and arrays, whose length is in the file.
    pub fn size(self) -> Option<usize> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }
}

/// One metadata value. Strings and arrays stay in the mapped file.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Any unsigned integer, widened.
    Unsigned(ValueType, u64),
    /// Any signed integer, widened.
    Signed(ValueType, i64),
    /// `f32` or `f64`, widened.
    Float(ValueType, f64),
    /// A bool.
    Bool(bool),
    /// Text.
    String(&'a str),
    /// An array of strings.
    Strings(&'a Strings),
    /// An array of numbers or bools.
    Numbers(Numbers<'a>),
}

impl<'a> Value<'a> {
    /// Reads one number or bool. `None` if there are too few bytes or the type is not a scalar.
    pub(super) fn scalar(ty: ValueType, bytes: &'a [u8]) -> Option<Value<'a>> {
        fn first<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
            bytes.first_chunk::<N>().copied()
        }
        Some(match ty {
            ValueType::U8 => Value::Unsigned(ty, u8::from_le_bytes(first(bytes)?).into()),
            ValueType::U16 => Value::Unsigned(ty, u16::from_le_bytes(first(bytes)?).into()),
            ValueType::U32 => Value::Unsigned(ty, u32::from_le_bytes(first(bytes)?).into()),
            ValueType::U64 => Value::Unsigned(ty, u64::from_le_bytes(first(bytes)?)),
            ValueType::I8 => Value::Signed(ty, i8::from_le_bytes(first(bytes)?).into()),
            ValueType::I16 => Value::Signed(ty, i16::from_le_bytes(first(bytes)?).into()),
            ValueType::I32 => Value::Signed(ty, i32::from_le_bytes(first(bytes)?).into()),
            ValueType::I64 => Value::Signed(ty, i64::from_le_bytes(first(bytes)?)),
            ValueType::F32 => Value::Float(ty, f32::from_le_bytes(first(bytes)?).into()),
            ValueType::F64 => Value::Float(ty, f64::from_le_bytes(first(bytes)?)),
            ValueType::Bool => Value::Bool(*bytes.first()? != 0),
            ValueType::String | ValueType::Array => return None,
        })
    }

    /// The kind of value, for messages: "a string", "an array of i32".
    fn kind(&self) -> String {
        match self {
            Value::Unsigned(ty, _) | Value::Signed(ty, _) | Value::Float(ty, _) => format!("of type {}", ty.name()),
            Value::Bool(_) => "a bool".into(),
            Value::String(_) => "a string".into(),
            Value::Strings(_) => "an array of strings".into(),
            Value::Numbers(n) => format!("an array of {}", n.ty.name()),
        }
    }
}

/// Numbers and strings in full, a long array as its length and type.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Unsigned(_, v) => write!(f, "{v}"),
            Value::Signed(_, v) => write!(f, "{v}"),
            Value::Float(ValueType::F32, v) => write!(f, "{}", *v as f32),
            Value::Float(_, v) => write!(f, "{v}"),
            Value::Bool(v) => write!(f, "{v}"),
            Value::String(v) => write!(f, "{v}"),
            Value::Strings(v) => write!(f, "[{} strings]", v.len()),
            Value::Numbers(v) if v.len() <= 8 => {
                f.write_str("[")?;
                for (i, v) in v.iter().enumerate() {
                    write!(f, "{}{v}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Value::Numbers(v) => write!(f, "[{} × {}]", v.len(), v.ty.name()),
        }
    }
}

/// An array of strings in the mapped file. Cloning is cheap, and a clone keeps the map alive.
#[derive(Clone)]
pub struct Strings {
    map: Arc<FileBytes>,
    /// The position of each string's length in the file.
    starts: Arc<[usize]>,
}

impl Strings {
    /// `starts` must be positions of lengths that were checked against the mapping.
    pub(super) fn new(map: Arc<FileBytes>, starts: Vec<usize>) -> Strings {
        Strings { map, starts: starts.into() }
    }

    /// Strings from memory, for a file that is to be written.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn from_texts(texts: &[&str]) -> std::io::Result<Strings> {
        let bytes: usize = texts.iter().map(|t| t.len() + 8).sum();
        let mut map = memmap2::MmapMut::map_anon(bytes.max(1))?;
        let (mut starts, mut at) = (Vec::with_capacity(texts.len()), 0);
        for text in texts {
            starts.push(at);
            map[at..at + 8].copy_from_slice(&(text.len() as u64).to_le_bytes());
            map[at + 8..at + 8 + text.len()].copy_from_slice(text.as_bytes());
            at += 8 + text.len();
        }
        Ok(Strings::new(Arc::new(FileBytes::Map(map.make_read_only()?)), starts))
    }

    /// The number of strings.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The bytes of one string. They should be UTF-8, which is not checked.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let rest = self.map.get(*self.starts.get(index)?..)?;
        let (len, rest) = rest.split_first_chunk::<8>()?;
        rest.get(..usize::try_from(u64::from_le_bytes(*len)).ok()?)
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i).unwrap_or_default())
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} strings]", self.len())
    }
}

/// An array of numbers or bools in the mapped file.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a> {
    ty: ValueType,
    size: usize,
    bytes: &'a [u8],
}

impl<'a> Numbers<'a> {
    pub(crate) fn new(ty: ValueType, bytes: &'a [u8]) -> Option<Numbers<'a>> {
        Some(Numbers { ty, size: ty.size()?, bytes })
    }

    /// The type of the elements.
    pub fn element(&self) -> ValueType {
        self.ty
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.size
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> {
        let ty = self.ty;
        self.bytes.chunks_exact(self.size).filter_map(move |b| Value::scalar(ty, b))
    }
}

/// A Rust type that metadata values convert to.
pub trait FromValue<'a>: Sized {
    /// Converts a value. An error continues the sentence "key … ".
    fn from_value(value: Value<'a>) -> Result<Self, String>;
}

macro_rules! integer {
    ($($t:ty),*) => {$(
        impl<'a> FromValue<'a> for $t {
            fn from_value(value: Value<'a>) -> Result<Self, String> {
                let fits = match value {
                    Value::Unsigned(_, v) => <$t>::try_from(v).ok(),
                    Value::Signed(_, v) => <$t>::try_from(v).ok(),
                    other => return Err(format!("is {}, but must be {}", other.kind(), stringify!($t))),
                };
                fits.ok_or_else(|| format!("is {value}, which does not fit in {}", stringify!($t)))
            }
        }
    )*};
}
integer!(u32, i32, u64, usize);

impl<'a> FromValue<'a> for f32 {
    fn from_value(value: Value<'a>) -> Result<Self, String> {
        match value {
            Value::Float(_, v) => Ok(v as f32),
            Value::Unsigned(_, v) => Ok(v as f32),
            Value::Signed(_, v) => Ok(v as f32),
            other => Err(format!("is {}, but must be f32", other.kind())),
        }
    }
}

impl<'a> FromValue<'a> for bool {
    fn from_value(value: Value<'a>) -> Result<Self, String> {
        match value {
            Value::Bool(v) => Ok(v),
            other => Err(format!("is {}, but must be a bool", other.kind())),
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    fn from_value(value: Value<'a>) -> Result<Self, String> {
        match value {
            Value::String(v) => Ok(v),
            other => Err(format!("is {}, but must be a string", other.kind())),
        }
    }
}

impl<'a> FromValue<'a> for &'a Strings {
    fn from_value(value: Value<'a>) -> Result<Self, String> {
        match value {
            Value::Strings(v) => Ok(v),
            other => Err(format!("is {}, but must be an array of strings", other.kind())),
        }
    }
}

impl<'a> FromValue<'a> for Numbers<'a> {
    fn from_value(value: Value<'a>) -> Result<Self, String> {
        match value {
            Value::Numbers(v) => Ok(v),
            other => Err(format!("is {}, but must be an array of numbers", other.kind())),
        }
    }
}

/// An array whose values all convert.
impl<'a, T: FromValue<'a>> FromValue<'a> for Vec<T> {
    fn from_value(value: Value<'a>) -> Result<Self, String> {
        let numbers = Numbers::from_value(value)?;
        let each = |(i, v)| T::from_value(v).map_err(|reason| format!("has an element {i} that {reason}"));
        numbers.iter().enumerate().map(each).collect()
    }
}
