//! Hostile models: every damaged or malicious configuration, header, index or directory gets a
//! typed error that names the place, never a panic, and never a large allocation.
//!
//! The cases come from tables (field x value, header mutations); each is written to disk and
//! opened like any model. The global allocator of this binary counts.

#[path = "../checkpoint_files/mod.rs"]
mod checkpoint_files;
mod config;
mod container;
mod directory;
mod header;

use checkpoint_files::TestModel;
use millstream::checkpoint::{ModelFiles, OpenError};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Most bytes that opening a hostile model may allocate in all.
const ALLOCATED_MAX: usize = 64 << 20;
/// The counter is the process's, so cases run one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Opens a directory under watch; fails the test on a panic or a large allocation.
fn open_watched(case: &str, directory: &Path) -> Result<ModelFiles, OpenError> {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let region = Region::new(ALLOCATOR);
    let opened = catch_unwind(AssertUnwindSafe(|| ModelFiles::open(directory)));
    let allocated = region.change().bytes_allocated;
    assert!(allocated < ALLOCATED_MAX, "{case}: {allocated} bytes allocated");
    opened.unwrap_or_else(|_| panic!("{case}: opening it panicked"))
}

/// Opens a directory that must be refused; returns the message.
fn refused(case: &str, directory: &Path) -> (OpenError, String) {
    match open_watched(case, directory) {
        Ok(_) => panic!("{case}: was opened"),
        Err(e) => {
            let message = e.to_string();
            assert!(message.len() < 2000, "{case}: a message of {} bytes", message.len());
            (e, message)
        }
    }
}

#[test]
fn valid_model_opens() {
    let directory = tempfile::tempdir().expect("a directory");
    TestModel::valid().write(directory.path());
    let model = open_watched("valid", directory.path()).expect("opens");
    assert_eq!(model.blueprint.spec.layers.len(), 3);
    assert!(model.unknown.is_empty(), "{:?}", model.unknown);
}
