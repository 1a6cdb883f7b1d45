//! OLMoE (`olmoe`): plain attention with norms over all heads, softmax experts (arXiv 2409.02060).
//!
//! Reads a Hugging Face `config.json` the way transformers' `OlmoeConfig` does.

use super::grouped::{self, Grouped, PLAIN};
use super::hub_names::{self, LATENT};
use super::shared::{self, Mixture, Naming, SOFTMAX_GATE, mixture, sizes};
use super::{Blueprint, ConfigError, ConfigReader, Family};
use millstream_stages::spec::{FfnSpec, GateSpec, QueryKeyNorm};

/// The family; see the table in [`super::FAMILIES`].
pub struct Olmoe;

const NAMING: Naming = Naming {
    tensor_name: |layer, part| hub_names::name(&LATENT, layer, part),
    views: |layer, part, spec| hub_names::views(&LATENT, layer, part, spec),
    context_default: 4096,
    tied_default: false,
};

impl Family for Olmoe {
    fn model_types(&self) -> &'static [&'static str] {
        &["olmoe"]
    }

    fn blueprint(
        &self,
        config: &ConfigReader,
        _: &dyn Fn(&str) -> bool,
    ) -> Result<Blueprint, ConfigError> {
        config.only_text("hidden_act", "silu")?;
        let sizes = sizes(config)?;
        let bias = config.flag_or("attention_bias", false)?;
        let query_key_norm = QueryKeyNorm::AllHeads;
        let plain = Grouped { query_key_norm, bias, output_bias: bias, ..PLAIN };
        let mut attention = grouped::attention(config, &sizes, &plain)?;
        attention.clip = config.optional_number("clip_qkv", 1e-6..=1e6)?;
        let normalise = config.flag_or("norm_topk_prob", false)?;
        let moe = mixture(
            config,
            &sizes,
            &Mixture {
                experts: &["num_experts", "num_local_experts"],
                intermediate: "intermediate_size",
                top_k_default: Some(8),
                gate: GateSpec { normalise, ..SOFTMAX_GATE },
            },
        )?;
        let ffns = vec![FfnSpec::Moe(moe); sizes.layers];
        let windows = vec![false; sizes.layers];
        let layers = grouped::layers(config, &sizes, &attention, &windows, ffns)?;
        shared::blueprint(config, sizes, layers, &NAMING)
    }
}
