//! Learning in the engine and the command: a second session starts warm, and nothing of it is a
//! condition.

use millstream::engine::{Answer, Engine, Model, Options, Request};
use millstream::learn::UseFile;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The small model in a directory of its own, so that files can be left next to it.
fn model() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nano-glm-dsa");
    for entry in std::fs::read_dir(model).expect("the small model") {
        let entry = entry.expect("a directory entry");
        std::os::unix::fs::symlink(entry.path(), directory.path().join(entry.file_name()))
            .expect("a link");
    }
    directory
}

fn session(model: &Path, learn: Option<UseFile>) -> Answer {
    let options = Options { experts_per_layer: Some(12), learn, ..Options::default() };
    let engine = Engine::start(Model::open(model).expect("a model"), &options).expect("it starts");
    // What warms the slots goes on beside the first wave; here it is waited for.
    std::thread::sleep(Duration::from_millis(300));
    let request = Request::greedy(vec![2389, 17, 50], 12);
    engine.generate(&request, &mut |_| ControlFlow::Continue(())).expect("it runs")
}

#[test]
fn a_second_session_starts_with_the_most_used_experts_in_memory() {
    let model = model();
    let file = UseFile::of_model(model.path()).expect("a model").expect("a place");
    let first = session(model.path(), Some(file.clone()));
    assert!(file.path().exists(), "the answer's counts are kept when the engine is gone");
    let second = session(model.path(), Some(file));
    assert_eq!(second.answer_ids, first.answer_ids);
    let (first, second) = (first.statistics.expert_hits, second.statistics.expert_hits);
    assert!(second > first, "{second} hits after {first}");
}

fn run(model: &Path, arguments: &[&str]) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.env_clear().args(["run", "-m", model.to_str().expect("a UTF-8 path")]);
    command.args(["--prompt-ids", "2389,17", "--max-tokens", "4"]).args(arguments);
    let output = command.output().expect("the command starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{err}");
    (out, err)
}

#[test]
fn the_command_learns_unless_told_otherwise_and_a_damaged_file_is_a_warning() {
    let model = model();
    let file = model.path().join(".millstream-uses.json");
    let (answer, _) = run(model.path(), &["--learn", "off"]);
    assert!(!file.exists());
    assert_eq!(run(model.path(), &[]).0, answer);
    let learned = std::fs::read_to_string(&file).expect("the file is there");
    let (again, quiet) = run(model.path(), &[]);
    assert_eq!(again, answer);
    assert!(!quiet.contains("passed over"), "{quiet}");
    std::fs::write(&file, &learned[..learned.len() / 2]).expect("cut off");
    let (anew, warned) = run(model.path(), &[]);
    assert_eq!(anew, answer);
    assert!(warned.contains("passed over"), "{warned}");
    assert!(std::fs::read_to_string(&file).expect("saved anew").ends_with('}'));
}
