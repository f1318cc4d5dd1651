//! The commands for Atlas programs: their output, and error messages that name the faulty program or argument.

use std::fs;

use crate::common::*;

#[test]
fn exec_computes_the_same_bits_on_every_device() {
    let folder = Folder::new("exec");
    let n = 1000;
    let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.37 - 100.0).collect();
    let y: Vec<f32> = (0..n).map(|i| (i * i) as f32 * 1e-3).collect();
    let (x_file, y_file) = (folder.write("x.npy", f32_npy(&x)), folder.write("y.npy", f32_npy(&y)));
    let (arg_x, arg_y) = (format!("x=@{x_file}"), format!("y=@{y_file}"));
    let softmax = VECTOR_ADD.replace("vector_add", "softmax");
    let mut results = Vec::new();
    for device in ["cpu", "reference"] {
        let sum = folder.path(&format!("{device}-sum.npy"));
        let add = ["exec", VECTOR_ADD, "--grid", "4", "--arg", &arg_x, "--arg", &arg_y, "--arg", "n=1000"];
        let out = ["--arg", "out=out:f32[1000]", "--out", &sum, "--device", device];
        assert_eq!(ok(&[&add[..], &out].concat()), "");
        assert!(read_npy(&sum).0.contains("'shape': (1000,)"));
        assert_eq!(read_f32(&sum), x.iter().zip(&y).map(|(x, y)| x + y).collect::<Vec<_>>(), "{device}");
        let soft = folder.path(&format!("{device}-softmax.npy"));
        let out = format!("out={soft}");
        let args = ["--arg", &arg_x, "--arg", "columns=250", "--arg", "out=out:f32[4,250]", "--out", &out];
        ok(&[&["exec", &softmax, "--grid", "4", "--device", device], &args[..]].concat());
        let rows = read_f32(&soft);
        for row in rows.chunks(250) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{device}");
        }
        results.push(rows.into_iter().map(f32::to_bits).collect::<Vec<_>>());
        // Without --out the first elements are printed.
        let shown = ok(&[&add[..], &["--arg", "out=out:f32[1000]", "--device", device]].concat());
        assert!(shown.starts_with("out = [-100, ") && shown.ends_with(", … (1000 elements)]\n"), "{shown}");
    }
    assert_eq!(results[0], results[1]);
}

#[test]
fn exec_rejects_arguments_that_do_not_fit() {
    let folder = Folder::new("exec-arguments");
    let ints = folder.write("ints.npy", npy("<i4", "(2,)", [[0; 4]; 2]));
    let short = folder.write("short.npy", &f32_npy(&[1.0, 2.0])[..130]);
    let cases = [
        (format!("x=@{ints}"), vec![ints.as_str(), "type i32", "has f32"]),
        (format!("x=@{short}"), vec![&short, "requires 8 bytes"]),
        (format!("x=@{}", folder.path("none.npy")), vec!["none.npy", "cannot read"]),
        (format!("x=@{VECTOR_ADD}"), vec![".npy file"]),
    ];
    for (arg, message) in &cases {
        rejected(&["exec", VECTOR_ADD, "--grid", "1", "--arg", arg], 1, message);
    }
}

/// A run-time fault of a program names its line, on every device.
#[test]
fn programs_that_reach_outside_are_stopped() {
    let folder = Folder::new("outside");
    // Line 6 of the example loads x[i], and x has 300 elements.
    let args = ["--arg", "x=out:f32[300]", "--arg", "y=out:f32[512]", "--arg", "out=out:f32[512]", "--arg", "n=512"];
    let store = folder.write(
        "store.atlas",
        "kernel store(out: buffer<u32, write>) workgroup(8) {\n  %i = global.x\n\n  store.u32 out[%i], 1\n}\n",
    );
    for device in ["cpu", "reference"] {
        rejected(
            &[&["exec", VECTOR_ADD, "--grid", "2", "--device", device], &args[..]].concat(),
            1,
            &[VECTOR_ADD, "line 6", "300"],
        );
        let args = ["exec", &store, "--grid", "1", "--arg", "out=out:u32[5]", "--device", device];
        rejected(&args, 1, &[&store, "line 4", "5"]);
    }
}

/// Programs from a pipe, with and without a byte-order mark, in text and binary form.
#[test]
fn programs_come_from_standard_input() {
    let folder = Folder::new("input");
    let program = "kernel one(out: buffer<u32, write>) workgroup(1) {\n  store.u32 out[0], 7\n}\n";
    let marked = folder.write("marked.atlas", format!("\u{feff}{program}"));
    let binary = folder.path("one.atlasb");
    ok(&["asm", &marked, "-o", &binary]);
    for input in [program.as_bytes(), &fs::read(&marked).unwrap(), &fs::read(&binary).unwrap()] {
        for file in if cfg!(target_os = "linux") { &["-", "/dev/stdin"][..] } else { &["-"] } {
            let output = with_input(&["exec", file, "--grid", "1", "--arg", "out=out:u32[1]"], input);
            assert_eq!(text(&output.stdout), "out = [7]\n", "{}", text(&output.stderr));
        }
    }
    check_rejection(&"asm -", &with_input(&["asm", "-"], program.as_bytes()), 2, &["-o"]);
    let faulty = program.replace("out[0]", "out[4294967295]");
    let output = with_input(&["exec", "-", "--grid", "1", "--arg", "out=out:u32[1]"], faulty.as_bytes());
    check_rejection(&faulty, &output, 1, &["element -1 (4294967295) of buffer out is outside: it has 1 element"]);
}

#[test]
fn check_names_file_and_line() {
    let folder = Folder::new("check");
    let softmax = VECTOR_ADD.replace("vector_add", "softmax");
    let lines = ok(&["check", VECTOR_ADD, &softmax]);
    assert_eq!(lines, format!("{VECTOR_ADD}: vector_add is valid\n{softmax}: softmax is valid\n"));
    let cases = [
        ("type.atlas", "kernel a(n: u32) workgroup(1) {\n  %x = add.f32 n, 1.0\n}\n", "line 2", "f32"),
        ("word.atlas", "kernel a(n: u32) workgroup(1) {\n\n  %x = ad.u32 n, 1\n}\n", "line 3", "ad.u32"),
        (
            "barrier.atlas",
            "kernel a() workgroup(64) {\n  %t = thread.x\n  %c = lt.u32 %t, 7\n  if %c {\n    barrier\n  }\n}\n",
            "line 5",
            "barrier",
        ),
        ("end.atlas", "kernel a() workgroup(64) {\n", "line", ""),
        ("empty.atlas", "", "line", ""),
        ("noise.atlas", "\u{1}\u{fffd}kernel\0", "line", ""),
    ];
    for (name, program, line, what) in cases {
        let file = folder.write(name, program);
        for args in [&["check", &file][..], &["exec", &file, "--grid", "1"]] {
            let output = command(args).output().unwrap();
            let message = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
            for s in [&file, line, what] {
                assert!(message.contains(s), "{args:?}: {message:?} does not contain {s:?}");
            }
            assert!(!message.contains("panicked"), "{message}");
        }
    }
    // A bad file does not hide the results of the others.
    let output = command(&["check", &folder.path("type.atlas"), VECTOR_ADD]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), format!("{VECTOR_ADD}: vector_add is valid\n")));
    let binary = folder.write("binary.atlas", b"\xff\xfe\x00");
    let output = command(&["check", &binary]).output().unwrap();
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("binary.atlas"));
}

#[test]
fn wrong_calls_are_usage_errors() {
    let cases: &[(&[&str], &str)] = &[
        (&["check"], "FILES"),
        (&["exec", VECTOR_ADD], "--grid"),
        (&["exec", VECTOR_ADD, "--grid", "0"], "--grid is 0"),
        (&["exec", VECTOR_ADD, "--grid", "-1"], "--grid is -1"),
        (&["exec", VECTOR_ADD, "--grid", ""], "--grid is \"\", but"),
        (&["exec", VECTOR_ADD, "--grid", "1", "--arg", ""], "--arg \"\": expected NAME=VALUE"),
        (&["exec", VECTOR_ADD, "--grid", "1", "--arg", "=3"], "--arg =3: expected NAME=VALUE"),
        (&["exec", VECTOR_ADD, "--grid", "1", "--out", ""], "--out \"\": the file name"),
        (&["exec", VECTOR_ADD, "--grid", "1", "--out", "-"], "--out -: cannot write .npy to standard output"),
        (&["exec", VECTOR_ADD, "--grid", "65536,65536"], "workgroups in total"),
        (&["exec", VECTOR_ADD, "--grid", "1,2,3,4"], "at most three"),
        (&["exec", VECTOR_ADD, "--grid", "1", "--arg", "n"], "NAME=VALUE"),
        (&["exec", VECTOR_ADD, "--grid", "1", "--arg", "n=1", "--arg", "n=2"], "twice"),
        (&["exec", VECTOR_ADD, "--grid", "1", "--arg", "z=1"], "no such parameter"),
        (&["exec", VECTOR_ADD, "--grid", "1", "--arg", "n=1"], "--arg x=… is missing"),
        (&["exec", VECTOR_ADD, "--grid", "1", "--arg", "x=1"], "give it as @FILE.npy or out:f32"),
        (&["exec", VECTOR_ADD, "--grid", "1", "--arg", "x=out:u32[4]"], "has f32"),
        (&["exec", VECTOR_ADD, "--grid", "1", "--arg", "x=out:f32[-4]"], "whole number"),
    ];
    for (args, message) in cases {
        rejected(args, 2, &[message]);
    }
}

/// Common mistakes, and what the answer must name.
#[test]
fn wrong_arguments_are_reported_with_the_expected_ones() {
    let exec = |more: &[&'static str]| [&["exec", VECTOR_ADD, "--grid", "1"], more].concat();
    let many: &'static str = format!("x=out:f32[{}1]", "1,".repeat(64)).leak();
    let given = |name, value| -> Vec<&'static str> {
        let all = ["x=out:f32[4]", "y=out:f32[4]", "out=out:f32[4]", "n=4"];
        let others = all.into_iter().filter(|a| !a.starts_with(name));
        exec(&others.chain([value]).flat_map(|a| ["--arg", a]).collect::<Vec<_>>())
    };
    let cases: [(Vec<&str>, &[&str]); 18] = [
        (vec!["exec"], &["<FILE>"]),
        (vec!["exec", VECTOR_ADD], &["--grid is missing", "of 256 threads"]),
        (exec(&[]), &["--arg x=… is missing", "a buffer of f32, as @FILE.npy or out:f32[LENGTH]", "--help"]),
        (exec(&["--arg", "N=4"]), &["--arg N: program vector_add has no such parameter", "x: buffer of f32", "n: u32"]),
        (given("n=", "n=@n.npy"), &["--arg n=@n.npy: n is a scalar of type u32, not a buffer"]),
        (given("n=", "n=4.5"), &["--arg n=4.5: expected a whole number of type u32, found `4.5`"]),
        (given("n=", "n=-1"), &["--arg n=-1: `-1` does not fit u32"]),
        (given("n=", "n="), &["--arg n=: expected a whole number of type u32"]),
        (given("x=", "x=x.npy"), &["--arg x=x.npy: x is a buffer of f32", "@FILE.npy or out:f32[LENGTH]"]),
        (given("x=", "x=out:f16[4]"), &["the parameter has f32; write x=out:f32[4]"]),
        (given("x=", "x=out:f32[99999999999,99999999999]"), &["--arg x=", "the length is too large"]),
        (given("x=", "x=out:f32[99999999999999999999999]"), &["--arg x=", "the length is too large"]),
        (given("x=", many), &["--arg x", "at most 64 dimensions, not 65"]),
        (exec(&["--out", "z=z.npy"]), &["z is not a buffer that the program writes; choose from out"]),
        (exec(&["--out", "n=n.npy"]), &["n is not a buffer that the program writes; choose from out"]),
        (exec(&["--out", "a.npy", "--out", "out=b.npy"]), &["--out out=b.npy: out already has a file"]),
        (exec(&["--out", "a.json", "--profile", "a.json"]), &["--out a.json: another option already writes a.json"]),
        (exec(&["--threads", "-2"]), &["invalid value '-2' for '--threads <N>'"]),
    ];
    for (args, expected) in cases {
        rejected(&args, 2, expected);
    }
    let folder = Folder::new("no-output");
    let silent = folder.write("silent.atlas", "kernel silent() workgroup(1) {\n}\n");
    rejected(&["exec", &silent, "--grid", "1", "--out", "x.npy"], 2, &["program silent has no output buffers"]);
    rejected(&["exec", &silent, "--grid", "1", "--arg", "x=1"], 2, &["no such parameter; it has none"]);
    assert_eq!(ok(&["exec", &silent, "--grid", "1"]), "");
}

#[test]
fn help_shows_the_parameters_and_a_command_that_runs() {
    let folder = Folder::new("exec-help");
    let text = "\n// Scales.\n// In place.\nkernel scale(\n  x: buffer<f16, readwrite>,\n  by: f32,\n  on: bool,\n  w: buffer<i32>,\n) \
                workgroup(4, 2) shared(t: u8[7]) {\n}\n";
    let program = folder.write("a program.atlas", text);
    let shown = ok(&["exec", &program, "--help"]);
    let expected = "scale: workgroups of 8 threads (4 × 2 × 1)\nshared memory per workgroup: t: u8[7]\n\n  Scales.\n  In place.\n\n\
                    parameter  kind    type  access\nx          buffer  f16   read and write\nby         scalar  f32\n\
                    on         scalar  bool\nw          buffer  i32   read\n\nfor example, with files, sizes and numbers to be replaced by yours:\n\n  hologram exec '";
    assert!(shown.starts_with(expected), "{shown}");
    // Split as a shell would.
    let command_line = shown.split("by yours:\n\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let words = command_line.replace("\\\n", " ").replace(&format!("'{program}'"), "FILE").replace('\'', "");
    let words: Vec<String> = words.split_whitespace().skip(1).map(|w| w.replace("FILE", &program)).collect();
    folder.write("w.npy", npy("<i4", "(2,)", [[0; 4]; 2]));
    let run = command(&words.iter().map(String::as_str).collect::<Vec<_>>()).current_dir(&folder.0).output().unwrap();
    assert!(run.status.success(), "{}", crate::common::text(&run.stderr));
    assert_eq!(crate::common::text(&run.stdout), "x = [0, 0, 0, 0, 0, 0, 0, 0]\n");
    // The binary form has the same parameters; without a file the options are shown.
    ok(&["asm", &program]);
    let binary = ok(&["exec", "-h", &folder.path("a program.atlasb")]);
    assert!(binary.contains("x          buffer  f16   read and write") && !binary.contains("Scales"), "{binary}");
    let wide = folder.write(
        "wide.atlas",
        "kernel wide(x: buffer<u64, readwrite>, f: f64) workgroup(1) {\n  %a = atomic.add.u64 x[0], 1\n}\n",
    );
    let shown = ok(&["exec", &wide, "--help"]);
    assert!(
        shown.contains(")\nneeds a device that has f64\nneeds a device that has 64-bit atomic operations\n\nparameter"),
        "{shown}"
    );
    let options = ok(&["exec", "--help"]);
    assert!(options.contains("Usage: hologram exec") && options.contains("--grid <X[,Y[,Z]]>"), "{options}");
    rejected(&["exec", "none.atlas", "--help"], 1, &["none.atlas"]);
}

#[test]
fn binary_programs_do_what_their_text_does() {
    let folder = Folder::new("asm");
    let text = fs::read_to_string(VECTOR_ADD).unwrap();
    let program = hologram_isa::parse(&text).unwrap();
    // The content determines the form, not the name.
    let binary = folder.path("add.atlas");
    ok(&["asm", VECTOR_ADD, "-o", &binary]);
    assert_eq!(fs::read(&binary).unwrap(), hologram_isa::binary::encode(&program));
    assert_eq!(ok(&["disasm", &binary]), hologram_isa::print(&program));
    assert_eq!(ok(&["check", &binary]), format!("{binary}: vector_add is valid\n"));
    let run = |file: &str| {
        let args = ["--arg", "x=out:f32[9]", "--arg", "y=out:f32[9]", "--arg", "out=out:f32[9]", "--arg", "n=9"];
        ok(&[&["exec", file, "--grid", "1"], &args[..]].concat())
    };
    assert_eq!(run(&binary), run(VECTOR_ADD));
    // Faults name the line of the printed text.
    let short = ["exec", &binary, "--grid", "1", "--arg", "x=out:f32[3]", "--arg", "y=out:f32[9]"];
    let short = [&short[..], &["--arg", "out=out:f32[9]", "--arg", "n=9"]].concat();
    rejected(&short, 1, &[&binary, "line 5", "buffer x"]);
    rejected(&["asm", &binary], 1, &["already in binary form"]);
    let printed = command(&["asm", VECTOR_ADD, "-o", "-"]).output().unwrap().stdout;
    assert_eq!(printed, fs::read(&binary).unwrap());
    rejected(&["disasm", VECTOR_ADD], 1, &["not a binary program"]);
    let array = folder.write("array.npy", f32_npy(&[1.0]));
    for call in [&["disasm"][..], &["check"], &["exec", "--grid", "1"]] {
        rejected(&[call, &[&array]].concat(), 1, &[&array, "is neither a binary program nor text"]);
    }
    rejected(&["asm", VECTOR_ADD, "-o", VECTOR_ADD], 1, &["is also read; write to another name"]);
    rejected(&["asm", VECTOR_ADD, "-o", &folder.path("no/folder")], 1, &["cannot write"]);
    rejected(&["asm", "Cargo.toml"], 1, &["Cargo.toml: line 1: expected `kernel`"]);
}

/// Every command that accepts programs rejects damaged ones in one sentence.
#[test]
fn damaged_binary_programs_are_rejected() {
    let folder = Folder::new("damaged-binary");
    let good = hologram_isa::binary::encode(&hologram_isa::parse(&fs::read_to_string(VECTOR_ADD).unwrap()).unwrap());
    let with = |at: usize, byte: u8| {
        let mut file = good.clone();
        file[at] = byte;
        file
    };
    let invalid =
        hologram_isa::parse("kernel k() workgroup(64) {\n  barrier\n  %a = thread.x\n  loop max 0 {\n  }\n}").unwrap();
    let cases = [
        (with(40, 0xee), "byte 12: the program is damaged: its checksum is"),
        (with(1, b'a'), "byte 0: not a binary Atlas program"),
        (with(8, 2), "byte 8: unsupported version 2"),
        (good[..good.len() - 3].to_vec(), "byte 16: the header is followed by"),
        (good[..7].to_vec(), "byte 0: the file ends after 7 bytes"),
        (hologram_isa::binary::encode(&invalid), "program k, line 4: a loop must have at least 1 iteration"),
    ];
    for (i, (bytes, expected)) in cases.into_iter().enumerate() {
        let file = folder.write(&format!("{i}.atlasb"), bytes);
        for args in
            [&["exec", &file, "--grid", "1"][..], &["exec", &file, "--help"], &["check", &file], &["disasm", &file]]
        {
            rejected(args, 1, &[&file, expected]);
        }
    }
}

#[test]
fn check_warns_of_what_is_hardly_meant() {
    let folder = Folder::new("warnings");
    let odd = folder.write("odd.atlas", "kernel odd(n: u32) workgroup(1) {\n\n  %x = mul.f32 0.5, 0xFF\n}\n");
    let output = command(&["check", &odd]).output().unwrap();
    assert!(output.status.success());
    assert_eq!(crate::common::text(&output.stdout), format!("{odd}: odd is valid\n"));
    let warnings = [
        ": nothing uses the parameter n",
        ", line 3: 0xff is the bits of the float 3.57e-43; write a number with a decimal point if that is not meant",
        ", line 3: nothing reads %x",
    ];
    let warnings: String = warnings.iter().map(|warning| format!("warning: {odd}{warning}\n")).collect();
    assert_eq!(crate::common::text(&output.stderr), warnings);
}
