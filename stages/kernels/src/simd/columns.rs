//! Weights of blocks as f32, 16 columns of a row at a time.
//!
//! Integer kernels want a row per lane, as blocks have them; sums over rows and the f32 rule want a
//! column per lane. A [`Tile`] is 64 columns of a block; it hands out any 16 of them of any row,
//! decoded. Codes of up to four bits index a table of 16 f32: the dwords that hold 16 of them are
//! spread over the lanes and shifted. Bytes are gathered from their lines once per tile and
//! widened. Either is then multiplied with the row's scale, the one rounding.

use super::{Simd, gathered_place};
use crate::formats::block::{BLOCK_ROWS, BlockCode};
use crate::formats::scale::ue8m0_to_f32;
use crate::formats::{
    ScaleType, Scales,
    int2_row::Int2,
    int3_group::Int3,
    int4_group::Int4,
    int8_row::Int8,
    mxfp4::{E2m1, HALVES},
};
use crate::scalar::LANES;
use crate::weights::Weights;

/// Columns of a tile.
pub const TILE_COLUMNS: usize = 64;

/// Chunks of 16 columns of a tile.
pub const TILE_CHUNKS: usize = TILE_COLUMNS / LANES;

/// Four bytes of each of 16 rows.
pub type Line = [u32; BLOCK_ROWS];

/// The most lines of a tile: those of bytes.
pub const TILE_LINES_MAX: usize = 16;

/// Room for the rows of a tile of bytes.
pub type Gathered = [[[u32; 4]; BLOCK_ROWS]; TILE_CHUNKS];

/// What differs between codes when 16 columns of a row are decoded.
pub trait ColumnCode: BlockCode {
    /// Lines of a tile.
    const TILE_LINES: usize = TILE_COLUMNS / Self::STEP_COLUMNS * Self::STEP_LINES;

    /// What is done once per tile.
    #[inline(always)]
    fn prepare<S: Simd>(_cpu: S, _lines: &[Line], _room: &mut Gathered) {}

    /// 16 columns of a row, times the scale.
    fn chunk<S: Simd>(cpu: S, tile: TileRow, chunk: usize, scale: f32) -> S::Vector;
}

/// A row of a tile before it is decoded.
#[derive(Clone, Copy)]
pub struct TileRow<'a> {
    lines: &'a [Line],
    gathered: &'a Gathered,
    row: usize,
}

impl TileRow<'_> {
    /// The row's dword of a line.
    #[inline(always)]
    fn dword(self, line: usize) -> u32 {
        self.lines[line][self.row]
    }
}

/// The values of codes of up to four bits; shorter codes repeat, so that the bits above don't count.
const fn values<const N: usize>(of: [i8; N]) -> [f32; LANES] {
    let mut values = [0.0; LANES];
    let mut i = 0;
    while i < LANES {
        values[i] = of[i % N] as f32;
        i += 1;
    }
    values
}

static INT4_VALUES: [f32; LANES] = values([-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7]);
static INT3_VALUES: [f32; LANES] = values([-4, -3, -2, -1, 0, 1, 2, 3]);
static INT2_VALUES: [f32; LANES] = values([-2, -1, 0, 1]);
static E2M1_VALUES: [f32; LANES] = values(HALVES);

/// Where the 16 nibbles of two dwords begin.
static NIBBLE_BITS: [u32; LANES] = [0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28];

/// Where the 16 pairs of bits of a dword begin.
static PAIR_BITS: [u32; LANES] = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];

/// Where the third bits of columns 0 to 15, and of columns 16 to 31, lie in their dword.
static HIGH_BITS: [[u32; LANES]; 2] = [
    [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27],
    [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31],
];

/// The entries of a table that words name, times the scale.
#[inline(always)]
fn look_up<S: Simd>(cpu: S, values: &[f32; LANES], index: S::Words, scale: f32) -> S::Vector {
    cpu.mul(cpu.lookup(cpu.load(values), index), cpu.splat(scale))
}

/// The nibbles of a chunk.
#[inline(always)]
fn nibbles<S: Simd>(cpu: S, row: TileRow, chunk: usize) -> S::Words {
    let words = cpu.words(row.dword(2 * chunk), row.dword(2 * chunk + 1));
    cpu.shift_right(words, cpu.load_words(&NIBBLE_BITS))
}

impl ColumnCode for Int8 {
    #[inline(always)]
    fn prepare<S: Simd>(cpu: S, lines: &[Line], room: &mut Gathered) {
        let lines = lines.as_chunks::<4>().0;
        for (lines, room) in lines.iter().zip(room) {
            cpu.gather_rows(lines, room);
        }
    }
    #[inline(always)]
    fn chunk<S: Simd>(cpu: S, tile: TileRow, chunk: usize, scale: f32) -> S::Vector {
        let bytes = tile.gathered[chunk][gathered_place(tile.row)];
        cpu.mul(cpu.load_i8(&bytemuck::cast(bytes)), cpu.splat(scale))
    }
}

impl ColumnCode for Int4 {
    #[inline(always)]
    fn chunk<S: Simd>(cpu: S, tile: TileRow, chunk: usize, scale: f32) -> S::Vector {
        look_up(cpu, &INT4_VALUES, nibbles(cpu, tile, chunk), scale)
    }
}

impl ColumnCode for E2m1 {
    #[inline(always)]
    fn chunk<S: Simd>(cpu: S, tile: TileRow, chunk: usize, scale: f32) -> S::Vector {
        look_up(cpu, &E2M1_VALUES, nibbles(cpu, tile, chunk), scale)
    }
}

impl ColumnCode for Int2 {
    #[inline(always)]
    fn chunk<S: Simd>(cpu: S, tile: TileRow, chunk: usize, scale: f32) -> S::Vector {
        let dword = tile.dword(chunk);
        let pairs = cpu.shift_right(cpu.words(dword, dword), cpu.load_words(&PAIR_BITS));
        look_up(cpu, &INT2_VALUES, pairs, scale)
    }
}

impl ColumnCode for Int3 {
    #[inline(always)]
    fn chunk<S: Simd>(cpu: S, tile: TileRow, chunk: usize, scale: f32) -> S::Vector {
        let (step, half) = (chunk / 2 * Self::STEP_LINES, chunk % 2);
        let (low, high) = (tile.dword(step + half), tile.dword(step + 2));
        let low = cpu.shift_right(cpu.words(low, low), cpu.load_words(&PAIR_BITS));
        let high = cpu.shift_right(cpu.words(high, high), cpu.load_words(&HIGH_BITS[half]));
        look_up(cpu, &INT3_VALUES, cpu.join_2(low, cpu.shift_left_2(high)), scale)
    }
}

/// A block: 16 rows of a matrix of codes.
#[derive(Clone, Copy)]
pub struct Block<'a> {
    /// Columns of the matrix.
    cols: usize,
    /// Columns that share a scale; all if a row has one scale.
    group: usize,
    scale: ScaleType,
    scales: &'a [u8],
    lines: &'a [Line],
}

/// What tiles take beside the block's bytes.
pub struct Room {
    /// The lines of a tile that has fewer than a whole one.
    lines: [Line; TILE_LINES_MAX],
    gathered: Gathered,
}

impl Room {
    /// Empty room.
    pub const fn new() -> Room {
        let lines = [[0; BLOCK_ROWS]; TILE_LINES_MAX];
        Room { lines, gathered: [[[0; 4]; BLOCK_ROWS]; TILE_CHUNKS] }
    }
}

/// 64 columns of a block, fewer in the last.
pub struct Tile<'a> {
    lines: &'a [Line],
    gathered: &'a Gathered,
    /// Of each chunk, every row's scale.
    scales: [[f32; BLOCK_ROWS]; TILE_CHUNKS],
}

impl<'a> Block<'a> {
    /// The block that starts at row `16 * index` of a matrix of codes.
    #[inline(always)]
    pub fn of(w: Weights<'a>, index: usize) -> Block<'a> {
        let (format, cols) = (w.format(), w.cols());
        let bytes = format.block_bytes(cols);
        let block = &w.bytes()[index * bytes..][..bytes];
        let (scales, lines) = block.split_at(format.block_scale_bytes(cols));
        let group = match format.scales() {
            Scales::Group(columns) => columns,
            Scales::None | Scales::Row | Scales::Block128 => cols,
        };
        let scale = format.scale_type().expect("codes have scales");
        Block { cols, group, scale, scales, lines: bytemuck::cast_slice(lines) }
    }

    /// The tile that starts at a column, a multiple of 64 below the number of columns.
    #[inline(always)]
    pub fn tile<S: Simd, C: ColumnCode>(
        self,
        cpu: S,
        first: usize,
        room: &'a mut Room,
    ) -> Tile<'a> {
        let lines = &self.lines[first / TILE_COLUMNS * C::TILE_LINES..];
        let Room { lines: padded, gathered } = room;
        let lines = if lines.len() >= C::TILE_LINES {
            &lines[..C::TILE_LINES]
        } else {
            padded[..lines.len()].copy_from_slice(lines);
            &padded[..C::TILE_LINES]
        };
        C::prepare(cpu, lines, gathered);
        let mut scales = [[0.0; BLOCK_ROWS]; TILE_CHUNKS];
        let mut group = first / self.group;
        let mut of_group = self.group_scales::<S, C>(cpu, group);
        for (chunk, to) in scales.iter_mut().enumerate() {
            // A group is a multiple of 16 columns; chunks behind the last column don't matter.
            let column = first + chunk * LANES;
            if column >= (group + 1) * self.group && column < self.cols {
                group += 1;
                of_group = self.group_scales::<S, C>(cpu, group);
            }
            cpu.store(of_group, to);
        }
        Tile { lines, gathered, scales }
    }

    /// The scales of a group's 16 rows, the format's constant factor included.
    #[inline(always)]
    fn group_scales<S: Simd, C: ColumnCode>(self, cpu: S, group: usize) -> S::Vector {
        let bytes = &self.scales[group * BLOCK_ROWS * self.scale.bytes()..];
        let scales = match self.scale {
            ScaleType::F32 => cpu.load(&bytemuck::cast(of_rows::<{ 4 * BLOCK_ROWS }>(bytes))),
            ScaleType::F16 => cpu.load_f16(&bytemuck::cast(of_rows::<{ 2 * BLOCK_ROWS }>(bytes))),
            ScaleType::Bf16 => cpu.load_bf16(&bytemuck::cast(of_rows::<{ 2 * BLOCK_ROWS }>(bytes))),
            ScaleType::Ue8m0 => cpu.load(&of_rows::<BLOCK_ROWS>(bytes).map(ue8m0_to_f32)),
        };
        if C::FACTOR == 1.0 { scales } else { cpu.mul(scales, cpu.splat(C::FACTOR)) }
    }
}

/// The first bytes.
#[inline(always)]
fn of_rows<const BYTES: usize>(bytes: &[u8]) -> [u8; BYTES] {
    *bytes.first_chunk().expect("a block holds a scale of each of its 16 rows")
}

impl Tile<'_> {
    /// Sixteen columns of a row; what lies behind the matrix's last column is not defined.
    #[inline(always)]
    pub fn chunk<S: Simd, C: ColumnCode>(&self, cpu: S, row: usize, chunk: usize) -> S::Vector {
        let tile = TileRow { lines: self.lines, gathered: self.gathered, row };
        C::chunk(cpu, tile, chunk, self.scales[chunk][row])
    }
}
