//! Conversions between all types, as branch-free functions of one value.
//!
//! A word of an integer type of at most 32 bits holds its value, so all but `u32` are read as `i32`.

use std::marker::PhantomData;

use hologram_isa::Type;

use super::lanes::{Forms, Op, unary};
use super::level::Level;
use super::words::*;

/// How to read the words of a type.
trait Source: 'static {
    type Word: Copy;
    type Value: Number;
    fn value(word: Self::Word) -> Self::Value;
}

/// A number that `as` converts.
trait Number: Copy {
    fn is_true(self) -> bool;
    /// The number as `f32`, rounded so that further rounding to `f16` or `bf16` equals rounding the number once.
    fn jammed(self) -> f32;
}

macro_rules! numbers {
    ($($ty:ty, $zero:literal, |$v:ident| $jammed:expr;)*) => {$(
        impl Number for $ty {
            #[inline(always)]
            fn is_true(self) -> bool {
                self != $zero
            }
            #[inline(always)]
            fn jammed(self) -> f32 {
                let $v = self;
                $jammed
            }
        }
    )*};
}
numbers! {
    i32, 0, |v| i32_jammed(v as u32);
    u32, 0, |v| u32_jammed(v);
    i64, 0, |v| i64_jammed(v);
    u64, 0, |v| u64_jammed(v);
    f32, 0.0, |v| v;
    f64, 0.0, |v| f64_jammed(v);
}

struct I32;
struct U32;
struct I64;
struct U64;
struct F16;
struct Bf16;
struct F32;
struct F64;

macro_rules! sources {
    ($($name:ident $word:ty, $value:ty, |$w:ident| $read:expr;)*) => {$(
        impl Source for $name {
            type Word = $word;
            type Value = $value;
            #[inline(always)]
            fn value($w: $word) -> $value {
                $read
            }
        }
        targets! { $name $word, $value }
    )*};
}

macro_rules! targets {
    ($source:ident $word:ty, $value:ty) => {
        target! { $source $word, ToBool u32, |v| Number::is_true(v) as u32 }
        target! { $source $word, ToI8 u32, |v| v as i8 as i32 as u32 }
        target! { $source $word, ToU8 u32, |v| v as u8 as u32 }
        target! { $source $word, ToI16 u32, |v| v as i16 as i32 as u32 }
        target! { $source $word, ToU16 u32, |v| v as u16 as u32 }
        target! { $source $word, ToI32 i32, |v| v as i32 }
        target! { $source $word, ToU32 u32, |v| v as u32 }
        target! { $source $word, ToI64 i64, |v| v as i64 }
        target! { $source $word, ToU64 u64, |v| v as u64 }
        target! { $source $word, ToF16 u32, |v| to_f16(Number::jammed(v)) }
        target! { $source $word, ToBf16 u32, |v| to_bf16(Number::jammed(v)) }
        target! { $source $word, ToF32 f32, |v| v as f32 }
        target! { $source $word, ToF64 f64, |v| v as f64 }
    };
}

macro_rules! target {
    ($source:ident $word:ty, $name:ident $result:ty, |$v:ident| $body:expr) => {
        impl Op for $name<$source> {
            type A = $word;
            type B = u32;
            type C = u32;
            type R = $result;
            #[inline(always)]
            fn f(a: $word, _: u32, _: u32) -> $result {
                let $v = <$source as Source>::value(a);
                $body
            }
        }
    };
}

struct ToBool<S>(PhantomData<S>);
struct ToI8<S>(PhantomData<S>);
struct ToU8<S>(PhantomData<S>);
struct ToI16<S>(PhantomData<S>);
struct ToU16<S>(PhantomData<S>);
struct ToI32<S>(PhantomData<S>);
struct ToU32<S>(PhantomData<S>);
struct ToI64<S>(PhantomData<S>);
struct ToU64<S>(PhantomData<S>);
struct ToF16<S>(PhantomData<S>);
struct ToBf16<S>(PhantomData<S>);
struct ToF32<S>(PhantomData<S>);
struct ToF64<S>(PhantomData<S>);

sources! {
    I32 i32, i32, |w| w;
    U32 u32, u32, |w| w;
    I64 i64, i64, |w| w;
    U64 u64, u64, |w| w;
    F16 u32, f32, |w| from_f16(w);
    Bf16 u32, f32, |w| from_bf16(w);
    F32 f32, f32, |w| w;
    F64 f64, f64, |w| w;
}

/// The forms of a conversion.
pub(super) fn convert(from: Type, to: Type, level: Level) -> Forms {
    if from == to {
        return super::lanes::copy(to, level);
    }
    macro_rules! into {
        ($source:ident) => {
            match to {
                Type::Bool => unary::<ToBool<$source>>(level),
                Type::I8 => unary::<ToI8<$source>>(level),
                Type::U8 => unary::<ToU8<$source>>(level),
                Type::I16 => unary::<ToI16<$source>>(level),
                Type::U16 => unary::<ToU16<$source>>(level),
                Type::I32 => unary::<ToI32<$source>>(level),
                Type::U32 => unary::<ToU32<$source>>(level),
                Type::I64 => unary::<ToI64<$source>>(level),
                Type::U64 => unary::<ToU64<$source>>(level),
                Type::F16 => unary::<ToF16<$source>>(level),
                Type::BF16 => unary::<ToBf16<$source>>(level),
                Type::F32 => unary::<ToF32<$source>>(level),
                Type::F64 => unary::<ToF64<$source>>(level),
            }
        };
    }
    match from {
        Type::Bool | Type::I8 | Type::U8 | Type::I16 | Type::U16 | Type::I32 => into!(I32),
        Type::U32 => into!(U32),
        Type::I64 => into!(I64),
        Type::U64 => into!(U64),
        Type::F16 => into!(F16),
        Type::BF16 => into!(Bf16),
        Type::F32 => into!(F32),
        Type::F64 => into!(F64),
    }
}
