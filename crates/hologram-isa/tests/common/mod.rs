//! The programs for tests of the text and binary forms.

use std::path::{Path, PathBuf};

/// Every example of the repository, with its name.
pub fn examples() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    atlas_files(&folder).into_iter().map(|path| (path.display().to_string(), read(&path))).collect()
}

/// The programs of `tests/FOLDER`, with their places for messages. Lines `// ---` separate the programs of a file.
pub fn cases(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut cases = Vec::new();
    for path in atlas_files(&folder) {
        for (i, text) in read(&path).split("// ---\n").enumerate() {
            cases.push((format!("{}, program {}", path.display(), i + 1), text.trim_end().into()));
        }
    }
    cases
}

fn atlas_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "atlas"));
    paths.sort();
    assert!(!paths.is_empty(), "no .atlas file in {}", folder.display());
    paths
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
