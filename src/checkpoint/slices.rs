//! S follows from the formats: a matrix may be cut along its columns only between groups.
//!
//! A family fills in the S that the model's widths allow; once the formats are known, the groups
//! of every matrix that is cut along its columns count too. Checkpoints and packs of one model have
//! the same rule, and so the same S where their formats are the same.

use millstream_kernels::WeightFormat;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::parts::resident_parts;
use millstream_stages::pieces::{Cut, cut_of};
use millstream_stages::spec::ModelSpec;
use millstream_stages::weights::Part;

/// S of a model whose tensors have these formats; all experts of a layer have those of the first.
pub fn slices_of(
    spec: &ModelSpec,
    format: impl Fn(Option<LayerId>, Part) -> WeightFormat,
) -> usize {
    let experts = (0..spec.layers.len())
        .filter(|&layer| spec.layers[layer].moe().is_some())
        .map(|layer| (Some(LayerId(layer as u32)), Part::ExpertDown(ExpertId(0))));
    let group = resident_parts(spec)
        .into_iter()
        .chain(experts)
        .filter(|&(_, part)| cut_of(part) == Cut::ColumnSlices)
        .map(|(layer, part)| format(layer, part).group())
        .fold(1, least_common_multiple);
    ModelSpec::choose_slices(&spec.layers, group)
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a / divisor * b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_no_one_divides_need_their_common_multiple() {
        let multiple = |groups: &[usize]| groups.iter().copied().fold(1, least_common_multiple);
        assert_eq!(multiple(&[]), 1);
        assert_eq!(multiple(&[1, 64, 32]), 64);
        assert_eq!(multiple(&[48, 64, 128]), 384);
    }
}
