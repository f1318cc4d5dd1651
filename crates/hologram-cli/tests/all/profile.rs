//! `--profile OUT.json`: the traces of exec, run and bench.

use std::collections::BTreeMap;
use std::fs;

use crate::common::*;
use serde_json::Value;

struct Event {
    track: u64,
    name: String,
    start: f64,
    end: f64,
}

/// The complete events of a trace, checked for viewers: tracks have names, times nest on the host and do not overlap on
/// the device.
fn events(path: &str) -> Vec<Event> {
    let trace: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut names = BTreeMap::new();
    let mut events = Vec::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        assert_eq!(event["pid"], 1);
        let track = event["tid"].as_u64().unwrap();
        match event["ph"].as_str().unwrap() {
            "M" => _ = names.insert(track, event["args"]["name"].as_str().unwrap().to_string()),
            "X" => {
                let [start, length] = ["ts", "dur"].map(|key| event[key].as_f64().unwrap());
                assert!(start >= 0.0 && length >= 0.0, "{event}");
                let name = event["name"].as_str().unwrap().to_string();
                events.push(Event { track, name, start, end: start + length });
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(names.keys().collect::<Vec<_>>(), [&1, &2]);
    assert_eq!(names[&1], "host");
    for track in [1, 2] {
        let mut here: Vec<_> = events.iter().filter(|e| e.track == track).collect();
        assert!(!here.is_empty(), "no event on track {track}");
        here.sort_by(|a, b| a.start.total_cmp(&b.start).then(b.end.total_cmp(&a.end)));
        let mut open: Vec<&Event> = Vec::new();
        // Times are written in nanoseconds.
        const ROUNDED: f64 = 0.0021;
        for event in here {
            open.retain(|o| o.end > event.start + ROUNDED);
            let inside = open.iter().all(|o| track == 1 && event.end <= o.end + ROUNDED);
            assert!(inside, "{} overlaps {}", event.name, open.last().map_or("", |o| &o.name));
            open.push(event);
        }
    }
    events
}

fn count(events: &[Event], track: u64, name: &str) -> usize {
    events.iter().filter(|e| e.track == track && e.name == name).count()
}

#[test]
fn exec_shows_the_kernel_and_what_the_host_did() {
    let folder = Folder::new("profile-exec");
    let out = folder.path("trace.json");
    for device in ["cpu", "reference"] {
        let args = ["--arg", "x=out:f32[70000]", "--arg", "y=out:f32[70000]", "--arg", "out=out:f32[70000]"];
        let call = ["exec", VECTOR_ADD, "--grid", "274", "--arg", "n=70000", "--device", device, "--profile", &out];
        let output = command(&[&call[..], &args].concat()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(&format!("wrote {out} (")), "{}", text(&output.stderr));
        let events = events(&out);
        assert_eq!(count(&events, 2, "vector_add"), 1, "{device}");
        assert_eq!(events.iter().filter(|e| e.track == 2).count(), 1);
        for (name, times) in
            [("open the device", 1), ("compile vector_add", 1), ("copy to device", 3), ("copy from device", 1)]
        {
            assert_eq!(count(&events, 1, name), times, "{device}: {name}");
        }
        // The kernel runs while the host waits for it, and adding 70,000 numbers takes time.
        let [host, kernel] = ["run launches", "vector_add"].map(|name| events.iter().find(|e| e.name == name).unwrap());
        assert!(host.start <= kernel.start + 0.01 && kernel.end - kernel.start > 1.0);
        assert!(kernel.end - kernel.start <= host.end - host.start + 0.01);
    }
}

#[test]
fn run_shows_every_token_and_writes_the_same_text() {
    let folder = Folder::new("profile-run");
    let out = folder.path("trace.json");
    let run = ["run", "-m", LLAMA, "once upon", "--max-tokens", "5", "--temperature", "0", "--device", "cpu"];
    let plain = ok(&run);
    assert_eq!(ok(&[&run[..], &["--profile", &out]].concat()), plain);
    let events = events(&out);
    assert_eq!((count(&events, 1, "load the model"), count(&events, 1, "prompt")), (1, 1));
    assert!((4..=5).contains(&count(&events, 1, "token")), "the iterator's end may be an event too");
    // Two layers in each of five steps.
    let attention = events.iter().filter(|e| e.track == 2 && e.name.contains("attention")).count();
    assert_eq!(attention, 2 * 5);
}

#[test]
fn bench_measures_first_and_traces_afterwards() {
    let folder = Folder::new("profile-bench");
    let out = folder.path("trace.json");
    let bench = ["bench", LLAMA, "-p", "8", "-n", "6", "-r", "1", "--device", "cpu", "--profile", &out];
    let table = ok(&bench);
    assert!(table.contains("pp8, the last step: ") && table.contains("tg6, the last step: "), "{table}");
    let events_of_table = events(&out);
    assert_eq!((count(&events_of_table, 1, "pp8"), count(&events_of_table, 1, "tg6")), (1, 1));
    let attention = events_of_table.iter().filter(|e| e.track == 2 && e.name.contains("attention")).count();
    assert_eq!(attention, 2 + 2 * 4, "a prompt and the last four tokens");
    // With --json only objects are printed.
    let lines = objects(&ok(&[&bench[..], &["--json"]].concat()));
    assert_eq!(lines.len(), 2);
    events(&out);
}

#[test]
fn traces_that_cannot_be_written_are_rejected_at_once() {
    let folder = Folder::new("profile-rejected");
    let out = folder.path("no/folder.json");
    let exec = ["exec", VECTOR_ADD, "--grid", "1", "--arg", "n=0"];
    for call in [&exec[..], &["run", "a"], &["bench"]] {
        rejected(&[call, &["--profile", &out]].concat(), 1, &["cannot write", &out]);
        rejected(&[call, &["--profile", LLAMA]].concat(), 2, &["must end in .json"]);
        rejected(&[call, &["--profile"]].concat(), 2, &["--profile"]);
    }
    // A failed run leaves no file.
    let trace = folder.path("trace.json");
    let args = ["--arg", "x=out:f32[1]", "--arg", "y=out:f32[9]", "--arg", "out=out:f32[9]", "--arg", "n=9"];
    let call = [&["exec", VECTOR_ADD, "--grid", "1", "--profile", &trace], &args[..]].concat();
    rejected(&call, 1, &["element 1 of buffer x is outside"]);
    assert!(!fs::exists(&trace).unwrap());
}

/// Captures themselves are tested on a test double of Metal.
#[test]
fn captures_are_rejected_elsewhere_before_the_work() {
    let folder = Folder::new("capture-rejected");
    let out = folder.path("steps.gputrace");
    let exec = ["exec", VECTOR_ADD, "--grid", "1", "--arg", "n=0"];
    for call in [&exec[..], &["run", "a"], &["bench"]] {
        let here = ["--device", "cpu", "--capture", &out];
        rejected(&[call, &here].concat(), 1, &["--capture works only on Apple platforms", "this is device cpu"]);
        rejected(&[call, &["--capture", LLAMA]].concat(), 2, &["must end in .gputrace"]);
        rejected(&[call, &["--capture", &out, "--profile", "a.json"]].concat(), 2, &["cannot be used with"]);
    }
    assert!(!fs::exists(&out).unwrap());
}

/// An old trace stays until the new one is complete, by whatever name it is reached, and no other file is left beside
/// it.
#[cfg(unix)]
#[test]
fn traces_replace_what_is_there_only_when_complete() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = Folder::new("profile-replaced");
    let file = folder.write("old.json", "old");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let [link, ahead, new] = ["link.json", "ahead.json", "new.json"].map(|name| folder.path(name));
    symlink("old.json", &link).unwrap();
    symlink("new.json", &ahead).unwrap();
    let failing = ["x=out:f32[1]", "y=out:f32[9]", "out=out:f32[9]", "n=9"];
    let good = ["x=out:f32[9]", "y=out:f32[9]", "out=out:f32[9]", "n=9"];
    let call = |trace: &str, given: [&str; 4]| {
        let given: Vec<&str> = given.into_iter().flat_map(|a| ["--arg", a]).collect();
        command(&[&["exec", VECTOR_ADD, "--grid", "1", "--profile", trace], &given[..]].concat()).output().unwrap()
    };
    for name in [&file, &link, &ahead] {
        check_rejection(name, &call(name, failing), 1, &["element 1 of buffer x is outside"]);
        assert_eq!(fs::read(&file).unwrap(), b"old", "{name}");
        assert!(!fs::exists(&new).unwrap(), "{name}");
    }
    // A usage error does not change it either.
    rejected(&["exec", VECTOR_ADD, "--grid", "0", "--profile", &file], 2, &["--grid is 0"]);
    assert_eq!(fs::read(&file).unwrap(), b"old");
    for (name, written) in [(&file, &file), (&link, &file), (&ahead, &new)] {
        let output = call(name, good);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(count(&events(written), 2, "vector_add"), 1, "{name}");
        fs::write(written, "old").unwrap();
    }
    assert!([&link, &ahead].iter().all(|name| fs::symlink_metadata(name).unwrap().is_symlink()));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 4, "nothing is left beside them");
}
