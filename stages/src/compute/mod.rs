//! The compute seat's arithmetic: matrices times rows, cut into jobs for the crews.
//!
//! Owned by the compute seat and lent to the actor that is handling a message. An operation fills
//! the job list, runs it on the executor (crews of pinned threads, or the simulation's), and
//! returns when all its jobs are done. Which job ran where changes no bit: a job owns its output
//! tile, and sums are cut only at slice borders ([`SliceMap`]). The operations: `products.rs` (rows
//! dealt over the nodes), `slices.rs` (columns cut at the slices), `gated.rs` (experts).

mod gated;
mod products;
mod slices;

pub use gated::{ChosenRows, GatedUnit, UNITS_MAX};
pub use products::{PRODUCTS_MAX, Product};

use crate::attend;
use crate::limits::{JOB_COLUMNS, Limits};
use crate::placed::SliceMap;
use crate::quantised::QuantisedBuffer;
use crate::queue::{Executor, Job, JobList, TILES_MAX, Task, Tile};
use crate::spec::{AttentionSpec, FfnSpec, LayerSpec, ModelSpec};
use millstream_kernels::{Activations, Kernels, Quantised, Weights};
use std::sync::Arc;

/// Executor, kernels and the buffers that operations need.
pub struct Compute {
    /// Who runs jobs.
    pub executor: Box<dyn Executor + Send>,
    /// The arithmetic.
    pub kernels: Kernels,
    /// The slices and their nodes.
    pub map: Arc<SliceMap>,
    /// The same with every slice by itself.
    leaves: Arc<SliceMap>,
    jobs: JobList,
    /// 0, 1, 2, ..: the row list of "all rows".
    identity: Vec<u32>,
    partials: Vec<f32>,
    inner: Vec<f32>,
    /// Quantised inputs of the operation at hand.
    quantised: Vec<QuantisedBuffer>,
    /// Working memory of attention, lent to the layer that is at it.
    pub attention: attend::Buffers,
    /// Threads that jobs are run by.
    threads: usize,
    weight_bytes: u64,
}

/// Bytes that a job should read in one run of memory: with fewer the start of the run, which nothing
/// has asked for yet, takes a good part of the job.
const RUN_BYTES_MIN: usize = 160 << 10;
/// Jobs that every thread should get of a batch.
const JOBS_PER_THREAD_MIN: usize = 4;

impl Compute {
    /// The arithmetic of a pipeline.
    pub fn new(
        executor: Box<dyn Executor + Send>,
        kernels: Kernels,
        map: Arc<SliceMap>,
        threads: usize,
        spec: &ModelSpec,
        limits: &Limits,
    ) -> Compute {
        let rows = limits.rows_max;
        let inner = spec.layers.iter().map(inner_width).max().unwrap_or(0);
        let codes = quantised_codes_max(spec) * rows;
        Compute {
            jobs: JobList::new(map.nodes, executor.jobs_max()),
            identity: (0..rows as u32).collect(),
            partials: vec![0.0; map.subtrees.len() * rows * spec.hidden],
            inner: vec![0.0; rows * inner],
            quantised: (0..PRODUCTS_MAX).map(|_| QuantisedBuffer::new(codes)).collect(),
            attention: attend::Buffers::new(spec, limits),
            threads,
            weight_bytes: 0,
            executor,
            kernels,
            leaves: Arc::new(map.leaves()),
            map,
        }
    }

    /// Bytes of [`Compute::new`], the executor aside.
    pub fn bytes(map: &SliceMap, jobs_max: usize, spec: &ModelSpec, limits: &Limits) -> usize {
        let rows = limits.rows_max;
        let inner = spec.layers.iter().map(inner_width).max().unwrap_or(0);
        let quantised = QuantisedBuffer::bytes(quantised_codes_max(spec) * rows);
        let of_row = map.subtrees.len() * spec.hidden + inner + 1;
        let buffers = PRODUCTS_MAX * (quantised + size_of::<QuantisedBuffer>());
        let jobs = map.nodes * (jobs_max * size_of::<Job>() + size_of::<Vec<Job>>());
        4 * rows * of_row + buffers + jobs + attend::Buffers::bytes(spec, limits)
    }

    /// Threads that jobs are run by.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Counts weights that a caller's own task goes through.
    pub fn count_weights(&mut self, bytes: usize) {
        self.weight_bytes += bytes as u64;
    }

    /// Bytes of weights gone through since the last call.
    pub fn take_weight_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.weight_bytes)
    }

    /// Runs jobs that the caller deals: `deal` pushes them.
    pub fn run(&mut self, deal: impl FnOnce(&mut JobList, &SliceMap), task: &dyn Task) {
        self.jobs.clear();
        deal(&mut self.jobs, &self.map);
        self.executor.run(&self.jobs, task);
    }

    /// Columns of a job's output: `columns`, doubled until a job reads [`RUN_BYTES_MIN`] in one run, as long
    /// as every thread gets several jobs and the job's `tokens` rows fit its scratch. `rows` are the
    /// rows of all runs of the batch. Which job makes a row changes no bit of it.
    fn grown(&self, columns: usize, tokens: usize, row_bytes: usize, rows: usize) -> usize {
        // Scratch is made for several times this many elements (`bounds.rs`).
        let elements_max = self.identity.len() * JOB_COLUMNS;
        let mut columns = columns;
        while columns * row_bytes < RUN_BYTES_MIN
            && 2 * columns * tokens <= elements_max
            && rows >= 2 * columns * self.threads * JOBS_PER_THREAD_MIN
        {
            columns *= 2;
        }
        columns
    }
}

/// Codes of one row of the widest input, all slices of it together: each slice is filled up to
/// a multiple of 64.
fn quantised_codes_max(spec: &ModelSpec) -> usize {
    let sliced = |width: usize| (width / spec.slices).next_multiple_of(64) * spec.slices;
    let of_layer = |layer: &LayerSpec| {
        let (heads, value_dim) = layer.attention.values();
        let query_rank = match &layer.attention {
            AttentionSpec::Mla(mla) => mla.query_rank.unwrap_or(0),
            AttentionSpec::Gqa(_) => 0,
        };
        let ffn = match &layer.ffn {
            FfnSpec::Dense { intermediate } => sliced(*intermediate),
            FfnSpec::Moe(moe) => sliced(moe.intermediate).max(sliced(moe.shared_intermediate)),
        };
        ffn.max(sliced(heads * value_dim)).max(query_rank.next_multiple_of(64))
    };
    let widest = spec.layers.iter().map(of_layer).max().unwrap_or(0);
    widest.max(spec.hidden.next_multiple_of(64))
}

/// Activations as the format of the weights takes them.
#[derive(Clone, Copy)]
enum Input<'a> {
    Floats(Activations<'a>),
    Codes(Quantised<'a>),
}

/// Weights times input.
fn multiply(kernels: Kernels, weights: Weights<'_>, x: Input<'_>, out: &mut [f32]) {
    match x {
        Input::Floats(x) => kernels.matmul(weights, x, out),
        Input::Codes(x) => kernels.matmul_quantised(weights, x, out),
    }
}

/// Width of the activations between gate/up and down, over all slices.
pub fn inner_width(layer: &LayerSpec) -> usize {
    match &layer.ffn {
        FfnSpec::Dense { intermediate } => *intermediate,
        FfnSpec::Moe(moe) => moe.intermediate.max(moe.shared_intermediate),
    }
}

/// Columns of a job's output for a matrix of so many rows: [`JOB_COLUMNS`], or a multiple of it
/// where a vocabulary is so large that its tiles wouldn't fit one grid.
pub fn job_columns(rows: usize) -> usize {
    // Half a grid: the last tile of each of several parts may be a short one.
    JOB_COLUMNS * rows.div_ceil(JOB_COLUMNS * TILES_MAX / 2).max(1)
}

fn copy_tile(from: &[f32], tile: &mut Tile<'_, f32>) {
    let cols = tile.cols();
    for row in 0..tile.rows() {
        tile.row(row).copy_from_slice(&from[row * cols..(row + 1) * cols]);
    }
}
