//! Weights of blocks as f32, 16 columns of a row at a time.
//!
//! Integer kernels want a row per lane, as blocks have them; sums over rows and the f32 rule want a
//! column per lane. A [`Tile`] is 64 columns of a block; it hands out any 16 of them of any row,
//! decoded. Codes of up to four bits index a table of 16 f32: the dwords that hold 16 of them are
//! spread over the lanes and shifted; what longer codes have above is looked up alike and added. Bytes
//! are gathered from their lines once per tile and widened. Either is then multiplied with the row's
//! scale, and its minimum added where there are minima; one of the two rounds.

use super::{Simd, gathered_place};
use crate::formats::block::{BLOCK_ROWS, BlockCode};
use crate::formats::scale::ue8m0_to_f32;
use crate::formats::{
    Head, HeadKind, ScaleType,
    five::Five,
    int2_row::Int2,
    int3_group::Int3,
    int4_group::Int4,
    int8_row::Int8,
    iq4_nl::{self, Iq4},
    mxfp4::{E2m1, HALVES},
    q2_k::Uint2,
    q4_1::Uint4,
    q6_k::Int6,
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
static UINT4_VALUES: [f32; LANES] = values([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
static UINT2_VALUES: [f32; LANES] = values([0, 1, 2, 3]);
static IQ4_VALUES: [f32; LANES] = values(iq4_nl::VALUES);
/// What bits 4 and 5 of six add to the low nibble.
static SIX_VALUES: [f32; LANES] = values([-32, -16, 0, 16]);
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

/// Where the fifth bits of columns 0 to 15, and of columns 16 to 31, lie in their dword.
static FIFTH_BITS: [[u32; LANES]; 2] = [fifth_bits(0), fifth_bits(16)];

/// Where the two high bits of 16 columns' six begin in their dword.
static SIX_BITS: [u32; LANES] = {
    let mut bits = [0; LANES];
    let mut column = 0;
    while column < LANES {
        bits[column] = (8 * (column % 8 / 2) + 2 * (column / 8 * 2 + column % 2)) as u32;
        column += 1;
    }
    bits
};

/// Bit i of byte j is that of quad i, byte j.
const fn fifth_bits(first: usize) -> [u32; LANES] {
    let mut bits = [0; LANES];
    let mut i = 0;
    while i < LANES {
        let column = first + i;
        bits[i] = (8 * (column % 8 / 2) + column / 8 * 2 + column % 2) as u32;
        i += 1;
    }
    bits
}

/// The entries of a table that words name, times the scale.
#[inline(always)]
fn look_up<S: Simd>(cpu: S, values: &[f32; LANES], index: S::Words, scale: f32) -> S::Vector {
    cpu.mul(cpu.lookup(cpu.load(values), index), cpu.splat(scale))
}

/// The nibbles of a line and the next.
#[inline(always)]
fn nibbles<S: Simd>(cpu: S, row: TileRow, line: usize) -> S::Words {
    let words = cpu.words(row.dword(line), row.dword(line + 1));
    cpu.shift_right(words, cpu.load_words(&NIBBLE_BITS))
}

/// What a table has for the nibbles of two lines, plus what another one has for the bits above, which
/// begin at `bits` of a third line; times the scale.
#[inline(always)]
fn look_up_planes<S: Simd>(
    cpu: S,
    row: TileRow,
    lines: [usize; 2],
    bits: &[u32; LANES],
    high_values: &[f32; LANES],
    scale: f32,
) -> S::Vector {
    let low = cpu.lookup(cpu.load(&UINT4_VALUES), nibbles(cpu, row, lines[0]));
    let high = row.dword(lines[1]);
    let high = cpu.shift_right(cpu.words(high, high), cpu.load_words(bits));
    let value = cpu.add(low, cpu.lookup(cpu.load(high_values), high));
    cpu.mul(value, cpu.splat(scale))
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
        look_up(cpu, &INT4_VALUES, nibbles(cpu, tile, 2 * chunk), scale)
    }
}

impl ColumnCode for E2m1 {
    #[inline(always)]
    fn chunk<S: Simd>(cpu: S, tile: TileRow, chunk: usize, scale: f32) -> S::Vector {
        look_up(cpu, &E2M1_VALUES, nibbles(cpu, tile, 2 * chunk), scale)
    }
}

impl ColumnCode for Uint4 {
    #[inline(always)]
    fn chunk<S: Simd>(cpu: S, tile: TileRow, chunk: usize, scale: f32) -> S::Vector {
        look_up(cpu, &UINT4_VALUES, nibbles(cpu, tile, 2 * chunk), scale)
    }
}

impl ColumnCode for Iq4 {
    #[inline(always)]
    fn chunk<S: Simd>(cpu: S, tile: TileRow, chunk: usize, scale: f32) -> S::Vector {
        look_up(cpu, &IQ4_VALUES, nibbles(cpu, tile, 2 * chunk), scale)
    }
}

impl<const OFFSET: i32> ColumnCode for Five<OFFSET> {
    #[inline(always)]
    fn chunk<S: Simd>(cpu: S, tile: TileRow, chunk: usize, scale: f32) -> S::Vector {
        let (step, half) = (chunk / 2 * Self::STEP_LINES, chunk % 2);
        let values = const { values([-OFFSET as i8, 16 - OFFSET as i8]) };
        let lines = [step + 2 * half, step + 4];
        look_up_planes(cpu, tile, lines, &FIFTH_BITS[half], &values, scale)
    }
}

impl ColumnCode for Int6 {
    #[inline(always)]
    fn chunk<S: Simd>(cpu: S, tile: TileRow, chunk: usize, scale: f32) -> S::Vector {
        let step = chunk * Self::STEP_LINES;
        look_up_planes(cpu, tile, [step, step + 2], &SIX_BITS, &SIX_VALUES, scale)
    }
}

impl ColumnCode for Uint2 {
    #[inline(always)]
    fn chunk<S: Simd>(cpu: S, tile: TileRow, chunk: usize, scale: f32) -> S::Vector {
        let dword = tile.dword(chunk);
        let pairs = cpu.shift_right(cpu.words(dword, dword), cpu.load_words(&PAIR_BITS));
        look_up(cpu, &UINT2_VALUES, pairs, scale)
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
    /// What the head's bytes mean.
    head: Head,
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
    /// The same of minima, where there are any.
    minima: Option<[[f32; BLOCK_ROWS]; TILE_CHUNKS]>,
}

impl<'a> Block<'a> {
    /// The block that starts at row `16 * index` of a matrix of codes.
    #[inline(always)]
    pub fn of(w: Weights<'a>, index: usize) -> Block<'a> {
        let (format, cols) = (w.format(), w.cols());
        let bytes = format.block_bytes(cols);
        let block = &w.bytes()[index * bytes..][..bytes];
        let head = Head::of(format, cols).expect("codes have scales");
        let (scales, lines) = block.split_at(head.bytes());
        Block { cols, head, scales, lines: bytemuck::cast_slice(lines) }
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
        let mut minima = self.head.kind.has_minima().then_some(scales);
        // A part is a multiple of 16 columns; chunks behind the last column don't matter.
        let mut last = None;
        for chunk in 0..TILE_CHUNKS.min((self.cols - first).div_ceil(LANES)) {
            let part = (first + chunk * LANES) / self.head.part;
            if last == Some(part) {
                scales[chunk] = scales[chunk - 1];
                if let Some(minima) = &mut minima {
                    minima[chunk] = minima[chunk - 1];
                }
                continue;
            }
            last = Some(part);
            let (scale, minimum) = self.part_scales::<S, C>(cpu, part);
            cpu.store(scale, &mut scales[chunk]);
            if let Some(minima) = &mut minima {
                cpu.store(minimum, &mut minima[chunk]);
            }
        }
        Tile { lines, gathered, scales, minima }
    }

    /// The scales of a part's 16 rows, the format's constant factor included, and the minima, which
    /// don't matter where there are none.
    #[inline(always)]
    fn part_scales<S: Simd, C: ColumnCode>(self, cpu: S, part: usize) -> (S::Vector, S::Vector) {
        let (group, part) = self.head.part_bytes_of(self.scales, part);
        let half = |place: usize| {
            cpu.load_f16(&bytemuck::cast(of_rows::<{ 2 * BLOCK_ROWS }>(&group[2 * place..])))
        };
        let numbers = |number: fn(u8) -> f32, place: usize| {
            cpu.load(&of_rows::<BLOCK_ROWS>(&part[place..]).map(number))
        };
        match self.head.kind {
            HeadKind::Scales(scale) => {
                let scales = group_scales(cpu, scale, group);
                let factor = cpu.splat(C::FACTOR);
                let scales = if C::FACTOR == 1.0 { scales } else { cpu.mul(scales, factor) };
                (scales, scales)
            }
            HeadKind::Minima => (half(0), half(BLOCK_ROWS)),
            HeadKind::Nested => {
                let scales = cpu.mul(half(0), numbers(|byte| f32::from(byte as i8), 0));
                (scales, scales)
            }
            HeadKind::NestedMinima => (
                cpu.mul(half(0), numbers(f32::from, 0)),
                cpu.mul(half(BLOCK_ROWS), numbers(f32::from, BLOCK_ROWS)),
            ),
            HeadKind::NestedNibbles => (
                cpu.mul(half(0), numbers(|byte| f32::from(byte & 15), 0)),
                cpu.mul(half(BLOCK_ROWS), numbers(|byte| f32::from(byte >> 4), 0)),
            ),
        }
    }
}

/// The scales of a group's 16 rows.
#[inline(always)]
fn group_scales<S: Simd>(cpu: S, scale: ScaleType, bytes: &[u8]) -> S::Vector {
    match scale {
        ScaleType::F32 => cpu.load(&bytemuck::cast(of_rows::<{ 4 * BLOCK_ROWS }>(bytes))),
        ScaleType::F16 => cpu.load_f16(&bytemuck::cast(of_rows::<{ 2 * BLOCK_ROWS }>(bytes))),
        ScaleType::Bf16 => cpu.load_bf16(&bytemuck::cast(of_rows::<{ 2 * BLOCK_ROWS }>(bytes))),
        ScaleType::Ue8m0 => cpu.load(&of_rows::<BLOCK_ROWS>(bytes).map(ue8m0_to_f32)),
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
        let product = C::chunk(cpu, tile, chunk, self.scales[chunk][row]);
        match &self.minima {
            Some(minima) => cpu.add(product, cpu.splat(minima[chunk][row])),
            None => product,
        }
    }
}
