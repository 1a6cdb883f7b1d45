//! How tensors are called in GGUF files: the same for all architectures.

use millstream_stages::ids::LayerId;
use millstream_stages::weights::Part;

/// The name of a tensor in a GGUF file; all routed experts of a layer are in one.
///
/// # Panics
/// When a layer's part comes without a layer.
pub fn tensor_name(layer: Option<LayerId>, part: Part) -> String {
    let rest = match part {
        Part::Embedding => return "token_embd.weight".to_string(),
        Part::FinalNorm => return "output_norm.weight".to_string(),
        Part::Head => return "output.weight".to_string(),
        Part::InputNorm => "attn_norm.weight",
        Part::PostNorm => "ffn_norm.weight",
        Part::QueryDown => "attn_q_a.weight",
        Part::QueryDownBias => "attn_q_a.bias",
        Part::QueryNorm => "attn_q_a_norm.weight",
        Part::QueryUp => "attn_q_b.weight",
        Part::LatentDown => "attn_kv_a_mqa.weight",
        Part::LatentDownBias => "attn_kv_a_mqa.bias",
        Part::LatentNorm => "attn_kv_a_norm.weight",
        Part::LatentUp => "attn_kv_b.weight",
        Part::Output => "attn_output.weight",
        Part::OutputBias => "attn_output.bias",
        Part::IndexQuery => "indexer.attn_q_b.weight",
        Part::IndexKey => "indexer.attn_k.weight",
        Part::IndexKeyNorm => "indexer.k_norm.weight",
        Part::IndexKeyNormBias => "indexer.k_norm.bias",
        Part::IndexWeights => "indexer.proj.weight",
        Part::Router => "ffn_gate_inp.weight",
        Part::RouterBias => "exp_probs_b.bias",
        Part::DenseGate => "ffn_gate.weight",
        Part::DenseUp => "ffn_up.weight",
        Part::DenseDown => "ffn_down.weight",
        Part::SharedGate => "ffn_gate_shexp.weight",
        Part::SharedUp => "ffn_up_shexp.weight",
        Part::SharedDown => "ffn_down_shexp.weight",
        Part::ExpertGate(_) => "ffn_gate_exps.weight",
        Part::ExpertUp(_) => "ffn_up_exps.weight",
        Part::ExpertDown(_) => "ffn_down_exps.weight",
    };
    format!("blk.{}.{rest}", layer.expect("a layer's part comes with its layer").0)
}
