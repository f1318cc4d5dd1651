//! Convolution of images, as neural networks define it (a correlation: the kernel is not mirrored).

use hologram_backends::{DType, Extent, KernelSpec, Operation};
use hologram_isa::{Builder, Opcode, Type, Value};

use super::lines::{epsilon, not_for, number, plain, stored};
use super::matmul::sum_bound;
use super::tiles::{self, Side, THREADS, add_product, summed};
use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput, Fill};
use crate::error::{CoreError, Result};
use crate::graph::{Graph, NodeId, Vjp};
use crate::ops::reference::{HostTensor, Reference};
use crate::tensor::{Dim, TensorType};

/// Options of [`Graph::conv2d`]; each pair is for rows and columns.
#[derive(Clone, Copy, Debug)]
pub struct Conv2dOptions {
    /// The distance of neighbouring windows.
    pub stride: [usize; 2],
    /// Zeros on each side.
    pub padding: [usize; 2],
    /// The distance of neighbouring elements of a window.
    pub dilation: [usize; 2],
    /// The number of groups that the channels of input and output are split into; each group is convolved separately.
    pub groups: usize,
    /// Added to every element of an output channel: `[o]`, of the result's type.
    pub bias: Option<NodeId>,
}

impl Default for Conv2dOptions {
    fn default() -> Self {
        Conv2dOptions { stride: [1; 2], padding: [0; 2], dilation: [1; 2], groups: 1, bias: None }
    }
}

/// The operation; its inputs are images, kernels and, if present, the bias.
#[derive(Clone, Copy, Debug)]
struct Conv2d {
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
}

impl Graph {
    /// Convolves images `x` (`[n, c, h, w]`) with kernels (`[o, c / groups, kh, kw]`): `[n, o, h', w']`, with
    /// `h' = (h + 2·padding − dilation·(kh − 1) − 1) / stride + 1`, rounded down, and w' likewise.
    ///
    /// `f32`, `f16` and `bf16` are multiplied and summed in `f32` and rounded once to their type; `f64` is computed in
    /// `f64`. `i8` and `i32` give `i32`.
    ///
    /// # Errors
    /// When the operands do not fit, or a window is larger than an image with its padding.
    pub fn conv2d(&mut self, x: NodeId, kernel: NodeId, options: &Conv2dOptions) -> Result<NodeId> {
        let Conv2dOptions { stride, padding, dilation, groups, bias } = *options;
        let operands: Vec<NodeId> = [x, kernel].into_iter().chain(bias).collect();
        self.apply(Conv2d { stride, padding, dilation, groups }, &operands)
    }
}

impl Conv2d {
    /// The number of the output's rows (0) or columns (1), for an image and a kernel of these sizes.
    fn size(&self, side: usize, image: usize, kernel: usize) -> Option<usize> {
        // Indices in an image with its padding are computed in u32.
        let padded = image.checked_add(self.padding[side].checked_mul(2)?).filter(|n| *n < 1 << 31)?;
        let window = self.dilation[side].checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
        padded.checked_sub(window)?.checked_div(self.stride[side]).map(|n| n + 1)
    }
}

impl Conv2d {
    /// The gradient by the images: the gradient with zeros between its elements where windows are apart, convolved with
    /// the mirrored kernels, whose channels of input and output change places within each group.
    fn by_images(&self, g: &mut Graph, x: NodeId, kernel: NodeId, grad: NodeId) -> Result<NodeId> {
        let [_, _, h, w] = sizes(g, x)?;
        let [o, depth, kh, kw] = sizes(g, kernel)?;
        let [_, _, rows, columns] = sizes(g, grad)?;
        let images = g.shape_of(grad)[0];
        let groups = self.groups.max(1);
        let dims = |shape: &[usize]| shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
        let [s, t] = self.stride;
        let mut spread = grad;
        if [s, t] != [1, 1] {
            let apart = [&[images][..], &dims(&[o, rows, 1, columns, 1])].concat();
            spread = g.reshape(spread, &apart)?;
            spread = g.pad(spread, &[(0, 0), (0, 0), (0, 0), (0, s - 1), (0, 0), (0, t - 1)], 0.0)?;
            spread = g.reshape(spread, &[&[images][..], &dims(&[o, rows * s, columns * t])].concat())?;
        }
        for (side, size, kernel) in [(0, h, kh), (1, w, kw)] {
            let before = (self.dilation[side] * (kernel - 1)) as isize - self.padding[side] as isize;
            let after = (size + self.dilation[side] * (kernel - 1)) as isize - before;
            spread = fit(g, spread, 2 + side, before, after)?;
        }
        let per = o / groups;
        let turned = g.reshape(kernel, &dims(&[groups, per, depth, kh, kw]))?;
        let turned = g.permute(turned, &[0, 2, 1, 3, 4])?;
        let turned = g.reshape(turned, &dims(&[groups * depth, per, kh, kw]))?;
        let turned = g.flip(turned, 2)?;
        let turned = g.flip(turned, 3)?;
        let options = Conv2dOptions { dilation: self.dilation, groups, ..Conv2dOptions::default() };
        g.conv2d(spread, turned, &options)
    }

    /// The gradient by the kernels: per group, each channel of the images convolved with each channel of the gradient,
    /// which sums over images as a convolution sums over channels. Strides and dilations change places.
    fn by_kernels(&self, g: &mut Graph, x: NodeId, kernel: NodeId, grad: NodeId) -> Result<NodeId> {
        let [n, _, h, w] = sizes(g, x)?;
        let [_, depth, kh, kw] = sizes(g, kernel)?;
        let groups = self.groups.max(1);
        let dims = |shape: &[usize]| shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
        let images = g.reshape(x, &dims(&[n, groups, depth, h, w]))?;
        let images = g.permute(images, &[2, 1, 0, 3, 4])?;
        let images = g.reshape(images, &dims(&[depth, groups * n, h, w]))?;
        let kernels = g.permute(grad, &[1, 0, 2, 3])?;
        let (stride, dilation, padding) = (self.dilation, self.stride, self.padding);
        let sums = g.conv2d(images, kernels, &Conv2dOptions { stride, padding, dilation, groups, bias: None })?;
        // Elements of images that no window reaches may give more than a kernel.
        let sums = g.slice(sums, 2, 0, kh)?;
        let sums = g.slice(sums, 3, 0, kw)?;
        g.permute(sums, &[1, 0, 2, 3])
    }
}

/// The four sizes of a value; those of a run-time extent count as its maximum only where they do not matter.
fn sizes(g: &Graph, x: NodeId) -> Result<[usize; 4]> {
    match *g.shape_of(x) {
        [Dim::Fixed(a), Dim::Fixed(b), Dim::Fixed(c), Dim::Fixed(d)] => Ok([a, b, c, d]),
        _ => Err(CoreError::Graph("the gradient of conv2d takes a fixed number of images".into())),
    }
}

/// A dimension with `before` zeros before it, or without as many elements, that ends with element `end - 1`.
fn fit(g: &mut Graph, x: NodeId, dim: usize, before: isize, end: isize) -> Result<NodeId> {
    let Some(Dim::Fixed(n)) = g.shape_of(x).get(dim).copied() else { return Ok(x) };
    let mut sides = vec![(0, 0); g.shape_of(x).len()];
    sides[dim] = (before.max(0) as usize, (end - n as isize).max(0) as usize);
    let padded = if sides[dim] == (0, 0) { x } else { g.pad(x, &sides, 0.0)? };
    let first = (-before).max(0) as usize;
    g.slice(padded, dim, first, (before.max(0) + end) as usize)
}

impl Op for Conv2d {
    fn operation(&self) -> Operation {
        let pair = |pair: [usize; 2]| pair.map(|n| n as u32);
        Operation::Conv2d {
            stride: pair(self.stride),
            padding: pair(self.padding),
            dilation: pair(self.dilation),
            groups: self.groups as u32,
        }
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        let [x, kernel, bias @ ..] = inputs else { return Err("takes images and kernels".into()) };
        let result = |ty| match ty {
            Type::I8 => Some(DType::I32),
            Type::F32 | Type::F16 | Type::BF16 | Type::F64 | Type::I32 => Some(DType::Plain(ty)),
            _ => None,
        };
        let format = plain(x.format).and_then(result);
        let format = format.ok_or_else(|| not_for(x.format, |ty| result(ty).is_some()))?;
        let (
            [n, Dim::Fixed(c), Dim::Fixed(h), Dim::Fixed(w)],
            [Dim::Fixed(o), Dim::Fixed(d), Dim::Fixed(kh), Dim::Fixed(kw)],
        ) = (x.shape.as_slice(), kernel.shape.as_slice())
        else {
            return Err("takes images [n, c, h, w] and kernels [o, c / groups, kh, kw]".into());
        };
        let grouped = self.groups > 0 && d.checked_mul(self.groups) == Some(*c) && o % self.groups == 0;
        if kernel.format != x.format || !grouped {
            return Err(format!("images and kernels do not fit in {} groups", self.groups).into());
        }
        if self.stride.contains(&0) || self.dilation.contains(&0) {
            return Err("stride and dilation must be above 0".into());
        }
        let (Some(rows), Some(columns)) = (self.size(0, *h, *kh), self.size(1, *w, *kw)) else {
            return Err("the windows do not fit into the images".into());
        };
        match bias {
            [] => {}
            [bias] if **bias == TensorType::new(format, [Dim::Fixed(*o)]) => {}
            _ => return Err("the bias must be [o], of the result's type".into()),
        }
        Ok(TensorType::new(format, [*n, Dim::Fixed(*o), Dim::Fixed(rows), Dim::Fixed(columns)]))
    }

    /// Per image and group one product of kernels (rows) and windows (columns), by squares. Where squares do not pay:
    /// one thread per element of the result.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let sizes = |shape: &[Extent]| [0, 1, 2, 3].map(|i| shape.get(i).map_or(1, |e| e.max()));
        let [_, c, h, w] = sizes(&spec.inputs[0].shape).map(|n| n as u32);
        let [_, depth, kh, kw] = sizes(&spec.inputs[1].shape).map(|n| n as u32);
        let [images, o, rows, columns] = sizes(&spec.output.shape);
        let (kernels, windows) = ((o / self.groups.max(1)) as u32, (rows * columns) as u32);
        let ty = summed(spec.output.format);
        let mut k = Kernel::new(spec, THREADS);
        let count = spec.output.shape.first().map_or_else(|| Value::from(1u32), |e| k.extent(*e));
        let total = k.elements(&spec.output);
        let (inputs, out) = (k.inputs.clone(), k.output.clone());
        let b = &mut k.b;
        // Element `d` of a window, in the channels from `first` on; 0 in the padding.
        let element = |b: &mut Builder, first: Value, window: Value, d: Value| {
            let (row, column) = (b.div(window, columns as u32), b.rem(window, columns as u32));
            let (line, s) = (b.div(d, kw), b.rem(d, kw));
            let (channel, r) = (b.div(line, kh), b.rem(line, kh));
            // Before the image, indices wrap to large numbers.
            let [y, x] = [(row, r, 0), (column, s, 1)].map(|(at, step, side): (Value, Value, usize)| {
                let at = b.mul(at, self.stride[side] as u32);
                let at = b.sub(at, self.padding[side] as u32);
                let step = b.mul(step, self.dilation[side] as u32);
                b.add(at, step)
            });
            let (inside, within) = (b.lt(y, h), b.lt(x, w));
            let inside = b.and(inside, within);
            let value = b.var(number(ty, 0.0));
            b.if_(inside, |b| {
                let at = b.add(first, channel);
                let at = b.mul(at, h);
                let at = b.add(at, y);
                let at = b.mul(at, w);
                let at = b.add(at, x);
                let v = inputs[0].load_as(b, ty, at);
                b.assign(value, v);
            });
            value
        };
        let length = depth * kh * kw;
        let weight = |b: &mut Builder, kernel: Value, d: Value| {
            let at = b.mul(kernel, length);
            let at = b.add(at, d);
            inputs[1].load_as(b, ty, at)
        };
        // The first channel of an image that a group reads.
        let channels = |b: &mut Builder, image: Value, group: Value| {
            let (first, within) = (b.mul(image, c), b.mul(group, depth));
            b.add(first, within)
        };
        let finish = |b: &mut Builder, image: Value, kernel: Value, window: Value, sum: Value| {
            let plane = b.mul(image, o as u32);
            let plane = b.add(plane, kernel);
            let at = b.mul(plane, windows);
            let at = b.add(at, window);
            let y = match inputs.get(2) {
                Some(bias) => {
                    let v = bias.load_as(b, ty, kernel);
                    b.add(sum, v)
                }
                None => sum,
            };
            out.store(b, at, y);
        };
        if tiles::pay(kernels as usize, windows as usize) {
            let [down, across] = tiles::squares(kernels as usize, windows as usize);
            let i = b.builtin(Opcode::GroupX);
            let (line, column) = (b.div(i, across as u32), b.rem(i, across as u32));
            let (batch, row) = (b.div(line, down as u32), b.rem(line, down as u32));
            let (image, group) = (b.div(batch, self.groups as u32), b.rem(batch, self.groups as u32));
            let active = b.lt(image, count);
            b.if_(active, |b| {
                let (first, before) = (channels(b, image, group), b.mul(group, kernels));
                let left: &dyn Fn(&mut Builder, Value, Value) -> Value = &|b, kernel, d| {
                    let kernel = b.add(before, kernel);
                    weight(b, kernel, d)
                };
                let right: &dyn Fn(&mut Builder, Value, Value) -> Value = &|b, window, d| element(b, first, window, d);
                let sides = [
                    Side { lines: kernels.into(), load: left, along_depth: true },
                    Side { lines: windows.into(), load: right, along_depth: false },
                ];
                tiles::square(b, ty, length.into(), sides, [row, column], |b, kernel, window, sum| {
                    let kernel = b.add(before, kernel);
                    finish(b, image, kernel, window, sum);
                });
            });
            return k.finish(images * self.groups * down * across);
        }
        let i = b.global_x();
        let (plane, window) = (b.div(i, windows), b.rem(i, windows));
        let (image, kernel) = (b.div(plane, o.max(1) as u32), b.rem(plane, o.max(1) as u32));
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let group = b.div(kernel, kernels.max(1));
            let first = channels(b, image, group);
            let sum = b.var(number(ty, 0.0));
            b.for_(0u32, length, 1u32, |b, d| {
                let (v, g) = (element(b, first, window, d), weight(b, kernel, d));
                add_product(b, sum, v, g);
            });
            finish(b, image, kernel, window, sum);
        });
        let max = spec.output.max_rows() * spec.output.row_len();
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn vjp(&self, g: &mut Graph, call: &Vjp<'_>) -> Result<Vec<Option<NodeId>>> {
        let [x, kernel] = [call.inputs[0], call.inputs[1]];
        let by_x = call.wanted[0].then(|| self.by_images(g, x, kernel, call.grad)).transpose()?;
        let by_kernel = call.wanted[1].then(|| self.by_kernels(g, x, kernel, call.grad)).transpose()?;
        let mut grads = vec![by_x, by_kernel];
        if let (Some(bias), Some(true)) = (call.inputs.get(2), call.wanted.get(2)) {
            let wide = g.widened(call.grad)?;
            let channels = g.shape_of(*bias).to_vec();
            let sum = g.sum_to(wide, &[&channels[..], &[Dim::Fixed(1); 2]].concat())?;
            let sum = g.reshape(sum, &channels)?;
            grads.push(Some(g.cast_like(sum, *bias)?));
        }
        Ok(grads)
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let [x, kernel, bias @ ..] = inputs else { return Reference::default() };
        let ([n, c, h, w], [o, depth, kh, kw]) = (&x.shape[..], &kernel.shape[..]) else { return Reference::default() };
        let (Some(rows), Some(columns)) = (self.size(0, *h, *kh), self.size(1, *w, *kw)) else {
            return Reference::default();
        };
        let format = if x.format == DType::Plain(Type::I8) { DType::I32 } else { x.format };
        let float = plain(format).is_some_and(Type::is_float);
        // The index in the image of an element of a window.
        let place = |side: usize, at: usize, step: usize, size: usize| {
            (at * self.stride[side] + step * self.dilation[side]).checked_sub(self.padding[side]).filter(|p| *p < size)
        };
        let mut out = Reference::default();
        for i in 0..n * o * rows * columns {
            let (image, channel) = (i / (o * rows * columns), i / (rows * columns) % o);
            let (row, column) = (i / columns % rows, i % columns);
            let first = channel / (o / self.groups) * depth;
            let (mut sum, mut squares) = (0.0, 0.0);
            for d in 0..*depth {
                for (r, s) in (0..*kh).flat_map(|r| (0..*kw).map(move |s| (r, s))) {
                    if let (Some(y), Some(z)) = (place(0, row, r, *h), place(1, column, s, *w)) {
                        let term = x.values[((image * c + first + d) * h + y) * w + z]
                            * kernel.values[((channel * depth + d) * kh + r) * kw + s];
                        sum += term;
                        squares += term * term;
                    }
                }
            }
            let mut bound = sum_bound(x.format, (depth * kh * kw) as f64, sum, squares);
            if let [bias] = bias {
                sum += bias.values[channel];
                bound += sum.abs() * epsilon(x.format);
            }
            out.push(sum, if float { stored(format, sum, bound) } else { 0.0 });
        }
        out
    }
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let plain = Conv2d { stride: [1; 2], padding: [0; 2], dilation: [1; 2], groups: 1 };
    let case = |op: Conv2d, ty: Type, [n, max]: [usize; 2], image: [usize; 3], kernel: [usize; 4], bias: bool| {
        let numbers = |ty: Type, shape: &[Dim]| CaseInput {
            format: DType::Plain(ty),
            shape: shape.to_vec(),
            fill: Fill::Normal(if ty.is_float() { 1.0 } else { 30.0 }),
        };
        let fixed = |sizes: &[usize]| sizes.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
        let images = [vec![Dim::Extent(0)], fixed(&image)].concat();
        let mut case = Case::new(op, &[(max, n)]).input(numbers(ty, &images)).input(numbers(ty, &fixed(&kernel)));
        if bias {
            case = case.input(numbers(if ty == Type::I8 { Type::I32 } else { ty }, &fixed(&kernel[..1])));
        }
        case
    };
    let strided = Conv2d { stride: [2, 3], padding: [1, 2], dilation: [1, 2], groups: 1 };
    vec![
        case(plain, Type::F32, [1, 1], [1, 1, 1], [1, 1, 1, 1], false),
        case(plain, Type::F32, [2, 3], [3, 9, 11], [5, 3, 3, 3], true),
        case(plain, Type::F32, [0, 2], [3, 5, 5], [2, 3, 5, 5], false),
        case(plain, Type::F32, [1, 2], [3, 5, 5], [0, 3, 5, 5], false),
        case(strided, Type::F32, [2, 2], [3, 9, 14], [4, 3, 3, 4], true),
        case(Conv2d { padding: [2, 2], ..plain }, Type::F32, [1, 1], [2, 4, 4], [3, 2, 5, 5], false),
        case(Conv2d { groups: 3, ..strided }, Type::F32, [2, 2], [6, 8, 9], [9, 2, 2, 3], false),
        // Each channel is a group of its own.
        case(Conv2d { groups: 8, padding: [1, 1], ..plain }, Type::F16, [1, 2], [8, 6, 6], [8, 1, 3, 3], true),
        case(plain, Type::BF16, [1, 2], [4, 6, 6], [3, 4, 2, 2], true),
        case(Conv2d { groups: 2, ..strided }, Type::F32, [2, 3], [6, 15, 20], [140, 3, 3, 4], true),
        case(Conv2d { padding: [1, 1], ..plain }, Type::F16, [2, 2], [20, 9, 9], [9, 20, 3, 3], false),
        case(strided, Type::I8, [2, 3], [2, 7, 9], [3, 2, 3, 3], true),
        case(plain, Type::F64, [1, 1], [2, 5, 5], [3, 2, 3, 3], true),
        case(plain, Type::I32, [1, 1], [2, 4, 5], [3, 2, 2, 2], false),
    ]
}
