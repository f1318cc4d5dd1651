//! Atomic operations, lane by lane in order. Meanwhile workers run other workgroups on the same buffers.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64};

use hologram_isa::{Opcode, Type};

use super::memory::{Memory, NO_LANE};

/// `(dst, memory, indices, first values, second values, mask, n)`: updates the elements of the active lanes and writes
/// their previous values to `dst`. Returns the first active lane with an index outside, or [`NO_LANE`].
///
/// # Safety
/// Registers and the mask have `n` values; the memory's elements have the operation's type and are aligned to it.
pub(super) type UpdateFn = unsafe fn(*mut u32, Memory, *const u32, *const u32, *const u32, *const u32, usize) -> usize;

/// An operation on an element.
trait Update: 'static {
    type Value: Copy;
    /// # Safety
    /// `at` is the aligned address of an element.
    unsafe fn update(at: *mut Self::Value, a: Self::Value, b: Self::Value) -> Self::Value;
}

unsafe fn update_lanes<U: Update>(
    dst: *mut u32,
    memory: Memory,
    index: *const u32,
    a: *const u32,
    b: *const u32,
    mask: *const u32,
    n: usize,
) -> usize {
    let (dst, a, b) = (dst.cast::<U::Value>(), a.cast::<U::Value>(), b.cast::<U::Value>());
    for i in 0..n {
        // SAFETY: the caller promises n lanes everywhere; the element is inside.
        unsafe {
            if mask.add(i).read() == 0 {
                continue;
            }
            let at = index.add(i).read() as usize;
            if at >= memory.len {
                return i;
            }
            dst.add(i).write(U::update(memory.data.cast::<U::Value>().add(at), a.add(i).read(), b.add(i).read()));
        }
    }
    NO_LANE
}

struct Add<T>(PhantomData<T>);
struct Min<T>(PhantomData<T>);
struct Max<T>(PhantomData<T>);
struct And<T>(PhantomData<T>);
struct Or<T>(PhantomData<T>);
struct Xor<T>(PhantomData<T>);
struct Exchange<T>(PhantomData<T>);
struct CompareExchange<T>(PhantomData<T>);

macro_rules! updates {
    ($($name:ident<$value:ident> $atomic:ident, |$x:ident, $a:pat_param, $b:pat_param| $body:expr;)*) => {$(
        impl Update for $name<$value> {
            type Value = $value;
            unsafe fn update(at: *mut $value, $a: $value, $b: $value) -> $value {
                // SAFETY: an element of this size, aligned to it. Concurrent users update it atomically too, or the
                // program has a race.
                let $x = unsafe { $atomic::from_ptr(at.cast()) };
                $body
            }
        }
    )*};
    (words $value:ident $atomic:ident) => {
        updates! {
            Add<$value> $atomic, |x, a, _| x.fetch_add(a, Relaxed);
            Min<$value> $atomic, |x, a, _| x.fetch_min(a, Relaxed);
            Max<$value> $atomic, |x, a, _| x.fetch_max(a, Relaxed);
            And<$value> $atomic, |x, a, _| x.fetch_and(a, Relaxed);
            Or<$value> $atomic, |x, a, _| x.fetch_or(a, Relaxed);
            Xor<$value> $atomic, |x, a, _| x.fetch_xor(a, Relaxed);
            Exchange<$value> $atomic, |x, a, _| x.swap(a, Relaxed);
            CompareExchange<$value> $atomic, |x, a, b| match x.compare_exchange(a, b, Relaxed, Relaxed) {
                Ok(old) | Err(old) => old,
            };
        }
    };
}
updates! { words i32 AtomicI32 }
updates! { words u32 AtomicU32 }
updates! {
    Add<i64> AtomicI64, |x, a, _| x.fetch_add(a, Relaxed);
    Add<u64> AtomicU64, |x, a, _| x.fetch_add(a, Relaxed);
    Add<f32> AtomicU32, |x, a, _| {
        let sum = |old| Some((f32::from_bits(old) + a).to_bits());
        match x.fetch_update(Relaxed, Relaxed, sum) {
            Ok(old) | Err(old) => f32::from_bits(old),
        }
    };
}

/// The function of an atomic operation; `None` for any other.
pub(super) fn update(op: Opcode, ty: Type) -> Option<UpdateFn> {
    use Opcode as O;
    macro_rules! words {
        ($name:ident) => {
            match ty {
                Type::I32 => update_lanes::<$name<i32>>,
                Type::U32 => update_lanes::<$name<u32>>,
                _ => return None,
            }
        };
    }
    Some(match (op, ty) {
        (O::AtomicAdd, Type::I64) => update_lanes::<Add<i64>>,
        (O::AtomicAdd, Type::U64) => update_lanes::<Add<u64>>,
        (O::AtomicAdd, Type::F32) => update_lanes::<Add<f32>>,
        (O::AtomicAdd, _) => words!(Add),
        (O::AtomicMin, _) => words!(Min),
        (O::AtomicMax, _) => words!(Max),
        (O::AtomicAnd, _) => words!(And),
        (O::AtomicOr, _) => words!(Or),
        (O::AtomicXor, _) => words!(Xor),
        (O::AtomicExchange, _) => words!(Exchange),
        (O::AtomicCompareExchange, _) => words!(CompareExchange),
        _ => return None,
    })
}
