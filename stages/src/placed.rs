//! Where a layer's resident weights lie: which rows or which slices are on which node.
//!
//! A [`Placer`] deals tensors over the nodes' segments of a layer arena, and then has the source
//! read every piece straight into its place: nothing is held twice.
//! Rows of a matrix may lie anywhere, for a row's result doesn't depend on where it is made. The
//! summed dimension is cut only at the model's S slices, and [`SliceMap`] says which node holds
//! which slice and in what order partial results are added: one balanced tree whatever the nodes.

use crate::ids::LayerId;
use crate::pieces::pieces;
use crate::spec::ModelSpec;
use crate::weights::{Part, Rectangle, SourceError, WeightSource};
use millstream_kernels::{WeightFormat, Weights};
use millstream_topology::arena::{ArenaBuilder, ArenaError, Binding, LayerArena, RegionId};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

/// Which node holds which slice, and the tree of their sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceMap {
    /// S: 1, 2, 4 or 8.
    pub slices: usize,
    /// Nodes of the plan.
    pub nodes: usize,
    /// The largest whole subtrees that each node holds, in order of their first slice.
    pub subtrees: Vec<Subtree>,
}

/// A whole subtree of the sum, all of whose slices lie on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subtree {
    /// The node.
    pub node: usize,
    /// Its first slice.
    pub first: usize,
    /// How many slices: a power of two.
    pub count: usize,
}

impl SliceMap {
    /// Deals `slices` over `nodes` in runs of neighbours.
    pub fn new(slices: usize, nodes: usize) -> SliceMap {
        assert!(matches!(slices, 1 | 2 | 4 | 8) && nodes > 0, "{slices} slices, {nodes} nodes");
        let mut map = SliceMap { slices, nodes, subtrees: vec![] };
        map.split(0, slices);
        map
    }

    fn split(&mut self, first: usize, count: usize) {
        let node = self.node_of(first);
        if (first..first + count).all(|slice| self.node_of(slice) == node) {
            self.subtrees.push(Subtree { node, first, count });
        } else {
            self.split(first, count / 2);
            self.split(first + count / 2, count / 2);
        }
    }

    /// The same sum with each slice a subtree of its own.
    pub fn leaves(&self) -> SliceMap {
        let leaf = |first| Subtree { node: self.node_of(first), first, count: 1 };
        SliceMap { subtrees: (0..self.slices).map(leaf).collect(), ..*self }
    }

    /// The node that holds a slice.
    pub fn node_of(&self, slice: usize) -> usize {
        slice * self.nodes.min(self.slices) / self.slices
    }

    /// The slices of a node.
    pub fn slices_of(&self, node: usize) -> Range<usize> {
        let mine = |slice: &usize| self.node_of(*slice) == node;
        let first = (0..self.slices).find(mine).unwrap_or(0);
        first..first + (0..self.slices).filter(mine).count()
    }

    /// Adds the subtrees' partial results in the balanced tree, calling `add(into, from)` with
    /// indices of [`SliceMap::subtrees`]; the whole sum is then in subtree 0.
    pub fn merge(&self, add: &mut dyn FnMut(usize, usize)) {
        self.merge_range(0, self.slices, add);
    }

    fn merge_range(&self, first: usize, count: usize, add: &mut dyn FnMut(usize, usize)) -> usize {
        let whole = |tree: &Subtree| tree.first == first && tree.count == count;
        if let Some(index) = self.subtrees.iter().position(whole) {
            return index;
        }
        let left = self.merge_range(first, count / 2, add);
        let right = self.merge_range(first + count / 2, count / 2, add);
        add(left, right);
        left
    }
}

/// A matrix whose rows are dealt over the nodes.
#[derive(Clone, Debug)]
pub struct PlacedRows {
    /// Rows of the whole.
    pub rows: usize,
    /// Columns: the summed dimension, never cut here.
    pub cols: usize,
    /// The format.
    pub format: WeightFormat,
    /// The node's runs of rows, in order.
    pub parts: Vec<RowsPart>,
}

/// A run of rows on one node.
#[derive(Clone, Debug)]
pub struct RowsPart {
    /// The node.
    pub node: usize,
    /// Which rows of the whole.
    pub rows: Range<usize>,
    region: RegionId,
}

impl PlacedRows {
    /// Rows of the whole, all of which must lie in one part and begin at a row block.
    pub fn view<'a>(&self, arena: &'a LayerArena, part: usize, rows: Range<usize>) -> Weights<'a> {
        let part = &self.parts[part];
        assert!(part.rows.start <= rows.start && rows.end <= part.rows.end, "rows of another part");
        self.part(arena, part).slice(rows.start - part.rows.start..rows.end - part.rows.start)
    }

    /// One row as f32.
    pub fn decode_row(&self, arena: &LayerArena, row: usize, out: &mut [f32]) {
        let part = self.parts.iter().find(|part| part.rows.contains(&row));
        let part = part.expect("a row of the matrix");
        self.part(arena, part).decode_row(row - part.rows.start, out);
    }

    fn part<'a>(&self, arena: &'a LayerArena, part: &RowsPart) -> Weights<'a> {
        Weights::new(self.format, part.rows.len(), self.cols, arena.region(part.region))
    }

    /// Bytes of the whole.
    pub fn bytes(&self) -> usize {
        self.format.matrix_bytes(self.rows, self.cols)
    }
}

/// A matrix whose columns are cut at the slice borders.
#[derive(Clone, Debug)]
pub struct PlacedSlices {
    /// Rows of every slice.
    pub rows: usize,
    /// Columns of one slice.
    pub slice_cols: usize,
    /// The format.
    pub format: WeightFormat,
    regions: Vec<RegionId>,
}

impl PlacedSlices {
    /// Bytes of all slices.
    pub fn bytes(&self) -> usize {
        self.regions.len() * self.format.matrix_bytes(self.rows, self.slice_cols)
    }

    /// A slice, `[rows, slice_cols]`.
    pub fn view<'a>(&self, arena: &'a LayerArena, slice: usize) -> Weights<'a> {
        Weights::new(self.format, self.rows, self.slice_cols, arena.region(self.regions[slice]))
    }
}

/// The up projection of latents: per head key rows and value rows, heads dealt over the nodes.
#[derive(Clone, Debug)]
pub struct PlacedHeads {
    /// Columns: the latent rank.
    pub cols: usize,
    /// The format.
    pub format: WeightFormat,
    heads: Vec<PlacedHead>,
}

/// One head's rows.
#[derive(Clone, Debug)]
struct PlacedHead {
    node: usize,
    /// Key rows, value rows.
    parts: [(usize, RegionId); 2],
}

impl PlacedHeads {
    /// The node that holds a head.
    pub fn node_of(&self, head: usize) -> usize {
        self.heads[head].node
    }

    /// Key rows of a head.
    pub fn key<'a>(&self, arena: &'a LayerArena, head: usize) -> Weights<'a> {
        self.view(arena, self.heads[head].parts[0])
    }

    /// Value rows of a head.
    pub fn value<'a>(&self, arena: &'a LayerArena, head: usize) -> Weights<'a> {
        self.view(arena, self.heads[head].parts[1])
    }

    fn view<'a>(&self, arena: &'a LayerArena, (rows, region): (usize, RegionId)) -> Weights<'a> {
        Weights::new(self.format, rows, self.cols, arena.region(region))
    }

    /// Bytes of the whole.
    pub fn bytes(&self) -> usize {
        let bytes = |rows: usize| self.format.matrix_bytes(rows, self.cols);
        self.heads.iter().flat_map(|head| head.parts).map(|(rows, _)| bytes(rows)).sum()
    }
}

/// Gate, up and down of a gated unit that is always resident.
#[derive(Clone, Debug)]
pub struct PlacedUnit {
    /// Rows of gate and up in one slice; columns of down in one slice.
    pub slice_width: usize,
    hidden: usize,
    gate: Vec<RegionId>,
    up: Vec<RegionId>,
    gate_format: WeightFormat,
    up_format: WeightFormat,
    down: PlacedSlices,
}

impl PlacedUnit {
    /// Gate rows of a slice, `[slice_width, hidden]`.
    pub fn gate<'a>(&self, arena: &'a LayerArena, slice: usize) -> Weights<'a> {
        let bytes = arena.region(self.gate[slice]);
        Weights::new(self.gate_format, self.slice_width, self.hidden, bytes)
    }

    /// Up rows of a slice, `[slice_width, hidden]`.
    pub fn up<'a>(&self, arena: &'a LayerArena, slice: usize) -> Weights<'a> {
        Weights::new(self.up_format, self.slice_width, self.hidden, arena.region(self.up[slice]))
    }

    /// Down columns of a slice, `[hidden, slice_width]`.
    pub fn down<'a>(&self, arena: &'a LayerArena, slice: usize) -> Weights<'a> {
        self.down.view(arena, slice)
    }
}

/// Deals the tensors of one layer (or those outside of layers) over the segments of one arena, and
/// has them read into it.
pub struct Placer<'a> {
    /// The arena to be; slots may be reserved on it too.
    pub builder: ArenaBuilder,
    map: &'a SliceMap,
    spec: &'a ModelSpec,
    source: &'a dyn WeightSource,
    layer: Option<LayerId>,
    fills: Vec<Fill>,
    /// Bytes of vectors, which lie outside of the arena.
    vector_bytes: Cell<usize>,
    /// Only sizes are wanted: vectors aren't read.
    sizes_only: bool,
}

/// A block that is still to be read.
struct Fill {
    region: RegionId,
    part: Part,
    block: Rectangle,
}

impl<'a> Placer<'a> {
    /// A placer for one arena.
    pub fn new(
        map: &'a SliceMap,
        spec: &'a ModelSpec,
        source: &'a dyn WeightSource,
        layer: Option<LayerId>,
    ) -> Placer<'a> {
        let builder = ArenaBuilder::new(map.nodes);
        let vector_bytes = Cell::new(0);
        let fills = vec![];
        Placer { builder, map, spec, source, layer, fills, vector_bytes, sizes_only: false }
    }

    /// A placer that reads nothing: it is asked how many bytes everything takes.
    pub fn of_sizes(
        map: &'a SliceMap,
        spec: &'a ModelSpec,
        source: &'a dyn WeightSource,
        layer: Option<LayerId>,
    ) -> Placer<'a> {
        Placer { sizes_only: true, ..Placer::new(map, spec, source, layer) }
    }

    /// Bytes of the vectors so far.
    pub fn vector_bytes(&self) -> usize {
        self.vector_bytes.get()
    }

    /// A vector, which every thread reads: it stays out of the arena.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn vector(&self, part: Part) -> Result<Vec<f32>, SourceError> {
        let piece = self.pieces(part).remove(0);
        let shape = [piece.rows.len(), piece.cols.len()];
        self.vector_bytes.set(self.vector_bytes.get() + 4 * shape[0] * shape[1]);
        if self.sizes_only {
            return Ok(vec![]);
        }
        crate::weights::read_f32(self.source, self.layer, part, shape)
    }

    /// Deals the rows of a matrix over the nodes, in units of `unit` rows.
    pub fn rows(&mut self, part: Part, unit: usize) -> PlacedRows {
        let format = self.source.format(self.layer, part);
        let Rectangle { rows, cols } = self.pieces(part).remove(0);
        let (rows, cols) = (rows.len(), cols.len());
        let units = rows.div_ceil(unit);
        let mut parts = vec![];
        for node in 0..self.map.nodes {
            let first = units * node / self.map.nodes * unit;
            let end = (units * (node + 1) / self.map.nodes * unit).min(rows);
            if first < end {
                let block = Rectangle { rows: first..end, cols: 0..cols };
                let region = self.put(node, part, format, block);
                parts.push(RowsPart { node, rows: first..end, region });
            }
        }
        PlacedRows { rows, cols, format, parts }
    }

    /// Cuts the columns of a matrix at the slice borders.
    pub fn slices(&mut self, part: Part) -> PlacedSlices {
        let format = self.source.format(self.layer, part);
        let pieces = self.pieces(part);
        let (rows, slice_cols) = (pieces[0].rows.len(), pieces[0].cols.len());
        let regions = self.put_slices(part, format, pieces);
        PlacedSlices { rows, slice_cols, format, regions }
    }

    /// Deals the heads of a latent's up projection over the nodes.
    pub fn heads(&mut self, part: Part) -> PlacedHeads {
        let format = self.source.format(self.layer, part);
        let pieces = self.pieces(part);
        let cols = pieces[0].cols.len();
        let count = pieces.len() / 2;
        let nodes = self.map.nodes;
        let mut heads = vec![];
        for (head, pair) in pieces.chunks_exact(2).enumerate() {
            let node = head * nodes / count;
            let mut place =
                |piece: &Rectangle| (piece.rows.len(), self.put(node, part, format, piece.clone()));
            heads.push(PlacedHead { node, parts: [place(&pair[0]), place(&pair[1])] });
        }
        PlacedHeads { cols, format, heads }
    }

    /// Cuts a gated unit at the slice borders: rows of gate and up, columns of down.
    pub fn unit(&mut self, [gate, up, down]: [Part; 3]) -> PlacedUnit {
        let [gate_format, up_format] = [gate, up].map(|part| self.source.format(self.layer, part));
        let pieces = self.pieces(gate);
        let (slice_width, hidden) = (pieces[0].rows.len(), pieces[0].cols.len());
        PlacedUnit {
            slice_width,
            hidden,
            gate: self.put_slices(gate, gate_format, pieces),
            up: {
                let pieces = self.pieces(up);
                self.put_slices(up, up_format, pieces)
            },
            gate_format,
            up_format,
            down: self.slices(down),
        }
    }

    fn pieces(&self, part: Part) -> Vec<Rectangle> {
        let pieces = pieces(self.spec, self.layer, part);
        assert!(!pieces.is_empty(), "the model has no {part:?} of {:?}", self.layer);
        pieces
    }

    fn put_slices(
        &mut self,
        part: Part,
        format: WeightFormat,
        pieces: Vec<Rectangle>,
    ) -> Vec<RegionId> {
        let place = |(slice, piece)| self.put(self.map.node_of(slice), part, format, piece);
        pieces.into_iter().enumerate().map(place).collect()
    }

    fn put(&mut self, node: usize, part: Part, format: WeightFormat, block: Rectangle) -> RegionId {
        let bytes = format.matrix_bytes(block.rows.len(), block.cols.len());
        let region = self.builder.region(node, bytes);
        self.fills.push(Fill { region, part, block });
        region
    }

    /// Maps the arena and reads every piece into its region.
    ///
    /// # Errors
    /// When the system refuses the memory or the binding, or a tensor can't be read.
    ///
    /// # Panics
    /// When the placer was made for sizes only.
    pub fn finish(self, binding: &Binding) -> Result<Arc<LayerArena>, PlaceError> {
        assert!(!self.sizes_only, "a placer of sizes reads nothing");
        let mut arena = self.builder.build(binding)?;
        for Fill { region, part, block } in self.fills {
            self.source.read(self.layer, part, &block, arena.region_mut(region))?;
        }
        Ok(Arc::new(arena))
    }
}

/// Why an arena can't be filled.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Memory can't be had.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// A tensor can't be read.
    #[error(transparent)]
    Source(#[from] SourceError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_sum_in_the_same_tree() {
        for (slices, nodes) in [(8, 1), (8, 3), (4, 2), (2, 1), (1, 1)] {
            for map in [SliceMap::new(slices, nodes), SliceMap::new(slices, nodes).leaves()] {
                // The sum as text shows its tree.
                let name = |tree: &Subtree| tree_of(tree.first, tree.count);
                let mut parts: Vec<String> = map.subtrees.iter().map(name).collect();
                map.merge(&mut |into, from| {
                    parts[into] = format!("({}+{})", parts[into], parts[from]);
                });
                assert_eq!(parts[0], tree_of(0, slices));
            }
        }
    }

    fn tree_of(first: usize, count: usize) -> String {
        match count {
            1 => first.to_string(),
            _ => {
                format!("({}+{})", tree_of(first, count / 2), tree_of(first + count / 2, count / 2))
            }
        }
    }

    #[test]
    fn three_nodes_hold_whole_subtrees_of_eight_slices() {
        let map = SliceMap::new(8, 3);
        let held: Vec<_> = map.subtrees.iter().map(|t| (t.node, t.first, t.count)).collect();
        assert_eq!(held, [(0, 0, 2), (0, 2, 1), (1, 3, 1), (1, 4, 2), (2, 6, 2)]);
    }

    #[test]
    fn every_node_count_adds_in_one_tree() {
        // Strings show the order of additions, where floats would only hint at it.
        let tree = "(((0+1)+(2+3))+((4+5)+(6+7)))";
        for nodes in 1..=9 {
            let map = SliceMap::new(8, nodes);
            let mut sums: Vec<String> =
                map.subtrees.iter().map(|t| spell(t.first, t.count)).collect();
            map.merge(&mut |into, from| sums[into] = format!("({}+{})", sums[into], sums[from]));
            assert_eq!(sums[0], tree, "{nodes} nodes");
        }
    }

    fn spell(first: usize, count: usize) -> String {
        match count {
            1 => first.to_string(),
            _ => {
                let half = count / 2;
                format!("({}+{})", spell(first, half), spell(first + half, half))
            }
        }
    }

    #[test]
    fn more_nodes_than_slices_leave_nodes_empty() {
        let map = SliceMap::new(2, 3);
        assert_eq!(map.slices_of(0), 0..1);
        assert_eq!(map.slices_of(1), 1..2);
        assert!(map.slices_of(2).is_empty());
    }
}
