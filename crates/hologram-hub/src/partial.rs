//! A file that is being downloaded: its bytes so far, and a record of how many of each piece there are.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::error::{Result, io, make_folder};

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

/// Digits of a number in a record: each piece has one at a fixed place, in hexadecimal.
const DIGITS: usize = 16;

/// What a record begins with.
fn header(size: u64, piece: u64) -> String {
    format!("bytes of each piece of {piece}, {size} in all\n")
}

/// Bytes of each piece that an earlier download of a blob in pieces of this size left.
fn kept(blob: &Path, size: u64, piece: u64) -> Option<Vec<u64>> {
    let old = fs::read(blob.with_extension(RECORD)).ok()?;
    let numbers = old.strip_prefix(header(size, piece).as_bytes())?;
    let whole = fs::metadata(blob.with_extension(BYTES)).is_ok_and(|m| m.is_file() && m.len() == size);
    if !whole || numbers.len() as u64 != size.div_ceil(piece).checked_mul(DIGITS as u64)? {
        return None;
    }
    let number = |digits: &[u8]| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    let read = |(index, digits): (usize, &[u8])| {
        let length = piece.min(size - index as u64 * piece);
        number(digits).filter(|bytes| *bytes <= length)
    };
    numbers.chunks(DIGITS).enumerate().map(read).collect()
}

/// Bytes of a blob that an earlier download left.
pub fn kept_bytes(blob: &Path, size: u64, piece: u64) -> u64 {
    kept(blob, size, piece).unwrap_or_default().into_iter().sum()
}

/// A part of a file that one connection downloads.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Its number.
    pub index: usize,
    /// Its first byte.
    pub start: u64,
    /// The first byte that is missing.
    pub at: u64,
    /// The byte after its last.
    pub end: u64,
}

/// Ending of a file's bytes so far.
pub const BYTES: &str = "hologram-part";
/// Ending of the record.
pub const RECORD: &str = "hologram-pieces";

impl Partial {
    /// Goes on with the download of a blob, or begins it.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn open(blob: &Path, size: u64, piece: u64) -> Result<Partial> {
        let (path, record_path) = (blob.with_extension(BYTES), blob.with_extension(RECORD));
        let folder = blob.parent().unwrap_or(blob);
        make_folder(folder)?;
        let (header, count) = (header(size, piece), size.div_ceil(piece) as usize);
        let kept = kept(blob, size, piece);
        if kept.is_none() {
            File::create(&path).and_then(|file| file.set_len(size)).map_err(io(&path))?;
            let numbers = "0".repeat(count * DIGITS);
            fs::write(&record_path, header.clone() + &numbers).map_err(io(&record_path))?;
        }
        let record = OpenOptions::new().write(true).open(&record_path).map_err(io(&record_path))?;
        let pieces = (0..count).map(|index| {
            let start = index as u64 * piece;
            let bytes = kept.as_ref().map_or(0, |numbers| numbers[index]);
            Piece { index, start, at: start + bytes, end: (start + piece).min(size) }
        });
        let pieces: Vec<Piece> = pieces.collect();
        let resumed = pieces.iter().map(|piece| piece.at - piece.start).sum();
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
        self.pieces.iter().copied().filter(|piece| piece.at < piece.end)
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

    /// Records that a piece is on the disk up to byte `at`, so that another process goes on there.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn reached(&self, piece: Piece, at: u64) -> Result<()> {
        let mut record = self.record.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let number = format!("{:0DIGITS$x}", at - piece.start);
        let place = SeekFrom::Start((self.header + piece.index * DIGITS) as u64);
        record.seek(place).and_then(|_| record.write_all(number.as_bytes())).map_err(io(&self.record_path))
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
