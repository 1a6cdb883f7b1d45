//! A random model in memory: any [`ModelSpec`], weights from a seed, experts in one made-up file.
//!
//! What the simulation, the determinism matrix and the allocation test run on. Weights are drawn
//! per tensor, in the file layout of their format, so a tensor's values depend on the seed, the
//! format and its name alone.

use super::random::Random;
use crate::ids::{ExpertId, FileId, LayerId};
use crate::load::{EXPERT_MATRICES, ExpertMatrix, ExpertShape};
use crate::parts::{EXPERT_BIASES, expert_parts, part_shape};
use crate::spec::ModelSpec;
use crate::weights::{Extent, Part, Rectangle, SourceError, Staged, WeightSource};
use millstream_kernels::formats::{f16::f32_to_f16, fp8};
use millstream_kernels::{FileMatrix, ScaleType, WeightFormat};

/// The formats of a random model. Norms, router and biases are f32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RandomFormats {
    /// Every matrix that is always resident.
    pub resident: WeightFormat,
    /// Gate, up and down of routed experts.
    pub experts: [WeightFormat; 3],
}

impl From<WeightFormat> for RandomFormats {
    fn from(format: WeightFormat) -> RandomFormats {
        RandomFormats { resident: format, experts: [format; 3] }
    }
}

impl RandomFormats {
    /// Columns at whose multiples matrices may be cut.
    pub fn group(&self) -> usize {
        // Groups are powers of two here or divide each other.
        self.experts.iter().map(|f| f.group()).fold(self.resident.group(), usize::max)
    }
}

/// A model whose weights come from a seed.
pub struct RandomModel {
    /// The model.
    pub spec: ModelSpec,
    seed: u64,
    formats: RandomFormats,
    /// By layer, by expert: where in the file.
    extents: Vec<Vec<Vec<Extent>>>,
    file: Vec<u8>,
    /// Experts lie in the file as in their slots.
    packed: bool,
}

/// A tensor in the file layout.
struct Drawn {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    weights: Vec<u8>,
    scales: Vec<u8>,
}

impl RandomModel {
    /// Draws a model whose experts lie in its file tensor by tensor.
    pub fn new(spec: ModelSpec, seed: u64, formats: impl Into<RandomFormats>) -> RandomModel {
        RandomModel::draw_all(spec, seed, formats.into(), false)
    }

    /// Draws a model whose experts lie in its file as in their slots. Its weights are those of
    /// [`RandomModel::new`].
    pub fn packed(spec: ModelSpec, seed: u64, formats: impl Into<RandomFormats>) -> RandomModel {
        RandomModel::draw_all(spec, seed, formats.into(), true)
    }

    fn draw_all(spec: ModelSpec, seed: u64, formats: RandomFormats, packed: bool) -> RandomModel {
        let file = b"a header".to_vec();
        let mut model = RandomModel { spec, seed, formats, extents: vec![], file, packed };
        for layer in 0..model.spec.layers.len() {
            let id = LayerId(layer as u32);
            let experts = model.spec.layers[layer].moe().map_or(0, |moe| moe.experts);
            let of_layer = (0..experts as u32).map(|expert| match packed {
                true => model.store_packed(id, ExpertId(expert)),
                false => model.store(id, ExpertId(expert)),
            });
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
                let Drawn { weights, scales, .. } = self.draw(Some(layer), part);
                self.file.extend(weights);
                self.file.extend(scales);
            }
            let bytes = self.file.len() - offset as usize;
            self.file.push(0xAA);
            Extent { file: FileId(0), offset, bytes }
        };
        let first = put(&[Part::ExpertGate(expert), Part::ExpertUp(expert)]);
        vec![first, put(&[Part::ExpertDown(expert)])]
    }

    /// Appends an expert to the file as it lies in a slot, at a multiple of 64 bytes.
    fn store_packed(&mut self, layer: LayerId, expert: ExpertId) -> Vec<Extent> {
        let moe = self.spec.layers[layer.index()].moe().expect("a layer with experts");
        let shape = ExpertShape::new(self.spec.hidden, moe, self.spec.slices, self.formats.experts);
        self.file.resize(self.file.len().next_multiple_of(64), 0xAA);
        let (offset, bytes) = (self.file.len(), shape.expert_bytes());
        self.file.resize(offset + bytes, 0);
        for (which, part) in EXPERT_MATRICES.into_iter().zip(expert_parts(expert)) {
            let drawn = self.draw(Some(layer), part);
            for slice in 0..shape.slices {
                let Rectangle { rows, cols } = shape.rectangle(which, slice);
                let first = offset + slice * shape.slice_bytes();
                let range = shape.range(which);
                let out = &mut self.file[first + range.start..first + range.end];
                drawn.view().lay_out(rows, cols, out);
            }
        }
        vec![Extent { file: FileId(0), offset: offset as u64, bytes }]
    }

    /// Reads the made-up file as `pread` would.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let rest = self.file.get(offset as usize..).unwrap_or(&[]);
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        count
    }

    fn draw(&self, layer: Option<LayerId>, part: Part) -> Drawn {
        let shape = part_shape(&self.spec, layer, part);
        let [rows, cols] = shape.expect("a part that the model has");
        let format = self.format(layer, part);
        let mut random = Random::new(self.seed ^ name_hash(layer, part));
        let (centre, spread) = match part {
            Part::InputNorm
            | Part::PostNorm
            | Part::FinalNorm
            | Part::QueryNorm
            | Part::LatentNorm
            | Part::QueryHeadsNorm
            | Part::KeyHeadsNorm
            | Part::IndexKeyNorm => (1.0, 0.25),
            Part::Embedding => (0.0, 0.8),
            _ => (0.0, 1.6 / (cols as f32).sqrt()),
        };
        let mut values = (0..rows * cols).map(|_| centre + spread * random.signed_unit());
        let weights: Vec<u8> = match format {
            WeightFormat::F32 => values.flat_map(f32::to_le_bytes).collect(),
            WeightFormat::Bf16 => {
                values.flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect()
            }
            WeightFormat::F16 => values.flat_map(|v| f32_to_f16(v).to_le_bytes()).collect(),
            WeightFormat::Fp8Block128(_) => {
                // Every code but the two that are NaN.
                values
                    .map(|v| (v.to_bits() >> 8) as u8)
                    .map(|c| if c & 0x7f == 0x7f { 0 } else { c })
                    .collect()
            }
            _ => {
                let bytes = format.file_bytes(rows, cols);
                let mut byte = || values.next().map_or(0x88, |v| (v.to_bits() >> 8) as u8);
                (0..bytes).map(|_| byte()).collect()
            }
        };
        let scales = draw_scales(format, rows, cols, spread, &mut random);
        Drawn { format, rows, cols, weights, scales }
    }
}

/// Scales that give weights about the wanted spread.
fn draw_scales(
    format: WeightFormat,
    rows: usize,
    cols: usize,
    spread: f32,
    random: &mut Random,
) -> Vec<u8> {
    let largest = match format {
        WeightFormat::Fp8Block128(_) => fp8::FP8_VALUES[0x7e],
        WeightFormat::Mxfp4 => 6.0,
        _ => format.info().code_max as f32,
    };
    let mut scale = || spread / largest * (1.0 + 0.4 * random.signed_unit());
    let mut bytes = vec![];
    for _ in 0..format.file_scales(rows, cols) {
        let scale = scale();
        match format.scale_type() {
            None => {}
            Some(ScaleType::F32) => bytes.extend(scale.to_le_bytes()),
            Some(ScaleType::F16) => bytes.extend(f32_to_f16(scale).to_le_bytes()),
            Some(ScaleType::Bf16) => bytes.extend(((scale.to_bits() >> 16) as u16).to_le_bytes()),
            Some(ScaleType::Ue8m0) => bytes.push((scale.to_bits() >> 23) as u8),
        }
    }
    bytes
}

impl Drawn {
    fn view(&self) -> FileMatrix<'_> {
        let Drawn { format, rows, cols, ref weights, ref scales } = *self;
        FileMatrix { format, layout: format.file_layout(), rows, cols, weights, scales }
    }
}

impl WeightSource for RandomModel {
    fn format(&self, layer: Option<LayerId>, part: Part) -> WeightFormat {
        let [rows, _] = part_shape(&self.spec, layer, part).expect("a part that the model has");
        match part {
            Part::ExpertGate(_) => self.formats.experts[0],
            Part::ExpertUp(_) => self.formats.experts[1],
            Part::ExpertDown(_) => self.formats.experts[2],
            _ if rows == 1 || EXPERT_BIASES.contains(&part) => WeightFormat::F32,
            // The router chooses; it stays a float as in every real model.
            Part::Router if self.formats.resident != WeightFormat::Bf16 => WeightFormat::F32,
            _ => self.formats.resident,
        }
    }

    fn read(
        &self,
        layer: Option<LayerId>,
        part: Part,
        block: &Rectangle,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        self.draw(layer, part).view().lay_out(block.rows.clone(), block.cols.clone(), out);
        Ok(())
    }

    fn expert_formats(&self, _layer: LayerId) -> [WeightFormat; 3] {
        self.formats.experts
    }

    fn expert_extents(&self, layer: LayerId, expert: ExpertId) -> &[Extent] {
        &self.extents[layer.index()][expert.index()]
    }

    fn is_slot_layout(&self, _: LayerId) -> bool {
        self.packed
    }

    fn unpack_slice(
        &self,
        _: LayerId,
        _: ExpertId,
        shape: &ExpertShape,
        slice: usize,
        staged: Staged<'_>,
        out: &mut [u8],
    ) {
        let mut rest = staged.extent(0);
        if self.packed {
            let bytes = shape.slice_bytes();
            return out.copy_from_slice(&rest[slice * bytes..(slice + 1) * bytes]);
        }
        for which in EXPERT_MATRICES {
            if which == ExpertMatrix::Down {
                rest = staged.extent(1);
            }
            let format = shape.formats[which as usize];
            let whole = ExpertShape { slices: 1, ..*shape };
            let [rows, cols] = whole.dimensions(which);
            let (weights, after) = rest.split_at(format.file_bytes(rows, cols));
            let scale_bytes = format.scale_type().map_or(0, ScaleType::bytes);
            let scales;
            (scales, rest) = after.split_at(format.file_scales(rows, cols) * scale_bytes);
            let Rectangle { rows: slice_rows, cols: slice_cols } = shape.rectangle(which, slice);
            let layout = format.file_layout();
            FileMatrix { format, layout, rows, cols, weights, scales }.lay_out(
                slice_rows,
                slice_cols,
                &mut out[shape.range(which)],
            );
        }
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
