//! A random model in memory: any [`ModelSpec`], weights from a seed, experts in one made-up file.
//!
//! What the simulation, the determinism matrix and the allocation test run on. Weights are drawn
//! per tensor, so a tensor's values depend on the seed and its name alone.

use super::random::Random;
use crate::ids::{ExpertId, FileId, LayerId};
use crate::parts::part_shape;
use crate::spec::ModelSpec;
use crate::weights::{ExpertParts, Extent, Matrix, MatrixData, Part, SourceError, WeightSource};
use millstream_kernels::WeightFormat;

/// A model whose weights come from a seed.
pub struct RandomModel {
    /// The model.
    pub spec: ModelSpec,
    seed: u64,
    format: WeightFormat,
    /// By layer, by expert: where in the file.
    extents: Vec<Vec<Vec<Extent>>>,
    file: Vec<u8>,
}

impl RandomModel {
    /// Draws a model. Experts and matrices have the given format.
    pub fn new(spec: ModelSpec, seed: u64, format: WeightFormat) -> RandomModel {
        let mut model =
            RandomModel { spec, seed, format, extents: vec![], file: b"a header".to_vec() };
        for layer in 0..model.spec.layers.len() {
            let id = LayerId(layer as u32);
            let experts = model.spec.layers[layer].moe().map_or(0, |moe| moe.experts);
            let of_layer = (0..experts as u32).map(|expert| model.store(id, ExpertId(expert)));
            let of_layer = of_layer.collect();
            model.extents.push(of_layer);
        }
        model
    }

    /// Appends an expert to the file: gate and up in one extent, down in another.
    fn store(&mut self, layer: LayerId, expert: ExpertId) -> Vec<Extent> {
        let mut put = |parts: &[Part]| {
            let offset = self.file.len() as u64;
            for &part in parts {
                let matrix = self.draw(Some(layer), part);
                match &matrix.data {
                    MatrixData::F32(data) => {
                        self.file.extend_from_slice(bytemuck::cast_slice(data));
                    }
                    MatrixData::Bf16(data) => {
                        self.file.extend_from_slice(bytemuck::cast_slice(data));
                    }
                }
            }
            let bytes = self.file.len() - offset as usize;
            self.file.push(0xAA);
            Extent { file: FileId(0), offset, bytes }
        };
        let first = put(&[Part::ExpertGate(expert), Part::ExpertUp(expert)]);
        vec![first, put(&[Part::ExpertDown(expert)])]
    }

    /// Reads the made-up file as `pread` would.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let rest = self.file.get(offset as usize..).unwrap_or(&[]);
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        count
    }

    fn draw(&self, layer: Option<LayerId>, part: Part) -> Matrix {
        let shape = part_shape(&self.spec, layer, part);
        let [rows, cols] = shape.expect("a part that the model has");
        let mut random = Random::new(self.seed ^ name_hash(layer, part));
        let (centre, spread) = match part {
            Part::InputNorm
            | Part::PostNorm
            | Part::FinalNorm
            | Part::QueryNorm
            | Part::LatentNorm
            | Part::IndexKeyNorm => (1.0, 0.25),
            Part::Embedding => (0.0, 0.8),
            _ => (0.0, 1.6 / (cols as f32).sqrt()),
        };
        let values = (0..rows * cols).map(|_| centre + spread * random.signed_unit());
        let narrow = rows > 1 && self.format == WeightFormat::Bf16;
        let data = match narrow {
            true => MatrixData::Bf16(values.map(|v| (v.to_bits() >> 16) as u16).collect()),
            false => MatrixData::F32(values.collect()),
        };
        Matrix { rows, cols, data }
    }
}

impl WeightSource for RandomModel {
    fn load(&self, layer: Option<LayerId>, part: Part) -> Result<Matrix, SourceError> {
        Ok(self.draw(layer, part))
    }

    fn expert_format(&self, _layer: LayerId) -> WeightFormat {
        self.format
    }

    fn expert_extents(&self, layer: LayerId, expert: ExpertId) -> &[Extent] {
        &self.extents[layer.index()][expert.index()]
    }

    fn unpack_expert(&self, _: LayerId, _: ExpertId, staging: &[u8], parts: ExpertParts<'_>) {
        let (gate, rest) = staging.split_at(parts.gate.len());
        let (up, down) = rest.split_at(parts.up.len());
        parts.gate.copy_from_slice(gate);
        parts.up.copy_from_slice(up);
        parts.down.copy_from_slice(down);
    }

    fn file_name(&self, _: FileId) -> String {
        "the made-up file".into()
    }
}

fn name_hash(layer: Option<LayerId>, part: Part) -> u64 {
    let name = format!("{layer:?} {part:?}");
    // FNV-1a, 64 bits.
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
