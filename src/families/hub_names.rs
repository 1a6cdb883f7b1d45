//! Tensor names of Hugging Face checkpoints with latent attention and routed experts.
//!
//! The names that transformers gives to the modules of DeepSeek-V3 and its kin.

use millstream_stages::ids::LayerId;
use millstream_stages::weights::Part;

/// The name of a tensor in a Hugging Face checkpoint.
///
/// # Panics
/// When a layer's part comes without a layer.
pub fn tensor_name(layer: Option<LayerId>, part: Part) -> String {
    let rest = match part {
        Part::Embedding => return "model.embed_tokens.weight".to_string(),
        Part::FinalNorm => return "model.norm.weight".to_string(),
        Part::Head => return "lm_head.weight".to_string(),
        Part::InputNorm => "input_layernorm.weight",
        Part::PostNorm => "post_attention_layernorm.weight",
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
        Part::Router => "mlp.gate.weight",
        Part::RouterBias => "mlp.gate.e_score_correction_bias",
        Part::DenseGate => "mlp.gate_proj.weight",
        Part::DenseUp => "mlp.up_proj.weight",
        Part::DenseDown => "mlp.down_proj.weight",
        Part::SharedGate => "mlp.shared_experts.gate_proj.weight",
        Part::SharedUp => "mlp.shared_experts.up_proj.weight",
        Part::SharedDown => "mlp.shared_experts.down_proj.weight",
        Part::ExpertGate(_) => "gate_proj.weight",
        Part::ExpertUp(_) => "up_proj.weight",
        Part::ExpertDown(_) => "down_proj.weight",
    };
    let layer = layer.expect("a layer's part comes with its layer").0;
    match part {
        Part::ExpertGate(expert) | Part::ExpertUp(expert) | Part::ExpertDown(expert) => {
            format!("model.layers.{layer}.mlp.experts.{}.{rest}", expert.0)
        }
        _ => format!("model.layers.{layer}.{rest}"),
    }
}
