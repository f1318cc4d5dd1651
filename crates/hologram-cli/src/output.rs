//! Output files: replaced completely or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use hologram_llm::{ModelFiles, leads_to, without_links};

use crate::args::usage;
use crate::status::status;

/// An output file, which keeps its old content until the new content is complete.
pub struct Output {
    /// The name as the user wrote it.
    name: PathBuf,
    place: Place,
}

/// Where the content goes.
enum Place {
    /// To a new file beside this one, which is then renamed. The path contains no links.
    Beside(PathBuf),
    /// Into the existing file: a device, a pipe, or a file in a folder that is not writable.
    Inside(File),
}

impl Output {
    /// Checks that a file can be written, without changing it.
    ///
    /// # Errors
    /// Names the file, when it cannot be written.
    pub fn create(path: &Path) -> anyhow::Result<Output> {
        let place = Place::of(path).with_context(|| cannot_write(path))?;
        Ok(Output { name: path.into(), place })
    }

    /// Writes the whole file. After an error the old content remains.
    ///
    /// # Errors
    /// Names the file, when it cannot be written.
    pub fn write(&self, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> anyhow::Result<()> {
        self.place.write(content).with_context(|| cannot_write(&self.name))
    }
}

/// Checks that the name of a file to write is not `-`, where standard output cannot take it.
///
/// # Errors
/// A usage error, which names the file.
pub fn check_is_file(out: &Path) -> anyhow::Result<()> {
    if out == Path::new("-") {
        return usage("a .gguf file cannot be standard output: give a file's name");
    }
    Ok(())
}

/// Checks that an output file is none of the files that the command reads, through links either: those of a model, and
/// `others`, of which folders stand for the files in them.
///
/// # Errors
/// Names the output file, when it is read.
pub fn check_not_read<'a>(
    out: &Path,
    model: Option<&ModelFiles>,
    others: impl IntoIterator<Item = &'a Path>,
) -> anyhow::Result<()> {
    let read = model.is_some_and(|files| files.contain(out)) || others.into_iter().any(|other| leads_to(out, other));
    ensure!(!read, "{} is also read; write to another name", out.display());
    Ok(())
}

/// Writes a file of these bytes. After an error the old content remains.
///
/// # Errors
/// Names the file, when it cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    Output::create(path)?.write(|out| out.write_all(bytes))
}

/// As [`write`], and reports what was written on standard error. `-` is standard output.
///
/// # Errors
/// Those of [`write`], and when standard output fails.
pub fn save(path: &Path, bytes: &[u8], what: &str) -> anyhow::Result<()> {
    if path == Path::new("-") {
        let mut out = std::io::stdout().lock();
        return Ok(out.write_all(bytes).and_then(|()| out.flush())?);
    }
    write(path, bytes)?;
    status!("wrote {} ({what})\n", path.display());
    Ok(())
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

impl Place {
    fn of(path: &Path) -> Result<Place> {
        let path = without_links(path)?;
        let old = match fs::metadata(&path) {
            // A read-only file must not be replaced either.
            Ok(old) => Some((old, OpenOptions::new().write(true).open(&path)?)),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        match old {
            Some((old, file)) if !old.is_file() => Ok(Place::Inside(file)),
            old => match (new_beside(&path), old) {
                // Removed again, so that an interrupted run leaves nothing behind.
                (Ok((_, new)), _) => fs::remove_file(new).map(|()| Place::Beside(path)),
                (Err(e), Some((_, file))) if e.kind() == ErrorKind::PermissionDenied => Ok(Place::Inside(file)),
                (Err(e), _) => Err(e),
            },
        }
    }

    fn write(&self, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
        let fill = |file: &File| {
            let mut out = BufWriter::new(file);
            content(&mut out)?;
            out.flush()
        };
        match self {
            Place::Inside(file) => {
                if file.metadata()?.is_file() {
                    file.set_len(0)?;
                }
                fill(file)
            }
            Place::Beside(path) => {
                let (file, new) = new_beside(path)?;
                let done = fill(&file).and_then(|()| {
                    if let Ok(old) = fs::metadata(path) {
                        fs::set_permissions(&new, old.permissions())?;
                    }
                    // If renaming fails, as for a mounted file, copy the content.
                    fs::rename(&new, path).or_else(|_| fs::copy(&new, path).and_then(|_| fs::remove_file(&new)))
                });
                if done.is_err() {
                    let _ = fs::remove_file(&new);
                }
                done
            }
        }
    }
}

/// A new file in the folder of another.
fn new_beside(path: &Path) -> Result<(File, PathBuf)> {
    if path.file_name().is_none() {
        return Err(Error::new(ErrorKind::InvalidInput, "the path has no file name"));
    }
    let mut number = 0;
    loop {
        let new = path.with_file_name(format!(".hologram-{}-{number}.tmp", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&new) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists && number < 100 => number += 1,
            file => return Ok((file?, new)),
        }
    }
}
