//! Everything that can be wrong with a model on disk, in words that name place and remedy.

use super::colibri::ColibriFault;
use super::gguf::GgufError;
use super::header_fault::HeaderError;
use super::index::IndexFault;
use super::shards::MODEL_DIRS;
use crate::families::ConfigError;
use millstream_kernels::WeightFormat;
use millstream_kernels::formats::GgmlType;
use safetensors::Dtype;
use std::path::PathBuf;

/// Why a model can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The path isn't a directory.
    #[error("{}: {found}; MODEL is a directory with config.json and safetensors files, or a GGUF file", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
        /// What is there instead.
        found: String,
    },
    /// A model of another format.
    #[error(
        "{}: found {found}, but only safetensors and GGUF are read by this build; get the \
         model's files in one of these forms", path.display()
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
    /// A further directory of shards isn't there.
    #[error(
        "{}: no directory, but it is listed as one with shards ({MODEL_DIRS}); take it off the list, \
         or mount what holds it", path.display()
    )]
    ModelDirMissing {
        /// The directory.
        path: PathBuf,
    },
    /// More further directories of shards than anyone needs.
    #[error("{MODEL_DIRS} lists more than {max} directories")]
    TooManyDirectories {
        /// The bound.
        max: usize,
    },
    /// More files than a model without an index may have.
    #[error(
        "{}: more than {max} safetensors files and no index over them; a model without an index has \
         fewer", path.display()
    )]
    TooManyShards {
        /// The directory.
        path: PathBuf,
        /// The bound.
        max: usize,
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
    /// A malformed or unsupported GGUF file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A directory with several models in GGUF.
    #[error("{}: more than one model: {found}; give the file of one of them", path.display())]
    SeveralModels {
        /// The directory.
        path: PathBuf,
        /// A file of each.
        found: String,
    },
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
    /// Two files call the format of a tensor by different names.
    #[error(
        "__metadata__: \"colibri.fmt\" of tensor \"{tensor}\" is {first}, and {second}; files of two \
         models are mixed"
    )]
    StampsContradict {
        /// The tensor.
        tensor: String,
        /// A stamp and its file.
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
         complete, or config.json is another model's; found {shards}",
        path.display(), listed(names, *count)
    )]
    TensorsMissing {
        /// The directory.
        path: PathBuf,
        /// How many.
        count: usize,
        /// The first of them.
        names: Vec<String>,
        /// The files that were found, and the gaps in their numbers.
        shards: String,
    },
    /// A tensor that can't be used as it is.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A pack that can't be used.
    #[error(transparent)]
    Pack(#[from] super::pack::PackError),
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
    /// A type of GGUF files that this build doesn't compute on.
    #[error(
        "its type is {}, which this build doesn't read; get a file of this model in another \
         quantisation, such as Q4_K_M or Q8_0", found.name()
    )]
    GgmlType {
        /// The type in the file.
        found: GgmlType,
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
    /// A matrix in blocks of 32 columns whose rows aren't whole blocks.
    #[error("its rows have {cols} columns, no multiple of the {block} that share a scale")]
    NoWholeBlocks {
        /// Columns.
        cols: usize,
        /// Columns of a block.
        block: usize,
    },
    /// A container's tensor whose format can't be told, or isn't computed on.
    #[error(transparent)]
    Colibri(#[from] ColibriFault),
    /// Norms, biases and routers choose and steer: they are never quantised.
    #[error(
        "it is quantised ({found}), and norms, biases and the router must be plain floats (F32, \
         BF16, F16); convert the original model again"
    )]
    NotFloats {
        /// How it is stored.
        found: String,
    },
    /// A plain tensor that the metadata calls something else.
    #[error(
        "its stamp in __metadata__ says \"{stamp}\", but it is plain {found:?} without scales; the \
         file is damaged"
    )]
    StampOfFloats {
        /// The stamp.
        stamp: String,
        /// Its type.
        found: Dtype,
    },
    /// An expert that is stored otherwise than its neighbours.
    #[error(
        "its format is {found}, but other experts of its layer have {expected} there; convert the \
         original model again with one format"
    )]
    MixedExperts {
        /// Its format.
        found: WeightFormat,
        /// That of the layer's first expert.
        expected: WeightFormat,
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
