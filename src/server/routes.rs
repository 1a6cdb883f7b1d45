//! Addresses: which request goes where, and what every response has.
//!
//! A request passes the gate, its body is read within its bounds, a shape reads it, the engine is
//! asked, and the shape tells the answers. Every fault on the way becomes a response in the caller's
//! dialect.

use super::answers::{Answers, News};
use super::chat::{ChatRequest, ChatShape};
use super::completions::{CompletionRequest, CompletionShape};
use super::dialect::Dialect;
use super::errors::{Fault, FaultKind};
use super::events;
use super::messages::{MessageRequest, MessageShape};
use super::metrics;
use super::models;
use super::question::Question;
use super::served::seconds_now;
use super::shape::{Shape, Told};
use super::state::ServerState;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, Method, Response, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::{Instant, timeout, timeout_at};

/// All requests share it.
type Shared = State<Arc<ServerState>>;

/// The server's addresses.
pub fn router(state: Arc<ServerState>) -> Router {
    Router::new()
        .route("/", get(dashboard))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(list_models))
        .route("/v1/models/{*id}", get(one_model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(complete))
        .route("/v1/messages", post(message))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .fallback(nothing)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(state.clone(), guard))
        .with_state(state)
}

/// Checks who asks, and finishes every response.
async fn guard(State(state): Shared, request: Request, next: Next) -> Response<Body> {
    let dialect = Dialect::of(request.uri(), request.headers());
    let origin = state.gate.allowed_origin(request.headers());
    let preflight = request.method() == Method::OPTIONS && origin.is_some();
    let passed = state.gate.check(request.method(), request.uri(), request.headers());
    let mut response = match passed {
        Err(fault) => fault.response(dialect),
        Ok(()) if preflight => no_content(),
        Ok(()) => next.run(request).await,
    };
    state.meter.responded(response.status().as_u16());
    let headers = response.headers_mut();
    let identity = state.served.numbers.identity("req_");
    let identity = HeaderValue::from_str(&identity).expect("letters and digits");
    headers.insert("x-request-id", identity.clone());
    headers.insert("request-id", identity);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
    }
    if preflight {
        let methods = HeaderValue::from_static("GET, POST, OPTIONS");
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        let names = "authorization, content-type, x-api-key, anthropic-version, anthropic-beta";
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(names));
    }
    response
}

fn no_content() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// A JSON response.
pub fn respond_json(value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The response, or the fault in a dialect.
fn told(outcome: Result<Response<Body>, Fault>, dialect: Dialect) -> Response<Body> {
    outcome.unwrap_or_else(|fault| fault.response(dialect))
}

/// The body as JSON, read within its bounds.
async fn read_body(state: &ServerState, request: Request) -> Result<Value, Fault> {
    let most = state.limits.body_bytes_max;
    let too_large =
        || Fault::new(FaultKind::TooLarge, format!("the body is longer than {most} bytes"));
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > most as u64) {
        return Err(too_large());
    }
    let slow = |_| Fault::new(FaultKind::SlowBody, "the body didn't come in time");
    let bytes = timeout(state.limits.body_time, to_bytes(request.into_body(), most)).await;
    let bytes = bytes.map_err(slow)?.map_err(|error| {
        match std::error::Error::source(&error).map(ToString::to_string) {
            Some(source) if source.contains("length limit") => too_large(),
            _ => Fault::new(FaultKind::Invalid, "the body is cut off or badly framed"),
        }
    })?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Fault::new(FaultKind::Invalid, format!("the body is no JSON: {error}")))
}

/// Asks, and tells the answers as a stream or whole.
async fn answer<S: Shape>(
    state: &ServerState,
    question: Question,
    shape: S,
    stream: bool,
) -> Result<Response<Body>, Fault> {
    if state.ending.load(Ordering::Relaxed) {
        return Err(Fault::new(FaultKind::Ending, "this server is about to end"));
    }
    let deadline = state.limits.answer_time.map(|time| Instant::now() + time);
    let count = question.prompts.len() * question.choices as usize;
    let place = state.admission.admit(count)?;
    let begin = Answers::begin(state.served.clone(), question, place, state.meter.clone());
    let answers = begin.await?;
    if stream {
        return Ok(events::respond(answers, shape, &state.limits, deadline));
    }
    let whole = collect(answers);
    let (prompt_tokens, told) = match deadline {
        Some(deadline) => timeout_at(deadline, whole).await.map_err(|_| events::too_slow())??,
        None => whole.await?,
    };
    Ok(respond_json(&shape.whole(prompt_tokens, &told)))
}

/// Waits until all answers are complete.
async fn collect(mut answers: Answers) -> Result<(usize, Vec<Told>), Fault> {
    let mut texts = vec![String::new(); answers.count];
    let mut scores = vec![vec![]; answers.count];
    let mut calls = vec![vec![]; answers.count];
    let mut endings = vec![None; answers.count];
    while endings.iter().any(Option::is_none) {
        let broken = || Fault::new(FaultKind::Engine, "an answer ended without a word");
        let part = answers.next().await.ok_or_else(broken)?;
        match part.news {
            News::Text { text, scores: some } => {
                texts[part.choice as usize] += &text;
                scores[part.choice as usize].extend(some);
            }
            News::Call(call) => calls[part.choice as usize].push(call),
            News::End(ending) => endings[part.choice as usize] = Some(ending),
            News::Failed(fault) => return Err(fault),
        }
    }
    let told = texts.into_iter().zip(scores).zip(calls).zip(endings.into_iter().flatten());
    let told = told
        .map(|(((text, scores), calls), ending)| Told { text, scores, calls, ending })
        .collect();
    Ok((answers.prompt_tokens, told))
}

async fn chat(State(state): Shared, request: Request) -> Response<Body> {
    let outcome = async {
        let asked = ChatRequest::read(&read_body(&state, request).await?)?;
        state.served.check_name(asked.model.as_deref())?;
        let model = asked.model.unwrap_or_else(|| state.served.name().to_owned());
        let id = state.served.numbers.identity("chatcmpl-");
        let shape = ChatShape::new(id, seconds_now(), model, asked.telling.include_usage);
        answer(&state, asked.question, shape, asked.telling.stream).await
    };
    told(outcome.await, Dialect::OpenAi)
}

async fn complete(State(state): Shared, request: Request) -> Response<Body> {
    let outcome = async {
        let asked = CompletionRequest::read(&read_body(&state, request).await?)?;
        state.served.check_name(asked.model.as_deref())?;
        let model = asked.model.unwrap_or_else(|| state.served.name().to_owned());
        let id = state.served.numbers.identity("cmpl-");
        let shape = CompletionShape::new(id, seconds_now(), model, asked.telling.include_usage);
        answer(&state, asked.question, shape, asked.telling.stream).await
    };
    told(outcome.await, Dialect::OpenAi)
}

async fn message(State(state): Shared, request: Request) -> Response<Body> {
    let outcome = async {
        let asked = MessageRequest::read(&read_body(&state, request).await?, false)?;
        state.served.check_name(Some(&asked.model))?;
        let shape = MessageShape::new(state.served.numbers.identity("msg_"), asked.model);
        answer(&state, asked.question, shape, asked.stream).await
    };
    told(outcome.await, Dialect::Anthropic)
}

async fn count_tokens(State(state): Shared, request: Request) -> Response<Body> {
    let outcome = async {
        let asked = MessageRequest::read(&read_body(&state, request).await?, true)?;
        state.served.check_name(Some(&asked.model))?;
        // Tokenizing takes a place too, so that nobody can keep all threads busy with it.
        let place = state.admission.admit(1)?;
        let served = state.served.clone();
        let count = tokio::task::spawn_blocking(move || {
            let _place = place;
            served.ids(&asked.question.prompts[0]).map(|ids| ids.len())
        });
        let broken = |_| Fault::new(FaultKind::Engine, "a thread of the server died; see its log");
        Ok(respond_json(&json!({"input_tokens": count.await.map_err(broken)??})))
    };
    told(outcome.await, Dialect::Anthropic)
}

async fn list_models(State(state): Shared, request: Request) -> Response<Body> {
    let dialect = Dialect::of(request.uri(), request.headers());
    respond_json(&models::list(&state.served, dialect))
}

async fn one_model(
    State(state): Shared,
    Path(id): Path<String>,
    request: Request,
) -> Response<Body> {
    let dialect = Dialect::of(request.uri(), request.headers());
    let known = state.served.check_name(Some(&id));
    told(known.map(|()| respond_json(&models::one(&state.served, &id, dialect))), dialect)
}

async fn health(State(state): Shared) -> Response<Body> {
    let ending = state.ending.load(Ordering::Relaxed);
    let load = state.served.engine.load();
    let mut response = respond_json(&json!({
        "status": if ending { "ending" } else { "ok" },
        "model": state.served.name(),
        "version": env!("CARGO_PKG_VERSION"),
        "context": state.served.context(),
        "answers_at_once_max": state.admission.at_once(),
        "answers_running": load.running,
        "answers_waiting": load.waiting,
        "engine": state.served.engine.start_line,
        "warnings": state.served.engine.warnings,
    }));
    if ending {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

async fn metrics(State(state): Shared) -> Response<Body> {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    respond_text(metrics::page(&state), HeaderValue::from_static(kind))
}

/// The page has no part of another site, and says so to the browser.
async fn dashboard() -> Response<Body> {
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    let mut response = respond_text(include_str!("dashboard.html"), kind);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                  connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'";
    let policy = HeaderValue::from_static(policy);
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

fn respond_text(text: impl Into<Body>, kind: HeaderValue) -> Response<Body> {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

async fn nothing(uri: Uri, request: Request) -> Response<Body> {
    let path: String = uri.path().chars().take(200).collect();
    Fault::not_found(&path).response(Dialect::of(&uri, request.headers()))
}

async fn wrong_method(uri: Uri, request: Request) -> Response<Body> {
    let path: String = uri.path().chars().take(200).collect();
    let message = format!("{} isn't for {path}", request.method());
    Fault::new(FaultKind::Method, message).response(Dialect::of(&uri, request.headers()))
}
