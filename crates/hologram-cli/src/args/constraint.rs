//! Options of texts that conform to something.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use hologram_llm::engine::Constraint;

use super::usage;
use crate::text::read_file;

/// Maximum bytes of a schema's or a grammar's file.
const MAX_FILE: u64 = 1 << 20;

/// What a text must conform to.
#[derive(Args)]
pub struct ConstraintArgs {
    /// Write JSON that this schema accepts: the schema itself or its file
    #[arg(long, value_name = "SCHEMA", conflicts_with = "grammar")]
    pub json_schema: Option<String>,
    /// Write a text of this grammar, a file in Lark's format
    #[arg(long, value_name = "FILE")]
    pub grammar: Option<PathBuf>,
}

impl ConstraintArgs {
    /// The file of the schema or the grammar, if there is one.
    pub fn file(&self) -> Option<&Path> {
        let schema = || self.json_schema.as_deref().map(Path::new).filter(|path| path.exists());
        self.grammar.as_deref().or_else(schema)
    }

    /// The constraint, if one is given.
    ///
    /// # Errors
    /// When a file cannot be read; a usage error for a schema that is no JSON.
    pub fn constraint(&self) -> anyhow::Result<Option<Constraint>> {
        if let Some(path) = &self.grammar {
            return Ok(Some(Constraint::Lark(text(path)?)));
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

fn text(path: &Path) -> anyhow::Result<String> {
    String::from_utf8(read_file(path, MAX_FILE)?).with_context(|| format!("{} is not UTF-8", path.display()))
}
