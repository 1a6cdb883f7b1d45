//! How near the kernels come to the memory, on this machine.
//!
//! `cargo bench -p millstream-kernels --bench kernels` prints tables with a line per weight format
//! and number of threads: matmul with weights from memory, in long calls and in calls as short as
//! the engine's, matmul with weights in the second-level cache, and the transposed use. GB/s count the bytes of the compute
//! layout, scales included. Beside each stands a plain read of the same bytes in the same rounds:
//! the best of several ways to read (one to four places, lines asked for ahead or not). Passes of
//! plain reads and kernels take turns, and the best pass of each counts, so that noise of other
//! programs hits both alike. Activations are quantised once, outside the passes.
//!
//! - `memory`: huge pages filled with a matrix.
//! - `passes`: pinned threads that do the same passes at the same time, and their times.
//! - `work`: what a thread does in a pass.
//!
//! Arguments after `--`: names of formats (`int4-g64`, all by default), of instruction sets (the
//! best by default), and `--quick` for less memory and fewer rounds.

mod memory;
mod passes;
mod work;

use memory::Memory;
use millstream_kernels::{Isa, Kernels, WeightFormat};
use passes::{Passes, best_seconds};
use work::{Shape, Work};

/// Columns of a matmul: the hidden size of GLM-5.2.
const COLS: usize = 6144;
/// Columns of the transposed use: the latent rank.
const LATENT_COLS: usize = 512;
/// Bytes of the weights that are used again and again from the second-level cache.
const CACHED_BYTES: usize = 384 << 10;
/// Tokens of the second column.
const TOKENS: usize = 8;
const THREADS: [usize; 2] = [1, 2];

/// What the command line chose.
struct Options {
    formats: Vec<WeightFormat>,
    isas: Vec<Isa>,
    memory_bytes: usize,
    rounds: usize,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options =
            Options { formats: vec![], isas: vec![], memory_bytes: 512 << 20, rounds: 60 };
        // Cargo says "--bench" itself.
        for argument in arguments.filter(|argument| argument != "--bench") {
            if argument == "--quick" {
                (options.memory_bytes, options.rounds) = (256 << 20, 20);
            } else if let Ok(format) = argument.parse() {
                options.formats.push(format);
            } else if let Ok(isa) = argument.parse() {
                options.isas.push(isa);
            } else {
                let unknown = argument.parse::<WeightFormat>().expect_err("tried above");
                return Err(format!("{unknown}; or an instruction set, or --quick"));
            }
        }
        if options.formats.is_empty() {
            options.formats = WeightFormat::EACH.to_vec();
        }
        if options.isas.is_empty() {
            options.isas = vec![Isa::best()];
        }
        Ok(options)
    }
}

/// The weights of a call.
#[derive(Clone, Copy)]
enum Call {
    /// So many rows from memory, one call's behind the other's.
    Memory { rows: usize },
    /// So many rows from memory, each call's somewhere else.
    Scattered { rows: usize },
    /// The same [`CACHED_BYTES`] again and again.
    Cache,
}

/// A table: what a call is, and what is timed beside the plain read.
#[derive(Clone, Copy)]
struct Table {
    title: &'static str,
    cols: usize,
    call: Call,
    works: &'static [Work],
}

const TABLES: [Table; 6] = [
    Table {
        title: "matmul, weights from memory, 128 rows a call, each somewhere else (a slice of an expert)",
        cols: 2048,
        call: Call::Scattered { rows: 128 },
        works: &[Work::Matmul(1)],
    },
    Table {
        title: "matmul, weights from memory, 1024 rows a call, each somewhere else (its columns of down)",
        cols: 128,
        call: Call::Scattered { rows: 1024 },
        works: &[Work::Matmul(1)],
    },
    Table {
        title: "matmul, weights from memory, 128 rows a call",
        cols: COLS,
        call: Call::Memory { rows: 128 },
        works: &[Work::Matmul(1), Work::Matmul(TOKENS)],
    },
    Table {
        title: "matmul, weights from memory, 32 rows a call (as the engine's jobs have)",
        cols: COLS,
        call: Call::Memory { rows: 32 },
        works: &[Work::Matmul(1), Work::Matmul(TOKENS)],
    },
    Table {
        title: "matmul, weights in the second-level cache",
        cols: COLS,
        call: Call::Cache,
        works: &[Work::Matmul(1), Work::Matmul(TOKENS)],
    },
    Table {
        title: "transposed use, weights from memory, 192 rows a call (a head)",
        cols: LATENT_COLS,
        call: Call::Memory { rows: 192 },
        works: &[Work::Transposed],
    },
];

fn main() {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    };
    let mut memory = Memory::new(options.memory_bytes);
    for isa in &options.isas {
        let Some(kernels) = Kernels::new(*isa) else {
            eprintln!("this machine has no {isa}");
            std::process::exit(2);
        };
        for table in TABLES {
            println!("\n{isa}: {}, {} columns", table.title, table.cols);
            print_head(table.works);
            for format in &options.formats {
                bench(&mut memory, kernels, *format, table, options.rounds);
            }
        }
    }
}

fn print_head(works: &[Work]) {
    print!("{:16} {:>7} {:>9}", "", "threads", "plain");
    for work in works {
        print!(" | {:30}", work.name());
    }
    println!();
}

/// Times one format with each number of threads; prints a line for each.
fn bench(memory: &mut Memory, kernels: Kernels, format: WeightFormat, table: Table, rounds: usize) {
    let rows = match table.call {
        Call::Memory { rows } | Call::Scattered { rows } => rows,
        Call::Cache => 16 * (CACHED_BYTES / format.matrix_bytes(16, table.cols)).max(1),
    };
    let shape = Shape { format, rows, cols: table.cols };
    memory.fill(&shape);
    for threads in THREADS.into_iter().filter(|threads| *threads <= memory.cpus.len()) {
        let pieces = match table.call {
            Call::Memory { .. } | Call::Scattered { .. } => memory.pieces(&shape) / threads,
            Call::Cache => 1,
        };
        let scattered = matches!(table.call, Call::Scattered { .. });
        let works = table.works;
        let passes = Passes { memory, kernels, shape, pieces, scattered, threads, works, rounds };
        let times = best_seconds(&passes);
        let bytes = (times.pieces_a_pass * threads * shape.bytes()) as f64;
        let rate = |seconds: f64| bytes / seconds / 1e9;
        print!("{:16} {threads:>7} {:>9.2}", format.to_string(), rate(times.plain));
        for (work, seconds) in table.works.iter().zip(&times.works) {
            print!(" | {:6.2} GB/s {:4.2}", rate(*seconds), times.plain / seconds);
            let weights = (times.pieces_a_pass * threads * shape.rows * shape.cols) as f64;
            match work {
                Work::Matmul(1) => print!(" of plain   "),
                Work::Matmul(tokens) => {
                    print!(" rows/s x{:4.2}", *tokens as f64 * times.works[0] / seconds);
                }
                Work::Transposed => print!(" {:6.3} ns/weight", 1e9 * seconds / weights),
            }
        }
        println!();
    }
}
