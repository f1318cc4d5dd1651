//! Quantizes rows of `f32` to the block formats.
//!
//! Each run of elements gets the scale (and the minimum) with the least weighted squared error among several
//! candidates; scales are then rounded to the format's integers, and codes are chosen for the rounded scales. The
//! candidates and the weights follow llama.cpp's quantizer, so that errors agree with it.

mod fit;
mod pack;
#[cfg(test)]
mod tests;

use half::{bf16, f16};
use hologram_isa::Type;

use crate::format::{BlockFormat, Row, Scales, Values, with_row};
use crate::{BackendError, BlockType, DType, Result};
use fit::{Fit, fit_signed, fit_table, fit_unsigned};

impl DType {
    /// Whether [`DType::encode_row`] writes this format.
    pub const fn is_encodable(self) -> bool {
        match self {
            DType::Plain(ty) => matches!(ty, Type::F32 | Type::F16 | Type::BF16),
            DType::Block(BlockType::F8_E4M3) => true,
            DType::Block(block) => block.row().id.is_some() && !matches!(block, BlockType::NVFP4),
            DType::Grid(_) | DType::Planes(_) | DType::I8Groups { .. } | DType::F8Groups { .. } | DType::F8 => false,
        }
    }

    /// Quantizes whole blocks of a row. `importance` has a weight per element, such as the mean square of the
    /// activations that multiply it; without it all are equal.
    ///
    /// # Errors
    /// Lengths that do not fit; a format that is not [`DType::is_encodable`]; a value that is not finite, or not in the
    /// format.
    pub fn encode_row(self, values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<()> {
        let fail = |reason: String| BackendError::InvalidArgument {
            device: "host".into(),
            operation: format!("encode {}", self.name()),
            reason,
        };
        if self.bytes(1, values.len()) != Some(out.len()) || importance.is_some_and(|i| i.len() != values.len()) {
            return Err(fail(format!("{} elements do not fit {} bytes or their importance", values.len(), out.len())));
        }
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(fail(format!("element {at} is {}", values[at])));
        }
        match self {
            _ if !self.is_encodable() => return Err(fail("there is no quantizer for it".into())),
            DType::Plain(Type::F16) => {
                out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, v)| *to = f16::from_f32(*v).to_le_bytes());
            }
            DType::Plain(Type::BF16) => {
                out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, v)| *to = bf16::from_f32(*v).to_le_bytes());
            }
            DType::Block(block) => with_row!(block, R => encode::<R>(values, importance, out)),
            _ => out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, v)| *to = v.to_le_bytes()),
        }
        // Numbers and scales of 16 bits may have become infinite.
        let most = extreme(values);
        if most.abs() > f16::MAX.to_f32() {
            let mut back = vec![0.0; values.len()];
            self.decode_row(out, &mut back)?;
            if back.iter().any(|value| !value.is_finite()) {
                return Err(fail(format!("{most} is too large for it")));
            }
        }
        Ok(())
    }
}

/// The largest magnitude, with its sign.
fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most: f32, v| if v.abs() > most.abs() { *v } else { most })
}

fn encode<R: Row>(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let row: &BlockFormat = &R::ROW;
    let mut codes = vec![0u8; row.len];
    let blocks = values.chunks_exact(row.len).zip(out.chunks_exact_mut(row.bytes)).enumerate();
    for (i, (values, out)) in blocks {
        out.fill(0);
        let importance = importance.map(|all| &all[i * row.len..][..row.len]);
        let (runs, weights) = runs_of(row, values, importance);
        let len = row.run();
        let error = |run: usize, (scale, minimum): (f32, f32)| -> f32 {
            let each = values[run * len..][..len].iter().zip(&weights[run * len..]);
            each.map(|(v, w)| w * (value(row, nearest_code(row, *v, scale, minimum), scale, minimum) - v).powi(2)).sum()
        };
        let scales = pack::scales(row, &runs, &error, out);
        for (run, (values, codes)) in values.chunks_exact(row.run()).zip(codes.chunks_exact_mut(row.run())).enumerate()
        {
            let (scale, minimum) = scales[run];
            codes.iter_mut().zip(values).for_each(|(code, v)| *code = nearest_code(row, *v, scale, minimum));
        }
        pack::codes(row, &codes, out);
    }
}

/// The bits of the code whose value is nearest.
fn nearest_code(row: &BlockFormat, value: f32, scale: f32, minimum: f32) -> u8 {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let code = (value + minimum) * inverse;
    match row.values {
        Values::Table(table) => fit::nearest(table, code),
        Values::Ternary => (code.round().clamp(-1.0, 1.0) + 1.0) as u8,
        Values::Signed => code.round().clamp(-128.0, 127.0) as i8 as u8,
        Values::E4M3 => Values::to_e4m3(code),
        Values::Offset(offset) => {
            let most = ((1u32 << row.code_bits()) - 1) as f32;
            // Half is rounded up, as the reference does.
            (code + f32::from(offset) + 0.5).floor().clamp(0.0, most) as u8
        }
    }
}

/// The value of a code.
fn value(row: &BlockFormat, code: u8, scale: f32, minimum: f32) -> f32 {
    let code = match row.values {
        Values::Table(table) => f32::from(table[usize::from(code & 15)]),
        Values::Ternary => f32::from(code) - 1.0,
        Values::Signed => f32::from(code as i8),
        Values::E4M3 => Values::e4m3(code),
        Values::Offset(offset) => f32::from(code) - f32::from(offset),
    };
    scale * code - minimum
}

/// The best scale and minimum of each run, and the weight of each element's squared error.
fn runs_of(row: &BlockFormat, values: &[f32], importance: Option<&[f32]>) -> (Vec<Fit>, Vec<f32>) {
    let squares = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
    let run = row.run();
    let mut all_weights = vec![0.0f32; values.len()];
    let runs = values.chunks_exact(run).zip(all_weights.chunks_exact_mut(run)).enumerate();
    let fit = |(i, (values, weights)): (usize, (&[f32], &mut [f32]))| {
        let of_run = (values.iter().map(|v| v * v).sum::<f32>() / run as f32).sqrt();
        for (e, (weight, v)) in weights.iter_mut().zip(values).enumerate() {
            *weight = match (importance, row.scales) {
                (Some(all), _) => all[i * run + e] * (2.0 * squares + v * v).sqrt(),
                (None, Scales::Nibbles { .. }) => v.abs(),
                (None, Scales::SixBitPairs { .. }) => of_run + v.abs(),
                (None, Scales::SixBits { run: 16, .. }) => 1.0,
                (None, _) => v * v,
            };
        }
        let weighted = importance.is_some();
        match (row.scales, row.values) {
            (Scales::Nibbles { .. }, _) => {
                fit_unsigned(values, weights, 3, if weighted { [-0.9, 0.05, 36.0] } else { [-0.5, 0.1, 15.0] })
            }
            (Scales::SixBitPairs { .. }, _) if row.code_bits() == 4 => {
                fit_unsigned(values, weights, 15, if weighted { [-0.9, 0.05, 36.0] } else { [-1.0, 0.1, 20.0] })
            }
            (Scales::SixBitPairs { .. }, _) => {
                fit_unsigned(values, weights, 31, if weighted { [-0.9, 0.05, 36.0] } else { [-0.5, 0.1, 15.0] })
            }
            (Scales::E8M0 { .. }, _) => {
                let most = extreme(values).abs();
                // The largest code is 6 = 1.5·4; doubled values have half of the scale.
                let exponent = if most > 0.0 { most.log2().floor() - 2.0 } else { -127.0 };
                Fit { scale: (exponent - 1.0).exp2(), minimum: 0.0 }
            }
            (_, Values::Table(table)) => fit_table(values, weights, table),
            (_, Values::Ternary) => Fit { scale: extreme(values).abs(), minimum: 0.0 },
            (_, Values::Signed) => Fit { scale: extreme(values).abs() / 127.0, minimum: 0.0 },
            (_, Values::E4M3) => Fit { scale: extreme(values).abs() / 448.0, minimum: 0.0 },
            (Scales::One, _) if row.has_minimum() => {
                let (least, most) = values.iter().fold((f32::MAX, f32::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
                if weighted {
                    fit_unsigned(values, weights, (1 << row.code_bits()) - 1, [-0.9, 0.05, 36.0])
                } else {
                    Fit { scale: (most - least) / ((1 << row.code_bits()) - 1) as f32, minimum: -least }
                }
            }
            (Scales::One, Values::Offset(offset)) if !weighted => {
                Fit { scale: extreme(values) / -f32::from(offset), minimum: 0.0 }
            }
            (_, Values::Offset(offset)) => fit_signed(values, weights, offset.into()),
        }
    };
    let fits = runs.map(fit).collect();
    (fits, all_weights)
}
