//! The binary form of a program: what [`encode`] writes and [`decode`] reads.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | `89 41 54 4C 41 53 0D 0A`: no text begins so, and a transfer that changes line ends shows |
//! | 4 | version, [`VERSION`] |
//! | 4 | CRC-32 of the content |
//! | 8 | length of the content in bytes |
//! | … | the content |
//!
//! The numbers of this header are little-endian. In the content a *number* is LEB128: seven bits a byte, the low ones
//! first, the top bit set on all but the last byte; a *name* is its length and its UTF-8 bytes; a *list* is its length
//! and its items. The content is
//!
//! 1. the list of the types that the program uses, by name, and of the instructions, by mnemonic. What follows gives
//!    types and instructions as indices of these lists, so that a file keeps its meaning when the table of instructions
//!    grows;
//! 2. the kernel's name and its three workgroup sizes;
//! 3. the lists of parameters (name; 0 for a scalar, 1, 2, 3 for a buffer to read, write, or both; type), of shared
//!    arrays (name, type, length) and of registers (name, type);
//! 4. the body: a list of statements, each one byte that says what it is, then its fields in the order of [`StmtKind`].
//!    An operand is 0 and a register, 1 and a parameter, or 2, a type and the constant's register word.
//!
//! Lines and comments of a text are not kept: the lines in errors are those of the printed text.

mod decode;
mod encode;

pub use decode::decode;
pub use encode::encode;

#[cfg(doc)]
use crate::StmtKind;

/// The first bytes of every binary program.
pub const MAGIC: [u8; 8] = *b"\x89ATLAS\r\n";

/// The version of the form that this crate writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// Bytes before the content.
const HEADER: usize = 24;

/// Maximum bytes that [`decode`] reads.
const MAX_BINARY: usize = 16 << 20;

/// Whether a file contains a binary program, possibly damaged: no text begins with this byte.
pub fn is_binary(file: &[u8]) -> bool {
    file.first() == Some(&MAGIC[0])
}

/// The byte before a statement's fields.
mod tag {
    pub const INST: u8 = 0;
    pub const IF: u8 = 1;
    pub const FOR: u8 = 2;
    pub const LOOP: u8 = 3;
    pub const BREAK: u8 = 4;
    pub const BREAK_IF: u8 = 5;
    pub const CONTINUE: u8 = 6;
    pub const CONTINUE_IF: u8 = 7;
}

/// Bits of an instruction's first byte.
mod flag {
    pub const FAST: u8 = 1;
    pub const RESULT: u8 = 2;
    pub const PARAM: u8 = 4;
    pub const SHARED: u8 = 8;
}

/// CRC-32 as in gzip and PNG (polynomial 0xEDB88320, reflected, inverted before and after).
fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let mut value = i as u32;
            let mut bit = 0;
            while bit < 8 {
                value = (value >> 1) ^ (0xedb8_8320 * (value & 1));
                bit += 1;
            }
            table[i] = value;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, byte| (crc >> 8) ^ TABLE[(crc as u8 ^ byte) as usize])
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checksum_is_the_published_one() {
        // The check value of the algorithm's catalogue entry (CRC-32/ISO-HDLC).
        assert_eq!(super::crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(super::crc32(b""), 0);
    }
}
