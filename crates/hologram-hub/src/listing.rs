//! The files of a repository, as the hub lists them. A list is not trusted: names become paths here.

use serde::Deserialize;

use crate::checksum::{Checksum, is_hex};

/// Largest size that is believed, so that sums do not overflow.
const MAX_SIZE: u64 = 1 << 53;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Path in the repository, with `/` between folders.
    pub path: String,
    /// Bytes.
    pub size: u64,
    pub(crate) checksum: Checksum,
}

/// A repository at one commit.
#[derive(Debug)]
pub struct Listing {
    /// The commit, 40 hexadecimal digits.
    pub commit: String,
    /// The files.
    pub files: Vec<RemoteFile>,
    /// Files whose size or checksum the hub does not tell, as some mirrors do: they can be named, not downloaded.
    pub unverified: Vec<String>,
}

// The answer of `/api/models/OWNER/NAME/revision/main?blobs=true`.
#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Listing {
    /// Reads the hub's answer.
    ///
    /// # Errors
    /// What is wrong with it, as the rest of a sentence.
    pub fn parse(json: &[u8]) -> Result<Listing, String> {
        let answer: Answer =
            serde_json::from_slice(json).map_err(|e| format!("the answer is not a list of files: {e}"))?;
        if !is_hex(&answer.sha, 40) {
            return Err(format!("the list names a commit {:?}, which is not one", shortened(&answer.sha)));
        }
        let (mut files, mut unverified) = (Vec::new(), Vec::new());
        for sibling in answer.siblings {
            let path = sibling.rfilename;
            if !is_inside(&path) {
                return Err(format!("the list has a file {:?}, which is no path in a repository", shortened(&path)));
            }
            let (size, checksum) = match sibling.lfs {
                Some(lfs) => (Some(lfs.size), Checksum::sha256(&lfs.sha256)),
                None => (sibling.size, sibling.blob_id.and_then(|id| Checksum::git(&id))),
            };
            match (size.filter(|size| *size <= MAX_SIZE), checksum) {
                (Some(size), Some(checksum)) => files.push(RemoteFile { path, size, checksum }),
                _ => unverified.push(path),
            }
        }
        Ok(Listing { commit: answer.sha, files, unverified })
    }
}

/// Whether a path stays in the folder that it is joined to, on every system.
pub fn is_inside(path: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && part.len() <= 255
            && !part.chars().any(|c| c.is_control() || "\\:*?\"<>|".contains(c))
            && !part.ends_with(['.', ' '])
    };
    path.len() <= 1024 && path.split('/').all(part)
}

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        for path in ["a.gguf", "Q4_K_M/a-00001-of-00002.gguf", ".gitattributes", "a b/c"] {
            assert!(is_inside(path), "{path}");
        }
        for path in [
            "",
            "/etc/passwd",
            "../a",
            "a/../../b",
            "a//b",
            "a/",
            "./a",
            "C:/a",
            "a\\..\\b",
            "a\0",
            "con:",
            "a/..",
            "a.",
            "\n",
        ] {
            assert!(!is_inside(path), "{path:?}");
        }
    }

    #[test]
    fn lists_are_read_and_bad_ones_rejected() {
        let (git, sha) = ("a".repeat(40), "b".repeat(64));
        let list = |commit: &str, files: &str| {
            Listing::parse(format!(r#"{{"sha":"{commit}","siblings":[{files}]}}"#).as_bytes())
        };
        let good = format!(
            r#"{{"rfilename":"config.json","size":5,"blobId":"{git}"}},
               {{"rfilename":"m.gguf","size":9,"blobId":"{git}","lfs":{{"sha256":"{sha}","size":9,"pointerSize":130}}}}"#
        );
        let listing = list(&git, &good).unwrap();
        assert_eq!((listing.files[0].size, listing.files[0].checksum.digits()), (5, git.as_str()));
        assert_eq!((listing.files[1].size, listing.files[1].checksum.digits()), (9, sha.as_str()));
        // A file without a checksum is no reason to refuse the others.
        for bad in [r#"{"rfilename":"x","size":5,"blobId":"../y"}"#, r#"{"rfilename":"x"}"#] {
            let listing = list(&git, &format!("{bad},{good}")).unwrap();
            assert_eq!((listing.files.len(), listing.unverified), (2, vec!["x".to_string()]));
        }
        for (commit, files, reason) in [
            ("../../x", good.as_str(), "commit"),
            (&git, r#"{"rfilename":"../x","size":5,"blobId":""}"#, "no path"),
            (&git, r#"{"rfilename":"x","size":-1}"#, "not a list"),
        ] {
            assert!(list(commit, files).unwrap_err().contains(reason), "{files}");
        }
        assert!(Listing::parse(b"<!DOCTYPE html>").is_err() && Listing::parse(b"").is_err());
    }
}
