//! `conv2d` on NVIDIA GPUs (`kernels/cuda/conv2d.cu`): a product of kernels and windows, `f16` and `bf16` on tensor
//! cores, `f32` without; of groups of few kernels, one thread per element.
//!
//! Tensor cores take the elements of a window in chunks of 8 channels. So a launch before brings images into the
//! scratch memory with the channels of a pixel side by side, and kernels likewise. Kernels of one element read images
//! as they are, where their pixels lie at multiples of 8 bytes. A product of few tiles is split along its depth, and
//! the parts' sums are added by a launch of their own.

#[cfg(test)]
mod tests;

use hologram_device::{DType, Extent, KernelSpec, Operation, TensorSpec};
use hologram_isa::Type;

use super::batch_matmul::{Pace, parts};
use super::kernels::cuda::batch::{BIAS, SUMS};
use super::kernels::cuda::conv2d::{
    CONV_ALIGN, CONV_LINE, CONV_STAGES, CONV_WINDOWS, ConvPrepare, Convolve, FLOATS_DEEP, Join,
};
use super::launch::{Count, Places, launch, number};
use super::{KernelLaunch, Memory, NativeKernel, Part, Target};

/// Channels of a chunk.
const CHUNK: usize = 8;
/// Chunks of a stage.
const STAGE: usize = 8;
/// Elements of the depth of a stage of `f32`.
const FLOATS: usize = FLOATS_DEEP as usize;
/// Windows of a workgroup.
const WINDOWS: usize = CONV_WINDOWS as usize;
/// Alignment of what lies in the scratch memory.
const ALIGN: usize = 256;
/// With fewer kernels than this in each of several groups, tiles are mostly empty.
const FEW_KERNELS: usize = 8;
/// The most rows and columns of an image with its padding: places in it are computed in 16 bits.
const MOST_SIDE: usize = 1 << 14;

/// A convolution with its sizes.
#[derive(Clone, Debug)]
struct Conv {
    format: Type,
    images: Extent,
    groups: usize,
    /// Channels and kernels of a group.
    depth: usize,
    lines: usize,
    /// Rows and columns: of images, of kernels, and of the result.
    image: [usize; 2],
    kernel: [usize; 2],
    result: [usize; 2],
    stride: [u32; 2],
    padding: [u32; 2],
    dilation: [u32; 2],
    bias: Memory,
    places: Places,
}

/// Where the operands of a product lie, and in which form.
#[derive(Clone, Debug)]
struct Operands {
    form: &'static str,
    x: Memory,
    w: Memory,
    /// Rows and columns of images, and the distance of windows in them.
    image: [usize; 2],
    stride: [u32; 2],
    /// `pitch` and `chunks` of `CONV_SIZES`.
    pitch: usize,
    chunks: usize,
    /// Chunks, or elements of `f32`, of the whole depth.
    all: usize,
}

/// The operands of a product, with the launch that prepares them, if any, and the scratch memory that it fills.
#[derive(Clone, Debug)]
struct Prepared {
    operands: Operands,
    before: Option<KernelLaunch>,
    scratch: usize,
}

/// The native kernel for `conv2d`.
pub(super) fn find(spec: &KernelSpec, target: Target) -> Option<NativeKernel> {
    let conv = Conv::of(spec)?;
    if !target.has(80) {
        return None;
    }
    if conv.groups > 1 && conv.lines < FEW_KERNELS {
        return conv.elements();
    }
    match conv.format {
        Type::F32 => conv.floats(target),
        Type::F16 | Type::BF16 => conv.product(target),
        _ => None,
    }
}

impl Conv {
    fn of(spec: &KernelSpec) -> Option<Conv> {
        let Operation::Conv2d { stride, padding, dilation, groups } = spec.op else { return None };
        let [x, w, rest @ ..] = spec.inputs.as_slice() else { return None };
        let DType::Plain(format @ (Type::F32 | Type::F16 | Type::BF16)) = x.format else { return None };
        let same = spec.inputs.iter().chain([&spec.output]).all(|t| t.format == x.format);
        let fixed = |t: &TensorSpec, i: usize| match t.shape.get(i) {
            Some(Extent::Fixed(n)) if *n > 0 => Some(*n),
            _ => None,
        };
        let (images, groups) = (*spec.output.shape.first()?, groups as usize);
        let image = [fixed(x, 2)?, fixed(x, 3)?];
        let kernel = [fixed(w, 2)?, fixed(w, 3)?];
        let result = [fixed(&spec.output, 2)?, fixed(&spec.output, 3)?];
        let (kernels, depth) = (fixed(w, 0)?, fixed(w, 1)?);
        let sides = [0, 1].map(|i| image[i] + 2 * padding[i] as usize);
        let served = same && spec.in_place.is_none() && rest.len() <= 1 && images.max() > 0 && groups > 0;
        if !served || sides.iter().any(|n| *n > MOST_SIDE) {
            return None;
        }
        let places = Places::of(spec);
        let bias = Memory::optional((!rest.is_empty()).then(|| places.at(2)));
        let lines = kernels / groups;
        Some(Conv {
            format,
            images,
            groups,
            depth,
            lines,
            image,
            kernel,
            result,
            stride,
            padding,
            dilation,
            bias,
            places,
        })
    }

    fn kernels(&self) -> usize {
        self.groups * self.lines
    }

    fn windows(&self) -> usize {
        self.result[0] * self.result[1]
    }

    /// Elements of a kernel in a channel.
    fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Elements of the result.
    fn elements_of_result(&self) -> Option<Count> {
        Count::of(&[self.images, Extent::Fixed(self.kernels().checked_mul(self.windows())?)])
    }

    /// The name of its type in those of kernels.
    fn name(&self) -> &'static str {
        match self.format {
            Type::F16 => "f16",
            Type::BF16 => "bf16",
            _ => "f32",
        }
    }

    /// Operands as they are, whose depth is counted in elements.
    fn as_they_are(&self) -> Operands {
        Operands {
            form: "",
            x: self.places.input(0, 0),
            w: self.places.input(1, 0),
            image: self.image,
            stride: self.stride,
            pitch: self.depth,
            chunks: self.taps(),
            all: self.depth * self.taps(),
        }
    }

    /// The arguments of a launch.
    fn arguments(&self, operands: &Operands, splits: usize, y: Memory) -> Option<Convolve> {
        let &Operands { form: _, x, w, image, stride, pitch, chunks, all } = operands;
        Some(Convolve {
            x,
            w,
            bias: self.bias,
            y,
            images: self.places.counted(Count::of(&[self.images])?),
            lines: number(self.lines)?,
            groups: number(self.groups)?,
            high: number(image[0])?,
            wide: number(image[1])?,
            pitch: number(pitch)?,
            windows: number(self.windows())?,
            across: number(self.result[1])?,
            stride_y: stride[0],
            stride_x: stride[1],
            padding_y: self.padding[0],
            padding_x: self.padding[1],
            dilation_y: self.dilation[0],
            dilation_x: self.dilation[1],
            chunks: number(chunks)?,
            chunks_inverse: inverse(chunks)?,
            kernel_wide: number(self.kernel[1])?,
            kernel_wide_inverse: inverse(self.kernel[1])?,
            all: number(all)?,
            finish: if splits > 1 {
                SUMS
            } else if self.bias == Memory::Null {
                0
            } else {
                BIAS
            },
            splits: number(splits)?,
        })
    }

    /// One thread per element of the result.
    fn elements(&self) -> Option<NativeKernel> {
        let args = self.arguments(&self.as_they_are(), 1, self.places.output(0))?;
        let groups = self.elements_of_result()?.max().div_ceil(256);
        Some(super::launch::single(launch(args, format!("conv_elements_{}", self.name()), [groups, 1], 256)?))
    }

    /// `f32`: a product without matrix instructions.
    fn floats(&self, target: Target) -> Option<NativeKernel> {
        let (rows, together) = if self.lines > 64 { (128, 1) } else { (64, 3) };
        let places = together * target.multiprocessors as usize;
        let pace = Pace { stage: 1100, ends: 3000, places };
        let prepared = Prepared { operands: self.as_they_are(), before: None, scratch: 0 };
        let stages = prepared.operands.all.div_ceil(FLOATS);
        self.launched(format!("conv_floats_{rows}"), prepared, [rows, 0], stages, pace)
    }

    /// `f16` and `bf16`: a product on tensor cores.
    fn product(&self, target: Target) -> Option<NativeKernel> {
        let (rows, stage) = if self.lines > 64 { (128, 750) } else { (64, 500) };
        // Workgroups that share a multiprocessor take as long as one after the other.
        let pace = Pace { stage, ends: 3000, places: target.multiprocessors as usize };
        let prepared = self.prepared()?;
        let entry = format!("conv_{}_{rows}_{}", prepared.operands.form, self.name());
        let stages = prepared.operands.all.div_ceil(STAGE);
        // Of a depth of few stages more workgroups share a multiprocessor.
        let shared = stages.min(CONV_STAGES as usize) * (rows + WINDOWS) * CONV_LINE as usize + CONV_ALIGN as usize;
        if shared > target.max_shared as usize {
            return None;
        }
        self.launched(entry, prepared, [rows, shared], stages, pace)
    }

    /// The operands of a product on tensor cores.
    fn prepared(&self) -> Option<Prepared> {
        let whole = self.depth.is_multiple_of(CHUNK);
        let pixels = self.taps() == 1 && self.padding == [0; 2];
        let chunks = self.depth.div_ceil(CHUNK);
        let mut operands =
            Operands { chunks, all: self.taps().checked_mul(chunks)?, pitch: self.windows(), ..self.as_they_are() };
        if pixels && whole && self.stride == [1; 2] && self.windows().is_multiple_of(4) {
            operands.form = if self.windows().is_multiple_of(8) { "planes" } else { "halves" };
            return Some(Prepared { operands, before: None, scratch: 0 });
        }
        operands.form = "windows";
        // Of kernels of one element only the pixels that they read are taken.
        let step = if pixels { self.stride } else { [1; 2] };
        if pixels {
            (operands.image, operands.stride) = (self.result, [1; 2]);
        }
        let taken = operands.image[0] * operands.image[1];
        operands.pitch = self.groups * chunks * CHUNK;
        // The place of a pixel is a number of 31 bits.
        let all_pixels = self.images.max().checked_mul(taken).filter(|n| *n < 1 << 31)?;
        let bytes = all_pixels.checked_mul(operands.pitch)?.checked_mul(2)?.checked_next_multiple_of(ALIGN)?;
        operands.x = Memory::Scratch(0);
        let turned = if chunks == 1 { taken.div_ceil(256) } else { taken.div_ceil(64) * chunks.div_ceil(8) };
        let turned = turned.checked_mul(self.groups)?.checked_mul(self.images.max())?;
        let (mut scratch, mut groups) = (bytes, turned);
        let mut kernels_out = Memory::Null;
        if self.taps() > 1 || !whole {
            kernels_out = Memory::Scratch(scratch);
            operands.w = kernels_out;
            let pieces = self.kernels().checked_mul(operands.all)?;
            groups = groups.checked_add(pieces.div_ceil(256))?;
            scratch = scratch.checked_add((pieces.checked_mul(2 * CHUNK)?).checked_next_multiple_of(ALIGN)?)?;
        }
        let args = ConvPrepare {
            x: self.places.input(0, 0),
            w: self.places.input(1, 0),
            images_out: operands.x,
            kernels_out,
            images: self.places.counted(Count::of(&[self.images])?),
            groups: number(self.groups)?,
            depth: number(self.depth)?,
            chunks: number(chunks)?,
            plane: number(self.image[0] * self.image[1])?,
            wide: number(self.image[1])?,
            pixels: number(taken)?,
            across: number(operands.image[1])?,
            step_y: step[0],
            step_x: step[1],
            kernels: number(self.kernels())?,
            taps: number(self.taps())?,
            turned: number(turned)?,
        };
        let before = Some(launch(args, "conv_prepare", [groups, 1], 256)?);
        Some(Prepared { operands, before, scratch })
    }

    /// The product by tiles of `rows` kernels, with the launches before it; with parts of the depth also the launch
    /// that adds their sums.
    fn launched(
        &self,
        entry: String,
        Prepared { operands, before, scratch }: Prepared,
        [rows, shared]: [usize; 2],
        stages: usize,
        pace: Pace,
    ) -> Option<NativeKernel> {
        let elements = self.elements_of_result()?;
        let columns = self.images.max().checked_mul(self.windows())?;
        let tiles = self.lines.div_ceil(rows).checked_mul(columns.div_ceil(WINDOWS))?.checked_mul(self.groups)?;
        let sums = |splits: usize| elements.max().checked_mul(splits * 4);
        let (splits, _) = parts(sums, tiles, stages, pace);
        let y = if splits > 1 { Memory::Scratch(scratch) } else { self.places.output(0) };
        let product = launch(self.arguments(&operands, splits, y)?, entry, [tiles, splits], rows * 2)?;
        let mut parts: Vec<Part> = before.into_iter().map(Part::Kernel).collect();
        parts.push(Part::Kernel(KernelLaunch { shared: number(shared)?, ..product }));
        if splits == 1 {
            return Some(NativeKernel { parts, scratch, counters: 0, phase: None });
        }
        let args = Join {
            sums: y,
            bias: self.bias,
            y: self.places.output(0),
            elements: self.places.counted(elements),
            kernels: number(self.kernels())?,
            windows: number(self.windows())?,
            splits: number(splits)?,
            finish: if self.bias == Memory::Null { 0 } else { BIAS },
        };
        let groups = elements.max().div_ceil(256);
        parts.push(Part::Kernel(launch(args, format!("conv_join_{}", self.name()), [groups, 1], 256)?));
        Some(NativeKernel { parts, scratch: scratch.checked_add(sums(splits)?)?, counters: 0, phase: None })
    }
}

/// The number that a kernel multiplies by to divide by `d`: 2³² / d, rounded up.
fn inverse(d: usize) -> Option<u32> {
    if d == 1 { Some(0) } else { number((1usize << 32).div_ceil(d.max(1))) }
}
