//! Where weights come from: the one door between a checkpoint and the stages.
//!
//! `src/checkpoint` implements [`WeightSource`]; the pipeline asks it at start for the resident
//! tensors, piece by piece, straight into the arenas, and the loader asks it for the extents of an
//! expert and hands it the bytes back to be put in place. Everything that comes through the door is
//! in the compute layout of its format. The stages know neither file format nor tensor name.

use crate::ids::{ExpertId, FileId, LayerId};
use crate::load::ExpertShape;
use millstream_kernels::{WeightFormat, Weights};
use std::ops::Range;

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
    /// `[heads * head_dim, hidden]`, head by head; in latent attention without a query rank
    /// `[heads * (nope + rope), hidden]`
    Query,
    /// `[1, heads * head_dim]`
    QueryBias,
    /// `[key_heads * head_dim, hidden]`
    Key,
    /// `[1, key_heads * head_dim]`
    KeyBias,
    /// `[key_heads * head_dim, hidden]`
    Value,
    /// `[1, key_heads * head_dim]`
    ValueBias,
    /// `[1, head_dim]`, or `[1, heads * head_dim]` where all heads are normed together
    QueryHeadsNorm,
    /// `[1, head_dim]`, or `[1, key_heads * head_dim]` where all heads are normed together
    KeyHeadsNorm,
    /// `[1, heads]`
    Sinks,
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
    /// `[1, experts]`, on the logits
    RouterLogitBias,
    /// `[1, experts]`, takes part in the choice only
    RouterBias,
    /// `[experts, intermediate]`
    ExpertGateBiases,
    /// `[experts, intermediate]`
    ExpertUpBiases,
    /// `[experts, hidden]`
    ExpertDownBiases,
    /// `[1, hidden]`, the gate of the shared expert as a whole; a matrix of one row in files
    SharedScore,
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

/// A block of a tensor. See [`crate::pieces`] for how tensors are cut.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rectangle {
    /// Rows of the whole tensor.
    pub rows: Range<usize>,
    /// Columns of the whole tensor.
    pub cols: Range<usize>,
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

/// An expert's extents where they were read to: each a run of one buffer.
#[derive(Clone, Copy, Debug)]
pub struct Staged<'a> {
    buffer: &'a [u8],
    places: &'a [Range<usize>],
}

impl<'a> Staged<'a> {
    /// Extents at these places of a buffer, in the order of [`WeightSource::expert_extents`].
    pub fn new(buffer: &'a [u8], places: &'a [Range<usize>]) -> Staged<'a> {
        Staged { buffer, places }
    }

    /// The bytes of an extent.
    ///
    /// # Panics
    /// When there is no such extent.
    pub fn extent(&self, index: usize) -> &'a [u8] {
        &self.buffer[self.places[index].clone()]
    }

    /// How many extents there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

/// A source's complaint; says which file, tensor and bound.
#[derive(Debug, thiserror::Error, Clone)]
#[error("{0}")]
pub struct SourceError(pub String);

/// Where weights come from.
///
/// Resident tensors are read once at start through [`WeightSource::read`]. An expert is read by
/// the loader: straight into its slot where the source says that it lies there as it does in the
/// slot, else its extents go into a buffer, which is handed to [`WeightSource::unpack_slice`], slice
/// by slice.
pub trait WeightSource: Send + Sync {
    /// The format of a tensor that the model has.
    fn format(&self, layer: Option<LayerId>, part: Part) -> WeightFormat;

    /// Reads a block of a tensor into `out`, in the compute layout of a matrix of its own
    /// ([`WeightFormat::matrix_bytes`] bytes, aligned to 64). The block is one of the tensor's
    /// pieces ([`crate::pieces::pieces`]) or a run of a piece's rows that starts and ends at row
    /// blocks of the format (the end of a piece counts as one).
    ///
    /// # Errors
    /// When the tensor can't be read.
    fn read(
        &self,
        layer: Option<LayerId>,
        part: Part,
        block: &Rectangle,
        out: &mut [u8],
    ) -> Result<(), SourceError>;

    /// The formats of gate, up and down of a layer's routed experts.
    fn expert_formats(&self, layer: LayerId) -> [WeightFormat; 3];

    /// The bytes to read for an expert: where they are in the files.
    fn expert_extents(&self, layer: LayerId, expert: ExpertId) -> &[Extent];

    /// Whether each expert of a layer is one extent that holds the slices of its slot one after the
    /// other, as [`ExpertShape`] lays them out. Such experts may be read without being unpacked.
    fn is_slot_layout(&self, layer: LayerId) -> bool {
        let _ = layer;
        false
    }

    /// Whether [`WeightSource::verify_slice`] goes through the bytes: then it costs time.
    fn verifies_experts(&self) -> bool {
        false
    }

    /// Puts one slice of an expert in place: `staged` holds the expert's extents, `out` becomes the
    /// slice as [`ExpertShape`] lays it out. Allocates nothing.
    ///
    /// # Panics
    /// When a length is wrong.
    fn unpack_slice(
        &self,
        layer: LayerId,
        expert: ExpertId,
        shape: &ExpertShape,
        slice: usize,
        staged: Staged<'_>,
        out: &mut [u8],
    );

    /// Checks a slice of an expert, as it is in its slot, against what the files say of it, where
    /// they say anything and the user asked for it.
    ///
    /// # Errors
    /// When the bytes are damaged; says which slice of what.
    fn verify_slice(
        &self,
        layer: LayerId,
        expert: ExpertId,
        slice: usize,
        bytes: &[u8],
    ) -> Result<(), SourceError> {
        let _ = (layer, expert, slice, bytes);
        Ok(())
    }

    /// The name of a file, for messages.
    fn file_name(&self, file: FileId) -> String;
}

/// Reads a vector (or a small matrix) as f32.
///
/// # Errors
/// When it can't be read.
pub fn read_f32(
    source: &dyn WeightSource,
    layer: Option<LayerId>,
    part: Part,
    [rows, cols]: [usize; 2],
) -> Result<Vec<f32>, SourceError> {
    let format = source.format(layer, part);
    let mut bytes = aligned_bytes(format.matrix_bytes(rows, cols));
    let bytes = bytemuck::cast_slice_mut(&mut bytes);
    let bytes: &mut [u8] = &mut bytes[..format.matrix_bytes(rows, cols)];
    source.read(layer, part, &Rectangle { rows: 0..rows, cols: 0..cols }, bytes)?;
    let weights = Weights::new(format, rows, cols, bytes);
    let mut out = vec![0.0; rows * cols];
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        weights.decode_row(row, out);
    }
    Ok(out)
}

/// A cache line of bytes: what buffers in the compute layout are made of.
#[derive(Clone, Copy, Debug, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
pub struct Line([u8; 64]);

/// A zeroed buffer of at least `bytes` bytes, aligned as any format asks; view it with
/// `bytemuck::cast_slice`.
pub fn aligned_bytes(bytes: usize) -> Vec<Line> {
    vec![Line([0; 64]); bytes.div_ceil(64)]
}
