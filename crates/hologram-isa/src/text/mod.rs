//! The text form of a program: one kernel per file, one statement per line.
//!
//! ```text
//! // Adds two vectors.
//! kernel add(x: buffer<f32>, y: buffer<f32>, out: buffer<f32, write>, n: u32) workgroup(256) {
//!   %i = global.x
//!   %in = lt.u32 %i, n
//!   if %in {
//!     %a = load.f32 x[%i]
//!     %b = load.f32 y[%i]
//!     %c = add.f32 %a, %b
//!     store.f32 out[%i], %c
//!   }
//! }
//! ```
//!
//! - After the parameters come `workgroup(x, y, z)`, where trailing ones may be left out, and
//!   `shared(name: type[length], …)`. A buffer is read-only unless its type says `write` or `readwrite`.
//! - An instruction is written `%result = mnemonic.type operands`; its type is that of the operation, the mnemonics are
//!   those of [`Opcode`](crate::Opcode). Builtins and `barrier` carry no type. Loads and stores name their memory:
//!   `x[%i]`. Operations whose description has an error bound for it may be written `mnemonic.fast.type`.
//! - The first assignment of a register declares it, with the type of its result; later ones must agree.
//! - Statements with blocks: `if %p { … } else { … }`, `for %k: u32 = start to end step step { … }`,
//!   `loop max rounds { … }`. `break` and `continue`, with `if %p` where they depend on a condition, mean the
//!   innermost loop, or the one whose label they name: `for @rows %r: u32 = …` and `loop @rows max …` carry `@rows`,
//!   `break @rows if %p` leaves it.
//! - Constants take their type from their position; a `:type` suffix is allowed anywhere, and needed as operand of
//!   `cvt` and `bitcast`. Integers are decimal. Floats are decimal, `inf`, `-inf` or `nan`. `0x` gives the bits of any
//!   type but `bool`, which has `true` and `false`.
//! - `//` starts a comment.
//! - A `registers(%name: type, …)` clause before the body declares every register, in the order of the program's
//!   table. It appears when that order is not the order of first assignment, so that printing and parsing always give
//!   the same program back.

mod constant;
mod lex;
mod parse;
mod print;

pub use constant::parse as parse_constant;
pub use parse::parse;
pub(crate) use print::statement_lines;
pub use print::{number_lines, print};

/// Maximum bytes that [`parse()`] reads.
const MAX_TEXT: usize = 16 << 20;

/// The suffix of a mnemonic in its fast form.
const FAST: &str = ".fast";

/// Words that denote constants and therefore cannot name parameters or shared arrays.
pub(crate) const CONSTANT_WORDS: [&str; 4] = ["true", "false", "inf", "nan"];

/// Whether a character may occur in a name.
pub(crate) const fn is_name_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b == b'.'
}
