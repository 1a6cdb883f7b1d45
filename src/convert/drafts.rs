//! The tensors for multi-token prediction: found by the names of the draft layers.
//!
//! The engine doesn't run them, so no family describes them. What they have in common with the
//! model's last mixture layer is known by that layer's parts; the rest is taken as its header
//! says. A tensor that can't be read is left out with a warning: it must not stop the conversion.

use super::options::{Class, Options};
use super::rows::SourceTensor;
use crate::checkpoint::drafts::{DraftTensor, draft_layers, draft_tensors, layer_prefix};
use crate::checkpoint::{Kind, ModelFiles, TensorPlace, resolve};
use crate::families::{Blueprint, View};
use millstream_stages::ids::LayerId;
use millstream_stages::weights::Part;
use safetensors::Dtype;
use std::collections::BTreeMap;

/// Ends of the names of scales, and what the name of their tensor ends in.
const SCALES: [(&str, &str); 5] = [
    ("_scale_inv", ""),
    (".row_scale", ""),
    (".qs", ""),
    ("_scale", "_packed"),
    ("_scales", "_blocks"),
];
/// Ends of the names of tensors that come with scales of another name.
const PAIRED: [&str; 2] = ["_packed", "_blocks"];

/// A tensor as it may be: shape, and whether it is rounded.
#[derive(Clone, Copy)]
struct Expected {
    shape: [usize; 2],
    kind: Kind,
    class: Class,
}

/// Finds the tensors for multi-token prediction, in order of name, and warns of those that are
/// left out.
pub fn drafts(
    files: &ModelFiles,
    options: &Options,
    warnings: &mut Vec<String>,
) -> Vec<SourceTensor> {
    let mut found = vec![];
    for layer in draft_layers(&files.blueprint) {
        let prefix = layer_prefix(&files.blueprint, layer);
        let known = known(&files.blueprint, layer);
        let names = names(files, &prefix);
        for (name, place) in names {
            let outcome = expected(&known, &name, place).and_then(|expected| {
                let Expected { shape, kind, class } = expected;
                let quantisation = files.blueprint.quantisation;
                let stored =
                    resolve(&files.checkpoint, &[View::whole(&name)], shape, kind, quantisation)
                        .map_err(|error| error.to_string())?;
                let target = options.target(class, stored.format);
                Ok(SourceTensor { name: name.clone(), stored, target })
            });
            match outcome {
                Ok(tensor) => found.push(tensor),
                Err(reason) => warnings.push(format!(
                    "tensor \"{name}\" for multi-token prediction is left out: {reason}"
                )),
            }
        }
    }
    found
}

/// The tensors of a draft layer whose shapes are known.
fn known(blueprint: &Blueprint, draft: LayerId) -> BTreeMap<String, Expected> {
    let expected = |(name, DraftTensor { shape, part }): (String, DraftTensor)| {
        let kind = part.map_or(Kind::Matrix, Kind::of);
        let kept = part == Some(Part::IndexWeights) || matches!(kind, Kind::Vector | Kind::Floats);
        let class = if kept { Class::Kept } else { Class::Mtp };
        (name, Expected { shape, kind, class })
    };
    draft_tensors(blueprint, draft).into_iter().map(expected).collect()
}

/// The names of the tensors themselves, without those of their scales.
fn names<'a>(files: &'a ModelFiles, prefix: &str) -> BTreeMap<String, &'a TensorPlace> {
    let mut names = BTreeMap::new();
    let there = |name: &str| files.checkpoint.tensor(name).is_some();
    for (name, place) in files.checkpoint.tensors().filter(|(name, _)| name.starts_with(prefix)) {
        let of_scales = SCALES.iter().any(|(end, tensor_end)| {
            name.strip_suffix(end).is_some_and(|base| there(&format!("{base}{tensor_end}")))
        });
        if of_scales {
            continue;
        }
        let base = PAIRED.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        names.insert(base.to_owned(), place);
    }
    names
}

/// What a tensor has to be, by its name or else by its header.
fn expected(
    known: &BTreeMap<String, Expected>,
    name: &str,
    place: &TensorPlace,
) -> Result<Expected, String> {
    if let Some(&expected) = known.get(name) {
        return Ok(expected);
    }
    let lengths: Vec<usize> = place.shape.lengths().iter().map(|&length| length as usize).collect();
    match (lengths.as_slice(), place.dtype) {
        (_, Dtype::U8) => Err("nothing says what its bytes mean".to_owned()),
        (&[cols], _) => Ok(Expected { shape: [1, cols], kind: Kind::Vector, class: Class::Kept }),
        (&[rows, cols], _) => {
            Ok(Expected { shape: [rows, cols], kind: Kind::Matrix, class: Class::Mtp })
        }
        (lengths, _) => Err(format!("it has {} dimensions", lengths.len())),
    }
}
