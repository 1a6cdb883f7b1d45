//! The end: responses under way are finished within their bound, then cut; the command by signals.

use crate::client::{connect, post, read_response, request_bytes};
use crate::openai::chat;
use crate::setup::{options, start};
use millstream::server::Drained;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Asks for an answer and gives the connection.
fn ask(address: SocketAddr, max_tokens: u32) -> BufReader<std::net::TcpStream> {
    let mut stream = connect(address);
    let body = chat("The", max_tokens).to_string();
    let bytes = request_bytes("POST", "/v1/chat/completions", &[], body.as_bytes());
    stream.write_all(&bytes).expect("sent");
    BufReader::new(stream)
}

#[test]
fn drain_finishes_what_is_under_way() {
    let server = start(1, &options());
    let address = server.address();
    let mut stream = ask(address, 100);
    while server.counts().0 == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(server.drain(Duration::from_secs(60)), Drained::Whole);
    let response = read_response(&mut stream).expect("the whole response");
    assert_eq!(response.json()["usage"]["completion_tokens"], 100);
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn drain_cuts_when_time_is_up() {
    let server = start(1, &options());
    let mut stream = ask(server.address(), 1000);
    while server.counts().0 == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(server.drain(Duration::from_millis(10)), Drained::Cut);
    assert!(read_response(&mut stream).is_none(), "cut off without a word");
}

/// `millstream serve` on a free port, and where it listens.
fn serve(arguments: &[&str], cache: &std::path::Path) -> (Child, SocketAddr) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.env_clear().env("MILLSTREAM_LEARN", "off").env("XDG_CACHE_HOME", cache);
    command.args(["serve", "--port", "0", "--context", "2048"]).args(arguments);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    for line in lines {
        let line = line.expect("a line");
        if let Some((_, rest)) = line.split_once("http://") {
            let address = rest.trim_end_matches("/v1").parse().expect("an address");
            return (child, address);
        }
    }
    panic!("it ended without listening: {:?}", child.wait());
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([name, &pid]).status().expect("kill").success());
}

#[test]
fn first_signal_drains_and_the_second_ends_at_once() {
    let cache = tempfile::tempdir().expect("a temporary directory");
    let (mut child, address) = serve(&["--alias", "gpt-4o", "--drain-seconds", "60"], cache.path());
    let mut body = chat("The", 3);
    body["model"] = "gpt-4o".into();
    assert_eq!(post(address, "/v1/chat/completions", &body).status, 200);
    let mut stream = ask(address, 40);
    std::thread::sleep(Duration::from_millis(20));
    signal(&child, "-TERM");
    let response = read_response(&mut stream).expect("the whole response");
    assert_eq!(response.json()["usage"]["completion_tokens"], 40);
    assert!(child.wait().expect("it ends").success());

    let (mut child, address) = serve(&["--drain-seconds", "600"], cache.path());
    let stream = ask(address, 2000);
    std::thread::sleep(Duration::from_millis(50));
    signal(&child, "-TERM");
    std::thread::sleep(Duration::from_millis(50));
    signal(&child, "-INT");
    let begun = Instant::now();
    assert!(child.wait().expect("it ends").success());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(stream);
}

#[test]
fn idle_connections_do_not_hold_up_the_end() {
    let server = start(1, &options());
    let unused = connect(server.address());
    let mut kept = BufReader::new(connect(server.address()));
    kept.get_mut().write_all(&request_bytes("GET", "/health", &[], b"")).expect("sent");
    assert_eq!(read_response(&mut kept).expect("a response").status, 200);
    let begun = Instant::now();
    assert_eq!(server.drain(Duration::from_secs(20)), Drained::Whole);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(unused);
}
