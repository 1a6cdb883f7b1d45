//! Where weights come from: the one door between a checkpoint and the stages.
//!
//! `src/checkpoint` implements [`WeightSource`]; the pipeline asks it at start for the resident
//! tensors, and the loader asks it for the pieces of an expert and hands it the bytes back to be
//! put in place. The stages know neither file format nor tensor name.

use crate::ids::{ExpertId, FileId, LayerId};
use millstream_kernels::WeightFormat;

/// What a tensor does. Shapes are `[rows, columns]`, vectors `[1, n]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// `[vocabulary, hidden]`
    Embedding,
    /// `[1, hidden]`
    FinalNorm,
    /// `[vocabulary, hidden]`; not asked for when the head is tied.
    Head,
    /// `[1, hidden]`, before attention
    InputNorm,
    /// `[1, hidden]`, before the FFN
    PostNorm,
    /// `[query_rank, hidden]`
    QueryDown,
    /// `[1, query_rank]`
    QueryDownBias,
    /// `[1, query_rank]`
    QueryNorm,
    /// `[heads * (nope + rope), query_rank]`, head by head, nope first
    QueryUp,
    /// `[latent_rank + rope, hidden]`, latent first
    LatentDown,
    /// `[1, latent_rank + rope]`
    LatentDownBias,
    /// `[1, latent_rank]`
    LatentNorm,
    /// `[heads * (nope + value), latent_rank]`, head by head, key part first
    LatentUp,
    /// `[hidden, heads * value]`
    Output,
    /// `[1, hidden]`
    OutputBias,
    /// `[index_heads * index_dim, query_rank]`
    IndexQuery,
    /// `[index_dim, hidden]`
    IndexKey,
    /// `[1, index_dim]`
    IndexKeyNorm,
    /// `[1, index_dim]`
    IndexKeyNormBias,
    /// `[index_heads, hidden]`
    IndexWeights,
    /// `[experts, hidden]`
    Router,
    /// `[1, experts]`
    RouterBias,
    /// `[intermediate, hidden]` of a dense layer
    DenseGate,
    /// `[intermediate, hidden]` of a dense layer
    DenseUp,
    /// `[hidden, intermediate]` of a dense layer
    DenseDown,
    /// `[shared_intermediate, hidden]`
    SharedGate,
    /// `[shared_intermediate, hidden]`
    SharedUp,
    /// `[hidden, shared_intermediate]`
    SharedDown,
    /// `[intermediate, hidden]` of a routed expert
    ExpertGate(ExpertId),
    /// `[intermediate, hidden]` of a routed expert
    ExpertUp(ExpertId),
    /// `[hidden, intermediate]` of a routed expert
    ExpertDown(ExpertId),
}

/// A tensor in memory, row-major, in a format that the kernels compute on.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Rows.
    pub rows: usize,
    /// Columns: the summed dimension.
    pub cols: usize,
    /// `rows * cols` weights.
    pub data: MatrixData,
}

/// The weights of a [`Matrix`].
#[derive(Clone, Debug, PartialEq)]
pub enum MatrixData {
    /// IEEE single.
    F32(Vec<f32>),
    /// The upper half of an IEEE single.
    Bf16(Vec<u16>),
}

impl Matrix {
    /// Every weight widened to f32 (exact).
    pub fn to_f32(&self) -> Vec<f32> {
        match &self.data {
            MatrixData::F32(data) => data.clone(),
            MatrixData::Bf16(data) => {
                data.iter().map(|&bits| f32::from_bits(u32::from(bits) << 16)).collect()
            }
        }
    }

    /// The format of the weights.
    pub fn format(&self) -> WeightFormat {
        match self.data {
            MatrixData::F32(_) => WeightFormat::F32,
            MatrixData::Bf16(_) => WeightFormat::Bf16,
        }
    }
}

/// A run of bytes of one file that has to be read for an expert.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Which file.
    pub file: FileId,
    /// First byte.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub bytes: usize,
}

/// The three weight matrices of an expert in a kernel format, as the source hands them over.
/// `gate` and `up` are `[intermediate, hidden]`, `down` is `[hidden, intermediate]`, row-major.
/// All three have one length in weights: `intermediate * hidden`.
pub struct ExpertParts<'a> {
    /// Gate rows, as bytes of the expert's [`WeightFormat`].
    pub gate: &'a mut [u8],
    /// Up rows.
    pub up: &'a mut [u8],
    /// Down rows.
    pub down: &'a mut [u8],
}

/// A source's complaint; says which file, tensor and bound.
#[derive(Debug, thiserror::Error, Clone)]
#[error("{0}")]
pub struct SourceError(pub String);

/// Where weights come from.
///
/// Resident tensors are read once at start through [`WeightSource::load`]. An expert is read by
/// the loader: it reads the expert's extents one after the other into one staging buffer, in the
/// order of [`WeightSource::expert_extents`], and hands that buffer to [`WeightSource::unpack_expert`].
pub trait WeightSource: Send + Sync {
    /// Reads one tensor, in the format the kernels will compute on.
    ///
    /// # Errors
    /// When the tensor is missing, has another shape, or can't be read.
    fn load(&self, layer: Option<LayerId>, part: Part) -> Result<Matrix, SourceError>;

    /// The kernel format that the routed experts of a layer have after unpacking.
    fn expert_format(&self, layer: LayerId) -> WeightFormat;

    /// The bytes to read for an expert: where they are in the files.
    fn expert_extents(&self, layer: LayerId, expert: ExpertId) -> &[Extent];

    /// Turns the bytes of an expert's extents (concatenated) into kernel format.
    ///
    /// # Panics
    /// When `staging` isn't as long as the extents together, or a part has the wrong length.
    fn unpack_expert(
        &self,
        layer: LayerId,
        expert: ExpertId,
        staging: &[u8],
        parts: ExpertParts<'_>,
    );

    /// The name of a file, for messages.
    fn file_name(&self, file: FileId) -> String;
}
