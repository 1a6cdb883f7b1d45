#![allow(unsafe_code)]
//! One output buffer cut into tiles that concurrent jobs write without locks.
//!
//! The stage that owns the buffer makes a [`Grid`] on its stack for one batch; each job takes its
//! tile once and writes it. Tiles don't overlap, and a bitmap lets each be taken only once, so every
//! element has at most one writer. Nothing is allocated.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most tiles a grid may have: the bitmap lives inside the grid.
pub const TILES_MAX: usize = 8192;

/// A matrix (rows of `stride` elements, of which the first `cols` are used) cut into tiles.
pub struct Grid<'a, T> {
    data: *mut T,
    rows: usize,
    stride: usize,
    cols: usize,
    tile_rows: usize,
    tile_cols: usize,
    /// One bit per tile: taken.
    taken: [AtomicU64; TILES_MAX / 64],
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY:
// - a shared grid gives out only tiles, each at most once (the bitmap in `take`), and tiles don't
//   overlap, so sharing it does no more than send `&mut T` to other threads: `T: Send` is enough;
// - `data` comes from an exclusive borrow that lasts as long as the grid (`owner`).
unsafe impl<T: Send> Sync for Grid<'_, T> {}
// SAFETY:
// - the grid stands for the `&'a mut [T]` that it was made of, which is `Send` if `T` is.
unsafe impl<T: Send> Send for Grid<'_, T> {}

impl<'a, T> Grid<'a, T> {
    /// Cuts `data` (`rows * stride` elements) into tiles of `tile_rows` x `tile_cols`; those at the
    /// right and lower border may be smaller.
    ///
    /// # Panics
    /// If a size is 0, `cols > stride`, `data` is no whole number of rows, or there would be more
    /// than [`TILES_MAX`] tiles.
    pub fn new(
        data: &'a mut [T],
        stride: usize,
        cols: usize,
        tile_rows: usize,
        tile_cols: usize,
    ) -> Grid<'a, T> {
        assert!(cols > 0 && tile_rows > 0 && tile_cols > 0, "a grid's sizes must not be 0");
        assert!(cols <= stride, "{cols} columns don't fit a stride of {stride}");
        assert!(
            data.len().is_multiple_of(stride),
            "{} elements are no whole number of rows of {stride}",
            data.len()
        );
        let rows = data.len() / stride;
        let tiles = rows.div_ceil(tile_rows).saturating_mul(cols.div_ceil(tile_cols));
        assert!(tiles <= TILES_MAX, "{tiles} tiles are more than {TILES_MAX}");
        Grid {
            data: data.as_mut_ptr(),
            rows,
            stride,
            cols,
            tile_rows,
            tile_cols,
            taken: [const { AtomicU64::new(0) }; TILES_MAX / 64],
            owner: PhantomData,
        }
    }

    /// How many tiles lie above each other.
    pub fn row_tiles(&self) -> usize {
        self.rows.div_ceil(self.tile_rows)
    }

    /// How many tiles lie side by side.
    pub fn col_tiles(&self) -> usize {
        self.cols.div_ceil(self.tile_cols)
    }

    /// Which columns the tiles at this place from the left are of.
    ///
    /// # Panics
    /// If there is no such tile.
    pub fn columns(&self, col_tile: usize) -> std::ops::Range<usize> {
        assert!(col_tile < self.col_tiles(), "no tile {col_tile} of {}", self.col_tiles());
        let first = col_tile * self.tile_cols;
        first..first + self.tile_cols.min(self.cols - first)
    }

    /// The tile at this place, for its one writer.
    ///
    /// # Panics
    /// If there is no such tile, or it was taken before.
    pub fn take(&self, row_tile: usize, col_tile: usize) -> Tile<'_, T> {
        let (row_tiles, col_tiles) = (self.row_tiles(), self.col_tiles());
        assert!(
            row_tile < row_tiles && col_tile < col_tiles,
            "tile ({row_tile}, {col_tile}) is outside of {row_tiles} x {col_tiles}"
        );
        let number = row_tile * col_tiles + col_tile;
        let bit = 1u64 << (number % 64);
        let before = self.taken[number / 64].fetch_or(bit, Ordering::Relaxed);
        assert!(before & bit == 0, "tile ({row_tile}, {col_tile}) is taken twice");
        let (first_row, first_col) = (row_tile * self.tile_rows, col_tile * self.tile_cols);
        Tile {
            data: self.data,
            stride: self.stride,
            first_row,
            rows: self.tile_rows.min(self.rows - first_row),
            first_col,
            cols: self.tile_cols.min(self.cols - first_col),
            grid: PhantomData,
        }
    }
}

/// One tile, writable by whoever took it.
pub struct Tile<'g, T> {
    /// Start of the whole matrix.
    data: *mut T,
    stride: usize,
    first_row: usize,
    rows: usize,
    first_col: usize,
    cols: usize,
    grid: PhantomData<&'g mut [T]>,
}

// SAFETY:
// - a tile is an exclusive view of elements that no other tile holds (`Grid::take`), like a `&mut [T]`.
unsafe impl<T: Send> Send for Tile<'_, T> {}
// SAFETY:
// - a shared tile gives out nothing but sizes: elements are reached through `&mut self` only.
unsafe impl<T: Send> Sync for Tile<'_, T> {}

impl<T> Tile<'_, T> {
    /// How many rows the tile has.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The matrix row of the tile's row 0.
    pub fn first_row(&self) -> usize {
        self.first_row
    }

    /// How many columns the tile has.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The matrix column of the tile's column 0.
    pub fn first_col(&self) -> usize {
        self.first_col
    }

    /// Row `row` of the tile, `cols()` elements.
    ///
    /// # Panics
    /// If the tile has no such row.
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row {row} is outside of a tile of {} rows", self.rows);
        let start = (self.first_row + row) * self.stride + self.first_col;
        // SAFETY:
        // - `start + cols` lies inside the matrix: `row < rows` (assert above), and `Grid::take`
        //   clips rows and columns to the matrix;
        // - no other tile holds these elements, and this one was taken once (`Grid::take`);
        // - `&mut self` lets only one row be borrowed at a time, and the matrix is borrowed
        //   exclusively for longer than the tile lives (`Grid::new`, lifetime `'g`).
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), self.cols) }
    }
}
