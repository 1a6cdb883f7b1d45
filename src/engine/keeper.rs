//! The keeper: saves what was learned after each answer, on a thread of its own.
//!
//! A flush to the drive takes milliseconds that no stream should wait for. The scheduler only says that
//! an answer ended; the keeper reads the counters and is the file's one writer. What can't be saved is
//! lost with a word on stderr, once.

use crate::learn::UseFile;
use crossbeam_channel::{Receiver, Sender, bounded};
use millstream_stages::uses::UseCounts;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The scheduler's handle: dropped, it waits until everything is saved.
pub struct Keeper {
    answers: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn start(file: UseFile, uses: Arc<UseCounts>) -> io::Result<Keeper> {
        // One place: an answer that ends while another's counts wait to be saved is in them.
        let (answers, receiver) = bounded(1);
        let body = move || keep(&file, &uses, &receiver);
        let thread = std::thread::Builder::new().name("keeper".into()).spawn(body)?;
        Ok(Keeper { answers: Some(answers), thread: Some(thread) })
    }

    /// An answer ended.
    pub fn answer_ended(&self) {
        if let Some(answers) = &self.answers {
            let _ = answers.try_send(());
        }
    }
}

fn keep(file: &UseFile, uses: &UseCounts, answers: &Receiver<()>) {
    let mut complained = false;
    while answers.recv().is_ok() {
        if let Err(error) = file.save(uses.all())
            && !complained
        {
            complained = true;
            let path = file.path().display();
            eprintln!("warning: {path} can't be saved ({error}); use --learn off if that is meant");
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.answers = None;
        if let Some(thread) = self.thread.take() {
            // A thread that died has said why on stderr.
            let _ = thread.join();
        }
    }
}
