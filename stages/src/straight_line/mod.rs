//! A second forward pass, written for reading: no queues, no cache of experts, no threads.
//!
//! One position at a time, layer by layer, every expert straight from the [`WeightSource`]. It is
//! held against reference files made by another implementation, and the pipeline is held against
//! it. Used by tests only; nothing of the pipeline calls it. Sources of the arithmetic: DeepSeek-V2
//! (arXiv 2405.04434, latent attention in absorbed form), DeepSeek-V3 (arXiv 2412.19437, router),
//! DeepSeek-V3.2 (indexer); the order of every sum is docs/determinism.md.

mod attention;
mod ffn;
mod grouped;
mod latent;
mod real;

pub use real::Real;

use crate::ids::LayerId;
use crate::parts::part_shape;
use crate::pieces::pieces;
use crate::spec::{Activation, AttentionSpec, LayerSpec, ModelSpec};
use crate::weights::{Line, Part, Rectangle, SourceError, WeightSource, aligned_bytes};
use millstream_kernels::{WeightFormat, Weights};
use std::collections::HashMap;

/// A tensor: its pieces as they are stored, and all of it decoded to the precision of the pass.
pub(crate) struct Table<R> {
    rows: usize,
    cols: usize,
    format: WeightFormat,
    pieces: Vec<(Rectangle, Vec<Line>)>,
    data: Vec<R>,
}

impl<R: Real> Table<R> {
    fn read(
        spec: &ModelSpec,
        source: &dyn WeightSource,
        layer: Option<LayerId>,
        part: Part,
    ) -> Result<Table<R>, SourceError> {
        let [rows, cols] = part_shape(spec, layer, part).expect("a part that the model has");
        let format = source.format(layer, part);
        let mut table =
            Table { rows, cols, format, pieces: vec![], data: vec![R::ZERO; rows * cols] };
        for piece in pieces(spec, layer, part) {
            let bytes = format.matrix_bytes(piece.rows.len(), piece.cols.len());
            let mut lines = aligned_bytes(bytes);
            let out = &mut bytemuck::cast_slice_mut::<Line, u8>(&mut lines)[..bytes];
            source.read(layer, part, &piece, out)?;
            table.pieces.push((piece, lines));
            table.decode(table.pieces.len() - 1);
        }
        Ok(table)
    }

    fn piece(&self, index: usize) -> Weights<'_> {
        let (Rectangle { rows, cols }, lines) = &self.pieces[index];
        let bytes = self.format.matrix_bytes(rows.len(), cols.len());
        let lines: &[u8] = bytemuck::cast_slice(lines);
        Weights::new(self.format, rows.len(), cols.len(), &lines[..bytes])
    }

    fn decode(&mut self, index: usize) {
        let Rectangle { rows, cols } = self.pieces[index].0.clone();
        let mut row = vec![0.0; cols.len()];
        for r in rows.clone() {
            self.piece(index).decode_row(r - rows.start, &mut row);
            for (out, &value) in self.data[r * self.cols..][cols.clone()].iter_mut().zip(&row) {
                *out = R::from_f32(value);
            }
        }
    }

    fn row(&self, row: usize) -> &[R] {
        &self.data[row * self.cols..][..self.cols]
    }

    /// One dot product per row of a piece.
    fn piece_times(&self, index: usize, x: &[R]) -> Vec<R> {
        R::times_stored(self.piece(index), x).unwrap_or_else(|| {
            let Rectangle { rows, cols } = &self.pieces[index].0;
            rows.clone().map(|row| R::dot(&self.row(row)[cols.clone()], x)).collect()
        })
    }

    /// One dot product per row; pieces are runs of rows.
    fn times(&self, x: &[R]) -> Vec<R> {
        (0..self.pieces.len()).flat_map(|piece| self.piece_times(piece, x)).collect()
    }

    /// As [`Table::times`] where the pieces are runs of columns: their results are added in the
    /// balanced tree.
    fn times_sliced(&self, x: &[R]) -> Vec<R> {
        let part = |(index, (piece, _)): (usize, &(Rectangle, Vec<Line>))| {
            self.piece_times(index, &x[piece.cols.clone()])
        };
        let parts: Vec<Vec<R>> = self.pieces.iter().enumerate().map(part).collect();
        (0..self.rows).map(|row| tree_sum(0, parts.len(), &|slice| parts[slice][row])).collect()
    }
}

/// ((0+1)+(2+3))+((4+5)+(6+7)), for 1, 2, 4 or 8 parts.
fn tree_sum<R: Real>(first: usize, end: usize, part: &dyn Fn(usize) -> R) -> R {
    if end - first == 1 {
        return part(first);
    }
    let middle = (first + end) / 2;
    tree_sum(first, middle, part).plus(tree_sum(middle, end, part))
}

/// What the router chose for one row of one layer.
#[derive(Clone, Debug)]
pub struct Choice<R> {
    /// Expert and weight, by falling score.
    pub experts: Vec<(u32, R)>,
    /// Distance between the last chosen and the first rejected (groups included).
    pub gap: f64,
}

/// What the indexer selected for one row of one layer.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Positions, ascending.
    pub positions: Vec<u32>,
    /// Distance between the last selected and the first rejected score.
    pub gap: f64,
}

/// Everything one position gave.
#[derive(Clone, Debug)]
pub struct Step<R> {
    /// One per vocabulary entry.
    pub logits: Vec<R>,
    /// Per layer; none for dense layers.
    pub choices: Vec<Option<Choice<R>>>,
    /// Per layer; only layers with an indexer of their own and more keys than they keep.
    pub selections: Vec<Option<Selection>>,
    /// Per layer: the normed state that its FFN, or its router and experts, read.
    pub ffn_inputs: Vec<Vec<R>>,
}

/// What the attention of one layer remembers.
#[derive(Default)]
struct LayerCache<R> {
    latents: Vec<Vec<R>>,
    rope_keys: Vec<Vec<R>>,
    index_keys: Vec<Vec<R>>,
    /// By position, by key head.
    keys: Vec<Vec<Vec<R>>>,
    values: Vec<Vec<Vec<R>>>,
}

/// The pass and its state: one sequence.
pub struct StraightLine<'a, R> {
    spec: &'a ModelSpec,
    source: &'a dyn WeightSource,
    tensors: HashMap<(Option<LayerId>, Part), Table<R>>,
    caches: Vec<LayerCache<R>>,
    positions: u32,
}

impl<'a, R: Real> StraightLine<'a, R> {
    /// An empty sequence of a model. Tensors are read when they are first used and kept.
    pub fn new(spec: &'a ModelSpec, source: &'a dyn WeightSource) -> Self {
        let mut pass =
            StraightLine { spec, source, tensors: HashMap::new(), caches: vec![], positions: 0 };
        pass.reset();
        pass
    }

    /// Forgets the sequence and keeps the tensors.
    pub fn reset(&mut self) {
        self.positions = 0;
        let nothing = || LayerCache {
            latents: vec![],
            rope_keys: vec![],
            index_keys: vec![],
            keys: vec![],
            values: vec![],
        };
        self.caches = self.spec.layers.iter().map(|_| nothing()).collect();
    }

    /// Runs several tokens; see [`StraightLine::step`].
    ///
    /// # Errors
    /// When a tensor can't be read.
    pub fn run(&mut self, tokens: &[u32]) -> Result<Vec<Step<R>>, SourceError> {
        tokens.iter().map(|&token| self.step(token)).collect()
    }

    /// Runs the next token of the sequence.
    ///
    /// # Errors
    /// When a tensor can't be read.
    ///
    /// # Panics
    /// When the token isn't in the vocabulary.
    pub fn step(&mut self, token: u32) -> Result<Step<R>, SourceError> {
        let spec = self.spec;
        self.fetch(None, Part::Embedding)?;
        let mut x = self.table(None, Part::Embedding).row(token as usize).to_vec();
        let mut choices = vec![];
        let mut selections = vec![];
        let mut ffn_inputs = vec![];
        let mut selected: Option<Vec<u32>> = None;
        for (index, layer) in spec.layers.iter().enumerate() {
            let id = LayerId(index as u32);
            let h = self.norm(id, Part::InputNorm, &x, layer.norm_epsilon)?;
            let (context, selection) = match &layer.attention {
                AttentionSpec::Mla(mla) => self.latent_attention(id, mla, &h, &mut selected)?,
                AttentionSpec::Gqa(gqa) => (self.grouped_attention(id, gqa, &h)?, None),
            };
            self.fetch(Some(id), Part::Output)?;
            let mut out = self.table(Some(id), Part::Output).times_sliced(&context);
            if layer.attention.has_output_bias() {
                self.fetch(Some(id), Part::OutputBias)?;
                add_to(&mut out, &self.table(Some(id), Part::OutputBias).data);
            }
            add_to(&mut x, &out);
            selections.push(selection);
            let h = self.norm(id, Part::PostNorm, &x, layer.norm_epsilon)?;
            ffn_inputs.push(h.clone());
            let (out, choice) = self.ffn(id, layer, &h)?;
            add_to(&mut x, &out);
            choices.push(choice);
        }
        self.positions += 1;
        self.fetch(None, Part::FinalNorm)?;
        let norm = &self.table(None, Part::FinalNorm).data;
        let h = R::rms_norm(&x, norm, spec.final_norm_epsilon);
        let head = if spec.tied_head { Part::Embedding } else { Part::Head };
        self.fetch(None, head)?;
        Ok(Step { logits: self.table(None, head).times(&h), choices, selections, ffn_inputs })
    }

    /// `part * x`, plus a bias.
    fn projected(
        &mut self,
        id: LayerId,
        part: Part,
        bias: Option<Part>,
        x: &[R],
    ) -> Result<Vec<R>, SourceError> {
        let mut out = self.times(id, part, x)?;
        if let Some(bias) = bias {
            self.fetch(Some(id), bias)?;
            add_to(&mut out, &self.table(Some(id), bias).data);
        }
        Ok(out)
    }

    fn norm(&mut self, id: LayerId, part: Part, x: &[R], eps: f32) -> Result<Vec<R>, SourceError> {
        self.fetch(Some(id), part)?;
        Ok(R::rms_norm(x, &self.table(Some(id), part).data, eps))
    }

    fn ffn(
        &mut self,
        id: LayerId,
        layer: &LayerSpec,
        h: &[R],
    ) -> Result<(Vec<R>, Option<Choice<R>>), SourceError> {
        match layer.moe() {
            None => {
                let parts = [Part::DenseGate, Part::DenseUp, Part::DenseDown];
                Ok((self.gated_unit(id, parts, Activation::Silu, None, h)?, None))
            }
            Some(moe) => {
                let (out, choice) = self.mixture(id, moe, h)?;
                Ok((out, Some(choice)))
            }
        }
    }

    fn times(&mut self, id: LayerId, part: Part, x: &[R]) -> Result<Vec<R>, SourceError> {
        self.fetch(Some(id), part)?;
        Ok(self.table(Some(id), part).times(x))
    }

    fn fetch(&mut self, layer: Option<LayerId>, part: Part) -> Result<(), SourceError> {
        if !self.tensors.contains_key(&(layer, part)) {
            let table = Table::read(self.spec, self.source, layer, part)?;
            self.tensors.insert((layer, part), table);
        }
        Ok(())
    }

    fn table(&self, layer: Option<LayerId>, part: Part) -> &Table<R> {
        &self.tensors[&(layer, part)]
    }
}

fn add_to<R: Real>(x: &mut [R], y: &[R]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x = x.plus(*y);
    }
}

/// The positions of the `keep` largest scores, ascending; equal scores by rising position. Also
/// the distance between the last one kept and the first one left.
fn largest<R: Real>(scores: &[R], keep: usize) -> (Vec<u32>, f64) {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    let score = |position: &u32| scores[*position as usize].to_f64();
    order.sort_by(|a, b| score(b).partial_cmp(&score(a)).expect("scores are numbers"));
    let gap = match order.get(keep) {
        Some(next) => score(&order[keep - 1]) - score(next),
        None => f64::INFINITY,
    };
    order.truncate(keep);
    order.sort_unstable();
    (order, gap)
}
