//! Which public API a caller speaks: it decides the shapes of errors and of streams.

use axum::http::{HeaderMap, Uri};

/// A public API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl Dialect {
    /// Told by the address, and where both APIs have the same one (`/v1/models`), by the header that
    /// Anthropic's clients always send.
    pub fn of(uri: &Uri, headers: &HeaderMap) -> Dialect {
        let messages = uri.path() == "/v1/messages" || uri.path().starts_with("/v1/messages/");
        match messages || headers.contains_key("anthropic-version") {
            true => Dialect::Anthropic,
            false => Dialect::OpenAi,
        }
    }
}
