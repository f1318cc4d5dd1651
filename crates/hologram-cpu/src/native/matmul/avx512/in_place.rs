//! Plain rows as they lie in memory times tiles of tokens: the lanes of a register are elements of a row.

use std::arch::x86_64::*;

use super::super::float::in_place::{Kernels, Product};
use super::super::float::{Element, Words};
use super::super::prefetch_lines;
use super::float::{bf16_step, weights};
use crate::native::simd::{self, Simd};

/// The kernels: 24 sums of products stay in registers.
pub const KERNELS: Kernels = Kernels { tokens: 8, vector: 64, multiply, totals };

/// As many rows as registers hold sums for.
const fn rows_of(tokens: usize) -> usize {
    match tokens {
        7.. => 3,
        6 => 4,
        5 => 5,
        _ => 6,
    }
}

/// Multiplies rows with a tile of tokens.
///
/// # Safety
/// The processor has AVX-512, with BF16 for pairs; the product's memory exists.
unsafe fn multiply(words: Words, element: Element, tokens: usize, product: &Product) {
    macro_rules! of {
        ($rows:ident $(, $kind:literal)?) => {{
            const ALL: [unsafe fn(&Product); 8] = [
                $rows::<$($kind,)? 1, { rows_of(1) }>,
                $rows::<$($kind,)? 2, { rows_of(2) }>,
                $rows::<$($kind,)? 3, { rows_of(3) }>,
                $rows::<$($kind,)? 4, { rows_of(4) }>,
                $rows::<$($kind,)? 5, { rows_of(5) }>,
                $rows::<$($kind,)? 6, { rows_of(6) }>,
                $rows::<$($kind,)? 7, { rows_of(7) }>,
                $rows::<$($kind,)? 8, { rows_of(8) }>,
            ];
            ALL[tokens - 1](product)
        }};
    }
    // SAFETY: promised by the caller.
    unsafe {
        match (words, element) {
            (Words::Bf16Pairs, _) => of!(rows_bf16),
            (_, Element::F32) => of!(rows_f32, 0),
            (_, Element::F16) => of!(rows_f32, 1),
            (_, Element::Bf16) => of!(rows_f32, 2),
        }
    }
}

macro_rules! rows {
    ($name:ident, $features:literal, [$($kind:ident)?], $bytes:expr, $load:expr, $step:expr) => {
        /// `T` tokens, `R` rows at once; the last rows may be repeated.
        #[target_feature(enable = $features)]
        unsafe fn $name<$(const $kind: u8,)? const T: usize, const R: usize>(p: &Product) {
            // SAFETY: promised by the caller.
            unsafe {
                let bytes: usize = $bytes;
                for row in (0..p.count).step_by(R) {
                    let mut w = [p.first; R];
                    for j in 0..R {
                        w[j] = p.first.add((row + j).min(p.count - 1) * p.bytes);
                    }
                    let sums = p.sums.add(row * T * 16);
                    let mut acc = [[_mm512_setzero_ps(); R]; T];
                    if !p.fresh {
                        for j in 0..R {
                            for t in 0..T {
                                acc[t][j] = _mm512_loadu_ps(sums.add((j * T + t) * 16));
                            }
                        }
                    }
                    for step in 0..p.steps {
                        let mut rows = [($load)(w[0], step); R];
                        for j in 0..R {
                            rows[j] = ($load)(w[j], step);
                            if step * bytes % 64 == 0 {
                                prefetch_lines(w[j].wrapping_add(step * bytes + p.ahead), 64);
                            }
                        }
                        for t in 0..T {
                            let x = _mm512_loadu_si512(p.tile.add((step * T + t) * 64).cast());
                            for j in 0..R {
                                acc[t][j] = ($step)(acc[t][j], rows[j], x);
                            }
                        }
                    }
                    for j in 0..R {
                        for t in 0..T {
                            _mm512_storeu_ps(sums.add((j * T + t) * 16), acc[t][j]);
                        }
                    }
                }
            }
        }
    };
}

rows!(
    rows_f32,
    "avx512f,avx512bw,avx512vl",
    [KIND],
    if KIND == 0 { 64 } else { 32 },
    |w, step| weights::<KIND>(w, 16 * step, u16::MAX),
    |acc, w, x| _mm512_fmadd_ps(w, _mm512_castsi512_ps(x), acc)
);
rows!(
    rows_bf16,
    "avx512f,avx512bw,avx512bf16",
    [],
    64,
    |w: *const u8, step| _mm512_loadu_si512(w.add(64 * step).cast()),
    |acc, w, x| bf16_step(acc, w, x)
);

/// The sums of all lanes: (sums of `count` rows with `tokens` tokens, the output of the first, its stride).
///
/// # Safety
/// The processor has AVX-512; the sums exist and the output can be written.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn totals(sums: *const f32, tokens: usize, count: usize, y: *mut f32, stride: usize) {
    for token in 0..tokens {
        for row in (0..count).step_by(16) {
            let here = (count - row).min(16);
            // SAFETY: promised by the caller.
            unsafe {
                let mut vectors = [_mm512_setzero_ps(); 16];
                for (j, vector) in vectors.iter_mut().enumerate() {
                    *vector = _mm512_loadu_ps(sums.add(((row + j.min(here - 1)) * tokens + token) * 16));
                }
                let totals = simd::Avx512::assume().sums(&vectors);
                _mm512_mask_storeu_ps(y.add(token * stride + row), ((1u32 << here) - 1) as u16, totals);
            }
        }
    }
}
