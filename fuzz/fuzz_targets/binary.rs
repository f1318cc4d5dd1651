//! Any content of a binary program behind a matching header, so that the checksum does not stop the fuzzer: an error,
//! or a program that is written back unchanged.
#![no_main]

use hologram_isa::{binary, parse, print, verify};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|content: &[u8]| {
    let _ = binary::decode(content);
    let Ok(program) = binary::decode(&with_header(content)) else { return };
    assert_eq!(binary::decode(&binary::encode(&program)).expect("an encoded program is read"), program);
    if verify(&program).is_ok() {
        assert_eq!(parse(&print(&program)).expect("a verified program's text is read"), program);
    }
});

/// The content as a complete file.
fn with_header(content: &[u8]) -> Vec<u8> {
    // CRC-32, bit by bit.
    let crc = !content.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 })
    });
    let (version, length) = (binary::VERSION.to_le_bytes(), (content.len() as u64).to_le_bytes());
    [&binary::MAGIC[..], &version, &crc.to_le_bytes(), &length, content].concat()
}
