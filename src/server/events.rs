//! Server-sent events: the framing, and a response's body that makes them as parts of answers come.
//!
//! The body is polled by the connection: a reader that is slow leaves parts in the queue of its
//! answers, and one that goes away drops the body, which cancels the answers.

use super::answers::{Answers, News};
use super::errors::{Fault, FaultKind};
use super::limits::ServerLimits;
use super::shape::Shape;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, Response, header};
use hyper::body::Frame;
use serde_json::Value;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep, interval_at, sleep_until};

/// Bytes of events that are put into one chunk when they come faster than they are read.
const CHUNK_BYTES: usize = 16 << 10;

/// Events as they go over the wire. JSON without line breaks is one `data` line.
#[derive(Debug, Default)]
pub struct Events(String);

impl Events {
    /// An event without a name.
    pub fn data(&mut self, value: &Value) {
        self.line(&value.to_string());
    }

    /// `data: [DONE]`, the end of OpenAI's streams.
    pub fn done(&mut self) {
        self.line("[DONE]");
    }

    /// An event whose name is also the `type` of its object, as Anthropic's are.
    pub fn named(&mut self, value: &Value) {
        let name = value["type"].as_str().expect("an event has its type");
        self.0 += &format!("event: {name}\n");
        self.line(&value.to_string());
    }

    /// A comment, which every client passes over.
    pub fn comment(&mut self, text: &str) {
        self.0 += &format!(": {text}\n\n");
    }

    /// All that was written.
    #[cfg(test)]
    pub fn text(&self) -> &str {
        &self.0
    }

    fn line(&mut self, data: &str) {
        self.0 += &format!("data: {data}\n\n");
    }
}

/// The body of a streamed response.
struct EventBody<S> {
    answers: Answers,
    shape: S,
    out: Events,
    /// Answers that haven't ended.
    left: usize,
    ping: Interval,
    deadline: Option<Pin<Box<Sleep>>>,
}

/// A response that tells answers as they come, until the deadline.
pub fn respond<S: Shape>(
    answers: Answers,
    mut shape: S,
    limits: &ServerLimits,
    deadline: Option<Instant>,
) -> Response<Body> {
    let mut out = Events::default();
    shape.begin(answers.prompt_tokens, answers.count, &mut out);
    let mut ping = interval_at(Instant::now() + limits.ping_time, limits.ping_time);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let deadline = deadline.map(|at| Box::pin(sleep_until(at)));
    let left = answers.count;
    let body = EventBody { answers, shape, out, left, ping, deadline };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies such as nginx would hold events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl<S: Shape> EventBody<S> {
    fn fail(&mut self, fault: &Fault) {
        self.shape.failed(fault, &mut self.out);
        self.left = 0;
    }

    /// Takes parts while there are some and the chunk isn't full.
    fn take(&mut self, context: &mut Context<'_>) {
        while self.left > 0 && self.out.0.len() < CHUNK_BYTES {
            let Poll::Ready(part) = self.answers.poll_next(context) else { break };
            match part {
                Some(part) => match &part.news {
                    News::Failed(fault) => self.fail(fault),
                    news => {
                        self.shape.news(part.choice, news, &mut self.out);
                        if let News::End(_) = news {
                            self.left -= 1;
                            if self.left == 0 {
                                self.shape.finish(&mut self.out);
                            }
                        }
                    }
                },
                None => {
                    self.fail(&Fault::new(FaultKind::Engine, "an answer ended without a word"));
                }
            }
        }
    }
}

impl<S: Shape> HttpBody for EventBody<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        this.take(context);
        if this.left > 0 {
            if let Some(deadline) = &mut this.deadline
                && deadline.as_mut().poll(context).is_ready()
            {
                this.fail(&too_slow());
            } else if this.out.0.is_empty() && this.ping.poll_tick(context).is_ready() {
                this.shape.ping(&mut this.out);
                // The next tick wakes this task again.
                let _ = this.ping.poll_tick(context);
            }
        }
        match (this.out.0.is_empty(), this.left) {
            (true, 0) => Poll::Ready(None),
            (true, _) => Poll::Pending,
            (false, _) => {
                let bytes = Bytes::from(std::mem::take(&mut this.out.0));
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
        }
    }
}

/// The answer took longer than it may.
pub fn too_slow() -> Fault {
    Fault::new(
        FaultKind::TooSlow,
        "the answer took longer than this server allows; ask for fewer tokens",
    )
}
