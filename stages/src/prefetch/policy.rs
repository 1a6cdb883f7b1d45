//! How a prefetcher guesses what the next wave needs, and all else that is settled about a layer's slots
//! before it starts.

use super::eviction::EvictionPolicy;
use crate::uses::UseCounts;
use std::sync::Arc;

/// How a layer's experts come and go.
#[derive(Clone, Debug)]
pub struct Residency {
    /// Which experts are loaded before a wave asks for them.
    pub lookahead: Lookahead,
    /// The layer's router guesses for later layers when it is asked.
    pub foresees: bool,
    /// Which expert goes when a slot is needed.
    pub eviction: EvictionPolicy,
    /// What earlier sessions counted; the prefetcher counts on.
    pub uses: Arc<UseCounts>,
}

/// Which experts are loaded before a wave asks for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lookahead {
    /// None.
    #[default]
    Off,
    /// Those that the layer used in the last step.
    Repeat,
    /// Those that the layer's gate chooses for the state one layer before.
    Gate,
    /// The same, and those that it chooses for the state two layers before.
    GateTwice,
    /// As [`Lookahead::Gate`], and each layer pauses while its guesses don't pay.
    Auto,
    /// Those that a recording of an earlier run names.
    Recorded,
}

/// Every lookahead that a user can name, with its name and the one line that he needs.
pub const LOOKAHEADS: [(Lookahead, &str, &str); 5] = [
    (Lookahead::Off, "off", "experts are read when a wave asks for them"),
    (Lookahead::Repeat, "repeat", "the experts of the last step are read again if they went"),
    (Lookahead::Gate, "gate", "the next layer's gate is asked before its turn"),
    (Lookahead::GateTwice, "gate2", "the gates of the next two layers are asked before their turn"),
    (Lookahead::Auto, "auto", "as gate; a layer whose guesses don't pay pauses"),
];
