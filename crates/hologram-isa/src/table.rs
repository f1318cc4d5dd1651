//! The instruction table: the only definition of each instruction's mnemonic, operand and type rule, and documentation.

use crate::{Type, TypeSet, Value};

/// The operand and type rule of an instruction, in terms of its mnemonic's type `T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// `() → u32`, written without a type.
    Builtin,
    /// `T → T`.
    Unary,
    /// `(T, T) → T`.
    Binary,
    /// `(T, T, T) → T`.
    Ternary,
    /// `(T, T) → bool`.
    Compare,
    /// `(bool, T, T) → T`.
    Select,
    /// `(T, u32) → T`.
    Shift,
    /// `S → T` for any `S`.
    Convert,
    /// `S → T` for an `S` of the same size in memory.
    Bitcast,
    /// `T → T` across the subgroup.
    Reduce,
    /// `(T, u32) → T` across the subgroup.
    Shuffle,
    /// `memory[u32] → T`.
    Load,
    /// `memory[u32] = T`, no result.
    Store,
    /// `memory[u32] op= T`, returns the previous value.
    Atomic,
    /// Compare-exchange: `memory[u32] = the second T if it equals the first`, returns the previous value.
    Exchange,
    /// No operands, no result, written without a type.
    Barrier,
    /// `(u32, u32, u64) → u64` across the subgroup: elements of type `T`, packed.
    Tile,
}

/// The required type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandType {
    /// The mnemonic's type `T`.
    Carried,
    /// Always this type.
    Fixed(Type),
    /// Any type.
    Any,
}

impl OperandType {
    /// The required type for a mnemonic with type `ty`; `None` if any type is allowed.
    pub const fn resolve(self, ty: Type) -> Option<Type> {
        match self {
            OperandType::Carried => Some(ty),
            OperandType::Fixed(fixed) => Some(fixed),
            OperandType::Any => None,
        }
    }
}

impl Signature {
    /// The operands' types, in order; a memory's index is the first operand.
    pub const fn operands(self) -> &'static [OperandType] {
        use OperandType::{Any, Carried, Fixed};
        match self {
            Signature::Builtin | Signature::Barrier => &[],
            Signature::Unary | Signature::Reduce => &[Carried],
            Signature::Binary | Signature::Compare => &[Carried, Carried],
            Signature::Ternary => &[Carried, Carried, Carried],
            Signature::Select => &[Fixed(Type::Bool), Carried, Carried],
            Signature::Shift | Signature::Shuffle => &[Carried, Fixed(Type::U32)],
            Signature::Convert | Signature::Bitcast => &[Any],
            Signature::Load => &[Fixed(Type::U32)],
            Signature::Store | Signature::Atomic => &[Fixed(Type::U32), Carried],
            Signature::Exchange => &[Fixed(Type::U32), Carried, Carried],
            Signature::Tile => &[Fixed(Type::U32), Fixed(Type::U32), Fixed(Type::U64)],
        }
    }

    /// The result's type for a mnemonic with type `ty`; `None` without a result.
    pub const fn result(self, ty: Type) -> Option<Type> {
        match self {
            Signature::Store | Signature::Barrier => None,
            Signature::Compare => Some(Type::Bool),
            Signature::Builtin => Some(Type::U32),
            Signature::Tile => Some(Type::U64),
            _ => Some(ty),
        }
    }

    /// Whether the mnemonic has a type. Without one, [`Inst::ty`](crate::Inst::ty) is [`Type::U32`].
    pub const fn carries_type(self) -> bool {
        !matches!(self, Signature::Builtin | Signature::Barrier)
    }

    /// Whether the instruction addresses a memory.
    pub const fn has_memory(self) -> bool {
        matches!(self, Signature::Load | Signature::Store) || self.is_atomic()
    }

    /// Whether the instruction reads and sets an element atomically.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Signature::Atomic | Signature::Exchange)
    }
}

/// An instruction's row of the table.
#[derive(Debug)]
pub struct OpInfo {
    /// The name in the text form, before `.type`.
    pub mnemonic: &'static str,
    /// Operand and type rule.
    pub signature: Signature,
    /// The types `T` it exists for.
    pub types: TypeSet,
    /// What it does, for the language page.
    pub doc: &'static str,
    /// The error bound of the `.fast` form on `f32`, for operations that have one. A device may use it; the interpreter
    /// and the CPU are exact.
    pub fast: Option<&'static str>,
}

const fn first(list: &[&'static str]) -> Option<&'static str> {
    match list {
        [text, ..] => Some(text),
        [] => None,
    }
}

macro_rules! instructions {
    ($($name:ident $($method:ident)? $mnemonic:literal $signature:ident $types:ident $doc:literal $(fast $fast:literal)?;)*) => {
        /// The operations of Atlas; [`Opcode::info`] has the table row of each.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Opcode { $(#[doc = $doc] $(#[doc = concat!("\n\nWith `.fast`: ", $fast)])? $name,)* }

        impl Opcode {
            /// Every operation, in table order.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];

            /// This operation's row of the table.
            pub fn info(self) -> &'static OpInfo {
                match self {
                    $(Opcode::$name => const {
                        &OpInfo {
                            mnemonic: $mnemonic,
                            signature: Signature::$signature,
                            types: TypeSet::$types,
                            doc: $doc,
                            fast: first(&[$($fast)?]),
                        }
                    },)*
                }
            }
        }

        // A method for each row of the table that names one.
        impl crate::Builder {
            $($(method! { $signature $method $name })?)*
        }
    };
}

/// The method of an instruction whose type is that of its first operand.
macro_rules! method {
    (Unary $method:ident $name:ident) => { method! { ($method $name) a } };
    (Reduce $method:ident $name:ident) => { method! { ($method $name) a } };
    (Ternary $method:ident $name:ident) => { method! { ($method $name) a b c } };
    ($signature:ident $method:ident $name:ident) => { method! { ($method $name) a b } };
    (($method:ident $name:ident) $first:ident $($rest:ident)*) => {
        #[doc = concat!("[`Opcode::", stringify!($name), "`].")]
        pub fn $method(&mut self, $first: impl Into<Value> $(, $rest: impl Into<Value>)*) -> Value {
            let first = $first.into();
            self.inst(Opcode::$name, first.ty, &[first $(, $rest.into())*])
        }
    };
}

instructions! {
    // Positions.
    ThreadX "thread.x" Builtin ANY "The thread's x index in its workgroup.";
    ThreadY "thread.y" Builtin ANY "The thread's y index in its workgroup.";
    ThreadZ "thread.z" Builtin ANY "The thread's z index in its workgroup.";
    GroupX "group.x" Builtin ANY "The workgroup's x index in the grid.";
    GroupY "group.y" Builtin ANY "The workgroup's y index in the grid.";
    GroupZ "group.z" Builtin ANY "The workgroup's z index in the grid.";
    GridX "grid.x" Builtin ANY "The number of workgroups in x.";
    GridY "grid.y" Builtin ANY "The number of workgroups in y.";
    GridZ "grid.z" Builtin ANY "The number of workgroups in z.";
    GlobalX "global.x" Builtin ANY "group.x · workgroup size in x + thread.x, wrapping.";
    GlobalY "global.y" Builtin ANY "group.y · workgroup size in y + thread.y, wrapping.";
    GlobalZ "global.z" Builtin ANY "group.z · workgroup size in z + thread.z, wrapping.";
    Lane "lane" Builtin ANY "The thread's index in its subgroup of 32: linear thread index mod 32, linear as x + X·(y + Y·z).";
    Subgroup "subgroup" Builtin ANY "The subgroup's index in the workgroup: linear thread index / 32.";

    // Values.
    Mov mov "mov" Unary ANY "The operand.";
    Select "select" Select ANY "The second operand where the first is true, else the third.";
    Cvt "cvt" Convert ANY "Conversion. To a float: rounded once, to nearest even. Float to integer: toward zero, clamped to the range, NaN to 0. Integer to integer: the low bits, to a wider one after extension by the source's sign. To bool: whether not zero (NaN is true). From bool: 0 or 1.";
    Bitcast "bitcast" Bitcast ANY "The same bits as another type of the same size.";

    // Arithmetic: integers wrap; floats are correctly rounded (nearest even), never contracted.
    Add add "add" Binary ARITH "Sum.";
    Sub sub "sub" Binary ARITH "Difference.";
    Mul mul "mul" Binary ARITH "Product (integers: its low half).";
    MulHi mulhi "mulhi" Binary INT "The high half of the product of twice the width.";
    Div div "div" Binary ARITH "Quotient; integers toward zero. The minimum divided by -1 gives itself. An integer division by zero is a run-time error." fast "within 3 ulp; subnormal operands and results may count as 0.";
    Rem rem "rem" Binary INT "Remainder with the dividend's sign: a - (a div b)·b. By zero: a run-time error.";
    Fma fma "fma" Ternary FLOAT "a·b + c with one rounding.";
    Dot4 dot4 "dot4" Ternary WORD "The third operand plus the products of the four bytes of the first with those of the second, signed for i32, unsigned for u32; wrapping.";
    Min min "min" Binary ARITH "Minimum; for floats a number beats NaN, and -0 is less than +0.";
    Max max "max" Binary ARITH "Maximum; for floats a number beats NaN, and +0 is greater than -0.";
    Abs abs "abs" Unary SIGNED "Absolute value; the minimum integer gives itself. Clears a float's sign bit.";
    Neg neg "neg" Unary SIGNED "Negation, wrapping. Flips a float's sign bit.";
    Sqrt sqrt "sqrt" Unary FLOAT "Square root, correctly rounded." fast "within 1 ulp.";
    Floor floor "floor" Unary FLOAT "Rounds down to an integer.";
    Ceil ceil "ceil" Unary FLOAT "Rounds up to an integer.";
    Trunc trunc "trunc" Unary FLOAT "Rounds toward zero to an integer.";
    Round round "round" Unary FLOAT "Rounds to the nearest integer, ties to even.";

    // Bits.
    And and "and" Binary LOGIC "Bitwise and.";
    Or or "or" Binary LOGIC "Bitwise or.";
    Xor xor "xor" Binary LOGIC "Bitwise exclusive or.";
    Not not "not" Unary LOGIC "Bitwise complement; of a bool its negation.";
    Shl shl "shl" Shift INT "Shift left by a u32; a shift by the width or more gives 0.";
    Shr shr "shr" Shift INT "Shift right by a u32, filling with the sign for signed integers, else with 0; a shift by the width or more leaves only fill bits.";

    PopCount popcount "popcount" Unary INT "The number of 1 bits.";
    LeadingZeros clz "clz" Unary INT "The number of 0 bits above the highest 1; for 0 the width.";

    // Comparisons: false where a float operand is NaN, except ne.
    Eq eq "eq" Compare ANY "Equal.";
    Ne ne "ne" Compare ANY "Not equal.";
    Lt lt "lt" Compare ARITH "Less.";
    Le le "le" Compare ARITH "Less or equal.";
    Gt gt "gt" Compare ARITH "Greater.";
    Ge ge "ge" Compare ARITH "Greater or equal.";

    // Functions defined by decomposition into the arithmetic above: the same bits on every device.
    Exp exp "exp" Unary FLOAT "e to the power of the operand." fast "within 3 + 1.2·|x| ulp; subnormal results may be 0.";
    Exp2 exp2 "exp2" Unary FLOAT "2 to the power of the operand." fast "within 3 ulp; subnormal results may be 0.";
    Log log "log" Unary FLOAT "Natural logarithm." fast "within 2⁻²¹, absolute where x lies between 0.5 and 2, else relative.";
    Log2 log2 "log2" Unary FLOAT "Logarithm to base 2." fast "within 2⁻²¹, absolute where x lies between 0.5 and 2, else relative.";
    Sin sin "sin" Unary FLOAT "Sine of radians." fast "within 2⁻²⁰ for |x| ≤ π, absolute; beyond, the error grows with |x|, up to 2.";
    Cos cos "cos" Unary FLOAT "Cosine of radians." fast "within 2⁻²⁰ for |x| ≤ π, absolute; beyond, the error grows with |x|, up to 2.";
    Tanh tanh "tanh" Unary FLOAT "Hyperbolic tangent." fast "within 3 ulp.";
    Erf erf "erf" Unary FLOAT "The error function.";

    // Memory, barrier.
    Load "load" Load ANY "The element at an index. An index out of bounds is a run-time error that names the line.";
    Store "store" Store ANY "Sets the element at an index. An index out of bounds is a run-time error that names the line.";
    Barrier "barrier" Barrier ANY "Waits for the whole workgroup and makes its shared and global writes visible to it. Every thread must reach it.";

    // Atomic: several threads' accesses to an element happen one after another, in undefined order; the buffer is
    // `readwrite`. Each returns the previous value. The order of other memory accesses is not affected.
    AtomicAdd "atomic.add" Atomic SUMS "Adds to the element at an index; returns the previous value. On f32 a device may treat subnormal numbers as 0.";
    AtomicMin "atomic.min" Atomic WORD "Sets the element at an index to the minimum of itself and the operand; returns the previous value.";
    AtomicMax "atomic.max" Atomic WORD "Sets the element at an index to the maximum of itself and the operand; returns the previous value.";
    AtomicAnd "atomic.and" Atomic WORD "Sets the element at an index to the bitwise and of itself and the operand; returns the previous value.";
    AtomicOr "atomic.or" Atomic WORD "Sets the element at an index to the bitwise or of itself and the operand; returns the previous value.";
    AtomicXor "atomic.xor" Atomic WORD "Sets the element at an index to the bitwise exclusive or of itself and the operand; returns the previous value.";
    AtomicExchange "atomic.exchange" Atomic WORD "Sets the element at an index; returns the previous value.";
    AtomicCompareExchange "atomic.cas" Exchange WORD "Sets the element at an index to the third operand if it equals the second; returns the previous value.";

    // Subgroup: only active lanes participate.
    SubgroupAdd subgroup_add "subgroup.add" Reduce ARITH "Sum over the active lanes, as a butterfly: v += value of lane xor 16, 8, 4, 2, 1 in turn, where inactive lanes count as 0 (floats: -0).";
    SubgroupMin subgroup_min "subgroup.min" Reduce ARITH "Minimum over the active lanes.";
    SubgroupMax subgroup_max "subgroup.max" Reduce ARITH "Maximum over the active lanes.";
    Shuffle shuffle "shuffle" Shuffle ANY "The value of the lane with the given index mod 32; the reader's own value if that lane is inactive or does not exist.";
    Broadcast broadcast "broadcast" Unary ANY "The value of the lowest active lane of the subgroup.";

    // Matrix tiles: every thread of the workgroup must arrive.
    TileFma "tile.fma" Tile TILE "C + A·B of matrices that the subgroup holds, 8 × 8 (A and B of i8: 8 × 16 and 16 × 8). In lane 4·r + q the first operand has the elements 2·q and 2·q + 1 of A's row r (i8: 4·q to 4·q + 3), the second those of B's column r; the third and the result have the elements 2·q and 2·q + 1 of row r of C, as f32 (of i8: i32). The lower bits come first. i8: exact, wrapping. Floats: a chain of fma over the terms in order; a device may add them in another order and precision, within 2⁻¹⁹ of |C| + Σ|A·B| and 2⁻¹²⁶.";
}

impl Opcode {
    /// Whether it has a `.fast` form for a type.
    pub fn has_fast(self, ty: Type) -> bool {
        self.info().fast.is_some() && ty == Type::F32
    }

    /// Whether the result depends only on the thread's own operands, so that [`eval`](crate::meaning::eval) computes
    /// it.
    pub fn is_lane_wise(self) -> bool {
        use Signature as S;
        let signature = self.info().signature;
        let more =
            matches!(signature, S::Builtin | S::Reduce | S::Shuffle | S::Barrier | S::Tile) || signature.has_memory();
        !more && self != Opcode::Broadcast
    }

    /// The operation with this mnemonic.
    pub fn from_mnemonic(name: &str) -> Option<Opcode> {
        Opcode::ALL.iter().copied().find(|op| op.info().mnemonic == name)
    }
}
