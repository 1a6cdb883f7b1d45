//! Where the parts of a model lie in GGUF files: the names are the same for all architectures.
//!
//! The stages' parts go in, [`View`]s come out, as a family's own would; all routed experts of a
//! layer are entries of one tensor.

use crate::families::{HeadsApart, Skipped, View};
use millstream_stages::ids::LayerId;
use millstream_stages::spec::{AttentionSpec, ModelSpec};
use millstream_stages::weights::Part;

/// Where a part may lie.
///
/// # Panics
/// When a layer's part comes without a layer.
pub fn views(layer: Option<LayerId>, part: Part, spec: &ModelSpec) -> Vec<View> {
    let whole = View::whole(tensor_name(layer, part));
    let Some(id) = layer else { return vec![whole] };
    let other = |name: &str| View::whole(format!("blk.{}.{name}", id.0));
    match part {
        // The norm before the FFN stands behind attention, and some architectures call it so.
        Part::PostNorm => vec![whole, other("post_attention_norm.weight")],
        Part::LatentUp => match &spec.layers[id.index()].attention {
            AttentionSpec::Mla(mla) => {
                let values = other("attn_v_b.weight").name;
                let apart = HeadsApart { values, heads: mla.heads, key_rows: mla.nope_dim };
                vec![whole, View { heads: Some(apart), ..other("attn_k_b.weight") }]
            }
            AttentionSpec::Gqa(_) => vec![whole],
        },
        Part::ExpertGate(expert) | Part::ExpertUp(expert) | Part::ExpertDown(expert) => {
            let moe = spec.layers[id.index()].moe().expect("a layer with experts");
            let entry = |name| View::entry(name, expert.index(), moe.experts);
            let half = |half| {
                let name = other("ffn_gate_up_exps.weight").name;
                entry(name).share(crate::families::Share::HalfOfRows(half))
            };
            match part {
                Part::ExpertGate(_) => vec![entry(whole.name), half(0)],
                Part::ExpertUp(_) => vec![entry(whole.name), half(1)],
                _ => vec![entry(whole.name)],
            }
        }
        _ => vec![whole],
    }
}

/// Tensors that are known and not used: layers for multi-token prediction, and the head's where it
/// is the embedding.
pub fn skipped(layers: usize, draft_layers: usize) -> Skipped {
    let drafts = layers..layers + draft_layers;
    let prefixes = drafts.map(|layer| format!("blk.{layer}.")).collect();
    Skipped { prefixes, suffixes: vec![".attn_rot_embd".to_string()] }
}

/// The name of a tensor in a GGUF file.
fn tensor_name(layer: Option<LayerId>, part: Part) -> String {
    let rest = match part {
        Part::Embedding => return "token_embd.weight".to_string(),
        Part::FinalNorm => return "output_norm.weight".to_string(),
        Part::Head => return "output.weight".to_string(),
        Part::InputNorm => "attn_norm.weight",
        Part::PostNorm => "ffn_norm.weight",
        Part::Query => "attn_q.weight",
        Part::QueryBias => "attn_q.bias",
        Part::Key => "attn_k.weight",
        Part::KeyBias => "attn_k.bias",
        Part::Value => "attn_v.weight",
        Part::ValueBias => "attn_v.bias",
        Part::QueryHeadsNorm => "attn_q_norm.weight",
        Part::KeyHeadsNorm => "attn_k_norm.weight",
        Part::Sinks => "attn_sinks.weight",
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
        Part::RouterLogitBias => "ffn_gate_inp.bias",
        Part::RouterBias => "exp_probs_b.bias",
        Part::DenseGate => "ffn_gate.weight",
        Part::DenseUp => "ffn_up.weight",
        Part::DenseDown => "ffn_down.weight",
        Part::SharedGate => "ffn_gate_shexp.weight",
        Part::SharedUp => "ffn_up_shexp.weight",
        Part::SharedDown => "ffn_down_shexp.weight",
        Part::SharedScore => "ffn_gate_inp_shexp.weight",
        Part::ExpertGate(_) => "ffn_gate_exps.weight",
        Part::ExpertUp(_) => "ffn_up_exps.weight",
        Part::ExpertDown(_) => "ffn_down_exps.weight",
        Part::ExpertGateBiases => "ffn_gate_exps.bias",
        Part::ExpertUpBiases => "ffn_up_exps.bias",
        Part::ExpertDownBiases => "ffn_down_exps.bias",
    };
    format!("blk.{}.{rest}", layer.expect("a layer's part comes with its layer").0)
}
