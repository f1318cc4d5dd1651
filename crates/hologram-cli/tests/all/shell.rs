//! `doctor`, and what shells and `man` are told of the command.

use std::fs;
use std::process::Command;

use crate::common::*;

/// The commands that `--help` lists.
fn commands() -> Vec<String> {
    let help = ok(&["--help"]);
    let list = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names: Vec<String> = list.lines().filter_map(|l| l.split_whitespace().next()).map(String::from).collect();
    assert!(names.len() > 15, "{names:?}");
    names
}

#[test]
fn doctor_fits_a_screen_and_keeps_secrets() {
    let home = Folder::new("doctor");
    let call = |args: &[&str]| {
        let mut call = command(args);
        call.env("HOME", &home.0).env("HF_TOKEN", "hf_verysecret").env_remove("HF_HOME").env_remove("HF_HUB_CACHE");
        call.env_remove("XDG_CACHE_HOME").env("HOLOGRAM_CACHE", home.path("kernels"));
        let output = call.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let report = call(&["doctor"]);
    let names: Vec<&str> = report.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    for name in ["hologram", "system", "kernels", "models", "environment", "cpu", "self-test", "reference"] {
        assert!(names.contains(&name), "{name} is not in\n{report}");
    }
    for words in [env!("CARGO_PKG_VERSION"), std::env::consts::ARCH, "HF_TOKEN=(set)", "random program", "all right"] {
        assert!(report.contains(words), "{words} is not in\n{report}");
    }
    assert!(report.lines().count() <= 24, "more than a screen:\n{report}");
    assert!(!report.contains("verysecret"), "{report}");
    #[cfg(unix)]
    assert!(report.contains("~/kernels: 0 entries") && !report.contains(&home.path("")), "{report}");
    // Every kind of device is there, or the reason why it is not.
    for line in ok(&["devices"]).lines() {
        let name = line.split_whitespace().next().unwrap();
        assert!(names.contains(&name), "{name} is not in\n{report}");
    }

    // A cache that cannot be written is named with the reason.
    #[cfg(target_os = "linux")]
    {
        let output = command(&["doctor"]).env("HOLOGRAM_CACHE", "/proc/hologram").output().unwrap();
        assert!(text(&output.stdout).contains("/proc/hologram: cannot be written: "), "{}", text(&output.stdout));
    }

    let object = objects(&call(&["doctor", "--json"])).remove(0);
    let test = &object["tests"][0];
    assert!(test["cases"].as_u64() > Some(0) && test["failed"] == 0, "{object:?}");
    assert_eq!(object["models"]["models"], 0);
    assert_eq!(object["models"]["token"], true);
}

#[test]
fn bash_completes_commands_options_and_values() {
    if cfg!(windows) {
        return;
    }
    let folder = Folder::new("completions");
    let script = folder.write("hologram.bash", ok(&["completions", "bash"]));
    let complete = |words: &[&str]| {
        let line = format!(
            "set -e; source '{script}'; complete -p hologram; COMP_WORDS=({}); COMP_CWORD={}; \
             _hologram hologram '{}' '{}' || true; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.iter().map(|w| format!("'{w}'")).collect::<Vec<_>>().join(" "),
            words.len() - 1,
            words[words.len() - 1],
            words[words.len() - 2],
        );
        let output = Command::new("bash").args(["--norc", "-c", &line]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().map(String::from).collect::<Vec<_>>()
    };
    let all = complete(&["hologram", ""]);
    for name in commands() {
        assert!(all.contains(&name), "{name} is not in {all:?}");
    }
    for (words, want) in [
        (&["hologram", "sel"][..], "selftest"),
        (&["hologram", "run", "--max"], "--max-tokens"),
        (&["hologram", "run", "--kv", ""], "q8"),
        (&["hologram", "bench", "ops", "--de"], "--device"),
    ] {
        assert!(complete(words).contains(&want.to_string()), "{words:?} does not give {want}");
    }
    for shell in ["zsh", "fish", "powershell", "elvish"] {
        assert!(ok(&["completions", shell]).contains("perplexity"), "{shell}");
    }
    assert_eq!(ok(&["completions", "Bash"]), ok(&["completions", "bash"]));
    rejected(&["completions", "cmd"], 2, &["'cmd'", "bash"]);
}

#[test]
fn every_command_has_a_man_page() {
    let folder = Folder::new("man");
    let pages = folder.path("pages/man1");
    let said = ok(&["man", &pages]);
    assert!(said.contains(&pages), "{said}");
    for name in commands() {
        let page = fs::read_to_string(format!("{pages}/hologram-{name}.1")).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(page.contains(".TH") && page.contains(".SH SYNOPSIS"), "{name}: {page}");
        let foot = format!("\"hologram {}\"", env!("CARGO_PKG_VERSION"));
        assert!(page.lines().any(|line| line.starts_with(".TH") && line.contains(&foot)), "{name}: {page}");
    }
    let page = fs::read_to_string(format!("{pages}/hologram-run.1")).unwrap();
    for words in ["\\-\\-max\\-tokens", "Sampling temperature"] {
        assert!(page.contains(words), "{words} is not in {page}");
    }
    // Where there is groff, it has nothing to say against them.
    let roff = Command::new("groff").args(["-man", "-ww", "-Tutf8", &format!("{pages}/hologram-run.1")]).output();
    if let Ok(output) = roff {
        assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("hologram-run"));
    }
    let file = folder.write("file", "");
    rejected(&["man", &format!("{file}/pages")], 1, &["cannot write man pages into"]);
}
