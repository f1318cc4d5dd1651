//! The compiled images of CUDA kernels: lists them, checks that they take the arguments that their texts declare, and
//! produces the data that the binary carries.

use std::fmt::Write;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use lzma_rust2::{LzmaOptions, LzmaReader, LzmaWriter};

#[path = "ptx.rs"]
pub mod ptx;
#[path = "../src/short_ptx.rs"]
pub mod short_ptx;

/// The preset of `xz`: its dictionary of 8 MB holds an image, whose kernels repeat each other. Builds for tests prefer
/// a short build to a small binary.
const PRESET: u32 = if cfg!(debug_assertions) { 0 } else { 6 };

/// How LZMA models the bytes of an image. A cubin is made of instructions of 16 bytes, so a byte's place in them says
/// more than the byte before it; PTX is text, in which places say nothing. 5 % smaller cubins, 3 % smaller PTX.
fn options(file: &str) -> LzmaOptions {
    let mut options = LzmaOptions::with_preset(PRESET);
    (options.lc, options.lp, options.pb) = if file.ends_with(".cubin") { (0, 3, 4) } else { (3, 0, 0) };
    if !cfg!(debug_assertions) {
        options.nice_len = LzmaOptions::NICE_LEN_MAX;
    }
    options
}

/// A kernel's name and the PTX types of its parameters.
pub type Kernel = (String, Vec<String>);

/// A text and its kernels.
pub type Text = (PathBuf, Vec<Kernel>);

/// Parses the texts and kernels that `hologram-gpu` declares.
pub fn texts(declared: &str) -> Vec<Text> {
    let mut out: Vec<Text> = Vec::new();
    for line in declared.lines() {
        if let Some(path) = line.strip_prefix("text ") {
            out.push((path.into(), Vec::new()));
        } else if let (Some(kernel), Some((_, kernels))) = (line.strip_prefix("kernel "), out.last_mut()) {
            let mut words = kernel.split_whitespace().map(String::from);
            kernels.extend(words.next().map(|name| (name, words.collect())));
        }
    }
    out
}

/// The list of images as Rust code; their compressed bytes are written to `out`.
pub fn list(folder: &Path, texts: &[Text], out: &Path) -> Result<String, String> {
    let mut code = String::from("/// Every image.\npub(super) const IMAGES: &[Image] = &[\n");
    let mut files = Vec::new();
    let mut compressed = |file: String, data: Vec<u8>| {
        let path = out.join(format!("{file}.lzma"));
        let code = format!("include_bytes!({:?})", path.to_string_lossy().replace('\\', "/"));
        files.push((path, file, data));
        code
    };
    for (text, kernels) in texts {
        let name = text.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        let image = |ending: &str| {
            let file = format!("{name}.{ending}");
            let data = std::fs::read(folder.join(&file)).map_err(|e| {
                format!("{}: {file}: {e}; make it by tools/cuda-kernels/build.py {name}", text.display())
            })?;
            Ok::<_, String>((file, data))
        };
        let (file, cubin) = image("sm_90a.cubin")?;
        let cubin = compressed(file, cubin);
        let source = std::fs::read_to_string(text).map_err(|e| format!("{}: {e}", text.display()))?;
        let ptx = if source.contains("// only sm_90a") {
            "None".into()
        } else {
            let (file, ptx) = image("sm_80.ptx")?;
            check(&file, &String::from_utf8_lossy(&ptx), kernels)?;
            format!("Some({})", compressed(file, ptx))
        };
        writeln!(code, "Image {{ name: {name:?}, cubin: {cubin}, ptx: {ptx} }},").ok();
    }
    code.push_str("];\n");
    write_all(&files)?;
    Ok(code)
}

/// Writes these data compressed to their files, by as many threads as there are processors.
fn write_all(files: &[(PathBuf, String, Vec<u8>)]) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((path, file, data)) = files.get(next.fetch_add(1, Relaxed)) {
            let own;
            let data = match file.ends_with(".ptx") {
                false => data,
                true => {
                    own = short(file, data)?;
                    &own
                }
            };
            // Most images are unchanged since the last build.
            let kept = std::fs::read(path).ok().and_then(|old| unpack(&old).ok());
            if kept.as_ref() != Some(data) {
                let packed = pack(file, data).and_then(|packed| std::fs::write(path, packed));
                packed.map_err(|e| format!("{}: {e}", path.display()))?;
            }
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().unwrap_or_else(|_| Err("a thread that compresses panicked".into())))
    })
}

/// The short form of a PTX image, after a check that the plain text comes out of it again.
fn short(file: &str, data: &[u8]) -> Result<Vec<u8>, String> {
    let plain = ptx::plain(std::str::from_utf8(data).map_err(|e| format!("{file}: {e}"))?);
    let short = ptx::short(&plain);
    match short_ptx::long(&short) {
        Some(long) if long == plain => Ok(short.into()),
        _ => Err(format!("{file}: build/ptx.rs writes something of it that src/short_ptx.rs reads otherwise")),
    }
}

/// An image as an `.lzma` file.
fn pack(file: &str, data: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options(file), Some(data.len() as u64))?;
    writer.write_all(data)?;
    writer.finish()
}

fn unpack(packed: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut data = Vec::new();
    LzmaReader::new_mem_limit(packed, u32::MAX, None)?.read_to_end(&mut data)?;
    Ok(data)
}

/// Whether the kernels of an image take the arguments that their text declares.
pub fn check(file: &str, ptx: &str, kernels: &[Kernel]) -> Result<(), String> {
    let mut entries: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in ptx.lines().map(str::trim) {
        if let Some((_, name)) = line.split_once(".entry ") {
            entries.push((name.trim_end_matches(['(', ' ', ')']), Vec::new()));
        } else if let (Some(parameter), Some((_, types))) = (line.strip_prefix(".param "), entries.last_mut()) {
            types.push(parameter.split(' ').next().unwrap_or_default());
        } else if line == "{"
            && let Some((_, types)) = entries.last_mut()
        {
            // Parameters of called functions.
            types.push("{");
        }
    }
    for (kernel, types) in kernels {
        let stale = |what: &str| Err(format!("{file}: {kernel} {what}; run tools/cuda-kernels/build.py"));
        let Some((_, found)) = entries.iter().find(|(name, _)| name == kernel) else { return stale("is missing") };
        if !found.iter().take_while(|t| **t != "{").eq(types) {
            return stale("takes other arguments than its text declares");
        }
    }
    match entries.len() == kernels.len() {
        true => Ok(()),
        false => Err(format!("{file}: it has other kernels than its text; run tools/cuda-kernels/build.py")),
    }
}
