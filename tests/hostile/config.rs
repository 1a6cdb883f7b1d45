//! Hostile configurations: fields with values that no model has, fields that contradict each
//! other, and text that is no JSON.

use crate::checkpoint_files::TestModel;
use crate::refused;
use millstream::checkpoint::OpenError;

/// Values that no count may have.
const NO_COUNT: &[&str] = &[
    "-1",
    "2147483648",
    "9223372036854775808",
    "18446744073709551616",
    "1.5",
    "16.0",
    "1e3",
    "1e999",
    "NaN",
    "-Infinity",
    "\"16\"",
    "true",
    "[]",
    "[16]",
    "{}",
    "{\"a\":{\"a\":[1]}}",
];
/// Fields that must be there and can't be 0.
const COUNTS: &[&str] = &[
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "n_routed_experts",
    "num_experts_per_tok",
    "index_n_heads",
    "index_head_dim",
];
/// Fields that may be missing.
const OPTIONAL_COUNTS: &[&str] = &[
    "num_key_value_heads",
    "n_shared_experts",
    "n_group",
    "topk_group",
    "index_topk",
    "index_topk_freq",
    "index_skip_topk_offset",
    "bos_token_id",
    "num_nextn_predict_layers",
    "qk_head_dim",
    "moe_layer_freq",
    "max_position_embeddings",
];
/// Values that no factor or epsilon may have.
const NO_NUMBER: &[&str] =
    &["-1", "0", "1e39", "1e999", "NaN", "Infinity", "\"1\"", "true", "[1]", "{}", "null"];
const NUMBERS: &[&str] = &["rms_norm_eps", "routed_scaling_factor"];
const SWITCHES: &[&str] =
    &["norm_topk_prob", "attention_bias", "tie_word_embeddings", "mlp_bias", "rope_interleave"];

/// Fields each of which is legal alone, or names something that isn't supported; the
/// message must have the last word.
const CONTRADICTIONS: &[(&[(&str, &str)], &str)] = &[
    (&[("num_experts_per_tok", "5")], "num_experts_per_tok"),
    (&[("n_group", "3")], "n_group"),
    (&[("n_group", "4")], "n_group"),
    (&[("n_group", "2"), ("num_experts_per_tok", "3")], "topk_group"),
    (&[("topk_group", "2")], "topk_group"),
    (&[("qk_rope_head_dim", "3")], "qk_rope_head_dim"),
    (&[("index_head_dim", "2")], "index_head_dim"),
    (&[("qk_head_dim", "9")], "qk_head_dim"),
    (&[("num_key_value_heads", "1")], "num_key_value_heads"),
    (&[("mlp_bias", "true")], "mlp_bias"),
    (&[("hidden_act", "\"gelu\"")], "gelu"),
    (&[("scoring_func", "\"softmax\"")], "softmax"),
    (&[("topk_method", "\"greedy\"")], "greedy"),
    (&[("indexer_types", "[\"shared\",\"full\",\"full\"]")], "layer 0"),
    (&[("indexer_types", "[\"full\",\"full\"]")], "indexer_types"),
    (&[("indexer_types", "[\"full\",\"half\",\"full\"]")], "half"),
    (&[("indexer_types", "[\"full\",1,\"full\"]")], "indexer_types"),
    (&[("index_topk_pattern", "\"FS\"")], "index_topk_pattern"),
    (&[("index_topk_pattern", "\"FSX\"")], "index_topk_pattern"),
    (&[("index_topk_pattern", "\"SFF\"")], "layer 0"),
    (&[("mlp_layer_types", "[\"dense\"]")], "mlp_layer_types"),
    (&[("mlp_layer_types", "[\"dense\",\"moe\",\"moe\"]")], "moe"),
    (&[("first_k_dense_replace", "4")], "first_k_dense_replace"),
    (&[("eos_token_id", "24")], "eos_token_id"),
    (&[("eos_token_id", "[3,-1]")], "eos_token_id"),
    (&[("eos_token_id", "[[3]]")], "eos_token_id"),
    (&[("bos_token_id", "24")], "bos_token_id"),
    (&[("rope_parameters", "{\"rope_theta\":1e4,\"rope_type\":\"longrope\"}")], "longrope"),
    (&[("rope_parameters", "{\"rope_theta\":0}")], "rope_parameters.rope_theta"),
    (&[("rope_parameters", "{\"rope_theta\":\"x\"}")], "rope_parameters.rope_theta"),
    (&[("rope_parameters", "{}")], "rope_theta"),
    (&[("rope_parameters", "[]")], "rope_parameters"),
    (
        &[("rope_parameters", "{\"rope_theta\":1e4,\"partial_rotary_factor\":0.5}")],
        "partial_rotary_factor",
    ),
    (&[("rope_scaling", "{\"type\":\"llama3\"}")], "llama3"),
    (&[("quantization_config", "{\"quant_method\":\"gptq\"}")], "gptq"),
    (&[("quantization_config", "{}")], "quantization_config.quant_method"),
    (&[("quantization_config", "7")], "quantization_config"),
    (&[("quantization_config", "{\"quant_method\":\"fp8\"}")], "weight_block_size"),
    (
        &[("quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[64,64]}")],
        "[64, 64]",
    ),
    (&[("quantization_config", "{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}")], "e5m2"),
    (&[("model_type", "\"bert\"")], "glm_moe_dsa"),
    (&[("model_type", "null")], "model_type"),
    (&[("model_type", "7")], "model_type"),
    (
        &[("num_attention_heads", "1024"), ("num_key_value_heads", "1024"), ("v_head_dim", "4096")],
        "v_head_dim",
    ),
    (&[("n_routed_experts", "4096"), ("num_hidden_layers", "1024")], "num_hidden_layers"),
    (&[("vocab_size", "4194304"), ("hidden_size", "262144")], "vocab_size"),
    (&[("n_shared_experts", "64"), ("moe_intermediate_size", "262144")], "n_shared_experts"),
    (&[("index_n_heads", "1024"), ("index_head_dim", "4096")], "index_n_heads"),
];

/// Writes a configuration beside the valid weights; it must be refused by name.
fn config_is_refused(case: &str, config: &str, needle: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    TestModel::valid().write(directory.path());
    std::fs::write(directory.path().join("config.json"), config).expect("written");
    let (error, message) = refused(case, directory.path());
    assert!(matches!(error, OpenError::Config(_)), "{case}: {message}");
    assert!(message.contains("config.json"), "{case}: {message}");
    assert!(message.contains(needle), "{case}: {message}");
}

fn with(fields: &[(&str, &str)]) -> String {
    let mut model = TestModel::valid();
    fields.iter().for_each(|(field, value)| model.set(field, value));
    model.config_text()
}

#[test]
fn field_with_a_value_that_no_model_has_is_refused_by_name() {
    let mut cases: Vec<(&str, &str)> = Vec::new();
    for field in COUNTS {
        cases.extend(NO_COUNT.iter().chain(&["0", "null"]).map(|value| (*field, *value)));
    }
    for field in OPTIONAL_COUNTS {
        cases.extend(NO_COUNT.iter().map(|value| (*field, *value)));
    }
    for field in NUMBERS {
        cases.extend(NO_NUMBER.iter().map(|value| (*field, *value)));
    }
    for field in SWITCHES {
        cases.extend(["0", "1", "\"true\"", "[]", "{}"].iter().map(|value| (*field, *value)));
    }
    for (field, value) in &cases {
        config_is_refused(&format!("{field} = {value}"), &with(&[(field, value)]), field);
    }
    println!("{} hostile fields refused", cases.len());
    assert!(cases.len() >= 400);
}

#[test]
fn fields_that_contradict_each_other_are_refused() {
    for (fields, needle) in CONTRADICTIONS {
        config_is_refused(&format!("{fields:?}"), &with(fields), needle);
    }
    println!("{} contradictions refused", CONTRADICTIONS.len());
}

#[test]
fn configuration_that_is_cut_off_anywhere_is_refused() {
    let whole = TestModel::valid().config_text();
    let cuts: Vec<usize> = (0..whole.len()).step_by(7).collect();
    for &cut in &cuts {
        config_is_refused(&format!("cut at {cut}"), &whole[..cut], "config.json");
    }
    println!("{} cut configurations refused", cuts.len());
    assert!(cuts.len() >= 50);
}

#[test]
fn text_that_is_no_configuration_is_refused() {
    let deep = |open: &str, shut: &str, depth| {
        format!("{{\"model_type\":{}1{}}}", open.repeat(depth), shut.repeat(depth))
    };
    let valid = TestModel::valid().config_text();
    let twice = valid.replacen('{', "{\"vocab_size\":24,", 1);
    let cases = [
        ("empty", String::new(), "JSON"),
        ("white space", " \n".into(), "JSON"),
        ("a list", "[]".into(), "JSON"),
        ("null", "null".into(), "JSON"),
        ("a number", "1e999".into(), "JSON"),
        ("no field", "{}".into(), "model_type"),
        ("a byte order mark", format!("\u{feff}{valid}"), "JSON"),
        ("rubbish behind it", format!("{valid}x"), "JSON"),
        ("a second object", format!("{valid}{valid}"), "JSON"),
        ("a name twice", twice, "vocab_size"),
        ("deep lists", deep("[", "]", 200), "model_type"),
        ("a bomb of lists", deep("[", "]", 200_000), "model_type"),
        ("a bomb of objects", deep("{\"a\":", "}", 100_000), "model_type"),
        ("a bomb that never ends", "{\"a\":".repeat(100_000), "\"a\""),
        ("a wide list", format!("{{\"a\":[{}0]}}", "0,".repeat(400_000)), "model_type"),
        ("a long name", format!("{{\"{}\":1}}", "a".repeat(1_000_000)), "model_type"),
        ("a long text", format!("{{\"model_type\":\"{}\"}}", "a".repeat(1_000_000)), "model_type"),
        ("many fields", many_fields(40_000), "model_type"),
    ];
    for (case, text, needle) in &cases {
        config_is_refused(case, text, needle);
    }
    println!("{} texts refused", cases.len());
}

fn many_fields(count: usize) -> String {
    let fields: Vec<String> = (0..count).map(|i| format!("\"f{i}\":{i}")).collect();
    format!("{{{}}}", fields.join(","))
}

#[test]
fn configuration_over_the_cap_is_not_read() {
    let directory = tempfile::tempdir().expect("a directory");
    TestModel::valid().write(directory.path());
    std::fs::write(directory.path().join("config.json"), many_fields(200_000)).expect("written");
    let (error, message) = refused("over the cap", directory.path());
    assert!(matches!(error, OpenError::FileTooLong { .. }), "{message}");
}

#[test]
fn generation_config_is_read_with_the_same_care() {
    let texts =
        ["", "[]", "{\"eos_token_id\":24}", "{\"eos_token_id\":-1}", "{\"eos_token_id\":{}}"];
    for text in texts {
        let directory = tempfile::tempdir().expect("a directory");
        TestModel::valid().write(directory.path());
        std::fs::write(directory.path().join("generation_config.json"), text).expect("written");
        let (error, message) = refused(text, directory.path());
        assert!(matches!(error, OpenError::Config(_)), "{message}");
        assert!(message.contains("generation_config.json"), "{message}");
    }
}
