//! Repacks block-quantized weights from the blocks of a file into the planes that GPUs read.

use hologram_backends::{
    Binding, BlockFormat, BlockType, Buffer, Codes, DType, Extent, Factors, KernelSpec, Launch, LaunchConfig,
    Operation, PLANE_ALIGN, TensorSpec,
};
use hologram_isa::{Array, Builder, Type, Value};

use super::{Kernel, Launchable, Mismatch, Op};
#[cfg(feature = "conformance")]
use crate::conformance::{Case, CaseInput};
use crate::error::{CoreError, Result};
use crate::executor::Executor;
use crate::graph::{Graph, NodeId};
use crate::ops::reference::{HostTensor, Reference};
#[cfg(feature = "conformance")]
use crate::tensor::Dim;
use crate::tensor::{Tensor, TensorType};

/// The operation; `x` is in a block format, with any number of dimensions.
#[derive(Debug)]
struct Repack;

impl Graph {
    /// The same values in planes ([`DType::in_planes`]), for `x` in a block format that has such a layout.
    ///
    /// # Errors
    /// When the operand is in another format.
    pub fn repack(&mut self, x: NodeId) -> Result<NodeId> {
        self.apply(Repack, &[x])
    }
}

const THREADS: u32 = 256;

impl Op for Repack {
    fn operation(&self) -> Operation {
        Operation::Repack
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        match inputs {
            [x] if x.format.in_planes() != x.format => Ok(TensorType::new(x.format.in_planes(), x.shape.clone())),
            _ => Err("takes one tensor in blocks for which there is a layout in planes".into()),
        }
    }

    /// One thread per byte of codes, or per chunk for a layout in chunks.
    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let format = spec.inputs[0].format;
        if let Some(packed) = spec.output.format.packed() {
            return pack(spec, packed);
        }
        let Some(BlockFormat { codes: Codes::Bits(low, _), numbers, .. }) = format.row() else {
            return Err(CoreError::Tensor(format!("there is no layout in planes for {}", format.name())));
        };
        let (stride, header, scale_at) = (format.block_bytes() as u32, low.at as u32, numbers[0] as u32 / 2);
        let codes = stride - 2;
        let blocks_of_row = (spec.output.row_len() / format.block_len()) as u32;
        let mut k = Kernel::new(spec, THREADS);
        let rows = k.rows(&spec.output);
        let (x, y) = (k.inputs[0].clone(), k.output.clone());
        let b = &mut k.b;
        let total = b.mul(rows, blocks_of_row * codes);
        let i = b.global_x();
        let inside = b.lt(i, total);
        b.if_(inside, |b| {
            let (block, byte) = (b.div(i, codes), b.rem(i, codes));
            let at = b.mul(block, stride);
            let at = b.add(at, byte);
            let at = b.add(at, header);
            let code = b.load(x.views[0], at);
            b.store(y.views[0], i, code);
            let first = b.eq(byte, 0u32);
            b.if_(first, |b| {
                let at = b.mul(block, stride / 2);
                let at = b.add(at, scale_at);
                let scale = b.load(x.views[1], at);
                b.store(y.views[1], block, scale);
            });
        });
        let max = spec.output.max_rows() * (blocks_of_row * codes) as usize;
        k.finish(max.div_ceil(THREADS as usize))
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let mut out = Reference::default();
        for v in inputs.iter().flat_map(|x| &x.values) {
            out.push(*v, 0.0);
        }
        out
    }
}

/// The program for [`PlaneLayout::Chunks`](hologram_backends::PlaneLayout::Chunks).
fn pack(spec: &KernelSpec, packed: BlockType) -> Result<Launchable> {
    let len = spec.output.format.block_len() as u32;
    let chunks_of_row = spec.output.row_len() as u32 / 32;
    let mut k = Kernel::new(spec, THREADS);
    let rows = k.rows(&spec.output);
    let (x, y) = (k.inputs[0].clone(), k.output.clone());
    let b = &mut k.b;
    let total = b.mul(rows, chunks_of_row);
    let chunk = b.global_x();
    let inside = b.lt(chunk, total);
    b.if_(inside, |b| {
        let start = b.shl(chunk, 5u32);
        // Writes `bytes` bytes of a plane per chunk. Byte `i` has the codes of element(b, i, l) for each l, from bit
        // `l · bits` on, without their lower `skip` bits.
        let plane = |b: &mut Builder,
                     view: usize,
                     bytes: u32,
                     [bits, skip]: [u32; 2],
                     element: &dyn Fn(&mut Builder, Value, Value) -> Value| {
            let first = b.mul(chunk, bytes);
            b.for_(0u32, bytes, 1u32, |b, i| {
                let byte = b.var(0u32);
                b.for_(0u32, 8 / bits, 1u32, |b, l| {
                    let e = element(b, i, l);
                    let index = b.or(start, e);
                    let code = x.packed_bits(b, packed, index);
                    let code = b.shr(code, skip);
                    let code = b.and(code, (1u32 << bits) - 1);
                    let shift = b.mul(l, bits);
                    let code = b.shl(code, shift);
                    b.assign_op(byte, hologram_isa::Opcode::Or, &[byte, code]);
                });
                store_byte(b, y.views[view], first, i, byte);
            });
        };
        let quarters = |b: &mut Builder, i: Value, l: Value| {
            let (word, i) = (b.shr(i, 2u32), b.and(i, 3u32));
            let (word, l) = (b.shl(word, 4u32), b.shl(l, 2u32));
            let e = b.or(word, l);
            b.or(e, i)
        };
        let low = packed.low_bits() as u32;
        match (low, packed.table()) {
            (8, _) => plane(b, 0, 32, [8, 0], &|_, i, _| i),
            (2, _) => plane(b, 0, 8, [2, 0], &quarters),
            (_, Some(_)) => plane(b, 0, 16, [4, 0], &|b, i, l| {
                let i = b.shl(i, 1u32);
                b.or(i, l)
            }),
            (_, None) => plane(b, 0, 16, [4, 0], &|b, i, l| {
                let l = b.shl(l, 4u32);
                b.or(i, l)
            }),
        }
        match packed.high_bits() {
            2 => plane(b, 1, 8, [2, low], &quarters),
            1 => plane(b, 1, 4, [1, low], &|b, i, l| {
                let l = b.shl(l, 2u32);
                b.or(l, i)
            }),
            _ => {}
        }
        // The record: the block's first chunk writes the numbers, each chunk the factors of its runs.
        let records = 1 + usize::from(packed.high_bits() > 0);
        let record = packed.record_bytes() as u32;
        let (block, place) = (b.shr(start, len.trailing_zeros()), b.and(start, len - 1));
        if packed.numbers() > 0 {
            let begins = b.eq(place, 0u32);
            b.if_(begins, |b| {
                for which in 0..packed.numbers() {
                    let number = x.number(b, start, which);
                    let at = b.mul(block, record / 2);
                    let at = b.add(at, which as u32);
                    let number = b.cvt(Type::F16, number);
                    b.store(y.views[records + 1], at, number);
                }
            });
        }
        let first = b.mul(block, record);
        let first = b.add(first, 2 * packed.numbers() as u32);
        let run = spec.output.format.scale_len() as u32;
        for within in (0..if packed.factors() == Factors::None { 0 } else { 32 }).step_by(run as usize) {
            let index = b.add(start, within as u32);
            let at = b.add(place, within as u32);
            let at = b.shr(at, run.trailing_zeros());
            let scale = x.scale_factor(b, index);
            if packed.factors() == Factors::Whole {
                let begins = b.eq(place, 0u32);
                b.if_(begins, |b| {
                    for i in 0..4u32 {
                        let byte = b.shr(scale, 8 * i);
                        store_byte(b, y.views[records], first, Value::from(i), byte);
                    }
                });
                continue;
            }
            let scale = b.cvt(Type::I32, scale);
            let scale = b.bitcast(Type::U32, scale);
            match packed.factors() {
                Factors::None | Factors::Whole => {}
                Factors::Signed(_) | Factors::Exponent | Factors::Floats => {
                    store_byte(b, y.views[records], first, at, scale)
                }
                Factors::Nibbles => {
                    let minimum = x.minimum_factor(b, index);
                    let minimum = b.shl(minimum, 4u32);
                    let both = b.or(scale, minimum);
                    store_byte(b, y.views[records], first, at, both);
                }
                Factors::Pairs => {
                    let at = b.shl(at, 1u32);
                    store_byte(b, y.views[records], first, at, scale);
                    let minimum = x.minimum_factor(b, index);
                    let at = b.or(at, 1u32);
                    store_byte(b, y.views[records], first, at, minimum);
                }
            }
        }
    });
    let chunks = spec.output.max_rows() * chunks_of_row as usize;
    k.finish(chunks.div_ceil(THREADS as usize))
}

/// Stores the low byte of a `u32`.
fn store_byte(b: &mut Builder, to: Array, first: Value, place: Value, word: Value) {
    let at = b.add(first, place);
    let byte = b.and(word, 255u32);
    let byte = b.cvt(Type::U8, byte);
    b.store(to, at, byte);
}

/// Bytes that are converted at a time; they are in memory twice.
const CHUNK: usize = 32 << 20;

/// Converts whole blocks of an encoding to blocks of a format, or reports their fault.
type RecodeBlocks<'a> = dyn Fn(&[u8], &mut [u8]) -> std::result::Result<(), String> + 'a;

/// The conversion of blocks in another encoding to a format.
pub struct Recode<'a> {
    /// Bytes per block in the other encoding.
    pub block_bytes: usize,
    /// Converts whole blocks of the encoding to as many of the format, or reports their fault.
    pub recode: &'a RecodeBlocks<'a>,
}

impl Tensor {
    /// A tensor of bytes in `format`, laid out as `layout`: the format itself, [`DType::recoded`], or
    /// [`DType::in_planes`] of these. Other layouts than the format itself are converted in pieces of bounded size; the
    /// device converts to planes.
    ///
    /// # Errors
    /// As [`Tensor::from_bytes`]; when the layout is none of these.
    pub fn from_bytes_as(
        executor: &Executor,
        format: DType,
        layout: DType,
        shape: &[usize],
        bytes: &[u8],
    ) -> Result<Tensor> {
        if layout == format {
            return Tensor::from_bytes(executor, format, shape, bytes);
        }
        Tensor::converted(executor, format, layout, shape, bytes, CHUNK)
    }

    /// A tensor of blocks in an encoding that is not a [`DType`], converted to `format` and laid out as `layout`: the
    /// format itself or [`DType::in_planes`]. The conversion is in pieces of bounded size.
    ///
    /// # Errors
    /// As [`Tensor::from_bytes_as`]; the error of the conversion.
    pub fn from_recoded(
        executor: &Executor,
        recode: &Recode<'_>,
        [format, layout]: [DType; 2],
        shape: &[usize],
        bytes: &[u8],
    ) -> Result<Tensor> {
        Tensor::in_pieces(executor, Some(recode), [format, layout], shape, bytes, CHUNK)
    }

    /// As [`Tensor::from_bytes_as`], with the size of a piece.
    fn converted(
        executor: &Executor,
        format: DType,
        layout: DType,
        shape: &[usize],
        bytes: &[u8],
        chunk: usize,
    ) -> Result<Tensor> {
        let to = if layout == format.in_planes() { format } else { format.recoded() };
        let recode = |from: &[u8], to: &mut [u8]| {
            format.recode(from, to);
            Ok(())
        };
        let recode = Recode { block_bytes: format.block_bytes(), recode: &recode };
        Tensor::in_pieces(executor, (to != format).then_some(&recode), [to, layout], shape, bytes, chunk)
    }

    fn in_pieces(
        executor: &Executor,
        recode: Option<&Recode<'_>>,
        [format, layout]: [DType; 2],
        shape: &[usize],
        bytes: &[u8],
        chunk: usize,
    ) -> Result<Tensor> {
        let (rows, row_len) = shape.split_last().map_or((1, 1), |(last, rest)| (rest.iter().product(), *last));
        let source = recode.map_or(format.block_bytes(), |r| r.block_bytes);
        let expected = format.bytes(rows, row_len).map(|n| n / format.block_bytes() * source);
        if (layout != format && layout != format.in_planes()) || expected != Some(bytes.len()) {
            let (from, to, n) = (format.name(), layout.name(), bytes.len());
            return Err(CoreError::Tensor(format!("{n} bytes of {from} {shape:?} cannot be laid out as {to}")));
        }
        let backend = executor.backend();
        let tensor = Tensor::empty(executor, layout, shape)?;
        // All planes of a piece begin at a multiple of the kernels' alignment.
        let blocks = (chunk / format.block_bytes() / PLANE_ALIGN).max(1) * PLANE_ALIGN;
        let piece = blocks.min(bytes.len() / source.max(1)) * format.block_bytes();
        let staging = if layout == format { None } else { Some(backend.allocate_buffer(piece.max(1))?) };
        let mut recoded = vec![0; if recode.is_some() { piece } else { 0 }];
        for (i, part) in bytes.chunks(blocks * source).enumerate() {
            let part = match recode {
                Some(r) => {
                    let to = &mut recoded[..part.len() / source * format.block_bytes()];
                    (r.recode)(part, to).map_err(CoreError::Tensor)?;
                    &*to
                }
                None => part,
            };
            match &staging {
                Some(staging) => {
                    backend.copy_to_buffer(staging, 0, part)?;
                    repack_blocks(executor, format, staging, &tensor, i * blocks, part.len())?;
                }
                None => {
                    let at = tensor.offset + i * blocks * format.block_bytes();
                    backend.copy_to_buffer(&tensor.buffer, at, part)?;
                }
            }
        }
        Ok(tensor)
    }
}

/// Converts `bytes` of blocks at the start of a buffer to a tensor's blocks from `first` on, and waits.
fn repack_blocks(
    executor: &Executor,
    format: DType,
    from: &Buffer,
    to: &Tensor,
    first: usize,
    bytes: usize,
) -> Result<()> {
    let blocks = bytes / format.block_bytes();
    let spec =
        |format: DType| TensorSpec { format, shape: vec![Extent::Fixed(blocks), Extent::Fixed(format.block_len())] };
    let (x, y) = (spec(format), spec(format.in_planes()));
    let mut bindings: Vec<Binding> = Vec::new();
    for view in format.views(blocks, format.block_len()) {
        bindings.push(Binding::Buffer { buffer: from.clone(), range: view.offset..view.offset + view.bytes });
    }
    for (whole, part) in to.bindings().into_iter().zip(y.format.views(blocks, format.block_len())) {
        if let Binding::Buffer { buffer, range } = whole {
            let start = range.start + first * (part.bytes / blocks.max(1));
            bindings.push(Binding::Buffer { buffer, range: start..start + part.bytes });
        }
    }
    let spec = KernelSpec { op: Operation::Repack, inputs: vec![x], output: y, in_place: None };
    let backend = executor.backend();
    let kernel = backend.kernels().native(&spec);
    let (pipeline, grid) = match kernel {
        Some(pipeline) => (pipeline, [1, 1, 1]),
        None => {
            let (program, grid) = Repack.program(&spec)?;
            (backend.compile(&program)?, grid)
        }
    };
    let list = backend.record(&[Launch { pipeline, bindings, config: LaunchConfig { grid } }])?;
    Ok(backend.wait(backend.submit(&list)?)?)
}

#[cfg(feature = "conformance")]
pub(super) fn cases() -> Vec<Case> {
    let case = |format: DType, rows: usize, d: usize| {
        Case::new(Repack, &[]).input(CaseInput::normal(format, &[Dim::Fixed(rows), Dim::Fixed(d)]))
    };
    let mut cases = Vec::new();
    for format in DType::BLOCKS.into_iter().filter(|f| f.in_planes() != *f) {
        let block = format.block_len();
        cases.extend([case(format, 1, block), case(format, 3, 5 * block), case(format, 33, 1024)]);
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_the_whole() -> Result<()> {
        let executor = Executor::open("cpu", Some(2))?;
        for format in DType::BLOCKS.into_iter().chain(DType::GRIDS) {
            let loaded = format.recoded();
            let layouts = [loaded, loaded.in_planes()].into_iter().filter(|f| *f != format);
            let (rows, row_len, chunk) = (190, 768, 5000);
            let row_bytes = format.bytes(1, row_len).unwrap_or(0);
            let bytes: Vec<u8> = (0..rows * row_bytes).map(|i| (i * 31 % 240 / 2) as u8).collect();
            for layout in layouts {
                let tensor = Tensor::converted(&executor, format, layout, &[rows, row_len], &bytes, chunk)?;
                let mut got = vec![0; tensor.bytes()];
                executor.backend().copy_from_buffer(&tensor.buffer, tensor.offset, &mut got)?;
                let mut values = [vec![0.0f32; rows * row_len], vec![0.0f32; rows * row_len]];
                format.decode_row(&bytes, &mut values[0])?;
                layout.decode_row(&got, &mut values[1])?;
                assert!(values[0] == values[1], "{} as {}", format.name(), layout.name());
            }
        }
        let wrong = Tensor::from_bytes_as(&executor, DType::Q8_0, DType::Q4Planes, &[1, 32], &[0; 34]);
        assert!(wrong.is_err_and(|e| e.to_string().contains("Q4_0 (planes)")));
        Ok(())
    }
}
