//! What a thread does with a piece of weights: read it plainly, multiply, or use it transposed.

use millstream_kernels::formats::bf16::f32_to_bf16;
use millstream_kernels::formats::f16::f32_to_f16;
use millstream_kernels::kernels::ReadOrder;
use millstream_kernels::{
    ActivationLayout, Activations, FileLayout, FileMatrix, GgmlType, Kernels, Quantised,
    QuantisedRowMut, ScaleType, WeightFormat, Weights,
};
use std::hint::black_box;

/// The plain reads; the best counts.
pub const PLAIN_READS: [ReadOrder; 5] = [
    ReadOrder { places: 1, ahead_bytes: 0 },
    ReadOrder { places: 1, ahead_bytes: 4 << 10 },
    ReadOrder { places: 1, ahead_bytes: 16 << 10 },
    ReadOrder { places: 2, ahead_bytes: 2 << 10 },
    ReadOrder { places: 4, ahead_bytes: 2 << 10 },
];

/// What is timed.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// A matmul with so many tokens.
    Matmul(usize),
    /// The transposed use with one vector.
    Transposed,
}

impl Work {
    /// Tokens of one call.
    pub fn tokens(self) -> usize {
        match self {
            Work::Matmul(tokens) => tokens,
            Work::Transposed => 1,
        }
    }

    /// The column's title.
    pub fn name(self) -> String {
        match self {
            Work::Matmul(1) => "1 token".to_owned(),
            Work::Matmul(tokens) => format!("{tokens} tokens"),
            Work::Transposed => "1 vector".to_owned(),
        }
    }
}

/// A piece of weights that a kernel is called with.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub format: WeightFormat,
    pub rows: usize,
    pub cols: usize,
}

impl Shape {
    /// Bytes in the compute layout.
    pub fn bytes(&self) -> usize {
        self.format.matrix_bytes(self.rows, self.cols)
    }

    /// A matrix of random weights around zero.
    pub fn random_matrix(&self) -> Vec<u8> {
        let Shape { format, rows, cols } = *self;
        let mut random = Random(1);
        let mut floats = |count: usize, scale: Option<ScaleType>| -> Vec<u8> {
            let bytes = |_| {
                let value = random.float();
                match scale {
                    None | Some(ScaleType::F32) => value.to_le_bytes().to_vec(),
                    Some(ScaleType::Bf16) => f32_to_bf16(value).to_le_bytes().to_vec(),
                    Some(ScaleType::F16) => f32_to_f16(value).to_le_bytes().to_vec(),
                    Some(ScaleType::Ue8m0) => vec![(value.to_bits() >> 23) as u8],
                }
            };
            (0..count).flat_map(bytes).collect()
        };
        let scales = floats(format.file_scales(rows, cols), format.scale_type());
        let half = |random: &mut Random| f32_to_f16(random.float()).to_le_bytes();
        let mut weights = match format {
            WeightFormat::F32 => floats(rows * cols, None),
            WeightFormat::Bf16 => floats(rows * cols, Some(ScaleType::Bf16)),
            WeightFormat::F16 => floats(rows * cols, Some(ScaleType::F16)),
            // fp8's NaN are left out; every byte is two nibbles and so on.
            _ => (0..format.file_bytes(rows, cols)).map(|_| random.bits() as u8 & 0xbf).collect(),
        };
        let layout = format.file_layout();
        if let (FileLayout::Ggml, Some(kind)) = (layout, GgmlType::of(format)) {
            for block in weights.chunks_exact_mut(kind.block_bytes()) {
                for place in kind.half_places() {
                    block[*place..place + 2].copy_from_slice(&half(&mut random));
                }
            }
        }
        let file = FileMatrix { format, layout, rows, cols, weights: &weights, scales: &scales };
        let mut bytes = vec![0; self.bytes()];
        file.lay_out(0..rows, 0..cols, &mut bytes);
        bytes
    }
}

/// A small generator (SplitMix64).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// -1 to 1, and not near zero, so that scales are ordinary.
    fn float(&mut self) -> f32 {
        let bits = self.bits();
        let magnitude = 0.25 + (bits >> 40) as f32 / (1u64 << 25) as f32;
        if bits & 1 == 0 { magnitude } else { -magnitude }
    }
}

/// A thread's inputs and outputs.
pub struct Hands {
    kernels: Kernels,
    shape: Shape,
    chosen: Vec<u32>,
    data: Vec<f32>,
    layout: Option<ActivationLayout>,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    out: Vec<f32>,
    /// Factors of rows and the sums over them, of the transposed use.
    factors: Vec<f32>,
    columns: Vec<f32>,
}

/// The most tokens.
const TOKENS_MAX: usize = super::TOKENS;

impl Hands {
    /// Random activations, quantised where the format's kernel takes them so.
    pub fn new(kernels: Kernels, shape: Shape) -> Hands {
        let mut random = Random(2);
        let mut floats =
            |count: usize| -> Vec<f32> { (0..count).map(|_| random.float()).collect() };
        let layout = ActivationLayout::of(shape.format, shape.cols);
        let (codes, units) = layout.map_or((0, 0), |layout| (layout.codes(), layout.units()));
        let mut hands = Hands {
            kernels,
            shape,
            chosen: (0..TOKENS_MAX as u32).collect(),
            data: floats(TOKENS_MAX * shape.cols),
            layout,
            codes: vec![0; TOKENS_MAX * codes],
            scales: vec![0.0; TOKENS_MAX * units],
            sums: vec![0; TOKENS_MAX * units],
            out: vec![0.0; TOKENS_MAX * shape.rows],
            factors: floats(shape.rows),
            columns: vec![0.0; shape.cols],
        };
        if let Some(layout) = &layout {
            for t in 0..TOKENS_MAX {
                let out = QuantisedRowMut {
                    codes: &mut hands.codes[t * codes..][..codes],
                    scales: &mut hands.scales[t * units..][..units],
                    sums: &mut hands.sums[t * units..][..units],
                };
                kernels.quantise(layout, &hands.data[t * shape.cols..][..shape.cols], out);
            }
        }
        hands
    }

    /// Reads a piece and does nothing with it.
    pub fn read(&mut self, order: ReadOrder, piece: &[u8]) {
        black_box(self.kernels.maximum(bytemuck::cast_slice(black_box(piece)), order));
    }

    /// Does the work with a piece.
    pub fn work(&mut self, work: Work, piece: &[u8]) {
        let Shape { format, rows, cols } = self.shape;
        let w = Weights::new(format, rows, cols, black_box(piece));
        match (work, self.layout) {
            (Work::Transposed, _) => self.kernels.transposed(w, &self.factors, &mut self.columns),
            (Work::Matmul(tokens), None) => {
                let chosen = &self.chosen[..tokens];
                let x = Activations { data: &self.data, stride: cols, rows: chosen };
                self.kernels.matmul(w, x, &mut self.out[..tokens * rows]);
            }
            (Work::Matmul(tokens), Some(layout)) => {
                let x = Quantised {
                    layout,
                    codes: &self.codes,
                    scales: &self.scales,
                    sums: &self.sums,
                    rows: &self.chosen[..tokens],
                };
                self.kernels.matmul_quantised(w, x, &mut self.out[..tokens * rows]);
            }
        }
        black_box(&mut self.out);
        black_box(&mut self.columns);
    }
}
