//! The text form: printed programs are read back unchanged, and no file makes the parser or verifier panic.

mod common;

use common::{cases, examples};
use hologram_isa::random::Random;
use hologram_isa::*;

/// Prints and reads back a program. The text must not change either.
fn round_trip(program: &Program) -> Program {
    let text = print(program);
    let back = parse(&text).unwrap_or_else(|e| panic!("{e} in\n{text}"));
    let mut numbered = program.clone();
    number_lines(&mut numbered);
    assert_eq!(lines(&numbered.body), lines(&back.body), "in\n{text}");
    assert_eq!(&back, program, "in\n{text}");
    assert_eq!(print(&back), text);
    assert_eq!(back.text_hash(), program.text_hash());
    assert_eq!(&binary::decode(&binary::encode(program)).unwrap(), program, "in\n{text}");
    back
}

/// The line of each statement, outer before inner.
fn lines(block: &[Stmt]) -> Vec<u32> {
    let inner = |stmt: &Stmt| match &stmt.kind {
        StmtKind::If { then, otherwise, .. } => [lines(then), lines(otherwise)].concat(),
        StmtKind::For { body, .. } | StmtKind::Loop { body, .. } => lines(body),
        _ => Vec::new(),
    };
    block.iter().flat_map(|stmt| [vec![stmt.line], inner(stmt)].concat()).collect()
}

fn check(text: &str) -> Result<Program, IsaError> {
    let program = parse(text)?;
    verify(&program)?;
    Ok(program)
}

#[test]
fn good_programs_are_accepted() {
    for (place, text) in cases("good").into_iter().chain(examples()) {
        let program = check(&text).unwrap_or_else(|e| panic!("{place}: {e}"));
        round_trip(&program);
    }
}

/// Each program of `tests/bad` is rejected at the line of its comment `// error: …`, with a message that contains the
/// comment.
#[test]
fn bad_programs_are_rejected_with_the_line() {
    for (place, text) in cases("bad") {
        let mut expected =
            (1..).zip(text.lines()).filter_map(|(n, line)| Some((n, line.split_once("// error: ")?.1.trim())));
        let (line, substring) = expected.next().unwrap_or_else(|| panic!("{place} has no `// error:` comment"));
        assert_eq!(expected.next(), None, "{place} has more than one error");
        match check(&text) {
            Err(IsaError::Parse { line: at, message } | IsaError::Verify { line: at, message, .. }) => {
                assert_eq!(at, line, "{place}: {message}");
                assert!(message.contains(substring), "{place}: {message}");
            }
            other => panic!("{place}: {other:?}"),
        }
    }
}

/// Each program of `tests/odd` is valid, with exactly the warnings of its comments `// warning: …`; those of the
/// header have no line and stand on the first. The examples have no warnings.
#[test]
fn odd_programs_are_accepted_with_warnings() {
    for (place, text) in cases("odd").into_iter().chain(examples()) {
        let program = check(&text).unwrap_or_else(|e| panic!("{place}: {e}"));
        let expected: Vec<(u32, String)> = (1..)
            .zip(text.lines())
            .flat_map(|(n, line)| line.split("// warning: ").skip(1).map(move |w| (n, w.trim().to_string())))
            .collect();
        let warnings = lint(&program).into_iter().map(|w| (w.line.max(1), w.message));
        assert_eq!(warnings.collect::<Vec<_>>(), expected, "{place}");
    }
}

/// Every operation with every type that the table allows, with registers, scalars and constants as operands.
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
                signature if signature.is_atomic() => {
                    for array in [buffer, shared] {
                        let args = vec![value_of(ty, 1); signature.operands().len() - 1];
                        b.atomic(op, array, 2u32, &args);
                    }
                }
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

fn value_of(ty: Type, word: u64) -> Value {
    Value { operand: Operand::Const(ty, word), ty }
}

/// A program built in memory has no lines: errors name those of the printed text.
#[test]
fn errors_of_built_programs_name_the_printed_line() {
    let mut b = Builder::new("diverging", [64, 1, 1]);
    let thread = b.builtin(Opcode::ThreadX);
    let odd = b.and(thread, 1u32);
    let odd = b.eq(odd, 1u32);
    b.for_(0u32, 4u32, 1u32, |b, _| {
        b.if_else(odd, |_| {}, |b| b.barrier());
    });
    match b.finish() {
        Err(IsaError::Verify { line: 8, message, .. }) => assert!(message.contains("the if on line 6"), "{message}"),
        other => panic!("{other:?}"),
    }
}

/// Faults that no text can express, but a program built in memory can.
#[test]
fn the_verifier_rejects_faults_that_text_cannot_express() {
    let text = "kernel k(x: buffer<f32>, n: u32) workgroup(1) shared(t: f32[1]) {
        %a = mov.u32 1
        loop max 1 {
        }
    }";
    let inst = |op, ty, dst, memory, args: &[Operand]| {
        StmtKind::Inst(Inst { op, fast: false, ty, dst, memory, args: args.to_vec() })
    };
    let fast = |op, ty| {
        StmtKind::Inst(Inst {
            op,
            fast: true,
            ty,
            dst: Some(Reg(0)),
            memory: None,
            args: vec![Operand::Const(ty, 1); 2],
        })
    };
    let a = Some(Reg(0));
    let one = Operand::Const(Type::U32, 1);
    let deep = (0..100).fold(StmtKind::Break { depth: 0, cond: None }, |inner, _| StmtKind::Loop {
        max: 1,
        body: vec![Stmt { line: 0, kind: inner }],
    });
    let statements = [
        (inst(Opcode::Mov, Type::U32, Some(Reg(1)), None, &[one]), "no register 1"),
        (inst(Opcode::Mov, Type::U32, a, None, &[Operand::Reg(Reg(9))]), "no register 9"),
        (inst(Opcode::Mov, Type::U32, a, None, &[Operand::Scalar(2)]), "no parameter 2"),
        (inst(Opcode::Mov, Type::U32, a, None, &[Operand::Scalar(0)]), "x is a buffer, not a scalar"),
        (inst(Opcode::Mov, Type::U32, a, None, &[]), "has 1 operand, not 0"),
        (inst(Opcode::Mov, Type::U32, None, None, &[one]), "requires a register"),
        (inst(Opcode::Mov, Type::U32, a, Some(Memory::Param(0)), &[one]), "has no memory operand"),
        (inst(Opcode::Mov, Type::F32, a, None, &[Operand::Const(Type::F32, 0)]), "mov gives f32, but %a is u32"),
        (inst(Opcode::Add, Type::F16, a, None, &[one, one]), "add does not exist for f16"),
        (inst(Opcode::ThreadX, Type::F32, a, None, &[]), "has no type"),
        (inst(Opcode::Barrier, Type::U32, a, None, &[]), "has no result"),
        (inst(Opcode::Cvt, Type::U32, a, None, &[Operand::Const(Type::I8, 0xff)]), "not a constant of type i8"),
        (inst(Opcode::Cvt, Type::U32, a, None, &[Operand::Const(Type::Bool, 2)]), "not a constant of type bool"),
        (inst(Opcode::Load, Type::U32, a, None, &[one]), "requires a buffer"),
        (inst(Opcode::Load, Type::U32, a, Some(Memory::Param(1)), &[one]), "n is a scalar"),
        (inst(Opcode::Load, Type::U32, a, Some(Memory::Param(0)), &[one]), "x holds f32, not u32"),
        (inst(Opcode::Load, Type::U32, a, Some(Memory::Param(7)), &[one]), "no parameter 7"),
        (inst(Opcode::Load, Type::U32, a, Some(Memory::Shared(1)), &[one]), "no shared array 1"),
        (fast(Opcode::Div, Type::U32), "div.u32 has no fast form"),
        (fast(Opcode::Mul, Type::F32), "mul.f32 has no fast form"),
        (StmtKind::Break { depth: 1, cond: None }, "break refers to the enclosing loop 1"),
        (StmtKind::Continue { depth: u32::MAX, cond: None }, "continue refers to the enclosing loop"),
        (deep, "nested more than 64 deep"),
    ];
    for (kind, substring) in statements {
        let mut program = parse(text).unwrap();
        let StmtKind::Loop { body, .. } = &mut program.body[1].kind else { panic!("the loop moved") };
        body.push(Stmt { line: 0, kind });
        match verify(&program) {
            Err(IsaError::Verify { message, .. }) => assert!(message.contains(substring), "{message}, not {substring}"),
            other => panic!("{substring}: {other:?}"),
        }
    }
    type Change = fn(&mut Program);
    let headers: [(Change, &str); 5] = [
        (|p| p.name = "a b".into(), "the kernel's name is"),
        (|p| p.params[0].name = String::new(), "the name of a parameter"),
        (|p| p.registers[0].name = "a-b".into(), "register name"),
        (|p| p.registers.push(p.registers[0].clone()), "two registers are named %a"),
        (|p| p.workgroup = [1 << 31; 3], "product at most 1024"),
    ];
    for (change, substring) in headers {
        let mut program = parse(text).unwrap();
        change(&mut program);
        let message = verify(&program).unwrap_err().to_string();
        assert!(message.contains(substring), "{message}, not {substring}");
    }
}

/// Files made to exhaust stack or memory reach a limit instead.
#[test]
fn hostile_files_meet_a_limit() {
    let kernel = |body: String| format!("kernel k() workgroup(1) {{\n{body}");
    let cases = [
        (kernel("if true {\n".repeat(1 << 20)), "nested more than 64 deep"),
        (kernel("loop max 1 {\n".repeat(1 << 20)), "nested more than 64 deep"),
        (kernel("barrier\n".repeat(1 << 20)), "more than 65536 statements"),
        (format!("kernel k({}", "p: u32,".repeat(1 << 20)), "more than 64 parameters"),
        (format!("kernel k() workgroup({}", "1,".repeat(1 << 20)), "more than 3 workgroup sizes"),
        (kernel(format!("%x = mov.u32 {}", "1".repeat(1 << 20))), "does not fit u32"),
        (kernel(format!("{} = mov.u32 1", "%".to_string() + &"x".repeat(1 << 20))), "longer than 128 bytes"),
        (kernel("y".repeat(1 << 20)), "expected a statement"),
        (" ".repeat((16 << 20) + 1), "longer than"),
    ];
    for (text, substring) in cases {
        let message = parse(&text).unwrap_err().to_string();
        assert!(message.contains(substring) && message.len() < 2000, "{message}, not {substring}");
    }
    let registers: String = (0..1 << 17).map(|i| format!("%r{i}: u32,")).collect();
    let message = parse(&format!("kernel k() workgroup(1) registers({registers}")).unwrap_err().to_string();
    assert!(message.contains("more than 65536 registers"), "{message}");
}

/// Damaged programs give an error or, if they are still valid, keep all invariants; nothing panics.
#[test]
fn damaged_programs_never_panic() {
    let texts = |cases: Vec<(String, String)>| cases.into_iter().map(|(_, text)| text).collect::<Vec<_>>();
    let sources = [texts(examples()), texts(cases("good")), texts(cases("bad"))];
    let mut random = Random(1);
    let mut random = |below| random.below(below);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let texts = &sources[random(3)];
        let mut bytes = texts[random(texts.len())].clone().into_bytes();
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            let end = (at + random(12)).min(bytes.len());
            match random(10) {
                8 => bytes.truncate(at + 1),
                9 => {
                    let other = texts[random(texts.len())].as_bytes();
                    let from = random(other.len());
                    bytes.splice(at..end, other[from..(from + random(200)).min(other.len())].to_vec());
                }
                0 => bytes[at] = b"\n %@{}()[]<>,:=-0123456789.abefinrstux_\xff"[random(38)],
                1 => drop(bytes.drain(at..end)),
                2 => drop(bytes.splice(at..at, bytes[at..end].to_vec())),
                3 => {
                    let mut lines: Vec<&[u8]> = bytes.split(|b| *b == b'\n').collect();
                    let (a, b) = (random(lines.len()), random(lines.len()));
                    lines.swap(a, b);
                    bytes = lines.join(&b'\n');
                }
                // One word or number replaces another: this most often gives a program that parses but is wrong.
                _ => {
                    let ends: Vec<usize> = (0..bytes.len()).filter(|i| b" ,[]()\n".contains(&bytes[*i])).collect();
                    let mut words: Vec<_> = ends.windows(2).map(|w| w[0] + 1..w[1]).collect();
                    words.retain(|w| !w.is_empty());
                    if let [_, ..] = words[..] {
                        let from = bytes[words[random(words.len())].clone()].to_vec();
                        bytes.splice(words[random(words.len())].clone(), from);
                    }
                }
            }
        }
        if let Ok(program) = check(&String::from_utf8_lossy(&bytes)) {
            round_trip(&program);
            accepted += 1;
        }
    }
    assert!(
        (500..19_000).contains(&accepted),
        "{accepted} of 20000 damaged programs are valid: the damage is too small or large"
    );
}

/// The hash is FNV-1a over the printed text. It must not change between releases.
#[test]
fn the_text_hash_is_stable() {
    let program = check("kernel k() workgroup(1) {}").unwrap();
    assert_eq!(print(&program), "kernel k() workgroup(1) {\n}\n");
    assert_eq!(program.text_hash(), 0xd89566ca6a9e425bcae27b23991f27a2);
    assert_eq!(program.to_string(), print(&program));
}
