//! Which matrices of a folder are quantized and how, by the names, types and shapes of their tensors.

use super::map::Entry;
use super::packed::{self, Integers, Packed};
use super::weights::FolderWeights;
use crate::error::Result;

/// The place in an AWQ word of each of eight neighbouring elements, in nibbles.
const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A tensor of 32-bit words that hold eight nibbles each.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn nibble(&self, word: usize, place: usize) -> i32 {
        let byte = self.0.get(4 * word + place / 2).copied().unwrap_or(0);
        i32::from(byte >> (place % 2 * 4) & 15)
    }

    fn word(&self, i: usize) -> usize {
        self.0.get(4 * i..4 * i + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize)
    }
}

impl FolderWeights<'_> {
    /// The matrix `NAME.weight` if the folder has it quantized.
    pub(super) fn packed(&self, name: &str, [rows, row_len]: [usize; 2]) -> Result<Option<Packed>> {
        let Some(module) = name.strip_suffix(".weight") else { return Ok(None) };
        let of = |end: &str| format!("{module}.{end}");
        let found = |end: &str| self.folder().find(&of(end)).map(|(_, entry)| entry);
        let (packed, shard) = if let Some(entry) = found("qweight") {
            let awq = entry.shape.first() == Some(&row_len);
            (if awq { self.awq(&of, rows, row_len)? } else { self.gptq(&of, rows, row_len)? }, of("qweight"))
        } else if let Some(entry) = found("weight_packed") {
            let floats = entry.dtype.name == "U8";
            let packed = if floats { self.nvfp4(&of, rows, row_len)? } else { self.compressed(&of, rows, row_len)? };
            (packed, of("weight_packed"))
        } else if found("weight.absmax").is_some() {
            (self.bitsandbytes(&of, rows, row_len)?, of("weight"))
        } else {
            match found("weight").map(|entry| entry.dtype.name) {
                Some("F8_E4M3") => (self.fp8(&of, rows, row_len)?, of("weight")),
                Some("U32") if found("scales").is_some() => (self.mlx(&of, rows, row_len)?, of("weight")),
                _ => return Ok(None),
            }
        };
        let (shard, _) = self.entry(&shard)?;
        packed.map(Some).map_err(|reason| self.bad(shard, format!("tensor {name} {reason}")))
    }

    /// A tensor's bytes, if it has this type and shape.
    fn words(&self, name: &str, ty: &str, shape: &[usize]) -> Result<&[u8]> {
        let (shard, entry) = self.checked(name, shape)?;
        if entry.dtype.name != ty {
            return Err(self.bad(shard, format!("tensor {name} has type {}, but must have {ty}", entry.dtype.name)));
        }
        Ok(self.data(shard, entry))
    }

    /// Scales of groups along the dimension with this index, and the elements of a group of `of`.
    fn groups(&self, name: &str, along: usize, other: usize, of: usize) -> Result<(Vec<f32>, usize)> {
        let (shard, entry) = self.entry(name)?;
        let groups = entry.shape.get(along).copied().unwrap_or(0);
        let fits = entry.shape.len() == 2 && entry.shape[1 - along] == other && groups > 0 && of.is_multiple_of(groups);
        if !fits {
            let reason = format!("tensor {name} has shape {:?}, which does not fit its matrix", entry.shape);
            return Err(self.bad(shard, reason));
        }
        Ok((self.values(shard, entry)?, of / groups))
    }

    fn gptq(
        &self,
        of: &dyn Fn(&str) -> String,
        rows: usize,
        row_len: usize,
    ) -> Result<std::result::Result<Packed, String>> {
        let codes = Words(self.words(&of("qweight"), "I32", &[row_len / 8, rows])?);
        let (scales, group) = self.groups(&of("scales"), 0, rows, row_len)?;
        let groups = row_len / group.max(1);
        let zeros = Words(self.words(&of("qzeros"), "I32", &[groups, rows / 8])?);
        let index =
            self.folder().find(&of("g_idx")).map(|_| self.words(&of("g_idx"), "I32", &[row_len])).transpose()?;
        let index = index.map(Words);
        if let Some(index) = &index
            && let Some(i) = (0..row_len).find(|i| index.word(*i) >= groups)
        {
            return Ok(Err(format!("has element {i} in group {}, but there are {groups}", index.word(i))));
        }
        // The first version of the format holds zero points minus 1.
        let conf = self.folder().config_json().get("quantization_config");
        let second =
            conf.and_then(|c| c.get("checkpoint_format")).and_then(serde_json::Value::as_str) == Some("gptq_v2");
        let offset = i32::from(!second);
        let element = |r: usize, i: usize| {
            let g = index.as_ref().map_or(i / group, |index| index.word(i));
            let zero = zeros.nibble(g * (rows / 8) + r / 8, r % 8) + offset;
            (codes.nibble(i / 8 * rows + r, i % 8) - zero, scales[g * rows + r], 0.0)
        };
        Ok(Integers { rows, row_len, element, biased: false }.pack())
    }

    fn awq(
        &self,
        of: &dyn Fn(&str) -> String,
        rows: usize,
        row_len: usize,
    ) -> Result<std::result::Result<Packed, String>> {
        let columns = rows / 8;
        let codes = Words(self.words(&of("qweight"), "I32", &[row_len, columns])?);
        let (scales, group) = self.groups(&of("scales"), 0, rows, row_len)?;
        let zeros = Words(self.words(&of("qzeros"), "I32", &[row_len / group.max(1), columns])?);
        let element = |r: usize, i: usize| {
            let (place, g) = (AWQ_ORDER[r % 8], i / group);
            let code = codes.nibble(i * columns + r / 8, place) - zeros.nibble(g * columns + r / 8, place);
            (code, scales[g * rows + r], 0.0)
        };
        Ok(Integers { rows, row_len, element, biased: false }.pack())
    }

    /// Symmetric integers of compressed-tensors.
    fn compressed(
        &self,
        of: &dyn Fn(&str) -> String,
        rows: usize,
        row_len: usize,
    ) -> Result<std::result::Result<Packed, String>> {
        for end in ["weight_zero_point", "weight_g_idx"] {
            if self.folder().find(&of(end)).is_some() {
                return Ok(Err(format!("has a {end}, which is not supported")));
            }
        }
        self.ignore(&of("weight_shape"));
        let codes = Words(self.words(&of("weight_packed"), "I32", &[rows, row_len / 8])?);
        let (scales, group) = self.groups(&of("weight_scale"), 1, rows, row_len)?;
        let groups = row_len / group.max(1);
        let element = |r: usize, i: usize| {
            (codes.nibble(r * (row_len / 8) + i / 8, i % 8) - 8, scales[r * groups + i / group], 0.0)
        };
        Ok(Integers { rows, row_len, element, biased: false }.pack())
    }

    fn mlx(
        &self,
        of: &dyn Fn(&str) -> String,
        rows: usize,
        row_len: usize,
    ) -> Result<std::result::Result<Packed, String>> {
        let codes = Words(self.words(&of("weight"), "U32", &[rows, row_len / 8])?);
        let (scales, group) = self.groups(&of("scales"), 1, rows, row_len)?;
        let (biases, _) = self.groups(&of("biases"), 1, rows, row_len)?;
        let groups = row_len / group.max(1);
        if biases.len() != scales.len() {
            return Ok(Err(format!("has {} biases, but {} scales", biases.len(), scales.len())));
        }
        let element = |r: usize, i: usize| {
            let g = r * groups + i / group;
            (codes.nibble(r * (row_len / 8) + i / 8, i % 8), scales[g], biases[g])
        };
        Ok(Integers { rows, row_len, element, biased: true }.pack())
    }

    /// FP8 with a scale per block, per row, or for the matrix.
    fn fp8(
        &self,
        of: &dyn Fn(&str) -> String,
        rows: usize,
        row_len: usize,
    ) -> Result<std::result::Result<Packed, String>> {
        let data = self.words(&of("weight"), "F8_E4M3", &[rows, row_len])?;
        let name =
            of(if self.folder().find(&of("weight_scale_inv")).is_some() { "weight_scale_inv" } else { "weight_scale" });
        let (shard, entry): (usize, &Entry) = self.entry(&name)?;
        let scales = self.values(shard, entry)?;
        let conf = self.folder().config_json().get("quantization_config").and_then(|c| c.get("weight_block_size"));
        let size =
            |i: usize| conf.and_then(|c| c.get(i)?.as_u64()).and_then(|n| usize::try_from(n).ok()).unwrap_or(128);
        let block = match entry.shape[..] {
            [] | [1] | [1, 1] => [rows.max(1), row_len.max(1)],
            [n] | [n, 1] if n == rows => [1, row_len.max(1)],
            _ => [size(0).max(1), size(1).max(1)],
        };
        let expected = [rows.div_ceil(block[0]), row_len.div_ceil(block[1])];
        if scales.len() != expected[0] * expected[1] || (entry.shape.len() == 2 && entry.shape != expected) {
            let reason = format!(
                "tensor {name} has shape {:?}, but a matrix of [{rows}, {row_len}] in blocks of {block:?} requires {expected:?}",
                entry.shape
            );
            return Err(self.bad(shard, reason));
        }
        Ok(packed::fp8(data, [rows, row_len], block, &scales))
    }

    /// NF4 or FP4 of bitsandbytes, whose scales may be codes themselves.
    fn bitsandbytes(
        &self,
        of: &dyn Fn(&str) -> String,
        rows: usize,
        row_len: usize,
    ) -> Result<std::result::Result<Packed, String>> {
        let kinds = ["nf4", "fp4"].map(|kind| of(&format!("weight.quant_state.bitsandbytes__{kind}")));
        let Some(state) = kinds.iter().find(|name| self.folder().find(name).is_some()) else {
            return Ok(Err("has scales of bitsandbytes, but neither an nf4 nor an fp4 quant_state".into()));
        };
        let (shard, entry) = self.entry(state)?;
        let settings: serde_json::Value = match serde_json::from_slice(self.data(shard, entry)) {
            Ok(settings) => settings,
            Err(e) => return Err(self.bad(shard, format!("tensor {state} is not JSON ({e})"))),
        };
        let size = |key: &str| settings[key].as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        let Some(block) = size("blocksize") else {
            return Err(self.bad(shard, format!("tensor {state} has no blocksize")));
        };
        if settings["shape"] != serde_json::json!([rows, row_len]) {
            let reason =
                format!("tensor {state} has shape {}, but config.json requires [{rows}, {row_len}]", settings["shape"]);
            return Err(self.bad(shard, reason));
        }
        let codes = self.words(&of("weight"), "U8", &[rows * row_len / 2, 1])?;
        let list = |end: &str| -> Result<Vec<f32>> {
            let (shard, entry) = self.entry(&of(end))?;
            self.values(shard, entry)
        };
        let map = list("weight.quant_map")?;
        let (shard, absmax) = self.entry(&of("weight.absmax"))?;
        let scales = match absmax.dtype.name {
            "U8" => {
                let (map, nested) = (list("weight.nested_quant_map")?, list("weight.nested_absmax")?);
                let of_scales = size("nested_blocksize").unwrap_or(256);
                let offset = settings["nested_offset"].as_f64().unwrap_or(0.0) as f32;
                let codes = self.data(shard, absmax);
                if map.len() != 256 || nested.len() != codes.len().div_ceil(of_scales) {
                    let reason =
                        format!("has {} scales of {} scales in blocks of {of_scales}", nested.len(), codes.len());
                    return Ok(Err(reason));
                }
                let scale = |(i, code): (usize, &u8)| map[usize::from(*code)] * nested[i / of_scales] + offset;
                codes.iter().enumerate().map(scale).collect()
            }
            _ => self.values(shard, absmax)?,
        };
        Ok(packed::mapped(codes, &map, &scales, block))
    }

    fn nvfp4(
        &self,
        of: &dyn Fn(&str) -> String,
        rows: usize,
        row_len: usize,
    ) -> Result<std::result::Result<Packed, String>> {
        self.ignore(&of("input_global_scale"));
        let codes = self.words(&of("weight_packed"), "U8", &[rows, row_len / 2])?;
        let scales = self.words(&of("weight_scale"), "F8_E4M3", &[rows, row_len / 16])?;
        let (shard, entry) = self.entry(&of("weight_global_scale"))?;
        let [divisor] = self.values(shard, entry)?[..] else {
            return Err(self.bad(shard, format!("tensor {} is not a single number", entry.name)));
        };
        Ok(packed::nvfp4(codes, scales, divisor, [rows, row_len]))
    }
}
