//! Builds programs from Rust: each method appends one instruction and returns its result as a [`Value`].

use crate::program::*;
use crate::table::Signature;
use crate::{Opcode, Type};

/// An operand with its type, for the builder's methods. Rust's `f32`, `f64`, `i32`, `u32`, `i64`, `u64` and `bool`
/// convert into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// The operand.
    pub operand: Operand,
    /// Its type.
    pub ty: Type,
}

macro_rules! constant {
    ($($rust:ty, $ty:ident, $v:ident => $bits:expr;)*) => {$(
        impl From<$rust> for Value {
            fn from($v: $rust) -> Value {
                Value { operand: Operand::Const(Type::$ty, $bits), ty: Type::$ty }
            }
        }
    )*};
}
constant! {
    f32, F32, v => v.to_bits().into();
    f64, F64, v => v.to_bits();
    u32, U32, v => v.into();
    i32, I32, v => (v as u32).into();
    u64, U64, v => v;
    i64, I64, v => v as u64;
    bool, Bool, v => v.into();
}

/// A handle to a buffer parameter or a shared array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// The memory.
    pub memory: Memory,
    /// Element type.
    pub element: Type,
}

/// Builds a [`Program`]. Type errors do not panic: [`Builder::finish`] returns the first one.
#[derive(Debug)]
pub struct Builder {
    program: Program,
    /// Open blocks, innermost last.
    blocks: Vec<Vec<Stmt>>,
    /// Whether to append operations in their `.fast` form, if they have one.
    fast: bool,
    error: Option<String>,
}

/// One method per operation of a shape.
impl Builder {
    /// Starts a program with this workgroup size.
    pub fn new(name: impl Into<String>, workgroup: [u32; 3]) -> Builder {
        Builder {
            program: Program {
                name: name.into(),
                params: Vec::new(),
                workgroup,
                shared: Vec::new(),
                registers: Vec::new(),
                body: Vec::new(),
            },
            blocks: vec![Vec::new()],
            fast: false,
            error: None,
        }
    }

    /// Finishes the program and verifies it.
    ///
    /// # Errors
    /// The first type error of the builder, or the verifier's error.
    pub fn finish(mut self) -> Result<Program, crate::IsaError> {
        if let Some(message) = self.error {
            return Err(crate::IsaError::Build { program: self.program.name, message });
        }
        self.program.body = self.blocks.pop().unwrap_or_default();
        crate::verify(&self.program)?;
        Ok(self.program)
    }

    /// Turns the `.fast` form of operations on or off, for those that have one. Returns the previous setting.
    pub fn fast(&mut self, on: bool) -> bool {
        std::mem::replace(&mut self.fast, on)
    }

    /// Appends a buffer parameter.
    pub fn buffer(&mut self, name: &str, element: Type, access: Access) -> Array {
        let index = self.program.params.len() as u32;
        self.program.params.push(Param { name: name.into(), kind: ParamKind::Buffer { element, access } });
        Array { memory: Memory::Param(index), element }
    }

    /// Appends a scalar parameter.
    pub fn scalar(&mut self, name: &str, ty: Type) -> Value {
        let index = self.program.params.len() as u32;
        self.program.params.push(Param { name: name.into(), kind: ParamKind::Scalar(ty) });
        Value { operand: Operand::Scalar(index), ty }
    }

    /// Declares a shared array.
    pub fn shared(&mut self, name: &str, element: Type, len: u32) -> Array {
        let index = self.program.shared.len() as u32;
        self.program.shared.push(SharedArray { name: name.into(), element, len });
        Array { memory: Memory::Shared(index), element }
    }

    /// Declares a mutable register with an initial value. [`Builder::assign`] changes it.
    pub fn var(&mut self, init: impl Into<Value>) -> Value {
        let init = init.into();
        let (reg, value) = self.register(init.ty);
        self.push_inst(Opcode::Mov, init.ty, Some(reg), None, &[init]);
        value
    }

    /// Sets a mutable register.
    pub fn assign(&mut self, var: Value, value: impl Into<Value>) {
        let value = value.into();
        match var.operand {
            Operand::Reg(reg) if var.ty == value.ty => {
                self.push_inst(Opcode::Mov, var.ty, Some(reg), None, &[value]);
            }
            _ => self.fail(format!("cannot assign a {} to {:?} of type {}", value.ty, var.operand, var.ty)),
        }
    }

    /// Sets a mutable register to the result of an operation, without a copy.
    pub fn assign_op(&mut self, var: Value, op: Opcode, args: &[Value]) {
        match var.operand {
            Operand::Reg(reg) => self.push_inst(op, var.ty, Some(reg), None, args),
            _ => self.fail(format!("cannot assign to {:?}", var.operand)),
        }
    }

    /// [`Opcode::TileFma`] on tiles with elements of type `ty`: c + a·b.
    pub fn tile_fma(&mut self, ty: Type, a: impl Into<Value>, b: impl Into<Value>, c: impl Into<Value>) -> Value {
        self.inst(Opcode::TileFma, ty, &[a.into(), b.into(), c.into()])
    }

    /// [`Opcode::Select`].
    pub fn select(&mut self, cond: impl Into<Value>, a: impl Into<Value>, b: impl Into<Value>) -> Value {
        let a = a.into();
        self.inst(Opcode::Select, a.ty, &[cond.into(), a, b.into()])
    }

    /// [`Opcode::Cvt`]; no instruction if the type is already `ty`.
    pub fn cvt(&mut self, ty: Type, a: impl Into<Value>) -> Value {
        let a = a.into();
        if a.ty == ty { a } else { self.inst(Opcode::Cvt, ty, &[a]) }
    }

    /// [`Opcode::Bitcast`].
    pub fn bitcast(&mut self, ty: Type, a: impl Into<Value>) -> Value {
        self.inst(Opcode::Bitcast, ty, &[a.into()])
    }

    /// A builtin such as [`Opcode::ThreadX`].
    pub fn builtin(&mut self, op: Opcode) -> Value {
        self.inst(op, Type::U32, &[])
    }

    /// [`Opcode::GlobalX`].
    pub fn global_x(&mut self) -> Value {
        self.builtin(Opcode::GlobalX)
    }

    /// [`Opcode::Load`].
    pub fn load(&mut self, array: Array, index: impl Into<Value>) -> Value {
        let (reg, value) = self.register(array.element);
        self.push_inst(Opcode::Load, array.element, Some(reg), Some(array.memory), &[index.into()]);
        value
    }

    /// [`Opcode::Load`], converted to `f32`.
    pub fn load_f32(&mut self, array: Array, index: impl Into<Value>) -> Value {
        let v = self.load(array, index);
        self.cvt(Type::F32, v)
    }

    /// [`Opcode::Store`]. The value is first converted to the element type.
    pub fn store(&mut self, array: Array, index: impl Into<Value>, value: impl Into<Value>) {
        let value = self.cvt(array.element, value);
        self.push_inst(Opcode::Store, array.element, None, Some(array.memory), &[index.into(), value]);
    }

    /// An atomic operation such as [`Opcode::AtomicAdd`]; `args` follow the index. The result is the element's previous
    /// value.
    pub fn atomic(&mut self, op: Opcode, array: Array, index: impl Into<Value>, args: &[Value]) -> Value {
        let (reg, value) = self.register(array.element);
        let args: Vec<Value> = std::iter::once(index.into()).chain(args.iter().copied()).collect();
        self.push_inst(op, array.element, Some(reg), Some(array.memory), &args);
        value
    }

    /// [`Opcode::Barrier`].
    pub fn barrier(&mut self) {
        self.push_inst(Opcode::Barrier, Type::U32, None, None, &[]);
    }

    /// Runs `then` on threads where `cond` is true.
    pub fn if_(&mut self, cond: impl Into<Value>, then: impl FnOnce(&mut Builder)) {
        self.if_else(cond, then, |_| {});
    }

    /// Runs `then` on threads where `cond` is true and `otherwise` on the others.
    pub fn if_else(
        &mut self,
        cond: impl Into<Value>,
        then: impl FnOnce(&mut Builder),
        otherwise: impl FnOnce(&mut Builder),
    ) {
        let cond = cond.into();
        self.expect(cond, Type::Bool, "the condition of if");
        let then = self.block(then);
        let otherwise = self.block(otherwise);
        self.push(StmtKind::If { cond: cond.operand, then, otherwise });
    }

    /// A counted loop over `start..end` by `step`; the counter has the type of `end`.
    pub fn for_(
        &mut self,
        start: impl Into<Value>,
        end: impl Into<Value>,
        step: impl Into<Value>,
        body: impl FnOnce(&mut Builder, Value),
    ) {
        let (start, end, step) = (start.into(), end.into(), step.into());
        for v in [start, step] {
            self.expect(v, end.ty, "a bound of for");
        }
        let (var, value) = self.register(end.ty);
        let body = self.block(|b| body(b, value));
        self.push(StmtKind::For { var, start: start.operand, end: end.operand, step: step.operand, body });
    }

    /// A loop that ends by [`Builder::break_if`] or after `max` iterations.
    pub fn loop_(&mut self, max: u32, body: impl FnOnce(&mut Builder)) {
        let body = self.block(body);
        self.push(StmtKind::Loop { max, body });
    }

    /// Leaves the innermost loop on threads where `cond` is true.
    pub fn break_if(&mut self, cond: impl Into<Value>) {
        let cond = cond.into();
        self.expect(cond, Type::Bool, "the condition of break");
        self.push(StmtKind::Break { depth: 0, cond: Some(cond.operand) });
    }

    /// Continues with the next iteration of the innermost loop on threads where `cond` is true.
    pub fn continue_if(&mut self, cond: impl Into<Value>) {
        let cond = cond.into();
        self.expect(cond, Type::Bool, "the condition of continue");
        self.push(StmtKind::Continue { depth: 0, cond: Some(cond.operand) });
    }

    /// Appends any operation after checking the operands' types. The result's type follows from the signature.
    pub fn inst(&mut self, op: Opcode, ty: Type, args: &[Value]) -> Value {
        let result = op.info().signature.result(ty).unwrap_or(ty);
        let (reg, value) = self.register(result);
        self.push_inst(op, ty, Some(reg), None, args);
        value
    }

    fn register(&mut self, ty: Type) -> (Reg, Value) {
        let reg = Reg(self.program.registers.len() as u32);
        self.program.registers.push(Register { name: reg.0.to_string(), ty });
        (reg, Value { operand: Operand::Reg(reg), ty })
    }

    fn push_inst(&mut self, op: Opcode, ty: Type, dst: Option<Reg>, memory: Option<Memory>, args: &[Value]) {
        if let Err(message) = check_args(op, ty, args) {
            self.fail(message);
        }
        let args = args.iter().map(|v| v.operand).collect();
        let fast = self.fast && op.has_fast(ty);
        self.push(StmtKind::Inst(Inst { op, fast, ty, dst, memory, args }));
    }

    /// Appends a statement.
    pub(crate) fn push(&mut self, kind: StmtKind) {
        if let Some(block) = self.blocks.last_mut() {
            block.push(Stmt { line: 0, kind });
        }
    }

    fn block(&mut self, fill: impl FnOnce(&mut Builder)) -> Vec<Stmt> {
        self.begin_block();
        fill(self);
        self.end_block()
    }

    /// Opens a block for the following statements.
    pub(crate) fn begin_block(&mut self) {
        self.blocks.push(Vec::new());
    }

    /// Closes the innermost block.
    pub(crate) fn end_block(&mut self) -> Vec<Stmt> {
        self.blocks.pop().unwrap_or_default()
    }

    fn expect(&mut self, value: Value, ty: Type, what: &str) {
        if value.ty != ty {
            self.fail(format!("{what} must be {ty}, not {}", value.ty));
        }
    }

    fn fail(&mut self, message: String) {
        self.error.get_or_insert(message);
    }
}

/// Checks operand types against the table, for the builder, the parser and the verifier.
pub(crate) fn check_args(op: Opcode, ty: Type, args: &[Value]) -> Result<(), String> {
    let info = op.info();
    let name = info.mnemonic;
    if !info.types.contains(ty) {
        let types: Vec<&str> = info.types.iter().map(Type::name).collect();
        return Err(format!("{name} does not exist for {ty}, only for {}", types.join(", ")));
    }
    let want = info.signature.operands();
    if want.len() != args.len() {
        let s = if want.len() == 1 { "" } else { "s" };
        return Err(format!("{name} has {} operand{s}, not {}", want.len(), args.len()));
    }
    for (i, (w, a)) in want.iter().zip(args).enumerate() {
        if let Some(w) = w.resolve(ty)
            && w != a.ty
        {
            return Err(format!("operand {} of {name}.{ty} must be {w}, not {}", i + 1, a.ty));
        }
    }
    if let (Signature::Bitcast, [a]) = (info.signature, args)
        && a.ty.size() != ty.size()
    {
        return Err(format!("bitcast from {} to {ty}: the sizes differ", a.ty));
    }
    Ok(())
}
