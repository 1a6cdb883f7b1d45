//! Many at once: nobody's answer depends on the others, who vanishes leaves nothing behind, who is
//! slow holds up nobody, who comes too many is told to come back.

use crate::client::{connect, post, read_chunk, read_response, request_bytes};
use crate::openai::chat;
use crate::setup::{common, options, start, wait_until_idle};
use millstream::server::{ServerLimits, ServerOptions};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Beginnings of different lengths.
const BEGINNINGS: [&str; 8] = [
    "It is a truth universally acknowledged, that",
    "Call me",
    "It was the best of times, it was the worst of times, it was the age of wisdom,",
    "The",
    "In the beginning",
    "There was no possibility of taking a walk that day.",
    "Whether I shall turn out to be the hero of my own life, or whether that station will be held",
    "Marley was dead: to begin with.",
];

fn say(address: SocketAddr, beginning: &str) -> String {
    let body = post(address, "/v1/chat/completions", &chat(beginning, 40)).json();
    body["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned()
}

/// Begins a stream and gives the connection, behind the response's head.
fn begin_stream(address: SocketAddr, max_tokens: u32) -> BufReader<TcpStream> {
    let mut body = chat(BEGINNINGS[0], max_tokens);
    body["stream"] = json!(true);
    let mut stream = connect(address);
    let body = body.to_string();
    let bytes = request_bytes("POST", "/v1/chat/completions", &[], body.as_bytes());
    stream.write_all(&bytes).expect("sent");
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).expect("a status");
    assert!(line.contains(" 200 "), "{line}");
    while line.trim_end() != "" {
        line.clear();
        stream.read_line(&mut line).expect("a header");
    }
    stream
}

#[test]
fn eight_clients_at_once_get_what_each_gets_alone() {
    let alone: Vec<String> = BEGINNINGS.iter().map(|text| say(common(), text)).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            BEGINNINGS.iter().map(|text| scope.spawn(|| say(common(), text))).collect();
        threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
    });
    assert_eq!(together, alone);
    assert!(alone.iter().all(|text| !text.is_empty()));
}

#[test]
fn clients_that_vanish_leave_no_sequence_behind() {
    let server = start(4, &options());
    let address = server.address();
    for round in 0..5 {
        let streams: Vec<_> = (0..4)
            .map(|_| {
                let mut stream = begin_stream(address, 900);
                read_chunk(&mut stream).expect("the beginning");
                stream
            })
            .collect();
        assert_eq!(server.counts().0, 4, "round {round}");
        drop(streams);
        wait_until_idle(&server, Duration::from_secs(2));
    }
    // Also those that wait for their turn, and those that wait for a whole answer.
    let running: Vec<_> = (0..4).map(|_| begin_stream(address, 900)).collect();
    let mut waiting = connect(address);
    let body = chat("The", 900).to_string();
    let bytes = request_bytes("POST", "/v1/chat/completions", &[], body.as_bytes());
    waiting.write_all(&bytes).expect("sent");
    while server.counts() != (4, 1) {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(waiting);
    while server.counts() != (4, 0) {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(running);
    wait_until_idle(&server, Duration::from_secs(2));
    assert!(say(address, "The").len() > 5, "the server lives on");
}

#[test]
fn two_hundred_clients_that_vanish_are_all_forgotten() {
    let limits = ServerLimits { queue_max: 256, ..Default::default() };
    let server = start(8, &ServerOptions { limits, ..options() });
    let streams: Vec<_> = (0..200).map(|_| begin_stream(server.address(), 900)).collect();
    let (running, waiting) = server.counts();
    assert!(running == 8 && waiting > 100, "{running} {waiting}");
    drop(streams);
    wait_until_idle(&server, Duration::from_secs(5));
    assert_eq!(server.served().engine.load().running, 0);
    assert!(say(server.address(), "The").len() > 5, "the server lives on");
}

/// More is told than all buffers between the two can hold, and nothing of it is read.
#[test]
fn reader_that_takes_nothing_holds_up_nobody_and_is_given_up() {
    let limits = ServerLimits { write_time: Duration::from_millis(500), ..Default::default() };
    let server = start(8, &ServerOptions { limits, ..options() });
    let mut body = chat(BEGINNINGS[0], 900);
    (body["stream"], body["n"], body["top_logprobs"]) = (json!(true), json!(7), json!(20));
    body["logprobs"] = json!(true);
    let mut stuck = connect(server.address());
    let body = body.to_string();
    let bytes = request_bytes("POST", "/v1/chat/completions", &[], body.as_bytes());
    stuck.write_all(&bytes).expect("sent");
    let alone = say(server.address(), BEGINNINGS[1]);
    assert_eq!(alone, say(common(), BEGINNINGS[1]));
    wait_until_idle(&server, Duration::from_secs(120));
    std::thread::sleep(Duration::from_secs(2));
    let mut told = vec![];
    let ended = std::io::Read::read_to_end(&mut stuck, &mut told);
    assert!(told.len() > 100_000, "{} bytes", told.len());
    let whole = String::from_utf8_lossy(&told[told.len() - 100..]).contains("[DONE]");
    assert!(!whole, "it was given up: {ended:?}, {} bytes", told.len());
}

#[test]
fn full_queue_says_when_to_come_back() {
    let limits = ServerLimits { queue_max: 1, ..Default::default() };
    let server = start(1, &ServerOptions { limits, ..options() });
    let address = server.address();
    let running = begin_stream(address, 900);
    let waiting = begin_stream(address, 900);
    let refused = post(address, "/v1/chat/completions", &chat("The", 4));
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    assert!(refused.header("retry-after").unwrap().parse::<u32>().unwrap() > 0);
    let anthropic = json!({
        "model": "alias", "max_tokens": 4, "messages": [{"role": "user", "content": "The"}],
    });
    let refused = post(address, "/v1/messages", &anthropic);
    assert_eq!(
        (refused.status, refused.json()["error"]["type"].as_str()),
        (429, Some("rate_limit_error"))
    );
    drop((running, waiting));
    wait_until_idle(&server, Duration::from_secs(2));
    assert_eq!(post(address, "/v1/chat/completions", &chat("The", 4)).status, 200);
}

#[test]
fn answer_that_takes_too_long_is_ended_whole_or_streamed() {
    let limits =
        ServerLimits { answer_time: Some(Duration::from_millis(30)), ..Default::default() };
    let server = start(1, &ServerOptions { limits, ..options() });
    let whole = post(server.address(), "/v1/chat/completions", &chat("The", 1000));
    assert_eq!(whole.status, 504, "{}", whole.text());
    let mut request = chat("The", 1000);
    request["stream"] = json!(true);
    let chunks = post(server.address(), "/v1/chat/completions", &request).chunks();
    assert_eq!(chunks.last().unwrap()["error"]["code"], "timeout", "{chunks:?}");
    wait_until_idle(&server, Duration::from_secs(2));
}

#[test]
fn connection_is_kept_for_several_requests() {
    let mut stream = BufReader::new(connect(common()));
    for _ in 0..3 {
        let bytes = request_bytes("GET", "/v1/models", &[], b"");
        stream.get_mut().write_all(&bytes).expect("sent");
        assert_eq!(read_response(&mut stream).expect("a response").status, 200);
    }
}
