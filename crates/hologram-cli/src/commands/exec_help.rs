//! `hologram exec --help`: the command's options, and `hologram exec FILE --help`: the program's parameters.

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use hologram_isa::{Access, Capability, Param, ParamKind, Program, Type};

use super::program::{Source, read};
use crate::args::Cli;
use crate::text::{NAME, printable};

/// Prints the options of the command.
///
/// # Errors
/// When standard output fails.
pub fn of_command() -> anyhow::Result<()> {
    let mut cli = Cli::command();
    // Sets the command's name in its usage line.
    cli.build();
    if let Some(exec) = cli.find_subcommand_mut("exec") {
        exec.print_help()?;
    }
    Ok(())
}

/// Prints a program's parameters and a command line that runs it.
///
/// # Errors
/// When the file cannot be read or its program is rejected.
pub fn of_program(path: &Path) -> anyhow::Result<()> {
    let source = read(path)?;
    let program = source.program(path)?;
    let mut out = std::io::stdout().lock();
    let name = printable(&program.name, NAME);
    let [x, y, z] = program.workgroup;
    let threads = program.workgroup_threads();
    writeln!(out, "{name}: workgroups of {threads} threads ({x} × {y} × {z})")?;
    for array in &program.shared {
        writeln!(
            out,
            "shared memory per workgroup: {}: {}[{}]",
            printable(&array.name, NAME),
            array.element,
            array.len
        )?;
    }
    for capability in Capability::ALL.into_iter().filter(|c| c.is_needed_by(&program)) {
        writeln!(out, "needs a device that has {capability}")?;
    }
    let comment = comment(&source);
    if !comment.is_empty() {
        writeln!(out)?;
    }
    for line in comment {
        writeln!(out, "  {}", printable(line, 200))?;
    }
    if !program.params.is_empty() {
        let rows = program.params.iter().map(row);
        let rows: Vec<[String; 4]> =
            std::iter::once(["parameter", "kind", "type", "access"].map(String::from)).chain(rows).collect();
        let [a, b, c] = [0, 1, 2].map(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0));
        writeln!(out)?;
        for [name, kind, ty, access] in &rows {
            writeln!(out, "{}", format!("{name:<a$}  {kind:<b$}  {ty:<c$}  {access}").trim_end())?;
        }
    }
    writeln!(
        out,
        "\nfor example, with files, sizes and numbers to be replaced by yours:\n\n  {}",
        example(path, &program)
    )?;
    writeln!(out, "\n`hologram exec --help` explains the options.")?;
    Ok(())
}

/// The lines of the comment before the kernel, without `//`.
fn comment(source: &Source) -> Vec<&str> {
    match source {
        Source::Text(text) => {
            let lines = text.lines().map(str::trim).skip_while(|line| line.is_empty());
            lines.map_while(|line| line.strip_prefix("//").map(str::trim)).collect()
        }
        Source::Binary(_) => Vec::new(),
    }
}

/// A parameter's name, kind, type and access.
fn row(param: &Param) -> [String; 4] {
    let (kind, ty, access) = match param.kind {
        ParamKind::Scalar(ty) => ("scalar", ty, ""),
        ParamKind::Buffer { element, access: Access::Read } => ("buffer", element, "read"),
        ParamKind::Buffer { element, access: Access::Write } => ("buffer", element, "write"),
        ParamKind::Buffer { element, access: Access::ReadWrite } => ("buffer", element, "read and write"),
    };
    [printable(&param.name, NAME), kind.into(), ty.to_string(), access.into()]
}

/// A command line for one workgroup.
fn example(path: &Path, program: &Program) -> String {
    let threads = program.workgroup_threads();
    let arguments = program.params.iter().map(|Param { name, kind }| {
        format!(
            " \\\n    --arg {}",
            match kind {
                ParamKind::Scalar(Type::Bool) => format!("{name}=true"),
                ParamKind::Scalar(ty) if ty.is_float() => format!("{name}=1.0"),
                ParamKind::Scalar(_) => format!("{name}=1"),
                ParamKind::Buffer { access: Access::Read, .. } => format!("{name}=@{name}.npy"),
                // Quoted because some shells interpret brackets.
                ParamKind::Buffer { element, .. } => format!("'{name}=out:{element}[{threads}]'"),
            }
        )
    });
    let path = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,".contains(c);
    let path = if path.chars().all(plain) { path } else { format!("'{}'", path.replace('\'', "'\\''")) };
    format!("hologram exec {path} --grid 1{}", arguments.collect::<String>())
}
