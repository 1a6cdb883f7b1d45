//! Where a layer's resident weights lie: which rows or which slices are on which node.
//!
//! A [`Placer`] takes matrices, deals them over the nodes' segments of a layer arena and fills it.
//! Rows of a matrix may lie anywhere, for a row's result doesn't depend on where it is made. The
//! summed dimension is cut only at the model's S slices, and [`SliceMap`] says which node holds
//! which slice and in what order partial results are added: one balanced tree whatever the nodes.

use crate::weights::{Matrix, MatrixData};
use millstream_kernels::{WeightFormat, Weights};
use millstream_topology::arena::{ArenaBuilder, ArenaError, Binding, LayerArena, RegionId};
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
    format: WeightFormat,
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
    /// Rows of the whole, all of which must lie in one part.
    pub fn view<'a>(&self, arena: &'a LayerArena, part: usize, rows: Range<usize>) -> Weights<'a> {
        let part = &self.parts[part];
        assert!(part.rows.start <= rows.start && rows.end <= part.rows.end, "rows of another part");
        let first = (rows.start - part.rows.start) * self.cols;
        let weights = Weights::from_bytes(self.format, arena.region(part.region));
        weights.slice(first..first + rows.len() * self.cols)
    }

    /// Bytes of the whole.
    pub fn bytes(&self) -> usize {
        self.rows * self.cols * self.format.bytes_per_weight()
    }

    /// The part that holds a row.
    pub fn part_of(&self, row: usize) -> usize {
        self.parts.iter().position(|part| part.rows.contains(&row)).expect("a row of the matrix")
    }
}

/// A matrix whose columns are cut at the slice borders.
#[derive(Clone, Debug)]
pub struct PlacedSlices {
    /// Rows of every slice.
    pub rows: usize,
    /// Columns of one slice.
    pub slice_cols: usize,
    format: WeightFormat,
    regions: Vec<RegionId>,
}

impl PlacedSlices {
    /// Bytes of all slices.
    pub fn bytes(&self) -> usize {
        self.rows * self.slice_cols * self.regions.len() * self.format.bytes_per_weight()
    }

    /// A slice, `[rows, slice_cols]`.
    pub fn view<'a>(&self, arena: &'a LayerArena, slice: usize) -> Weights<'a> {
        Weights::from_bytes(self.format, arena.region(self.regions[slice]))
    }
}

/// Gate, up and down of a gated unit that is always resident.
#[derive(Clone, Debug)]
pub struct PlacedUnit {
    /// Rows of gate and up in one slice; columns of down in one slice.
    pub slice_width: usize,
    gate: Vec<RegionId>,
    up: Vec<RegionId>,
    gate_format: WeightFormat,
    up_format: WeightFormat,
    down: PlacedSlices,
}

impl PlacedUnit {
    /// Gate rows of a slice, `[slice_width, hidden]`.
    pub fn gate<'a>(&self, arena: &'a LayerArena, slice: usize) -> Weights<'a> {
        Weights::from_bytes(self.gate_format, arena.region(self.gate[slice]))
    }

    /// Up rows of a slice, `[slice_width, hidden]`.
    pub fn up<'a>(&self, arena: &'a LayerArena, slice: usize) -> Weights<'a> {
        Weights::from_bytes(self.up_format, arena.region(self.up[slice]))
    }

    /// Down columns of a slice, `[hidden, slice_width]`.
    pub fn down<'a>(&self, arena: &'a LayerArena, slice: usize) -> Weights<'a> {
        self.down.view(arena, slice)
    }
}

/// Deals matrices over the segments of one arena and fills it.
pub struct Placer<'a> {
    /// The arena to be; slots may be reserved on it too.
    pub builder: ArenaBuilder,
    map: &'a SliceMap,
    fills: Vec<(RegionId, Vec<u8>)>,
}

impl<'a> Placer<'a> {
    /// A placer for one arena.
    pub fn new(map: &'a SliceMap) -> Placer<'a> {
        Placer { builder: ArenaBuilder::new(map.nodes), map, fills: vec![] }
    }

    /// Deals the rows of a matrix over the nodes, in units of `unit` rows.
    pub fn rows(&mut self, matrix: &Matrix, unit: usize) -> PlacedRows {
        let units = matrix.rows.div_ceil(unit);
        let mut parts = vec![];
        for node in 0..self.map.nodes {
            let first = units * node / self.map.nodes * unit;
            let end = (units * (node + 1) / self.map.nodes * unit).min(matrix.rows);
            if first < end {
                let bytes = bytes_of(matrix, first..end, 0..matrix.cols);
                parts.push(RowsPart { node, rows: first..end, region: self.put(node, bytes) });
            }
        }
        PlacedRows { rows: matrix.rows, cols: matrix.cols, format: matrix.format(), parts }
    }

    /// Cuts the columns of a matrix at the slice borders.
    pub fn slices(&mut self, matrix: &Matrix) -> PlacedSlices {
        let slice_cols = matrix.cols / self.map.slices;
        assert_eq!(slice_cols * self.map.slices, matrix.cols, "S doesn't cut the columns");
        let mut regions = vec![];
        for slice in 0..self.map.slices {
            let columns = slice * slice_cols..(slice + 1) * slice_cols;
            let bytes = bytes_of(matrix, 0..matrix.rows, columns);
            regions.push(self.put(self.map.node_of(slice), bytes));
        }
        PlacedSlices { rows: matrix.rows, slice_cols, format: matrix.format(), regions }
    }

    /// Cuts a gated unit at the slice borders: rows of gate and up, columns of down.
    pub fn unit(&mut self, gate: &Matrix, up: &Matrix, down: &Matrix) -> PlacedUnit {
        let slice_width = gate.rows / self.map.slices;
        assert_eq!(slice_width * self.map.slices, gate.rows, "S doesn't cut the rows");
        let mut cut = |matrix: &Matrix| -> Vec<RegionId> {
            (0..self.map.slices)
                .map(|slice| {
                    let rows = slice * slice_width..(slice + 1) * slice_width;
                    let bytes = bytes_of(matrix, rows, 0..matrix.cols);
                    self.put(self.map.node_of(slice), bytes)
                })
                .collect()
        };
        PlacedUnit {
            slice_width,
            gate_format: gate.format(),
            up_format: up.format(),
            gate: cut(gate),
            up: cut(up),
            down: self.slices(down),
        }
    }

    fn put(&mut self, node: usize, bytes: Vec<u8>) -> RegionId {
        let region = self.builder.region(node, bytes.len());
        self.fills.push((region, bytes));
        region
    }

    /// Maps the arena and fills its resident regions.
    ///
    /// # Errors
    /// When the system refuses the memory or the binding.
    pub fn finish(self, binding: &Binding) -> Result<Arc<LayerArena>, ArenaError> {
        let mut arena = self.builder.build(binding)?;
        for (region, bytes) in self.fills {
            arena.region_mut(region).copy_from_slice(&bytes);
        }
        Ok(Arc::new(arena))
    }
}

/// A block of a matrix as bytes, row by row.
fn bytes_of(matrix: &Matrix, rows: Range<usize>, cols: Range<usize>) -> Vec<u8> {
    fn block<T: bytemuck::Pod>(
        data: &[T],
        width: usize,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Vec<u8> {
        let row = |row: usize| &data[row * width..][cols.clone()];
        rows.flat_map(|index| bytemuck::cast_slice::<T, u8>(row(index))).copied().collect()
    }
    match &matrix.data {
        MatrixData::F32(data) => block(data, matrix.cols, rows, cols),
        MatrixData::Bf16(data) => block(data, matrix.cols, rows, cols),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
