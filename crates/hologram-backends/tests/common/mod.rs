//! The behaviour of programs that every device must have: checks that take a device.

use std::sync::atomic::{AtomicUsize, Ordering};

use hologram_backends::compare::{canonical, run};
use hologram_backends::{Backend, BackendError, Binding, LaunchConfig, ReferenceBackend};
use hologram_isa::meaning::{convert, read_element};
use hologram_isa::random::Random;
use hologram_isa::{
    Access, Array, Builder, Capability, IsaError, Opcode, OperandType, Program, Signature, Type, Value, parse, print,
};

/// A number from the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Whether a program needs a capability that the device lacks; the device then rejects it.
fn lacks(device: &dyn Backend, program: &Program) -> bool {
    let there = &device.info().capabilities;
    let lacking = Capability::ALL.into_iter().filter(|c| !there.contains(c)).any(|c| c.is_needed_by(program));
    assert_eq!(lacking, matches!(device.compile(program), Err(BackendError::Unsupported { .. })));
    lacking
}

/// Elements of the buffers of [`fault_programs`], and the grid.
const FAULT_LEN: usize = 95;
const FAULT_GRID: [u32; 3] = [2, 1, 1];

/// Programs with a fault on a grid of two workgroups, and whether only a single thread faults.
fn fault_programs() -> Vec<(Program, bool)> {
    let fault = |name: &str, single: bool, build: &dyn Fn(&mut Builder)| {
        let mut b = Builder::new(name, [48, 1, 1]);
        build(&mut b);
        (b.finish().unwrap(), single)
    };
    vec![
        fault("load", true, &|b| {
            let x = b.buffer("x", Type::F32, Access::ReadWrite);
            let i = b.global_x();
            let v = b.load(x, i);
            b.store(x, 0u32, v);
        }),
        fault("masked", true, &|b| {
            let x = b.buffer("x", Type::F32, Access::ReadWrite);
            let i = b.global_x();
            let late = b.gt(i, 94u32);
            b.if_(late, |b| {
                let far = b.mul(i, 2u32);
                b.store(x, far, 1.0f32);
            });
        }),
        fault("uniform", false, &|b| {
            let x = b.buffer("x", Type::F32, Access::Read);
            let y = b.buffer("y", Type::F32, Access::ReadWrite);
            let i = b.global_x();
            let late = b.ge(i, 5u32);
            b.if_(late, |b| {
                let v = b.load(x, 4000u32);
                b.store(y, i, v);
            });
        }),
        fault("divide", true, &|b| {
            let x = b.buffer("x", Type::U32, Access::ReadWrite);
            let i = b.global_x();
            let i = b.min(i, 94u32);
            let d = b.xor(i, 33u32);
            let v = b.div(i, d);
            b.store(x, i, v);
        }),
        fault("remainder", false, &|b| {
            let x = b.buffer("x", Type::U32, Access::ReadWrite);
            let g = b.builtin(Opcode::GroupX);
            let v = b.rem(7u32, g);
            b.store(x, g, v);
        }),
        fault("step", true, &|b| {
            let x = b.buffer("x", Type::U32, Access::ReadWrite);
            let i = b.global_x();
            let i = b.min(i, 94u32);
            let step = b.xor(i, 9u32);
            b.for_(0u32, 3u32, step, |b, k| b.store(x, i, k));
        }),
        fault("shared", false, &|b| {
            let x = b.buffer("x", Type::F32, Access::ReadWrite);
            let s = b.shared("tile", Type::F32, 47);
            let t = b.builtin(Opcode::ThreadX);
            b.store(s, t, 1.0f32);
            b.barrier();
            b.store(x, t, 1.0f32);
        }),
        // Threads 23, 55 and 87 fault.
        fault("four", false, &|b| {
            let x = b.buffer("x", Type::F32, Access::ReadWrite);
            let i = b.global_x();
            let i = b.and(i, 31u32);
            let first = b.shl(i, 2u32);
            let late = b.le(first, 92u32);
            b.if_(late, |b| {
                for k in 0..4u32 {
                    let at = b.add(first, k);
                    b.load(x, at);
                }
            });
        }),
    ]
}

/// A device reports the same fault as the interpreter; where several threads fault, it may name any of them.
pub fn check_faults(name: &str, device: &dyn Backend, first_thread: bool) {
    for (program, single) in fault_programs() {
        let buffers = vec![vec![0; FAULT_LEN * 4]; program.params.len()];
        let expected = run(&ReferenceBackend::new(), &program, &buffers, &[], FAULT_GRID).unwrap_err();
        let got = run(device, &program, &buffers, &[], FAULT_GRID).unwrap_err();
        let fault = |error: &BackendError| match error {
            BackendError::Program(error) => match &**error {
                IsaError::Run { line, message, .. } => (*line, message.clone()),
                other => panic!("{other}"),
            },
            other => panic!("{other}"),
        };
        assert_eq!(fault(&got), fault(&expected), "{name}\n{}", print(&program));
        if first_thread || single {
            assert_eq!(got.to_string(), expected.to_string(), "{name}\n{}", print(&program));
        }
        device.synchronize().unwrap();
    }
}

/// The bytes of floats.
pub fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The programs of `examples/` against `f64`.
pub fn check_examples(name: &str, device: &dyn Backend) {
    let vector_add = parse(include_str!("../../../../examples/vector_add.atlas")).unwrap();
    let softmax = parse(include_str!("../../../../examples/softmax.atlas")).unwrap();
    let (rows, columns) = (3usize, 777usize);
    let mut random = Random(7);
    let x: Vec<f32> = (0..rows * columns).map(|_| random.below(2000) as f32 / 250.0 - 4.0).collect();
    let y: Vec<f32> = x.iter().map(|v| v * 0.5 + 1.0).collect();
    let n = x.len();
    let buffers = [floats(&x), floats(&y), vec![0; n * 4]];
    let sum = run(device, &vector_add, &buffers, &[n as u64], [n.div_ceil(256) as u32, 1, 1]).unwrap();
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    assert!(sum[2] == floats(&expected), "{name}");

    let buffers = [floats(&x), vec![0; n * 4]];
    let got = run(device, &softmax, &buffers, &[columns as u64], [rows as u32, 1, 1]).unwrap();
    for (got, x) in got[1].chunks_exact(columns * 4).zip(x.chunks_exact(columns)) {
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = x.iter().map(|v| f64::from(v - max).exp()).sum();
        for (got, x) in got.chunks_exact(4).zip(x) {
            let got = f64::from(f32::from_le_bytes(got.try_into().unwrap()));
            let expected = f64::from(x - max).exp() / total;
            assert!((got - expected).abs() <= 2e-6 * expected, "{name}: {got} {expected}");
        }
    }
}

/// Words of a type at the limits of instructions; for the only operand of an instruction also a spread over all words.
fn words(ty: Type, only: bool) -> Vec<u64> {
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        3.7,
        -3.7,
        1e-30,
        1e30,
        65504.0,
        65520.0,
        8388607.5,
        16777216.0,
        2147483648.0,
        -2147483648.0,
        4294967296.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        1e-45,
        -1e-45,
        1.0 + f32::EPSILON,
        1.1754942e-38,
    ];
    let integers = [
        0,
        1,
        2,
        3,
        7,
        31,
        32,
        33,
        64,
        200,
        255,
        256,
        0x7fff_ffff,
        0x8000_0000,
        0x8000_0001,
        0xffff_ffff,
        0xffff_fffe,
        0x10001,
    ];
    let wide = [
        0,
        1,
        3,
        63,
        64,
        1 << 32,
        (1 << 32) - 1,
        1 << 53,
        (1 << 53) + 1,
        1 << 63,
        !0 >> 1,
        !0,
        !1,
        0x8000_0001,
        1 << 40 | 5,
    ];
    let near = |v: u64| (-2..=2).map(move |d: i64| v.wrapping_add_signed(d));
    let spread = (0..=u64::from(u32::MAX)).step_by(65519);
    let powers = (0..32).flat_map(|k| near(1 << k).chain(near((1u64 << k).wrapping_neg())));
    // Halfway cases of the shorter floats, with and without a bit beyond.
    let halves = (0..65536u64).step_by(37).flat_map(|h| near(h << 16 | 0x8000).chain(near(h << 16 | 0x1000)));
    let bits = floats.map(|v| u64::from(v.to_bits()));
    let word_of = |v: u64| read_element(ty, &v.to_le_bytes(), 0).unwrap();
    match ty {
        _ if ty.size() <= 1 || ty.size() == 2 && only => (0..1 << (8 * ty.size())).map(word_of).collect::<Vec<u64>>(),
        Type::F16 | Type::BF16 => bits.map(|v| convert(ty, Type::F32, v)).to_vec(),
        _ if !ty.is_wide() && only => spread.chain(powers).chain(halves).chain(bits).map(word_of).collect(),
        Type::I64 | Type::U64 | Type::F64 if only => {
            let spread = (0..=u64::MAX).step_by(0x0003_2345_6789_abcd);
            let powers = (0..64).flat_map(|k| near(1 << k).chain(near((1u64 << k).wrapping_neg())));
            let wholes = (0..65).flat_map(|k| near(2f64.powi(k).to_bits()).chain(near((-2f64.powi(k)).to_bits())));
            // Numbers of shorter floats, and halfway between them.
            let singles = halves.step_by(7).chain(bits).flat_map(|w| {
                let number = f64::from(f32::from_bits(w as u32)).to_bits();
                near(number).chain(near(number + (1 << 28)))
            });
            spread.chain(powers).chain(wholes).chain(singles).collect()
        }
        Type::F32 => bits.to_vec(),
        Type::F64 => {
            floats.map(|v| f64::from(v).to_bits()).into_iter().chain([1, 1 << 63 | 1, 1e300f64.to_bits()]).collect()
        }
        Type::I64 | Type::U64 => wide.to_vec(),
        _ => integers.map(word_of).to_vec(),
    }
}

/// Every lane-wise instruction on every combination of its operands' special words, against its meaning, on devices
/// that treat subnormal numbers alike. Threads share the instructions, of which each computes the meaning once.
pub fn check_instructions(devices: &[(&str, &dyn Backend)]) {
    let mut cases = Vec::new();
    for &op in Opcode::ALL {
        let signature = op.info().signature;
        for ty in op.info().types.iter().filter(|_| op.is_lane_wise()) {
            let any = signature.operands().contains(&OperandType::Any);
            let fits = |from: &Type| {
                if !any { *from == ty } else { signature != Signature::Bitcast || from.size() == ty.size() }
            };
            cases.extend(Type::ALL.into_iter().filter(fits).map(|from| (op, ty, from)));
        }
    }
    assert!(cases.len() > 400, "{} cases", cases.len());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((op, ty, from)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check_instruction(devices, *op, *ty, *from);
                }
            });
        }
    });
}

fn check_instruction(devices: &[(&str, &dyn Backend)], op: Opcode, ty: Type, from: Type) {
    let signature = op.info().signature;
    let types: Vec<Type> = signature.operands().iter().map(|o| o.resolve(ty).unwrap_or(from)).collect();
    let mut sets: Vec<Vec<u64>> = types.iter().map(|t| words(*t, types.len() == 1)).collect();
    if matches!(op, Opcode::Div | Opcode::Rem) && !ty.is_float() {
        // Division by zero is a fault.
        sets[1].retain(|w| *w != 0);
    }
    let n: usize = sets.iter().map(Vec::len).product();
    let result = signature.result(ty).unwrap();
    let subnormals = devices[0].1.info().subnormals;
    assert!(devices.iter().all(|(_, device)| device.info().subnormals == subnormals));
    let mut buffers: Vec<Vec<u8>> = types.iter().map(|t| Vec::with_capacity(n * t.size())).collect();
    let mut wanted = Vec::with_capacity(n);
    let mut args = vec![0; types.len()];
    let combination = |mut i: usize, args: &mut [u64]| {
        for (arg, set) in args.iter_mut().zip(&sets) {
            *arg = set[i % set.len()];
            i /= set.len();
        }
    };
    for i in 0..n {
        combination(i, &mut args);
        for ((buffer, word), ty) in buffers.iter_mut().zip(&args).zip(&types) {
            buffer.extend_from_slice(&word.to_le_bytes()[..ty.size()]);
        }
        let want = subnormals.eval(op, ty, from, &args).unwrap();
        wanted.push(canonical(result, &want.to_le_bytes()[..result.size()]));
    }
    let mut b = Builder::new("instruction", [128, 1, 1]);
    let inputs: Vec<Array> =
        types.iter().enumerate().map(|(i, t)| b.buffer(&format!("x{i}"), *t, Access::Read)).collect();
    let output = b.buffer("y", result, Access::Write);
    let i = b.global_x();
    let inside = b.lt(i, n as u32);
    b.if_(inside, |b| {
        let args: Vec<Value> = inputs.iter().map(|x| b.load(*x, i)).collect();
        let value = b.inst(op, ty, &args);
        b.store(output, i, value);
    });
    let program = b.finish().unwrap();
    buffers.push(vec![0; n * result.size()]);
    for (name, device) in devices.iter().filter(|(_, device)| !lacks(*device, &program)) {
        let got = run(*device, &program, &buffers, &[], [n.div_ceil(128) as u32, 1, 1]).unwrap();
        let got = got[types.len()].chunks_exact(result.size());
        assert_eq!(got.len(), n);
        for (i, (got, want)) in got.zip(&wanted).enumerate() {
            let got = canonical(result, got);
            if got != *want {
                combination(i, &mut args);
                panic!("{name}: {}.{ty} of {from} {args:x?}: {got:#x}, not {want:#x}", op.info().mnemonic);
            }
        }
    }
}

/// Every atomic operation against its meaning, in buffers and in shared memory: on separate elements per thread, and on
/// one counter for all threads, which returns each number once.
pub fn check_atomics(name: &str, device: &dyn Backend) {
    const N: usize = 128 * 3;
    let mut random = Random(5);
    for &op in Opcode::ALL.iter().filter(|op| op.info().signature.is_atomic()) {
        for ty in op.info().types.iter() {
            let operands = op.info().signature.operands().len() - 1;
            let mut columns: Vec<Vec<u64>> =
                (0..1 + operands).map(|_| (0..N).map(|_| random.word(ty)).collect()).collect();
            if ty == Type::F32 {
                // Subnormal numbers may count as 0.
                let number = |w: &mut u64| *w = u64::from((*w as u32 as i32 as f32).to_bits());
                columns.iter_mut().flatten().for_each(number);
            }
            // Half of the comparisons hold.
            for i in (0..N).step_by(2) {
                columns[1][i] = columns[0][i];
            }
            let mut b = Builder::new("atomics", [128, 1, 1]);
            let inputs: Vec<Array> = (0..=operands)
                .map(|i| b.buffer(&format!("x{i}"), ty, if i == 0 { Access::ReadWrite } else { Access::Read }))
                .collect();
            let outputs = ["old", "shared_old", "shared_new"].map(|name| b.buffer(name, ty, Access::Write));
            let tile = b.shared("tile", ty, 128);
            let (i, t) = (b.global_x(), b.builtin(Opcode::ThreadX));
            let first = b.load(inputs[0], i);
            b.store(tile, t, first);
            let args: Vec<Value> = inputs[1..].iter().map(|x| b.load(*x, i)).collect();
            for (array, at, out) in [(inputs[0], i, outputs[0]), (tile, t, outputs[1])] {
                let old = b.atomic(op, array, at, &args);
                b.store(out, i, old);
            }
            let new = b.load(tile, t);
            b.store(outputs[2], i, new);
            let program = b.finish().unwrap();
            if lacks(device, &program) {
                continue;
            }
            let bytes = |words: &Vec<u64>| words.iter().flat_map(|w| w.to_le_bytes()[..ty.size()].to_vec()).collect();
            let mut buffers: Vec<Vec<u8>> = columns.iter().map(bytes).collect();
            buffers.extend([(); 3].map(|()| vec![0; N * ty.size()]));
            let got = run(device, &program, &buffers, &[], [(N / 128) as u32, 1, 1]).unwrap();
            let word = |buffer: usize, i: usize| canonical(ty, &got[buffer][i * ty.size()..(i + 1) * ty.size()]);
            for i in 0..N {
                let old = columns[0][i];
                let args: Vec<u64> = columns[1..].iter().map(|c| c[i]).collect();
                let new = canonical(
                    ty,
                    &device.info().subnormals.update(op, ty, old, &args).unwrap().to_le_bytes()[..ty.size()],
                );
                let old = canonical(ty, &old.to_le_bytes()[..ty.size()]);
                let results = [(0, new), (1 + operands, old), (2 + operands, old), (3 + operands, new)];
                for (buffer, want) in results {
                    let what = format!(
                        "{name}: {}.{ty} of {:x?}, buffer {buffer}",
                        op.info().mnemonic,
                        (columns[0][i], &args)
                    );
                    assert_eq!(word(buffer, i), want, "{what}");
                }
            }
        }
    }
    let mut b = Builder::new("tickets", [96, 1, 1]);
    let counter = b.buffer("counter", Type::U32, Access::ReadWrite);
    let taken = b.buffer("taken", Type::U32, Access::ReadWrite);
    let ticket = b.atomic(Opcode::AtomicAdd, counter, 0u32, &[1u32.into()]);
    b.atomic(Opcode::AtomicAdd, taken, ticket, &[1u32.into()]);
    let n = 96 * 64;
    let got = run(device, &b.finish().unwrap(), &[vec![0; 4], vec![0; 4 * n]], &[], [64, 1, 1]).unwrap();
    assert_eq!(got[0], (n as u32).to_le_bytes());
    assert!(got[1].chunks_exact(4).all(|w| w == [1, 0, 0, 0]), "{name}");
}

/// Copies of four elements of every type, with addresses aligned to four elements and not.
pub fn check_fours(name: &str, device: &dyn Backend) {
    const N: usize = 256;
    for ty in Type::ALL {
        let mut b = Builder::new("fours", [32, 1, 1]);
        let (x, y) = (b.buffer("x", ty, Access::Read), b.buffer("y", ty, Access::Write));
        let i = b.global_x();
        let first = b.shl(i, 2u32);
        let at = [0, 1, 2, 3].map(|k: u32| b.add(first, k));
        let values = at.map(|i| b.load(x, i));
        for (i, value) in at.into_iter().zip(values) {
            b.store(y, i, value);
        }
        let program = b.finish().unwrap();
        let size = ty.size();
        if lacks(device, &program) {
            continue;
        }
        let mut random = Random(3);
        let bytes: Vec<u8> = (0..N + 8).flat_map(|_| random.word(ty).to_le_bytes()[..size].to_vec()).collect();
        for (from, to) in [(0, 0), (1, 0), (0, 3), (2, 2), (4, 8)] {
            let buffers = [(); 2].map(|()| device.allocate_buffer(bytes.len()).unwrap());
            device.copy_to_buffer(&buffers[0], 0, &bytes).unwrap();
            device.copy_to_buffer(&buffers[1], 0, &vec![0xee; bytes.len()]).unwrap();
            let range =
                |i: usize, at: usize| Binding::Buffer { buffer: buffers[i].clone(), range: at * size..(at + N) * size };
            let config = LaunchConfig { grid: [(N / 128) as u32, 1, 1] };
            device.execute_program(&program, &[range(0, from), range(1, to)], &config).unwrap();
            let mut got = vec![0; bytes.len()];
            device.copy_from_buffer(&buffers[1], 0, &mut got).unwrap();
            let mut want = vec![0xee; bytes.len()];
            want[to * size..(to + N) * size].copy_from_slice(&bytes[from * size..(from + N) * size]);
            assert!(got == want, "{name}: {ty} from element {from} to element {to}");
        }
    }
}

/// Products of tiles against sums of `i64` and `f64`: one product, two with the same right tile, a chain of them.
/// Floats: within the bound of the table where the device may add in its own order, else the interpreter's bits.
pub fn check_tiles(name: &str, device: &dyn Backend, own_order: bool) {
    const SUBGROUPS: usize = 96;
    let mut random = Random(11);
    for ty in [Type::I8, Type::F16, Type::BF16] {
        let per = 4 / ty.size();
        let mut b = Builder::new("tiles", [64, 1, 1]);
        let inputs = ["a", "a2", "b"].map(|name| b.buffer(name, Type::U32, Access::Read));
        let c = b.buffer("c", Type::U64, Access::Read);
        let outputs = ["one", "two", "three"].map(|name| b.buffer(name, Type::U64, Access::Write));
        let i = b.global_x();
        let [a, a2, right] = inputs.map(|x| b.load(x, i));
        let c = b.load(c, i);
        let one = b.tile_fma(ty, a, right, c);
        let two = b.tile_fma(ty, a2, right, c);
        let three = b.tile_fma(ty, a2, right, one);
        for (out, value) in outputs.into_iter().zip([one, two, three]) {
            b.store(out, i, value);
        }
        let program = b.finish().unwrap();
        let mut element = || match ty {
            Type::I8 => random.below(256) as u32,
            Type::F16 => u32::from(half::f16::from_f32(random.below(2001) as f32 / 500.0 - 2.0).to_bits()),
            _ => u32::from(half::bf16::from_f32(random.below(2001) as f32 / 500.0 - 2.0).to_bits()),
        };
        let lanes = 32 * SUBGROUPS;
        let mut words = || -> Vec<u32> {
            let word = |element: &mut dyn FnMut() -> u32| (0..per).fold(0, |w, i| w | element() << (8 * ty.size() * i));
            (0..lanes).map(|_| word(&mut element)).collect()
        };
        let matrices: [Vec<u32>; 3] = std::array::from_fn(|_| words());
        let sums: Vec<u32> = (0..2 * lanes)
            .map(|_| match ty {
                Type::I8 => random.below(1 << 32) as u32,
                _ => (random.below(2001) as f32 / 100.0 - 10.0).to_bits(),
            })
            .collect();
        let bytes = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let mut buffers: Vec<Vec<u8>> = matrices.iter().map(|m| bytes(m)).collect();
        buffers.push(bytes(&sums));
        buffers.extend([(); 3].map(|()| vec![0; 8 * lanes]));
        let grid = [(lanes / 64) as u32, 1, 1];
        let got = run(device, &program, &buffers, &[], grid).unwrap();
        if ty == Type::I8 || !own_order {
            let interpreter = hologram_backends::open("reference", None).unwrap();
            assert!(got == run(&*interpreter, &program, &buffers, &[], grid).unwrap(), "{name}: {ty}");
        }
        // Element `k` of a line (a row of a left matrix, a column of a right one) of a subgroup.
        let value = |matrix: &[u32], subgroup: usize, line: usize, k: usize| {
            let bits = matrix[32 * subgroup + 4 * line + k / per] >> (8 * ty.size() * (k % per));
            match ty {
                Type::I8 => f64::from(bits as u8 as i8),
                Type::F16 => half::f16::from_bits(bits as u16).to_f64(),
                _ => half::bf16::from_bits(bits as u16).to_f64(),
            }
        };
        for lane in 0..lanes {
            let (subgroup, row) = (lane / 32, lane % 32 / 4);
            for (half, column) in [0, 1].map(|j| (2 * lane + j, lane % 4 * 2 + j)) {
                let number =
                    |word: u32| if ty == Type::I8 { f64::from(word as i32) } else { f64::from(f32::from_bits(word)) };
                let terms = |m: usize| {
                    (0..4 * per)
                        .map(move |k| (m, k))
                        .map(|(m, k)| value(&matrices[m], subgroup, row, k) * value(&matrices[2], subgroup, column, k))
                };
                let start = number(sums[half]);
                let size = |m: usize| terms(m).map(f64::abs).sum::<f64>();
                let sum = |m: usize| terms(m).sum::<f64>();
                let wants = [
                    (start + sum(0), start.abs() + size(0)),
                    (start + sum(1), start.abs() + size(1)),
                    (start + sum(0) + sum(1), 2.0 * (start.abs() + size(0) + size(1))),
                ];
                for (out, (want, size)) in got[4..].iter().zip(wants) {
                    let word = u32::from_le_bytes(out[4 * half..][..4].try_into().unwrap());
                    let right = match ty {
                        Type::I8 => word == want as i64 as u32,
                        _ => (f64::from(f32::from_bits(word)) - want).abs() <= size * 2f64.powi(-19),
                    };
                    assert!(right, "{name}: {ty}, lane {lane}: {}, not {want}", number(word));
                }
            }
        }
    }
}
