//! Hostile safetensors files: wrong lengths, malformed entries, tensors outside the file or on
//! top of each other, files cut off or with flipped bits.

use crate::checkpoint_files::{TestModel, file_bytes};
use crate::{open_watched, refused};
use millstream::checkpoint::OpenError;
use serde_json::Value;
use std::path::Path;

/// Entries for `model.norm.weight`. BEGIN and END are its true offsets; the message must name
/// what stands second.
const ENTRIES: &[(&str, &str)] = &[
    ("{}", "model.norm.weight"),
    ("null", "model.norm.weight"),
    ("7", "model.norm.weight"),
    ("\"x\"", "model.norm.weight"),
    ("[]", "model.norm.weight"),
    (r#"{"dtype":"BF16","shape":[16]}"#, "data_offsets"),
    (r#"{"shape":[16],"data_offsets":[BEGIN,END]}"#, "dtype"),
    (r#"{"dtype":"BF16","data_offsets":[BEGIN,END]}"#, "shape"),
    (r#"{"dtype":"BF16","dtype":"F32","shape":[16],"data_offsets":[BEGIN,END]}"#, "dtype"),
    (r#"{"dtype":"BF17","shape":[16],"data_offsets":[BEGIN,END]}"#, "BF17"),
    (r#"{"dtype":"","shape":[16],"data_offsets":[BEGIN,END]}"#, "dtype"),
    (r#"{"dtype":"bf16","shape":[16],"data_offsets":[BEGIN,END]}"#, "bf16"),
    (r#"{"dtype":7,"shape":[16],"data_offsets":[BEGIN,END]}"#, "model.norm.weight"),
    (r#"{"dtype":"BF16","shape":16,"data_offsets":[BEGIN,END]}"#, "model.norm.weight"),
    (r#"{"dtype":"BF16","shape":[16.0],"data_offsets":[BEGIN,END]}"#, "model.norm.weight"),
    (r#"{"dtype":"BF16","shape":[-16],"data_offsets":[BEGIN,END]}"#, "model.norm.weight"),
    (r#"{"dtype":"BF16","shape":["16"],"data_offsets":[BEGIN,END]}"#, "model.norm.weight"),
    (r#"{"dtype":"BF16","shape":[1e999],"data_offsets":[BEGIN,END]}"#, "model.norm.weight"),
    (r#"{"dtype":"BF16","shape":[16,1,1,1,1,1,1,1,1],"data_offsets":[BEGIN,END]}"#, "8 dimensions"),
    (r#"{"dtype":"BF16","shape":[18446744073709551616],"data_offsets":[BEGIN,END]}"#, "norm"),
    (r#"{"dtype":"BF16","shape":[9223372036854775808],"data_offsets":[BEGIN,END]}"#, "too large"),
    (r#"{"dtype":"BF16","shape":[4294967296,4294967296],"data_offsets":[BEGIN,END]}"#, "too large"),
    (r#"{"dtype":"BF16","shape":[4294967296,4294967312],"data_offsets":[BEGIN,END]}"#, "too large"),
    (r#"{"dtype":"F4","shape":[15],"data_offsets":[BEGIN,END]}"#, "too large"),
    (r#"{"dtype":"BF16","shape":[17],"data_offsets":[BEGIN,END]}"#, "34 bytes"),
    (r#"{"dtype":"BF16","shape":[15],"data_offsets":[BEGIN,END]}"#, "30 bytes"),
    (r#"{"dtype":"F32","shape":[16],"data_offsets":[BEGIN,END]}"#, "64 bytes"),
    (r#"{"dtype":"BF16","shape":[],"data_offsets":[BEGIN,END]}"#, "2 bytes"),
    (r#"{"dtype":"BF16","shape":[0],"data_offsets":[BEGIN,END]}"#, "0 bytes"),
    (r#"{"dtype":"BF16","shape":[16],"data_offsets":[BEGIN]}"#, "model.norm.weight"),
    (r#"{"dtype":"BF16","shape":[16],"data_offsets":[BEGIN,END,END]}"#, "model.norm.weight"),
    (r#"{"dtype":"BF16","shape":[16],"data_offsets":[END,BEGIN]}"#, "back"),
    (r#"{"dtype":"BF16","shape":[16],"data_offsets":[-1,31]}"#, "model.norm.weight"),
    (r#"{"dtype":"BF16","shape":[16],"data_offsets":[1.5,33.5]}"#, "model.norm.weight"),
    (r#"{"dtype":"BF16","shape":[16],"data_offsets":{}}"#, "model.norm.weight"),
    (r#"{"dtype":"BF16","shape":[16],"data_offsets":[4294967296,4294967328]}"#, "truncated"),
    (
        r#"{"dtype":"BF16","shape":[16],"data_offsets":[18446744073709551583,18446744073709551615]}"#,
        "truncated",
    ),
    (r#"{"dtype":"BF16","shape":[16],"data_offsets":[0,32]}"#, "overlap"),
    (r#"{"dtype":"BF16","shape":[16],"data_offsets":[31,63]}"#, "overlap"),
];

/// Tensors that are sound by themselves but not what the configuration calls for: name, dtype,
/// shape, and a word of the message.
const TENSORS: &[(&str, &str, &[usize], &str)] = &[
    ("model.norm.weight", "BF16", &[1, 16], "[16]"),
    ("model.norm.weight", "BF16", &[15], "[16]"),
    ("model.norm.weight", "F64", &[16], "F64"),
    ("model.norm.weight", "I8", &[16], "I8"),
    ("model.norm.weight", "F8_E4M3", &[16], "F8_E4M3"),
    ("lm_head.weight", "BF16", &[16, 24], "[24, 16]"),
    ("lm_head.weight", "BF16", &[24, 16, 1], "[24, 16]"),
    ("lm_head.weight", "BF16", &[384], "[24, 16]"),
    ("lm_head.weight", "BF16", &[0, 16], "[24, 16]"),
    ("lm_head.weight", "I32", &[24, 16], "I32"),
    ("lm_head.weight", "U8", &[24, 16], "U8"),
    ("lm_head.weight", "F8_E5M2", &[24, 16], "F8_E5M2"),
    ("lm_head.weight", "F8_E4M3", &[24, 16], "quantization_config"),
    ("lm_head.weight", "I8", &[24, 16], "lm_head.weight.row_scale"),
    ("model.layers.1.mlp.experts.3.down_proj.weight", "BF16", &[6, 16], "[16, 6]"),
    ("model.layers.1.mlp.gate.weight", "BF16", &[5, 16], "[4, 16]"),
    ("model.layers.1.self_attn.indexer.wk.weight", "BF16", &[8, 16], "[7, 16]"),
];

/// Writes `weights` as the only file beside a valid configuration.
fn write(directory: &Path, weights: &[u8]) {
    TestModel::valid().write(directory);
    std::fs::write(directory.join("model.safetensors"), weights).expect("written");
}

fn weights_are_refused(case: &str, weights: &[u8], needle: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path(), weights);
    let (_, message) = refused(case, directory.path());
    assert!(message.contains(needle), "{case}: {message}");
}

/// A file of this header over `data_bytes` zeros.
fn file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    bytes
}

/// The header of the valid model and the length of its data.
fn valid_header() -> (Value, usize) {
    let bytes = file_bytes(&TestModel::valid().tensors);
    let length = u64::from_le_bytes(*bytes.first_chunk().expect("8 bytes")) as usize;
    let header = serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
    (header, bytes.len() - 8 - length)
}

#[test]
fn malformed_entry_is_refused_by_name() {
    let (mut header, data_bytes) = valid_header();
    let entry = header["model.norm.weight"].take();
    let [begin, end] = [0, 1].map(|i| entry["data_offsets"][i].to_string());
    for (entry, needle) in ENTRIES {
        let text = header.to_string().replace(
            "\"model.norm.weight\":null",
            &format!(
                "\"model.norm.weight\":{}",
                entry.replace("BEGIN", &begin).replace("END", &end)
            ),
        );
        weights_are_refused(entry, &file(&text, data_bytes), needle);
    }
    println!("{} malformed entries refused", ENTRIES.len());
}

#[test]
fn header_that_is_no_table_is_refused() {
    let entry = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let many: Vec<String> = (0..3000).map(|i| format!("\"t{i}\":{entry}")).collect();
    let cases = [
        ("nothing", String::new(), "header"),
        ("a list", "[]".into(), "header"),
        ("null", "null".into(), "header"),
        ("cut off", "{\"a\":".into(), "\"a\""),
        ("not UTF-8 by escape", "{\"\\ud800\":7}".into(), "header"),
        ("a bomb", format!("{{\"__metadata__\":{}", "[".repeat(100_000)), "__metadata__"),
        (
            "a bomb in metadata",
            format!("{{\"__metadata__\":{{\"a\":{}", "[".repeat(100_000)),
            "__metadata__",
        ),
        ("a bomb in an entry", format!("{{\"a\":{}", "{\"shape\":".repeat(100_000)), "\"a\""),
        ("twice", format!("{{\"a\":{entry},\"a\":{entry}}}"), "twice"),
        ("twice by escape", format!("{{\"a\":{entry},\"\\u0061\":{entry}}}"), "twice"),
        ("a long name", format!("{{\"{}\":{entry}}}", "n".repeat(600)), "600 bytes"),
        ("a very long name", format!("{{\"{}\":{entry}}}", "n".repeat(1_000_000)), "1000000 bytes"),
        ("rubbish behind it", format!("{{\"a\":{entry}}}x"), "header"),
        ("no tensor", "{}".into(), "missing"),
        ("only strangers", format!("{{{}}}", many.join(",")), "missing"),
        (
            "a wide shape",
            format!(r#"{{"a":{{"dtype":"U8","shape":[{}0]}}}}"#, "0,".repeat(1_000_000)),
            "8 dimensions",
        ),
        (
            "a long dtype",
            format!(
                r#"{{"a":{{"dtype":"{}","shape":[0],"data_offsets":[0,0]}}}}"#,
                "x".repeat(1_000_000)
            ),
            "dtype",
        ),
    ];
    for (case, header, needle) in &cases {
        weights_are_refused(case, &file(header, 0), needle);
    }
    println!("{} malformed headers refused", cases.len());
}

#[test]
fn length_that_does_not_fit_is_refused_before_anything_is_allocated() {
    let whole = file_bytes(&TestModel::valid().tensors);
    let longest = whole.len() as u64 - 8;
    let claims = [longest + 1, 1 << 20, 1 << 32, 1 << 40, 1 << 63, u64::MAX, u64::MAX - 7];
    for claim in claims {
        let mut bytes = whole.clone();
        bytes[..8].copy_from_slice(&claim.to_le_bytes());
        weights_are_refused(&format!("claims {claim}"), &bytes, "header claims");
    }
    for claim in [0, 1, 7, longest] {
        let mut bytes = whole.clone();
        bytes[..8].copy_from_slice(&claim.to_le_bytes());
        weights_are_refused(&format!("claims {claim}"), &bytes, "model.safetensors");
    }
    println!("{} lengths refused", claims.len() + 4);
}

#[test]
fn sparse_file_with_a_header_over_the_limit_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    write(directory.path(), &(200u64 << 20).to_le_bytes());
    let path = directory.path().join("model.safetensors");
    let weights = std::fs::OpenOptions::new().write(true).open(path).expect("opened");
    weights.set_len(1 << 40).expect("a sparse file");
    let (error, message) = refused("a header of 200 MiB", directory.path());
    assert!(matches!(error, OpenError::Header(_)), "{message}");
    assert!(message.contains("the limit of the format"), "{message}");
}

#[test]
fn file_that_is_cut_off_anywhere_is_refused() {
    let whole = file_bytes(&TestModel::valid().tensors);
    let mut cuts: Vec<usize> = (0..16).chain((16..whole.len()).step_by(331)).collect();
    cuts.push(whole.len() - 1);
    for &cut in &cuts {
        weights_are_refused(&format!("cut at {cut}"), &whole[..cut], "model.safetensors");
    }
    println!("{} cut files refused", cuts.len());
    assert!(cuts.len() >= 60);
}

#[test]
fn tensor_of_another_shape_or_type_is_refused_by_name() {
    for (name, dtype, shape, needle) in TENSORS {
        let mut model = TestModel::valid();
        let tensor = model.tensor(name);
        tensor.dtype = serde_json::from_value(Value::String(dtype.to_string())).expect("a dtype");
        tensor.shape = shape.to_vec();
        tensor.data = vec![0; shape.iter().product::<usize>() * tensor.dtype.bitsize() / 8];
        let case = format!("{name} as {dtype} {shape:?}");
        let weights = file_bytes(&model.tensors);
        weights_are_refused(&case, &weights, needle);
        weights_are_refused(&case, &weights, name);
    }
    println!("{} tensors refused", TENSORS.len());
}

#[test]
fn each_missing_tensor_is_named() {
    let model = TestModel::valid();
    for skip in 0..model.tensors.len() {
        let mut tensors = model.tensors.clone();
        let missing = tensors.remove(skip).name;
        // Two layers have an indexer, so the loss of one tensor doesn't make the model dense.
        weights_are_refused(&format!("without {missing}"), &file_bytes(&tensors), &missing);
    }
    println!("{} missing tensors named", model.tensors.len());
}

#[test]
fn flipped_bit_never_panics() {
    let whole = file_bytes(&TestModel::valid().tensors);
    let header = 8 + u64::from_le_bytes(*whole.first_chunk().expect("8 bytes")) as usize;
    let directory = tempfile::tempdir().expect("a directory");
    let (mut refused, mut opened) = (0, 0);
    for (count, byte) in (0..header).step_by(23).enumerate() {
        let mut bytes = whole.clone();
        bytes[byte] ^= 1 << (count % 8);
        write(directory.path(), &bytes);
        match open_watched(&format!("bit of byte {byte}"), directory.path()) {
            Ok(_) => opened += 1,
            Err(_) => refused += 1,
        }
    }
    println!("{refused} files with a flipped bit refused, {opened} opened");
    assert!(refused > 100);
}
