//! The command as a user runs it: what goes to stdout, the exit codes, what is refused and how.

use crate::support::data;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

/// Where the embedded model is unpacked to; one place for all tests of a run.
static CACHE: LazyLock<tempfile::TempDir> =
    LazyLock::new(|| tempfile::tempdir().expect("a temporary directory"));

/// The command, in an environment without surprises.
pub fn millstream(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    // Nothing is learned: nothing is left beside the test models.
    command.env_clear().env("MILLSTREAM_LEARN", "off").env("XDG_CACHE_HOME", CACHE.path());
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    millstream(arguments).output().expect("the command starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// Runs, expects an exit code, gives stdout and stderr.
pub fn expect(arguments: &[&str], code: i32) -> (String, String) {
    let output = run(arguments);
    let (out, err) = (text(&output.stdout).to_owned(), text(&output.stderr).to_owned());
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{out}\n{err}");
    (out, err)
}

fn tiny() -> String {
    data().join("tiny/glm-dsa").to_str().expect("a UTF-8 path").to_owned()
}

/// Greedy text of the embedded model: the same on every machine.
const ANSWER: &str = " it is not to be supposed that it is not";

#[test]
fn bare_run_writes_english_to_stdout_and_the_rest_to_stderr() {
    let (out, err) = expect(&["run", "--temperature", "0", "--max-tokens", "16"], 0);
    assert!(out.trim_end().starts_with(ANSWER) && out.ends_with('\n'), "{out:?}");
    let (sampled, _) = expect(&["run"], 0);
    assert!(sampled.split_whitespace().count() > 50 && sampled.is_ascii(), "{sampled}");
    assert_eq!(expect(&["run"], 0).0, sampled, "the makers' advice is followed by one seed");
    assert!(err.contains("prompt: It is a truth") && err.contains("tok/s"), "{err}");
}

#[test]
fn one_object_holds_ids_text_and_figures() {
    let (out, _) = expect(&["run", "--json", "--max-tokens", "14", "--temperature", "0"], 0);
    let object: serde_json::Value = serde_json::from_str(&out).expect("one JSON object");
    assert_eq!(object["answer_ids"].as_array().expect("ids").len(), 14);
    assert_eq!(object["prompt_ids"][0], 2389);
    assert_eq!(object["finish"], "length");
    assert!(object["text"].as_str().expect("text").starts_with(ANSWER), "{object}");
    assert!(object["stats"]["decode_tok_s"].as_f64().expect("a figure") > 0.0);
}

#[test]
fn same_seed_gives_the_same_draws_and_another_seed_others() {
    let sampled = |seed| {
        let arguments = ["run", "--temperature", "0.8", "--top-p", "0.95", "--seed", seed];
        expect(&arguments, 0).0
    };
    let first = sampled("7");
    assert_eq!(sampled("7"), first);
    assert_ne!(sampled("8"), first);
}

#[test]
fn forced_ids_are_fed_and_logits_and_trace_are_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str| directory.path().join(name);
    let path = |path: &PathBuf| path.to_str().expect("a UTF-8 path").to_owned();
    std::fs::write(file("forced"), "[7, 8, 9]").expect("written");
    let (logits, trace) = (file("logits"), file("trace"));
    let arguments = [
        "run",
        "-m",
        &tiny(),
        "--prompt-ids",
        "5,17,9",
        "--json",
        "--forced",
        &path(&file("forced")),
        "--logits",
        &path(&logits),
        "--trace",
        &path(&trace),
    ];
    let (out, _) = expect(&arguments, 0);
    let object: serde_json::Value = serde_json::from_str(&out).expect("one JSON object");
    assert_eq!(object["answer_ids"], serde_json::json!([7, 8, 9]));
    let bytes = std::fs::read(&logits).expect("logits");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let tensor = tensors.tensor("logits").expect("logits");
    let trace = std::fs::read_to_string(&trace).expect("a trace");
    let trace: serde_json::Value = serde_json::from_str(&trace).expect("JSON");
    let positions = trace.as_array().expect("a list").len();
    assert_eq!(tensor.shape(), [positions, 640]);
    assert!((3..=6).contains(&positions), "{positions}");
}

#[test]
fn ids_of_another_model_are_refused_with_the_command_to_run() {
    let (out, err) = expect(&["run", "-m", &tiny(), "--prompt-ids", "5,640"], 2);
    assert!(out.is_empty() && err.contains("640") && err.contains("millstream run -m"), "{err}");
    expect(&["run", "-m", &tiny(), "--prompt-ids", "5,640", "--force"], 2);
    expect(&["run", "-m", &tiny(), "--prompt-ids", "5,639", "--max-tokens", "1"], 0);
}

#[test]
fn wrong_use_is_2_and_a_bad_model_is_1() {
    let tiny = tiny();
    for arguments in [
        &["run", "--fast"][..],
        &["run", "-m", &tiny],
        &["run", "-m", &tiny, "--prompt-ids", "5", "Hello"],
        &["run", "--temperature", "-1"],
        &["run", "--top-p", "1.5"],
        &["run", "--memory", "lots"],
        &["run", "--memory", "1MiB"],
        &["run", "--context", "5"],
        &["run", "--threads", "0"],
        &["run", "--topology", "sideways"],
        &["run", "--forced", "/nonexistent"],
        &["fly"],
    ] {
        let (out, err) = expect(arguments, 2);
        assert!(out.is_empty() && err.contains("error: "), "{arguments:?}: {out}{err}");
    }
    let empty = tempfile::tempdir().expect("a temporary directory");
    let missing = empty.path().join("missing");
    let missing = missing.to_str().expect("a UTF-8 path");
    let (_, err) = expect(&["run", "-m", missing, "Hello"], 1);
    assert!(err.contains(missing), "{err}");
    let (_, err) = expect(&["run", "--logits", &format!("{missing}/file")], 1);
    assert!(err.contains(&format!("{missing}/file")), "{err}");
}

#[test]
fn flag_beats_variable_and_variable_beats_default() {
    let tokens = |arguments: &[&str]| {
        let mut command = millstream(arguments);
        let output = command.env("MILLSTREAM_MAX_TOKENS", "3").output().expect("it starts");
        let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        object["answer_ids"].as_array().expect("ids").len()
    };
    assert_eq!(tokens(&["run", "--json"]), 3);
    assert_eq!(tokens(&["run", "--json", "--max-tokens", "2"]), 2);
}

#[test]
fn reader_that_goes_away_ends_the_command_quietly() {
    let mut child = millstream(&["run", "--max-tokens", "400", "--ignore-eos"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    assert!(!text(&output.stderr).contains("panicked"), "{}", text(&output.stderr));
}

#[test]
fn verify_says_where_the_pages_of_an_arena_and_of_a_model_are() {
    let placement = |arguments: &[&str]| {
        let (out, _) = expect(&[&["topology", "--verify", "--json"], arguments].concat(), 0);
        let object: serde_json::Value = serde_json::from_str(&out).expect("one JSON object");
        let total = &object["placement"]["total"];
        let by_node = total["by_node_bytes"].as_object().expect("shares by node");
        let placed: u64 = by_node.values().map(|bytes| bytes.as_u64().expect("bytes")).sum();
        assert_eq!(Some(placed), total["bytes"].as_u64(), "{total}");
        object["placement"].clone()
    };
    let nodes = ["--topology", "numa:3 core:1 pu:1"];
    assert_eq!(placement(&nodes)["total"]["bytes"], 3 * (64 << 20));
    let tiny = tiny();
    let model = placement(&[&nodes[..], &["-m", &tiny, "--experts-per-layer", "2"]].concat());
    assert_eq!(model["is_as_planned"], serde_json::Value::Null, "virtual nodes");
    let arenas = model["arenas"].as_array().expect("arenas");
    assert_eq!((&arenas[0]["name"], &arenas[1]["name"]), (&"ends".into(), &"layer 0".into()));
    assert_eq!(arenas[1]["segments"].as_array().expect("segments").len(), 3);
    let (_, err) = expect(&["topology", "-m", &tiny], 2);
    assert!(err.contains("--verify"), "{err}");
}

#[test]
fn saved_plan_is_run_under_and_a_plan_for_other_cpus_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("plan.toml");
    let file = file.to_str().expect("a UTF-8 path");
    let fingerprint = |arguments: &[&str]| {
        let (out, _) = expect(&[&["topology", "--json"], arguments].concat(), 0);
        let object: serde_json::Value = serde_json::from_str(&out).expect("one JSON object");
        object["plan_fingerprint"].as_str().expect("a fingerprint").to_owned()
    };
    for topology in ["auto", "numa:2 core:2 pu:1"] {
        let made = fingerprint(&["--topology", topology, "--threads", "1", "--save", file]);
        assert_eq!(fingerprint(&["--topology", file]), made, "{topology}");
        let (out, _) = expect(&["run", "--topology", file, "--max-tokens", "8"], 0);
        assert_eq!(out, expect(&["run", "--max-tokens", "8"], 0).0, "{topology}");
    }
    fingerprint(&["--threads", "1", "--save", file]);
    let text = std::fs::read_to_string(file).expect("the plan");
    std::fs::write(file, text.replace("leader_cpu = ", "leader_cpu = 9")).expect("written");
    let (_, err) = expect(&["run", "--topology", file], 2);
    assert!(err.contains("CPU 9") && err.contains("--save"), "{err}");
    expect(&["topology", "--topology", file, "--threads", "2"], 2);
    expect(&["topology", "--save", "plan"], 2);
    expect(&["topology", "--avoid-cpus", "0-1048576"], 2);
    expect(&["topology", "--avoid-cpus", "x"], 2);
}

#[test]
fn inspect_and_topology_speak_to_people_and_programs() {
    let (out, _) = expect(&["inspect", &tiny()], 0);
    assert!(out.contains("glm_moe_dsa"), "{out}");
    let (out, _) = expect(&["inspect", "--json"], 0);
    let object: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(object["dimensions"]["experts"], 48);
    let (out, _) = expect(&["topology", "--topology", "pack:2 numa:1 core:4 pu:2"], 0);
    assert!(out.contains("package 1"), "{out}");
    let (out, _) = expect(&["topology", "--json"], 0);
    let object: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert!(object["plan"]["threads"].as_u64().expect("a count") > 0);
}

#[test]
fn plan_shows_memory_slots_and_ceilings_and_refuses_what_does_not_fit() {
    let (out, _) = expect(&["plan", "--no-measure"], 0);
    for words in ["resident weights", "layers 1 to 6", "48 of 48 experts", "not measured"] {
        assert!(out.contains(words), "{words}: {out}");
    }
    let (out, _) = expect(&["plan", "-m", &tiny(), "--json", "--experts-per-layer", "3"], 0);
    let object: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let slots: Vec<u64> = serde_json::from_value(object["memory"]["slots"].clone()).expect("slots");
    assert!(slots.iter().all(|&slots| slots == 0 || slots == 3), "{slots:?}");
    let ceilings = &object["ceilings"];
    assert!(ceilings["memory_bytes_s"].as_f64().expect("measured") > 1e8, "{ceilings}");
    assert_eq!(ceilings["token"]["miss_share_from_counts"], false);
    let miss_share = ceilings["token"]["miss_share"].as_f64().expect("a share");
    assert!((miss_share - (1.0 - 3.0 / 24.0)).abs() < 1e-9, "{miss_share}");
    assert!(ceilings["drive_bytes_s"].is_null(), "too small to say anything: {ceilings}");
    let (_, err) = expect(&["plan", "--memory", "1MiB"], 2);
    assert!(err.contains("together") && err.contains("less with --context"), "{err}");
}

#[test]
fn a_trace_of_another_model_is_refused_and_no_file_of_a_model_is_written_over() {
    let room = tempfile::tempdir().expect("a temporary directory");
    let trace = room.path().join("trace.json");
    std::fs::write(&trace, r#"[{"experts": [[], [61], []]}]"#).expect("it is written");
    let path = trace.to_str().expect("a UTF-8 path");
    let (_, err) = expect(&["run", "--foresee", path, "--max-tokens", "2"], 2);
    assert!(err.contains("isn't this model's"), "{err}");
    let model = room.path().join("model");
    std::fs::create_dir(&model).expect("a directory");
    let weights = model.join("weights.safetensors");
    std::fs::write(&weights, "these are weights").expect("it is written");
    let [model, weights] = [&model, &weights].map(|path| path.to_str().expect("a UTF-8 path"));
    for flag in ["--trace", "--logits"] {
        let (_, err) = expect(&["run", "-m", model, "--prompt-ids", "1", flag, weights], 2);
        assert!(err.contains("is in the model's directory"), "{err}");
    }
    assert_eq!(std::fs::read_to_string(weights).expect("it is there"), "these are weights");
}
