//! The pack as the stages see it: nothing is converted, bytes go where they belong.
//!
//! A block of a resident tensor is read run by run, by several threads when it is large, each run
//! checked on the way; a run that is wanted in part is read whole for its checksum. An expert is
//! one extent whose bytes are the slot's.

use super::files::{PackFiles, WeightFile};
use super::layout::{Section, TensorLayout};
use crate::checkpoint::source::expert_matrix;
use millstream_kernels::WeightFormat;
use millstream_stages::ids::{ExpertId, FileId, LayerId};
use millstream_stages::load::ExpertShape;
use millstream_stages::pieces::pieces;
use millstream_stages::weights::{Extent, Part, Rectangle, SourceError, Staged, WeightSource};
use rayon::prelude::*;
use std::ops::Range;

/// The file of the resident tensors: the first of a pack.
const RESIDENT: FileId = FileId(0);
/// Blocks of at least this many runs are read by several threads.
const PARALLEL_RUNS_MIN: usize = 4;

impl WeightSource for PackFiles {
    fn format(&self, layer: Option<LayerId>, part: Part) -> WeightFormat {
        match (layer, expert_matrix(part)) {
            (Some(layer), Some((_, matrix))) => self.expert_formats(layer)[matrix as usize],
            _ => self.resident(layer, part).format,
        }
    }

    fn read(
        &self,
        layer: Option<LayerId>,
        part: Part,
        block: &Rectangle,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let all = pieces(&self.blueprint.spec, layer, part);
        let (index, piece) = holder(&all, block);
        let format = self.format(layer, part);
        let first = block.rows.start - piece.rows.start;
        assert!(first.is_multiple_of(format.row_block()), "{block:?} cuts a row block");
        let bytes = format.matrix_bytes(block.rows.len(), block.cols.len());
        assert_eq!(out.len(), bytes, "{format}: {block:?}");
        let (wanted, base) = self.section(layer, part, index);
        let first = base + first / format.row_block() * format.block_bytes(block.cols.len());
        wanted.read(first as u64..(first + bytes) as u64, out)
    }

    fn expert_formats(&self, layer: LayerId) -> [WeightFormat; 3] {
        self.experts(layer).shape.formats
    }

    fn expert_extents(&self, layer: LayerId, expert: ExpertId) -> &[Extent] {
        std::slice::from_ref(&self.experts(layer).extents[expert.index()])
    }

    fn is_slot_layout(&self, _layer: LayerId) -> bool {
        true
    }

    fn verifies_experts(&self) -> bool {
        self.checks.experts
    }

    fn unpack_slice(
        &self,
        layer: LayerId,
        _expert: ExpertId,
        shape: &ExpertShape,
        slice: usize,
        staged: Staged<'_>,
        out: &mut [u8],
    ) {
        let (experts, expert) = (self.experts(layer), staged.extent(0));
        assert_eq!(*shape, experts.shape, "the slot was made for these experts");
        assert_eq!(expert.len(), shape.expert_bytes(), "the expert is one extent");
        let bytes = shape.slice_bytes();
        out.copy_from_slice(&expert[slice * bytes..(slice + 1) * bytes]);
    }

    fn verify_slice(
        &self,
        layer: LayerId,
        expert: ExpertId,
        slice: usize,
        bytes: &[u8],
    ) -> Result<(), SourceError> {
        if !self.verifies_experts() {
            return Ok(());
        }
        let weights = self.weights(self.experts(layer).file);
        let tensor = &weights.layout.tensors[expert.index()];
        let outcome = weights.check_run(tensor, slice, 0, bytes);
        outcome.map_err(|finding| SourceError(finding.to_string()))
    }

    fn file_name(&self, file: FileId) -> String {
        self.weights(file).layout.name.clone()
    }
}

impl PackFiles {
    /// Where a piece of a tensor lies, and how far into its section it begins.
    fn section(&self, layer: Option<LayerId>, part: Part, index: usize) -> (Wanted<'_>, usize) {
        let (weights, tensor, base, checked) = match (layer, expert_matrix(part)) {
            (Some(layer), Some((expert, matrix))) => {
                let experts = self.experts(layer);
                let base = experts.shape.range(matrix).start;
                (self.weights(experts.file), expert.index(), base, self.checks.experts)
            }
            _ => {
                let tensor = self.resident(layer, part).tensor;
                (self.weights(RESIDENT), tensor, 0, self.checks.resident)
            }
        };
        let tensor = &weights.layout.tensors[tensor];
        let section = tensor.sections[index];
        (Wanted { weights, tensor, index, section, checked }, base)
    }
}

/// The piece that a block is in.
fn holder<'a>(pieces: &'a [Rectangle], block: &Rectangle) -> (usize, &'a Rectangle) {
    let holds = |piece: &&Rectangle| {
        piece.cols == block.cols
            && piece.rows.start <= block.rows.start
            && block.rows.end <= piece.rows.end
    };
    let found = pieces.iter().enumerate().find(|(_, piece)| holds(piece));
    found.unwrap_or_else(|| panic!("{block:?} is in none of the tensor's pieces"))
}

/// A section that is read from.
struct Wanted<'a> {
    weights: &'a WeightFile,
    tensor: &'a TensorLayout,
    index: usize,
    section: Section,
    checked: bool,
}

impl Wanted<'_> {
    /// Reads a range of the section into `out`.
    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let mut tasks = vec![];
        let mut rest = out;
        let mut at = range.start;
        while at < range.end {
            let run = (at / self.section.run_bytes) as usize;
            let end = self.section.run(run).end.min(range.end);
            let (now, later) = rest.split_at_mut((end - at) as usize);
            tasks.push((run, at, now));
            rest = later;
            at = end;
        }
        match tasks.len() < PARALLEL_RUNS_MIN {
            true => tasks.into_iter().try_for_each(|(run, at, out)| self.read_run(run, at, out)),
            false => {
                tasks.into_par_iter().try_for_each(|(run, at, out)| self.read_run(run, at, out))
            }
        }
    }

    /// Reads a run, or a part of it, from `at` on (counted from the section's start).
    fn read_run(&self, run: usize, at: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let whole = self.section.run(run);
        if !self.checked || out.len() as u64 == whole.end - whole.start {
            self.fill(at, out)?;
            return if self.checked { self.check(run, out) } else { Ok(()) };
        }
        let mut all = vec![0; (whole.end - whole.start) as usize];
        self.fill(whole.start, &mut all)?;
        self.check(run, &all)?;
        let first = (at - whole.start) as usize;
        out.copy_from_slice(&all[first..first + out.len()]);
        Ok(())
    }

    fn fill(&self, at: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let offset = self.section.offset + at;
        self.weights.file.read(offset, out).map_err(|error| {
            let (path, name) = (self.weights.file.path().display(), &self.tensor.name);
            let bytes = out.len();
            SourceError(format!(
                "{path}: tensor \"{name}\": reading {bytes} bytes at offset {offset}: {error}; check \
                 the drive and the file's length"
            ))
        })
    }

    fn check(&self, run: usize, bytes: &[u8]) -> Result<(), SourceError> {
        let outcome = self.weights.check_run(self.tensor, self.index, run, bytes);
        outcome.map_err(|finding| SourceError(finding.to_string()))
    }
}
