//! The command on a GGUF file, as a user runs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A model in a directory of its own: what the command leaves beside it goes with that.
fn model() -> (tempfile::TempDir, PathBuf) {
    let room = tempfile::tempdir().expect("a directory");
    let path = room.path().join("model.gguf");
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf/gpt_oss.gguf");
    std::fs::copy(data, &path).expect("copied");
    (room, path)
}

fn millstream(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.env_clear().args(words).env("MILLSTREAM_TUNED", "off").output().expect("it starts")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

#[test]
fn file_and_its_directory_are_run_planned_and_described() {
    let (room, path) = model();
    let file = path.to_str().expect("UTF-8");
    let of_file = text(&millstream(&["inspect", file, "--json"]));
    let described: serde_json::Value = serde_json::from_str(&of_file).expect("JSON");
    assert_eq!(described["family"], "gpt_oss");
    let of_directory = text(&millstream(&["inspect", room.path().to_str().unwrap(), "--json"]));
    assert_eq!(of_file, of_directory);
    let planned = text(&millstream(&["plan", "-m", file]));
    assert!(planned.contains("slots"), "{planned}");
    let run = |more: &[&str]| {
        let words = ["run", "-m", file, "--prompt-ids", "5,17,9", "--max-tokens", "6", "--json"];
        let output = text(&millstream(&[&words[..], more].concat()));
        let answer: serde_json::Value = serde_json::from_str(&output).expect("JSON");
        answer["answer_ids"].clone()
    };
    let answer = run(&["--learn", "off"]);
    assert_eq!(answer.as_array().map(Vec::len), Some(6));
    // What is learned lies beside the file, called after it.
    assert_eq!(run(&["--learn", "on", "--experts-per-layer", "1"]), answer);
    assert!(room.path().join(".model.gguf.millstream-uses.json").exists());
}

#[test]
fn doctor_looks_at_the_file() {
    let (_room, path) = model();
    let output =
        millstream(&["doctor", "-m", path.to_str().expect("UTF-8"), "--no-measure", "--deep"]);
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(report.contains("model in GGUF"), "{report}");
    assert!(!report.contains("error    tensor") && report.contains("gpt_oss"), "{report}");
}
