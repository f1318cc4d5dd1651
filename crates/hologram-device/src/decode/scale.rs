//! Sets the scales of blocks: for tests and random weights.

use half::f16;

use crate::format::{DType, GridType, Scales};

impl DType {
    /// Sets a block's number `which` ([`DType::unit_numbers`]: `d`, or `m`) to about `value`; all scales of a block
    /// without numbers, of which those of a byte become about the nearest power of two. Does nothing for formats
    /// without blocks.
    pub fn set_number(self, block: &mut [u8], which: usize, value: f32) {
        let bytes = f16::from_f32(value).to_le_bytes();
        match self {
            DType::Grid(GridType::IQ1_M) => {
                for i in 0..4 {
                    let nibble = bytes[i / 2] >> (i % 2 * 4) & 15;
                    block[49 + 2 * i] = block[49 + 2 * i] & 15 | nibble << 4;
                }
            }
            DType::Grid(_) => block[..2].copy_from_slice(&bytes),
            DType::Block(ty) => match (ty.row().scales, ty.row().numbers.get(which)) {
                (_, Some(at)) => block[*at..at + 2].copy_from_slice(&bytes),
                // Devices may count subnormal scales as zero.
                (Scales::E8M0 { at }, None) => block[at] = exponent(value, 128, 255).max(2),
                (Scales::UE4M3 { at }, None) => {
                    // In units of the smallest float, or a power of two.
                    let small = (value.abs() * 1024.0).round();
                    let byte = if small < 8.0 { small as u8 } else { exponent(value, 8, 15) << 3 };
                    block[at..at + 4].fill(byte);
                }
                (Scales::F32 { at }, None) => block[at..at + 4].copy_from_slice(&value.to_le_bytes()),
                _ => {}
            },
            DType::Plain(_) | DType::Planes(_) | DType::I8Groups { .. } | DType::F8Groups { .. } | DType::F8 => {}
        }
    }
}

/// The exponent of the power of two nearest to the magnitude of `value`, with this bias; at least 1 and below `most`.
fn exponent(value: f32, bias: i32, most: i32) -> u8 {
    let exponent = ((value * std::f32::consts::SQRT_2).to_bits() >> 23 & 255) as i32 - 127;
    (exponent + bias).clamp(1, most - 1) as u8
}
