//! `hologram exec`: runs an Atlas program on arrays.

use std::collections::HashMap;
use std::io::Write;
use std::num::{IntErrorKind, ParseIntError};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use half::{bf16, f16};
use hologram_backends::{Binding, Buffer, Launch, LaunchConfig};
use hologram_core::npy::{self, Array, MAX_DIMENSIONS};
use hologram_isa::{Access, ParamKind, Program, Type, msl, ptx};

use super::{exec_help, program};
use crate::args::{Emit, ExecArgs, usage};
use crate::capture::{self, Capture};
use crate::output;
use crate::text::shown;
use crate::trace::{self, Trace, step};

/// Elements of a result to print.
const SHOWN: usize = 16;

/// Runs of `--time`.
const TIMED: usize = 20;

/// Maximum bytes of a file: more than any machine's memory.
const MAX_FILE: u64 = 1 << 40;

/// Runs the command.
///
/// # Errors
/// When the program is rejected, an argument does not fit its parameter, or the run fails.
pub fn run(args: &ExecArgs) -> anyhow::Result<()> {
    match &args.file {
        Some(file) if args.help => exec_help::of_program(file),
        Some(file) => execute(args, file),
        None => exec_help::of_command(),
    }
}

fn execute(args: &ExecArgs, file: &Path) -> anyhow::Result<()> {
    let trace = Trace::create(args.profile.profile.as_deref())?;
    let program = step(&trace, "read the program", || program::load(file))?;
    if let Some(language) = args.emit {
        let text = match language {
            Emit::Ptx => ptx::print(&program, &ptx::PtxTarget { capability: 90, version: (7, 8) })?.text,
            Emit::Msl => msl::print(&program, &msl::MslTarget { version: (3, 1) })?.text,
        };
        return Ok(std::io::stdout().lock().write_all(text.as_bytes())?);
    }
    let see = format!("`hologram exec {} --help` shows its parameters", file.display());
    let Some(grid) = &args.grid else {
        let threads = program.workgroup_threads();
        return usage(format!("--grid is missing: give the number of workgroups of {threads} threads; {see}"));
    };
    let grid = parse_grid(grid)?;
    let given = parse_arguments(args)?;
    for name in given.keys() {
        if !program.params.iter().any(|p| p.name == *name) {
            return usage(format!(
                "--arg {}: program {} has no such parameter; it has {}",
                shown(name),
                program.name,
                names(&program)
            ));
        }
    }
    let outputs = output_files(args, &program)?;
    let arrays = || given.values().filter_map(|value| value.strip_prefix('@')).map(Path::new);
    for out in outputs.values().map(PathBuf::as_path).chain(args.profile.profile.as_deref()) {
        output::check_not_read(out, None, arrays().chain([file]))?;
    }
    let executor = trace::open(&args.device, &trace)?;
    let capture = Capture::of(args.profile.capture.as_deref(), &executor)?;
    let backend = executor.backend();
    let mut bindings = Vec::new();
    let mut results: Vec<(&str, Array, Buffer)> = Vec::new();
    for param in &program.params {
        let Some(text) = given.get(param.name.as_str()) else {
            return usage(format!("--arg {}=… is missing: {}; {see}", param.name, describe(param.kind)));
        };
        match param.kind {
            ParamKind::Scalar(ty) => bindings.push(Binding::Scalar(parse_scalar(&param.name, ty, text)?)),
            ParamKind::Buffer { element, .. } => {
                let array = buffer_argument(&param.name, element, text)?;
                let buffer = backend.allocate_buffer(array.bytes.len().max(1))?;
                backend.copy_to_buffer(&buffer, 0, &array.bytes)?;
                bindings.push(Binding::Buffer { buffer: buffer.clone(), range: 0..array.bytes.len() });
                if is_output(param.kind) {
                    results.push((&param.name, array, buffer));
                }
            }
        }
    }
    capture::around(&capture, &executor, || {
        let run = backend.execute_program(&program, &bindings, &LaunchConfig { grid });
        run.with_context(|| file.display().to_string())
    })?;
    let mut out = std::io::stdout().lock();
    for (name, mut array, buffer) in results {
        backend.copy_from_buffer(&buffer, 0, &mut array.bytes)?;
        match outputs.get(name) {
            Some(path) => {
                let what = format!("{} {:?}", array.ty, array.shape);
                output::save(path, &npy::to_bytes(&array), &what)?;
            }
            None => writeln!(out, "{name} = {}", show(&array))?,
        }
    }
    if args.time {
        let launch = Launch { pipeline: backend.compile(&program)?, bindings, config: LaunchConfig { grid } };
        let list = backend.record(&[launch])?;
        let run = || Ok(backend.measure().profile(&list)?.iter().map(|(_, seconds)| seconds).sum::<f64>());
        let mut times = (0..TIMED).map(|_| run()).collect::<anyhow::Result<Vec<_>>>()?;
        times.sort_by(f64::total_cmp);
        let [least, median, greatest] = [0, TIMED / 2, TIMED - 1].map(|i| times[i] * 1e6);
        writeln!(
            out,
            "{median:.2} us per run on {} (median of {TIMED}; {least:.2} to {greatest:.2})",
            executor.info().name
        )?;
    }
    trace.map_or(Ok(()), |trace| trace.finish())
}

fn is_output(kind: ParamKind) -> bool {
    matches!(kind, ParamKind::Buffer { access: Access::Write | Access::ReadWrite, .. })
}

/// A parameter's kind, and how to pass it.
fn describe(kind: ParamKind) -> String {
    match kind {
        ParamKind::Scalar(ty) => format!("a scalar of type {ty}"),
        ParamKind::Buffer { element, .. } => {
            format!("a buffer of {element}, as @FILE.npy or out:{element}[LENGTH]")
        }
    }
}

fn names(program: &Program) -> String {
    let describe = |p: &hologram_isa::Param| match p.kind {
        ParamKind::Scalar(ty) => format!("{}: {ty}", p.name),
        ParamKind::Buffer { element, .. } => format!("{}: buffer of {element}", p.name),
    };
    match program.params.as_slice() {
        [] => "none".into(),
        params => params.iter().map(describe).collect::<Vec<_>>().join(", "),
    }
}

fn parse_grid(text: &str) -> anyhow::Result<[u32; 3]> {
    let mut grid = [1; 3];
    let given = shown(text);
    let parts: Vec<&str> = text.split([',', 'x']).collect();
    if parts.len() > 3 {
        return usage(format!("--grid is {given}, but must have at most three sizes: X,Y,Z"));
    }
    for (g, part) in grid.iter_mut().zip(&parts) {
        match part.trim().parse() {
            Ok(n) if n > 0 => *g = n,
            _ => {
                return usage(format!("--grid is {given}, but its sizes must be whole numbers from 1 to {}", u32::MAX));
            }
        }
    }
    if grid.iter().map(|n| u128::from(*n)).product::<u128>() > u128::from(u32::MAX) {
        return usage(format!("--grid is {given}, but must have at most {} workgroups in total", u32::MAX));
    }
    Ok(grid)
}

/// The `--arg` options by parameter name.
fn parse_arguments(args: &ExecArgs) -> anyhow::Result<HashMap<&str, &str>> {
    let mut given = HashMap::new();
    for arg in &args.args {
        let Some((name, value)) = arg.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return usage(format!(
                "--arg {}: expected NAME=VALUE, NAME=@FILE.npy or NAME=out:TYPE[LENGTH]",
                shown(arg)
            ));
        };
        if given.insert(name, value).is_some() {
            return usage(format!("--arg {name} is given twice"));
        }
    }
    Ok(given)
}

/// Parses a scalar to its register word.
fn parse_scalar(name: &str, ty: Type, text: &str) -> anyhow::Result<u64> {
    if text.starts_with('@') || text.starts_with("out:") {
        return usage(format!("--arg {name}={text}: {name} is a scalar of type {ty}, not a buffer"));
    }
    match hologram_isa::text::parse_constant(ty, text) {
        Ok(word) => Ok(word),
        Err(message) => usage(format!("--arg {name}={text}: {message}")),
    }
}

/// The initial content of a buffer argument: an array from a file, or zeros.
fn buffer_argument(name: &str, element: Type, text: &str) -> anyhow::Result<Array> {
    if let Some(path) = text.strip_prefix('@') {
        if path.is_empty() {
            return usage(format!("--arg {name}=@: the file name is missing"));
        }
        let read = || {
            let data = crate::text::read_file(Path::new(path), MAX_FILE)?;
            npy::from_bytes(&data).with_context(|| format!("cannot read {path}"))
        };
        let mut array = read().with_context(|| format!("--arg {name}"))?;
        // NumPy has no bf16: files store its bits.
        if array.ty == Type::U16 && element == Type::BF16 {
            array.ty = element;
        }
        if array.ty != element {
            bail!("--arg {name}: {path} has elements of type {}, but the parameter has {element}", array.ty);
        }
        // Every byte of a bool buffer must be 0 or 1.
        if element == Type::Bool {
            array.bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        return Ok(array);
    }
    let parsed = text.strip_prefix("out:").and_then(|t| t.strip_suffix(']')).and_then(|t| t.split_once('['));
    let Some((ty, len)) = parsed else {
        return usage(format!(
            "--arg {name}={text}: {name} is a buffer of {element}; give it as @FILE.npy or out:{element}[LENGTH]"
        ));
    };
    if Type::from_name(ty) != Some(element) {
        return usage(format!("--arg {name}={text}: the parameter has {element}; write {name}=out:{element}[{len}]"));
    }
    let shape: Result<Vec<usize>, ParseIntError> = len.split(',').map(|n| n.trim().parse()).collect();
    let shape = match shape {
        Ok(shape) if shape.len() > MAX_DIMENSIONS => {
            return usage(format!(
                "--arg {name}: NumPy's arrays have at most {MAX_DIMENSIONS} dimensions, not {}",
                shape.len()
            ));
        }
        Ok(shape) => Some(shape),
        Err(e) if *e.kind() == IntErrorKind::PosOverflow => None,
        Err(_) => {
            let expected = "the length must be a whole number, or several separated by commas";
            return usage(format!("--arg {name}={text}: {expected}"));
        }
    };
    let bytes = shape.as_ref().and_then(|s| s.iter().try_fold(element.size(), |n, d| n.checked_mul(*d)));
    let (Some(shape), Some(bytes)) = (shape, bytes.filter(|n| *n <= isize::MAX as usize)) else {
        return usage(format!("--arg {name}={text}: the length is too large for any memory"));
    };
    let mut zeros = Vec::new();
    if zeros.try_reserve_exact(bytes).is_err() {
        bail!("--arg {name}={text}: cannot allocate {bytes} bytes");
    }
    zeros.resize(bytes, 0);
    Ok(Array { ty: element, shape, bytes: zeros })
}

/// The files of the `--out` options by parameter name.
fn output_files<'a>(args: &'a ExecArgs, program: &'a Program) -> anyhow::Result<HashMap<&'a str, PathBuf>> {
    let written = program.params.iter().filter(|p| is_output(p.kind));
    let known: Vec<&str> = written.map(|p| p.name.as_str()).collect();
    let there = match known.as_slice() {
        [] => format!("program {} has no output buffers", program.name),
        known => format!("choose from {}", known.join(", ")),
    };
    let mut files = HashMap::new();
    for out in &args.out {
        let (name, path) = match (out.split_once('='), known.as_slice()) {
            (Some((name, path)), _) => (name, path),
            (None, [only]) => (*only, out.as_str()),
            (None, _) => return usage(format!("--out {out}: give the buffer's name, as in NAME={out}; {there}")),
        };
        if !known.contains(&name) {
            return usage(format!("--out {out}: {} is not a buffer that the program writes; {there}", shown(name)));
        }
        if path.is_empty() {
            return usage(format!("--out {}: the file name is missing", shown(out)));
        }
        if path == "-" {
            return usage(format!(
                "--out {out}: cannot write .npy to standard output; omit --out to print the buffer there"
            ));
        }
        let file = PathBuf::from(path);
        if files.values().chain(&args.profile.profile).any(|other| *other == file) {
            return usage(format!("--out {out}: another option already writes {path}"));
        }
        if files.insert(name, file).is_some() {
            return usage(format!("--out {out}: {name} already has a file"));
        }
    }
    Ok(files)
}

/// The first elements of an array.
fn show(array: &Array) -> String {
    let size = array.ty.size();
    let element = |c: &[u8]| -> String {
        match (array.ty, c) {
            (Type::Bool, [b]) => (*b != 0).to_string(),
            (Type::I8, [b]) => (*b as i8).to_string(),
            (Type::U8, [b]) => b.to_string(),
            (Type::F16, [a, b]) => f16::from_le_bytes([*a, *b]).to_string(),
            (Type::BF16, [a, b]) => bf16::from_le_bytes([*a, *b]).to_string(),
            (Type::I32, [a, b, c, d]) => i32::from_le_bytes([*a, *b, *c, *d]).to_string(),
            (Type::U32, [a, b, c, d]) => u32::from_le_bytes([*a, *b, *c, *d]).to_string(),
            (Type::F32, [a, b, c, d]) => f32::from_le_bytes([*a, *b, *c, *d]).to_string(),
            (Type::I16, [a, b]) => i16::from_le_bytes([*a, *b]).to_string(),
            (Type::U16, [a, b]) => u16::from_le_bytes([*a, *b]).to_string(),
            (Type::I64, &[a, b, c, d, e, f, g, h]) => i64::from_le_bytes([a, b, c, d, e, f, g, h]).to_string(),
            (Type::U64, &[a, b, c, d, e, f, g, h]) => u64::from_le_bytes([a, b, c, d, e, f, g, h]).to_string(),
            (Type::F64, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]).to_string(),
            _ => String::new(),
        }
    };
    let shown: Vec<String> = array.bytes.chunks_exact(size).take(SHOWN).map(element).collect();
    let len = array.bytes.len() / size;
    let more = if len > SHOWN { format!(", … ({len} elements)") } else { String::new() };
    format!("[{}{more}]", shown.join(", "))
}
