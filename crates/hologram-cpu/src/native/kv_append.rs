//! `kv_append`: stores the keys or values of tokens in their slots of a paged cache.

use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt;
use hologram_device::{DType, Extent, KernelSpec, Operation, Values};

use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Worker};
use crate::native::input;
use crate::native::quantize::greatest;

struct KvAppend {
    format: DType,
    tokens: Extent,
    blocks: usize,
    heads: usize,
    block_size: usize,
    d: usize,
    uses_step: bool,
}

/// Codes of a cache in 8 or 4 bits that share a scale.
const BLOCK: usize = DType::Q8Planes.block_len();

/// The native kernel for `kv_append` to caches of F32, F16, F8, and 8 or 4 bits in planes; `None` for any other spec.
pub(super) fn find(spec: &KernelSpec, _features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [cache, x, slots] = spec.inputs.as_slice() else { return None };
    let (
        [Extent::Fixed(blocks), Extent::Fixed(heads), Extent::Fixed(block_size), Extent::Fixed(d)],
        [tokens, Extent::Fixed(x_heads), Extent::Fixed(x_d)],
    ) = (cache.shape.as_slice(), x.shape.as_slice())
    else {
        return None;
    };
    let served = spec.op == Operation::KvAppend
        && spec.in_place == Some(0)
        && spec.output == *cache
        && [DType::F32, DType::F16, DType::F8, DType::Q8Planes, DType::Q4Planes].contains(&cache.format)
        && x.format == DType::F32
        && slots.format == DType::U32
        && slots.shape.as_slice() == [*tokens]
        && (heads, d) == (x_heads, x_d)
        && d.is_multiple_of(cache.format.block_len())
        && *block_size > 0;
    let kernel = || KvAppend {
        format: cache.format,
        tokens: *tokens,
        blocks: *blocks,
        heads: *heads,
        block_size: *block_size,
        d: *d,
        uses_step: spec.uses_step(),
    };
    served.then(|| Arc::new(kernel()) as Arc<dyn NativeKernel>)
}

impl NativeKernel for KvAppend {
    fn run(&self, _phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let tokens = self.tokens.value(if self.uses_step { args.step() } else { &[] });
        // Such a cache has codes and scales.
        let views = if self.format.block_len() > 1 { 2 } else { 1 };
        let x = input::<f32>(args, views, tokens * self.heads * self.d)?;
        let slots = input::<u32>(args, views + 1, tokens)?;
        // Divided by heads, not by tokens: no two workers write the same memory even if two tokens name one slot.
        while let Some(head) = worker.next(self.heads) {
            for (token, slot) in slots.iter().enumerate() {
                let (block, offset) = (*slot as usize / self.block_size, *slot as usize % self.block_size);
                if block >= self.blocks {
                    let (blocks, size) = (self.blocks, self.block_size);
                    return Err(format!(
                        "token {token}: slot {slot} is outside a cache of {blocks} blocks of {size} slots"
                    ));
                }
                let x = &x[(token * self.heads + head) * self.d..][..self.d];
                let first = ((block * self.heads + head) * self.block_size + offset) * self.d;
                let place = first..first + self.d;
                // SAFETY: each head is one worker's.
                unsafe {
                    match self.format {
                        DType::F16 => args.output::<f16>(0).part(place).convert_from_f32_slice(x),
                        DType::F8 => {
                            let codes = args.output::<u8>(0).part(place);
                            codes.iter_mut().zip(x).for_each(|(code, v)| *code = Values::to_f8(*v));
                        }
                        DType::Q8Planes => {
                            let scales = args.output::<f16>(1).part(place.start / BLOCK..place.end / BLOCK);
                            quantize(x, args.output::<i8>(0).part(place), scales);
                        }
                        DType::Q4Planes => {
                            let scales = args.output::<f16>(1).part(place.start / BLOCK..place.end / BLOCK);
                            quantize_four(x, args.output::<u8>(0).part(place.start / 2..place.end / 2), scales);
                        }
                        _ => args.output::<f32>(0).part(place).copy_from_slice(x),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Blocks of 8-bit codes: each scale is the greatest magnitude of its block divided by 127, rounded to `f16`.
fn quantize(x: &[f32], codes: &mut [i8], scales: &mut [f16]) {
    let blocks = x.as_chunks::<BLOCK>().0.iter().zip(codes.as_chunks_mut::<BLOCK>().0);
    for ((x, codes), scale) in blocks.zip(scales) {
        let greatest = greatest(x);
        let inverse = if greatest == 0.0 { 0.0 } else { 127.0 / greatest };
        *scale = f16::from_f32(greatest / 127.0);
        for (code, v) in codes.iter_mut().zip(x) {
            *code = (v * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
        }
    }
}

/// Blocks of 4-bit codes: each scale is the element of the greatest magnitude divided by -8, rounded to `f16`; a byte
/// has elements i and i + 16.
fn quantize_four(x: &[f32], codes: &mut [u8], scales: &mut [f16]) {
    let blocks = x.as_chunks::<BLOCK>().0.iter().zip(codes.as_chunks_mut::<{ BLOCK / 2 }>().0);
    for ((x, codes), scale) in blocks.zip(scales) {
        let greatest = greatest(x);
        let extreme = if x.contains(&greatest) { greatest } else { -greatest };
        let inverse = if greatest == 0.0 { 0.0 } else { -8.0 / extreme };
        *scale = f16::from_f32(extreme / -8.0);
        let code = |v: f32| ((v * inverse).round_ties_even().clamp(-8.0, 7.0) + 8.0) as u8;
        let (low, high) = x.split_at(BLOCK / 2);
        for (byte, (low, high)) in codes.iter_mut().zip(low.iter().zip(high)) {
            *byte = code(*low) | code(*high) << 4;
        }
    }
}

#[cfg(feature = "testing")]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{Memory, Random, launch};
    use hologram_device::TensorSpec;

    pub(crate) fn stores_each_head_in_its_slot() {
        let (blocks, heads, size, d) = (3, 5, 16, 24);
        for format in [DType::F32, DType::F16, DType::F8] {
            let tokens = Extent::step(0, 6);
            let fixed = |n: &[usize]| n.iter().map(|n| Extent::Fixed(*n)).collect::<Vec<_>>();
            let cache = TensorSpec { format, shape: fixed(&[blocks, heads, size, d]) };
            let spec = KernelSpec {
                op: Operation::KvAppend,
                inputs: vec![
                    cache.clone(),
                    TensorSpec { format: DType::F32, shape: [vec![tokens], fixed(&[heads, d])].concat() },
                    TensorSpec { format: DType::U32, shape: vec![tokens] },
                ],
                output: cache.clone(),
                in_place: Some(0),
            };
            let kernel = find(&spec, Features::PLAIN).expect("served");
            let stored = |x: f32| match format {
                DType::F8 => Values::f8(Values::to_f8(x)),
                _ => f16::from_f32(x).to_f32(),
            };
            let x: Vec<f32> = Random(1).floats(6 * heads * d).iter().map(|x| stored(*x)).collect();
            let run = |slots: [u32; 6], n: u32| {
                let empty = Memory::filled(cache.max_bytes(), 0xff);
                let mut memory = [empty, Memory::of(&x), Memory::of(&slots), Memory::of(&[n])];
                launch(&*kernel, &mut memory, 2).map(|()| match format {
                    DType::F32 => memory[0].elements::<f32>().to_vec(),
                    DType::F8 => memory[0].elements::<u8>().iter().map(|x| Values::f8(*x)).collect(),
                    _ => memory[0].elements::<f16>().iter().map(|x| x.to_f32()).collect(),
                })
            };
            let slots = [0, 47, 16, 31, 5, 1000];
            let got = run(slots, 5).expect("runs");
            let mut want = vec![f32::NAN; got.len()];
            for (t, slot) in slots[..5].iter().map(|s| *s as usize).enumerate() {
                for head in 0..heads {
                    for i in 0..d {
                        want[((slot / size * heads + head) * size + slot % size) * d + i] =
                            x[(t * heads + head) * d + i];
                    }
                }
            }
            assert!(got.iter().zip(&want).all(|(g, w)| g == w || (g.is_nan() && w.is_nan())), "{format:?}");
            let error = run([0, 48, 0, 0, 0, 0], 2).expect_err("48 is outside");
            assert_eq!(error, "token 1: slot 48 is outside a cache of 3 blocks of 16 slots");
        }
    }
}
