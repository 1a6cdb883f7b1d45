//! Servers for the tests: in this process, on free ports, with the embedded model.

use millstream::embedded;
use millstream::engine::{Engine, Model, Options};
use millstream::server::{Numbers, Served, Server, ServerLimits, ServerOptions, seconds_now};
use millstream::text::{ChatTemplate, SamplingAdvice, Tokenizer, stop_ids};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The embedded model's directory, unpacked once.
static MODEL: LazyLock<(tempfile::TempDir, std::path::PathBuf)> = LazyLock::new(|| {
    let cache = tempfile::tempdir().expect("a temporary directory");
    let unpacked = embedded::unpack(Some(cache.path())).expect("it unpacks");
    (cache, unpacked.directory)
});

/// One server for all tests that need nothing special of it.
static COMMON: LazyLock<Server> = LazyLock::new(|| start(8, &options()));

/// Where the common server listens.
pub fn common() -> SocketAddr {
    COMMON.address()
}

/// Options as a user gets them.
pub fn options() -> ServerOptions {
    ServerOptions {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        api_key: None,
        allow_hosts: vec![],
        allow_origins: vec![],
        limits: ServerLimits::default(),
    }
}

/// A server of the embedded model that makes so many answers at once.
pub fn start(sequences: usize, options: &ServerOptions) -> Server {
    Server::start(embedded_model(sequences), options).expect("it starts")
}

/// The embedded model, ready to be served.
pub fn embedded_model(sequences: usize) -> Served {
    served(&MODEL.1, ChatTemplate::paragraphs(), sequences, 1024)
}

/// A server whose answers are short, whatever is asked.
pub fn start_short(sequences: usize, options: &ServerOptions) -> Server {
    let served = served(&MODEL.1, ChatTemplate::paragraphs(), sequences, 64);
    Server::start(served, options).expect("it starts")
}

/// A reference model with its own chat template.
pub fn tiny_model(name: &str) -> Served {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny").join(name);
    let template = ChatTemplate::open(&directory).expect("good").expect("it has one");
    served(&directory, template, 2, 1024)
}

fn served(directory: &Path, template: ChatTemplate, sequences: usize, context: usize) -> Served {
    let options = Options {
        sequences_max: sequences,
        logits_rows_max: sequences.max(16),
        context: Some(context),
        ..Options::default().serving()
    };
    let model = Model::open(directory).expect("it opens");
    let tokenizer = Tokenizer::open(directory).expect("good").expect("it has one");
    let stop_ids = stop_ids(directory, Some(&tokenizer)).expect("good");
    Served {
        engine: Engine::start(model, &options).expect("it starts"),
        tokenizer,
        template: Some(template),
        stop_ids,
        advice: SamplingAdvice::default(),
        names: vec![embedded::NAME.to_owned(), "alias".to_owned()],
        created: seconds_now(),
        numbers: Numbers::default(),
    }
}

/// Waits until no answer is under way.
pub fn wait_until_idle(server: &Server, bound: Duration) {
    let begun = Instant::now();
    while server.counts() != (0, 0) {
        assert!(begun.elapsed() < bound, "still under way: {:?}", server.counts());
        std::thread::sleep(Duration::from_millis(5));
    }
}
