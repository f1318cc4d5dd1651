//! The reference interpreter: control flow, barriers and shared memory, subgroups, and every error that it detects.

use hologram_isa::interp::{Binding, Bytes, interpret, interpret_in};
use hologram_isa::meaning::Subnormals;
use hologram_isa::{Access, Builder, IsaError, Opcode, ParamKind, Program, Type, parse, verify};

/// Runs a text without verifying it, on buffers of 32-bit elements that are bound to the parameters in order.
fn run(text: &str, grid: [u32; 3], buffers: &mut [Vec<u32>]) -> Result<(), IsaError> {
    let program = parse(text).unwrap_or_else(|e| panic!("{e} in\n{text}"));
    let mut memories: Vec<Vec<u8>> = buffers.iter().map(|b| b.iter().flat_map(|w| w.to_le_bytes()).collect()).collect();
    let bindings: Vec<_> =
        memories.iter().enumerate().map(|(memory, m)| Binding::Buffer { memory, offset: 0, len: m.len() }).collect();
    let mut views: Vec<&mut [u8]> = memories.iter_mut().map(Vec::as_mut_slice).collect();
    let result = interpret(&program, grid, &mut views, &bindings);
    for (buffer, memory) in buffers.iter_mut().zip(&memories) {
        *buffer = memory.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    }
    result
}

/// The content of the only buffer of a verified program that writes `len` words.
fn output(text: &str, grid: [u32; 3], len: usize) -> Vec<u32> {
    let program = parse(text).unwrap_or_else(|e| panic!("{e} in\n{text}"));
    verify(&program).unwrap_or_else(|e| panic!("{e} in\n{text}"));
    let mut buffers = [vec![0xdead_beef; len]];
    run(text, grid, &mut buffers).unwrap_or_else(|e| panic!("{e} in\n{text}"));
    let [out] = buffers;
    out
}

#[test]
fn threads_leave_nested_loops_each_in_its_own_round() {
    let text = "kernel nested(out: buffer<u32, write>) workgroup(40) {
        %t = thread.x
        %acc = mov.u32 0
        for @outer %i: u32 = 0 to %t step 3 {
            %r = mov.u32 0
            loop max 6 {
                %r = add.u32 %r, 1
                %acc = add.u32 %acc, 1
                %p = gt.u32 %r, %i
                break if %p
                %m = and.u32 %r, 3
                %p = eq.u32 %m, 2
                continue if %p
                %acc = add.u32 %acc, 100
                %m = add.u32 %r, %t
                %m = rem.u32 %m, 11
                %p = eq.u32 %m, 0
                if %p {
                    %acc = add.u32 %acc, 7
                    continue @outer
                } else {
                    %p = gt.u32 %acc, 60000
                    break @outer if %p
                }
            }
            %acc = add.u32 %acc, 10000
        }
        store.u32 out[%t], %acc
    }";
    let thread = |t: u32| {
        let mut acc = 0;
        'outer: for i in (0..t).step_by(3) {
            for r in 1..=6 {
                acc += 1;
                if r > i {
                    break;
                }
                if r & 3 == 2 {
                    continue;
                }
                acc += 100;
                if (r + t).is_multiple_of(11) {
                    acc += 7;
                    continue 'outer;
                }
                if acc > 60000 {
                    break 'outer;
                }
            }
            acc += 10000;
        }
        acc
    };
    let expected: Vec<u32> = (0..40).map(thread).collect();
    assert!(expected.iter().any(|v| *v > 60000), "some thread must leave both loops");
    assert_eq!(output(text, [1, 1, 1], 40), expected);
}

#[test]
fn counters_end_rather_than_wrap() {
    let text = "kernel counts(out: buffer<u32, write>) workgroup(1) {
        %n = mov.u32 0
        for %i: u32 = 4294967290 to 4294967295 step 3 { %n = add.u32 %n, 1 }
        for %j: i32 = 2147483640 to 2147483647 step 5 { %n = add.u32 %n, 16 }
        for %j: i32 = -5 to 5 step 4 { %n = add.u32 %n, 256 }
        for %i: u32 = 5 to 5 step 1 { %n = add.u32 %n, 4096 }
        loop max 3 { %n = add.u32 %n, 65536 }
        store.u32 out[0], %n
    }";
    assert_eq!(output(text, [1, 1, 1], 1), [2 + 2 * 16 + 3 * 256 + 3 * 65536]);
}

#[test]
fn shared_memory_and_barriers() {
    // Each workgroup reverses its 32 indices, then adds them up as a tree.
    let text = "kernel reverse(out: buffer<u32, write>) workgroup(4, 4, 2) shared(tile: u32[32], sums: u32[32]) {
        %x = thread.x
        %y = thread.y
        %z = thread.z
        %t = mul.u32 %z, 4
        %t = add.u32 %t, %y
        %t = mul.u32 %t, 4
        %t = add.u32 %t, %x
        %gx = group.x
        %gy = group.y
        %wide = grid.x
        %g = mul.u32 %gy, %wide
        %g = add.u32 %g, %gx
        %base = mul.u32 %g, 33
        %v = mul.u32 %g, 1000
        %v = add.u32 %v, %t
        store.u32 tile[%t], %v
        store.u32 sums[%t], %v
        barrier
        %from = sub.u32 31, %t
        %v = load.u32 tile[%from]
        %to = add.u32 %base, %t
        store.u32 out[%to], %v
        %half = mov.u32 16
        loop max 5 {
            %low = lt.u32 %t, %half
            if %low {
                %other = add.u32 %t, %half
                %a = load.u32 sums[%t]
                %b = load.u32 sums[%other]
                %a = add.u32 %a, %b
                store.u32 sums[%t], %a
            }
            barrier
            %half = shr.u32 %half, 1
        }
        %first = eq.u32 %t, 0
        if %first {
            %a = load.u32 sums[0]
            %to = add.u32 %base, 32
            store.u32 out[%to], %a
        }
    }";
    let mut expected = Vec::new();
    for group in 0..6 {
        let values = (0..32).map(|t| group * 1000 + t);
        expected.extend(values.clone().rev());
        expected.push(values.sum::<u32>());
    }
    assert_eq!(output(text, [3, 2, 1], 6 * 33), expected);
}

#[test]
fn subgroup_instructions_see_the_active_lanes() {
    // 40 threads: a whole subgroup and one of 8. Threads divisible by 3 are inactive.
    let text = "kernel subgroups(out: buffer<u32, write>) workgroup(40) {
        %t = thread.x
        %at = mul.u32 %t, 8
        %m = rem.u32 %t, 3
        %p = ne.u32 %m, 0
        if %p {
            %v = mul.u32 %t, %t
            %r = subgroup.add.u32 %v
            store.u32 out[%at], %r
            %at = add.u32 %at, 1
            %r = subgroup.min.u32 %v
            store.u32 out[%at], %r
            %at = add.u32 %at, 1
            %r = subgroup.max.u32 %v
            store.u32 out[%at], %r
            %at = add.u32 %at, 1
            %r = broadcast.u32 %v
            store.u32 out[%at], %r
            %at = add.u32 %at, 1
            %from = add.u32 %t, 33
            %r = shuffle.u32 %v, %from
            store.u32 out[%at], %r
            %at = add.u32 %at, 1
            %f = cvt.f32 %t
            %f = div.f32 1.0, %f
            %f = subgroup.add.f32 %f
            %r = bitcast.u32 %f
            store.u32 out[%at], %r
            %at = add.u32 %at, 1
            %f = subgroup.add.f32 -0.0
            %r = bitcast.u32 %f
            store.u32 out[%at], %r
            %at = add.u32 %at, 1
            %r = lane
            %s = subgroup
            %s = mul.u32 %s, 100
            %r = add.u32 %r, %s
            store.u32 out[%at], %r
        }
    }";
    let out = output(text, [1, 1, 1], 40 * 8);
    // The butterfly: after the exchange over `distance`, a lane holds the sum of two lanes of the previous step.
    fn butterfly(lane: u32, distance: u32, leaf: &dyn Fn(u32) -> f32) -> f32 {
        if distance == 32 {
            leaf(lane)
        } else {
            butterfly(lane, distance * 2, leaf) + butterfly(lane ^ distance, distance * 2, leaf)
        }
    }
    for t in 0..40u32 {
        let got = &out[t as usize * 8..][..8];
        if t.is_multiple_of(3) {
            assert_eq!(got, [0xdead_beef; 8], "thread {t}");
            continue;
        }
        let base = t / 32 * 32;
        let active = |l: u32| base + l < 40 && !(base + l).is_multiple_of(3);
        let squares: Vec<u32> = (0..32).filter(|l| active(*l)).map(|l| (base + l) * (base + l)).collect();
        let source = (t + 1) % 32;
        let sum = butterfly(t - base, 1, &|l| if active(l) { 1.0 / (base + l) as f32 } else { -0.0 });
        let expected = [
            squares.iter().sum(),
            squares[0],
            squares[squares.len() - 1],
            squares[0],
            if active(source) { (base + source) * (base + source) } else { t * t },
            sum.to_bits(),
            (-0.0f32).to_bits(),
            t - base + t / 32 * 100,
        ];
        assert_eq!(got, expected, "thread {t}");
    }
}

#[test]
fn atomic_operations_give_the_value_before() {
    let text = "kernel atomics(out: buffer<u32, readwrite>) workgroup(8) shared(tile: u32[2]) {
        %t = thread.x
        %p = lt.u32 %t, 2
        if %p {
            store.u32 tile[%t], 100
        }
        barrier
        %odd = and.u32 %t, 1
        %a = atomic.add.u32 tile[%odd], %t
        barrier
        %b = atomic.cas.u32 tile[0], 112, %t
        %c = atomic.exchange.u32 tile[1], %t
        store.u32 out[%t], %a
        %i = add.u32 %t, 8
        store.u32 out[%i], %b
        %i = add.u32 %t, 16
        store.u32 out[%i], %c
        %d = atomic.xor.u32 out[24], 3
        %d = atomic.min.u32 out[25], %t
    }";
    let expected = [
        [100, 100, 100, 101, 102, 104, 106, 109],
        [112, 0, 0, 0, 0, 0, 0, 0],
        [116, 0, 1, 2, 3, 4, 5, 6],
        [0xdead_beef, 0, 0xdead_beef, 0xdead_beef, 0xdead_beef, 0xdead_beef, 0xdead_beef, 0xdead_beef],
    ];
    assert_eq!(output(text, [1, 1, 1], 32), expected.concat());
}

#[test]
fn one_memory_as_two_views() {
    // A block like those of quantized weights: a scale in f16, then four codes.
    let text = "kernel block(codes: buffer<i8>, scales: buffer<f16>, out: buffer<f32, write>) workgroup(4) {
        %t = thread.x
        %h = load.f16 scales[0]
        %s = cvt.f32 %h
        %at = add.u32 %t, 2
        %b = load.i8 codes[%at]
        %c = cvt.f32 %b
        %v = mul.f32 %s, %c
        store.f32 out[%t], %v
    }";
    let program = parse(text).unwrap();
    let mut block = [0xff, 0x00, 0x38, 0x01, 0xff, 0x7f, 0x80]; // A byte before it, 0.5, then 1, -1, 127, -128.
    let mut out = [0; 16];
    let view = Binding::Buffer { memory: 0, offset: 0, len: 6 };
    let bindings = [view, view, Binding::Buffer { memory: 1, offset: 0, len: 16 }];
    interpret(&program, [1, 1, 1], &mut [&mut block[1..], &mut out], &bindings).unwrap();
    let values: Vec<f32> = out.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert_eq!(values, [0.5, -0.5, 63.5, -64.0]);
}

#[test]
#[rustfmt::skip] // A table.
fn faults_name_line_workgroup_and_thread() {
    /// Body (its first line is line 2), then line, x of the workgroup, thread, and the message.
    type Case = (&'static str, u32, u32, u32, &'static str);
    let cases: &[Case] = &[
        (
            "%g = global.x\n%v = load.u32 data[%g]\nstore.u32 data[%g], %v",
            3, 1, 3, "element 11 of buffer data is outside: it has 11 elements",
        ),
        ("%g = global.x\nstore.u32 data[%g], 1", 3, 1, 3, "element 11 of buffer data is outside"),
        ("%i = thread.x\n%i = sub.u32 %i, 1\nstore.u32 data[%i], 1", 4, 0, 0, "element -1 (4294967295) of buffer data is outside"),
        ("%t = thread.x\n%t = add.u32 %t, 2\nstore.u32 tile[%t], 1", 4, 0, 6, "element 8 of shared array tile is outside"),
        ("%t = thread.x\n%d = sub.u32 5, %t\n%q = div.u32 1, %d", 4, 0, 5, "div by zero"),
        ("%t = thread.x\n%i = bitcast.i32 %t\n%q = rem.i32 1, %i", 4, 0, 0, "rem by zero"),
        ("%t = thread.x\n%p = lt.u32 %t, 6\nif %p {\nbarrier\n}", 5, 0, 6, "does not reach a barrier"),
        ("%t = thread.x\nfor %i: u32 = 0 to %t step 1 {\nbarrier\n}", 4, 0, 0, "does not reach a barrier"),
        (
            "%t = thread.x\nloop max 9 {\n%p = eq.u32 %t, 2\nbreak if %p\nbarrier\n}",
            6, 0, 2, "does not reach a barrier",
        ),
        ("%t = thread.x\nfor %i: u32 = 0 to 4 step %t {\n}", 3, 0, 0, "step of a for loop is 0"),
        ("%v = load.u32 tile[3]", 2, 0, 0, "element 3 of shared array tile is read before anything was stored there"),
        (
            "%t = thread.x\nstore.u32 tile[%t], 1\n%n = xor.u32 %t, 1\n%v = load.u32 tile[%n]",
            5, 0, 0, "element 1 of shared array tile is read without a barrier after thread 1 stored it",
        ),
        (
            "%t = thread.x\nstore.u32 tile[%t], 1\nbarrier\n%n = xor.u32 %t, 1\n%v = load.u32 tile[%n]\nstore.u32 tile[%t], 2",
            7, 0, 0, "is stored without a barrier after thread 1 read it",
        ),
        (
            "%t = thread.x\nstore.u32 tile[0], 1\nbarrier\n%v = load.u32 tile[0]\nstore.u32 tile[0], 2",
            6, 0, 0, "is stored without a barrier after other threads read it",
        ),
        ("%a = atomic.add.u32 tile[3], 1", 2, 0, 0, "element 3 of shared array tile is updated before anything was stored there"),
        (
            "%t = thread.x\nstore.u32 tile[%t], 1\n%n = xor.u32 %t, 1\n%v = atomic.add.u32 tile[%n], 1",
            5, 0, 0, "element 1 of shared array tile is updated without a barrier after thread 1 stored it",
        ),
        (
            "%t = thread.x\nstore.u32 tile[%t], 1\nbarrier\n%a = atomic.max.u32 tile[0], 7\n%v = load.u32 tile[0]",
            6, 0, 0, "element 0 of shared array tile is read without a barrier after other threads updated it",
        ),
        (
            "%t = thread.x\nstore.u32 tile[%t], 1\nbarrier\n%v = load.u32 tile[%t]\n%n = xor.u32 %t, 1\n%a = atomic.max.u32 tile[%n], 7",
            7, 0, 0, "element 1 of shared array tile is updated without a barrier after thread 1 read it",
        ),
        ("%g = global.x\n%a = atomic.add.u32 data[%g], 1", 3, 1, 3, "element 11 of buffer data is outside: it has 11 elements"),
        ("%t = thread.x\nstore.u32 tile[0], %t", 3, 0, 1, "is stored by several threads with different values"),
    ];
    for (body, line, x, thread, message) in cases {
        let text = format!("kernel k(data: buffer<u32, readwrite>) workgroup(8) shared(tile: u32[8]) {{\n{body}\n}}");
        match run(&text, [2, 1, 1], &mut [vec![0; 11]]) {
            Err(IsaError::Run { program, line: l, group, thread: t, message: m }) => {
                assert_eq!((program.as_str(), l, group, t), ("k", *line, [*x, 0, 0], *thread), "{m} in\n{text}");
                assert!(m.contains(message), "{m:?} does not say {message:?} in\n{text}");
            }
            other => panic!("{other:?} in\n{text}"),
        }
    }
}

#[test]
fn the_softmax_example() {
    const COLUMNS: usize = 301;
    let program = parse(include_str!("../../../examples/softmax.atlas")).unwrap();
    let x: Vec<f32> = (0..2 * COLUMNS).map(|i| (i * 7919 % 1013) as f32 / 50.0 - 10.0).collect();
    let mut input: Vec<u8> = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut out = vec![0; input.len()];
    let buffer = |memory| Binding::Buffer { memory, offset: 0, len: 8 * COLUMNS };
    let bindings = [buffer(0), buffer(1), Binding::Scalar(COLUMNS as u64)];
    interpret(&program, [2, 1, 1], &mut [&mut input, &mut out], &bindings).unwrap();
    for (row, got) in x.chunks(COLUMNS).zip(out.chunks(4 * COLUMNS)) {
        let sum: f64 = row.iter().map(|v| (*v as f64).exp()).sum();
        for (v, bytes) in row.iter().zip(got.chunks(4)) {
            let (want, got) = ((*v as f64).exp() / sum, f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            // Rounding x − max, which is at most 20.3, to f32 gives a relative error of 2^-20.
            assert!((got as f64 - want).abs() <= 2e-6 * want, "softmax of {v}: {got:e}, not {want:e}");
        }
    }
}

#[test]
fn stores_of_one_value_by_several_threads_are_no_race() {
    let text = "kernel k(out: buffer<u32, write>) workgroup(8) shared(tile: u32[1]) {
        store.u32 tile[0], 7
        barrier
        %v = load.u32 tile[0]
        %t = thread.x
        store.u32 out[%t], %v
    }";
    assert_eq!(output(text, [1, 1, 1], 8), [7; 8]);
}

#[test]
fn a_built_program_has_the_lines_of_its_text() {
    let mut b = Builder::new("built", [4, 1, 1]);
    let out = b.buffer("out", Type::U32, Access::Write);
    let t = b.builtin(Opcode::ThreadX);
    b.if_(true, |b| b.store(out, t, 1u32));
    let program = b.finish().unwrap();
    let mut memory = [0; 8];
    let binding = Binding::Buffer { memory: 0, offset: 0, len: 8 };
    let error = interpret(&program, [1, 1, 1], &mut [&mut memory], &[binding]).unwrap_err();
    let line = program.to_string().lines().position(|l| l.contains("store")).unwrap() + 1;
    let expected = format!("program built, line {line}, workgroup [0, 0, 0], thread 2: ");
    assert!(error.to_string().starts_with(&expected), "{error} is not {expected}");
}

/// Read-only memory can be bound to parameters that are read, and is never written, whatever an unchecked program says
/// of its parameters.
#[test]
fn memory_for_reading_is_not_written() {
    let text = "kernel k(x: buffer<u32>, y: buffer<u32, readwrite>) workgroup(1) {
        %v = load.u32 x[0]
        store.u32 y[0], %v
    }";
    let program = parse(text).unwrap();
    let whole = |memory| Binding::Buffer { memory, offset: 0, len: 4 };
    let run = |program: &Program, memories: &mut [Bytes<'_>]| {
        interpret_in(program, [1, 1, 1], memories, &[whole(0), whole(1)], Subnormals::Kept).map_err(|e| e.to_string())
    };
    let (x, mut y) = ([1, 2, 3, 4], [0; 4]);
    run(&program, &mut [Bytes::Read(&x), Bytes::Write(&mut y)]).unwrap();
    assert_eq!(y, x);
    let error = run(&program, &mut [Bytes::Read(&x), Bytes::Read(&x)]).unwrap_err();
    assert!(error.contains("parameter y: it is writable, but memory 1 is read-only"), "{error}");
    let mut wrong = program.clone();
    for param in &mut wrong.params {
        param.kind = ParamKind::Buffer { element: Type::U32, access: Access::Read };
    }
    let error = run(&wrong, &mut [Bytes::Read(&x), Bytes::Read(&x)]).unwrap_err();
    assert!(error.contains("is read-only"), "{error}");
}

#[test]
fn launches_that_do_not_fit() {
    let program = parse("kernel k(x: buffer<f32>, p: bool) workgroup(1) {\n}").unwrap();
    let x = |memory, offset, len| Binding::Buffer { memory, offset, len };
    let p = Binding::Scalar(1);
    let cases: &[(&[Binding], &str)] = &[
        (&[x(0, 0, 16)], "it takes 2 arguments (x, p), 1 are bound"),
        (&[p, p], "parameter x: it is a buffer, a scalar is bound"),
        (&[x(0, 0, 16), x(0, 0, 16)], "parameter p: it is a scalar bool, a buffer is bound"),
        (&[x(0, 0, 16), Binding::Scalar(2)], "parameter p: 0x2 is not the register word of a bool"),
        (&[x(1, 0, 16), p], "parameter x: memory 1 is bound, but there are only 1"),
        (&[x(0, 2, 8), p], "parameter x: 8 bytes from byte 2 are not whole, aligned elements of f32"),
        (&[x(0, 0, 7), p], "parameter x: 7 bytes from byte 0 are not whole"),
        (&[x(0, 8, 12), p], "parameter x: 12 bytes from byte 8 do not fit in 16 bytes"),
        (&[x(0, usize::MAX - 3, 8), p], "do not fit"),
    ];
    for (bindings, message) in cases {
        let error = interpret(&program, [1, 1, 1], &mut [&mut [0; 16]], bindings).unwrap_err().to_string();
        assert!(error.starts_with("program k: ") && error.contains(message), "{error:?} does not say {message:?}");
    }
    interpret(&program, [1, 1, 1], &mut [&mut [0; 16]], &[x(0, 4, 12), p]).unwrap();
    for workgroup in [[0, 1, 1], [u32::MAX; 3], [1025, 1, 1]] {
        let wrong = Program { workgroup, ..program.clone() };
        let error = interpret(&wrong, [1, 1, 1], &mut [&mut [0; 16]], &[x(0, 4, 12), p]).unwrap_err();
        assert!(matches!(error, IsaError::Launch { .. }), "{error}");
    }
}
