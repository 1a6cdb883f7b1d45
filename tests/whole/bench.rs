//! `bench` as a user runs it: names, columns, units, what was recorded, and the engine's own promises.

use crate::command::{expect, millstream};
use crate::support::data;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

fn object(arguments: &[&str]) -> Value {
    let (out, _) = expect(arguments, 0);
    serde_json::from_str(&out).expect("one JSON object")
}

#[test]
fn rows_are_named_as_llama_bench_names_them_and_units_are_in_the_keys() {
    let arguments =
        ["bench", "-p", "40", "-n", "12", "-d", "0,70", "-r", "2", "-o", "json", "--threads", "2"];
    let object = object(&arguments);
    let rows = object["rows"].as_array().expect("rows");
    let names: Vec<&str> = rows.iter().map(|row| row["test"].as_str().expect("a name")).collect();
    assert_eq!(names, ["pp40", "tg12", "pp40 @ d70", "tg12 @ d70"]);
    for row in rows {
        let is_answer = row["kind"] == "answer";
        let speed = if is_answer { "decode_tok_s" } else { "prefill_tok_s" };
        assert!(row[speed].as_f64().expect("a speed") > 0.0, "{row}");
        for key in
            ["disk_read_gb_s", "memory_read_gb_s", "stall_share", "hit_share", "read_mb_per_token"]
        {
            assert!(row[key].is_f64(), "{key}: {row}");
        }
        assert!(row["memory_share"].as_f64().expect("a share") > 0.0, "{row}");
        assert_eq!(row["tok_s_samples"].as_array().expect("samples").len(), 2);
        assert_eq!(row["hashes_agree"], true);
    }
    assert_ne!(rows[1]["token_hash"], rows[3]["token_hash"], "another context, other choices");
    for key in
        ["cpu", "kernel", "filesystem", "model_fingerprint", "plan_fingerprint", "commit", "limits"]
    {
        assert!(object[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {object}");
    }
    assert!(object["memory_best_gb_s"].as_f64().expect("measured") > 0.0);
    assert!(object["disk_not_measured"].as_str().expect("a reason").contains("too small"));
    assert!(object["gauge_ns_per_message"].as_f64().expect("measured") > 0.0);
    assert!(object["gauge_share"].as_f64().expect("a share") > 0.0);
}

/// The hash is of what the model chose, whatever else is different.
#[test]
fn hashes_are_alike_for_other_settings_and_differ_for_other_models() {
    let hash = |more: &[&str]| {
        let base = ["bench", "-p", "0", "-n", "10", "-r", "1", "-o", "json"];
        object(&[&base[..], more].concat())["rows"][0]["token_hash"].clone()
    };
    let model = data().join("tiny/glm-dsa");
    let model = ["-m", model.to_str().expect("UTF-8"), "--threads", "1"];
    let first = hash(&model);
    assert_eq!(hash(&[&model[..3], &["2", "--experts-per-layer", "1"]].concat()), first);
    assert_ne!(hash(&[&model[..], &["--seed", "5"]].concat()), first);
    let other = data().join("tiny/glm-dsa-fp8");
    assert_ne!(hash(&["-m", other.to_str().expect("UTF-8")]), first);
}

#[test]
fn every_format_has_every_row() {
    let out =
        |how: &str| expect(&["bench", "-p", "9", "-n", "4", "-r", "1", "-d", "0", "-o", how], 0).0;
    let markdown = out("markdown");
    for text in
        ["| pp9 |", "| tg4 |", "token hash |", "- ceilings: memory ", "- plan: ", "fingerprint"]
    {
        assert!(markdown.contains(text), "{text}\n{markdown}");
    }
    let lines = out("jsonl");
    let rows: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((rows.len(), &rows[1]["test"]), (2, &Value::from("tg4")));
    assert!(rows[0]["plan_fingerprint"].is_string(), "each line says where it comes from");
    let csv = out("csv");
    let names: Vec<&str> = csv.lines().next().expect("names").split(',').collect();
    assert!(
        ["test", "tok_s", "decode_tok_s", "memory_share", "token_hash"]
            .iter()
            .all(|key| names.contains(key))
    );
    assert_eq!(csv.lines().count(), 3);
}

/// What the report checks of the engine itself: phases add up, and nothing is read once all is in memory.
#[test]
fn phases_add_up_and_resident_runs_read_nothing() {
    let arguments = [
        "bench",
        "-p",
        "64",
        "-n",
        "64",
        "-d",
        "0",
        "-r",
        "3",
        "--report",
        "-o",
        "json",
        "--threads",
        "1",
    ];
    let object = object(&arguments);
    let findings = object["findings"].as_array().expect("findings");
    let of = |check: &str| -> Vec<&Value> {
        findings.iter().filter(|finding| finding["check"] == check).collect()
    };
    for check in ["phases", "resident", "repeats"] {
        let found = of(check);
        assert_eq!(found.len(), 2, "{check} of both tests: {object}");
        assert!(found.iter().all(|finding| finding["verdict"] == "good"), "{found:?}");
    }
    assert!(findings.iter().all(|finding| !finding["knob"].as_str().expect("a knob").is_empty()));
    let streamed = [&arguments[..], &["--experts-per-layer", "6"]].concat();
    let (out, _) = expect(&streamed, 0);
    let object: Value = serde_json::from_str(&out).expect("JSON");
    let findings = object["findings"].as_array().expect("findings");
    let named = |check: &str| findings.iter().find(|finding| finding["check"] == check);
    assert!(named("resident").is_none(), "not everything is in memory: {object}");
    assert_eq!(named("hits").expect("judged")["verdict"], "improvable");
    assert_eq!(named("phases").expect("judged")["verdict"], "good", "{object}");
}

#[test]
fn everything_recorded_is_written_for_public_tools() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let place = directory.path().join("new");
    let path = place.to_str().expect("UTF-8");
    let arguments =
        ["bench", "-p", "20", "-n", "8", "-d", "0", "-r", "2", "--experts-per-layer", "6"];
    expect(&[&arguments[..], &["--histograms", path]].concat(), 0);
    let names: BTreeSet<String> = std::fs::read_dir(&place)
        .expect("made")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    for series in [
        "attend-work",
        "matmul-wait",
        "expert-wait-node0",
        "read-drive0",
        "sampling",
        "inter-token",
        "first-token",
        "end-to-end",
    ] {
        assert!(names.contains(&format!("{series}.hlog")), "{series}: {names:?}");
        let text = read(&place, &format!("{series}.hgrm"));
        let total = text.split("Total count    =").nth(1).expect("a total");
        let total = total.split(']').next().expect("closed").trim();
        let total: u64 = total.parse().expect("a number");
        assert!(total > 0, "{series} has records: {text}");
        let intervals = read(&place, &format!("{series}.hlog"));
        let intervals = intervals.lines().filter(|line| line.starts_with("Tag=")).count();
        assert_eq!(intervals, 4, "two tests, two repetitions: {series}");
    }
    // Seven gaps between eight tokens and one more of each repetition, and none between prompts.
    assert!(read(&place, "inter-token.hgrm").contains("Total count    =           16"));
    // The plan is one to run under.
    let plan = place.join("plan.toml");
    let plan = plan.to_str().expect("UTF-8");
    expect(&["run", "x", "--max-tokens", "1", "--topology", plan], 0);
    for picture in ["percentiles.svg", "stages.svg", "timeline.svg"] {
        let svg = read(&place, picture);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{picture}");
    }
    let timeline = read(&place, "timeline.svg");
    for what in ["attend of", "matmul of", "head of", ">seat 0<", ">drive 0<"] {
        assert!(timeline.contains(what), "{what}");
    }
}

fn read(place: &Path, name: &str) -> String {
    std::fs::read_to_string(place.join(name)).expect("a file of text")
}

#[test]
fn what_means_nothing_together_is_refused() {
    let refused = |arguments: &[&str], because: &str| {
        let (_, err) = expect(&[&["bench"], arguments].concat(), 2);
        assert!(err.contains(because), "{arguments:?}: {err}");
    };
    refused(&["-p", "0", "-n", "0"], "nothing to measure");
    refused(&["-p", "9000"], "doesn't fit");
    refused(&["--hops", "-p", "5"], "--n-prompt is for plain");
    refused(&["--stream", "-o", "csv"], "markdown or json");
    refused(&["--slots", "8"], "--replay");
    let output = millstream(&[
        "bench",
        "-p",
        "0",
        "-n",
        "3",
        "-r",
        "1",
        "-d",
        "0",
        "--histograms",
        "/dev/null/x",
    ]);
    let output = { output }.output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "a place that can't be written");
}
