//! The server: a model for the clients of OpenAI's and Anthropic's APIs.
//!
//! | file | what it does |
//! |---|---|
//! | `served.rs` | the model that is served: engine, words, names |
//! | `routes.rs`, `state.rs` | addresses, and what all requests share |
//! | `connections.rs` | connections, within their bounds |
//! | `gate.rs` | keys, hosts and origins |
//! | `limits.rs` | every bound of what a caller may send, hold or wait for |
//! | `admission.rs` | how many may ask at once |
//! | `fields.rs`, `question.rs` | a request's JSON, and what it asks |
//! | `answers.rs` | answers under way, a thread each |
//! | `wording.rs`, `stops.rs`, `tools.rs` | what is told of an answer's text: calls out, stop strings cut |
//! | `shape.rs`, `events.rs` | how an API tells answers, whole or as server-sent events |
//! | `openai.rs`, `chat.rs`, `completions.rs` | OpenAI's two endpoints |
//! | `messages.rs` | Anthropic's endpoint |
//! | `scores.rs` | log-probabilities of tokens |
//! | `models.rs` | the list of models |
//! | `errors.rs`, `dialect.rs` | faults in the shape of the caller's API |
//! | `meter.rs`, `metrics.rs` | what is counted, and how Prometheus reads it |
//! | `dashboard.html` | the page at `/` |
//!
//! [`Server`] owns the runtime: a few unpinned threads for connections, and a pool for what blocks. The
//! engine keeps its own seats and never waits for any of these.

mod admission;
mod answers;
mod chat;
mod completions;
mod connections;
mod dialect;
mod errors;
mod events;
mod fields;
mod gate;
mod limits;
mod messages;
mod meter;
mod metrics;
mod models;
mod openai;
mod question;
mod routes;
mod scores;
mod served;
mod shape;
mod state;
mod stops;
mod tools;
mod wording;

pub use limits::ServerLimits;
pub use served::{Numbers, Served, seconds_now};

use admission::Admission;
use gate::Gate;
use meter::Meter;
use state::ServerState;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Threads that serve connections; what they do is small.
const CONNECTION_THREADS: usize = 2;
/// Threads that block, beside those of answers.
const OTHER_THREADS: usize = 16;

/// Where the server is heard, and by whom.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens; port 0 takes a free one.
    pub address: SocketAddr,
    /// The key that callers must know; none lets everybody in.
    pub api_key: Option<String>,
    /// Other names of this server.
    pub allow_hosts: Vec<String>,
    /// Origins of pages that may call it.
    pub allow_origins: Vec<String>,
    /// Bounds.
    pub limits: ServerLimits,
}

/// Why the server can't be had.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address can't be listened on.
    #[error("can't listen on {address}: {source}; choose another with --host and --port")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's complaint.
        source: std::io::Error,
    },
    /// Threads or signals can't be had.
    #[error("the server's threads can't be started: {0}")]
    Runtime(#[from] std::io::Error),
}

/// How the server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every response was finished.
    Whole,
    /// Time was up, or a second signal came: what was under way was cut.
    Cut,
}

/// A server that runs.
pub struct Server {
    runtime: Option<Runtime>,
    state: Arc<ServerState>,
    address: SocketAddr,
    end: watch::Sender<bool>,
    connections: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens and serves, until it is dropped or drained.
    ///
    /// # Errors
    /// When the address or the threads can't be had.
    pub fn start(served: Served, options: &ServerOptions) -> Result<Server, ServerError> {
        let limits = options.limits.clone();
        let at_once = served.engine.setting.limits.sequences_max;
        let admission = Admission::new(at_once, limits.queue_max);
        let runtime = Builder::new_multi_thread()
            .worker_threads(CONNECTION_THREADS)
            .thread_name("http")
            // A question is read on one thread, each of its answers is heard on another.
            .max_blocking_threads(2 * admission.all() + OTHER_THREADS)
            .enable_all()
            .build()?;
        let source = |source| ServerError::Listen { address: options.address, source };
        let listener = runtime.block_on(TcpListener::bind(options.address)).map_err(source)?;
        let address = listener.local_addr()?;
        let local = address.ip().is_loopback();
        let state = Arc::new(ServerState {
            served: Arc::new(served),
            gate: Gate::new(
                options.api_key.as_deref(),
                local,
                &options.allow_hosts,
                &options.allow_origins,
            ),
            admission,
            meter: Arc::new(Meter::default()),
            ending: false.into(),
            limits: limits.clone(),
        });
        let (end, ended) = watch::channel(false);
        let router = routes::router(state.clone());
        let connections = runtime.spawn(connections::serve(listener, router, limits, ended));
        Ok(Server { runtime: Some(runtime), state, address, end, connections: Some(connections) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The model that it serves.
    pub fn served(&self) -> &Served {
        &self.state.served
    }

    /// Answers that are made and answers that wait.
    pub fn counts(&self) -> (usize, usize) {
        self.state.admission.counts()
    }

    /// Serves until SIGTERM or SIGINT, then drains within `bound`; a second signal ends it at once.
    /// `on_signal` hears of the first.
    ///
    /// # Errors
    /// When signals can't be waited for.
    pub fn run_until_signal(
        mut self,
        bound: Duration,
        on_signal: impl FnOnce(),
    ) -> Result<Drained, ServerError> {
        let runtime = self.runtime.as_ref().expect("there until dropped");
        let (mut terminate, mut interrupt) = runtime.block_on(async {
            Ok::<_, ServerError>((
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
            ))
        })?;
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        on_signal();
        let second = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        Ok(self.end_within(bound, second))
    }

    /// Takes no new connections and questions, and waits for the responses under way.
    pub fn drain(mut self, bound: Duration) -> Drained {
        self.end_within(bound, std::future::pending())
    }

    fn end_within(&mut self, bound: Duration, cut: impl Future<Output = ()>) -> Drained {
        self.state.ending.store(true, Ordering::Relaxed);
        self.end.send_replace(true);
        let connections = self.connections.take().expect("drained once");
        let runtime = self.runtime.as_ref().expect("there until dropped");
        runtime.block_on(async {
            tokio::select! {
                ended = tokio::time::timeout(bound, connections) => match ended {
                    Ok(_) => Drained::Whole,
                    Err(_) => Drained::Cut,
                },
                () = cut => Drained::Cut,
            }
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end.send_replace(true);
        if let Some(runtime) = self.runtime.take() {
            // Tasks end where they wait, which drops their answers and so cancels them; the threads
            // that hear answers then come to their end.
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}
