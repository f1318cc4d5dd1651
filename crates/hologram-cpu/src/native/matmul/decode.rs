//! Packed rows dequantized to `bf16`, for products on tiles.

use std::arch::x86_64::*;

use hologram_device::DType;

use super::blocks::{Block32, SuperBlock, for_format};
use super::bytes::{Bytes, TwoRows, Vnni};
use super::rows::codes_super;

/// Dequantizes elements of a row, whole blocks, to `bf16`: (row, the first element, their number, the destination). A
/// value is rounded once: scale·code is exact in `f32`.
pub type Decode = unsafe fn(*const u8, usize, usize, *mut u16);

/// The dequantizer of a format for rows of `k` elements. Requires AVX-512 with VNNI and BF16.
pub fn decoder(format: DType, k: usize) -> Option<Decode> {
    if !k.is_multiple_of(64) || !k.is_multiple_of(format.block_len()) {
        return None;
    }
    if format == DType::Q8_0 {
        return Some(q8_0);
    }
    for_format!(format, super of_super, block of_block, nibbles of_block)
}

/// Whether there is a decoder for a format, if rows are long enough.
pub fn decodes(format: DType) -> bool {
    decoder(format, 64 * format.block_len()).is_some()
}

fn of_super<B: SuperBlock>() -> Decode {
    super_blocks::<B>
}

fn of_block<B: Block32>() -> Decode {
    blocks_of_32::<B>
}

/// The scale and the addend of each run of a block. With runs of 32, the addends are the second eight values.
///
/// # Safety
/// The block can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn factors<B: SuperBlock>(block: *const u8) -> ([f32; 16], [f32; 16]) {
    let (mut scales, mut minimums) = ([0f32; 16], [0f32; 16]);
    // SAFETY: promised by the caller; the arrays hold a vector.
    unsafe {
        let s = Vnni::assume();
        let of_block = B::scales(s, [block; 2]);
        let (d, m) = (s.float_of_f16(of_block.halves[0] as u16), s.float_of_f16((of_block.halves[0] >> 16) as u16));
        let numbers = |bytes| {
            let bytes = _mm_loadu_si128(s.first_sixteen(bytes).as_ptr().cast());
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))
        };
        let of_runs = _mm512_mul_ps(numbers(of_block.of_runs), _mm512_set1_ps(d));
        _mm512_storeu_ps(scales.as_mut_ptr(), of_runs);
        let of_runs = numbers(of_block.minimums.unwrap_or(of_block.of_runs));
        _mm512_storeu_ps(
            minimums.as_mut_ptr(),
            _mm512_mul_ps(of_runs, _mm512_set1_ps(-B::OFFSET.map_or(1.0, f32::from) * m)),
        );
    }
    (scales, minimums)
}

/// The scale and the addend of each of up to 16 units.
///
/// # Safety
/// The units exist in the row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn unit_factors<B: Block32>(row: *const u8, first: usize, count: usize) -> ([f32; 16], [f32; 16]) {
    let (mut scales, mut minimums) = ([0f32; 16], [0f32; 16]);
    // SAFETY: promised by the caller; the arrays hold a vector.
    unsafe {
        let (of_units, minimums_of_units) = B::scales(Vnni::assume(), row, first, count);
        _mm512_storeu_ps(scales.as_mut_ptr(), of_units);
        let offset = _mm512_mul_ps(of_units, _mm512_set1_ps(-B::OFFSET as f32));
        _mm512_storeu_ps(minimums.as_mut_ptr(), if B::OFFSET == 0 { minimums_of_units } else { offset });
    }
    (scales, minimums)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
unsafe fn super_blocks<B: SuperBlock>(row: *const u8, first: usize, count: usize, to: *mut u16) {
    // SAFETY: the function's features; the blocks exist and there is room for their values, as the caller promises.
    unsafe {
        for b in 0..count / 256 {
            let block = row.add((first / 256 + b) * B::BYTES);
            let (scales, minimums) = factors::<B>(block);
            for v in 0..4 {
                let codes = codes_super::<Vnni, B>(Vnni::assume(), block, [2 * v, 2 * v + 1], [0; 8]);
                let factors = std::array::from_fn(|part| {
                    let run = (64 * v + 16 * part) / B::RUN;
                    let minimum = if B::RUN == 32 { run + 8 } else { run };
                    (_mm512_set1_ps(scales[run]), _mm512_set1_ps(minimums[minimum]))
                });
                store(codes, factors, to.add(b * 256 + v * 64));
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
unsafe fn blocks_of_32<B: Block32>(row: *const u8, first: usize, count: usize, to: *mut u16) {
    // SAFETY: the function's features; the blocks exist and there is room for their values, as the caller promises.
    unsafe {
        let (first, units) = (first / 32, count / 32);
        for from in (0..units).step_by(16) {
            let here = (units - from).min(16);
            let (scales, minimums) = unit_factors::<B>(row, first + from, here);
            for pair in 0..here / 2 {
                let unit = first + from + 2 * pair;
                let codes = B::codes(Vnni::assume(), row, [unit, unit + 1]);
                let factors = std::array::from_fn(|part| {
                    let unit = 2 * pair + part / 2;
                    (_mm512_set1_ps(scales[unit]), _mm512_set1_ps(minimums[unit]))
                });
                store(codes, factors, to.add((from + 2 * pair) * 32));
            }
        }
    }
}

/// The most frequent of these blocks, a scale and 32 signed codes, in fewer steps.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,f16c")]
unsafe fn q8_0(row: *const u8, first: usize, count: usize, to: *mut u16) {
    // SAFETY: the function's features; the blocks exist and there is room for their values, as the caller promises.
    unsafe {
        for b in 0..count / 32 {
            let block = row.add((first / 32 + b) * 34);
            let scale = _mm512_cvtph_ps(_mm256_set1_epi16(block.cast::<i16>().read_unaligned()));
            let half = |at: usize| {
                let codes = _mm512_cvtepi8_epi32(_mm_loadu_si128(block.add(2 + at).cast()));
                _mm512_mul_ps(_mm512_cvtepi32_ps(codes), scale)
            };
            // Both types are 512 bits.
            let values: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(half(16), half(0)));
            _mm512_storeu_si512(to.add(32 * b).cast(), values);
        }
    }
}

/// Stores 64 values scale·code + addend; each 16 share both factors.
///
/// # Safety
/// 64 values can be written.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn store(codes: __m512i, factors: [(__m512, __m512); 4], to: *mut u16) {
    let part = |bytes: __m128i, (scale, minimum): (__m512, __m512)| {
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), scale, minimum)
    };
    let values = [
        part(_mm512_castsi512_si128(codes), factors[0]),
        part(_mm512_extracti32x4_epi32::<1>(codes), factors[1]),
        part(_mm512_extracti32x4_epi32::<2>(codes), factors[2]),
        part(_mm512_extracti32x4_epi32::<3>(codes), factors[3]),
    ];
    // SAFETY: promised by the caller; both types are 512 bits.
    unsafe {
        let low: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(values[1], values[0]));
        let high: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(values[3], values[2]));
        _mm512_storeu_si512(to.cast(), low);
        _mm512_storeu_si512(to.add(32).cast(), high);
    }
}
