//! Converts ternary weights of folders to [`DType::TQ2_0`](hologram_backends::DType::TQ2_0).

use half::f16;

/// Elements per block.
pub const BLOCK: usize = 256;
const BLOCK_BYTES: usize = 66;

/// Splits a scale into a block scale and, if `f16` cannot represent it exactly, a factor of the whole matrix. Their
/// product is the scale.
pub fn split_scale(scale: f32) -> (f16, Option<f32>) {
    let of_blocks = f16::from_f32(scale);
    if of_blocks.to_f32() == scale { (of_blocks, None) } else { (f16::ONE, Some(scale)) }
}

/// Packs rows of codes (0, 1 or 2 for -1, 0 or 1) into blocks with one scale. `codes` writes the codes of a row;
/// `row_len` is a multiple of [`BLOCK`].
///
/// # Errors
/// Those of `codes`.
pub fn pack<E>(
    rows: usize,
    row_len: usize,
    scale: f16,
    mut codes: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
) -> Result<Vec<u8>, E> {
    let mut row = vec![0u8; row_len];
    let mut out = vec![0u8; rows * (row_len / BLOCK) * BLOCK_BYTES];
    for (r, blocks) in out.chunks_exact_mut((row_len / BLOCK * BLOCK_BYTES).max(1)).enumerate() {
        codes(r, &mut row)?;
        for (block, codes) in blocks.as_chunks_mut::<BLOCK_BYTES>().0.iter_mut().zip(row.as_chunks::<BLOCK>().0) {
            for h in 0..2 {
                for m in 0..32 {
                    let code = |l: usize| codes[128 * h + 32 * l + m] << (2 * l);
                    block[32 * h + m] = code(0) | code(1) | code(2) | code(3);
                }
            }
            block[64..].copy_from_slice(&scale.to_le_bytes());
        }
    }
    Ok(out)
}

/// Unpacks the codes of row `r` of a matrix that stores four rows per byte row: bits 2i and 2i + 1 of byte `[p, c]`
/// hold the code of row `i·packed_rows + p`. `None` if a code is 3, which is invalid.
pub fn unpack_row(packed: &[u8], packed_rows: usize, r: usize, codes: &mut [u8]) -> Option<()> {
    let (i, p) = (r / packed_rows, r % packed_rows);
    let bytes = packed.get(p * codes.len()..(p + 1) * codes.len())?;
    let mut all = 0;
    for (code, byte) in codes.iter_mut().zip(bytes) {
        *code = (byte >> (2 * i)) & 3;
        all |= *code & (*code >> 1);
    }
    (all == 0).then_some(())
}

/// The scale of weights that are rounded to ternary: their mean magnitude, at least 1e-5.
pub fn mean_magnitude(values: impl Iterator<Item = f32>, count: usize) -> f32 {
    let sum: f64 = values.map(|v| f64::from(v.abs())).sum();
    let mean = (sum / count.max(1) as f64) as f32;
    // NaN stays NaN.
    if mean < 1e-5 { 1e-5 } else { mean }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hologram_backends::DType;

    /// Compares a layer packed by the reference library with the unpacked weights.
    #[test]
    fn the_reference_librarys_packing_is_undone() {
        let fixture = |name: &str| {
            let path = format!("{}/tests/fixtures/bitlinear.{name}.npy", env!("CARGO_MANIFEST_DIR"));
            let data = std::fs::read(path).unwrap();
            data[10 + usize::from(u16::from_le_bytes([data[8], data[9]]))..].to_vec()
        };
        let (packed, want) = (fixture("packed"), fixture("w"));
        let scale = 187.0 / 4096.0;
        let (of_blocks, factor) = split_scale(scale);
        assert_eq!((of_blocks.to_f32(), factor), (scale, None));
        let blocks = pack(64, 256, of_blocks, |r, codes| unpack_row(&packed, 16, r, codes).ok_or(r)).unwrap();
        let mut got = vec![0.0; 64 * 256];
        DType::TQ2_0.decode_row(&blocks, &mut got).unwrap();
        let want: Vec<f32> = want.iter().map(|w| f32::from(*w as i8) * scale).collect();
        assert_eq!(got, want);
        // The invalid code 3, in each of a byte's four rows.
        for i in 0..4 {
            let mut damaged = packed.clone();
            damaged[5 * 256 + 9] |= 3 << (2 * i);
            let row = |r| unpack_row(&damaged, 16, r, &mut vec![0; 256]);
            assert_eq!((0..64).filter(|r| row(*r).is_none()).collect::<Vec<_>>(), [16 * i + 5]);
        }
        assert_eq!(split_scale(1.0 / 3.0), (f16::ONE, Some(1.0 / 3.0)));
        assert_eq!(mean_magnitude([0.0, -1e-7].into_iter(), 2), 1e-5);
    }
}
