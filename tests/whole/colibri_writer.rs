//! A writer of colibri containers for the tests, and a decoder of its own: the second opinion.
//!
//! Takes a Hugging Face checkpoint (bf16, f32 or fp8) or random values, quantises every matrix
//! with plain absmax scales and writes shards as colibri's converter does: `out-NNNNN`, the draft
//! layers in `out-mtp-00000`, the indexer in `out-idx-00000`; within a file f32 first, then bytes,
//! each sorted by name. It shares no code with the program's reader: both follow the container's
//! published layout, so that where they agree, two readings of it agree.

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Files that go with the weights.
const COMPANIONS: [&str; 4] =
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
/// Most entries of a file's stamps.
const STAMPS_MAX: usize = 4096;
/// Magnitudes of e2m1 codes.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// How a tensor is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Plain f32.
    F32,
    /// Plain bf16.
    Bf16,
    /// A byte a weight, a scale a row.
    Int8Row,
    /// Two weights a byte, a scale a row.
    Int4Row,
    /// Two weights a byte, a scale per so many columns; rows that aren't longer become `Int4Row`.
    Int4Grouped(usize),
    /// Four weights a byte, a scale a row.
    Int2Row,
    /// 24 bytes and a scale per 64 columns.
    Int3Group64,
    /// E2m1 codes, a ue8m0 scale per 32 columns.
    Mxfp4,
    /// E4m3 codes, an f32 scale per block of 128 x 128.
    Fp8Block128,
}

/// A tensor as the container has it.
pub struct Stored {
    /// Type of the main entry: the float's, or U8.
    dtype: Dtype,
    /// Bytes of the main entry.
    pub weights: Vec<u8>,
    /// Type of the scales, if there are any.
    scale_dtype: Dtype,
    /// Bytes of the `.qs` entry; empty for plain floats.
    pub scales: Vec<u8>,
}

impl Format {
    /// Its name in the stamps of a container; none for plain floats.
    pub fn stamp(self, cols: usize) -> Option<&'static str> {
        match self.of_row(cols) {
            Format::F32 | Format::Bf16 => None,
            Format::Int8Row => Some("int8-row"),
            Format::Int4Row => Some("int4-row"),
            Format::Int4Grouped(_) => Some("int4-grouped"),
            Format::Int2Row => Some("int2-row"),
            Format::Int3Group64 => Some("int3-g64"),
            Format::Mxfp4 => Some("mxfp4"),
            Format::Fp8Block128 => Some("fp8-e4m3-b128"),
        }
    }

    /// One group is a row.
    fn of_row(self, cols: usize) -> Format {
        match self {
            Format::Int4Grouped(group) if group >= cols => Format::Int4Row,
            other => other,
        }
    }

    /// The scale of a weight; row-major, groups of a row side by side.
    fn scale_index(self, row: usize, col: usize, cols: usize) -> usize {
        match self.of_row(cols) {
            Format::Int8Row | Format::Int4Row | Format::Int2Row => row,
            Format::Int4Grouped(group) => row * cols.div_ceil(group) + col / group,
            Format::Int3Group64 => row * cols.div_ceil(64) + col / 64,
            Format::Mxfp4 => row * cols.div_ceil(32) + col / 32,
            Format::Fp8Block128 => row / 128 * cols.div_ceil(128) + col / 128,
            Format::F32 | Format::Bf16 => unreachable!("plain floats have no scales"),
        }
    }

    /// Bytes of a row of codes.
    fn row_bytes(self, cols: usize) -> usize {
        match self {
            Format::F32 => 4 * cols,
            Format::Bf16 => 2 * cols,
            Format::Int8Row | Format::Fp8Block128 => cols,
            Format::Int4Row | Format::Int4Grouped(_) | Format::Mxfp4 => cols.div_ceil(2),
            Format::Int2Row => cols.div_ceil(4),
            Format::Int3Group64 => cols.div_ceil(64) * 24,
        }
    }

    /// The largest code of an integer format.
    fn code_max(self) -> f32 {
        match self {
            Format::Int8Row => 127.0,
            Format::Int4Row | Format::Int4Grouped(_) => 7.0,
            Format::Int3Group64 => 3.0,
            Format::Int2Row => 1.0,
            _ => unreachable!("{self:?} isn't an integer format"),
        }
    }
}

/// Quantises a matrix.
pub fn encode(format: Format, values: &[f32], cols: usize) -> Stored {
    let plain = |dtype, weights| Stored { dtype, weights, scale_dtype: Dtype::F32, scales: vec![] };
    match format {
        Format::F32 => {
            return plain(Dtype::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect());
        }
        Format::Bf16 => {
            let upper = |v: &f32| ((v.to_bits() >> 16) as u16).to_le_bytes();
            return plain(Dtype::BF16, values.iter().flat_map(upper).collect());
        }
        _ => {}
    }
    let rows = values.len() / cols;
    let mut peaks = vec![0f32; format.scale_index(rows - 1, cols - 1, cols) + 1];
    for (index, value) in values.iter().enumerate() {
        let peak = &mut peaks[format.scale_index(index / cols, index % cols, cols)];
        *peak = peak.max(value.abs());
    }
    let (scale_dtype, scale_values, scales) = scales_of(format, &peaks);
    let mut weights = vec![];
    for (row, values) in values.chunks(cols).enumerate() {
        let scaled =
            |(col, value): (usize, &f32)| value / scale_values[format.scale_index(row, col, cols)];
        let scaled: Vec<f32> = values.iter().enumerate().map(scaled).collect();
        weights.extend(pack_row(format, &scaled));
    }
    Stored { dtype: Dtype::U8, weights, scale_dtype, scales }
}

/// Scales from the largest magnitudes: their type, values and bytes.
fn scales_of(format: Format, peaks: &[f32]) -> (Dtype, Vec<f32>, Vec<u8>) {
    if format == Format::Mxfp4 {
        // The exponent of the largest magnitude, less that of the largest code (4 is 2^2).
        let code = |peak: &f32| (peak.to_bits() >> 23).clamp(3, 254) as u8 - 2;
        let codes: Vec<u8> = peaks.iter().map(code).collect();
        return (Dtype::U8, codes.iter().map(|&code| ue8m0(code)).collect(), codes);
    }
    let largest = if format == Format::Fp8Block128 { 448.0 } else { format.code_max() };
    let scales: Vec<f32> = peaks.iter().map(|peak| (peak / largest).max(1e-8)).collect();
    let bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    (Dtype::F32, scales, bytes)
}

fn pack_row(format: Format, scaled: &[f32]) -> Vec<u8> {
    let code = |value: f32| {
        let max = format.code_max();
        value.round_ties_even().clamp(-max - 1.0, max) as i32
    };
    // What is missing of the last byte is zero, in the format's own way of writing it.
    let at = |index: usize| scaled.get(index).copied().map_or(0, code);
    let count = format.row_bytes(scaled.len());
    match format {
        Format::Int8Row => scaled.iter().map(|&value| code(value) as i8 as u8).collect(),
        Format::Int4Row | Format::Int4Grouped(_) => {
            let byte = |j: usize| (at(2 * j) + 8) | (at(2 * j + 1) + 8) << 4;
            (0..count).map(|j| byte(j) as u8).collect()
        }
        Format::Int2Row => {
            let byte = |j: usize| (0..4).map(|k| (at(4 * j + k) + 2) << (2 * k)).sum::<i32>();
            (0..count).map(|j| byte(j) as u8).collect()
        }
        Format::Int3Group64 => {
            let mut bytes = vec![0; count];
            for k in 0..count / 24 * 64 {
                let (code, group) = ((at(k) + 4) as u8, &mut bytes[k / 64 * 24..][..24]);
                let k = k % 64;
                group[k >> 2] |= (code & 3) << (2 * (k & 3));
                group[16 + (k >> 3)] |= (code >> 2) << (k & 7);
            }
            bytes
        }
        Format::Mxfp4 => {
            let table: Vec<f32> = E2M1.to_vec();
            let nibble = |value: f32| nearest(&table, value.abs()) | u8::from(value < 0.0) << 3;
            scaled.chunks(2).map(|pair| nibble(pair[0]) | nibble(pair[1]) << 4).collect()
        }
        Format::Fp8Block128 => {
            let table: Vec<f32> = (0..127).map(e4m3).collect();
            let sign = |value: f32| u8::from(value < 0.0) << 7;
            scaled.iter().map(|&value| nearest(&table, value.abs()) | sign(value)).collect()
        }
        Format::F32 | Format::Bf16 => unreachable!("plain floats have no codes"),
    }
}

/// Index of the nearest entry of an ascending table, the even one of two.
fn nearest(table: &[f32], value: f32) -> u8 {
    let above = table.partition_point(|&entry| entry < value).clamp(1, table.len() - 1);
    let (low, high) = (value - table[above - 1], table[above] - value);
    let down = low < high || low == high && above % 2 == 1;
    (if down { above - 1 } else { above }) as u8
}

/// An e4m3 code (1 sign, 4 exponent, 3 mantissa bits, no infinities).
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> 3 & 15), u32::from(code & 7));
    let magnitude = match (exponent, mantissa) {
        (0, _) => mantissa as f32 / 512.0,
        (15, 7) => f32::NAN,
        _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// A power of two by its biased exponent, from 1 on.
fn ue8m0(code: u8) -> f32 {
    f32::from_bits(u32::from(code) << 23)
}

/// What a stored matrix says: code times scale, rounded once.
pub fn decode(format: Format, weights: &[u8], scales: &[u8], rows: usize, cols: usize) -> Vec<f32> {
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect()
    };
    let scales = match format {
        Format::F32 => return floats(weights),
        Format::Bf16 => {
            let widen = |b: &[u8]| f32::from_bits(u32::from(b[0]) << 16 | u32::from(b[1]) << 24);
            return weights.chunks_exact(2).map(widen).collect();
        }
        Format::Mxfp4 => scales.iter().map(|&code| ue8m0(code)).collect(),
        _ => floats(scales),
    };
    let stride = format.row_bytes(cols);
    assert_eq!(weights.len(), rows * stride, "{format:?}: {rows} x {cols}");
    assert_eq!(scales.len(), format.scale_index(rows - 1, cols - 1, cols) + 1, "{format:?}");
    let value = |index: usize| {
        let (row, col) = (index / cols, index % cols);
        let scale = scales[format.scale_index(row, col, cols)];
        code_value(format, &weights[row * stride..][..stride], col) * scale
    };
    (0..rows * cols).map(value).collect()
}

/// The code of a column, as a number.
fn code_value(format: Format, row: &[u8], col: usize) -> f32 {
    let nibble = |row: &[u8]| row[col / 2] >> (col % 2 * 4) & 15;
    match format {
        Format::Int8Row => f32::from(row[col] as i8),
        Format::Int4Row | Format::Int4Grouped(_) => f32::from(nibble(row)) - 8.0,
        Format::Int2Row => f32::from(row[col / 4] >> (col % 4 * 2) & 3) - 2.0,
        Format::Int3Group64 => {
            let (planes, k) = (&row[col / 64 * 24..][..24], col % 64);
            let low = planes[k / 4] >> (2 * (k % 4)) & 3;
            let high = planes[16 + k / 8] >> (k % 8) & 1;
            f32::from(high * 4 + low) - 4.0
        }
        Format::Mxfp4 => {
            let magnitude = E2M1[usize::from(nibble(row) & 7)];
            if nibble(row) & 8 == 0 { magnitude } else { -magnitude }
        }
        Format::Fp8Block128 => e4m3(row[col]),
        Format::F32 | Format::Bf16 => unreachable!("plain floats have no codes"),
    }
}

/// A model before it is quantised.
pub struct Source {
    /// Where `config.json` and its companions are.
    pub directory: PathBuf,
    /// Shape and values by name.
    pub tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Source {
    /// Reads a Hugging Face checkpoint.
    pub fn open(directory: &Path) -> Source {
        let mut raw: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> = BTreeMap::new();
        for entry in std::fs::read_dir(directory).expect("the checkpoint's directory") {
            let path = entry.expect("a directory entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
            if name.starts_with("model") && name.ends_with(".safetensors") {
                let bytes = std::fs::read(&path).expect("a shard");
                let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
                raw.extend(file.iter().map(|(name, view)| {
                    (name.into(), (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
                }));
            }
        }
        let values = |(name, (dtype, shape, bytes)): (&String, &(Dtype, Vec<usize>, Vec<u8>))| {
            let format = match dtype {
                Dtype::F32 => Format::F32,
                Dtype::BF16 => Format::Bf16,
                Dtype::F8_E4M3 => Format::Fp8Block128,
                other => panic!("{name} is {other:?}"),
            };
            let scales = raw.get(&format!("{name}_scale_inv")).map_or(&[][..], |t| &t.2);
            let cols = *shape.last().expect("a dimension");
            let rows = shape.iter().product::<usize>() / cols;
            (name.clone(), (shape.clone(), decode(format, bytes, scales, rows, cols)))
        };
        let weights = raw.iter().filter(|(name, _)| !name.ends_with("_scale_inv"));
        let tensors = weights.map(values).collect();
        Source { directory: directory.to_path_buf(), tensors }
    }
}

/// How to write a container.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Gate, up and down of the routed experts.
    pub experts: [Format; 3],
    /// Attention, shared experts and dense layers.
    pub dense: Format,
    /// Embedding and head.
    pub io: Format,
    /// Main shards.
    pub shards: usize,
    /// Where main shards of odd numbers go, if not beside the others.
    pub sidecar: Option<PathBuf>,
    /// What grouped int4 is called in the stamps; none writes no stamps.
    pub stamp: Option<&'static str>,
    /// Writes arbitrary codes instead of the quantised ones: also those that absmax never takes,
    /// and in the padding of rows.
    pub noise: bool,
}

/// What was written: by name, the format and the decoder's values.
pub type Written = BTreeMap<String, (Format, Vec<f32>)>;

impl Recipe {
    /// Everything in one format, int8 for embedding and head, one shard, no stamps.
    pub fn of(experts: Format) -> Recipe {
        let (experts, dense, io) = ([experts; 3], Format::Int8Row, Format::Int8Row);
        Recipe { experts, dense, io, shards: 1, sidecar: None, stamp: None, noise: false }
    }

    /// Writes a container into a directory that exists.
    pub fn write(&self, source: &Source, directory: &Path) -> Written {
        for name in COMPANIONS {
            if source.directory.join(name).exists() {
                std::fs::copy(source.directory.join(name), directory.join(name)).expect("a copy");
            }
        }
        let config = std::fs::read_to_string(source.directory.join("config.json")).expect("text");
        let config: Value = serde_json::from_str(&config).expect("JSON");
        let layers = config["num_hidden_layers"].as_u64().expect("a count");
        let is_draft = |name: &str| layer_of(name).is_some_and(|layer| layer >= layers);
        let kind = |name: &str| match (is_draft(name), name.contains(".indexer.")) {
            (true, _) => "mtp",
            (false, true) => "idx",
            (false, false) => "main",
        };
        let (mut written, mut kinds) = (Written::new(), BTreeMap::<_, Vec<_>>::new());
        for (name, (shape, values)) in &source.tensors {
            let cols = *shape.last().expect("a dimension");
            let format = match kind(name) {
                "main" => self.format(name, shape),
                _ => aside(name, shape),
            };
            let mut stored = encode(format, values, cols);
            if self.noise && !stored.scales.is_empty() {
                add_noise(format, &mut stored.weights);
            }
            let rows = values.len() / cols;
            let decoded = decode(format, &stored.weights, &stored.scales, rows, cols);
            written.insert(name.clone(), (format, decoded));
            kinds.entry(kind(name)).or_default().push((name.as_str(), shape, format, stored));
        }
        let main = kinds.remove("main").expect("tensors");
        // Cut by count, so that an expert may lie across two shards.
        let bounds = |shard: usize| shard * main.len() / self.shards;
        for shard in 0..self.shards {
            let home = self.sidecar.as_deref().filter(|_| shard % 2 == 1).unwrap_or(directory);
            let path = home.join(format!("out-{shard:05}.safetensors"));
            self.write_file(&path, &main[bounds(shard)..bounds(shard + 1)]);
        }
        for (kind, tensors) in kinds {
            self.write_file(&directory.join(format!("out-{kind}-00000.safetensors")), &tensors);
        }
        written
    }

    /// The format of a tensor of the main shards: vectors and routers stay f32.
    fn format(&self, name: &str, shape: &[usize]) -> Format {
        if is_kept(name, shape) {
            return Format::F32;
        }
        let projection = ["gate_proj", "up_proj", "down_proj"];
        match projection.iter().position(|projection| name.contains(projection)) {
            Some(which) if name.contains(".mlp.experts.") => self.experts[which],
            _ if name.contains("embed_tokens") || name.starts_with("lm_head") => self.io,
            _ => self.dense,
        }
    }

    fn write_file(&self, path: &Path, tensors: &[(&str, &Vec<usize>, Format, Stored)]) {
        let mut views = vec![];
        let mut stamps = BTreeMap::new();
        for (name, shape, _, stored) in tensors {
            let flat = [stored.weights.len()];
            let shape = if stored.scales.is_empty() { shape.as_slice() } else { &flat };
            let view = TensorView::new(stored.dtype, shape.to_vec(), &stored.weights);
            views.push(((*name).to_owned(), view.expect("a tensor")));
            if !stored.scales.is_empty() {
                let width = if stored.scale_dtype == Dtype::F32 { 4 } else { 1 };
                let shape = vec![stored.scales.len() / width];
                let view = TensorView::new(stored.scale_dtype, shape, &stored.scales);
                views.push((format!("{name}.qs"), view.expect("scales")));
            }
        }
        // Routed experts are never stamped: there would be more of them than entries.
        let stamped = tensors.iter().filter(|tensor| !tensor.0.contains(".mlp.experts."));
        for (name, shape, format, _) in stamped {
            let stamp = format.stamp(*shape.last().expect("a dimension"));
            let grouped = |stamp| if stamp == "int4-grouped" { self.stamp } else { Some(stamp) };
            if let (Some(_), Some(stamp)) = (self.stamp, stamp.and_then(grouped)) {
                stamps.insert(*name, stamp);
            }
        }
        assert!(stamps.len() <= STAMPS_MAX, "{}: too many stamps", path.display());
        let text = serde_json::to_string(&stamps).expect("JSON");
        let metadata = self.stamp.map(|_| HashMap::from([("colibri.fmt".to_owned(), text)]));
        safetensors::serialize_to_file(views, metadata, path).expect("a written shard");
    }
}

/// Arbitrary codes that are numbers.
fn add_noise(format: Format, weights: &mut [u8]) {
    let seed = weights.len() as u64;
    for (index, byte) in weights.iter_mut().enumerate() {
        *byte = random(seed << 32 | index as u64) as u8;
        if format == Format::Fp8Block128 && *byte & 0x7f == 0x7f {
            *byte -= 1;
        }
    }
}

/// The splitmix64 generator's value at a counter.
pub fn random(counter: u64) -> u64 {
    let mut x = counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Vectors and routers stay f32.
fn is_kept(name: &str, shape: &[usize]) -> bool {
    shape.len() != 2 || name.ends_with(".mlp.gate.weight")
}

/// Formats of draft layers and indexer: 8 bits, which is the least that works for both.
fn aside(name: &str, shape: &[usize]) -> Format {
    if is_kept(name, shape) { Format::F32 } else { Format::Int8Row }
}

fn layer_of(name: &str) -> Option<u64> {
    name.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}
