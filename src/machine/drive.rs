//! The drive under the model: file system, alignment, queue and speed.

use super::sight::{Sight, file};
use crate::checkpoint::examine::{Finding, Place};
use crate::checkpoint::pack::open_direct;
use rustix::fs::{AtFlags, CWD, StatxFlags, major, minor, statx};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What the engine's direct reads are aligned to.
const ALIGN_BYTES: u32 = 4096;
/// Requests shorter than this are many for one expert.
const REQUEST_KIB_MIN: u64 = 256;
/// A drive that gives less than this makes decode slow from it.
const DRIVE_BYTES_S_MIN: f64 = 1e9;

/// File systems that are slow to stream from: kind, and why.
const SLOW_FILE_SYSTEMS: &[(&str, &str)] = &[
    ("nfs", "every read crosses the network"),
    ("cifs", "every read crosses the network"),
    ("smb3", "every read crosses the network"),
    ("9p", "every read crosses to the host of this virtual machine"),
    ("virtiofs", "every read crosses to the host of this virtual machine"),
    ("fuse", "every read crosses a program"),
    ("overlay", "reads pass a container's layers"),
];

/// Number (major, minor) of the device that a file lies on.
pub fn device(path: &Path) -> Option<(u32, u32)> {
    let device = path.metadata().ok()?.dev();
    Some((major(device), minor(device)))
}

/// What offsets of direct reads of a file must be multiples of: 0 where there are no such reads, none
/// where the kernel doesn't say (before 6.1, or the file system doesn't tell).
pub fn direct_offset_align_bytes(path: &Path) -> Option<u32> {
    let told = statx(CWD, path, AtFlags::empty(), StatxFlags::DIOALIGN).ok()?;
    if told.stx_mask & StatxFlags::DIOALIGN.bits() != 0 {
        return Some(told.stx_dio_offset_align);
    }
    let refused = open_direct(path).is_err_and(|error| error.kind() == ErrorKind::InvalidInput);
    refused.then_some(0)
}

/// A file system that isn't on a drive of this machine.
pub fn file_system(sight: &Sight, found: &mut Vec<Finding>) {
    let Some(mount) = sight.mount() else { return };
    let is = |name: &str| mount.kind == name || mount.kind.starts_with(&format!("{name}."));
    let known = |(name, _): &&(&str, &str)| is(name) || (*name == "nfs" && is("nfs4"));
    if let Some((_, why)) = SLOW_FILE_SYSTEMS.iter().find(known) {
        let text = format!("the model is on {}: {why}", mount.kind);
        let remedy = "copy it to an NVMe drive of this machine";
        found.push(Finding::warning(Place::file(mount.point), text, remedy));
    } else if ["tmpfs", "ramfs"].into_iter().any(is) {
        let text = "the model is in memory already, and experts are copied from there";
        let remedy = "put it on a drive: the memory is worth more as expert slots";
        found.push(Finding::warning(Place::file(mount.point), text, remedy));
    }
}

/// Direct reads that aren't possible, or only in larger pieces.
pub fn alignment(sight: &Sight, found: &mut Vec<Finding>) {
    match sight.measured.direct_offset_align_bytes {
        Some(0) => {
            let text = "the file system has no direct reads: they go through the page cache, at \
                        about half the speed and three times the CPU time";
            let remedy = "put the model on ext4 or xfs";
            found.push(Finding::warning(Place::EMPTY, text, remedy));
        }
        Some(bytes) if bytes > ALIGN_BYTES => {
            let text = format!(
                "direct reads must be aligned to {bytes} bytes, experts are to {ALIGN_BYTES}"
            );
            let remedy = "use a file system with blocks of 4096 bytes";
            found.push(Finding::warning(Place::EMPTY, text, remedy));
        }
        _ => {}
    }
}

/// A drive with platters.
pub fn kind(sight: &Sight, found: &mut Vec<Finding>) {
    let Some(directory) = sight.device_directory() else { return };
    let path = format!("{directory}/queue/rotational");
    if sight.value::<u32>(&path) == Some(1) {
        let name = sight.device_name().unwrap_or_default();
        let text = format!("{name} says that it rotates: reads in no order take milliseconds each");
        let remedy = "copy the model to an NVMe drive (virtual drives may say so wrongly)";
        found.push(Finding::warning(file(&path), text, remedy));
    }
}

/// A queue that cuts reads or sorts them.
pub fn queue(sight: &Sight, found: &mut Vec<Finding>) {
    let Some(directory) = sight.device_directory() else { return };
    let path = format!("{directory}/queue/max_sectors_kb");
    if let Some(kib) = sight.value::<u64>(&path).filter(|kib| *kib < REQUEST_KIB_MIN) {
        let text = format!("reads are cut into requests of {kib} KiB");
        let most: Option<u64> = sight.value(&format!("{directory}/queue/max_hw_sectors_kb"));
        let most = most.unwrap_or(1280).min(1280);
        found.push(Finding::note(file(&path), text, format!("echo {most} > /{path}")));
    }
    let path = format!("{directory}/queue/scheduler");
    if let Some(name) = sight.chosen(&path).filter(|name| name == "bfq" || name == "cfq") {
        let text = format!("the scheduler {name} shares a drive out fairly, which costs speed");
        found.push(Finding::note(file(&path), text, format!("echo none > /{path}")));
    }
}

/// A drive that gives little.
pub fn speed(sight: &Sight, found: &mut Vec<Finding>) {
    let Ok(bytes_s) = sight.measured.drive_bytes_s else { return };
    if bytes_s < DRIVE_BYTES_S_MIN {
        let text = format!("the drive gives {:.2} GB/s now", bytes_s / 1e9);
        let remedy = "`millstream plan` says what that lets the model do; see whether others use the \
                      drive, use a faster one, or add a copy on a second (--mirror)";
        found.push(Finding::warning(Place::EMPTY, text, remedy));
    }
}
