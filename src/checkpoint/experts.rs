//! Where the bytes of every routed expert lie, and how they become a slot's slices.
//!
//! Built once at open from the headers; nothing is loaded. An expert's pieces (three tensors and
//! their scales) are read in the order in which they lie in the files, neighbours in one read:
//! most checkpoints keep an expert's tensors side by side, so that one expert is one read, or two
//! where scales lie apart. Each matrix has one format in all experts of a layer; plain floats of
//! several kinds become f32.

use super::error::TensorFault;
use super::rows::{is_floats, lay_out};
use super::stored::{Run, StoredTensor};
use millstream_kernels::{FileMatrix, WeightFormat};
use millstream_stages::load::{EXPERT_MATRICES, ExpertMatrix, ExpertShape};
use millstream_stages::weights::{Extent, Staged};

/// The routed experts of one layer.
#[derive(Debug)]
pub struct LayerExperts {
    formats: [WeightFormat; 3],
    experts: Vec<ExpertPlan>,
}

/// One expert: what to read, and where each tensor is in what was read.
#[derive(Debug)]
struct ExpertPlan {
    extents: Vec<Extent>,
    /// Gate, up, down.
    tensors: [StagedTensor; 3],
}

/// A tensor and where its bytes are: extents, and places within them.
#[derive(Debug)]
struct StagedTensor {
    stored: StoredTensor,
    weights_at: StagedAt,
    scales_at: StagedAt,
}

/// Where something is in what was read.
#[derive(Clone, Copy, Debug, Default)]
struct StagedAt {
    extent: usize,
    offset: usize,
}

/// An expert that is stored otherwise than the first of its layer.
#[derive(Debug)]
pub struct Misfit {
    /// Which expert.
    pub expert: usize,
    /// Gate, up or down.
    pub matrix: ExpertMatrix,
    /// What is wrong.
    pub fault: TensorFault,
}

impl LayerExperts {
    /// Lays out the experts of a layer, at least one, each given as gate, up, down.
    ///
    /// # Errors
    /// When a matrix has different formats in different experts, and they aren't all plain floats.
    pub fn new(experts: Vec<[StoredTensor; 3]>) -> Result<LayerExperts, Misfit> {
        let mut formats = experts[0].map(|tensor| tensor.format);
        for (expert, tensors) in experts.iter().enumerate() {
            for matrix in EXPERT_MATRICES {
                let (found, expected) =
                    (tensors[matrix as usize].format, &mut formats[matrix as usize]);
                if is_floats(found) && is_floats(*expected) && found != *expected {
                    *expected = WeightFormat::F32;
                } else if found != *expected {
                    let fault = TensorFault::MixedExperts { found, expected: *expected };
                    return Err(Misfit { expert, matrix, fault });
                }
            }
        }
        let experts = experts.into_iter().map(ExpertPlan::new).collect();
        Ok(LayerExperts { formats, experts })
    }

    /// The formats of gate, up and down in a slot.
    pub fn formats(&self) -> [WeightFormat; 3] {
        self.formats
    }

    /// Gate, up or down of an expert as it lies in the files; None when there is no such expert.
    pub fn stored(&self, expert: usize, matrix: ExpertMatrix) -> Option<&StoredTensor> {
        self.experts.get(expert).map(|plan| &plan.tensors[matrix as usize].stored)
    }

    /// What to read for an expert.
    pub fn extents(&self, expert: usize) -> &[Extent] {
        &self.experts[expert].extents
    }

    /// How many experts there are.
    pub fn len(&self) -> usize {
        self.experts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.experts.is_empty()
    }

    /// Turns the bytes of an expert's extents into a slice of its slot; what lies between the
    /// matrices becomes zero. Allocates nothing.
    ///
    /// # Panics
    /// When a length is wrong, or the shape isn't this layer's.
    pub fn unpack_slice(
        &self,
        expert: usize,
        shape: &ExpertShape,
        slice: usize,
        staged: Staged<'_>,
        out: &mut [u8],
    ) {
        assert_eq!(shape.formats, self.formats, "the slot was made for these experts");
        assert_eq!(out.len(), shape.slice_bytes(), "a whole slice");
        let plan = &self.experts[expert];
        assert_eq!(staged.len(), plan.extents.len(), "exactly the expert's extents are staged");
        let (width, mut done) = (shape.slice_width(), 0);
        let of_slice = slice * width..(slice + 1) * width;
        for matrix in EXPERT_MATRICES {
            let range = shape.range(matrix);
            out[done..range.start].fill(0);
            done = range.end;
            let (rows, cols) = match matrix {
                ExpertMatrix::Gate | ExpertMatrix::Up => (of_slice.clone(), 0..shape.hidden),
                ExpertMatrix::Down => (0..shape.hidden, of_slice.clone()),
            };
            let file = plan.tensors[matrix as usize].in_file_layout(staged);
            lay_out(&file, self.formats[matrix as usize], rows, cols, &mut out[range]);
        }
        out[done..].fill(0);
    }
}

impl ExpertPlan {
    fn new(tensors: [StoredTensor; 3]) -> ExpertPlan {
        let mut runs: Vec<Run> =
            tensors.iter().flat_map(|t| [Some(t.weights), t.scales]).flatten().collect();
        runs.sort_by_key(|run| (run.file, run.offset));
        let mut extents: Vec<Extent> = Vec::new();
        for run in &runs {
            match extents.last_mut() {
                Some(last)
                    if last.file == run.file && last.offset + last.bytes as u64 == run.offset =>
                {
                    last.bytes += run.bytes;
                }
                _ => extents.push(Extent { file: run.file, offset: run.offset, bytes: run.bytes }),
            }
        }
        extents.shrink_to_fit();
        let staged_at = |wanted: Run| -> StagedAt {
            let holds = |extent: &Extent| {
                extent.file == wanted.file
                    && (extent.offset..extent.offset + extent.bytes as u64).contains(&wanted.offset)
            };
            let extent = extents.iter().position(holds).expect("every run is in an extent");
            StagedAt { extent, offset: (wanted.offset - extents[extent].offset) as usize }
        };
        let tensors = tensors.map(|stored| StagedTensor {
            weights_at: staged_at(stored.weights),
            scales_at: stored.scales.map_or(StagedAt::default(), staged_at),
            stored,
        });
        ExpertPlan { extents, tensors }
    }
}

impl StagedTensor {
    /// The tensor within what was read.
    fn in_file_layout<'a>(&self, staged: Staged<'a>) -> FileMatrix<'a> {
        let StoredTensor { format, rows, cols, weights, scales } = self.stored;
        let scale_bytes = scales.map_or(0, |run| run.bytes);
        let bytes = |at: StagedAt| &staged.extent(at.extent)[at.offset..];
        FileMatrix {
            format,
            layout: format.file_layout(),
            rows,
            cols,
            weights: &bytes(self.weights_at)[..weights.bytes],
            scales: &bytes(self.scales_at)[..scale_bytes],
        }
    }
}
