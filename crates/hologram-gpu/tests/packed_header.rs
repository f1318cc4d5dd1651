//! The rows of packed formats as GPU kernels read them: the generated part of `kernels/shared/packed.h`.

use hologram_device::{BlockType, DType, Factors};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/shared/packed.h");
/// The lines around the generated part.
const BEGIN: &str =
    "// Generated from the rows in `format/blocks.rs` by the test `packed_header`: to change it, set WRITE_HEADER=1.\n";
const END: &str = "// End of what is generated.\n";

fn generated() -> String {
    let mut text = "#define PACKED_TYPES(DO)".to_string();
    // Floats of a byte have a header of their own.
    let of_integers = |block: &BlockType| block.is_packed() && !DType::Block(*block).has_float_codes();
    for block in BlockType::ALL.into_iter().filter(of_integers) {
        let factors = match block.factors() {
            Factors::None => "ONE",
            Factors::Pairs => "PAIRS",
            Factors::Nibbles => "NIBBLES",
            Factors::Signed(16) => "SIGNED_16",
            Factors::Signed(_) => "SIGNED_32",
            Factors::Exponent => "EXPONENT",
            Factors::Floats => "FLOATS_16",
            Factors::Whole => "WHOLE",
        };
        let numbers = [
            block.low_bits(),
            block.high_bits(),
            block.row().len / 32,
            block.record_bytes(),
            block.bias().into(),
            block.table().is_some().into(),
            block.row().has_minimum().into(),
            block.divisor() as usize,
        ];
        let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
        let (name, numbers) = (block.name(), numbers.join(", "));
        text += &format!(" \\\n  DO({}, {name}, {numbers}, {factors})", name.to_lowercase());
    }
    text.push('\n');
    text += "#define TABLES(DO)";
    for block in BlockType::ALL.into_iter().filter(|block| block.is_packed()) {
        let Some(table) = block.table() else { continue };
        let word = |four: &[i8; 4]| format!("{:#x}u", u32::from_le_bytes(four.map(|value| value as u8)));
        let words: Vec<String> = table.as_chunks().0.iter().map(word).collect();
        text += &format!(" \\\n  DO({}, {})", block.name(), words.join(", "));
    }
    text.push('\n');
    text
}

#[test]
fn kernels_have_the_rows() {
    let text = std::fs::read_to_string(FILE).expect("the header");
    let (before, rest) = text.split_once(BEGIN).expect("where the generated part begins");
    let (found, after) = rest.split_once(END).expect("where it ends");
    let expected = generated();
    if std::env::var_os("WRITE_HEADER").is_some() {
        std::fs::write(FILE, [before, BEGIN, &expected, END, after].concat()).expect("the header is written");
        return;
    }
    assert!(found == expected, "packed.h should have:\n{expected}");
}
