//! What families read alike: sizes, rotary position, grouped attention, mixtures, special tokens.
//!
//! Each function takes a configuration and says what a spec needs, with every field's range and the
//! ways in which fields must fit each other. Owned by the families that call them; nothing here asks
//! which one. Defaults are those of transformers.

use super::{Blueprint, ConfigError, ConfigReader, Quantisation, Skipped, SpecialTokens, View};
use millstream_stages::ids::LayerId;
use millstream_stages::spec::{
    Activation, FfnSpec, GateScore, GateSpec, LayerSpec, ModelSpec, MoeSpec, RopeScaling, RopeSpec,
};
use millstream_stages::weights::Part;

/// Bounds on single fields: far above any known model, low enough that products can't overflow.
pub const LAYERS_MAX: usize = 1024;
/// Of the residual stream and of everything inside a layer.
pub const WIDTH_MAX: usize = 1 << 18;
/// Attention heads.
pub const HEADS_MAX: usize = 1024;
/// Elements of one head.
pub const HEAD_WIDTH_MAX: usize = 4096;
/// Routed experts of a layer.
pub const EXPERTS_MAX: usize = 4096;
/// Tokens.
pub const VOCABULARY_MAX: usize = 1 << 22;
/// Positions.
pub const CONTEXT_MAX: usize = 1 << 27;
/// Most weights of one tensor, and most experts of all layers together.
pub const TENSOR_WEIGHTS_MAX: usize = 1 << 34;
/// Routed experts of all layers together.
pub const EXPERTS_TOTAL_MAX: usize = 1 << 20;
/// Draft layers.
const DRAFT_LAYERS_MAX: usize = 8;

type Result<T> = std::result::Result<T, ConfigError>;

/// The sizes that every model has.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Tokens.
    pub vocabulary: usize,
    /// Epsilon of the norms.
    pub norm_epsilon: f32,
}

/// Reads the sizes that every model has.
///
/// # Errors
/// When one is missing or out of range.
pub fn sizes(config: &ConfigReader) -> Result<Sizes> {
    let layers = config.count("num_hidden_layers", 1..=LAYERS_MAX)?;
    let hidden = config.count("hidden_size", 1..=WIDTH_MAX)?;
    let vocabulary = config.count("vocab_size", 1..=VOCABULARY_MAX)?;
    config.product(&[("vocab_size", vocabulary), ("hidden_size", hidden)], TENSOR_WEIGHTS_MAX)?;
    let norm_epsilon = config.number("rms_norm_eps", 1e-12..=1.0)?;
    Ok(Sizes { layers, hidden, vocabulary, norm_epsilon })
}

/// What a family says of its tensors and of itself.
pub struct Naming {
    /// The canonical name of a part.
    pub tensor_name: fn(Option<LayerId>, Part) -> String,
    /// Where a part may lie.
    pub views: fn(Option<LayerId>, Part, &ModelSpec) -> Vec<View>,
    /// Positions when the file doesn't say.
    pub context_default: usize,
    /// Whether the head is the embedding when the file doesn't say.
    pub tied_default: bool,
}

/// A blueprint of layers that were read.
///
/// # Errors
/// When what is read here (tied head, context, tokens, quantisation, draft layers) is out of range.
pub fn blueprint(
    config: &ConfigReader,
    sizes: Sizes,
    layers: Vec<LayerSpec>,
    naming: &Naming,
) -> Result<Blueprint> {
    let Sizes { hidden, vocabulary, norm_epsilon, .. } = sizes;
    let slices = ModelSpec::choose_slices(&layers, 1);
    let tied_head = config.flag_or("tie_word_embeddings", naming.tied_default)?;
    let draft_layers = config.count_or("num_nextn_predict_layers", 0, 0..=DRAFT_LAYERS_MAX)?;
    let context =
        config.count_or("max_position_embeddings", naming.context_default, 1..=CONTEXT_MAX)?;
    Ok(Blueprint {
        family: config.text("model_type")?.to_string(),
        spec: ModelSpec {
            vocabulary,
            hidden,
            layers,
            final_norm_epsilon: norm_epsilon,
            tied_head,
            context_max: context,
            slices,
        },
        tensor_name: naming.tensor_name,
        views: naming.views,
        tokens: special_tokens(config, vocabulary)?,
        quantisation: quantisation(config)?,
        skipped: skipped(sizes.layers, draft_layers, tied_head),
        draft_layers,
    })
}

/// Rotary position of `dim` elements: `rope_parameters`, or the older `rope_theta` and
/// `rope_scaling`. Also the factor on attention scores that a stretched rope asks for where
/// magnitudes aren't folded into cosines (DeepSeek's `mscale_all_dim`, squared).
///
/// # Errors
/// When a field is missing or out of range, or the kind isn't one of default, linear and yarn.
pub fn rope(
    config: &ConfigReader,
    dim: usize,
    theta_default: Option<f32>,
    interleaved: bool,
) -> Result<(RopeSpec, f64)> {
    config.require(dim.is_multiple_of(2) && dim > 0, || {
        format!("{dim} elements of a head are turned, and rotary position needs an even number")
    })?;
    let range = 1.0..=1e12;
    let parameters = config.section("rope_parameters")?;
    let within = parameters.as_ref().map(|p| p.optional_number("rope_theta", range.clone()));
    let theta = match (within.transpose()?.flatten(), theta_default) {
        (Some(theta), _) => theta,
        (None, Some(default)) => config.optional_number("rope_theta", range)?.unwrap_or(default),
        (None, None) => config.number("rope_theta", range)?,
    };
    // The older field counts where the newer one names no kind, and must not name another.
    let older = config.section("rope_scaling")?;
    let scaling = match (parameters.filter(names_kind), older) {
        (Some(parameters), Some(older)) if names_kind(&older) => {
            let (newer, older) = (rope_kind(&parameters)?, rope_kind(&older)?);
            config.require(older == newer, || {
                format!("rope_parameters is of kind \"{newer}\", rope_scaling of kind \"{older}\"")
            })?;
            Some(parameters)
        }
        (Some(parameters), _) => Some(parameters),
        (None, older) => older,
    };
    let plain = RopeSpec { theta, interleaved, scaling: RopeScaling::None };
    let Some(scaling) = scaling else { return Ok((plain, 1.0)) };
    let factors = 1.0..=1e6;
    match rope_kind(&scaling)? {
        "default" => Ok((plain, 1.0)),
        "linear" => {
            let scaling = RopeScaling::Linear { factor: scaling.number("factor", factors)? };
            Ok((RopeSpec { scaling, ..plain }, 1.0))
        }
        "yarn" => {
            let (scaling, score) = yarn(config, &scaling)?;
            Ok((RopeSpec { scaling, ..plain }, score))
        }
        other => {
            let supported = "\"default\", \"linear\" and \"yarn\"";
            Err(scaling.unsupported("rope_type", &format!("\"{other}\""), supported))
        }
    }
}

fn names_kind(section: &ConfigReader) -> bool {
    section.has("rope_type") || section.has("type")
}

fn rope_kind(section: &ConfigReader) -> Result<&str> {
    let named = section.optional_text("rope_type")?;
    Ok(named.or(section.optional_text("type")?).unwrap_or("default"))
}

/// The parameters of YaRN as transformers' `_compute_yarn_parameters` reads them.
fn yarn(config: &ConfigReader, scaling: &ConfigReader) -> Result<(RopeScaling, f64)> {
    let factor = scaling.number("factor", 1.0..=1e6)?;
    let positions = 1..=CONTEXT_MAX;
    let context =
        match scaling.optional_count("original_max_position_embeddings", positions.clone())? {
            Some(context) => context,
            None => config.count("max_position_embeddings", positions)?,
        };
    let optional = |field| scaling.optional_number(field, 0.0..=1e6);
    let magnitude_of = |scale: f32| match factor > 1.0 {
        true => 0.1 * f64::from(scale) * libm::log(f64::from(factor)) + 1.0,
        false => 1.0,
    };
    let nonzero = |value: Option<f32>| value.filter(|value| *value != 0.0);
    let (scale, scale_all) = (nonzero(optional("mscale")?), nonzero(optional("mscale_all_dim")?));
    let magnitude = match (optional("attention_factor")?, scale, scale_all) {
        (Some(factor), ..) => f64::from(factor),
        (None, Some(scale), Some(all)) => magnitude_of(scale) / magnitude_of(all),
        (None, ..) => magnitude_of(1.0),
    };
    let scaling = RopeScaling::Yarn {
        factor,
        context: context as f32,
        beta_fast: optional("beta_fast")?.unwrap_or(32.0),
        beta_slow: optional("beta_slow")?.unwrap_or(1.0),
        truncate: scaling.flag_or("truncate", true)?,
        magnitude: magnitude as f32,
    };
    Ok((scaling, scale_all.map_or(1.0, |all| magnitude_of(all).powi(2))))
}

/// Rows of gate and up of a dense layer: `intermediate_size`.
///
/// # Errors
/// When it is missing or too large.
pub fn dense_width(config: &ConfigReader, hidden: usize) -> Result<usize> {
    let intermediate = config.count("intermediate_size", 1..=WIDTH_MAX)?;
    let width = [("intermediate_size", intermediate), ("hidden_size", hidden)];
    config.product(&width, TENSOR_WEIGHTS_MAX)?;
    Ok(intermediate)
}

/// How a family's mixtures are called and what they have when the file doesn't say.
pub struct Mixture {
    /// Fields for the number of experts; the first that is there counts.
    pub experts: &'static [&'static str],
    /// The field for rows of gate and up.
    pub intermediate: &'static str,
    /// Experts of a row when the file doesn't say; None where it must.
    pub top_k_default: Option<usize>,
    /// The gate, before what the file says of groups, normalisation and scale.
    pub gate: GateSpec,
}

/// The gate of families without groups, biases and scale.
pub const SOFTMAX_GATE: GateSpec = GateSpec {
    score: GateScore::Softmax,
    logit_bias: false,
    bias: false,
    groups: 1,
    groups_kept: 1,
    normalise: true,
    scale: 1.0,
};

/// Reads a mixture without shared experts.
///
/// # Errors
/// When a field is missing, out of range or contradicts another.
pub fn mixture(config: &ConfigReader, sizes: &Sizes, mixture: &Mixture) -> Result<MoeSpec> {
    let named = mixture.experts.iter().find(|field| config.has(field));
    let experts_field = *named.unwrap_or(&mixture.experts[0]);
    let experts = config.count(experts_field, 1..=EXPERTS_MAX)?;
    let top_k = match mixture.top_k_default {
        Some(default) => config.count_or("num_experts_per_tok", default, 1..=EXPERTS_MAX)?,
        None => config.count("num_experts_per_tok", 1..=EXPERTS_MAX)?,
    };
    let intermediate = config.count(mixture.intermediate, 1..=WIDTH_MAX)?;
    let width = (mixture.intermediate, intermediate);
    config.product(&[width, ("hidden_size", sizes.hidden)], TENSOR_WEIGHTS_MAX)?;
    let all = [(experts_field, experts), ("num_hidden_layers", sizes.layers)];
    config.product(&all, EXPERTS_TOTAL_MAX)?;
    config.require(top_k <= experts, || {
        format!("num_experts_per_tok is {top_k}, more than {experts_field} = {experts}")
    })?;
    Ok(MoeSpec {
        experts,
        top_k,
        intermediate,
        shared_intermediate: 0,
        shared_score: false,
        activation: Activation::Silu,
        expert_bias: false,
        gate: mixture.gate,
    })
}

/// The mixture of DeepSeek-V3 and its kin: sigmoid scores with a bias on the choice, groups, shared
/// experts.
///
/// # Errors
/// As [`mixture`].
pub fn grouped_mixture(config: &ConfigReader, sizes: &Sizes) -> Result<MoeSpec> {
    let gate = GateSpec { score: GateScore::Sigmoid, bias: true, ..SOFTMAX_GATE };
    let fields = Mixture {
        experts: &["n_routed_experts", "num_local_experts"],
        intermediate: "moe_intermediate_size",
        top_k_default: None,
        gate,
    };
    let moe = mixture(config, sizes, &fields)?;
    let (experts, top_k) = (moe.experts, moe.top_k);
    let shared = config.count_or("n_shared_experts", 0, 0..=64)?;
    let width = ("moe_intermediate_size", moe.intermediate);
    let shared_intermediate = config.product(&[("n_shared_experts", shared), width], WIDTH_MAX)?;
    let groups = config.count_or("n_group", 1, 1..=experts)?;
    let groups_kept = config.count_or("topk_group", 1, 1..=groups)?;
    config.require(experts % groups == 0, || {
        format!("n_group is {groups}, which doesn't divide the {experts} experts")
    })?;
    let group = experts / groups;
    config.require(groups == 1 || group >= 2, || {
        format!("n_group is {groups}: a group of {group} expert has no two best scores")
    })?;
    config.require(groups_kept * group >= top_k, || {
        let kept = groups_kept * group;
        format!("topk_group keeps {kept} experts, fewer than num_experts_per_tok = {top_k}")
    })?;
    let normalise = config.flag_or("norm_topk_prob", true)?;
    let scale = config.number("routed_scaling_factor", 1e-6..=1e6)?;
    let gate = GateSpec { groups, groups_kept, normalise, scale, ..gate };
    Ok(MoeSpec { shared_intermediate, gate, ..moe })
}

/// Every layer's FFN by a list of which are mixtures; both kinds are read only where they occur.
///
/// # Errors
/// As the readers have it.
pub fn by_kind(
    sparse: impl IntoIterator<Item = bool>,
    dense: impl Fn() -> Result<usize>,
    moe: impl Fn() -> Result<MoeSpec>,
) -> Result<Vec<FfnSpec>> {
    let (mut width, mut mixture) = (None, None);
    let mut layers = vec![];
    for sparse in sparse {
        layers.push(match sparse {
            true => {
                let read = mixture.map_or_else(&moe, Ok)?;
                mixture = Some(read.clone());
                FfnSpec::Moe(read)
            }
            false => {
                let intermediate = width.map_or_else(&dense, Ok)?;
                width = Some(intermediate);
                FfnSpec::Dense { intermediate }
            }
        });
    }
    Ok(layers)
}

/// Which layers of Qwen are mixtures: every `decoder_sparse_step`th but those in `mlp_only_layers`.
///
/// # Errors
/// When a field is out of range.
pub fn sparse_layers(config: &ConfigReader, sizes: &Sizes) -> Result<Vec<bool>> {
    let step = config.count_or("decoder_sparse_step", 1, 1..=LAYERS_MAX)?;
    let dense = config.count_list("mlp_only_layers", 0..=LAYERS_MAX)?;
    let sparse = |layer: usize| !dense.contains(&layer) && (layer + 1).is_multiple_of(step);
    Ok((0..sizes.layers).map(sparse).collect())
}

/// Turns a list of two words into true for the first and false for the second.
///
/// # Errors
/// When there is a third.
pub fn two_kinds(
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
    // Some files call it after PyTorch's type.
    if scheme.optional_text("fmt")? != Some("float8_e4m3fn") {
        scheme.only_text("fmt", "e4m3")?;
    }
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
