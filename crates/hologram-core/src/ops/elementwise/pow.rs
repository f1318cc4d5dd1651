//! Powers.

use hologram_isa::{Builder, Opcode, Type, Value};

use super::{constant, inverse};

/// x to the power of y, as 2 to the power of y·log₂|x|. The logarithm and the product are sums of two numbers, so
/// that a large exponent does not amplify the error. Sign and corner cases are those of C's `pow`.
pub(super) fn pow(b: &mut Builder, x: Value, y: Value) -> Value {
    if !x.ty.is_float() {
        return of_integers(b, x, y);
    }
    let number = |v: f64| constant(x.ty, v);
    let size = b.abs(x);
    let wide = x.ty == Type::F64;
    let (hi, lo) = if wide { log2_pair_f64(b, size) } else { log2_pair(b, size) };
    let exponent = if wide { y } else { normal(b, y) };
    let product = b.mul(hi, exponent);
    let negative = b.neg(product);
    let low = b.fma(hi, exponent, negative);
    let low = b.fma(lo, exponent, low);
    // Beyond the range of exp2 the low part is irrelevant, and may be NaN.
    let large = b.abs(product);
    let within = b.lt(large, number(if wide { 2048.0 } else { 256.0 }));
    let low = b.select(within, low, number(0.0));
    let power = b.exp2(product);
    let correction = b.mul(low, number(std::f64::consts::LN_2));
    let power_is_finite = b.lt(power, number(f64::INFINITY));
    let corrected = b.fma(power, correction, power);
    let power = b.select(power_is_finite, corrected, power);

    // One to any power, and any number to the power of zero, are one.
    let one = b.eq(size, number(1.0));
    let none = b.eq(y, number(0.0));
    let y_is_nan = b.ne(y, y);
    let positive = b.gt(x, number(0.0));
    let not_for_nan = b.not(y_is_nan);
    let fine = b.or(positive, not_for_nan);
    let one = b.and(one, fine);
    let one = b.or(one, none);
    let power = b.select(one, number(1.0), power);

    // A negative base: odd powers are negative; exponents that are not whole give NaN.
    let whole_y = b.floor(y);
    let whole = b.eq(whole_y, y);
    let half = b.mul(y, number(0.5));
    let half_floor = b.floor(half);
    let odd = b.ne(half, half_floor);
    let odd = b.and(odd, whole);
    let bits = b.bitcast(if wide { Type::I64 } else { Type::I32 }, x);
    let sign = b.lt(bits, constant(bits.ty, 0.0));
    let flip = b.and(sign, odd);
    let minus = b.neg(power);
    let power = b.select(flip, minus, power);
    let below = b.lt(x, number(0.0));
    let finite = b.lt(size, number(f64::INFINITY));
    let broken = b.not(whole);
    let undefined = b.and(below, finite);
    let undefined = b.and(undefined, broken);
    b.select(undefined, number(f64::NAN), power)
}

/// The power of integers, by squares; it wraps. Negative exponents give the power rounded toward zero, and 0 for 0.
fn of_integers(b: &mut Builder, x: Value, y: Value) -> Value {
    let number = |v: f64| constant(x.ty, v);
    let bits = if x.ty.is_wide() { Type::U64 } else { Type::U32 };
    let y_bits = b.bitcast(bits, y);
    let (power, square, rest) = (b.var(number(1.0)), b.var(x), b.var(y_bits));
    b.loop_(8 * bits.size() as u32, |b| {
        let done = b.eq(rest, constant(bits, 0.0));
        b.break_if(done);
        let low = b.and(rest, constant(bits, 1.0));
        let odd = b.ne(low, constant(bits, 0.0));
        let factor = b.select(odd, square, number(1.0));
        b.assign_op(power, Opcode::Mul, &[power, factor]);
        b.assign_op(square, Opcode::Mul, &[square, square]);
        let half = b.shr(rest, 1u32);
        b.assign(rest, half);
    });
    if bits == x.ty {
        return b.mov(power);
    }
    // Of 1 and −1 the power is that of the exponent's bits.
    let negative = b.lt(y, number(0.0));
    let size = b.abs(x);
    let one = b.eq(size, number(1.0));
    let small = b.not(one);
    let vanishes = b.and(negative, small);
    b.select(vanishes, number(0.0), power)
}

/// The power of integers modulo 2⁶⁴, as [`pow`].
pub(super) fn pow_i64(v: &[i64]) -> i64 {
    let [x, y] = [v[0], v[1]];
    if y < 0 && x.abs() != 1 {
        return 0;
    }
    let (mut power, mut square, mut rest) = (1i64, x, y as u64);
    while rest > 0 {
        if rest & 1 == 1 {
            power = power.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest >>= 1;
    }
    power
}

/// An `f32` exponent that no device counts as 0, where 0 and infinity have other powers than 1. All others have the
/// same power for every exponent this small.
fn normal(b: &mut Builder, y: Value) -> Value {
    let least = constant(y.ty, f32::MIN_POSITIVE.into());
    let size = b.abs(y);
    let tiny = b.lt(size, least);
    let least = inverse::copysign(b, &[least, y]);
    b.select(tiny, least, y)
}

/// Splits x = 2^k·m with √½ < m ≤ √2. Returns k and, with f = m − 1, the quotient s = f / (2 + f) and its
/// rounding error: ln m is 2·(s + s³/3 + s⁵/5 + …).
fn split(b: &mut Builder, x: Value) -> (Value, Value, Value) {
    let ty = x.ty;
    let number = |v: f64| constant(ty, v);
    // Subnormal numbers are scaled up first: their bits as an integer, because some devices count a subnormal operand
    // of a multiplication as 0. The rows: the least normal number, the logarithm of the scale, the bits of √½, and the
    // number of bits of the fraction.
    let (least, digits, root, shift) = match ty {
        Type::F64 => (f64::MIN_POSITIVE, 1074.0, Value::from(0x3fe6_a09e_667f_3bcdi64), 52u32),
        _ => (f32::MIN_POSITIVE.into(), 149.0, Value::from(0x3f35_04f4i32), 23),
    };
    let tiny = b.lt(x, number(least));
    let bits = b.bitcast(root.ty, x);
    let scaled = b.cvt(ty, bits);
    let scaled = b.select(tiny, scaled, x);
    let bits = b.bitcast(root.ty, scaled);
    let above = b.sub(bits, root);
    let k = b.shr(above, shift);
    let exponent = b.shl(k, shift);
    let mantissa = b.sub(bits, exponent);
    let m = b.bitcast(ty, mantissa);
    let k = b.cvt(ty, k);
    let shifted = b.sub(k, number(digits));
    let k = b.select(tiny, shifted, k);
    let f = b.sub(m, number(1.0));
    let d = b.add(f, number(2.0));
    let rounded = b.sub(d, number(2.0));
    let d_low = b.sub(f, rounded);
    let s = b.div(f, d);
    let minus = b.neg(s);
    let rest = b.fma(minus, d, f);
    let rest = b.fma(minus, d_low, rest);
    let s_low = b.div(rest, d);
    (k, s, s_low)
}

/// log₂ of an `f32` that is not negative, as a sum whose second part is small against the first; relative error below
/// 2⁻³⁰.
fn log2_pair(b: &mut Builder, x: Value) -> (Value, Value) {
    let (k, s, s_low) = split(b, x);
    // 2/ln 2 as a sum of two numbers.
    const C: f32 = 2.885_39;
    const C_LOW: f32 = (std::f64::consts::LOG2_E * 2.0 - C as f64) as f32;
    let main = b.mul(s, C);
    let minus = b.neg(main);
    let low = b.fma(s, C, minus);
    let low = b.fma(s, C_LOW, low);
    let low = b.fma(s_low, C, low);
    let square = b.mul(s, s);
    let mut series = Value::from((2.0 * std::f64::consts::LOG2_E / 11.0) as f32);
    for n in [9.0, 7.0, 5.0, 3.0] {
        series = b.fma(series, square, (2.0 * std::f64::consts::LOG2_E / n) as f32);
    }
    let cube = b.mul(square, s);
    let low = b.fma(cube, series, low);
    total(b, x, k, main, low)
}

/// log₂ of an `f64` that is not negative, as a sum whose second part is small against the first; relative error below
/// 2⁻⁶³.
fn log2_pair_f64(b: &mut Builder, x: Value) -> (Value, Value) {
    let (k, s, s_low) = split(b, x);
    // s², s³ and s³/3 as sums of two numbers. The further terms are at most 2⁻¹² of s and need one number.
    let z = product(b, (s, s_low), (s, s_low));
    let cube = product(b, z, (s, s_low));
    let third = product(b, cube, (Value::from(1.0 / 3.0), Value::from(1.850_371_707_708_594e-17)));
    let mut series = Value::from(1.0 / 27.0);
    for n in [25.0, 23.0, 21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0] {
        series = b.fma(series, z.0, 1.0 / n);
    }
    let fifth = b.mul(cube.0, z.0);
    let sum = b.add(s, third.0);
    let back = b.sub(sum, s);
    let lost = b.sub(third.0, back);
    let low = b.add(s_low, third.1);
    let low = b.add(lost, low);
    let low = b.fma(fifth, series, low);
    const C: f64 = 2.0 * std::f64::consts::LOG2_E;
    let (main, low) = product(b, (sum, low), (Value::from(C), Value::from(4.071_054_748_186_206_6e-17)));
    total(b, x, k, main, low)
}

/// The product of two numbers, each given as a sum of two `f64`, as such a sum.
fn product(b: &mut Builder, x: (Value, Value), y: (Value, Value)) -> (Value, Value) {
    let high = b.mul(x.0, y.0);
    let minus = b.neg(high);
    let low = b.fma(x.0, y.0, minus);
    let low = b.fma(x.0, y.1, low);
    (high, b.fma(x.1, y.0, low))
}

/// k + main + low as such a sum, or the logarithm of 0, infinity or NaN. Both logarithms end with this.
fn total(b: &mut Builder, x: Value, k: Value, main: Value, low: Value) -> (Value, Value) {
    let zero = constant(x.ty, 0.0);
    // |k| ≥ 1 exceeds |main| ≤ ½; with k = 0 main is the greater one.
    let sum = b.add(k, main);
    let back = b.sub(sum, k);
    let lost = b.sub(main, back);
    let low = b.add(lost, low);
    let hi = b.add(sum, low);
    let back = b.sub(hi, sum);
    let lo = b.sub(low, back);
    // The logarithms of 0, of infinity and of NaN.
    let none = b.eq(x, zero);
    let hi = b.select(none, constant(x.ty, f64::NEG_INFINITY), hi);
    let finite = b.lt(x, constant(x.ty, f64::INFINITY));
    let hi = b.select(finite, hi, x);
    let fine = b.gt(x, zero);
    let fine = b.and(fine, finite);
    let lo = b.select(fine, lo, zero);
    (hi, lo)
}
