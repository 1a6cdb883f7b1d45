//! Gated units, `down * (silu(gate * x) * (up * x))` and its kin: experts, shared experts, dense layers.
//!
//! Owned by [`Compute`]. Units of one shape are computed in one batch of jobs for all their gate and up
//! rows and one for all their down columns, as many at a time as fit the buffers and the grids: a
//! batch's end costs every thread a wait, and one expert of one row is little work.

use super::slices::{SlicedInput, tile_rows};
use super::{Compute, Input, job_columns, multiply};
use crate::limits::JOB_COLUMNS;
use crate::quantised::RowSource;
use crate::queue::{Grid, Job, TILES_MAX, Task};
use crate::unit::UnitWeights;
use millstream_kernels::{ActivationLayout, Activations, Kernels};
use std::ops::Range;

/// Units in one batch at most.
pub const UNITS_MAX: usize = 16;

/// Which rows of the input an operation takes.
#[derive(Clone, Copy)]
pub enum ChosenRows<'a> {
    /// The first so many.
    First(usize),
    /// These.
    Listed(&'a [u32]),
}

impl ChosenRows<'_> {
    fn len(&self) -> usize {
        match self {
            ChosenRows::First(rows) => *rows,
            ChosenRows::Listed(rows) => rows.len(),
        }
    }
}

/// A unit and the rows that it is for.
#[derive(Clone, Copy)]
pub struct GatedUnit<'a> {
    /// Its weights.
    pub weights: &'a dyn UnitWeights,
    /// Rows of the input.
    pub rows: ChosenRows<'a>,
}

impl Compute {
    /// Computes units of one shape. `x` has row length `hidden`; `give` gets each unit's index and its result,
    /// `[rows chosen, hidden]`, in order.
    pub fn gated_units(
        &mut self,
        units: &[GatedUnit<'_>],
        x: &[f32],
        hidden: usize,
        give: &mut dyn FnMut(usize, &[f32]),
    ) {
        let mut first = 0;
        while first < units.len() {
            let mut runs: [Range<usize>; UNITS_MAX] = std::array::from_fn(|_| 0..0);
            let count = self.units_at_once(&units[first..], hidden, &mut runs);
            let batch = &units[first..first + count];
            let runs = &runs[..count];
            let width = batch[0].weights.slice_width();
            let tokens = runs[count - 1].end;
            let bytes = batch.iter().map(|unit| unit.weights.bytes(self.map.slices) as u64);
            self.weight_bytes += bytes.sum::<u64>();
            let mut inner = std::mem::take(&mut self.inner);
            self.gate_up(batch, runs, x, hidden, &mut inner);
            let down = |unit: usize, slice: usize| batch[unit].weights.down(slice);
            let input = SlicedInput { data: &inner, slice_offset: tokens * width, stride: width };
            let partials = std::mem::take(&mut self.partials);
            let mut partials = self.sum_slices(partials, &down, runs, input);
            for (index, run) in runs.iter().enumerate() {
                if let Some(biases) = batch[index].weights.biases() {
                    let rows = partials[run.start * hidden..run.end * hidden].chunks_mut(hidden);
                    rows.for_each(|row| self.kernels.add(biases.down, row));
                }
                give(first + index, &partials[run.start * hidden..run.end * hidden]);
            }
            self.partials = partials;
            self.inner = inner;
            first += count;
        }
    }

    /// How many of the units, one at least, fit one batch, and the rows of each among all of the batch.
    fn units_at_once(
        &self,
        units: &[GatedUnit<'_>],
        hidden: usize,
        runs: &mut [Range<usize>; UNITS_MAX],
    ) -> usize {
        let (slices, trees) = (self.map.slices, self.map.subtrees.len());
        let width = units[0].weights.slice_width();
        let tiles = |rows: usize| rows.div_ceil(JOB_COLUMNS);
        let jobs_max = self.executor.jobs_max();
        let mut tokens = 0;
        for (index, unit) in units.iter().take(UNITS_MAX).enumerate() {
            let with = tokens + unit.rows.len();
            let fits = with <= self.identity.len()
                && slices * with * tiles(width) <= TILES_MAX
                && trees * with * tiles(hidden) <= TILES_MAX
                && (index + 1) * slices * tiles(width) <= jobs_max
                && (index + 1) * trees * tiles(hidden) <= jobs_max;
            if index > 0 && !fits {
                return index;
            }
            runs[index] = tokens..with;
            tokens = with;
        }
        units.len().min(UNITS_MAX)
    }

    /// The first half: `inner` becomes `[slice, row of the batch, slice width]`.
    fn gate_up(
        &mut self,
        units: &[GatedUnit<'_>],
        runs: &[Range<usize>],
        x: &[f32],
        hidden: usize,
        inner: &mut [f32],
    ) {
        let mut buffers = std::mem::take(&mut self.quantised);
        let (first, slices) = (&units[0].weights, self.map.slices);
        let tokens = runs[runs.len() - 1].end;
        // One unit's rows are quantised alone, those of several all together, each once.
        let rows = match units {
            [GatedUnit { rows: ChosenRows::Listed(rows), .. }] => rows,
            _ => &self.identity[..rows_of(units)],
        };
        let layouts =
            [first.gate(0), first.up(0)].map(|w| ActivationLayout::of(w.format(), hidden));
        let source = RowSource { data: x, slice_offset: 0, stride: hidden, slices: 1, rows };
        for (index, layout) in layouts_apart(layouts) {
            let filling = buffers[index].fill(self.kernels, layout, source, &mut self.jobs);
            if let Some(filling) = filling {
                self.executor.run(&self.jobs, &filling);
            }
        }
        let input = |unit: usize, index: usize| {
            let chosen = match units[unit].rows {
                ChosenRows::First(rows) => &self.identity[..rows],
                ChosenRows::Listed(rows) => rows,
            };
            match layouts[index] {
                None => Input::Floats(Activations { data: x, stride: hidden, rows: chosen }),
                Some(_) => {
                    let buffer = if layouts[0] == layouts[1] { 0 } else { index };
                    let rows = if units.len() == 1 { &self.identity[..tokens] } else { chosen };
                    Input::Codes(buffers[buffer].view(0, rows))
                }
            }
        };
        // Places past the last unit repeat it; nothing looks at them.
        let inputs: [[Input<'_>; 2]; UNITS_MAX] = std::array::from_fn(|unit| {
            let unit = unit.min(units.len() - 1);
            [input(unit, 0), input(unit, 1)]
        });
        let width = first.slice_width();
        let columns = self.gate_columns(units, runs);
        let inner = &mut inner[..slices * tokens * width];
        let task = GateUpTask {
            kernels: self.kernels,
            units,
            runs,
            inputs: &inputs,
            tile_rows: tile_rows(runs),
            out: Grid::new(inner, width, width, tile_rows(runs), columns),
        };
        self.jobs.clear();
        for unit in 0..units.len() {
            for slice in 0..slices {
                for col in 0..width.div_ceil(columns) {
                    let job = Job { part: slice as u32, row: unit as u32, col: col as u32 };
                    self.jobs.push(self.map.node_of(slice), job);
                }
            }
        }
        self.executor.run(&self.jobs, &task);
        self.quantised = buffers;
    }

    /// Gate and up rows of a job.
    fn gate_columns(&self, units: &[GatedUnit<'_>], runs: &[Range<usize>]) -> usize {
        let (gate, up) = (units[0].weights.gate(0), units[0].weights.up(0));
        let width = gate.rows();
        let row_bytes = (gate.bytes().len() + up.bytes().len()) / width.max(1);
        let tokens = runs.iter().map(Range::len).max().unwrap_or(0);
        let rows = self.map.slices * width;
        let columns = job_columns(rows);
        self.grown(columns, tokens, row_bytes, rows * units.len()).min(width.next_multiple_of(16))
    }
}

/// The layouts to be filled and their buffers: up reads gate's where the two are one.
fn layouts_apart(
    layouts: [Option<ActivationLayout>; 2],
) -> impl Iterator<Item = (usize, ActivationLayout)> {
    let own = move |index: usize| index == 0 || layouts[0] != layouts[1];
    let each = layouts.into_iter().enumerate().filter(move |(index, _)| own(*index));
    each.filter_map(|(index, layout)| Some((index, layout?)))
}

/// Rows that the units' choices reach into.
fn rows_of(units: &[GatedUnit<'_>]) -> usize {
    let rows = units.iter().map(|unit| match unit.rows {
        ChosenRows::First(rows) => rows,
        ChosenRows::Listed(rows) => rows.iter().max().map_or(0, |&row| row as usize + 1),
    });
    rows.max().unwrap_or(0)
}

/// Gate and up of one slice of one unit, then the two joined; a tile is some inner columns.
struct GateUpTask<'a> {
    kernels: Kernels,
    units: &'a [GatedUnit<'a>],
    /// The rows of each unit among all of the batch.
    runs: &'a [Range<usize>],
    /// What gate and up of each unit read.
    inputs: &'a [[Input<'a>; 2]; UNITS_MAX],
    tile_rows: usize,
    out: Grid<'a, f32>,
}

impl Task for GateUpTask<'_> {
    fn run(&self, job: Job, scratch: &mut [f32]) {
        let (slice, unit) = (job.part as usize, job.row as usize);
        let run = self.runs[unit].clone();
        let total = self.runs[self.runs.len() - 1].end;
        let range = self.out.columns(job.col as usize);
        let cols = range.len();
        let (gate, rest) = scratch.split_at_mut(run.len() * cols);
        let up = &mut rest[..gate.len()];
        let [gate_input, up_input] = self.inputs[unit];
        let weights = self.units[unit].weights;
        multiply(self.kernels, weights.gate(slice).slice(range.clone()), gate_input, gate);
        multiply(self.kernels, weights.up(slice).slice(range.clone()), up_input, up);
        if let Some(biases) = weights.biases() {
            let first = slice * weights.slice_width() + range.start;
            for (bias, rows) in [(biases.gate, &mut *gate), (biases.up, &mut *up)] {
                let bias = &bias[first..first + cols];
                rows.chunks_mut(cols).for_each(|row| self.kernels.add(bias, row));
            }
        }
        let activation = weights.activation();
        let mut results = gate.chunks_mut(cols).zip(up.chunks(cols));
        let first = (slice * total + run.start) / self.tile_rows;
        for tile in first..first + run.len() / self.tile_rows {
            let mut tile = self.out.take(tile, job.col as usize);
            for row in 0..tile.rows() {
                let (gate, up) = results.next().expect("a result for each row");
                activation.join(self.kernels, gate, up, tile.row(row));
            }
        }
    }
}
