//! A sequence that the scheduler has admitted: its tokens, its pages, what it keeps.

use super::EngineError;
use super::admission::{Entry, Ticket};
use super::pages::PageTable;
use super::request::{Answer, Finish, PositionTrace, Request};
use super::statistics::Meter;
use crate::sampler::{History, LogProbabilities};
use crossbeam_channel::Sender;
use millstream_stages::gauge::{Reading, Recorder};
use millstream_stages::ids::Tag;
use millstream_stages::limits::KV_BLOCK_ROWS;
use millstream_stages::wave::Wave;

/// A token of an answer, with what was asked about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// The token.
    pub id: u32,
    /// Its log-probability and those of the likeliest, if asked for.
    pub log_probabilities: Option<Box<LogProbabilities>>,
}

/// What a caller hears about its request.
#[derive(Debug)]
pub enum Event {
    /// A token of the answer.
    Token(Token),
    /// The end.
    Done(Box<Result<Answer, EngineError>>),
}

/// One admitted request.
pub struct Sequence {
    /// Number of the request, to cancel it by.
    pub number: u64,
    /// What was asked.
    pub request: Request,
    /// Its stay in the engine.
    pub ticket: Ticket,
    /// Where events go; a caller that has gone away cancels.
    pub events: Sender<Event>,
    /// Prompt and answer, all that is fed or will be.
    pub tokens: Vec<u32>,
    /// Positions that have been handed to a wave.
    pub fed: usize,
    /// The sequence has rows in a wave.
    pub in_flight: bool,
    /// Set when it ends; it leaves when its rows are back.
    pub ending: Option<Finish>,
    /// KV pages.
    pub pages: PageTable,
    /// What the sampler chose for the answer.
    chosen: Vec<u32>,
    /// What was said of the answer's tokens.
    log_probabilities: Vec<LogProbabilities>,
    /// Positions that may be fed.
    positions_max: usize,
    /// Kept logits.
    logits: Option<Vec<f32>>,
    trace: Option<Vec<PositionTrace>>,
    /// Waves that had rows of it, and the last one.
    steps: u32,
    wave: Option<Tag>,
    meter: Meter,
}

impl Sequence {
    /// A sequence with nothing fed but what its pages hold.
    pub fn new(
        entry: Entry,
        (pages, cached): (PageTable, usize),
        context_max: usize,
        before: Reading,
    ) -> Sequence {
        let Entry { number, request, events, mut ticket, .. } = entry;
        ticket.run();
        let positions_max = (pages.pages.len() * KV_BLOCK_ROWS).min(context_max);
        let mut tokens = Vec::with_capacity(positions_max + 1);
        tokens.extend_from_slice(&request.prompt_ids);
        let chosen =
            Vec::with_capacity(positions_max + 1 - request.prompt_ids.len().min(positions_max));
        Sequence {
            number,
            ticket,
            tokens,
            fed: cached,
            in_flight: false,
            ending: None,
            pages,
            chosen,
            log_probabilities: vec![],
            positions_max,
            logits: request.keep_logits.then(Vec::new),
            trace: request.keep_trace.then(Vec::new),
            steps: 0,
            wave: None,
            meter: Meter::start(before, cached),
            events,
            request,
        }
    }

    /// Tokens of the answer so far.
    pub fn answered(&self) -> usize {
        self.tokens.len() - self.request.prompt_ids.len()
    }

    /// Tokens that wait to be fed.
    pub fn waiting(&self) -> usize {
        self.tokens.len() - self.fed
    }

    /// It answers: its prompt is fed, and it goes on.
    pub fn is_answering(&self) -> bool {
        self.ending.is_none() && !self.is_prefill() && self.answered() > 0
    }

    /// It has rows for a wave.
    pub fn is_ready(&self) -> bool {
        !self.in_flight && self.ending.is_none() && self.waiting() > 0
    }

    /// True while the prompt isn't fed yet.
    pub fn is_prefill(&self) -> bool {
        self.fed < self.request.prompt_ids.len()
    }

    /// True when the answer is as long as it may be.
    pub fn is_long_enough(&self) -> bool {
        self.answered() >= self.request.answer_max()
    }

    /// Positions of the prompt that are context only and still to be fed.
    pub fn depth_left(&self) -> usize {
        self.request.depth.saturating_sub(self.fed)
    }

    /// Before rows are taken: if the context is there now, what follows is measured.
    pub fn begin_measured(&mut self, counters: impl FnOnce() -> Reading) {
        if self.is_prefill() && self.request.depth > 0 && self.fed == self.request.depth {
            self.meter.depth_reached(self.fed, counters());
        }
    }

    /// What the next choice follows.
    pub fn history(&self) -> History<'_> {
        let (prompt, answer) = self.tokens.split_at(self.request.prompt_ids.len());
        History { prompt, answer }
    }

    /// Takes the next token: from the forced ids, or the sampled one. `counters` are the pipeline's.
    pub fn answer(
        &mut self,
        sampled: u32,
        logits: &[f32],
        counters: impl FnOnce() -> Reading,
        recorder: &mut Recorder,
    ) {
        self.chosen.push(sampled);
        let token = match &self.request.forced {
            Some(forced) => forced[self.answered()],
            None => sampled,
        };
        self.tokens.push(token);
        self.meter.token(counters, recorder);
        let log_probabilities = self.request.log_probabilities.map(|top| {
            let found = LogProbabilities::new(logits, token, top);
            self.log_probabilities.push(found.clone());
            Box::new(found)
        });
        if self.events.send(Event::Token(Token { id: token, log_probabilities })).is_err() {
            self.ending = Some(Finish::Cancelled);
            return;
        }
        let is_stop = self.request.forced.is_none() && self.request.stop_ids.contains(&token);
        self.ending = if is_stop {
            Some(Finish::Stop)
        } else if self.is_long_enough() {
            Some(Finish::Length)
        } else if self.tokens.len() >= self.positions_max {
            Some(Finish::ContextFull)
        } else {
            None
        };
    }

    /// Keeps what a finished wave holds of this sequence's rows.
    pub fn keep(&mut self, wave: &Wave, row: usize, logits: Option<&[f32]>) {
        if self.wave.replace(wave.tag) != Some(wave.tag) {
            self.steps += 1;
        }
        if let (Some(kept), Some(logits)) = (&mut self.logits, logits) {
            kept.extend_from_slice(logits);
        }
        let Some(kept) = &mut self.trace else { return };
        let rows = wave.rows.len();
        let of = |values: &Vec<u32>| {
            let width = values.len() / rows;
            values[row * width..(row + 1) * width].to_vec()
        };
        let weights_of = |values: &Vec<f32>| {
            let width = values.len() / rows;
            values[row * width..(row + 1) * width].to_vec()
        };
        kept.push(PositionTrace {
            position: wave.rows[row].position,
            step: self.steps - 1,
            prefill: wave.rows[row].prefill,
            experts: wave.trace.experts.iter().map(of).collect(),
            weights: wave.trace.weights.iter().map(weights_of).collect(),
            selections: wave
                .trace
                .selections
                .iter()
                .map(|layer| layer.get(row).cloned().flatten())
                .collect(),
        });
    }

    /// The answer, to be sent.
    pub fn finish(&mut self, finish: Finish, now: Reading, recorder: &mut Recorder) -> Answer {
        self.meter.ended(recorder);
        let answer_ids = self.tokens[self.request.prompt_ids.len()..].to_vec();
        Answer {
            statistics: self.meter.finish(self.request.prompt_ids.len(), answer_ids.len(), now),
            answer_ids,
            chosen_ids: std::mem::take(&mut self.chosen),
            log_probabilities: std::mem::take(&mut self.log_probabilities),
            finish,
            logits: self.logits.take(),
            trace: self.trace.take(),
        }
    }
}
