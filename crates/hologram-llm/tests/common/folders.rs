//! Fixtures that are folders: what the reference library computes for them, and changed copies.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use hologram_core::{DType, Executor};
use hologram_llm::safetensors::Folder;
use hologram_llm::{Logits, Model, SessionOptions};
use serde_json::{Value, json};

pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Results of the reference library.
pub struct Expected {
    pub tokens: Vec<u32>,
    /// Row-major `[tokens, vocabulary]`.
    pub logits: Vec<f32>,
    /// The greedy continuation, and the margin of each step's best logit over the second.
    pub greedy: Vec<u32>,
    pub gaps: Vec<f64>,
    /// For each token of some mixtures, how far its last expert's logit is from that of the first one left out.
    pub choices: Vec<f64>,
}

pub fn expected(name: &str) -> Expected {
    let npy = std::fs::read(fixture(name).join("logits.npy")).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    let json = json_of(&fixture(name).join("expected.json"));
    let numbers = |list: &Value| list.as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    let ids = |key: &str| json[key].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
    Expected {
        tokens: ids("tokens"),
        logits: npy[start..].as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        greedy: ids("greedy"),
        gaps: numbers(&json["gaps"]),
        choices: numbers(&json["choice_gaps"]),
    }
}

pub fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// ‖got − want‖ / ‖want‖.
pub fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(want).map(|(g, w)| g - w)) / norm(&mut want.iter().copied())
}

pub fn options(batch: usize) -> SessionOptions {
    SessionOptions { context: 64, batch: Some(batch), ..SessionOptions::default() }
}

/// Checks logits in one step, in steps of 8, token by token and with tokens of several sequences at once, and greedy
/// continuations.
pub fn agrees(executor: &Executor, name: &str, path: &Path, bound: f64, precision: Option<usize>) {
    if let Err(difference) = compare(executor, name, path, bound, (precision, None)) {
        panic!("{difference}");
    }
}

/// As [`agrees`], with a cache of this type; the error names the first difference.
pub fn compare(
    executor: &Executor,
    name: &str,
    path: &Path,
    bound: f64,
    (precision, kv): (Option<usize>, Option<DType>),
) -> Result<(), String> {
    let want = expected(name);
    let model = Model::load_on(path, executor).unwrap();
    let vocab = model.config().vocab;
    let session = |options: SessionOptions, precision| {
        let mut session = model.session(SessionOptions { kv, ..options }).unwrap();
        session.fix_precision(precision);
        session
    };
    let within = |error: f64, bound: f64, what: &dyn Display| match error < bound {
        true => Ok(()),
        false => Err(format!("{}, {what}: {error:.2e}", path.display())),
    };
    for batch in [64, 8, 1] {
        let mut session = session(options(batch), precision);
        let error = relative_error(session.feed(0, &want.tokens, Logits::All).unwrap(), &want.logits);
        within(error, bound, &format_args!("batch {batch}"))?;
    }
    // Five sequences, each one token ahead of the previous.
    let mut many = session(SessionOptions { sequences: 5, ..options(16) }, precision);
    for s in 0..5 {
        many.feed(s, &want.tokens[..8 + s], Logits::None).unwrap();
    }
    for step in 8..20 {
        let batch: Vec<(usize, u32)> = (0..5).map(|s| (s, want.tokens[step + s])).collect();
        for (s, row) in many.feed_batch(&batch).unwrap().chunks(vocab).enumerate() {
            // Where activations are rounded, two experts that are nearly alike may change places.
            if bound >= 1e-2 && want.choices.get(step + s).is_some_and(|gap| *gap < 0.05) {
                continue;
            }
            let error = relative_error(row, &want.logits[(step + s) * vocab..][..vocab]);
            within(error, bound.max(1e-4), &format_args!("sequence {s} at {step}"))?;
        }
    }
    let mut session = session(options(64), Some(1));
    let mut pending = want.tokens.clone();
    for (i, (token, gap)) in want.greedy.iter().zip(&want.gaps).enumerate() {
        let logits = session.feed(0, &pending, Logits::Last).unwrap();
        let best = (0..vocab).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32;
        if best != *token && *gap >= 1e-3 {
            return Err(format!("{}: {best} instead of {token} at {i}", path.display()));
        }
        pending = vec![*token];
    }
    Ok(())
}

static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// A copy of a fixture's folder, removed when dropped.
pub struct Copy(pub PathBuf);

impl Copy {
    pub fn of(name: &str) -> Copy {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("hologram-folders-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let entries = std::fs::read_dir(fixture(name)).unwrap().map(|entry| entry.unwrap().path());
        // Folders of modules are left out.
        for file in entries.filter(|path| path.is_file()) {
            std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
        }
        Copy(folder)
    }

    /// Changes `config.json`.
    pub fn config(&self, change: impl Fn(&mut Value)) {
        let path = self.0.join("config.json");
        let mut json = json_of(&path);
        change(&mut json);
        std::fs::write(path, json.to_string()).unwrap();
    }

    /// Replaces `model.safetensors` by these tensors: name, type, shape, bytes. `pad` spaces end the header.
    pub fn write(&self, tensors: &[(String, &str, Vec<usize>, Vec<u8>)], pad: usize) {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, dtype, shape, bytes) in tensors {
            let range = [data.len(), data.len() + bytes.len()];
            header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": range }));
            data.extend_from_slice(bytes);
        }
        let header = Value::Object(header).to_string() + &" ".repeat(pad);
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        std::fs::write(self.0.join("model.safetensors"), file).unwrap();
    }

    /// The tensors of `model.safetensors`.
    pub fn tensors(&self) -> Vec<(String, &'static str, Vec<usize>, Vec<u8>)> {
        let file = std::fs::read(self.0.join("model.safetensors")).unwrap();
        let header = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        let json: Value = serde_json::from_slice(&file[8..header]).unwrap();
        let folder = Folder::open(&self.0).unwrap();
        let bytes = |name: &str| {
            let at = |i: usize| header + json[name]["data_offsets"][i].as_u64().unwrap() as usize;
            file[at(0)..at(1)].to_vec()
        };
        folder.tensors().map(|t| (t.name.into(), t.dtype.name, t.shape.to_vec(), bytes(t.name))).collect()
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
