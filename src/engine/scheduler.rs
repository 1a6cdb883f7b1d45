//! The scheduler: requests become sequences, sequences become rows of waves.
//!
//! Lives on the engine's own thread and owns the pipeline, the sequences, the KV pages and the
//! sampler. A wave takes one row of every sequence that answers and then prompt rows, as many as the
//! pace allows: the oldest prompt first, the others in turn with up to half of the rows, so that a long
//! prompt holds nobody up. A sequence has rows in one wave at a time. Nothing here allocates while
//! sequences answer, but for what a request asked to keep.

use super::EngineError;
use super::admission::Entry;
use super::keeper::Keeper;
use super::options::Options;
use super::pace::Pace;
use super::pages::Pages;
use super::request::{Answer, Finish, Request};
use super::sequence::{Event, Sequence};
use crate::sampler::Sampler;
use crossbeam_channel::{Receiver, TryRecvError};
use millstream_stages::gauge::{Recorder, Series, now_ns};
use millstream_stages::ids::SequenceId;
use millstream_stages::limits::{KV_BLOCK_ROWS, Limits};
use millstream_stages::queue::prepare_thread;
use millstream_stages::threads::Pipeline;
use millstream_stages::wave::{Row, Wave};
use std::collections::VecDeque;
use std::time::Duration;

/// What callers tell the scheduler.
pub enum Command {
    /// Take a request.
    Submit(Box<Entry>),
    /// End a request at the next token.
    Cancel(u64),
}

/// What the user chose of how requests are dealt with.
pub struct Rules {
    /// How long a request waits at most; none waits as long as it takes.
    wait_max: Option<Duration>,
    prefill_pace: Option<f64>,
    share_prefixes: bool,
}

impl Rules {
    /// Of the options.
    pub fn of(options: &Options) -> Rules {
        Rules {
            wait_max: options.queue_wait_max,
            prefill_pace: options.prefill_pace,
            share_prefixes: options.share_prefixes,
        }
    }
}

/// Owns the pipeline and everything that is admitted.
pub struct Scheduler {
    pipeline: Pipeline,
    vocabulary: usize,
    commands: Receiver<Command>,
    /// Requests that wait for a place or for pages, first come first served.
    queue: VecDeque<Box<Entry>>,
    /// How long they wait at most; none waits as long as it takes.
    wait_max: Option<Duration>,
    /// By [`SequenceId`].
    sequences: Vec<Option<Sequence>>,
    pages: Pages,
    /// The first in the queue didn't get its pages, and nobody has left since.
    lacks_pages: bool,
    sampler: Sampler,
    pace: Pace,
    /// When the last wave ended, or began where none was in flight.
    wave_since_ns: u64,
    /// Sequences whose prompts are read, the oldest first; filled for each wave.
    prompts: Vec<usize>,
    /// Which of the younger ones is looked at first.
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
        rules: &Rules,
    ) -> Scheduler {
        let limits = pipeline.limits();
        Scheduler {
            sequences: (0..limits.sequences_max).map(|_| None).collect(),
            pages: Pages::new(limits.kv_pages_max, rules.share_prefixes),
            lacks_pages: false,
            pace: Pace::new(rules.prefill_pace, limits.sequences_max, limits.rows_max),
            wave_since_ns: 0,
            prompts: Vec::with_capacity(limits.sequences_max),
            queue: VecDeque::new(),
            sampler: Sampler::new(vocabulary),
            turn: 0,
            closed: false,
            recorder: pipeline.gauges().recorder(u32::MAX, Series::is_engines),
            keeper,
            wait_max: rules.wait_max,
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
            self.turn_away();
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
                Ok(Command::Submit(entry)) => self.queue.push_back(entry),
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
        if let Some(place) = self.queue.iter().position(|entry| entry.number == number) {
            self.lacks_pages = false;
            self.queue.remove(place).expect("found above").end(Ok(Answer::cancelled()));
        }
    }

    /// Gives waiting requests their place and their pages, in order.
    fn admit(&mut self) {
        while let Some(entry) = self.queue.front() {
            let Some(place) = self.sequences.iter().position(Option::is_none) else { return };
            if self.lacks_pages {
                return;
            }
            let request = &entry.request;
            let count = pages_of(request, self.pipeline.limits());
            let Some(pages) = self.pages.take(&request.prompt_ids, count, request.may_share())
            else {
                self.lacks_pages = true;
                return;
            };
            let entry = self.queue.pop_front().expect("looked at above");
            let before = self.pipeline.gauges().read();
            let context_max = self.pipeline.limits().context_max;
            let sequence = Sequence::new(*entry, pages, context_max, before);
            self.sequences[place] = Some(sequence);
        }
    }

    /// Ends requests that have waited too long; the first in the queue is the oldest.
    fn turn_away(&mut self) {
        let Some(wait_max) = self.wait_max else { return };
        while let Some(entry) = self.queue.pop_front_if(|entry| entry.since.elapsed() > wait_max) {
            self.lacks_pages = false;
            entry.end(Err(EngineError::QueueTimeout { wait_max }));
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
        self.pages.give_back(&sequence.pages);
        self.lacks_pages = false;
        if let Some(keeper) = &self.keeper {
            keeper.answer_ended();
        }
        let Sequence { events, ticket, .. } = sequence;
        // Out before the caller hears of it, so that who asks again at once isn't refused.
        drop(ticket);
        // A caller that has gone away doesn't hear it.
        let _ = events.send(Event::Done(Box::new(outcome)));
    }

    /// Fills a wave and hands it in. False when there is no wave, nothing to put into it, or when all
    /// that could go would hold up those that answer.
    fn submit_wave(&mut self) -> bool {
        let sequences = || self.sequences.iter().flatten();
        if !sequences().any(Sequence::is_ready) {
            return false;
        }
        let answering = sequences().filter(|s| s.is_answering()).count();
        let rides = sequences().filter(|s| s.is_ready() && !s.is_prefill()).count();
        let prompt_rows = self.pace.prompt_rows(answering, rides);
        if rides == 0 && prompt_rows == 0 {
            return false;
        }
        let Some(mut wave) = self.pipeline.take_wave() else { return false };
        let logits_max = self.pipeline.limits().logits_rows_max;
        for (place, sequence) in self.sequences.iter_mut().enumerate() {
            if let Some(sequence) = sequence.as_mut().filter(|s| s.is_ready() && !s.is_prefill()) {
                add_rows(&mut wave, place, sequence, 1, logits_max);
            }
        }
        let answers = wave.rows.len();
        self.add_prompts(&mut wave, prompt_rows);
        self.pace.handed_in(rides, wave.rows.len() - answers);
        if self.pipeline.in_flight() == 0 {
            self.wave_since_ns = now_ns();
        }
        self.pipeline.submit(wave);
        true
    }

    /// Adds so many prompt rows at most: half of them are the oldest prompt's if it wants them, and the
    /// younger ones take turns.
    fn add_prompts(&mut self, wave: &mut Wave, rows: usize) {
        let limits = self.pipeline.limits();
        let sequences = &mut self.sequences;
        let is_read =
            |s: &Option<Sequence>| s.as_ref().is_some_and(|s| s.is_ready() && s.is_prefill());
        self.prompts.clear();
        self.prompts.extend((0..sequences.len()).filter(|&place| is_read(&sequences[place])));
        let of = |place: &usize| sequences[*place].as_ref().expect("filtered above");
        self.prompts.sort_unstable_by_key(|place| of(place).number);
        let Some((&oldest, younger)) = self.prompts.split_first() else { return };
        let rows = rows.min(limits.rows_max - wave.rows.len());
        let wanted = younger.iter().map(|place| of(place).waiting()).sum::<usize>();
        let end = wave.rows.len() + rows;
        let mut add = |place: usize, rows: usize| {
            let sequence = sequences[place].as_mut().expect("filtered above");
            sequence.begin_measured(|| self.pipeline.gauges().read());
            add_rows(wave, place, sequence, rows, limits.logits_rows_max);
            end - wave.rows.len()
        };
        let mut left = add(oldest, rows - wanted.min(rows / 2));
        self.turn = self.turn.wrapping_add(1);
        for offset in 0..younger.len() {
            left = add(younger[self.turn.wrapping_add(offset) % younger.len()], left);
        }
    }

    /// Takes a finished wave's rows to their sequences.
    fn take_wave(&mut self, wave: Box<Wave>) {
        let now = now_ns();
        let prompt_rows = wave.rows.iter().filter(|row| row.prefill).count();
        let answering = wave.rows.len() - prompt_rows;
        self.pace.took(answering, prompt_rows, now.saturating_sub(self.wave_since_ns));
        self.wave_since_ns = now;
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
                let Request { sampling, choice, .. } = &sequence.request;
                let history = sequence.history();
                let chosen = self.sampler.choose(logits, sampling, history, *choice, position);
                self.recorder.record(Series::Sampling, now_ns() - since_ns);
                let gauges = self.pipeline.gauges();
                match chosen {
                    Ok(token) => {
                        sequence.answer(token, logits, || gauges.read(), &mut self.recorder)
                    }
                    Err(error) => self.leave(place, Err(EngineError::Sampling(error))),
                }
            }
        }
        self.publish(&wave);
        self.pipeline.give_back(wave);
    }

    /// Pages that a finished wave has made whole can be found by others from now on; those of a sequence
    /// that has left, because a read failed, can't.
    fn publish(&mut self, wave: &Wave) {
        for rows in wave.rows.chunk_by(|row, next| row.sequence == next.sequence) {
            let Some(last) = rows.last() else { continue };
            if let Some(sequence) = &mut self.sequences[last.sequence.index()] {
                let fed = &sequence.tokens[..=last.position as usize];
                self.pages.publish(&mut sequence.pages, fed);
            }
        }
    }

    /// The pipeline died: everybody is told.
    fn fail_all(&mut self) {
        for place in 0..self.sequences.len() {
            if self.sequences[place].is_some() {
                self.leave(place, Err(EngineError::Stopped));
            }
        }
        for entry in self.queue.drain(..) {
            entry.end(Err(EngineError::Stopped));
        }
    }
}

/// Pages that a request needs to its end, cut off at the context.
fn pages_of(request: &Request, limits: &Limits) -> usize {
    let tokens = request.prompt_ids.len().saturating_add(request.answer_max());
    tokens.min(limits.context_max).div_ceil(KV_BLOCK_ROWS).max(1)
}

/// Puts the next rows of a sequence into a wave, at most so many.
fn add_rows(
    wave: &mut Wave,
    place: usize,
    sequence: &mut Sequence,
    rows: usize,
    logits_max: usize,
) {
    let mut room = rows;
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
    wave.pages.extend_from_slice(&sequence.pages.pages);
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
