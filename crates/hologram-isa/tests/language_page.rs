//! The language page agrees with the tables, and its programs behave as it says.

use hologram_isa::*;

#[path = "../examples/language_page.rs"]
#[allow(dead_code, reason = "its main is the example's")]
mod generator;

#[test]
fn the_page_is_made_from_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/atlas.md");
    let page = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let made = generator::page();
    let different = page.lines().zip(made.lines()).find(|(a, b)| a != b);
    assert!(
        page == made,
        "docs/atlas.md is not what the tables give ({different:?}); make it anew:\n\
         cargo run -p hologram-isa --example language_page > docs/atlas.md"
    );
    assert!(!page.contains("{{"));
    for &op in Opcode::ALL {
        let info = op.info();
        assert!(page.contains(&format!("| `{}", info.mnemonic)) && page.contains(&info.doc.replace('|', "\\|")));
    }
}

/// Every program of the page is valid and without warnings, or is rejected with the message of its comment `// error:
/// …` on that line.
#[test]
fn the_programs_of_the_page_are_what_it_says() {
    let page = generator::page();
    let programs = page.split("```text\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut counts = [0, 0];
    for text in programs {
        let expected = (1..).zip(text.lines()).find_map(|(n, line)| Some((n, line.split_once("// error: ")?.1)));
        let result = parse(text).and_then(|program| verify(&program).map(|()| program));
        match (result, expected) {
            (Ok(program), None) => {
                counts[0] += 1;
                // The program that shows the header has no body.
                let warnings = if program.body.is_empty() { Vec::new() } else { lint(&program) };
                assert_eq!(warnings, [], "{text}");
            }
            (Err(IsaError::Verify { line, message, .. }), Some((at, words))) => {
                counts[1] += 1;
                assert!(line == at && message.starts_with(words), "line {line}: {message} in\n{text}");
            }
            (result, _) => panic!("{result:?} for\n{text}"),
        }
    }
    assert!(counts[0] >= 7 && counts[1] >= 4, "{counts:?}");
}
