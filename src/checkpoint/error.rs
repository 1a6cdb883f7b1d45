//! Everything that can be wrong with a model on disk, in words that name place and remedy.

use super::header_fault::HeaderError;
use super::index::IndexFault;
use crate::families::ConfigError;
use safetensors::Dtype;
use std::path::PathBuf;

/// Why a model can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The path isn't a directory.
    #[error("{}: {found}; MODEL is a directory with config.json and model.safetensors", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
        /// What is there instead.
        found: String,
    },
    /// A model of another format.
    #[error(
        "{}: found {found}, but only safetensors is read by this build; get the model's \
         safetensors files, or convert it with the tools of its origin", path.display()
    )]
    NotSafetensors {
        /// The directory or file.
        path: PathBuf,
        /// The files of the other format.
        found: String,
    },
    /// A file that a model needs is absent.
    #[error("{}: there is no {file}; download the model again, completely", path.display())]
    FileMissing {
        /// The directory.
        path: PathBuf,
        /// The file.
        file: String,
    },
    /// Files that the index names are absent.
    #[error(
        "{}: {} of the model's files are missing: {}; the download is not complete",
        path.display(), files.len(), files.join(", ")
    )]
    ShardsMissing {
        /// The directory.
        path: PathBuf,
        /// All of them.
        files: Vec<String>,
    },
    /// The operating system refused.
    #[error("{}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// A file is longer than anything of its kind.
    #[error("{}: {bytes} bytes, more than {max} for a file of this kind; it is damaged", path.display())]
    FileTooLong {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The bound.
        max: u64,
    },
    /// A malformed safetensors file.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A malformed index.
    #[error("{}: {fault}", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong with it.
        fault: IndexFault,
    },
    /// A malformed or unsupported configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The index promises a tensor that its file doesn't have.
    #[error(
        "{file}: tensor \"{tensor}\" is not in it, though the index says so; download both again"
    )]
    TensorNotInShard {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// Two files have a tensor of the same name.
    #[error("tensor \"{tensor}\" is in {first} and in {second}; files of two models are mixed")]
    TensorInTwoShards {
        /// The tensor.
        tensor: String,
        /// One file.
        first: String,
        /// The other.
        second: String,
    },
    /// All files together have more tensors than any model.
    #[error("{}: more than {max} tensors in all files together; they are damaged", path.display())]
    TooManyTensors {
        /// The directory.
        path: PathBuf,
        /// The bound.
        max: usize,
    },
    /// Tensors that the configuration calls for are absent; the count stops at 1000.
    #[error(
        "{}: {count} tensors that config.json calls for are missing: {}; the checkpoint is not \
         complete, or config.json is another model's", path.display(), listed(names, *count)
    )]
    TensorsMissing {
        /// The directory.
        path: PathBuf,
        /// How many.
        count: usize,
        /// The first of them.
        names: Vec<String>,
    },
    /// A tensor that can't be used as it is.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Why a tensor can't be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{file}: tensor \"{tensor}\": {fault}")]
pub struct TensorError {
    /// The file it is in, or the directory if it is in none.
    pub file: String,
    /// The tensor.
    pub tensor: String,
    /// What is wrong with it.
    pub fault: TensorFault,
}

/// What is wrong with a tensor.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TensorFault {
    /// It isn't there.
    #[error("missing; the checkpoint is not complete")]
    Missing,
    /// It has another shape than the configuration says.
    #[error(
        "its shape is {found:?}, config.json calls for {expected:?}; config.json is another model's"
    )]
    Shape {
        /// The shape in the file.
        found: Vec<u64>,
        /// The shape by the configuration.
        expected: Vec<u64>,
    },
    /// A type that this build doesn't compute on.
    #[error("its dtype is {found:?}; this build reads {readable} here")]
    Dtype {
        /// The type in the file.
        found: Dtype,
        /// What would do.
        readable: &'static str,
    },
    /// E4M3 weights without a word about their scales.
    #[error("it is F8_E4M3, but config.json has no quantization_config with quant_method \"fp8\"")]
    NoScheme,
    /// The tensor of its scales isn't there.
    #[error("its scales \"{scales}\" are missing; the checkpoint is not complete")]
    ScalesMissing {
        /// The name of the scales.
        scales: String,
    },
    /// A row is longer than any model's.
    #[error("its rows have {found} columns, more than {max}")]
    TooWide {
        /// Columns.
        found: usize,
        /// The bound.
        max: usize,
    },
    /// The bytes couldn't be read.
    #[error("read {got} of {wanted} bytes at offset {offset}: {reason}")]
    Read {
        /// Bytes that came.
        got: usize,
        /// Bytes that should have come.
        wanted: usize,
        /// Where in the file.
        offset: u64,
        /// The system's words.
        reason: String,
    },
    /// The model has no such part.
    #[error("the model has no such part")]
    NoSuchPart,
}

fn listed(names: &[String], count: usize) -> String {
    let mut text = names.join(", ");
    if names.len() < count {
        text.push_str(", ...");
    }
    text
}
