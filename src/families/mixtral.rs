//! Mixtral (`mixtral`): plain grouped attention, softmax experts (arXiv 2401.04088).
//!
//! Reads a Hugging Face `config.json` the way transformers' `MixtralConfig` does.

use super::grouped::{self, PLAIN};
use super::hub_names::{self, BLOCK_SPARSE};
use super::shared::{self, Mixture, Naming, SOFTMAX_GATE, mixture, sizes};
use super::{Blueprint, ConfigError, ConfigReader, Family};
use millstream_stages::spec::FfnSpec;

/// The family; see the table in [`super::FAMILIES`].
pub struct Mixtral;

const NAMING: Naming = Naming {
    tensor_name: |layer, part| hub_names::name(&BLOCK_SPARSE, layer, part),
    views: |layer, part, spec| hub_names::views(&BLOCK_SPARSE, layer, part, spec),
    context_default: 131072,
    tied_default: false,
};

impl Family for Mixtral {
    fn model_types(&self) -> &'static [&'static str] {
        &["mixtral"]
    }

    fn blueprint(
        &self,
        config: &ConfigReader,
        _: &dyn Fn(&str) -> bool,
    ) -> Result<Blueprint, ConfigError> {
        config.only_text("hidden_act", "silu")?;
        let sizes = sizes(config)?;
        let attention = grouped::attention(config, &sizes, &PLAIN)?;
        let moe = mixture(
            config,
            &sizes,
            &Mixture {
                experts: &["num_local_experts", "num_experts"],
                intermediate: "intermediate_size",
                top_k_default: Some(2),
                gate: SOFTMAX_GATE,
            },
        )?;
        let ffns = vec![FfnSpec::Moe(moe); sizes.layers];
        let windows = vec![config.has("sliding_window"); sizes.layers];
        let layers = grouped::layers(config, &sizes, &attention, &windows, ffns)?;
        shared::blueprint(config, sizes, layers, &NAMING)
    }
}
