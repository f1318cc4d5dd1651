//! `expert_sum`: the sum of a token's results x [n, s * m] with weights [n, s] → f32 [n, m].

use std::sync::Arc;

use hologram_device::{DType, Extent, KernelSpec, Operation};

use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};
use crate::native::simd::{Isa, Simd, simd_entry};
use crate::native::{input, room};

struct ExpertSum {
    isa: Isa,
    tokens: Extent,
    slots: usize,
    m: usize,
    uses_step: bool,
}

/// The native kernel for `expert_sum`; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x, weights] = spec.inputs.as_slice() else { return None };
    let ([tokens, Extent::Fixed(width)], [n, Extent::Fixed(slots)]) = (x.shape.as_slice(), weights.shape.as_slice())
    else {
        return None;
    };
    let served = spec.op == Operation::ExpertSum
        && spec.in_place.is_none()
        && [x, weights, &spec.output].iter().all(|t| t.format == DType::F32)
        && n == tokens
        && *slots > 0
        && width.is_multiple_of(*slots)
        && spec.output.shape == [*tokens, Extent::Fixed(width / slots)];
    let kernel = || ExpertSum {
        isa: Isa::widest(features),
        tokens: *tokens,
        slots: *slots,
        m: width / slots,
        uses_step: spec.uses_step(),
    };
    served.then(|| Arc::new(kernel()) as Arc<dyn NativeKernel>)
}

impl NativeKernel for ExpertSum {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let tokens = self.tokens.value(if self.uses_step { args.step() } else { &[] });
        let x = input::<f32>(args, 0, tokens * self.slots * self.m)?;
        let weights = input::<f32>(args, 1, tokens * self.slots)?;
        room::<f32>(args, 2, tokens * self.m)?;
        let out = args.output::<f32>(2);
        while let Some(token) = worker.next(tokens) {
            // SAFETY: each token is claimed by one worker.
            let out = unsafe { out.part(token * self.m..(token + 1) * self.m) };
            let of_token = token * self.slots..(token + 1) * self.slots;
            out.fill(0.0);
            for (slot, weight) in of_token.clone().zip(&weights[of_token]) {
                add(self.isa, &x[slot * self.m..(slot + 1) * self.m], *weight, out);
            }
        }
        Ok(())
    }
}

simd_entry! {
    /// Adds a row times its weight.
    fn add(x: &[f32], weight: f32, out: &mut [f32]) = add_with
}

#[inline(always)]
fn add_with<S: Simd>(_: S, x: &[f32], weight: f32, out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = x.mul_add(weight, *out);
    }
}
