//! Answers under way, in words: tokens come from the engine, pieces of text go to whoever tells them
//! to the caller.
//!
//! Every answer has a thread of its own (unpinned, from the runtime's pool of blocking threads) that
//! waits for tokens, turns them into text and passes it on through a queue that never blocks: an
//! answer has a bound, so has the queue. A slow caller therefore holds up nobody. When the
//! [`Answers`] are dropped, whatever is still being generated is cancelled at the next token.

use super::admission::Place;
use super::errors::{Fault, FaultKind};
use super::meter::Meter;
use super::question::Question;
use super::scores::TokenScore;
use super::served::Served;
use super::tools::ToolCall;
use super::wording::{Piece, Wording};
use crate::engine::{Answer, Event, Finish, Generation, Token};
use crate::text::{TextError, TextStream};
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

/// What comes of one of the answers.
#[derive(Clone, Debug)]
pub struct Part {
    /// Which answer: prompt by prompt, choice by choice.
    pub choice: u32,
    /// What.
    pub news: News,
}

/// What is new.
#[derive(Clone, Debug)]
pub enum News {
    /// More text.
    Text {
        /// Whole characters.
        text: String,
        /// Of the tokens since the last text, if asked for.
        scores: Vec<TokenScore>,
    },
    /// A call of a tool.
    Call(ToolCall),
    /// The answer is complete.
    End(Ending),
    /// It failed.
    Failed(Fault),
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Why.
    pub reason: EndReason,
    /// Tokens that were generated for it.
    pub tokens: usize,
    /// Tokens of the prompt that were known from earlier ones.
    pub cached_tokens: usize,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The model ended it.
    Stop,
    /// A stop string came.
    StopString(String),
    /// The model ended it and has called tools.
    Calls,
    /// As long as it may be, or the context is full.
    Length,
}

/// The answers to one question.
pub struct Answers {
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// How many answers there are.
    pub count: usize,
    parts: UnboundedReceiver<Part>,
    /// Cancels when it is dropped.
    _under_way: UnderWay,
}

/// Generations that are cancelled when nobody wants them any more.
struct UnderWay(Vec<Arc<Generation>>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.iter().for_each(|generation| generation.cancel());
    }
}

impl Answers {
    /// Puts a question to the engine, in a place that was given to it.
    ///
    /// # Errors
    /// When it can't be met.
    pub async fn begin(
        served: Arc<Served>,
        question: Question,
        place: Place,
        meter: Arc<Meter>,
    ) -> Result<Answers, Fault> {
        let (begun, beginning) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            // A caller that has gone away in the meantime takes the answers with it.
            let _ = begun.send(start(&served, &question, place, &meter));
        });
        let broken = |_| Fault::new(FaultKind::Engine, "a thread of the server died; see its log");
        beginning.await.map_err(broken)?
    }

    /// What comes next; none after the last answer's end.
    pub fn poll_next(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Part>> {
        self.parts.poll_recv(context)
    }

    /// What comes next; none after the last answer's end.
    pub async fn next(&mut self) -> Option<Part> {
        self.parts.recv().await
    }
}

/// Starts every answer and its thread.
fn start(
    served: &Arc<Served>,
    question: &Question,
    place: Place,
    meter: &Arc<Meter>,
) -> Result<Answers, Fault> {
    let requests = served.requests(question)?;
    let prompt_tokens =
        requests.iter().step_by(question.choices as usize).map(|r| r.prompt_ids.len()).sum();
    let begin = |request| served.begin(request).map(Arc::new);
    let generations = requests.iter().map(begin).collect::<Result<Vec<_>, _>>()?;
    let (sender, parts) = unbounded_channel();
    let place = Arc::new(place);
    for (choice, generation) in generations.iter().enumerate() {
        let listener = Listener {
            served: served.clone(),
            generation: generation.clone(),
            wording: Wording::new(&question.stops, question.tools(choice)),
            tokens: 0,
            scores: vec![],
            choice: choice as u32,
            parts: sender.clone(),
        };
        let (place, watch) = (place.clone(), meter.watch(requests[choice].prompt_ids.len()));
        tokio::task::spawn_blocking(move || {
            listener.listen(watch);
            drop(place);
        });
    }
    Ok(Answers {
        prompt_tokens,
        count: generations.len(),
        parts,
        _under_way: UnderWay(generations),
    })
}

/// Why an answer is cut before the engine ends it.
enum Cut {
    /// A stop string came.
    Stop(String),
    /// Nobody listens.
    Gone,
    /// Its tokens can't be told.
    Failed(Fault),
}

/// Listens to one generation.
struct Listener {
    served: Arc<Served>,
    generation: Arc<Generation>,
    wording: Wording,
    tokens: usize,
    /// Of tokens whose text isn't told yet.
    scores: Vec<TokenScore>,
    choice: u32,
    parts: UnboundedSender<Part>,
}

impl Listener {
    /// Listens to the end. The place is free when the sequence is gone, not when the caller is.
    fn listen(mut self, mut watch: super::meter::Watch) {
        let served = self.served.clone();
        let mut stream = TextStream::new(&served.tokenizer, true);
        let mut cut = None;
        let outcome = loop {
            match self.generation.next() {
                Event::Token(_) if cut.is_some() => {}
                Event::Token(token) => {
                    watch.token();
                    self.tokens += 1;
                    // An end token has no text, also where the tokenizer doesn't call it special.
                    if !served.stop_ids.contains(&token.id) {
                        cut = self.score(&token).or_else(|| self.text(stream.push(token.id)));
                    }
                    if cut.is_some() {
                        self.generation.cancel();
                    }
                }
                Event::Done(outcome) => break outcome.map_err(Fault::from),
            }
        };
        let news = match (outcome, cut) {
            (_, Some(Cut::Failed(fault))) | (Err(fault), _) => News::Failed(fault),
            (Ok(answer), cut) => {
                let cut = cut.or_else(|| self.rest(&mut stream));
                self.ending(&answer, cut)
            }
        };
        watch.ended(self.end_name(&news));
        self.tell(news);
    }

    /// The engine has ended the answer: tells what was held back.
    fn rest(&mut self, stream: &mut TextStream<'_>) -> Option<Cut> {
        if let Some(cut) = self.text(stream.finish()) {
            return Some(cut);
        }
        let rest = self.wording.finish();
        if rest.is_empty() && !self.scores.is_empty() {
            // Tokens without text, such as special ones at the end.
            let scores = std::mem::take(&mut self.scores);
            self.tell(News::Text { text: String::new(), scores });
        }
        self.pieces(rest)
    }

    fn ending(&self, answer: &Answer, cut: Option<Cut>) -> News {
        let reason = match (cut, answer.finish) {
            (Some(Cut::Failed(fault)), _) => return News::Failed(fault),
            (Some(Cut::Stop(stop)), _) => EndReason::StopString(stop),
            (_, Finish::Stop) if self.wording.called() => EndReason::Calls,
            (_, Finish::Stop) => EndReason::Stop,
            (_, Finish::Length | Finish::ContextFull) => EndReason::Length,
            // Whoever cancelled hears nothing more.
            (_, Finish::Cancelled) => EndReason::Length,
        };
        let cached_tokens = answer.statistics.cached_tokens;
        News::End(Ending { reason, tokens: self.tokens, cached_tokens })
    }

    /// The end as it is counted.
    fn end_name(&self, news: &News) -> &'static str {
        match news {
            News::Failed(_) => "error",
            _ if self.parts.is_closed() => "abort",
            News::End(Ending { reason: EndReason::Length, .. }) => "length",
            _ => "stop",
        }
    }

    /// Passes text on; why that was all, if it was.
    fn text(&mut self, text: Result<String, TextError>) -> Option<Cut> {
        match text {
            Ok(text) => {
                let pieces = self.wording.push(&text);
                self.pieces(pieces)
            }
            Err(error) => Some(Cut::Failed(Fault::from(error))),
        }
    }

    /// Keeps what was asked about a token until its text is told.
    fn score(&mut self, token: &Token) -> Option<Cut> {
        let found = token.log_probabilities.as_ref()?;
        match TokenScore::new(&self.served.tokenizer, token.id, found) {
            Ok(score) => {
                self.scores.push(score);
                None
            }
            Err(error) => Some(Cut::Failed(Fault::from(error))),
        }
    }

    fn pieces(&mut self, pieces: Vec<Piece>) -> Option<Cut> {
        for piece in pieces {
            match piece {
                Piece::Text(text) => {
                    let scores = std::mem::take(&mut self.scores);
                    self.tell(News::Text { text, scores });
                }
                Piece::Call(name, arguments) => {
                    let id = self.served.numbers.identity("");
                    let arguments = arguments.to_string();
                    self.tell(News::Call(ToolCall { id, name, arguments }));
                }
                Piece::Stop(stop) => return Some(Cut::Stop(stop)),
            }
        }
        self.parts.is_closed().then_some(Cut::Gone)
    }

    /// A caller that has gone away doesn't hear it.
    fn tell(&self, news: News) {
        let _ = self.parts.send(Part { choice: self.choice, news });
    }
}
