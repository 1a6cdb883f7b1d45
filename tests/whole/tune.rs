//! `tune` as a user runs it, and who uses what it found: without a word about how fast anything is.

use crate::command::millstream;
use crate::support::data;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Runs with a configuration directory; exit code, stdout, stderr.
fn run(config: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = millstream(arguments);
    let output = command.env("XDG_CONFIG_HOME", config).output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code().expect("it ended"), text(output.stdout), text(output.stderr))
}

fn tiny() -> String {
    data().join("tiny/glm-dsa").to_str().expect("a UTF-8 path").to_owned()
}

/// The one profile of a configuration directory.
fn profile(config: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(config.join("millstream")).ok()?;
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    let first = paths.next()?;
    assert!(paths.next().is_none(), "one file and nothing beside it");
    Some(first)
}

/// A profile of the tiny model on this machine, with these settings.
fn with_profile(config: &Path, settings: &[(&str, &str)]) {
    use millstream::tune::{ProfileFile, Settings};
    use millstream_topology::{MachineSource, probe};
    let machine = probe(&MachineSource::Live).expect("this machine");
    let place = config.join("millstream");
    let model = PathBuf::from(tiny());
    let file = ProfileFile::of_in(&model, &machine.fingerprint(), &place).expect("a place");
    let pairs: Vec<String> =
        settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let settings: Settings = pairs.join(",").parse().expect("settings");
    file.save(&settings, Some(0.1)).expect("saved");
}

#[test]
fn what_was_tuned_is_used_and_said_and_flags_and_variables_beat_it() {
    let config = tempfile::tempdir().expect("a temporary directory");
    with_profile(config.path(), &[("threads", "1"), ("prefill-chunk", "7")]);
    let model = tiny();
    let base = ["run", "-m", &model, "--prompt-ids", "5,17,9", "--max-tokens", "4", "--json"];
    let (code, plain, err) = run(config.path(), &base);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("tuned: prefill-chunk=7,threads=1"), "{err}");
    assert!(err.contains("1 thread on") && err.contains("rows a wave 7"), "{err}");
    let flagged = [&base[..], &["--threads", "2"]].concat();
    let (_, _, err) = run(config.path(), &flagged);
    assert!(err.contains("tuned: prefill-chunk=7") && err.contains("2 threads on"), "{err}");
    let mut command = millstream(&base);
    command.env("XDG_CONFIG_HOME", config.path()).env("MILLSTREAM_PREFILL_CHUNK", "9");
    let err = String::from_utf8(command.output().expect("it starts").stderr).expect("UTF-8");
    assert!(err.contains("tuned: threads=1") && err.contains("rows a wave 9"), "{err}");
    let (_, off, err) = run(config.path(), &[&base[..], &["--tuned", "off"]].concat());
    assert!(!err.contains("tuned:") && err.contains("rows a wave 128"), "{err}");
    let ids = |out: &str| {
        let object: Value = serde_json::from_str(out).expect("one JSON object");
        object["answer_ids"].clone()
    };
    assert_eq!(ids(&plain), ids(&off), "settings never change an answer");
    // A plan of a file says how many threads there are and how they wait.
    let plan = config.path().join("plan.toml");
    let plan = plan.to_str().expect("UTF-8");
    let (code, _, err) = run(config.path(), &["topology", "--threads", "2", "--save", plan]);
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = run(config.path(), &[&base[..], &["--topology", plan]].concat());
    assert!(
        code == 0 && err.contains("tuned: prefill-chunk=7") && err.contains("2 threads on"),
        "{err}"
    );
    // Other commands use it, too; other models don't.
    let bench = ["bench", "-m", &model, "-p", "0", "-n", "3", "-r", "1", "-d", "0"];
    let (code, out, err) = run(config.path(), &bench);
    assert!(code == 0 && err.contains("tuned:") && out.contains("1 threads"), "{out}\n{err}");
    let (_, _, err) = run(config.path(), &["plan", "-m", &model, "--no-measure"]);
    assert!(err.contains("tuned:"), "{err}");
    let (_, _, err) = run(config.path(), &["run", "x", "--max-tokens", "1"]);
    assert!(!err.contains("tuned:"), "{err}");
}

#[test]
fn a_damaged_profile_is_a_warning() {
    let config = tempfile::tempdir().expect("a temporary directory");
    with_profile(config.path(), &[("threads", "1")]);
    let path = profile(config.path()).expect("a profile");
    let text = std::fs::read_to_string(&path).expect("text");
    std::fs::write(&path, text.replace("threads", "turbo")).expect("written");
    let model = tiny();
    let (code, _, err) =
        run(config.path(), &["run", "-m", &model, "--prompt-ids", "5", "--max-tokens", "1"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("warning:") && err.contains("no such setting"), "{err}");
}

/// A second is enough to look and to say what couldn't be tried.
#[test]
fn a_short_budget_ends_in_time_and_changes_nothing() {
    let config = tempfile::tempdir().expect("a temporary directory");
    let model = tiny();
    let base = ["tune", "-m", &model, "--budget", "1s", "--threads", "1", "--json"];
    let (code, out, err) = run(config.path(), &base);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("threads: as given"), "{err}");
    assert!(
        err.contains("io-depth: nothing to gain here") || err.contains("io-depth: 16; to try"),
        "{err}"
    );
    let object: Value = serde_json::from_str(&out).expect("one JSON object");
    assert_eq!(object["out_of_time"], true, "{object}");
    assert_eq!(profile(config.path()), None, "nothing was found");
}

#[test]
fn wrong_use_is_refused() {
    let config = tempfile::tempdir().expect("a temporary directory");
    for (arguments, because) in [
        (&["--only", "turbo"][..], "use some of"),
        (&["--start", "threads=0"], "use 1 to 4096"),
        (&["--budget", "10"], "10m"),
        (&["--topology", "pack:2 numa:1 core:2 pu:1"], "this machine"),
    ] {
        let (code, _, err) = run(config.path(), &[&["tune"], arguments].concat());
        assert!(code == 2 && err.contains(because), "{arguments:?}: {code} {err}");
    }
}
