//! gpt-oss (`gpt_oss`): attention sinks and alternating windows, clamped experts with biases.
//!
//! Reads a Hugging Face `config.json` the way transformers' `GptOssConfig` does (arXiv 2508.10925).
//! Experts are stacked: as MXFP4 blocks with gate and up in alternating rows, or as floats, then
//! stored transposed, with gate and up in alternating columns.

use super::grouped::{self, Grouped, PLAIN};
use super::hub_names::{self, STACKED};
use super::shared::{self, Mixture, Naming, SOFTMAX_GATE, mixture, sizes};
use super::view::{Share, View};
use super::{Blueprint, ConfigError, ConfigReader, Family};
use millstream_stages::ids::LayerId;
use millstream_stages::spec::{Activation, FfnSpec, GateSpec, ModelSpec, MoeSpec};
use millstream_stages::weights::Part;

/// The family; see the table in [`super::FAMILIES`].
pub struct GptOss;

const NAMING: Naming = Naming {
    tensor_name: |layer, part| hub_names::name(&STACKED, layer, part),
    views,
    context_default: 131_072,
    tied_default: false,
};

/// The factor in the sigmoid, and the bound, when the file doesn't say.
const ALPHA_DEFAULT: f32 = 1.702;
const LIMIT_DEFAULT: f32 = 7.0;

impl Family for GptOss {
    fn model_types(&self) -> &'static [&'static str] {
        &["gpt_oss"]
    }

    fn blueprint(
        &self,
        config: &ConfigReader,
        _: &dyn Fn(&str) -> bool,
    ) -> Result<Blueprint, ConfigError> {
        config.only_text("hidden_act", "silu")?;
        let sizes = sizes(config)?;
        let bias = config.flag_or("attention_bias", true)?;
        let theta_default = Some(150_000.0);
        let plain = Grouped { bias, output_bias: bias, sinks: true, theta_default, ..PLAIN };
        let attention = grouped::attention(config, &sizes, &plain)?;
        let fields = Mixture {
            experts: &["num_local_experts", "num_experts"],
            intermediate: "intermediate_size",
            top_k_default: Some(4),
            gate: GateSpec { logit_bias: true, ..SOFTMAX_GATE },
        };
        let alpha = config.optional_number("swiglu_alpha", 1e-3..=1e3)?.unwrap_or(ALPHA_DEFAULT);
        let limit = config.optional_number("swiglu_limit", 1e-3..=1e6)?.unwrap_or(LIMIT_DEFAULT);
        let activation = Activation::Clamped { alpha, limit };
        let moe = mixture(config, &sizes, &fields)?;
        let moe = MoeSpec { activation, expert_bias: true, ..moe };
        let ffns = vec![FfnSpec::Moe(moe); sizes.layers];
        let windows = grouped::windowed(config, sizes.layers, |layer| layer % 2 == 0)?;
        let layers = grouped::layers(config, &sizes, &attention, &windows, ffns)?;
        shared::blueprint(config, sizes, layers, &NAMING)
    }
}

/// Experts and their biases lie in stacks, gate and up alternating.
fn views(layer: Option<LayerId>, part: Part, spec: &ModelSpec) -> Vec<View> {
    let whole = View::whole(hub_names::name(&STACKED, layer, part));
    let moe = layer.and_then(|id| spec.layers[id.index()].moe());
    let (Some(layer), Some(moe)) = (layer, moe) else { return vec![whole] };
    let stack = |matrix: &str| format!("model.layers.{}.mlp.experts.{matrix}", layer.0);
    let entry = |matrix: &str, expert: millstream_stages::ids::ExpertId| {
        View::entry(stack(matrix), expert.index(), moe.experts).transposed()
    };
    let biases =
        |side| View::whole(stack("gate_up_proj_bias")).share(Share::EveryOtherColumn(side));
    vec![match part {
        Part::ExpertGate(expert) => entry("gate_up_proj", expert).share(Share::EveryOtherRow(0)),
        Part::ExpertUp(expert) => entry("gate_up_proj", expert).share(Share::EveryOtherRow(1)),
        Part::ExpertDown(expert) => entry("down_proj", expert),
        Part::ExpertGateBiases => biases(0),
        Part::ExpertUpBiases => biases(1),
        _ => whole,
    }]
}
