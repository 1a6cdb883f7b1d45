//! Readers on real files: io_uring and `pread`, direct and buffered, into slots and buffers.

use millstream_stages::ids::{ExpertId, FileId, LayerId};
use millstream_stages::load::{
    CHUNK_BYTES, JobRoom, LoadClass, LoadOrder, Piece, PreadReader, ReadFiles, ReadJob, Reader,
    UringReader,
};
use millstream_stages::weights::Extent;
use millstream_topology::arena::{ArenaBuilder, Binding, LayerArena};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;
/// More than two chunks, and no multiple of one.
const PART: usize = 2 * CHUNK_BYTES + 3 * BLOCK;
const FILE: usize = 3 * PART + 777;

/// Past the test harness, which keeps what a passing test prints.
fn say(text: &str) {
    writeln!(std::io::stderr(), "{text}").expect("stderr is open");
}

fn contents(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 56) as u8
    };
    (0..FILE).map(|_| next()).collect()
}

fn open(path: &Path, direct: bool) -> std::io::Result<Arc<File>> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    File::options().read(true).custom_flags(flags).open(path).map(Arc::new)
}

/// Every reader that this system has, of these copies of one file.
fn readers(copies: &[&Path]) -> Vec<(String, Box<dyn Reader>)> {
    readers_of(copies, 3, 2)
}

/// The same with so many reads in flight, or so many threads.
fn readers_of(copies: &[&Path], depth: usize, threads: usize) -> Vec<(String, Box<dyn Reader>)> {
    let mut readers: Vec<(String, Box<dyn Reader>)> = vec![];
    for direct in [true, false] {
        let handles: std::io::Result<Vec<_>> =
            copies.iter().map(|path| Ok(vec![open(path, direct)?])).collect();
        let Ok(handles) = handles else {
            say("this file system refuses O_DIRECT: direct reads were not tested");
            continue;
        };
        let files = ReadFiles::new(handles, if direct { BLOCK } else { 1 });
        match UringReader::new(files.clone(), depth) {
            Ok(reader) => readers.push((format!("uring, direct {direct}"), Box::new(reader))),
            Err(error) => say(&format!("io_uring was not tested: {error}")),
        }
        let pread = PreadReader::start(files, threads, None).expect("threads");
        readers.push((format!("pread, direct {direct}"), Box::new(pread)));
    }
    readers
}

fn arena(slots: u32) -> Arc<LayerArena> {
    let mut builder = ArenaBuilder::new(2);
    builder.slots(slots, &[PART, PART]);
    Arc::new(builder.build(&Binding::off()).expect("an arena"))
}

fn order(arena: &Arc<LayerArena>, slot: u32, class: LoadClass) -> LoadOrder {
    let lease = arena.begin_fill(slot).expect("no lease is out");
    LoadOrder { expert: ExpertId(slot), lease, class, wanted_ns: 0 }
}

const ROOM: JobRoom = JobRoom { pieces_max: 4, chunks_max: 32, bounce_bytes: 0 };

/// A job that reads two runs of the file into the two nodes of a slot.
fn slot_job(
    arena: &Arc<LayerArena>,
    slot: u32,
    class: LoadClass,
    reader: &dyn Reader,
) -> Box<ReadJob> {
    let mut job = Box::new(ReadJob::new(ROOM).expect("no buffer"));
    job.take(LayerId(0), order(arena, slot, class));
    let piece = |node: usize| {
        let offset = ((1 - node) * PART + slot as usize % 2 * BLOCK) as u64;
        Piece { file: FileId(0), offset, lead: 0, wanted: PART, node, at: 0 }
    };
    job.read_into_slot((0..2).map(piece), reader.geometry());
    job
}

/// The next job that is over.
fn finish(reader: &mut dyn Reader) -> Box<ReadJob> {
    for _ in 0..200_000 {
        if let Some(job) = reader.poll() {
            return job;
        }
        reader.wait(Duration::from_micros(200));
    }
    panic!("a read doesn't end");
}

#[test]
fn slots_hold_the_files_bytes_whatever_reads_them() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    check_slots(directory.path());
}

fn check_slots(directory: &Path) {
    let path = directory.join("experts");
    let whole = contents(1);
    std::fs::write(&path, &whole).expect("written");
    let arena = arena(4);
    for (what, mut reader) in readers(&[&path]) {
        reader.reserve(4);
        for slot in 0..4 {
            let job = slot_job(&arena, slot, LoadClass::Decode, &*reader);
            reader.submit(job);
        }
        for left in (0..4).rev() {
            let mut job = finish(&mut *reader);
            assert_eq!(reader.pending(), left, "{what}");
            assert!(job.progress.failure().is_none(), "{what}: {:?}", job.progress.failure());
            assert_eq!(job.progress.bytes_read(), 2 * PART as u64, "{what}");
            let slot = job.slot.index;
            let lease = job.end();
            let generation = lease.finish();
            let lease = arena.read(slot, generation).expect("filled");
            for node in 0..2 {
                let first = (1 - node) * PART + slot as usize % 2 * BLOCK;
                assert!(lease.part(node) == &whole[first..first + PART], "{what}: slot {slot}");
            }
        }
    }
}

#[test]
fn buffers_hold_extents_of_any_offset_and_length() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("experts");
    let whole = contents(2);
    std::fs::write(&path, &whole).expect("written");
    let arena = arena(1);
    let extent =
        |offset: usize, bytes: usize| Extent { file: FileId(0), offset: offset as u64, bytes };
    let cases = [
        vec![extent(0, 1)],
        vec![extent(4095, 2), extent(BLOCK, BLOCK), extent(77, CHUNK_BYTES)],
        vec![extent(1, 2 * CHUNK_BYTES), extent(FILE - 1, 1)],
        vec![extent(FILE - 5000, 5000), extent(FILE - 777, 777), extent(12345, 6)],
    ];
    let room = JobRoom { bounce_bytes: 3 * CHUNK_BYTES, ..ROOM };
    for (what, mut reader) in readers(&[&path]) {
        reader.reserve(1);
        let mut job = Box::new(ReadJob::new(room).expect("a buffer"));
        for extents in &cases {
            job.take(LayerId(0), order(&arena, 0, LoadClass::Prefill));
            job.read_through_bounce(extents, reader.geometry());
            reader.submit(job);
            job = finish(&mut *reader);
            assert!(job.progress.failure().is_none(), "{what}: {:?}", job.progress.failure());
            let staged = job.staged().expect("a buffer");
            for (index, extent) in extents.iter().enumerate() {
                let first = extent.offset as usize;
                let wanted = &whole[first..first + extent.bytes];
                assert!(staged.extent(index) == wanted, "{what}: {extent:?}");
            }
            drop(job.end());
        }
    }
}

#[test]
fn a_truncated_file_fails_where_it_ends_and_other_reads_go_on() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("experts");
    std::fs::write(&path, contents(3)).expect("written");
    let arena = arena(1);
    for (what, mut reader) in readers(&[&path]) {
        reader.reserve(1);
        let end = PART + CHUNK_BYTES + 100;
        let file = File::options().write(true).open(&path).expect("opened");
        file.set_len(end as u64).expect("truncated");
        let job = slot_job(&arena, 0, LoadClass::Decode, &*reader);
        reader.submit(job);
        let mut job = finish(&mut *reader);
        let failure = job.progress.failure().unwrap_or_else(|| panic!("{what}: past the end"));
        assert_eq!((failure.offset, failure.wanted), (PART as u64, PART), "{what}");
        assert!(failure.error.is_none(), "{what}: {failure:?}");
        assert!(
            failure.got >= CHUNK_BYTES && failure.got <= 2 * CHUNK_BYTES,
            "{what}: {failure:?}"
        );
        drop(job.end());
        assert!(arena.is_idle(0) && !arena.is_ready(0), "{what}");
        std::fs::write(&path, contents(3)).expect("mended");
        let job = slot_job(&arena, 0, LoadClass::Decode, &*reader);
        reader.submit(job);
        let mut job = finish(&mut *reader);
        assert!(job.progress.failure().is_none(), "{what}: {:?}", job.progress.failure());
        drop(job.end());
    }
}

#[test]
fn an_unlinked_file_is_read_on() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("experts");
    std::fs::write(&path, contents(4)).expect("written");
    let arena = arena(1);
    let mut opened = readers(&[&path]);
    std::fs::remove_file(&path).expect("unlinked");
    for (what, reader) in &mut opened {
        reader.reserve(1);
        let job = slot_job(&arena, 0, LoadClass::Decode, &**reader);
        reader.submit(job);
        let mut job = finish(&mut **reader);
        assert!(job.progress.failure().is_none(), "{what}: {:?}", job.progress.failure());
        drop(job.end());
    }
}

#[test]
fn demands_overtake_hints_and_a_promoted_hint_moves_up() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("experts");
    std::fs::write(&path, contents(5)).expect("written");
    let arena = arena(8);
    for (what, mut reader) in readers_of(&[&path], 1, 1) {
        reader.reserve(8);
        let mut tags = vec![];
        for slot in 0..7 {
            let job = slot_job(&arena, slot, LoadClass::Hint, &*reader);
            tags.push(job.slot);
            reader.submit(job);
        }
        reader.promote(LayerId(0), tags[6], LoadClass::Prefill);
        let job = slot_job(&arena, 7, LoadClass::Decode, &*reader);
        reader.submit(job);
        let order: Vec<u32> = (0..8)
            .map(|_| {
                let mut job = finish(&mut *reader);
                drop(job.end());
                job.slot.index
            })
            .collect();
        let place = |slot: u32| order.iter().position(|&other| other == slot).expect("finished");
        // The thread, or the ring, was taken by a hint before.
        assert!(place(7) < place(5) && place(6) < place(5), "{what}: {order:?}");
    }
}

#[test]
fn a_reader_dropped_with_reads_in_flight_gives_all_leases_back() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("experts");
    std::fs::write(&path, contents(6)).expect("written");
    for round in 0..8 {
        let arena = arena(4);
        for (what, mut reader) in readers(&[&path]) {
            reader.reserve(4);
            for slot in 0..4 {
                let job = slot_job(&arena, slot, LoadClass::Decode, &*reader);
                reader.submit(job);
            }
            for _ in 0..round {
                _ = reader.poll();
            }
            drop(reader);
            for slot in 0..4 {
                assert!(arena.is_idle(slot) && !arena.is_ready(slot), "{what}: slot {slot}");
                // What the drive may still write would be seen in the next fill.
                let mut fill = arena.begin_fill(slot).expect("idle");
                fill.parts_mut().for_each(|part| part.fill(round));
                let generation = fill.finish();
                let lease = arena.read(slot, generation).expect("filled");
                assert!(lease.part(0).iter().all(|&byte| byte == round), "{what}");
            }
        }
    }
}

/// Set for the copy of this program that runs without privileges.
const UNPRIVILEGED: &str = "MILLSTREAM_TEST_UNPRIVILEGED";

#[test]
fn nobody_with_little_locked_memory_may_read() {
    if std::env::var_os(UNPRIVILEGED).is_some() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("experts");
        std::fs::write(&path, contents(1)).expect("written");
        assert_eq!(readers(&[&path]).len(), 4, "all readers are to be had");
        return check_slots(directory.path());
    }
    let program = std::env::current_exe().expect("this program");
    // Set by the shell, which every system has; the copy inherits it.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -l 64 && exec \"$0\" \"$@\""]).arg(program);
    command.args(["nobody_with_little_locked_memory_may_read", "--exact", "--test-threads=1"]);
    command.env(UNPRIVILEGED, "1").env("TMPDIR", std::env::temp_dir());
    let root = std::fs::metadata("/proc/self").map(|it| std::os::unix::fs::MetadataExt::uid(&it));
    if root.is_ok_and(|uid| uid == 0) {
        use std::os::unix::process::CommandExt;
        command.uid(65_534).gid(65_534);
    }
    let uring_here = readers(&[&std::env::current_exe().expect("this program")]).len() == 4;
    let output = command.output().expect("sh runs");
    let text = String::from_utf8_lossy(&output.stderr);
    if text.contains("ermission denied") && !output.status.success() {
        return say("nobody may not run this program here: unprivileged reads were not tested");
    }
    assert!(output.status.success() || !uring_here, "{text}");
}
