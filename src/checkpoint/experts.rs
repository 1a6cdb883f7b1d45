//! Where the bytes of every routed expert lie, and how they become kernel weights.
//!
//! Built once at open from the headers; nothing is loaded. An expert's pieces (three tensors and
//! their scales) are read in the order in which they lie in the files, neighbours in one read:
//! most checkpoints keep an expert's tensors side by side, so that one expert is one read.

use super::stored::{Run, StoredTensor};
use millstream_kernels::{StoredFormat, WeightFormat};
use millstream_stages::weights::{ExpertParts, Extent};

/// The routed experts of one layer.
#[derive(Debug)]
pub struct LayerExperts {
    format: WeightFormat,
    experts: Vec<ExpertPlan>,
}

/// One expert: what to read, and where each tensor is in what was read.
#[derive(Debug)]
pub struct ExpertPlan {
    extents: Vec<Extent>,
    /// Gate, up, down.
    tensors: [StagedTensor; 3],
}

/// A tensor and where its bytes are within the staging buffer.
#[derive(Debug)]
struct StagedTensor {
    stored: StoredTensor,
    weights_at: usize,
    scales_at: usize,
}

impl LayerExperts {
    /// Lays out the experts of a layer, each given as gate, up, down. The kernel format is Bf16
    /// if all tensors are stored so, else f32.
    pub fn new(experts: Vec<[StoredTensor; 3]>) -> LayerExperts {
        let all_bf16 = experts.iter().flatten().all(|t| t.kernel_format() == WeightFormat::Bf16);
        LayerExperts {
            format: if all_bf16 { WeightFormat::Bf16 } else { WeightFormat::F32 },
            experts: experts.into_iter().map(ExpertPlan::new).collect(),
        }
    }

    /// The kernel format after unpacking.
    pub fn format(&self) -> WeightFormat {
        self.format
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

    /// Turns the bytes of an expert's extents into kernel weights.
    ///
    /// # Panics
    /// When a slice has the wrong length, or a part to be widened isn't aligned to 4 bytes.
    pub fn unpack(&self, expert: usize, staging: &[u8], parts: ExpertParts<'_>) {
        let plan = &self.experts[expert];
        let staged: usize = plan.extents.iter().map(|extent| extent.bytes).sum();
        assert_eq!(staging.len(), staged, "staging holds exactly the expert's extents");
        let [gate, up, down] = &plan.tensors;
        gate.unpack(staging, self.format, parts.gate);
        up.unpack(staging, self.format, parts.up);
        down.unpack(staging, self.format, parts.down);
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
        let staged_at = |wanted: Run| -> usize {
            runs.iter().take_while(|run| **run != wanted).map(|run| run.bytes).sum()
        };
        let tensors = tensors.map(|stored| StagedTensor {
            weights_at: staged_at(stored.weights),
            scales_at: stored.scales.map_or(0, staged_at),
            stored,
        });
        ExpertPlan { extents, tensors }
    }
}

impl StagedTensor {
    fn unpack(&self, staging: &[u8], format: WeightFormat, out: &mut [u8]) {
        let weights = &staging[self.weights_at..self.weights_at + self.stored.weights.bytes];
        let scales_bytes = self.stored.scales.map_or(0, |run| run.bytes);
        let scales = &staging[self.scales_at..self.scales_at + scales_bytes];
        match (self.stored.format, format) {
            (StoredFormat::Bf16, WeightFormat::Bf16) | (StoredFormat::F32, WeightFormat::F32) => {
                out.copy_from_slice(weights);
            }
            (_, WeightFormat::F32) => {
                self.stored.widen(weights, scales, bytemuck::cast_slice_mut(out));
            }
            (stored, WeightFormat::Bf16) => {
                unreachable!("{stored:?} makes its layer f32")
            }
        }
    }
}
