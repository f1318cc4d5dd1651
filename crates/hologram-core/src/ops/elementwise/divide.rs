//! Division rounded down, and its remainder.

use hologram_isa::{Builder, Type, Value};

use super::constant;

/// Whether two numbers have opposite signs; false if one is zero or NaN.
fn opposite(b: &mut Builder, x: Value, y: Value) -> Value {
    let zero = constant(x.ty, 0.0);
    let (x_below, y_above) = (b.lt(x, zero), b.gt(y, zero));
    let (x_above, y_below) = (b.gt(x, zero), b.lt(y, zero));
    let (first, second) = (b.and(x_below, y_above), b.and(x_above, y_below));
    b.or(first, second)
}

/// ⌊x / y⌋.
pub(super) fn floor_divide(b: &mut Builder, v: &[Value]) -> Value {
    let [x, y] = [v[0], v[1]];
    let number = |v: f64| constant(x.ty, v);
    let quotient = b.div(x, y);
    if !x.ty.is_float() {
        let rest = b.rem(x, y);
        let wrong = opposite(b, rest, y);
        let below = b.sub(quotient, number(1.0));
        return b.select(wrong, below, quotient);
    }
    let floor = b.floor(quotient);
    // A quotient that was rounded up to a whole number leaves a remainder of the other sign, which is exact as long as
    // every whole number is a float.
    let minus = b.neg(floor);
    let rest = b.fma(minus, y, x);
    let wrong = opposite(b, rest, y);
    let size = b.abs(floor);
    let is_exact = b.lt(size, number(if x.ty == Type::F64 { 2f64.powi(53) } else { 2f64.powi(24) }));
    // By an infinite number that is NaN, and the quotient stays ±0.
    let wrong = b.and(wrong, is_exact);
    let below = b.sub(floor, number(1.0));
    b.select(wrong, below, floor)
}

/// x − y·⌊x / y⌋, rounded once.
pub(super) fn remainder(b: &mut Builder, v: &[Value]) -> Value {
    let [x, y] = [v[0], v[1]];
    let zero = constant(x.ty, 0.0);
    if !x.ty.is_float() {
        let rest = b.rem(x, y);
        let wrong = opposite(b, rest, y);
        let above = b.add(rest, y);
        return b.select(wrong, above, rest);
    }
    let (x_size, y_size) = (b.abs(x), b.abs(y));
    // A device that counts subnormal numbers as 0 does so here.
    let (rest, divisor) = (b.add(x_size, zero), b.add(y_size, zero));
    let rest = of_sizes(b, rest, divisor);
    let rest = super::inverse::copysign(b, &[rest, x]);
    let wrong = opposite(b, rest, y);
    let above = b.add(rest, y);
    let rest = b.select(wrong, above, rest);
    let none = b.eq(rest, zero);
    let signed = super::inverse::copysign(b, &[rest, y]);
    let rest = b.select(none, signed, rest);
    // No remainder: of an infinite number, or by zero.
    let finite = b.lt(x_size, constant(x.ty, f64::INFINITY));
    let some = b.gt(divisor, zero);
    let fine = b.and(finite, some);
    b.select(fine, rest, constant(x.ty, f64::NAN))
}

/// The remainder of x by y, neither of them negative: multiples of y by powers of 2 are subtracted, so many times that
/// the quotient and the rest are exact.
fn of_sizes(b: &mut Builder, x: Value, y: Value) -> Value {
    let number = |v: f64| constant(x.ty, v);
    // Bits of the fraction, the exponent of 1, and the most bits of a step's quotient.
    let (bits, digits, bias, step) = match x.ty {
        Type::F64 => (Type::I64, 52, 1023.0, 48.0),
        _ => (Type::I32, 23, 127.0, 20.0),
    };
    let whole = |v: f64| constant(bits, v);
    let exponent = |b: &mut Builder, v: Value| {
        let tiny = b.lt(v, number(2f64.powi(if bits == Type::I64 { -1022 } else { -126 })));
        let scaled = b.mul(v, number(2f64.powi(digits)));
        let normal = b.select(tiny, scaled, v);
        let own = b.bitcast(bits, normal);
        let own = b.shr(own, digits as u32);
        let lower = b.sub(own, whole(digits.into()));
        b.select(tiny, lower, own)
    };
    let power = |b: &mut Builder, k: Value| {
        let k = b.add(k, whole(bias));
        let k = b.shl(k, digits as u32);
        b.bitcast(x.ty, k)
    };
    let of_y = exponent(b, y);
    let rest = b.var(x);
    b.loop_(if bits == Type::I64 { 64 } else { 32 }, |b| {
        let less = b.lt(rest, y);
        let usual = b.gt(y, number(0.0));
        let more = b.lt(rest, number(f64::INFINITY));
        let usual = b.and(usual, more);
        let odd = b.not(usual);
        let done = b.or(less, odd);
        b.break_if(done);
        let of_rest = exponent(b, rest);
        let k = b.sub(of_rest, of_y);
        let k = b.sub(k, whole(step));
        let k = b.max(k, whole(0.0));
        // The power may be beyond the floats' range, its halves are not.
        let low = b.shr(k, 1u32);
        let high = b.sub(k, low);
        let (low, high) = (power(b, low), power(b, high));
        let multiple = b.mul(y, low);
        let multiple = b.mul(multiple, high);
        let times = b.div(rest, multiple);
        let times = b.floor(times);
        let minus = b.neg(times);
        let left = b.fma(minus, multiple, rest);
        let back = b.add(left, multiple);
        let below = b.lt(left, number(0.0));
        let left = b.select(below, back, left);
        b.assign(rest, left);
    });
    // An infinite divisor leaves x as it is.
    b.mov(rest)
}
