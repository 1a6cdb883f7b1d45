//! Actors and what they say to each other.
//!
//! An actor is one (layer, stage) pair: a plain struct that owns its state and handles one message
//! at a time. It never calls another actor; it puts messages into the seat's [`Outbox`], which
//! hands them over through the seat's own run queue or through the ring of another seat.

use crate::compute::Compute;
use crate::foresight::Guess;
use crate::gauge::{Gauges, Recorder, now_ns};
use crate::ids::{ExpertId, LayerId, SeatId, Tag};
pub use crate::kind::{ActorId, STAGES, StageKind};
use crate::load::{LoadDesk, LoadOrder, ReadFault, ReadJob};
use crate::queue::{Parking, Ring, Tagged};
use crate::wave::Wave;
use millstream_topology::arena::ReadLease;
use std::collections::VecDeque;
use std::sync::Arc;

/// An expert whose slot is ready, or whose read failed, for a wave that waited.
#[derive(Debug)]
pub struct Arrival {
    /// The wave that waits.
    pub wave: Tag,
    /// Which of the wave's union.
    pub union_index: u32,
    /// The right to read the slot, or why there is none.
    pub outcome: Result<ReadLease, Arc<ReadFault>>,
}

/// What actors say to each other.
#[derive(Debug)]
pub enum Message {
    /// A wave moves on.
    Wave(Box<Wave>),
    /// Prefetcher to matmul.
    Arrived(Arrival),
    /// Matmul to prefetcher: the lease on a slot comes back.
    Returned(ReadLease),
    /// Prefetcher to the next layer's prefetcher: the wave will probably want what the last one did.
    Repeat(Tag),
    /// Prefetcher to its layer's router: the wave's reads are on their way, time to guess.
    Foresee(Tag),
    /// Router to a later layer's prefetcher: what the wave will probably want there.
    Guessed(Guess),
    /// Load this expert if that costs nobody anything.
    Hint(ExpertId),
    /// From outside to a prefetcher: so many slots may be used from now on.
    Cap(usize),
    /// Prefetcher to loader: fill this slot.
    Demand(LoadOrder),
    /// Prefetcher to loader: a wave waits for what was a hint.
    Promote {
        /// The slot that is being filled.
        slot: Tag,
        /// Its class from now on.
        class: crate::load::LoadClass,
    },
    /// The desk to a loader: a job to read with.
    Job {
        /// The slot that it is for.
        slot: Tag,
        /// The job, idle.
        job: Box<ReadJob>,
    },
    /// The reader to a loader: the job's reads are over.
    Read(Box<ReadJob>),
    /// Loader to prefetcher: a slot is ready, or empty again.
    Loaded {
        /// The slot, in the life that was filled.
        slot: Tag,
        /// Whether it holds its expert.
        outcome: Result<(), Arc<ReadFault>>,
    },
}

/// A message with its address.
#[derive(Debug)]
pub struct Envelope {
    /// Whom it is for.
    pub to: ActorId,
    /// What it says.
    pub message: Message,
    /// When it was sent ([`now_ns`]). 0 on a seat's own run queue while the sender is still at it, and
    /// for what a desk says to its own seat.
    pub sent_ns: u64,
}

impl Envelope {
    /// A message that is sent now to another thread's seat.
    pub fn new(to: ActorId, message: Message) -> Envelope {
        Envelope { to, message, sent_ns: now_ns() }
    }
}

/// One (layer, stage) pair.
pub trait Stage: Send {
    /// Who this is.
    fn id(&self) -> ActorId;

    /// Handles one message; says what follows from it through `seat.outbox`.
    fn handle(&mut self, message: Message, seat: &mut SeatContext);
}

/// Another seat's way in: its ring, and how to wake it.
#[derive(Clone)]
pub struct Inbox {
    /// The queue.
    pub ring: Arc<Ring<Envelope>>,
    /// Where its seat sleeps.
    pub parking: Arc<Parking>,
}

impl Inbox {
    /// An inbox with room for every message that can exist.
    pub fn new(messages_max: usize) -> Inbox {
        Inbox { ring: Arc::new(Ring::new(messages_max)), parking: Arc::new(Parking::new()) }
    }

    /// Delivers and wakes.
    ///
    /// # Panics
    /// When the ring is full: its length comes from [`crate::limits::Limits::messages_max`].
    pub fn deliver(&self, tag: Tag, envelope: Envelope) {
        let full = self.ring.push(Tagged { tag, value: envelope }).is_err();
        assert!(!full, "a ring is shorter than the number of messages that can exist");
        self.parking.wake();
    }
}

/// Which seat hosts a stage, and how to reach it.
#[derive(Clone)]
pub struct Directory {
    /// By [`StageKind`] order.
    pub seat_of: [SeatId; STAGES.len()],
    /// By seat.
    pub inboxes: Arc<Vec<Inbox>>,
    /// Where finished waves go.
    pub finished: Arc<Finished>,
}

/// The way back to the engine: finished waves.
pub struct Finished {
    /// The queue.
    pub ring: Ring<Box<Wave>>,
    /// Where the engine sleeps.
    pub parking: Parking,
}

/// What a seat's actors have to say, until it is delivered.
pub struct Outbox {
    seat: SeatId,
    directory: Directory,
    /// The seat's own run queue.
    pub local: VecDeque<Envelope>,
    /// A finished wave that goes out when its handling has been counted.
    finished: Option<Box<Wave>>,
}

impl Outbox {
    /// An outbox of a seat, with room for `messages_max` on its own run queue.
    pub fn new(seat: SeatId, directory: Directory, messages_max: usize) -> Outbox {
        Outbox { seat, directory, local: VecDeque::with_capacity(messages_max), finished: None }
    }

    /// Sends a message to an actor, wherever it sits.
    pub fn send(&mut self, layer: LayerId, stage: StageKind, tag: Tag, message: Message) {
        let to = ActorId { layer, stage };
        let seat = self.directory.seat_of[stage as usize];
        if seat == self.seat {
            assert!(self.local.len() < self.local.capacity(), "the run queue is too short");
            self.local.push_back(Envelope { to, message, sent_ns: 0 });
        } else {
            self.directory.inboxes[seat.index()].deliver(tag, Envelope::new(to, message));
        }
    }

    /// The sender is done: what it sent to its own seat can be handled from now on.
    pub fn stamp(&mut self, now_ns: u64) {
        let unstamped = self.local.iter_mut().rev().take_while(|envelope| envelope.sent_ns == 0);
        unstamped.for_each(|envelope| envelope.sent_ns = now_ns);
    }

    /// Moves a wave on to a stage.
    pub fn send_wave(&mut self, layer: LayerId, stage: StageKind, wave: Box<Wave>) {
        self.send(layer, stage, wave.tag, Message::Wave(wave));
    }

    /// Hands a finished wave to the engine, once the handling at hand has been counted: who reads the
    /// gauges when the wave is there finds all of its work in them.
    ///
    /// # Panics
    /// When one handling finishes two waves.
    pub fn finish(&mut self, wave: Box<Wave>) {
        assert!(self.finished.replace(wave).is_none(), "one wave a handling");
    }

    /// Delivers what was finished.
    pub fn deliver_finished(&mut self) {
        let Some(wave) = self.finished.take() else { return };
        let tagged = Tagged { tag: wave.tag, value: wave };
        assert!(self.directory.finished.ring.push(tagged).is_ok(), "more waves than exist");
        self.directory.finished.parking.wake();
    }
}

/// What a seat lends to the actor that is handling a message.
pub struct SeatContext {
    /// Where messages go.
    pub outbox: Outbox,
    /// Arithmetic; on the compute seat only.
    pub compute: Option<Compute>,
    /// Reads; on the I/O seat only.
    pub desk: Option<LoadDesk>,
    /// Counters.
    pub gauges: Arc<Gauges>,
    /// The seat's histograms.
    pub recorder: Recorder,
}

impl SeatContext {
    /// The compute seat's arithmetic and its outbox.
    ///
    /// # Panics
    /// On another seat: the plan put a compute stage there.
    pub fn compute(&mut self) -> (&mut Compute, &mut Outbox) {
        let compute = self.compute.as_mut().expect("compute stages sit on the compute seat");
        (compute, &mut self.outbox)
    }
}
