//! The elements of tensors in every format, as programs read them: codes, scales and minimums.

use hologram_backends::{Factors, Format, IQ4_VALUES, Packed};
use hologram_isa::{Builder, Type, Value};

use super::TensorArg;

/// An element of a tensor in a block format.
struct Element {
    /// The first byte of its block's codes, or of its block.
    start: Value,
    /// Its place in the block.
    e: Value,
}

impl TensorArg {
    /// The element at a row-major index, decoded to `f32`.
    pub fn load(&self, b: &mut Builder, index: impl Into<Value>) -> Value {
        let index = index.into();
        if let Format::Plain(_) = self.spec.format {
            return b.load_f32(self.views[0], index);
        }
        let code = self.load_code(b, index);
        let code = b.cvt(Type::F32, code);
        let scale = self.load_scale(b, index);
        let value = b.mul(scale, code);
        match self.load_minimum(b, index) {
            Some(minimum) => b.sub(value, minimum),
            None => value,
        }
    }

    /// The integer code at a row-major index as `i32`, for block-quantised and group-quantised formats: the value is scale · code, less
    /// the minimum where there is one.
    pub fn load_code(&self, b: &mut Builder, index: impl Into<Value>) -> Value {
        let index = index.into();
        if matches!(self.spec.format, Format::Plain(_) | Format::I8Groups { .. } | Format::Q8Planes) {
            let code = b.load(self.views[0], index);
            return b.cvt(Type::I32, code);
        }
        if let Format::Planes(packed) = self.spec.format {
            let bits = self.packed_bits(b, packed, index);
            return if packed.is_table() { iq4_value(b, bits) } else { signed(b, bits, -i32::from(packed.bias())) };
        }
        let at = self.element(b, index);
        match self.spec.format {
            Format::Q8_0 => {
                let byte = b.add(at.start, at.e);
                let byte = b.add(byte, 2u32);
                let code = b.load(self.views[0], byte);
                b.cvt(Type::I32, code)
            }
            Format::Q4_0 => self.half(b, &at, 2, 16, -8),
            Format::Q4Planes => self.half(b, &at, 0, 16, -8),
            Format::Q4_1 => self.half(b, &at, 4, 16, 0),
            Format::Q5_0 => {
                let low = self.half(b, &at, 6, 16, -16);
                let high = self.fifth_bit(b, &at, 2);
                b.add(low, high)
            }
            Format::Q5_1 => {
                let low = self.half(b, &at, 8, 16, 0);
                let high = self.fifth_bit(b, &at, 4);
                b.add(low, high)
            }
            Format::IQ4_NL => {
                let code = self.half(b, &at, 2, 16, 0);
                iq4_value(b, code)
            }
            Format::IQ4_XS => {
                let code = self.half(b, &at, 8, 16, 0);
                iq4_value(b, code)
            }
            Format::Q2_K => self.quarter(b, &at, 16, 0),
            Format::Q3_K => {
                let low = self.quarter(b, &at, 32, -4);
                let high = self.bit_of_run(b, &at, 0);
                let high = b.shl(high, 2u32);
                b.add(low, high)
            }
            Format::Q4_K => self.half(b, &at, 16, 32, 0),
            Format::Q5_K => {
                let low = self.half(b, &at, 48, 32, 0);
                let high = self.bit_of_run(b, &at, 16);
                let high = b.shl(high, 4u32);
                b.add(low, high)
            }
            Format::Q6_K => {
                let low = self.half(b, &at, 0, 64, -32);
                let high = self.quarter(b, &at, 128, 0);
                let high = b.shl(high, 4u32);
                b.add(low, high)
            }
            Format::TQ1_0 => self.digit(b, &at),
            // TQ2_0, in blocks or in planes; the others have returned.
            _ => self.quarter(b, &at, 0, -1),
        }
    }

    /// The scale of the block, run or group that holds a row-major index, as `f32`.
    pub fn load_scale(&self, b: &mut Builder, index: impl Into<Value>) -> Value {
        let index = index.into();
        let format = self.spec.format;
        match format {
            Format::Plain(_) => return Value::from(1.0f32),
            Format::I8Groups { group } => {
                let at = b.div(index, group);
                return b.load(self.views[1], at);
            }
            Format::Q8Planes | Format::Q4Planes | Format::T2Planes => {
                let at = b.shr(index, format.block_len().trailing_zeros());
                return b.load_f32(self.views[1], at);
            }
            _ => {}
        }
        let d = self.number(b, index, 0);
        if format.scale_len() == format.block_len() {
            return d;
        }
        let factor = self.scale_factor(b, index);
        let factor = b.cvt(Type::F32, factor);
        b.mul(d, factor)
    }

    /// What the scale of the run that holds an index is as a multiple of its block's, for formats whose runs are less than their blocks.
    pub fn scale_factor(&self, b: &mut Builder, index: Value) -> Value {
        let format = self.spec.format;
        let at = self.element(b, index);
        let run = b.shr(at.e, format.scale_len().trailing_zeros());
        match format {
            Format::Planes(packed) => {
                let first = 2 * packed.numbers() as u32;
                match packed.factors() {
                    Factors::Pairs => {
                        let place = b.shl(run, 1u32);
                        self.record_byte(b, packed, index, place, first)
                    }
                    Factors::Halves => {
                        let byte = self.record_byte(b, packed, index, run, first);
                        b.and(byte, 15u32)
                    }
                    Factors::Signed(_) | Factors::None => {
                        let byte = self.record_byte(b, packed, index, run, first);
                        signed_byte(b, byte)
                    }
                }
            }
            Format::Q2_K => {
                let byte = self.byte(b, at.start, run, 0);
                b.and(byte, 15u32)
            }
            Format::Q3_K => {
                let (low, high) = (b.and(run, 7u32), b.and(run, 3u32));
                let low = self.byte(b, at.start, low, 96);
                let high = self.byte(b, at.start, high, 104);
                let (half, quarter) = (b.shr(run, 3u32), b.shr(run, 2u32));
                six_bits(b, [low, half], [high, quarter])
            }
            Format::IQ4_XS => {
                let (low, high) = (b.shr(run, 1u32), b.shr(run, 2u32));
                let low = self.byte(b, at.start, low, 4);
                let high = self.byte(b, at.start, high, 2);
                let (half, quarter) = (b.and(run, 1u32), b.and(run, 3u32));
                six_bits(b, [low, half], [high, quarter])
            }
            Format::Q6_K => {
                let byte = self.byte(b, at.start, run, 192);
                signed_byte(b, byte)
            }
            _ => self.k_bits(b, &at, run, 0),
        }
    }

    /// The minimum of the block or run that holds a row-major index, as `f32`; `None` for formats without.
    pub fn load_minimum(&self, b: &mut Builder, index: impl Into<Value>) -> Option<Value> {
        let (index, format) = (index.into(), self.spec.format);
        if !format.has_minimum() {
            return None;
        }
        let number = self.number(b, index, 1);
        if format.scale_len() == format.block_len() {
            return Some(b.neg(number));
        }
        let factor = self.minimum_factor(b, index);
        let factor = b.cvt(Type::F32, factor);
        Some(b.mul(number, factor))
    }

    /// As [`TensorArg::scale_factor`], of the minimum.
    pub fn minimum_factor(&self, b: &mut Builder, index: Value) -> Value {
        let format = self.spec.format;
        let at = self.element(b, index);
        let run = b.shr(at.e, format.scale_len().trailing_zeros());
        match format {
            Format::Planes(packed) => {
                let first = 2 * packed.numbers() as u32;
                if packed.factors() == Factors::Halves {
                    let byte = self.record_byte(b, packed, index, run, first);
                    b.shr(byte, 4u32)
                } else {
                    let place = b.shl(run, 1u32);
                    self.record_byte(b, packed, index, place, first + 1)
                }
            }
            Format::Q2_K => {
                let byte = self.byte(b, at.start, run, 0);
                b.shr(byte, 4u32)
            }
            _ => self.k_bits(b, &at, run, 4),
        }
    }

    /// The bits of the code at a row-major index, as the file has them: [`Packed`].
    pub fn packed_bits(&self, b: &mut Builder, packed: Packed, index: Value) -> Value {
        if self.spec.format == packed.blocks() && packed.is_table() {
            let at = self.element(b, index);
            let code = self.half(b, &at, if packed == Packed::IQ4_NL { 2 } else { 8 }, 16, 0);
            return b.cvt(Type::U32, code);
        }
        if self.spec.format == packed.blocks() {
            let code = self.load_code(b, index);
            let code = b.add(code, i32::from(packed.bias()));
            return b.cvt(Type::U32, code);
        }
        let (chunk, e) = (b.shr(index, 5u32), b.and(index, 31u32));
        // Byte `place` of a plane with so many bytes a chunk, shifted and masked.
        let bits = |b: &mut Builder, view: usize, bytes: u32, place: Value, shift: Value, mask: u32| {
            let at = b.mul(chunk, bytes);
            let at = b.add(at, place);
            let byte = b.load(self.views[view], at);
            let byte = b.cvt(Type::U32, byte);
            let byte = b.shr(byte, shift);
            b.and(byte, mask)
        };
        let quarter = |b: &mut Builder, view: usize| {
            let word = b.shr(e, 4u32);
            let word = b.shl(word, 2u32);
            let i = b.and(e, 3u32);
            let place = b.or(word, i);
            let shift = b.shr(e, 2u32);
            let shift = b.and(shift, 3u32);
            let shift = b.shl(shift, 1u32);
            bits(b, view, 8, place, shift, 3)
        };
        let low = match (packed.low_bits(), packed.is_table()) {
            (2, _) => quarter(b, 0),
            (_, true) => {
                let place = b.shr(e, 1u32);
                let odd = b.and(e, 1u32);
                let shift = b.shl(odd, 2u32);
                bits(b, 0, 16, place, shift, 15)
            }
            (_, false) => {
                let place = b.and(e, 15u32);
                let upper = b.shr(e, 4u32);
                let shift = b.shl(upper, 2u32);
                bits(b, 0, 16, place, shift, 15)
            }
        };
        let high = match packed.high_bits() {
            2 => quarter(b, 1),
            1 => {
                let (place, shift) = (b.and(e, 3u32), b.shr(e, 2u32));
                bits(b, 1, 4, place, shift, 1)
            }
            _ => return low,
        };
        let high = b.shl(high, packed.low_bits() as u32);
        b.or(low, high)
    }

    /// Byte `place + first` of the record of the block that holds an index.
    fn record_byte(&self, b: &mut Builder, packed: Packed, index: Value, place: Value, first: u32) -> Value {
        let block = b.shr(index, self.spec.format.block_len().trailing_zeros());
        let start = b.mul(block, packed.record_bytes() as u32);
        let at = b.add(start, place);
        let at = b.add(at, first);
        // The records as bytes are the last view but one.
        let byte = b.load(self.views[self.views.len() - 2], at);
        b.cvt(Type::U32, byte)
    }

    /// Where an element lies.
    fn element(&self, b: &mut Builder, index: Value) -> Element {
        let format = self.spec.format;
        let stride = match format {
            Format::Q4Planes => 16u32,
            Format::T2Planes => 64,
            _ => format.block_bytes() as u32,
        };
        let len = format.block_len() as u32;
        let block = b.shr(index, len.trailing_zeros());
        Element { start: b.mul(block, stride), e: b.and(index, len - 1) }
    }

    /// The byte `place + offset` of a block as `u32`.
    fn byte(&self, b: &mut Builder, start: Value, place: Value, offset: u32) -> Value {
        let at = b.add(start, place);
        let at = if offset == 0 { at } else { b.add(at, offset) };
        let byte = b.load(self.views[0], at);
        b.cvt(Type::U32, byte)
    }

    /// One of the `f16` numbers of the block that holds an index.
    pub fn number(&self, b: &mut Builder, index: Value, which: usize) -> Value {
        let format = self.spec.format;
        let (stride, first) = match format {
            Format::Planes(packed) => (packed.record_bytes(), which as u32),
            _ => (format.block_bytes(), format.numbers_at().get(which).map_or(0, |at| *at as u32 / 2)),
        };
        let block = b.shr(index, format.block_len().trailing_zeros());
        let at = b.mul(block, stride as u32 / 2);
        let at = if first == 0 { at } else { b.add(at, first) };
        b.load_f32(self.views[self.views.len() - 1], at)
    }

    /// A code of 4 bits, plus `offset`, as `i32`: from byte `first` on, runs of `bytes` bytes hold those of `bytes` elements in their low
    /// halves and those of the next in their high halves.
    fn half(&self, b: &mut Builder, at: &Element, first: u32, bytes: u32, offset: i32) -> Value {
        let place = b.and(at.e, bytes - 1);
        let place = if self.spec.format.block_len() as u32 == 2 * bytes {
            place
        } else {
            let run = b.shr(at.e, (2 * bytes).trailing_zeros());
            let run = b.mul(run, bytes);
            b.add(run, place)
        };
        let byte = self.byte(b, at.start, place, first);
        let high = b.shr(at.e, bytes.trailing_zeros());
        let high = b.and(high, 1u32);
        let shift = b.shl(high, 2u32);
        let code = b.shr(byte, shift);
        let code = b.and(code, 15u32);
        signed(b, code, offset)
    }

    /// A code of 2 bits, plus `offset`, as `i32`: from byte `first` on, runs of 32 bytes hold those of 128 elements, 32 by 32 from the
    /// lowest bits up.
    fn quarter(&self, b: &mut Builder, at: &Element, first: u32, offset: i32) -> Value {
        let h = b.shr(at.e, 7u32);
        let h = b.shl(h, 5u32);
        let m = b.and(at.e, 31u32);
        let place = b.add(h, m);
        let byte = self.byte(b, at.start, place, first);
        let l = b.shr(at.e, 5u32);
        let l = b.and(l, 3u32);
        let shift = b.shl(l, 1u32);
        let code = b.shr(byte, shift);
        let code = b.and(code, 3u32);
        signed(b, code, offset)
    }

    /// The fifth bit of a code, at its place as `i32`: bit `e` of the four bytes from `first` on.
    fn fifth_bit(&self, b: &mut Builder, at: &Element, first: u32) -> Value {
        let place = b.shr(at.e, 3u32);
        let byte = self.byte(b, at.start, place, first);
        let bit = b.and(at.e, 7u32);
        let bit = b.shr(byte, bit);
        let bit = b.and(bit, 1u32);
        let bit = b.shl(bit, 4u32);
        b.cvt(Type::I32, bit)
    }

    /// A bit of a code as `i32`: of element `32l + i`, bit `l` of byte `first + i`.
    fn bit_of_run(&self, b: &mut Builder, at: &Element, first: u32) -> Value {
        let place = b.and(at.e, 31u32);
        let byte = self.byte(b, at.start, place, first);
        let l = b.shr(at.e, 5u32);
        let bit = b.shr(byte, l);
        let bit = b.and(bit, 1u32);
        b.cvt(Type::I32, bit)
    }

    /// A ternary code of base 3, as `i32`.
    fn digit(&self, b: &mut Builder, at: &Element) -> Value {
        let second = b.ge(at.e, 160u32);
        let last = b.ge(at.e, 240u32);
        // The first element and byte of a part, and the binary logarithm of its bytes.
        let part = |b: &mut Builder, values: [u32; 3]| {
            let early = b.select(second, values[1], values[0]);
            b.select(last, values[2], early)
        };
        let (element, byte, bits) = (part(b, [0, 160, 240]), part(b, [0, 32, 48]), part(b, [5, 4, 2]));
        let e = b.sub(at.e, element);
        let n = b.shr(e, bits);
        let whole = b.shl(n, bits);
        let i = b.sub(e, whole);
        let place = b.add(byte, i);
        let byte = self.byte(b, at.start, place, 0);
        // 3ⁿ: a byte of 27 9 3 1, or 81.
        let shift = b.shl(n, 3u32);
        let shift = b.and(shift, 31u32);
        let power = b.shr(0x1b09_0301u32, shift);
        let power = b.and(power, 255u32);
        let highest = b.eq(n, 4u32);
        let power = b.select(highest, 81u32, power);
        let code = b.mul(byte, power);
        let code = b.and(code, 255u32);
        let code = b.mul(code, 3u32);
        let code = b.shr(code, 8u32);
        signed(b, code, -1)
    }

    /// The 6 bits of a run's scale (`part` 0) or minimum (`part` 4) of `Q4_K` and `Q5_K`, whose bytes 4 to 16 hold them.
    fn k_bits(&self, b: &mut Builder, at: &Element, run: Value, part: u32) -> Value {
        let place = b.and(run, 3u32);
        let first = self.byte(b, at.start, place, 4 + part);
        let both = self.byte(b, at.start, place, 12);
        let early = b.and(first, 63u32);
        let low = if part == 0 { both } else { b.shr(both, 4u32) };
        let low = b.and(low, 15u32);
        let high = b.shr(first, 6u32);
        let high = b.shl(high, 4u32);
        let late = b.or(low, high);
        let is_early = b.lt(run, 4u32);
        b.select(is_early, early, late)
    }
}

/// A byte with its sign, as `i32`.
fn signed_byte(b: &mut Builder, byte: Value) -> Value {
    let byte = b.shl(byte, 24u32);
    let byte = b.bitcast(Type::I32, byte);
    b.shr(byte, 24u32)
}

fn signed(b: &mut Builder, code: Value, offset: i32) -> Value {
    let code = b.cvt(Type::I32, code);
    if offset == 0 { code } else { b.add(code, offset) }
}

/// A number of 6 bits less 32: the half of a byte with this place, and the quarter of another above.
fn six_bits(b: &mut Builder, [low, half]: [Value; 2], [high, quarter]: [Value; 2]) -> Value {
    let shift = b.shl(half, 2u32);
    let low = b.shr(low, shift);
    let low = b.and(low, 15u32);
    let shift = b.shl(quarter, 1u32);
    let high = b.shr(high, shift);
    let high = b.and(high, 3u32);
    let high = b.shl(high, 4u32);
    let bits = b.or(low, high);
    signed(b, bits, -32)
}

/// The entry of [`IQ4_VALUES`]: four of them in a word.
fn iq4_value(b: &mut Builder, code: Value) -> Value {
    let code = b.cvt(Type::U32, code);
    let words = [0, 4, 8, 12].map(|i| u32::from_le_bytes([0, 1, 2, 3].map(|j| IQ4_VALUES[i + j] as u8)));
    let upper = b.ge(code, 8u32);
    let odd = b.and(code, 4u32);
    let odd = b.ne(odd, 0u32);
    let (low, high) = (b.select(odd, words[1], words[0]), b.select(odd, words[3], words[2]));
    let word = b.select(upper, high, low);
    // The byte to the top, then down with its sign.
    let place = b.and(code, 3u32);
    let place = b.sub(3u32, place);
    let shift = b.shl(place, 3u32);
    let value = b.shl(word, shift);
    let value = b.bitcast(Type::I32, value);
    b.shr(value, 24u32)
}
