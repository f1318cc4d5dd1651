//! Masks, a word per lane that is 1 where the lane is active, and the control-flow operations on them.

use super::level::{Level, leveled};

/// The mask operations of a level. All work on `n` lanes, a multiple of 16; those that make a mask return its lane
/// count.
#[derive(Clone, Copy)]
pub(super) struct Masks {
    /// `(dst, a, b, n)`: a and b.
    pub(super) and: unsafe fn(*mut u32, *const u32, *const u32, usize) -> u32,
    /// `(dst, a, b, n)`: a and not b. `dst` may be `a`.
    pub(super) and_not: unsafe fn(*mut u32, *const u32, *const u32, usize) -> u32,
    /// `(dst, a, base, bound, n)`: a, where base + lane (wrapping) is less than the bound.
    pub(super) below: unsafe fn(*mut u32, *const u32, u32, u32, usize) -> u32,
    /// `(dst, from, mask, n)`: sets the active lanes of `dst`.
    pub(super) blend: unsafe fn(*mut u32, *const u32, *const u32, usize),
    /// The same for registers with values of 64 bits.
    pub(super) blend_wide: unsafe fn(*mut u32, *const u32, *const u32, usize),
    /// `(dst, base, n)`: base + lane, wrapping.
    pub(super) iota: unsafe fn(*mut u32, u32, usize),
    /// `(values, mask, n)`: whether an active lane is zero.
    pub(super) any_zero: unsafe fn(*const u32, *const u32, usize) -> bool,
    /// The same for values of 64 bits.
    pub(super) any_zero_wide: unsafe fn(*const u32, *const u32, usize) -> bool,
    /// `(counter, end, step, alive, n)`: the next round of a `for` per lane, on u32. Advances the counters and keeps
    /// alive the lanes that are below the end and did not wrap.
    pub(super) advance_u: Advance,
    /// The same for i32.
    pub(super) advance_i: Advance,
}

/// See [`Masks::advance_u`].
pub(super) type Advance = unsafe fn(*mut u32, *const u32, *const u32, *mut u32, usize) -> u32;

/// A loop over lanes that sets `dst[i]` to a truth value and counts the ones. Raw addresses, because `dst` may be an
/// operand.
#[inline(always)]
unsafe fn make(dst: *mut u32, n: usize, f: impl Fn(usize) -> u32) -> u32 {
    let mut count = 0;
    for i in 0..n & !15 {
        let word = f(i);
        count += word;
        // SAFETY: the caller promises n words.
        unsafe { dst.add(i).write(word) };
    }
    count
}

#[inline(always)]
unsafe fn and_body<const NOT: bool>(dst: *mut u32, a: *const u32, b: *const u32, n: usize) -> u32 {
    // SAFETY: the caller promises n words behind each address.
    unsafe { make(dst, n, |i| a.add(i).read() & (b.add(i).read() ^ NOT as u32)) }
}

#[inline(always)]
unsafe fn below_body<const L: bool>(dst: *mut u32, a: *const u32, base: u32, bound: u32, n: usize) -> u32 {
    // SAFETY: the caller promises n words behind each address.
    unsafe { make(dst, n, |i| a.add(i).read() & (base.wrapping_add(i as u32) < bound) as u32) }
}

#[inline(always)]
unsafe fn blend_body<T: Copy>(dst: *mut u32, from: *const u32, mask: *const u32, n: usize) {
    let (dst, from) = (dst.cast::<T>(), from.cast::<T>());
    for i in 0..n & !15 {
        // SAFETY: the caller promises n values behind each address.
        unsafe {
            let word = if mask.add(i).read() != 0 { from.add(i).read() } else { dst.add(i).read() };
            dst.add(i).write(word);
        }
    }
}

#[inline(always)]
unsafe fn iota_body<const L: bool>(dst: *mut u32, base: u32, n: usize) {
    for i in 0..n & !15 {
        // SAFETY: the caller promises n words behind the address.
        unsafe { dst.add(i).write(base.wrapping_add(i as u32)) };
    }
}

#[inline(always)]
unsafe fn any_zero_body<T: Copy + Into<u64>>(values: *const u32, mask: *const u32, n: usize) -> bool {
    let (values, mut any) = (values.cast::<T>(), 0);
    for i in 0..n & !15 {
        // SAFETY: the caller promises n values and words behind the addresses.
        unsafe { any |= (values.add(i).read().into() == 0) as u32 & mask.add(i).read() };
    }
    any != 0
}

#[inline(always)]
unsafe fn advance_body<const SIGNED: bool>(
    counter: *mut u32,
    end: *const u32,
    step: *const u32,
    alive: *mut u32,
    n: usize,
) -> u32 {
    let mut count = 0;
    for i in 0..n & !15 {
        // SAFETY: the caller promises n words behind each address.
        unsafe {
            let (now, end) = (counter.add(i).read(), end.add(i).read());
            let next = now.wrapping_add(step.add(i).read());
            let goes_on = if SIGNED {
                (next as i32) > now as i32 && (next as i32) < end as i32
            } else {
                next > now && next < end
            };
            let word = alive.add(i).read() & goes_on as u32;
            count += word;
            counter.add(i).write(next);
            alive.add(i).write(word);
        }
    }
    count
}

leveled! { fn and[const NOT: bool][NOT] = and_body(dst: *mut u32, a: *const u32, b: *const u32, n: usize) -> u32 }
leveled! { fn below[const L: bool][L] = below_body(dst: *mut u32, a: *const u32, base: u32, bound: u32, n: usize) -> u32 }
leveled! { fn blend[T: Copy][T] = blend_body(dst: *mut u32, from: *const u32, mask: *const u32, n: usize) }
leveled! { fn iota[const L: bool][L] = iota_body(dst: *mut u32, base: u32, n: usize) }
leveled! { fn any_zero[T: Copy + Into<u64>][T] = any_zero_body(values: *const u32, mask: *const u32, n: usize) -> bool }
leveled! {
    fn advance[const SIGNED: bool][SIGNED] =
        advance_body(counter: *mut u32, end: *const u32, step: *const u32, alive: *mut u32, n: usize) -> u32
}

impl Masks {
    pub(super) fn of(level: Level) -> Masks {
        Masks {
            and: and::<false>(level),
            and_not: and::<true>(level),
            below: below::<true>(level),
            blend: blend::<u32>(level),
            blend_wide: blend::<u64>(level),
            iota: iota::<true>(level),
            any_zero: any_zero::<u32>(level),
            any_zero_wide: any_zero::<u64>(level),
            advance_u: advance::<false>(level),
            advance_i: advance::<true>(level),
        }
    }
}
