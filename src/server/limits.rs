//! Every bound of what a caller may send, hold or wait for, in one value.
//!
//! Made once at start from the flags; whoever reads something from a caller looks here first.

use std::time::Duration;

/// Bytes of a request's head: its line and its headers.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
/// Header lines of a request.
pub const HEADERS_MAX: usize = 100;
/// Messages of a conversation.
pub const MESSAGES_MAX: usize = 10_000;
/// Blocks of one message.
pub const BLOCKS_MAX: usize = 1000;
/// Stop strings of a request.
pub const STOPS_MAX: usize = 16;
/// Bytes of one stop string.
pub const STOP_BYTES_MAX: usize = 1024;
/// Prompts in one request, and answers of one request in all.
pub const CHOICES_MAX: u64 = 16;
/// Tools that a request may define.
pub const TOOLS_MAX: usize = 256;
/// Tokens of an answer where nothing else ends it, as a number a field may have.
pub const TOKENS_MAX: u64 = 1 << 31;

/// The bounds that flags and tests may set.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Time in which a request's head must be there; an idle connection ends after it too.
    pub head_time: Duration,
    /// Time in which a request's body must be there.
    pub body_time: Duration,
    /// Time in which an answer must be done, waiting included; none lets it take what it takes.
    pub answer_time: Option<Duration>,
    /// Time without a byte taken after which a reader is given up.
    pub write_time: Duration,
    /// Time after which a stream without news says that it is alive.
    pub ping_time: Duration,
    /// Connections at once; others wait in the system's queue.
    pub connections_max: usize,
    /// Answers that wait for their turn beyond those under way; then 429.
    pub queue_max: usize,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits {
            body_bytes_max: 16 << 20,
            head_time: Duration::from_secs(60),
            body_time: Duration::from_secs(60),
            answer_time: Some(Duration::from_secs(3600)),
            write_time: Duration::from_secs(60),
            ping_time: Duration::from_secs(10),
            connections_max: 1024,
            queue_max: 64,
        }
    }
}
