//! Panels of 16 rows of the formats that are taken apart row by row: the vectors of codes are transposed.

use std::arch::x86_64::*;

use hologram_device::{DType, GridType};

use super::super::Rows;
use super::super::bytes::hidden;
use super::super::int::Layout;
use super::super::prefetch_lines;
use super::super::split::avx512::{LEN, Split};
use super::super::split::for_split;
use super::float::transposed;
use super::unpack::Unpack;

/// The unpacker of a format; `None` for another. Requires AVX-512 with VBMI and GFNI.
pub fn unpacker(format: DType) -> Option<Unpack> {
    for_split!(format, of)
}

fn of<B: Split>() -> Unpack {
    unpack::<B>
}

/// # Safety
/// The processor has the features; the rows exist; `to` has room for a panel.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,gfni,avx2,fma,f16c,bmi1,bmi2")]
unsafe fn unpack<B: Split>(layout: &Layout, rows: Rows, to: *mut u8) {
    debug_assert_eq!(layout.span, B::RUN, "spans of these formats are runs");
    let run_bytes = B::RUN * 16 + 64;
    let mut codes = [[_mm512_setzero_si512(); 16]; 4];
    let mut scales = [_mm512_setzero_si512(); 16];
    let mut indices = [[0u16; 32]; 16];
    for block in 0..layout.k / B::LEN {
        let at = block * B::BYTES;
        prefetch_lines(rows.at::<true>(16, 16 * at), 16 * B::BYTES);
        let to = to.wrapping_add(block * (B::LEN / B::RUN) * run_bytes);
        // SAFETY: every row has this block; its unpacked form fits the panel.
        unsafe {
            for row in 0..16 {
                if B::LOADED {
                    let of_row = B::indices(rows.at::<false>(row, at));
                    _mm512_storeu_si512(indices[row].as_mut_ptr().cast(), of_row);
                }
            }
            let indices = hidden(indices.as_ptr().cast()).cast::<u16>();
            for row in 0..16 {
                let from = rows.at::<false>(row, at);
                let of_row = B::codes(from, indices.add(32 * row));
                for v in 0..B::VECTORS {
                    codes[v][row] = of_row[v];
                }
                scales[row] = _mm512_castps_si512(B::scales(from));
            }
            for v in 0..B::VECTORS {
                let words = transposed(codes[v]);
                for j in 0..16 {
                    let element = v * LEN + 4 * j;
                    let place = element / B::RUN * run_bytes + element % B::RUN * 16;
                    _mm512_storeu_si512(to.add(place).cast(), words[j]);
                }
            }
            let of_runs = transposed(scales);
            for run in 0..B::LEN / B::RUN {
                _mm512_storeu_si512(to.add(run * run_bytes + B::RUN * 16).cast(), of_runs[run]);
            }
        }
    }
}
