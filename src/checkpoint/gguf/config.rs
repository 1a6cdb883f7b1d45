//! The metadata of a GGUF file as a `config.json`: the fields that the model's family reads.
//!
//! So a family is written once, whatever form its models come in. Each architecture is a line of
//! [`ARCHITECTURES`]: which family it is, and where its fields come from, in addition to those
//! that all have. What the metadata says and this build doesn't compute is refused here by its
//! key; what remains is checked by the family, as the text from a stranger that it is.

use super::companions::end_tokens;
use super::fault::GgufFault;
use super::parse::{GgufHeader, GgufTensor};
use super::value::{List, Value as Held, wrong};
use crate::families::shorten;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

type Result<T> = std::result::Result<T, GgufFault>;

/// A kind of model that GGUF files name.
pub struct Architecture {
    /// Its `general.architecture`.
    pub name: &'static str,
    /// The `model_type` of its family; another one for files with experts, where that differs.
    pub model_type: &'static str,
    with_experts: Option<&'static str>,
    /// Fields beyond those that all have, in lists: a later one overrides.
    fields: &'static [Fields],
}

/// Fields: name and source each.
type Fields = &'static [(&'static str, Source)];

/// Where a field comes from.
#[derive(Clone, Copy)]
enum Source {
    /// A key below the architecture's name; no field if there is none.
    Key(&'static str),
    /// Always the same.
    Always(bool),
    /// A count that is always the same.
    Count(u64),
    /// What a function makes of the file.
    Made(fn(&Facts<'_>) -> Result<Option<Value>>),
}

use Source::{Always, Count, Key, Made};

/// Fields of every architecture.
const COMMON: Fields = &[
    ("vocab_size", Made(vocabulary)),
    ("hidden_size", Key("embedding_length")),
    ("num_hidden_layers", Made(layers)),
    ("num_nextn_predict_layers", Key("nextn_predict_layers")),
    ("intermediate_size", Made(|facts| facts.uniform("feed_forward_length"))),
    ("num_attention_heads", Made(|facts| facts.uniform("attention.head_count"))),
    ("rms_norm_eps", Key("attention.layer_norm_rms_epsilon")),
    ("max_position_embeddings", Key("context_length")),
    ("rope_theta", Made(rope_theta)),
    ("rope_scaling", Made(rope_scaling)),
    ("tie_word_embeddings", Made(|facts| Ok(Some(json!(!facts.has("output.weight")))))),
    ("bos_token_id", Made(begin_token)),
    ("eos_token_id", Made(|facts| Ok(Some(json!(end_tokens(&facts.header.metadata)?))))),
    ("num_experts_per_tok", Key("expert_used_count")),
];

/// Fields of grouped-query attention.
const GROUPED: Fields = &[
    ("num_key_value_heads", Made(key_heads)),
    ("head_dim", Made(head_dim)),
    ("rotary_dim", Key("rope.dimension_count")),
];

/// Fields of latent attention.
const LATENT: Fields = &[
    ("q_lora_rank", Made(query_rank)),
    ("kv_lora_rank", Key("attention.kv_lora_rank")),
    ("qk_rope_head_dim", Key("rope.dimension_count")),
    ("qk_nope_head_dim", Made(nope_dim)),
    ("v_head_dim", Made(value_dim)),
];

/// Fields of DeepSeek's mixtures.
const ROUTED: Fields = &[
    ("n_routed_experts", Key("expert_count")),
    ("moe_intermediate_size", Key("expert_feed_forward_length")),
    ("n_shared_experts", Key("expert_shared_count")),
    ("first_k_dense_replace", Key("leading_dense_block_count")),
    ("routed_scaling_factor", Made(|facts| facts.number_or("expert_weights_scale", 1.0))),
    ("norm_topk_prob", Made(|facts| facts.switch_or("expert_weights_norm", true))),
    ("scoring_func", Made(|facts| scoring(facts, "sigmoid"))),
    ("n_group", Made(|facts| facts.count_or("expert_group_count", 1))),
    ("topk_group", Made(|facts| facts.count_or("expert_group_used_count", 1))),
];

/// Fields of Qwen's mixtures, whose dense layers are listed.
const QWEN: Fields = &[
    ("num_experts", Key("expert_count")),
    ("moe_intermediate_size", Key("expert_feed_forward_length")),
    ("decoder_sparse_step", Count(1)),
    ("mlp_only_layers", Made(dense_layers)),
];

/// All that are known. To add one: a line, and a family that has its `model_type`.
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: "llama",
        model_type: "llama",
        with_experts: Some("mixtral"),
        fields: &[
            GROUPED,
            &[
                ("attention_bias", Made(attention_bias)),
                ("rope_interleaved", Always(true)),
                ("num_local_experts", Key("expert_count")),
            ],
        ],
    },
    Architecture {
        name: "olmoe",
        model_type: "olmoe",
        with_experts: None,
        fields: &[
            GROUPED,
            &[
                ("clip_qkv", Key("attention.clamp_kqv")),
                ("num_experts", Key("expert_count")),
                ("norm_topk_prob", Always(false)),
            ],
        ],
    },
    Architecture {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        with_experts: None,
        fields: &[
            GROUPED,
            QWEN,
            &[("attention_bias", Made(attention_bias)), ("norm_topk_prob", Always(true))],
        ],
    },
    Architecture {
        name: "qwen2moe",
        model_type: "qwen2_moe",
        with_experts: None,
        fields: &[
            GROUPED,
            QWEN,
            &[
                ("shared_expert_intermediate_size", Key("expert_shared_feed_forward_length")),
                ("norm_topk_prob", Always(false)),
            ],
        ],
    },
    Architecture {
        name: "glm4moe",
        model_type: "glm4_moe",
        with_experts: None,
        fields: &[
            GROUPED,
            ROUTED,
            &[
                ("attention_bias", Made(attention_bias)),
                (
                    "use_qk_norm",
                    Made(|facts| Ok(Some(json!(facts.has("blk.0.attn_q_norm.weight"))))),
                ),
            ],
        ],
    },
    Architecture {
        name: "deepseek2",
        model_type: "deepseek_v3",
        with_experts: None,
        fields: &[
            LATENT,
            ROUTED,
            &[
                ("norm_topk_prob", Made(|facts| facts.switch_or("expert_weights_norm", false))),
                ("scoring_func", Made(|facts| scoring(facts, "softmax"))),
            ],
        ],
    },
    Architecture {
        name: "glm-dsa",
        model_type: "glm_moe_dsa",
        with_experts: None,
        fields: &[
            LATENT,
            ROUTED,
            &[
                ("index_n_heads", Key("attention.indexer.head_count")),
                ("index_head_dim", Key("attention.indexer.key_length")),
                ("index_topk", Key("attention.indexer.top_k")),
                ("indexer_types", Made(indexer_types)),
            ],
        ],
    },
    Architecture {
        name: "gpt-oss",
        model_type: "gpt_oss",
        with_experts: None,
        fields: &[
            GROUPED,
            &[
                ("intermediate_size", Key("expert_feed_forward_length")),
                ("num_local_experts", Key("expert_count")),
                ("sliding_window", Key("attention.sliding_window")),
                ("layer_types", Made(alternating)),
                ("attention_bias", Always(true)),
            ],
        ],
    },
    Architecture {
        name: "minimax-m2",
        model_type: "minimax_m2",
        with_experts: None,
        fields: &[
            GROUPED,
            &[
                ("intermediate_size", Key("expert_feed_forward_length")),
                ("num_local_experts", Key("expert_count")),
                ("scoring_func", Made(|facts| scoring(facts, "sigmoid"))),
                (
                    "use_qk_norm",
                    Made(|facts| Ok(Some(json!(facts.has("blk.0.attn_q_norm.weight"))))),
                ),
                (
                    "use_routing_bias",
                    Made(|facts| Ok(Some(json!(facts.has("blk.0.exp_probs_b.bias"))))),
                ),
            ],
        ],
    },
];

/// Keys that change the arithmetic in ways that no family here has, and the value that changes
/// nothing.
const NEUTRAL: &[(&str, f64)] = &[
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("router_logit_softcapping", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.scale", 0.0),
    ("logit_scale", 0.0),
    ("residual_scale", 0.0),
    ("embedding_scale", 0.0),
    ("expert_group_scale", 1.0),
    ("rope.scale_linear", 1.0),
    ("rope.scaling.attn_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
];

/// The `config.json` of a file.
///
/// # Errors
/// When the architecture isn't known, or something that it needs isn't there or isn't computed.
pub fn config_json(header: &GgufHeader) -> Result<Vec<u8>> {
    let key = "general.architecture";
    let found = header.metadata.text(key)?;
    let found = found.ok_or_else(|| GgufFault::KeyMissing { key: key.to_owned() })?;
    let architecture = architecture(found)?;
    let tensors = header.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let facts = Facts { architecture: architecture.name, header, tensors };
    for &(key, neutral) in NEUTRAL {
        match facts.number(key)? {
            Some(number) if number != neutral => {
                let what =
                    format!("\"{}.{key}\" is {number}, which isn't computed", facts.architecture);
                let remedy = "get a model of this family without it";
                return Err(GgufFault::Unsupported { what, remedy });
            }
            _ => {}
        }
    }
    if facts.has("rope_freqs.weight") {
        let what =
            "rope_freqs.weight stretches rotary frequencies, which isn't computed".to_owned();
        let remedy = "get a model of this family without it";
        return Err(GgufFault::Unsupported { what, remedy });
    }
    let experts = facts.number("expert_count")?.is_some_and(|experts| experts > 0.0);
    let model_type = architecture.with_experts.filter(|_| experts);
    let mut fields = Map::new();
    let model_type = model_type.unwrap_or(architecture.model_type);
    fields.insert("model_type".to_owned(), json!(model_type));
    let lists = [COMMON].into_iter().chain(architecture.fields.iter().copied());
    for (name, source) in lists.flatten() {
        let value = match *source {
            Key(key) => facts.value(key)?,
            Always(switch) => Some(json!(switch)),
            Count(count) => Some(json!(count)),
            Made(make) => make(&facts)?,
        };
        // An architecture's own source of a field overrides the common one.
        if let Some(value) = value {
            fields.insert((*name).to_owned(), value);
        }
    }
    Ok(Value::Object(fields).to_string().into_bytes())
}

/// The architecture of a name.
fn architecture(found: &str) -> Result<&'static Architecture> {
    ARCHITECTURES.iter().find(|architecture| architecture.name == found).ok_or_else(|| {
        let known: Vec<&str> = ARCHITECTURES.iter().map(|known| known.name).collect();
        GgufFault::Architecture { found: shorten(found), known: known.join(", ") }
    })
}

/// A file, and what its keys begin with.
struct Facts<'a> {
    architecture: &'static str,
    header: &'a GgufHeader,
    tensors: HashMap<&'a str, &'a GgufTensor>,
}

impl Facts<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn held(&self, key: &str) -> Option<&Held> {
        self.header.metadata.get(&self.key(key))
    }

    /// A key's number, switch or text as JSON.
    fn value(&self, key: &str) -> Result<Option<Value>> {
        Ok(match self.held(key) {
            None => None,
            Some(Held::Whole(whole)) => Some(match u64::try_from(*whole) {
                Ok(count) => json!(count),
                Err(_) => json!(*whole as i64),
            }),
            Some(Held::Number(number)) => Some(json!(number)),
            Some(Held::Switch(switch)) => Some(json!(switch)),
            Some(Held::Text(text)) => Some(json!(text)),
            Some(list @ Held::List(_)) => {
                return Err(wrong(&self.key(key), list, "a single value"));
            }
        })
    }

    /// A count that may be listed for each layer, if it is the same for all.
    fn uniform(&self, key: &str) -> Result<Option<Value>> {
        match self.held(key) {
            Some(Held::List(List::Whole(list))) if !list.is_empty() => {
                if list.iter().all(|count| *count == list[0]) {
                    return Ok(Some(json!(list[0])));
                }
                let what = format!("\"{}\" differs from layer to layer", self.key(key));
                let remedy = "get a model whose layers are alike";
                Err(GgufFault::Unsupported { what, remedy })
            }
            _ => self.value(key),
        }
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.held(key) {
            None => Ok(None),
            Some(Held::Whole(whole)) => Ok(Some(*whole as f64)),
            Some(Held::Number(number)) => Ok(Some(*number)),
            Some(other) => Err(wrong(&self.key(key), other, "a number")),
        }
    }

    fn count(&self, key: &str) -> Result<Option<u64>> {
        self.header.metadata.count(&self.key(key))
    }

    fn needed(&self, key: &str) -> Result<u64> {
        self.count(key)?.ok_or_else(|| GgufFault::KeyMissing { key: self.key(key) })
    }

    fn number_or(&self, key: &str, default: f64) -> Result<Option<Value>> {
        Ok(Some(json!(self.number(key)?.unwrap_or(default))))
    }

    fn switch_or(&self, key: &str, default: bool) -> Result<Option<Value>> {
        Ok(Some(json!(self.header.metadata.switch(&self.key(key))?.unwrap_or(default))))
    }

    /// A count from 1; files that don't have the thing say 0 or nothing.
    fn count_or(&self, key: &str, default: u64) -> Result<Option<Value>> {
        let count = self.count(key)?.filter(|count| *count > 0);
        Ok(Some(json!(count.unwrap_or(default))))
    }

    fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.tensors.get(name).copied()
    }

    fn has(&self, name: &str) -> bool {
        self.tensor(name).is_some()
    }

    /// Layers that are run: those for multi-token prediction come after them and are not.
    fn layers(&self) -> Result<u64> {
        let all = self.needed("block_count")?;
        Ok(all.saturating_sub(self.count("nextn_predict_layers")?.unwrap_or(0)))
    }
}

/// Rows of the embedding: some files say less in their metadata.
fn vocabulary(facts: &Facts<'_>) -> Result<Option<Value>> {
    const EMBEDDING: &str = "token_embd.weight";
    match facts.tensor(EMBEDDING) {
        Some(tensor) => Ok(tensor.lengths.get(1).map(|rows| json!(rows))),
        None => Err(GgufFault::Unsupported {
            what: format!("there is no tensor \"{EMBEDDING}\", so this is not a whole model"),
            remedy: "give the file of the model itself, not of an adapter or a vocabulary",
        }),
    }
}

fn layers(facts: &Facts<'_>) -> Result<Option<Value>> {
    facts.layers().map(|layers| Some(json!(layers)))
}

fn begin_token(facts: &Facts<'_>) -> Result<Option<Value>> {
    Ok(facts.header.metadata.count("tokenizer.ggml.bos_token_id")?.map(|id| json!(id)))
}

fn rope_theta(facts: &Facts<'_>) -> Result<Option<Value>> {
    facts.number_or("rope.freq_base", 10_000.0)
}

/// How rotary frequencies are stretched, in the words of a `config.json`.
fn rope_scaling(facts: &Facts<'_>) -> Result<Option<Value>> {
    let kind = facts.header.metadata.text(&facts.key("rope.scaling.type"))?.unwrap_or("none");
    if kind == "none" {
        return Ok(None);
    }
    let mut fields = Map::new();
    fields.insert("rope_type".to_owned(), json!(kind));
    for (field, key) in [
        ("factor", "rope.scaling.factor"),
        ("original_max_position_embeddings", "rope.scaling.original_context_length"),
        ("beta_fast", "rope.scaling.yarn_beta_fast"),
        ("beta_slow", "rope.scaling.yarn_beta_slow"),
    ] {
        if let Some(value) = facts.value(key)? {
            fields.insert(field.to_owned(), value);
        }
    }
    // The tenth of what `mscale_all_dim` was; the files' models have the same `mscale`.
    if let Some(tenth) = facts.number("rope.scaling.yarn_log_multiplier")? {
        let mscale = json!((tenth * 10.0) as f32);
        fields.insert("mscale".to_owned(), mscale.clone());
        fields.insert("mscale_all_dim".to_owned(), mscale);
    }
    if facts.architecture == "gpt-oss" {
        fields.insert("truncate".to_owned(), json!(false));
    }
    Ok(Some(Value::Object(fields)))
}

fn key_heads(facts: &Facts<'_>) -> Result<Option<Value>> {
    match facts.uniform("attention.head_count_kv")? {
        Some(heads) => Ok(Some(heads)),
        None => facts.uniform("attention.head_count"),
    }
}

/// Width of a head; the values' must be the same.
fn head_dim(facts: &Facts<'_>) -> Result<Option<Value>> {
    let key = facts.count("attention.key_length")?;
    match (key, facts.count("attention.value_length")?) {
        (Some(key), Some(value)) if key != value => Err(GgufFault::Unsupported {
            what: format!("keys of {key} and values of {value} are not computed together"),
            remedy: "get a model whose keys and values have one width",
        }),
        _ => Ok(key.map(|key| json!(key))),
    }
}

fn attention_bias(facts: &Facts<'_>) -> Result<Option<Value>> {
    Ok(Some(json!(facts.has("blk.0.attn_q.bias"))))
}

/// What turns a router's logit into a score.
fn scoring(facts: &Facts<'_>, default: &'static str) -> Result<Option<Value>> {
    match facts.count("expert_gating_func")? {
        None | Some(0) => Ok(Some(json!(default))),
        Some(1) => Ok(Some(json!("softmax"))),
        Some(2) => Ok(Some(json!("sigmoid"))),
        Some(found) => Err(GgufFault::Value {
            key: facts.key("expert_gating_func"),
            found: found.to_string(),
            wanted: "1 (softmax) or 2 (sigmoid)".to_owned(),
        }),
    }
}

/// Rank of the query; none where queries are projected in one step.
fn query_rank(facts: &Facts<'_>) -> Result<Option<Value>> {
    let rank = facts.count("attention.q_lora_rank")?.filter(|rank| *rank > 0);
    Ok(rank.map(|rank| json!(rank)))
}

/// Width of a head's key without position: newer files have it apart from what is cached.
fn nope_dim(facts: &Facts<'_>) -> Result<Option<Value>> {
    let width = match facts.count("attention.key_length_mla")? {
        Some(width) => width,
        None => facts.needed("attention.key_length")?,
    };
    Ok(Some(json!(width.saturating_sub(facts.needed("rope.dimension_count")?))))
}

fn value_dim(facts: &Facts<'_>) -> Result<Option<Value>> {
    let width = match facts.count("attention.value_length_mla")? {
        Some(width) => width,
        None => facts.needed("attention.value_length")?,
    };
    Ok(Some(json!(width)))
}

/// Layers without experts, by their tensors.
fn dense_layers(facts: &Facts<'_>) -> Result<Option<Value>> {
    let dense = |layer: &u64| facts.has(&format!("blk.{layer}.ffn_gate.weight"));
    Ok(Some(json!((0..bounded(facts.layers()?)).filter(dense).collect::<Vec<u64>>())))
}

/// Which layers have an indexer of their own, by their tensors.
fn indexer_types(facts: &Facts<'_>) -> Result<Option<Value>> {
    let kind = |layer: u64| match facts.has(&format!("blk.{layer}.indexer.attn_k.weight")) {
        true => "full",
        false => "shared",
    };
    Ok(Some(json!((0..bounded(facts.layers()?)).map(kind).collect::<Vec<_>>())))
}

/// Windows on every second layer, the first among them.
fn alternating(facts: &Facts<'_>) -> Result<Option<Value>> {
    let kind = |layer: u64| match layer % 2 {
        0 => "sliding_attention",
        _ => "full_attention",
    };
    Ok(Some(json!((0..bounded(facts.layers()?)).map(kind).collect::<Vec<_>>())))
}

/// So many layers are looked at; the family refuses a model with more.
fn bounded(layers: u64) -> u64 {
    layers.min(4096)
}
