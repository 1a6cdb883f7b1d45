//! Every way to read gives the same answers; copies, faults and refusals.

use crate::convert::{convert, keep};
use crate::support::data;
use millstream::checkpoint::pack::{PackChecks, PackFiles};
use millstream::engine::{
    DirectChoice, Engine, EngineError, IoChoice, Model, Options, ReadOptions, ReaderMaker, Request,
};
use millstream_stages::simulation::{FaultInjector, InjectedFaults};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn snapshot() -> PathBuf {
    data().join("tiny/glm-dsa")
}

/// A pack of the small model.
fn pack(room: &Path) -> PathBuf {
    let place = room.join("pack");
    convert(&snapshot(), &place, &keep());
    place
}

fn request() -> Request {
    Request { keep_logits: true, ..Request::greedy(vec![5, 17, 9, 200, 31], 12) }
}

/// Few slots: nearly every expert is read.
fn options(reads: ReadOptions) -> Options {
    Options { experts_per_layer: Some(4), threads: Some(2), reads, ..Options::default() }
}

fn answer(engine: &Engine) -> (Vec<u32>, Vec<u32>) {
    let answer = engine.generate(&request(), &mut |_| ControlFlow::Continue(())).expect("it runs");
    assert!(answer.statistics.expert_misses > 50, "experts are read");
    let logits = answer.logits.expect("kept");
    (answer.answer_ids, logits.into_iter().map(f32::to_bits).collect())
}

/// Every combination that this system allows.
fn every_choice() -> Vec<ReadOptions> {
    let mut choices = vec![];
    for io in [IoChoice::Auto, IoChoice::Uring, IoChoice::Pread] {
        for direct in [DirectChoice::Auto, DirectChoice::On, DirectChoice::Off] {
            for io_depth in [1, 8] {
                choices.push(ReadOptions { io, direct, io_depth, ..ReadOptions::default() });
            }
        }
    }
    choices
}

#[test]
fn every_reader_gives_the_same_answer() {
    let room = tempfile::tempdir().expect("a temporary directory");
    let resident = Options { threads: Some(2), ..Options::default() };
    let engine =
        Engine::start(Model::open(&snapshot()).expect("opens"), &resident).expect("starts");
    let whole = engine.generate(&request(), &mut |_| ControlFlow::Continue(())).expect("it runs");
    let expected: Vec<u32> = whole.logits.expect("kept").into_iter().map(f32::to_bits).collect();
    let mut run = 0;
    for directory in [snapshot(), pack(room.path())] {
        for reads in every_choice() {
            let model = Model::open(&directory).expect("opens");
            let engine = match Engine::start(model, &options(reads.clone())) {
                Ok(engine) => engine,
                Err(EngineError::Reads(error)) => {
                    crate::support::say(&format!("not to be had here: {error}"));
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            run += 1;
            let (ids, logits) = answer(&engine);
            assert_eq!(ids, whole.answer_ids, "{reads:?}");
            assert!(logits == expected, "{reads:?}");
            let how = if reads.direct == DirectChoice::Off { "buffered" } else { "direct" };
            let line = &engine.start_line;
            assert!(line.contains("; io ") && line.contains(how), "{reads:?}: {line}");
        }
    }
    assert!(run >= 8, "only {run} combinations could be had");
}

/// Wraps the reader that a model would have.
fn with_faults(model: &mut Model, faults: InjectedFaults, is_light: bool) {
    let refuse: ReaderMaker = Box::new(|_| unreachable!("replaced below"));
    let inner = std::mem::replace(&mut model.reader, refuse);
    model.reader = Box::new(move |options| {
        let mut opened = inner(options)?;
        opened.reader = Box::new(FaultInjector::new(opened.reader, faults));
        opened.is_light = is_light;
        Ok(opened)
    });
}

const CALM: InjectedFaults = InjectedFaults {
    failing: 0.0,
    ending: 0.0,
    slow: 0.0,
    delay: Duration::from_millis(5),
    seed: 1,
};

#[test]
fn late_reads_change_no_byte_also_on_the_leading_thread() {
    let room = tempfile::tempdir().expect("a temporary directory");
    let place = pack(room.path());
    // Without alignment the small pack's experts go straight into their slots.
    let reads = ReadOptions { direct: DirectChoice::Off, ..ReadOptions::default() };
    let start = |faults, is_light| {
        let mut model = Model::open(&place).expect("opens");
        with_faults(&mut model, faults, is_light);
        Engine::start(model, &options(reads.clone())).expect("it starts")
    };
    let clean = answer(&start(CALM, false));
    for is_light in [false, true] {
        let engine = start(InjectedFaults { slow: 0.05, ..CALM }, is_light);
        let crowded = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() <= 2);
        let led = engine.start_line.contains("on the leading thread");
        assert!(led == is_light || !crowded, "{}", engine.start_line);
        assert!(answer(&engine) == clean, "light {is_light}");
    }
}

#[test]
fn failing_reads_end_their_sequences_with_the_place_and_no_others() {
    let clean = {
        let model = Model::open(&snapshot()).expect("opens");
        answer(&Engine::start(model, &options(ReadOptions::default())).expect("starts"))
    };
    let (mut good, mut bad) = (0, 0);
    for seed in 0..6 {
        let faults = InjectedFaults { failing: 0.002, ending: 0.002, slow: 0.002, seed, ..CALM };
        let mut model = Model::open(&snapshot()).expect("opens");
        with_faults(&mut model, faults, false);
        let options = Options { sequences_max: 3, waves_max: 2, ..options(ReadOptions::default()) };
        let engine = Engine::start(model, &options).expect("starts");
        let requests = [(); 6].map(|()| request());
        for outcome in engine.generate_all(&requests).expect("they can be met") {
            match outcome {
                Ok(answer) => {
                    let logits = answer.logits.expect("kept").into_iter().map(f32::to_bits);
                    assert!(answer.answer_ids == clean.0 && logits.eq(clean.1.iter().copied()));
                    good += 1;
                }
                Err(EngineError::Read { fault }) => {
                    let text = fault.to_string();
                    for word in ["layer", "expert", "bytes at offset", "model-0", ".safetensors"] {
                        assert!(text.contains(word), "{word}: {text}");
                    }
                    let said = text.contains("check the drive") || text.contains("truncated");
                    assert!(said, "{text}");
                    bad += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    println!("{good} sequences were answered, {bad} failed");
    assert!(good > 0 && bad > 0, "{good} were answered, {bad} failed");
}

/// A copy of a model's files.
fn copy(from: &Path, into: &Path) {
    std::fs::create_dir(into).expect("created");
    for entry in std::fs::read_dir(from).expect("the model's directory") {
        let entry = entry.expect("a directory entry");
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            std::fs::copy(entry.path(), into.join(entry.file_name())).expect("copied");
        }
    }
}

fn mirrored(directory: &Path, mirror: &Path) -> Result<Engine, EngineError> {
    let reads = ReadOptions { mirror: Some(mirror.to_path_buf()), ..ReadOptions::default() };
    Engine::start(Model::open(directory).expect("opens"), &options(reads))
}

#[test]
fn a_mirror_serves_what_the_original_has_lost() {
    let room = tempfile::tempdir().expect("a temporary directory");
    let (first, second) = (room.path().join("first"), room.path().join("second"));
    copy(&snapshot(), &first);
    copy(&snapshot(), &second);
    let engine = mirrored(&first, &second).expect("it starts");
    assert!(engine.start_line.contains("mirrored"), "{}", engine.start_line);
    let clean = answer(&engine);
    let shards: Vec<_> = std::fs::read_dir(&first).expect("listed").flatten().collect();
    for entry in shards.iter().filter(|e| e.file_name().to_string_lossy().contains("-of-")) {
        let file = std::fs::OpenOptions::new().write(true).open(entry.path()).expect("opened");
        file.set_len(4096).expect("truncated");
    }
    assert!(answer(&engine) == clean, "every expert came from the mirror");
}

#[test]
fn a_mirror_serves_what_is_damaged_in_the_original() {
    let room = tempfile::tempdir().expect("a temporary directory");
    let (first, second) = (pack(room.path()), room.path().join("second"));
    copy(&first, &second);
    let layouts = PackFiles::open(&first, PackChecks::default()).expect("opens");
    for layout in layouts.layouts().filter(|layout| layout.name.starts_with("experts")) {
        let path = first.join(&layout.name);
        let mut bytes = std::fs::read(&path).expect("read");
        layout.tensors.iter().for_each(|tensor| bytes[tensor.offset as usize + 5] ^= 1);
        std::fs::write(path, bytes).expect("damaged");
    }
    let start = |mirror: Option<PathBuf>| {
        let checks = PackChecks { resident: true, experts: true };
        let model = Model::open_with(&first, checks).expect("headers are whole");
        let reads = ReadOptions { mirror, ..ReadOptions::default() };
        Engine::start(model, &options(reads)).expect("it starts")
    };
    let clean = answer(&mirrored(&second, &second).expect("it starts"));
    assert!(answer(&start(Some(second))) == clean, "damaged experts came from the mirror");
    let outcome = start(None).generate(&request(), &mut |_| ControlFlow::Continue(()));
    let Err(error) = outcome else { panic!("damaged experts were taken") };
    assert!(error.to_string().contains("aren't the ones that were written"), "{error}");
}

#[test]
fn a_mirror_that_is_no_copy_is_refused_by_name() {
    let room = tempfile::tempdir().expect("a temporary directory");
    for (directory, file) in
        [(snapshot(), "model-00003-of-00003.safetensors"), (pack(room.path()), "millstream.json")]
    {
        let mirror = tempfile::tempdir().expect("a temporary directory");
        let place = mirror.path().join("copy");
        copy(&directory, &place);
        assert!(mirrored(&directory, &place).is_ok(), "a true copy");
        let path = place.join(file);
        let mut bytes = std::fs::read(&path).expect("read");
        bytes[20] ^= 1;
        std::fs::write(&path, &bytes).expect("damaged");
        let refused = |what: &str| match mirrored(&directory, &place) {
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("--mirror") && text.contains(file), "{text}");
                assert!(text.contains(what), "{text}");
            }
            Ok(_) => panic!("{what}: taken"),
        };
        refused("differs at byte 20");
        std::fs::write(&path, &bytes[..bytes.len() - 1]).expect("cut");
        refused("bytes, not");
        std::fs::remove_file(&path).expect("removed");
        refused("copy the model's files there");
    }
}
