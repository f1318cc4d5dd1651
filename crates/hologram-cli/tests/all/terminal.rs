//! A conversation on a terminal: line editing, history, Ctrl-C and Ctrl-D. `script` provides the terminal.

#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const CHAT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hologram-llm/tests/fixtures/chat-tiny.gguf");

/// A program on a terminal.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Receiver<Vec<u8>>,
    /// The output not yet searched.
    shown: String,
}

impl Terminal {
    fn run(command: &str) -> Terminal {
        let mut child = Command::new("script")
            // Without `exec` some shells stay, and Ctrl-C ends them: their exit code would replace the program's.
            .args(["-q", "-e", "-c", &format!("exec {command}"), "/dev/null"])
            .envs([("SHELL", "/bin/sh"), ("TERM", "xterm")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keys, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                let _ = send.send(bytes[..n].to_vec());
            }
        });
        Terminal { child, keys, screen, shown: String::new() }
    }

    fn keys(&mut self, keys: impl AsRef<[u8]>) {
        self.keys.write_all(keys.as_ref()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits until this text appears.
    fn wait(&mut self, text: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(at) = self.shown.find(text) {
                self.shown.drain(..at + text.len());
                return;
            }
            let left = end.saturating_duration_since(Instant::now());
            let more = self.screen.recv_timeout(left);
            let more = more.unwrap_or_else(|e| panic!("{text:?} is not shown ({e}), but {:?}", self.shown));
            self.shown += &String::from_utf8_lossy(&more);
        }
    }
}

/// Ctrl-C ends a conversion, and leaves nothing half-written.
#[test]
fn a_conversion_is_interrupted() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/rust-docs-bitnet.gguf");
    let folder = std::env::temp_dir().join(format!("hologram-interrupted-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_hologram"));
    command.args(["quantize", model, "out.gguf", "--type", "Q4_K_M", "-t", "1"]).current_dir(&folder);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let files = || std::fs::read_dir(&folder).unwrap().count();
    let end = Instant::now() + Duration::from_secs(60);
    while files() == 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let status = child.wait().unwrap();
    assert_eq!((status.code(), files()), (Some(130), 0));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn lines_are_edited_and_replies_stopped() {
    // A negative penalty favours frequent tokens: the reply repeats part of the question until the context is full.
    let options = "--device cpu --temperature 0 --frequency-penalty=-1000 --ctx 30000";
    let mut terminal = Terminal::run(&format!("{} chat -m {CHAT} {options}", env!("CARGO_BIN_EXE_hologram")));
    terminal.wait("/help lists the commands");
    terminal.wait("> ");
    // "hep", cursor left, "l": an edited line.
    terminal.keys("/hep\x1b[Dl\r");
    terminal.wait("/regenerate    generate");
    terminal.wait("> ");
    // The last line from the history.
    terminal.keys("\x1b[A\r");
    terminal.wait("/regenerate    generate");
    terminal.wait("> ");
    terminal.keys(b"caf\xe9\r");
    terminal.wait("not UTF-8");
    terminal.wait("> ");
    // Two lines at once, the second before the first is answered.
    terminal.keys("/stats\r/regenerate\r");
    terminal.wait("no reply yet");
    terminal.wait("no reply yet");
    terminal.wait("> ");
    terminal.keys("page page page page page page page\r");
    // More often than in the question.
    terminal.wait(&" page".repeat(20));
    terminal.keys("\x03");
    terminal.wait("(stopped)");
    terminal.wait("> ");
    terminal.keys("/stats\r");
    terminal.wait("generated: ");
    terminal.wait("> ");
    // Several lines are one message: between quotes, and where a line ends in a backslash.
    terminal.keys("\"\"\"page\rpage\r\"\"\"\r");
    terminal.wait("… ");
    terminal.wait(&" page".repeat(20));
    terminal.keys("\x03");
    terminal.wait("(stopped)");
    terminal.wait("> ");
    // Ctrl-C takes back a message of several lines.
    terminal.keys("\"\"\"page\rpage\r\x03");
    terminal.wait("> ");
    terminal.keys("/save /dev/null\r");
    terminal.wait("(4 messages)");
    terminal.wait("> ");
    // A mistyped path costs nothing.
    terminal.keys("/save /nowhere/x\r");
    terminal.wait("/nowhere/x");
    terminal.wait("> ");
    terminal.keys("/load nothere\r");
    terminal.wait("nothere");
    terminal.wait("> ");
    terminal.keys("/sys\\\rtem\r");
    terminal.wait("unknown command /sys");
    terminal.wait("> ");
    // If nothing runs, Ctrl-C tells how to quit; Ctrl-D quits.
    terminal.keys("half a line\x03");
    terminal.wait("(/quit or Ctrl-D to quit)");
    terminal.wait("> ");
    terminal.keys("\x04");
    let end = Instant::now() + Duration::from_secs(60);
    let status = loop {
        match terminal.child.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(Instant::now() < end, "Ctrl-D does not end it"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");
}
