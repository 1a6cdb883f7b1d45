//! The bookkeeping of reads: every way a read can end.

use super::*;

const GEOMETRY: Geometry = Geometry { align_bytes: 8, chunk_bytes: 16 };

fn piece(offset: u64, lead: usize, wanted: usize) -> Piece {
    Piece { file: FileId(0), offset, lead, wanted, node: 0, at: 64 }
}

fn progress(piece: Piece, geometry: Geometry) -> Progress {
    let mut progress = Progress::new(1, 8);
    progress.begin([piece].into_iter(), geometry);
    progress
}

#[test]
fn chunks_cover_the_aligned_superset_once() {
    let mut progress = progress(piece(8, 3, 34), GEOMETRY);
    let reads: Vec<ChunkRead> = std::iter::from_fn(|| progress.next_chunk()).collect();
    let spans: Vec<_> = reads.iter().map(|read| (read.offset, read.at, read.bytes)).collect();
    assert_eq!(spans, [(8, 64, 16), (24, 80, 16), (40, 96, 8)]);
    assert_eq!(progress.flying(), 3);
    for read in reads.iter().rev() {
        assert!(!progress.is_over());
        progress.done(read.chunk, Ok(read.bytes));
    }
    assert!(progress.is_over() && progress.failure().is_none());
    assert_eq!(progress.bytes_read(), 40);
}

#[test]
fn the_file_may_end_after_what_is_wanted() {
    let mut progress = progress(piece(8, 3, 2), GEOMETRY);
    let read = progress.next_chunk().expect("a chunk");
    progress.done(read.chunk, Ok(5));
    assert!(progress.is_over() && progress.failure().is_none());
}

#[test]
fn a_short_read_goes_on_at_the_block_where_it_stopped() {
    let mut progress = progress(piece(0, 0, 16), GEOMETRY);
    let read = progress.next_chunk().expect("a chunk");
    progress.done(read.chunk, Ok(13));
    let rest = progress.next_chunk().expect("the rest");
    assert_eq!((rest.offset, rest.at, rest.bytes), (8, 72, 8));
    progress.done(rest.chunk, Ok(8));
    assert!(progress.is_over() && progress.failure().is_none());
}

#[test]
fn a_read_that_stops_twice_within_a_block_is_the_files_end() {
    let mut progress = progress(piece(0, 2, 14), GEOMETRY);
    for got in [13, 5] {
        let read = progress.next_chunk().expect("it goes on");
        progress.done(read.chunk, Ok(got));
        assert!(!progress.is_over(), "after {got}");
    }
    let read = progress.next_chunk().expect("once more");
    progress.done(read.chunk, Ok(5));
    let failure = progress.failure().expect("the end of the file");
    assert_eq!((failure.offset, failure.wanted, failure.got), (2, 14, 11));
    assert!(failure.error.is_none() && progress.is_over() && progress.next_chunk().is_none());
}

#[test]
fn without_alignment_any_byte_is_progress() {
    let mut progress = progress(piece(5, 0, 9), Geometry { align_bytes: 1, chunk_bytes: 16 });
    for _ in 0..9 {
        let read = progress.next_chunk().expect("it goes on");
        progress.done(read.chunk, Ok(1));
    }
    assert!(progress.is_over() && progress.failure().is_none());
}

#[test]
fn passing_errors_are_tried_again_within_a_bound() {
    let mut progress = progress(piece(0, 0, 8), GEOMETRY);
    for _ in 0..RETRIES_MAX {
        let read = progress.next_chunk().expect("it goes on");
        progress.done(read.chunk, Err(ErrorKind::Interrupted.into()));
    }
    let read = progress.next_chunk().expect("the last time");
    progress.done(read.chunk, Err(ErrorKind::WouldBlock.into()));
    assert!(progress.failure().is_some_and(|failure| failure.error.is_some()));
}

#[test]
fn a_failure_waits_for_what_is_in_flight_and_can_be_read_anew() {
    let mut progress = progress(piece(0, 0, 48), GEOMETRY);
    let (first, second) =
        (progress.next_chunk().expect("one"), progress.next_chunk().expect("two"));
    progress.done(second.chunk, Ok(0));
    assert!(progress.next_chunk().is_none() && !progress.is_over());
    progress.done(first.chunk, Err(Error::from_raw_os_error(5)));
    assert!(progress.is_over());
    assert_eq!(progress.failure().map(|failure| failure.got), Some(16), "the first one stands");
    progress.restart();
    while let Some(read) = progress.next_chunk() {
        progress.done(read.chunk, Ok(read.bytes));
    }
    assert!(progress.is_over() && progress.failure().is_none());
}
