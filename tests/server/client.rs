//! A client that speaks raw HTTP, so that tests see the bytes: framing, headers, events.

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A response that doesn't come in this time is a hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// A response.
#[derive(Debug)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
}

impl Response {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The events of a stream: name (empty if it has none) and data.
    pub fn events(&self) -> Vec<(String, String)> {
        assert_eq!(self.status, 200, "{}", self.text());
        let kind = self.header("content-type").expect("a content type");
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        events(self.text())
    }

    /// The objects of an OpenAI stream, which ends with `[DONE]`.
    pub fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().expect("events").1, "[DONE]");
        events.iter().map(|event| serde_json::from_str(&event.1).expect("JSON")).collect()
    }
}

/// Events of a text; comments are passed over.
pub fn events(text: &str) -> Vec<(String, String)> {
    let mut events = vec![];
    for block in text.split("\n\n").filter(|block| !block.is_empty()) {
        let (mut name, mut data) = (String::new(), None);
        for line in block.lines().filter(|line| !line.starts_with(':')) {
            match line.split_once(": ") {
                Some(("event", rest)) => name = rest.to_owned(),
                Some(("data", rest)) => data = Some(rest.to_owned()),
                _ => panic!("a line that is no field: {line:?}"),
            }
        }
        events.extend(data.map(|data| (name, data)));
    }
    events
}

/// Connects.
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream.set_write_timeout(Some(PATIENCE)).expect("set");
    stream
}

/// The bytes of a request.
pub fn request_bytes(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\n");
    if !headers.iter().any(|header| header.0 == "host") {
        text += "host: localhost\r\n";
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("content-length: {}\r\n\r\n", body.len());
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Sends a request on a connection of its own and reads the response.
pub fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response {
    let mut stream = connect(address);
    // A server that refuses early may close before it has read everything.
    let _ = stream.write_all(&request_bytes(method, path, headers, body));
    read_response(&mut BufReader::new(stream)).expect("a response")
}

/// Asks for something.
pub fn get(address: SocketAddr, path: &str) -> Response {
    send(address, "GET", path, &[], b"")
}

/// Posts JSON.
pub fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    let kind = [("content-type", "application/json")];
    send(address, "POST", path, &kind, body.to_string().as_bytes())
}

/// Reads one response; none if the server closed before there was any.
pub fn read_response(stream: &mut impl BufRead) -> Option<Response> {
    let mut line = String::new();
    if stream.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("a status line: {line:?}"));
    let mut headers = vec![];
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).expect("a header");
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let mut response = Response { status, headers, body: vec![] };
    if response.header("transfer-encoding") == Some("chunked") {
        while let Some(chunk) = read_chunk(stream) {
            response.body.extend(chunk);
        }
    } else if let Some(length) = response.header("content-length") {
        response.body = vec![0; length.parse().expect("a length")];
        stream.read_exact(&mut response.body).expect("the body");
    }
    Some(response)
}

/// One chunk of a chunked body; none at its end.
pub fn read_chunk(stream: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    stream.read_line(&mut line).expect("a chunk's length");
    let length = usize::from_str_radix(line.trim_end(), 16).expect("a length in hex");
    let mut chunk = vec![0; length + 2];
    stream.read_exact(&mut chunk).expect("a chunk");
    chunk.truncate(length);
    (length > 0).then_some(chunk)
}
