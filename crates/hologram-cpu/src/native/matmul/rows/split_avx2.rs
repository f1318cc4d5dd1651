//! Grids and `NVFP4` on AVX2: products of 16-bit numbers, which no code or activation exceeds.

use std::arch::x86_64::*;

use hologram_device::{DType, GridType};

use super::{PackedRows, Prepared, RowKernels, TOGETHER, prefetch_page_after};
use crate::native::matmul::split::avx2::Split;
use crate::native::matmul::split::for_split;

/// The kernels of a format; `None` for one that is not taken apart. Requires AVX2, FMA and F16C.
pub fn find(format: DType) -> Option<RowKernels> {
    for_split!(format, kernels)
}

fn kernels<B: Split>() -> RowKernels {
    let multiply: [unsafe fn(&PackedRows, &Prepared); TOGETHER] =
        [multiply::<B, 1>, multiply::<B, 2>, multiply::<B, 3>, multiply::<B, 4>];
    RowKernels { prepared, prepare, multiply, in_one_stream: None }
}

/// Bytes prepared: the codes as `i16`, then the scale of each 32.
fn prepared(k: usize) -> usize {
    2 * k + k / 8
}

unsafe fn prepare(codes: &[i8], scales: &[f32], group: usize, to: *mut u8) {
    let k = codes.len();
    // SAFETY: the caller has room for `prepared` bytes, aligned to 4; `k` is a multiple of 32.
    let (wide, of_units) = unsafe {
        (
            std::slice::from_raw_parts_mut(to.cast::<i16>(), k),
            std::slice::from_raw_parts_mut(to.add(2 * k).cast::<f32>(), k / 32),
        )
    };
    wide.iter_mut().zip(codes).for_each(|(wide, code)| *wide = i16::from(*code));
    for (unit, scale) in of_units.iter_mut().enumerate() {
        *scale = scales[unit * 32 / group];
    }
}

/// # Safety
/// The rows and `T` prepared tokens exist; the output can be written; the processor has the features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply<B: Split, const T: usize>(w: &PackedRows, x: &Prepared) {
    // SAFETY: promised by the caller: units and scales lie in the rows and tokens.
    unsafe {
        for row in 0..w.count {
            let first = w.first.wrapping_add(row * w.bytes);
            prefetch_page_after(first, w.bytes);
            let mut acc = [_mm256_setzero_ps(); T];
            let mut scales = [0.0; 16];
            for block in 0..w.k / B::LEN {
                let from = first.add(block * B::BYTES);
                B::scales(from, &mut scales);
                for unit in 0..B::LEN / 32 {
                    let at = block * B::LEN + 32 * unit;
                    let codes = B::codes(from, unit);
                    let low = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(codes));
                    let high = _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(codes));
                    for t in 0..T {
                        let extra = x.extra.add(t * x.extra_bytes);
                        let of_x = extra.add(2 * at).cast::<__m256i>();
                        let low = _mm256_madd_epi16(low, _mm256_loadu_si256(of_x));
                        let high = _mm256_madd_epi16(high, _mm256_loadu_si256(of_x.add(1)));
                        let scale = _mm256_broadcast_ss(&*extra.add(2 * w.k + at / 8).cast::<f32>());
                        let of_run = |run: usize| _mm256_mul_ps(_mm256_set1_ps(scales[run]), scale);
                        if B::RUN == 32 {
                            let sums = _mm256_cvtepi32_ps(_mm256_add_epi32(low, high));
                            acc[t] = _mm256_fmadd_ps(sums, of_run(unit), acc[t]);
                        } else {
                            acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(low), of_run(2 * unit), acc[t]);
                            acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), of_run(2 * unit + 1), acc[t]);
                        }
                    }
                }
            }
            for t in 0..T {
                let halves = _mm_add_ps(_mm256_castps256_ps128(acc[t]), _mm256_extractf128_ps::<1>(acc[t]));
                let pairs = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
                let sum = _mm_add_ss(pairs, _mm_shuffle_ps::<1>(pairs, pairs));
                *w.y.add(t * w.stride + row) = _mm_cvtss_f32(sum);
            }
        }
    }
}
