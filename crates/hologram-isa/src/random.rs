//! Random programs that pass the verifier, stay inside their buffers, terminate, and are free of races. Devices are
//! tested by running them against the reference interpreter.

use crate::{
    Access, Array, Builder, Capability, IsaError, Opcode, ParamKind, Program, SUBGROUP_SIZE, Stmt, StmtKind, Type,
    TypeSet, Value, verify,
};

/// Elements of each input buffer, a power of two.
pub const INPUT_LEN: u32 = 4096;
/// Elements of each buffer that all threads update.
pub const TALLIES: u32 = 128;
/// Results that each thread may store into the output buffer of a type.
pub const SLOTS: u32 = 6;

/// A generator of random numbers (SplitMix64), from its state.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n.max(1)
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// A register word of a type, often a special value.
    pub fn word(&mut self, ty: Type) -> u64 {
        const FLOATS: [f64; 14] =
            [0.0, -0.0, 1.0, -1.0, 0.5, 3.25, 100.0, 1e-3, 65520.0, f64::INFINITY, f64::NAN, 1e-40, 3e9, -7.5];
        let special = self.chance(40);
        let bits = self.next() as u32 >> (self.below(2) * self.below(32));
        let word = match ty {
            Type::Bool => bits & 1,
            Type::I8 => bits as i8 as u32,
            Type::U8 => bits & 0xff,
            Type::I16 => bits as i16 as u32,
            Type::I32 | Type::U32 if special => self.pick(&[0, 1, 2, 31, 32, u32::MAX, 1 << 31, i32::MAX as u32, 7]),
            Type::I32 | Type::U32 => bits,
            Type::F32 if special => (self.pick(&FLOATS) as f32).to_bits(),
            Type::F32 if self.chance(70) => ((self.next() as i32 as f32) / 2f32.powi(self.below(40) as i32)).to_bits(),
            Type::F32 => bits,
            Type::U16 | Type::F16 | Type::BF16 => bits & 0xffff,
            Type::I64 | Type::U64 if special => {
                return self.pick(&[0, 1, 7, 63, u64::MAX, 1 << 63, (1 << 63) - 1, 1 << 32, (1 << 32) - 1, !0 << 31]);
            }
            Type::I64 | Type::U64 => return self.next() >> (self.below(2) * self.below(64)),
            Type::F64 if special => return (self.pick(&FLOATS) * self.pick(&[1.0, 1.0, 1e-300, 1e300])).to_bits(),
            Type::F64 if self.chance(70) => {
                return ((self.next() as i64 as f64) / 2f64.powi(self.below(80) as i32)).to_bits();
            }
            Type::F64 => return self.next(),
        };
        word.into()
    }
}

/// A program with the number of workgroups to launch.
#[derive(Clone, Debug)]
pub struct Case {
    /// The program: an input buffer `in_T` and an output buffer `out_T` per type, buffers `all_T` that all threads
    /// update, then [`SCALARS`]; without types that the device lacks.
    pub program: Program,
    /// Workgroups in x, y, z.
    pub grid: [u32; 3],
}

/// Arguments of a random program.
#[derive(Clone, Debug)]
pub struct Arguments {
    /// The bytes of each buffer, in the order of the parameters.
    pub buffers: Vec<Vec<u8>>,
    /// The register words of the scalars, which follow the buffers.
    pub scalars: Vec<u64>,
}

/// The types of a random program's scalars, in order.
pub const SCALARS: [Type; 6] = [Type::F32, Type::U32, Type::I32, Type::Bool, Type::F64, Type::I64];

/// Arguments from a seed for a program of [`case`], or its shrunk version.
pub fn arguments(program: &Program, grid: [u32; 3], seed: u64) -> Arguments {
    let mut random = Random(seed ^ 0x5555);
    let threads = program.workgroup_threads() * grid.iter().product::<u32>();
    let mut arguments = Arguments { buffers: Vec::new(), scalars: Vec::new() };
    for param in &program.params {
        match param.kind {
            ParamKind::Scalar(ty) => arguments.scalars.push(random.word(ty)),
            ParamKind::Buffer { element: ty, .. } => {
                let (random_len, zeros) = match param.name.split('_').next() {
                    Some("in") => (INPUT_LEN, 0),
                    Some("all") => (TALLIES, 0),
                    _ => (0, (threads * SLOTS) as usize * ty.size()),
                };
                let words = (0..random_len).flat_map(|_| random.word(ty).to_le_bytes()[..ty.size()].to_vec());
                arguments.buffers.push(words.chain(std::iter::repeat_n(0, zeros)).collect());
            }
        }
    }
    arguments
}

struct Generator<'r> {
    random: &'r mut Random,
    /// The types that the device has, and whether it has matrix tiles.
    types: TypeSet,
    tiles: bool,
    workgroup: [u32; 3],
    threads: u32,
    inputs: Vec<Array>,
    outputs: Vec<Array>,
    /// Buffers whose elements all threads update, each by one operation whose order does not matter, and a shared
    /// array.
    tallies: Vec<Array>,
    shared: Array,
    shared_tally: Array,
    /// Values in scope, and variables in scope.
    values: Vec<Value>,
    vars: Vec<Value>,
    /// The thread's index in the grid.
    id: Value,
    /// The scalar that is a `bool`.
    uniform_bool: Value,
    slots: Vec<u32>,
    loops: u32,
    statements: u32,
}

/// A program from a seed.
///
/// # Errors
/// When the verifier rejects the program, which is a bug of this generator.
pub fn case(seed: u64) -> Result<Case, IsaError> {
    case_without(seed, &[])
}

/// As [`case`], without the capabilities that a device lacks.
///
/// # Errors
/// As [`case`].
pub fn case_without(seed: u64, lacking: &[Capability]) -> Result<Case, IsaError> {
    let random = &mut Random(seed);
    let lacks = |what| lacking.contains(&what);
    let types: Vec<Type> = Type::ALL.into_iter().filter(|ty| *ty != Type::F64 || !lacks(Capability::F64)).collect();
    let atomic = |ty: &Type| types.contains(ty) && (!ty.is_wide() || !lacks(Capability::Atomic64));
    let workgroup = random.pick(&[
        [1, 1, 1],
        [7, 1, 1],
        [32, 1, 1],
        [48, 1, 1],
        [64, 1, 1],
        [100, 1, 1],
        [16, 4, 1],
        [5, 3, 2],
        [1, 40, 1],
    ]);
    let grid = random.pick(&[[1, 1, 1], [3, 1, 1], [2, 2, 1], [1, 2, 2]]);
    let mut b = Builder::new("random", workgroup);
    let inputs: Vec<Array> = types.iter().map(|ty| b.buffer(&format!("in_{ty}"), *ty, Access::Read)).collect();
    let outputs: Vec<Array> = types.iter().map(|ty| b.buffer(&format!("out_{ty}"), *ty, Access::ReadWrite)).collect();
    let sums = Opcode::AtomicAdd.info().types.iter().filter(atomic);
    let tallies: Vec<Array> = sums.map(|ty| b.buffer(&format!("all_{ty}"), ty, Access::ReadWrite)).collect();
    let scalars = SCALARS.into_iter().filter(|ty| types.contains(ty));
    let mut values: Vec<Value> = scalars.map(|ty| b.scalar(&format!("s_{ty}"), ty)).collect();
    let uniform_bool = values[3];
    let threads: u32 = workgroup.iter().product();
    let shared_type = random.pick(&types);
    let shared = b.shared("shared", shared_type, threads);
    let whole: Vec<Type> = [Type::I32, Type::U32, Type::I64, Type::U64].into_iter().filter(atomic).collect();
    let tally_type = random.pick(&whole);
    let shared_tally = b.shared("tally", tally_type, threads.min(16));
    // The thread's index in the grid, in a form that the device may recognise as affine.
    let (y, z) = (b.builtin(Opcode::GroupY), b.builtin(Opcode::GroupZ));
    let (nx, ny) = (b.builtin(Opcode::GridX), b.builtin(Opcode::GridY));
    let z = b.mul(z, ny);
    let yz = b.add(y, z);
    let yz = b.mul(yz, nx);
    let x = b.builtin(Opcode::GroupX);
    let group = b.add(x, yz);
    let first = b.mul(group, threads);
    let linear = linear_thread(&mut b, workgroup);
    let id = b.add(first, linear);
    values.extend([group, linear, id]);
    let places = [Opcode::GlobalX, Opcode::GlobalY, Opcode::GlobalZ, Opcode::ThreadX, Opcode::ThreadY, Opcode::ThreadZ];
    for op in places.into_iter().chain([Opcode::Lane, Opcode::Subgroup]) {
        values.push(b.builtin(op));
    }
    let mut g = Generator {
        random,
        types: TypeSet::of(&types),
        tiles: !lacks(Capability::MatrixTile),
        workgroup,
        threads,
        inputs,
        outputs,
        tallies,
        shared,
        shared_tally,
        values,
        vars: Vec::new(),
        id,
        uniform_bool,
        slots: vec![0; types.len()],
        loops: 0,
        statements: 0,
    };
    for _ in 0..4 {
        g.load(&mut b);
    }
    let length = 8 + g.random.below(25);
    g.block(&mut b, length, 0, true);
    for _ in 0..4 {
        g.store(&mut b);
    }
    let mut program = b.finish()?;
    change_jumps(&mut program, g.random);
    Ok(Case { program, grid })
}

/// x + X·(y + Y·z), or for a one-dimensional workgroup simply x.
fn linear_thread(b: &mut Builder, [x, y, z]: [u32; 3]) -> Value {
    let tx = b.builtin(Opcode::ThreadX);
    if y == 1 && z == 1 {
        return tx;
    }
    let (ty, tz) = (b.builtin(Opcode::ThreadY), b.builtin(Opcode::ThreadZ));
    let planes = b.mul(tz, y);
    let rows = b.add(ty, planes);
    let rows = b.mul(rows, x);
    b.add(tx, rows)
}

impl Generator<'_> {
    fn const_of(&mut self, ty: Type) -> Value {
        let word = self.random.word(ty);
        Value { operand: crate::Operand::Const(ty, word), ty }
    }

    /// A value in scope, or a constant.
    fn value(&mut self, ty: Type) -> Value {
        let there: Vec<Value> = self.values.iter().chain(&self.vars).copied().filter(|v| v.ty == ty).collect();
        if there.is_empty() || self.random.chance(15) {
            return self.const_of(ty);
        }
        // Prefer recent values.
        let near = self.random.chance(60);
        let from = if near { there.len().saturating_sub(4) } else { 0 };
        there[from + self.random.below(there.len() - from)]
    }

    /// The input buffer of a type that every device has.
    fn input(&self, ty: Type) -> Array {
        self.inputs.iter().copied().find(|a| a.element == ty).unwrap_or(self.inputs[0])
    }

    /// A type of a set that the device has.
    fn any_type(&mut self, set: TypeSet) -> Type {
        let types: Vec<Type> = set.iter().filter(|ty| self.types.contains(*ty)).collect();
        self.random.pick(&types)
    }

    fn keep(&mut self, value: Value) {
        self.values.push(value);
    }

    fn block(&mut self, b: &mut Builder, length: usize, depth: usize, uniform: bool) {
        let (values, vars) = (self.values.len(), self.vars.len());
        for _ in 0..length {
            self.statements += 1;
            if self.statements > 120 {
                break;
            }
            match self.random.below(100) {
                0..45 => self.compute(b),
                45..55 => self.load(b),
                55..60 => self.store(b),
                60..62 => self.tally(b),
                62..64 if uniform && self.tiles && self.threads.is_multiple_of(SUBGROUP_SIZE) => self.tile(b),
                62..67 => self.subgroup(b),
                67..72 => {
                    let ty = self.any_type(TypeSet::ANY);
                    let init = self.value(ty);
                    let var = b.var(init);
                    self.vars.push(var);
                }
                72..79 => self.assign(b),
                79..81 if uniform => self.exchange(b),
                81..82 if uniform => self.tally_shared(b),
                82..87 if self.loops > 0 => {
                    let cond = self.value(Type::Bool);
                    if self.random.chance(50) { b.break_if(cond) } else { b.continue_if(cond) }
                }
                87..94 if depth < 4 => self.branch(b, depth, uniform),
                94..100 if depth < 4 && self.loops < 3 => self.any_loop(b, depth, uniform),
                _ => self.compute(b),
            }
        }
        self.values.truncate(values);
        self.vars.truncate(vars);
    }

    fn branch(&mut self, b: &mut Builder, depth: usize, uniform: bool) {
        let (cond, uniform) = match self.random.below(3) {
            0 => {
                let bound = self.value(Type::U32);
                let bound = if self.random.chance(50) { bound } else { Value::from(self.random.below(120) as u32) };
                let id = self.id;
                (b.lt(id, bound), false)
            }
            1 => (self.uniform_bool, uniform),
            _ => (self.value(Type::Bool), false),
        };
        let (then, otherwise) = (1 + self.random.below(6), self.random.below(5));
        // The closures run one after another, but both borrow `self`.
        let this = std::cell::RefCell::new(self);
        b.if_else(
            cond,
            |b| this.borrow_mut().block(b, then, depth + 1, uniform),
            |b| this.borrow_mut().block(b, otherwise, depth + 1, uniform),
        );
    }

    fn any_loop(&mut self, b: &mut Builder, depth: usize, uniform: bool) {
        let length = 2 + self.random.below(7);
        let values = self.values.len();
        self.loops += 1;
        // Jumps may make threads leave at different times, so values in a loop count as uniform only if it has no
        // jumps.
        match self.random.below(5) {
            0 => {
                let rounds = 1 + self.random.below(5) as u32;
                b.loop_(rounds, |b| self.block(b, length, depth + 1, false));
            }
            1 => {
                let (end, step) = (self.random.below(7) as u32, 1 + self.random.below(2) as u32);
                let jumps = std::mem::take(&mut self.loops);
                b.for_(0u32, end, step, |b, i| {
                    self.keep(i);
                    self.block(b, length, depth + 1, uniform);
                });
                self.loops = jumps;
            }
            2 => {
                // A row-wise loop: from the thread's index to n in steps of the number of threads.
                let thread = linear_thread(b, self.workgroup);
                let step = self.threads.max(20);
                let end = self.random.below(5) as u32 * step / 2 + 3;
                b.for_(thread, end, step, |b, i| {
                    self.keep(i);
                    let element = b.and(i, INPUT_LEN - 1);
                    let loaded = b.load(self.input(Type::F32), element);
                    self.keep(loaded);
                    let loaded = b.load(self.input(Type::F16), i);
                    self.keep(loaded);
                    self.block(b, length, depth + 1, false);
                });
            }
            3 => {
                let a = self.value(Type::I32);
                let start = b.and(a, 7i32);
                let start = b.sub(start, 4i32);
                let end = self.value(Type::I32);
                let end = b.rem(end, 8i32);
                let step = 1 + self.random.below(3) as i32;
                b.for_(start, end, step, |b, i| {
                    self.keep(i);
                    self.block(b, length, depth + 1, false);
                });
            }
            _ => {
                let ends: Vec<Value> = (0..3).map(|_| self.value(Type::U32)).collect();
                let start = b.and(ends[0], 3u32);
                // Sometimes near the maximum, where the count must end instead of wrapping.
                let high = if self.random.chance(30) { u32::MAX - 6 } else { 0 };
                let start = b.add(start, high);
                let end = b.and(ends[1], 7u32);
                let end = b.add(end, high.max(1) - 1);
                let step = b.and(ends[2], 3u32);
                let step = b.add(step, 1u32);
                b.for_(start, end, step, |b, i| {
                    self.keep(i);
                    self.block(b, length, depth + 1, false);
                });
            }
        }
        self.values.truncate(values);
        self.loops -= 1;
    }

    fn compute(&mut self, b: &mut Builder) {
        use crate::Signature as S;
        let op = self.random.pick(Opcode::ALL);
        let ty = self.any_type(op.info().types);
        let result = match op.info().signature {
            S::Unary if op == Opcode::Broadcast => return,
            S::Unary => {
                let a = self.value(ty);
                b.inst(op, ty, &[a])
            }
            S::Binary | S::Compare => {
                let (x, mut y) = (self.value(ty), self.value(ty));
                if matches!(op, Opcode::Div | Opcode::Rem) && !ty.is_float() {
                    y = b.inst(Opcode::Or, ty, &[y, Value { operand: crate::Operand::Const(ty, 1), ty }]);
                }
                b.inst(op, ty, &[x, y])
            }
            S::Ternary => {
                let args = [self.value(ty), self.value(ty), self.value(ty)];
                b.inst(op, ty, &args)
            }
            S::Select => {
                let args = [self.value(Type::Bool), self.value(ty), self.value(ty)];
                b.inst(op, ty, &args)
            }
            S::Shift => {
                let (a, n) = (self.value(ty), self.value(Type::U32));
                let n = if self.random.chance(70) { b.and(n, 8 * ty.size() as u32 - 1) } else { n };
                b.inst(op, ty, &[a, n])
            }
            S::Convert => {
                let from = self.any_type(TypeSet::ANY);
                let a = self.value(from);
                b.inst(op, ty, &[a])
            }
            S::Bitcast => {
                let same: Vec<Type> = self.types.iter().filter(|t| t.size() == ty.size()).collect();
                let from = self.random.pick(&same);
                let mut a = self.value(from);
                if from.is_float() {
                    // NaN patterns are undefined, so they must not be observable.
                    let number = b.eq(a, a);
                    a = b.select(number, a, Value { operand: crate::Operand::Const(from, 0), ty: from });
                }
                b.inst(op, ty, &[a])
            }
            S::Builtin => b.builtin(op),
            S::Reduce | S::Shuffle | S::Load | S::Store | S::Atomic | S::Exchange | S::Barrier | S::Tile => return,
        };
        self.keep(result);
    }

    fn assign(&mut self, b: &mut Builder) {
        let there = self.vars.len();
        if there == 0 {
            return;
        }
        let var = self.vars[self.random.below(there)];
        if Opcode::Add.info().types.contains(var.ty) && self.random.chance(60) {
            let op = self.random.pick(&[Opcode::Add, Opcode::Mul, Opcode::Min, Opcode::Sub]);
            let other = self.value(var.ty);
            b.assign_op(var, op, &[var, other]);
        } else {
            let value = self.value(var.ty);
            b.assign(var, value);
        }
    }

    fn subgroup(&mut self, b: &mut Builder) {
        let ty = self.any_type(Opcode::SubgroupAdd.info().types);
        let result = match self.random.below(5) {
            0 => {
                let any = self.any_type(TypeSet::ANY);
                let (a, lane) = (self.value(any), self.value(Type::U32));
                b.inst(Opcode::Shuffle, any, &[a, lane])
            }
            1 => {
                let any = self.any_type(TypeSet::ANY);
                let a = self.value(any);
                b.broadcast(a)
            }
            n => {
                let a = self.value(ty);
                b.inst([Opcode::SubgroupAdd, Opcode::SubgroupMin, Opcode::SubgroupMax][n - 2], ty, &[a])
            }
        };
        self.keep(result);
    }

    /// Products of tiles, one or two with the same right tile. Those of floats differ between devices.
    fn tile(&mut self, b: &mut Builder) {
        let right = self.value(Type::U32);
        let pairs: Vec<[Value; 2]> =
            (0..1 + self.random.below(2)).map(|_| [self.value(Type::U32), self.value(Type::U64)]).collect();
        let products: Vec<Value> = pairs.into_iter().map(|[a, c]| b.tile_fma(Type::I8, a, right, c)).collect();
        self.values.extend(products);
    }

    fn load(&mut self, b: &mut Builder) {
        let array = self.random.pick(&self.inputs.clone());
        let index = match self.random.below(5) {
            0 => self.id,
            1 => b.add(self.id, self.random.below(1000) as u32),
            2 => Value::from(self.random.below(INPUT_LEN as usize) as u32),
            _ => {
                let any = self.value(Type::U32);
                b.and(any, INPUT_LEN - 1)
            }
        };
        let loaded = b.load(array, index);
        self.keep(loaded);
    }

    /// Stores into this thread's element of a slot, and sometimes reads it back.
    fn store(&mut self, b: &mut Builder) {
        let which = self.random.below(self.outputs.len());
        let array = self.outputs[which];
        let slot = self.slots[which] % SLOTS;
        self.slots[which] += 1;
        let all = b.builtin(Opcode::GridX);
        let (y, z) = (b.builtin(Opcode::GridY), b.builtin(Opcode::GridZ));
        let all = b.mul(all, y);
        let all = b.mul(all, z);
        let start = b.mul(all, slot * self.threads);
        // Both orders are recognised as affine; the third adds a detour that is not.
        let index = match self.random.below(3) {
            0 => b.add(start, self.id),
            1 => b.add(self.id, start),
            _ => {
                let index = b.xor(self.id, start);
                let common = b.and(self.id, start);
                let twice = b.shl(common, 1u32);
                b.add(index, twice)
            }
        };
        let value = self.value(array.element);
        b.store(array, index, value);
        if self.random.chance(20) {
            let back = b.load(array, index);
            self.keep(back);
        }
    }

    /// An atomic operation whose order does not matter, with its number.
    fn atomic(&mut self, ty: Type) -> (Opcode, u32) {
        use Opcode::*;
        let all = [AtomicAdd, AtomicMin, AtomicMax, AtomicAnd, AtomicOr, AtomicXor];
        let number = if AtomicMin.info().types.contains(ty) { self.random.below(all.len()) } else { 0 };
        (all[number], number as u32)
    }

    /// Updates an element that other threads may update too. Float sums are excluded because they depend on the order.
    fn tally(&mut self, b: &mut Builder) {
        let array = self.random.pick(&self.tallies.clone());
        if array.element.is_float() {
            return;
        }
        let (op, number) = self.atomic(array.element);
        let at = self.value(Type::U32);
        let at = b.and(at, 15u32);
        let at = b.add(at, 16 * number);
        let value = self.value(array.element);
        b.atomic(op, array, at, &[value]);
    }

    /// All threads update shared elements between barriers and read the result.
    fn tally_shared(&mut self, b: &mut Builder) {
        let array = self.shared_tally;
        let (first, value, len) = (self.value(array.element), self.value(array.element), self.threads.min(16));
        let own = linear_thread(b, self.workgroup);
        let starts = b.lt(own, len);
        b.if_(starts, |b| b.store(array, own, first));
        b.barrier();
        let (op, _) = self.atomic(array.element);
        let at = self.value(Type::U32);
        let at = b.rem(at, len);
        let some = self.value(Type::Bool);
        b.if_(some, |b| {
            b.atomic(op, array, at, &[value]);
        });
        b.barrier();
        let at = self.value(Type::U32);
        let at = b.rem(at, len);
        let got = b.load(array, at);
        b.barrier();
        self.keep(got);
    }

    /// Every thread stores a value in shared memory and reads another thread's.
    fn exchange(&mut self, b: &mut Builder) {
        let value = self.value(self.shared.element);
        let own = linear_thread(b, self.workgroup);
        b.store(self.shared, own, value);
        b.barrier();
        let other = self.value(Type::U32);
        let other = b.rem(other, self.threads);
        let got = b.load(self.shared, other);
        let fixed = b.load(self.shared, self.random.below(self.threads as usize) as u32);
        b.barrier();
        self.keep(got);
        self.keep(fixed);
    }
}

/// Makes some jumps unconditional and lets some leave an outer loop, where the verifier allows it.
fn change_jumps(program: &mut Program, random: &mut Random) {
    for change in 0..6 {
        let before = program.body.clone();
        let mut jumps = random.below(4);
        change_jump(&mut program.body, &mut jumps, change % 2 == 0);
        if verify(program).is_err() {
            program.body = before;
        }
    }
}

fn change_jump(block: &mut [Stmt], skip: &mut usize, outward: bool) -> bool {
    for stmt in block {
        let done = match &mut stmt.kind {
            StmtKind::If { then, otherwise, .. } => {
                change_jump(then, skip, outward) || change_jump(otherwise, skip, outward)
            }
            StmtKind::For { body, .. } | StmtKind::Loop { body, .. } => change_jump(body, skip, outward),
            StmtKind::Break { depth, cond } | StmtKind::Continue { depth, cond } => {
                let here = *skip == 0;
                *skip = skip.saturating_sub(1);
                if here {
                    if outward { *depth += 1 } else { *cond = None }
                }
                here
            }
            StmtKind::Inst(_) => false,
        };
        if done {
            return true;
        }
    }
    false
}

/// Removes statements from a program as long as it still fails and passes the verifier.
pub fn shrink(mut program: Program, faulty: impl Fn(&Program) -> bool) -> Program {
    loop {
        let mut index = 0;
        let mut shrunk = false;
        loop {
            let mut smaller = program.clone();
            let mut skip = index;
            if !remove(&mut smaller.body, &mut skip) {
                break;
            }
            if verify(&smaller).is_ok() && faulty(&smaller) {
                program = smaller;
                shrunk = true;
            } else {
                index += 1;
            }
        }
        if !shrunk {
            return program;
        }
    }
}

/// Removes the statement of this index, outer before inner.
fn remove(block: &mut Vec<Stmt>, skip: &mut usize) -> bool {
    for i in 0..block.len() {
        if *skip == 0 {
            block.remove(i);
            return true;
        }
        *skip -= 1;
        let done = match &mut block[i].kind {
            StmtKind::If { then, otherwise, .. } => remove(then, skip) || remove(otherwise, skip),
            StmtKind::For { body, .. } | StmtKind::Loop { body, .. } => remove(body, skip),
            _ => false,
        };
        if done {
            return true;
        }
    }
    false
}
