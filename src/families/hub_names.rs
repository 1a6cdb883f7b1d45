//! Tensor names of Hugging Face checkpoints: the names that transformers gives to modules.
//!
//! Families differ in how they call the mixture and little else: a [`Style`] says how. Experts are
//! tensors of their own, or entries of a stack where gate and up are halves of one tensor (which
//! is how transformers 5 holds them).

use super::view::{Share, View};
use millstream_stages::ids::LayerId;
use millstream_stages::spec::ModelSpec;
use millstream_stages::weights::Part;

/// How a family calls the tensors of its mixtures, each below a layer's prefix.
pub struct Style {
    /// The router's weights.
    pub router: &'static str,
    /// The bias on the router's choice.
    pub router_bias: &'static str,
    /// What holds the experts.
    pub experts: &'static str,
    /// Gate, up and down of an expert.
    pub expert: [&'static str; 3],
    /// What holds the shared expert.
    pub shared: &'static str,
}

/// DeepSeek-V3, GLM, and with them OLMoE and Qwen.
pub const LATENT: Style = Style {
    router: "mlp.gate.weight",
    router_bias: "mlp.gate.e_score_correction_bias",
    experts: "mlp.experts",
    expert: ["gate_proj", "up_proj", "down_proj"],
    shared: "mlp.shared_experts",
};

/// Qwen2-MoE, whose one shared expert has a score.
pub const ONE_SHARED: Style = Style { shared: "mlp.shared_expert", ..LATENT };

/// Mixtral and MiniMax-M2.
pub const BLOCK_SPARSE: Style = Style {
    router: "block_sparse_moe.gate.weight",
    router_bias: "block_sparse_moe.e_score_correction_bias",
    experts: "block_sparse_moe.experts",
    expert: ["w1", "w3", "w2"],
    shared: "block_sparse_moe.shared_experts",
};

/// gpt-oss, whose experts are always stacked.
pub const STACKED: Style = Style { router: "mlp.router.weight", ..LATENT };

/// The canonical name of a tensor in a Hugging Face checkpoint.
///
/// # Panics
/// When a layer's part comes without a layer.
pub fn name(style: &Style, layer: Option<LayerId>, part: Part) -> String {
    let rest = match part {
        Part::Embedding => return "model.embed_tokens.weight".to_string(),
        Part::FinalNorm => return "model.norm.weight".to_string(),
        Part::Head => return "lm_head.weight".to_string(),
        Part::Router => style.router.to_string(),
        Part::RouterBias => style.router_bias.to_string(),
        Part::SharedGate => format!("{}.gate_proj.weight", style.shared),
        Part::SharedUp => format!("{}.up_proj.weight", style.shared),
        Part::SharedDown => format!("{}.down_proj.weight", style.shared),
        Part::ExpertGate(expert) | Part::ExpertUp(expert) | Part::ExpertDown(expert) => {
            let matrix = match part {
                Part::ExpertGate(_) => style.expert[0],
                Part::ExpertUp(_) => style.expert[1],
                _ => style.expert[2],
            };
            format!("{}.{}.{matrix}.weight", style.experts, expert.0)
        }
        _ => within_layer(part).to_string(),
    };
    let layer = layer.expect("a layer's part comes with its layer").0;
    format!("model.layers.{layer}.{rest}")
}

/// The names that all families share, below a layer's prefix.
fn within_layer(part: Part) -> &'static str {
    match part {
        Part::InputNorm => "input_layernorm.weight",
        Part::PostNorm => "post_attention_layernorm.weight",
        Part::Query => "self_attn.q_proj.weight",
        Part::QueryBias => "self_attn.q_proj.bias",
        Part::Key => "self_attn.k_proj.weight",
        Part::KeyBias => "self_attn.k_proj.bias",
        Part::Value => "self_attn.v_proj.weight",
        Part::ValueBias => "self_attn.v_proj.bias",
        Part::QueryHeadsNorm => "self_attn.q_norm.weight",
        Part::KeyHeadsNorm => "self_attn.k_norm.weight",
        Part::Sinks => "self_attn.sinks",
        Part::QueryDown => "self_attn.q_a_proj.weight",
        Part::QueryDownBias => "self_attn.q_a_proj.bias",
        Part::QueryNorm => "self_attn.q_a_layernorm.weight",
        Part::QueryUp => "self_attn.q_b_proj.weight",
        Part::LatentDown => "self_attn.kv_a_proj_with_mqa.weight",
        Part::LatentDownBias => "self_attn.kv_a_proj_with_mqa.bias",
        Part::LatentNorm => "self_attn.kv_a_layernorm.weight",
        Part::LatentUp => "self_attn.kv_b_proj.weight",
        Part::Output => "self_attn.o_proj.weight",
        Part::OutputBias => "self_attn.o_proj.bias",
        Part::IndexQuery => "self_attn.indexer.wq_b.weight",
        Part::IndexKey => "self_attn.indexer.wk.weight",
        Part::IndexKeyNorm => "self_attn.indexer.k_norm.weight",
        Part::IndexKeyNormBias => "self_attn.indexer.k_norm.bias",
        Part::IndexWeights => "self_attn.indexer.weights_proj.weight",
        Part::RouterLogitBias => "mlp.router.bias",
        Part::DenseGate => "mlp.gate_proj.weight",
        Part::DenseUp => "mlp.up_proj.weight",
        Part::DenseDown => "mlp.down_proj.weight",
        Part::ExpertGateBiases => "mlp.experts.gate_proj_bias",
        Part::ExpertUpBiases => "mlp.experts.up_proj_bias",
        Part::ExpertDownBiases => "mlp.experts.down_proj_bias",
        Part::SharedScore => "mlp.shared_expert_gate.weight",
        other => panic!("{other:?} is named by a family's style"),
    }
}

/// Where a part may lie: under its own name, or in a stack of experts.
pub fn views(style: &Style, layer: Option<LayerId>, part: Part, spec: &ModelSpec) -> Vec<View> {
    let mut views = vec![View::whole(name(style, layer, part))];
    if let (Some(layer), Some(moe)) = (layer, layer.and_then(|id| spec.layers[id.index()].moe())) {
        let stack = |matrix| format!("model.layers.{}.{}.{matrix}", layer.0, style.experts);
        let of = |matrix, expert: millstream_stages::ids::ExpertId| {
            View::entry(stack(matrix), expert.index(), moe.experts)
        };
        let stacked = match part {
            Part::ExpertGate(expert) => of("gate_up_proj", expert).share(Share::HalfOfRows(0)),
            Part::ExpertUp(expert) => of("gate_up_proj", expert).share(Share::HalfOfRows(1)),
            Part::ExpertDown(expert) => of("down_proj", expert),
            _ => return views,
        };
        views.push(stacked);
    }
    views
}
