//! Helpers for tests of models.

pub mod alone;
pub mod discrete;
pub mod folders;
pub mod scratch;
pub mod sequences;
pub mod snapshots;

/// The fixtures, from the folder of the package.
const FIXTURES: &str = "tests/fixtures";
