//! The vector body of the rounding of activations to int8, on 256 bits for every CPU: a row is
//! rounded once and then multiplied with thousands of weight rows.
//!
//! Sixteen columns (a strip) at a time: products, rounding half to even (what the CPU does by
//! default), narrowing, and one byte shuffle to the layout's order.
//! [`scalar::quantise`](crate::scalar::quantise) is the definition.

#![allow(unsafe_code)]

use super::integers::{STRIP_COLUMNS, Strip};
use super::{Avx2, LANES, Operation, Simd};
use crate::activations::{ActivationLayout, QuantisedRowMut};
use crate::formats::Order;
use crate::scalar::quantisation;
use std::arch::x86_64::*;

/// Columns of the largest group.
const GROUP_MAX: usize = 64;

/// Activations to int8.
pub struct Quantise<'a, 'b> {
    pub layout: &'a ActivationLayout,
    pub x: &'a [f32],
    pub out: QuantisedRowMut<'b>,
}

impl Operation for Quantise<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, cpu: S) {
        let _proof: Avx2 = cpu.avx2();
        // SAFETY: avx2 exists: there is an `Avx2`.
        unsafe { all_groups(self.layout, self.x, self.out) }
    }
}

/// Group after group; a short last one is filled up with zeros, whose codes are zero.
#[target_feature(enable = "avx2")]
fn all_groups(layout: &ActivationLayout, x: &[f32], out: QuantisedRowMut) {
    let (group, unit) = (layout.group, layout.unit);
    let whole =
        group <= GROUP_MAX && group.is_multiple_of(unit) && unit.is_multiple_of(STRIP_COLUMNS);
    assert!(whole, "layouts are those of formats: {layout:?}");
    let table = &SHUFFLES[layout.order as usize];
    let QuantisedRowMut { mut codes, mut scales, mut sums } = out;
    for x in x.chunks(group) {
        let units = x.len().div_ceil(unit);
        let room = |left: usize| group.min(left);
        let mut padded = [0.0; GROUP_MAX];
        padded[..x.len()].copy_from_slice(x);
        let out = QuantisedRowMut {
            codes: codes.split_off_mut(..room(codes.len())).expect("room for whole groups"),
            scales: scales.split_off_mut(..units).expect("a scale per unit"),
            sums: sums.split_off_mut(..units).expect("a sum per unit"),
        };
        let x = if x.len() == group { x } else { &padded[..group] };
        one_group(unit, table, x, out);
    }
    codes.fill(0);
}

/// Codes, scales and sums of a whole group.
#[target_feature(enable = "avx2")]
fn one_group(unit: usize, table: &[u8; STRIP_COLUMNS], x: &[f32], out: QuantisedRowMut) {
    let x = x.as_chunks::<LANES>().0;
    let (scale, factor) = quantisation(largest(x));
    out.scales.fill(scale);
    out.sums.fill(0);
    if factor == 0.0 {
        out.codes.fill(0);
        return;
    }
    let strips = out.codes.as_chunks_mut::<STRIP_COLUMNS>().0;
    for (s, (x, strip)) in x.iter().zip(strips).enumerate() {
        let sum = round(x, factor, table, strip);
        if let Some(all) = out.sums.get_mut(s * STRIP_COLUMNS / unit) {
            *all += sum;
        }
    }
}

/// Eight floats.
#[inline]
#[target_feature(enable = "avx2")]
fn halves(x: &[f32; LANES]) -> [__m256; 2] {
    let x = x.as_ptr();
    // SAFETY: 16 f32 are readable: the pointer was a reference to them. No alignment is needed.
    unsafe { [_mm256_loadu_ps(x), _mm256_loadu_ps(x.add(8))] }
}

/// Sixteen bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes(from: &[u8; STRIP_COLUMNS]) -> __m128i {
    // SAFETY: 16 bytes are readable: `from` is a reference to them. No alignment is needed.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// The largest magnitude; NaN is above infinity. Of non-negative floats the larger has the larger
/// bits, so that the maximum is one of integers.
#[inline]
#[target_feature(enable = "avx2")]
fn largest(x: &[[f32; LANES]]) -> f32 {
    let magnitude = _mm256_set1_epi32(i32::MAX);
    let mut max = _mm256_setzero_si256();
    for x in x {
        for half in halves(x) {
            max = _mm256_max_epi32(max, _mm256_and_si256(_mm256_castps_si256(half), magnitude));
        }
    }
    let max = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
    let max = _mm_max_epi32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
    let max = _mm_max_epi32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
    f32::from_bits(_mm_cvtsi128_si32(max).cast_unsigned())
}

/// Rounds a strip and returns the sum of its codes.
#[inline]
#[target_feature(enable = "avx2")]
fn round(x: &[f32; LANES], factor: f32, table: &[u8; STRIP_COLUMNS], codes: &mut Strip) -> i32 {
    let factor = _mm256_set1_ps(factor);
    let [low, high] = halves(x);
    let low = _mm256_cvtps_epi32(_mm256_mul_ps(low, factor));
    let high = _mm256_cvtps_epi32(_mm256_mul_ps(high, factor));
    let words = _mm256_packs_epi32(low, high);
    let (first, last) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
    let ordered = _mm_shuffle_epi8(_mm_packs_epi16(first, last), bytes(table));
    // SAFETY: 16 bytes are ours to write: `codes` is an exclusive reference to them. No alignment
    // is needed.
    unsafe { _mm_storeu_si128(codes.as_mut_ptr().cast(), ordered) };
    // Sums of unsigned bytes: 128 more than each code.
    let raised = _mm_xor_si128(ordered, _mm_set1_epi8(i8::MIN));
    let parts = _mm_sad_epu8(raised, _mm_setzero_si128());
    _mm_cvtsi128_si32(parts) + _mm_extract_epi16::<4>(parts) - 128 * STRIP_COLUMNS as i32
}

/// For every order, where the byte at each place comes from.
static SHUFFLES: [[u8; STRIP_COLUMNS]; 3] =
    [shuffle(Order::Plain), shuffle(Order::Pairs), shuffle(Order::Fours)];

/// [`round`] packs within halves of registers, which leaves columns 0-3, 8-11, 4-7, 12-15.
const fn shuffle(order: Order) -> [u8; STRIP_COLUMNS] {
    let mut table = [0; STRIP_COLUMNS];
    let mut place = 0;
    while place < STRIP_COLUMNS {
        let column = order.column(place / 4, place % 4);
        let packed = match column / 4 {
            1 => column + 4,
            2 => column - 4,
            _ => column,
        };
        table[place] = packed as u8;
        place += 1;
    }
    table
}

const _: () = assert!(
    Order::Plain as usize == 0 && Order::Pairs as usize == 1 && Order::Fours as usize == 2,
    "SHUFFLES is in this order"
);
