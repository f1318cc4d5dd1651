//! Writes programs in the Metal Shading Language with inputs and the interpreter's results, for `tools/metal/cases.py`
//! to compile, run and compare: N random programs, and every lane-wise and atomic instruction.
//!
//! ```text
//! cargo run -p hologram-isa --example msl_cases -- DIRECTORY [N]
//! tools/metal/cases.py DIRECTORY
//! ```
//!
//! A case is three files: NAME.metal; NAME.json with the entry, the grid, the workgroup and the element type at each
//! binding; NAME.bin with the number of bindings, then per binding its number of bytes, its content before, and its
//! content after on a device that keeps subnormal numbers and on one that flushes them, all numbers `u64`.

use std::error::Error;
use std::path::Path;

use hologram_isa::interp::{Binding, Bytes, interpret_in};
use hologram_isa::meaning::Subnormals;
use hologram_isa::msl::{MslTarget, print};
use hologram_isa::random::{self, Random};
use hologram_isa::{Access, Array, Builder, Capability, Opcode, OperandType, Program, Signature, Type, Value};

/// Threads that run an instruction, each on different operands.
const THREADS: u32 = 2048;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let directory = args.next().filter(|d| !d.starts_with('-')).ok_or("usage: msl_cases DIRECTORY [N]")?;
    let count: u64 = args.next().map_or(Ok(300), |n| n.parse())?;
    std::fs::create_dir_all(&directory)?;
    let directory = Path::new(&directory);
    for seed in 0..count {
        let case = random::case_without(seed, &[Capability::F64, Capability::Atomic64])?;
        let random::Arguments { buffers, scalars } = random::arguments(&case.program, case.grid, seed);
        write(directory, &format!("random{seed}"), &case.program, case.grid, buffers, &scalars)?;
    }
    for &op in Opcode::ALL {
        let signature = op.info().signature;
        for ty in op.info().types.iter().filter(|ty| *ty != Type::F64) {
            if op.is_lane_wise() {
                let any = signature.operands().contains(&OperandType::Any);
                let fits = |from: &Type| {
                    *from != Type::F64
                        && if any { signature != Signature::Bitcast || from.size() == ty.size() } else { *from == ty }
                };
                for from in Type::ALL.into_iter().filter(fits) {
                    instruction(directory, op, ty, from)?;
                }
            } else if signature.is_atomic() && !ty.is_wide() {
                atomic(directory, op, ty)?;
            }
        }
    }
    Ok(())
}

/// Random elements, often special values.
fn elements(random: &mut Random, ty: Type) -> Vec<u8> {
    (0..THREADS).flat_map(|_| random.word(ty).to_le_bytes()[..ty.size()].to_vec()).collect()
}

/// A lane-wise instruction; each thread has different operands.
fn instruction(directory: &Path, op: Opcode, ty: Type, from: Type) -> Result<(), Box<dyn Error>> {
    let signature = op.info().signature;
    let types: Vec<Type> = signature.operands().iter().map(|o| o.resolve(ty).unwrap_or(from)).collect();
    let result = signature.result(ty).ok_or("a lane-wise instruction has a result")?;
    let mut random = Random(7);
    let mut b = Builder::new("instruction", [128, 1, 1]);
    let inputs: Vec<Array> =
        types.iter().enumerate().map(|(i, t)| b.buffer(&format!("x{i}"), *t, Access::Read)).collect();
    let output = b.buffer("y", result, Access::Write);
    let i = b.global_x();
    let mut args: Vec<Value> = inputs.iter().map(|x| b.load(*x, i)).collect();
    if matches!(op, Opcode::Div | Opcode::Rem) && !ty.is_float() {
        // Division by zero is a fault.
        let one = b.cvt(ty, 1u32);
        let zero = b.cvt(ty, 0u32);
        let is_zero = b.eq(args[1], zero);
        args[1] = b.select(is_zero, one, args[1]);
    }
    let value = b.inst(op, ty, &args);
    b.store(output, i, value);
    let mut buffers: Vec<Vec<u8>> = types.iter().map(|t| elements(&mut random, *t)).collect();
    buffers.push(vec![0; THREADS as usize * result.size()]);
    let name = format!("{}_{ty}_of_{from}", op.info().mnemonic);
    write(directory, &name, &b.finish()?, [THREADS / 128, 1, 1], buffers, &[])
}

/// An atomic instruction on one element per thread, in a buffer and in shared memory.
fn atomic(directory: &Path, op: Opcode, ty: Type) -> Result<(), Box<dyn Error>> {
    let operands = op.info().signature.operands().len() - 1;
    let mut random = Random(8);
    let mut b = Builder::new("atomic", [128, 1, 1]);
    let array = b.buffer("x", ty, Access::ReadWrite);
    let inputs: Vec<Array> = (0..operands).map(|i| b.buffer(&format!("x{i}"), ty, Access::Read)).collect();
    let outputs = ["old", "shared_old", "shared_new"].map(|name| b.buffer(name, ty, Access::Write));
    let tile = b.shared("tile", ty, 128);
    let (i, t) = (b.global_x(), b.builtin(Opcode::ThreadX));
    let first = b.load(array, i);
    b.store(tile, t, first);
    let mut args: Vec<Value> = inputs.iter().map(|x| b.load(*x, i)).collect();
    if op == Opcode::AtomicCompareExchange {
        // Half of the comparisons succeed.
        let odd = b.and(i, 1u32);
        let odd = b.cvt(Type::Bool, odd);
        args[0] = b.select(odd, first, args[0]);
    }
    for (array, at, out) in [(array, i, outputs[0]), (tile, t, outputs[1])] {
        let old = b.atomic(op, array, at, &args);
        b.store(out, i, old);
    }
    let new = b.load(tile, t);
    b.store(outputs[2], i, new);
    let mut buffers: Vec<Vec<u8>> = (0..=operands).map(|_| elements(&mut random, ty)).collect();
    buffers.extend([(); 3].map(|()| vec![0; THREADS as usize * ty.size()]));
    let name = format!("{}_{ty}", op.info().mnemonic);
    write(directory, &name, &b.finish()?, [THREADS / 128, 1, 1], buffers, &[])
}

/// Interprets a program whose buffers come before its scalars, and writes the case.
fn write(
    directory: &Path,
    name: &str,
    program: &Program,
    grid: [u32; 3],
    buffers: Vec<Vec<u8>>,
    scalars: &[u64],
) -> Result<(), Box<dyn Error>> {
    let kernel = print(program, &MslTarget { version: (3, 1) })?;
    let mut words = vec![0u8; kernel.argument_bytes];
    let lengths = program.params.iter().zip(&buffers).filter_map(|(p, bytes)| match p.kind {
        hologram_isa::ParamKind::Buffer { element, .. } => Some((bytes.len() / element.size()) as u64),
        hologram_isa::ParamKind::Scalar(_) => None,
    });
    for (word, at) in lengths.chain(scalars.iter().copied()).zip(&kernel.arguments) {
        words[at.offset..at.offset + at.size].copy_from_slice(&word.to_le_bytes()[..at.size]);
    }
    let bindings = buffers.iter().enumerate().map(|(memory, b)| Binding::Buffer { memory, offset: 0, len: b.len() });
    let bindings: Vec<Binding> = bindings.chain(scalars.iter().map(|w| Binding::Scalar(*w))).collect();
    let after = |subnormals| -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
        let mut after = buffers.clone();
        let mut memories: Vec<Bytes<'_>> = after.iter_mut().map(|b| Bytes::Write(b)).collect();
        interpret_in(program, grid, &mut memories, &bindings, subnormals)?;
        Ok(after)
    };
    let (kept, flushed) = (after(Subnormals::Kept)?, after(Subnormals::Flushed)?);
    let types = program.params.iter().filter_map(|p| match p.kind {
        hologram_isa::ParamKind::Buffer { element, .. } => Some(format!("\"{element}\"")),
        hologram_isa::ParamKind::Scalar(_) => None,
    });
    let mut types: Vec<String> = types.collect();
    let mut memories: Vec<[Vec<u8>; 3]> =
        buffers.into_iter().zip(kept).zip(flushed).map(|((before, kept), flushed)| [before, kept, flushed]).collect();
    // No fault is recorded, and the arguments are unchanged.
    for memory in [words, vec![0; 32]] {
        types.push("\"u8\"".into());
        memories.push([memory.clone(), memory.clone(), memory]);
    }
    let json = format!(
        "{{\"entry\": \"{}\", \"grid\": {grid:?}, \"threads\": {:?}, \"types\": [{}]}}\n",
        kernel.entry,
        program.workgroup,
        types.join(", ")
    );
    let mut bytes = (memories.len() as u64).to_le_bytes().to_vec();
    for contents in memories {
        bytes.extend((contents[0].len() as u64).to_le_bytes());
        bytes.extend(contents.concat());
    }
    std::fs::write(directory.join(format!("{name}.metal")), kernel.text)?;
    std::fs::write(directory.join(format!("{name}.json")), json)?;
    std::fs::write(directory.join(format!("{name}.bin")), bytes)?;
    Ok(())
}
