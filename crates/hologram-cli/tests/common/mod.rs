//! Helpers for tests of the built command.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

pub const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hologram-llm/tests/fixtures/llama-tiny.gguf");
/// A model without a tokenizer.
pub const BITNET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hologram-llm/tests/fixtures/bitnet-tiny.gguf");
pub const VECTOR_ADD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/vector_add.atlas");

/// A folder for one test, removed when dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(test: &str) -> Folder {
        // Tests of one process may take the same name.
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().into()
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        fs::write(self.0.join(name), bytes).unwrap();
        self.path(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hologram"));
    command.args(args).stdin(Stdio::null());
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The standard output of a call that must succeed.
pub fn ok(args: &[&str]) -> String {
    let output = command(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs a call with this standard input. A rejected call may end before it has read all of it.
pub fn with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child = command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    if let Err(error) = child.stdin.take().unwrap().write_all(input) {
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{args:?}: {error}");
    }
    child.wait_with_output().unwrap()
}

/// Checks that a call failed with this exit code and a message of one line (clap's usage errors have several) that
/// contains `substrings`.
pub fn check_rejection(what: &dyn std::fmt::Debug, output: &Output, code: i32, substrings: &[&str]) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{what:?}: {message}");
    assert_eq!(text(&output.stdout), "", "{what:?}");
    let parser = code == 2 && message.starts_with("error: ");
    assert!(parser || message.starts_with("hologram: ") && message.lines().count() == 1, "{what:?}: {message}");
    assert!(!message.contains("panicked"), "{what:?}: {message}");
    assert!(message.matches("os error").count() <= 1, "{what:?} gives its cause twice: {message}");
    for s in substrings {
        assert!(message.contains(s), "{what:?}: {message:?} does not contain {s:?}");
    }
}

pub fn rejected(args: &[&str], code: i32, substrings: &[&str]) {
    check_rejection(&args, &command(args).output().unwrap(), code, substrings);
}

/// A `.npy` file of version 1 with these 4-byte elements.
pub fn npy(descr: &str, shape: &str, elements: impl IntoIterator<Item = [u8; 4]>) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let header = format!("{header:<117}\n");
    let mut file = [b"\x93NUMPY\x01\x00".as_slice(), &118u16.to_le_bytes(), header.as_bytes()].concat();
    file.extend(elements.into_iter().flatten());
    file
}

pub fn f32_npy(values: &[f32]) -> Vec<u8> {
    npy("<f4", &format!("({},)", values.len()), values.iter().map(|v| v.to_le_bytes()))
}

/// Header and 4-byte elements of a `.npy` file of version 1.
pub fn read_npy(path: &str) -> (String, Vec<[u8; 4]>) {
    let data = fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let start = 10 + usize::from(u16::from_le_bytes([data[8], data[9]]));
    (text(&data[10..start]), data[start..].as_chunks::<4>().0.to_vec())
}

pub fn read_f32(path: &str) -> Vec<f32> {
    read_npy(path).1.into_iter().map(f32::from_le_bytes).collect()
}

/// The JSON objects of the lines of a text.
pub fn objects(lines: &str) -> Vec<serde_json::Map<String, Value>> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

/// Whether a command line in a shell succeeded, and its standard output and error; `None` if this machine does not
/// have the shell. The folder is its working folder and its home.
pub fn shell(program: &str, folder: &Folder, line: &str) -> Option<(bool, String)> {
    let binary = Path::new(env!("CARGO_BIN_EXE_hologram")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(program);
    command.args(["-c", &format!("exec 2>&1; {line}")]).stdin(Stdio::null());
    command.current_dir(&folder.0).env("PATH", path).env("HOME", &folder.0);
    let output = match command.output() {
        Err(e) if e.kind() == ErrorKind::NotFound && program == "zsh" => return None,
        output => output.unwrap(),
    };
    Some((output.status.success(), text(&output.stdout)))
}
