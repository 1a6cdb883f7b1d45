//! What the server says when it can't do what was asked, in the shape that the caller's API has.
//!
//! Made by whoever finds the fault, turned into a response by the routes. A fault names the field
//! and the remedy; nothing of the machine (paths, addresses) is in it but what the engine says of a
//! failed read.

use super::dialect::Dialect;
use crate::engine::EngineError;
use crate::text::TextError;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

/// Kinds of faults, each with its status and its names in the two APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The request is wrong.
    Invalid,
    /// There is no such model here.
    NoModel,
    /// The prompt doesn't fit into the context.
    TooManyTokens,
    /// No key, or a wrong one.
    NoKey,
    /// The host or the origin isn't on the list.
    Forbidden,
    /// There is nothing at this address.
    NotFound,
    /// Something is at this address, for another method.
    Method,
    /// The body didn't come in time.
    SlowBody,
    /// The body is too long.
    TooLarge,
    /// The queue is full.
    Busy,
    /// The answer took too long.
    TooSlow,
    /// The server is about to end.
    Ending,
    /// The engine failed.
    Engine,
}

/// Kind, status, `type` and `code` of OpenAI's bodies, `type` of Anthropic's.
type Names = (FaultKind, StatusCode, &'static str, Option<&'static str>, &'static str);

/// One line a kind.
const KINDS: [Names; 13] = [
    (FaultKind::Invalid, StatusCode::BAD_REQUEST, INVALID, None, INVALID),
    (FaultKind::NoModel, StatusCode::NOT_FOUND, INVALID, Some("model_not_found"), NOT_FOUND),
    (
        FaultKind::TooManyTokens,
        StatusCode::BAD_REQUEST,
        INVALID,
        Some("context_length_exceeded"),
        INVALID,
    ),
    (
        FaultKind::NoKey,
        StatusCode::UNAUTHORIZED,
        INVALID,
        Some("invalid_api_key"),
        "authentication_error",
    ),
    (FaultKind::Forbidden, StatusCode::FORBIDDEN, INVALID, None, "permission_error"),
    (FaultKind::NotFound, StatusCode::NOT_FOUND, INVALID, None, NOT_FOUND),
    (FaultKind::Method, StatusCode::METHOD_NOT_ALLOWED, INVALID, None, INVALID),
    (FaultKind::SlowBody, StatusCode::REQUEST_TIMEOUT, INVALID, None, INVALID),
    (FaultKind::TooLarge, StatusCode::PAYLOAD_TOO_LARGE, INVALID, None, "request_too_large"),
    (
        FaultKind::Busy,
        StatusCode::TOO_MANY_REQUESTS,
        "rate_limit_error",
        Some("rate_limit_exceeded"),
        "rate_limit_error",
    ),
    (FaultKind::TooSlow, StatusCode::GATEWAY_TIMEOUT, "server_error", Some("timeout"), "api_error"),
    (FaultKind::Ending, StatusCode::SERVICE_UNAVAILABLE, "server_error", None, "overloaded_error"),
    (FaultKind::Engine, StatusCode::INTERNAL_SERVER_ERROR, "server_error", None, "api_error"),
];

const INVALID: &str = "invalid_request_error";
const NOT_FOUND: &str = "not_found_error";

/// Seconds after which a caller that found the queue full may try again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("2");

/// A fault.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What sort of fault.
    pub kind: FaultKind,
    /// What is wrong and what helps.
    pub message: String,
    /// The field concerned.
    pub field: Option<String>,
}

impl Fault {
    /// A fault of no field.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Fault {
        Fault { kind, message: message.into(), field: None }
    }

    /// A field is wrong.
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Fault {
        let field = field.into();
        let message = format!("{field}: {}", message.into());
        Fault { kind: FaultKind::Invalid, message, field: Some(field) }
    }

    /// There is nothing at this address.
    pub fn not_found(path: &str) -> Fault {
        Fault::new(FaultKind::NotFound, format!("there is nothing at {path}"))
    }

    fn names(&self) -> &'static Names {
        KINDS.iter().find(|names| names.0 == self.kind).expect("one line a kind")
    }

    /// Its status.
    pub fn status(&self) -> StatusCode {
        self.names().1
    }

    /// The body in the caller's dialect.
    pub fn body(&self, dialect: Dialect) -> Value {
        let (_, _, openai, code, anthropic) = self.names();
        match dialect {
            Dialect::OpenAi => json!({"error": {
                "message": self.message, "type": openai, "param": self.field, "code": code,
            }}),
            Dialect::Anthropic => json!({
                "type": "error", "error": {"type": anthropic, "message": self.message},
            }),
        }
    }

    /// The whole response.
    pub fn response(&self, dialect: Dialect) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body(dialect).to_string()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self.kind {
            FaultKind::Busy | FaultKind::Ending => {
                headers.insert(header::RETRY_AFTER, RETRY_AFTER);
            }
            FaultKind::NoKey => {
                let bearer = HeaderValue::from_static("Bearer");
                headers.insert(header::WWW_AUTHENTICATE, bearer);
            }
            _ => {}
        }
        response
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Fault {
        use EngineError as E;
        let kind = match &error {
            E::ContextExceeded { .. } => FaultKind::TooManyTokens,
            E::EmptyPrompt | E::Token { .. } | E::LogProbabilities { .. } => FaultKind::Invalid,
            E::QueueFull { .. } | E::QueueTimeout { .. } => FaultKind::Busy,
            _ => FaultKind::Engine,
        };
        Fault::new(kind, error.to_string())
    }
}

impl From<TextError> for Fault {
    /// A template that refuses a conversation, or text that a tokenizer refuses, is the caller's to
    /// mend; the file's place is the server's own business.
    fn from(error: TextError) -> Fault {
        let message = match error {
            TextError::Template { reason, .. } => {
                format!("the model's chat template refuses this conversation: {reason}")
            }
            TextError::Refused { reason, .. } => {
                format!("the model's tokenizer refuses this text: {reason}")
            }
            other => return Fault::new(FaultKind::Engine, other.to_string()),
        };
        Fault::new(FaultKind::Invalid, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_line_and_both_shapes() {
        for (kind, status, ..) in KINDS {
            let fault = Fault::new(kind, "why");
            assert_eq!(fault.status(), status);
            let openai = fault.body(Dialect::OpenAi);
            assert_eq!(openai["error"]["message"], "why");
            assert!(openai["error"]["type"].is_string(), "{openai}");
            let anthropic = fault.body(Dialect::Anthropic);
            assert_eq!(anthropic["type"], "error");
            assert!(anthropic["error"]["type"].is_string(), "{anthropic}");
        }
        let last = FaultKind::Engine as usize;
        assert_eq!(KINDS.len(), last + 1);
    }

    #[test]
    fn field_is_named_twice_and_a_full_queue_says_when_to_come_back() {
        let fault = Fault::field("top_p", "use 0 to 1");
        assert_eq!(fault.body(Dialect::OpenAi)["error"]["param"], "top_p");
        assert!(fault.message.starts_with("top_p"));
        let busy = Fault::new(FaultKind::Busy, "full").response(Dialect::Anthropic);
        assert_eq!(busy.status(), 429);
        assert!(busy.headers().contains_key(header::RETRY_AFTER));
    }
}
