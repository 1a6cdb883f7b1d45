//! Qwen1.5-MoE and Qwen2-MoE (`qwen2_moe`): a shared expert with a score of its own.
//!
//! Reads a Hugging Face `config.json` the way transformers' `Qwen2MoeConfig` does (arXiv 2407.10671).

use super::grouped::{self, Grouped, PLAIN};
use super::hub_names::{self, ONE_SHARED};
use super::shared::{
    self, LAYERS_MAX, Mixture, Naming, SOFTMAX_GATE, WIDTH_MAX, by_kind, dense_width, mixture,
    sizes, sparse_layers,
};
use super::{Blueprint, ConfigError, ConfigReader, Family};
use millstream_stages::spec::{GateSpec, MoeSpec};

/// The family; see the table in [`super::FAMILIES`].
pub struct Qwen2Moe;

const NAMING: Naming = Naming {
    tensor_name: |layer, part| hub_names::name(&ONE_SHARED, layer, part),
    views: |layer, part, spec| hub_names::views(&ONE_SHARED, layer, part, spec),
    context_default: 32768,
    tied_default: false,
};

impl Family for Qwen2Moe {
    fn model_types(&self) -> &'static [&'static str] {
        &["qwen2_moe"]
    }

    fn blueprint(
        &self,
        config: &ConfigReader,
        _: &dyn Fn(&str) -> bool,
    ) -> Result<Blueprint, ConfigError> {
        config.only_text("hidden_act", "silu")?;
        let sizes = sizes(config)?;
        let plain = Grouped { bias: config.flag_or("qkv_bias", true)?, ..PLAIN };
        let attention = grouped::attention(config, &sizes, &plain)?;
        let sparse = sparse_layers(config, &sizes)?;
        let normalise = config.flag_or("norm_topk_prob", false)?;
        let fields = Mixture {
            experts: &["num_experts", "num_local_experts"],
            intermediate: "moe_intermediate_size",
            top_k_default: Some(4),
            gate: GateSpec { normalise, ..SOFTMAX_GATE },
        };
        let moe = || {
            let shared_intermediate =
                config.count("shared_expert_intermediate_size", 1..=WIDTH_MAX)?;
            let moe = mixture(config, &sizes, &fields)?;
            Ok(MoeSpec { shared_intermediate, shared_score: true, ..moe })
        };
        let ffns = by_kind(sparse, || dense_width(config, sizes.hidden), moe)?;
        let from = config.count_or("max_window_layers", 28, 0..=LAYERS_MAX)?;
        let slides = config.flag_or("use_sliding_window", false)?;
        let windows = grouped::windowed(config, sizes.layers, |layer| slides && layer >= from)?;
        let layers = grouped::layers(config, &sizes, &attention, &windows, ffns)?;
        shared::blueprint(config, sizes, layers, &NAMING)
    }
}
