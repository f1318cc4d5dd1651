//! Options of texts that conform to something.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use hologram_llm::engine::{Constraint, SubmitError};

use super::usage;
use crate::text::read_file;

/// Maximum bytes of a schema's or a grammar's file.
const MAX_FILE: u64 = 1 << 20;

/// What a text must conform to.
#[derive(Args, Default)]
pub struct ConstraintArgs {
    /// Write JSON that this schema accepts: the schema itself or its file
    #[arg(long, value_name = "SCHEMA", conflicts_with = "grammar")]
    pub json_schema: Option<String>,
    /// Write a text of this grammar, in GBNF (llama.cpp's format) or in Lark's: a file, or GBNF itself
    #[arg(long, alias = "grammar-file", value_name = "FILE")]
    pub grammar: Option<PathBuf>,
}

impl ConstraintArgs {
    /// The file of the schema or the grammar, if there is one.
    pub fn file(&self) -> Option<&Path> {
        let schema = || self.json_schema.as_deref().map(Path::new).filter(|path| path.exists());
        self.grammar.as_deref().filter(|path| path.exists()).or_else(schema)
    }

    /// The constraint, if one is given.
    ///
    /// # Errors
    /// When a file cannot be read or its grammar is wrong; a usage error for a schema that is no JSON.
    pub fn constraint(&self) -> anyhow::Result<Option<Constraint>> {
        if let Some(path) = &self.grammar {
            let inline = path.to_str().filter(|text| text.contains("::=") && !path.exists());
            let (name, grammar) = match inline {
                Some(grammar) => ("--grammar".into(), grammar.to_string()),
                None => (path.display().to_string(), text(path)?),
            };
            return Constraint::grammar(&grammar).map(Some).map_err(|reason| anyhow!("{name}: {reason}"));
        }
        let Some(schema) = &self.json_schema else { return Ok(None) };
        let inline = schema.trim_start().starts_with(['{', '[']) || ["true", "false"].contains(&schema.trim());
        let content = if inline { schema.clone() } else { text(Path::new(schema))? };
        match serde_json::from_str(&content) {
            Ok(schema) => Ok(Some(Constraint::JsonSchema(schema))),
            Err(e) => usage(format!("--json-schema is no JSON: {e}")),
        }
    }
}

impl ConstraintArgs {
    /// The error of a text that cannot be constrained, with the file or option that it comes from.
    pub fn at_fault(&self, error: anyhow::Error) -> anyhow::Error {
        match error.downcast_ref() {
            Some(SubmitError::Unsupported { field: "constraint", reason }) => match self.file() {
                Some(path) => anyhow!("{}: {reason}", path.display()),
                None if self.grammar.is_some() => anyhow!("--grammar: {reason}"),
                None => anyhow!("--json-schema: {reason}"),
            },
            _ => error,
        }
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    String::from_utf8(read_file(path, MAX_FILE)?).with_context(|| format!("{} is not UTF-8", path.display()))
}
