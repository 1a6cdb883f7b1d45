//! An open file of a pack: reads past the page cache where it can, through it where it can't.
//!
//! Weights are held in arenas, so a copy in the page cache is memory lost. Reads therefore go by
//! O_DIRECT through a handle of their own, in whole pages, into the caller's buffer where that is
//! aligned and through a bounce buffer where it isn't. File systems that refuse O_DIRECT (tmpfs,
//! some network ones) are read as usual.

use super::layout::DIRECT_ALIGN_BYTES;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Alignment of direct reads: of offset, length and address.
const ALIGN: usize = DIRECT_ALIGN_BYTES as usize;
/// Shorter reads go through the page cache.
const DIRECT_BYTES_MIN: usize = 64 << 10;
/// Bytes that are bounced at once.
const BOUNCE_BYTES: usize = 1 << 20;

/// A file that is open for reading.
#[derive(Debug)]
pub struct PackFile {
    path: PathBuf,
    name: String,
    file: Arc<File>,
    direct: Option<File>,
    /// The file system took the flag and then refused the reads.
    refused: AtomicBool,
}

impl PackFile {
    /// Opens a file of a directory.
    ///
    /// # Errors
    /// What the system says; `NotFound` when there is no such file.
    pub fn open(directory: &Path, name: &str) -> io::Result<PackFile> {
        let path = directory.join(name);
        if !std::fs::metadata(&path)?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let file = Arc::new(File::open(&path)?);
        let direct = open_direct(&path).ok();
        Ok(PackFile { path, name: name.to_owned(), file, direct, refused: AtomicBool::new(false) })
    }

    /// Its name in the pack.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The handle that reads through the page cache.
    pub fn handle(&self) -> &Arc<File> {
        &self.file
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// What the system says.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Long reads go past the page cache, as far as the file system has said until now.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some() && !self.refused.load(Ordering::Relaxed)
    }

    /// Fills `out` from `offset` on.
    ///
    /// # Errors
    /// What the system says; `UnexpectedEof` when the file ends before.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let direct = self.direct.as_ref().filter(|_| !self.refused.load(Ordering::Relaxed));
        if let Some(direct) = direct.filter(|_| out.len() >= DIRECT_BYTES_MIN) {
            match read_direct(direct, offset, out) {
                // The file system's word for "not with these".
                Err(error) if error.kind() == ErrorKind::InvalidInput => {
                    self.refused.store(true, Ordering::Relaxed);
                }
                outcome => return outcome,
            }
        }
        self.file.read_exact_at(out, offset)
    }
}

/// Opens a file for direct reads, past the page cache.
///
/// # Errors
/// What the system says; `InvalidInput` where the file system has no such reads.
pub fn open_direct(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    File::options().read(true).custom_flags(flags).open(path)
}

fn read_direct(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    let aligned =
        offset.is_multiple_of(DIRECT_ALIGN_BYTES) && out.as_ptr().addr().is_multiple_of(ALIGN);
    let straight = if aligned { out.len() / ALIGN * ALIGN } else { 0 };
    let (body, rest) = out.split_at_mut(straight);
    fill(file, offset, body, straight)?;
    let mut bounce = vec![0; BOUNCE_BYTES.min(rest.len() + 2 * ALIGN) + ALIGN];
    let skip = bounce.as_ptr().align_offset(ALIGN);
    let room = (bounce.len() - skip) / ALIGN * ALIGN;
    let bounce = &mut bounce[skip..skip + room];
    let mut offset = offset + straight as u64;
    let mut rest = rest;
    while !rest.is_empty() {
        let lead = (offset % DIRECT_ALIGN_BYTES) as usize;
        let bytes = rest.len().min(bounce.len() - lead);
        let pages = (lead + bytes).next_multiple_of(ALIGN);
        fill(file, offset - lead as u64, &mut bounce[..pages], lead + bytes)?;
        let (now, later) = rest.split_at_mut(bytes);
        now.copy_from_slice(&bounce[lead..lead + bytes]);
        rest = later;
        offset += bytes as u64;
    }
    Ok(())
}

/// Reads until at least `needed` bytes of `out` have come; the file may end after those.
fn fill(file: &File, offset: u64, out: &mut [u8], needed: usize) -> io::Result<()> {
    let mut got = 0;
    while got < needed {
        match file.read_at(&mut out[got..], offset + got as u64) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            // A read that stops within a page stopped at the end of the file.
            Ok(bytes) if got + bytes < needed && !bytes.is_multiple_of(ALIGN) => {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            Ok(bytes) => got += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(count: usize) -> Vec<u8> {
        (0..count).map(|index| ((index * 31) >> 3) as u8).collect()
    }

    #[test]
    fn reads_at_any_offset_length_and_address_give_the_files_bytes() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let whole = bytes_of((3 << 20) + 777);
        std::fs::write(directory.path().join("f"), &whole).expect("written");
        let file = PackFile::open(directory.path(), "f").expect("opened");
        let mut room = vec![0; whole.len() + 2 * ALIGN];
        let aligned = room.as_ptr().align_offset(ALIGN);
        for shift in [0, 1, 64] {
            for offset in [0, 1, 64, 4095, 4096, 8192 + 5] {
                for bytes in [0, 1, 4096, DIRECT_BYTES_MIN, DIRECT_BYTES_MIN + 1, (2 << 20) + 9] {
                    let out = &mut room[aligned + shift..][..bytes];
                    file.read(offset as u64, out).expect("inside the file");
                    assert!(out == &whole[offset..offset + bytes], "{offset} {bytes} {shift}");
                }
            }
            let out = &mut room[aligned + shift..][..whole.len()];
            file.read(0, out).expect("the whole file");
            assert!(out == whole);
        }
    }

    #[test]
    fn the_files_end_is_an_error() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(directory.path().join("f"), bytes_of(100_000)).expect("written");
        let file = PackFile::open(directory.path(), "f").expect("opened");
        let mut out = vec![0; DIRECT_BYTES_MIN];
        for offset in [40_000, 98_304, 200_000] {
            let error = file.read(offset, &mut out).expect_err("past the end");
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "offset {offset}");
        }
        assert!(PackFile::open(directory.path(), "g").is_err());
    }
}
