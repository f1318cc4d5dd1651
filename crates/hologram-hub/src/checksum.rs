//! Checksums of files as the Hub lists them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use graviola::hashing::sha2::Sha256Context;

use crate::error::{HubError, Result, io};

/// The checksum of a file. It is the file's ETag, and names the file in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// SHA-256 of the content, for large files.
    Sha256(String),
    /// Git's id of a blob: SHA-1 of "blob", the length and the content.
    Git(String),
}

impl Checksum {
    /// A SHA-256 in 64 hexadecimal digits.
    pub fn sha256(text: &str) -> Option<Checksum> {
        is_hex(text, 64).then(|| Checksum::Sha256(text.into()))
    }

    /// A Git id in 40 hexadecimal digits.
    pub fn git(text: &str) -> Option<Checksum> {
        is_hex(text, 40).then(|| Checksum::Git(text.into()))
    }

    /// The digits.
    pub fn digits(&self) -> &str {
        match self {
            Checksum::Sha256(digits) | Checksum::Git(digits) => digits,
        }
    }

    /// The digits of a file's own checksum of this kind. `progress` gets the bytes read so far.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn of_file(&self, path: &Path, progress: &mut dyn FnMut(u64)) -> Result<String> {
        if !graviola::util::is_cpu_supported() {
            return Err(HubError::Processor);
        }
        let mut file = File::open(path).map_err(io(path))?;
        let length = file.metadata().map_err(io(path))?.len();
        let mut sha256 = Sha256Context::new();
        let mut sha1 = sha1_smol::Sha1::new();
        sha1.update(format!("blob {length}\0").as_bytes());
        let (mut buffer, mut done) = (vec![0; 1 << 20], 0);
        loop {
            let n = file.read(&mut buffer).map_err(io(path))?;
            if n == 0 {
                break;
            }
            match self {
                Checksum::Sha256(_) => sha256.update(&buffer[..n]),
                Checksum::Git(_) => sha1.update(&buffer[..n]),
            }
            done += n as u64;
            progress(done);
        }
        Ok(match self {
            Checksum::Sha256(_) => sha256.finish().iter().map(|byte| format!("{byte:02x}")).collect(),
            Checksum::Git(_) => sha1.digest().to_string(),
        })
    }
}

/// Whether a text is this many lower-case hexadecimal digits.
pub fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_git_and_sha256sum() {
        let path = std::env::temp_dir().join(format!("hologram-checksum-{}", std::process::id()));
        std::fs::write(&path, "hello\n").unwrap();
        // git hash-object, sha256sum
        let git = "ce013625030ba8dba906f756967f9e9ca394464a";
        let sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        let sum = |kind: Checksum| kind.of_file(&path, &mut |_| ()).unwrap();
        assert_eq!(sum(Checksum::git(git).unwrap()), git);
        assert_eq!(sum(Checksum::sha256(sha256).unwrap()), sha256);
        std::fs::remove_file(&path).unwrap();
        assert!(Checksum::sha256(git).is_none() && Checksum::git("../../../../../../../../../../../../../x").is_none());
    }
}
