//! The compiled images of CUDA kernels: which there are, whether they take the arguments that their texts declare, and
//! what the binary carries of them.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib;

use super::declarations::{Declaration, Kind};

/// How hard the compressor tries.
const LEVEL: u8 = 9;

/// The list of images as Rust code; their compressed bytes are written to `out`.
pub fn list(folder: &Path, texts: &[(String, PathBuf, Vec<Declaration>)], out: &Path) -> Result<String, String> {
    let mut code = String::from("/// Every image.\npub(super) const IMAGES: &[Image] = &[\n");
    let compressed = |file: &str, data: &[u8]| -> Result<String, String> {
        let path = out.join(format!("{file}.z"));
        // Of most images it is there since the last build.
        let kept = std::fs::read(&path).ok().and_then(|old| decompress_to_vec_zlib(&old).ok());
        if kept.as_deref() != Some(data) {
            std::fs::write(&path, compress_to_vec_zlib(data, LEVEL)).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(format!("include_bytes!({:?})", path.to_string_lossy().replace('\\', "/")))
    };
    for (name, text, declarations) in texts {
        let image = |ending: &str| {
            let file = format!("{name}.{ending}");
            let data = std::fs::read(folder.join(&file)).map_err(|e| {
                format!("{}: {file}: {e}; make it by tools/cuda-kernels/build.py {name}", text.display())
            })?;
            Ok::<_, String>((file, data))
        };
        let (file, cubin) = image("sm_90a.cubin")?;
        let cubin = compressed(&file, &cubin)?;
        let source = std::fs::read_to_string(text).map_err(|e| format!("{}: {e}", text.display()))?;
        let ptx = if source.contains("// only sm_90a") {
            "None".into()
        } else {
            let (file, ptx) = image("sm_80.ptx")?;
            check(&file, &String::from_utf8_lossy(&ptx), declarations)?;
            format!("Some({})", compressed(&file, &ptx)?)
        };
        writeln!(code, "Image {{ name: {name:?}, cubin: {cubin}, ptx: {ptx} }},").ok();
    }
    code.push_str("];\n");
    Ok(code)
}

/// Whether the kernels of an image take the arguments that their text declares.
pub fn check(file: &str, ptx: &str, declarations: &[Declaration]) -> Result<(), String> {
    let mut entries: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in ptx.lines().map(str::trim) {
        if let Some((_, name)) = line.split_once(".entry ") {
            entries.push((name.trim_end_matches(['(', ' ', ')']), Vec::new()));
        } else if let (Some(parameter), Some((_, types))) = (line.strip_prefix(".param "), entries.last_mut()) {
            types.push(parameter.split(' ').next().unwrap_or_default());
        } else if line == "{"
            && let Some((_, types)) = entries.last_mut()
        {
            // Parameters of what is called within.
            types.push("{");
        }
    }
    let declared = declarations.iter().flat_map(|d| d.entries.iter().map(move |e| (e, &d.parameters)));
    for (entry, parameters) in declared {
        let stale = |what: &str| Err(format!("{file}: {entry} {what}; run tools/cuda-kernels/build.py"));
        let Some((_, found)) = entries.iter().find(|(name, _)| name == entry) else { return stale("is missing") };
        let found = found.iter().take_while(|t| **t != "{");
        let wanted = parameters.iter().map(|p| match p.kind {
            Kind::Pointer | Kind::Fault => ".u64",
            Kind::Uint => ".u32",
            Kind::Float => ".f32",
            Kind::Map => ".align",
        });
        if !found.copied().eq(wanted) {
            return stale("takes other arguments than its text declares");
        }
    }
    match entries.len().cmp(&declarations.iter().map(|d| d.entries.len()).sum()) {
        std::cmp::Ordering::Equal => Ok(()),
        _ => Err(format!("{file}: it has other kernels than its text; run tools/cuda-kernels/build.py")),
    }
}
