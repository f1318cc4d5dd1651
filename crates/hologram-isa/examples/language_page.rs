//! Prints the language page, `docs/atlas.md`: the text of `language_page.md` with tables from the instruction table.

use std::fmt::Write;

use hologram_isa::*;

/// The headings of the instructions, each with the first operation of its part of the table.
const PARTS: [(Opcode, &str); 10] = [
    (Opcode::ThreadX, "Where a thread is"),
    (Opcode::Mov, "Values and conversions"),
    (Opcode::Add, "Arithmetic"),
    (Opcode::And, "Bits"),
    (Opcode::Eq, "Comparisons (false where an operand is NaN, except `ne`)"),
    (Opcode::Exp, "Functions"),
    (Opcode::Load, "Memory and barrier"),
    (Opcode::AtomicAdd, "Atomic operations (the buffer must be `readwrite`)"),
    (Opcode::SubgroupAdd, "Subgroups"),
    (Opcode::TileFma, "Matrix tiles"),
];

fn main() {
    print!("{}", page());
}

/// The whole page.
pub fn page() -> String {
    include_str!("language_page.md")
        .replace("{{subgroup}}", &SUBGROUP_SIZE.to_string())
        .replace("{{capabilities}}", &Capability::ALL.map(Capability::name).join(" or "))
        .replace("{{types}}\n", &types())
        .replace("{{instructions}}\n", &instructions())
        .replace("{{limits}}\n", &limits())
}

fn types() -> String {
    let mut out = String::from("| type | bytes in memory | values |\n| --- | --- | --- |\n");
    for ty in Type::ALL {
        let bits = 8 * ty.size();
        let values = match ty {
            Type::Bool => "`true` and `false`, in memory 1 and 0; any other byte reads as `true`".into(),
            Type::BF16 => "the upper half of an `f32`".into(),
            ty if ty.is_float() => format!("floating-point number, IEEE 754 binary{bits}"),
            ty if ty.name().starts_with('i') => format!("signed integer of {bits} bits"),
            _ => format!("unsigned integer of {bits} bits"),
        };
        let _ = writeln!(out, "| `{ty}` | {} | {values} |", ty.size());
    }
    out
}

fn instructions() -> String {
    let mut out = String::new();
    for &op in Opcode::ALL {
        if let Some((_, heading)) = PARTS.iter().find(|(first, _)| *first == op) {
            let _ = write!(out, "{}### {heading}\n\n", if out.is_empty() { "" } else { "\n" });
            out += "| instruction | operands | result | types `T` | meaning |\n| --- | --- | --- | --- | --- |\n";
        }
        out += &row(op);
    }
    out
}

fn row(op: Opcode) -> String {
    let OpInfo { mnemonic, signature, types, doc, fast } = op.info();
    // `T` stands for the type of the mnemonic, found by resolving the type and comparing.
    let name = |ty: OperandType| match ty {
        OperandType::Carried => "T".to_string(),
        OperandType::Fixed(ty) => ty.to_string(),
        OperandType::Any => "any type".into(),
    };
    let mut operands: Vec<String> = signature.operands().iter().map(|ty| name(*ty)).collect();
    if signature.has_memory() {
        operands[0] = format!("memory of T [{}]", operands[0]);
    }
    let result = match (signature.result(Type::F32), signature.result(Type::I8)) {
        (None, _) => "none".to_string(),
        (Some(a), Some(b)) if a == b => a.to_string(),
        _ => "T".into(),
    };
    let carried = if *types == TypeSet::ANY {
        "all".to_string()
    } else {
        types.iter().map(|ty| format!("`{ty}`")).collect::<Vec<_>>().join(" ")
    };
    let (suffix, carried) = if signature.carries_type() { (".T", carried) } else { ("", String::new()) };
    let fast = fast.map(|bound| format!(" With `.fast`, on `f32`: {bound}")).unwrap_or_default();
    // A bar would end the table cell.
    let meaning = format!("{doc}{fast}").replace('|', "\\|");
    format!("| `{mnemonic}{suffix}` | {} | {result} | {carried} | {meaning} |\n", operands.join(", "))
}

fn limits() -> String {
    let mut out = String::from("| what | at most |\n| --- | --- |\n");
    let rows = [
        ("threads of a workgroup", MAX_WORKGROUP as usize),
        ("bytes of shared memory", MAX_SHARED_BYTES),
        ("parameters, and shared arrays", MAX_PARAMS),
        ("registers", MAX_REGISTERS),
        ("statements", MAX_STATEMENTS),
        ("depth of nested blocks", MAX_NESTING),
        ("bytes of a name", MAX_NAME),
        ("rounds of a `loop`", u32::MAX as usize),
        ("workgroups of a grid", u32::MAX as usize),
    ];
    for (what, most) in rows {
        let _ = writeln!(out, "| {what} | {most} |");
    }
    out
}
