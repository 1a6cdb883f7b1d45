//! Rows of floats as they lie in memory: plain floats, and fp8 with its scales in front.
//!
//! `matmul` and `transposed` walk over [`Rows`] and don't know which floats they are: an
//! [`Element`] says how 16 of them become f32, and [`Element::SCALED`] whether each run of 128
//! columns has a scale.

use super::{Element, F16, Simd, load_padded, prefetch};
use crate::formats::block::LINE_BYTES;
use crate::formats::{ScaleType, WeightFormat, codes::CodeKind, fp8};
use crate::scalar::LANES;
use crate::weights::{Floats, Weights};
use bytemuck::TransparentWrapper;

/// Chunks of 16 columns that share a scale, where there are scales.
pub const SCALE_CHUNKS: usize = fp8::BLOCK / LANES;

/// Some rows of a matrix of floats.
#[derive(Clone, Copy)]
pub struct Rows<'a, T> {
    /// From the first row on; may go on behind the last.
    data: &'a [T],
    /// Columns of a row.
    pub cols: usize,
    /// Elements from a row's start to the next one's.
    pub stride: usize,
    /// Elements in front of a row's weights: its scales.
    head: usize,
    /// The type of scales; unused where there are none.
    scale: ScaleType,
}

/// One of them.
#[derive(Clone, Copy)]
pub struct Row<'a, T> {
    /// As they lie in memory.
    pub weights: &'a [T],
    scales: &'a [T],
    scale: ScaleType,
}

/// How the weights of a matrix lie in memory: rows of floats, or blocks of codes.
pub enum Layout<'a> {
    F32(Rows<'a, f32>),
    Bf16(Rows<'a, u16>),
    F16(Rows<'a, F16>),
    Fp8(Rows<'a, u8>),
    Codes(CodeKind),
}

impl<'a> Layout<'a> {
    /// That of a matrix.
    #[inline(always)]
    pub fn of(w: Weights<'a>) -> Layout<'a> {
        if let Some(kind) = w.format().codes() {
            return Layout::Codes(kind);
        }
        match (w.floats(), w.format()) {
            (Some(Floats::F32(data)), _) => Layout::F32(Rows::plain(data, w.cols())),
            (Some(Floats::Bf16(data)), _) => Layout::Bf16(Rows::plain(data, w.cols())),
            (Some(Floats::F16(data)), _) => {
                Layout::F16(Rows::plain(F16::wrap_slice(data), w.cols()))
            }
            (None, WeightFormat::Fp8Block128(scale)) => Layout::Fp8(Rows {
                data: w.bytes(),
                cols: w.cols(),
                stride: fp8::row_bytes(scale, w.cols()),
                head: fp8::row_scale_bytes(scale, w.cols()),
                scale,
            }),
            (None, format) => unreachable!("{format} has codes or floats"),
        }
    }
}

impl<'a, T: Element> Rows<'a, T> {
    /// Rows without scales, one after the other.
    fn plain(data: &'a [T], cols: usize) -> Rows<'a, T> {
        Rows { data, cols, stride: cols, head: 0, scale: ScaleType::F32 }
    }

    /// From a later row on.
    #[inline(always)]
    pub fn from(self, row: usize) -> Rows<'a, T> {
        Rows { data: &self.data[row * self.stride..], ..self }
    }

    /// A row.
    #[inline(always)]
    pub fn row(self, row: usize) -> Row<'a, T> {
        let row = &self.data[row * self.stride..][..self.head + self.cols];
        let (scales, weights) = row.split_at(self.head);
        Row { weights, scales, scale: self.scale }
    }
}

impl<T: Element> Row<'_, T> {
    /// The scale of a chunk of 16 columns; nothing that counts where there are none.
    #[inline(always)]
    pub fn scale<S: Simd>(self, cpu: S, chunk: usize) -> S::Vector {
        cpu.splat(T::scale(self.scale, self.scales, chunk / SCALE_CHUNKS))
    }

    /// Asks for the cache lines of so many elements from an index on, which may be in later rows.
    #[inline(always)]
    pub fn ask(self, index: usize, elements: usize) {
        for line in 0..(elements * size_of::<T>()).div_ceil(LINE_BYTES) {
            prefetch(self.weights, index + line * (LINE_BYTES / size_of::<T>()));
        }
    }

    /// The last weights, those from `chunk` on, filled up with +0.
    #[inline(always)]
    pub fn rest<S: Simd>(self, cpu: S, chunk: usize) -> S::Vector {
        let weights = &self.weights[chunk * LANES..];
        let padded = load_padded(cpu, weights);
        if !T::SCALED {
            return padded;
        }
        // A scale may turn a zero into another zero or NaN.
        let mut lanes = [0.0; LANES];
        cpu.store(cpu.mul(padded, self.scale(cpu, chunk)), &mut lanes);
        lanes[weights.len()..].fill(0.0);
        cpu.load(&lanes)
    }
}
