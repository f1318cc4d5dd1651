//! The built command as people call it who come from other tools: models and prompts by position, llama.cpp's short
//! options.

use std::fs;

use crate::common::*;
use serde_json::Value;

/// A model that continues text, and a chat model.
const PLAIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/rust-docs-bitnet.gguf");
const CHAT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hologram-llm/tests/fixtures/chat-tiny.gguf");

const ON: [&str; 4] = ["--device", "cpu", "-t", "1"];
const GREEDY: [&str; 2] = ["--temp", "0"];

fn called(args: &[&str]) -> String {
    ok(&[args, &ON, &GREEDY].concat())
}

#[test]
fn models_and_prompts_are_where_people_put_them() {
    let folder = Folder::new("typed");
    let file = folder.write("prompt.txt", "A closure in Rust is\n");
    let want = called(&["run", "-m", PLAIN, "A closure in Rust is", "-n", "8"]);
    assert!(want.len() > 8, "{want}");
    for args in [
        &["run", PLAIN, "A closure in Rust is", "-n", "8"][..],
        &["run", "A closure in Rust is", "--model", PLAIN, "--max-tokens", "8"],
        &["run", "-m", PLAIN, "-p", "A closure in Rust is", "-n", "8", "-c", "64", "-s", "3"],
        &["run", PLAIN, "-f", &file, "-n", "8"],
        &["run", "A closure in Rust is", "-n", "8"],
        &["run", PLAIN, "--raw", "A closure in Rust is", "-n", "8"],
    ] {
        assert_eq!(called(args), want, "{args:?}");
    }
    let piped = with_input(&[&["run", PLAIN, "-n", "8"][..], &ON, &GREEDY].concat(), b"A closure in Rust is\n");
    assert_eq!(text(&piped.stdout), want);
}

/// A path is never a prompt, and two prompts are none.
#[test]
fn what_cannot_be_meant_is_explained() {
    for (args, code, message) in [
        (&["run", "none.gguf"][..], 1, "cannot open none.gguf"),
        (&["run", "/no/such/model"], 1, "cannot open /no/such/model"),
        (&["run", PLAIN], 2, "the prompt on standard input is empty"),
        (&["run", "none.gguf", "Hi"], 1, "cannot open none.gguf"),
        (&["run", "Qwen/Qwen3-0.6B", "Hi"], 2, "-m hf:Qwen/Qwen3-0.6B takes it from Hugging Face"),
        (&["run", "-m", "hf:Qwen3-0.6B", "Hi"], 2, "it must be hf:OWNER/NAME"),
        (&["run", "https://huggingface.co/a/b/resolve/main/c.gguf", "Hi"], 2, "give hf:a/b:c.gguf instead"),
        (&["run", "-m", PLAIN, CHAT], 2, "one model at a time"),
        (&["run", PLAIN, "Hi", "-p", "Ho"], 2, "give one prompt"),
        (&["run", PLAIN, "-f", "none.txt"], 1, "none.txt"),
        (&["run", PLAIN, "-f", "x", "-p", "y"], 2, "cannot be used with"),
        (&["chat", "--json"], 2, "--json takes a question"),
        (&["chat", CHAT, "a", "-p", "b"], 2, "give one question"),
        (&["chat", CHAT, "-f", "missing.txt"], 1, "missing.txt"),
        (&["chat", CHAT, "a", "b"], 2, "put the prompt in quotes"),
    ] {
        rejected(args, code, &[message]);
    }
}

/// `run` asks a chat model in its own format, which is a conversation's first turn; `--raw` does not, and knows control
/// tokens.
#[test]
fn chat_models_are_asked_by_their_template() {
    let asked = called(&["run", CHAT, "Hello", "-n", "12"]);
    let talked = with_input(&[&["chat", CHAT, "-n", "12"][..], &ON, &GREEDY].concat(), b"Hello\n");
    assert_eq!(text(&talked.stdout), asked);
    assert_ne!(called(&["run", CHAT, "Hello", "-n", "12", "--raw"]), asked);
    assert_eq!(called(&["chat", CHAT, "Hello", "-n", "12"]), asked);
    assert_eq!(called(&["chat", CHAT, "-p", "Hello", "-n", "3", "-n", "12"]), asked);
    let json = called(&["chat", "-m", CHAT, "Hello", "-n", "12", "--json"]);
    let object: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(format!("{}\n", object["text"].as_str().unwrap()), asked);
    assert!(object["generated_tokens"].as_u64().unwrap() > 0 && object["prompt_tokens"].as_u64().unwrap() > 4);
    // The same tokens, spelled out.
    let count = |prompt: &str| {
        let json = called(&["run", CHAT, "--raw", prompt, "-n", "1", "--json"]);
        serde_json::from_str::<Value>(&json).unwrap()["prompt_tokens"].as_u64().unwrap()
    };
    let token = control_token();
    assert!(count(&token) <= 2, "{token} is one token, after BOS");
}

/// A control token of the chat model.
fn control_token() -> String {
    let shown = ok(&["inspect", CHAT]);
    let bytes = fs::read(CHAT).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    ["<|im_start|>", "<|eot_id|>", "<|endoftext|>", "</s>", "<s>"]
        .into_iter()
        .find(|token| text.contains(token))
        .unwrap_or_else(|| panic!("no control token in {shown}"))
        .to_string()
}

/// A sampled text can be repeated: its seed is shown, and is a number that readers of JSON keep.
#[test]
fn seeds_are_shown() {
    let run = |more: &[&str]| {
        let output = command(&[&["run", PLAIN, "A", "-n", "6"][..], &ON, more].concat()).output().unwrap();
        (text(&output.stdout), text(&output.stderr))
    };
    let (first, err) = run(&[]);
    let seed = err.trim_end().rsplit("; seed ").next().unwrap().to_string();
    assert!(seed.parse::<u64>().unwrap() < 1 << 53, "{err}");
    assert_eq!(run(&["-s", &seed]).0, first);
    assert!(!run(&GREEDY).1.contains("seed"));
    let of_chat = command(&[&["chat", CHAT, "Hi", "-n", "2", "-s", "5"][..], &ON].concat()).output().unwrap();
    assert!(text(&of_chat.stderr).ends_with("; seed 5\n"), "{}", text(&of_chat.stderr));
    // llama.cpp's way to ask for another one each time.
    assert_ne!(run(&["-s", "-1"]).1.rsplit("; seed ").next(), run(&["-s", "-1"]).1.rsplit("; seed ").next());
}

/// What llama.cpp's users type means the same here.
#[test]
fn defaults_and_orders_of_llama_cpp_are_known() {
    let folder = Folder::new("known");
    let want = ok(&["run", CHAT, "Hello", "-n", "6", "--device", "cpu", "--temp", "0"]);
    let call = ["run", CHAT, "Hello", "-n", "6", "--device", "cpu", "--temp", "0", "-c", "0", "-t", "-1"];
    assert_eq!(ok(&call), want);
    let talked = with_input(&["chat", CHAT, "-n", "2", "--device", "cpu", "-c", "0"], b"Hello\n/stats\n");
    let context = serde_json::from_str::<Value>(&ok(&["inspect", CHAT, "--json"])).unwrap();
    let context = context["metadata"]["llama.context_length"].as_u64().unwrap();
    assert!(text(&talked.stderr).contains(&format!(" of {context} positions")), "{}", text(&talked.stderr));
    // llama-quantize IN OUT TYPE.
    let [by_word, by_option] = ["word.gguf", "option.gguf"].map(|name| folder.path(name));
    ok(&["quantize", CHAT, &by_word, "Q4_0", "-t", "-1"]);
    ok(&["quantize", CHAT, &by_option, "--type", "Q4_0"]);
    assert!(fs::read(by_word).unwrap() == fs::read(by_option).unwrap());
    // The model may stand first, as with `run`.
    let bert = concat!(env!("CARGO_MANIFEST_DIR"), "/../hologram-llm/tests/fixtures/bert/model.gguf");
    let vectors = ok(&["embed", "-m", bert, "hi", "there", "--device", "cpu"]);
    assert_eq!(ok(&["embed", bert, "hi", "there", "--device", "cpu"]), vectors);
}

/// A reader of the output that goes away ends the command as it does other programs.
#[cfg(unix)]
#[test]
fn a_closed_output_ends_the_command_quietly() {
    use std::process::Stdio;

    let call = ["run", PLAIN, "A closure in Rust is", "-n", "2000", "-c", "4096", "--temp", "0"];
    let mut child = command(&[&call[..], &ON].concat()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(141) && !said.contains("hologram: "), "{:?}: {said}", output.status);
}

/// Without a command: a fixed sample that says what to try next.
#[test]
fn the_first_call_shows_what_to_try_next() {
    let outputs = [(); 2].map(|()| command(&[]).output().unwrap());
    assert!(outputs.iter().all(|o| o.status.success()) && !outputs[0].stdout.is_empty());
    if hologram_backends::available_backends()[0] == hologram_backends::BackendType::Cpu {
        assert_eq!(outputs[0].stdout, outputs[1].stdout);
    }
    let err = text(&outputs[0].stderr);
    assert!(err.contains("\nNext: hologram chat hf:Qwen/") && err.ends_with("everything else\n"), "{err}");
}

/// A kernel's author sees what a device is given, and how long it takes.
#[test]
fn programs_are_timed_and_shown() {
    let folder = Folder::new("timed");
    let two = folder.write(
        "two.atlas",
        "kernel two(out: buffer<u32, write>) workgroup(4, 2, 2) {\n  %x = global.x\n  %y = global.y\n  %z = global.z\n  \
         %a = mul.u32 %z, 6\n  %a = add.u32 %a, %y\n  %a = mul.u32 %a, 8\n  %a = add.u32 %a, %x\n  store.u32 out[%a], %a\n}\n",
    );
    for device in ["cpu", "reference"] {
        let call = ["exec", &two, "--grid", "2,3,2", "--arg", "out=out:u32[192]", "--device", device, "--time"];
        let shown = ok(&call);
        assert!(shown.starts_with("out = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, …"), "{shown}");
        let time = shown.lines().last().unwrap();
        assert!(time.contains(" us per run on ") && time.contains("(median of 20; "), "{time}");
    }
    assert!(ok(&["exec", &two, "--emit", "ptx"]).contains(".target sm_90"));
    assert!(ok(&["exec", &two, "--emit", "msl"]).contains("#include <metal_stdlib>"));
    rejected(&["exec", &two, "--emit", "ptx", "--grid", "1"], 2, &["cannot be used with"]);
    rejected(&["exec", &two, "--emit", "spirv"], 2, &["ptx"]);
}
