//! The house rules that a machine can check: lengths of files and functions, unsafe code in its
//! four places with its reasons, every package in its home, every file with its story.

use std::fs;
use std::path::{Path, PathBuf};

/// Files and functions are shorter than this, in lines.
const FILE_LINES_BELOW: usize = 600;
const FUNCTION_LINES_BELOW: usize = 70;

/// Where unsafe code may be; the queue's models share plain cells as its cursor does.
const UNSAFE_PLACES: [&str; 5] = [
    "stages/src/queue/",
    "stages/tests/loom_cursor.rs",
    "topology/src/arena/",
    "stages/src/load/uring.rs",
    "stages/kernels/src/simd/",
];

/// Packages that have one home each: crate name in code, prefixes of the home's path.
const HOMES: [(&str, &str); 20] = [
    ("hwlocality", "topology/src/hwloc.rs"),
    ("core_affinity", "topology/src/pin.rs"),
    ("memmap2", "topology/src/arena/"),
    ("io_uring", "stages/src/load/uring.rs"),
    ("crossbeam_channel", "src/engine/"),
    ("rayon", "src/checkpoint/ src/convert/"),
    ("rustix", "src/checkpoint/pack/ src/convert/ src/machine/drive.rs topology/src/pin.rs"),
    ("toml", "topology/src/plan_file.rs"),
    ("xxhash_rust", "src/checkpoint/pack/"),
    ("indicatif", "src/cli/"),
    ("rustyline", "src/cli/lines.rs"),
    ("ctrlc", "src/cli/interrupt.rs"),
    ("hdrhistogram", "stages/src/gauge/"),
    ("parking_lot", "stages/src/"),
    ("axum", "src/server/"),
    ("tokio", "src/server/"),
    ("hyper", "src/server/"),
    ("hyper_util", "src/server/"),
    ("tokio_io_timeout", "src/server/"),
    ("subtle", "src/server/"),
];

/// Code that doesn't ship: it may use packages for tests, but the length rules hold for it too.
fn is_test(path: &str) -> bool {
    ["tests/", "/tests/", "benches/", "examples/", "fuzz/"].iter().any(|part| path.contains(part))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file of the repository: path from the root, text.
fn sources() -> Vec<(String, String)> {
    fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).expect("a readable directory") {
            let path = entry.expect("a directory entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() && !is_output(&path, name) {
                walk(&path, found);
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }
    /// Where builds put things: no sources of ours.
    fn is_output(path: &Path, name: &str) -> bool {
        let parent = path.parent().unwrap_or(path);
        let beside_manifest = parent.join("Cargo.toml").exists();
        name.starts_with('.') || name == "target" && beside_manifest
    }
    let mut found = vec![];
    walk(root(), &mut found);
    found.sort();
    let relative = |path: &PathBuf| {
        let relative = path.strip_prefix(root()).expect("below the root");
        relative.to_str().expect("a UTF-8 path").to_owned()
    };
    let read = |path: PathBuf| (relative(&path), fs::read_to_string(&path).expect("UTF-8 source"));
    let sources: Vec<_> = found.into_iter().map(read).collect();
    assert!(sources.len() > 50, "the walk found the sources");
    sources
}

fn report(rule: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{rule}:\n{}", faults.join("\n"));
}

#[test]
fn files_are_short_and_start_with_their_story() {
    let mut faults = vec![];
    for (path, text) in sources() {
        let lines = text.lines().count();
        if lines >= FILE_LINES_BELOW {
            faults.push(format!("{path}: {lines} lines, not under {FILE_LINES_BELOW}"));
        }
        let first = text.lines().find(|line| !line.starts_with("#![") && !line.is_empty());
        if !first.is_some_and(|line| line.starts_with("//!")) {
            faults.push(format!("{path}: no story at the top"));
        }
    }
    report("every file starts with its story and is short", &faults);
}

/// First line and length of every function, found by its braces' indentation (rustfmt's layout).
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    // Visibility and qualifiers may stand before `fn`; nothing else that matters here does.
    let starts = |line: &str| {
        let code = code(line).trim_start();
        let before = code.split("fn ").next().unwrap_or_default();
        let qualifier = |word: &str| {
            ["const", "async", "unsafe", "extern"].contains(&word)
                || ["pub", "\"", "in ", "crate", "super"].iter().any(|part| word.starts_with(part))
        };
        code.contains("fn ") && before.split_whitespace().all(qualifier)
    };
    let mut found = vec![];
    for (first, line) in lines.iter().enumerate().filter(|(_, line)| starts(line)) {
        let indent = line.len() - line.trim_start().len();
        let closing = format!("{}}}", " ".repeat(indent));
        let rest = &lines[first..];
        let body = rest.iter().position(|line| line.ends_with('{') || line.ends_with(';'));
        if body.is_some_and(|body| rest[body].ends_with(';')) {
            continue;
        }
        if let Some(length) = rest.iter().position(|line| *line == closing) {
            found.push((first + 1, length + 1));
        }
    }
    found
}

#[test]
fn functions_fit_a_screen() {
    let mut faults = vec![];
    let mut count = 0;
    for (path, text) in sources() {
        for (line, length) in functions(&text) {
            count += 1;
            if length >= FUNCTION_LINES_BELOW {
                faults.push(format!("{path}:{line}: {length} lines"));
            }
        }
    }
    assert!(count > 500, "the scan found the functions: {count}");
    report("functions are under 70 lines", &faults);
}

/// The code of a line, without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// The code of a line without what stands between quotation marks.
fn code_outside_texts(line: &str) -> String {
    code(line).split('"').step_by(2).collect::<Vec<_>>().join(" ")
}

fn has_unsafe(line: &str) -> bool {
    let code = code_outside_texts(line);
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
}

#[test]
fn unsafe_code_is_in_its_four_places_with_its_reasons() {
    let mut faults = vec![];
    let mut blocks = 0;
    for (path, text) in sources() {
        if path.ends_with("whole/tidy.rs") {
            continue;
        }
        let allowed = UNSAFE_PLACES.iter().any(|place| path.starts_with(place));
        let lines: Vec<&str> = text.lines().collect();
        for (index, _) in lines.iter().enumerate().filter(|(_, line)| has_unsafe(line)) {
            blocks += 1;
            if !allowed {
                faults.push(format!("{path}:{}: unsafe code outside its places", index + 1));
            }
            // The reason stands right above, or (for a whole function) in its `# Safety` section.
            let above = &lines[index.saturating_sub(14)..=index];
            if !above.iter().any(|line| line.contains("SAFETY:") || line.contains("# Safety")) {
                faults.push(format!("{path}:{}: unsafe code without a SAFETY list", index + 1));
            }
        }
        let lifts = |line: &&str| code_outside_texts(line).contains("unsafe_code");
        if text.lines().any(|line| lifts(&line)) && !allowed {
            faults.push(format!("{path}: lifts the ban on unsafe code"));
        }
    }
    println!("{blocks} lines with unsafe code");
    assert!(blocks > 10, "the scan found the unsafe code");
    report("unsafe code", &faults);
}

#[test]
fn every_package_is_in_its_home() {
    let mut faults = vec![];
    for (path, text) in sources().into_iter().filter(|(path, _)| !is_test(path)) {
        for (name, home) in HOMES {
            let uses = |line: &str| {
                let code = code_outside_texts(line);
                let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
                code.contains(&format!("{name}::"))
                    || code.trim_start().starts_with("use ") && words.any(|word| word == name)
            };
            let at_home = home.split(' ').any(|home| path.starts_with(home));
            if !at_home && text.lines().any(uses) {
                faults.push(format!("{path}: uses {name}, whose home is {home}"));
            }
        }
    }
    report("packages live in one place", &faults);
}

#[test]
fn no_code_is_left_for_later() {
    let words = ["todo!(", "unimplemented!(", "FIXME", "allow(dead_code)", "allow(unused"];
    let mut faults = vec![];
    for (path, text) in sources().into_iter().filter(|(path, _)| !path.ends_with("whole/tidy.rs")) {
        for (index, line) in text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) {
                faults.push(format!("{path}:{}: {}", index + 1, line.trim()));
            }
        }
    }
    report("nothing is left for later", &faults);
}

#[test]
fn the_arrows_between_the_crates_point_one_way() {
    let forbidden = [
        ("topology/src/", ["millstream_stages", "millstream_kernels", "millstream::"]),
        ("stages/kernels/src/", ["millstream_stages", "millstream_topology", "millstream::"]),
        ("stages/src/", ["crate::checkpoint", "tokenizers::", "millstream::"]),
        ("src/checkpoint/", ["crate::engine", "crate::cli", "crate::text"]),
        ("src/families/", ["crate::engine", "crate::cli", "crate::text"]),
        ("src/convert/", ["crate::engine", "crate::cli", "crate::text"]),
        ("src/replay/", ["crate::engine", "crate::cli", "crate::text"]),
        ("src/learn/", ["crate::engine", "crate::cli", "crate::text"]),
        ("src/machine/", ["crate::engine", "crate::cli", "crate::text"]),
        ("src/bench/", ["crate::cli", "crate::text", "crate::tune"]),
        ("src/tune/", ["crate::cli", "crate::text", "crate::checkpoint"]),
        ("src/engine/", ["crate::cli", "crate::text", "crate::embedded"]),
        ("src/text/", ["crate::engine", "crate::cli", "crate::server"]),
        ("src/server/", ["crate::cli", "crate::checkpoint", "crate::embedded"]),
    ];
    let mut faults = vec![];
    for (path, text) in sources() {
        for (place, names) in &forbidden {
            let uses = |name: &&str| {
                let room = name.trim_start_matches("crate::").trim_end_matches("::");
                let grouped = |line: &str| {
                    let words = |line: &str| -> Vec<String> {
                        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
                        words.map(str::to_owned).collect()
                    };
                    line.trim_start().starts_with("use crate::{")
                        && words(line).iter().any(|word| word == room)
                };
                text.lines().any(|line| code(line).contains(*name) || grouped(line))
            };
            if path.starts_with(place) && names.iter().any(uses) {
                faults.push(format!("{path}: uses what is above it"));
            }
        }
    }
    report("rooms", &faults);
}
