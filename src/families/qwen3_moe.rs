//! Qwen3-MoE (`qwen3_moe`): grouped attention with a norm for each head, softmax experts.
//!
//! Reads a Hugging Face `config.json` the way transformers' `Qwen3MoeConfig` does (arXiv 2505.09388).

use super::grouped::{self, Grouped, PLAIN};
use super::hub_names::{self, LATENT};
use super::shared::{
    self, Mixture, Naming, SOFTMAX_GATE, by_kind, dense_width, mixture, sizes, sparse_layers,
};
use super::{Blueprint, ConfigError, ConfigReader, Family};
use millstream_stages::spec::{GateSpec, QueryKeyNorm};

/// The family; see the table in [`super::FAMILIES`].
pub struct Qwen3Moe;

const NAMING: Naming = Naming {
    tensor_name: |layer, part| hub_names::name(&LATENT, layer, part),
    views: |layer, part, spec| hub_names::views(&LATENT, layer, part, spec),
    context_default: 32768,
    tied_default: false,
};

impl Family for Qwen3Moe {
    fn model_types(&self) -> &'static [&'static str] {
        &["qwen3_moe"]
    }

    fn blueprint(
        &self,
        config: &ConfigReader,
        _: &dyn Fn(&str) -> bool,
    ) -> Result<Blueprint, ConfigError> {
        config.only_text("hidden_act", "silu")?;
        let sizes = sizes(config)?;
        let bias = config.flag_or("attention_bias", false)?;
        let query_key_norm = QueryKeyNorm::EachHead;
        let plain = Grouped { query_key_norm, bias, output_bias: bias, ..PLAIN };
        let attention = grouped::attention(config, &sizes, &plain)?;
        let sparse = sparse_layers(config, &sizes)?;
        let normalise = config.flag_or("norm_topk_prob", false)?;
        let fields = Mixture {
            experts: &["num_experts", "num_local_experts"],
            intermediate: "moe_intermediate_size",
            top_k_default: Some(8),
            gate: GateSpec { normalise, ..SOFTMAX_GATE },
        };
        let moe = || mixture(config, &sizes, &fields);
        let ffns = by_kind(sparse, || dense_width(config, sizes.hidden), moe)?;
        let windows = vec![config.flag_or("use_sliding_window", false)?; sizes.layers];
        let layers = grouped::layers(config, &sizes, &attention, &windows, ffns)?;
        shared::blueprint(config, sizes, layers, &NAMING)
    }
}
