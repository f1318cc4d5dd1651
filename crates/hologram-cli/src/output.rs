//! Files that commands write: whole, or as they were before.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A file to write, which keeps what it holds until all of its new content is there.
pub struct Output {
    /// As the user named it.
    name: PathBuf,
    place: Place,
}

/// Where the content goes.
enum Place {
    /// To a new file beside this one, which then takes its name. No link leads from here.
    Beside(PathBuf),
    /// Into what is there: a device, a pipe, or a file in a folder that takes no other.
    Inside(File),
}

impl Output {
    /// Looks whether a file can be written, and leaves it as it is.
    ///
    /// # Errors
    /// When it cannot, with its name.
    pub fn create(path: &Path) -> anyhow::Result<Output> {
        let place = Place::of(path).with_context(|| cannot_write(path))?;
        Ok(Output { name: path.into(), place })
    }

    /// Writes the whole file; what fails leaves the old one.
    ///
    /// # Errors
    /// When that fails, with its name.
    pub fn write(&self, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> anyhow::Result<()> {
        self.place.write(content).with_context(|| cannot_write(&self.name))
    }
}

/// Writes a file of these bytes; what fails leaves the old one.
///
/// # Errors
/// When that fails, with its name.
pub fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    Output::create(path)?.write(|out| out.write_all(bytes))
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

impl Place {
    fn of(path: &Path) -> Result<Place> {
        let path = without_links(path)?;
        let old = match fs::metadata(&path) {
            // One that must not be written is not replaced either.
            Ok(old) => Some((old, OpenOptions::new().write(true).open(&path)?)),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(e),
        };
        match old {
            Some((old, file)) if !old.is_file() => Ok(Place::Inside(file)),
            old => match (new_beside(&path), old) {
                // Not kept: a run that is interrupted leaves nothing behind.
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
                    // Where a name cannot be given anew, as that of a mounted file, the content is copied.
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

/// The file that a path leads to, which need not be there.
fn without_links(path: &Path) -> Result<PathBuf> {
    match (fs::canonicalize(path), fs::read_link(path)) {
        (Err(e), Ok(target)) if e.kind() == ErrorKind::NotFound => {
            without_links(&path.parent().unwrap_or(Path::new("")).join(target))
        }
        (Err(e), _) if e.kind() == ErrorKind::NotFound => Ok(path.into()),
        (found, _) => found,
    }
}

/// A new file in the folder of another.
fn new_beside(path: &Path) -> Result<(File, PathBuf)> {
    if path.file_name().is_none() {
        return Err(Error::new(ErrorKind::InvalidInput, "this names no file"));
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
