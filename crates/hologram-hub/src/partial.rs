//! A file that is being downloaded: its bytes so far, and a record of the pieces that are complete.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::error::{Result, io};

/// A download in progress. Two files beside the blob that it will be: no other program takes them for one.
pub struct Partial {
    path: PathBuf,
    record_path: PathBuf,
    record: Mutex<File>,
    header: usize,
    pieces: Vec<Piece>,
    /// Bytes that an earlier download left.
    resumed: u64,
}

/// The mark of a complete piece.
const DONE: u8 = b'#';

/// What a record begins with.
fn header(size: u64, piece: u64) -> String {
    format!("pieces of {piece} bytes, {size} in all\n")
}

/// The marks of an earlier download of a blob in pieces of this size.
fn kept(blob: &Path, size: u64, piece: u64) -> Option<Vec<u8>> {
    let old = fs::read(blob.with_extension(RECORD)).ok()?;
    let marks = old.strip_prefix(header(size, piece).as_bytes())?;
    let whole = fs::metadata(blob.with_extension(BYTES)).is_ok_and(|m| m.is_file() && m.len() == size);
    (whole && marks.len() as u64 == size.div_ceil(piece)).then(|| marks.to_vec())
}

/// Bytes of a blob that an earlier download left, at most.
pub fn kept_bytes(blob: &Path, size: u64, piece: u64) -> u64 {
    let marks = kept(blob, size, piece).unwrap_or_default();
    (marks.iter().filter(|mark| **mark == DONE).count() as u64).saturating_mul(piece).min(size)
}

/// A part of a file that one connection downloads.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Its number.
    pub index: usize,
    /// Its first byte.
    pub start: u64,
    /// The byte after its last.
    pub end: u64,
    /// Whether it is on the disk.
    pub done: bool,
}

/// Ending of a file's bytes so far.
pub const BYTES: &str = "hologram-part";
/// Ending of the record of complete pieces.
pub const RECORD: &str = "hologram-pieces";

impl Partial {
    /// Goes on with the download of a blob, or begins it.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn open(blob: &Path, size: u64, piece: u64) -> Result<Partial> {
        let (path, record_path) = (blob.with_extension(BYTES), blob.with_extension(RECORD));
        let folder = blob.parent().unwrap_or(blob);
        fs::create_dir_all(folder).map_err(io(folder))?;
        let (header, count) = (header(size, piece), size.div_ceil(piece) as usize);
        let kept = kept(blob, size, piece);
        if kept.is_none() {
            File::create(&path).and_then(|file| file.set_len(size)).map_err(io(&path))?;
            let marks = ".".repeat(count);
            fs::write(&record_path, header.clone() + &marks).map_err(io(&record_path))?;
        }
        let record = OpenOptions::new().write(true).open(&record_path).map_err(io(&record_path))?;
        let pieces = (0..count).map(|index| {
            let start = index as u64 * piece;
            Piece {
                index,
                start,
                end: (start + piece).min(size),
                done: kept.as_ref().is_some_and(|m| m[index] == DONE),
            }
        });
        let pieces: Vec<Piece> = pieces.collect();
        let resumed = pieces.iter().filter(|piece| piece.done).map(|piece| piece.end - piece.start).sum();
        Ok(Partial { path, record_path, record: Mutex::new(record), header: header.len(), pieces, resumed })
    }

    /// The file with the bytes so far.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that an earlier download left.
    pub fn resumed(&self) -> u64 {
        self.resumed
    }

    /// What is still missing.
    pub fn missing(&self) -> impl Iterator<Item = Piece> {
        self.pieces.iter().copied().filter(|piece| !piece.done)
    }

    /// The file, to write from a byte on.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn writer(&self, at: u64) -> Result<File> {
        let mut file = OpenOptions::new().write(true).open(&self.path).map_err(io(&self.path))?;
        file.seek(SeekFrom::Start(at)).map_err(io(&self.path))?;
        Ok(file)
    }

    /// Records that a piece is complete.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn complete(&self, piece: Piece) -> Result<()> {
        let mut record = self.record.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let at = SeekFrom::Start((self.header + piece.index) as u64);
        record.seek(at).and_then(|_| record.write_all(&[DONE])).map_err(io(&self.record_path))
    }

    /// Makes the bytes the blob.
    ///
    /// # Errors
    /// When the file cannot be renamed.
    pub fn finish(self, blob: &Path) -> Result<()> {
        // What a power cut would leave empty must not have the blob's name.
        let file = OpenOptions::new().write(true).open(&self.path).map_err(io(&self.path))?;
        file.sync_all().map_err(io(&self.path))?;
        fs::rename(&self.path, blob).map_err(io(blob))?;
        let _ = fs::remove_file(&self.record_path);
        Ok(())
    }

    /// Deletes what there is.
    pub fn discard(self) {
        let _ = fs::remove_file(&self.record_path);
        let _ = fs::remove_file(&self.path);
    }
}
