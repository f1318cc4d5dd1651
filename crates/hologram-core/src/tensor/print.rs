//! Tensors as text, in the manner of NumPy.

use std::fmt;

use hologram_isa::Type;

use super::Tensor;
use crate::error::Result;

/// The maximum number of elements that are all shown. Of a larger tensor the first and last few of each
/// dimension are shown.
const MOST: usize = 1000;
/// The number of elements shown at either end.
const EDGE: usize = 3;

impl fmt::Display for Tensor {
    /// The elements, then type, shape and device. Waits for the device; if that fails, the text says so.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = format!("Tensor({}{:?}, {})", self.format.name(), self.shape, self.buffer.backend());
        match self.shown() {
            Ok(elements) => write!(f, "{elements}\n{about}"),
            Err(error) => write!(f, "(its elements cannot be read: {error})\n{about}"),
        }
    }
}

impl Tensor {
    fn shown(&self) -> Result<String> {
        let (mut part, mut cut) = (self.to_dtype(self.readable())?, vec![false; self.shape.len()]);
        if self.shape.iter().product::<usize>() > MOST {
            // Reads only the elements that are shown.
            for (dim, cut) in cut.iter_mut().enumerate() {
                let n = part.shape[dim];
                if n > 2 * EDGE + 1 {
                    part = Tensor::cat(&[&part.slice(dim, 0, EDGE)?, &part.slice(dim, n - EDGE, n)?], dim)?;
                    *cut = true;
                }
            }
        }
        let texts = part.texts()?;
        let width = texts.iter().map(String::len).max().unwrap_or(0);
        let mut out = String::new();
        nested(&part.shape, &cut, &texts, width, 0, &mut out);
        Ok(out)
    }

    /// Each element as text.
    fn texts(&self) -> Result<Vec<String>> {
        macro_rules! read {
            ($($ty:ident: $rust:ty),*) => {
                match self.readable() {
                    $(Type::$ty => self.to_vec::<$rust>()?.iter().map(|v| v.to_string()).collect(),)*
                    Type::Bool => self.to_bools()?.iter().map(|v| v.to_string()).collect(),
                    Type::F64 => floats(&self.to_vec::<f64>()?),
                    _ => floats(&self.to_dtype(Type::F32)?.to_vec::<f32>()?.iter().map(|v| f64::from(*v)).collect::<Vec<_>>()),
                }
            };
        }
        Ok(read!(I8: i8, U8: u8, I16: i16, U16: u16, I32: i32, U32: u32, I64: i64, U64: u64))
    }

    /// The type in which elements are read: `f32` for formats that are not plain.
    fn readable(&self) -> Type {
        match self.format {
            hologram_backends::DType::Plain(ty) => ty,
            _ => Type::F32,
        }
    }
}

/// Formats floats with as many decimals as they need, at most four, or with exponents if some are very large or small.
fn floats(values: &[f64]) -> Vec<String> {
    let finite = || values.iter().map(|v| v.abs()).filter(|v| v.is_finite() && *v > 0.0);
    let (least, greatest) = finite().fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
    if greatest >= 1e8 || least < 1e-4 && greatest > 0.0 {
        return values.iter().map(|v| if v.is_finite() { format!("{v:.4e}") } else { v.to_string() }).collect();
    }
    let needs =
        |v: &f64| format!("{v:.4}").trim_end_matches('0').split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let decimals = values.iter().filter(|v| v.is_finite()).map(needs).max().unwrap_or(0).max(1);
    values.iter().map(|v| if v.is_finite() { format!("{v:.decimals$}") } else { v.to_string() }).collect()
}

/// Nested lists, one row per line.
fn nested(shape: &[usize], cut: &[bool], texts: &[String], width: usize, depth: usize, out: &mut String) {
    let Some((n, inner)) = shape.split_first() else {
        out.push_str(texts.first().map_or("", String::as_str));
        return;
    };
    let size: usize = inner.iter().product();
    out.push('[');
    for i in 0..*n {
        if i > 0 {
            out.push_str(if inner.is_empty() { ", " } else { "," });
            if !inner.is_empty() {
                out.push_str(&"\n".repeat(inner.len()));
                out.push_str(&" ".repeat(depth + 1));
            }
        }
        if cut[0] && i == EDGE {
            out.push_str(if inner.is_empty() { "…, " } else { "…," });
            if !inner.is_empty() {
                out.push_str(&"\n".repeat(inner.len()));
                out.push_str(&" ".repeat(depth + 1));
            }
        }
        match inner {
            [] => out.push_str(&format!("{:>width$}", texts[i])),
            _ => nested(inner, &cut[1..], &texts[i * size..(i + 1) * size], width, depth + 1, out),
        }
    }
    out.push(']');
}
