//! Hostile and incomplete directories: indexes that lie or lead elsewhere, files of other
//! formats, things that are no files.

use crate::checkpoint_files::{TestModel, file_bytes};
use crate::{open_watched, refused};
use std::path::Path;

const INDEX: &str = "model.safetensors.index.json";

/// Indexes over the files a.safetensors (all tensors) and b.safetensors (none); a word of the
/// message stands second.
const INDEXES: &[(&str, &str)] = &[
    ("", "index"),
    ("{}", "weight_map"),
    ("[]", "index"),
    ("{\"weight_map\":{}}", "weight_map"),
    ("{\"weight_map\":null}", "index"),
    ("{\"weight_map\":[]}", "index"),
    ("{\"weight_map\":{\"x\":7}}", "\"x\""),
    ("{\"weight_map\":{\"x\":null}}", "\"x\""),
    ("{\"weight_map\":{\"x\":\"a.safetensors\"}", "index"),
    ("{\"weight_map\":{\"x\":\"a.safetensors\"}}", "\"x\""),
    ("{\"weight_map\":{\"x\":\"a.safetensors\",\"x\":\"b.safetensors\"}}", "twice"),
    ("{\"weight_map\":{\"x\":\"a.safetensors\"},\"weight_map\":{}}", "twice"),
    ("{\"weight_map\":{\"x\":\"../a.safetensors\"}}", "plain name"),
    ("{\"weight_map\":{\"x\":\"/etc/a.safetensors\"}}", "plain name"),
    ("{\"weight_map\":{\"x\":\"sub/a.safetensors\"}}", "plain name"),
    ("{\"weight_map\":{\"x\":\"sub\\\\a.safetensors\"}}", "plain name"),
    ("{\"weight_map\":{\"x\":\"a\\u0000.safetensors\"}}", "plain name"),
    ("{\"weight_map\":{\"x\":\".safetensors\"}}", "plain name"),
    ("{\"weight_map\":{\"x\":\"config.json\"}}", "plain name"),
    ("{\"weight_map\":{\"x\":\"\"}}", "plain name"),
    ("{\"weight_map\":{\"x\":\"c.safetensors\",\"y\":\"d.safetensors\"}}", "c.safetensors, d.safe"),
    ("{\"weight_map\":{\"model.norm.weight\":\"b.safetensors\"}}", "model.norm.weight"),
    ("{\"weight_map\":{\"model.norm.weight\":\"a.safetensors\"}}", "missing"),
    (
        "{\"weight_map\":{\"model.norm.weight\":\"b.safetensors\",\"lm_head.weight\":\"a.safetensors\"}}",
        "b.safetensors: tensor \"model.norm.weight\" is not in it",
    ),
    ("{\"metadata\":{\"total_size\":1e999},\"weight_map\":{}}", "index"),
];

fn split_model(directory: &Path, index: &str) {
    let model = TestModel::valid();
    std::fs::write(directory.join("config.json"), model.config_text()).expect("written");
    let files = [("a.safetensors", file_bytes(&model.tensors)), ("b.safetensors", file_bytes(&[]))];
    for (name, bytes) in files {
        std::fs::write(directory.join(name), bytes).expect("written");
    }
    std::fs::write(directory.join(INDEX), index).expect("written");
}

#[test]
fn index_that_lies_or_leads_elsewhere_is_refused() {
    for (index, needle) in INDEXES {
        let directory = tempfile::tempdir().expect("a directory");
        split_model(directory.path(), index);
        let (_, message) = refused(index, directory.path());
        assert!(message.contains(needle), "{index}: {message}");
    }
    println!("{} indexes refused", INDEXES.len());
}

#[test]
fn index_with_thousands_of_files_is_refused() {
    let entries: Vec<String> =
        (0..5000).map(|i| format!("\"t{i}\":\"f{i}.safetensors\"")).collect();
    let long = format!("{{\"weight_map\":{{\"{}\":\"a.safetensors\"}}}}", "n".repeat(1_000_000));
    let shard = format!("{{\"weight_map\":{{\"x\":\"{}.safetensors\"}}}}", "n".repeat(1_000_000));
    let many = format!("{{\"weight_map\":{{{}}}}}", entries.join(","));
    let bomb = format!("{{\"weight_map\":{}", "{\"a\":".repeat(100_000));
    let cases = [(many, "4096 files"), (long, "1000000 bytes"), (shard, "plain"), (bomb, "index")];
    for (index, needle) in &cases {
        let directory = tempfile::tempdir().expect("a directory");
        split_model(directory.path(), index);
        let (_, message) = refused(needle, directory.path());
        assert!(message.contains(needle), "{message}");
    }
}

#[test]
fn tensor_in_two_files_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let names = TestModel::valid().tensors;
    let entries: Vec<String> =
        names.iter().map(|t| format!("\"{}\":\"a.safetensors\"", t.name)).collect();
    let extra = "\"other\":\"b.safetensors\"";
    split_model(directory.path(), &format!("{{\"weight_map\":{{{},{extra}}}}}", entries.join(",")));
    let mut other = names[..1].to_vec();
    other.push(crate::checkpoint_files::TestTensor { name: "other".into(), ..other[0].clone() });
    std::fs::write(directory.path().join("b.safetensors"), file_bytes(&other)).expect("written");
    let (_, message) = refused("a tensor in two files", directory.path());
    assert!(message.contains(&names[0].name) && message.contains("b.safetensors"), "{message}");
}

#[test]
fn other_formats_are_refused_by_name() {
    for name in ["pytorch_model.bin", "model-q4.ggml", "consolidated.00.pth", "model.pkl"] {
        let directory = tempfile::tempdir().expect("a directory");
        let config = TestModel::valid().config_text();
        std::fs::write(directory.path().join("config.json"), config).expect("written");
        std::fs::write(directory.path().join(name), b"GGUF").expect("written");
        for path in [directory.path().to_path_buf(), directory.path().join(name)] {
            let (_, message) = refused(name, &path);
            assert!(
                message.contains("only safetensors and GGUF are read by this build"),
                "{message}"
            );
            assert!(message.contains(name), "{message}");
        }
    }
}

#[test]
fn incomplete_directory_is_refused_with_what_is_missing() {
    let directory = tempfile::tempdir().expect("a directory");
    let gone = directory.path().join("gone");
    assert!(refused("no directory", &gone).1.contains("gone"));
    assert!(refused("empty", directory.path()).1.contains(INDEX));
    TestModel::valid().write(directory.path());
    let config = directory.path().join("config.json");
    assert!(refused("a file", &config).1.contains("this is a file"));
    std::fs::remove_file(&config).expect("removed");
    assert!(refused("no configuration", directory.path()).1.contains("no config.json"));
    std::fs::create_dir(&config).expect("created");
    assert!(refused("a directory", directory.path()).1.contains("not a regular file"));
}

#[test]
fn device_in_place_of_a_file_is_not_read() {
    for name in ["config.json", "model.safetensors"] {
        let directory = tempfile::tempdir().expect("a directory");
        TestModel::valid().write(directory.path());
        let path = directory.path().join(name);
        std::fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/dev/zero", &path).expect("linked");
        let (_, message) = refused(name, directory.path());
        assert!(message.contains("not a regular file"), "{message}");
    }
}

#[test]
fn link_to_a_file_elsewhere_is_followed() {
    let (hub, snapshot) = (tempfile::tempdir(), tempfile::tempdir());
    let (hub, snapshot) = (hub.expect("a directory"), snapshot.expect("a directory"));
    TestModel::valid().write(hub.path());
    for name in ["config.json", "model.safetensors"] {
        std::os::unix::fs::symlink(hub.path().join(name), snapshot.path().join(name))
            .expect("linked");
    }
    open_watched("links", snapshot.path()).expect("opens");
}
