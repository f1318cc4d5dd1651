//! A program for every instruction and type, for the printers' tests.

use hologram_isa::{Access, Builder, Opcode, Program, Signature, Type};

/// Calls `check` with each instruction, its type, the types of its operands, and a program that contains it with and
/// without `fast`.
pub fn programs(mut check: impl FnMut(Opcode, Type, &[Type], &Program)) {
    for &op in Opcode::ALL {
        let info = op.info();
        for ty in info.types.iter().filter(|t| info.signature.carries_type() || *t == Type::U32) {
            let operands = info.signature.operands();
            // Conversions exist from every type of the right size.
            for from in Type::ALL.into_iter().filter(|f| info.signature != Signature::Bitcast || f.size() == ty.size())
            {
                let mut b = Builder::new("one", [32, 1, 1]);
                let array = b.buffer("x", ty, Access::ReadWrite);
                let types: Vec<Type> = operands.iter().map(|o| o.resolve(ty).unwrap_or(from)).collect();
                for fast in [false, true] {
                    b.fast(fast);
                    let args: Vec<_> =
                        types.iter().enumerate().map(|(i, t)| b.scalar(&format!("s{fast}{i}"), *t)).collect();
                    match (info.signature, args.as_slice()) {
                        (Signature::Load, [at]) => {
                            b.load(array, *at);
                        }
                        (Signature::Store, [at, value]) => b.store(array, *at, *value),
                        (Signature::Barrier, _) => b.barrier(),
                        (signature, [at, values @ ..]) if signature.is_atomic() => {
                            b.atomic(op, array, *at, values);
                        }
                        (_, args) => {
                            b.inst(op, ty, args);
                        }
                    }
                }
                check(op, ty, &types, &b.finish().unwrap());
            }
        }
    }
}
