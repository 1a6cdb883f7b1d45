//! What can be wrong with a safetensors file, in words that name file, tensor, value and bound.

use super::stamps::StampsFault;
use safetensors::Dtype;

/// A complaint about a safetensors file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{file}: {fault}")]
pub struct HeaderError {
    /// The file, as the user knows it.
    pub file: String,
    /// What is wrong with it.
    pub fault: HeaderFault,
}

/// What is wrong with a safetensors file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HeaderFault {
    /// No room for the length.
    #[error("the file has {bytes} bytes, too few for a safetensors header; download it again")]
    TooShort {
        /// Length of the file.
        bytes: u64,
    },
    /// The header doesn't fit.
    #[error(
        "the header claims {claimed} bytes, more than {max} ({why}); the file is truncated or is \
         no safetensors file"
    )]
    HeaderTooLong {
        /// What the first 8 bytes say.
        claimed: u64,
        /// The bound.
        max: u64,
        /// Where the bound comes from.
        why: &'static str,
    },
    /// The header isn't the JSON it should be.
    #[error("the header is not valid: {reason}; download the file again")]
    NotJson {
        /// The parser's words.
        reason: String,
    },
    /// An entry without the three fields that it should have.
    #[error("tensor \"{name}\" has no valid entry: {reason}; the file is damaged")]
    Malformed {
        /// The tensor.
        name: String,
        /// The parser's words.
        reason: String,
    },
    /// More tensors than any model has.
    #[error("the header lists more than {max} tensors; the file is damaged")]
    TooManyTensors {
        /// The bound.
        max: usize,
    },
    /// A name that is too long.
    #[error("tensor name \"{name}\" has {bytes} bytes, more than {max}; the file is damaged")]
    NameTooLong {
        /// Its beginning.
        name: String,
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// A name that occurs twice.
    #[error("tensor \"{name}\" occurs twice; the file is damaged")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A type that the format doesn't know.
    #[error(
        "tensor \"{name}\": dtype \"{dtype}\" is unknown; this build may be too old for the file"
    )]
    DtypeUnknown {
        /// The tensor.
        name: String,
        /// The type.
        dtype: String,
    },
    /// A tensor's size overflows.
    #[error("tensor \"{name}\": shape {shape:?} is too large to exist; the file is damaged")]
    SizeOverflow {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// Offsets that run backwards.
    #[error("tensor \"{name}\": data_offsets run from {begin} back to {end}; the file is damaged")]
    OffsetsReversed {
        /// The tensor.
        name: String,
        /// First byte.
        begin: u64,
        /// The byte after the last.
        end: u64,
    },
    /// Offsets past the end of the file.
    #[error(
        "tensor \"{name}\" ends at byte {end} of the data, and the file has {data_bytes}; the file \
         is truncated, download it again"
    )]
    PastEnd {
        /// The tensor.
        name: String,
        /// The byte after its last.
        end: u64,
        /// Bytes of data in the file.
        data_bytes: u64,
    },
    /// Offsets that don't match shape and type.
    #[error(
        "tensor \"{name}\": {dtype:?} {shape:?} takes {wanted} bytes, its data_offsets span \
         {found}; the file is damaged"
    )]
    SizeMismatch {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<u64>,
        /// Bytes by shape and type.
        wanted: u64,
        /// Bytes by offsets.
        found: u64,
    },
    /// Stamps of formats that aren't the list they should be.
    #[error("__metadata__: {0}")]
    Stamps(StampsFault),
    /// Two tensors that share bytes.
    #[error("tensors \"{first}\" and \"{second}\" overlap; the file is damaged")]
    Overlap {
        /// The one that begins first.
        first: String,
        /// The other.
        second: String,
    },
}
