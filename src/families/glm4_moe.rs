//! GLM-4.5, 4.6 and 4.7 (`glm4_moe`): grouped attention with biases, partly turned; DeepSeek's experts.
//!
//! Reads a Hugging Face `config.json` the way transformers' `Glm4MoeConfig` does (arXiv 2508.06471).

use super::grouped::{self, Grouped, PLAIN};
use super::hub_names::{self, LATENT};
use super::shared::{self, Naming, by_kind, dense_width, grouped_mixture, sizes};
use super::{Blueprint, ConfigError, ConfigReader, Family};
use millstream_stages::spec::QueryKeyNorm;

/// The family; see the table in [`super::FAMILIES`].
pub struct Glm4Moe;

const NAMING: Naming = Naming {
    tensor_name: |layer, part| hub_names::name(&LATENT, layer, part),
    views: |layer, part, spec| hub_names::views(&LATENT, layer, part, spec),
    context_default: 131072,
    tied_default: false,
};

impl Family for Glm4Moe {
    fn model_types(&self) -> &'static [&'static str] {
        &["glm4_moe"]
    }

    fn blueprint(
        &self,
        config: &ConfigReader,
        _: &dyn Fn(&str) -> bool,
    ) -> Result<Blueprint, ConfigError> {
        config.only_text("hidden_act", "silu")?;
        let sizes = sizes(config)?;
        let query_key_norm = match config.flag_or("use_qk_norm", false)? {
            true => QueryKeyNorm::EachHead,
            false => QueryKeyNorm::None,
        };
        let bias = config.flag_or("attention_bias", false)?;
        let plain = Grouped { query_key_norm, bias, rotary_default: 0.5, ..PLAIN };
        let attention = grouped::attention(config, &sizes, &plain)?;
        let dense = config.count_or("first_k_dense_replace", 1, 0..=sizes.layers)?;
        let sparse = (0..sizes.layers).map(|layer| layer >= dense);
        let moe = || grouped_mixture(config, &sizes);
        let ffns = by_kind(sparse, || dense_width(config, sizes.hidden), moe)?;
        let windows = vec![false; sizes.layers];
        let layers = grouped::layers(config, &sizes, &attention, &windows, ffns)?;
        shared::blueprint(config, sizes, layers, &NAMING)
    }
}
