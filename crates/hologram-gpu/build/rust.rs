//! Prints the declarations as Rust code.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use super::declarations::{Declaration, Kind, Parameter};
use super::host::{Item, Value};

/// Converts `ATTENTION_DECODE` or `rms_norm_any` to the name of a type.
pub fn type_name(name: &str) -> String {
    let word = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_uppercase() + &rest.to_lowercase()
    };
    name.split('_').map(word).collect()
}

/// A structure with a field per argument, and its conversion to the list of arguments.
pub fn structure(image: &str, declaration: &Declaration) -> String {
    let Declaration { name, file, line, parameters, entries } = declaration;
    let (entries, threads): (Vec<&str>, Vec<u64>) = entries.iter().map(|(name, threads)| (&**name, threads)).unzip();
    let (mut fields, mut list, mut reads, mut early) = (String::new(), String::new(), Vec::new(), String::new());
    let mut last = None;
    for Parameter { name, kind, early: is_early, group } in parameters {
        let of = match group {
            Some(group) if group.is_ahead() => {
                // These arguments hold the ranges of the next launch; the structure has a launch's own ranges.
                if reads.last() != Some(&group.field) {
                    reads.push(group.field.clone());
                }
                continue;
            }
            Some(group) => format!("self.{}.{}", group.field, group.part),
            None => format!("self.{name}"),
        };
        let ty = match group {
            Some(group) => group.of,
            None => match kind {
                Kind::Pointer => "Memory",
                Kind::Uint => "u32",
                Kind::Float => "f32",
                Kind::Map => "TensorMap",
                Kind::Fault => "",
            },
        };
        let field = group.as_ref().map_or(name, |g| &g.field);
        if last != Some(field) && *kind != Kind::Fault {
            writeln!(fields, "pub {field}: {ty},").ok();
        }
        last = Some(field);
        write!(list, "{}, ", value(kind, &of)).ok();
        if *is_early {
            write!(early, "{of}{}, ", if *kind == Kind::Map { ".memory" } else { "" }).ok();
        }
    }
    if !early.is_empty() {
        early = format!("fn early(&self) -> Vec<Memory> {{ vec![{early}] }}\n");
    }
    let mut told = String::new();
    if !reads.is_empty() {
        writeln!(fields, "/// What this launch reads, for the one before it.\npub reads: [Range; {}],", reads.len())
            .ok();
        told = "fn reads(&self) -> Option<&[Range]> { Some(&self.reads) }".into();
    }
    let ty = type_name(name);
    format!(
        "/// `{name}`: {file}, line {line}.\n#[derive(Clone, Debug)]\npub struct {ty} {{\n{fields}}}\n\
         impl KernelArgs for {ty} {{\n\
         fn image(&self) -> &'static str {{ {image:?} }}\n\
         fn entries(&self) -> &'static [&'static str] {{ &{entries:?} }}\n\
         fn threads(&self) -> &'static [usize] {{ &{threads:?} }}\n\
         fn list(&self) -> Vec<Arg> {{ vec![{list}] }}\n{early}{told}\n}}\n"
    )
}

/// The conversion of a prefetch range to arguments, as in the first declaration that has one.
pub fn range(declarations: &[Declaration]) -> Option<String> {
    let ahead = |p: &&Parameter| p.group.as_ref().is_some_and(|g| g.is_ahead());
    let parameters = declarations.iter().map(|d| d.parameters.iter().filter(ahead)).find(|p| p.clone().count() > 0)?;
    let mut list = String::new();
    let mut first = None;
    for parameter in parameters {
        let Some(group) = &parameter.group else { continue };
        if *first.get_or_insert(&group.field) == &group.field {
            write!(list, "{}, ", value(&parameter.kind, &format!("self.{}", group.part))).ok();
        }
    }
    Some(format!(
        "impl crate::arguments::Range {{\n/// The arguments of the launch before it.\n\
         pub fn list(&self) -> Vec<crate::Arg> {{ use crate::arguments::*; vec![{list}] }}\n}}\n"
    ))
}

/// An argument with a value.
fn value(kind: &Kind, of: &str) -> String {
    match kind {
        Kind::Pointer => format!("Arg::Memory({of})"),
        Kind::Uint => format!("Arg::U32({of})"),
        Kind::Float => format!("Arg::F32({of})"),
        Kind::Map => format!("Arg::TensorMap({of}.clone())"),
        Kind::Fault => "Arg::Memory(Memory::Fault)".into(),
    }
}

/// A number or a structure that a text shares with the host.
pub fn item(item: &Item) -> String {
    let Item { name, file, line, value } = item;
    let fields = match value {
        Value::Number(value) => {
            return format!("/// `{name}`: {file}, line {line}.\npub const {name}: u32 = {value};\n");
        }
        Value::Structure(structure) => structure,
    };
    let bytes = format!(
        "/// Bytes of `{name}`: {file}, line {line}.\npub const {}_BYTES: usize = {};\n",
        name.to_uppercase(),
        fields.bytes
    );
    // A structure with fields of types without a Rust counterpart gives only its size.
    if fields.fields.iter().any(|f| f.rust.is_none()) {
        return bytes;
    }
    let (mut list, mut words) = (String::new(), String::new());
    for field in &fields.fields {
        let (name, ty) = (&field.name, field.rust.unwrap_or_default());
        match field.count {
            Some(count) => {
                writeln!(list, "pub {name}: [{ty}; {count}],").ok();
                writeln!(words, "self.{name}.iter().for_each(|n| out.extend(n.to_le_bytes()));").ok();
            }
            None => {
                writeln!(list, "pub {name}: {ty},").ok();
                writeln!(words, "out.extend(self.{name}.to_le_bytes());").ok();
            }
        }
    }
    let align = fields.align;
    format!(
        "{bytes}/// `{name}`: {file}, line {line}; addresses are numbers.\n#[derive(Clone, Debug, Default)]\n\
         #[repr(C, align({align}))]\npub struct {name} {{\n{list}}}\n\
         const _: () = assert!(size_of::<{name}>() == {}_BYTES);\n\
         impl {name} {{\n/// As it lies in memory.\npub fn write(&self, out: &mut Vec<u8>) {{\n{words}}}\n}}\n",
        name.to_uppercase()
    )
}

/// The kernels of each text with the PTX types of their parameters, for the build that reads their images: a line
/// `text PATH`, then a line `kernel NAME TYPE…` per kernel.
pub fn declared(texts: &[(PathBuf, Vec<Declaration>)]) -> String {
    let mut out = String::new();
    for (path, declarations) in texts {
        writeln!(out, "text {}", path.display()).ok();
        for Declaration { parameters, entries, .. } in declarations {
            let types = parameters.iter().map(|p| match p.kind {
                Kind::Pointer | Kind::Fault => ".u64",
                Kind::Uint => ".u32",
                Kind::Float => ".f32",
                Kind::Map => ".align",
            });
            let types: Vec<_> = types.collect();
            for (entry, _) in entries {
                writeln!(out, "kernel {entry} {}", types.join(" ")).ok();
            }
        }
    }
    out
}

/// Modules with their contents.
pub fn modules(contents: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    for (name, content) in contents {
        writeln!(out, "pub mod {name} {{\n#[allow(unused_imports)]\nuse crate::arguments::*;\n{content}}}").ok();
    }
    out
}
