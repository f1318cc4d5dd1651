//! Grids and `NVFP4` on AVX-512 VNNI: each block is taken apart into codes and the scales of its runs, and its codes
//! are then multiplied with all tokens.
//!
//! Codes of either sign are made unsigned by 128; what that adds is taken off before each sum.

use std::arch::x86_64::*;

use hologram_device::{DType, GridType};

use super::{PackedRows, Prepared, RowKernels, TOGETHER, prefetch_page_after};
use crate::native::matmul::bytes::hidden;
use crate::native::matmul::split::avx512::{LEN, Split};
use crate::native::matmul::split::for_split;

/// The kernels of a format; `None` for one that is not taken apart here. Requires AVX-512 VNNI, VBMI and GFNI.
pub fn find(format: DType, group: usize) -> Option<RowKernels> {
    if group.is_multiple_of(256) { for_split!(format, of_whole_blocks) } else { for_split!(format, of_units) }
}

fn of_whole_blocks<B: Split>() -> RowKernels {
    kernels::<B, true>()
}

fn of_units<B: Split>() -> RowKernels {
    kernels::<B, false>()
}

fn kernels<B: Split, const WHOLE: bool>() -> RowKernels {
    let multiply: [unsafe fn(&PackedRows, &Prepared); TOGETHER] =
        [multiply::<B, WHOLE, 1>, multiply::<B, WHOLE, 2>, multiply::<B, WHOLE, 3>, multiply::<B, WHOLE, 4>];
    RowKernels { prepared, prepare, multiply, in_one_stream: None }
}

/// Bytes prepared: for each four codes what makes weights unsigned, as `i32`; then the scale of each 32.
fn prepared(k: usize) -> usize {
    k + k / 8
}

unsafe fn prepare(codes: &[i8], scales: &[f32], group: usize, to: *mut u8) {
    let k = codes.len();
    // SAFETY: the caller has room for `prepared` bytes, aligned to 4; `k` is a multiple of 64.
    let (starts, of_units) = unsafe {
        (
            std::slice::from_raw_parts_mut(to.cast::<i32>(), k / 4),
            std::slice::from_raw_parts_mut(to.add(k).cast::<f32>(), k / 32),
        )
    };
    for (start, codes) in starts.iter_mut().zip(codes.chunks_exact(4)) {
        *start = -128 * codes.iter().map(|c| i32::from(*c)).sum::<i32>();
    }
    for (unit, scale) in of_units.iter_mut().enumerate() {
        *scale = scales[unit * 32 / group];
    }
}

/// The indices of two blocks' entries.
#[repr(align(64))]
struct Indices([[u16; 32]; 2]);

/// `WHOLE`: the elements of a block share a token's scale.
///
/// # Safety
/// The rows and `T` prepared tokens exist; the output can be written; the processor has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,gfni,avx2,fma,f16c,bmi1,bmi2")]
unsafe fn multiply<B: Split, const WHOLE: bool, const T: usize>(w: &PackedRows, x: &Prepared) {
    // SAFETY: promised by the caller: vectors and scales lie in the rows and tokens, a block has whole vectors, and a
    // vector's runs have as many scales.
    unsafe {
        // The place of each lane's scale: four lanes share a run of 16, eight one of 32.
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let of_units = _mm512_srli_epi32::<3>(lanes);
        let of_runs = if B::RUN == 16 { _mm512_srli_epi32::<2>(lanes) } else { of_units };
        let blocks = w.k / B::LEN;
        let mut indices = Indices([[0; 32]; 2]);
        if B::LOADED && w.count > 0 {
            _mm512_storeu_si512(indices.0[0].as_mut_ptr().cast(), B::indices(w.first));
        }
        for row in 0..w.count {
            let first = w.first.wrapping_add(row * w.bytes);
            prefetch_page_after(first, w.bytes);
            let mut acc = [_mm512_setzero_ps(); T];
            for block in 0..blocks {
                let from = first.add(block * B::BYTES);
                let here = row * blocks + block;
                if B::LOADED {
                    // Rows follow each other. The last block's indices are stored once more.
                    let next = w.first.add((here + 1).min(w.count * blocks - 1) * B::BYTES);
                    _mm512_storeu_si512(indices.0[(here + 1) % 2].as_mut_ptr().cast(), B::indices(next));
                }
                // The compiler would move each index from the vector with two instructions instead of loading it.
                let (codes, scales) =
                    (B::codes(from, hidden(indices.0[here % 2].as_ptr().cast()).cast()), B::scales(from));
                let mut of_both = [scales; T];
                for t in 0..T {
                    if WHOLE {
                        let of_x = x.extra.add(t * x.extra_bytes + w.k + block * B::LEN / 8).cast::<f32>();
                        of_both[t] = _mm512_mul_ps(scales, _mm512_set1_ps(of_x.read()));
                    }
                }
                for v in 0..B::VECTORS {
                    let at = block * B::LEN + v * LEN;
                    let runs = _mm512_add_epi32(of_runs, _mm512_set1_epi32((v * LEN / B::RUN) as i32));
                    for t in 0..T {
                        let extra = x.extra.add(t * x.extra_bytes);
                        let start = _mm512_loadu_si512(extra.add(at).cast());
                        let of_x = _mm512_loadu_si512(x.codes.add(t * w.k + at).cast());
                        let sums = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start, codes[v], of_x));
                        let mut scales = _mm512_permutexvar_ps(runs, of_both[t]);
                        if !WHOLE {
                            let of_x = _mm_castsi128_ps(_mm_loadl_epi64(extra.add(w.k + at / 8).cast()));
                            let of_x = _mm512_permutexvar_ps(of_units, _mm512_castps128_ps512(of_x));
                            scales = _mm512_mul_ps(scales, of_x);
                        }
                        acc[t] = _mm512_fmadd_ps(sums, scales, acc[t]);
                    }
                }
            }
            for t in 0..T {
                *w.y.add(t * w.stride + row) = _mm512_reduce_add_ps(acc[t]);
            }
        }
    }
}
