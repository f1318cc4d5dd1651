//! Grids and `NVFP4` on AVX-512 VNNI: each block is split into codes and the scales of its runs by the format's own
//! description, compiled for the instruction set, and its codes are then multiplied with all tokens.
//!
//! Codes of either sign are made unsigned by 128; what that adds is taken off before each sum.

use std::arch::x86_64::*;

use hologram_device::decode::each_block;
use hologram_device::{DType, GridType};

use super::{PackedRows, Prepared, RowKernels, TOGETHER, prefetch_page_after};

/// Codes of a vector.
const LEN: usize = 64;

/// The formats, whose numbers are constants of functions.
const FORMATS: [DType; 8] = [
    DType::Grid(GridType::IQ1_S),
    DType::Grid(GridType::IQ1_M),
    DType::Grid(GridType::IQ2_XXS),
    DType::Grid(GridType::IQ2_XS),
    DType::Grid(GridType::IQ2_S),
    DType::Grid(GridType::IQ3_XXS),
    DType::Grid(GridType::IQ3_S),
    DType::NVFP4,
];

/// The kernels of a format; `None` for one that is not split here.
pub fn find(format: DType) -> Option<RowKernels> {
    macro_rules! of {
        ($($number:literal)*) => {
            match FORMATS.iter().position(|f| *f == format)? {
                $($number => {
                    [multiply::<$number, 1>, multiply::<$number, 2>, multiply::<$number, 3>, multiply::<$number, 4>]
                })*
                _ => return None,
            }
        };
    }
    let multiply: [unsafe fn(&PackedRows, &Prepared); TOGETHER] = of!(0 1 2 3 4 5 6 7);
    Some(RowKernels { prepared, prepare, multiply, in_one_stream: None })
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

/// The closure has the instruction set of the function that it is in, which would be lost in one that is only inlined.
///
/// # Safety
/// The rows and `T` prepared tokens exist; the output can be written; the processor has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,popcnt,bmi1,bmi2")]
unsafe fn multiply<const FORMAT: usize, const T: usize>(w: &PackedRows, x: &Prepared) {
    const { assert!(FORMATS[FORMAT].block_len().is_multiple_of(LEN)) };
    let format = const { FORMATS[FORMAT] };
    let run = const { FORMATS[FORMAT].scale_len() };
    // SAFETY: promised by the caller: vectors and scales lie in the rows and tokens, a block has whole vectors, and a
    // vector's runs have as many scales.
    unsafe {
        // The place of each lane's scale: four lanes share a run of 16, eight one of 32.
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let of_units = _mm512_srli_epi32::<3>(lanes);
        let of_runs = if run == 16 { _mm512_srli_epi32::<2>(lanes) } else { of_units };
        for row in 0..w.count {
            let first = w.first.wrapping_add(row * w.bytes);
            prefetch_page_after(first, w.bytes);
            let (mut acc, mut at) = ([_mm512_setzero_ps(); T], 0);
            each_block(format, std::slice::from_raw_parts(first, w.bytes), |codes, scales, _| {
                for (v, codes) in codes.chunks_exact(LEN).enumerate() {
                    let codes = _mm512_loadu_si512(codes.as_ptr().cast());
                    let unsigned = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
                    let scales = scales.as_ptr().add(v * LEN / run);
                    let scales = match run {
                        16 => _mm_loadu_ps(scales),
                        _ => _mm_castsi128_ps(_mm_loadl_epi64(scales.cast())),
                    };
                    let scales = _mm512_permutexvar_ps(of_runs, _mm512_castps128_ps512(scales));
                    for (t, acc) in acc.iter_mut().enumerate() {
                        let extra = x.extra.add(t * x.extra_bytes);
                        let start = _mm512_loadu_si512(extra.add(at).cast());
                        let codes = _mm512_loadu_si512(x.codes.add(t * w.k + at).cast());
                        let sums = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start, unsigned, codes));
                        let of_x = _mm_castsi128_ps(_mm_loadl_epi64(extra.add(w.k + at / 8).cast()));
                        let of_x = _mm512_permutexvar_ps(of_units, _mm512_castps128_ps512(of_x));
                        *acc = _mm512_fmadd_ps(sums, _mm512_mul_ps(scales, of_x), *acc);
                    }
                    at += LEN;
                }
            });
            for (t, acc) in acc.into_iter().enumerate() {
                *w.y.add(t * w.stride + row) = _mm512_reduce_add_ps(acc);
            }
        }
    }
}
