//! The built command from the outside: the output of each command, and one clear sentence for bad input.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::common::*;
use serde_json::Value;

#[test]
fn run_repeats_itself_with_a_seed() {
    let run = |seed: &str| ok(&["run", "A closure in Rust is", "--max-tokens", "24", "--seed", seed]);
    let first = run("7");
    assert!(first.trim().len() > 24, "{first:?}");
    assert_eq!(run("7"), first);
    assert_ne!(run("8"), first);
    let greedy = |seed| {
        ok(&[
            "run",
            "-m",
            LLAMA,
            "once upon",
            "--max-tokens",
            "8",
            "--temperature",
            "0",
            "--seed",
            seed,
            "--threads",
            "1",
        ])
    };
    assert_eq!(greedy("1"), greedy("2"), "temperature 0 leaves nothing to chance");
}

#[test]
fn run_without_a_command_continues_a_sample() {
    let output = command(&[]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).len() > 100);
    let figures = text(&output.stderr);
    assert!(figures.contains("tokens/s; first token after"), "{figures}");
}

#[test]
fn run_reads_the_prompt_from_standard_input() {
    let args = ["run", "--max-tokens", "8", "--temperature", "0"];
    let from_input = with_input(&args, b"impl Iterator for\n");
    assert!(from_input.status.success(), "{}", text(&from_input.stderr));
    assert_eq!(text(&from_input.stdout), ok(&[&args[..], &["impl Iterator for"]].concat()));
    check_rejection(&"no UTF-8", &with_input(&args, b"caf\xe9"), 1, &["UTF-8"]);
}

#[test]
fn figures_leave_out_what_was_not_measured() {
    let output = command(&["run", "The", "--max-tokens", "0"]).output().unwrap();
    let figures = text(&output.stderr);
    assert!(figures.contains("generated: 0 tokens") && !figures.contains("tokens/s"), "{figures}");
}

#[test]
fn a_dash_is_standard_input() {
    let told = ["run", "--max-tokens", "4", "--temp", "0", "--device", "cpu", "-f", "-"];
    let [read, named] = [&told[..7], &told[..]].map(|args| with_input(args, b"A closure in Rust is"));
    assert!(named.status.success() && read.stdout == named.stdout && !read.stdout.is_empty(), "{named:?}");
}

#[cfg(unix)]
#[test]
fn endless_input_is_rejected() {
    rejected(&["check", "/dev/zero"], 1, &["/dev/zero", "neither a regular file nor a pipe"]);
    let output = with_input(&["run", "--max-tokens", "1"], &vec![b'a'; (64 << 20) + 1]);
    check_rejection(&"a long prompt", &output, 1, &["standard input", "longer than 64 MiB"]);
}

/// A pipe without a writer is rejected before it is opened.
#[cfg(unix)]
#[test]
fn pipes_in_place_of_files_are_rejected() {
    let folder = Folder::new("pipes");
    let (pipe, out) = (folder.path("pipe"), folder.path("out.npy"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let array = format!("x=@{pipe}");
    for call in [
        &["run", "-m", &pipe, "a"][..],
        &["inspect", &pipe],
        &["tokenize", &pipe, "a"],
        &["logits", &pipe, "--tokens", "1", "--out", &out],
        &["perplexity", LLAMA, "--file", &pipe],
        &["exec", VECTOR_ADD, "--grid", "1", "--arg", &array],
    ] {
        rejected(call, 1, &["pipe", "it is not a regular file"]);
    }
    let folder = folder.0.to_str().unwrap();
    rejected(&["perplexity", LLAMA, "--file", folder], 1, &["it is not a regular file"]);
}

#[test]
fn tensors_are_shown_in_columns() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../hologram-llm/tests/fixtures/qwen3");
    for model in [LLAMA, folder] {
        let shown = ok(&["inspect", model]);
        let lines = shown.lines().skip_while(|l| *l != "tensors").skip(1).take_while(|l| !l.is_empty());
        let columns: Vec<_> = lines.map(|l| l.find('[').unwrap()).collect();
        assert!(columns.len() > 10 && columns.iter().all(|c| *c == columns[0]), "{shown}");
    }
}

#[test]
fn text_of_a_file_cannot_drive_the_terminal() {
    let folder = Folder::new("escapes");
    let path = folder.path("model.gguf");
    let file = std::fs::read(LLAMA).unwrap();
    let at = file.windows(5).position(|w| w == b"llama").unwrap();
    let mut changed = file.clone();
    changed[at..at + 5].copy_from_slice(b"\x1b[2J\n");
    std::fs::write(&path, changed).unwrap();
    rejected(&["run", "-m", &path, "a"], 1, &["\\u{1b}[2J\\n"]);
}

#[test]
fn run_keeps_to_its_limits() {
    let run = |args: &[&str]| command(&[&["run", "-m", LLAMA, "once", "--seed", "1"], args].concat()).output().unwrap();
    assert_eq!(text(&run(&["--max-tokens", "0"]).stdout).trim(), "");
    let full = run(&["--ctx", "8", "--max-tokens", "100"]);
    assert!(full.status.success());
    assert!(text(&full.stderr).contains("the context is full (see --ctx)"), "{}", text(&full.stderr));
    let long = text(&run(&["--ctx", "1000", "--max-tokens", "1"]).stderr);
    assert!(long.contains("note: the model was trained for 512 tokens"), "{long}");
    rejected(&["run", "-m", LLAMA, "once upon a time", "--ctx", "3"], 1, &["prompt has", "context holds 3", "--ctx"]);
}

/// A full stderr is not an error.
#[test]
#[cfg(target_os = "linux")]
fn a_full_standard_error_is_no_error() {
    let folder = Folder::new("full-stderr");
    let (logits, bad) = (folder.path("logits.npy"), folder.write("bad.atlas", "kernel"));
    let cases: [(&[&str], i32); 4] = [
        (&["run", "-m", LLAMA, "a", "--max-tokens", "2"], 0),
        (&["logits", LLAMA, "--tokens", "1", "--out", &logits], 0),
        (&["check", VECTOR_ADD, &bad], 1),
        (&["run", "-m", "none.gguf", "a"], 1),
    ];
    for (args, code) in cases {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let status = command(args).stdout(Stdio::null()).stderr(full).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_standard_output_is_named() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command(&["run", "-m", LLAMA, "a", "--max-tokens", "2"]).stdout(full).output().unwrap();
    let message = text(&output.stderr);
    assert!(output.status.code() == Some(1), "{message}");
    assert!(
        message.ends_with("hologram: cannot write to standard output: No space left on device (os error 28)\n"),
        "{message}"
    );
}

#[test]
#[cfg(unix)]
fn an_interrupted_run_writes_its_json() {
    use std::io::Read;

    let args =
        ["run", "-m", LLAMA, "a", "--json", "--ctx", "100000", "--max-tokens", "100000", "--device", "reference"];
    let mut child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The note on the long context appears once Ctrl-C is handled.
    let mut note = [0; 5];
    child.stderr.as_mut().unwrap().read_exact(&mut note).unwrap();
    assert_eq!(&note, b"note:");
    assert!(std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["finish"], "interrupted");
}

#[test]
fn json_lines_have_their_fields() {
    let lines = objects(&ok(&["bench", LLAMA, "-p", "8", "-n", "4", "-r", "2", "--threads", "2", "--json"]));
    let deep = ["bench", LLAMA, "-p", "8", "-n", "3", "-d", "5", "-b", "6", "-r", "1", "--threads", "2", "--json"];
    let lines = [lines, objects(&ok(&deep))].concat();
    let tests: Vec<_> =
        lines.iter().map(|l| (l["test"].as_str().unwrap(), l["depth"].clone(), l["batch"].clone())).collect();
    let expected = [("pp8", 0, 1), ("tg4", 0, 1), ("pp8 @ d5", 5, 1), ("tg3 x6 @ d5", 5, 6)];
    assert_eq!(tests, expected.map(|(test, depth, batch)| (test, depth.into(), batch.into())));
    let per_token = |i: usize| lines[i]["bytes_per_token"].as_f64().unwrap();
    let cached = |i: usize| lines[i]["cache_bytes_per_token"].as_f64().unwrap();
    let weights = |i: usize| per_token(i) - cached(i);
    assert!((weights(1) / weights(3) - 6.0).abs() < 1e-9, "six sequences share the weights that are read");
    // Tokens at positions 0 to 3 see 2.5 positions on average, those at 5 to 7 see 7, per sequence: keys and values of
    // 2 layers with 2 heads of 32 elements in f32.
    assert_eq!([cached(1), cached(3)], [2.5, 7.0].map(|seen| seen * f64::from(2 * 2 * 2 * 32 * 4)));
    for line in &lines {
        let keys: Vec<&str> = line.keys().map(String::as_str).collect();
        let expected = [
            "model",
            "test",
            "depth",
            "batch",
            "device",
            "threads",
            "tokens_per_s",
            "min",
            "max",
            "bytes_per_token",
            "cache_bytes_per_token",
            "gb_per_s",
        ];
        assert_eq!(keys, [&expected[..], &["share"]].concat());
        assert_eq!(
            (&line["model"], &line["device"], &line["threads"]),
            (&"llama-tiny".into(), &"cpu".into(), &2.into())
        );
        let [min, rate, max] = ["min", "tokens_per_s", "max"].map(|k| line[k].as_f64().unwrap());
        assert!(0.0 < min && min <= rate && rate <= max, "{line:?}");
        let gb_per_s = rate * line["bytes_per_token"].as_f64().unwrap() / 1e9;
        assert!((line["gb_per_s"].as_f64().unwrap() / gb_per_s - 1.0).abs() < 1e-6, "{line:?}");
        assert!(line["share"].as_f64().unwrap() > 0.0);
    }
    let devices = objects(&ok(&["devices", "--json"]));
    let cpu = devices.iter().find(|line| line["device"] == "cpu").unwrap();
    assert!(cpu["memory_bytes"].as_u64().unwrap() > 0 && cpu["parallelism"].as_u64().unwrap() > 0);
    let inspected = objects(&ok(&["inspect", BITNET, "--json"]));
    assert_eq!(inspected.len(), 1);
    let file = &inspected[0];
    assert_eq!(file["metadata"]["general.architecture"], "bitnet-b1.58");
    // Keys and values of 2 layers, 2 heads of 64 elements in f32.
    assert_eq!(file["kv_bytes_per_position"], 2 * 2 * 2 * 64 * 4);
    let tensors = file["tensors"].as_array().unwrap();
    assert!(tensors.iter().any(|t| t["name"] == "blk.0.attn_q.weight" && t["type"] == "TQ2_0"));
    let bytes: u64 = tensors.iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert_eq!(file["weight_bytes"], bytes);
}

#[test]
fn experts_and_memory_of_a_gpu() {
    let mixture = LLAMA.replace("llama-tiny.gguf", "qwen3-moe");
    for command in [&["run", "-m", &mixture, "a", "-n", "1"][..], &["bench", "-m", &mixture, "-p", "4", "-n", "2"]] {
        let call = [command, &["--device", "cpu"]].concat();
        rejected(&[&call[..], &["--experts", "gpu"]].concat(), 2, &["--experts is gpu, but the device is the CPU"]);
        rejected(
            &[&call[..], &["--gpu-memory", "1GB"]].concat(),
            2,
            &["--gpu-memory is for GPUs, but the device is cpu"],
        );
        rejected(&[&call[..], &["--gpu-memory", "lots"]].concat(), 2, &["a number above 0 with a unit, such as 16GB"]);
    }
    // On the CPU they are there already.
    ok(&["bench", "-m", &mixture, "-p", "4", "-n", "2", "-r", "1", "--device", "cpu", "--experts", "cpu"]);
    let dense = ["bench", LLAMA, "-p", "4", "--device", "cpu", "--experts", "cpu"];
    rejected(&dense, 2, &["--experts is cpu, but the model has no experts"]);
    let on_gpu = ["run", "-m", LLAMA, "a", "--device", "cpu", "--experts", "gpu"];
    rejected(&on_gpu, 2, &["--experts is gpu, but the device is the CPU"]);
}

#[test]
fn tables_for_people() {
    let table = ok(&["bench", LLAMA, "-p", "8", "-n", "0", "-r", "1"]);
    assert!(table.contains("tokens/s") && table.contains("\npp8 ") && !table.contains("tg"), "{table}");
    let shown = ok(&["inspect"]);
    for line in
        ["general.architecture = \"bitnet-b1.58\"", "token_embd.weight", "million parameters", "bytes per position"]
    {
        assert!(shown.contains(line), "{line} is not in {shown}");
    }
    if !cfg!(target_vendor = "apple") {
        rejected(&["devices", "--compile-kernels"], 1, &["the compiler of Metal's language is part of macOS"]);
    }
    let devices = ok(&["devices"]);
    for line in ["\ncpu ", "\nreference ", "metal      Metal is there only on Apple platforms"] {
        assert!(devices.contains(line) || cfg!(target_vendor = "apple"), "{devices}");
    }
}

#[test]
fn logits_are_those_of_the_reference_implementation() {
    let folder = Folder::new("logits");
    let fixture = |name: &str| LLAMA.replace("llama-tiny.gguf", name);
    for model in ["llama-tiny", "bitnet-tiny"] {
        let ids = read_npy(&fixture(&format!("{model}.tokens-a.npy"))).1;
        let ids: Vec<String> = ids.into_iter().map(|id| u32::from_le_bytes(id).to_string()).collect();
        let want = read_f32(&fixture(&format!("{model}.logits-a.npy")));
        let out = folder.path("logits.npy");
        ok(&["logits", &fixture(&format!("{model}.gguf")), "--tokens", &ids.join(","), "--out", &out]);
        let (header, _) = read_npy(&out);
        let shape = format!("'shape': ({}, {})", ids.len(), want.len() / ids.len());
        assert!(header.contains("'<f4'") && header.contains(&shape), "{header}");
        let got = read_f32(&out);
        let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let error = norm(&mut got.iter().zip(&want).map(|(g, w)| g - w)) / norm(&mut want.iter().copied());
        assert!(error < 1e-5, "{model}: {error:e}");
    }
}

/// Vectors in both forms of output, from texts, a file and tokens; scores in order.
#[test]
fn embeddings_and_scores() {
    let folder = Folder::new("embed");
    let fixture = |name: &str| LLAMA.replace("llama-tiny.gguf", name);
    let (bert, file, out) =
        (fixture("bert"), folder.write("texts", "Hello, World!\nisn't it?\n"), folder.path("x.npy"));
    let json: serde_json::Value =
        serde_json::from_str(&ok(&["embed", "-m", &bert, "Hello, World!", "isn't it?", "--device", "cpu"])).unwrap();
    let vector = |i: usize| -> Vec<f64> {
        json["texts"][i]["vector"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    assert!((vector(1).iter().map(|v| v * v).sum::<f64>() - 1.0).abs() < 1e-5);
    ok(&["embed", "-m", &bert, "--file", &file, "--out", &out, "--device", "cpu"]);
    let same =
        read_f32(&out).iter().zip(vector(0).iter().chain(&vector(1))).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6);
    assert!(same && read_npy(&out).0.contains("'shape': (2, 32)"));
    ok(&["embed", "-m", &bert, "--tokens", "2,9,3", "--pooling", "none", "--normalize", "false", "--out", &out]);
    assert!(read_npy(&out).0.contains("'shape': (3, 32)"));
    let expected = std::fs::read_to_string(std::path::Path::new(&bert).join("expected.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&expected).unwrap();
    let texts: Vec<&str> = expected["documents"].as_array().unwrap().iter().map(|d| d.as_str().unwrap()).collect();
    let args = [&["rerank", "-m", &bert, "--raw", "--json", expected["query"].as_str().unwrap()][..], &texts].concat();
    let json: serde_json::Value = serde_json::from_str(&ok(&args)).unwrap();
    let list = json["texts"].as_array().unwrap();
    assert!(list.is_sorted_by(|a, b| a["score"].as_f64() >= b["score"].as_f64()), "{json}");
    for entry in list {
        let want = expected["scores"][entry["index"].as_u64().unwrap() as usize].as_f64().unwrap();
        assert!((entry["score"].as_f64().unwrap() - want).abs() < 1e-4, "{json}");
    }
    rejected(&["logits", &bert, "--tokens", "5", "--out", &out], 1, &["hologram embed"]);
    rejected(&["chat", "-m", &bert, "Hi"], 1, &["hologram embed"]);
    rejected(&["rerank", "-m", &fixture("nomic-bert"), "q", "text"], 1, &["no head for one score"]);
    rejected(&["bench", "-m", &bert, "-p", "8", "-n", "4"], 2, &["an encoder continues no text"]);
    rejected(&["bench", "-m", &bert, "-p", "8", "-d", "4"], 2, &["an encoder continues no text"]);
    rejected(&["bench", "-m", &bert, "-p", "8", "--concurrency", "2"], 2, &["is an encoder"]);
    rejected(&["bench", "-m", &bert, "-p", "0"], 2, &["nothing to measure: -p is 0"]);
    rejected(&["bench", "-m", &bert], 2, &["the model has 96; give a smaller -p"]);
    let lines = objects(&ok(&["bench", "-m", &bert, "-p", "4,8", "-b", "1,3", "-r", "1", "--json"]));
    let tests: Vec<_> = lines.iter().map(|line| line["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["pp4", "pp4 x3", "pp8", "pp8 x3"]);
    let number = |line: &serde_json::Map<String, serde_json::Value>, key: &str| line[key].as_f64().unwrap();
    assert!((number(&lines[3], "tokens_per_s") / number(&lines[3], "texts_per_s") - 8.0).abs() < 1e-6);
    // Three texts share the weights of a step.
    assert!((number(&lines[2], "bytes_per_token") / number(&lines[3], "bytes_per_token") - 3.0).abs() < 1e-9);
    assert!(ok(&["bench", "-m", &bert, "-p", "4", "-r", "1"]).contains("texts/s"));
    rejected(&["bench", "-m", &bert, "--draft", "nothere"], 2, &["--draft needs --concurrency"]);
    rejected(&["bench", "-m", &bert, "--speculate", "4"], 2, &["--speculate needs --concurrency"]);
    let recurrent = fixture("qwen3-next");
    let args = ["bench", "-m", &recurrent, "-p", "4", "-n", "4", "--concurrency", "1", "--speculate", "4"];
    rejected(&args, 1, &["speculation is for models without recurrent layers"]);
}

/// `quantize` names a type that it does not write, notes a larger result, and replaces a killed process's file.
#[test]
fn quantize_says_what_it_cannot_and_what_it_did() {
    let folder = Folder::new("quantize");
    let (small, large) = (folder.path("small.gguf"), folder.path("large.gguf"));
    for (ty, message) in [
        ("IQ2_XS", "IQ2_XS is read, but not written: choose one of F32"),
        ("I2_S", "I2_S is read, but not written"),
        ("Q9", "unknown type Q9: choose one of F32"),
        ("Q4", "Q3_K, Q4_K and Q5_K mean their _M mixtures"),
    ] {
        rejected(&["quantize", LLAMA, &small, "--type", ty], 2, &[message]);
    }
    let quantize = |from: &str, to: &str, ty: &str| {
        let output = command(&["quantize", from, to, "--type", ty]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let left = folder.write("small.gguf.partial", vec![b'x'; 10_000_000]);
    let said = quantize(LLAMA, &small, "Q4_K");
    assert!(said.contains("small.gguf: Q4_K_M, ") && !said.contains("note"), "{said}");
    assert!(!Path::new(&left).exists());
    let said = quantize(&small, &large, "F32");
    assert!(said.contains("\nnote: the result is larger than its source"), "{said}");
    assert!(ok(&["inspect", &small]).contains(" KB)"), "vectors are small");
    // Another process that writes the same file has it locked.
    let held = fs::File::create(&left).unwrap();
    held.lock().unwrap();
    rejected(&["quantize", LLAMA, &small, "--type", "Q8_0"], 1, &["cannot write", "another process is writing it"]);
}

/// A finished file takes the place of what was there, which must not be a pipe or a device.
#[cfg(unix)]
#[test]
fn quantize_replaces_files_alone() {
    let folder = Folder::new("quantize-pipe");
    let pipe = folder.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    rejected(&["quantize", LLAMA, &pipe, "--type", "Q8_0"], 1, &["pipe", "not a regular file"]);
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1, "something is left");
}

#[test]
fn a_model_without_a_tokenizer_has_figures_but_no_words() {
    let folder = Folder::new("no-tokenizer");
    rejected(&["run", "-m", BITNET, "once"], 1, &["bitnet-tiny.gguf", "no tokenizer", "bench and logits work without"]);
    ok(&["logits", BITNET, "--tokens", "1,2", "--out", &folder.path("logits.npy")]);
    assert_eq!(objects(&ok(&["bench", BITNET, "-p", "4", "-n", "2", "-r", "1", "--json"])).len(), 2);
    ok(&["inspect", BITNET]);
}

/// Every command that opens a model rejects other files and names the file.
#[test]
fn bad_model_files_are_rejected() {
    let folder = Folder::new("bad-models");
    let good = fs::read(LLAMA).unwrap();
    let mut state = 1u32;
    let mut noise = |n: usize| -> Vec<u8> {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..n).map(|_| next()).collect()
    };
    let counts =
        |tensors: u64, keys: u64| [b"GGUF\x03\0\0\0".as_slice(), &tensors.to_le_bytes(), &keys.to_le_bytes()].concat();
    let mut unknown = good.clone();
    let at = good.windows(9).position(|w| w == b"\x05\0\0\0\0\0\0\0l").unwrap();
    unknown[at + 8..at + 13].copy_from_slice(b"lemma");
    let mut files = vec![
        (folder.write("empty.gguf", ""), "empty"),
        (folder.write("magic.gguf", "GGUF"), ""),
        (folder.write("noise.gguf", noise(5000)), ""),
        (folder.write("noise-after-magic.gguf", [b"GGUF\x03\0\0\0".to_vec(), noise(5000)].concat()), ""),
        (folder.write("counts.gguf", counts(u64::MAX, u64::MAX)), ""),
        (folder.write("nothing.gguf", counts(0, 0)), "general.architecture"),
        (folder.write("unknown.gguf", unknown), "architecture lemma is not supported; supported: llama"),
        (folder.write("words.gguf", "A text is no model.\n"), ""),
        (folder.path("none.gguf"), "No such file"),
        (folder.0.to_str().unwrap().into(), "the folder has no config.json"),
        (VECTOR_ADD.into(), ""),
    ];
    for cut in [5, 23, 24, 100, 3000, good.len() / 2, good.len() - 1] {
        files.push((folder.write(&format!("cut-{cut}.gguf"), &good[..cut]), ""));
    }
    let out = folder.path("logits.npy");
    for (file, message) in &files {
        rejected(&["run", "-m", file, "once"], 1, &[file, message]);
        rejected(&["bench", file], 1, &[file, message]);
        rejected(&["logits", file, "--tokens", "1", "--out", &out], 1, &[file, message]);
        // Unsupported models can still be inspected if they are valid GGUF.
        if !["nothing.gguf", "unknown.gguf"].iter().any(|name| file.ends_with(name)) {
            rejected(&["inspect", file], 1, &[file, message]);
        }
    }
    assert!(ok(&["inspect", &folder.path("unknown.gguf")]).contains("cannot be run: "));
    assert!(!Path::new(&out).exists());
    rejected(&["logits", LLAMA, "--tokens", "1,99999", "--out", &out], 1, &["one is 99999", "below 384"]);
    let many = vec!["1"; 600].join(",");
    let long = command(&["logits", LLAMA, "--tokens", &many, "--out", &out]).output().unwrap();
    assert!(
        text(&long.stderr).contains("note: the model was trained for 512 tokens of context"),
        "{}",
        text(&long.stderr)
    );
    let piped = command(&["logits", LLAMA, "--tokens", "1", "--out", "-"]).current_dir(&folder.0).output().unwrap();
    assert!(piped.status.success() && piped.stdout.starts_with(b"\x93NUMPY") && piped.stderr.is_empty());
    assert!(!Path::new(&folder.path("-")).exists());
    rejected(
        &["logits", LLAMA, "--tokens", "1", "--out", &folder.path("no/folder.npy")],
        1,
        &["cannot write", "no/folder.npy"],
    );
}

#[test]
fn wrong_calls_are_usage_errors() {
    let cases: &[(&[&str], &str)] = &[
        (&["sing"], "sing"),
        (&["run", "a", "--tokens", "3"], "--tokens"),
        (&["run", "a", "--temperature=-1"], "temperature is -1"),
        (&["run", "a", "--temperature", "-1"], "temperature is -1"),
        (&["run", "a", "--temperature", "NaN"], "temperature"),
        (&["run", "a", "--top-p", "0"], "top-p is 0"),
        (&["run", "a", "--top-p", "1.5"], "top-p is 1.5"),
        (&["run", "a", "--ctx=-1"], "--ctx"),
        (&["run", "a", "--ctx", "99999999"], "--ctx"),
        (&["run", "a", "--max-tokens", "many"], "--max-tokens"),
        (&["run", "a", "--threads", "0"], "--threads"),
        (&["bench", "--shape", "llama-1b"], "--type"),
        (&["bench", "--shape", "llama-9b", "--type", "Q8_0"], "llama-9b, but must be one of llama-8b"),
        (&["bench", "--shape", "llama-1b", "--type", "Q9"], "Q9, but must be one of F32"),
        (&["bench", LLAMA, "--shape", "llama-1b", "--type", "F16"], "--shape"),
        (&["bench", LLAMA, "-p", "0", "-n", "0"], "nothing to measure"),
        (&["bench", LLAMA, "-r", "0"], "-r"),
        (&["bench", LLAMA, "-p", "99999999999"], "-p"),
        (&["logits", LLAMA, "--out", "x.npy"], "--tokens"),
        (&["logits", LLAMA, "--tokens", "1,x", "--out", "x.npy"], "--tokens"),
        (&["inspect", LLAMA, "--yaml"], "--yaml"),
        (&["run", "a", "--seed", "-2"], "must be a whole number from 0 to"),
        (&["bench", LLAMA, "-m", LLAMA], "cannot be used with '--model <MODEL>'"),
        (&["-m", LLAMA], "'-m' found; use `hologram run -m MODEL` or `hologram chat -m MODEL`; see hologram --help"),
        (&["run", "hello", "world"], "put the prompt in quotes"),
        (&["run", "-m", "-", "a"], "cannot be read from standard input"),
        (&["inspect", "-"], "cannot be read from standard input"),
    ];
    for (args, message) in cases {
        rejected(args, 2, &[message]);
    }
}

#[test]
fn unknown_devices_are_rejected() {
    // An unknown device name is a usage error.
    let cases = [
        ("cuda:99", 1),
        ("CUDA:99", 1),
        ("metal", 1),
        ("abacus", 2),
        ("", 2),
        ("cpu:1", 2),
        ("cuda:x", 2),
        ("cuda0", 2),
        ("all", 2),
    ];
    let add = ["exec", VECTOR_ADD, "--grid", "1"];
    for (device, code) in cases {
        for call in [&["run", "a"][..], &["bench", LLAMA], &["selftest"], &["bench", "ops"], &add] {
            if device != "all" || !call.contains(&"ops") {
                rejected(&[call, &["--device", device]].concat(), code, &[device, "not available", "cpu"]);
            }
        }
    }
}

#[test]
fn selftest_counts_cases_and_failures() {
    // Larger cases run in the conformance tests of hologram-core.
    let mut few = command(&["selftest", "--device", "cpu", "--json"]);
    let output = few.env("HOLOGRAM_RANDOM_PROGRAMS", "3").env("HOLOGRAM_SELFTEST_WORK", "100000").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(lines.iter().all(|l| l["failed"] == 0 && l["cases"].as_u64().unwrap() > 0), "{lines:?}");
    let has = |op: &str, dtype: &str| lines.iter().any(|l| l["op"] == op && l["dtype"] == dtype);
    assert!(has("softmax", "f32") && has("matmul", "i8 × Q4_0") && has("add", "u32"), "{lines:?}");
    assert!(lines.iter().all(|l| l["dtype"] != ""), "{lines:?}");
    let last = lines.last().unwrap();
    assert_eq!((&last["op"], &last["cases"]), (&"random programs".into(), &3.into()));
    for variable in ["HOLOGRAM_RANDOM_PROGRAMS", "HOLOGRAM_SELFTEST_WORK"] {
        let output = command(&["selftest"]).env(variable, "many").output().unwrap();
        assert!(text(&output.stderr).contains(&format!("{variable} is many")));
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn help_is_a_command_and_wrong_calls_get_a_sentence() {
    for command in ["run", "bench", "exec", "cache"] {
        assert_eq!(ok(&["help", command]), ok(&[command, "--help"]), "{command}");
    }
    assert_eq!(ok(&["help", "bench", "ops"]), ok(&["bench", "ops", "--help"]));
    assert!(ok(&["help"]) == ok(&["--help"]) && ok(&["help"]).contains("help  "));
    for (call, sentence) in [
        (&["help", "fly"][..], "hologram: unrecognized subcommand 'fly'; see hologram --help\n"),
        (&["help", "run", "bogus"], "hologram: unrecognized subcommand 'bogus'; see hologram run --help\n"),
        (&["help", "bench", "ops", "x"], "hologram: unrecognized subcommand 'x'; see hologram bench ops --help\n"),
        (&["help", "--", "--version"], "hologram: unrecognized subcommand '--version'; see hologram --help\n"),
        (
            &["bench", "--devic", "cpu"],
            "unexpected argument '--devic' found; a similar argument exists: '--device'; see hologram bench --help\n",
        ),
        (
            &["logits", LLAMA],
            "the following required arguments were not provided: --tokens <IDS>, --out <FILE.npy>; see hologram logits --help\n",
        ),
        (&["bench", "-r", "x"], "hologram: invalid value 'x' for '-r <N>': it must be a whole number from 1 to 1000\n"),
        (&["run", "--temperature", "x"], "for '--temperature <T>': it must be a number\n"),
        (&["bench", "--shape", "gpt5"], "hologram: --shape is gpt5, but must be one of llama-8b, "),
        (&["bench", LLAMA, "--type", "Q4_0"], "--type sets the type of random weights and requires --shape"),
        (&["bench", "--type", "Q4_0"], "--type sets the type of random weights and requires --shape"),
        (&["bench", "--shape", "llama-8b"], "requires a type of weights, for example --type Q8_0\n"),
        (
            &["bench", "-d", "5000"],
            "take 5512 tokens of context, but the model has 1024; --ctx 5512 measures it nevertheless\n",
        ),
    ] {
        let output = command(call).output().unwrap();
        let (code, message) = (output.status.code(), text(&output.stderr));
        assert!(code == Some(2) && message.contains(sentence), "{call:?}: {code:?}, {message}");
    }
}

#[test]
fn cache_is_shown_and_cleared() {
    let folder = Folder::new("cache");
    let entry = folder.write("00000000000000000000000000000000.hologram", "an entry");
    folder.write("other.txt", "no entry");
    let cache = |args: &[&str]| {
        let output = command(args).env("HOLOGRAM_CACHE", &folder.0).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let shown = cache(&["cache"]);
    assert!(shown.contains(folder.0.to_str().unwrap()) && shown.contains("holds 1 entry, 8 bytes"), "{shown}");
    let cleared: Value = serde_json::from_str(&cache(&["cache", "--clear", "--json"])).unwrap();
    assert_eq!((&cleared["entries"], &cleared["cleared"]), (&1.into(), &true.into()));
    assert!(!Path::new(&entry).exists() && Path::new(&folder.path("other.txt")).exists());
    let empty: Value = serde_json::from_str(&cache(&["cache", "--json"])).unwrap();
    assert_eq!((&empty["entries"], &empty["bytes"]), (&0.into(), &0.into()));
    let file = folder.path("other.txt");
    for args in [&["cache"][..], &["cache", "--clear"]] {
        let output = command(args).env("HOLOGRAM_CACHE", &file).output().unwrap();
        let message = text(&output.stderr);
        assert!(!output.status.success() && message.contains(&file), "{message}");
    }
}

/// A broken driver is reported once, with the reason.
#[cfg(target_os = "linux")]
#[test]
fn a_broken_driver_is_reported() {
    let folder = Folder::new("driver");
    for name in ["libcuda.so.1", "libcuda.so"] {
        folder.write(name, "no library");
    }
    let devices = |args: &[&str]| {
        let output = command(args).env("LD_LIBRARY_PATH", &folder.0).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let shown = devices(&["devices"]);
    assert!(shown.starts_with("cuda       libcuda.so.1 cannot be loaded: ") && shown.contains("\ncpu "), "{shown}");
    let line = &objects(&devices(&["devices", "--json"]))[0];
    let error = line["error"].as_str().unwrap();
    assert!(line["device"] == "cuda" && error.starts_with("libcuda.so.1 cannot be loaded: "), "{line:?}");
}
