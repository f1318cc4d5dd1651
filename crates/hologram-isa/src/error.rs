//! Errors of programs and their runs.

/// An error of the Atlas crate.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum IsaError {
    /// A program built from Rust has a type error.
    #[error("program {program}: {message}")]
    Build {
        /// The program's name.
        program: String,
        /// What is wrong.
        message: String,
    },
    /// A text could not be parsed.
    #[error("line {line}: {message}")]
    Parse {
        /// 1-based line.
        line: u32,
        /// What is wrong.
        message: String,
    },
    /// A binary program could not be read.
    #[error("byte {at}: {message}")]
    Binary {
        /// Offset in the file.
        at: usize,
        /// What was expected.
        message: String,
    },
    /// The verifier rejected a program.
    #[error("program {program}, line {line}: {message}")]
    Verify {
        /// The program's name.
        program: String,
        /// 1-based line; of the printed text when the program was built in memory.
        line: u32,
        /// What is wrong.
        message: String,
    },
    /// The arguments or the grid do not fit the program.
    #[error("program {program}: {message}")]
    Launch {
        /// The program's name.
        program: String,
        /// What is wrong.
        message: String,
    },
    /// A run failed: an index out of bounds, a division by zero, a divergent barrier.
    #[error("program {program}, line {line}, workgroup {group:?}, thread {thread}: {message}")]
    Run {
        /// The program's name.
        program: String,
        /// 1-based line; of the printed text when the program was built in memory.
        line: u32,
        /// The workgroup's index in the grid.
        group: [u32; 3],
        /// The thread's linear index in the workgroup.
        thread: u32,
        /// What is wrong.
        message: String,
    },
}

/// Same as `Display`, so that a `main` that returns the error prints a sentence.
impl std::fmt::Debug for IsaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// An index in a fault's message. From 2³¹ on it is shown as the negative number that it likely was, then as it is.
pub fn shown_index(index: u32) -> String {
    if index as i32 >= 0 { index.to_string() } else { format!("{} ({index})", index as i32) }
}
