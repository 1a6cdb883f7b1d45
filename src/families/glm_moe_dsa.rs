//! GLM-5 and its kin (`glm_moe_dsa`): latent attention with a sparse indexer, sigmoid experts.
//!
//! Reads a Hugging Face `config.json` the way transformers' `GlmMoeDsaConfig` does, derives what
//! older files leave out (layer kinds, indexer schedule, head widths), checks that the numbers
//! fit each other, and names the tensors. The arithmetic that the values steer is described in
//! `stages/src/spec.rs`.

use super::hub_names::tensor_name;
use super::{Blueprint, ConfigError, ConfigReader, Family, Quantisation, Skipped, SpecialTokens};
use millstream_stages::ids::LayerId;
use millstream_stages::spec::{
    AttentionSpec, FfnSpec, GateScore, GateSpec, IndexerSpec, IndexerUse, LayerSpec, MlaSpec,
    ModelSpec, MoeSpec, RopeSpec,
};
use millstream_stages::weights::Part;

/// The family; see the table in [`super::FAMILIES`].
pub struct GlmMoeDsa;

/// Bounds on single fields: far above any known model, low enough that products can't overflow.
const LAYERS_MAX: usize = 1024;
const WIDTH_MAX: usize = 1 << 18;
const HEADS_MAX: usize = 1024;
const HEAD_WIDTH_MAX: usize = 4096;
const EXPERTS_MAX: usize = 4096;
const VOCABULARY_MAX: usize = 1 << 22;
const CONTEXT_MAX: usize = 1 << 27;
/// Most weights of one tensor, and most experts of all layers together.
const TENSOR_WEIGHTS_MAX: usize = 1 << 34;
const EXPERTS_TOTAL_MAX: usize = 1 << 20;
/// transformers builds these norms with their default epsilon, whatever `rms_norm_eps` says.
const LATENT_NORM_EPSILON: f32 = 1e-6;
const INDEX_NORM_EPSILON: f32 = 1e-6;
/// transformers' `GlmMoeDsaConfig` has this context when a file doesn't say.
const CONTEXT_DEFAULT: usize = 202_752;
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

impl Family for GlmMoeDsa {
    fn model_types(&self) -> &'static [&'static str] {
        &["glm_moe_dsa"]
    }

    fn blueprint(
        &self,
        config: &ConfigReader,
        tensor_exists: &dyn Fn(&str) -> bool,
    ) -> Result<Blueprint> {
        refuse_what_is_not_computed(config)?;
        let layer_count = config.count("num_hidden_layers", 1..=LAYERS_MAX)?;
        let hidden = config.count("hidden_size", 1..=WIDTH_MAX)?;
        let vocabulary = config.count("vocab_size", 1..=VOCABULARY_MAX)?;
        config
            .product(&[("vocab_size", vocabulary), ("hidden_size", hidden)], TENSOR_WEIGHTS_MAX)?;
        let norm_epsilon = config.number("rms_norm_eps", 1e-12..=1.0)?;
        let attention = attention(config, hidden)?;
        let indexers = indexers(config, layer_count, &attention, tensor_exists)?;
        let ffns = ffns(config, layer_count, hidden)?;
        let layers: Vec<LayerSpec> = indexers
            .into_iter()
            .zip(ffns)
            .map(|(indexer, ffn)| LayerSpec {
                attention: AttentionSpec::Mla(MlaSpec { indexer, ..attention.clone() }),
                ffn,
                norm_epsilon,
            })
            .collect();
        let slices = ModelSpec::choose_slices(&layers, 1);
        let tied_head = config.flag_or("tie_word_embeddings", false)?;
        let draft_layers = config.count_or("num_nextn_predict_layers", 0, 0..=8)?;
        Ok(Blueprint {
            family: config.text("model_type")?.to_string(),
            spec: ModelSpec {
                vocabulary,
                hidden,
                layers,
                final_norm_epsilon: norm_epsilon,
                tied_head,
                context_max: config.count_or(
                    "max_position_embeddings",
                    CONTEXT_DEFAULT,
                    1..=CONTEXT_MAX,
                )?,
                slices,
            },
            tensor_name,
            tokens: special_tokens(config, vocabulary)?,
            quantisation: quantisation(config)?,
            skipped: skipped(layer_count, draft_layers, tied_head),
            draft_layers,
        })
    }
}

/// Refuses by name every variant that the stages don't compute.
fn refuse_what_is_not_computed(config: &ConfigReader) -> Result<()> {
    config.only_text("hidden_act", "silu")?;
    config.only_text("scoring_func", "sigmoid")?;
    config.only_text("topk_method", "noaux_tc")?;
    if config.flag_or("mlp_bias", false)? {
        return Err(config.unsupported("mlp_bias", "true", "false"));
    }
    config.count_or("moe_layer_freq", 1, 1..=1)?;
    if config.has("rope_scaling") {
        let scaling = config.section("rope_scaling")?;
        if let Some(kind) = scaling.as_ref().map(rope_kind).transpose()?.filter(|k| *k != "default")
        {
            return Err(config.unsupported("rope_scaling", &format!("\"{kind}\""), "plain rope"));
        }
    }
    Ok(())
}

fn rope_kind(section: &ConfigReader) -> Result<&str> {
    let named = section.optional_text("rope_type")?;
    Ok(named.or(section.optional_text("type")?).unwrap_or("default"))
}

/// The base of the rotary frequencies: `rope_parameters.rope_theta`, or the older `rope_theta`.
fn rope_theta(config: &ConfigReader) -> Result<f32> {
    let range = 1.0..=1e12;
    let Some(rope) = config.section("rope_parameters")? else {
        return config.number("rope_theta", range);
    };
    let kind = rope_kind(&rope)?;
    if kind != "default" {
        return Err(rope.unsupported("rope_type", &format!("\"{kind}\""), "\"default\""));
    }
    if rope.optional_number("partial_rotary_factor", 0.0..=1.0)?.is_some_and(|part| part != 1.0) {
        return Err(rope.unsupported("partial_rotary_factor", "not 1", "1"));
    }
    match rope.optional_number("rope_theta", range.clone())? {
        Some(theta) => Ok(theta),
        None => config.number("rope_theta", range),
    }
}

/// The attention that all layers share, indexer aside.
fn attention(config: &ConfigReader, hidden: usize) -> Result<MlaSpec> {
    let heads = config.count("num_attention_heads", 1..=HEADS_MAX)?;
    let query_rank = config.count("q_lora_rank", 1..=WIDTH_MAX)?;
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
        ("qk_head_dim", query_dim, "q_lora_rank", query_rank),
        ("qk_nope_head_dim + v_head_dim", nope_dim + value_dim, "kv_lora_rank", latent_rank),
        ("v_head_dim", value_dim, "hidden_size", hidden),
    ] {
        let rows = [("num_attention_heads", heads), (name, width)];
        config.product(&rows, WIDTH_MAX)?;
        config.product(&[rows[0], rows[1], (rank_name, rank)], TENSOR_WEIGHTS_MAX)?;
    }
    config.product(&[("q_lora_rank", query_rank), ("hidden_size", hidden)], TENSOR_WEIGHTS_MAX)?;
    config
        .product(&[("kv_lora_rank", latent_rank), ("hidden_size", hidden)], TENSOR_WEIGHTS_MAX)?;
    Ok(MlaSpec {
        heads,
        query_rank,
        latent_rank,
        nope_dim,
        rope_dim,
        value_dim,
        score_scale: (1.0 / (query_dim as f64).sqrt()) as f32,
        rope: RopeSpec {
            theta: rope_theta(config)?,
            interleaved: config.flag_or("rope_interleave", true)?,
        },
        latent_norm_epsilon: LATENT_NORM_EPSILON,
        bias: config.flag_or("attention_bias", false)?,
        indexer: IndexerUse::Dense,
    })
}

/// Which keys each layer looks at. Dense everywhere when the file keeps no keys or the checkpoint
/// has no weights of any indexer; when it has some, all of them must be there.
fn indexers(
    config: &ConfigReader,
    layer_count: usize,
    attention: &MlaSpec,
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
        INDEXER_PARTS.iter().any(|&part| tensor_exists(&tensor_name(layer, part)))
    };
    if !(0..layer_count).any(has_indexer) {
        return Ok(vec![IndexerUse::Dense; layer_count]);
    }
    let interleaved = config.flag_or("indexer_rope_interleave", true)?;
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

/// Turns a list of two words into true for the first and false for the second.
fn two_kinds(
    config: &ConfigReader,
    field: &str,
    words: &[&str],
    yes: &str,
    no: &str,
) -> Result<Vec<bool>> {
    words
        .iter()
        .map(|&word| {
            if word != yes && word != no {
                let supported = format!("\"{yes}\" and \"{no}\"");
                return Err(config.unsupported(field, &format!("\"{word}\""), &supported));
            }
            Ok(word == yes)
        })
        .collect()
}

/// What follows attention in each layer: `mlp_layer_types`, else dense before
/// `first_k_dense_replace`.
fn ffns(config: &ConfigReader, layer_count: usize, hidden: usize) -> Result<Vec<FfnSpec>> {
    let sparse = match config.text_list("mlp_layer_types", layer_count)? {
        Some(kinds) => two_kinds(config, "mlp_layer_types", &kinds, "sparse", "dense")?,
        None => {
            let dense = config.count("first_k_dense_replace", 0..=layer_count)?;
            (0..layer_count).map(|layer| layer >= dense).collect()
        }
    };
    let dense = sparse.contains(&false).then(|| dense_width(config, hidden)).transpose()?;
    let moe = sparse.contains(&true).then(|| moe(config, layer_count, hidden)).transpose()?;
    let layers = sparse.into_iter();
    Ok(layers
        .map(|sparse| match (sparse, dense, &moe) {
            (true, _, Some(moe)) => FfnSpec::Moe(moe.clone()),
            (false, Some(intermediate), _) => FfnSpec::Dense { intermediate },
            _ => unreachable!("each kind that occurs was read"),
        })
        .collect())
}

fn dense_width(config: &ConfigReader, hidden: usize) -> Result<usize> {
    let intermediate = config.count("intermediate_size", 1..=WIDTH_MAX)?;
    config.product(
        &[("intermediate_size", intermediate), ("hidden_size", hidden)],
        TENSOR_WEIGHTS_MAX,
    )?;
    Ok(intermediate)
}

fn moe(config: &ConfigReader, layer_count: usize, hidden: usize) -> Result<MoeSpec> {
    let older = config.has("num_local_experts") && !config.has("n_routed_experts");
    let experts_field = if older { "num_local_experts" } else { "n_routed_experts" };
    let experts = config.count(experts_field, 1..=EXPERTS_MAX)?;
    let top_k = config.count("num_experts_per_tok", 1..=EXPERTS_MAX)?;
    let intermediate = config.count("moe_intermediate_size", 1..=WIDTH_MAX)?;
    let shared = config.count_or("n_shared_experts", 0, 0..=64)?;
    let groups = config.count_or("n_group", 1, 1..=experts)?;
    let groups_kept = config.count_or("topk_group", 1, 1..=groups)?;
    let width = ("moe_intermediate_size", intermediate);
    let shared_intermediate = config.product(&[("n_shared_experts", shared), width], WIDTH_MAX)?;
    config.product(&[width, ("hidden_size", hidden)], TENSOR_WEIGHTS_MAX)?;
    config.product(
        &[(experts_field, experts), ("num_hidden_layers", layer_count)],
        EXPERTS_TOTAL_MAX,
    )?;
    config.require(top_k <= experts, || {
        format!("num_experts_per_tok is {top_k}, more than {experts_field} = {experts}")
    })?;
    config.require(experts % groups == 0, || {
        format!("n_group is {groups}, which doesn't divide {experts_field} = {experts}")
    })?;
    let group = experts / groups;
    config.require(groups == 1 || group >= 2, || {
        format!("n_group is {groups}: a group of {group} expert has no two best scores")
    })?;
    config.require(groups_kept * group >= top_k, || {
        format!(
            "topk_group keeps {} experts, fewer than num_experts_per_tok = {top_k}",
            groups_kept * group
        )
    })?;
    Ok(MoeSpec {
        experts,
        top_k,
        intermediate,
        shared_intermediate,
        gate: GateSpec {
            score: GateScore::Sigmoid,
            bias: true,
            groups,
            groups_kept,
            normalise: config.flag_or("norm_topk_prob", true)?,
            scale: config.number("routed_scaling_factor", 1e-6..=1e6)?,
        },
    })
}

fn special_tokens(config: &ConfigReader, vocabulary: usize) -> Result<SpecialTokens> {
    let ids = 0..=vocabulary - 1;
    let eos = config.count_list("eos_token_id", ids.clone())?;
    let bos = config.optional_count("bos_token_id", ids)?;
    Ok(SpecialTokens {
        eos: eos.into_iter().map(|id| id as u32).collect(),
        bos: bos.map(|id| id as u32),
    })
}

/// E4M3 in blocks of 128 x 128 is read, and MXFP4, whose tensors say by their names what they are;
/// every other scheme is refused by name.
fn quantisation(config: &ConfigReader) -> Result<Quantisation> {
    let Some(scheme) = config.section("quantization_config")? else {
        return Ok(Quantisation::None);
    };
    let method = scheme.text("quant_method")?;
    if method == "mxfp4" {
        return Ok(Quantisation::None);
    }
    if method != "fp8" {
        let supported = "\"fp8\" and \"mxfp4\"";
        return Err(scheme.unsupported("quant_method", &format!("\"{method}\""), supported));
    }
    scheme.only_text("fmt", "e4m3")?;
    let block = scheme.count_list("weight_block_size", 1..=1 << 20)?;
    if block != [128, 128] {
        return Err(scheme.unsupported("weight_block_size", &format!("{block:?}"), "[128, 128]"));
    }
    Ok(Quantisation::Fp8Block128)
}

fn skipped(layer_count: usize, draft_layers: usize, tied_head: bool) -> Skipped {
    let drafts = layer_count..layer_count + draft_layers;
    let mut prefixes: Vec<String> = drafts.map(|layer| format!("model.layers.{layer}.")).collect();
    if tied_head {
        prefixes.push("lm_head.".to_string());
    }
    Skipped { prefixes, suffixes: vec!["rotary_emb.inv_freq".to_string()] }
}
