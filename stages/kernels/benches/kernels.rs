//! How near the matmul comes to the memory and to the multiply-add units, on this machine.
//!
//! `cargo bench -p millstream-kernels` prints, for each weight format, instruction set and number
//! of tokens: GB/s of weight bytes, its ratio to a plain read of the same memory in the same
//! round, and GFLOP/s. One thread. The weights are far larger than the last-level cache. Options after `--`:
//! `cache` uses a small matrix instead, to see the arithmetic alone.

use millstream_kernels::{Activations, Isa, Kernels, WEIGHT_FORMATS, WeightFormat, Weights};
use std::hint::black_box;
use std::time::Instant;

/// Columns of the weights: 16 KiB rows in f32.
const COLS: usize = 4096;
const TOKENS: [usize; 8] = [1, 2, 3, 4, 6, 8, 16, 64];
const ROUNDS: usize = 5;

/// Seconds of one call.
fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Reads every byte once in address order, as wide as the target's baseline allows.
fn plain_read(words: &[u32]) -> u32 {
    words.iter().fold(0, |sum, word| sum ^ word)
}

/// Bench of one format, instruction set and number of tokens; prints one line.
fn bench(words: &[u32], format: WeightFormat, kernels: Kernels, tokens: usize, repeats: usize) {
    let w = Weights::from_bytes(format, bytemuck::cast_slice(words));
    let rows = w.len() / COLS;
    let data: Vec<f32> = (0..tokens * COLS).map(|i| (i % 97) as f32 / 97.0 - 0.5).collect();
    let chosen: Vec<u32> = (0..tokens as u32).collect();
    let x = Activations { data: &data, stride: COLS, rows: &chosen };
    let mut out = vec![0.0; rows * tokens];
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let read = seconds(|| {
            for _ in 0..repeats {
                black_box(plain_read(black_box(words)));
            }
        });
        let time = seconds(|| {
            for _ in 0..repeats {
                kernels.matmul(black_box(w), COLS, x, black_box(&mut out));
            }
        });
        times.push(time / repeats as f64);
        ratios.push(read / time);
    }
    let time = median(times);
    println!(
        "{:5} {:7} {tokens:3} tokens {:7.2} GB/s {:6.2} of a plain read {:8.1} GFLOP/s",
        format.name(),
        kernels.isa().name(),
        size_of_val(words) as f64 / time / 1e9,
        median(ratios),
        2.0 * (w.len() * tokens) as f64 / time / 1e9,
    );
}

fn main() {
    let in_cache = std::env::args().any(|argument| argument == "cache");
    let (mib, repeats) = if in_cache { (1, 256) } else { (256, 1) };
    println!("{mib} MiB of weights, {COLS} columns, one thread, median of {ROUNDS}");
    // Bit patterns of ordinary floats in either format: exponents near zero.
    let words: Vec<u32> = (0..mib << 18)
        .map(|i: u32| 0x3e80_3e80 ^ (i.wrapping_mul(0x9e37_79b9) & 0x807f_807f))
        .collect();
    for format in WEIGHT_FORMATS {
        for isa in Isa::available() {
            let Some(kernels) = Kernels::new(isa) else { continue };
            for tokens in TOKENS {
                // The scalar definition is too slow for more of it to tell anything.
                if isa == Isa::Scalar && tokens > 1 {
                    continue;
                }
                bench(&words, *format, kernels, tokens, repeats);
            }
        }
    }
}
