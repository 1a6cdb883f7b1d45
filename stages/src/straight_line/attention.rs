//! What both kinds of attention of the straight-line pass share: softmax by blocks, rotary position.

use super::Real;
use crate::limits::KV_BLOCK_ROWS;
use crate::spec::RopeSpec;

/// What the softmax over some blocks has gathered.
pub(super) struct BlockSum<R> {
    /// The largest score.
    pub largest: R,
    /// Sum of exp(score - largest).
    pub sum: R,
    /// Sum of exp(score - largest) * value; empty for a block without values.
    pub values: Vec<R>,
}

/// Softmax over some positions, block by block, blocks merged left to right: the values, weighted.
/// `score` and `value` are of one position; `sink` is a score without a value.
pub(super) fn attend<'c, R: Real>(
    positions: &[usize],
    score: impl Fn(usize) -> R,
    value: impl Fn(usize) -> &'c [R],
    sink: Option<R>,
) -> Vec<R> {
    let mut state: Option<BlockSum<R>> = None;
    let last = positions.last().expect("a row attends at least to one position");
    for block in 0..=last / KV_BLOCK_ROWS {
        let range = block * KV_BLOCK_ROWS..(block + 1) * KV_BLOCK_ROWS;
        let of_block: Vec<usize> =
            positions.iter().copied().filter(|position| range.contains(position)).collect();
        if of_block.is_empty() {
            continue;
        }
        let part = attend_block(&of_block, &score, &value);
        state = Some(match state {
            None => part,
            Some(before) => merge(before, part),
        });
    }
    let mut state = state.expect("some block has positions");
    if let Some(largest) = sink {
        let sum = R::from_f32(1.0);
        state = merge(state, BlockSum { largest, sum, values: vec![] });
    }
    let inverse = R::from_f32(1.0).over(state.sum);
    state.values.into_iter().map(|value| value.times(inverse)).collect()
}

/// Softmax over positions of one block.
fn attend_block<'c, R: Real>(
    positions: &[usize],
    score: impl Fn(usize) -> R,
    value: impl Fn(usize) -> &'c [R],
) -> BlockSum<R> {
    let mut scores: Vec<R> = positions.iter().map(|&position| score(position)).collect();
    let largest = scores.iter().copied().fold(scores[0], |a, b| if b > a { b } else { a });
    let minus_largest = R::ZERO.plus_product(R::from_f32(-1.0), largest);
    for score in &mut scores {
        *score = score.plus(minus_largest).exp();
    }
    let mut values = vec![R::ZERO; value(positions[0]).len()];
    for (&share, &position) in scores.iter().zip(positions) {
        for (sum, &value) in values.iter_mut().zip(value(position)) {
            *sum = sum.plus_product(share, value);
        }
    }
    BlockSum { largest, sum: R::sum(&scores), values }
}

/// Merges a later block into what the blocks before it gave.
fn merge<R: Real>(before: BlockSum<R>, block: BlockSum<R>) -> BlockSum<R> {
    let largest = if block.largest > before.largest { block.largest } else { before.largest };
    let minus_largest = R::ZERO.plus_product(R::from_f32(-1.0), largest);
    let keep = before.largest.plus(minus_largest).exp();
    let take = block.largest.plus(minus_largest).exp();
    let sum = before.sum.times(keep).plus_product(take, block.sum);
    let mut values: Vec<R> = before.values.iter().map(|value| value.times(keep)).collect();
    for (sum, &value) in values.iter_mut().zip(&block.values) {
        *sum = sum.plus_product(take, value);
    }
    BlockSum { largest, sum, values }
}

/// Rotary position; the result is half-split whatever the input is.
pub(super) fn rope<R: Real>(x: &[R], rope: &RopeSpec, position: u32) -> Vec<R> {
    let half = x.len() / 2;
    let frequencies = rope.inverse_frequencies(x.len());
    let (cos, sin) = R::rope_angles(&frequencies, rope.magnitude(), position);
    let minus = R::from_f32(-1.0);
    let pair =
        |j: usize| if rope.interleaved { (x[2 * j], x[2 * j + 1]) } else { (x[j], x[j + half]) };
    let mut out = vec![R::ZERO; x.len()];
    for j in 0..half {
        let (a, b) = pair(j);
        out[j] = a.times(cos[j]).plus(b.times(sin[j]).times(minus));
        out[j + half] = b.times(cos[j]).plus(a.times(sin[j]));
    }
    out
}
