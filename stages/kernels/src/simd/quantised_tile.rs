//! One block of 16 weight rows times a few tokens.
//!
//! A dword lane is a weight row, so a sum needs no tree: 16 rows' chains of
//! `sum = fma(dot, weight scale * activation scale, sum)` run side by side. A unit's dot starts at
//! minus the offset times the sum of its activation codes and collects unsigned weight bytes times
//! codes, which makes it the exact dot of the values.
//!
//! Where the weights come from memory, a tile also sees to it that they are there in time, in one
//! of two ways ([`touches`]).

use super::codes::Lines;
use super::integers::{IntegerSimd, LineBytes, Strip, load_scales};
use super::walk::Walk;
use super::{Simd, Weights, prefetch, prefetch_near};
use crate::activations::Quantised;
use crate::formats::block::LINE_BYTES;
use crate::formats::{BLOCK_ROWS, ScaleType};

/// Lines of the longest unit: 64 columns of int8.
const UNIT_LINES_MAX: usize = 16;

/// Lines of a piece that is touched before it is used; see [`touches`]. Measured from memory on Zen 4
/// (benches/kernels, one thread, share of a plain read): int8 0.90 with 16, 0.80 with 32; int4 0.74 and
/// 0.77; longer pieces lose.
const fn piece_lines<C: Lines>() -> usize {
    if C::LINE_WORK == 1 { 16 } else { 32 }
}

/// How far ahead of its use a line is asked for, at least: from memory, and from the second-level
/// cache. Lines are asked for in address order, scales included, whatever order a tile uses.
const AHEAD_BYTES: usize = 8 << 10;
const NEAR_BYTES: usize = 1 << 10;

/// What the blocks of a matrix have in common.
#[derive(Clone, Copy)]
pub struct Shape {
    pub block_bytes: usize,
    /// Bytes of the scales at the head of a block.
    scale_bytes: usize,
    scale: ScaleType,
    /// Groups of columns that share a weight scale, and units of each.
    groups: usize,
    group_units: usize,
    /// Units of a row; the last may have fewer lines.
    units: usize,
}

impl Shape {
    /// The shape of blocks whose units are `STRIPS` strips.
    pub fn of<const STRIPS: usize>(w: Weights) -> Shape {
        let (format, cols) = (w.format(), w.cols());
        let (unit, groups) = (STRIPS * size_of::<Strip>(), format.scales_per_row(cols));
        assert_eq!(unit, format.unit(), "{format}");
        let units = cols.div_ceil(unit);
        // Where a row has one scale, group() is 1.
        let group_units = if groups == 1 { units } else { format.group() / unit };
        Shape {
            block_bytes: format.block_bytes(cols),
            scale_bytes: format.block_scale_bytes(cols),
            scale: format.scale_type().expect("codes have scales"),
            groups,
            group_units,
            units,
        }
    }
}

/// Rows of activations as tiles read them.
pub struct Tokens<'a, const STRIPS: usize, const N: usize> {
    /// The strips of every unit; room for codes is a multiple of every unit.
    strips: [&'a [[Strip; STRIPS]]; N],
    scales: [&'a [f32]; N],
    sums: [&'a [i32]; N],
}

impl<'a, const STRIPS: usize, const N: usize> Tokens<'a, STRIPS, N> {
    /// The N chosen rows.
    #[inline(always)]
    pub fn of(x: Quantised<'a>) -> Self {
        let mut tokens = Tokens { strips: [&[]; N], scales: [&[]; N], sums: [&[]; N] };
        for t in 0..N {
            let row = x.token(t);
            tokens.strips[t] = row.codes.as_chunks().0.as_chunks().0;
            tokens.scales[t] = row.scales;
            tokens.sums[t] = row.sums;
        }
        tokens
    }

    /// The first units: lists of one length, which spares checks in loops over units.
    #[inline(always)]
    fn first(&self, units: usize) -> Self {
        let mut tokens = Tokens { strips: [&[]; N], scales: [&[]; N], sums: [&[]; N] };
        for t in 0..N {
            tokens.strips[t] = &self.strips[t][..units];
            tokens.scales[t] = &self.scales[t][..units];
            tokens.sums[t] = &self.sums[t][..units];
        }
        tokens
    }
}

/// Sums of the first block of `bytes` with N tokens; what follows the block is used soon.
#[inline(always)]
pub fn tile<S: IntegerSimd, C: Lines, const STRIPS: usize, const N: usize, const CHAINS: usize>(
    cpu: S,
    shape: &Shape,
    bytes: &[u8],
    tokens: &Tokens<STRIPS, N>,
    fetch: bool,
) -> [<S::Float as Simd>::Vector; N] {
    let (scales, lines) = bytes[..shape.block_bytes].split_at(shape.scale_bytes);
    let lines: &[LineBytes] = lines.as_chunks().0;
    let unit_lines = STRIPS / C::CHUNK_STRIPS * C::CHUNK_LINES;
    let whole = lines.len() / unit_lines;
    let tokens = tokens.first(shape.units);
    let touch = fetch && touches::<S, C, N>(cpu);
    let piece_units = (piece_lines::<C>() / unit_lines).max(1);
    let mut next = shape.scale_bytes;
    if touch {
        cpu.touch(scales.as_chunks().0);
    }
    let mut sums = [cpu.float().splat(0.0); N];
    let (mut unit, mut group) = (0, 0);
    while unit < whole {
        let weights = weight_scales::<S, C>(cpu, shape, scales, group);
        if fetch && !touch {
            next = ask(bytes, next, BLOCK_ROWS * shape.scale.bytes());
        }
        let end = whole.min(unit + shape.group_units);
        while unit < end {
            let later = &lines[unit * unit_lines..];
            if touch && unit.is_multiple_of(piece_units) {
                cpu.touch(&later[..later.len().min(piece_units * unit_lines)]);
            }
            if fetch && !touch {
                next = ask(bytes, next, unit_lines * LINE_BYTES);
            }
            let lines = &later[..unit_lines];
            let dots = unit_dots::<S, C, STRIPS, N, CHAINS>(cpu, lines, &tokens, unit);
            add_unit(cpu, weights, dots, &tokens, unit, &mut sums);
            unit += 1;
        }
        group += 1;
    }
    if whole < shape.units {
        // The last unit isn't whole: what is missing meets activation codes of zero.
        let mut padded = [[0; LINE_BYTES]; UNIT_LINES_MAX];
        let rest = &lines[whole * unit_lines..];
        padded[..rest.len()].copy_from_slice(rest);
        let weights = weight_scales::<S, C>(cpu, shape, scales, shape.groups - 1);
        let lines = &padded[..unit_lines];
        let dots = unit_dots::<S, C, STRIPS, N, CHAINS>(cpu, lines, &tokens, whole);
        add_unit(cpu, weights, dots, &tokens, whole, &mut sums);
    }
    sums
}

/// True if a tile touches a block's scales, and its lines piece by piece, before it uses them;
/// false if it asks for every line some KiB ahead.
///
/// Measured on Zen 4, which [`Walk::Touch`] stands for: a run of plain loads in address order keeps
/// the CPU's own prefetcher going, which the jumps between scales and lines bring to a halt for about
/// a microsecond a block, and then the memory delivers all it can. But little is computed meanwhile.
/// Where there is more to compute per line, asking ahead does better.
#[inline(always)]
fn touches<S: IntegerSimd, C: Lines, const N: usize>(cpu: S) -> bool {
    N * C::LINE_WORK <= S::LIGHT_WORK && cpu.float().avx2().walk() == Walk::Touch
}

/// Asks for the lines that come some KiB after the `bytes` bytes from `next` on; returns the end
/// of those.
#[inline(always)]
fn ask(block: &[u8], next: usize, bytes: usize) -> usize {
    for line in 0..bytes.div_ceil(LINE_BYTES) {
        let place = next + line * LINE_BYTES;
        prefetch(block, place + AHEAD_BYTES);
        prefetch_near(block, place + NEAR_BYTES);
    }
    next + bytes
}

/// The weight scales of a group, the format's factor included.
#[inline(always)]
fn weight_scales<S: IntegerSimd, C: Lines>(
    cpu: S,
    shape: &Shape,
    scales: &[u8],
    group: usize,
) -> <S::Float as Simd>::Vector {
    let bytes = BLOCK_ROWS * shape.scale.bytes();
    let scales = load_scales(cpu, shape.scale, &scales[group * bytes..]);
    let float = cpu.float();
    if C::FACTOR == 1.0 { scales } else { float.mul(scales, float.splat(C::FACTOR)) }
}

/// The exact dots of a whole unit's lines with N tokens.
#[inline(always)]
fn unit_dots<S: IntegerSimd, C: Lines, const STRIPS: usize, const N: usize, const CHAINS: usize>(
    cpu: S,
    lines: &[LineBytes],
    tokens: &Tokens<STRIPS, N>,
    unit: usize,
) -> [S::Line; N] {
    let offset = if C::SIGNED { S::SIGNED_OFFSET } else { C::OFFSET };
    let mut sums = [[cpu.splat(0); CHAINS]; N];
    for (t, sums) in sums.iter_mut().enumerate() {
        sums[0] = cpu.splat(tokens.sums[t][unit].wrapping_mul(-offset));
    }
    for strip in 0..STRIPS {
        let (chunk, part) = (strip / C::CHUNK_STRIPS, strip % C::CHUNK_STRIPS);
        let chunk = &lines[chunk * C::CHUNK_LINES..][..C::CHUNK_LINES];
        let quads = C::quads(cpu, chunk, part);
        for (t, sums) in sums.iter_mut().enumerate() {
            let x = &tokens.strips[t][unit][strip];
            if C::SIGNED {
                cpu.dot_signed(sums, &quads, x);
            } else {
                cpu.dot_unsigned(sums, &quads, x);
            }
        }
    }
    let mut dots = [cpu.splat(0); N];
    for t in 0..N {
        dots[t] = sums[t][0];
        for sum in &sums[t][1..] {
            dots[t] = cpu.add(dots[t], *sum);
        }
    }
    dots
}

/// Adds a unit's dots to the sums.
#[inline(always)]
fn add_unit<S: IntegerSimd, const STRIPS: usize, const N: usize>(
    cpu: S,
    weights: <S::Float as Simd>::Vector,
    dots: [S::Line; N],
    tokens: &Tokens<STRIPS, N>,
    unit: usize,
    sums: &mut [<S::Float as Simd>::Vector; N],
) {
    let float = cpu.float();
    for t in 0..N {
        let scale = float.mul(weights, float.splat(tokens.scales[t][unit]));
        sums[t] = float.fma(cpu.to_float(dots[t]), scale, sums[t]);
    }
}
