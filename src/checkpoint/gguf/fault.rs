//! What can be wrong with a GGUF file, in words that name file, key or tensor, place and remedy.

use super::value::Kind;

/// A complaint about a GGUF file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{file}: {fault}")]
pub struct GgufError {
    /// The file, as the user knows it.
    pub file: String,
    /// What is wrong with it.
    pub fault: GgufFault,
}

/// What is wrong with a GGUF file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GgufFault {
    /// The first four bytes aren't the format's.
    #[error("it begins with {found:02x?}, not with \"GGUF\"; it is no GGUF file")]
    Magic {
        /// The first bytes.
        found: [u8; 4],
    },
    /// A version that is too old, or newer than this build.
    #[error(
        "version {version} of GGUF; this build reads 2 and 3: get a newer file of this model, or \
         convert it again with current tools"
    )]
    Version {
        /// What the file says.
        version: u32,
    },
    /// A file for machines of the other byte order.
    #[error("it is a big-endian GGUF file; this build reads little-endian ones: get that file")]
    BigEndian,
    /// The file ends before what it announces.
    #[error(
        "{what} needs {needed} bytes at offset {at}, and the header has {left} left there; the \
         file is truncated or damaged: download it again"
    )]
    Truncated {
        /// What was being read.
        what: String,
        /// Its length.
        needed: u64,
        /// Where it begins.
        at: u64,
        /// Bytes that are left, of the file or of what a header may have.
        left: u64,
    },
    /// More of something than any good file has.
    #[error("{what} is {count}, more than {max}; the file is damaged")]
    TooMany {
        /// Of what.
        what: String,
        /// What the file says.
        count: u64,
        /// The bound.
        max: u64,
    },
    /// A text that isn't UTF-8.
    #[error("{what} at offset {at} is not UTF-8; the file is damaged: download it again")]
    NotText {
        /// What was being read.
        what: String,
        /// Where it begins.
        at: u64,
    },
    /// A key or a tensor name that occurs twice.
    #[error("{what} \"{name}\" occurs twice; the file is damaged")]
    Duplicate {
        /// Key or tensor.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A key's value has a type that the format doesn't know, or a list of lists.
    #[error("key \"{key}\": a value of type {id} {place}; this build may be too old for the file")]
    ValueType {
        /// The key.
        key: String,
        /// The type's number.
        id: u32,
        /// Where it may not stand, or empty.
        place: &'static str,
    },
    /// A switch that is neither 0 nor 1.
    #[error("key \"{key}\": a switch is {found}, neither 0 nor 1; the file is damaged")]
    NoSwitch {
        /// The key.
        key: String,
        /// The byte.
        found: u8,
    },
    /// A value of another kind than this key has.
    #[error("key \"{key}\" holds {found}, and {wanted} is needed; the file is damaged")]
    Kind {
        /// The key.
        key: String,
        /// What is there.
        found: Kind,
        /// What should be there.
        wanted: &'static str,
    },
    /// A key that the model can't do without.
    #[error("key \"{key}\" is missing; the file is not complete: get another file of this model")]
    KeyMissing {
        /// The key.
        key: String,
    },
    /// A value outside what it may be.
    #[error("key \"{key}\" is {found}, not {wanted}; the file is damaged or too new")]
    Value {
        /// The key.
        key: String,
        /// What is there.
        found: String,
        /// What should be there.
        wanted: String,
    },
    /// A tensor's number of dimensions.
    #[error("tensor \"{tensor}\": {dimensions} dimensions, not 1 to {max}; the file is damaged")]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// What the file says.
        dimensions: u32,
        /// The bound.
        max: u32,
    },
    /// A tensor's type that the format doesn't know.
    #[error("tensor \"{tensor}\": type {id} is unknown; this build may be too old for the file")]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The type's number.
        id: u32,
    },
    /// Rows that aren't whole blocks.
    #[error(
        "tensor \"{tensor}\": its rows have {cols} elements, no multiple of the {block} in a block \
         of {name}; the file is damaged"
    )]
    NoWholeBlocks {
        /// The tensor.
        tensor: String,
        /// Elements of a row.
        cols: u64,
        /// Elements of a block.
        block: u64,
        /// Name of the type.
        name: &'static str,
    },
    /// A tensor too large for any file.
    #[error("tensor \"{tensor}\": its shape {shape:?} is too large; the file is damaged")]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Its lengths, innermost first.
        shape: Vec<u64>,
    },
    /// A tensor that doesn't begin where tensors may.
    #[error(
        "tensor \"{tensor}\" begins at {offset} of the data, no multiple of {alignment}; the file \
         is damaged"
    )]
    Unaligned {
        /// The tensor.
        tensor: String,
        /// Its offset in the data.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor that ends after the file.
    #[error(
        "tensor \"{tensor}\" ends at byte {end}, and the file has {file_bytes}; it is truncated: \
         download it again"
    )]
    PastEnd {
        /// The tensor.
        tensor: String,
        /// Where it would end.
        end: u64,
        /// Length of the file.
        file_bytes: u64,
    },
    /// Two tensors on the same bytes.
    #[error("tensors \"{first}\" and \"{second}\" overlap; the file is damaged")]
    Overlap {
        /// The one that begins first.
        first: String,
        /// The other.
        second: String,
    },
    /// The system refused.
    #[error("reading {what} at offset {at}: {reason}")]
    Read {
        /// What was being read.
        what: String,
        /// Where it begins.
        at: u64,
        /// The system's words.
        reason: String,
    },
    /// A file that is one of several and doesn't go with the others.
    #[error("{reason}; get all files of the model from one place")]
    Split {
        /// What is wrong.
        reason: String,
    },
    /// A model of a kind that isn't run from GGUF.
    #[error(
        "general.architecture is \"{found}\"; of GGUF files this build runs {known}: get the \
         model's safetensors files if its family is supported"
    )]
    Architecture {
        /// What the file says.
        found: String,
        /// All that are run.
        known: String,
    },
    /// Something that the model needs and this build doesn't compute from GGUF.
    #[error("{what}; {remedy}")]
    Unsupported {
        /// What it is.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
}
