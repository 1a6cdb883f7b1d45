//! A model that the engine can start: spec, weights and a reader of its files.

use super::EngineError;
use super::reads::{FileToRead, OpenedReader, ReadOptions, ReadsError, open_reader};
use crate::checkpoint::ModelFiles;
use crate::checkpoint::describe::resident_bytes;
use crate::checkpoint::pack::{PackChecks, PackFiles};
use crate::families::Blueprint;
use millstream_stages::ids::FileId;
use millstream_stages::spec::ModelSpec;
use millstream_stages::weights::WeightSource;
use std::path::Path;
use std::sync::Arc;

/// Makes the reader of a model's files.
pub type ReaderMaker = Box<dyn Fn(&ReadOptions) -> Result<OpenedReader, ReadsError> + Send>;

/// A model that the engine can start.
pub struct Model {
    /// What it is.
    pub spec: ModelSpec,
    /// Its weights.
    pub source: Arc<dyn WeightSource>,
    /// Reads its files.
    pub reader: ReaderMaker,
    /// Bytes of the weights that are always resident.
    pub resident_bytes: u64,
    /// Tokens that end an answer, from the model's configuration files.
    pub stop_ids: Vec<u32>,
    /// What the user should know about the files.
    pub warnings: Vec<String>,
}

impl Model {
    /// Opens a model directory.
    ///
    /// # Errors
    /// When the directory doesn't hold a model that this build runs; the error names the file,
    /// the field, its value and the bound.
    pub fn open(directory: &Path) -> Result<Model, EngineError> {
        Model::open_with(directory, PackChecks::default())
    }

    /// Opens a model directory; of a pack's weights, what `checks` says is checked as it is read.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_with(directory: &Path, checks: PackChecks) -> Result<Model, EngineError> {
        if !PackFiles::is_pack(directory) {
            return Ok(Model::of(ModelFiles::open(directory)?));
        }
        let pack = PackFiles::open(directory, checks)?;
        let blueprint = pack.blueprint.clone();
        let handles = pack.paths().map(Path::to_path_buf).zip(pack.handles());
        let files = handles.map(|(path, handle)| FileToRead { path, handle }).collect();
        Ok(Model::from_source(&blueprint, Arc::new(pack), files, vec![]))
    }

    /// A model that is open already.
    pub fn of(files: ModelFiles) -> Model {
        let warnings = match files.unknown.len() {
            0 => vec![],
            count => vec![format!(
                "{count} tensors of the checkpoint are not used by this family, for example {}",
                files.unknown[0]
            )],
        };
        let blueprint = files.blueprint.clone();
        let handles = files.checkpoint.files().iter().enumerate();
        let to_read = handles.map(|(file, handle)| FileToRead {
            path: files.checkpoint.file_path(FileId(file as u32)).to_path_buf(),
            handle: handle.clone(),
        });
        let to_read = to_read.collect();
        Model::from_source(&blueprint, Arc::new(files), to_read, warnings)
    }

    /// A model whose weights come from any source; `files` are by number.
    pub fn from_source(
        blueprint: &Blueprint,
        source: Arc<dyn WeightSource>,
        files: Vec<FileToRead>,
        warnings: Vec<String>,
    ) -> Model {
        let reader: ReaderMaker = Box::new(move |options| open_reader(&files, options));
        Model {
            spec: blueprint.spec.clone(),
            resident_bytes: resident_bytes(&blueprint.spec, &*source),
            source,
            reader,
            stop_ids: blueprint.tokens.eos.clone(),
            warnings,
        }
    }
}
