//! The shell lines of the documents run in bash and zsh, with small models under the names that the documents use.

use std::fs;

use crate::common::*;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hologram-llm/tests/fixtures");

/// Beginnings of lines that run in other tests, and where.
const ELSEWHERE: &[(&str, &str)] = &[
    ("hologram serve", "serve.rs"),
    ("hologram load", "serve.rs"),
    ("hologram pull", "hub.rs"),
    ("hologram rm", "hub.rs"),
    ("hologram exec", "examples.rs"),
    ("hologram check", "examples.rs"),
    ("hologram asm", "examples.rs"),
    ("hologram disasm", "examples.rs"),
    ("hologram selftest", "cli.rs"),
    // Two adapters of one model.
    ("hologram chat -m qwen2.5-7b-instruct-q4_k_m.gguf --lora", "adapters.rs"),
    // Gigabytes of random weights; their options and shapes.
    ("hologram bench --shape tinyllama-1.1b", "cli.rs"),
    ("hologram bench --shape bitnet-2b", "cli.rs"),
    ("hologram bench --shape llama-8b --type Q8_0", "cli.rs"),
];

/// What is smaller here than in the documents.
const SMALLER: &[(&str, &str)] = &[
    ("hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF", "model.gguf"),
    ("hf:BAAI/bge-small-en-v1.5", "bert.gguf"),
    ("hf:BAAI/bge-reranker-v2-m3", "bert.gguf"),
    ("bench model.gguf", "bench model.gguf -p 8 -n 4 -r 1"),
    ("bench -p 128 -n 32", "bench -p 128 -n 32 -r 1"),
    ("bench ops", "bench ops --only launch"),
    ("tokenize model.gguf", "tokenize model-f16.gguf"),
    ("-f text.txt -o", "-f text.txt --chunks 1 -o"),
];

/// The lines that are typed into a shell: all of `sh` blocks, and those after `$ ` of `console` blocks.
fn shell_lines(page: &str) -> Vec<&str> {
    let (mut lines, mut language) = (Vec::new(), "");
    for line in page.lines() {
        match line.trim_start().strip_prefix("```") {
            Some(name) => language = name,
            None if language == "sh" => lines.push(line),
            None if language == "console" => lines.extend(line.strip_prefix("$ ")),
            None => {}
        }
    }
    lines
}

/// The calls of the command in blocks of a shell and at the beginning of tables' rows. Lines that show the form of a
/// call are left out.
fn calls(page: &str) -> Vec<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let calls = shell_lines(page).into_iter().chain(rows);
    let mut lines: Vec<String> = calls.map(String::from).collect();
    let is_form = |line: &str| [" [", "OWNER/", " MODEL "].iter().any(|mark| line.contains(mark));
    lines.retain(|line| line.starts_with("hologram ") && !is_form(line));
    lines
}

/// The documents with commands for users: their paths and texts.
fn pages() -> Vec<(String, String)> {
    let docs = fs::read_dir(format!("{ROOT}/docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<_> = docs.filter(|path| path.extension().is_some_and(|e| e == "md")).collect();
    pages.push(format!("{ROOT}/README.md").into());
    pages.sort();
    pages.into_iter().map(|path| (path.display().to_string(), fs::read_to_string(path).unwrap())).collect()
}

/// A zsh that somebody types into takes `#` and what follows for arguments.
#[test]
fn shell_lines_have_no_comments() {
    let with_comment = |page: &str| -> Vec<String> {
        shell_lines(page).into_iter().filter(|line| line.contains(" # ")).map(String::from).collect()
    };
    for (path, page) in pages() {
        assert_eq!(with_comment(&page), [""; 0], "{path}");
    }
    assert_eq!(with_comment("```sh\nls # a\n```\n").len(), 1);
}

/// The commands of a block; a text in quotes may have several lines.
fn commands_of(block: &[&str]) -> Vec<String> {
    let (mut commands, mut open) = (Vec::<String>::new(), false);
    for line in block {
        match commands.last_mut().filter(|_| open) {
            Some(last) => *last += &format!("\n{line}"),
            None => commands.push(line.to_string()),
        }
        // Quotes of one kind stand within those of the other.
        let mut quote = None;
        for c in commands.last().into_iter().flat_map(|command| command.chars()) {
            match quote {
                Some(begin) => quote = Some(begin).filter(|begin| *begin != c),
                None => quote = Some(c).filter(|c| "\"'".contains(*c)),
            }
        }
        open = quote.is_some();
    }
    commands
}

/// What PowerShell reads otherwise than bash and zsh in a command, if there is something.
fn differs_in_powershell(command: &str) -> Option<&'static str> {
    let name = command.split('=').next().unwrap_or_default();
    if command.starts_with("curl ") {
        return Some("curl is another command in Windows PowerShell");
    }
    if name.len() < command.len() && !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_') {
        return Some("a variable before a command");
    }
    let (mut quote, mut before) = (None, ' ');
    for c in command.chars() {
        match (quote, c) {
            (Some(begin), c) if c == begin => quote = None,
            (Some('\''), '"') => return Some("double quotes in single ones are lost"),
            (Some('"'), '$' | '`') => return Some("$ and ` in double quotes"),
            (Some('"'), '\\') => return Some("\\ does not escape"),
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '\\') => return Some("\\ does not continue a line"),
            (None, '$' | '`' | '<' | '(' | ')' | '{' | '}') => return Some("a sign with a meaning"),
            (None, '&') => return Some("& and &&"),
            (None, ',') => return Some("a comma makes a list"),
            (None, '@' | '~' | '#') if before == ' ' => return Some("@, ~ or # begins a word"),
            (None, _) => {}
        }
        before = c;
    }
    None
}

/// Lines that PowerShell reads as bash does, or a block for PowerShell in the same section.
#[test]
fn shell_lines_are_those_of_powershell() {
    let mut commands = 0;
    for (path, page) in pages() {
        for section in page.split("\n## ") {
            let blocks = section.split("```").skip(1).step_by(2);
            let lines = blocks.filter_map(|block| {
                let (language, text) = block.split_once('\n')?;
                let typed = |line: &&str| language == "sh" || line.starts_with("$ ");
                let lines = text.lines().filter(typed).map(|line| line.strip_prefix("$ ").unwrap_or(line));
                ["sh", "console"].contains(&language).then(|| commands_of(&lines.collect::<Vec<_>>()))
            });
            for command in lines.flatten().filter(|command| !command.trim().is_empty()) {
                commands += 1;
                let differs = differs_in_powershell(&command).filter(|_| !section.contains("```powershell\n"));
                assert!(differs.is_none(), "{path}: {command}: {}", differs.unwrap_or_default());
            }
        }
    }
    assert!(commands > 60, "{commands}");
    for command in [
        "A=1 hologram run",
        "hologram run \"$HOME\"",
        "hologram run \\",
        "cd x && ls",
        "hologram exec --grid 2,2",
        "curl http://a -d '{\"a\": 1}'",
        "echo '{\"a\": 1}'",
        "hologram man ~/man",
        "hologram run `pwd`",
    ] {
        assert!(differs_in_powershell(command).is_some(), "{command}");
    }
    assert_eq!(commands_of(&["python3 -c \"a = 'b'", "c\"", "ls"]), ["python3 -c \"a = 'b'\nc\"", "ls"]);
}

#[test]
fn shell_lines_of_the_documents_run() {
    let folder = Folder::new("documented");
    let copy = |from: &str, to: &str| fs::copy(format!("{FIXTURES}/{from}"), folder.path(to)).unwrap();
    for name in ["model.gguf", "small.gguf", "qwen2.5-1.5b-instruct-q4_k_m.gguf"] {
        copy("chat-tiny.gguf", name);
    }
    copy("llama-tiny.gguf", "model-f16.gguf");
    copy("bert/model.gguf", "bert.gguf");
    folder.write("text.txt", "one two three four five six seven eight nine ten ".repeat(30));
    fs::create_dir_all(folder.path(".local/share/bash-completion/completions")).unwrap();

    let (mut ran, mut failed) = (0, Vec::new());
    for (path, page) in pages() {
        for line in calls(&page) {
            if ELSEWHERE.iter().any(|(begin, _)| line.starts_with(begin)) {
                continue;
            }
            let line = SMALLER.iter().fold(line, |line, (from, to)| line.replace(from, to));
            for program in ["bash", "zsh"] {
                let Some((good, output)) = shell(program, &folder, &line) else { continue };
                if !good {
                    failed.push(format!("{path}: {program}$ {line}\n{output}"));
                }
            }
            ran += 1;
        }
    }
    assert!(ran >= 20 && failed.is_empty(), "{ran} lines, of which fail:\n{}", failed.join("\n"));
}
