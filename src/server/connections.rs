//! Connections: accepted up to their bound, spoken to in HTTP/1.1, ended in good order.
//!
//! Each has a task of its own. Its head must come in time, its reader must take bytes in time, and
//! while the server ends, idle connections close and busy ones finish their response.

use super::limits::{HEAD_BYTES_MAX, HEADERS_MAX, ServerLimits};
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_io_timeout::TimeoutStream;

/// How long to wait when the system gives no connection (no file descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts until it is told to end, then waits for the connections that are busy.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ServerLimits,
    mut end: watch::Receiver<bool>,
) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(limits.connections_max));
    loop {
        let place = places.clone().acquire_owned().await.expect("never closed");
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            // Told once, or by whoever told it being gone.
            _ = end.changed() => break,
        };
        // Tokens are small and urgent. A connection that is gone already fails when it is read.
        let _ = stream.set_nodelay(true);
        let connection = builder(&limits).serve_connection(
            TokioIo::new(timed(stream, limits.write_time)),
            TowerToHyperService::new(router.clone()),
        );
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // A caller that breaks the rules or goes away ends its connection and nothing else.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

fn builder(limits: &ServerLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .half_close(false);
    builder
}

/// A stream whose writes fail when nobody reads for too long.
fn timed(stream: TcpStream, write_time: Duration) -> std::pin::Pin<Box<TimeoutStream<TcpStream>>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(write_time));
    Box::pin(stream)
}
