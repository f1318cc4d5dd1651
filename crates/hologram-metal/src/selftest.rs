//! Self-tests of native kernels, which the user's system compiles: a table of launches with the contents of their
//! buffers and the expected results (`selftests.jsonl`, one case per line), run on first use of a kernel.
//!
//! The table is generated from the operations' references by
//! `UPDATE_SELFTESTS=1 cargo test -p hologram-core --test metal_selftests`, which also fails if the table is out of
//! date.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hologram_device::{APPLE_SLACK, DType};
use hologram_gpu::{Arg, KernelArgs, KernelLaunch, Memory, NativeKernel, Part, texts};
use serde::{Deserialize, Serialize};

/// The table.
pub const CASES: &str = include_str!("selftests.jsonl");

/// The byte of memory that a case does not specify: NaN as any float.
pub const FILL: u8 = 0xff;

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// The computation, for messages.
    pub name: String,
    /// The kernel texts involved.
    pub texts: Vec<String>,
    /// Memory before the launches.
    pub buffers: Vec<TestBuffer>,
    /// The launches, in order.
    pub launches: Vec<TestLaunch>,
    /// The expected results.
    pub results: Vec<TestResult>,
}

/// Memory of a case: [`FILL`], except for some ranges.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestBuffer {
    /// Its size.
    pub bytes: usize,
    /// Offset and content (base64) of the other ranges.
    pub contents: Vec<(usize, String)>,
}

/// A launch of a native kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestLaunch {
    /// Its bindings.
    pub bindings: Vec<TestBinding>,
    /// Bytes of scratch memory.
    pub scratch: usize,
    /// Bytes of zeroed memory.
    pub counters: usize,
    /// Its parts, in order.
    pub parts: Vec<TestPart>,
}

/// A range of a buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestBinding {
    /// The buffer's index in the case.
    pub buffer: usize,
    /// First byte.
    pub start: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// Whether it is read.
    pub read: bool,
    /// Whether it is written.
    pub write: bool,
}

/// A launch of one kernel: see [`KernelLaunch`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestPart {
    /// The kernel's text.
    pub text: String,
    /// The kernel's name in it.
    pub entry: String,
    /// Workgroups in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a workgroup in x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The arguments.
    pub args: Vec<TestArg>,
}

/// An argument of a kernel: see [`Arg`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestArg {
    /// A binding of the launch.
    Binding(usize),
    /// Scratch memory from this byte on.
    Scratch(usize),
    /// Zeroed memory from this byte on.
    Counters(usize),
    /// The fault record.
    Fault,
    /// No memory.
    Null,
    /// A number.
    U32(u32),
    /// The bits of a number.
    F32(u32),
}

/// A tensor that the launches write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestResult {
    /// The buffer that holds it.
    pub buffer: usize,
    /// Its first byte.
    pub start: usize,
    /// Its bytes.
    pub bytes: usize,
    /// The name of its format.
    pub format: String,
    /// Rows of its memory.
    pub max_rows: usize,
    /// Elements of a row.
    pub row_len: usize,
    /// The number of computed elements.
    pub len: usize,
    /// The elements that the launches change; all others must remain unchanged.
    pub changes: Vec<TestChange>,
}

/// Consecutive elements that the launches change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestChange {
    /// The first of them.
    pub first: usize,
    /// Their values: `f32` in base64.
    pub values: String,
    /// The allowed error of each, in the same encoding.
    pub bounds: String,
}

/// Numbers in base64.
pub fn encode(numbers: &[f32]) -> String {
    BASE64.encode(numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>())
}

/// The inverse of [`encode`].
///
/// # Errors
/// When this is not base64.
pub fn decode(text: &str) -> Result<Vec<f32>, String> {
    let bytes = BASE64.decode(text).map_err(|e| e.to_string())?;
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// The cases of a table.
///
/// # Errors
/// The line and its error.
pub fn read(table: &str) -> Result<Vec<Case>, String> {
    let case = |(i, line): (usize, &str)| serde_json::from_str(line).map_err(|e| format!("line {}: {e}", i + 1));
    table.lines().enumerate().map(case).collect()
}

/// The line of a case.
///
/// # Errors
/// When a number cannot be written.
pub fn line(case: &Case) -> Result<String, String> {
    serde_json::to_string(case).map_err(|e| e.to_string())
}

impl Case {
    /// The launches of kernels.
    pub fn parts(&self) -> impl Iterator<Item = &TestPart> {
        self.launches.iter().flat_map(|launch| &launch.parts)
    }
}

impl TestBuffer {
    /// Describes memory.
    pub fn of(memory: &[u8]) -> TestBuffer {
        let (mut contents, mut at) = (Vec::new(), 0);
        while let Some(start) = memory[at..].iter().position(|b| *b != FILL).map(|i| at + i) {
            // A short run of the fill byte is part of its surroundings.
            let rest = &memory[start..];
            let end = rest.windows(16).position(|w| w.iter().all(|b| *b == FILL)).unwrap_or(rest.len());
            contents.push((start, BASE64.encode(&rest[..end])));
            at = start + end;
        }
        TestBuffer { bytes: memory.len(), contents }
    }

    /// The memory.
    ///
    /// # Errors
    /// When a range is out of bounds, or its content is not base64.
    pub fn memory(&self) -> Result<Vec<u8>, String> {
        let mut memory = vec![FILL; self.bytes];
        for (start, content) in &self.contents {
            let content = BASE64.decode(content).map_err(|e| e.to_string())?;
            let range = start.checked_add(content.len()).and_then(|end| memory.get_mut(*start..end));
            range.ok_or_else(|| format!("byte {start} lies outside the buffer"))?.copy_from_slice(&content);
        }
        Ok(memory)
    }
}

impl TestLaunch {
    /// Describes a native kernel with its bindings.
    ///
    /// # Errors
    /// When Apple GPUs have no such argument.
    pub fn of(kernel: &NativeKernel, bindings: Vec<TestBinding>) -> Result<TestLaunch, String> {
        let part = |part: &Part| match part {
            Part::Kernel(launch) => Ok(TestPart {
                text: launch.image().into(),
                entry: launch.entry.clone(),
                grid: launch.grid,
                block: launch.block,
                shared: launch.shared,
                args: launch.args.list().iter().map(arg).collect::<Result<_, _>>()?,
            }),
            Part::Blas(_) => Err("it calls cuBLASLt".to_string()),
        };
        let parts = kernel.parts.iter().map(part).collect::<Result<_, _>>()?;
        Ok(TestLaunch { bindings, scratch: kernel.scratch, counters: kernel.counters, parts })
    }

    /// The native kernel.
    ///
    /// # Errors
    /// When a text is missing.
    pub fn kernel(&self) -> Result<NativeKernel, String> {
        let part = |part: &TestPart| {
            let image = texts::name(&part.text).ok_or_else(|| format!("there is no text {}", part.text))?;
            let list = part.args.iter().map(|arg| arg.arg()).collect();
            Ok(Part::Kernel(KernelLaunch {
                args: Arc::new(Listed { image, list }),
                entry: part.entry.clone(),
                grid: part.grid,
                block: part.block,
                shared: part.shared,
                cluster: 1,
                early: false,
            }))
        };
        let parts = self.parts.iter().map(part).collect::<Result<_, String>>()?;
        Ok(NativeKernel { parts, scratch: self.scratch, counters: self.counters, phase: None })
    }
}

fn arg(arg: &Arg) -> Result<TestArg, String> {
    Ok(match arg {
        Arg::Memory(Memory::Binding(i)) => TestArg::Binding(*i),
        Arg::Memory(Memory::Scratch(at)) => TestArg::Scratch(*at),
        Arg::Memory(Memory::Counters(at)) => TestArg::Counters(*at),
        Arg::Memory(Memory::Fault) => TestArg::Fault,
        Arg::Memory(Memory::Null) => TestArg::Null,
        Arg::U32(n) => TestArg::U32(*n),
        Arg::F32(n) => TestArg::F32(n.to_bits()),
        Arg::Memory(Memory::Address(_)) | Arg::TensorMap(_) => return Err(format!("{arg:?} is for NVIDIA GPUs")),
    })
}

impl TestArg {
    fn arg(self) -> Arg {
        match self {
            TestArg::Binding(i) => Arg::Memory(Memory::Binding(i)),
            TestArg::Scratch(at) => Arg::Memory(Memory::Scratch(at)),
            TestArg::Counters(at) => Arg::Memory(Memory::Counters(at)),
            TestArg::Fault => Arg::Memory(Memory::Fault),
            TestArg::Null => Arg::Memory(Memory::Null),
            TestArg::U32(n) => Arg::U32(n),
            TestArg::F32(bits) => Arg::F32(f32::from_bits(bits)),
        }
    }
}

/// Arguments without a declaration of their own.
#[derive(Debug)]
struct Listed {
    image: &'static str,
    list: Vec<Arg>,
}

impl KernelArgs for Listed {
    fn image(&self) -> &'static str {
        self.image
    }

    fn entries(&self) -> &'static [&'static str] {
        &[]
    }

    fn threads(&self) -> &'static [usize] {
        &[]
    }

    fn list(&self) -> Vec<Arg> {
        self.list.clone()
    }
}

impl TestResult {
    /// Describes the error in the bytes that the launches wrote, if any; `before` is their earlier content.
    pub fn failure(&self, before: &[u8], after: &[u8]) -> Option<String> {
        self.compare(before, after).unwrap_or_else(Some)
    }

    fn compare(&self, before: &[u8], after: &[u8]) -> Result<Option<String>, String> {
        let format = DType::from_name(&self.format).ok_or_else(|| format!("{} is no format", self.format))?;
        let decode_all = |bytes: &[u8]| {
            let values = format.values(self.max_rows, self.row_len, self.len, bytes).map_err(|e| e.to_string())?;
            if values.len() == self.len {
                Ok(values)
            } else {
                Err(format!("{} of {} elements", values.len(), self.len))
            }
        };
        let (mut want, got) = (decode_all(before)?, decode_all(after)?);
        let mut bounds = vec![0.0; self.len];
        for change in &self.changes {
            for (i, (value, bound)) in decode(&change.values)?.into_iter().zip(decode(&change.bounds)?).enumerate() {
                let at = change.first + i;
                let place =
                    want.get_mut(at).zip(bounds.get_mut(at)).ok_or_else(|| format!("there is no element {at}"))?;
                (*place.0, *place.1) = (f64::from(value), APPLE_SLACK * f64::from(bound));
            }
        }
        let wrong = |i: &usize| {
            let (want, got) = (want[*i], got[*i]);
            !(want == got || want.is_nan() && got.is_nan() || (got - want).abs() <= bounds[*i])
        };
        let failures: Vec<usize> = (0..self.len).filter(wrong).collect();
        Ok(failures.first().map(|&first| {
            format!(
                "element {first}: got {}, want {} ± {:.3e}; {} of {} elements are beyond their bounds",
                got[first],
                want[first],
                bounds[first],
                failures.len(),
                self.len
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every text has a case, and every case can be reconstructed from its parts.
    #[test]
    fn the_table_covers_every_text() {
        let cases = read(CASES).unwrap();
        for name in texts::names() {
            assert!(cases.iter().any(|case| case.texts.iter().any(|text| text == name)), "{name} has no case");
        }
        for case in &cases {
            for buffer in &case.buffers {
                assert_eq!(&TestBuffer::of(&buffer.memory().unwrap()), buffer, "{}", case.name);
            }
            for launch in &case.launches {
                let again = TestLaunch::of(&launch.kernel().unwrap(), launch.bindings.clone()).unwrap();
                assert_eq!(&again, launch, "{}", case.name);
            }
            // Memory as it was before the launches is not a result.
            let wrong = |r: &TestResult| {
                let memory = case.buffers[r.buffer].memory().unwrap();
                let before = &memory[r.start..r.start + r.bytes];
                r.failure(before, before).is_some()
            };
            assert!(case.results.iter().any(wrong), "{}", case.name);
        }
    }
}
