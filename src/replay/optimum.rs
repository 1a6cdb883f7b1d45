//! Belady's rule: the expert goes whose next use is furthest off. It needs the future, so it is only a
//! measure: no policy that reads every missed expert into a slot can hit more.

use super::{Hits, LayerTrace};

/// No use comes any more.
const NEVER: usize = usize::MAX;

/// The most hits that a layer can have with so many slots, in the engine's chunks.
pub fn optimum(layer: &LayerTrace, slots: usize) -> Hits {
    let slots = slots.clamp(1, layer.experts.max(1));
    let next_use = next_uses(layer);
    // By expert: its next use, for those that are in a slot.
    let mut held: Vec<Option<usize>> = vec![None; layer.experts];
    let mut free = slots;
    let mut hits = Hits::default();
    let mut first = 0;
    for step in layer.steps() {
        for chunk in step.uses.chunks(slots) {
            let chunk_end = first + chunk.len();
            let mut missed = 0;
            for (part, &next) in chunk.iter().zip(&next_use[first..chunk_end]) {
                missed += usize::from(held[part.expert.index()].is_none());
                held[part.expert.index()] = Some(next);
            }
            for _ in 0..missed.saturating_sub(free) {
                let in_chunk = |expert| chunk.binary_search_by_key(&expert, |p| p.expert.index());
                let candidates = held.iter().enumerate().filter(|(_, next)| next.is_some());
                let others = candidates.filter(|(expert, _)| in_chunk(*expert).is_err());
                let furthest = others.max_by_key(|(_, next)| **next).map(|(expert, _)| expert);
                held[furthest.expect("a chunk isn't larger than the slots")] = None;
            }
            free = free.saturating_sub(missed);
            hits.count(step.decode, (chunk.len() - missed) as u64, chunk.len() as u64);
            first = chunk_end;
        }
    }
    hits
}

/// For each use the next one of the same expert.
fn next_uses(layer: &LayerTrace) -> Vec<usize> {
    let mut coming = vec![NEVER; layer.experts];
    let mut next_use = vec![NEVER; layer.uses().len()];
    for (index, part) in layer.uses().iter().enumerate().rev() {
        next_use[index] = std::mem::replace(&mut coming[part.expert.index()], index);
    }
    next_use
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::Traces;
    use std::path::Path;

    /// The fewest misses from here on, by trying every set that may be kept.
    fn fewest_misses(steps: &[Vec<u32>], held: u32, slots: u32) -> u32 {
        let Some((step, rest)) = steps.split_first() else { return 0 };
        let wanted = step.iter().fold(0, |wanted, expert| wanted | 1u32 << expert);
        let missed = (wanted & !held).count_ones();
        let mut fewest = u32::MAX;
        let all = held | wanted;
        for kept in 0..=all {
            let allowed = kept & !all == 0 && kept & wanted == wanted;
            if allowed && kept.count_ones() == slots.min(all.count_ones()) {
                fewest = fewest.min(fewest_misses(rest, kept, slots));
            }
        }
        missed + fewest
    }

    #[test]
    fn no_choice_of_victims_misses_less() {
        let mut state = 1u64;
        for _ in 0..40 {
            let mut draw = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u32 % 6
            };
            let mut steps = vec![];
            for _ in 0..9 {
                let first = draw();
                steps.push(vec![first, (first + 1 + draw() % 5) % 6]);
            }
            let position = |(position, experts): (usize, &Vec<u32>)| serde_json::json!({"position": position, "experts": [experts]});
            let file: Vec<_> = steps.iter().enumerate().map(position).collect();
            let text = serde_json::to_string(&file).expect("JSON");
            let mut traces = Traces::default();
            traces.read(Path::new("a trace"), text.as_bytes()).expect("a trace");
            for slots in 2..=4 {
                let hits = optimum(&traces.layers()[0], slots as usize);
                let misses = hits.decode_uses - hits.decode_hits;
                assert_eq!(misses, u64::from(fewest_misses(&steps, 0, slots)), "{steps:?}");
            }
        }
    }
}
