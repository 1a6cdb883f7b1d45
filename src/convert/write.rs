//! Writing one file of weights: units of work over all cores, each at its own place.
//!
//! The file is made under another name at its full length, so that nothing moves and spaces
//! between tensors are zeros. A unit is a run of rows of a resident tensor (in all the pieces that
//! those rows are in), or a whole expert; it reads, rounds, lays out, sums up and writes by itself.
//! Then checksums follow, the drive gets everything, and every byte is read back and checked
//! before the file gets its name. The bytes don't depend on threads or order.

use super::error::ConvertError;
use super::observer::{Event, Observer};
use super::plan::Plan;
use super::rows::{RowBuffers, STEP_ROWS, SourceTensor};
use crate::checkpoint::ModelFiles;
use crate::checkpoint::pack::checksum::{checksum, checksum_of_both, to_bytes};
use crate::checkpoint::pack::layout::{Content, FileLayout, TensorLayout, expert_shape};
use crate::checkpoint::pack::{PackFile, check_data};
use millstream_kernels::WeightFormat;
use millstream_stages::ids::{ExpertId, LayerId};
use millstream_stages::load::{EXPERT_MATRICES, ExpertShape};
use millstream_stages::parts::expert_parts;
use millstream_stages::pieces::pieces;
use millstream_stages::weights::Rectangle;
use rayon::prelude::*;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a file is called until it is finished.
pub fn unfinished(name: &str) -> String {
    format!("{name}.unfinished")
}

/// Memory that the units of all threads together may take.
const BUFFERS_BYTES_MAX: u64 = 3 << 29;
/// Weights of an expert's matrix that are held in the file layout at once.
const CHUNK_WEIGHTS: usize = 1 << 20;

/// What writes one file.
pub struct FileWriter<'a> {
    /// The source.
    pub files: &'a ModelFiles,
    /// What it becomes.
    pub plan: &'a Plan,
    /// Who watches.
    pub observer: &'a dyn Observer,
    /// The destination.
    pub directory: &'a Path,
}

/// A unit of work.
enum Unit<'a> {
    Rows(RowsUnit<'a>),
    Expert(ExpertUnit<'a>),
}

/// Rows of a tensor, and the run of each piece that they fill.
struct RowsUnit<'a> {
    tensor: &'a TensorLayout,
    source: SourceTensor,
    rows: Range<usize>,
    runs: Vec<PieceRun>,
}

/// An expert.
struct ExpertUnit<'a> {
    tensor: &'a TensorLayout,
    layer: LayerId,
    expert: ExpertId,
    shape: ExpertShape,
}

/// A run of a piece: rows are the unit's.
struct PieceRun {
    section: usize,
    run: usize,
    cols: Range<usize>,
}

/// The file that is being written.
struct Target<'a> {
    file: File,
    path: &'a Path,
    checksums: Vec<AtomicU64>,
    observer: &'a dyn Observer,
}

impl FileWriter<'_> {
    /// Writes the file under its unfinished name, reads it back, and gives its checksum for the
    /// manifest.
    ///
    /// # Errors
    /// When the source can't be read or rounded, or the drive doesn't keep what it is given.
    pub fn write(&self, layout: &FileLayout) -> Result<u64, ConvertError> {
        let name = unfinished(&layout.name);
        let path = self.directory.join(&name);
        let file = create(&path, layout.bytes())?;
        let checksums = (0..layout.checksums).map(|_| AtomicU64::new(0)).collect();
        let target = Target { file, path: &path, checksums, observer: self.observer };
        target.write(0, &layout.header)?;
        let units: Vec<Unit<'_>> =
            layout.tensors.iter().flat_map(|tensor| self.units(tensor)).collect();
        let pool = pool(units.iter().map(Unit::memory_bytes).max().unwrap_or(0));
        let pool = pool.map_err(|e| ConvertError::io(&path, "starting threads")(e))?;
        pool.install(|| {
            units.par_iter().try_for_each_init(RowBuffers::default, |buffers, unit| match unit {
                Unit::Rows(unit) => self.write_rows(unit, buffers, &target),
                Unit::Expert(unit) => self.write_expert(unit, buffers, &target),
            })
        })?;
        let sums: Vec<u64> = target.checksums.iter().map(|s| s.load(Ordering::Relaxed)).collect();
        let table = to_bytes(&sums);
        target.write(layout.checksums_offset, &table)?;
        target.sync()?;
        drop(target);
        self.read_back(layout, &name, &sums)?;
        Ok(checksum_of_both(&layout.header, &table))
    }

    /// Reads the whole file back, past the page cache where that can be, and checks it.
    fn read_back(&self, layout: &FileLayout, name: &str, sums: &[u64]) -> Result<(), ConvertError> {
        let path = &self.directory.join(name);
        let io = ConvertError::io(path, "reading back what was written");
        let file = PackFile::open(self.directory, name).map_err(&io)?;
        let read = |offset, bytes| {
            let mut out = vec![0; bytes];
            file.read(offset, &mut out).map_err(&io).map(|()| out)
        };
        let ends = read(0, layout.header.len())? == layout.header
            && read(layout.checksums_offset, layout.checksums * 8)? == to_bytes(sums);
        let progress = |bytes| {
            let _ = self.observer.event(Event::ReadBack { bytes });
        };
        let finding = check_data(&file, layout, sums, &progress).into_iter().next();
        match finding {
            Some(finding) => {
                let (path, finding) = (path.clone(), Box::new(finding));
                Err(ConvertError::Unfaithful { path, finding })
            }
            None if !ends => {
                Err(io(std::io::Error::other("header or checksums came back changed")))
            }
            None => Ok(()),
        }
    }

    /// The units of a tensor.
    fn units<'a>(&'a self, tensor: &'a TensorLayout) -> Vec<Unit<'a>> {
        let spec = &self.plan.blueprint.spec;
        match tensor.content {
            Content::Resident(layer, part) => {
                let source = self.plan.tensor(self.files, layer, part);
                row_units(tensor, &source, &pieces(spec, layer, part))
            }
            Content::Mtp(index) => {
                let source = &self.plan.mtp[index];
                let (rows, cols) = (source.stored.rows, source.stored.cols);
                row_units(tensor, source, &[Rectangle { rows: 0..rows, cols: 0..cols }])
            }
            Content::Expert(layer, expert) => {
                let shape = expert_shape(&self.plan.blueprint, &self.plan.formats, layer);
                let shape = shape.expect("a layer with experts has their formats");
                vec![Unit::Expert(ExpertUnit { tensor, layer, expert, shape })]
            }
        }
    }

    fn write_rows(
        &self,
        RowsUnit { tensor, source, rows, runs }: &RowsUnit<'_>,
        buffers: &mut RowBuffers,
        target: &Target<'_>,
    ) -> Result<(), ConvertError> {
        let from = buffers.rows(self.files, source, rows.clone())?;
        let first = from.first;
        let mut bytes = vec![];
        for PieceRun { section, run, cols } in runs {
            bytes.clear();
            bytes.resize(source.target.matrix_bytes(rows.len(), cols.len()), 0);
            from.matrix.lay_out(first..first + rows.len(), cols.clone(), &mut bytes);
            let section = tensor.sections[*section];
            target.note(section.first_checksum + run, checksum(&bytes));
            target.write(section.offset + section.run(*run).start, &bytes)?;
        }
        Ok(())
    }

    fn write_expert(
        &self,
        ExpertUnit { tensor, layer, expert, shape }: &ExpertUnit<'_>,
        buffers: &mut RowBuffers,
        target: &Target<'_>,
    ) -> Result<(), ConvertError> {
        let mut bytes = vec![0; shape.expert_bytes()];
        for (matrix, part) in EXPERT_MATRICES.into_iter().zip(expert_parts(*expert)) {
            let source = self.plan.tensor(self.files, Some(*layer), part);
            let pieces = pieces(&self.plan.blueprint.spec, Some(*layer), part);
            for (rows, runs) in chunks(&source, &pieces) {
                let from = buffers.rows(self.files, &source, rows.clone())?;
                for slice in runs {
                    let piece = &pieces[slice];
                    let at = slice * shape.slice_bytes()
                        + shape.range(matrix).start
                        + row_offset(source.target, piece, rows.start);
                    let length = source.target.matrix_bytes(rows.len(), piece.cols.len());
                    let within = from.first..from.first + rows.len();
                    from.matrix.lay_out(within, piece.cols.clone(), &mut bytes[at..at + length]);
                }
            }
        }
        for (section, bytes) in tensor.sections.iter().zip(bytes.chunks_exact(shape.slice_bytes()))
        {
            target.note(section.first_checksum, checksum(bytes));
        }
        target.write(tensor.offset, &bytes)
    }
}

/// Where in a piece a row begins.
fn row_offset(format: WeightFormat, piece: &Rectangle, row: usize) -> usize {
    (row - piece.rows.start) / format.row_block() * format.block_bytes(piece.cols.len())
}

/// Runs of rows of an expert's matrix, and the slices that each is in.
fn chunks(source: &SourceTensor, pieces: &[Rectangle]) -> Vec<(Range<usize>, Range<usize>)> {
    let (format, cols) = (source.target, source.stored.cols);
    let step = CHUNK_WEIGHTS / cols / format.row_block() * format.row_block();
    let step = step.max(format.row_block());
    let split = |rows: &Range<usize>, slices: Range<usize>| -> Vec<_> {
        let end = rows.end;
        let starts = rows.clone().step_by(step);
        starts.map(|start| (start..end.min(start + step), slices.clone())).collect()
    };
    match pieces.first() {
        Some(first) if pieces.iter().all(|piece| piece.rows == first.rows) => {
            split(&first.rows, 0..pieces.len())
        }
        _ => {
            pieces.iter().enumerate().flat_map(|(s, piece)| split(&piece.rows, s..s + 1)).collect()
        }
    }
}

/// The units of a tensor of rows: a run each, pieces with the same rows together.
fn row_units<'a>(
    tensor: &'a TensorLayout,
    source: &SourceTensor,
    pieces: &[Rectangle],
) -> Vec<Unit<'a>> {
    let format = source.target;
    let together = pieces.iter().all(|piece| piece.rows == pieces[0].rows);
    let width = if together { pieces.len() } else { 1 };
    let mut units = vec![];
    for first in (0..pieces.len()).step_by(width) {
        let group = first..first + width;
        let (section, piece) = (tensor.sections[first], &pieces[first]);
        let block_bytes = format.block_bytes(piece.cols.len()) as u64;
        let run_rows = (section.run_bytes / block_bytes) as usize * format.row_block();
        for run in 0..section.runs() {
            let start = piece.rows.start + run * run_rows;
            let rows = start..piece.rows.end.min(start + run_rows);
            let piece_run =
                |section: usize| PieceRun { section, run, cols: pieces[section].cols.clone() };
            let runs = group.clone().map(piece_run).collect();
            let source = source.clone();
            units.push(Unit::Rows(RowsUnit { tensor, source, rows, runs }));
        }
    }
    units
}

impl Unit<'_> {
    /// An estimate of the memory that working on it takes.
    fn memory_bytes(&self) -> u64 {
        // What is decoded at once, as read, as laid out and as f32.
        let step = |cols: usize| 12 * STEP_ROWS * cols;
        let bytes = match self {
            Unit::Rows(RowsUnit { source, rows, .. }) => {
                let SourceTensor { stored, target, .. } = source;
                let rows = rows.len() + stored.row_step();
                let read = rows * stored.row_bytes();
                step(stored.cols) + read + 2 * target.matrix_bytes(rows, stored.cols)
            }
            Unit::Expert(ExpertUnit { shape, .. }) => {
                let cols = shape.hidden.max(shape.intermediate);
                step(cols) + 8 * CHUNK_WEIGHTS + shape.expert_bytes()
            }
        };
        bytes as u64
    }
}

/// Threads for units of this size: all cores, or as many as memory is for.
fn pool(unit_bytes: u64) -> std::io::Result<rayon::ThreadPool> {
    let threads =
        (BUFFERS_BYTES_MAX / unit_bytes.max(1)).clamp(1, rayon::current_num_threads() as u64);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads as usize);
    pool.build().map_err(std::io::Error::other)
}

/// Creates the file at its full length, with its room on the drive where that can be had.
fn create(path: &Path, bytes: u64) -> Result<File, ConvertError> {
    let file = File::create(path).map_err(ConvertError::io(path, "creating"))?;
    let whole = ConvertError::io(path, "making room");
    let flags = rustix::fs::FallocateFlags::empty();
    match rustix::fs::fallocate(&file, flags, 0, bytes) {
        Err(rustix::io::Errno::NOSPC) => Err(whole(rustix::io::Errno::NOSPC.into())),
        // Not every file system can.
        _ => file.set_len(bytes).map_err(whole).map(|()| file),
    }
}

impl Target<'_> {
    fn note(&self, index: usize, checksum: u64) {
        self.checksums[index].store(checksum, Ordering::Relaxed);
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ConvertError> {
        let event = Event::Write { bytes: bytes.len() as u64 };
        if self.observer.event(event).is_break() {
            return Err(ConvertError::Stopped);
        }
        self.file.write_all_at(bytes, offset).map_err(ConvertError::io(self.path, "writing"))
    }

    /// Sends everything to the drive and lets the page cache forget it.
    fn sync(&self) -> Result<(), ConvertError> {
        if self.observer.event(Event::Sync).is_break() {
            return Err(ConvertError::Stopped);
        }
        self.file.sync_all().map_err(ConvertError::io(self.path, "syncing"))?;
        // Only advice: a refusal changes nothing.
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
        Ok(())
    }
}
