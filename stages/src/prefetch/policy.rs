//! How a prefetcher guesses what the next wave needs.

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
