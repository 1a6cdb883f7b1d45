//! KV of one layer and one kind: rows of one width, in pages of one block each.
//!
//! Owned by the attention of a layer, which has one store each for its latents, keys, values and so
//! on. A page holds [`KV_BLOCK_ROWS`] positions of one sequence, head by head; which page a position
//! lies on is the engine's choice and travels with the wave. Every node's crew reads all of it, so on
//! several nodes its memory is dealt over them.

use crate::limits::KV_BLOCK_ROWS;
use millstream_kernels::{WeightFormat, Weights};
use millstream_topology::arena::LayerArena;

/// A row's place in a store: those of one head and page lie side by side.
#[derive(Clone, Copy)]
pub struct Place(usize);

/// Rows of f32 by page, head and position.
pub struct Pages {
    heads: usize,
    width: usize,
    values: Vec<f32>,
}

impl Pages {
    /// Room for `pages` pages of `heads` heads, over the nodes that the layer's arena is bound to;
    /// `None` when the system doesn't give that much memory.
    pub fn new(heads: usize, width: usize, pages: usize, arena: &LayerArena) -> Option<Pages> {
        let len = pages.checked_mul(KV_BLOCK_ROWS * heads * width)?;
        let mut values = zeroed(len)?;
        // A refusal leaves it on the node of the thread that writes it: slower, not wrong.
        let _ = arena.deal_over_nodes(bytemuck::cast_slice_mut(&mut values));
        Some(Pages { heads, width, values })
    }

    /// The place of a head's row of a position on a page.
    pub fn place(&self, page: usize, head: usize, position: usize) -> Place {
        Place((page * self.heads + head) * KV_BLOCK_ROWS + position % KV_BLOCK_ROWS)
    }

    /// `count` positions of one page and head from a place on, as rows of a matrix.
    pub fn matrix(&self, place: Place, count: usize) -> Weights<'_> {
        let values = bytemuck::cast_slice(self.rows(place, count));
        Weights::new(WeightFormat::F32, count, self.width, values)
    }

    /// The same as plain numbers.
    pub fn rows(&self, place: Place, count: usize) -> &[f32] {
        assert!(place.0 % KV_BLOCK_ROWS + count <= KV_BLOCK_ROWS, "positions of one page");
        &self.values[place.0 * self.width..][..count * self.width]
    }

    /// One row, to be written.
    pub fn row_mut(&mut self, place: Place) -> &mut [f32] {
        &mut self.values[place.0 * self.width..][..self.width]
    }
}

/// Zeroes that the system maps when they are touched; `None` when it refuses that many.
fn zeroed(len: usize) -> Option<Vec<f32>> {
    // Asked first, because a refused `vec!` ends the process.
    Vec::<f32>::new().try_reserve_exact(len).ok()?;
    Some(vec![0.0; len])
}
