//! Model families: `config.json` in, a [`Blueprint`] out.
//!
//! A family is one file and one line in [`FAMILIES`]. It reads the configuration through
//! [`ConfigReader`], fills a [`ModelSpec`] and says how the model's tensors are called. Nothing
//! else in the program asks which family runs; `src/checkpoint` checks the tensors against the
//! spec, and the stages work from the spec alone.

pub mod config;
mod config_fault;
mod deepseek_v3;
mod glm4_moe;
mod glm_moe_dsa;
mod gpt_oss;
mod grouped;
mod hub_names;
mod latent;
mod llama;
mod minimax_m2;
mod mixtral;
mod olmoe;
mod qwen2_moe;
mod qwen3_moe;
mod shared;
mod view;

pub use config::ConfigReader;
pub use config_fault::{ConfigError, ConfigFault, shorten};

pub use view::{HeadsApart, Share, View};

use millstream_stages::ids::LayerId;
use millstream_stages::spec::ModelSpec;
use millstream_stages::weights::Part;

/// All families that this build can run. To add one: a file, and a line here.
pub const FAMILIES: &[&dyn Family] = &[
    &deepseek_v3::DeepseekV3,
    &glm4_moe::Glm4Moe,
    &glm_moe_dsa::GlmMoeDsa,
    &gpt_oss::GptOss,
    &llama::Llama,
    &minimax_m2::MinimaxM2,
    &mixtral::Mixtral,
    &olmoe::Olmoe,
    &qwen2_moe::Qwen2Moe,
    &qwen3_moe::Qwen3Moe,
];

/// A model family.
pub trait Family: Sync {
    /// The values of `model_type` that mean this family.
    fn model_types(&self) -> &'static [&'static str];

    /// Reads a configuration. `tensor_exists` says whether the checkpoint has a tensor of that
    /// name, for families whose optional parts can only be told from the weights.
    ///
    /// # Errors
    /// When a field is missing, out of range, contradicts another or isn't supported.
    fn blueprint(
        &self,
        config: &ConfigReader,
        tensor_exists: &dyn Fn(&str) -> bool,
    ) -> Result<Blueprint, ConfigError>;
}

/// A family's reading of a configuration.
#[derive(Clone, Debug)]
pub struct Blueprint {
    /// The `model_type` it was read from.
    pub family: String,
    /// What the stages build.
    pub spec: ModelSpec,
    /// How a tensor is called in the checkpoint; the layer is None for [`Part::Embedding`],
    /// [`Part::FinalNorm`] and [`Part::Head`].
    pub tensor_name: fn(Option<LayerId>, Part) -> String,
    /// Where a part may lie in a checkpoint, the likeliest place first; the first that is there
    /// counts.
    pub views: fn(Option<LayerId>, Part, &ModelSpec) -> Vec<View>,
    /// Tokens with a meaning of their own.
    pub tokens: SpecialTokens,
    /// How quantised tensors of the checkpoint are scaled.
    pub quantisation: Quantisation,
    /// Tensors that are known and not used.
    pub skipped: Skipped,
    /// Layers for multi-token prediction that the checkpoint may hold and that are not run.
    pub draft_layers: usize,
}

impl Blueprint {
    /// Adds the end tokens of a `generation_config.json`: chat models list more of them there.
    ///
    /// # Errors
    /// When they aren't ids of the vocabulary.
    pub fn add_end_tokens(&mut self, generation: &ConfigReader) -> Result<(), ConfigError> {
        for id in generation.count_list("eos_token_id", 0..=self.spec.vocabulary - 1)? {
            let id = id as u32;
            if !self.tokens.eos.contains(&id) {
                self.tokens.eos.push(id);
            }
        }
        Ok(())
    }
}

/// Tokens with a meaning of their own, all smaller than the vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Any of these ends an answer.
    pub eos: Vec<u32>,
    /// Begins a text, if the model has such a token.
    pub bos: Option<u32>,
}

/// How quantised tensors of a checkpoint are scaled, as its configuration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantisation {
    /// Plain tensors, or quantised ones whose names say what they are.
    None,
    /// E4M3 weights, one factor per block of 128 x 128 under `<name>_scale_inv`.
    Fp8Block128,
}

/// Tensors that are known and not used: silently left where they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Beginnings of names, such as a draft layer's `model.layers.78.`.
    pub prefixes: Vec<String>,
    /// Ends of names, such as `rotary_emb.inv_freq`.
    pub suffixes: Vec<String>,
}

impl Skipped {
    /// Whether a tensor of this name is known and not used.
    pub fn covers(&self, name: &str) -> bool {
        self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
            || self.suffixes.iter().any(|suffix| name.ends_with(suffix.as_str()))
    }
}

/// Reads a configuration of any family.
///
/// # Errors
/// When `model_type` is missing or names no family of [`FAMILIES`], or as [`Family::blueprint`].
pub fn blueprint(
    config: &ConfigReader,
    tensor_exists: &dyn Fn(&str) -> bool,
) -> Result<Blueprint, ConfigError> {
    let model_type = config.text("model_type")?;
    match FAMILIES.iter().find(|family| family.model_types().contains(&model_type)) {
        Some(family) => family.blueprint(config, tensor_exists),
        None => {
            let known: Vec<&str> =
                FAMILIES.iter().flat_map(|family| family.model_types()).copied().collect();
            let found = format!("\"{model_type}\"");
            Err(config.unsupported("model_type", &found, &known.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_family_is_refused_with_the_list_of_known_ones() {
        let config = ConfigReader::parse("config.json", b"{\"model_type\":\"bert\"}").unwrap();
        let message = blueprint(&config, &|_| true).unwrap_err().to_string();
        for family in FAMILIES {
            for name in family.model_types() {
                assert!(message.contains(name), "{message}");
            }
        }
        assert!(message.contains("bert"), "{message}");
    }

    #[test]
    fn no_model_type_belongs_to_two_families() {
        let mut names: Vec<&str> =
            FAMILIES.iter().flat_map(|family| family.model_types()).copied().collect();
        let total = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), total);
    }
}
