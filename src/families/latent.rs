//! Latent attention, its indexers, and the choice of dense layers: what GLM-5 and DeepSeek share.
//!
//! Reads the fields that DeepSeek-V3's `config.json` introduced (transformers, `DeepseekV3Config`,
//! `DeepseekV32Config`, `GlmMoeDsaConfig`), derives what files leave out, and checks that the
//! numbers fit each other. Owned by the families that call it; specs flow out. The arithmetic that
//! the values steer is described in `stages/src/spec.rs`.

use super::hub_names::{LATENT, name};
use super::shared::{
    CONTEXT_MAX, HEAD_WIDTH_MAX, HEADS_MAX, LAYERS_MAX, Sizes, TENSOR_WEIGHTS_MAX, WIDTH_MAX,
    by_kind, dense_width, grouped_mixture, rope, two_kinds,
};
use super::{ConfigError, ConfigReader};
use millstream_stages::ids::LayerId;
use millstream_stages::spec::{
    AttentionSpec, FfnSpec, IndexerSpec, IndexerUse, LayerSpec, MlaSpec, RopeSpec,
};
use millstream_stages::weights::Part;

/// transformers builds these norms with their default epsilon, whatever `rms_norm_eps` says.
const LATENT_NORM_EPSILON: f32 = 1e-6;
const INDEX_NORM_EPSILON: f32 = 1e-6;
/// The schedule of shared indexers when a file has a frequency but no offset.
const INDEX_OFFSET_DEFAULT: usize = 2;

/// The tensors of an indexer.
const INDEXER_PARTS: [Part; 5] = [
    Part::IndexQuery,
    Part::IndexKey,
    Part::IndexKeyNorm,
    Part::IndexKeyNormBias,
    Part::IndexWeights,
];

type Result<T> = std::result::Result<T, ConfigError>;

/// Refuses by name every variant that the stages don't compute.
///
/// # Errors
/// When the file asks for one.
pub(super) fn refuse_what_is_not_computed(config: &ConfigReader) -> Result<()> {
    config.only_text("hidden_act", "silu")?;
    config.only_text("scoring_func", "sigmoid")?;
    config.only_text("topk_method", "noaux_tc")?;
    if config.flag_or("mlp_bias", false)? {
        return Err(config.unsupported("mlp_bias", "true", "false"));
    }
    if let Some(rope) = config.section("rope_parameters")? {
        let part = rope.optional_number("partial_rotary_factor", 0.0..=1.0)?;
        if part.is_some_and(|part| part != 1.0) {
            return Err(rope.unsupported("partial_rotary_factor", "not 1", "1"));
        }
    }
    config.count_or("moe_layer_freq", 1, 1..=1).map(drop)
}

/// The attention that all layers share, indexer aside.
///
/// # Errors
/// When a field is missing, out of range or contradicts another.
pub(super) fn attention(config: &ConfigReader, hidden: usize) -> Result<MlaSpec> {
    let heads = config.count("num_attention_heads", 1..=HEADS_MAX)?;
    let query_rank = config.optional_count("q_lora_rank", 1..=WIDTH_MAX)?;
    let latent_rank = config.count("kv_lora_rank", 1..=WIDTH_MAX)?;
    let nope_dim = config.count("qk_nope_head_dim", 1..=HEAD_WIDTH_MAX)?;
    let rope_dim = config.count("qk_rope_head_dim", 2..=HEAD_WIDTH_MAX)?;
    let value_dim = config.count("v_head_dim", 1..=HEAD_WIDTH_MAX)?;
    config.require(rope_dim % 2 == 0, || {
        format!("qk_rope_head_dim is {rope_dim}, and rotary position needs an even number")
    })?;
    let query_dim = config.count_or("qk_head_dim", nope_dim + rope_dim, 1..=2 * HEAD_WIDTH_MAX)?;
    config.require(query_dim == nope_dim + rope_dim, || {
        format!(
            "qk_head_dim is {query_dim}, not qk_nope_head_dim + qk_rope_head_dim = {}",
            nope_dim + rope_dim
        )
    })?;
    let key_heads = config.count_or("num_key_value_heads", heads, 1..=HEADS_MAX)?;
    config.require(key_heads == heads, || {
        format!("num_key_value_heads is {key_heads}, not num_attention_heads = {heads}")
    })?;
    for (name, width, rank_name, rank) in [
        ("qk_head_dim", query_dim, "q_lora_rank or hidden_size", query_rank.unwrap_or(hidden)),
        ("qk_nope_head_dim + v_head_dim", nope_dim + value_dim, "kv_lora_rank", latent_rank),
        ("v_head_dim", value_dim, "hidden_size", hidden),
    ] {
        let rows = [("num_attention_heads", heads), (name, width)];
        config.product(&rows, WIDTH_MAX)?;
        config.product(&[rows[0], rows[1], (rank_name, rank)], TENSOR_WEIGHTS_MAX)?;
    }
    let rank = ("q_lora_rank", query_rank.unwrap_or(1));
    config.product(&[rank, ("hidden_size", hidden)], TENSOR_WEIGHTS_MAX)?;
    config
        .product(&[("kv_lora_rank", latent_rank), ("hidden_size", hidden)], TENSOR_WEIGHTS_MAX)?;
    let interleaved = config.flag_or("rope_interleave", true)?;
    let (rope, score) = rope(config, rope_dim, None, interleaved)?;
    Ok(MlaSpec {
        heads,
        query_rank,
        latent_rank,
        nope_dim,
        rope_dim,
        value_dim,
        score_scale: (1.0 / (query_dim as f64).sqrt() * score) as f32,
        rope,
        latent_norm_epsilon: LATENT_NORM_EPSILON,
        bias: config.flag_or("attention_bias", false)?,
        indexer: IndexerUse::Dense,
    })
}

/// Which keys each layer looks at. Dense everywhere when the file keeps no keys or the checkpoint
/// has no weights of any indexer; when it has some, all of them must be there.
pub(super) fn indexers(
    config: &ConfigReader,
    layer_count: usize,
    attention: &MlaSpec,
    interleaved: bool,
    tensor_exists: &dyn Fn(&str) -> bool,
) -> Result<Vec<IndexerUse>> {
    let top_k = config.count_or("index_topk", 0, 0..=CONTEXT_MAX)?;
    if top_k == 0 {
        return Ok(vec![IndexerUse::Dense; layer_count]);
    }
    let heads = config.count("index_n_heads", 1..=HEADS_MAX)?;
    let dim = config.count("index_head_dim", 1..=HEAD_WIDTH_MAX)?;
    config.product(&[("index_n_heads", heads), ("index_head_dim", dim)], WIDTH_MAX)?;
    let rope_dim = attention.rope_dim;
    config.require(dim >= rope_dim, || {
        format!("index_head_dim is {dim}, less than qk_rope_head_dim = {rope_dim}")
    })?;
    let full = indexer_schedule(config, layer_count)?;
    config.require(full[0], || {
        "layer 0 shares an indexer, and no earlier layer has one".to_string()
    })?;
    let has_indexer = |layer: usize| {
        let layer = Some(LayerId(layer as u32));
        INDEXER_PARTS.iter().any(|&part| tensor_exists(&name(&LATENT, layer, part)))
    };
    if !(0..layer_count).any(has_indexer) {
        return Ok(vec![IndexerUse::Dense; layer_count]);
    }
    config.require(attention.query_rank.is_some(), || {
        "index_topk is given and q_lora_rank isn't; the indexer reads the query's low rank"
            .to_string()
    })?;
    let indexer = IndexerSpec {
        heads,
        dim,
        top_k,
        rope: RopeSpec { interleaved, ..attention.rope },
        norm_epsilon: INDEX_NORM_EPSILON,
    };
    let uses = full.into_iter();
    Ok(uses.map(|own| if own { IndexerUse::Full(indexer) } else { IndexerUse::Shared }).collect())
}

/// Which layers have an indexer of their own: `indexer_types`, else `index_topk_pattern`, else
/// every layer i with `max(i - offset + 1, 0) % frequency == 0` (transformers, `GlmMoeDsaConfig`).
fn indexer_schedule(config: &ConfigReader, layer_count: usize) -> Result<Vec<bool>> {
    if let Some(kinds) = config.text_list("indexer_types", layer_count)? {
        return two_kinds(config, "indexer_types", &kinds, "full", "shared");
    }
    if let Some(pattern) = config.optional_text("index_topk_pattern")? {
        config.require(pattern.chars().count() == layer_count, || {
            format!("index_topk_pattern doesn't have num_hidden_layers = {layer_count} letters")
        })?;
        let letters: Vec<&str> = pattern.split("").filter(|letter| !letter.is_empty()).collect();
        return two_kinds(config, "index_topk_pattern", &letters, "F", "S");
    }
    let frequency = config.count_or("index_topk_freq", 1, 1..=LAYERS_MAX)?;
    let offset = config.count_or("index_skip_topk_offset", INDEX_OFFSET_DEFAULT, 0..=LAYERS_MAX)?;
    Ok((0..layer_count).map(|layer| (layer + 1).saturating_sub(offset) % frequency == 0).collect())
}

/// What follows attention in each layer: `mlp_layer_types`, else dense before
/// `first_k_dense_replace`.
///
/// # Errors
/// When a field is missing, out of range or contradicts another.
pub(super) fn ffns(config: &ConfigReader, sizes: &Sizes) -> Result<Vec<FfnSpec>> {
    let sparse = match config.text_list("mlp_layer_types", sizes.layers)? {
        Some(kinds) => two_kinds(config, "mlp_layer_types", &kinds, "sparse", "dense")?,
        None => {
            let dense = config.count("first_k_dense_replace", 0..=sizes.layers)?;
            (0..sizes.layers).map(|layer| layer >= dense).collect()
        }
    };
    by_kind(sparse, || dense_width(config, sizes.hidden), || grouped_mixture(config, sizes))
}

/// Every layer, of its indexer and its FFN.
pub(super) fn layers(
    attention: &MlaSpec,
    indexers: Vec<IndexerUse>,
    ffns: Vec<FfnSpec>,
    norm_epsilon: f32,
) -> Vec<LayerSpec> {
    let pairs = indexers.into_iter().zip(ffns);
    pairs
        .map(|(indexer, ffn)| LayerSpec {
            attention: AttentionSpec::Mla(MlaSpec { indexer, ..attention.clone() }),
            ffn,
            norm_epsilon,
        })
        .collect()
}
