//! Conversion: same bytes however it is run and however often it is stopped; what it refuses.

use crate::support::data;
use millstream::checkpoint::pack::{Finding, check_deep};
use millstream::convert::{Conversion, ConvertError, Event, Nobody, Observer, Options};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The smallest of the models: few events, so that each can be the last.
pub fn tiny() -> PathBuf {
    data().join("tiny/glm-dsa-grp-tied-f32")
}

/// Converts, to the end.
pub fn convert(source: &Path, destination: &Path, options: &Options) {
    let conversion = Conversion::prepare(source, destination, options).expect("planned");
    conversion.run(&Nobody).expect("converted");
}

/// Options in the words of the command line: pairs of flag and value.
pub fn options(words: &[(&str, &str)]) -> Options {
    let mut options = Options::default();
    for (flag, value) in words {
        let bits = || Some(value.parse().expect("bits"));
        match *flag {
            "experts" => options.experts = value.parse().expect("a format"),
            "dense" => options.dense = value.parse().expect("a format"),
            "io" => options.io = value.parse().expect("a format"),
            "mtp" => options.mtp = value.parse().expect("a format"),
            "gate-bits" => options.gate_bits = bits(),
            "up-bits" => options.up_bits = bits(),
            "down-bits" => options.down_bits = bits(),
            "scales" => options.scales = Some(value.parse().expect("a type")),
            other => panic!("no flag {other}"),
        }
    }
    options
}

/// All that the source has, as it is.
pub fn keep() -> Options {
    options(&[("experts", "keep"), ("dense", "keep"), ("io", "keep"), ("mtp", "keep")])
}

/// A directory of its own, in memory where the system has such a place: conversions sync every
/// file, and these tests run hundreds of them.
fn quick_room() -> tempfile::TempDir {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    in_memory.or_else(|_| tempfile::tempdir()).expect("a temporary directory")
}

/// Every file of a directory.
pub fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let file = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().expect("a UTF-8 name");
        (name, std::fs::read(entry.path()).expect("a file"))
    };
    entries.map(|entry| file(entry.expect("an entry"))).collect()
}

fn assert_same(expected: &BTreeMap<String, Vec<u8>>, directory: &Path, what: &str) {
    let found = contents(directory);
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(expected), "{what}");
    for (name, bytes) in &found {
        assert!(*bytes == expected[name], "{what}: {name} has other bytes");
    }
}

/// Findings of the deep check.
pub fn deep(directory: &Path) -> Vec<Finding> {
    check_deep(directory, &|_| {})
}

/// Stops before the event of this number.
struct StopAt {
    number: usize,
    seen: AtomicUsize,
}

impl StopAt {
    fn new(number: usize) -> StopAt {
        StopAt { number, seen: AtomicUsize::new(0) }
    }
}

impl Observer for StopAt {
    fn event(&self, event: Event<'_>) -> ControlFlow<()> {
        let before = matches!(
            event,
            Event::Begin { .. } | Event::Write { .. } | Event::Sync | Event::Rename { .. }
        );
        let number = if before { self.seen.fetch_add(1, Ordering::Relaxed) } else { 0 };
        if before && number >= self.number {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

#[test]
fn stopped_before_any_event_and_resumed_gives_the_same_bytes() {
    let rooms = quick_room();
    let whole = rooms.path().join("whole");
    let everything = StopAt::new(usize::MAX);
    let options = options(&[("experts", "int3"), ("scales", "f16")]);
    Conversion::prepare(&tiny(), &whole, &options)
        .expect("planned")
        .run(&everything)
        .expect("converted");
    let events = everything.seen.into_inner();
    let expected = contents(&whole);
    println!("{events} events, {} files", expected.len());
    assert!(events > 150);
    for number in 0..events {
        let place = rooms.path().join("stopped");
        let stopped = Conversion::prepare(&tiny(), &place, &options).expect("planned");
        let outcome = stopped.run(&StopAt::new(number));
        assert!(matches!(outcome, Err(ConvertError::Stopped)), "event {number}: {outcome:?}");
        if place.join("millstream.json").exists() {
            let findings = deep(&place);
            assert!(findings[0].to_string().contains("isn't finished"), "{}", findings[0]);
        }
        convert(&tiny(), &place, &options);
        assert_same(&expected, &place, &format!("stopped before event {number}"));
        std::fs::remove_dir_all(&place).expect("removed");
    }
}

#[test]
fn stopped_again_and_again_it_still_comes_to_the_same_end() {
    let rooms = quick_room();
    let (whole, place) = (rooms.path().join("whole"), rooms.path().join("stopped"));
    convert(&tiny(), &whole, &Options::default());
    for runs in 0.. {
        assert!(runs < 200, "it never ends");
        let conversion =
            Conversion::prepare(&tiny(), &place, &Options::default()).expect("planned");
        // Each run gets as far as one more of its files, and not to its end.
        match conversion.run(&StopAt::new(10 + 3 * runs)) {
            Ok(_) => break,
            Err(ConvertError::Stopped) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_same(&contents(&whole), &place, "stopped many times");
}

#[test]
fn finished_files_that_were_damaged_since_are_made_again() {
    let rooms = quick_room();
    let (whole, place) = (rooms.path().join("whole"), rooms.path().join("stopped"));
    convert(&tiny(), &whole, &Options::default());
    let expected = contents(&whole);
    let (config, resident) = (place.join("config.json"), place.join("resident.safetensors"));
    for damage in [
        &|| std::fs::remove_file(&config).expect("removed") as (),
        &|| std::fs::write(&config, "{}").expect("written"),
        &|| std::fs::remove_file(&resident).expect("removed"),
        &|| {
            let bytes = std::fs::read(&resident).expect("read");
            std::fs::write(&resident, &bytes[..bytes.len() - 1]).expect("written");
        },
        &|| {
            let mut bytes = std::fs::read(&resident).expect("read");
            *bytes.last_mut().expect("not empty") ^= 1;
            std::fs::write(&resident, bytes).expect("written");
        },
    ] as [&dyn Fn(); 5]
    {
        let conversion = Conversion::prepare(&tiny(), &place, &Options::default());
        assert!(conversion.expect("planned").run(&StopAt::new(170)).is_err());
        assert!(resident.exists(), "it is finished");
        damage();
        convert(&tiny(), &place, &Options::default());
        assert_same(&expected, &place, "damaged and made again");
        std::fs::remove_dir_all(&place).expect("removed");
    }
}

/// The command, in an environment without surprises.
fn command(source: &Path, destination: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
    command.env_clear().arg("convert").args([source, destination]).args(flags);
    command
}

/// Runs the command; exit code, stdout, stderr.
fn run(source: &Path, destination: &Path, flags: &[&str]) -> (Option<i32>, String, String) {
    let output = command(source, destination, flags).output().expect("the command starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn killed_at_random_moments_and_resumed_gives_the_same_bytes() {
    const KILLS: usize = 50;
    let source = data().join("tiny/glm-dsa");
    let rooms = quick_room();
    let whole = rooms.path().join("whole");
    let begin = Instant::now();
    assert_eq!(run(&source, &whole, &[]).0, Some(0));
    let span = begin.elapsed();
    let expected = contents(&whole);
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: u128| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u128::from(seed >> 33) % below.max(1)
    };
    let (mut kills, mut begun, mut place) = (0, 0, rooms.path().join("0"));
    while kills < KILLS {
        let mut child = command(&source, &place, &[])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command starts");
        let wait = Duration::from_micros(random(span.as_micros()) as u64);
        std::thread::sleep(wait);
        child.kill().expect("killed");
        let code = child.wait().expect("its end").code();
        match code {
            None => kills += 1,
            Some(code) => assert_eq!(code, 0, "it came to its end before the kill"),
        }
        begun += usize::from(place.join("millstream.json").exists());
        // Some are killed twice or more before they come to their end.
        if random(3) > 0 {
            let (code, _, err) = run(&source, &place, &[]);
            assert_eq!(code, Some(0), "{err}");
            assert_same(&expected, &place, &format!("after {kills} kills"));
            std::fs::remove_dir_all(&place).expect("removed");
            place = rooms.path().join(kills.to_string());
        }
    }
    println!("{KILLS} kills within {span:?}, {begun} after the first manifest");
    assert!(begun > KILLS / 4, "most kills came before anything was written");
}

#[test]
fn bytes_do_not_depend_on_the_threads() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    let source = data().join("tiny/glm-dsa-fp8");
    let mut expected = None;
    for threads in [1, 2, 7] {
        let place = rooms.path().join(threads.to_string());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        pool.install(|| convert(&source, &place, &Options::default()));
        let first = expected.get_or_insert_with(|| contents(&place));
        assert_same(first, &place, &format!("{threads} threads"));
    }
}

#[test]
fn other_parameters_or_another_source_are_refused_by_name() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    let place = rooms.path().join("begun");
    let begun = options(&[("experts", "int4"), ("up-bits", "3")]);
    let conversion = Conversion::prepare(&tiny(), &place, &begun).expect("planned");
    assert!(conversion.run(&StopAt::new(100)).is_err());
    let before = contents(&place);
    let refused = |source: &Path, words: &[(&str, &str)], named: &[&str]| {
        let outcome = Conversion::prepare(source, &place, &options(words));
        let error = outcome.err().expect("refused").to_string();
        for name in named {
            assert!(error.contains(name), "{name} is not in: {error}");
        }
    };
    refused(
        &tiny(),
        &[("experts", "int8"), ("up-bits", "3")],
        &["--experts", "int4-g64", "int8-row"],
    );
    refused(&tiny(), &[("experts", "int4")], &["--up-bits", "then 3, now not given"]);
    let more = [("experts", "int4"), ("up-bits", "3")];
    for (flag, value) in [
        ("dense", "keep"),
        ("io", "bf16"),
        ("mtp", "int8"),
        ("gate-bits", "8"),
        ("down-bits", "2"),
        ("scales", "f16"),
    ] {
        let words: Vec<(&str, &str)> = more.into_iter().chain([(flag, value)]).collect();
        refused(&tiny(), &words, &[&format!("--{flag}"), value.trim_end_matches("int8")]);
    }
    refused(&data().join("tiny/glm-dsa"), &more, &["the source", "glm-dsa"]);
    assert_eq!(contents(&place), before, "a refusal changes nothing");
    convert(&tiny(), &place, &begun);
    // The complete pack is refused in the same words, and left alone by the same arguments.
    refused(&tiny(), &[("experts", "int4")], &["--up-bits"]);
    let again = Conversion::prepare(&tiny(), &place, &begun).expect("planned").run(&Nobody);
    assert!(again.expect("nothing to do").was_complete);
    assert_eq!(deep(&place), []);
}

#[test]
fn only_its_own_directory_is_written_into() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    let refused = |place: &Path| {
        let outcome = Conversion::prepare(&tiny(), place, &Options::default());
        outcome.err().expect("refused").to_string()
    };
    let file = rooms.path().join("file");
    std::fs::write(&file, "mine").expect("written");
    assert!(refused(&file).contains("name another"), "{}", refused(&file));
    let other = rooms.path().join("other");
    std::fs::create_dir(&other).expect("made");
    std::fs::write(other.join("letter.txt"), "mine").expect("written");
    assert!(refused(&other).contains("letter.txt"), "{}", refused(&other));
    // Into the source itself: the same words.
    assert!(refused(&tiny()).contains("it holds"), "{}", refused(&tiny()));
    let damaged = rooms.path().join("damaged");
    std::fs::create_dir(&damaged).expect("made");
    std::fs::write(damaged.join("millstream.json"), "{}").expect("written");
    assert!(refused(&damaged).contains("millstream.json"), "{}", refused(&damaged));
    // Another process that is at it.
    let busy = rooms.path().join("busy");
    let conversion = Conversion::prepare(&tiny(), &busy, &Options::default()).expect("planned");
    std::fs::create_dir(&busy).expect("made");
    let lock = std::fs::File::open(&busy).expect("opened");
    lock.lock().expect("locked");
    let error = conversion.run(&Nobody).expect_err("busy");
    assert!(matches!(error, ConvertError::Busy { .. }), "{error}");
    drop(lock);
    conversion.run(&Nobody).expect("free now");
    // A pack is no source.
    let error = Conversion::prepare(&busy, &rooms.path().join("x"), &Options::default()).err();
    let error = error.expect("refused").to_string();
    assert!(error.contains("a pack already") && error.contains("glm-dsa-grp-tied-f32"), "{error}");
}

#[test]
fn dry_run_shows_the_plan_and_writes_nothing() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    let place = rooms.path().join("a/b");
    let source = data().join("tiny/glm-dsa");
    let (code, out, err) =
        run(&source, &place, &["--dry-run", "--experts", "int4-row", "--mtp", "int4"]);
    assert_eq!(code, Some(0), "{err}");
    for word in ["experts", "dense", "io", "mtp", "kept", "int4-row", "in all"] {
        assert!(out.contains(word), "{word} is not in:\n{out}");
    }
    assert!(err.contains("incoherent") && err.contains("eh_proj"), "{err}");
    assert!(!rooms.path().join("a").exists(), "nothing is written");
    let (code, _, err) = run(&source, &place, &["--experts", "int5"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("int5") && err.contains("int3-g64"), "{err}");
    let (code, _, err) = run(&source, rooms.path(), &[]);
    assert_eq!(
        (code, err.contains("warning")),
        (Some(0), false),
        "an empty directory will do: {err}"
    );
    let (code, _, err) = run(&source, rooms.path(), &["--io", "keep"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("--io"), "{err}");
}

#[test]
fn weights_that_are_no_numbers_are_refused_by_name() {
    let rooms = tempfile::tempdir().expect("a temporary directory");
    let source = rooms.path().join("source");
    std::fs::create_dir(&source).expect("made");
    for (name, bytes) in contents(&tiny()) {
        std::fs::write(source.join(&name), bytes).expect("written");
    }
    let path = source.join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("read");
    let name = "model.layers.2.mlp.experts.3.up_proj.weight";
    let at = {
        let (start, header) = safetensors::SafeTensors::read_metadata(&bytes).expect("a header");
        let info = header.info(name).expect("the tensor");
        let cols = info.shape[1];
        8 + start + info.data_offsets.0 + 4 * (5 * cols + 2)
    };
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).expect("written");
    let place = rooms.path().join("pack");
    let conversion = Conversion::prepare(&source, &place, &Options::default()).expect("planned");
    let error = conversion.run(&Nobody).expect_err("refused").to_string();
    for word in [name, "row 5, column 2", "NaN", "model.safetensors"] {
        assert!(error.contains(word), "{word} is not in: {error}");
    }
}
