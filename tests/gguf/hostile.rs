//! Hostile GGUF files: every damaged or malicious header gets a typed error that names the place,
//! never a panic, and never a large allocation.

use crate::writer::{Writer, Written, WrittenTensor};
use millstream::checkpoint::gguf::companions::companion;
use millstream::checkpoint::gguf::parse;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::sync::{Mutex, PoisonError};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Most bytes that parsing a hostile header may allocate at once, beside what the file has.
const ALLOCATED_MAX: usize = 1 << 20;
/// The counter is the process's, so cases run one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn sound() -> Writer {
    let mut writer = Writer::new(vec![
        ("general.architecture", Written::Text("llama".into())),
        ("a.list", Written::I32s(vec![1, 2, 3])),
    ]);
    writer.tensors = vec![tensor("one", &[32, 2], 8, 0), tensor("two", &[8], 0, 96)];
    writer.data_bytes = 128;
    writer
}

fn tensor(name: &str, lengths: &[u64], ggml: u32, offset: u64) -> WrittenTensor {
    WrittenTensor { name: name.to_owned(), lengths: lengths.to_vec(), ggml, offset }
}

fn refusal(case: &str, bytes: &[u8]) -> String {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let region = Region::new(ALLOCATOR);
    let outcome = parse(bytes, bytes.len() as u64);
    let allocated = region.change().bytes_allocated;
    assert!(allocated < ALLOCATED_MAX + 8 * bytes.len(), "{case}: {allocated} bytes allocated");
    match outcome {
        Ok(_) => panic!("{case}: was accepted"),
        Err(fault) => fault.to_string(),
    }
}

#[test]
fn sound_file_is_read() {
    for version in [2, 3] {
        let bytes = Writer { version, ..sound() }.bytes();
        let header = parse(&bytes[..], bytes.len() as u64).expect("sound");
        let tensors: Vec<_> = header.tensors.iter().map(|t| (t.name.as_str(), t.bytes)).collect();
        assert_eq!(tensors, [("one", 68), ("two", 32)]);
        assert_eq!(header.tensors[1].offset, bytes.len() as u64 - 32);
    }
}

/// A change of a sound file, and what its refusal says.
type Case = (&'static str, fn(&mut Writer), &'static str);

const CASES: &[Case] = &[
    ("magic", |w| w.magic = *b"GGML", "no GGUF file"),
    ("version 1", |w| w.version = 1, "version 1"),
    ("version 4", |w| w.version = 4, "version 4"),
    ("big-endian", |w| w.version = 3u32.swap_bytes(), "big-endian"),
    ("keys", |w| w.key_count = Some(u64::MAX), "number of keys"),
    ("one key more", |w| w.key_count = Some(3), "offset"),
    ("tensors", |w| w.tensor_count = Some(1 << 60), "number of tensors"),
    ("tensors beyond the file", |w| w.tensor_count = Some(1 << 17), "0 dimensions"),
    ("key twice", |w| w.metadata[1].0 = "general.architecture".into(), "twice"),
    ("type of a value", |w| w.metadata[1].1 = Written::Raw(13, vec![]), "type 13"),
    ("lists in a list", |w| w.metadata[1].1 = list(9, 1), "lists in lists"),
    ("type in a list", |w| w.metadata[1].1 = list(77, 1), "type 77"),
    ("long list", |w| w.metadata[1].1 = list(5, u64::MAX), "list of key \"a.list\""),
    ("list beyond the file", |w| w.metadata[1].1 = list(10, 1 << 22), "truncated"),
    ("texts beyond the file", |w| w.metadata[1].1 = list(8, 1 << 22), "length of key \"a.list\""),
    ("long text", |w| w.metadata[1].1 = Written::Raw(8, vec![0xff; 8]), "length of key \"a.list\""),
    ("text beyond the file", |w| w.metadata[1].1 = text_of(1 << 20), "truncated"),
    ("no UTF-8", |w| w.metadata[1].1 = Written::Raw(8, no_text()), "not UTF-8"),
    ("switch", |w| w.metadata[1].1 = Written::Raw(7, vec![2]), "neither 0 nor 1"),
    ("alignment of 0", |w| w.metadata[1] = alignment(0), "power of two"),
    ("alignment of 48", |w| w.metadata[1] = alignment(48), "power of two"),
    ("alignment of 2^31", |w| w.metadata[1] = alignment(1 << 31), "power of two"),
    (
        "alignment as a text",
        |w| w.metadata[1] = ("general.alignment".into(), Written::Text("32".into())),
        "a whole number",
    ),
    ("name twice", |w| w.tensors[1].name = "one".into(), "\"one\" occurs twice"),
    ("long name", |w| w.tensors[1].name = "x".repeat(300), "tensor's name"),
    ("no dimensions", |w| w.tensors[1].lengths = vec![], "0 dimensions"),
    ("five dimensions", |w| w.tensors[1].lengths = vec![1; 5], "5 dimensions"),
    ("type of a tensor", |w| w.tensors[1].ggml = 99, "type 99"),
    ("removed type", |w| w.tensors[1].ggml = 4, "type 4"),
    ("half a block", |w| w.tensors[0].lengths = vec![33, 2], "Q8_0"),
    ("large", |w| w.tensors[1].lengths = vec![1 << 40, 1 << 40], "too large"),
    ("large rows", |w| w.tensors[1].lengths = vec![u64::MAX, 2], "too large"),
    ("empty but large", |w| w.tensors[1].lengths = vec![0, 1 << 40, 1 << 40], "too large"),
    ("unaligned", |w| w.tensors[1].offset = 97, "no multiple of 32"),
    ("past the end", |w| w.tensors[1].offset = 128, "truncated"),
    ("offset that wraps", |w| w.tensors[1].offset = u64::MAX - 31, "truncated"),
    ("overlap", |w| w.tensors[1].offset = 64, "\"one\" and \"two\" overlap"),
];

fn list(kind: u32, count: u64) -> Written {
    Written::Raw(9, [&kind.to_le_bytes()[..], &count.to_le_bytes()[..]].concat())
}

fn text_of(bytes: u64) -> Written {
    Written::Raw(8, bytes.to_le_bytes().to_vec())
}

fn no_text() -> Vec<u8> {
    [&2u64.to_le_bytes()[..], &[0xc3, 0x28]].concat()
}

fn alignment(bytes: u32) -> (String, Written) {
    ("general.alignment".into(), Written::U32(bytes))
}

#[test]
fn damaged_headers_are_refused_by_place() {
    for (case, change, word) in CASES {
        let mut writer = sound();
        change(&mut writer);
        let message = refusal(case, &writer.bytes());
        assert!(message.contains(word), "{case}: {message}");
    }
}

#[test]
fn file_cut_off_anywhere_is_refused() {
    let bytes = sound().bytes();
    for end in 0..bytes.len() {
        refusal(&format!("cut at {end}"), &bytes[..end]);
    }
}

#[test]
fn flipped_bits_never_panic() {
    let bytes = sound().bytes();
    let header = bytes.len() - 128;
    for bit in 0..8 * header {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let region = Region::new(ALLOCATOR);
        // Some flips leave a sound file: another name or number.
        let _ = parse(&damaged[..], damaged.len() as u64);
        assert!(region.change().bytes_allocated < ALLOCATED_MAX, "bit {bit}");
    }
}

#[test]
fn flipped_bits_of_whole_files_never_panic_beyond_the_header() {
    let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/gguf");
    let mut made = 0;
    for seed in std::fs::read_dir(seeds).expect("the seeds of the fuzz target") {
        let bytes = std::fs::read(seed.expect("an entry").path()).expect("a seed");
        for bit in 0..8 * bytes.len().min(1024) {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let Ok(header) = parse(&damaged[..], damaged.len() as u64) else { continue };
            for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
                made += usize::from(companion(&header, name).is_ok());
            }
        }
    }
    assert!(made > 1000, "{made} small files were made");
}
