//! `chat` over a pipe: turns, commands, files, and Ctrl-C.

use crate::command::millstream;
use crate::support::data;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

/// A line of more than a KV page.
const LONG: &str = "It is a truth universally acknowledged, that a single man in possession of a good \
    fortune, must be in want of a wife. However little known the feelings or views of such a man may be on \
    his first entering a neighbourhood, this truth is so well fixed in the minds of the surrounding \
    families, that he is considered as the rightful property of some one or other of their daughters.";

/// What a chat of these lines says on stdout and stderr.
fn chat(arguments: &[&str], lines: &str) -> (String, String) {
    let mut command = millstream(&[&["chat", "--temperature", "0"], arguments].concat());
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().expect("the command starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(lines.as_bytes()).expect("written");
    drop(stdin);
    let Output { status, stdout, stderr } = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let (out, err) = (text(stdout), text(stderr));
    assert_eq!(status.code(), Some(0), "{out}\n{err}");
    (out, err)
}

#[test]
fn turns_go_on_from_what_is_known_and_reset_forgets_it() {
    let lines = format!("{LONG}\n:stats\nAnd then\n:stats\n:reset\n{LONG}\n:quit\nnever said\n");
    let (out, err) = chat(&["--max-tokens", "12"], &lines);
    let answers: Vec<&str> = out.lines().collect();
    assert_eq!(answers.len(), 3, "{out}");
    assert_eq!(answers[0], answers[2], "after a reset nothing is left of the first turn");
    assert!(!answers[0].is_empty() && !out.contains("never"), "{out}");
    let prompts: Vec<&str> = err.lines().filter(|line| line.starts_with("prompt ")).collect();
    assert_eq!(prompts.len(), 2, "{err}");
    assert!(!prompts[0].contains("known") && prompts[1].contains("of them known"), "{prompts:?}");
}

#[test]
fn more_goes_on_as_one_long_answer_would() {
    let (whole, _) = chat(&["--max-tokens", "24"], &format!("{LONG}\n"));
    let (parts, err) = chat(&["--max-tokens", "12"], &format!(":more\n{LONG}\n:more\n"));
    assert_eq!(parts.replace('\n', ""), whole.replace('\n', ""));
    assert!(err.contains("no answer to go on with") && err.contains(":more goes on"), "{err}");
}

#[test]
fn a_conversation_that_was_saved_goes_on_where_it_was() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("talk.json");
    let file = file.to_str().expect("a UTF-8 path");
    let model = data().join("tiny/glm-dsa");
    let model = ["-m", model.to_str().expect("a UTF-8 path"), "--max-tokens", "9"];
    let lines = format!("good morning\n:save {file}\nand you?\n");
    let (first, _) = chat(&model, &lines);
    let (second, _) = chat(&model, &format!(":load {file}\nand you?\n"));
    let last = |out: &str| out.trim_end().rsplit('\n').next().map(str::to_owned);
    assert_eq!(last(&second), last(&first), "{first}\n{second}");
    let (_, err) = chat(&model, ":load /nowhere/talk.json\n:save\n:dance\n:help\n");
    for word in ["/nowhere/talk.json", ":save: no such", ":dance: no such", ":more"] {
        assert!(err.contains(word), "{word}: {err}");
    }
}

#[test]
fn an_interrupt_stops_the_answer_and_keeps_the_conversation() {
    let mut command = millstream(&["chat", "--temperature", "0", "--max-tokens", "3000"]);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().expect("the command starts");
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = child.stdout.take().expect("piped");
    let stderr = BufReader::new(child.stderr.take().expect("piped"));
    stdin.write_all(format!("{LONG}\n").as_bytes()).expect("written");
    let mut some = [0; 20];
    stdout.read_exact(&mut some).expect("the answer begins");
    let killed =
        std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.expect("kill is there").success());
    let since = Instant::now();
    let mut lines = stderr.lines();
    let stopped = lines.any(|line| line.expect("UTF-8").contains("(stopped: :more goes on)"));
    assert!(stopped && since.elapsed() < Duration::from_secs(60));
    stdin.write_all(b":save /nowhere/there\n").expect("it listens still");
    assert!(lines.any(|line| line.expect("UTF-8").contains("error")));
    drop(stdin);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("UTF-8");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}
