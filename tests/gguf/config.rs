//! What metadata becomes: fields of a `config.json`, and refusals that name key and remedy.

use crate::writer::{Writer, Written, WrittenTensor};
use millstream::checkpoint::gguf::companions::companion;
use millstream::checkpoint::gguf::config::ARCHITECTURES;
use millstream::checkpoint::gguf::parse;
use millstream::families::FAMILIES;
use serde_json::{Value, json};

fn llama() -> Writer {
    let mut writer = Writer::new(vec![
        ("general.architecture", Written::Text("llama".into())),
        ("llama.block_count", Written::U32(2)),
        ("llama.embedding_length", Written::U32(32)),
        ("llama.feed_forward_length", Written::U32(64)),
        ("llama.attention.head_count", Written::U32(4)),
        ("llama.attention.layer_norm_rms_epsilon", Written::F32(1e-5)),
        ("llama.context_length", Written::U32(128)),
    ]);
    let name = "token_embd.weight".to_owned();
    writer.tensors = vec![WrittenTensor { name, lengths: vec![32, 3], ggml: 0, offset: 0 }];
    writer.data_bytes = 4 * 32 * 3;
    writer
}

fn config(writer: &Writer) -> Result<Value, String> {
    let bytes = writer.bytes();
    let header = parse(&bytes[..], bytes.len() as u64).expect("sound");
    match companion(&header, "config.json") {
        Ok(text) => Ok(serde_json::from_slice(&text.expect("made")).expect("JSON")),
        Err(fault) => Err(fault.to_string()),
    }
}

fn set(writer: &mut Writer, key: &str, value: Written) {
    writer.metadata.retain(|(name, _)| name != key);
    writer.metadata.push((key.to_owned(), value));
}

#[test]
fn fields_are_those_of_a_configuration() {
    let mut writer = llama();
    let found = config(&writer).expect("a configuration");
    for (field, value) in [
        ("model_type", json!("llama")),
        ("vocab_size", json!(3)),
        ("num_hidden_layers", json!(2)),
        ("num_key_value_heads", json!(4)),
        ("rope_theta", json!(10000.0)),
        ("rope_interleaved", json!(true)),
        ("tie_word_embeddings", json!(true)),
        ("rms_norm_eps", json!(f64::from(1e-5f32))),
    ] {
        assert_eq!(found[field], value, "{field}");
    }
    assert!(found.get("rope_scaling").is_none());
    set(&mut writer, "llama.expert_count", Written::U32(8));
    set(&mut writer, "llama.attention.head_count_kv", Written::I32s(vec![2, 2]));
    set(&mut writer, "tokenizer.ggml.eos_token_id", Written::U32(2));
    set(&mut writer, "tokenizer.ggml.eot_token_id", Written::U32(1));
    let found = config(&writer).expect("a configuration");
    assert_eq!(found["model_type"], "mixtral");
    assert_eq!(found["num_key_value_heads"], 2);
    assert_eq!(found["eos_token_id"], json!([1, 2]));
}

/// A key, a value, and what the refusal says.
type Case = (&'static str, fn() -> Written, &'static str);

const CASES: &[Case] = &[
    ("general.architecture", || Written::Text("mamba".into()), "olmoe"),
    ("general.architecture", || Written::U32(7), "a text"),
    ("llama.embedding_length", || Written::F32s(vec![1.0]), "a single value"),
    ("llama.attention.head_count", || Written::I32s(vec![4, 8]), "from layer to layer"),
    ("llama.final_logit_softcapping", || Written::F32(30.0), "llama.final_logit_softcapping"),
    ("llama.attention.scale", || Written::F32(0.5), "llama.attention.scale"),
    ("llama.rope.scaling.attn_factor", || Written::F32(0.9), "attn_factor"),
    ("llama.rope.freq_base", || Written::Text("x".into()), "llama.rope.freq_base"),
    ("tokenizer.ggml.eos_token_id", || Written::Text("x".into()), "eos_token_id"),
];

#[test]
fn what_is_not_computed_is_refused_by_its_key() {
    for (key, value, word) in CASES {
        let mut writer = llama();
        set(&mut writer, key, value());
        let message = config(&writer).expect_err(key);
        assert!(message.contains(word), "{key}: {message}");
    }
    let mut writer = llama();
    writer.tensors[0].name = "rope_freqs.weight".to_owned();
    assert!(config(&writer).expect_err("no model").contains("rope_freqs.weight"));
    writer.tensors.clear();
    assert!(config(&writer).expect_err("no model").contains("token_embd.weight"));
    writer.metadata.remove(0);
    assert!(config(&writer).expect_err("no name").contains("general.architecture"));
}

#[test]
fn neutral_values_are_no_reason_to_refuse() {
    let mut writer = llama();
    set(&mut writer, "llama.attention.max_alibi_bias", Written::F32(0.0));
    set(&mut writer, "llama.rope.scaling.attn_factor", Written::F32(1.0));
    set(&mut writer, "llama.rope.scaling.type", Written::Text("none".into()));
    config(&writer).expect("a configuration");
}

#[test]
fn every_architecture_has_a_family() {
    let known: Vec<&str> =
        FAMILIES.iter().flat_map(|family| family.model_types()).copied().collect();
    for architecture in ARCHITECTURES {
        assert!(known.contains(&architecture.model_type), "{}", architecture.name);
    }
}
