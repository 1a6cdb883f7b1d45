//! What the tests share: random values, matrices of every format, and the comparison.

use millstream_kernels::formats::f16::f32_to_f16;
use millstream_kernels::isa::ISAS;
use millstream_kernels::{
    FileLayout, FileMatrix, GgmlType, Isa, Kernels, ScaleType, WeightFormat, Weights,
};

/// A small generator (SplitMix64), so that a failure repeats.
pub struct Random(pub u64);

impl Random {
    /// Random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -4 .. 4.
    pub fn ordinary(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 21) as f32 - 4.0
    }

    /// An awkward value half the time.
    pub fn awkward(&mut self) -> f32 {
        const VALUES: [f32; 20] = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            f32::MIN_POSITIVE,
            -f32::MIN_POSITIVE,
            1e-45,
            -1e-45,
            3e-39,
            f32::MAX,
            f32::MIN,
            88.722_84,
            -103.9,
            -87.4,
            1e19,
            -1e19,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            16_777_216.0,
        ];
        match self.bits() % 3 {
            0 => VALUES[(self.bits() % VALUES.len() as u64) as usize],
            1 => f32::from_bits(self.bits() as u32),
            _ => self.ordinary(),
        }
    }

    /// So many values of a kind.
    pub fn vector(&mut self, kind: Kind, length: usize) -> Vec<f32> {
        (0..length)
            .map(|_| match kind {
                Kind::Ordinary => self.ordinary(),
                Kind::Awkward => self.awkward(),
                Kind::Zeros => [0.0, -0.0][(self.bits() & 1) as usize],
            })
            .collect()
    }
}

/// What values are drawn from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Ordinary,
    Awkward,
    Zeros,
}

pub const KINDS: [Kind; 3] = [Kind::Ordinary, Kind::Awkward, Kind::Zeros];

fn lengths() -> impl Iterator<Item = usize> {
    (0..=70).chain([255, 512, 1000, 4096, 4097])
}

/// The definition.
pub fn scalar() -> Kernels {
    Kernels::new(Isa::Scalar).expect("scalar runs everywhere")
}

/// The vector instruction sets of this machine; names the ones that can't be compared here.
pub fn vector_kernels() -> Vec<Kernels> {
    for isa in ISAS.iter().filter(|isa| !isa.is_available()) {
        use std::io::Write;
        writeln!(std::io::stderr(), "NOT COMPARED: this machine has no {isa}")
            .expect("stderr is open");
    }
    ISAS.iter().filter(|isa| **isa != Isa::Scalar).filter_map(|isa| Kernels::new(*isa)).collect()
}

fn canonical(value: f32) -> u32 {
    if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }
}

/// Equal in bits, or both NaN.
#[track_caller]
pub fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(canonical(*got), canonical(*want), "{what}, element {i}: {got:e} not {want:e}");
    }
}

/// Runs `operation` with scalar and with every vector set, over kinds and lengths, and compares
/// what it returns.
pub fn compare(name: &str, operation: impl Fn(Kernels, Kind, usize, &mut Random) -> Vec<f32>) {
    for kernels in vector_kernels() {
        for kind in KINDS {
            for length in lengths() {
                let seed = length as u64 + 1;
                let want = operation(scalar(), kind, length, &mut Random(seed));
                let got = operation(kernels, kind, length, &mut Random(seed));
                let what = format!("{name} on {}, {kind:?}, length {length}", kernels.isa());
                assert_same(&got, &want, &what);
            }
        }
    }
}

/// The upper halves of f32 bits.
pub fn to_bf16(values: &[f32]) -> Vec<u16> {
    values.iter().map(|v| (v.to_bits() >> 16) as u16).collect()
}

/// Every format, the group sizes that fit in different ways, and every type of scales.
pub fn formats() -> Vec<WeightFormat> {
    let more = [
        "int4-g32",
        "int4-g48",
        "int4-g80",
        "int4-g128",
        "int4-g256",
        "int4-g64:f16",
        "int4-g64:bf16",
        "int4-g32:ue8m0",
        "int8-row:f16",
        "int3-g64:bf16",
        "fp8-e4m3-b128:ue8m0",
        "fp8-e4m3-b128:bf16",
        "int8-g32:bf16",
    ];
    let more = more.into_iter().map(|name| name.parse().expect("a format's name"));
    WeightFormat::EACH.into_iter().chain(more).collect()
}

/// A matrix in the compute layout.
pub struct Matrix {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    /// The bytes, in words that are aligned as arenas are, and the words' worth of padding.
    words: Vec<u128>,
}

impl Matrix {
    /// Random codes with scales of a kind; floats of that kind.
    pub fn random(
        format: WeightFormat,
        rows: usize,
        cols: usize,
        kind: Kind,
        random: &mut Random,
    ) -> Matrix {
        let mut weights = match format {
            WeightFormat::F32 => bytemuck::cast_slice(&random.vector(kind, rows * cols)).to_vec(),
            WeightFormat::Bf16 => floats_as(ScaleType::Bf16, &random.vector(kind, rows * cols)),
            WeightFormat::F16 => floats_as(ScaleType::F16, &random.vector(kind, rows * cols)),
            _ => (0..format.file_bytes(rows, cols)).map(|_| random.code(format, kind)).collect(),
        };
        if let (FileLayout::Ggml, Some(block)) = (format.file_layout(), GgmlType::of(format)) {
            for bytes in weights.chunks_exact_mut(block.block_bytes()) {
                for place in block.half_places() {
                    let half = floats_as(ScaleType::F16, &random.vector(kind, 1));
                    bytes[*place..place + 2].copy_from_slice(&half);
                }
            }
        }
        let scales = random.vector(kind, format.file_scales(rows, cols));
        let scales = format.scale_type().map_or(vec![], |scale| floats_as(scale, &scales));
        Matrix::from_file(&FileMatrix {
            format,
            layout: format.file_layout(),
            rows,
            cols,
            weights: &weights,
            scales: &scales,
        })
    }

    /// A file's matrix, laid out.
    pub fn from_file(file: &FileMatrix) -> Matrix {
        let FileMatrix { format, rows, cols, .. } = *file;
        let mut words = vec![0u128; format.matrix_bytes(rows, cols).div_ceil(16)];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        file.lay_out(0..rows, 0..cols, &mut bytes[..format.matrix_bytes(rows, cols)]);
        Matrix { format, rows, cols, words }
    }

    /// The view that kernels take.
    pub fn view(&self) -> Weights<'_> {
        let bytes: &[u8] = bytemuck::cast_slice(&self.words);
        let bytes = &bytes[..self.format.matrix_bytes(self.rows, self.cols)];
        Weights::new(self.format, self.rows, self.cols, bytes)
    }
}

impl Random {
    /// A byte of codes: fp8 of ordinary kind has no NaN.
    fn code(&mut self, format: WeightFormat, kind: Kind) -> u8 {
        let byte = self.bits() as u8;
        match format {
            WeightFormat::Fp8Block128(_) if kind != Kind::Awkward && byte & 0x7f == 0x7f => 0,
            _ => byte,
        }
    }
}

/// Little-endian bytes of values in a type of scales; the values lose what it can't hold.
fn floats_as(scale: ScaleType, values: &[f32]) -> Vec<u8> {
    let bytes = |value: &f32| match scale {
        ScaleType::F32 => value.to_le_bytes().to_vec(),
        ScaleType::F16 => f32_to_f16(*value).to_le_bytes().to_vec(),
        ScaleType::Bf16 => ((value.to_bits() >> 16) as u16).to_le_bytes().to_vec(),
        ScaleType::Ue8m0 => vec![(value.to_bits() >> 23) as u8],
    };
    values.iter().flat_map(bytes).collect()
}
