//! The binary form: programs are read back unchanged, and no file makes the reader panic.

mod common;

use common::{cases, examples};
use hologram_isa::binary::{MAGIC, VERSION, decode, encode, is_binary};
use hologram_isa::random::Random;
use hologram_isa::*;

/// A file with this content and a matching header.
fn file(content: &[u8]) -> Vec<u8> {
    // CRC-32, bit by bit.
    let crc = !content.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 })
    });
    let length = (content.len() as u64).to_le_bytes();
    [&MAGIC[..], &VERSION.to_le_bytes(), &crc.to_le_bytes(), &length, content].concat()
}

fn message(file: &[u8]) -> String {
    match decode(file) {
        Err(e @ IsaError::Binary { .. }) => e.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn programs_round_trip() {
    let texts = cases("good").into_iter().chain(examples());
    let mut programs: Vec<Program> =
        texts.map(|(place, text)| parse(&text).unwrap_or_else(|e| panic!("{place}: {e}"))).collect();
    programs.extend((0..200).map(|seed| random::case(seed).unwrap().program));
    for program in &programs {
        let bytes = encode(program);
        let text = print(program);
        let back = decode(&bytes).unwrap_or_else(|e| panic!("{e} in\n{text}"));
        assert_eq!((&back, print(&back)), (program, text));
        assert_eq!(encode(&back), bytes);
        verify(&back).unwrap();
        assert_eq!(bytes, file(&bytes[24..]), "the header is the documented one");
        assert!(is_binary(&bytes) && !is_binary(print(program).as_bytes()));
    }
}

/// The form of one program, byte for byte. A change requires a new version.
#[test]
fn the_form_is_stable() {
    let text = "kernel k(x: buffer<f32, write>, n: u32) workgroup(8, 2) shared(t: i8[3]) {
        loop max 300 {
            %a = load.i8 t[2]
            %b = exp.fast.f32 1.0
            store.f32 x[n], %b
            break
        }
    }";
    let content = [
        &b"\x03\x03f32\x03u32\x02i8\x03\x04load\x03exp\x05store"[..],
        b"\x01k\x08\x02\x01",
        b"\x02\x01x\x02\x00\x01n\x00\x01\x01\x01t\x02\x03\x02\x01a\x02\x01b\x00",
        b"\x01\x03\xac\x02\x04",
        b"\x00\x0a\x00\x02\x00\x00\x01\x02\x01\x02",
        b"\x00\x03\x01\x00\x01\x01\x02\x00\x80\x80\x80\xfc\x03",
        b"\x00\x04\x02\x00\x00\x02\x01\x01\x00\x01",
        b"\x04\x00",
    ];
    let program = parse(text).unwrap();
    assert_eq!(encode(&program), file(&content.concat()));
}

#[test]
fn wrong_files_are_rejected_with_the_place() {
    let good = encode(&parse("kernel k() workgroup(1) {\n}").unwrap());
    let with = |at: usize, byte: u8| {
        let mut file = good.clone();
        file[at] = byte;
        file
    };
    // Kernel k of one thread without types, instructions, parameters, shared arrays and registers: only the body
    // follows.
    let body = |body: &[u8]| file(&[b"\x00\x00\x01k\x01\x01\x01\x00\x00\x00", body].concat());
    let nested = (0..70).fold(Vec::new(), |inner, _| [&b"\x01\x03\x01"[..], &inner].concat());
    let cases: [(Vec<u8>, &str); 26] = [
        (Vec::new(), "byte 0: the file ends after 0 bytes, within the header of 24"),
        (good[..20].to_vec(), "byte 0: the file ends after 20 bytes"),
        (b"\x89PNG\r\n\x1a\n".repeat(4), "byte 0: not a binary Atlas program"),
        (b"\x89ATLAS\n".repeat(4), "byte 0: not a binary Atlas program"),
        (with(8, 9), "byte 8: unsupported version 9 of the binary form (supported: 1)"),
        (with(12, good[12] ^ 1), "byte 12: the program is damaged: its checksum is"),
        (with(30, 7), "byte 12: the program is damaged"),
        (with(23, 1), "byte 16: the header is followed by 11 bytes, but promises 72057594037927947"),
        (good[..good.len() - 1].to_vec(), "byte 16: the header is followed by 10 bytes, but promises 11"),
        ([&good[..], b"\0"].concat(), "byte 16: the header is followed by 12 bytes, but promises 11"),
        (file(&vec![0; 16 << 20]), "byte 16: the program is longer than 16777216 bytes"),
        (file(b""), "byte 24: the program ends in the middle"),
        (file(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "byte 24: 18446744073709551615 types, but at most"),
        (file(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), "byte 24: a number has more than 64 bits"),
        (file(&[0x80; 20]), "byte 24: a number has more than 64 bits"),
        (file(b"\x01\x03f31"), "byte 25: unknown type \"f31\""),
        (file(b"\x00\x01\x03adf"), "byte 26: unknown instruction \"adf\""),
        (file(b"\x00\x00\x02\xff\xff"), "byte 26: a name is not UTF-8"),
        (file(b"\x00\x00\x64k"), "byte 26: the program ends within a name"),
        (file(b"\x00\x00\x81\x01k"), "byte 26: a name of 129 bytes, but at most 128 are allowed"),
        (file(b"\x00\x00\x01k\x01\x01\x80\x80\x80\x80\x10"), "byte 30: the number 4294967296 is too large"),
        (body(b"\x05"), "byte 34: 5 statements, but 0 bytes are left"),
        (body(b"\x01\x63"), "byte 35: 99 is not a kind of statement"),
        (body(b"\x01\x00\x0c"), "byte 36: 0xc are not valid flags of an instruction"),
        (body(b"\x01\x00\x00\x07"), "byte 37: instruction 7 is outside the list of 0"),
        (body(&nested), "blocks are nested more than 64 deep"),
    ];
    for (file, expected) in cases {
        let message = message(&file);
        assert!(message.starts_with(expected) || message.contains(expected), "{message}, not {expected}");
    }
    assert!(message(&body(b"\x00\x00")).contains("byte 35: 1 bytes follow the program's end"));
}

/// The header detects every bit flip and every truncation. With a header for the damaged content, the result is an
/// error or a program that keeps all invariants.
#[test]
fn damaged_files_never_panic() {
    let texts = cases("good").into_iter().chain(examples());
    let sources: Vec<Vec<u8>> = texts.map(|(_, text)| encode(&parse(&text).unwrap())).collect();
    for source in &sources {
        for at in 0..source.len() {
            let mut file = source.clone();
            file[at] ^= 1 << (at % 8);
            assert!(decode(&file).is_err() && decode(&source[..at]).is_err(), "byte {at}");
        }
    }
    let mut random = Random(1);
    let (mut read, mut valid) = (0, 0);
    for _ in 0..40_000 {
        let mut content = sources[random.below(sources.len())][24..].to_vec();
        for _ in 0..=random.below(2) {
            let at = random.below(content.len());
            let end = (at + random.below(8)).min(content.len());
            match random.below(6) {
                0 => content[at] = random.below(256) as u8,
                1 => content[at] = content[at].wrapping_add(1),
                2 => content[at] ^= 1 << random.below(8),
                3 => drop(content.drain(at..end)),
                4 => drop(content.splice(at..at, content[at..end].to_vec())),
                _ => {
                    let other = &sources[random.below(sources.len())][24..];
                    let from = random.below(other.len());
                    content.splice(at..end, other[from..(from + end - at).min(other.len())].to_vec());
                }
            }
        }
        let Ok(program) = decode(&file(&content)) else { continue };
        read += 1;
        // Even an invalid program can be written, read, and named in an error.
        assert_eq!(decode(&encode(&program)).unwrap(), program);
        if verify(&program).is_ok() {
            valid += 1;
            let text = print(&program);
            assert_eq!(parse(&text).unwrap_or_else(|e| panic!("{e} in\n{text}")), program);
        }
    }
    assert!(read > 4_000 && valid > 1_000 && valid < read, "{read} of 40000 damaged files are read, {valid} valid");
}
