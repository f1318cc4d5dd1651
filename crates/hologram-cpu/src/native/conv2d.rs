//! `conv2d`: x [images, c, h, w], kernels [o, c / groups, kh, kw], optional bias [o] → [images, o, h', w'], all in
//! `f32`, `f16` or `bf16`. Per image and group it multiplies kernels with windows, which are gathered panel by panel.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use hologram_device::{DType, Extent, KernelSpec, Operation};

use super::gemm::{Chunk, Gemm, Operands, Packer, Products, Side, Sizes};
use super::narrow::is_in_f32;
use super::simd::Isa;
use crate::features::Features;
use crate::kernel::{Args, NativeKernel, Pod, Worker};

/// Sizes of images along rows (0) or columns (1).
#[derive(Clone, Copy, Debug)]
struct Direction {
    image: usize,
    window: usize,
    result: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

struct Conv2d {
    gemm: Gemm,
    format: DType,
    images: Extent,
    groups: usize,
    /// Channels of a group, in the images and in the result.
    depth: usize,
    kernels: usize,
    sides: [Direction; 2],
    left: Side,
    /// The images as matrices of depth × windows, if a window is one element.
    right: Option<Side>,
    bias: bool,
    uses_step: bool,
}

/// The native kernel for `conv2d`; `None` for any other spec, and for integers and `f64`.
pub(super) fn find(spec: &KernelSpec, features: Features) -> Option<Arc<dyn NativeKernel>> {
    let [x, w, bias @ ..] = spec.inputs.as_slice() else { return None };
    let format = spec.output.format;
    let Operation::Conv2d { stride, padding, dilation, groups } = spec.op else { return None };
    let served = spec.in_place.is_none()
        && bias.len() < 2
        && is_in_f32(format)
        && spec.inputs.iter().all(|t| t.format == format);
    let fixed = |e: &Extent| if let Extent::Fixed(n) = e { Some(*n) } else { None };
    let ([images, c, h, width], [o, depth, kh, kw], [_, _, rows, columns]) =
        (x.shape.as_slice(), w.shape.as_slice(), spec.output.shape.as_slice())
    else {
        return None;
    };
    if !served {
        return None;
    }
    let side = |image: &Extent, window: &Extent, result: &Extent, i: usize| {
        Some(Direction {
            image: fixed(image)?,
            window: fixed(window)?,
            result: fixed(result)?,
            stride: stride[i] as usize,
            padding: padding[i] as usize,
            dilation: dilation[i] as usize,
        })
    };
    let sides = [side(h, kh, rows, 0)?, side(width, kw, columns, 1)?];
    let (groups, depth, o) = (groups as usize, fixed(depth)?, fixed(o)?);
    if groups == 0 || depth.checked_mul(groups) != fixed(c) || o % groups != 0 {
        return None;
    }
    let kernels = o / groups;
    let length = depth * sides[0].window * sides[1].window;
    let windows = sides[0].result * sides[1].result;
    let max = Sizes { batches: images.max() * groups, lefts: groups, n: kernels, m: windows, k: length };
    let single = sides.iter().all(|s| (s.window, s.stride, s.padding) == (1, 1, 0));
    Some(Arc::new(Conv2d {
        gemm: Gemm::new(format, max, features)?,
        format,
        images: *images,
        groups,
        depth,
        kernels,
        sides,
        left: Side { format, along: true, stride: length },
        right: single.then_some(Side { format, along: false, stride: windows }),
        bias: !bias.is_empty(),
        uses_step: spec.uses_step(),
    }))
}

impl NativeKernel for Conv2d {
    fn phases(&self) -> usize {
        self.gemm.phases()
    }

    fn shared_scratch(&self) -> usize {
        self.gemm.shared_scratch()
    }

    fn worker_scratch(&self) -> usize {
        self.gemm.worker_scratch()
    }

    fn run(&self, phase: usize, args: &Args<'_>, worker: &mut Worker<'_>) -> Result<(), String> {
        let images = self.images.value(if self.uses_step { args.step() } else { &[] });
        let [h, w] = self.sides;
        let (length, windows) = (self.depth * h.window * w.window, h.result * w.result);
        let batches = images * self.groups;
        let sizes = Sizes { batches, lefts: self.groups, n: self.kernels, m: windows, k: length };
        let element = self.format.block_bytes();
        let enough = args.raw(0).bytes >= batches * self.depth * h.image * w.image * element
            && args.raw(1).bytes >= self.groups * self.kernels * length * element
            && (!self.bias || args.raw(2).bytes >= self.groups * self.kernels * element);
        if !enough {
            return Err(format!("a buffer is too small for {images} images"));
        }
        self.gemm.run(phase, &Run { op: self, args }, sizes, args.raw(2 + usize::from(self.bias)), worker)
    }
}

/// A run of the kernel.
struct Run<'a> {
    op: &'a Conv2d,
    args: &'a Args<'a>,
}

impl Operands for Run<'_> {
    fn left_of(&self, batch: usize) -> usize {
        batch % self.op.groups
    }

    unsafe fn pack_left(&self, packer: &mut Packer<'_>, matrix: usize, lines: Range<usize>, chunk: Chunk, to: *mut u8) {
        let (op, lanes) = (self.op, lines.len());
        let bytes = op.kernels * op.left.stride * op.format.block_bytes();
        // SAFETY: promised by the caller; the buffer's size was checked.
        unsafe { op.left.pack(packer, self.args.raw(1).data.wrapping_add(matrix * bytes), lines, lanes, chunk, to) }
    }

    unsafe fn pack_right(
        &self,
        packer: &mut Packer<'_>,
        batch: usize,
        columns: Range<usize>,
        chunk: Chunk,
        to: *mut u8,
    ) {
        let (op, lanes) = (self.op, packer.rows());
        let plane = op.sides[0].image * op.sides[1].image;
        let first = batch * op.depth * plane;
        if let Some(right) = op.right {
            let from = self.args.raw(0).data.wrapping_add(first * op.format.block_bytes());
            // SAFETY: promised by the caller; the buffer's size was checked.
            return unsafe { right.pack(packer, from, columns, lanes, chunk, to) };
        }
        let range = first..first + op.depth * plane;
        let windows = Windows { sides: op.sides, columns, lanes };
        // SAFETY: the panel has room for whole steps of words, as the caller promises, and any bytes are valid
        // elements.
        unsafe {
            match op.format {
                DType::F32 => {
                    let out = std::slice::from_raw_parts_mut(to.cast::<f32>(), packer.words_of(chunk.1) * lanes);
                    windows.gather(&self.args.read::<f32>(0)[range], chunk, 1, out, |x| x);
                }
                DType::BF16 if packer.pairs() => {
                    let out = std::slice::from_raw_parts_mut(to.cast::<u16>(), packer.words_of(chunk.1) * lanes * 2);
                    windows.gather(&self.args.read::<u16>(0)[range], chunk, 2, out, |x| x);
                }
                format => {
                    let out = std::slice::from_raw_parts_mut(to.cast::<f32>(), packer.words_of(chunk.1) * lanes);
                    let x = &self.args.read::<u16>(0)[range];
                    if format == DType::BF16 {
                        windows.gather(x, chunk, 1, out, |x| bf16::from_bits(x).to_f32());
                    } else {
                        windows.gather(x, chunk, 1, out, |x| f16::from_bits(x).to_f32());
                    }
                }
            }
        }
    }

    fn finishes(&self) -> bool {
        self.op.bias
    }

    fn finish(&self, _isa: Isa, batch: usize, line: usize, _columns: Range<usize>, products: Products<'_>) {
        let Products::F32(products) = products else { return };
        let channel = batch % self.op.groups * self.op.kernels + line;
        let bias = match self.op.format {
            DType::F32 => self.args.read::<f32>(2)[channel],
            DType::BF16 => self.args.read::<bf16>(2)[channel].to_f32(),
            _ => self.args.read::<f16>(2)[channel].to_f32(),
        };
        products.iter_mut().for_each(|y| *y += bias);
    }
}

/// Neighbouring windows, the columns of a panel.
struct Windows {
    sides: [Direction; 2],
    columns: Range<usize>,
    lanes: usize,
}

impl Windows {
    /// Gathers the windows' elements at the depths of a chunk: for each depth one element per window. With `per_word` 2
    /// the elements of two depths alternate. Elements in the padding and behind the chunk are 0.
    fn gather<T: Pod, U: Pod + Default>(
        &self,
        x: &[T],
        (from, len): Chunk,
        per_word: usize,
        out: &mut [U],
        convert: impl Fn(T) -> U,
    ) {
        let [h, w] = self.sides;
        out.fill(U::default());
        for d in 0..len {
            let (line, s) = ((from + d) / w.window, (from + d) % w.window);
            let (channel, r) = (line / h.window, line % h.window);
            let plane = &x[channel * h.image * w.image..(channel + 1) * h.image * w.image];
            let base = d / per_word * self.lanes * per_word + d % per_word;
            // Windows of one row of the result, run by run.
            let mut window = self.columns.start;
            while window < self.columns.end {
                let (row, column) = (window / w.result, window % w.result);
                let run = (w.result - column).min(self.columns.end - window);
                let first = base + (window - self.columns.start) * per_word;
                window += run;
                let Some(y) = (row * h.stride + r * h.dilation).checked_sub(h.padding).filter(|y| *y < h.image) else {
                    continue;
                };
                let pixels = &plane[y * w.image..(y + 1) * w.image];
                // The run's first pixel in the row, offset by the padding: pixels lie at
                // `at + i * stride - padding`.
                let at = column * w.stride + s * w.dilation;
                let skipped = w.padding.saturating_sub(at).div_ceil(w.stride).min(run);
                let end = (w.image + w.padding).saturating_sub(at).div_ceil(w.stride).min(run);
                if skipped >= end {
                    continue;
                }
                let start = at + skipped * w.stride - w.padding;
                let to = &mut out[first + skipped * per_word..];
                let count = end - skipped;
                if w.stride == 1 && per_word == 1 {
                    to.iter_mut().zip(&pixels[start..start + count]).for_each(|(to, x)| *to = convert(*x));
                } else {
                    for (i, to) in to.iter_mut().step_by(per_word).take(count).enumerate() {
                        *to = convert(pixels[start + i * w.stride]);
                    }
                }
            }
        }
    }
}
