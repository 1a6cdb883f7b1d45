//! Hostile colibri containers: sizes that fit nothing or too much, stamps that lie, shards that are
//! missing, mixed or too many. A format is never guessed.

use crate::checkpoint_files::{TestModel, TestTensor, file_bytes, stamped_file_bytes};
use crate::{open_watched, refused};
use millstream::checkpoint::{ModelFiles, OpenError};
use safetensors::Dtype;
use std::path::Path;

const HEAD: &str = "lm_head.weight";
const EXPERT: &str = "model.layers.1.mlp.experts.2.down_proj.weight";
const ROUTER: &str = "model.layers.1.mlp.gate.weight";

/// Writes a container as one shard; the text under `colibri.fmt` is left out if it is None.
fn write(model: &TestModel, directory: &Path, stamps: Option<&str>) {
    std::fs::write(directory.join("config.json"), model.config_text()).expect("written");
    let bytes = stamped_file_bytes(&model.tensors, stamps);
    std::fs::write(directory.join("out-00000.safetensors"), bytes).expect("written");
}

fn is_refused(case: &str, model: &TestModel, stamps: Option<&str>, needles: &[&str]) {
    let directory = tempfile::tempdir().expect("a directory");
    write(model, directory.path(), stamps);
    let (_, message) = refused(case, directory.path());
    for needle in needles {
        assert!(message.contains(needle), "{case}: {message}");
    }
}

#[test]
fn valid_container_opens() {
    let directory = tempfile::tempdir().expect("a directory");
    for stamps in [None, Some("{\"lm_head.weight\":\"int8-row\",\"model.norm.weight\":\"f32\"}")] {
        let mut model = TestModel::container(16);
        // What metadata says of a norm must hold as well: it is stored as f32 then.
        let norm = model.tensor("model.norm.weight");
        (norm.dtype, norm.data) = (Dtype::F32, vec![0; 64]);
        write(&model, directory.path(), stamps);
        let model = open_watched("valid", directory.path()).expect("opens");
        assert!(model.unknown.is_empty(), "{:?}", model.unknown);
    }
}

#[test]
fn sizes_that_fit_no_format_are_refused() {
    // [24, 16]: bytes of weights, f32 scales.
    let cases = [(0, 24), (1, 24), (383, 24), (385, 24), (384, 0), (384, 23), (384, 25), (96, 48)];
    for name in [HEAD, EXPERT] {
        for (weights, scales) in cases {
            let mut model = TestModel::container(16);
            let rows = if name == HEAD { 24 } else { 16 };
            model.store(name, vec![0; weights * rows / 24], &vec![1.0; scales]);
            let case = format!("{name}: {weights} and {scales}");
            is_refused(&case, &model, None, &[name, "no weight format", "out-00000.safetensors"]);
        }
    }
    let mut model = TestModel::container(16);
    model.store_bytes(HEAD, vec![0; 384], Dtype::U8, vec![127; 24]);
    is_refused("a byte a row", &model, None, &[HEAD, "24 bytes of ue8m0"]);
    println!("{} sizes refused", 2 * cases.len() + 1);
}

#[test]
fn scales_of_a_strange_type_or_missing_are_refused() {
    for (dtype, bytes) in [(Dtype::BF16, 2), (Dtype::F64, 8), (Dtype::I8, 1), (Dtype::F16, 2)] {
        let mut model = TestModel::container(16);
        model.store_bytes(HEAD, vec![0; 384], dtype, vec![0; 24 * bytes]);
        is_refused("scales", &model, None, &["lm_head.weight.qs", &format!("{dtype:?}")]);
    }
    let mut model = TestModel::container(16);
    model.tensors.retain(|tensor| tensor.name != "lm_head.weight.qs");
    is_refused("no scales", &model, None, &[HEAD, "lm_head.weight.qs", "missing"]);
    let mut model = TestModel::container(16);
    model.tensor(HEAD).dtype = Dtype::I8;
    is_refused("signed weights", &model, None, &[HEAD, "I8"]);
}

#[test]
fn scales_cut_off_by_the_end_of_the_file_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let model = TestModel::container(16);
    write(&model, directory.path(), None);
    let path = directory.path().join("out-00000.safetensors");
    let whole = std::fs::read(&path).expect("read");
    for cut in [1, 4, 100] {
        std::fs::write(&path, &whole[..whole.len() - cut]).expect("written");
        let (_, message) = refused("cut", directory.path());
        assert!(message.contains("truncated"), "{message}");
    }
}

#[test]
fn sizes_that_fit_several_formats_are_refused_with_all_of_them() {
    // 96 columns, two scales a row: groups of 48 or 64, or three planes.
    for (name, rows) in [
        ("model.layers.0.self_attn.q_a_proj.weight", 8),
        ("model.layers.1.mlp.experts.2.gate_proj.weight", 6),
    ] {
        let mut model = TestModel::container(96);
        model.store(name, vec![0; rows * 48], &vec![1.0; rows * 2]);
        let needles = [name, "int3-g64", "int4-g48", "int4-g64", "colibri.fmt"];
        is_refused("two groupings", &model, None, &needles);
        // The container's stamp doesn't say how long groups are, and experts have none.
        let stamps = format!("{{\"{name}\":\"int4-grouped\"}}");
        is_refused("int4-grouped", &model, Some(&stamps), &[name, "int4-g48", "int4-g64"]);
    }
    let mut model = TestModel::container(96);
    let expert = "model.layers.1.mlp.experts.2.gate_proj.weight";
    model.store(expert, vec![0; 6 * 48], &[1.0; 12]);
    let stamps = format!("{{\"{expert}\":\"int4-g64\"}}");
    is_refused("a stamped expert", &model, Some(&stamps), &[expert, "routed experts"]);
}

#[test]
fn formats_that_are_not_computed_are_refused_by_name() {
    let mut model = TestModel::container(16);
    model.store(HEAD, vec![0; 24 * 98], &[6.0]);
    is_refused("lattice", &model, None, &[HEAD, "e8-iq3-lattice"]);
    let mut model = TestModel::container(64);
    model.store(HEAD, vec![0; 24 * 32], &[1.0; 24 * 4]);
    is_refused("groups of 16", &model, None, &[HEAD, "int4-g16"]);
}

#[test]
fn stamps_that_lie_are_refused() {
    let model = TestModel::container(16);
    for (stamps, needles) in [
        ("{\"lm_head.weight\":\"int4-row\"}", &[HEAD, "int4-row", "24 x 16"][..]),
        ("{\"lm_head.weight\":\"e8-iq3-lattice\"}", &[HEAD, "e8-iq3-lattice"]),
        ("{\"lm_head.weight\":\"1\"}", &[HEAD, "\"1\"", "int8-row"]),
        ("{\"model.norm.weight\":\"int8-row\"}", &["model.norm.weight", "int8-row", "BF16"]),
        ("{\"lm_head.weight\":\"int8-row\",\"lm_head.weight\":\"int8-row\"}", &["twice"]),
        ("{\"lm_head.weight\":1}", &["colibri.fmt"]),
        ("[]", &["colibri.fmt"]),
        ("", &["colibri.fmt"]),
    ] {
        is_refused(stamps, &model, Some(stamps), needles);
    }
    let many: Vec<String> = (0..5000).map(|i| format!("\"t{i}\":\"int8-row\"")).collect();
    let many = format!("{{{}}}", many.join(","));
    is_refused("5000 stamps", &model, Some(&many), &["4096"]);
}

#[test]
fn stamps_of_two_shards_that_differ_are_refused() {
    let model = TestModel::container(16);
    let directory = tempfile::tempdir().expect("a directory");
    write(&model, directory.path(), Some("{\"lm_head.weight\":\"int8-row\"}"));
    let second = directory.path().join("out-00001.safetensors");
    let bytes = stamped_file_bytes(&[], Some("{\"lm_head.weight\":\"int8-row\"}"));
    std::fs::write(&second, bytes).expect("written");
    open_watched("the same stamp", directory.path()).expect("opens");
    let bytes = stamped_file_bytes(&[], Some("{\"lm_head.weight\":\"int4-row\"}"));
    std::fs::write(&second, bytes).expect("written");
    let (_, message) = refused("another stamp", directory.path());
    for needle in [HEAD, "int8-row", "int4-row", "out-00000", "out-00001"] {
        assert!(message.contains(needle), "{message}");
    }
    // Each shard within the bound, all together over it.
    let list = |first: usize| {
        let entries: Vec<String> =
            (first..first + 4000).map(|i| format!("\"t{i}\":\"int8-row\"")).collect();
        format!("{{{}}}", entries.join(","))
    };
    write(&model, directory.path(), Some(&list(0)));
    std::fs::write(&second, stamped_file_bytes(&[], Some(&list(4000)))).expect("written");
    assert!(refused("8000 stamps", directory.path()).1.contains("4096"));
}

#[test]
fn quantised_router_or_norm_is_refused() {
    let mut model = TestModel::container(16);
    model.store(ROUTER, vec![0; 64], &[1.0; 4]);
    is_refused("router", &model, None, &[ROUTER, "plain floats"]);
    let mut model = TestModel::container(16);
    model.store("model.norm.weight", vec![0; 16], &[1.0]);
    is_refused("norm", &model, None, &["model.norm.weight", "plain floats"]);
}

#[test]
fn part_of_an_indexer_is_refused_with_what_is_missing() {
    let indexer: Vec<String> = TestModel::container(16)
        .tensors
        .into_iter()
        .map(|tensor| tensor.name)
        .filter(|name| name.contains("indexer") && !name.ends_with(".qs"))
        .collect();
    assert_eq!(indexer.len(), 10);
    for kept in &indexer {
        let mut model = TestModel::container(16);
        model.tensors.retain(|tensor| {
            !tensor.name.contains("indexer") || tensor.name.starts_with(kept.as_str())
        });
        let missing = indexer.iter().find(|name| *name != kept).expect("others");
        is_refused(kept, &model, None, &["9 tensors", missing]);
    }
}

/// Writes a container as five shards.
fn write_shards(model: &TestModel, directory: &Path) {
    std::fs::write(directory.join("config.json"), model.config_text()).expect("written");
    let each = model.tensors.len().div_ceil(5);
    for (shard, tensors) in model.tensors.chunks(each).enumerate() {
        let path = directory.join(format!("out-{shard:05}.safetensors"));
        std::fs::write(path, file_bytes(tensors)).expect("written");
    }
}

#[test]
fn missing_shard_is_told_from_the_gap() {
    for gone in 0..5 {
        let directory = tempfile::tempdir().expect("a directory");
        write_shards(&TestModel::container(16), directory.path());
        open_watched("whole", directory.path()).expect("opens");
        let path = directory.path().join(format!("out-{gone:05}.safetensors"));
        std::fs::remove_file(path).expect("removed");
        let (error, message) = refused("a shard is gone", directory.path());
        assert!(message.contains("missing"), "{message}");
        for shard in (0..5).filter(|shard| *shard != gone) {
            assert!(message.contains(&format!("out-{shard:05}")), "{message}");
        }
        // Whether there was one after the last nobody knows; what was lost says so.
        let gap = format!("missing out-{gone:05}");
        assert_eq!(message.contains(&gap), (1..4).contains(&gone), "{message}");
        assert!(matches!(error, OpenError::TensorsMissing { .. }), "{message}");
    }
}

#[test]
fn tensor_in_two_shards_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let model = TestModel::container(16);
    write_shards(&model, directory.path());
    let again: &[TestTensor] = &model.tensors[..1];
    std::fs::write(directory.path().join("out-mtp-00000.safetensors"), file_bytes(again))
        .expect("written");
    let (_, message) = refused("twice", directory.path());
    for needle in [&model.tensors[0].name, "out-00000.safetensors", "out-mtp-00000.safetensors"] {
        assert!(message.contains(needle), "{message}");
    }
}

#[test]
fn more_shards_than_any_container_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    write_shards(&TestModel::container(16), directory.path());
    for shard in 5..513 {
        let path = directory.path().join(format!("out-{shard:05}.safetensors"));
        std::fs::write(path, b"").expect("written");
    }
    let (_, message) = refused("513 shards", directory.path());
    assert!(message.contains("512"), "{message}");
}

#[test]
fn further_directory_that_is_not_there_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    write_shards(&TestModel::container(16), directory.path());
    let gone = directory.path().join("gone");
    let error = ModelFiles::open_with(directory.path(), std::slice::from_ref(&gone));
    let message = error.expect_err("refused").to_string();
    assert!(message.contains("gone") && message.contains("MILLSTREAM_MODEL_DIRS"), "{message}");
    let many = vec![directory.path().to_path_buf(); 65];
    let message = ModelFiles::open_with(directory.path(), &many).expect_err("refused").to_string();
    assert!(message.contains("64 directories"), "{message}");
}

#[test]
fn shard_that_is_no_regular_file_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    write_shards(&TestModel::container(16), directory.path());
    let shard = directory.path().join("out-00009.safetensors");
    std::os::unix::fs::symlink("/dev/zero", &shard).expect("linked");
    assert!(refused("a device", directory.path()).1.contains("not a regular file"));
    // What is hidden is no shard: other systems leave such files beside the real ones.
    std::fs::rename(&shard, directory.path().join("._out-00009.safetensors")).expect("renamed");
    open_watched("a hidden file", directory.path()).expect("opens");
}
