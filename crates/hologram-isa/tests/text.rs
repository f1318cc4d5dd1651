//! The text form: what is printed reads back as the same program, and nothing in a file makes the parser or verifier panic.

use std::path::{Path, PathBuf};

use hologram_isa::*;

/// Every example of the repository, with its name.
fn examples() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    atlas_files(&folder).into_iter().map(|path| (path.display().to_string(), read(&path))).collect()
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

/// Prints and reads back a program; the text must not change either.
fn round_trip(program: &Program) -> Program {
    let text = print(program);
    let back = parse(&text).unwrap_or_else(|e| panic!("{e} in\n{text}"));
    assert_eq!(&back, program, "in\n{text}");
    assert_eq!(print(&back), text);
    assert_eq!(back.text_hash(), program.text_hash());
    back
}

#[test]
fn examples_are_verified_and_round_trip() {
    for (name, text) in examples() {
        let program = parse(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        verify(&program).unwrap_or_else(|e| panic!("{name}: {e}"));
        round_trip(&program);
    }
}

/// Every operation with every type that the table gives it, with registers, scalars and constants as operands.
#[test]
fn every_operation_and_type_round_trips() {
    for &op in Opcode::ALL {
        let info = op.info();
        for ty in info.types.iter() {
            let mut b = Builder::new(info.mnemonic, [32, 1, 1]);
            let buffer = b.buffer("memory", ty, Access::ReadWrite);
            let shared = b.shared("tile", ty, 3);
            let scalar = b.scalar("scalar", ty);
            match info.signature {
                Signature::Builtin if ty == Type::U32 => _ = b.builtin(op),
                Signature::Barrier if ty == Type::U32 => b.barrier(),
                Signature::Builtin | Signature::Barrier => continue,
                Signature::Load | Signature::Store => {
                    for array in [buffer, shared] {
                        let value = b.load(array, 2u32);
                        b.store(array, 1u32, value);
                        b.store(array, value_of(Type::U32, 0), value_of(ty, 1));
                    }
                }
                signature => {
                    let sources = if signature.operands() == [OperandType::Any] { &Type::ALL[..] } else { &[ty] };
                    for &source in sources.iter().filter(|s| signature != Signature::Bitcast || s.size() == ty.size()) {
                        for kind in 0..3 {
                            let args: Vec<Value> = signature
                                .operands()
                                .iter()
                                .map(|rule| match (rule.resolve(ty).unwrap_or(source), kind) {
                                    (t, 0) if t == ty => scalar,
                                    (t, 1) => b.var(value_of(t, 1)),
                                    (t, _) => value_of(t, 1),
                                })
                                .collect();
                            b.inst(op, ty, &args);
                        }
                    }
                }
            }
            let program = b.finish().unwrap_or_else(|e| panic!("{}.{ty}: {e}", info.mnemonic));
            assert!(print(&program).contains(info.mnemonic));
            round_trip(&program);
        }
    }
}

fn value_of(ty: Type, word: u32) -> Value {
    Value { operand: Operand::Const(ty, word), ty }
}
