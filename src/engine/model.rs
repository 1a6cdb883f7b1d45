//! A model that the engine can start: spec, weights and a reader of its files.

use super::EngineError;
use crate::checkpoint::ModelFiles;
use millstream_stages::load::{PreadReader, Reader};
use millstream_stages::parts::resident_parts;
use millstream_stages::spec::ModelSpec;
use millstream_stages::weights::WeightSource;
use std::path::Path;
use std::sync::Arc;

/// Makes the reader of a model's files, for so many reads at once.
pub type ReaderMaker = Box<dyn Fn(usize) -> Box<dyn Reader> + Send>;

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
        let files = ModelFiles::open(directory)?;
        Ok(Model::of(files))
    }

    /// A model that is open already.
    pub fn of(files: ModelFiles) -> Model {
        let spec = files.blueprint.spec.clone();
        let bytes = |&(layer, part): &_| -> u64 {
            let stored = files.stored(layer, part).expect("open() found every part");
            let weights = (stored.rows * stored.cols) as u64;
            weights * stored.kernel_format().bytes_per_weight() as u64
        };
        let resident_bytes = resident_parts(&spec).iter().map(bytes).sum();
        let handles = files.checkpoint.files().to_vec();
        let reader: ReaderMaker =
            Box::new(move |reads_max| Box::new(PreadReader::new(handles.clone(), reads_max)));
        let warnings = match files.unknown.len() {
            0 => vec![],
            count => vec![format!(
                "{count} tensors of the checkpoint are not used by this family, for example {}",
                files.unknown[0]
            )],
        };
        let stop_ids = files.blueprint.tokens.eos.clone();
        Model { spec, source: Arc::new(files), reader, resident_bytes, stop_ids, warnings }
    }
}
