//! MiniMax-M2 (`minimax_m2`): norms over all heads, partly turned, sigmoid experts.
//!
//! Reads a Hugging Face `config.json` the way transformers' `MiniMaxM2Config` does, and the fields
//! of the configuration that the model was published with.

use super::grouped::{self, Grouped, PLAIN};
use super::hub_names::{self, BLOCK_SPARSE};
use super::shared::{self, Mixture, Naming, SOFTMAX_GATE, mixture, sizes};
use super::{Blueprint, ConfigError, ConfigReader, Family};
use millstream_stages::spec::{FfnSpec, GateScore, GateSpec, QueryKeyNorm};

/// The family; see the table in [`super::FAMILIES`].
pub struct MinimaxM2;

const NAMING: Naming = Naming {
    tensor_name: |layer, part| hub_names::name(&BLOCK_SPARSE, layer, part),
    views: |layer, part, spec| hub_names::views(&BLOCK_SPARSE, layer, part, spec),
    context_default: 196608,
    tied_default: false,
};

impl Family for MinimaxM2 {
    fn model_types(&self) -> &'static [&'static str] {
        &["minimax_m2"]
    }

    fn blueprint(
        &self,
        config: &ConfigReader,
        _: &dyn Fn(&str) -> bool,
    ) -> Result<Blueprint, ConfigError> {
        config.only_text("hidden_act", "silu")?;
        config.only_text("scoring_func", "sigmoid")?;
        config.only_text("qk_norm_type", "per_layer")?;
        config.count_or("shared_intermediate_size", 0, 0..=0)?;
        // Each layer's kind of attention: 1 is the only one that this family has.
        config.count_list("attn_type_list", 1..=1)?;
        let sizes = sizes(config)?;
        let query_key_norm = match config.flag_or("use_qk_norm", true)? {
            true => QueryKeyNorm::AllHeads,
            false => QueryKeyNorm::None,
        };
        let plain = Grouped { query_key_norm, theta_default: Some(5e6), ..PLAIN };
        let attention = grouped::attention(config, &sizes, &plain)?;
        let bias = config.flag_or("use_routing_bias", true)?;
        let moe = mixture(
            config,
            &sizes,
            &Mixture {
                experts: &["num_local_experts", "num_experts"],
                intermediate: "intermediate_size",
                top_k_default: Some(8),
                gate: GateSpec { score: GateScore::Sigmoid, bias, ..SOFTMAX_GATE },
            },
        )?;
        let ffns = vec![FfnSpec::Moe(moe); sizes.layers];
        let windows = vec![false; sizes.layers];
        let layers = grouped::layers(config, &sizes, &attention, &windows, ffns)?;
        shared::blueprint(config, sizes, layers, &NAMING)
    }
}
