//! Ctrl-C while an answer comes: it ends the answer, not the program.
//!
//! One [`Interrupt`] a process, shared with the signal's handler. Outside of an answer the signal ends the
//! program as it always does.

use super::Failure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Whether an answer comes, and whether its end was asked for.
#[derive(Debug, Default)]
pub struct Interrupt {
    answering: AtomicBool,
    asked: AtomicBool,
}

impl Interrupt {
    /// Listens from now on.
    ///
    /// # Errors
    /// When the system doesn't let it.
    pub fn listen() -> Result<Arc<Interrupt>, Failure> {
        let interrupt = Arc::new(Interrupt::default());
        let heard = interrupt.clone();
        let handler = move || match heard.answering.load(Ordering::Acquire) {
            true => heard.asked.store(true, Ordering::Release),
            false => std::process::exit(INTERRUPTED),
        };
        ctrlc::set_handler(handler).map_err(Failure::failed)?;
        Ok(interrupt)
    }

    /// An answer begins.
    pub fn begin(&self) {
        self.asked.store(false, Ordering::Release);
        self.answering.store(true, Ordering::Release);
    }

    /// The answer is there.
    pub fn end(&self) {
        self.answering.store(false, Ordering::Release);
    }

    /// Its end was asked for.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}
