//! The way to say how many slots the layers may use, from outside of the pipeline.
//!
//! Owned by whoever guards the memory (one at a time). Each layer's prefetcher gets a message and
//! does the rest: it owns the slots. A layer has at most one such message under way, so inboxes
//! need room for one each.

use crate::gauge::Gauges;
use crate::ids::{LayerId, Tag};
use crate::stage::{ActorId, Directory, Envelope, Message, StageKind};
use std::sync::Arc;

/// Sends caps to the prefetchers.
pub struct Caps {
    directory: Directory,
    gauges: Arc<Gauges>,
    /// What each layer was told last; 0 for layers without slots.
    told: Vec<usize>,
    sent: u64,
}

impl Caps {
    /// For layers that may use all of their slots now.
    pub(crate) fn new(directory: Directory, gauges: Arc<Gauges>, slots: &[usize]) -> Caps {
        Caps { directory, gauges, told: slots.to_vec(), sent: 0 }
    }

    /// Tells every layer whose number changed; false, and nobody is told, while an earlier message
    /// is still under way.
    ///
    /// # Panics
    /// When there are more or fewer layers, or a cap of 0 for a layer with slots.
    pub fn set(&mut self, caps: &[usize]) -> bool {
        assert_eq!(caps.len(), self.told.len(), "a cap for each layer");
        if self.gauges.caps_taken() < self.sent {
            return false;
        }
        let seat = self.directory.seat_of[StageKind::Prefetch as usize];
        for (index, (told, &cap)) in self.told.iter_mut().zip(caps).enumerate() {
            if *told == cap {
                continue;
            }
            assert!(*told > 0 && cap > 0, "layers with slots keep one at least");
            *told = cap;
            self.sent += 1;
            let layer = LayerId(index as u32);
            let to = ActorId { layer, stage: StageKind::Prefetch };
            let envelope = Envelope::new(to, Message::Cap(cap));
            self.directory.inboxes[seat.index()].deliver(Tag::default(), envelope);
        }
        true
    }

    /// What each layer was told last.
    pub fn told(&self) -> &[usize] {
        &self.told
    }
}
