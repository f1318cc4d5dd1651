//! Operations of the array API standard that are compositions of the core crate's.

use hologram_core::{CoreError, DType, Tensor};
use hologram_isa::Type;

use crate::dtype::{kind, size};

type Core = hologram_core::Result<Tensor>;

fn of(x: &Tensor) -> Type {
    if let DType::Plain(ty) = x.dtype() { ty } else { Type::F32 }
}

/// An operation of one operand; `None` if there is none of this name.
pub fn unary(name: &str, x: &Tensor) -> Option<Core> {
    let _ = x;
    match name {
        "trunc" => Some((|| x.lt(0.0)?.select(x.ceil(), x.floor()))()),
        _ => None,
    }
}

/// An operation of two operands of one type; `None` if there is none of this name.
pub fn binary(name: &str, a: &Tensor, b: &Tensor) -> Option<Core> {
    match name {
        "floor_divide" => Some(floor_divide(a, b)),
        "remainder" => Some(remainder(a, b)),
        "power" => Some(power(a, b)),
        "max_nan" => Some(propagating(a, b, a.maximum(b))),
        "min_nan" => Some(propagating(a, b, a.minimum(b))),
        _ => None,
    }
}

/// A result, or the NaN of an operand.
fn propagating(a: &Tensor, b: &Tensor, result: Core) -> Core {
    if kind(of(a)) != 'f' {
        return result;
    }
    let result = b.ne(b)?.select(b, result)?;
    a.ne(a)?.select(a, result)
}

fn zero(of_type: &Tensor) -> Core {
    Tensor::zeros(of_type.executor(), of_type.dtype(), &[])
}

/// ⌊a / b⌋.
fn floor_divide(a: &Tensor, b: &Tensor) -> Core {
    match kind(of(a)) {
        'f' => a.div(b)?.floor(),
        'u' => a.div(b),
        _ => {
            let (quotient, rest) = (a.div(b)?, a.rem(b)?);
            let zero = zero(a)?;
            let differs = rest.lt(&zero)?.ne(b.lt(&zero)?)?.and(rest.ne(&zero)?)?;
            quotient.sub(differs.cast(of(a))?)
        }
    }
}

/// The remainder with the sign of `b`.
fn remainder(a: &Tensor, b: &Tensor) -> Core {
    let zero = zero(a)?;
    match kind(of(a)) {
        'f' => {
            let rest = a.sub(a.div(b)?.floor()?.mul(b)?)?;
            // A whole quotient leaves a zero with the sign of b.
            rest.eq(&zero)?.select(zero.copysign(b)?, rest)
        }
        'u' => a.rem(b),
        _ => {
            let rest = a.rem(b)?;
            let differs = rest.lt(&zero)?.ne(b.lt(&zero)?)?.and(rest.ne(&zero)?)?;
            differs.select(rest.add(b)?, &rest)
        }
    }
}

/// a to the power of b; of integers by squaring, where negative powers are 0 but of 1 and −1.
fn power(a: &Tensor, b: &Tensor) -> Core {
    let ty = of(a);
    if kind(ty) == 'f' {
        return a.pow(b);
    }
    if kind(ty) == 'b' {
        return Err(CoreError::Tensor("pow is not defined for bool".into()));
    }
    let (zero, one) = (zero(a)?, Tensor::ones(a.executor(), a.dtype(), &[])?);
    let (mut result, mut base, mut exponent) = (one.clone(), a.clone(), b.clone());
    for _ in 0..8 * size(ty) {
        let odd = exponent.and(&one)?.ne(&zero)?;
        result = odd.select(result.mul(&base)?, &result)?;
        base = base.mul(&base)?;
        exponent = exponent.shr(&one)?;
    }
    if kind(ty) == 'u' {
        return Ok(result);
    }
    let unit = a.eq(&one)?.select(&one, &zero)?;
    b.lt(&zero)?.select(unit, result)
}

/// The matrix product of any numbers.
pub fn matmul(a: &Tensor, b: &Tensor) -> Core {
    if kind(of(a)) == 'f' {
        return a.matmul(b);
    }
    // Integers: sums of products, in their type.
    if b.shape().len() == 1 {
        let column = b.reshape(&[b.shape()[0], 1])?;
        return matmul(a, &column)?.squeeze(-1);
    }
    if a.shape().len() == 1 {
        let row = a.reshape(&[1, a.shape()[0]])?;
        return matmul(&row, b)?.squeeze(-2);
    }
    if a.shape().is_empty() || b.shape().is_empty() {
        return Err(CoreError::Tensor("matmul takes at least one dimension".into()));
    }
    let (inner_a, inner_b) = (a.shape()[a.shape().len() - 1], b.shape()[b.shape().len() - 2]);
    if inner_a != inner_b {
        return Err(CoreError::Tensor(format!("matmul: the inner sizes {inner_a} and {inner_b} differ")));
    }
    a.unsqueeze(-1)?.mul(b.unsqueeze(-3)?)?.sum(-2)
}
