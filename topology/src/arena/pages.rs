//! On which node the pages of an arena really are, and how much of it lies on huge pages.
//!
//! Asked by whoever verifies a placement, never while tokens are made: every page is asked for, which
//! takes about a tenth of a microsecond each. The kernel's answer is the only proof of a placement:
//! policies are wishes, and a full node, a container or memory that was touched before it was bound
//! leaves pages elsewhere without a word.

use super::LayerArena;
use super::calls::{PageState, nodes_of_pages};
use super::layout::Span;
use super::mapping::{SEGMENT_ALIGN_BYTES, page_bytes};
use crate::cpuset::NodeId;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Pages that are asked for in one call.
const ASK_PAGES: usize = 8192;

/// Where the pages of some memory are, in bytes of whole pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PageShares {
    /// All of it.
    pub bytes: u64,
    /// By node that has some.
    pub by_node_bytes: BTreeMap<NodeId, u64>,
    /// Never touched.
    pub absent_bytes: u64,
    /// The kernel doesn't say where.
    pub unknown_bytes: u64,
    /// On huge pages; the kernel counts them by mapping, and where a mapping holds more than a
    /// segment and the slack around it this is the segment's part of it in proportion.
    pub huge_bytes: u64,
}

impl PageShares {
    /// Adds what another piece of memory has.
    pub fn add(&mut self, other: &PageShares) {
        self.bytes += other.bytes;
        for (&node, bytes) in &other.by_node_bytes {
            *self.by_node_bytes.entry(node).or_default() += bytes;
        }
        self.absent_bytes += other.absent_bytes;
        self.unknown_bytes += other.unknown_bytes;
        self.huge_bytes += other.huge_bytes;
    }

    /// Bytes on a node.
    pub fn on(&self, node: NodeId) -> u64 {
        self.by_node_bytes.get(&node).copied().unwrap_or(0)
    }
}

/// The process's mappings and how much of each lies on huge pages, as the kernel counts it.
#[derive(Clone, Debug, Default)]
pub struct HugePages {
    /// (addresses, bytes on huge pages)
    mappings: Vec<(Range<usize>, u64)>,
}

impl HugePages {
    /// Reads `proc/self/smaps` below a root.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn read(root: &Path) -> io::Result<HugePages> {
        let text = std::fs::read_to_string(root.join("proc/self/smaps"))?;
        Ok(HugePages::parse(&text))
    }

    fn parse(text: &str) -> HugePages {
        let mut mappings: Vec<(Range<usize>, u64)> = Vec::new();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let first = words.next().unwrap_or_default();
            if let Some(range) = addresses(first) {
                mappings.push((range, 0));
            } else if first == "AnonHugePages:"
                && let Some((_, bytes)) = mappings.last_mut()
            {
                let kib: Option<u64> = words.next().and_then(|word| word.parse().ok());
                *bytes = kib.unwrap_or(0) << 10;
            }
        }
        HugePages { mappings }
    }

    /// Bytes of a range that lie on huge pages.
    fn within(&self, range: &Range<usize>) -> u64 {
        let part = |(mapping, huge): &(Range<usize>, u64)| {
            let common = mapping.end.min(range.end).saturating_sub(mapping.start.max(range.start));
            // Slack holds no huge page: nothing touches it.
            let slack = mapping.len() - common <= 2 * SEGMENT_ALIGN_BYTES;
            let share = if slack { 1.0 } else { common as f64 / mapping.len() as f64 };
            ((*huge as f64 * share) as u64).min(common as u64)
        };
        self.mappings.iter().map(part).sum()
    }
}

/// `7f00-7f10`, as lines of smaps begin.
fn addresses(word: &str) -> Option<Range<usize>> {
    let (start, end) = word.split_once('-')?;
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    let range = address(start)?..address(end)?;
    (!range.is_empty()).then_some(range)
}

impl LayerArena {
    /// Where the pages of every segment are: what it uses, in whole pages.
    ///
    /// # Errors
    /// When the kernel doesn't permit the question.
    pub fn page_shares(&self, huge_pages: &HugePages) -> io::Result<Vec<PageShares>> {
        let segments = self.layout.segments.iter().zip(&self.layout.used_bytes);
        segments
            .map(|(segment, &bytes)| {
                let start = self.mapping.pointer(Span { offset: segment.offset, bytes }).addr();
                shares(start..start + bytes.next_multiple_of(page_bytes()), huge_pages)
            })
            .collect()
    }
}

/// Where the pages of a range are; it starts at a page.
fn shares(range: Range<usize>, huge_pages: &HugePages) -> io::Result<PageShares> {
    let page = page_bytes();
    let mut shares = PageShares { bytes: range.len() as u64, ..PageShares::default() };
    let mut addresses = Vec::with_capacity(ASK_PAGES);
    let mut from = range.start;
    while from < range.end {
        addresses.clear();
        addresses.extend((from..range.end).step_by(page).take(ASK_PAGES));
        for state in nodes_of_pages(&addresses)? {
            *match state {
                PageState::On(node) => shares.by_node_bytes.entry(node).or_default(),
                PageState::Absent => &mut shares.absent_bytes,
                PageState::Unknown => &mut shares.unknown_bytes,
            } += page as u64;
        }
        from += addresses.len() * page;
    }
    shares.huge_bytes = huge_pages.within(&range);
    Ok(shares)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{ArenaBuilder, Binding};
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000c00000 rw-p 00000000 00:00 0
Size:              12288 kB
AnonHugePages:      6144 kB
7f0000c00000-7f0001400000 rw-p 00000000 00:00 0 [anon: x]
AnonHugePages:      8192 kB
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
AnonHugePages:         0 kB
";

    #[test]
    fn huge_pages_are_counted_by_mapping_and_in_proportion() {
        let huge = HugePages::parse(SMAPS);
        let within = |from_mib: usize, to_mib: usize| {
            let base = 0x7f00_0000_0000;
            huge.within(&(base + (from_mib << 20)..base + (to_mib << 20))) >> 10
        };
        assert_eq!(within(0, 12), 6144);
        assert_eq!(within(0, 6), 3072, "half of a mapping, half of its huge pages");
        assert_eq!(within(1, 10), 6144, "all but the slack around it: all of them");
        assert_eq!(within(12, 20), 8192);
        assert_eq!(within(6, 20), 3072 + 8192);
        assert_eq!(within(20, 30), 0);
    }

    #[test]
    fn touched_pages_are_on_a_node_and_untouched_ones_absent() {
        let mut builder = ArenaBuilder::new(2);
        let region = builder.region(1, 5 << 20);
        builder.slots(1, &[8192, 0]);
        let mut arena = builder.build(&Binding::off()).unwrap();
        let shares =
            |arena: &LayerArena| arena.page_shares(&HugePages::read(Path::new("/")).unwrap());
        let before = match shares(&arena) {
            Ok(before) => before,
            Err(error) => {
                println!("this kernel doesn't say where pages are ({error}): nothing to check");
                return;
            }
        };
        assert_eq!((before[0].bytes, before[1].bytes), (8192, 5 << 20));
        assert_eq!(before[1].absent_bytes, 5 << 20, "{before:?}");
        arena.region_mut(region).fill(1);
        let after = shares(&arena).unwrap();
        assert_eq!(after[0].absent_bytes, 8192, "the slot is untouched: {after:?}");
        assert_eq!(after[1].absent_bytes, 0, "{after:?}");
        let placed: u64 = after[1].by_node_bytes.values().sum();
        assert_eq!(placed + after[1].unknown_bytes, 5 << 20);
        let mut sum = after[0].clone();
        sum.add(&after[1]);
        assert_eq!((sum.bytes, sum.absent_bytes), ((5 << 20) + 8192, 8192));
    }
}
