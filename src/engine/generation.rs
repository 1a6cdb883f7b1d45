//! An answer under way: its tokens as they come, and the way to end it early.
//!
//! Made by [`super::Engine::begin`], owned by whoever wants the answer. The scheduler never waits for
//! it: there is room for every event that can come. The engine's threads live until every
//! generation is gone.

use super::EngineError;
use super::scheduler::Command;
use super::sequence::Event;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// An answer under way. Dropping it ends the generation at the next token.
pub struct Generation {
    pub(super) number: u64,
    pub(super) events: Receiver<Event>,
    pub(super) commands: Sender<Command>,
}

impl Generation {
    /// Waits for what comes next. After [`Event::Done`] nothing comes.
    pub fn next(&self) -> Event {
        let stopped = |_| Event::Done(Box::new(Err(EngineError::Stopped)));
        self.events.recv().unwrap_or_else(stopped)
    }

    /// Waits so long at most for what comes next.
    pub fn next_within(&self, time: Duration) -> Option<Event> {
        match self.events.recv_timeout(time) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                Some(Event::Done(Box::new(Err(EngineError::Stopped))))
            }
        }
    }

    /// Asks for the end at the next token; [`Event::Done`] still comes.
    pub fn cancel(&self) {
        // An engine that has stopped says so by its last event.
        let _ = self.commands.send(Command::Cancel(self.number));
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancel();
    }
}
