//! GLM-5 and its kin (`glm_moe_dsa`): latent attention with a sparse indexer, sigmoid experts.
//!
//! Reads a Hugging Face `config.json` the way transformers' `GlmMoeDsaConfig` does.

use super::hub_names::{self, LATENT};
use super::shared::{self, Naming, sizes};
use super::{Blueprint, ConfigError, ConfigReader, Family, latent};

/// The family; see the table in [`super::FAMILIES`].
pub struct GlmMoeDsa;

const NAMING: Naming = Naming {
    tensor_name: |layer, part| hub_names::name(&LATENT, layer, part),
    views: |layer, part, spec| hub_names::views(&LATENT, layer, part, spec),
    context_default: 202_752,
    tied_default: false,
};

impl Family for GlmMoeDsa {
    fn model_types(&self) -> &'static [&'static str] {
        &["glm_moe_dsa"]
    }

    fn blueprint(
        &self,
        config: &ConfigReader,
        tensor_exists: &dyn Fn(&str) -> bool,
    ) -> Result<Blueprint, ConfigError> {
        latent::refuse_what_is_not_computed(config)?;
        let sizes = sizes(config)?;
        let attention = latent::attention(config, sizes.hidden)?;
        let interleaved = config.flag_or("indexer_rope_interleave", true)?;
        let indexers =
            latent::indexers(config, sizes.layers, &attention, interleaved, tensor_exists)?;
        let ffns = latent::ffns(config, &sizes)?;
        let layers = latent::layers(&attention, indexers, ffns, sizes.norm_epsilon);
        shared::blueprint(config, sizes, layers, &NAMING)
    }
}
