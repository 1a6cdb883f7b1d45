//! From ggml's blocks to the compute layout.
//!
//! Experts are laid out as they arrive from the drive, so this is on the data path: nothing is
//! allocated, and the work is loops over bytes that the compiler turns into vectors. A run of up to 256
//! columns of a row becomes codes, one a byte, then the dwords of its lines, then they go to their lines.
//! A panel of a block's 16 rows is done before the next, so that its lines stay in the first-level cache.

use super::blocks::{COLUMNS_MAX, GgmlBlock};
use crate::formats::FileMatrix;
use crate::formats::block::{BLOCK_ROWS, BlockCode, LINE_BYTES, dword};
use crate::formats::head::Head;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Operation, Simd};
use std::marker::PhantomData;
use std::ops::Range;

/// Bytes of a row in a line.
const DWORD: usize = 4;

/// Columns of a panel: its lines are 16 KiB at most, and what it reads of a row is a few hundred bytes.
const PANEL_COLUMNS: usize = 1024;

/// Lays out a rectangle of blocks of type `B`; lengths are checked.
pub fn lay_out<B: GgmlBlock>(
    file: &FileMatrix,
    rows: Range<usize>,
    cols: Range<usize>,
    out: &mut [u8],
) {
    let work = Work::<B> { file, rows, cols, out, block: PhantomData };
    #[cfg(target_arch = "x86_64")]
    if let Some(cpu) = Avx2::detect() {
        return cpu.run(work);
    }
    work.all_rows();
}

/// A rectangle and where it goes.
struct Work<'a, B> {
    file: &'a FileMatrix<'a>,
    rows: Range<usize>,
    cols: Range<usize>,
    out: &'a mut [u8],
    block: PhantomData<B>,
}

/// The same code, compiled with wider registers.
#[cfg(target_arch = "x86_64")]
impl<B: GgmlBlock> Operation for Work<'_, B> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _cpu: S) {
        self.all_rows();
    }
}

impl<B: GgmlBlock> Work<'_, B> {
    #[inline(always)]
    fn all_rows(self) {
        let Work { file, rows, cols, out, .. } = self;
        let head = Head::of(file.format, cols.len()).expect("blocks have scales");
        let block_bytes = file.format.block_bytes(cols.len());
        let row_bytes = B::KIND.whole_row_bytes(file.cols);
        let mut room = Room { codes: [0; 2 * COLUMNS_MAX], dwords: [0; COLUMNS_MAX] };
        let firsts = rows.clone().step_by(BLOCK_ROWS);
        for (first, out) in firsts.zip(out.chunks_exact_mut(block_bytes)) {
            let (scales, lines) = out.split_at_mut(head.bytes());
            // What no scale is written to: the end, and rows that aren't there.
            let written =
                if rows.end - first < BLOCK_ROWS { 0 } else { head.groups * head.group_bytes() };
            scales[written..].fill(0);
            for panel in cols.clone().step_by(PANEL_COLUMNS) {
                let panel = panel..cols.end.min(panel + PANEL_COLUMNS);
                for r in 0..BLOCK_ROWS.min(rows.end - first) {
                    let row = &file.weights[(first + r) * row_bytes..][..row_bytes];
                    let mut column = panel.start;
                    while column < panel.end {
                        let end = panel.end.min(B::run_end(column));
                        let to = column - cols.start;
                        room.unpack::<B>(row, column..end);
                        room.put_codes::<B>(column..end, r, to, lines);
                        put_scales::<B>(row, column..end, r, to, &head, scales);
                        column = end;
                    }
                }
            }
            for r in rows.end - first..BLOCK_ROWS {
                fill_row::<B::Codes>(r, lines);
            }
        }
    }
}

/// What a run takes on its way.
struct Room {
    /// Codes of a run, one a byte, from the start of the first block on.
    codes: [u8; 2 * COLUMNS_MAX],
    /// A row's dwords of the run's lines.
    dwords: [u8; COLUMNS_MAX],
}

impl Room {
    /// The codes of some columns of a row, at most 256 that end where [`GgmlBlock::run_end`] says or
    /// before.
    #[inline(always)]
    fn unpack<B: GgmlBlock>(&mut self, row: &[u8], run: Range<usize>) {
        let (columns, bytes) = (B::KIND.block_columns(), B::KIND.block_bytes());
        let blocks = row[run.start / columns * bytes..].chunks_exact(bytes);
        if run.len() == COLUMNS_MAX {
            // As often as the compiler knows.
            let codes = self.codes[..COLUMNS_MAX].chunks_exact_mut(columns);
            blocks.zip(codes).for_each(|(block, codes)| B::codes(block, codes));
        } else {
            let count = run.end.div_ceil(columns) - run.start / columns;
            let codes = self.codes.chunks_exact_mut(columns).take(count);
            blocks.zip(codes).for_each(|(block, codes)| B::codes(block, codes));
        }
    }

    /// Puts the codes of a run into a row's dwords of the lines, from column `to` on.
    #[inline(always)]
    fn put_codes<B: GgmlBlock>(
        &mut self,
        run: Range<usize>,
        r: usize,
        to: usize,
        lines: &mut [u8],
    ) {
        let step = B::Codes::STEP_COLUMNS;
        let line = to / step * B::Codes::STEP_LINES;
        let count = if run.len() == COLUMNS_MAX {
            let count = COLUMNS_MAX / step * B::Codes::STEP_LINES;
            B::Codes::pack(&self.codes[..COLUMNS_MAX], &mut self.dwords[..count * DWORD]);
            count
        } else {
            let first = run.start % B::KIND.block_columns();
            let whole = run.len().next_multiple_of(step);
            self.codes[first + run.len()..first + whole].fill(B::Codes::ZERO_CODE);
            let count = whole / step * B::Codes::STEP_LINES;
            let codes = &self.codes[first..first + whole];
            B::Codes::pack(codes, &mut self.dwords[..count * DWORD]);
            count
        };
        let lines = &mut lines.as_chunks_mut::<LINE_BYTES>().0[line..line + count];
        let dwords = &self.dwords.as_chunks::<DWORD>().0[..count];
        for (line, word) in lines.iter_mut().zip(dwords) {
            line[dword(r)..dword(r) + DWORD].copy_from_slice(word);
        }
    }
}

/// Puts the scales of a run into the head, those of column `to` on.
#[inline(always)]
fn put_scales<B: GgmlBlock>(
    row: &[u8],
    run: Range<usize>,
    r: usize,
    to: usize,
    head: &Head,
    out: &mut [u8],
) {
    let (columns, bytes) = (B::KIND.block_columns(), B::KIND.block_bytes());
    let mut blocks = row[run.start / columns * bytes..].chunks_exact(bytes);
    let groups = out[to / head.group * head.group_bytes()..].chunks_exact_mut(head.group_bytes());
    if head.part_bytes() == 0 {
        // A group is a block.
        for (block, group) in blocks.zip(groups).take(run.len().div_ceil(columns)) {
            let block = B::scales(block);
            head.put_group(r, block.scale, block.minimum, group);
        }
        return;
    }
    // All groups of the run are parts of one block.
    let block = B::scales(blocks.next().expect("a run lies in the row"));
    let mut part = run.start % columns / head.part;
    for group in groups.take(run.len().div_ceil(head.group)) {
        let (own, parts) = group.split_at_mut(head.kind.group_bytes());
        head.put_group(r, block.scale, block.minimum, own);
        for out in parts.chunks_exact_mut(head.part_bytes()) {
            head.put_part(r, block.parts[part], block.minima[part], out);
            part += 1;
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
