//! Loads, stores and atomic operations. Every index is checked; on a fault the thread records it and continues.

use super::{Printer, SHARED, element_type, line};
use crate::program::{Inst, Memory, Operand};
use crate::{Opcode, Type};

impl Printer<'_> {
    /// A load, store or atomic operation of one element.
    pub(super) fn access(&mut self, inst: &Inst, memory: Memory, line: u32) {
        let index = self.value(inst.args[0]);
        let (code, len, name) = match memory {
            Memory::Param(param) => (param, format!("a.p{param}"), format!("b{param}")),
            Memory::Shared(array) => {
                (SHARED | array, format!("{}u", self.program.shared[array as usize].len), format!("s{array}"))
            }
        };
        let at = format!("{name}[{index}]");
        let ty = inst.ty;
        let action = match inst.op {
            Opcode::Load if ty == Type::Bool => format!("{at} != 0"),
            Opcode::Load => at,
            Opcode::Store => format!("{at} = {}({})", element_type(ty), self.value(inst.args[1])),
            _ => self.update(inst, memory, &at),
        };
        let dst = inst.dst.map(|d| d.0);
        let action = dst.map_or(format!("{action};"), |d| format!("v{d} = {action};"));
        let inside = match (memory, inst.args[0]) {
            (Memory::Shared(array), Operand::Const(_, at)) => at < u64::from(self.program.shared[array as usize].len),
            _ => false,
        };
        if inside {
            return line!(self, "{action}");
        }
        // Recorded first: the destination may be the index.
        let fault = self.fault(line, code, &index);
        let zero = dst.map_or(String::new(), |d| format!(" v{d} = 0;"));
        line!(self, "if ({index} < {len}) {action} else {{ {fault}{zero} }}");
    }

    /// An atomic operation as an expression.
    fn update(&mut self, inst: &Inst, memory: Memory, at: &str) -> String {
        use Opcode::*;
        let shared = matches!(memory, Memory::Shared(_));
        let space = if shared { "threadgroup" } else { "device" };
        let values: Vec<String> = inst.args[1..].iter().map(|a| self.value(*a)).collect();
        let order = "memory_order_relaxed";
        if (inst.op, inst.ty) == (AtomicAdd, Type::F32) {
            if !shared && self.target.version >= (3, 0) {
                return format!("atomic_fetch_add_explicit((device atomic_float *)&{at}, {}, {order})", values[0]);
            }
            let add = self.helper(if shared { "atomic_add_shared_f32" } else { "atomic_add_f32" });
            return format!("{add}(&{at}, {})", values[0]);
        }
        let (ty, signed) = if inst.ty == Type::I32 { ("int", true) } else { ("uint", false) };
        let place = format!("({space} atomic_{ty} *)&{at}");
        let name = match inst.op {
            AtomicAdd => "fetch_add",
            AtomicMin => "fetch_min",
            AtomicMax => "fetch_max",
            AtomicAnd => "fetch_and",
            AtomicOr => "fetch_or",
            AtomicXor => "fetch_xor",
            AtomicExchange => "exchange",
            AtomicCompareExchange => {
                let cas = self.helper(match (shared, signed) {
                    (false, true) => "cas_i32",
                    (false, false) => "cas_u32",
                    (true, true) => "cas_shared_i32",
                    (true, false) => "cas_shared_u32",
                });
                return format!("{cas}({place}, {})", values.join(", "));
            }
            _ => {
                self.unknown(inst);
                "exchange"
            }
        };
        format!("atomic_{name}_explicit({place}, {}, {order})", values[0])
    }
}
