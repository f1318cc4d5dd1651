//! Products of a few tokens (`kernels/shared/experts.k`).

use hologram_device::DType;

use super::{After, Request};
use crate::kernels::experts::{Experts, ROWS, THREADS};
use crate::launch::{Count, launch, number, single};
use crate::{Memory, NativeKernel, Target};

/// The native kernel for a request: any number of slots up to a grid's limit.
pub(super) fn find(request: &Request, _: Target) -> Option<NativeKernel> {
    let (weights, unit) = request.weights()?;
    let activations = match request.x {
        DType::F32 => "f32",
        DType::BF16 => "bf16",
        DType::I8Groups { group: 32 } => "i8",
        _ => return None,
    };
    let entry = format!("experts_{weights}_{activations}");
    let tokens = Count::of(&[request.tokens])?;
    let slots = tokens.max().checked_mul(request.slots)?;
    // Slots are counted in 32 bits.
    number(slots.checked_mul(request.m)?)?;
    let [w0, h0, s0] = request.matrix(0);
    let [w1, h1, s1] = request.matrix(1);
    let (places, inputs) = (&request.places, &request.inputs);
    let args = Experts {
        x: places.input(inputs.x, 0),
        x_scales: if activations == "i8" { places.input(inputs.x, 1) } else { Memory::Null },
        w0,
        h0,
        s0,
        w1,
        h1,
        s1,
        ids: places.input(inputs.ids, 0),
        weights: request.optional(inputs.weights),
        residual: request.optional(inputs.residual),
        y: places.output(0),
        tokens: places.counted(tokens),
        k: number(request.k)?,
        m: number(request.m)?,
        slots: number(request.slots)?,
        experts: number(request.experts)?,
        per_slot: u32::from(request.per_slot),
        after: request.after as u32,
    };
    if !request.k.is_multiple_of(unit) || !crate::KernelArgs::entries(&args).contains(&&*entry) {
        return None;
    }
    let (rows, simds) = (ROWS as usize, THREADS as usize / 32);
    let grid = match request.after {
        After::Sum | After::SumAdd => [request.m.div_ceil(rows), tokens.max()],
        After::Store => [request.m.div_ceil(rows * simds), slots],
        After::Swiglu | After::Relu2 => [request.m.div_ceil(rows / 2 * simds), slots],
    };
    Some(single(launch(args, entry, grid, THREADS as usize)?))
}
