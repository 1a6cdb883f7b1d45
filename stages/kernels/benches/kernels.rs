//! How near the matmul comes to the memory and to the multiply-add units, on this machine.
//!
//! `cargo bench -p millstream-kernels` prints, for each weight format, instruction set and number
//! of tokens: GB/s of weight bytes, its ratio to a plain read of the same memory in the same
//! round, and GFLOP/s. One thread. The weights are far larger than the last-level cache and are
//! passed in portions of 1 MiB; the median over the portions is printed, so that a portion in
//! which the thread was pre-empted does not count. `-- cache` uses one portion of half a MiB again
//! and again instead, to see the arithmetic without the memory.

use millstream_kernels::{Activations, Isa, Kernels, WEIGHT_FORMATS, WeightFormat, Weights};
use std::hint::black_box;
use std::time::Instant;

/// Columns of the weights: 16 KiB rows in f32.
const COLS: usize = 4096;
const TOKENS: [usize; 9] = [1, 2, 3, 4, 6, 8, 12, 16, 64];
const ROUNDS: usize = 3;

/// What is read: all the weights, in portions that are timed one by one.
struct Memory {
    words: Vec<u32>,
    portion_words: usize,
    /// Passes over the words in a round.
    passes: usize,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Median seconds per portion of `work` in one round.
fn portion_seconds(memory: &Memory, mut work: impl FnMut(&[u32])) -> f64 {
    let mut times = Vec::new();
    for _ in 0..memory.passes {
        for portion in memory.words.chunks_exact(memory.portion_words) {
            let start = Instant::now();
            work(black_box(portion));
            times.push(start.elapsed().as_secs_f64());
        }
    }
    median(times)
}

/// Reads every byte once in address order, as wide as the target's baseline allows.
fn plain_read(words: &[u32]) {
    black_box(words.iter().fold(0, |sum, word| sum ^ word));
}

/// Bench of one format, instruction set and number of tokens; prints one line.
fn bench(memory: &Memory, format: WeightFormat, kernels: Kernels, tokens: usize) {
    let weights = memory.portion_words * 4 / format.bytes_per_weight();
    let rows = weights / COLS;
    let data: Vec<f32> = (0..tokens * COLS).map(|i| (i % 97) as f32 / 97.0 - 0.5).collect();
    let chosen: Vec<u32> = (0..tokens as u32).collect();
    let x = Activations { data: &data, stride: COLS, rows: &chosen };
    let mut out = vec![0.0; rows * tokens];
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let read = portion_seconds(memory, plain_read);
        let time = portion_seconds(memory, |portion| {
            let w = Weights::from_bytes(format, bytemuck::cast_slice(portion));
            kernels.matmul(w, COLS, x, black_box(&mut out));
        });
        times.push(time);
        ratios.push(read / time);
    }
    let time = median(times);
    println!(
        "{:5} {:7} {tokens:3} tokens {:7.2} GB/s {:6.2} of a plain read {:8.1} GFLOP/s",
        format.name(),
        kernels.isa().name(),
        (memory.portion_words * 4) as f64 / time / 1e9,
        median(ratios),
        2.0 * (weights * tokens) as f64 / time / 1e9,
    );
}

fn main() {
    let cached = std::env::args().any(|argument| argument == "cache");
    let (words, portion_words, passes) =
        if cached { (1 << 17, 1 << 17, 200) } else { (1 << 26, 1 << 18, 1) };
    // Bit patterns of ordinary floats in either format: exponents near zero.
    let value = |i: u32| 0x3e80_3e80 ^ (i.wrapping_mul(0x9e37_79b9) & 0x807f_807f);
    let memory = Memory { words: (0..words).map(value).collect(), portion_words, passes };
    println!("{} KiB of weights, {COLS} columns, one thread", words / 256);
    for format in WEIGHT_FORMATS {
        for isa in Isa::available() {
            let Some(kernels) = Kernels::new(isa) else { continue };
            for tokens in TOKENS {
                // The scalar definition is too slow for more of it to tell anything.
                if isa != Isa::Scalar || tokens == 1 {
                    bench(&memory, *format, kernels, tokens);
                }
            }
        }
    }
}
