//! The built command: chat, tokenize and perplexity.

use std::fs;
use std::path::Path;

use crate::common::*;
use hologram_llm::gguf::{GgufFile, GgufWriter, NewTensor};

/// Random weights with a vocabulary and a chat template; replies end after some tokens.
const CHAT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hologram-llm/tests/fixtures/chat-tiny.gguf");
const HF_BPE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hologram-llm/tests/fixtures/hf-bpe");

/// Standard output and stderr of a conversation of these lines.
fn talk(args: &[&str], lines: &str) -> (String, String) {
    let args = [&["chat", "-m", CHAT, "--device", "cpu", "--threads", "1"], args].concat();
    let output = with_input(&args, lines.as_bytes());
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

const GREEDY: [&str; 2] = ["--temperature", "0"];

#[test]
fn a_conversation_goes_on_from_its_cache() {
    let (out, err) = talk(&GREEDY, "Hello\n/stats\nWhat is 1+1?\n\n/stats\n/quit\nnot said\n");
    assert!(!out.contains('\x1b') && !err.contains('\x1b'), "no colours in a pipe: {out:?} {err:?}");
    let figures: Vec<&str> = err.lines().filter(|l| l.starts_with("prompt: ")).collect();
    assert_eq!(figures.len(), 2, "{err}");
    assert!(!figures[0].contains("of them cached") && figures[1].contains("of them cached"), "{figures:?}");
    assert!(figures[1].contains("context: "), "{figures:?}");
    // The second reply depends on the first turn and equals that without a cache.
    let (once, _) = talk(&GREEDY, "Hello\n");
    assert!(out.starts_with(&once) && out.len() > once.len(), "{out:?} does not begin with {once:?}");
    let (alone, _) = talk(&GREEDY, "What is 1+1?\n");
    assert_ne!(out[once.len()..], alone, "the first turn is part of the conversation");
    let (cleared, _) = talk(&GREEDY, "Hello\n/clear\nWhat is 1+1?\n");
    assert_eq!(cleared, format!("{once}{alone}"), "/clear forgets it");
}

#[test]
fn replies_are_repeatable_and_can_be_written_anew() {
    let seed = ["--seed", "5"];
    let (first, _) = talk(&seed, "Hello\n/regenerate\n");
    assert_eq!(talk(&seed, "Hello\n/regenerate\n").0, first);
    let (once, _) = talk(&seed, "Hello\n");
    assert!(first.starts_with(&once));
    assert_ne!(first[once.len()..], once, "another seed each time");
    // A prompt at once and a token after a cached prompt may be computed in different precisions, so replies may differ
    // at some point, but not from the start.
    let (next, _) = talk(&["--seed", "6"], "Hello\n");
    assert_eq!(next.chars().take(8).collect::<String>(), first[once.len()..].chars().take(8).collect::<String>());
    // A regenerated reply replaces the old one.
    let (greedy, err) = talk(&GREEDY, "Hello\n/regenerate\n/stats\n");
    let half = greedy.len() / 2;
    assert_eq!(greedy[..half], greedy[half..], "{err}");
}

/// A long conversation goes on without its oldest turns, which is said.
#[test]
fn a_full_context_drops_the_oldest_turns() {
    let lines = "Hello there\n".repeat(8);
    let (_, err) = talk(&[&GREEDY[..], &["--ctx", "96", "-n", "8"]].concat(), &format!("{lines}/stats\n"));
    assert!(err.contains("note: the context is full: the oldest 2 turns dropped\n"), "{err}");
    assert!(err.lines().last().unwrap().starts_with("prompt: "), "{err}");
}

/// `/save`, `/load` and `/set`.
#[test]
fn conversations_are_saved_and_settings_changed() {
    let folder = Folder::new("saved");
    let file = folder.path("talk.json");
    let turns = |name: &str, roles: &[&str]| {
        let turns: Vec<_> = roles.iter().map(|role| serde_json::json!({"role": role, "content": "Hi"})).collect();
        folder.write(name, serde_json::to_vec(&turns).unwrap())
    };
    let bad = turns("bad.json", &["user"]);
    let twice = turns("twice.json", &["system", "system", "user", "assistant"]);
    let out_of_turn = turns("turn.json", &["system", "user", "user", "assistant"]);
    let tool = turns("tool.json", &["user", "tool"]);
    let system = ["--temperature", "0", "--system", "Be brief."];
    let (whole, err) = talk(&system, &format!("Hello\n/save {file}\nWhat is 1+1?\n"));
    assert!(err.contains("(3 messages)"), "{err}");
    let (once, _) = talk(&system, "Hello\n");
    let (next, err) = talk(&GREEDY, &format!("/load {file}\n/system\nWhat is 1+1?\n"));
    assert!(err.contains("loaded 2 turns\nBe brief.\n"), "{err}");
    assert_eq!(whole, format!("{once}{next}"));
    let (set, err) = talk(&[], "/set temp 0\n/set max-tokens none\n/set\n/set max-tokens 3\n/set\nHello\n");
    assert!(err.contains("max-tokens unlimited"), "{err}");
    assert!(err.contains("temperature 0, top-k 40, top-p 0.95, typical-p 1, min-p 0, repeat-penalty 1, "), "{err}");
    assert!(err.contains("max-tokens 3, think show\n") && once != set, "{err}");
    // As other tools write them; alone, a setting is shown.
    let lines = "/Help\n/set temperature=0.5\n/set temp\n/set max_tokens 5\n/set max-tokens\n/set SEED 2\n/set seed\n";
    let (_, err) = talk(&[], lines);
    for shown in ["/regenerate    generate", "temperature 0.5\n", "max-tokens 5\n", "seed 2\n"] {
        assert!(err.contains(shown), "{shown}: {err}");
    }
    let seeds = |lines: &str| talk(&["--seed", "7"], lines).1;
    let (random, again) = (seeds("/set seed random\n/set seed\n"), seeds("/set seed -1\n/set seed\n"));
    assert!(!random.contains("seed 7\n") && random != again, "{random}{again}");
    let model = folder.path("model.gguf");
    fs::copy(CHAT, &model).unwrap();
    #[cfg(unix)]
    let link = folder.path("link");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&model, &link).unwrap();
    for (line, message) in [
        (format!("/save {model}\n"), "model.gguf is also read; write to another name"),
        #[cfg(unix)]
        (format!("/save {link}\n"), "link is also read; write to another name"),
        (format!("/load {bad}\n"), "must alternate, and the last must be the assistant's"),
        (format!("/load {twice}\n"), "message 2 is a system prompt, which only the first may be"),
        (format!("/load {out_of_turn}\n"), "must alternate, but message 3 is the user's out of turn"),
        (format!("/load {tool}\n"), "message 2 has the role tool, not system, user or assistant"),
        ("/load none.json\n".into(), "none.json"),
        ("/set colour red\n".into(), "there is no setting colour"),
        ("/set temp hot\n".into(), "temperature is hot, but must be a number, 0 or more"),
        ("/set top-p 3\n".into(), "top-p is 3"),
        ("/set max-tokens 99999999999999999999\n".into(), "which is too large: it must be a whole number from 0 to"),
        ("/set temp inf\n".into(), "temperature is inf, but must be a finite number, 0 or more"),
        ("/set temprature 1\n".into(), "there is no setting temprature: did you mean temperature?"),
        ("/set num_ctx 99\n".into(), "the context is set when the chat begins: hologram chat -c N"),
        ("/hlep\n".into(), "unknown command /hlep: did you mean /help? /help lists the commands"),
        ("/frobnicate\n".into(), "unknown command /frobnicate; /help lists the commands"),
        ("/set think aloud\n".into(), "it is show, hide or off"),
        ("/save /no/such/folder/x\n".into(), "/no/such/folder/x"),
    ] {
        let output = with_input(&["chat", "-m", &model, "--device", "cpu"], line.as_bytes());
        assert!(output.status.code() == Some(1) && text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
    assert!(fs::read(&model).unwrap() == fs::read(CHAT).unwrap());
}

/// Words that end other programs are not sent to the model, unless between quotes.
#[test]
fn quit_without_its_slash_is_answered_with_how_to_quit() {
    let few = [&GREEDY[..], &["-n", "3"]].concat();
    let (out, err) = talk(&few, "exit\nquit\n");
    assert_eq!(out, "");
    for word in ["exit", "quit"] {
        let hint = format!("(/{word} or Ctrl-D to quit; \"\"\"{word}\"\"\" sends the word to the model)\n");
        assert!(err.contains(&hint), "{err}");
    }
    assert_ne!(talk(&few, "\"\"\"exit\"\"\"\n").0, "");
}

/// A message between quotes has several lines.
#[test]
fn messages_of_several_lines() {
    let folder = Folder::new("lines");
    let (mut turns, file) = (Vec::new(), folder.path("talk.json"));
    for (lines, message) in [
        ("\"\"\"Hello\n  there\n\"\"\"\n", "Hello\n  there"),
        ("\"\"\"\nHello\nthere\"\"\"\n", "Hello\nthere"),
        ("\"\"\"Hello\"\"\"\n", "Hello"),
        ("Hello \\\n", "Hello \\"),
    ] {
        talk(&[&GREEDY[..], &["-n", "1"]].concat(), &format!("{lines}/save {file}\n"));
        let saved: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        turns.push((saved[0]["content"].as_str().unwrap().to_string(), message));
    }
    assert!(turns.iter().all(|(got, want)| got == want), "{turns:?}");
}

/// The thoughts of a reasoning model are shown or hidden. This one's template begins them.
#[test]
fn thoughts_are_shown_or_hidden() {
    let folder = Folder::new("thoughts");
    let mut model = std::fs::read(CHAT).unwrap();
    let plain = br"    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}";
    let thinks = br" {{- '<|start_header_id|>assistant<|end_header_id|><think>' }}";
    let at = model.windows(plain.len()).position(|bytes| bytes == plain).unwrap();
    model[at..at + plain.len()].copy_from_slice(thinks);
    let model = folder.write("thinks.gguf", model);
    let call = |more: &[&str]| {
        let output = command(&[&["chat", &model, "Hello", "--device", "cpu", "-n", "8"], &GREEDY[..], more].concat());
        let output = { output }.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    // The tag that the template wrote is printed too.
    let (shown, _) = call(&[]);
    let thoughts = shown.strip_prefix("<think>\n").unwrap_or_else(|| panic!("{shown}")).trim_end_matches('\n');
    assert!(thoughts.trim().len() > 4);
    let (hidden, said) = call(&["--think", "hide"]);
    assert_eq!(hidden, "\n");
    assert!(said.contains("note: the 8 tokens are thoughts, which --think hides: a greater -n leaves room"), "{said}");
    let apart = |json: &str| {
        let object: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!((object["text"].as_str(), object["thinking"].as_str()), (Some(""), Some(thoughts)));
        assert_eq!(object["finish"].as_str(), Some("max tokens"));
    };
    let (hidden, note) = call(&["--think", "off", "--json"]);
    apart(&hidden);
    apart(&call(&["--json"]).0);
    assert!(note.contains("cannot turn thinking off"), "{note}");
    let of_run = |think: &str| {
        ok(&[&["run", &model, "Hello", "--device", "cpu", "-n", "8", "--think", think], &GREEDY[..]].concat())
    };
    assert_eq!((of_run("show"), of_run("hide")), (shown.clone(), "\n".into()));
    apart(&ok(&[&["run", &model, "Hello", "--device", "cpu", "-n", "8", "--json"], &GREEDY[..]].concat()));
}

#[test]
fn replies_have_a_length() {
    let (whole, _) = talk(&GREEDY, "Hello\n");
    let (cut, err) = talk(&[&GREEDY[..], &["--max-tokens", "2"]].concat(), "Hello\n/stats\n");
    assert!(whole.starts_with(cut.trim_end_matches('\n')) && cut.len() < whole.len(), "{cut:?} of {whole:?}");
    assert!(err.contains("(cut off by --max-tokens)") && err.contains("generated: 2 tokens"), "{err}");
    let (_, err) = talk(&["--ctx", "30000"], "");
    assert!(err.contains("note: the model was trained for"), "{err}");
}

#[test]
fn system_texts() {
    let (plain, _) = talk(&GREEDY, "Hello\n");
    let (told, err) = talk(&[&GREEDY[..], &["--system", "Be brief."]].concat(), "/system\nHello\n");
    assert!(told != plain && err.contains("Be brief.\n"), "{err}");
    assert_eq!(talk(&GREEDY, "/system Be brief.\nHello\n").0, told);
    let rejection = "the chat template rejects the conversation: This model takes no such system text.";
    rejected(&["chat", "-m", CHAT, "--system", "refuse"], 1, &[rejection]);
    let output = with_input(&["chat", "-m", CHAT, "--device", "cpu"], b"/system refuse\n");
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains(rejection));
    let (_, err) = talk(&[], "/help\n/stats\n/system\n");
    for said in ["/regenerate    generate", "no reply yet", "no system prompt\n"] {
        assert!(err.contains(said), "{err}");
    }
}

#[test]
fn conversations_that_cannot_be() {
    let shipped = ["has no chat template", "use `hologram run` to continue a text"];
    rejected(&["chat"], 2, &["give a chat model: hologram chat MODEL.gguf"]);
    rejected(&["chat", LLAMA], 1, &shipped);
    rejected(&["chat", "-m", LLAMA], 1, &shipped);
    rejected(&["chat", "-m", BITNET], 1, &["the file has no tokenizer"]);
    rejected(&["chat", "-m", "none.gguf"], 1, &["cannot open none.gguf"]);
    rejected(&["chat", "-m", CHAT, "--min-p", "2"], 2, &["--min-p is 2"]);
    let talk =
        |args: &[&str], lines: &[u8]| with_input(&[&["chat", "-m", CHAT, "--device", "cpu"], args].concat(), lines);
    let long = talk(&["--ctx", "16"], b"a long first turn that does not fit into so short a context\n");
    let message = text(&long.stderr);
    assert!(long.status.code() == Some(1) && message.contains("context holds 16"), "{message}");
    // In a pipe later lines continue after /clear makes room; the exit code reports a line without a reply.
    let long = talk(&["--ctx", "24", "--max-tokens", "3"], b"a long first turn that does not fit at all\n/clear\nHi\n");
    let message = text(&long.stderr);
    assert!(long.status.code() == Some(1) && !long.stdout.is_empty(), "{message}");
    assert!(
        message.contains("context holds 24") && message.contains("; /clear starts a new conversation\n"),
        "{message}"
    );
    assert!(message.ends_with("hologram: 1 line failed\n"), "{message}");
    // So does every other faulty line, while an unfinished message gets no reply.
    let faulty = talk(&["--max-tokens", "3"], b"/frob\n/set temp hot\n/regenerate\n\nHi\n");
    let message = text(&faulty.stderr);
    assert!(faulty.status.code() == Some(1) && !faulty.stdout.is_empty(), "{message}");
    for said in
        ["unknown command /frob; /help", "temperature is hot", "no reply yet to generate again", "3 lines failed\n"]
    {
        assert!(message.contains(said), "{message}");
    }
    let open = talk(&[], b"\"\"\"Hello\nthere\n");
    let message = text(&open.stderr);
    assert!(open.status.code() == Some(1) && open.stdout.is_empty(), "{message}");
    assert!(message.ends_with("the input ends within a message: \"\"\" must end what \"\"\" begins\n"), "{message}");
    // In a block nothing is a command.
    let block = talk(&["--max-tokens", "3"], b"\"\"\"\n/quit\n\"\"\"\n/frob\n");
    let message = text(&block.stderr);
    assert!(!block.stdout.is_empty() && message.contains("unknown command /frob"), "{message}");
    let bytes = talk(&["--max-tokens", "3"], b"caf\xe9\n/save\n/load -\n/clear now\nHi\n");
    let message = text(&bytes.stderr);
    assert!(bytes.status.code() == Some(1) && !bytes.stdout.is_empty(), "{message}");
    for said in [
        "a line is not UTF-8",
        "/save needs a file: /save FILE",
        "/load needs a file: /load FILE",
        "/clear stands alone",
        "4 lines failed\n",
    ] {
        assert!(message.contains(said), "{message}");
    }
    let folder = Folder::new("template");
    let mut file = fs::read(CHAT).unwrap();
    let at = file.windows(9).position(|w| w == b"{%- endif").unwrap();
    file[at..at + 9].copy_from_slice(b"{%- endof");
    let path = folder.write("broken.gguf", &file);
    rejected(&["chat", "-m", &path], 1, &["broken.gguf: the chat template has an error in line 5"]);
    // All of it is a comment.
    let key = b"tokenizer.chat_template";
    let at = file.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    let length = u64::from_le_bytes(*file[at..].first_chunk().unwrap()) as usize;
    let template = &mut file[at + 8..at + 8 + length];
    template.fill(b' ');
    template[..2].copy_from_slice(b"{#");
    template[length - 2..].copy_from_slice(b"#}");
    let path = folder.write("empty.gguf", file);
    rejected(&["chat", "-m", &path], 1, &["the chat template produces no text"]);
}

/// Ctrl-C stops a reply, not the program.
#[cfg(unix)]
#[test]
fn an_interrupt_stops_the_reply_only() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::process::Stdio;
    // A negative penalty favours frequent tokens: the reply repeats part of the question until the context is full.
    let args = ["chat", "-m", CHAT, "--device", "cpu", "--temperature", "0", "--frequency-penalty=-1000"];
    let args = [&args[..], &["--ctx", "30000"]].concat();
    let mut child = command(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    input.write_all(b"page page page page page page page\n").unwrap();
    output.read_exact(&mut [0; 8]).unwrap();
    let interrupt = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    // The rest of the stopped reply; then the program accepts another line.
    let mut rest = Vec::new();
    output.read_until(b'\n', &mut rest).unwrap();
    input.write_all(b"/quit\n").unwrap();
    drop(input);
    output.read_to_end(&mut rest).unwrap();
    let result = child.wait_with_output().unwrap();
    assert!(result.status.success(), "{:?} {}", result.status, text(&result.stderr));
}

/// A file that holds a tower for images says so wherever it is run.
#[test]
fn parts_that_are_not_run_are_named() {
    let folder = Folder::new("not-run");
    let file = GgufFile::open(CHAT).unwrap();
    let mut new: Vec<NewTensor> =
        file.tensors().map(|t| NewTensor { name: t.name().into(), shape: t.shape().to_vec(), ty: t.ty() }).collect();
    let ty = file.tensor("output_norm.weight").unwrap().ty();
    new.push(NewTensor { name: "v.patch_embd.bias".into(), shape: vec![2], ty });
    let path = folder.path("tower.gguf");
    let mut out = GgufWriter::create(Path::new(&path), file.metadata(), &new).unwrap();
    file.tensors().for_each(|t| out.write(t.data()).unwrap());
    out.write(&[0; 8]).unwrap();
    out.finish().unwrap();
    let line = "not run: vision tower (v.*, 1 tensor)\n";
    assert!(ok(&["inspect", &path]).contains(&format!("  {line}")));
    for command in [&["run", "hi", "--max-tokens", "1"][..], &["chat", "--max-tokens", "1"]] {
        let args = [command, &["-m", &path, "--device", "cpu", "--threads", "1"]].concat();
        let output = with_input(&args, b"hi\n");
        assert!(output.status.success() && text(&output.stderr).contains(&format!("note: {line}")), "{output:?}");
    }
    let silent = with_input(&["run", "-m", CHAT, "hi", "--max-tokens", "1", "--device", "cpu"], b"");
    assert!(!text(&silent.stderr).contains("not run"), "{silent:?}");
}

#[test]
fn run_with_penalties_stops_and_json() {
    let run = |args: &[&str]| {
        ok(&[&["run", "-m", LLAMA, "once upon", "--max-tokens", "12", "--threads", "1"], args].concat())
    };
    let plain = run(&["--temperature", "0"]);
    assert_eq!(run(&["--temperature", "0", "--min-p", "0.5", "--repeat-penalty", "1"]), plain);
    let penalised =
        run(&["--temperature", "0", "--repeat-penalty", "5", "--frequency-penalty", "2", "--presence-penalty", "2"]);
    assert_ne!(penalised, plain);
    for args in
        [["--min-p", "0.2"], ["--repeat-penalty", "1.3"], ["--frequency-penalty", "0.5"], ["--presence-penalty", "0.5"]]
    {
        let args = [&["--seed", "3"], &args[..]].concat();
        assert_eq!(run(&args), run(&args), "{args:?}");
    }
    // Generation ends before the text's middle, wherever tokens begin.
    let chars: Vec<char> = plain.trim_end().chars().collect();
    let stop: String = chars[3..6].iter().collect();
    let stopped = run(&["--temperature", "0", "--stop", "never there", "--stop", &stop]);
    assert_eq!(stopped.trim_end_matches('\n'), &plain[..plain.find(&stop).unwrap()]);
    let object = &objects(&run(&["--temperature", "0", "--json", "--stop", &stop]))[0];
    assert_eq!(object["text"].as_str().unwrap(), stopped.trim_end_matches('\n'));
    assert_eq!((object["finish"].as_str(), object["device"].as_str()), (Some("stop"), Some("cpu")));
    assert!(object["prompt_tokens"].as_u64() > Some(0) && object["generated_tokens"].as_u64() > Some(0));
    let object = &objects(&run(&["--seed", "9", "--json"]))[0];
    assert_eq!(object["seed"].as_u64(), Some(9));
    assert_eq!(run(&["--temperature", "0", "--kv", "f32"]), plain);
    for kv in ["f16", "q8", "q4"] {
        assert!(!run(&["--temperature", "0", "--kv", kv]).is_empty());
    }
    for (option, value) in
        [("--repeat-penalty", "0"), ("--presence-penalty", "NaN"), ("--min-p", "-1"), ("--stop", ""), ("--kv", "f7")]
    {
        rejected(&["run", "a", option, value], 2, &[option]);
    }
}

#[test]
fn tokenize_shows_ids_and_pieces() {
    let json = |args: &[&str]| objects(&ok(&[&["tokenize"], args, &["--json"]].concat())).remove(0);
    let spm = json(&[LLAMA, "Once é"]);
    let (ids, pieces) = (spm["ids"].as_array().unwrap(), spm["pieces"].as_array().unwrap());
    assert_eq!((ids.len(), ids[0].as_u64(), pieces[0].as_str()), (pieces.len(), Some(1), Some("<s>")));
    let folder = json(&[HF_BPE, "the page"]);
    let joined: String = folder["pieces"].as_array().unwrap().iter().map(|p| p.as_str().unwrap()).collect();
    assert_eq!(joined, "theĠpage");
    let plain = ok(&["tokenize", HF_BPE, "the page"]);
    assert_eq!(plain.lines().count(), folder["ids"].as_array().unwrap().len());
    let piped = with_input(&["tokenize", HF_BPE], b"the page\n");
    assert_eq!(text(&piped.stdout), plain);
    assert_eq!(ok(&["tokenize", HF_BPE, ""]), "");
    rejected(&["tokenize", BITNET, "a"], 1, &["the file has no tokenizer"]);
    rejected(&["tokenize", "none.gguf", "a"], 1, &["cannot open none.gguf"]);
    rejected(&["tokenize", "a", "b"], 2, &["put the prompt in quotes"]);
    // The built-in model's.
    assert!(json(&["A closure"])["ids"].as_array().unwrap().len() > 1);
    let perplexity = ok(&["perplexity", "--file", "Cargo.toml", "--ctx", "64"]);
    assert!(perplexity.starts_with("perplexity "), "{perplexity}");
    let damaged = Folder::new("damaged");
    damaged.write("tokenizer.json", "{\"model\": ");
    rejected(&["tokenize", damaged.0.to_str().unwrap(), "a"], 1, &["tokenizer.json"]);
}

#[test]
fn perplexity_of_a_text() {
    let folder = Folder::new("perplexity");
    let path = folder.write("text.txt", "The page and the model, once upon a time. ".repeat(40));
    let measure = |args: &[&str]| {
        let args = [&["perplexity", CHAT, "--file", &path, "--device", "cpu", "--json"], args].concat();
        objects(&ok(&args)).remove(0)
    };
    let short = measure(&["--ctx", "64"]);
    let (windows, counted) = (short["windows"].as_u64().unwrap(), short["counted_tokens"].as_u64().unwrap());
    assert!(windows > 2 && counted == windows * 31 && short["tokens"].as_u64().unwrap() >= windows * 64);
    let (nll, perplexity) = (short["nll"].as_f64().unwrap(), short["perplexity"].as_f64().unwrap());
    assert!((nll.exp() / perplexity - 1.0).abs() < 1e-9 && short["error"].as_f64().unwrap() > 0.0);
    // The same value from the logits of a text that is one window.
    let sentence = "The page and the model, once upon a time.";
    let tokens = objects(&ok(&["tokenize", CHAT, sentence, "--json"])).remove(0);
    let window: Vec<usize> = tokens["ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect();
    let list: Vec<String> = window.iter().map(usize::to_string).collect();
    let (one, out, n) = (folder.write("one.txt", sentence), folder.path("logits.npy"), window.len());
    ok(&["logits", CHAT, "--tokens", &list.join(","), "--out", &out, "--device", "cpu"]);
    let logits = read_f32(&out);
    let cost = |i: usize| {
        let row = &logits[i * logits.len() / n..(i + 1) * logits.len() / n];
        row.iter().map(|l| f64::from(*l).exp()).sum::<f64>().ln() - f64::from(row[window[i + 1]])
    };
    let want = (n / 2..n - 1).map(cost).sum::<f64>() / (n - 1 - n / 2) as f64;
    let args = ["perplexity", CHAT, "--file", &one, "--ctx", &n.to_string(), "--device", "cpu", "--json"];
    let got = objects(&ok(&args)).remove(0);
    assert_eq!(got["windows"].as_u64(), Some(1));
    assert!((got["nll"].as_f64().unwrap() - want).abs() < 1e-3 * want, "{got:?}, not {want}");
    assert!(ok(&["perplexity", CHAT, "-f", &path, "--device", "cpu", "-c", "64"]).starts_with("perplexity "));
    rejected(&["perplexity", CHAT, "--file", &path, "--ctx", "4000"], 1, &["fewer than a window of 4000", "--ctx"]);
    rejected(&["perplexity", CHAT, "--file", "none.txt"], 1, &["cannot read none.txt"]);
    let piped = with_input(
        &["perplexity", CHAT, "--file", "-", "--device", "cpu", "--ctx", "64", "--json"],
        &fs::read(&path).unwrap(),
    );
    let piped = objects(&text(&piped.stdout)).remove(0);
    assert_eq!((&piped["nll"], piped["file"].as_str()), (&short["nll"], Some("standard input")));
    rejected(&["perplexity", CHAT, "--file", "-"], 1, &["standard input has", "fewer than a window"]);
    let long = folder.write("long.txt", "The page and the model, once upon a time. ".repeat(80));
    let beyond = command(&["perplexity", CHAT, "--file", &long, "--device", "cpu", "--ctx", "600"]).output().unwrap();
    assert!(text(&beyond.stderr).contains("note: the model was trained for"), "{}", text(&beyond.stderr));
    // Without --ctx a window is no longer than the model's context.
    let mut model = fs::read(CHAT).unwrap();
    let key = b"llama.context_length";
    let at = model.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    model[at..at + 4].copy_from_slice(&100u32.to_le_bytes());
    let model = folder.write("short.gguf", model);
    let own = objects(&ok(&["perplexity", &model, "--file", &path, "--device", "cpu", "--json"])).remove(0);
    assert_eq!((own["ctx"].as_u64(), own["windows"].as_u64()), (Some(100), Some(4)));
    let bytes = folder.write("bytes.txt", b"caf\xe9");
    rejected(&["perplexity", CHAT, "--file", &bytes], 1, &["bytes.txt is not UTF-8"]);
    rejected(&["perplexity", BITNET, "--file", &path], 1, &["the file has no tokenizer"]);
}

/// `--session`: a conversation goes on in another process as if it had not ended, from what was computed.
#[test]
fn sessions_go_on_where_they_ended() {
    let folder = Folder::new("session");
    let file = folder.path("talk.session");
    let lines = ["Hello there, how are you today and tomorrow?", "What is 1+1?", "Again\n/stats"];
    let args = [&GREEDY[..], &["--system", "Be brief.", "-n", "12"]].concat();
    let (whole, _) = talk(&args, &format!("{}\n", lines.join("\n")));
    let kept = [&GREEDY[..], &["-n", "12", "--session", &file]].concat();
    let (first, err) = talk(&[&kept[..], &["--system", "Be brief."]].concat(), &format!("{}\n", lines[0]));
    assert!(err.contains(&format!("saved {file} (2 turns, ")), "{err}");
    let (second, err) = talk(&kept, &format!("/system\n{}\n", lines[1]));
    assert!(err.contains("resumed 2 turns, ") && err.contains("Be brief.\n") && err.contains("(4 turns, "), "{err}");
    let (third, err) = talk(&kept, &format!("{}\n", lines[2]));
    let cached = err.lines().find(|line| line.contains("of them cached")).unwrap_or_else(|| panic!("{err}"));
    let number = |after: &str| -> usize {
        let words = cached.split_once(after).unwrap().1.trim_start();
        words.split(' ').next().unwrap().parse().unwrap()
    };
    // Only the last, incomplete block, the reply's end and the new turn are computed.
    assert!(number("tokens,") + 64 > number("prompt:") && number("tokens,") >= 64, "{cached}");
    assert_eq!(format!("{first}{second}{third}"), whole);
    // What was cleared is gone; the system prompt stays.
    let holds = |text: &str| std::fs::read(&file).unwrap().windows(text.len()).any(|bytes| bytes == text.as_bytes());
    assert!(holds("What is 1+1?"));
    talk(&kept, "/clear\n");
    assert!(!holds("What is 1+1?") && holds("Be brief."));
    let (after, err) = talk(&kept, "What is 1+1?\n");
    assert!(err.contains("the saved conversation is empty\n"), "{err}");
    // As one question, too.
    let question = ok(&[&["chat", CHAT, "Again", "--device", "cpu"], &kept[..]].concat());
    assert!(!question.is_empty() && !after.is_empty());

    // A context without room for all turns drops none from the file, and a message too long for it changes nothing.
    let (_, err) = talk(&[&kept[..], &["--ctx", "96"]].concat(), "A third question, which is somewhat longer\n");
    assert!(err.contains("the context is full: the oldest") && holds("What is 1+1?"), "{err}");
    let before = std::fs::read(&file).unwrap().len();
    let long = format!("{}\n", "long ".repeat(1000));
    let too_long = [&["chat", "-m", CHAT, "--device", "cpu"], &kept[..], &["--ctx", "96"]].concat();
    let output = with_input(&too_long, long.as_bytes());
    let err = text(&output.stderr);
    assert!(!output.status.success() && !err.contains("dropped") && holds("What is 1+1?"), "{err}");
    assert!(std::fs::read(&file).unwrap().len() + 4096 > before);
    // Links stay links, and nothing is read from a pipe.
    #[cfg(unix)]
    {
        let link = folder.path("link.session");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        talk(&[&GREEDY[..], &["-n", "4", "--session", &link]].concat(), "Through a link\n");
        assert!(holds("Through a link") && std::fs::symlink_metadata(&link).unwrap().is_symlink());
        // A link to a file that does not exist yet.
        let (early, target) = (folder.path("early.session"), folder.path("target.session"));
        std::os::unix::fs::symlink("target.session", &early).unwrap();
        talk(&[&GREEDY[..], &["-n", "4", "--session", &early]].concat(), "Early\n");
        assert!(std::fs::symlink_metadata(&early).unwrap().is_symlink() && std::fs::exists(&target).unwrap());
        let pipe = folder.path("pipe.session");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        rejected(&["chat", CHAT, "Hi", "--device", "cpu", "--session", &pipe], 1, &["it is not a regular file"]);
    }

    let mut damaged = std::fs::read(&file).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let bad = folder.write("bad.session", &damaged);
    let call = |session: &str| ["chat", CHAT, "Hi", "--device", "cpu", "--session", session].map(String::from);
    let refuse = |call: &[String], part: &str| {
        let call: Vec<&str> = call.iter().map(String::as_str).collect();
        let before = std::fs::read(call[6]).ok();
        rejected(&call, 1, &[part]);
        assert_eq!(std::fs::read(call[6]).ok(), before, "a refused file is not overwritten");
    };
    refuse(&call(&bad), "bad.session: it is damaged or incomplete");
    refuse(&call(&folder.write("talk.json", "[]")), "talk.json: it is no saved conversation");
    refuse(
        &[&call(&file)[..], &["--kv".into(), "f16".into()]].concat(),
        "saved with a KV cache of f32, but this one is",
    );
    refuse(&call("/no/such/folder/x"), "cannot write /no/such/folder/x");
    let other = folder.path("other.gguf");
    let mut model = std::fs::read(CHAT).unwrap();
    let weights = model.len() / 2;
    model[weights..].iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(&other, model).unwrap();
    let mut foreign = call(&file);
    foreign[1] = other;
    refuse(&foreign, "talk.session: it was saved with another model");
}

/// `--json-schema` and `--grammar` hold for `run` and `chat`; a draft model and guesses change no text.
#[test]
fn texts_conform_and_are_guessed() {
    let folder = Folder::new("conform");
    let schema = r#"{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}"#;
    let file = folder.write("schema.json", schema);
    let device = ["--device", "cpu", "-n", "200", "--seed", "3"];
    for call in [
        ["run", CHAT, "Hello", "--json-schema", schema],
        ["run", CHAT, "Hello", "--json-schema", &file],
        ["chat", CHAT, "Hello", "--json-schema", schema],
    ] {
        let text = ok(&[&call[..], &device].concat());
        let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text:?}"));
        assert!(value["n"].is_i64() || value["n"].is_number(), "{value}");
    }
    let grammar = folder.write("grammar.lark", "start: \"yes\" | \"no\"\n");
    let said = ok(&[&["run", CHAT, "Is it?", "--grammar", &grammar], &device[..]].concat());
    assert!(["yes\n", "no\n"].contains(&said.as_str()), "{said:?}");
    // llama.cpp's format.
    let grammar = folder.write("grammar.gbnf", "root ::= \"yes\" | \"no\"\n");
    let said = ok(&[&["run", CHAT, "Is it?", "--grammar", &grammar], &device[..]].concat());
    assert!(["yes\n", "no\n"].contains(&said.as_str()), "{said:?}");
    let call = |option: &'static str, value: &str| ["run", CHAT, "Hi", option, value].map(String::from);
    for (call, code, part) in [
        (call("--json-schema", "{"), 2, "--json-schema is no JSON"),
        (call("--json-schema", "none.json"), 1, "none.json"),
        (call("--json-schema", r#"{"$ref": "http://x/y"}"#), 1, "--json-schema: "),
        (call("--speculate", "99"), 2, "auto, off, or a number from 0 to 15"),
    ] {
        rejected(&call.iter().map(String::as_str).collect::<Vec<_>>(), code, &[part]);
    }
    rejected(
        &["run", CHAT, "Hi", "--draft", CHAT, "--profile", "x.json"],
        2,
        &["--profile and --capture show plain steps"],
    );

    let object = |more: &[&str]| -> serde_json::Value {
        let call = ["run", CHAT, "Hello", "--device", "cpu", "-n", "24", "--temp", "0", "--stop", "~~", "--json"];
        serde_json::from_str(&ok(&[&call[..], more].concat())).unwrap()
    };
    let plain = object(&[]);
    assert!(["thinking", "guessed_tokens"].iter().all(|key| plain.get(key).is_none()), "{plain}");
    let drafted = object(&["--draft", CHAT, "--speculate", "3"]);
    assert_eq!((&drafted["text"], &drafted["finish"]), (&plain["text"], &plain["finish"]));
    let [guessed, accepted] = ["guessed_tokens", "accepted_tokens"].map(|key| drafted[key].as_u64().unwrap());
    // The same model guesses right until the text ends within the guesses.
    assert!(guessed > 0 && accepted + 3 >= guessed, "{drafted}");
}
