//! `doctor`: sound models of every kind pass, and each kind of damage is found, named and given a
//! remedy, several at once and beside hostile files.

use crate::colibri_writer::{Format, Recipe, Source, encode};
use crate::support::data;
use millstream::checkpoint::examine::{Checked, Finding, Kind, Severity, examine};
use millstream::checkpoint::pack::manifest::FileEntry;
use millstream::checkpoint::pack::{MANIFEST_FILE, read_manifest};
use millstream::convert::{Conversion, Nobody, Options};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Tensors of a file: type, shape, bytes.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

const GATE: &str = "model.layers.2.mlp.experts.2.gate_proj.weight";

fn tiny(name: &str) -> PathBuf {
    data().join("tiny").join(name)
}

/// A copy of a reference model, without the files of the reference.
fn copy(name: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for entry in std::fs::read_dir(tiny(name)).expect("the model") {
        let path = entry.expect("an entry").path();
        let file = path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        if !file.starts_with("ref.") {
            std::fs::copy(&path, directory.path().join(file)).expect("a copy");
        }
    }
    directory
}

fn container(recipe: &Recipe) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    recipe.write(&Source::open(&tiny("glm-dsa-fp8")), directory.path());
    directory
}

fn pack(source: &Path) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let conversion = Conversion::prepare(source, directory.path(), &Options::default());
    conversion.expect("it can be converted").run(&Nobody).expect("converted");
    directory
}

/// Changes the tensors of a file; its metadata stay.
fn edit(path: &Path, change: impl FnOnce(&mut Tensors)) {
    let bytes = std::fs::read(path).expect("a shard");
    let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("a header");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let tensor = |(name, view): (&str, TensorView<'_>)| {
        (name.to_owned(), (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    let mut tensors: Tensors = file.iter().map(tensor).collect();
    change(&mut tensors);
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
    });
    safetensors::serialize_to_file(views, metadata.metadata().clone(), path).expect("written");
}

fn change_byte(path: &Path, at: usize, change: impl FnOnce(u8) -> u8) {
    let mut bytes = std::fs::read(path).expect("a file");
    bytes[at] = change(bytes[at]);
    std::fs::write(path, bytes).expect("written");
}

fn look(directory: &Path, deep: bool) -> (Vec<Finding>, Checked) {
    let examination = examine(directory, &[], deep, &());
    let findings = examination.findings.into_sorted();
    for finding in &findings {
        assert!(!finding.finding.is_empty() && !finding.remedy.is_empty(), "{finding:?}");
    }
    (findings, examination.checked)
}

/// Expects a finding of these words, among whatever others.
fn expect(findings: &[Finding], severity: Severity, place: &str, finding: &str, remedy: &str) {
    let fits = |found: &&Finding| {
        found.severity == severity
            && found.place.to_string().contains(place)
            && found.finding.contains(finding)
            && found.remedy.contains(remedy)
    };
    let all: Vec<String> = findings.iter().map(|found| format!("{found:?}\n")).collect();
    let wanted = format!("{severity:?} {place}: {finding} -> {remedy}");
    assert!(findings.iter().find(fits).is_some(), "no {wanted} in\n{}", all.concat());
}

fn errors(findings: &[Finding]) -> Vec<&Finding> {
    findings.iter().filter(|finding| finding.severity == Severity::Error).collect()
}

fn assert_no_errors(findings: &[Finding], what: &str) {
    assert!(errors(findings).is_empty(), "{what}: {:#?}", errors(findings));
}

#[test]
fn sound_models_of_every_kind_have_no_errors() {
    for name in ["glm-dsa", "glm-dsa-fp8", "glm-dsa-grp-tied-f32"] {
        let model = copy(name);
        for deep in [false, true] {
            let (found, checked) = look(model.path(), deep);
            assert_eq!(found, [], "{name}");
            assert!(checked.kind == Some(Kind::Snapshot) && checked.tensors > 100, "{checked:?}");
            assert_eq!(checked.read_bytes > 1_000_000, deep, "{checked:?}");
        }
        let pack = pack(model.path());
        for deep in [false, true] {
            let (found, checked) = look(pack.path(), deep);
            assert_eq!(found, [], "the pack of {name}");
            assert_eq!((checked.kind, checked.read_bytes > 0), (Some(Kind::Pack), deep));
        }
    }
    for format in [
        Format::F32,
        Format::Bf16,
        Format::Int8Row,
        Format::Int4Grouped(32),
        Format::Int2Row,
        Format::Int3Group64,
        Format::Mxfp4,
        Format::Fp8Block128,
    ] {
        let container = container(&Recipe { shards: 3, ..Recipe::of(format) });
        let (found, checked) = look(container.path(), true);
        assert_eq!(found, [], "{format:?}");
        assert_eq!(checked.kind, Some(Kind::Container), "{format:?}");
    }
}

#[test]
fn missing_and_truncated_shards_are_named_once_and_not_tensor_by_tensor() {
    let model = copy("glm-dsa");
    let path = |number| model.path().join(format!("model-0000{number}-of-00003.safetensors"));
    std::fs::remove_file(path(2)).expect("removed");
    let bytes = std::fs::read(path(3)).expect("a shard");
    std::fs::write(path(3), &bytes[..bytes.len() - 1000]).expect("written");
    for deep in [false, true] {
        let (found, _) = look(model.path(), deep);
        let name = "model-00002-of-00003.safetensors";
        expect(
            &found,
            Severity::Error,
            name,
            "missing, and 194 tensors with it",
            "get the missing",
        );
        let name = "model-00003-of-00003.safetensors";
        expect(&found, Severity::Error, name, "ends at byte", "truncated, download it again");
        assert_eq!(found.len(), 2, "{found:#?}");
    }
    std::fs::write(path(3), &bytes[..100]).expect("written");
    let (found, _) = look(model.path(), true);
    let name = "model-00003-of-00003.safetensors";
    expect(&found, Severity::Error, name, "the header claims", "get this file again");
    assert_eq!(found.len(), 2, "{found:#?}");
}

#[test]
fn missing_wrong_doubled_and_unknown_tensors_are_all_named() {
    let model = copy("glm-dsa-grp-tied-f32");
    edit(&model.path().join("model.safetensors"), |tensors| {
        tensors.remove(GATE);
        tensors.remove("model.norm.weight");
        let up = tensors.get_mut(&GATE.replace("gate", "up")).expect("a tensor");
        up.1.reverse();
        tensors.get_mut("model.layers.2.mlp.gate.weight").expect("a tensor").0 = Dtype::I32;
        tensors.insert("model.oddity".into(), (Dtype::U8, vec![3], vec![1, 2, 3]));
    });
    let (found, _) = look(model.path(), false);
    expect(&found, Severity::Error, GATE, "missing", "get the missing files");
    expect(&found, Severity::Error, "model.norm.weight", "missing", "not complete");
    let up = GATE.replace("gate", "up");
    expect(&found, Severity::Error, &up, "its shape is [", "put the config.json that came with");
    expect(&found, Severity::Error, "mlp.gate.weight", "its dtype is I32", "convert the original");
    expect(&found, Severity::Warning, "model.oddity", "unknown", "newer build");
    assert_eq!(found.len(), 5, "{found:#?}");
    let place = &errors(&found).iter().find(|of| of.finding == "missing").expect("one").place;
    assert_eq!((place.layer, place.expert), (None, None), "the final norm comes first");
    let gate = found.iter().find(|of| of.place.tensor.as_deref() == Some(GATE)).expect("found");
    assert_eq!((gate.place.layer, gate.place.expert), (Some(2), Some(2)));
}

#[test]
fn tensors_that_the_index_misplaces_or_two_shards_have_are_named() {
    let model = copy("glm-dsa");
    let path = |number| model.path().join(format!("model-0000{number}-of-00003.safetensors"));
    let doubled = "model.layers.1.mlp.experts.2.gate_proj.weight";
    edit(&path(1), |tensors| drop(tensors.remove("model.embed_tokens.weight")));
    edit(&path(2), |tensors| {
        let first = tensors.values().next().expect("a tensor").clone();
        tensors.insert(doubled.into(), first.clone());
        tensors.insert("model.extra".into(), first);
    });
    let (found, _) = look(model.path(), false);
    let first = "model-00001-of-00003.safetensors: model.embed_tokens.weight";
    expect(&found, Severity::Error, first, "the index says", "download both again");
    let second = format!("model-00002-of-00003.safetensors: {doubled}");
    let finding = "it is also in model-00001-of-00003.safetensors";
    expect(&found, Severity::Error, &second, finding, "keep the files of one model");
    expect(&found, Severity::Note, "model.extra", "not in the index", "get the index again");
    assert_eq!(found.len(), 3, "{found:#?}");
}

#[test]
fn hostile_files_are_findings_and_nothing_worse() {
    let header = |json: &str| [&(json.len() as u64).to_le_bytes(), json.as_bytes()].concat();
    let huge = r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#;
    let metadata = format!("{{\"__metadata__\":{}}}", "{\"a\":".repeat(50_000));
    for file in [
        vec![],
        vec![1; 7],
        u64::MAX.to_le_bytes().to_vec(),
        (1u64 << 40).to_le_bytes().to_vec(),
        [&[0xff; 8][..], &[0; 4096]].concat(),
        header(&"[".repeat(100_000)),
        header(&"{\"a\":".repeat(100_000)),
        header(&metadata),
        header(huge),
        header("{}"),
        header("\u{0}"),
    ] {
        let model = copy("glm-dsa-grp-tied-f32");
        std::fs::write(model.path().join("model.safetensors"), &file).expect("written");
        let start = &file[..file.len().min(20)];
        assert!(!errors(&look(model.path(), true).0).is_empty(), "{start:?}");
    }
    for (name, of) in [
        ("config.json", "glm-dsa-grp-tied-f32"),
        ("generation_config.json", "glm-dsa-grp-tied-f32"),
        ("model.safetensors.index.json", "glm-dsa"),
    ] {
        for text in ["", "[", "7", &"[".repeat(100_000), &"{\"a\":".repeat(100_000), "\u{ff}"] {
            let model = copy(of);
            std::fs::write(model.path().join(name), text).expect("written");
            let (found, _) = look(model.path(), true);
            let found: Vec<Finding> = errors(&found).into_iter().cloned().collect();
            expect(&found, Severity::Error, name, "", "");
        }
    }
}

#[test]
fn what_is_no_file_is_named_and_not_waited_for() {
    let model = copy("glm-dsa");
    let shard = model.path().join("model-00001-of-00003.safetensors");
    std::fs::remove_file(&shard).expect("removed");
    assert!(Command::new("mkfifo").arg(&shard).status().expect("mkfifo runs").success());
    let shard = model.path().join("model-00002-of-00003.safetensors");
    std::fs::remove_file(&shard).expect("removed");
    std::os::unix::fs::symlink("../blobs/gone", &shard).expect("a link");
    let (found, _) = look(model.path(), true);
    expect(&found, Severity::Error, "model-00001-of", "not a regular file", "download");
    expect(&found, Severity::Error, "model-00002-of", "missing, and 194", "get the missing files");
    expect(&found, Severity::Error, "model-00002-of", "a link to ../blobs/gone", "download");
    assert_eq!(found.len(), 3, "{found:#?}");
    let (found, checked) = look(&model.path().join("config.json"), true);
    expect(&found, Severity::Error, "config.json", "this is a file", "MODEL is a directory");
    assert_eq!(checked, Checked::default());
}

#[test]
fn halves_of_downloads_pointers_and_other_formats_are_told_apart() {
    let model = copy("glm-dsa");
    let file = |name: &str| model.path().join(name);
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n";
    std::fs::write(file("model-00002-of-00003.safetensors"), pointer).expect("written");
    std::fs::write(file("model-00003-of-00003.safetensors.incomplete"), "half").expect("written");
    std::fs::write(file("tokenizer.json"), pointer).expect("written");
    std::fs::write(file("q4.gguf"), "GGUF").expect("written");
    std::fs::write(file("pytorch_model.bin"), "").expect("written");
    std::fs::write(file("other.safetensors"), "x").expect("written");
    let (found, _) = look(model.path(), false);
    for name in ["model-00002-of-00003.safetensors", "tokenizer.json"] {
        expect(&found, Severity::Error, name, "a pointer of Git LFS", "git lfs pull");
    }
    expect(&found, Severity::Warning, ".incomplete", "isn't finished (4 bytes)", "let it finish");
    expect(&found, Severity::Note, "q4.gguf", "of another format", "nothing");
    expect(&found, Severity::Note, "pytorch_model.bin", "of another format", "nothing");
    expect(&found, Severity::Note, "other.safetensors", "not part of the model", "nothing");
    assert_eq!(found.len(), 6, "{found:#?}");
    let empty = tempfile::tempdir().expect("a directory");
    std::fs::write(empty.path().join("q4.ggml"), "ggml").expect("written");
    let (found, _) = look(empty.path(), false);
    expect(&found, Severity::Error, "", "found q4.ggml, but only safetensors", "one of these");
    std::fs::write(empty.path().join("q4.gguf"), "GGUF").expect("written");
    let (found, _) = look(empty.path(), false);
    expect(&found, Severity::Error, "q4.gguf", "the version needs 4 bytes", "download it again");
}

#[test]
fn container_whose_sizes_fit_none_or_several_formats_is_told_so_tensor_by_tensor() {
    // 136 columns make three groups of 48 as of 64.
    let ambiguous = container(&Recipe::of(Format::Int4Grouped(64)));
    let (found, _) = look(ambiguous.path(), false);
    let down = "experts.2.down_proj.weight";
    expect(&found, Severity::Error, down, "fit int4-g48, int4-g64 alike", "colibri.fmt");
    let damaged = container(&Recipe { stamp: Some("int4-grouped"), ..Recipe::of(Format::Int8Row) });
    edit(&damaged.path().join("out-00000.safetensors"), |tensors| {
        let mut cut = |name: &str| {
            let (_, shape, bytes) = tensors.get_mut(name).expect("a tensor");
            bytes.truncate(bytes.len() - 4);
            shape[0] = bytes.len() / if name.ends_with(".qs") { 4 } else { 1 };
        };
        cut(&format!("{GATE}.qs"));
        cut("lm_head.weight");
        tensors.remove("model.layers.1.self_attn.o_proj.weight.qs");
        let up = GATE.replace("2.gate", "3.up");
        let (codes, scales) = (vec![0x88; 136 * 96], vec![0; 4 * 136]);
        tensors.insert(up.clone(), (Dtype::U8, vec![codes.len()], codes));
        tensors.insert(format!("{up}.qs"), (Dtype::F32, vec![136], scales));
    });
    let (found, _) = look(damaged.path(), false);
    expect(&found, Severity::Error, GATE, "no weight format takes", "get this file again");
    expect(&found, Severity::Error, "lm_head.weight", "stamp in __metadata__ says", "damaged");
    expect(&found, Severity::Error, "o_proj.weight", "its scales", "get the missing files");
    let up = GATE.replace("2.gate", "3.up");
    expect(&found, Severity::Error, &up, "other experts of its layer have", "with one format");
    assert_eq!(errors(&found).len(), 4, "{found:#?}");
}

#[test]
fn unwise_formats_are_warned_of() {
    let rows = container(&Recipe::of(Format::Int4Row));
    edit(&rows.path().join("out-mtp-00000.safetensors"), |tensors| {
        let name = "model.layers.3.eh_proj.weight";
        let stored = encode(Format::Int4Row, &vec![0.5; 192 * 384], 384);
        let count = stored.scales.len() / 4;
        tensors.insert(name.into(), (Dtype::U8, vec![stored.weights.len()], stored.weights));
        tensors.insert(format!("{name}.qs"), (Dtype::F32, vec![count], stored.scales));
    });
    let packed = pack(rows.path());
    for directory in [rows.path(), packed.path()] {
        let (found, _) = look(directory, false);
        assert_no_errors(&found, "it runs");
        for layer in ["layer 1", "layer 2"] {
            let finding = "int4 with one scale a row (gate, up, down)";
            expect(&found, Severity::Warning, layer, finding, "groups of 64");
        }
        expect(
            &found,
            Severity::Warning,
            "layer 3",
            "less than 8 bits (int4-row)",
            "8 bits for it",
        );
        assert_eq!(found.len(), 3, "{found:#?}");
    }
}

#[test]
fn interrupted_conversions_are_told_from_finished_ones() {
    let model = container(&Recipe { shards: 3, ..Recipe::of(Format::Int8Row) });
    let file = |name: &str| model.path().join(name);
    let record = r#"{"shards":{"a":"out-00000.safetensors","b":"out-00001.safetensors","c":""}}"#;
    std::fs::write(file(".out-progress.json"), record).expect("written");
    std::fs::write(file(".out-mtp-params.json"), "{}").expect("written");
    let (found, _) = look(model.path(), false);
    for name in [".out-progress.json", ".out-mtp-params.json"] {
        expect(&found, Severity::Note, name, "nothing that it wrote is missing", "may be deleted");
    }
    assert_eq!(found.len(), 2, "{found:#?}");
    std::fs::remove_file(file("out-00001.safetensors")).expect("removed");
    std::fs::remove_file(file("out-mtp-00000.safetensors")).expect("removed");
    let (found, _) = look(model.path(), false);
    let again = "run the converter again";
    expect(&found, Severity::Error, "out-00001.safetensors", "says that b is in it", again);
    expect(&found, Severity::Error, "out-00001", "no shard has this number, and", "get this shard");
    expect(&found, Severity::Error, ".out-progress.json", "was interrupted", again);
    expect(&found, Severity::Warning, ".out-mtp-params.json", "was interrupted", again);
    let tensor = "model.layers.1.mlp.experts.5.gate_proj.weight";
    expect(&found, Severity::Error, tensor, "missing", "not complete");
    std::fs::remove_file(file("out-idx-00000.safetensors")).expect("removed");
    let (found, _) = look(model.path(), false);
    expect(&found, Severity::Warning, "config.json", "tensors that aren't there", "out-idx");
}

#[test]
fn deep_reading_finds_values_that_no_model_has() {
    let snapshot = copy("glm-dsa-grp-tied-f32");
    edit(&snapshot.path().join("model.safetensors"), |tensors| {
        let norm = &mut tensors.get_mut("model.norm.weight").expect("a tensor").2;
        norm[4 * 7..4 * 8].copy_from_slice(&f32::NAN.to_le_bytes());
        let gate = &mut tensors.get_mut(GATE).expect("a tensor").2;
        gate[4 * 85..4 * 86].copy_from_slice(&f32::INFINITY.to_le_bytes());
    });
    let (found, _) = look(snapshot.path(), false);
    assert_eq!(found, [], "headers don't show it");
    let (found, _) = look(snapshot.path(), true);
    let copy_of_it = "use another copy";
    expect(
        &found,
        Severity::Error,
        "model.norm.weight",
        "of 80 values 1 NaN, the first at [7]",
        copy_of_it,
    );
    expect(&found, Severity::Error, GATE, "1 infinite, the first at [1, 5]", copy_of_it);
    assert_eq!(found.len(), 2, "{found:#?}");

    let scaled = container(&Recipe {
        experts: [Format::Int8Row, Format::Mxfp4, Format::Fp8Block128],
        ..Recipe::of(Format::Int8Row)
    });
    edit(&scaled.path().join("out-00000.safetensors"), |tensors| {
        let mut set = |name: &str, at: usize, bytes: &[u8]| {
            let data = &mut tensors.get_mut(name).expect("a tensor").2;
            data[at..at + bytes.len()].copy_from_slice(bytes);
        };
        set(&format!("{GATE}.qs"), 8, &(-1f32).to_le_bytes());
        set(&format!("{}.qs", GATE.replace("gate", "up")), 11, &[255]);
        set(&GATE.replace("gate", "down"), 3, &[0x7f]);
        set("lm_head.weight.qs", 0, &0f32.to_le_bytes());
    });
    edit(&scaled.path().join("out-mtp-00000.safetensors"), |tensors| {
        let data = &mut tensors.get_mut("model.layers.3.enorm.weight").expect("a tensor").2;
        data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let (found, _) = look(scaled.path(), true);
    expect(
        &found,
        Severity::Error,
        "gate_proj.weight.qs",
        "1 below zero, the first at [2]",
        copy_of_it,
    );
    expect(&found, Severity::Error, "up_proj.weight.qs", "1 NaN, the first at [11]", copy_of_it);
    expect(&found, Severity::Error, "down_proj.weight", "1 NaN, the first at [3]", copy_of_it);
    expect(&found, Severity::Warning, "lm_head.weight.qs", "1 zero", "all become zero");
    expect(&found, Severity::Warning, "enorm.weight", "1 NaN", copy_of_it);
    assert_eq!(found.len(), 5, "{found:#?}");
    assert!(found.iter().any(|of| of.place.layer == Some(2) && of.place.expert == Some(2)));
}

#[test]
fn damage_in_a_pack_is_named_by_file_and_place() {
    let source = copy("glm-dsa");
    let sound = pack(source.path());
    let names = ["resident.safetensors", "experts-00003.safetensors", "mtp.safetensors"];
    for name in names {
        let path = sound.path().join(name);
        let whole = std::fs::read(&path).expect("a file");
        let data = 8 + u64::from_le_bytes(whole[..8].try_into().expect("eight")) as usize;
        change_byte(&path, data, |byte| byte ^ 4);
        assert_eq!(look(sound.path(), false).0, [], "{name}: headers don't show it");
        let (found, _) = look(sound.path(), true);
        expect(&found, Severity::Error, name, "aren't the ones that were written", "restore");
        assert_eq!(found.len(), 1, "{found:#?}");
        let place = &found[0].place;
        assert!(place.tensor.is_some() || place.expert.is_some(), "{place:?}");
        std::fs::write(&path, &whole[..whole.len() - 1]).expect("written");
        expect(&look(sound.path(), false).0, Severity::Error, name, "bytes", "convert the model");
        std::fs::write(&path, &whole).expect("written");
        change_byte(&path, 20, |byte| byte ^ 1);
        expect(&look(sound.path(), false).0, Severity::Error, name, "the header", "restore");
        std::fs::write(&path, &whole).expect("written");
    }
    names.iter().for_each(|name| std::fs::remove_file(sound.path().join(name)).expect("removed"));
    let (found, _) = look(sound.path(), false);
    assert_eq!(found.len(), 3, "{found:#?}");
    change_byte(&sound.path().join("generation_config.json"), 3, |_| b' ');
    let (found, _) = look(sound.path(), true);
    names.iter().for_each(|name| {
        expect(&found, Severity::Error, name, "missing", "restore the file from a copy");
    });
    let name = "generation_config.json";
    expect(&found, Severity::Error, name, "changed after the conversion", "restore");
    expect(&found, Severity::Note, MANIFEST_FILE, "only the lengths", "look again");
    assert_eq!(found.len(), 5, "{found:#?}");
}

#[test]
fn unfinished_pack_and_damaged_manifest_say_so() {
    let source = copy("glm-dsa");
    let pack = pack(source.path());
    let path = pack.path().join(MANIFEST_FILE);
    let whole = std::fs::read_to_string(&path).expect("a manifest");
    let mut manifest = read_manifest(pack.path()).expect("a manifest");
    manifest.complete = false;
    let last = manifest.files.iter_mut().find(|file| file.name == "mtp.safetensors");
    last.expect("a file").checksum = None;
    std::fs::write(&path, manifest.to_text()).expect("written");
    std::fs::write(pack.path().join("experts-00002.safetensors"), "short").expect("written");
    let (found, _) = look(pack.path(), true);
    let goes_on = "goes on where it stopped";
    expect(&found, Severity::Error, MANIFEST_FILE, "isn't finished: 1 of", goes_on);
    expect(&found, Severity::Error, "experts-00002.safetensors", "5 bytes, and", "restore");
    expect(&found, Severity::Note, MANIFEST_FILE, "only the lengths", "look again");
    assert_eq!(found.len(), 3, "{found:#?}");
    let mut manifest = read_manifest(pack.path()).expect("a manifest");
    let giant = manifest.files[0].clone();
    manifest.files.extend((0..1 << 15).map(|_| FileEntry { bytes: 1 << 50, ..giant.clone() }));
    manifest.experts[0].experts = usize::MAX;
    std::fs::write(&path, manifest.to_text()).expect("written");
    assert_eq!(look(pack.path(), true).1.files_bytes, u64::MAX, "and nothing overflows");
    for text in ["", "{", &whole[..whole.len() / 2], &"[".repeat(100_000), "{\"format\":7}"] {
        std::fs::write(&path, text).expect("written");
        let (found, _) = look(pack.path(), true);
        expect(&found, Severity::Error, MANIFEST_FILE, "", "convert the model again");
    }
}

/// The command, in an environment without surprises.
fn doctor(arguments: &[&str]) -> (String, i32) {
    let cache = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.env_clear().env("XDG_CACHE_HOME", cache.path()).arg("doctor").args(arguments);
    let output = command.output().expect("the command starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("panicked"), "{errors}");
    (String::from_utf8(output.stdout).expect("UTF-8"), output.status.code().expect("it ends"))
}

#[test]
fn command_reports_several_damages_at_once_to_people_and_programs() {
    let (out, code) = doctor(&["--deep"]);
    assert!(code == 0 && out.starts_with("0 errors, 0 warnings, 0 notes"), "{out}");
    assert!(out.contains("\nmachine: ") && out.contains("\ndrive: "), "{out}");
    let model = copy("glm-dsa");
    let directory = model.path().to_str().expect("UTF-8");
    assert_eq!(doctor(&["-m", directory]).1, 0);
    std::fs::remove_file(model.path().join("tokenizer.json")).expect("removed");
    let (out, code) = doctor(&["-m", directory]);
    assert!(code == 0 && out.contains("warning  missing: the model can be spoken to by"), "{out}");
    let tokenizer = data().join("smollm2-tokenizer/tokenizer.json");
    std::fs::copy(tokenizer, model.path().join("tokenizer.json")).expect("a copy");
    std::fs::remove_file(model.path().join("model-00002-of-00003.safetensors")).expect("removed");
    std::fs::write(model.path().join("q4.gguf"), "GGUF").expect("written");
    let (out, code) = doctor(&["-m", directory]);
    for line in ["error    missing, and 194", "1 error, 1 warning, 1 note", "to do", "q4.gguf"] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert_eq!(code, 1);
    let (out, code) = doctor(&["-m", directory, "--json", "--deep"]);
    let object: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let findings = object["findings"].as_array().expect("a list");
    let severities: Vec<_> = findings.iter().map(|of| of["severity"].as_str()).collect();
    assert_eq!((code, severities), (1, vec![Some("error"), Some("warning"), Some("note")]));
    assert_eq!(findings[1]["place"]["file"], "tokenizer.json");
    assert!(findings[1]["remedy"].as_str().expect("text").contains("copy the tokenizer.json"));
    assert_eq!(object["checked"]["model"]["kind"], "snapshot");
    assert_eq!(object["checked"]["deep"], true);
    let machine = &object["machine"];
    let checks = machine["checked"]["checks"].as_array().expect("a list");
    assert!(machine["findings"].is_array() && checks.len() > 20, "{machine}");
    let why = machine["checked"]["drive_not_measured"].as_str().expect("these files are small");
    assert!(why.contains("too small"), "{machine}");
    assert_eq!(doctor(&["--fast"]).1, 2);
    assert_eq!(doctor(&["-m", "/nonexistent", "--deep"]).1, 1);
}
