//! DeepSeek-V3, R1, V3.1 and Kimi-K2 (`deepseek_v3`), and V3.2 with its indexer (`deepseek_v32`).
//!
//! Reads a Hugging Face `config.json` the way transformers' `DeepseekV3Config` and
//! `DeepseekV32Config` do (arXiv 2412.19437). Without `q_lora_rank` queries are projected in one
//! step. The indexer's rope takes half-split pairs, attention's interleaved ones.

use super::hub_names::{self, LATENT};
use super::shared::{self, Naming, sizes};
use super::{Blueprint, ConfigError, ConfigReader, Family, latent};

/// The family; see the table in [`super::FAMILIES`].
pub struct DeepseekV3;

const NAMING: Naming = Naming {
    tensor_name: |layer, part| hub_names::name(&LATENT, layer, part),
    views: |layer, part, spec| hub_names::views(&LATENT, layer, part, spec),
    context_default: 4096,
    tied_default: false,
};

impl Family for DeepseekV3 {
    fn model_types(&self) -> &'static [&'static str] {
        &["deepseek_v3", "deepseek_v32", "kimi_k2"]
    }

    fn blueprint(
        &self,
        config: &ConfigReader,
        tensor_exists: &dyn Fn(&str) -> bool,
    ) -> Result<Blueprint, ConfigError> {
        latent::refuse_what_is_not_computed(config)?;
        let sizes = sizes(config)?;
        let attention = latent::attention(config, sizes.hidden)?;
        let indexers = latent::indexers(config, sizes.layers, &attention, false, tensor_exists)?;
        let ffns = latent::ffns(config, &sizes)?;
        let layers = latent::layers(&attention, indexers, ffns, sizes.norm_epsilon);
        shared::blueprint(config, sizes, layers, &NAMING)
    }
}
