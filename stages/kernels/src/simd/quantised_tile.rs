//! One block of 16 weight rows times a few tokens.
//!
//! A dword lane is a weight row, so a sum needs no tree: 16 rows' chains of
//! `sum = fma(dot, weight scale * activation scale, sum)` run side by side. A unit's dot starts at
//! minus the offset times the sum of its activation codes and collects unsigned weight bytes times
//! codes, which makes it the exact dot of the values.
//!
//! Where the weights come from memory, a tile also sees to it that they are there in time, in one
//! of two ways ([`touches`]).

use super::codes::{Lines, QuadBytes};
use super::heads::{Heads, Rows16};
use super::integers::{IntegerSimd, LineBytes, Strip};
use super::walk::Walk;
use super::{Simd, Weights, prefetch, prefetch_near};
use crate::activations::Quantised;
use crate::formats::block::LINE_BYTES;
use crate::formats::{Head, ScaleType};

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
    /// Bytes of the head of a block: its scales and minima.
    head_bytes: usize,
    scale: ScaleType,
    /// Groups of columns that share a weight scale, bytes of each in the head, and units of each.
    groups: usize,
    group_bytes: usize,
    group_units: usize,
    /// Units of a row; the last may have fewer lines.
    units: usize,
}

impl Shape {
    /// The shape of blocks whose units are `STRIPS` strips.
    pub fn of<const STRIPS: usize>(w: Weights) -> Shape {
        let (format, cols) = (w.format(), w.cols());
        let head = Head::of(format, cols).expect("codes have scales");
        let unit = STRIPS * size_of::<Strip>();
        assert_eq!(unit, format.unit(), "{format}");
        let units = cols.div_ceil(unit);
        // Where a row has one scale, its group ends with the row.
        let group_units = if head.groups == 1 { units } else { head.group / unit };
        Shape {
            block_bytes: format.block_bytes(cols),
            head_bytes: head.bytes(),
            scale: format.scale_type().expect("codes have scales"),
            groups: head.groups,
            group_bytes: head.group_bytes(),
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

/// Units of a portion, the shortest run of units that is whole lines and worth a turn of the loop.
const fn portion_units<H: Heads>(strips: usize) -> usize {
    if H::NESTED && strips == 1 { 2 } else { 1 }
}

/// Sums of the first block of `bytes` with N tokens; what follows the block is used soon.
#[inline(always)]
pub fn tile<
    S: IntegerSimd,
    C: Lines,
    H: Heads,
    const STRIPS: usize,
    const N: usize,
    const CHAINS: usize,
>(
    cpu: S,
    shape: &Shape,
    bytes: &[u8],
    tokens: &Tokens<STRIPS, N>,
    fetch: bool,
) -> [<S::Float as Simd>::Vector; N] {
    let (head, lines) = bytes[..shape.block_bytes].split_at(shape.head_bytes);
    let lines: &[LineBytes] = lines.as_chunks().0;
    let units = const { portion_units::<H>(STRIPS) };
    let portion_lines = units * STRIPS / C::CHUNK_STRIPS * C::CHUNK_LINES;
    let whole = (lines.len() / portion_lines).min(shape.units / units);
    let group_portions = shape.group_units / units;
    let tokens = tokens.first(shape.units);
    let touch = fetch && touches::<S, C, N>(cpu);
    let piece_portions = (piece_lines::<C>() / portion_lines).max(1);
    let mut next = shape.head_bytes;
    if touch {
        cpu.touch(head.as_chunks().0);
    }
    let mut sums = [cpu.float().splat(0.0); N];
    let (mut portion, mut group) = (0, 0);
    while portion < whole {
        let of_group = Group::<S>::of::<C, H>(cpu, shape, head, group);
        if fetch && !touch {
            next = ask(bytes, next, shape.group_bytes);
        }
        let first = portion;
        let end = whole.min(portion + group_portions);
        while portion < end {
            let later = &lines[portion * portion_lines..];
            if touch && portion.is_multiple_of(piece_portions) {
                cpu.touch(&later[..later.len().min(piece_portions * portion_lines)]);
            }
            if fetch && !touch {
                next = ask(bytes, next, portion_lines * LINE_BYTES);
            }
            let lines = &later[..portion_lines];
            for u in 0..units {
                let unit = portion * units + u;
                let weights = of_group.part::<H>(cpu, (portion - first) * units + u);
                let dots = unit_dots::<S, C, STRIPS, N, CHAINS>(cpu, lines, u, &tokens, unit);
                add_unit::<S, H, STRIPS, N>(cpu, weights, dots, &tokens, unit, &mut sums);
            }
            portion += 1;
        }
        group += 1;
    }
    if whole * units < shape.units {
        let rest = &lines[whole * portion_lines..];
        let first = whole * units;
        last_portion::<S, C, H, STRIPS, N, CHAINS>(
            cpu, shape, head, rest, &tokens, first, &mut sums,
        );
    }
    sums
}

/// Adds the units from `first` on, fewer than a portion: what is missing of their lines meets activation
/// codes of zero.
#[inline(always)]
fn last_portion<
    S: IntegerSimd,
    C: Lines,
    H: Heads,
    const STRIPS: usize,
    const N: usize,
    const CHAINS: usize,
>(
    cpu: S,
    shape: &Shape,
    head: &[u8],
    lines: &[LineBytes],
    tokens: &Tokens<STRIPS, N>,
    first: usize,
    sums: &mut [<S::Float as Simd>::Vector; N],
) {
    let mut padded = [[0; LINE_BYTES]; UNIT_LINES_MAX];
    padded[..lines.len()].copy_from_slice(lines);
    let last = shape.groups - 1;
    let group = Group::<S>::of::<C, H>(cpu, shape, head, last);
    for unit in first..shape.units {
        let weights = group.part::<H>(cpu, unit - last * shape.group_units);
        let place = unit - first;
        let dots = unit_dots::<S, C, STRIPS, N, CHAINS>(cpu, &padded, place, tokens, unit);
        add_unit::<S, H, STRIPS, N>(cpu, weights, dots, tokens, unit, sums);
    }
}

/// The scales and minima of a group, the format's factor included, and the bytes of its parts.
struct Group<'a, S: IntegerSimd> {
    rows: Rows16<S>,
    parts: &'a [u8],
}

impl<'a, S: IntegerSimd> Group<'a, S> {
    #[inline(always)]
    fn of<C: Lines, H: Heads>(cpu: S, shape: &Shape, head: &'a [u8], group: usize) -> Self {
        let bytes = &head[group * shape.group_bytes..][..shape.group_bytes];
        let mut rows = H::group(cpu, shape.scale, bytes);
        if C::FACTOR != 1.0 {
            let float = cpu.float();
            rows.scales = float.mul(rows.scales, float.splat(C::FACTOR));
        }
        let parts = if H::NESTED { &bytes[H::KIND.group_bytes()..] } else { &[] };
        Group { rows, parts }
    }

    /// Those of a unit, counted from the group's first.
    #[inline(always)]
    fn part<H: Heads>(&self, cpu: S, unit: usize) -> Rows16<S> {
        let bytes = H::KIND.part_bytes();
        if H::NESTED {
            H::part(cpu, self.rows, &self.parts[unit * bytes..][..bytes])
        } else {
            self.rows
        }
    }
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

/// The exact dots of unit `place` of a portion's lines with N tokens; it is unit `unit` of the row.
/// Short units are many, so that one chain of dots each is enough.
#[inline(always)]
fn unit_dots<S: IntegerSimd, C: Lines, const STRIPS: usize, const N: usize, const CHAINS: usize>(
    cpu: S,
    lines: &[LineBytes],
    place: usize,
    tokens: &Tokens<STRIPS, N>,
    unit: usize,
) -> [S::Line; N] {
    match STRIPS {
        1 => dots_in_chains::<S, C, STRIPS, N, 1>(cpu, lines, place, tokens, unit),
        _ => dots_in_chains::<S, C, STRIPS, N, CHAINS>(cpu, lines, place, tokens, unit),
    }
}

/// [`unit_dots`] in so many chains.
#[inline(always)]
fn dots_in_chains<
    S: IntegerSimd,
    C: Lines,
    const STRIPS: usize,
    const N: usize,
    const CHAINS: usize,
>(
    cpu: S,
    lines: &[LineBytes],
    place: usize,
    tokens: &Tokens<STRIPS, N>,
    unit: usize,
) -> [S::Line; N] {
    let signed = matches!(C::BYTES, QuadBytes::Signed);
    let offset = if signed { S::SIGNED_OFFSET } else { C::OFFSET };
    let mut sums = [[cpu.splat(0); CHAINS]; N];
    for (t, sums) in sums.iter_mut().enumerate() {
        sums[0] = cpu.splat(tokens.sums[t][unit].wrapping_mul(-offset));
    }
    for strip in 0..STRIPS {
        let within = place * STRIPS + strip;
        let (chunk, part) = (within / C::CHUNK_STRIPS, within % C::CHUNK_STRIPS);
        let chunk = &lines[chunk * C::CHUNK_LINES..][..C::CHUNK_LINES];
        let quads = C::quads(cpu, chunk, part);
        for (t, sums) in sums.iter_mut().enumerate() {
            let x = &tokens.strips[t][unit][strip];
            match C::BYTES {
                QuadBytes::Small => cpu.dot_unsigned(sums, &quads, x),
                QuadBytes::Six => cpu.dot_six(sums, &quads, x),
                QuadBytes::Signed => cpu.dot_signed(sums, &quads, x),
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

/// Adds a unit's dots to the sums; see [`crate::scalar::matmul_quantised`].
#[inline(always)]
fn add_unit<S: IntegerSimd, H: Heads, const STRIPS: usize, const N: usize>(
    cpu: S,
    weights: Rows16<S>,
    dots: [S::Line; N],
    tokens: &Tokens<STRIPS, N>,
    unit: usize,
    sums: &mut [<S::Float as Simd>::Vector; N],
) {
    let float = cpu.float();
    for t in 0..N {
        let (dot, scale) = (cpu.to_float(dots[t]), float.splat(tokens.scales[t][unit]));
        sums[t] = if H::MINIMA {
            let codes = cpu.to_float(cpu.splat(tokens.sums[t][unit]));
            let minima = float.mul(weights.minima, codes);
            float.fma(float.fma(dot, weights.scales, minima), scale, sums[t])
        } else {
            float.fma(dot, float.mul(weights.scales, scale), sums[t])
        };
    }
}
