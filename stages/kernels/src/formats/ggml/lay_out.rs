//! From ggml's blocks to the compute layout.
//!
//! Experts are laid out as they arrive from the drive, so this is on the data path: nothing is
//! allocated, and the work is done a block at a time by loops that the compiler turns into vectors.
//! A block's codes become bytes, bytes become the dwords of a row, and dwords go to their lines.

use super::blocks::{BlockScales, COLUMNS_MAX, GgmlBlock};
use crate::formats::FileMatrix;
use crate::formats::block::{BLOCK_ROWS, BlockCode, LINE_BYTES, dword};
use crate::formats::head::Head;
use std::ops::Range;

/// Bytes of a row in a line.
const DWORD: usize = 4;

/// Lays out a rectangle of blocks of type `B`; lengths are checked.
pub fn lay_out<B: GgmlBlock>(
    file: &FileMatrix,
    rows: Range<usize>,
    cols: Range<usize>,
    out: &mut [u8],
) {
    let block_bytes = file.format.block_bytes(cols.len());
    let head = Head::of(file.format, cols.len()).expect("blocks have scales");
    let row_bytes = B::KIND.whole_row_bytes(file.cols);
    for (first, out) in rows.clone().step_by(BLOCK_ROWS).zip(out.chunks_exact_mut(block_bytes)) {
        let (scales, lines) = out.split_at_mut(head.bytes());
        scales.fill(0);
        for r in 0..BLOCK_ROWS {
            let row = first + r;
            if row < rows.end {
                let row = &file.weights[row * row_bytes..][..row_bytes];
                lay_out_row::<B>(row, &cols, r, &head, scales, lines);
            } else {
                fill_row::<B::Codes>(r, lines);
            }
        }
    }
}

/// A row of blocks.
fn lay_out_row<B: GgmlBlock>(
    row: &[u8],
    cols: &Range<usize>,
    r: usize,
    head: &Head,
    scales: &mut [u8],
    lines: &mut [u8],
) {
    let block_columns = B::KIND.block_columns();
    let blocks = cols.start / block_columns..cols.end.div_ceil(block_columns);
    for index in blocks {
        let block = &row[index * B::KIND.block_bytes()..][..B::KIND.block_bytes()];
        let start = index * block_columns;
        let within = cols.start.max(start)..cols.end.min(start + block_columns);
        let mut codes = [0; COLUMNS_MAX];
        B::codes(block, &mut codes[..block_columns]);
        let to = within.start - cols.start;
        if within.len() == block_columns {
            // A constant length, and the compiler knows it.
            put_codes::<B::Codes>(&codes[..block_columns], r, to, lines);
        } else {
            let whole = within.len().next_multiple_of(B::Codes::STEP_COLUMNS);
            let from = within.start - start;
            let mut part = [B::Codes::ZERO_CODE; COLUMNS_MAX];
            part[..within.len()].copy_from_slice(&codes[from..][..within.len()]);
            put_codes::<B::Codes>(&part[..whole], r, to, lines);
        }
        put_scales(&B::scales(block), within.start - start, to..to + within.len(), r, head, scales);
    }
}

/// Codes of whole steps from a column on.
#[inline(always)]
fn put_codes<C: BlockCode>(codes: &[u8], r: usize, column: usize, lines: &mut [u8]) {
    let count = codes.len() / C::STEP_COLUMNS * C::STEP_LINES;
    let mut dwords = [0; COLUMNS_MAX];
    C::pack(codes, &mut dwords[..count * DWORD]);
    let dwords = dwords.as_chunks::<DWORD>().0;
    let first = column / C::STEP_COLUMNS * C::STEP_LINES * LINE_BYTES;
    let lines = &mut lines[first..first + count * LINE_BYTES];
    for (line, word) in lines.as_chunks_mut::<LINE_BYTES>().0.iter_mut().zip(dwords) {
        line[dword(r)..dword(r) + DWORD].copy_from_slice(word);
    }
}

/// A block's scales: `columns` are those of the matrix, the first of them is column `from` of the
/// block.
#[inline(always)]
fn put_scales(
    block: &BlockScales,
    from: usize,
    columns: Range<usize>,
    r: usize,
    head: &Head,
    out: &mut [u8],
) {
    for group in columns.start / head.group..columns.end.div_ceil(head.group) {
        head.put_group(group, r, block.scale, block.minimum, out);
    }
    if head.part_bytes() > 0 {
        let parts = columns.start / head.part..columns.end.div_ceil(head.part);
        for (index, part) in parts.enumerate() {
            let index = from / head.part + index;
            head.put_part(part, r, block.parts[index], block.minima[index], out);
        }
    }
}

/// A row that isn't there means zero.
fn fill_row<C: BlockCode>(r: usize, lines: &mut [u8]) {
    let codes = [C::ZERO_CODE; COLUMNS_MAX];
    let mut dwords = [0; COLUMNS_MAX];
    C::pack(&codes[..C::STEP_COLUMNS], &mut dwords[..C::STEP_LINES * DWORD]);
    let words = dwords.as_chunks::<DWORD>().0[..C::STEP_LINES].iter().cycle();
    for (line, word) in lines.as_chunks_mut::<LINE_BYTES>().0.iter_mut().zip(words) {
        line[dword(r)..dword(r) + DWORD].copy_from_slice(word);
    }
}
