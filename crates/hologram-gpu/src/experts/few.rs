//! Products of a few tokens (`kernels/shared/experts.k`), and their sums (`kernels/shared/expert_sums.k`).

use hologram_device::{BlockType, DType};

use super::{After, Request};
use crate::kernels::{expert_sums, experts};
use crate::launch::{Count, launch, number, single};
use crate::{KernelArgs, KernelLaunch, Memory, NativeKernel, Target};

/// Shared memory for the codes of a token's slots.
const MOST_SHARED: usize = 44 << 10;

/// The native kernel for a request: any number of slots up to a grid's limit.
pub(super) fn find(request: &Request, target: Target) -> Option<NativeKernel> {
    let (weights, unit) = request.weights()?;
    let tokens = Count::of(&[request.tokens])?;
    // Slots are counted in 32 bits.
    number(tokens.max().checked_mul(request.slots)?.checked_mul(request.m)?)?;
    let activations = match request.x {
        DType::F32 => "f32",
        DType::BF16 => "bf16",
        DType::I8Groups { group: 32 } if request.after != After::Sum => "i8",
        DType::I8Groups { group: 32 } if request.quantized.is_some() => "codes",
        _ => return None,
    };
    // Apple GPUs alone have kernels for f32 beside codes, NVIDIA's alone for floats of 8 bits; of tables with 8-bit
    // activations, NVIDIA's have tiles.
    let tables = |block: BlockType| block.table().is_some() && activations != "bf16" && !target.is_apple();
    let apart = match request.w {
        DType::Planes(block) if tables(block) => true,
        DType::Planes(_) if request.w.has_float_codes() => target.is_apple(),
        DType::Planes(_) => activations == "f32" && !target.is_apple(),
        _ => false,
    };
    if !request.k.is_multiple_of(unit) || request.quantized.is_some() != (activations == "codes") || apart {
        return None;
    }
    let kernel = if request.after == After::Sum { sums } else { products };
    kernel(request, tokens, &format!("{weights}_{activations}"))
}

fn products(request: &Request, tokens: Count, form: &str) -> Option<NativeKernel> {
    let [w0, h0, s0] = request.matrix(0);
    let [w1, h1, s1] = request.matrix(1);
    let (places, inputs) = (&request.places, &request.inputs);
    let args = experts::Experts {
        x: request.x(0),
        x_scales: if matches!(request.x, DType::I8Groups { .. }) { places.input(inputs.x, 1) } else { Memory::Null },
        w0,
        h0,
        s0,
        w1,
        h1,
        s1,
        ids: places.input(inputs.ids, 0),
        b0: request.optional(inputs.bias[0]),
        b1: request.optional(inputs.bias[1]),
        y: places.output(0),
        tokens: places.counted(tokens),
        k: number(request.k)?,
        m: number(request.m)?,
        slots: number(request.slots)?,
        experts: number(request.experts)?,
        per_slot: u32::from(request.per_slot),
        after: request.after as u32,
        biased: u32::from(inputs.bias[0].is_some()),
    };
    let entry = format!("experts_{form}");
    if !args.entries().contains(&&*entry) {
        return None;
    }
    let (rows, simds) = (experts::ROWS as usize, experts::THREADS as usize / 32);
    let of_group = if request.gated() { rows / 2 * simds } else { rows * simds };
    let grid = [request.m.div_ceil(of_group), tokens.max() * request.slots];
    let launch = launch(args, entry, grid, experts::THREADS as usize)?;
    // Metal takes no empty memory.
    Some(single(KernelLaunch { shared: 16, ..launch }))
}

/// Whether a team has many rows: `rows_of` in the kernels' text.
fn has_many_rows(weights: DType) -> bool {
    match weights {
        DType::Planes(BlockType::Q8_0 | BlockType::F8_E4M3) => false,
        DType::Planes(block) => block.table().is_none() && block.high_bits() == 0,
        _ => true,
    }
}

fn sums(request: &Request, tokens: Count, form: &str) -> Option<NativeKernel> {
    let [w, h, s] = request.matrix(0);
    let (places, inputs) = (&request.places, &request.inputs);
    let args = expert_sums::Sums {
        x: request.x(0),
        w,
        h,
        s,
        ids: places.input(inputs.ids, 0),
        weights: request.optional(inputs.weights),
        residual: request.optional(inputs.residual),
        bias: request.optional(inputs.bias[0]),
        y: places.output(0),
        tokens: places.counted(tokens),
        k: number(request.k)?,
        m: number(request.m)?,
        slots: number(request.slots)?,
        experts: number(request.experts)?,
        per_slot: u32::from(request.per_slot),
        added: u32::from(inputs.residual.is_some()),
        biased: u32::from(inputs.bias[0].is_some()),
        least: request.quantized.unwrap_or(0.0),
    };
    let entry = format!("sums_{form}");
    let rows = if request.per_slot { request.slots } else { 1 };
    // Codes, then a scale and sums for each 32.
    let of_row = request.k + (request.k / 32).div_ceil(2) * 16;
    let shared = if request.quantized.is_some() { rows.checked_mul(of_row)? } else { 0 };
    if !args.entries().contains(&&*entry) || shared > MOST_SHARED {
        return None;
    }
    let many = has_many_rows(request.w);
    let rows_of_team = if many { expert_sums::MANY_ROWS } else { expert_sums::FEW_ROWS } as usize;
    let threads = match request.quantized {
        Some(_) if many => expert_sums::MANY_THREADS,
        _ => expert_sums::THREADS,
    } as usize;
    let teams = (threads / 32 / request.slots).max(1);
    let grid = [request.m.div_ceil(rows_of_team * teams), tokens.max()];
    let launch = launch(args, entry, grid, threads)?;
    Some(single(KernelLaunch { shared: number(shared.max(16))?, ..launch }))
}
