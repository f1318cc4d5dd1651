//! NumPy's `.npy` files (format versions 1 to 3,
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>): dense arrays of plain numbers.

use hologram_isa::Type;

use crate::error::{CoreError, Result};

/// An array of plain numbers in memory, row-major, little-endian.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Element type.
    pub ty: Type,
    /// The shape, slowest dimension first.
    pub shape: Vec<usize>,
    /// The elements.
    pub bytes: Vec<u8>,
}

/// NumPy's maximum number of dimensions.
pub const MAX_DIMENSIONS: usize = 64;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Element types and NumPy's names for them, without the byte order.
const TYPES: [(Type, &str); 13] = [
    (Type::F32, "f4"),
    (Type::F16, "f2"),
    (Type::I32, "i4"),
    (Type::U32, "u4"),
    (Type::I8, "i1"),
    (Type::U8, "u1"),
    (Type::Bool, "b1"),
    (Type::U16, "u2"),
    // NumPy has no bf16: two bytes without a type, as the package ml_dtypes writes them.
    (Type::BF16, "V2"),
    (Type::I16, "i2"),
    (Type::I64, "i8"),
    (Type::U64, "u8"),
    (Type::F64, "f8"),
];

impl Array {
    /// An array of `f32`.
    pub fn from_f32(shape: Vec<usize>, values: &[f32]) -> Array {
        Array { ty: Type::F32, shape, bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect() }
    }
}

/// Reads the content of a file.
///
/// # Errors
/// When it is not a `.npy` file of plain numbers, or its size contradicts its header.
pub fn from_bytes(data: &[u8]) -> Result<Array> {
    parse(data).map_err(|reason| CoreError::Tensor(format!("not a readable .npy file: {reason}")))
}

fn parse(data: &[u8]) -> std::result::Result<Array, String> {
    if !data.starts_with(MAGIC) {
        return Err("the NumPy magic number is missing".into());
    }
    let (start, header_len) = match (data.get(6), data.get(8..12)) {
        (Some(1), Some(n)) => (10, usize::from(u16::from_le_bytes([n[0], n[1]]))),
        (Some(2 | 3), Some(n)) => (12, u32::from_le_bytes([n[0], n[1], n[2], n[3]]) as usize),
        (Some(v), Some(_)) => return Err(format!("unsupported version {v}; supported: 1, 2, 3")),
        _ => return Err("the file is truncated".into()),
    };
    let end = start + header_len;
    let header = data.get(start..end).ok_or("the file is truncated")?;
    let header = std::str::from_utf8(header).map_err(|_| "the header is not text")?;
    let descr = field(header, "descr").ok_or("the header has no descr")?;
    let descr = descr.trim_matches(['\'', '"']);
    let (order, name) = descr.split_at_checked(1).unwrap_or(("", descr));
    let known = TYPES.iter().find(|(_, n)| *n == name);
    // Bytes without a type have no order.
    let ordered = |ty: Type| matches!(order, "<" | "=" | ">") || (order == "|" && (ty.size() == 1 || ty == Type::BF16));
    let Some((ty, _)) = known.filter(|(ty, _)| ordered(*ty)) else {
        let names: Vec<String> = TYPES.iter().map(|(ty, n)| format!("{}{n}", order_of(*ty))).collect();
        return Err(format!("unsupported element type {descr}; supported: {}", names.join(", ")));
    };
    let column_major = match field(header, "fortran_order") {
        Some("False") => false,
        Some("True") => true,
        _ => return Err("the header has no fortran_order".into()),
    };
    let shape = field(header, "shape").ok_or("the header has no shape")?;
    let shape = shape.trim_matches(['(', ')']).split(',').map(str::trim).filter(|s| !s.is_empty());
    let shape: std::result::Result<Vec<usize>, _> = shape.map(str::parse).collect();
    let shape = shape.map_err(|_| "the shape is not a tuple of whole numbers")?;
    let bytes = shape.iter().try_fold(ty.size(), |n, d| n.checked_mul(*d)).ok_or("the shape is too large")?;
    let body = &data[end..];
    if body.len() != bytes {
        return Err(format!("the shape requires {bytes} bytes, but the file has {}", body.len()));
    }
    let mut bytes = if column_major { row_major(body, &shape, ty.size()) } else { body.to_vec() };
    if order == ">" {
        bytes.chunks_exact_mut(ty.size()).for_each(<[u8]>::reverse);
    }
    Ok(Array { ty: *ty, shape, bytes })
}

/// Elements in column-major order, the first dimension fastest, in row-major order.
fn row_major(body: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len());
    let mut index = vec![0usize; shape.len()];
    let mut strides = vec![size; shape.len()];
    for dim in 1..shape.len() {
        strides[dim] = strides[dim - 1] * shape[dim - 1];
    }
    let mut at = 0;
    while bytes.len() < body.len() {
        bytes.extend_from_slice(&body[at..at + size]);
        for dim in (0..shape.len()).rev() {
            index[dim] += 1;
            at += strides[dim];
            if index[dim] < shape[dim] {
                break;
            }
            at -= strides[dim] * shape[dim];
            index[dim] = 0;
        }
    }
    bytes
}

/// NumPy's character for the byte order; single bytes have none.
fn order_of(ty: Type) -> char {
    if ty.size() == 1 { '|' } else { '<' }
}

/// The value of a key of the header, which is a Python dictionary of three known keys.
fn field<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let at = header.find(&format!("'{key}'"))? + key.len() + 2;
    let rest = header[at..].trim_start().strip_prefix(':')?.trim_start();
    let end = if rest.starts_with('(') { rest.find(')')? + 1 } else { rest.find([',', '}'])? };
    Some(rest[..end].trim())
}

/// A file of version 1.
pub fn to_bytes(array: &Array) -> Vec<u8> {
    let name = TYPES.iter().find(|(ty, _)| *ty == array.ty).map_or("f4", |(_, n)| n);
    let order = order_of(array.ty);
    let sizes: String = array.shape.iter().map(|n| format!("{n}, ")).collect();
    let sizes = if array.shape.len() == 1 { sizes.trim_end() } else { sizes.trim_end_matches(", ") };
    let mut header = format!("{{'descr': '{order}{name}', 'fortran_order': False, 'shape': ({sizes}), }}");
    // The data begin at a multiple of 64 bytes, and the header ends in a newline.
    let length = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.extend(std::iter::repeat_n(' ', length - header.len() - 1));
    header.push('\n');
    let mut file = [MAGIC, &[1, 0], &(length as u16).to_le_bytes(), header.as_bytes()].concat();
    file.extend_from_slice(&array.bytes);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_round_trip() {
        for shape in [vec![], vec![0], vec![5], vec![2, 3], vec![1, 2, 3]] {
            for (ty, _) in TYPES {
                let len = shape.iter().product::<usize>() * ty.size();
                let array = Array { ty, shape: shape.clone(), bytes: (0..len).map(|b| b as u8).collect() };
                assert_eq!(from_bytes(&to_bytes(&array)).unwrap(), array);
            }
        }
    }

    fn file(header: &str, body: usize) -> Vec<u8> {
        let mut f = [MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
        f.extend((0..body).map(|b| b as u8));
        f
    }

    #[test]
    fn other_orders_are_read() {
        // Element i of the file is the number 2 i in the low byte and 2 i + 1 in the high one; the shape is [2, 3].
        for (descr, ty, swapped) in [("<u2", Type::U16, false), (">u2", Type::U16, true), ("|V2", Type::BF16, false)] {
            for (order, places) in [("True", [0u8, 2, 4, 1, 3, 5]), ("False", [0, 1, 2, 3, 4, 5])] {
                let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': (2, 3), }}");
                let array = from_bytes(&file(&header, 12)).unwrap();
                let element = |i: u8| if swapped { [2 * i + 1, 2 * i] } else { [2 * i, 2 * i + 1] };
                let bytes = places.map(element).concat();
                assert_eq!(array, Array { ty, shape: vec![2, 3], bytes }, "{descr} {order}");
            }
        }
        for shape in ["()", "(1,)", "(0, 3)", "(3, 0, 2)", "(1, 1)"] {
            let header = format!("{{'descr': '|u1', 'fortran_order': True, 'shape': {shape}, }}");
            let size = usize::from(!shape.contains('0'));
            assert_eq!(from_bytes(&file(&header, size)).unwrap().bytes.len(), size, "{shape}");
        }
    }

    #[test]
    fn bad_files_are_rejected() {
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
        assert!(parse(&file(good, 8)).is_ok());
        let cases: &[(Vec<u8>, &str)] = &[
            (Vec::new(), "magic number"),
            (b"\x93NUMPY".to_vec(), "truncated"),
            (file(good, 7), "requires 8 bytes"),
            (
                file(&good.replace("<f4", "<c8"), 16),
                "<c8; supported: <f4, <f2, <i4, <u4, |i1, |u1, |b1, <u2, <V2, <i2, <i8, <u8, <f8",
            ),
            (file(&good.replace("<f4", "|f4"), 8), "supported: "),
            (file(&good.replace("False", "Maybe"), 8), "fortran_order"),
            (file(&good.replace("(2,)", "(18446744073709551615, 9)"), 8), "too large"),
            (file(&good.replace("(2,)", "(-2,)"), 8), "not a tuple of whole numbers"),
            (file("{}", 0), "descr"),
        ];
        for (bytes, want) in cases {
            let error = from_bytes(bytes).unwrap_err().to_string();
            assert!(error.contains(want), "{error} does not contain {want}");
        }
    }
}
