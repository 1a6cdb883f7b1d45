//! Llama and Mistral (`llama`, `mistral`), SmolLM2 among them: grouped attention, no experts.
//!
//! Reads a Hugging Face `config.json` the way transformers' `LlamaConfig` and `MistralConfig` do.
//! Dense models have nothing to stream; they run resident.

use super::grouped::{self, Grouped, PLAIN};
use super::hub_names::{self, LATENT};
use super::shared::{self, Naming, dense_width, sizes};
use super::{Blueprint, ConfigError, ConfigReader, Family};
use millstream_stages::spec::FfnSpec;

/// The family; see the table in [`super::FAMILIES`].
pub struct Llama;

const NAMING: Naming = Naming {
    tensor_name: |layer, part| hub_names::name(&LATENT, layer, part),
    views: |layer, part, spec| hub_names::views(&LATENT, layer, part, spec),
    context_default: 2048,
    tied_default: false,
};

impl Family for Llama {
    fn model_types(&self) -> &'static [&'static str] {
        &["llama", "mistral"]
    }

    fn blueprint(
        &self,
        config: &ConfigReader,
        _: &dyn Fn(&str) -> bool,
    ) -> Result<Blueprint, ConfigError> {
        config.only_text("hidden_act", "silu")?;
        if config.flag_or("mlp_bias", false)? {
            return Err(config.unsupported("mlp_bias", "true", "false"));
        }
        let sizes = sizes(config)?;
        let bias = config.flag_or("attention_bias", false)?;
        let plain = Grouped { bias, output_bias: bias, ..PLAIN };
        let attention = grouped::attention(config, &sizes, &plain)?;
        let intermediate = dense_width(config, sizes.hidden)?;
        let ffns = vec![FfnSpec::Dense { intermediate }; sizes.layers];
        let windows = vec![config.has("sliding_window"); sizes.layers];
        let layers = grouped::layers(config, &sizes, &attention, &windows, ffns)?;
        shared::blueprint(config, sizes, layers, &NAMING)
    }
}
