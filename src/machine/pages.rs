//! Pages: huge ones, which drives read into and cores read from faster, and swapped ones.

use super::sight::{Sight, file};
use crate::checkpoint::examine::{Finding, Place};
use millstream_topology::arena::{ArenaBuilder, Binding, HugePages};
use std::path::Path;

const ENABLED: &str = "sys/kernel/mm/transparent_hugepage/enabled";
const DEFRAG: &str = "sys/kernel/mm/transparent_hugepage/defrag";
const MEMINFO: &str = "proc/meminfo";
/// Less than this of a test arena on huge pages is worth a word.
const COVERAGE_MIN: f64 = 0.9;
/// Memory whose coverage is looked at.
const TRIAL_BYTES: usize = 64 << 20;
/// Swapped bytes that are worth a word.
const SWAPPED_BYTES: u64 = 256 << 20;

/// Share of a test arena of the live machine that comes on huge pages; none where the kernel doesn't
/// say.
pub fn huge_share() -> Option<f64> {
    let mut builder = ArenaBuilder::new(1);
    let region = builder.region(0, TRIAL_BYTES);
    let mut arena = builder.build(&Binding::off()).ok()?;
    arena.region_mut(region).fill(1);
    let shares = arena.page_shares(&HugePages::read(Path::new("/")).ok()?).ok()?;
    Some(shares[0].huge_bytes as f64 / shares[0].bytes.max(1) as f64)
}

/// Huge pages that nobody gets.
pub fn enabled(sight: &Sight, found: &mut Vec<Finding>) {
    if sight.chosen(ENABLED).is_some_and(|word| word == "never") {
        let text = "huge pages are off: drives read into small ones at about half the speed, and \
                    cores read them more slowly";
        let remedy = format!("echo madvise > /{ENABLED}");
        found.push(Finding::warning(file(ENABLED), text, remedy));
    }
}

/// Huge pages only where memory happens to lie free in one piece.
pub fn defragmentation(sight: &Sight, found: &mut Vec<Finding>) {
    if sight.chosen(DEFRAG).is_some_and(|word| word == "never") {
        let text = "memory isn't put together for huge pages: after some days of use few are left";
        let remedy = format!("echo madvise > /{DEFRAG}");
        found.push(Finding::note(file(DEFRAG), text, remedy));
    }
}

/// Huge pages that were asked for and didn't come.
pub fn coverage(sight: &Sight, found: &mut Vec<Finding>) {
    let off = sight.chosen(ENABLED).is_some_and(|word| word == "never");
    let Some(share) = sight.measured.huge_share.filter(|share| *share < COVERAGE_MIN && !off)
    else {
        return;
    };
    let text =
        format!("only {:.0} % of memory that was just taken is on huge pages", 100.0 * share);
    let remedy = "free memory lies in pieces: echo 1 > /proc/sys/vm/compact_memory, or restart";
    found.push(Finding::warning(Place::EMPTY, text, remedy));
}

/// Huge pages that are kept for others.
pub fn reserved(sight: &Sight, found: &mut Vec<Finding>) {
    let free = sight.number(MEMINFO, "HugePages_Free:").unwrap_or(0);
    let kib = sight.number(MEMINFO, "Hugepagesize:").unwrap_or(0);
    if free * kib > 0 {
        let text = format!(
            "{} MiB are reserved as huge pages that Millstream doesn't use",
            free * kib / 1024
        );
        let remedy = "sysctl vm.nr_hugepages=0, unless another program needs them";
        found.push(Finding::note(file("proc/sys/vm/nr_hugepages"), text, remedy));
    }
}

/// Memory that the system has swapped out.
pub fn swap(sight: &Sight, found: &mut Vec<Finding>) {
    let bytes = |key: &str| sight.number(MEMINFO, key).map(|kib| kib * 1024);
    let (Some(total), Some(free)) = (bytes("SwapTotal:"), bytes("SwapFree:")) else { return };
    let swapped = total.saturating_sub(free);
    if swapped > SWAPPED_BYTES {
        let text = format!("{} MiB are swapped out: the system was short of memory", swapped >> 20);
        let remedy = "leave others more with --memory; experts that are swapped are slower than \
                      experts that are read again, so swap gains nothing here";
        found.push(Finding::note(file(MEMINFO), text, remedy));
    }
}
