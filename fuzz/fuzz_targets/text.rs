//! Any text: an error, or a program that survives printing and its binary form.
#![no_main]

use hologram_isa::{binary, parse, print, verify};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(program) = parse(text) else { return };
    if verify(&program).is_ok() {
        assert_eq!(parse(&print(&program)).expect("a verified program's text is read"), program);
        assert_eq!(binary::decode(&binary::encode(&program)).expect("an encoded program is read"), program);
    }
});
