//! `hologram bench`: what it measures, and what it rejects.

use crate::common::*;

#[test]
fn bench_measures_every_combination() {
    let call = ["bench", LLAMA, "-p", "8,40", "-n", "3", "-d", "0,33", "-b", "1,5", "-r", "1", "--threads", "2"];
    let lines = objects(&ok(&[&call[..], &["--json"]].concat()));
    let tests: Vec<_> = lines.iter().map(|line| line["test"].as_str().unwrap()).collect();
    // A prompt is of one sequence, whatever the batch.
    let shallow = ["pp8", "pp40", "tg3", "tg3 x5"];
    let deep = ["pp8 @ d33", "pp40 @ d33", "tg3 @ d33", "tg3 x5 @ d33"];
    assert_eq!(tests, [shallow, deep].concat());
    // Each is measured as alone: the same bytes.
    let alone = ["bench", LLAMA, "-p", "0", "-n", "3", "-d", "33", "-b", "5", "-r", "1", "--threads", "2", "--json"];
    let alone = objects(&ok(&alone));
    assert_eq!(alone.len(), 1);
    for key in ["test", "depth", "batch", "bytes_per_token", "cache_bytes_per_token"] {
        assert_eq!(alone[0][key], lines[7][key], "{key}");
    }
    let table = ok(&call);
    assert!(table.lines().filter(|line| line.starts_with("tg3 ")).count() == 4, "{table}");
    // A cache in 8 bits has a scale of 16 bits per 32 elements.
    let cached = |kv: &str| {
        let args = ["bench", LLAMA, "-p", "0", "-n", "3", "-r", "1", "--kv", kv, "--json"];
        objects(&ok(&args))[0]["cache_bytes_per_token"].as_f64().unwrap()
    };
    assert_eq!(cached("f32") / cached("q8"), 4.0 * 32.0 / 34.0);
    assert_eq!(cached("f32"), 2.0 * cached("f16"));
    // Beyond the model's own context.
    let long = ok(&["bench", LLAMA, "-p", "4", "-n", "0", "-d", "300", "--ctx", "400", "-r", "1"]);
    assert!(long.contains("pp4 @ d300"), "{long}");
    let needs = "-d 300 and the test take 304 tokens of context, but --ctx is 303";
    rejected(&["bench", LLAMA, "-p", "4", "-n", "0", "-d", "0,300", "--ctx", "303"], 2, &[needs]);
    rejected(
        &["bench", LLAMA, "-d", "0,300"],
        2,
        &["-d 300 and the test take 812 tokens of context, but the model has"],
    );
    for wrong in [["-p", ","], ["-p", "8,"], ["-b", "0"], ["-b", "1,0"], ["-b", "1,x"], ["-d", "-1"], ["--ctx", "0"]] {
        rejected(&[&["bench", LLAMA][..], &wrong].concat(), 2, &[wrong[0]]);
    }
    let several = ["bench", LLAMA, "--concurrency", "2", "-p", "8,9"];
    rejected(&several, 2, &["--concurrency measures one size, but -p has 2"]);
}

#[test]
fn bench_measures_many_users() {
    let many = ["bench", LLAMA, "-p", "40", "-n", "6", "-r", "2", "--threads", "2", "--concurrency", "5"];
    let lines = objects(&ok(&[&many[..], &["--json"]].concat()));
    assert_eq!(lines.len(), 1);
    let line = &lines[0];
    assert_eq!(
        (&line["concurrency"], &line["requests"], &line["test"]),
        (&5.into(), &10.into(), &"pp40+tg6 x5".into())
    );
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    assert!((number(&line["tokens_per_s"]) / number(&line["requests_per_s"]) - 6.0).abs() < 1e-6, "{line:?}");
    for times in ["first_token_ms", "gap_ms"] {
        let [half, most] = ["p50", "p99"].map(|p| number(&line[times][p]));
        assert!(0.0 < half && half <= most, "{line:?}");
    }
    // Users share steps: each of the ten would need six of its own.
    assert!(number(&line["steps"]) < 50.0, "{line:?}");
    let table = ok(&many);
    assert!(table.contains("10 requests of 5 users at once: 40 tokens in, 6 out"), "{table}");
    rejected(&["bench", LLAMA, "--concurrency", "2", "-n", "0"], 2, &["-n must be at least 1"]);
    rejected(&["bench", LLAMA, "--concurrency", "2", "-b", "2"], 2, &["--batch"]);
}

#[test]
fn bench_ops_is_a_command_of_its_own() {
    rejected(&["bench", "--json", "ops"], 2, &["hologram bench ops"]);
    rejected(&["bench", "--device", "reference"], 1, &["too slow to benchmark"]);
    let output = command(&["bench", "ops", "--device", "reference"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("too slow to benchmark"), "{}", text(&output.stderr));
    rejected(&["bench", "ops", "--only", "copy,divide"], 2, &["divide", "softmax"]);
    rejected(&["bench", "ops", "--only", ""], 2, &["--only names \"\", but"]);
    for (only, not) in [("launch", "launch"), ("attention", "attention"), ("add,launch,attention", "launch, attention")]
    {
        let message = format!("--sweep does not measure {not}; it measures copy, relu, add, ");
        rejected(&["bench", "ops", "--sweep", "--only", only], 2, &[&message, "matmul"]);
    }
    let help = ok(&["bench", "ops", "--help"]);
    assert!(help.contains("cpu, or all side by side") && !help.contains("reference"), "{help}");
    assert!(!ok(&["bench", "--help"]).contains("reference") && ok(&["exec", "--help"]).contains("cpu, reference"));
    let args = ["bench", "ops", "--device", "cpu", "--threads", "2", "--only", "launch", "--json"];
    let output = command(&args).output().unwrap();
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|l| serde_json::from_str(l).expect("a JSON object a line")).collect();
    assert!(lines.len() == 2 && lines.iter().all(|l| l["ns"].as_f64() > Some(0.0)), "{lines:?}");
    assert!(lines[0]["dtype"].is_null() && lines[1]["dtype"] == "f32", "{lines:?}");
    assert!(lines.iter().all(|l| l["ceiling"].is_null() && l["share"].is_null()), "{lines:?}");
    // A file with the name of a subcommand is reached by its path.
    let output = command(&["bench", "./ops"]).output().unwrap();
    assert!(text(&output.stderr).contains("./ops"), "{}", text(&output.stderr));
}

/// A quantized Llama takes at most 8 launches per layer on an Apple GPU, and no programs in a decode step.
#[test]
fn a_dry_run_counts_what_apple_gpus_would_launch() {
    for (shape, format) in [
        ("llama-1b", "Q8_0"),
        ("llama-8b", "Q4_0"),
        ("llama-8b", "Q4_K"),
        ("llama-8b", "Q4_K_M"),
        ("llama-1b", "BF16"),
        ("llama-1b", "F16"),
        ("bitnet-2b", "TQ2_0"),
    ] {
        let args = ["bench", "--shape", shape, "--type", format, "--device", "metal", "--dry-run", "--json"];
        let plan: serde_json::Value = serde_json::from_str(&ok(&args)).unwrap();
        let number = |name: &str| plan[name].as_u64().unwrap();
        let (launches, layers) = (number("launches_per_token"), number("layers"));
        assert!(
            launches > layers && launches <= 8 * layers + 8,
            "{shape} {format}: {launches} launches, {layers} layers"
        );
        assert_eq!(number("programs_per_token"), 0, "{shape} {format}: {}", plan["programs"]);
        assert_eq!(number("programs_per_prompt"), 0, "{shape} {format}: {}", plan["prompt_programs"]);
        let launches = number("launches_per_prompt");
        assert!(launches > layers && launches <= 10 * layers + 10, "{shape} {format}: {launches} launches of a prompt");
        assert!(2 * number("flops_per_token") > number("bytes_per_token"));
        let bound = plan["upper_bound_tokens_per_s"]["M1"].as_f64().unwrap();
        assert!((bound * number("bytes_per_token") as f64 - 68.25e9).abs() < 1e3);
    }
    rejected(&["bench", "--dry-run"], 2, &["--device metal"]);
    // Options without effect are rejected.
    for option in [["-p", "8"], ["-n", "2"], ["-d", "1024"], ["-b", "4"], ["-r", "1"], ["--threads", "1"]] {
        let args = [&["bench", "--device", "metal", "--dry-run"][..], &option].concat();
        rejected(&args, 2, &["--dry-run", option[0]]);
    }
}
