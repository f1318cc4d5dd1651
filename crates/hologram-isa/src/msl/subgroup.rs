//! Operations across the lanes of a subgroup. All existing lanes reach each operation. A `bool` from the control flow
//! says which participate, so that the program, not the hardware's scheduling, determines the active lanes.

use super::{Position, Printer, line, register_type};
use crate::program::{Inst, Reg, SUBGROUP_SIZE};
use crate::{Opcode, Type};

impl Printer<'_> {
    /// Whether every subgroup has all its lanes.
    fn is_whole(&self) -> bool {
        self.program.workgroup_threads().is_multiple_of(SUBGROUP_SIZE)
    }

    /// A subgroup operation on the lanes where `active` is true; without it, on all.
    pub(super) fn subgroup(&mut self, inst: &Inst, active: Option<&str>) {
        let Some(dst) = inst.dst else { return };
        let ty = register_type(inst.ty);
        let own = self.value(inst.args[0]);
        let result = match inst.op {
            Opcode::Shuffle | Opcode::Broadcast => self.shuffle_of(inst, &own, active),
            _ => {
                let (identity, own) = self.reduced(inst, own);
                let value = self.name("t");
                let word = if inst.ty == Type::F32 && inst.op != Opcode::SubgroupAdd { "int" } else { ty };
                match active {
                    Some(active) => line!(self, "{word} {value} = {active} ? {own} : {identity};"),
                    None => line!(self, "{word} {value} = {own};"),
                }
                self.reduce(inst, &value)
            }
        };
        match active {
            Some(active) => {
                let value = self.name("t");
                line!(self, "const {ty} {value} = {result};");
                line!(self, "if ({active}) v{} = {value};", dst.0);
            }
            None => line!(self, "v{} = {result};", dst.0),
        }
    }

    /// The neutral element of a reduction, and the operand in the form in which it is reduced.
    fn reduced(&mut self, inst: &Inst, own: String) -> (String, String) {
        let least = inst.op == Opcode::SubgroupMin;
        match (inst.op, inst.ty) {
            (Opcode::SubgroupAdd, Type::F32) => ("-0.0f".into(), own),
            (Opcode::SubgroupAdd, ty) => (super::constant(ty, 0), own),
            // As integers in the same order, in which NaN loses.
            (_, Type::F32) => {
                let (nan, ordered, is_nan) = (if least { "0x7fffffff" } else { "-1" }, "ordered", "is_nan");
                self.helper(ordered);
                self.helper(is_nan);
                (format!("{ordered}({nan})"), format!("{ordered}({is_nan}({own}) ? {nan} : as_type<int>({own}))"))
            }
            (_, ty) => {
                let (low, high) = match ty {
                    Type::I32 => (u64::from(i32::MIN as u32), u64::from(i32::MAX as u32)),
                    Type::I64 => (i64::MIN as u64, i64::MAX as u64),
                    Type::U64 => (0, u64::MAX),
                    _ => (0, u64::from(u32::MAX)),
                };
                (super::constant(ty, if least { high } else { low }), own)
            }
        }
    }

    /// The reduction of a variable over all lanes, as an expression.
    fn reduce(&mut self, inst: &Inst, value: &str) -> String {
        let name = if inst.op == Opcode::SubgroupMin { "simd_min" } else { "simd_max" };
        match (inst.op, inst.ty) {
            (Opcode::SubgroupAdd, Type::I32) => format!("int(simd_sum(uint({value})))"),
            (Opcode::SubgroupAdd, Type::U32) => format!("simd_sum({value})"),
            (Opcode::SubgroupMin | Opcode::SubgroupMax, Type::I32 | Type::U32) => format!("{name}({value})"),
            (Opcode::SubgroupMin | Opcode::SubgroupMax, Type::F32) => {
                format!("as_type<float>(ordered({name}({value})))")
            }
            (Opcode::SubgroupAdd, Type::F32 | Type::I64 | Type::U64)
            | (Opcode::SubgroupMin | Opcode::SubgroupMax, Type::I64 | Type::U64) => {
                self.butterfly(inst, value);
                value.into()
            }
            _ => {
                self.unknown(inst);
                String::new()
            }
        }
    }

    /// The reduction in its defined order. Before the step with distance d, lanes that are equal modulo 2·d have the
    /// same partial result. The one to add is that of lane xor d, taken from the lowest lane of its class. A class
    /// without lanes changes nothing.
    fn butterfly(&mut self, inst: &Inst, value: &str) {
        let ty = register_type(inst.ty);
        let lane = self.lane();
        let there = (!self.is_whole()).then(|| self.lanes_there());
        for distance in [16u32, 8, 4, 2, 1] {
            let other = self.name("t");
            let from = format!("({lane} ^ {distance}u)");
            let combined = match inst.op {
                Opcode::SubgroupAdd if inst.ty == Type::I64 => format!("long(ulong({value}) + ulong({other}))"),
                Opcode::SubgroupAdd => format!("{value} + {other}"),
                Opcode::SubgroupMin => format!("{other} < {value} ? {other} : {value}"),
                _ => format!("{other} > {value} ? {other} : {value}"),
            };
            match &there {
                None => {
                    let got = self.shuffled(inst.ty, value, &from);
                    line!(self, "const {ty} {other} = {got};");
                    line!(self, "{value} = {combined};");
                }
                Some(there) => {
                    let class = self.name("t");
                    line!(self, "const uint {class} = {from} & {}u;", 2 * distance - 1);
                    let got = self.shuffled(inst.ty, value, &format!("({class} < {there} ? {class} : {lane})"));
                    line!(self, "const {ty} {other} = {got};");
                    line!(self, "if ({class} < {there}) {value} = {combined};");
                }
            }
        }
    }

    /// `shuffle` and `broadcast` as an expression.
    fn shuffle_of(&mut self, inst: &Inst, own: &str, active: Option<&str>) -> String {
        let all = active.is_none() && self.is_whole();
        let value = self.name("t");
        let zero = if inst.ty == Type::Bool { "false".into() } else { format!("{}(0)", register_type(inst.ty)) };
        let some = |what: &str, otherwise: &str| active.map_or(what.into(), |a| format!("{a} ? {what} : {otherwise}"));
        line!(self, "const {} {value} = {};", register_type(inst.ty), some(own, &zero));
        let index = inst.args.get(1).map(|a| self.value(*a));
        match (index, all) {
            (None, true) => self.shuffled(inst.ty, &value, "0u"),
            (None, false) => {
                let mask = format!("{}({})", self.helper("lanes_where"), active.unwrap_or("true"));
                self.shuffled(inst.ty, &value, &format!("(ctz({mask}) & 31u)"))
            }
            (Some(index), true) => self.shuffled(inst.ty, &value, &format!("({index} & 31u)")),
            (Some(index), false) => {
                let (from, there, got) = (self.name("t"), self.name("t"), self.name("t"));
                let index = some(&index, "0u");
                line!(self, "const uint {from} = ({index}) & 31u;");
                let mask = format!("{}({})", self.helper("lanes_where"), active.unwrap_or("true"));
                line!(self, "const bool {there} = (({mask} >> {from}) & 1u) != 0u;");
                let lane = self.lane();
                let other = self.shuffled(inst.ty, &value, &format!("({there} ? {from} : {lane})"));
                line!(self, "const {} {got} = {other};", register_type(inst.ty));
                format!("{there} ? {got} : {value}")
            }
        }
    }

    fn shuffled(&mut self, ty: Type, value: &str, from: &str) -> String {
        let name = match ty {
            Type::Bool => self.helper("shuffle_bool"),
            Type::I64 => self.helper("shuffle_i64"),
            Type::U64 => self.helper("shuffle_u64"),
            _ => "simd_shuffle",
        };
        format!("{name}({value}, ushort({from}))")
    }

    fn lane(&mut self) -> String {
        format!("({} & 31u)", self.position(Position::Linear))
    }

    /// The number of lanes of this subgroup, as a variable.
    fn lanes_there(&mut self) -> String {
        let (there, threads) = (self.name("t"), self.program.workgroup_threads());
        let linear = self.position(Position::Linear);
        line!(self, "const uint {there} = min(32u, {threads}u - ({linear} & ~31u));");
        there
    }

    /// A product of tiles: each lane gathers the row and the two columns of its products.
    pub(super) fn tile(&mut self, inst: &Inst, dst: Reg) {
        let name = match inst.ty {
            Type::I8 => "tile_i8",
            Type::F16 => "tile_f16",
            Type::BF16 => "tile_bf16",
            _ => return self.unknown(inst),
        };
        self.helper(name);
        let args: Vec<String> = inst.args.iter().map(|a| self.value(*a)).collect();
        let lane = self.lane();
        line!(self, "v{} = {name}({}, {lane});", dst.0, args.join(", "));
    }
}
