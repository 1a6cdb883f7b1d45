//! Pinned threads that do the same passes at the same time, and the best time of each pass.
//!
//! A round is every plain read and every work, in turn. A pass is some MiB, which takes about a
//! millisecond: short enough that on a busy machine some passes are left alone. Each pass goes on
//! in the memory where the last one stopped, so that what it reads has long left the caches. It
//! lasts from the first thread's start to the last one's end. Threads meet before each pass by
//! spinning, so that nobody's waking up is timed.

use super::memory::Memory;
use super::work::{Hands, PLAIN_READS, Shape, Work};
use millstream_kernels::Kernels;
use millstream_topology::pin_current_thread;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes that each thread reads in a pass.
const PASS_BYTES: usize = 16 << 20;

/// Passes of a work that takes longer than this read fewer.
const PASS_MAX: Duration = Duration::from_millis(2);

/// What is timed.
pub struct Passes<'a> {
    pub memory: &'a Memory,
    pub kernels: Kernels,
    pub shape: Shape,
    /// Pieces of each thread; one is used again and again.
    pub pieces: usize,
    /// Pieces are taken out of the order in which they lie.
    pub scattered: bool,
    pub threads: usize,
    pub works: &'static [Work],
    pub rounds: usize,
}

/// The best times.
pub struct Times {
    /// Pieces that each thread reads in a pass.
    pub pieces_a_pass: usize,
    /// Seconds of the best plain read.
    pub plain: f64,
    /// Seconds of each work.
    pub works: Vec<f64>,
}

/// Start and end of one thread's part of a pass.
type Span = (Instant, Instant);

/// Does all rounds.
pub fn best_seconds(passes: &Passes) -> Times {
    let pieces_a_pass = passes.pieces_a_pass();
    let met = AtomicUsize::new(0);
    let spans: Vec<Vec<Span>> = std::thread::scope(|scope| {
        let run = |thread| {
            let met = &met;
            move || passes.rounds_of_thread(thread, pieces_a_pass, met)
        };
        let threads: Vec<_> = (0..passes.threads).map(|thread| scope.spawn(run(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a pass")).collect()
    });
    let kinds = PLAIN_READS.len() + passes.works.len();
    let mut best = vec![f64::INFINITY; kinds];
    for pass in 0..passes.rounds * kinds {
        let start = spans.iter().map(|spans| spans[pass].0).min().expect("a thread");
        let end = spans.iter().map(|spans| spans[pass].1).max().expect("a thread");
        let seconds = (end - start).as_secs_f64();
        best[pass % kinds] = best[pass % kinds].min(seconds);
    }
    let (plain, works) = best.split_at(PLAIN_READS.len());
    let plain = plain.iter().copied().fold(f64::INFINITY, f64::min);
    Times { pieces_a_pass, plain, works: works.to_vec() }
}

impl Passes<'_> {
    /// As many pieces as the slowest work does in time.
    fn pieces_a_pass(&self) -> usize {
        let all = PASS_BYTES / self.shape.bytes();
        let mut hands = Hands::new(self.kernels, self.shape);
        let slowest = self.works.iter().map(|work| {
            hands.work(*work, self.memory.piece(&self.shape, 0));
            let start = Instant::now();
            hands.work(*work, self.memory.piece(&self.shape, 0));
            start.elapsed()
        });
        let slowest = slowest.max().unwrap_or_default();
        let in_time = PASS_MAX.as_secs_f64() / slowest.as_secs_f64().max(1e-9);
        all.min(in_time as usize).max(1)
    }

    fn rounds_of_thread(&self, thread: usize, pieces: usize, met: &AtomicUsize) -> Vec<Span> {
        // A thread that can't be pinned reads from wherever it runs, as the engine's would.
        let _ = pin_current_thread(self.memory.cpus[thread]);
        let mut hands = Hands::new(self.kernels, self.shape);
        let piece = |index: usize| {
            let index = match self.scattered {
                // No piece is near the one before.
                true => index.wrapping_mul(0x9e37_79b1) % self.pieces,
                false => index % self.pieces,
            };
            self.memory.piece(&self.shape, thread * self.pieces + index)
        };
        let mut next = 0;
        let mut pieces_of_pass = || {
            next += pieces;
            next - pieces..next
        };
        let mut spans = vec![];
        for _ in 0..self.rounds {
            for read in PLAIN_READS {
                let indices = pieces_of_pass();
                spans.push(self.pass(spans.len(), met, || {
                    indices.for_each(|index| hands.read(read, piece(index)));
                }));
            }
            for work in self.works {
                let indices = pieces_of_pass();
                spans.push(self.pass(spans.len(), met, || {
                    indices.for_each(|index| hands.work(*work, piece(index)));
                }));
            }
        }
        spans
    }

    /// Waits for the others, then does one pass.
    fn pass(&self, passes_before: usize, met: &AtomicUsize, work: impl FnOnce()) -> Span {
        met.fetch_add(1, Ordering::AcqRel);
        while met.load(Ordering::Acquire) < (passes_before + 1) * self.threads {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        work();
        (start, Instant::now())
    }
}
