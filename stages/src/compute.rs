//! The compute seat's arithmetic: matrices times rows, cut into jobs for the crews.
//!
//! Owned by the compute seat and lent to the actor that is handling a message. An operation fills
//! the job list, runs it on the executor (crews of pinned threads, or the simulation's), and
//! returns when all its jobs are done. Which job ran where changes no bit: a job owns its output
//! tile, and sums are cut only at slice borders ([`SliceMap`]).

use crate::attend;
use crate::limits::{JOB_COLUMNS, Limits};
use crate::placed::{PlacedRows, PlacedSlices, SliceMap, Subtree};
use crate::quantised::{QuantisedBuffer, RowSource};
use crate::queue::{Executor, Grid, Job, JobList, TILES_MAX, Task, Tile};
use crate::spec::{AttentionSpec, FfnSpec, LayerSpec, ModelSpec};
use crate::unit::UnitWeights;
use millstream_kernels::{ActivationLayout, Activations, Kernels, Quantised, Weights};
use millstream_topology::arena::LayerArena;
use std::sync::Arc;

/// Executor, kernels and the buffers that operations need.
pub struct Compute {
    /// Who runs jobs.
    pub executor: Box<dyn Executor + Send>,
    /// The arithmetic.
    pub kernels: Kernels,
    /// The slices and their nodes.
    pub map: Arc<SliceMap>,
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

/// Which rows of the input an operation takes.
#[derive(Clone, Copy)]
pub enum ChosenRows<'a> {
    /// The first so many.
    First(usize),
    /// These.
    Listed(&'a [u32]),
}

/// Bytes of a slice that a job should read in one run.
const SLICE_RUN_BYTES_MIN: usize = 32 << 10;
/// Jobs that every thread should get of a batch.
const JOBS_PER_THREAD_MIN: usize = 4;

/// Products in one batch of jobs at most.
pub const PRODUCTS_MAX: usize = 4;

/// A matrix whose rows are dealt over the nodes, times rows of activations.
pub struct Product<'a> {
    /// The matrix.
    pub weights: &'a PlacedRows,
    /// Activations, the first rows of which are taken.
    pub x: &'a [f32],
    /// From one row of `x` to the next.
    pub stride: usize,
    /// `[tokens, weights.rows]`
    pub out: &'a mut [f32],
}

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

    /// `out[t, r] = weights row r . x row t`, for the first `tokens` rows of `x`.
    pub fn rows_times(&mut self, arena: &LayerArena, tokens: usize, product: Product<'_>) {
        self.all_rows_times(arena, tokens, [product]);
    }

    /// Several products that don't need each other's results, in one batch of jobs.
    ///
    /// # Panics
    /// When there are more than [`PRODUCTS_MAX`].
    pub fn all_rows_times<'a>(
        &mut self,
        arena: &LayerArena,
        tokens: usize,
        products: impl IntoIterator<Item = Product<'a>>,
    ) {
        let mut products = products.into_iter();
        let batch: [Option<Product<'a>>; PRODUCTS_MAX] = std::array::from_fn(|_| products.next());
        assert!(products.next().is_none(), "more than {PRODUCTS_MAX} products in one batch");
        let mut buffers = std::mem::take(&mut self.quantised);
        let inputs = self.quantise_products(&mut buffers, tokens, &batch);
        let rows = &self.identity[..tokens];
        let mut pairs = batch.into_iter().zip(inputs);
        let tasks: [Option<RowsTask<'_>>; PRODUCTS_MAX] = std::array::from_fn(|_| {
            let (Some(Product { weights, x, stride, out }), buffer) = pairs.next()? else {
                return None;
            };
            let out = &mut out[..tokens * weights.rows];
            let columns = job_columns(weights.rows);
            let x = match buffer {
                None => Input::Floats(Activations { data: x, stride, rows }),
                Some(index) => Input::Codes(buffers[index].view(0, rows)),
            };
            let out = Grid::new(out, weights.rows, weights.rows, tokens, columns);
            Some(RowsTask { kernels: self.kernels, arena, weights, x, out, columns })
        });
        self.jobs.clear();
        for (index, task) in tasks.iter().flatten().enumerate() {
            self.weight_bytes += task.weights.bytes() as u64;
            for (part, run) in task.weights.parts.iter().enumerate() {
                let tiles = run.rows.start / task.columns..run.rows.end.div_ceil(task.columns);
                for tile in tiles {
                    let job = Job { part: part as u32, row: index as u32, col: tile as u32 };
                    self.jobs.push(run.node, job);
                }
            }
        }
        self.executor.run(&self.jobs, &AllRowsTask { tasks: &tasks });
        self.quantised = buffers;
    }

    /// Quantises what the products of a batch read, each input and layout once. Says for each
    /// product which buffer it takes; none takes f32.
    fn quantise_products(
        &mut self,
        buffers: &mut [QuantisedBuffer],
        tokens: usize,
        batch: &[Option<Product<'_>>; PRODUCTS_MAX],
    ) -> [Option<usize>; PRODUCTS_MAX] {
        let mut filled = [None; PRODUCTS_MAX];
        let mut inputs = [None; PRODUCTS_MAX];
        for (index, product) in batch.iter().enumerate() {
            let Some(Product { weights, x, stride, .. }) = product else { continue };
            let Some(layout) = ActivationLayout::of(weights.format, weights.cols) else { continue };
            let key = Some((x.as_ptr(), layout));
            inputs[index] = filled.iter().position(|known| *known == key).or_else(|| {
                let source = RowSource {
                    data: x,
                    slice_offset: 0,
                    stride: *stride,
                    slices: 1,
                    rows: &self.identity[..tokens],
                };
                let filling = buffers[index].fill(self.kernels, layout, source, &mut self.jobs);
                if let Some(filling) = filling {
                    self.executor.run(&self.jobs, &filling);
                }
                filled[index] = key;
                Some(index)
            });
        }
        inputs
    }

    /// `out[t] = weights * x[t]` with the columns cut at the slices, `[tokens, rows]`. `x` has
    /// row length `stride`; slice s begins at column `s * slice_cols`.
    pub fn slices_times(
        &mut self,
        arena: &LayerArena,
        weights: &PlacedSlices,
        x: &[f32],
        stride: usize,
        tokens: usize,
        out: &mut [f32],
    ) {
        self.weight_bytes += weights.bytes() as u64;
        let slice = |slice: usize| weights.view(arena, slice);
        let input = SlicedInput { data: x, slice_offset: weights.slice_cols, stride };
        let partials = std::mem::take(&mut self.partials);
        let partials = self.sum_slices(partials, &slice, input, tokens);
        out[..tokens * weights.rows].copy_from_slice(&partials[..tokens * weights.rows]);
        self.partials = partials;
    }

    /// `out[t] = down * (silu(gate * x[t]) * (up * x[t]))` for the chosen rows of `x` (row length
    /// `hidden`), `[rows chosen, hidden]`.
    pub fn gated_unit(
        &mut self,
        unit: &dyn UnitWeights,
        x: &[f32],
        hidden: usize,
        rows: ChosenRows<'_>,
        out: &mut [f32],
    ) {
        self.weight_bytes += unit.bytes(self.map.slices) as u64;
        let width = unit.slice_width();
        let mut inner = std::mem::take(&mut self.inner);
        let tokens = self.gate_up(unit, x, hidden, rows, &mut inner);
        let down = |slice: usize| unit.down(slice);
        let input = SlicedInput { data: &inner, slice_offset: tokens * width, stride: width };
        let partials = std::mem::take(&mut self.partials);
        let partials = self.sum_slices(partials, &down, input, tokens);
        out[..tokens * hidden].copy_from_slice(&partials[..tokens * hidden]);
        self.partials = partials;
        self.inner = inner;
    }

    /// The first half of [`Compute::gated_unit`]: `inner` becomes `[slice, row, slice width]`.
    /// Returns how many rows were chosen.
    fn gate_up(
        &mut self,
        unit: &dyn UnitWeights,
        x: &[f32],
        hidden: usize,
        rows: ChosenRows<'_>,
        inner: &mut [f32],
    ) -> usize {
        let mut buffers = std::mem::take(&mut self.quantised);
        let rows = match rows {
            ChosenRows::First(tokens) => &self.identity[..tokens],
            ChosenRows::Listed(rows) => rows,
        };
        let tokens = rows.len();
        let layouts = [unit.gate(0), unit.up(0)].map(|w| ActivationLayout::of(w.format(), hidden));
        let source = RowSource { data: x, slice_offset: 0, stride: hidden, slices: 1, rows };
        for (index, layout) in layouts.into_iter().enumerate() {
            // Up reads gate's buffer where the layouts are one.
            let Some(layout) = layout.filter(|_| index == 0 || layouts[0] != layouts[1]) else {
                continue;
            };
            let filling = buffers[index].fill(self.kernels, layout, source, &mut self.jobs);
            if let Some(filling) = filling {
                self.executor.run(&self.jobs, &filling);
            }
        }
        let input = |index: usize| match layouts[index] {
            None => Input::Floats(Activations { data: x, stride: hidden, rows }),
            Some(_) => {
                let buffer = if layouts[0] == layouts[1] { 0 } else { index };
                Input::Codes(buffers[buffer].view(0, &self.identity[..tokens]))
            }
        };
        let width = unit.slice_width();
        let columns = job_columns(self.map.slices * width);
        let inner = &mut inner[..self.map.slices * tokens * width];
        let task = GateUpTask {
            kernels: self.kernels,
            unit,
            gate_input: input(0),
            up_input: input(1),
            out: Grid::new(inner, width, width, tokens, columns),
        };
        self.jobs.clear();
        for col in 0..width.div_ceil(columns) {
            for slice in 0..self.map.slices {
                let job = Job { part: slice as u32, row: slice as u32, col: col as u32 };
                self.jobs.push(self.map.node_of(slice), job);
            }
        }
        self.executor.run(&self.jobs, &task);
        self.quantised = buffers;
        tokens
    }

    /// Columns of a job's output where it goes through all slices in turn. Each slice is a place of its
    /// own in memory, so few rows of narrow slices are read at a fraction of its speed: with few
    /// tokens a job takes more rows, as long as every thread still gets several jobs. Which job
    /// makes a row changes no bit of it.
    fn slice_columns(&self, tokens: usize, slice: Weights<'_>) -> usize {
        let rows = slice.rows();
        let row_bytes = slice.bytes().len() / rows.max(1);
        let mut columns = job_columns(self.map.subtrees.len() * rows);
        // Scratch is made for this many elements at least (`bounds.rs`).
        let elements_max = self.identity.len() * JOB_COLUMNS;
        while columns * row_bytes < SLICE_RUN_BYTES_MIN
            && 2 * columns * tokens <= elements_max
            && rows >= 2 * columns * self.threads * JOBS_PER_THREAD_MIN
        {
            columns *= 2;
        }
        columns
    }

    /// Partial results of every subtree, then their sum in the first `[tokens, rows]` of the
    /// returned buffer.
    fn sum_slices<'w>(
        &mut self,
        mut partials: Vec<f32>,
        slice: &(dyn Fn(usize) -> Weights<'w> + Sync),
        input: SlicedInput<'_>,
        tokens: usize,
    ) -> Vec<f32> {
        let (rows, slice_cols) = (slice(0).rows(), slice(0).cols());
        let mut buffers = std::mem::take(&mut self.quantised);
        let identity = &self.identity[..tokens];
        let layout = ActivationLayout::of(slice(0).format(), slice_cols);
        if let Some(layout) = layout {
            let SlicedInput { data, slice_offset, stride } = input;
            let slices = self.map.slices;
            let source = RowSource { data, slice_offset, stride, slices, rows: identity };
            let filling = buffers[0].fill(self.kernels, layout, source, &mut self.jobs);
            if let Some(filling) = filling {
                self.executor.run(&self.jobs, &filling);
            }
        }
        let trees = self.map.subtrees.len();
        let columns = self.slice_columns(tokens, slice(0));
        let task = SlicesTask {
            kernels: self.kernels,
            subtrees: &self.map.subtrees,
            slice,
            input,
            codes: layout.map(|_| &buffers[0]),
            identity,
            out: Grid::new(&mut partials[..trees * tokens * rows], rows, rows, tokens, columns),
        };
        self.jobs.clear();
        for col in 0..rows.div_ceil(columns) {
            for (index, tree) in self.map.subtrees.iter().enumerate() {
                let job = Job { part: index as u32, row: index as u32, col: col as u32 };
                self.jobs.push(tree.node, job);
            }
        }
        self.executor.run(&self.jobs, &task);
        self.quantised = buffers;
        let kernels = self.kernels;
        let one = tokens * rows;
        self.map.merge(&mut |into, from| {
            let (left, right) = partials.split_at_mut(from * one);
            kernels.add(&right[..one], &mut left[into * one..][..one]);
        });
        partials
    }
}

/// Codes of one row of the widest input, all slices of it together: each slice is filled up to
/// a multiple of 64.
fn quantised_codes_max(spec: &ModelSpec) -> usize {
    let sliced = |width: usize| (width / spec.slices).next_multiple_of(64) * spec.slices;
    let of_layer = |layer: &LayerSpec| {
        let AttentionSpec::Mla(mla) = &layer.attention;
        let ffn = match &layer.ffn {
            FfnSpec::Dense { intermediate } => sliced(*intermediate),
            FfnSpec::Moe(moe) => sliced(moe.intermediate).max(sliced(moe.shared_intermediate)),
        };
        ffn.max(sliced(mla.heads * mla.value_dim)).max(mla.query_rank.next_multiple_of(64))
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

/// Rows of a matrix times rows of activations; a tile is `columns` weight rows.
struct RowsTask<'a> {
    kernels: Kernels,
    arena: &'a LayerArena,
    weights: &'a PlacedRows,
    x: Input<'a>,
    out: Grid<'a, f32>,
    columns: usize,
}

/// Several products; a job's `row` says which.
struct AllRowsTask<'a> {
    tasks: &'a [Option<RowsTask<'a>>; PRODUCTS_MAX],
}

impl Task for AllRowsTask<'_> {
    fn run(&self, job: Job, scratch: &mut [f32]) {
        let task = self.tasks[job.row as usize].as_ref().expect("jobs are dealt for products");
        task.tile(job.part as usize, job.col as usize, scratch);
    }
}

impl RowsTask<'_> {
    fn tile(&self, part: usize, col: usize, scratch: &mut [f32]) {
        let mut tile = self.out.take(0, col);
        let rows = tile.first_col()..tile.first_col() + tile.cols();
        let weights = self.weights.view(self.arena, part, rows);
        let scratch = &mut scratch[..tile.rows() * tile.cols()];
        multiply(self.kernels, weights, self.x, scratch);
        copy_tile(scratch, &mut tile);
    }
}

/// Gate and up of one slice, then silu(gate) * up; a tile is [`JOB_COLUMNS`] inner columns.
struct GateUpTask<'a> {
    kernels: Kernels,
    unit: &'a dyn UnitWeights,
    gate_input: Input<'a>,
    up_input: Input<'a>,
    out: Grid<'a, f32>,
}

impl Task for GateUpTask<'_> {
    fn run(&self, job: Job, scratch: &mut [f32]) {
        let slice = job.part as usize;
        let mut tile = self.out.take(job.row as usize, job.col as usize);
        let range = tile.first_col()..tile.first_col() + tile.cols();
        let (gate, rest) = scratch.split_at_mut(tile.rows() * tile.cols());
        let up = &mut rest[..gate.len()];
        let weights = self.unit.gate(slice).slice(range.clone());
        multiply(self.kernels, weights, self.gate_input, gate);
        multiply(self.kernels, self.unit.up(slice).slice(range), self.up_input, up);
        let cols = tile.cols();
        for row in 0..tile.rows() {
            let range = row * cols..(row + 1) * cols;
            self.kernels.silu_mul(&gate[range.clone()], &up[range], tile.row(row));
        }
    }
}

/// Activations whose columns are cut into slices.
#[derive(Clone, Copy)]
struct SlicedInput<'a> {
    data: &'a [f32],
    /// From the first element of a slice to that of the next.
    slice_offset: usize,
    /// From one row to the next within a slice.
    stride: usize,
}

/// Down columns of a subtree of slices; a tile is [`JOB_COLUMNS`] output rows of one subtree.
struct SlicesTask<'a, 'w> {
    kernels: Kernels,
    subtrees: &'a [Subtree],
    slice: &'a (dyn Fn(usize) -> Weights<'w> + Sync),
    input: SlicedInput<'a>,
    /// The input quantised, where the weights take it so: slice by slice, row by row.
    codes: Option<&'a QuantisedBuffer>,
    identity: &'a [u32],
    out: Grid<'a, f32>,
}

impl Task for SlicesTask<'_, '_> {
    fn run(&self, job: Job, scratch: &mut [f32]) {
        let tree = self.subtrees[job.part as usize];
        let mut tile = self.out.take(job.row as usize, job.col as usize);
        let rows = tile.first_col()..tile.first_col() + tile.cols();
        let len = tile.rows() * tile.cols();
        self.subtree(tree.first, tree.count, rows, len, scratch);
        copy_tile(&scratch[..len], &mut tile);
    }
}

impl SlicesTask<'_, '_> {
    /// The sum over `count` slices from `first`, in the first `len` elements of `scratch`.
    fn subtree(
        &self,
        first: usize,
        count: usize,
        rows: std::ops::Range<usize>,
        len: usize,
        scratch: &mut [f32],
    ) {
        if count == 1 {
            let rows_in = self.identity;
            let x = match self.codes {
                Some(codes) => Input::Codes(codes.view(first * rows_in.len(), rows_in)),
                None => Input::Floats(Activations {
                    data: &self.input.data[first * self.input.slice_offset..],
                    stride: self.input.stride,
                    rows: rows_in,
                }),
            };
            multiply(self.kernels, (self.slice)(first).slice(rows), x, &mut scratch[..len]);
            return;
        }
        let half = count / 2;
        self.subtree(first, half, rows.clone(), len, scratch);
        let (left, right) = scratch.split_at_mut(len);
        self.subtree(first + half, half, rows, len, right);
        self.kernels.add(&right[..len], left);
    }
}

fn copy_tile(from: &[f32], tile: &mut Tile<'_, f32>) {
    let cols = tile.cols();
    for row in 0..tile.rows() {
        tile.row(row).copy_from_slice(&from[row * cols..(row + 1) * cols]);
    }
}
