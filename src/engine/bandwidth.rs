//! How fast memory and drive are, measured for a second each.
//!
//! Memory: every compute thread of the plan, pinned as the plan says, goes through memory of its own
//! with the kernels' plainest read. Drive: pieces of the model's own files, past the page cache, into
//! huge pages. Both are upper bounds for the engine and are measured while other programs run, so
//! they say what can be had now, not what the machine could do.

use crate::checkpoint::pack::PackFile;
use millstream_kernels::Kernels;
use millstream_kernels::kernels::ReadOrder;
use millstream_topology::arena::{ArenaBuilder, ArenaError, Binding, LayerArena, RegionId};
use millstream_topology::cpuset::CpuId;
use millstream_topology::pin::pin_current_thread;
use millstream_topology::plan::PlacementPlan;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// How long memory is read in each order, and the drive.
const MEMORY_TIME: Duration = Duration::from_millis(300);
const DRIVE_TIME: Duration = Duration::from_millis(1000);
/// Memory that all threads read together: more than caches hold.
const MEMORY_BYTES: usize = 512 << 20;
/// One read of a drive: what the engine's readers ask for at once.
const DRIVE_READ_BYTES: usize = millstream_stages::load::CHUNK_BYTES;
/// Threads that read at once at most; more add nothing but threads.
const DRIVE_THREADS_MAX: usize = 64;
/// Files shorter than this together say nothing about a drive.
const DRIVE_BYTES_MIN: u64 = 256 << 20;

/// Orders of reading that are tried; the best counts.
const ORDERS: [ReadOrder; 2] =
    [ReadOrder { places: 1, ahead_bytes: 0 }, ReadOrder { places: 4, ahead_bytes: 2048 }];

/// Memory on huge pages, present.
fn memory(bytes: usize) -> Result<(LayerArena, RegionId), ArenaError> {
    let mut builder = ArenaBuilder::new(1);
    let region = builder.region(0, bytes);
    let mut arena = builder.build(&Binding::off())?;
    arena.region_mut(region).fill(1);
    Ok((arena, region))
}

/// Bytes per second that the plan's compute threads read from memory together.
///
/// # Errors
/// When there is no memory to read.
pub fn memory_bytes_s(plan: &PlacementPlan, kernels: Kernels) -> Result<f64, ArenaError> {
    let workers = plan.nodes.iter().flat_map(|node| node.workers.iter().copied());
    let cpus: Vec<Option<CpuId>> = std::iter::once(plan.leader.cpu).chain(workers).collect();
    let bytes = MEMORY_BYTES / cpus.len() / 64 * 64;
    let start = Barrier::new(cpus.len());
    let read = |cpu: Option<CpuId>| -> Result<[f64; ORDERS.len()], ArenaError> {
        // A thread that can't be pinned reads from wherever it runs, as the engine's would.
        let _ = cpu.map(pin_current_thread);
        let memory = memory(bytes);
        start.wait();
        let (arena, region) = memory?;
        let floats: &[f32] = bytemuck::cast_slice(arena.region(region));
        Ok(ORDERS.map(|order| {
            let (since, mut passes) = (Instant::now(), 0);
            while since.elapsed() < MEMORY_TIME {
                std::hint::black_box(kernels.maximum(floats, order));
                passes += 1;
            }
            (passes * bytes) as f64 / since.elapsed().as_secs_f64()
        }))
    };
    let mut sums = [0.0; ORDERS.len()];
    std::thread::scope(|scope| {
        let threads: Vec<_> = cpus.iter().map(|&cpu| scope.spawn(move || read(cpu))).collect();
        for thread in threads {
            let speeds = thread.join().expect("reading memory doesn't panic")?;
            sums.iter_mut().zip(speeds).for_each(|(sum, speed)| *sum += speed);
        }
        Ok(sums.into_iter().fold(0.0, f64::max))
    })
}

/// Bytes per second that the drive gives for pieces of files in no order, so many of them at once and into
/// buffers as the engine's; or why that can't be said.
///
/// # Errors
/// In words that follow "not measured: ".
pub fn drive_bytes_s(files: &[PathBuf], at_once: usize) -> Result<f64, String> {
    let threads = at_once.clamp(1, DRIVE_THREADS_MAX);
    let opened: Result<Vec<PackFile>, String> = files.iter().map(|file| open(file)).collect();
    let opened = opened?;
    let pieces = pieces(&opened)?;
    let read = |thread: usize| -> Result<u64, String> {
        let (mut arena, region) = memory(DRIVE_READ_BYTES).map_err(|error| error.to_string())?;
        let (since, mut bytes) = (Instant::now(), 0);
        let mine = pieces.iter().cycle().skip(thread).step_by(threads);
        for &(file, offset) in mine {
            if since.elapsed() >= DRIVE_TIME {
                break;
            }
            let file = &opened[file];
            let outcome = file.read(offset, arena.region_mut(region));
            outcome.map_err(|error| format!("{}: {error}", file.path().display()))?;
            bytes += DRIVE_READ_BYTES as u64;
        }
        Ok(bytes)
    };
    let since = Instant::now();
    let sum: Result<u64, String> = std::thread::scope(|scope| {
        let read = &read;
        let threads: Vec<_> = (0..threads).map(|index| scope.spawn(move || read(index))).collect();
        threads.into_iter().map(|thread| thread.join().expect("reading doesn't panic")).sum()
    });
    let sum = sum?;
    match opened.iter().all(PackFile::is_direct) {
        true => Ok(sum as f64 / since.elapsed().as_secs_f64()),
        false => Err("the file system has no direct reads".into()),
    }
}

fn open(path: &Path) -> Result<PackFile, String> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(format!("{} is no file", path.display()));
    };
    let name = name.to_string_lossy();
    PackFile::open(directory, &name).map_err(|error| format!("{}: {error}", path.display()))
}

/// Pieces of the files, (file, offset), in an order that no drive foresees.
fn pieces(files: &[PackFile]) -> Result<Vec<(usize, u64)>, String> {
    let mut pieces = vec![];
    for (index, file) in files.iter().enumerate() {
        let bytes = file.bytes().map_err(|error| format!("{}: {error}", file.path().display()))?;
        let whole = bytes / DRIVE_READ_BYTES as u64;
        pieces.extend((0..whole).map(|piece| (index, piece * DRIVE_READ_BYTES as u64)));
    }
    if ((pieces.len() * DRIVE_READ_BYTES) as u64) < DRIVE_BYTES_MIN {
        return Err("the model's files are too small to say anything about the drive".into());
    }
    // A full cycle over all pieces: a stride without a common divisor.
    let count = pieces.len();
    let coprime = |stride: &usize| gcd(*stride, count) == 1;
    let stride = (count * 5 / 8 + 1..).find(coprime).expect("count + 1 is one");
    Ok((0..count).map(|index| pieces[index * stride % count]).collect())
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
