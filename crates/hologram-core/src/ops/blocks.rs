//! How programs read the elements of tensors in every format: codes, scales and minimums.

use hologram_backends::{Bits, BlockType, Codes, DType, Factors, PlaneLayout, Scales, Values};
use hologram_isa::{Builder, Type, Value};

use super::TensorArg;

/// An element of a tensor in a block format.
struct Element {
    /// The first byte of its block's codes, or of its block.
    start: Value,
    /// Its index in the block.
    e: Value,
}

impl TensorArg {
    /// The element at a row-major index, dequantized to `f32`.
    pub fn load(&self, b: &mut Builder, index: impl Into<Value>) -> Value {
        let index = index.into();
        if let DType::Plain(_) = self.spec.format {
            return b.load_f32(self.views[0], index);
        }
        if self.spec.format == DType::F8 {
            return self.load_number(b, index);
        }
        let code = self.load_number(b, index);
        let scale = self.load_scale(b, index);
        let value = b.mul(scale, code);
        match self.load_minimum(b, index) {
            Some(minimum) => b.sub(value, minimum),
            None => value,
        }
    }

    /// The code at a row-major index as `f32`, an integer or a float.
    pub fn load_number(&self, b: &mut Builder, index: impl Into<Value>) -> Value {
        let index = index.into();
        if !self.spec.format.has_float_codes() {
            let code = self.load_code(b, index);
            return b.cvt(Type::F32, code);
        }
        let code = self.float_bits(b, index);
        let bits = b.and(code, 127u32);
        let normal = b.shl(bits, 20u32);
        let normal = b.add(normal, 120u32 << 23);
        let normal = b.bitcast(Type::F32, normal);
        let small = b.cvt(Type::F32, bits);
        let small = b.mul(small, 1.0f32 / 512.0);
        let is_small = b.lt(bits, 8u32);
        let magnitude = b.select(is_small, small, normal);
        let magnitude = match self.spec.format {
            DType::F8 => {
                let is_nan = b.eq(bits, 127u32);
                b.select(is_nan, f32::NAN, magnitude)
            }
            _ => magnitude,
        };
        let magnitude = b.bitcast(Type::U32, magnitude);
        let sign = b.and(code, 128u32);
        let sign = b.shl(sign, 24u32);
        let value = b.or(magnitude, sign);
        b.bitcast(Type::F32, value)
    }

    /// The byte of a code that is a float.
    fn float_bits(&self, b: &mut Builder, index: Value) -> Value {
        if let DType::Planes(_) | DType::F8Groups { .. } | DType::F8 = self.spec.format {
            let byte = b.load(self.views[0], index);
            return b.cvt(Type::U32, byte);
        }
        let first = match self.spec.format.row().map(|row| row.codes) {
            Some(Codes::Bits(low, _)) => low.at as u32,
            _ => 0,
        };
        let at = self.element(b, index);
        self.byte(b, at.start, at.e, first)
    }

    /// The integer code at a row-major index as `i32`, for block-quantized and group-quantized formats. The value is
    /// scale · code − minimum, if the format has a minimum.
    pub fn load_code(&self, b: &mut Builder, index: impl Into<Value>) -> Value {
        let (index, format) = (index.into(), self.spec.format);
        let Some(row) = format.row() else {
            let code = b.load(self.views[0], index);
            return b.cvt(Type::I32, code);
        };
        let offset = -i32::from(row.values.offset());
        if let Some(packed) = format.packed() {
            let bits = self.packed_bits(b, packed, index);
            return match row.values {
                Values::Table(table) => table_value(b, table, bits),
                _ => signed(b, bits, offset),
            };
        }
        let (low, high) = match row.codes {
            Codes::Bits(low, high) => (low, high),
            Codes::Trits(parts) => {
                let at = self.element(b, index);
                return self.digit(b, &at, parts);
            }
        };
        // A plane of 8-bit signed codes holds the elements directly. In other planes of codes a block begins with its
        // codes.
        let in_plane = matches!(format, DType::Planes(_));
        if in_plane && row.values == Values::Signed {
            let code = b.load(self.views[0], index);
            return b.cvt(Type::I32, code);
        }
        let low = if in_plane { Bits { at: 0, ..low } } else { low };
        let at = self.element(b, index);
        match (row.values, high) {
            (Values::Signed, _) => {
                let byte = b.add(at.start, at.e);
                let byte = b.add(byte, low.at as u32);
                let code = b.load(self.views[0], byte);
                b.cvt(Type::I32, code)
            }
            (Values::Table(table), _) => {
                let code = self.bits(b, &at, low);
                let code = signed(b, code, 0);
                table_value(b, table, code)
            }
            (_, None) => {
                let code = self.bits(b, &at, low);
                signed(b, code, offset)
            }
            (_, Some(high)) => {
                let code = self.bits(b, &at, low);
                let code = signed(b, code, offset);
                let high = self.high_bits(b, &at, high);
                b.add(code, high)
            }
        }
    }

    /// The scale of the block, run or group that holds a row-major index, as `f32`.
    pub fn load_scale(&self, b: &mut Builder, index: impl Into<Value>) -> Value {
        let index = index.into();
        let format = self.spec.format;
        match format {
            DType::Plain(_) | DType::F8 => return Value::from(1.0f32),
            DType::I8Groups { group } | DType::F8Groups { group } => {
                let at = b.div(index, group);
                return b.load(self.views[1], at);
            }
            DType::Planes(block) if block.row().planes == PlaneLayout::Codes => {
                let at = b.shr(index, format.block_len().trailing_zeros());
                return b.load_f32(self.views[1], at);
            }
            _ => {}
        }
        match self.scales() {
            Scales::E8M0 { .. } => return self.e8m0(b, index),
            Scales::UE4M3 { .. } => return self.ue4m3(b, index),
            Scales::F32 { .. } => {
                let bits = self.scale_factor(b, index);
                return b.bitcast(Type::F32, bits);
            }
            _ => {}
        }
        let d = self.number(b, index, 0);
        let d = match self.scales() {
            Scales::Fractions { of, .. } if of != 1 => b.mul(d, 1.0 / of as f32),
            _ => d,
        };
        if format.scale_len() == format.block_len() {
            return d;
        }
        let factor = self.scale_factor(b, index);
        let factor = b.cvt(Type::F32, factor);
        b.mul(d, factor)
    }

    /// The scale of the run that holds an index as a multiple of its block's scale, for formats with several runs per
    /// block; the bits of a scale that is a float itself.
    pub fn scale_factor(&self, b: &mut Builder, index: Value) -> Value {
        let at = self.element(b, index);
        let run = b.shr(at.e, self.spec.format.scale_len().trailing_zeros());
        if let Some(packed) = self.spec.format.packed() {
            if packed.factors() == Factors::Whole {
                return self.word(b, |b, i| self.record_byte(b, packed, index, Value::from(i), 0));
            }
            let pairs = packed.factors() == Factors::Pairs;
            let place = if pairs { b.shl(run, 1u32) } else { run };
            let byte = self.record_byte(b, packed, index, place, 2 * packed.numbers() as u32);
            return match packed.factors() {
                Factors::Pairs => byte,
                Factors::Nibbles => b.and(byte, 15u32),
                Factors::Exponent | Factors::Floats => byte,
                Factors::Signed(_) | Factors::None | Factors::Whole => signed_byte(b, byte),
            };
        }
        match self.scales() {
            Scales::Nibbles { at: first } => {
                let byte = self.byte(b, at.start, run, first as u32);
                b.and(byte, 15u32)
            }
            Scales::SixBits { low, high, .. } => {
                let runs = self.spec.format.block_len() / self.spec.format.scale_len();
                let (low_place, high_place) = (byte_of(b, low, run, runs), byte_of(b, high, run, runs));
                let low_byte = self.byte(b, at.start, low_place, low.at as u32);
                let high_byte = self.byte(b, at.start, high_place, high.at as u32);
                let (half, quarter) = (place_in_byte(b, low, run, runs), place_in_byte(b, high, run, runs));
                six_bits(b, [low_byte, half], [high_byte, quarter])
            }
            Scales::Signed { at: first } | Scales::Fractions { at: first, .. } => {
                let byte = self.byte(b, at.start, run, first as u32);
                signed_byte(b, byte)
            }
            Scales::SixBitPairs { at: first } => self.k_bits(b, &at, run, first as u32, 0),
            // These scales are floats of one byte themselves.
            Scales::E8M0 { at: first } | Scales::UE4M3 { at: first } => self.byte(b, at.start, run, first as u32),
            Scales::F32 { at: first } => self.word(b, |b, i| self.byte(b, at.start, Value::from(first as u32 + i), 0)),
            Scales::One => Value::from(1u32),
        }
    }

    /// Four bytes as a word, the lowest first.
    fn word(&self, b: &mut Builder, byte: impl Fn(&mut Builder, u32) -> Value) -> Value {
        let mut word = byte(b, 0);
        for i in 1..4 {
            let next = byte(b, i);
            let next = b.shl(next, 8 * i);
            word = b.or(word, next);
        }
        word
    }

    /// The scale of [`Scales::E8M0`].
    fn e8m0(&self, b: &mut Builder, index: Value) -> Value {
        let byte = self.scale_factor(b, index);
        let small = b.lt(byte, 2u32);
        let least = b.shl(0x0020_0000u32, byte);
        let exponent = b.sub(byte, 1u32);
        let bits = b.shl(exponent, 23u32);
        let bits = b.select(small, least, bits);
        b.bitcast(Type::F32, bits)
    }

    /// The scale of [`Scales::UE4M3`].
    fn ue4m3(&self, b: &mut Builder, index: Value) -> Value {
        let byte = self.scale_factor(b, index);
        let bits = b.and(byte, 127u32);
        let normal = b.shl(bits, 20u32);
        let normal = b.add(normal, 119u32 << 23);
        let normal = b.bitcast(Type::F32, normal);
        let small = b.cvt(Type::F32, bits);
        let small = b.mul(small, 1.0f32 / 1024.0);
        let is_small = b.lt(bits, 8u32);
        let scale = b.select(is_small, small, normal);
        let none = b.eq(byte, 127u32);
        b.select(none, 0.0f32, scale)
    }

    /// The minimum of the block or run that holds a row-major index, as `f32`; `None` for formats without minimums.
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

    /// As [`TensorArg::scale_factor`], for the minimum.
    pub fn minimum_factor(&self, b: &mut Builder, index: Value) -> Value {
        let at = self.element(b, index);
        let run = b.shr(at.e, self.spec.format.scale_len().trailing_zeros());
        if let Some(packed) = self.spec.format.packed() {
            let first = 2 * packed.numbers() as u32;
            if packed.factors() == Factors::Nibbles {
                let byte = self.record_byte(b, packed, index, run, first);
                return b.shr(byte, 4u32);
            }
            let place = b.shl(run, 1u32);
            return self.record_byte(b, packed, index, place, first + 1);
        }
        match self.scales() {
            Scales::Nibbles { at: first } => {
                let byte = self.byte(b, at.start, run, first as u32);
                b.shr(byte, 4u32)
            }
            Scales::SixBitPairs { at: first } => self.k_bits(b, &at, run, first as u32, 4),
            // These formats have no minimums.
            _ => Value::from(0u32),
        }
    }

    fn scales(&self) -> Scales {
        self.spec.format.row().map_or(Scales::One, |row| row.scales)
    }

    /// The bits of the code at a row-major index, as in the file, for a tensor in blocks or in chunks.
    pub fn packed_bits(&self, b: &mut Builder, packed: BlockType, index: Value) -> Value {
        if self.spec.format.has_float_codes() {
            return self.float_bits(b, index);
        }
        if let DType::Block(block) = self.spec.format {
            let code = match (block.table(), block.row().codes) {
                (Some(_), Codes::Bits(low, _)) => {
                    let at = self.element(b, index);
                    let code = self.bits(b, &at, low);
                    signed(b, code, 0)
                }
                _ => {
                    let code = self.load_code(b, index);
                    b.add(code, i32::from(block.bias()))
                }
            };
            return b.cvt(Type::U32, code);
        }
        let (chunk, e) = (b.shr(index, 5u32), b.and(index, 31u32));
        // Byte `place` of a plane with `bytes` bytes per chunk, shifted and masked.
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
        let low = match (packed.low_bits(), packed.table()) {
            (2, _) => quarter(b, 0),
            (_, Some(_)) => {
                let place = b.shr(e, 1u32);
                let odd = b.and(e, 1u32);
                let shift = b.shl(odd, 2u32);
                bits(b, 0, 16, place, shift, 15)
            }
            (_, None) => {
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
    fn record_byte(&self, b: &mut Builder, packed: BlockType, index: Value, place: Value, first: u32) -> Value {
        let block = b.shr(index, self.spec.format.block_len().trailing_zeros());
        let start = b.mul(block, packed.record_bytes() as u32);
        let at = b.add(start, place);
        let at = b.add(at, first);
        // Records as bytes follow the planes of codes.
        let byte = b.load(self.views[1 + usize::from(packed.high_bits() > 0)], at);
        b.cvt(Type::U32, byte)
    }

    /// Where an element lies.
    fn element(&self, b: &mut Builder, index: Value) -> Element {
        let format = self.spec.format;
        let stride = match format {
            DType::Planes(block) if !block.is_packed() => block.plane_bytes()[0] as u32,
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

    /// The `f16` number with index `which` of the block that holds an index.
    pub fn number(&self, b: &mut Builder, index: Value, which: usize) -> Value {
        let format = self.spec.format;
        let (stride, first) = match format {
            DType::Planes(block) => (block.record_bytes(), which as u32),
            _ => (format.block_bytes(), format.numbers_at().get(which).map_or(0, |at| *at as u32 / 2)),
        };
        let block = b.shr(index, format.block_len().trailing_zeros());
        let at = b.mul(block, stride as u32 / 2);
        let at = if first == 0 { at } else { b.add(at, first) };
        b.load_f32(self.views[self.views.len() - 1], at)
    }

    /// The bits of an element's code, in the lowest bits of a `u32`.
    fn bits(&self, b: &mut Builder, at: &Element, bits: Bits) -> Value {
        let (len, run) = (self.spec.format.block_len(), bits.run as u32);
        let one_run = len == bits.run * bits.per_byte();
        let place = if bits.run == 1 || one_run {
            byte_of(b, bits, at.e, len)
        } else if bits.bits == 4 {
            let place = b.and(at.e, run - 1);
            let runs = b.shr(at.e, (2 * run).trailing_zeros());
            let runs = b.mul(runs, run);
            b.add(runs, place)
        } else {
            let runs = b.shr(at.e, (run * bits.per_byte() as u32).trailing_zeros());
            let runs = b.shl(runs, run.trailing_zeros());
            let place = b.and(at.e, run - 1);
            b.add(runs, place)
        };
        let byte = self.byte(b, at.start, place, bits.at as u32);
        // For single bits the shift needs no mask.
        let shift = match bits.bits {
            1 => place_in_byte(b, bits, at.e, len),
            n => {
                let l = b.shr(at.e, run.trailing_zeros());
                let l = b.and(l, bits.per_byte() as u32 - 1);
                b.shl(l, n.trailing_zeros())
            }
        };
        let code = b.shr(byte, shift);
        b.and(code, (1u32 << bits.bits) - 1)
    }

    /// The high bits of an element's code, shifted to their position, as `i32`.
    fn high_bits(&self, b: &mut Builder, at: &Element, bits: Bits) -> Value {
        let code = self.bits(b, at, bits);
        if bits.run == 1 {
            let code = b.shl(code, bits.to);
            return b.cvt(Type::I32, code);
        }
        let code = b.cvt(Type::I32, code);
        b.shl(code, bits.to)
    }

    /// A ternary code stored in base 3, as `i32`.
    fn digit(&self, b: &mut Builder, at: &Element, bytes: [usize; 3]) -> Value {
        let bytes = bytes.map(|bytes| bytes as u32);
        let firsts = [0, bytes[0], bytes[0] + bytes[1]];
        let elements = firsts.map(|first| 5 * first);
        let second = b.ge(at.e, elements[1]);
        let last = b.ge(at.e, elements[2]);
        // The first element and byte of a part, and the binary logarithm of its number of bytes.
        let part = |b: &mut Builder, values: [u32; 3]| {
            let early = b.select(second, values[1], values[0]);
            b.select(last, values[2], early)
        };
        let (element, byte) = (part(b, elements), part(b, firsts));
        let bits = part(b, bytes.map(u32::trailing_zeros));
        let e = b.sub(at.e, element);
        let n = b.shr(e, bits);
        let whole = b.shl(n, bits);
        let i = b.sub(e, whole);
        let place = b.add(byte, i);
        let byte = self.byte(b, at.start, place, 0);
        // 3ⁿ: byte n of the constant 27 9 3 1, or 81.
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

    /// The 6 bits of a run's scale (`part` 0) or minimum (`part` 4) of [`Scales::SixBitPairs`], which begin at byte
    /// `at`.
    fn k_bits(&self, b: &mut Builder, element: &Element, run: Value, at: u32, part: u32) -> Value {
        let place = b.and(run, 3u32);
        let first = self.byte(b, element.start, place, at + part);
        let both = self.byte(b, element.start, place, at + 8);
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

/// The index of the byte that holds the bits of number `i` of `count`. Bytes are filled one after the other, or hold
/// strided elements of a single run.
fn byte_of(b: &mut Builder, bits: Bits, i: Value, count: usize) -> Value {
    debug_assert!(bits.run == 1 || count == bits.run * bits.per_byte());
    match bits.run {
        1 => b.shr(i, (bits.per_byte() as u32).trailing_zeros()),
        run => b.and(i, run as u32 - 1),
    }
}

/// The position of the bits in that byte, in multiples of their number.
fn place_in_byte(b: &mut Builder, bits: Bits, i: Value, count: usize) -> Value {
    debug_assert!(bits.run == 1 || count == bits.run * bits.per_byte());
    match bits.run {
        1 => b.and(i, bits.per_byte() as u32 - 1),
        run => b.shr(i, run.trailing_zeros()),
    }
}

/// A byte, sign-extended to `i32`.
fn signed_byte(b: &mut Builder, byte: Value) -> Value {
    let byte = b.shl(byte, 24u32);
    let byte = b.bitcast(Type::I32, byte);
    b.shr(byte, 24u32)
}

fn signed(b: &mut Builder, code: Value, offset: i32) -> Value {
    let code = b.cvt(Type::I32, code);
    if offset == 0 { code } else { b.add(code, offset) }
}

/// A 6-bit number minus 32: 4 low bits from a nibble of one byte, 2 high bits from a bit pair of another.
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

/// The entry of a table, which is packed as four entries per `u32`.
fn table_value(b: &mut Builder, table: &[i8; 16], code: Value) -> Value {
    let code = b.cvt(Type::U32, code);
    let words = [0, 4, 8, 12].map(|i| u32::from_le_bytes([0, 1, 2, 3].map(|j| table[i + j] as u8)));
    let upper = b.ge(code, 8u32);
    let odd = b.and(code, 4u32);
    let odd = b.ne(odd, 0u32);
    let (low, high) = (b.select(odd, words[1], words[0]), b.select(odd, words[3], words[2]));
    let word = b.select(upper, high, low);
    // Shifts the byte to the top, then down with its sign.
    let place = b.and(code, 3u32);
    let place = b.sub(3u32, place);
    let shift = b.shl(place, 3u32);
    let value = b.shl(word, shift);
    let value = b.bitcast(Type::I32, value);
    b.shr(value, 24u32)
}
