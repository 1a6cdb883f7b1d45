//! The home of memmap2: one anonymous mapping whose usable part starts on a 2 MiB border.
//!
//! Owned by [`super::LayerArena`] (and, for a moment, by the binding probe). Pages are zero until
//! first written. Huge pages are asked for and never insisted on: reads of 4 KiB-page memory run
//! at half the speed (docs/tuning.md), but they work.
#![allow(unsafe_code)]

use super::ArenaError;
use super::layout::Span;
use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};

/// Alignment of segments: the size of a huge page on x86-64 and on arm64 with 4 KiB pages.
pub const SEGMENT_ALIGN_BYTES: usize = 2 << 20;

/// An anonymous mapping; offsets count from its first 2 MiB border.
#[derive(Debug)]
pub(super) struct Mapping {
    raw: MmapRaw,
    /// Bytes before the first 2 MiB border.
    head_bytes: usize,
    /// Bytes from there on.
    bytes: usize,
}

impl Mapping {
    /// Maps `bytes` (rounded up to 2 MiB, at least one such unit), without touching them.
    ///
    /// # Errors
    /// When the kernel has no address space, commit budget or mapping left.
    pub(super) fn new(bytes: usize) -> Result<Mapping, ArenaError> {
        let too_large = ArenaError::TooLarge { bytes };
        let Some(rounded) = bytes.max(1).checked_next_multiple_of(SEGMENT_ALIGN_BYTES) else {
            return Err(too_large);
        };
        let Some(total) = rounded.checked_add(SEGMENT_ALIGN_BYTES) else {
            return Err(too_large);
        };
        let map = MmapOptions::new().len(total).no_reserve_swap().map_anon();
        let raw = MmapRaw::from(map.map_err(|source| ArenaError::Map { bytes: total, source })?);
        let head_bytes = raw.as_ptr().align_offset(SEGMENT_ALIGN_BYTES);
        assert!(head_bytes < SEGMENT_ALIGN_BYTES, "a pointer to bytes can always be aligned");
        Ok(Mapping { raw, head_bytes, bytes: rounded })
    }

    /// Where the whole mapping lies: (address, bytes), slack before and after included.
    pub(super) fn whole(&self) -> (usize, usize) {
        (self.raw.as_ptr().addr(), self.raw.len())
    }

    /// Asks for huge pages; true if the kernel knows them.
    pub(super) fn ask_huge_pages(&self) -> bool {
        self.raw.advise(Advice::HugePage).is_ok()
    }

    /// Makes every page of a span present now instead of on first touch; contents stay.
    ///
    /// # Errors
    /// When memory runs out, or the kernel is older than 5.14.
    pub(super) fn populate(&self, span: Span) -> std::io::Result<()> {
        self.raw.advise_range(Advice::PopulateWrite, self.head_bytes + span.offset, span.bytes)
    }

    /// Gives the whole pages inside a span back; they are zero from then on. Returns their bytes, 0
    /// when the kernel refuses.
    ///
    /// # Safety
    /// Nobody may hold a reference into the span, or read or write it meanwhile.
    pub(super) unsafe fn release(&self, span: Span) -> usize {
        let page = page_bytes();
        let first = (self.head_bytes + span.offset).next_multiple_of(page);
        let end = (self.head_bytes + span.offset + span.bytes) / page * page;
        if first >= end {
            return 0;
        }
        // SAFETY:
        // - the range lies in the mapping, which is private and anonymous: it reads as zero later.
        // - nobody looks at it: the caller's promise.
        let outcome = unsafe {
            self.raw.unchecked_advise_range(UncheckedAdvice::DontNeed, first, end - first)
        };
        if outcome.is_ok() { end - first } else { 0 }
    }

    /// The first byte of a span.
    ///
    /// # Panics
    /// When the span leaves the mapping.
    pub(super) fn pointer(&self, span: Span) -> *mut u8 {
        let end = span.offset.checked_add(span.bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "span {span:?} leaves the mapping");
        // SAFETY:
        // - head_bytes + offset <= head_bytes + bytes <= raw.len(): assert above and `new`.
        // - the result stays inside one allocation, the mapping, which lives as long as `raw`.
        unsafe { self.raw.as_mut_ptr().add(self.head_bytes + span.offset) }
    }
}

/// The size of a page of the kernel.
pub(super) fn page_bytes() -> usize {
    // SAFETY:
    // - sysconf reads a constant of the system and touches no memory of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("the kernel has pages")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn usable_part_starts_on_a_segment_border_and_is_zero() {
        let mapping = Mapping::new(3 << 20).unwrap();
        let span = Span { offset: 0, bytes: mapping.bytes };
        let pointer = mapping.pointer(span);
        assert_eq!(pointer.addr() % SEGMENT_ALIGN_BYTES, 0);
        assert_eq!(mapping.bytes, 4 << 20);
        // SAFETY:
        // - the span lies in the mapping: `pointer` asserts it.
        // - nobody else has the pointer: the mapping is local to this test.
        let bytes = unsafe { std::slice::from_raw_parts(pointer, span.bytes) };
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    #[should_panic(expected = "leaves the mapping")]
    fn span_beyond_the_end_is_refused() {
        Mapping::new(1).unwrap().pointer(Span { offset: SEGMENT_ALIGN_BYTES, bytes: 1 });
    }

    #[test]
    fn impossible_size_is_an_error() {
        assert!(matches!(Mapping::new(usize::MAX), Err(ArenaError::TooLarge { .. })));
        assert!(matches!(Mapping::new(1 << 60), Err(ArenaError::Map { .. })));
    }
}
