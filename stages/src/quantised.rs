//! Room for activations quantised to int8, and the filling of it.
//!
//! Owned by [`crate::compute::Compute`]: rows are quantised once per operation, before the jobs
//! that multiply with them are dealt. A few rows are quantised by the leading thread on the spot;
//! many are a batch of jobs of their own. A row's codes depend on nothing but the row.

use crate::queue::{Grid, Job, JobList, Task};
use millstream_kernels::{ActivationLayout, Kernels, Quantised, QuantisedRowMut};

/// Elements from which on quantising is dealt to the crews.
const DEALT_ELEMENTS_MIN: usize = 1 << 15;
/// Jobs of such a batch.
const DEALT_JOBS: usize = 64;

/// Quantised rows of one layout.
#[derive(Default)]
pub struct QuantisedBuffer {
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    filled: Option<(ActivationLayout, usize)>,
}

/// Where the rows to quantise are: for each slice, the chosen rows.
#[derive(Clone, Copy)]
pub struct RowSource<'a> {
    /// f32 activations.
    pub data: &'a [f32],
    /// From the first element of a slice to that of the next.
    pub slice_offset: usize,
    /// From one row to the next within a slice.
    pub stride: usize,
    /// How many slices.
    pub slices: usize,
    /// The rows of each slice that are taken.
    pub rows: &'a [u32],
}

impl RowSource<'_> {
    fn row(&self, index: usize, cols: usize) -> &[f32] {
        let (slice, row) = (index / self.rows.len(), self.rows[index % self.rows.len()] as usize);
        &self.data[slice * self.slice_offset + row * self.stride..][..cols]
    }

    fn count(&self) -> usize {
        self.slices * self.rows.len()
    }
}

impl QuantisedBuffer {
    /// Room for rows that together have at most `codes_max` codes.
    pub fn new(codes_max: usize) -> QuantisedBuffer {
        // A unit has 16 columns at least.
        let units = codes_max / 16;
        QuantisedBuffer {
            codes: vec![0; codes_max],
            scales: vec![0.0; units],
            sums: vec![0; units],
            filled: None,
        }
    }

    /// Bytes that a buffer of so many codes takes.
    pub const fn bytes(codes_max: usize) -> usize {
        codes_max + codes_max / 16 * 8
    }

    /// Starts filling the buffer: slice by slice, row by row. Returns true when `jobs` now holds
    /// jobs of [`Filling`] to be run, false when the rows are there already.
    pub fn fill<'a>(
        &'a mut self,
        kernels: Kernels,
        layout: ActivationLayout,
        source: RowSource<'a>,
        jobs: &mut JobList,
    ) -> Option<Filling<'a>> {
        let count = source.count();
        self.filled = Some((layout, count));
        let (codes, units) = (layout.codes(), layout.units());
        let codes_used = &mut self.codes[..count * codes];
        let scales_used = &mut self.scales[..count * units];
        let sums_used = &mut self.sums[..count * units];
        if count * layout.cols < DEALT_ELEMENTS_MIN {
            let out = codes_used.chunks_exact_mut(codes).zip(scales_used.chunks_exact_mut(units));
            for (index, ((codes, scales), sums)) in
                out.zip(sums_used.chunks_exact_mut(units)).enumerate()
            {
                let out = QuantisedRowMut { codes, scales, sums };
                kernels.quantise(&layout, source.row(index, layout.cols), out);
            }
            return None;
        }
        let rows = count.div_ceil(DEALT_JOBS);
        let nodes = jobs.nodes();
        jobs.clear();
        for tile in 0..count.div_ceil(rows) {
            jobs.push(tile % nodes, Job { part: 0, row: tile as u32, col: 0 });
        }
        Some(Filling {
            kernels,
            layout,
            source,
            rows,
            codes: Grid::new(codes_used, codes, codes, rows, codes),
            scales: Grid::new(scales_used, units, units, rows, units),
            sums: Grid::new(sums_used, units, units, rows, units),
        })
    }

    /// The rows from `first` on; `rows` counts from there.
    ///
    /// # Panics
    /// When nothing was filled in.
    pub fn view<'a>(&'a self, first: usize, rows: &'a [u32]) -> Quantised<'a> {
        let (layout, count) = self.filled.expect("filled before it is viewed");
        let (codes, units) = (layout.codes(), layout.units());
        Quantised {
            layout,
            codes: &self.codes[first * codes..count * codes],
            scales: &self.scales[first * units..count * units],
            sums: &self.sums[first * units..count * units],
            rows,
        }
    }
}

/// The task of filling a buffer: a job quantises a run of rows.
pub struct Filling<'a> {
    kernels: Kernels,
    layout: ActivationLayout,
    source: RowSource<'a>,
    rows: usize,
    codes: Grid<'a, i8>,
    scales: Grid<'a, f32>,
    sums: Grid<'a, i32>,
}

impl Task for Filling<'_> {
    fn run(&self, job: Job, _scratch: &mut [f32]) {
        let tile = job.row as usize;
        let mut codes = self.codes.take(tile, 0);
        let mut scales = self.scales.take(tile, 0);
        let mut sums = self.sums.take(tile, 0);
        for row in 0..codes.rows() {
            let out = QuantisedRowMut {
                codes: codes.row(row),
                scales: scales.row(row),
                sums: sums.row(row),
            };
            let from = self.source.row(tile * self.rows + row, self.layout.cols);
            self.kernels.quantise(&self.layout, from, out);
        }
    }
}
