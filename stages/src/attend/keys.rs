//! The KV of one layer: latents, rope keys and index keys in pages of one block each.
//!
//! Owned by `Attend(L)`. A page holds [`KV_BLOCK_ROWS`] positions of one sequence; which page a
//! position lies on is the engine's choice and travels with the wave. Every node's crew reads all of
//! it, so on several nodes its memory is dealt over them.

use crate::limits::KV_BLOCK_ROWS;
use crate::spec::{IndexerUse, MlaSpec};
use millstream_kernels::{WeightFormat, Weights};
use millstream_topology::arena::LayerArena;

/// A position's place in the store: page * KV_BLOCK_ROWS + offset.
#[derive(Clone, Copy)]
pub struct Place(usize);

/// The KV of one layer, in f32.
pub struct Keys {
    latent_rank: usize,
    rope_dim: usize,
    index_dim: usize,
    latents: Vec<f32>,
    rope_keys: Vec<f32>,
    index_keys: Vec<f32>,
}

impl Keys {
    /// Room for `pages` pages, over the nodes that the layer's arena is bound to; `None` when the
    /// system doesn't give that much memory.
    pub fn new(mla: &MlaSpec, pages: usize, arena: &LayerArena) -> Option<Keys> {
        let index_dim = match &mla.indexer {
            IndexerUse::Full(indexer) => indexer.dim,
            _ => 0,
        };
        let room = |width: usize| {
            let mut room = zeroed(pages.checked_mul(KV_BLOCK_ROWS * width)?)?;
            // A refusal leaves it on the node of the thread that writes it: slower, not wrong.
            let _ = arena.deal_over_nodes(bytemuck::cast_slice_mut(&mut room));
            Some(room)
        };
        Some(Keys {
            latent_rank: mla.latent_rank,
            rope_dim: mla.rope_dim,
            index_dim,
            latents: room(mla.latent_rank)?,
            rope_keys: room(mla.rope_dim)?,
            index_keys: room(index_dim)?,
        })
    }

    /// The place of a position on a page.
    pub fn place(&self, page: usize, position: usize) -> Place {
        Place(page * KV_BLOCK_ROWS + position % KV_BLOCK_ROWS)
    }

    /// The latents of `count` positions of one page from a place on, as rows of a matrix.
    pub fn latents(&self, place: Place, count: usize) -> Weights<'_> {
        rows(&self.latents, place, count, self.latent_rank)
    }

    /// The same as plain numbers.
    pub fn latent_rows(&self, place: Place, count: usize) -> &[f32] {
        &self.latents[place.0 * self.latent_rank..][..count * self.latent_rank]
    }

    /// The turned rope keys, likewise.
    pub fn rope_keys(&self, place: Place, count: usize) -> Weights<'_> {
        rows(&self.rope_keys, place, count, self.rope_dim)
    }

    /// The index keys, likewise.
    pub fn index_keys(&self, place: Place, count: usize) -> Weights<'_> {
        rows(&self.index_keys, place, count, self.index_dim)
    }

    /// The latent, `latent_rank` long, to be written.
    pub fn latent_mut(&mut self, place: Place) -> &mut [f32] {
        &mut self.latents[place.0 * self.latent_rank..][..self.latent_rank]
    }

    /// The turned rope key, `rope_dim` long, to be written.
    pub fn rope_key_mut(&mut self, place: Place) -> &mut [f32] {
        &mut self.rope_keys[place.0 * self.rope_dim..][..self.rope_dim]
    }

    /// The index key, `index_dim` long, to be written.
    pub fn index_key_mut(&mut self, place: Place) -> &mut [f32] {
        &mut self.index_keys[place.0 * self.index_dim..][..self.index_dim]
    }
}

/// Positions as rows; those of one page lie side by side.
fn rows(of: &[f32], place: Place, count: usize, width: usize) -> Weights<'_> {
    assert!(place.0 % KV_BLOCK_ROWS + count <= KV_BLOCK_ROWS, "positions of one page");
    let values = &of[place.0 * width..][..count * width];
    Weights::new(WeightFormat::F32, count, width, bytemuck::cast_slice(values))
}

/// Zeroes that the system maps when they are touched; `None` when it refuses that many.
fn zeroed(len: usize) -> Option<Vec<f32>> {
    // Asked first, because a refused `vec!` ends the process.
    Vec::<f32>::new().try_reserve_exact(len).ok()?;
    Some(vec![0.0; len])
}
