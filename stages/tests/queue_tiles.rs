//! The grid: tiles cover the used part of the matrix once, never overlap, and are taken once.

use millstream_stages::queue::{Grid, TILES_MAX};
use proptest::prelude::*;

proptest! {
    #[test]
    fn tiles_cover_the_used_columns_once(
        rows in 0usize..20,
        stride in 1usize..20,
        unused in 0usize..5,
        tile_rows in 1usize..8,
        tile_cols in 1usize..8,
    ) {
        let cols = stride.saturating_sub(unused).max(1);
        let mut data = vec![0u32; rows * stride];
        let grid = Grid::new(&mut data, stride, cols, tile_rows, tile_cols);
        for row_tile in 0..grid.row_tiles() {
            for col_tile in 0..grid.col_tiles() {
                let mut tile = grid.take(row_tile, col_tile);
                prop_assert_eq!(tile.first_row(), row_tile * tile_rows);
                prop_assert_eq!(tile.first_col(), col_tile * tile_cols);
                for row in 0..tile.rows() {
                    let (matrix_row, first_col) = (tile.first_row() + row, tile.first_col());
                    for (col, value) in tile.row(row).iter_mut().enumerate() {
                        *value += 1 + (matrix_row * stride + first_col + col) as u32;
                    }
                }
            }
        }
        for (place, &value) in data.iter().enumerate() {
            let used = place % stride < cols;
            prop_assert_eq!(value, if used { 1 + place as u32 } else { 0 });
        }
    }
}

#[test]
fn threads_write_their_tiles_at_once() {
    let mut data = vec![0usize; 64 * 48];
    let grid = Grid::new(&mut data, 48, 40, 16, 10);
    std::thread::scope(|scope| {
        for row_tile in 0..grid.row_tiles() {
            let grid = &grid;
            scope.spawn(move || {
                for col_tile in 0..grid.col_tiles() {
                    let mut tile = grid.take(row_tile, col_tile);
                    (0..tile.rows())
                        .for_each(|row| tile.row(row).fill(1 + row_tile * 4 + col_tile));
                }
            });
        }
    });
    for (place, &value) in data.iter().enumerate() {
        let (row, col) = (place / 48, place % 48);
        assert_eq!(value, if col < 40 { 1 + row / 16 * 4 + col / 10 } else { 0 });
    }
}

#[test]
#[should_panic(expected = "taken twice")]
fn a_tile_is_taken_once() {
    let mut data = [0; 100];
    let grid = Grid::new(&mut data, 1, 1, 1, 1);
    _ = grid.take(70, 0);
    grid.take(70, 0);
}

#[test]
#[should_panic(expected = "outside of a tile of 1 rows")]
fn a_row_below_the_tile_is_refused() {
    let mut data = [0; 6];
    let grid = Grid::new(&mut data, 2, 2, 2, 2);
    grid.take(1, 0).row(1);
}

#[test]
#[should_panic(expected = "outside of 2 x 1")]
fn a_tile_outside_of_the_grid_is_refused() {
    let mut data = [0; 6];
    Grid::new(&mut data, 2, 2, 2, 2).take(0, 1);
}

#[test]
#[should_panic(expected = "no whole number of rows")]
fn half_a_row_is_refused() {
    Grid::new(&mut [0; 7], 2, 2, 1, 1);
}

#[test]
fn as_many_tiles_as_the_bitmap_holds() {
    let mut data = vec![0u8; TILES_MAX];
    Grid::new(&mut data, TILES_MAX, TILES_MAX, 1, 1).take(0, TILES_MAX - 1).row(0)[0] = 1;
    assert_eq!(data[TILES_MAX - 1], 1);
}

#[test]
#[should_panic(expected = "tiles are more than")]
fn more_tiles_than_the_bitmap_holds_are_refused() {
    Grid::new(&mut vec![0u8; TILES_MAX + 1], 1, 1, 1, 1);
}
