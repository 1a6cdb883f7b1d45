//! A model with very many experts that holds few: what tests of memory run on.
//!
//! Expert e has the bytes of expert e modulo [`STORED`]; routers choose among all of them.

use millstream::engine::{Model, OpenedReader};
use millstream_kernels::WeightFormat;
use millstream_stages::ids::{ExpertId, FileId, LayerId};
use millstream_stages::load::ExpertShape;
use millstream_stages::simulation::{MemoryReader, RandomModel, small_spec};
use millstream_stages::spec::{AttentionSpec, FfnSpec, ModelSpec};
use millstream_stages::weights::{Extent, Part, Rectangle, SourceError, Staged, WeightSource};
use std::sync::Arc;

/// Experts that are really stored; the others are copies of them.
const STORED: usize = 4;

/// The model.
pub struct Repeating {
    spec: ModelSpec,
    stored: Arc<RandomModel>,
}

/// A small model, widened and with so many experts.
fn widened(mut spec: ModelSpec, experts: usize) -> ModelSpec {
    spec.hidden = 256;
    for layer in &mut spec.layers {
        if let FfnSpec::Moe(moe) = &mut layer.ffn {
            (moe.experts, moe.intermediate) = (experts, 512);
            (moe.gate.groups, moe.gate.groups_kept) = (1, 1);
        }
        match &mut layer.attention {
            AttentionSpec::Mla(mla) => {
                mla.query_rank = mla.query_rank.map(|_| 64);
                mla.latent_rank = 64;
            }
            AttentionSpec::Gqa(gqa) => gqa.head_dim = 64,
        }
    }
    spec.context_max = 16_384;
    spec
}

impl Repeating {
    /// With so many experts a layer, 0.75 MiB each, in two layers.
    pub fn new(experts: usize) -> Arc<Repeating> {
        Repeating::of(&small_spec(), experts)
    }

    /// As [`Repeating::new`], of another small model.
    pub fn of(small: &ModelSpec, experts: usize) -> Arc<Repeating> {
        let stored = widened(small.clone(), STORED);
        let stored = RandomModel::new(stored, 3, WeightFormat::Bf16);
        let spec = widened(small.clone(), experts);
        Arc::new(Repeating { spec, stored: Arc::new(stored) })
    }

    /// To be started.
    pub fn model(self: &Arc<Repeating>) -> Model {
        let stored = self.stored.clone();
        Model {
            spec: self.spec.clone(),
            source: self.clone(),
            reader: Box::new(move |_| {
                let reader = Box::new(MemoryReader::new(stored.clone()));
                Ok(OpenedReader {
                    reader,
                    words: String::new(),
                    warnings: vec![],
                    is_light: false,
                    drive_node: None,
                })
            }),
            resident_bytes: 0,
            stop_ids: vec![],
            warnings: vec![],
        }
    }
}

fn stored(expert: ExpertId) -> ExpertId {
    ExpertId(expert.0 % STORED as u32)
}

impl WeightSource for Repeating {
    fn format(&self, layer: Option<LayerId>, part: Part) -> WeightFormat {
        match part {
            Part::Router => WeightFormat::F32,
            _ => self.stored.format(layer, part),
        }
    }

    fn read(
        &self,
        layer: Option<LayerId>,
        part: Part,
        block: &Rectangle,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        match part {
            Part::Router
            | Part::RouterBias
            | Part::RouterLogitBias
            | Part::ExpertGateBiases
            | Part::ExpertUpBiases
            | Part::ExpertDownBiases => {
                let seed = if part == Part::Router { 0.02 } else { 0.0 };
                for (index, bytes) in out.chunks_exact_mut(4).enumerate() {
                    let place = (block.rows.start * 7919 + index) as u32;
                    let noise = place.wrapping_mul(2_654_435_761) >> 8;
                    let value = seed * (noise as f32 / (1 << 23) as f32 - 1.0);
                    bytes.copy_from_slice(&value.to_le_bytes());
                }
                Ok(())
            }
            _ => self.stored.read(layer, part, block, out),
        }
    }

    fn expert_formats(&self, layer: LayerId) -> [WeightFormat; 3] {
        self.stored.expert_formats(layer)
    }

    fn expert_extents(&self, layer: LayerId, expert: ExpertId) -> &[Extent] {
        self.stored.expert_extents(layer, stored(expert))
    }

    fn unpack_slice(
        &self,
        layer: LayerId,
        expert: ExpertId,
        shape: &ExpertShape,
        slice: usize,
        staged: Staged<'_>,
        out: &mut [u8],
    ) {
        self.stored.unpack_slice(layer, stored(expert), shape, slice, staged, out);
    }

    fn file_name(&self, file: FileId) -> String {
        self.stored.file_name(file)
    }
}
