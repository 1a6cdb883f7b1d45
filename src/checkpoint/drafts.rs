//! The tensors of draft layers, which multi-token prediction needs and the engine doesn't run yet.
//!
//! No family describes them, so their shapes come from what they share with the model: a draft
//! layer is one more mixture layer, with a matrix that joins an embedding with the hidden state and
//! perhaps an embedding and a head of its own (DeepSeek-V3 report, section 2.2). A blueprint flows
//! in, names and shapes flow out; the converter and `examine/` look the tensors up.

use crate::families::Blueprint;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::parts::{expert_parts, part_shape, resident_parts};
use millstream_stages::weights::Part;
use std::collections::BTreeMap;

/// What a tensor of a draft layer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DraftTensor {
    /// Rows and columns; one row for a vector.
    pub shape: [usize; 2],
    /// What it does in the layer; None for what stands around it, which is all matrices.
    pub part: Option<Part>,
}

/// The draft layers that a checkpoint may hold.
pub fn draft_layers(blueprint: &Blueprint) -> impl Iterator<Item = LayerId> + use<> {
    let layers = blueprint.spec.layers.len();
    (layers..layers + blueprint.draft_layers).map(|layer| LayerId(layer as u32))
}

/// What the names of a layer's tensors begin with.
pub fn layer_prefix(blueprint: &Blueprint, layer: LayerId) -> String {
    let name = |part| (blueprint.tensor_name)(Some(layer), part);
    let (first, second) = (name(Part::InputNorm), name(Part::Router));
    let common = first.bytes().zip(second.bytes()).take_while(|(a, b)| a == b).count();
    first[..common].rfind('.').map_or(String::new(), |dot| first[..=dot].to_owned())
}

/// The tensors of a draft layer whose shapes are known, by name. A checkpoint may lack any of them.
pub fn draft_tensors(blueprint: &Blueprint, draft: LayerId) -> BTreeMap<String, DraftTensor> {
    let spec = &blueprint.spec;
    let prefix = layer_prefix(blueprint, draft);
    let mut known = BTreeMap::new();
    for name in ["embed_tokens.weight", "shared_head.head.weight"] {
        let shape = [spec.vocabulary, spec.hidden];
        known.insert(format!("{prefix}{name}"), DraftTensor { shape, part: None });
    }
    let shape = [spec.hidden, 2 * spec.hidden];
    known.insert(format!("{prefix}eh_proj.weight"), DraftTensor { shape, part: None });
    // The last layer of each kind: some have indexers and some have none.
    for (index, layer) in spec.layers.iter().enumerate() {
        let Some(moe) = layer.moe() else { continue };
        let id = Some(LayerId(index as u32));
        let resident = resident_parts(spec).into_iter().filter(|(layer, _)| *layer == id);
        let experts = (0..moe.experts).flat_map(|expert| expert_parts(ExpertId(expert as u32)));
        for part in resident.map(|(_, part)| part).chain(experts) {
            let Some(shape) = part_shape(spec, id, part) else { continue };
            let name = (blueprint.tensor_name)(Some(draft), part);
            known.insert(name, DraftTensor { shape, part: Some(part) });
        }
    }
    known
}
