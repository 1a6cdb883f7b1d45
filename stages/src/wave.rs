//! A wave: one batch of rows making one forward step.
//!
//! The engine fills a wave and hands it in; stages move it from one to the next, so it is in one
//! place at a time and nothing of it is shared. All buffers have their full size from the start
//! ([`Limits`]); a wave is recycled, and its tag's generation counts its lives.

use crate::ids::{ExpertId, LayerId, SequenceId, Tag};
use crate::limits::{KV_BLOCK_ROWS, Limits};
use crate::load::ReadFault;
use crate::rope::RopeTable;
use crate::spec::{AttentionSpec, IndexerUse, ModelSpec, RopeSpec};
use millstream_topology::arena::ReadLease;
use std::ops::Range;
use std::sync::Arc;

/// One token position of one sequence.
#[derive(Clone, Debug)]
pub struct Row {
    /// The token.
    pub token: u32,
    /// Its position in the sequence, from 0.
    pub position: u32,
    /// Whose it is.
    pub sequence: SequenceId,
    /// Where the sequence's page table starts in [`Wave::pages`].
    pub pages_first: u32,
    /// Logits are wanted.
    pub wants_logits: bool,
    /// The row belongs to a prompt that is being read.
    pub prefill: bool,
    /// A read that this row needed failed: its results mean nothing from here on.
    pub fault: Option<Arc<ReadFault>>,
}

/// The rows of one expert: a range of [`Routing::rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertRows {
    /// Which expert.
    pub expert: ExpertId,
    /// First entry in [`Routing::rows`].
    pub first: u32,
    /// Entries.
    pub count: u32,
}

/// What the router chose for every row of a wave.
#[derive(Debug, Default)]
pub struct Routing {
    /// Experts of every row, `top_k` each, by falling score.
    pub experts: Vec<u32>,
    /// Their weights.
    pub weights: Vec<f32>,
    /// The union over the rows, ascending.
    pub union: Vec<ExpertRows>,
    /// Rows, grouped by expert in the order of `union`.
    pub rows: Vec<u32>,
    /// The weight that each entry of `rows` gives its expert.
    pub row_weights: Vec<f32>,
}

impl Routing {
    /// Where among the results of a chunk that begins with `chunk_first` an expert has its rows, in f32
    /// elements.
    pub fn results_of(
        &self,
        chunk_first: usize,
        union_index: usize,
        hidden: usize,
    ) -> Range<usize> {
        let first = self.union[union_index].first - self.union[chunk_first].first;
        let first = first as usize * hidden;
        first..first + self.union[union_index].count as usize * hidden
    }
}

/// Which positions each row looks at.
#[derive(Debug, Default)]
pub struct Selection {
    /// Positions, `width` a row, ascending.
    pub positions: Vec<u32>,
    /// How many of a row's are in use; `None` means all positions up to its own.
    pub counts: Vec<Option<u32>>,
    /// Room for each row.
    pub width: usize,
}

impl Selection {
    /// The selected positions of a row; `None` means all.
    pub fn of(&self, row: usize) -> Option<&[u32]> {
        self.counts[row].map(|count| &self.positions[row * self.width..][..count as usize])
    }
}

/// What a caller may look at afterwards; empty unless [`Limits::trace`].
#[derive(Debug, Default)]
pub struct WaveTrace {
    /// `[layers][rows][top_k]` of the layers with experts; row stride is the layer's `top_k`.
    pub experts: Vec<Vec<u32>>,
    /// The weights, likewise.
    pub weights: Vec<Vec<f32>>,
    /// `[layers][rows]` selected positions, of layers that have an indexer of their own.
    pub selections: Vec<Vec<Option<Vec<u32>>>>,
}

/// One batch of rows making one forward step.
#[derive(Debug)]
pub struct Wave {
    /// Which wave, in which life.
    pub tag: Tag,
    /// The rows, those of one sequence together and in order of position.
    pub rows: Vec<Row>,
    /// Page tables of the sequences in the wave, one after the other.
    pub pages: Vec<u32>,
    /// The residual stream, `[rows, hidden]`.
    pub x: Vec<f32>,
    /// The normed state that the next stage reads, `[rows, hidden]`.
    pub h: Vec<f32>,
    /// Rotary angles of the rows, for each way of turning that the model has.
    pub ropes: Vec<RopeTable>,
    /// The selection of the last layer with an indexer.
    pub selection: Selection,
    /// The choice of the last router.
    pub routing: Routing,
    /// The experts (indices into the union) of the present chunk.
    pub chunk: Range<usize>,
    /// Leases that were granted with the chunk: index into the union, lease.
    pub leases: Vec<(u32, ReadLease)>,
    /// Experts of the chunk whose leases are still to arrive.
    pub arrivals_pending: u32,
    /// Expert results of the chunk, by union order; each `[rows of the expert, hidden]`.
    pub results: Vec<f32>,
    /// In which order the chunk's experts were computed (indices into the union).
    pub computed: Vec<u32>,
    /// The weighted sum of the experts so far, `[rows, hidden]`.
    pub sum: Vec<f32>,
    /// The result of the shared expert or of the dense layer, `[rows, hidden]`.
    pub shared: Vec<f32>,
    /// Logits of the rows that want them, `[wanted, vocabulary]`.
    pub logits: Vec<f32>,
    /// What was chosen on the way.
    pub trace: WaveTrace,
}

impl Wave {
    /// A wave with all its room.
    pub fn new(index: u32, spec: &ModelSpec, limits: &Limits) -> Wave {
        let WaveShape { rows, top_k, union, width } = WaveShape::new(spec, limits);
        let matrix = || vec![0.0; rows * spec.hidden];
        Wave {
            tag: Tag { index, generation: 0 },
            rows: Vec::with_capacity(rows),
            pages: Vec::with_capacity(limits.kv_pages_max),
            x: matrix(),
            h: matrix(),
            ropes: RopeTable::of_model(spec, rows),
            selection: Selection {
                positions: vec![0; rows * width],
                counts: vec![None; rows],
                width,
            },
            routing: Routing {
                experts: Vec::with_capacity(rows * top_k),
                weights: Vec::with_capacity(rows * top_k),
                union: Vec::with_capacity(union),
                rows: Vec::with_capacity(rows * top_k),
                row_weights: Vec::with_capacity(rows * top_k),
            },
            chunk: 0..0,
            leases: Vec::with_capacity(union),
            arrivals_pending: 0,
            results: vec![0.0; limits.partial_bytes_max / 4],
            computed: Vec::with_capacity(union),
            sum: matrix(),
            shared: matrix(),
            logits: Vec::with_capacity(limits.logits_rows_max * spec.vocabulary),
            trace: WaveTrace::new(spec, limits),
        }
    }

    /// Bytes of [`Wave::new`], but for what [`Limits::trace`] keeps.
    pub fn bytes(spec: &ModelSpec, limits: &Limits) -> usize {
        let WaveShape { rows, top_k, union, width } = WaveShape::new(spec, limits);
        let of_row = size_of::<Row>()
            + 4 * 4 * spec.hidden
            + 4 * width
            + size_of::<Option<u32>>()
            + 4 * 4 * top_k;
        let of_expert = size_of::<ExpertRows>() + size_of::<(u32, ReadLease)>() + 4;
        let logits = 4 * limits.logits_rows_max * spec.vocabulary;
        let results = limits.partial_bytes_max / 4 * 4;
        let pages = 4 * limits.kv_pages_max;
        let ropes = RopeTable::bytes(spec, rows);
        size_of::<Wave>() + rows * of_row + union * of_expert + pages + results + logits + ropes
    }

    /// Begins the next life: no rows.
    pub fn recycle(&mut self) {
        assert!(self.leases.is_empty(), "a wave is recycled with leases in it");
        self.tag.generation = self.tag.generation.wrapping_add(1);
        self.rows.clear();
        self.pages.clear();
        self.ropes.iter_mut().for_each(RopeTable::clear);
        self.chunk = 0..0;
        self.logits.clear();
        self.trace.clear();
    }

    /// True when a stream waits for this wave: a row of it is no prompt row.
    pub fn is_decode(&self) -> bool {
        self.rows.iter().any(|row| !row.prefill)
    }

    /// The page (an index into every layer's KV) that holds a position of a row's sequence.
    pub fn page_of(&self, row: &Row, position: usize) -> usize {
        self.pages[row.pages_first as usize + position / KV_BLOCK_ROWS] as usize
    }

    /// Makes the angles of all rows, unless the wave has them already. Says which of
    /// [`Wave::ropes`] has them.
    ///
    /// # Panics
    /// When no layer of the wave's model turns so.
    pub fn turn(&mut self, rope: &RopeSpec, dim: usize) -> usize {
        let index = self.ropes.iter().position(|table| table.is_of(rope, dim));
        let index = index.expect("a wave has tables for its model");
        self.ropes[index].make(&self.rows);
        index
    }

    /// Where in [`Wave::results`] an expert of the present chunk has its rows, in f32 elements.
    pub fn results_of(&self, union_index: usize, hidden: usize) -> Range<usize> {
        self.routing.results_of(self.chunk.start, union_index, hidden)
    }

    /// Marks the rows of an expert as failed.
    pub fn fail_rows(&mut self, union_index: usize, fault: &Arc<ReadFault>) {
        let ExpertRows { first, count, .. } = self.routing.union[union_index];
        for &row in &self.routing.rows[first as usize..(first + count) as usize] {
            self.rows[row as usize].fault.get_or_insert_with(|| fault.clone());
        }
    }
}

/// How much room a wave needs.
struct WaveShape {
    rows: usize,
    /// Experts of a row.
    top_k: usize,
    /// Experts of all rows.
    union: usize,
    /// Positions that a row selects.
    width: usize,
}

impl WaveShape {
    fn new(spec: &ModelSpec, limits: &Limits) -> WaveShape {
        let rows = limits.rows_max;
        let moes = || spec.layers.iter().filter_map(|layer| layer.moe());
        let top_k = moes().map(|moe| moe.top_k).max().unwrap_or(0);
        let experts = moes().map(|moe| moe.experts).max().unwrap_or(0);
        WaveShape {
            rows,
            top_k,
            union: experts.min(rows * top_k),
            width: selection_width(spec).min(limits.context_max),
        }
    }
}

impl WaveTrace {
    fn new(spec: &ModelSpec, limits: &Limits) -> WaveTrace {
        if !limits.trace {
            return WaveTrace::default();
        }
        let layers = spec.layers.len();
        WaveTrace {
            experts: vec![vec![]; layers],
            weights: vec![vec![]; layers],
            selections: vec![vec![]; layers],
        }
    }

    fn clear(&mut self) {
        self.experts.iter_mut().for_each(Vec::clear);
        self.weights.iter_mut().for_each(Vec::clear);
        self.selections.iter_mut().for_each(Vec::clear);
    }

    /// Keeps what a layer's router chose.
    pub fn keep_routing(&mut self, layer: LayerId, routing: &Routing) {
        if let Some(experts) = self.experts.get_mut(layer.index()) {
            experts.extend_from_slice(&routing.experts);
            self.weights[layer.index()].extend_from_slice(&routing.weights);
        }
    }

    /// Keeps what a layer's indexer selected for the rows.
    pub fn keep_selection(&mut self, layer: LayerId, selection: &Selection, rows: usize) {
        if let Some(selections) = self.selections.get_mut(layer.index()) {
            let of = |row| selection.of(row).map(<[u32]>::to_vec);
            selections.extend((0..rows).map(of));
        }
    }
}

fn selection_width(spec: &ModelSpec) -> usize {
    let width = |attention: &AttentionSpec| match attention {
        AttentionSpec::Mla(mla) => match &mla.indexer {
            IndexerUse::Full(indexer) => indexer.top_k,
            IndexerUse::Dense | IndexerUse::Shared => 0,
        },
        AttentionSpec::Gqa(_) => 0,
    };
    spec.layers.iter().map(|layer| width(&layer.attention)).max().unwrap_or(0)
}
