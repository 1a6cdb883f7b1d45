//! Matrices whose rows are dealt over the nodes, times rows of activations: several in one batch of
//! jobs where none needs another's result.
//!
//! Owned by [`Compute`]; the stages hand in matrices and activations, results go to where they say.

use super::{Compute, Input, copy_tile, job_columns, multiply};
use crate::placed::PlacedRows;
use crate::quantised::{QuantisedBuffer, RowSource};
use crate::queue::{Grid, Job, Task};
use millstream_kernels::{ActivationLayout, Activations, Kernels};
use millstream_topology::arena::LayerArena;

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
            let columns = self.row_columns(weights, tokens);
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

    /// Columns of a job's output, which no part of the matrix may begin or end within.
    fn row_columns(&self, weights: &PlacedRows, tokens: usize) -> usize {
        let row_bytes = weights.bytes() / weights.rows.max(1);
        let least = job_columns(weights.rows);
        let mut columns = self.grown(least, tokens, row_bytes, weights.rows);
        while columns > least
            && weights.parts.iter().any(|run| !run.rows.start.is_multiple_of(columns))
        {
            columns /= 2;
        }
        columns
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
