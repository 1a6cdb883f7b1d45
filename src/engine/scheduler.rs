//! The scheduler: requests become sequences, sequences become rows of waves.
//!
//! Lives on the engine's own thread and owns the pipeline, the sequences, the KV pages and the
//! sampler. A wave takes one row of every sequence that decodes and fills up with prompt rows,
//! first come first served. A sequence has rows in one wave at a time. Nothing here allocates while
//! sequences decode, but for what a request asked to keep.

use super::EngineError;
use super::keeper::Keeper;
use super::request::{Answer, Finish, Request};
use super::sequence::{Event, Sequence};
use crate::sampler::Sampler;
use crossbeam_channel::{Receiver, Sender, TryRecvError};
use millstream_stages::gauge::{Recorder, Series, now_ns};
use millstream_stages::ids::SequenceId;
use millstream_stages::limits::{KV_BLOCK_ROWS, Limits};
use millstream_stages::queue::prepare_thread;
use millstream_stages::threads::Pipeline;
use millstream_stages::wave::{Row, Wave};
use std::collections::VecDeque;

/// What callers tell the scheduler.
pub enum Command {
    /// Take a request.
    Submit {
        /// Its number, unique.
        number: u64,
        /// What is asked.
        request: Request,
        /// Where its events go.
        events: Sender<Event>,
    },
    /// End a request at the next token.
    Cancel(u64),
}

/// Owns the pipeline and everything that is admitted.
pub struct Scheduler {
    pipeline: Pipeline,
    vocabulary: usize,
    commands: Receiver<Command>,
    /// Requests that wait for a place or for pages, first come first served.
    queue: VecDeque<(u64, Request, Sender<Event>)>,
    /// By [`SequenceId`].
    sequences: Vec<Option<Sequence>>,
    free_pages: Vec<u32>,
    sampler: Sampler,
    /// Which sequence is looked at first for prompt rows, so that none starves.
    turn: usize,
    closed: bool,
    /// Histograms of sampling and of tokens.
    recorder: Recorder,
    /// Saves what was learned, if anything is.
    keeper: Option<Keeper>,
}

impl Scheduler {
    /// A scheduler with nothing admitted.
    pub fn new(
        pipeline: Pipeline,
        vocabulary: usize,
        commands: Receiver<Command>,
        keeper: Option<Keeper>,
    ) -> Scheduler {
        let limits = pipeline.limits();
        Scheduler {
            sequences: (0..limits.sequences_max).map(|_| None).collect(),
            free_pages: (0..limits.kv_pages_max as u32).rev().collect(),
            queue: VecDeque::new(),
            sampler: Sampler::new(vocabulary),
            turn: 0,
            closed: false,
            recorder: pipeline.gauges().recorder(u32::MAX, Series::is_engines),
            keeper,
            vocabulary,
            commands,
            pipeline,
        }
    }

    /// Runs until the engine's handle is gone and everything admitted has ended.
    pub fn run(mut self) {
        prepare_thread();
        loop {
            self.take_commands();
            self.admit();
            self.retire();
            while self.submit_wave() {}
            if self.pipeline.in_flight() > 0 {
                match self.pipeline.wait() {
                    Ok(wave) => self.take_wave(wave),
                    Err(_) => return self.fail_all(),
                }
            } else if self.closed && self.queue.is_empty() {
                return;
            }
        }
    }

    /// Takes what callers said; waits for it when there is nothing to do.
    fn take_commands(&mut self) {
        loop {
            let idle = self.pipeline.in_flight() == 0
                && self.queue.is_empty()
                && self.sequences.iter().all(Option::is_none);
            let command = match idle && !self.closed {
                true => self.commands.recv().map_err(|_| TryRecvError::Disconnected),
                false => self.commands.try_recv(),
            };
            match command {
                Ok(Command::Submit { number, request, events }) => {
                    self.queue.push_back((number, request, events));
                }
                Ok(Command::Cancel(number)) => self.cancel(number),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    fn cancel(&mut self, number: u64) {
        for sequence in self.sequences.iter_mut().flatten() {
            if sequence.number == number {
                sequence.ending.get_or_insert(Finish::Cancelled);
            }
        }
        if let Some(place) = self.queue.iter().position(|entry| entry.0 == number) {
            let (_, _, events) = self.queue.remove(place).expect("found above");
            let _ = events.send(Event::Done(Box::new(Ok(Answer::cancelled()))));
        }
    }

    /// Gives waiting requests their place and their pages, in order.
    fn admit(&mut self) {
        while let Some((_, request, _)) = self.queue.front() {
            let Some(place) = self.sequences.iter().position(Option::is_none) else { return };
            let pages = pages_of(request, self.pipeline.limits());
            if pages > self.free_pages.len() {
                return;
            }
            let (number, request, events) = self.queue.pop_front().expect("looked at above");
            let pages = self.free_pages.split_off(self.free_pages.len() - pages);
            let before = self.pipeline.gauges().read();
            let context_max = self.pipeline.limits().context_max;
            let sequence = Sequence::new(number, request, events, pages, context_max, before);
            self.sequences[place] = Some(sequence);
        }
    }

    /// Sends the answers of sequences that have ended and whose rows are back.
    fn retire(&mut self) {
        for place in 0..self.sequences.len() {
            let ended = |s: &&mut Sequence| !s.in_flight && s.ending.is_some();
            if let Some(sequence) = self.sequences[place].as_mut().filter(ended) {
                let finish = sequence.ending.expect("filtered above");
                let now = self.pipeline.gauges().read();
                let answer = sequence.finish(finish, now, &mut self.recorder);
                self.leave(place, Ok(answer));
            }
        }
    }

    /// A sequence leaves: its pages are free, its caller is told.
    fn leave(&mut self, place: usize, outcome: Result<Answer, EngineError>) {
        let sequence = self.sequences[place].take().expect("a sequence that leaves is there");
        self.free_pages.extend_from_slice(&sequence.pages);
        if let Some(keeper) = &self.keeper {
            keeper.answer_ended();
        }
        // A caller that has gone away doesn't hear it.
        let _ = sequence.events.send(Event::Done(Box::new(outcome)));
    }

    /// Fills a wave and hands it in. False when there is no wave or nothing to put into it.
    fn submit_wave(&mut self) -> bool {
        let ready = |s: &Sequence| !s.in_flight && s.ending.is_none() && s.waiting() > 0;
        if !self.sequences.iter().flatten().any(ready) {
            return false;
        }
        let Some(mut wave) = self.pipeline.take_wave() else { return false };
        let rows_max = self.pipeline.limits().rows_max;
        let logits_max = self.pipeline.limits().logits_rows_max;
        let count = self.sequences.len();
        for prefill in [false, true] {
            for offset in 0..count {
                let place = (self.turn + offset) % count;
                let Some(sequence) = &mut self.sequences[place] else { continue };
                if !ready(sequence) || sequence.is_prefill() != prefill {
                    continue;
                }
                sequence.begin_measured(|| self.pipeline.gauges().read());
                add_rows(&mut wave, place, sequence, rows_max, logits_max);
            }
        }
        self.turn = (self.turn + 1) % count;
        self.pipeline.submit(wave);
        true
    }

    /// Takes a finished wave's rows to their sequences.
    fn take_wave(&mut self, wave: Box<Wave>) {
        let mut logits = wave.logits.chunks(self.vocabulary);
        for (index, row) in wave.rows.iter().enumerate() {
            let place = row.sequence.index();
            let logits = row.wants_logits.then(|| logits.next().expect("one per wanting row"));
            let Some(sequence) = &mut self.sequences[place] else { continue };
            sequence.in_flight = false;
            if let Some(fault) = &row.fault {
                let error = EngineError::Read { fault: (**fault).clone() };
                self.leave(place, Err(error));
                continue;
            }
            sequence.keep(&wave, index, logits);
            let last = row.position as usize + 1 == sequence.tokens.len();
            if !last || sequence.ending.is_some() {
                continue;
            }
            if sequence.is_long_enough() {
                sequence.ending = Some(Finish::Length);
            } else if let Some(logits) = logits {
                let position = row.position as u64 + 1;
                let since_ns = now_ns();
                let chosen = self.sampler.choose(logits, &sequence.request.sampling, 0, position);
                self.recorder.record(Series::Sampling, now_ns() - since_ns);
                let gauges = self.pipeline.gauges();
                match chosen {
                    Ok(token) => sequence.answer(token, || gauges.read(), &mut self.recorder),
                    Err(error) => self.leave(place, Err(EngineError::Sampling(error))),
                }
            }
        }
        self.pipeline.give_back(wave);
    }

    /// The pipeline died: everybody is told.
    fn fail_all(&mut self) {
        for place in 0..self.sequences.len() {
            if self.sequences[place].is_some() {
                self.leave(place, Err(EngineError::Stopped));
            }
        }
        for (_, _, events) in self.queue.drain(..) {
            let _ = events.send(Event::Done(Box::new(Err(EngineError::Stopped))));
        }
    }
}

/// Pages that a request needs to its end, cut off at the context.
fn pages_of(request: &Request, limits: &Limits) -> usize {
    let tokens = request.prompt_ids.len().saturating_add(request.answer_max());
    tokens.min(limits.context_max).div_ceil(KV_BLOCK_ROWS).max(1)
}

/// Puts the next rows of a sequence into a wave, as many as fit.
fn add_rows(
    wave: &mut Wave,
    place: usize,
    sequence: &mut Sequence,
    rows_max: usize,
    logits_max: usize,
) {
    let mut room = rows_max - wave.rows.len();
    let wanting = wave.rows.iter().filter(|row| row.wants_logits).count();
    let room_for_logits = logits_max - wanting;
    if sequence.request.keep_logits {
        room = room.min(room_for_logits);
    }
    if sequence.depth_left() > 0 {
        room = room.min(sequence.depth_left());
    }
    let count = sequence.waiting().min(room);
    let last = sequence.fed + count == sequence.tokens.len();
    if count == 0 || last && room_for_logits == 0 {
        return;
    }
    let pages_first = wave.pages.len() as u32;
    wave.pages.extend_from_slice(&sequence.pages);
    let prefill = sequence.is_prefill();
    for position in sequence.fed..sequence.fed + count {
        wave.rows.push(Row {
            token: sequence.tokens[position],
            position: position as u32,
            sequence: SequenceId(place as u32),
            pages_first,
            wants_logits: sequence.request.keep_logits || position + 1 == sequence.tokens.len(),
            prefill,
            fault: None,
        });
    }
    sequence.fed += count;
    sequence.in_flight = true;
}
