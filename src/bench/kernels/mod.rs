//! How near the kernels come to the memory, on this machine.
//!
//! Tables with a line per weight format and number of threads: matmul with weights from memory, in long
//! calls and in calls as short as the engine's, matmul with weights in the second-level cache, and the
//! transposed use. GB/s count the bytes of the compute layout, scales included. Beside each stands a plain
//! read of the same bytes in the same rounds: the best of several ways to read (one to four places, lines
//! asked for ahead or not). Passes of plain reads and kernels take turns, and the best pass of each counts,
//! so that noise of other programs hits both alike. Activations are quantised once, outside the passes.
//!
//! | file | what it is |
//! |---|---|
//! | `memory.rs` | huge pages filled with a matrix |
//! | `passes.rs` | pinned threads that do the same passes at the same time, and their times |
//! | `work.rs` | what a thread does in a pass |

mod memory;
mod passes;
mod work;

use memory::Memory;
use millstream_kernels::{Isa, Kernels, WeightFormat};
use millstream_topology::arena::ArenaError;
use millstream_topology::cpuset::CpuId;
use millstream_topology::machine::Machine;
use passes::{Passes, best_seconds};
use serde::Serialize;
use std::fmt;
use work::{Shape, Work};

/// Columns of a matmul: the hidden size of GLM-5.2.
const COLS: usize = 6144;
/// Columns of the transposed use: the latent rank.
const LATENT_COLS: usize = 512;
/// Bytes of the weights that are used again and again from the second-level cache.
const CACHED_BYTES: usize = 384 << 10;
/// Memory that is read: more than caches hold.
const MEMORY_BYTES: usize = 512 << 20;
/// Tokens of the second column.
const TOKENS: usize = 8;

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

/// What one work reached.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkFigures {
    /// What it is: so many tokens, or the transposed use of one vector.
    pub work: String,
    /// 10^9 bytes of weights a second.
    pub weights_gb_s: f64,
    /// That as a share of the plain read.
    pub plain_share: f64,
    /// Rows a second of this, in terms of the table's first work.
    pub rows_times: f64,
}

/// A format with a number of threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelRow {
    /// The table.
    pub table: &'static str,
    /// Columns of a call.
    pub cols: usize,
    /// The format.
    pub format: String,
    /// Threads, each on a core of its own.
    pub threads: usize,
    /// 10^9 bytes a second of a plain read of the same memory.
    pub plain_gb_s: f64,
    /// By work.
    pub works: Vec<WorkFigures>,
}

/// All tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelReport {
    /// The instruction set.
    pub isa: &'static str,
    /// The kernel was asked for huge pages.
    pub huge_pages: bool,
    /// The figures.
    pub rows: Vec<KernelRow>,
}

/// What is measured.
pub struct KernelBench {
    /// The arithmetic.
    pub kernels: Kernels,
    /// Formats.
    pub formats: Vec<WeightFormat>,
    /// Passes of each kind; the best counts.
    pub rounds: usize,
}

impl KernelBench {
    /// Measures with one thread, two, and all cores of a machine.
    ///
    /// # Errors
    /// When there isn't enough memory.
    pub fn run(&self, machine: &Machine) -> Result<KernelReport, ArenaError> {
        let cpus: Vec<CpuId> = machine.usable_cores().map(|core| core.cpus[0]).collect();
        let mut threads = vec![1, 2, cpus.len()];
        threads.retain(|&threads| threads <= cpus.len());
        threads.dedup();
        let mut memory = Memory::new(MEMORY_BYTES, cpus)?;
        let mut rows = vec![];
        for table in TABLES {
            for &format in &self.formats {
                self.rows(&mut memory, format, table, &threads, &mut rows);
            }
        }
        let isa: Isa = self.kernels.isa();
        Ok(KernelReport { isa: isa.name(), huge_pages: memory.is_huge(), rows })
    }

    /// One format with each number of threads.
    fn rows(
        &self,
        memory: &mut Memory,
        format: WeightFormat,
        table: Table,
        threads: &[usize],
        found: &mut Vec<KernelRow>,
    ) {
        let rows = match table.call {
            Call::Memory { rows } | Call::Scattered { rows } => rows,
            Call::Cache => 16 * (CACHED_BYTES / format.matrix_bytes(16, table.cols)).max(1),
        };
        let shape = Shape { format, rows, cols: table.cols };
        memory.fill(&shape);
        for &threads in threads {
            let pieces = match table.call {
                Call::Memory { .. } | Call::Scattered { .. } => memory.pieces(&shape) / threads,
                Call::Cache => 1,
            };
            let (kernels, rounds) = (self.kernels, self.rounds);
            let scattered = matches!(table.call, Call::Scattered { .. });
            let times = best_seconds(&Passes {
                memory,
                kernels,
                shape,
                pieces,
                scattered,
                threads,
                works: table.works,
                rounds,
            });
            let bytes = (times.pieces_a_pass * threads * shape.bytes()) as f64;
            let figures = |(work, &seconds): (&Work, &f64)| WorkFigures {
                work: work.name(),
                weights_gb_s: bytes / seconds / 1e9,
                plain_share: times.plain / seconds,
                rows_times: work.tokens() as f64 * times.works[0] / seconds,
            };
            found.push(KernelRow {
                table: table.title,
                cols: table.cols,
                format: format.to_string(),
                threads,
                plain_gb_s: bytes / times.plain / 1e9,
                works: table.works.iter().zip(&times.works).map(figures).collect(),
            });
        }
    }
}

impl fmt::Display for KernelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = "";
        for row in &self.rows {
            if row.table != table {
                table = row.table;
                let works: String = row
                    .works
                    .iter()
                    .map(|work| format!(" {0} GB/s | {0} of plain | {0} rows/s |", work.work))
                    .collect();
                writeln!(f, "\n{}: {table}, {} columns\n", self.isa, row.cols)?;
                writeln!(f, "| format | threads | plain GB/s |{works}")?;
                writeln!(f, "|---|---:|---:|{}", "---:|---:|---:|".repeat(row.works.len()))?;
            }
            write!(f, "| {} | {} | {:.2} |", row.format, row.threads, row.plain_gb_s)?;
            for work in &row.works {
                let WorkFigures { weights_gb_s, plain_share, rows_times, .. } = work;
                write!(f, " {weights_gb_s:.2} | {plain_share:.2} | x{rows_times:.2} |")?;
            }
            writeln!(f)?;
        }
        match self.huge_pages {
            true => Ok(()),
            false => writeln!(
                f,
                "\nThe kernel has no huge pages: plain reads are slower than they could be."
            ),
        }
    }
}
