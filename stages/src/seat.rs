//! A seat: a thread that hosts many actors and handles one message at a time.
//!
//! A seat takes messages from its own run queue first (what its actors said to each other), then
//! from its ring; the I/O seat looks at its reader before each. With nothing to do a seat spins for
//! a bounded time and then parks, or sleeps at its reader while reads are under way. [`Seat::step`] is one message: the thread calls it in a loop, the
//! simulation calls it when its generator says so.

use crate::gauge::{Handling, now_ns};
use crate::ids::{LayerId, SeatId};
use crate::stage::{ActorId, Envelope, Inbox, Message, STAGES, SeatContext, Stage, StageKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a seat sleeps at its reader before it looks into its ring: what a message may wait that
/// comes while reads are under way.
const READ_WAIT: Duration = Duration::from_micros(200);

/// Actors, their inbox and what they are lent.
pub struct Seat {
    /// Which seat.
    pub id: SeatId,
    actors: Vec<Box<dyn Stage>>,
    /// By layer and stage: where in `actors`.
    places: Vec<[Option<u32>; STAGES.len()]>,
    inbox: Inbox,
    context: SeatContext,
    /// When the last message's handling ended, if the seat has done nothing else since.
    ended_ns: Option<u64>,
}

/// What a step did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A message was handled.
    Worked,
    /// There is nothing to do until a message comes.
    Idle,
}

impl Seat {
    /// A seat with its actors.
    pub fn new(
        id: SeatId,
        layers: usize,
        actors: Vec<Box<dyn Stage>>,
        inbox: Inbox,
        context: SeatContext,
    ) -> Seat {
        let mut places = vec![[None; STAGES.len()]; layers];
        for (place, actor) in actors.iter().enumerate() {
            let ActorId { layer, stage } = actor.id();
            places[layer.index()][stage as usize] = Some(place as u32);
        }
        Seat { id, actors, places, inbox, context, ended_ns: None }
    }

    /// Handles one message. Reads come first: a drive should never wait for arithmetic.
    pub fn step(&mut self) -> Step {
        if self.step_desk() == Step::Worked {
            return Step::Worked;
        }
        if let Some(envelope) = self.context.outbox.local.pop_front() {
            self.dispatch(envelope);
            return Step::Worked;
        }
        if let Some(tagged) = self.inbox.ring.pop() {
            self.dispatch(tagged.value);
            return Step::Worked;
        }
        self.ended_ns = None;
        Step::Idle
    }

    /// Grants a job, or takes one back from the reader.
    fn step_desk(&mut self) -> Step {
        let Some(desk) = &mut self.context.desk else { return Step::Idle };
        self.context.gauges.reads_under_way(desk.is_reading());
        if desk.is_reading() {
            // The look at the reader below is no stage's work.
            self.ended_ns = None;
        }
        if let Some(envelope) = desk.grant() {
            self.dispatch(envelope);
            return Step::Worked;
        }
        let Some(job) = desk.poll() else { return Step::Idle };
        let to = ActorId { layer: job.layer, stage: StageKind::Load };
        self.dispatch(Envelope { to, message: Message::Read(job), sent_ns: 0 });
        Step::Worked
    }

    /// True when only a message from outside can give the seat something to do.
    pub fn is_idle(&self) -> bool {
        let desk_busy = self.context.desk.as_ref().is_some_and(|desk| desk.is_busy());
        !desk_busy && self.context.outbox.local.is_empty() && self.inbox.ring.is_empty()
    }

    fn dispatch(&mut self, envelope: Envelope) {
        let ActorId { layer: LayerId(layer), stage } = envelope.to;
        let place = self.places[layer as usize][stage as usize];
        let place =
            place.unwrap_or_else(|| panic!("{} hosts no {stage:?} of layer {layer}", self.id));
        // One look at the clock a message: it begins when the last one ended.
        let begin_ns = self.ended_ns.take().unwrap_or_else(now_ns);
        self.actors[place as usize].handle(envelope.message, &mut self.context);
        let end_ns = now_ns();
        self.ended_ns = Some(end_ns);
        self.context.outbox.stamp(end_ns);
        let handling = Handling { sent_ns: envelope.sent_ns, begin_ns, end_ns };
        self.context.recorder.handled(envelope.to, handling);
        if let Some(compute) = &mut self.context.compute {
            self.context.gauges.weight_bytes(compute.take_weight_bytes());
        }
        self.context.outbox.deliver_finished();
    }

    /// Runs until `stop` is set and the seat is woken: step, spin for `spin`, park.
    pub fn run(&mut self, stop: &AtomicBool, spin: Duration) {
        let counts_idle = self.context.compute.is_some();
        loop {
            while self.step() == Step::Worked {}
            if stop.load(Ordering::Acquire) {
                return;
            }
            if counts_idle {
                self.context.gauges.compute_rests();
            }
            self.wait(stop, spin, Instant::now());
            if counts_idle {
                self.context.gauges.compute_works();
            }
        }
    }

    /// True when there is something to handle now.
    fn has_work(&mut self) -> bool {
        let desk_ready = self.context.desk.as_mut().is_some_and(|desk| desk.is_ready());
        desk_ready || !self.context.outbox.local.is_empty() || !self.inbox.ring.is_empty()
    }

    fn wait(&mut self, stop: &AtomicBool, spin: Duration, since: Instant) {
        while !self.has_work() && !stop.load(Ordering::Acquire) {
            for _ in 0..64 {
                std::hint::spin_loop();
            }
            if since.elapsed() < spin {
                continue;
            }
            match self.context.desk.as_mut().filter(|desk| desk.is_reading()) {
                Some(desk) => desk.wait(READ_WAIT),
                None => {
                    let parking = Arc::clone(&self.inbox.parking);
                    parking.park_if(|| self.is_idle() && !stop.load(Ordering::Acquire));
                }
            }
        }
    }
}
