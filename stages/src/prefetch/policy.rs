//! What is settled about residency before a model starts: how a prefetcher guesses what the next wave
//! needs, what goes when a slot is needed, and what earlier sessions counted.

use super::eviction::EvictionPolicy;
use crate::uses::UseCounts;
use std::sync::Arc;

/// How experts come and go.
#[derive(Clone, Debug)]
pub struct Residency {
    /// How prefetchers guess.
    pub lookahead: Lookahead,
    /// Which expert goes when a slot is needed.
    pub eviction: EvictionPolicy,
    /// What earlier sessions counted; prefetchers count on.
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
}

/// Every lookahead with its name and the one line that a user needs.
pub const LOOKAHEADS: [(Lookahead, &str, &str); 2] = [
    (Lookahead::Off, "off", "experts are read when a wave asks for them"),
    (Lookahead::Repeat, "repeat", "the experts of the last step are read again if they went"),
];
