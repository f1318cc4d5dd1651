//! `pull`, `models`, `rm` and `-m hf:…` against a model hub on this machine.

use std::process::{Command, Output};

use crate::common::{BITNET, Folder, LLAMA, check_rejection, command, text};
use crate::hub_server::{PROXIED, Reply, Repository, Server};
use serde_json::Value;

/// Calls with a home, a cache and a hub of their own.
struct Home {
    folder: Folder,
    address: String,
}

impl Home {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        for name in
            ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY"]
        {
            command.env_remove(name);
        }
        command.env("HOME", &self.folder.0).env("HF_HOME", self.folder.0.join("hf")).env("HF_ENDPOINT", &self.address);
        command.env("OLLAMA_MODELS", self.folder.0.join("ollama")).env("NO_PROXY", "127.0.0.1");
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }
}

fn home(name: &str, server: &Server) -> Home {
    Home { folder: Folder::new(name), address: server.address.clone() }
}

fn repository() -> Repository {
    let llama = std::fs::read(LLAMA).unwrap();
    let mut unknown = llama.clone();
    let at = unknown.windows(5).position(|bytes| bytes == b"llama").unwrap();
    unknown[at..at + 5].copy_from_slice(b"gemma");
    let text: &[u8] = b"A text that somebody called a model, and long enough for one.\n";
    let files = [("tiny-F32.gguf", &llama[..]), ("tiny-Q8_0.gguf", &unknown), ("tiny-Q2_K.gguf", text)];
    Repository::of(&[&files[..], &[("README.md", b"Hello")]].concat())
}

const MODEL: &str = "hf:some/model";

#[test]
fn models_are_pulled_listed_used_and_removed() {
    let files = repository();
    let server = Server::start(move |seen| files.answer(seen));
    let home = home("hub", &server);
    assert!(home.ok(&["models"]).contains("`hologram pull hf:OWNER/NAME` downloads one"));

    // Used without being pulled: Q8_0 comes before F32, and this one is of an unknown family.
    let gemma = home.output(&["run", "-m", MODEL, "Hi"]);
    check_rejection(&"gemma", &Output { stderr: last_line(&gemma.stderr), ..gemma }, 1, &["gemma is not supported"]);
    // A file of the hub that is none is no prompt either.
    let none = home.output(&["run", "hf:some/model:Q2_K", "Hi"]);
    let said = text(&none.stderr);
    assert!(said.contains("it is a text, not a model\n") && none.status.code() == Some(1), "{said}");
    home.ok(&["rm", "hf:some/model:Q2_K"]);
    let pulled = home.output(&["pull", "HF:some/model:F32"]);
    let said = text(&pulled.stderr);
    assert!(said.contains("some/model: tiny-F32.gguf") && said.contains("it also has Q8_0"), "{said}");
    let path = text(&pulled.stdout).trim().to_string();
    assert!(path.ends_with("tiny-F32.gguf") && std::fs::read(&path).unwrap() == std::fs::read(LLAMA).unwrap());

    // The name does what the path does, in every command that takes a model, without the network.
    let sent = server.seen.lock().unwrap().len();
    let name = format!("{MODEL}:f32");
    let out = home.folder.path("logits.npy");
    let words = home.folder.write("text.txt", "once upon a time ".repeat(20));
    let fixed = ["--device", "cpu", "-t", "1"];
    for (first, rest) in [
        (&["run"][..], &["once upon", "-n", "6", "--temp", "0"][..]),
        (&["tokenize"], &["once upon"]),
        (&["inspect"], &[]),
        (&["logits"], &["--tokens", "1,5", "--out", &out]),
        (&["perplexity"], &["--file", &words, "--ctx", "16"]),
    ] {
        let call = |model: &[&str]| {
            let device: &[&str] = if ["tokenize", "inspect"].contains(&first[0]) { &[] } else { &fixed };
            home.ok(&[first, model, rest, device].concat())
        };
        let by_path = call(&[path.as_str()]);
        assert_eq!(call(&["-m", &name]), by_path, "{first:?}");
        assert_eq!(call(&[&name]), by_path, "{first:?}");
    }
    assert!(home.ok(&[&["bench", "-m", &name, "-p", "4", "-n", "2", "-r", "1"], &fixed[..]].concat()).contains("tg2"));
    assert_eq!(server.seen.lock().unwrap().len(), sent);

    // Other programs' models are listed too.
    let digits = "d".repeat(64);
    let tag = home.folder.0.join("ollama/manifests/registry.ollama.ai/library/tiny");
    std::fs::create_dir_all(&tag).unwrap();
    std::fs::create_dir_all(home.folder.0.join("ollama/blobs")).unwrap();
    let manifest = r#"{"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:DIGITS"}]}"#;
    std::fs::write(tag.join("latest"), manifest.replace("DIGITS", &digits)).unwrap();
    std::fs::copy(LLAMA, home.folder.0.join(format!("ollama/blobs/sha256-{digits}"))).unwrap();
    let studio = home.folder.0.join(".lmstudio/models/someone/Bit");
    std::fs::create_dir_all(&studio).unwrap();
    std::fs::copy(BITNET, studio.join("bit-TQ2_0.gguf")).unwrap();
    let listed: Vec<Value> = home.ok(&["models", "--json"]).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let rows: Vec<(&str, &str, bool)> = listed
        .iter()
        .map(|m| (m["name"].as_str().unwrap(), m["family"].as_str().unwrap_or("?"), m["runs"].as_bool().unwrap()))
        .collect();
    let names = [format!("{MODEL}:F32"), format!("{MODEL}:Q8_0")];
    assert_eq!(
        rows,
        [
            (names[0].as_str(), "llama", true),
            (&names[1], "gemma", false),
            ("tiny:latest", "llama", true),
            // It has no tokenizer.
            ("someone/Bit/bit-TQ2_0.gguf", "bitnet-b1.58", false),
        ]
    );
    let table = home.ok(&["models"]);
    assert!(table.contains("does not run: architecture gemma is not supported"), "{table}");

    let removed = home.ok(&["rm", &names[1]]);
    assert!(removed.starts_with("removed hf:some/model:Q8_0: 1 file, "), "{removed}");
    assert!(std::path::Path::new(&path).exists());
    home.ok(&["rm", MODEL]);
    assert!(!std::path::Path::new(&path).exists());
    for args in [&["rm", MODEL][..], &["rm", "some/other"]] {
        check_rejection(&args, &home.output(args), 1, &["is not in the cache; `hologram models` lists what is"]);
    }
}

fn last_line(bytes: &[u8]) -> Vec<u8> {
    let text = text(bytes);
    format!("{}\n", text.lines().last().unwrap_or_default()).into_bytes()
}

#[test]
fn settings_are_obeyed_and_errors_say_what_to_do() {
    let files = repository();
    let server = Server::start(move |seen| match seen.headers.get("authorization").map(String::as_str) {
        Some("Bearer hf_good") => files.answer(seen),
        Some(_) => Reply::status(401).header("x-error-message", "Invalid credentials"),
        None => Reply::status(401).header("x-error-code", "GatedRepo"),
    });
    let home = home("settings", &server);
    let call =
        |set: &[(&str, &str)], name: &str| home.command(&["pull", name]).envs(set.iter().copied()).output().unwrap();
    let token = home.folder.write("token", "hf_good\n");
    for (set, name, code, message) in [
        (&[][..], "a/b", 1, "a/b is gated: accept its terms on http://127.0.0.1"),
        (&[("HF_TOKEN", "hf_bad")], "a/b", 1, "rejects the token of HF_TOKEN: Invalid credentials"),
        (&[("HF_HUB_OFFLINE", "1")], "a/b", 1, "a/b is not in the cache, and HF_HUB_OFFLINE is set"),
        (&[("HF_ENDPOINT", "huggingface.co")], "a/b", 1, "it must begin with https://"),
        (&[("HF_ENDPOINT", "https://127.0.0.1:9"), ("SSL_CERT_FILE", &token)], "a/b", 1, "no certificate in PEM form"),
        (&[], "a", 2, "it must be hf:OWNER/NAME"),
        (&[], "a/../b", 2, "it must be hf:OWNER/NAME"),
        (&[("HF_TOKEN", "hf_good")], "some/model:Q3_K", 1, "has no model of type Q3_K; it has Q8_0"),
    ] {
        check_rejection(&set, &call(set, name), code, &[message]);
    }
    // Below a file there is no room for folders.
    let nowhere = call(&[("HF_TOKEN", "hf_good"), ("HF_HOME", &format!("{token}/hf"))], "some/model:F32");
    let said = text(&nowhere.stderr);
    assert!(said.contains("cannot create ") && said.ends_with("; HF_HOME names another place\n"), "{said}");
    for set in [("HF_TOKEN", "hf_good"), ("HF_TOKEN_PATH", &token)] {
        assert!(call(&[set], "some/model:F32").status.success(), "{set:?}");
        home.ok(&["rm", "some/model"]);
    }
    // Through a proxy, which is the server itself, to a hub that has no address.
    let set = [("HF_TOKEN", "hf_good"), ("HTTP_PROXY", server.address.as_str()), ("HF_ENDPOINT", "http://hub.invalid")];
    let output = call(&set, "some/model:F32");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(server.sent() >= PROXIED);
    let cache = home.folder.0.join("hf/hub/models--some--model");
    assert!(cache.is_dir());
    let elsewhere = home.folder.path("elsewhere");
    assert!(call(&[("HF_TOKEN", "hf_good"), ("HF_HUB_CACHE", &elsewhere)], "some/model:F32").status.success());
    assert!(std::path::Path::new(&elsewhere).join("models--some--model").is_dir());
}
