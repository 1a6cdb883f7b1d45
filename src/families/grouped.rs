//! Grouped-query attention as configurations describe it: what its families share.
//!
//! Heads, key heads, head width, rotary part, windows, biases. A family says what differs
//! ([`Grouped`]); specs flow out.

use super::shared::{
    CONTEXT_MAX, HEAD_WIDTH_MAX, HEADS_MAX, Sizes, TENSOR_WEIGHTS_MAX, WIDTH_MAX, rope,
};
use super::{ConfigError, ConfigReader};
use millstream_stages::spec::{AttentionSpec, FfnSpec, GqaSpec, LayerSpec, QueryKeyNorm};

type Result<T> = std::result::Result<T, ConfigError>;

/// What a family's attention has that its configuration doesn't say.
pub struct Grouped {
    /// What is normed of queries and keys.
    pub query_key_norm: QueryKeyNorm,
    /// Which part of a head is turned when the file doesn't say.
    pub rotary_default: f64,
    /// The base of rotary frequencies when the file doesn't say.
    pub theta_default: Option<f32>,
    /// Pairs of rotary position are neighbours. No file of a hub says so; converted ones do
    /// (`rope_interleaved`).
    pub interleaved: bool,
    /// Biases on query, key and value.
    pub bias: bool,
    /// A bias on the output.
    pub output_bias: bool,
    /// Each head has a sink.
    pub sinks: bool,
}

/// Plain attention.
pub const PLAIN: Grouped = Grouped {
    query_key_norm: QueryKeyNorm::None,
    rotary_default: 1.0,
    theta_default: Some(10_000.0),
    interleaved: false,
    bias: false,
    output_bias: false,
    sinks: false,
};

/// Reads the attention that all layers share, without a window.
///
/// # Errors
/// When a field is missing, out of range or contradicts another.
pub fn attention(config: &ConfigReader, sizes: &Sizes, grouped: &Grouped) -> Result<GqaSpec> {
    let hidden = sizes.hidden;
    let heads = config.count("num_attention_heads", 1..=HEADS_MAX)?;
    let key_heads = config.count_or("num_key_value_heads", heads, 1..=HEADS_MAX)?;
    config.require(heads.is_multiple_of(key_heads), || {
        format!("num_attention_heads is {heads}, no multiple of num_key_value_heads = {key_heads}")
    })?;
    let head_dim = match config.optional_count("head_dim", 1..=HEAD_WIDTH_MAX)? {
        Some(head_dim) => head_dim,
        None => {
            config.require(hidden.is_multiple_of(heads), || {
                format!("hidden_size is {hidden}, no multiple of num_attention_heads = {heads}")
            })?;
            hidden / heads
        }
    };
    let width = [("num_attention_heads", heads), ("head_dim", head_dim)];
    config.product(&width, WIDTH_MAX)?;
    config.product(&[width[0], width[1], ("hidden_size", hidden)], TENSOR_WEIGHTS_MAX)?;
    let rope_dim = rotary_dim(config, head_dim, grouped)?;
    let interleaved = config.flag_or("rope_interleaved", grouped.interleaved)?;
    let (rope, score) = rope(config, rope_dim, grouped.theta_default, interleaved)?;
    Ok(GqaSpec {
        heads,
        key_heads,
        head_dim,
        rope_dim,
        rope,
        score_scale: (1.0 / (head_dim as f64).sqrt() * score) as f32,
        query_key_norm: grouped.query_key_norm,
        query_key_norm_epsilon: sizes.norm_epsilon,
        clip: None,
        bias: grouped.bias,
        output_bias: grouped.output_bias,
        window: None,
        sinks: grouped.sinks,
    })
}

/// How many elements of a head are turned: `rotary_dim`, or a part of the head.
fn rotary_dim(config: &ConfigReader, head_dim: usize, grouped: &Grouped) -> Result<usize> {
    if let Some(dim) = config.optional_count("rotary_dim", 2..=head_dim)? {
        return Ok(dim);
    }
    let field = "partial_rotary_factor";
    let range = 0.0..=1.0;
    let within = match config.section("rope_parameters")? {
        Some(parameters) => parameters.optional_number(field, range.clone())?,
        None => None,
    };
    let factor = within.or(config.optional_number(field, range)?).map(f64::from);
    Ok((head_dim as f64 * factor.unwrap_or(grouped.rotary_default)) as usize)
}

/// The window of a layer that has one.
///
/// # Errors
/// When it is missing or out of range.
pub fn window(config: &ConfigReader) -> Result<usize> {
    config.count("sliding_window", 1..=CONTEXT_MAX)
}

/// Which layers have a window, by `layer_types`; `otherwise` says so when the file doesn't.
///
/// # Errors
/// When the file has other words.
pub fn windowed(
    config: &ConfigReader,
    layers: usize,
    otherwise: impl Fn(usize) -> bool,
) -> Result<Vec<bool>> {
    let (yes, no) = ("sliding_attention", "full_attention");
    match config.text_list("layer_types", layers)? {
        Some(kinds) => super::shared::two_kinds(config, "layer_types", &kinds, yes, no),
        None => Ok((0..layers).map(otherwise).collect()),
    }
}

/// Every layer, of its window and its FFN.
///
/// # Errors
/// When a layer has a window and the file doesn't say how wide.
pub fn layers(
    config: &ConfigReader,
    sizes: &Sizes,
    attention: &GqaSpec,
    windowed: &[bool],
    ffns: Vec<FfnSpec>,
) -> Result<Vec<LayerSpec>> {
    let window = windowed.contains(&true).then(|| window(config)).transpose()?;
    let layer = |(&windowed, ffn)| {
        let window = window.filter(|_| windowed);
        let attention = AttentionSpec::Gqa(GqaSpec { window, ..attention.clone() });
        LayerSpec { attention, ffn, norm_epsilon: sizes.norm_epsilon }
    };
    Ok(windowed.iter().zip(ffns).map(layer).collect())
}
