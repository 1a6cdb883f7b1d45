//! What happened when, for a picture of a few tokens: only kept when somebody asked for it at start.
//!
//! Room for a fixed number of events; every thread that records claims the next place. Reading begins
//! when the waves are back, so an event that is being written may be missed, not torn: its end is
//! written last.

use crate::ids::LayerId;
use crate::kind::{ActorId, STAGES};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Something that took time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A seat handled a message.
    Handled {
        /// Which seat.
        seat: u32,
        /// Who handled it.
        actor: ActorId,
        /// When it was sent; 0 where that means nothing.
        sent_ns: u64,
        /// When the handling began.
        begin_ns: u64,
        /// When it ended.
        end_ns: u64,
    },
    /// A drive read.
    Read {
        /// From which copy of the files.
        copy: u32,
        /// When it was submitted.
        begin_ns: u64,
        /// When its completion was seen.
        end_ns: u64,
    },
}

impl Event {
    /// When it began and ended.
    pub fn span_ns(&self) -> (u64, u64) {
        match *self {
            Event::Handled { begin_ns, end_ns, .. } | Event::Read { begin_ns, end_ns, .. } => {
                (begin_ns, end_ns)
            }
        }
    }
}

/// A stage number that says "a read".
const READ: u32 = u32::MAX;

#[derive(Default)]
struct Place {
    /// Seat, or copy.
    who: AtomicU32,
    /// Stage by order, or [`READ`].
    stage: AtomicU32,
    layer: AtomicU32,
    sent_ns: AtomicU64,
    begin_ns: AtomicU64,
    /// 0 until the event is complete.
    end_ns: AtomicU64,
}

/// Room for events; see the module's story.
pub struct Timeline {
    next: AtomicUsize,
    places: Box<[Place]>,
}

impl Timeline {
    /// Room for so many events; later ones are dropped.
    pub fn new(events_max: usize) -> Timeline {
        let places = (0..events_max).map(|_| Place::default()).collect();
        // Nothing is kept until it is begun.
        Timeline { next: AtomicUsize::new(events_max), places }
    }

    /// Bytes of so many events.
    pub fn bytes(events_max: usize) -> usize {
        events_max * size_of::<Place>()
    }

    /// Forgets everything and keeps events from now on. Nothing may be under way.
    pub fn begin(&self) {
        for place in &self.places {
            place.end_ns.store(0, Ordering::Relaxed);
        }
        self.next.store(0, Ordering::Release);
    }

    /// Keeps no more events.
    pub fn end(&self) {
        self.next.store(self.places.len(), Ordering::Release);
    }

    /// Keeps an event if there is room.
    pub(super) fn add(&self, event: Event) {
        if self.next.load(Ordering::Relaxed) >= self.places.len() {
            return;
        }
        let Some(place) = self.places.get(self.next.fetch_add(1, Ordering::Relaxed)) else {
            return;
        };
        let (who, stage, layer, sent_ns) = match event {
            Event::Handled { seat, actor, sent_ns, .. } => {
                (seat, actor.stage as u32, actor.layer.0, sent_ns)
            }
            Event::Read { copy, .. } => (copy, READ, 0, 0),
        };
        let (begin_ns, end_ns) = event.span_ns();
        place.who.store(who, Ordering::Relaxed);
        place.stage.store(stage, Ordering::Relaxed);
        place.layer.store(layer, Ordering::Relaxed);
        place.sent_ns.store(sent_ns, Ordering::Relaxed);
        place.begin_ns.store(begin_ns, Ordering::Relaxed);
        place.end_ns.store(end_ns, Ordering::Release);
    }

    /// The events, by their beginning.
    pub fn events(&self) -> Vec<Event> {
        let event = |place: &Place| {
            let end_ns = place.end_ns.load(Ordering::Acquire);
            let begin_ns = place.begin_ns.load(Ordering::Relaxed);
            let who = place.who.load(Ordering::Relaxed);
            let stage = place.stage.load(Ordering::Relaxed);
            match (end_ns, stage) {
                (0, _) => None,
                (_, READ) => Some(Event::Read { copy: who, begin_ns, end_ns }),
                (_, stage) => {
                    let layer = LayerId(place.layer.load(Ordering::Relaxed));
                    let actor = ActorId { layer, stage: STAGES[stage as usize].0 };
                    let sent_ns = place.sent_ns.load(Ordering::Relaxed);
                    Some(Event::Handled { seat: who, actor, sent_ns, begin_ns, end_ns })
                }
            }
        };
        let mut events: Vec<Event> = self.places.iter().filter_map(event).collect();
        events.sort_by_key(Event::span_ns);
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::StageKind;

    #[test]
    fn events_are_kept_while_there_is_room_and_somebody_asked() {
        let timeline = Timeline::new(2);
        let event = |begin_ns| Event::Read { copy: 1, begin_ns, end_ns: begin_ns + 5 };
        timeline.add(event(1));
        assert_eq!(timeline.events(), [], "nobody asked yet");
        timeline.begin();
        let actor = ActorId { layer: LayerId(3), stage: StageKind::Matmul };
        let handled = Event::Handled { seat: 2, actor, sent_ns: 7, begin_ns: 8, end_ns: 9 };
        [event(10), handled, event(11)].into_iter().for_each(|event| timeline.add(event));
        assert_eq!(timeline.events(), [handled, event(10)]);
        timeline.begin();
        timeline.end();
        timeline.add(event(1));
        assert_eq!(timeline.events(), []);
    }
}
