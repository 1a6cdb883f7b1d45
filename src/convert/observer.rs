//! Who watches a conversion: progress for people, and a way to stop it anywhere.

use std::ops::ControlFlow;

/// What is about to happen, or has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A file was finished in an earlier run and stays.
    Kept {
        /// Its name.
        file: &'a str,
        /// Its length in bytes.
        bytes: u64,
    },
    /// A file is going to be written.
    Begin {
        /// Its name.
        file: &'a str,
        /// Its length in bytes.
        bytes: u64,
    },
    /// So many bytes are going to be written.
    Write {
        /// How many.
        bytes: u64,
    },
    /// The file's bytes are going to be sent to the drive.
    Sync,
    /// So many bytes were read back.
    ReadBack {
        /// How many.
        bytes: u64,
    },
    /// The file is going to get its name.
    Rename {
        /// It.
        file: &'a str,
    },
    /// A file is finished.
    Finished {
        /// Its name.
        file: &'a str,
    },
}

/// Watches a conversion; several threads tell it at once.
pub trait Observer: Sync {
    /// Hears of an event. `Break` stops the conversion before what is about to happen, as a kill
    /// would: nothing is tidied up. For what has happened the answer doesn't count.
    fn event(&self, event: Event<'_>) -> ControlFlow<()>;
}

/// Watches nothing.
pub struct Nobody;

impl Observer for Nobody {
    fn event(&self, _event: Event<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
